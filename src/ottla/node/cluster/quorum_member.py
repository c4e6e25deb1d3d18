"""A node's part in the quorum: its controller listener, the metadata log, the controller while it leads.

Every node has all of it, voter or not; a broker that only follows never has an active controller, and no
controller listener. It runs before any other part of the node starts, since nothing else is known without the
metadata, and until every other part has stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from ottla.metadata.controller.quorum_controller import ActiveController, QuorumController
from ottla.metadata.features import supported_features
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
from ottla.node.config.listeners import Endpoint, registration_listeners
from ottla.node.config.schema import TableSchema
from ottla.node.network.connection import ClientConnection, RequestDispatcher
from ottla.node.network.node_security import NodeSecurity
from ottla.node.network.request_statistics import NetworkStatistics
from ottla.node.network.server import SocketServer
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.controller_registration import (
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
    Feature,
    Listener,
)
from ottla.protocol.schema import Response
from ottla.runtime.address import Address
from ottla.runtime.runtime import Runtime

if TYPE_CHECKING:
    from ottla.metadata.controller.controller import Controller
    from ottla.metadata.controller.state import Decision, Result
    from ottla.metadata.log.loader import Subscriber
    from ottla.metadata.records import MetadataRecord
    from ottla.node.cluster.zookeeper_member import ZooKeeperMember
    from ottla.node.network.login import SaslListener
    from ottla.runtime.tasks import TaskSupervisor

log = logging.getLogger(__name__)

T = TypeVar("T")

# How long a node waits for the quorum before it logs that it does, and again.
_PATIENCE_SECONDS: Final = 10.0
# How long a leader that stops waits until the others know.
_RESIGN_MS: Final = 1_000
_REGISTRATION_VERSION: Final = 0
_REGISTRATION_RETRY_SECONDS: Final = 0.1
# A cluster of an older metadata.version has no record for the registration of a controller.
_REGISTRATION_FINAL: Final = frozenset((ErrorCode.NONE, ErrorCode.UNSUPPORTED_VERSION))


class QuorumMember:
    """`metadata`, `active_controller`, the channels and `liveness` are there once it is open."""

    def __init__(
        self,
        runtime: Runtime,
        config: DynamicBrokerConfig,
        dispatcher_for: Callable[[Endpoint], RequestDispatcher],
        login_for: Callable[[Endpoint], SaslListener | None],
        local_controller: LocalController,
        security: NodeSecurity,
        statistics: NetworkStatistics | None = None,
        tasks: TaskSupervisor | None = None,
    ) -> None:
        self._runtime: Final = runtime
        self._tasks: Final = tasks
        # The legacy mode, in which there is no quorum.
        self._zookeeper: ZooKeeperMember | None = None
        self._config: Final = config
        self._local_controller: Final = local_controller
        self._security: Final = security
        self._registration: asyncio.Task[None] | None = None
        self._upkeep: asyncio.Task[None] | None = None
        # Set once requests of the quorum are answered.
        self.opened: Final = asyncio.Event()
        self.server: Final = SocketServer(
            runtime.network,
            config.current,
            dispatcher_for,
            self._on_connection_closed,
            tls_for=security.listener_tls,
            login_for=login_for,
            statistics=statistics,
        )
        config.add_reconfigurable(self.server.configure)
        # What the node was formatted with.
        self.formatted_records: Sequence[MetadataRecord] = ()
        self.metadata: MetadataLog
        self.active_controller: ActiveController
        # The requests of this node to the active controller, and those of clients that it forwards.
        self.controllers: ControllerChannel
        self.forwards: ControllerChannel
        self.liveness: BrokerLivenessProbe

    async def open(
        self,
        cluster_id: str,
        directory_id: bytes,
        endpoints: Sequence[Endpoint],
        on_metadata: Subscriber,
    ) -> None:
        """Take part in the quorum. `directory_id` is the id of the metadata directory, `endpoints` are where
        other nodes reach this controller, and `on_metadata` is called with each step of the metadata.
        """
        runtime, config = self._runtime, self._config.current
        metadata_dir = config.metadata_log_dir
        bootstrap = await runtime.pool.run(read_bootstrap, runtime.disk, metadata_dir)
        self.formatted_records = bootstrap
        addresses = {each.name: Address(each.host, each.port) for each in endpoints}
        if config.uses_zookeeper:
            metadata = await self._open_zookeeper(cluster_id, directory_id, addresses)
        else:
            metadata = await MetadataLog.open(
                runtime,
                metadata_dir,
                node_id=config.node_id,
                directory_id=directory_id,
                cluster_id=cluster_id,
                static_voters=static_voters(config),
                endpoints=addresses,
                bootstrap=bootstrap_servers(config),
                listener=config.controller_listener_names[0],
                config=metadata_log_config(config),
                quorum=quorum_config(config),
                security=self._security.controller,
            )
        self.metadata = metadata
        loop = asyncio.get_running_loop()

        def activate() -> QuorumController:
            loop.call_soon(self.liveness.on_controller_active)
            settings = controller_settings(self._config.current, cluster_id)
            schema = TableSchema(lambda: self._config.current)
            if self._zookeeper is not None:
                return self._zookeeper.activate(settings, schema, bootstrap)
            return QuorumController.activate(runtime, metadata, settings, schema, bootstrap)

        self.active_controller = ActiveController(metadata, activate)
        self.liveness = BrokerLivenessProbe(
            runtime, self._config, metadata, self.active_controller, self._security.inter_broker
        )
        metadata.subscribe(on_metadata)
        self.controllers = self.controller_channel("ottla-broker")
        self.forwards = self.controller_channel("ottla-forwarding", is_patient=True)
        metadata.start()
        self.opened.set()

    async def _open_zookeeper(
        self, cluster_id: str, directory_id: bytes, endpoints: Mapping[str, Address]
    ) -> MetadataLog:
        assert self._tasks is not None
        config = self._config.current
        member_class = await self._runtime.pool.run(_import_zookeeper_member)
        self._zookeeper = member = await member_class.connect(self._runtime, self._tasks, config)
        try:
            return await member.open(config, cluster_id, directory_id, endpoints, self._security.controller)
        except BaseException:
            await member.close()
            raise

    @property
    def is_sole_voter(self) -> bool:
        """Whether no other node could be the controller."""
        return self._zookeeper is None and self.metadata.voters.ids == (self._config.current.node_id,)

    def announcer(self, incarnation_id: bytes, endpoints: Sequence[Endpoint]) -> Callable[[], None] | None:
        """What has to know that the broker of this node is ready to serve; None with a quorum."""
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

    # The registration of this controller

    def register(self, incarnation_id: bytes, endpoints: Sequence[Endpoint]) -> None:
        """Register this controller with its addresses and features, in the background."""
        request = ControllerRegistrationRequest(
            controller_id=self._config.current.node_id,
            incarnation_id=incarnation_id,
            listeners=registration_listeners(endpoints, Listener),
            features=supported_features(Feature),
        )
        self._registration = asyncio.create_task(self._register(request), name="controller registration")
        self._upkeep = asyncio.create_task(
            self._keep_registered(request), name="upkeep of the controller registration"
        )

    async def _register(self, request: ControllerRegistrationRequest) -> None:
        await self.controllers.request_until(
            request,
            _REGISTRATION_VERSION,
            _REGISTRATION_FINAL,
            on_refused=_on_registration_refused,
            retry_seconds=_REGISTRATION_RETRY_SECONDS,
        )

    async def _keep_registered(self, request: ControllerRegistrationRequest) -> None:
        """Register again when the registration was removed, or when the cluster gets a metadata.version that
        has registrations.
        """
        await self.wait_until_registered()
        while True:
            await self.metadata.until(lambda: self._is_registered or not self._has_registrations)
            await self.metadata.until(lambda: self._has_registrations and not self._is_registered)
            log.warning("the registration of this controller is gone, and is made again")
            await self._register(request)

    @property
    def _has_registrations(self) -> bool:
        return self.metadata.image.metadata_version.controller_registration

    @property
    def _is_registered(self) -> bool:
        return self._config.current.node_id in self.metadata.image.cluster.controllers

    def waits_for(self) -> str:
        """What the registration waits for, as text for messages."""
        leader = self.metadata.leader_id
        return "no controller is known" if leader is None else f"no answer of the controller, node {leader}"

    async def wait_until_registered(self) -> None:
        if self._registration is not None:
            await self._registration

    def _on_connection_closed(self, connection: ClientConnection) -> None:
        if self.opened.is_set():
            self.liveness.on_connection_closed(connection)

    async def close(self) -> None:
        """Hand leadership over, and close the metadata log."""
        tasks = [task for task in (self._registration, self._upkeep) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.liveness.close()
        self.controllers.close()
        self.forwards.close()
        await self.metadata.resign(_RESIGN_MS)
        await self.metadata.close()


def _on_registration_refused(code: ErrorCode, response: Response) -> None:
    assert isinstance(response, ControllerRegistrationResponse)
    log.warning("the controller did not register this one: %s %s", code.name, response.error_message)


def _import_zookeeper_member() -> type[ZooKeeperMember]:
    """Import the legacy mode, which would hold the event loop for too long."""
    from ottla.node.cluster.zookeeper_member import ZooKeeperMember

    return ZooKeeperMember
