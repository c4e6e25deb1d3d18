"""What the broker and the controller of one node share: Kafka's `SharedServer`.

All of it is there before the node starts; its directories, its place in the quorum and its servers are what
the start makes of it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from ottla.metadata.controller.quorum_controller import ActiveController
from ottla.metadata.image.delta import MetadataDelta
from ottla.metadata.image.image import MetadataImage
from ottla.node.api.dispatch import decide_locally
from ottla.node.api.request_gate import RequestGate
from ottla.node.api.services import ApiServices, NodeServices
from ottla.node.cluster.quorum_member import QuorumMember
from ottla.node.config.dynamic import DynamicBrokerConfig
from ottla.node.config.listeners import Endpoint
from ottla.node.config.node_config import NodeConfig
from ottla.node.http.listener import NodeHttp
from ottla.node.network.endpoints import NodeEndpoints
from ottla.node.network.memory_budget import MemoryBudget
from ottla.node.network.node_security import NodeSecurity
from ottla.node.network.request_statistics import NetworkStatistics
from ottla.node.server.controller_tasks import ControllerTasks
from ottla.node.server.node_metrics import (
    add_node_info,
    add_process_collector,
    add_quorum_collector,
)
from ottla.node.server.node_state import NodeState
from ottla.node.server.stop_sequence import StopSequence
from ottla.node.server.storage import NodeStorage, open_storage
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.schema import Request, Response
from ottla.runtime.disk import is_out_of_space
from ottla.runtime.heavy_work import WORKERS, HeavyWork
from ottla.runtime.metrics import MetricsRegistry
from ottla.runtime.pool import separate_pool
from ottla.runtime.runtime import Runtime
from ottla.runtime.tasks import TaskSupervisor
from ottla.security.quota.quota_managers import QuotaManagers
from ottla.security.quota.rate import QuotaWindows

if TYPE_CHECKING:
    from ottla.metadata.records import MetadataRecord
    from ottla.node.server.process_status import ProcessWatch
    from ottla.runtime.clock import Clock
    from ottla.runtime.http_server import HttpMount
    from ottla.security.authorizer.standard_authorizer import StandardAuthorizer

log = logging.getLogger(__name__)

WAITING_FOR_LEADER: Final = "waiting for an active controller"


class SharedServer:
    def __init__(
        self, runtime: Runtime, config: NodeConfig, *, default_http: str, watch: ProcessWatch | None
    ) -> None:
        """`default_http` is where HTTP is answered if no setting says so and the address is free."""
        self.runtime: Final = runtime
        self.started_ms: Final = runtime.clock.wall_ms()
        self.incarnation_id: Final = runtime.random.uuid()
        self.state: Final = NodeState()
        self.stop_sequence: Final = StopSequence()
        # The background tasks of all parts: none of them ends unnoticed.
        self.tasks: Final = TaskSupervisor(runtime.clock, self.state.fail, is_lack_of_room)
        self.dynamic_config: Final = DynamicBrokerConfig(config)
        self.metrics: Final = MetricsRegistry()
        is_measured = config.flag("metrics.enable")
        self.network_statistics: Final = NetworkStatistics(
            runtime.clock.monotonic_ns if is_measured else None
        )
        self.authorizer: Final = configured_authorizer(config, runtime.clock)
        self.quotas: Final = QuotaManagers(
            runtime.clock,
            QuotaWindows(config.number("quota.window.num"), config.number("quota.window.size.seconds")),
            QuotaWindows(
                config.number("controller.quota.window.num"),
                config.number("controller.quota.window.size.seconds"),
            ),
        )
        self.security: Final = NodeSecurity(runtime, self.dynamic_config)
        self.endpoints: Final = NodeEndpoints(runtime.network, self.dynamic_config)
        self.memory: Final = MemoryBudget()
        # Threads of its own: fsyncs and cold reads do not wait for it.
        threads = separate_pool(runtime.pool, WORKERS, "heavy work")
        self.heavy_work: Final = HeavyWork(
            runtime.pool if threads is None else threads, self.memory.clients.count_work
        )
        self._heavy_work_threads: Final = threads
        # The requests of the quorum are answered before those of clients: without them no node gets ready.
        self.controller_gate: Final = RequestGate()
        self.broker_gate: Final = RequestGate()
        self.http: Final = NodeHttp(
            runtime,
            config,
            self.tasks,
            default=default_http,
            image=self.image,
            authorizer=self.authorizer,
        )
        self.http.mount("/metrics", self._load_metrics)
        add_process_collector(self.metrics, self.started_ms, runtime.pool, self.tasks, self.http, watch)
        # Elections of a replica that was not in sync, by the active controller on this node.
        self.unclean_elections = 0

    @property
    def config(self) -> NodeConfig:
        """The settings in force. They are replaced by a change, never modified."""
        return self.dynamic_config.current

    # Starting

    async def open_http(self) -> None:
        """Load the certificates, and answer over HTTP from then on."""
        self.state.enter("loading its certificates")
        await self.security.load()
        self.state.enter("checking its listeners")
        await self.http.open(self.security.listener_tls)
        self.stop_sequence.add(self.http.close)
        if self.security.has_certificates:
            self.stop_sequence.add(self.tasks.start("renewal of certificates", self.security.watch).stop)
        await self.endpoints.check()

    async def open_storage(self) -> NodeStorage:
        """Lock the directories, and take the id of the node from them where no setting has it."""
        self.state.enter("opening its directories")
        storage = await self.runtime.pool.run(open_storage, self.runtime, self.config)

        async def release() -> None:
            storage.release()

        self.stop_sequence.add(release)
        if storage.node_id != self.config.node_id:
            self.dynamic_config.current = NodeConfig({**self.config.given, "node.id": str(storage.node_id)})
        add_node_info(self.metrics, storage.node_id, self.config.names("process.roles"), storage.cluster_id)
        return storage

    async def join_quorum(self, storage: NodeStorage, endpoints: Sequence[Endpoint]) -> QuorumMember:
        """Take part in the quorum, follow the metadata, and answer other nodes; return without waiting for a
        leader. `endpoints` are where other nodes reach the controller of this one.
        """
        self.state.enter("opening its metadata log")
        quorum = await QuorumMember.open(
            self.runtime,
            self.dynamic_config,
            self.security,
            self.tasks,
            storage.cluster_id,
            storage.directories[self.config.metadata_log_dir],
            endpoints,
            self._decide_locally,
        )
        self.stop_sequence.add(quorum.close)
        image = quorum.metadata.subscribe(partial(self._on_metadata_update, quorum.active_controller))
        self.quotas.update(image.client_quotas, image.client_quotas)
        self.controller_gate.open(ApiServices(self._services(storage.cluster_id, quorum), quorum))
        quorum.metadata.start()
        tasks = ControllerTasks(self.tasks, self.dynamic_config, quorum, self.state.fail)
        tasks.start()
        self.stop_sequence.add(tasks.stop)
        add_quorum_collector(
            self.metrics,
            self.runtime.clock,
            quorum,
            lambda: self.unclean_elections,
            is_controller=self.config.is_controller,
        )
        return quorum

    def _services(self, cluster_id: str, quorum: QuorumMember) -> NodeServices:
        return NodeServices(
            runtime=self.runtime,
            dynamic_config=self.dynamic_config,
            metadata=quorum.metadata,
            cluster_id=cluster_id,
            security=self.security,
            authorizer=self.authorizer,
            endpoints=self.endpoints,
            quotas=self.quotas,
            network_statistics=self.network_statistics,
            heavy_work=self.heavy_work,
        )

    async def wait_for_leader(self, quorum: QuorumMember) -> None:
        """Return once the quorum has a leader, and the settings that the cluster has are in force."""
        self.state.enter(WAITING_FOR_LEADER)
        await quorum.wait_for_leader()
        image = quorum.metadata.image
        self.dynamic_config.reload(image)
        if self.authorizer is not None:
            self.authorizer.complete_initial_load(image)

    # While the node runs

    def image(self) -> MetadataImage:
        """The newest committed metadata; empty before there are any."""
        services = self.controller_gate.services
        return MetadataImage.EMPTY if services is None else services.node.image

    def formatted_records(self) -> Sequence[MetadataRecord]:
        """What the node was formatted with, once its metadata log is open."""
        services = self.controller_gate.services
        return () if services is None else services.controller.formatted_records

    async def _decide_locally(self, request: Request, version: int) -> Response | None:
        """Have the controller of this node decide a request of its own broker."""
        return await decide_locally(await self.controller_gate.wait(), request, version)

    def _on_metadata_update(
        self, active_controller: ActiveController, delta: MetadataDelta, image: MetadataImage
    ) -> None:
        if self.authorizer is not None:
            self.authorizer.apply(delta, image)
        if self.dynamic_config.is_changed_by(delta):
            try:
                self.dynamic_config.reload(image)
            except Exception:
                log.exception("the changed settings of this broker could not be put in force")
        if delta.changed_quotas:
            self.quotas.update(image.client_quotas, delta.changed_quotas)
        if active_controller.current is not None:
            # Only here, so that neither other controllers nor a replay after a restart count one again.
            self.unclean_elections += sum(topic.unclean_elections() for topic in delta.topics.values())

    async def _load_metrics(self) -> HttpMount:
        from ottla.node.metrics.endpoint import MetricsEndpoint

        return MetricsEndpoint(self.metrics, self.runtime.clock).routes()

    async def stop(self) -> None:
        """Stop what was started, the last first. Stopping twice is harmless."""
        self.state.begin_stop()
        await self.stop_sequence.run()
        if self._heavy_work_threads is not None:
            self._heavy_work_threads.abandon()


def is_lack_of_room(error: Exception) -> bool:
    """Whether a disk has no room, or cannot be written: its directory has logged why."""
    if isinstance(error, OSError):
        return is_out_of_space(error)
    return isinstance(error, KafkaError) and error.code is ErrorCode.KAFKA_STORAGE_ERROR


def configured_authorizer(config: NodeConfig, clock: Clock) -> StandardAuthorizer | None:
    """Make the authorizer of `authorizer.class.name`; none if that is empty."""
    if not config.text("authorizer.class.name"):
        return None
    from ottla.security.authorizer.audit_log import AuditLog
    from ottla.security.authorizer.standard_authorizer import StandardAuthorizer

    return StandardAuthorizer.configured(config.given, AuditLog(lambda: clock.monotonic_ns() / 1e9))
