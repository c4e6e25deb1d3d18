"""A node's part in the quorum: the metadata log, the controller while it leads, and the ways to it otherwise.

Every node has all of it, voter or not; on a broker that only follows no controller is ever active. It opens
before any other part of the node starts, since nothing else is known without the metadata, and closes after
every other part.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from ottla.metadata.controller.quorum_controller import ActiveController, QuorumController
from ottla.metadata.log.bootstrap_metadata import read_bootstrap
from ottla.metadata.log.metadata_log import MetadataLog
from ottla.node.cluster.broker_liveness_probe import BrokerLivenessProbe
from ottla.node.cluster.controller_channel import ControllerChannel, LocalController
from ottla.node.config.component_settings import (
    bootstrap_servers,
    controller_settings,
    metadata_log_config,
    quorum_config,
    static_voters,
)
from ottla.node.config.dynamic import DynamicBrokerConfig
from ottla.node.config.listeners import Endpoint
from ottla.node.config.schema import NodeConfigSchema
from ottla.node.network.node_security import NodeSecurity
from ottla.runtime.address import Address
from ottla.runtime.runtime import Runtime

if TYPE_CHECKING:
    from ottla.metadata.controller.controller import Controller
    from ottla.metadata.controller.state import Decision, Result
    from ottla.metadata.records import MetadataRecord
    from ottla.node.cluster.zookeeper_member import ZooKeeperMember
    from ottla.runtime.tasks import TaskSupervisor

log = logging.getLogger(__name__)

T = TypeVar("T")

# How long a node waits for the quorum before it logs that it does, and again.
_PATIENCE_SECONDS: Final = 10.0
# How long a leader that stops waits until the others know.
_RESIGN_MS: Final = 1_000


class QuorumMember:
    """Make one with `open`."""

    def __init__(
        self,
        runtime: Runtime,
        config: DynamicBrokerConfig,
        security: NodeSecurity,
        cluster_id: str,
        formatted_records: Sequence[MetadataRecord],
        metadata: MetadataLog,
        local_controller: LocalController,
        zookeeper: ZooKeeperMember | None,
    ) -> None:
        """`formatted_records` are what the node was formatted with; `zookeeper` is the legacy mode, in which
        there is no quorum.
        """
        self._runtime: Final = runtime
        self._config: Final = config
        self._security: Final = security
        self._cluster_id: Final = cluster_id
        self.formatted_records: Final = formatted_records
        self._local_controller: Final = local_controller
        self._zookeeper: Final = zookeeper
        self.metadata: Final = metadata
        self.active_controller: Final = ActiveController(metadata, self._activate)
        self.liveness: Final = BrokerLivenessProbe(
            runtime, config, metadata, self.active_controller, security.inter_broker
        )
        # The requests of this node to the active controller, and those of clients that it forwards.
        self.controllers: Final = self.controller_channel("ottla-broker")
        self.forwards: Final = self.controller_channel("ottla-forwarding", is_patient=True)

    @classmethod
    async def open(
        cls,
        runtime: Runtime,
        config: DynamicBrokerConfig,
        security: NodeSecurity,
        tasks: TaskSupervisor,
        cluster_id: str,
        directory_id: bytes,
        endpoints: Sequence[Endpoint],
        local_controller: LocalController,
    ) -> QuorumMember:
        """Load the metadata log; `start` takes part in the quorum. `directory_id` is the id of the metadata
        directory, and `endpoints` are where other nodes reach the controller of this one.
        """
        settings = config.current
        metadata_dir = settings.metadata_log_dir
        bootstrap = await runtime.pool.run(read_bootstrap, runtime.disk, metadata_dir)
        addresses = {each.name: Address(each.host, each.port) for each in endpoints}
        zookeeper = None
        if settings.uses_zookeeper:
            zookeeper_class = await runtime.pool.run(_import_zookeeper_member)
            zookeeper = await zookeeper_class.connect(runtime, tasks, settings)
            try:
                metadata = await zookeeper.open(
                    settings, cluster_id, directory_id, addresses, security.controller
                )
            except BaseException:
                await zookeeper.close()
                raise
        else:
            metadata = await MetadataLog.open(
                runtime,
                metadata_dir,
                node_id=settings.node_id,
                directory_id=directory_id,
                cluster_id=cluster_id,
                static_voters=static_voters(settings),
                endpoints=addresses,
                bootstrap=bootstrap_servers(settings),
                listener=settings.controller_listener_names[0],
                config=metadata_log_config(settings),
                quorum=quorum_config(settings),
                security=security.controller,
            )
        return cls(runtime, config, security, cluster_id, bootstrap, metadata, local_controller, zookeeper)

    def _activate(self) -> QuorumController:
        asyncio.get_running_loop().call_soon(self.liveness.on_controller_active)
        settings = controller_settings(self._config.current, self._cluster_id)
        schema = NodeConfigSchema(lambda: self._config.current)
        if self._zookeeper is not None:
            return self._zookeeper.activate(settings, schema, self.formatted_records)
        return QuorumController.activate(
            self._runtime, self.metadata, settings, schema, self.formatted_records
        )

    def start(self) -> None:
        """Take part in the quorum."""
        self.metadata.start()

    @property
    def is_sole_voter(self) -> bool:
        """Whether no other node could be the controller."""
        return self._zookeeper is None and self.metadata.voters.ids == (self._config.current.node_id,)

    def announcer(self, incarnation_id: bytes, endpoints: Sequence[Endpoint]) -> Callable[[], None] | None:
        """What tells ZooKeeper that the broker of this node is ready to serve; None with a quorum."""
        if self._zookeeper is None:
            return None
        config = self._config.current
        return self._zookeeper.announcer(config.node_id, incarnation_id, endpoints, config.rack)

    def control(
        self, decide: Callable[[Controller], Result[T] | Decision[T]], *, for_client: bool = True
    ) -> Awaitable[T]:
        """Let the active controller of this node decide; the response comes once the decision is committed
        and, for a client, applied here. KafkaError NOT_CONTROLLER if it is not on this node.
        """
        return self.active_controller.require().decide(decide, for_client=for_client)

    def controller_channel(self, client_id: str, *, is_patient: bool = False) -> ControllerChannel:
        """Make a channel to the active controller, with connections of its own."""
        return ControllerChannel(
            self._runtime.network,
            client_id,
            self._config,
            self.metadata,
            self.active_controller,
            self._local_controller,
            is_patient=is_patient,
            security=self._security.controller,
        )

    async def wait_for_leader(self) -> None:
        """Return once the quorum has a leader, and all that it says is committed has been read."""
        metadata = self.metadata
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    await metadata.until(lambda: metadata.is_caught_up and not metadata.image.is_empty)
                    return
            if metadata.leader_id is None:
                if self._zookeeper is not None:
                    log.warning("the node waits for a controller: %s", metadata.missing_leader_text)
                    continue
                log.warning(
                    "the quorum has no leader yet: most of its voters (%s) must run and reach each other",
                    metadata.known_voters,
                )
            else:
                log.warning("the metadata of the active controller, %d, is still read", metadata.leader_id)

    async def close(self) -> None:
        """Hand leadership over, and close the metadata log."""
        await self.liveness.close()
        self.controllers.close()
        self.forwards.close()
        await self.metadata.resign(_RESIGN_MS)
        await self.metadata.close()


def _import_zookeeper_member() -> type[ZooKeeperMember]:
    """Import the legacy mode, which would hold the event loop for too long."""
    from ottla.node.cluster.zookeeper_member import ZooKeeperMember

    return ZooKeeperMember
