"""A node's part in the quorum: its listener for controllers, the metadata log, the controller if it leads.

All of it is there on every node, voter or not; a broker that only follows never has an active controller, and
no such listener. It runs before anything else of the node does, since nothing else is known without the
metadata, and until everything else has stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from ottla.metadata.controller.quorum_controller import ActiveController, QuorumController
from ottla.metadata.log.metadata_log import MetadataLog
from ottla.metadata.storage import read_bootstrap
from ottla.node.cluster.broker_liveness_probe import BrokerLivenessProbe
from ottla.node.cluster.controller_channel import ControllerChannel
from ottla.node.config.component_settings import (
    bootstrap_servers,
    controller_settings,
    metadata_log_config,
    quorum_config,
    static_voters,
)
from ottla.node.config.listeners import Endpoint
from ottla.node.config.schema import TableSchema
from ottla.node.network.server import SocketServer
from ottla.runtime.address import Address

if TYPE_CHECKING:
    from ottla.metadata.controller.controller import Controller
    from ottla.metadata.controller.state import Result
    from ottla.metadata.log.loader import Subscriber
    from ottla.node.cluster.controller_channel import LocalController
    from ottla.node.network.connection import RequestDispatcher
    from ottla.node.node import Node
    from ottla.node.storage import NodeStorage

log = logging.getLogger(__name__)

T = TypeVar("T")

# How long a node waits for the quorum before it says so, and again.
_PATIENCE_SECONDS: Final = 10.0
# How long a leader that stops waits until the others know.
_RESIGN_MS: Final = 1_000


class QuorumMember:
    """`metadata` and `active_controller` are there once it is open."""

    def __init__(
        self,
        node: Node,
        service_for: Callable[[Endpoint], RequestDispatcher],
        decide_locally: LocalController,
    ) -> None:
        self._node: Final = node
        self._registering: asyncio.Task[None] | None = None
        # Set once the quorum's requests are worked on.
        self.opened: Final = asyncio.Event()
        self.metadata: MetadataLog
        self.active_controller: ActiveController
        # The ways to the active controller: for what this node asks, and for what it passes on.
        self.decide_locally: Final = decide_locally
        self.controllers: Final = ControllerChannel(node, "ottla-broker", decide_locally)
        self.forwards: Final = ControllerChannel(node, "ottla-forwarding", decide_locally)
        self.liveness: Final = BrokerLivenessProbe(node)
        self.server: Final = SocketServer(
            node.runtime.network, node.config, service_for, self.liveness.connection_closed
        )

    def control(self, decide: Callable[[Controller], Result[T]]) -> Awaitable[T]:
        """Let the active controller of this node decide; the response comes once the decision is committed
        and applied here. KafkaError NOT_CONTROLLER if it is not on this node.
        """
        controller = self.active_controller.require()
        return controller.commit(decide(controller.controller))

    async def open(self, storage: NodeStorage, endpoints: Sequence[Endpoint], follow: Subscriber) -> None:
        """Take part in the quorum; `endpoints` are where this controller is reached, and `follow` is called
        with each step of the metadata.
        """
        node, config = self._node, self._node.config
        metadata_dir = config.metadata_log_dir
        bootstrap = await node.runtime.pool.run(read_bootstrap, node.runtime.disk, metadata_dir)
        self.metadata = metadata = await MetadataLog.open(
            node.runtime,
            metadata_dir,
            node_id=config.node_id,
            directory_id=storage.directories[metadata_dir],
            cluster_id=storage.cluster_id,
            static_voters=static_voters(config),
            endpoints={each.name: Address(each.host, each.port) for each in endpoints},
            bootstrap=bootstrap_servers(config),
            listener=config.controller_listener_names[0],
            config=metadata_log_config(config),
            quorum=quorum_config(config),
        )
        loop = asyncio.get_running_loop()

        def activate() -> QuorumController:
            loop.call_soon(self.liveness.took_over)
            return QuorumController.activate(
                node.runtime,
                metadata,
                controller_settings(node.config, storage.cluster_id),
                TableSchema(lambda: node.config),
                bootstrap,
            )

        self.active_controller = ActiveController(metadata, activate)
        metadata.subscribe(follow)
        self.controllers.follow_leader()
        self.forwards.follow_leader()
        metadata.start()
        self.opened.set()

    async def until_there_is_one(self) -> None:
        """Return once there is a leader, and all that it says is committed has been read."""
        metadata = self.metadata
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    await metadata.until(lambda: metadata.is_caught_up and not metadata.image.is_empty)
                    return
            if metadata.leader_id is None:
                log.warning(
                    "the quorum has no leader yet: most of its voters (%s) must run and reach each other",
                    metadata.known_voters,
                )
            else:
                log.warning("the metadata of the quorum's leader, %d, is still read", metadata.leader_id)

    def register(self, incarnation_id: bytes, endpoints: Sequence[Endpoint]) -> None:
        """Have this controller written down with its addresses, in the background."""
        from ottla.node.cluster.controller_registration import register_controller

        work = register_controller(self._node, incarnation_id, endpoints)
        self._registering = asyncio.create_task(work, name="controller registration")

    async def registered(self) -> None:
        if self._registering is not None:
            await self._registering

    async def close(self) -> None:
        """Hand leadership over, and close the metadata log."""
        if self._registering is not None:
            self._registering.cancel()
            await asyncio.gather(self._registering, return_exceptions=True)
        await self.liveness.close()
        self.controllers.close()
        self.forwards.close()
        await self.metadata.resign(_RESIGN_MS)
        await self.metadata.close()
