"""A node: broker, controller or both, from its data directories to its listeners.

`Node` is Kafka's `KafkaRaftServer` with its `BrokerServer` and `ControllerServer`. It starts from the bottom
up: directories, the controller's listener, the metadata log; then, if it is a broker, it registers, still
fenced, reads the metadata up to there, loads its logs, takes up its replicas, opens its listeners and asks to
be unfenced. It stops in the opposite order (`StopSequence`). Requests that arrive before it is ready wait,
except those of the quorum, without which no node gets ready. Each part takes the parts that it uses; only
this module knows them all.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import cached_property, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from ottla.log.config.log_config import LogConfig
from ottla.log.directory.directory import GOES_ON_WITH_ROOM, LogDirectory
from ottla.log.directory.meta_properties import StorageError, is_reserved_directory
from ottla.log.log_manager import LogManager
from ottla.log.segment import handles
from ottla.log.unified_log import UnifiedLog
from ottla.metadata.image.delta import MetadataDelta
from ottla.metadata.image.entities import ConfigResource, ConfigResourceType
from ottla.metadata.image.image import MetadataImage
from ottla.node.api.dispatch import Dispatcher, decide_locally
from ottla.node.api.services import ApiServices
from ottla.node.cluster.alter_replica_log_dirs import AlterReplicaLogDirsManager
from ottla.node.cluster.broker_lifecycle import BrokerLifecycleManager
from ottla.node.cluster.damaged_replicas import DamagedReplicas
from ottla.node.cluster.quorum_member import QuorumMember
from ottla.node.cluster.replication import BrokerReplication
from ottla.node.config.component_settings import producer_config
from ottla.node.config.dynamic import DynamicBrokerConfig
from ottla.node.config.errors import NodeFailed
from ottla.node.config.listeners import Endpoint
from ottla.node.config.node_config import NodeConfig
from ottla.node.coordinators.coordinators import Coordinators
from ottla.node.coordinators.producer_id_manager import ProducerIdManager
from ottla.node.fetch.session import FetchSessionCache
from ottla.node.http.listener import NodeHttp
from ottla.node.http.mounts import MountAccess
from ottla.node.metrics.node_metrics import NodeMetrics
from ottla.node.network.endpoints import NodeEndpoints
from ottla.node.network.node_security import NodeSecurity
from ottla.node.network.request_statistics import NetworkStatistics
from ottla.node.network.server import SocketServer
from ottla.node.server.metadata_publisher import BrokerMetadataPublisher
from ottla.node.server.process_status import StorageStatus
from ottla.node.server.start_warnings import start_warnings
from ottla.node.server.stop_sequence import StopSequence
from ottla.node.server.storage import NodeStorage, clean_shutdown_epoch, open_storage
from ottla.node.server.supervisor import BrokerTasks, ControllerTasks, is_lack_of_room
from ottla.protocol.api import ListenerType
from ottla.protocol.errors import KafkaError
from ottla.protocol.schema import Request, Response
from ottla.replication.log_flush_scheduler import LogFlushScheduler
from ottla.replication.partition import Partition
from ottla.replication.replica_manager import ReplicaChanges, ReplicaManager, registration_of
from ottla.runtime import process
from ottla.runtime.heavy_work import WORKERS, HeavyWork
from ottla.runtime.metrics import MetricsRegistry
from ottla.runtime.pool import separate_pool
from ottla.runtime.runtime import Runtime
from ottla.runtime.tasks import TaskSupervisor
from ottla.security.quota.quota_managers import QuotaManagers
from ottla.security.quota.rate import QuotaWindows

if TYPE_CHECKING:
    from ottla.log.cleaner.cleaner import LogCleaner
    from ottla.log.scrub.scrubber import LogScrubber
    from ottla.metadata.log.metadata_log import MetadataLog
    from ottla.node.network.connection import RequestDispatcher
    from ottla.node.network.login import SaslListener
    from ottla.node.remote.remote_storage import RemoteStorage
    from ottla.node.share.share_partition_manager import SharePartitionManager
    from ottla.node.tables.table_keeper import TableKeeper
    from ottla.node.telemetry.client_telemetry import ClientTelemetry
    from ottla.node.telemetry.tracing import Tracing
    from ottla.runtime.clock import Clock
    from ottla.runtime.garbage_collection import GarbageCollection
    from ottla.runtime.http_server import HttpMount
    from ottla.runtime.loop_watchdog import LoopWatchdog
    from ottla.security.authorizer.standard_authorizer import StandardAuthorizer

log = logging.getLogger(__name__)

# How long a broker that stops waits until others have taken over its partitions.
_HAND_OVER_SECONDS: Final = 10.0
_HAND_OVER_ALONE_SECONDS: Final = 1.0
# How long a disk may take for what is not on it yet. After that the next start recovers the logs.
_CLOSE_LOGS_SECONDS: Final = 600.0
# How long a start takes before the node logs what it waits for, and how long until it does so again.
_SLOW_START_SECONDS: Final = 20.0
_SLOW_START_AGAIN_SECONDS: Final = 60.0
_WAITING_FOR_LEADER: Final = "waiting for an active controller"


class Node:
    """Make one, `start` it, `stop` it. It is used once."""

    def __init__(self, runtime: Runtime, config: NodeConfig, *, default_http: str = "") -> None:
        """`default_http` is where HTTP is answered if no setting says so and the address is free."""
        self.runtime: Final = runtime
        self.now_ms: Final = runtime.clock.wall_ms
        # The background tasks of all parts: none of them ends unnoticed.
        self.tasks: Final = TaskSupervisor(runtime.clock, self.fail, is_lack_of_room)
        self.dynamic_config: Final = DynamicBrokerConfig(config)
        self.cluster_id = ""
        self.started_ms: Final = runtime.clock.wall_ms()
        # Those that this node has decided as the active controller.
        self.unclean_elections = 0
        is_measured = config.flag("metrics.enable")
        self.network_statistics: Final = NetworkStatistics(
            runtime.clock.monotonic_ns if is_measured else None
        )
        self.metrics: Final = MetricsRegistry()
        # The process of the node, where the node has one of its own.
        self.loop_watchdog: LoopWatchdog | None = None
        self.collections: GarbageCollection | None = None
        self.authorizer: Final = configured_authorizer(config, runtime.clock)
        # By the names of listeners; those without SASL have none.
        self.logins: dict[str, SaslListener] = {}
        self.quotas: Final = QuotaManagers(
            runtime.clock,
            QuotaWindows(config.number("quota.window.num"), config.number("quota.window.size.seconds")),
            QuotaWindows(
                config.number("controller.quota.window.num"),
                config.number("controller.quota.window.size.seconds"),
            ),
        )
        # Set once clients are served.
        self.ready: Final = asyncio.Event()
        # What the node does while it is not ready.
        self.phase = "starting"
        # Says what that waits for, or nothing.
        self._waits_for: Callable[[], str] = str
        self._stopping = False
        self.http: Final = NodeHttp(
            runtime,
            config,
            self.tasks,
            default=default_http,
            image=lambda: self.image,
            authorizer=self.authorizer,
        )
        self.http.mount("/health", self._load_health, MountAccess.SUMMARY)
        self.http.mount("/metrics", self._load_metrics)
        self.security: Final = NodeSecurity(runtime, self.dynamic_config)
        self.quorum: Final = QuorumMember(
            runtime,
            self.dynamic_config,
            self._dispatcher_for,
            self._login_for,
            self._decide_locally,
            self.security,
            self.network_statistics,
            self.tasks,
        )
        self.server: Final = SocketServer(
            runtime.network,
            config,
            self._dispatcher_for,
            memory=self.quorum.server.memory,
            tls_for=self.security.listener_tls,
            login_for=self._login_for,
            statistics=self.network_statistics,
        )
        self.dynamic_config.add_reconfigurable(self.server.configure)
        # Threads of its own: fsyncs and cold reads do not wait for it.
        threads = separate_pool(runtime.pool, WORKERS, "heavy work")
        self.heavy_work: Final = HeavyWork(
            runtime.pool if threads is None else threads, self.server.memory.clients.count_work
        )
        self._heavy_work_threads: Final = threads
        self.endpoints: Final = NodeEndpoints(runtime.network, self.dynamic_config)
        self.fetch_sessions: Final = FetchSessionCache(
            config.number("max.incremental.fetch.session.cache.slots"),
            runtime.random,
            runtime.clock,
            memory=self.server.memory,
        )
        self._services: Final = ApiServices(node=self, broker=self, controller=self.quorum)
        # Made as a broker starts, each on top of those before it. A controller alone has none of these.
        self.lifecycle: BrokerLifecycleManager
        self.producer_ids: ProducerIdManager
        self.replication: BrokerReplication
        self.logs: LogManager
        self.log_flushes: LogFlushScheduler
        self.replicas: ReplicaManager
        self.alter_log_dirs: AlterReplicaLogDirsManager
        self.damaged_replicas: DamagedReplicas
        self.coordinators: Coordinators
        # None until a member of a share group first fetches.
        self.share_partitions_in_use: SharePartitionManager | None = None
        # None until a topic first asks for a table.
        self.table_keeper: TableKeeper | None = None
        # None unless the broker has tiered storage.
        self.remote_storage: RemoteStorage | None = None
        self._publisher: BrokerMetadataPublisher | None = None
        self._broker_tasks: BrokerTasks | None = None
        self._incarnation_id: Final = runtime.random.uuid()
        self._loop: asyncio.AbstractEventLoop
        self._failure: asyncio.Future[str]
        self._failure_reason: str | None = None
        self.stop_sequence: Final = StopSequence()
        NodeMetrics(self, self.metrics)

    # What handlers ask

    @property
    def config(self) -> NodeConfig:
        """The settings in force. They are replaced by a change, never modified."""
        return self.dynamic_config.current

    @property
    def image(self) -> MetadataImage:
        """The newest committed metadata that this node has applied."""
        return self.quorum.metadata.image

    @property
    def observed_broker(self) -> Node | None:
        """This node, once it has the parts of a broker; for its metrics."""
        return None if self._publisher is None else self

    @property
    def cleaner(self) -> LogCleaner | None:
        return None if self._broker_tasks is None else self._broker_tasks.cleaner

    @property
    def scrubber(self) -> LogScrubber | None:
        return None if self._broker_tasks is None else self._broker_tasks.scrubber

    def _broker_epoch(self) -> int:
        return self.lifecycle.epoch

    def client_endpoints(self) -> list[Endpoint]:
        """Where clients connect, with the ports that are really open."""
        return self.endpoints.for_clients()

    def data_directories(self) -> list[str]:
        """The directories of its data: those of logs that have not failed; of a controller alone, the one of
        its metadata.
        """
        if not self.config.is_broker:
            return [self.config.metadata_log_dir]
        return [directory.path for directory in self.logs.live_directories]

    def storage_status(self) -> StorageStatus:
        """What of its storage does not serve; of a controller alone, or before logs are loaded, nothing."""
        if self._publisher is None:
            return StorageStatus()
        return StorageStatus.of(
            {each.path: str(each.failure) for each in self.logs.directories if not each.is_online},
            self.replicas.offline,
            self.logs.failed,
            list(self.logs.directories_set_aside),
        )

    # What its health depends on

    @property
    def is_serving(self) -> bool:
        """Whether it has started, and has not begun to stop."""
        return self.ready.is_set() and not self._stopping

    @property
    def failure(self) -> str | None:
        """Why it has given up; None as long as it has not."""
        return self._failure_reason

    @property
    def metadata(self) -> MetadataLog | None:
        """The metadata log; None until the node takes part in the quorum."""
        return self.quorum.metadata if self.quorum.opened.is_set() else None

    @property
    def broker_epoch(self) -> int:
        return self.lifecycle.epoch

    @property
    def unanswered_heartbeats_ms(self) -> int:
        return self.lifecycle.unanswered_ms

    def hosted_partitions(self) -> Iterable[Partition]:
        return () if self._publisher is None else self.replicas

    @property
    def hosted_version(self) -> int:
        return -1 if self._publisher is None else self.replicas.partitions_version

    async def _load_health(self) -> HttpMount:
        await self.runtime.pool.run(import_module, "ottla.node.server.health")
        from ottla.node.server.health import NodeHealth

        return await NodeHealth(self, self.runtime.clock).routes()

    async def _load_metrics(self) -> HttpMount:
        from ottla.node.metrics.endpoint import MetricsEndpoint

        return MetricsEndpoint(self.metrics, self.runtime.clock).routes()

    def topic_config(self, topic: str) -> LogConfig:
        """The settings of a topic's logs, as the newest image has them."""
        return self.dynamic_config.topic_config(topic, self.image)

    @property
    def receives_telemetry(self) -> bool:
        """Whether what clients push is seen: at `/metrics`, or by a collector."""
        return self.http.endpoint is not None or bool(self.config.text("telemetry.otlp.endpoint"))

    @cached_property
    def telemetry(self) -> ClientTelemetry:
        """The metrics that clients push; made when the first client asks."""
        from ottla.node.config.otlp import METRICS, parse_headers, signal_url
        from ottla.node.telemetry.client_metrics_manager import ClientMetricsManager
        from ottla.node.telemetry.client_metrics_store import ClientMetricsStore
        from ottla.node.telemetry.client_telemetry import ClientTelemetry
        from ottla.node.telemetry.otlp_forwarder import OtlpForwarder

        runtime, config = self.runtime, self.config
        forwarder = None
        if endpoint := config.text("telemetry.otlp.endpoint"):
            headers = parse_headers(str(config["telemetry.otlp.headers"] or ""))
            forwarder = OtlpForwarder(runtime, signal_url(endpoint, METRICS), headers)
            self.stop_sequence.add(self.tasks.start("forwarding of client metrics", forwarder.run).stop)
        telemetry = ClientTelemetry(
            ClientMetricsManager(
                lambda: self.image.configs, runtime.random.uuid, config.number("telemetry.max.bytes")
            ),
            ClientMetricsStore(
                config.number("telemetry.max.series"), lambda: runtime.clock.monotonic_ns() // 1_000_000
            ),
            forwarder,
            runtime,
        )
        self.metrics.add_collector("client telemetry", telemetry.collect)
        return telemetry

    @property
    def share_partitions(self) -> SharePartitionManager:
        """The share partitions that this broker leads; made when the first member fetches."""
        if self.share_partitions_in_use is None:
            from ottla.node.share.share_partition_manager import SharePartitionManager

            self.share_partitions_in_use = SharePartitionManager(
                self, lambda: self.coordinators.persister, self.server.memory.clients
            )
        return self.share_partitions_in_use

    async def _close_share_partitions(self) -> None:
        if self.share_partitions_in_use is not None:
            await self.share_partitions_in_use.close()

    def _apply_to_share_partitions(self, changes: ReplicaChanges) -> None:
        if self.share_partitions_in_use is not None:
            self.share_partitions_in_use.apply(changes)

    # Starting

    async def start(self) -> None:
        """Open everything and serve. NodeFailed says in one line why that cannot be."""
        self._loop = asyncio.get_running_loop()
        self._failure = self._loop.create_future()
        starting = self._loop.create_task(self._start(), name="start of the node")
        warning = self._loop.create_task(self._warn_of_slow_start(), name="warnings of a slow start")
        either: list[asyncio.Future[Any]] = [starting, self._failure]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await _cancel_and_wait(starting)
            raise
        finally:
            await _cancel_and_wait(warning)
        if not starting.done():
            # It would wait for a controller that it can not reach any more.
            await _cancel_and_wait(starting)
            raise NodeFailed(self._failure.result())
        try:
            starting.result()
        except (StorageError, KafkaError) as error:
            # A node that has not started does not go on by itself.
            why = str(error).replace(GOES_ON_WITH_ROOM, "free some, and start the node again")
            raise NodeFailed(why) from error
        except OSError as error:
            raise NodeFailed(f"{error.filename or 'the disk'}: {error.strerror or error}") from error

    async def _warn_of_slow_start(self) -> None:
        """Log now and then what the start waits for: what never comes would leave nothing in the log."""
        began = self._loop.time()
        await asyncio.sleep(_SLOW_START_SECONDS)
        while True:
            if self.phase != _WAITING_FOR_LEADER:  # that logs by itself
                reason = self._waits_for()
                log.warning(
                    "the node is not ready after %.0f s: it is still %s%s",
                    self._loop.time() - began,
                    self.phase,
                    f" ({reason})" if reason else "",
                )
            await asyncio.sleep(_SLOW_START_AGAIN_SECONDS)

    def _enter(self, phase: str, waits_for: Callable[[], str] = str) -> None:
        self.phase, self._waits_for = phase, waits_for

    async def _start(self) -> None:
        self._enter("loading its certificates")
        await self.security.load()
        self._enter("checking its listeners")
        await self.http.open(self.security.listener_tls)
        self.stop_sequence.add(self.http.close)
        if self.security.has_certificates:
            self.stop_sequence.add(self.tasks.start("renewal of certificates", self.security.watch).stop)
        self.logins = self._make_logins()
        await self.endpoints.check(self.server)
        self._enter("opening its directories")
        storage = await self._open_storage()
        self._enter("opening its metadata log")
        await self._join_quorum(storage)
        if self.config.is_broker:
            self._enter("registering with the controller")
            await self._register_broker(storage)
            self._enter("loading its logs")
            await self._start_broker(storage)
            self._enter("waiting for the controller to let it serve", self.lifecycle.waits_for)
            await self._serve()
        self._enter("registering with the controller", self.quorum.waits_for)
        await self.quorum.wait_until_registered()
        self.ready.set()

    async def _open_storage(self) -> NodeStorage:
        storage = await self.runtime.pool.run(open_storage, self.runtime, self.config)

        async def release() -> None:
            storage.release()

        self.stop_sequence.add(release)
        self.cluster_id = storage.cluster_id
        if storage.node_id != self.config.node_id:
            self.dynamic_config.current = NodeConfig({**self.config.given, "node.id": str(storage.node_id)})
        return storage

    async def _join_quorum(self, storage: NodeStorage) -> None:
        """Take part in the quorum, and wait until it has a leader."""
        config, quorum = self.config, self.quorum
        endpoints: list[Endpoint] = []
        if config.is_controller:
            await self.endpoints.open(quorum.server, config.listeners_of_controller)
            self.stop_sequence.add(quorum.server.stop)
            self.endpoints.warn_of_open_controllers(is_authorized=self.authorizer is not None)
            endpoints = self.endpoints.reachable(config.advertised_of_controller)
        directory_id = storage.directories[config.metadata_log_dir]
        await quorum.open(storage.cluster_id, directory_id, endpoints, self._on_metadata_update)
        self._enter(_WAITING_FOR_LEADER)
        self.stop_sequence.add(quorum.close)
        tasks = ControllerTasks(self.tasks, self.dynamic_config, quorum, self.fail)
        tasks.start()
        self.stop_sequence.add(tasks.stop)
        await quorum.wait_for_leader()
        self.dynamic_config.reload(self.image)
        if self.authorizer is not None:
            self.authorizer.complete_initial_load(self.image)
        if endpoints:
            quorum.register(self._incarnation_id, endpoints)

    async def _register_broker(self, storage: NodeStorage) -> None:
        """Register this broker, fenced, and read the metadata log as far as that."""
        config = self.config
        # Addresses must be known before they are registered.
        await self.endpoints.open_unknown(self.server)
        self.stop_sequence.add(self.server.stop)
        usable = [path for path in config.log_dirs if path not in storage.failed]
        endpoints = self.endpoints.reachable(config.advertised_listeners)
        self.lifecycle = BrokerLifecycleManager(
            self.tasks,
            self.quorum.controller_channel("ottla-broker-lifecycle"),
            self.quorum.metadata,
            self.dynamic_config,
            cluster_id=self.cluster_id,
            incarnation_id=self._incarnation_id,
            directories={path: storage.directories[path] for path in usable},
            endpoints=endpoints,
            previous_epoch=await self.runtime.pool.run(clean_shutdown_epoch, self.runtime.disk, usable),
            on_fatal=self.fail,
            announce=self.quorum.announcer(self._incarnation_id, endpoints),
        )
        self.stop_sequence.add(self.lifecycle.close)
        self._waits_for = self.lifecycle.waits_for
        await self.lifecycle.register()
        await self.lifecycle.wait_until_caught_up()

    async def _start_broker(self, storage: NodeStorage) -> None:
        """Load the logs, and take up the replicas that the metadata assign to this broker."""
        runtime, config, metadata = self.runtime, self.config, self.quorum.metadata
        open_files, unsynced_files = handles.shares(process.open_file_limit())
        self.logs = LogManager(
            config.log_dirs,
            disk=runtime.disk,
            clock=runtime.clock,
            random=runtime.random,
            pool=runtime.pool,
            producer_config=producer_config(config),
            open_files=open_files,
            unsynced_files=unsynced_files,
            recovery_threads=config.number("num.recovery.threads.per.data.dir"),
            on_directory_failure=self._on_directory_failure_in_thread,
            on_damage=self._on_damage_in_thread,
            lock=False,
            failed=storage.failed,
        )
        await self.logs.start(self.topic_config, self._is_assigned)
        self.log_flushes = LogFlushScheduler(self.logs, runtime.clock)
        self.stop_sequence.add(self._close_logs, limit_seconds=_CLOSE_LOGS_SECONDS)
        self.producer_ids = ProducerIdManager(config.node_id, self._broker_epoch, self.quorum.controllers)
        self.replication = BrokerReplication(
            self.tasks,
            runtime,
            self.dynamic_config,
            self.logs,
            metadata,
            self.quorum.controllers,
            self._broker_epoch,
            self.security.inter_broker,
        )
        self.replicas = ReplicaManager(
            config.node_id,
            self.logs,
            self.topic_config,
            replica_lag_max_ms=config.number("replica.lag.time.max.ms"),
            submit_change=self.replication.alter_partition_manager.submit,
        )
        self.replicas.begin_flush = self.log_flushes.flush_in_background
        self.stop_sequence.add(self.replication.close)
        self.coordinators = Coordinators(
            runtime,
            self.dynamic_config,
            metadata,
            self.replication.peers,
            self.replicas,
            self.log_flushes,
            self.producer_ids,
            self._create_internal_topic,
            lambda: self.lifecycle.is_cut_off,
        )
        self.stop_sequence.add(self.coordinators.close)
        self.alter_log_dirs = AlterReplicaLogDirsManager(
            self.logs,
            self.replicas,
            self.replication.assignments,
            self.replication.move_quota,
            runtime.clock,
            runtime.pool,
        )
        self.stop_sequence.add(self.alter_log_dirs.stop)
        if config.flag("remote.log.storage.system.enable"):
            self.remote_storage = self._open_remote_storage()
            self.stop_sequence.add(self.remote_storage.close)
            self.replication.remote_log_reader = self.remote_storage.reader
        else:
            self._check_no_remote_topics()
        # Both read remote storage, and begin with the first image that is published.
        self.stop_sequence.add(self.replication.stop_fetchers)
        self.stop_sequence.add(self._close_share_partitions)
        self._publisher = BrokerMetadataPublisher(
            runtime.clock,
            metadata,
            self.lifecycle,
            self.logs,
            self.replicas,
            self.replication,
            self.alter_log_dirs,
            self.coordinators,
            self._apply_to_share_partitions,
            self.remote_storage,
        )
        self.stop_sequence.add(self._publisher.stop)
        self.damaged_replicas = DamagedReplicas(
            self.tasks,
            config.node_id,
            metadata,
            self.logs,
            self.replication.assignments,
            self.runtime.pool,
            self._publisher.host_offline,
            self._publisher.on_log_damage,
        )
        self.stop_sequence.add(self.damaged_replicas.stop)
        await self._publisher.start()
        for directory in self.logs.directories:
            if not directory.is_online:
                self._on_directory_failure(directory)

    def _check_no_remote_topics(self) -> None:
        """Raise if topics have segments in remote storage, and this broker has none."""
        configs = self.image.configs
        remote = sorted(
            resource.name
            for resource, values in configs.items()
            if resource.type == ConfigResourceType.TOPIC and values.get("remote.storage.enable") == "true"
        )
        if remote:
            named = ", ".join(remote[:5]) + (", ..." if len(remote) > 5 else "")
            raise NodeFailed(
                "You have to delete all topics with the property remote.storage.enable=true before disabling "
                f"tiered storage cluster-wide: {named}. Start the node with "
                "remote.log.storage.system.enable=true"
            )

    def _open_remote_storage(self) -> RemoteStorage:
        from ottla.node.cluster.metadata_barrier import MetadataBarrier
        from ottla.node.remote.remote_storage import RemoteStorage

        return RemoteStorage(
            self.runtime,
            self.tasks,
            self.dynamic_config,
            self.quorum.metadata,
            self.replication.peers,
            self.replicas,
            self.log_flushes,
            self._create_internal_topic,
            MetadataBarrier(
                self.config.node_id, self._broker_epoch, self.quorum.controllers, self.quorum.metadata
            ).newest_image,
        )

    def _is_assigned(self, found: UnifiedLog) -> bool:
        """Whether the metadata assign the replica to the directory of this log, of two of one partition."""
        try:
            registration = registration_of(found, self.image, self.config.node_id)
        except KafkaError:
            if found.directory.is_online:
                raise
            return False
        if registration is None:
            return False
        directory = registration.directory(self.config.node_id)
        return is_reserved_directory(directory) or directory == found.directory.directory_id

    async def _serve(self) -> None:
        """Open the listeners of clients, ask to be unfenced, and begin with the background tasks."""
        await self.endpoints.open_known(self.server)
        self.stop_sequence.add(self._leave)
        self.endpoints.warn_of_open_listeners(is_authorized=self.authorizer is not None)
        for text in start_warnings(
            self.config, self.image, self.endpoints.for_clients(), sole_voter=self.quorum.is_sole_voter
        ):
            log.warning("%s", text)
        if self.remote_storage is not None:
            self.remote_storage.start()
        # From then on it may lead; what is damaged must not.
        await self.damaged_replicas.announce()
        self.damaged_replicas.check()
        await self.lifecycle.unfence()
        assert self._publisher is not None
        tasks = BrokerTasks(
            self.tasks,
            self.runtime,
            self.dynamic_config,
            self.logs,
            self.replicas,
            self.lifecycle,
            self._retry_offline,
        )
        self._broker_tasks = tasks
        tasks.start()
        self.stop_sequence.add(tasks.stop)
        self._update_tables(self.image.configs, self.image)

    def _update_tables(self, changed: Iterable[ConfigResource], image: MetadataImage) -> None:
        """Have the tables of topics kept, from the first topic on that asks for one."""
        topics = [each.name for each in changed if each.type == ConfigResourceType.TOPIC]
        if self.table_keeper is None:
            if not any(_has_table(topic, image) for topic in topics):
                return
            from ottla.node.tables.table_keeper import TableKeeper

            self.table_keeper = TableKeeper(self)
            self.replicas.add_progress_listener(self.table_keeper.on_partition_progress)
            self.stop_sequence.add(self.table_keeper.close)
            fast, slow = self.table_keeper.run, self.table_keeper.run_slow
            for name, work in (("upkeep of tables", fast), ("upkeep of slow tables", slow)):
                self.stop_sequence.add(self.tasks.start(name, work).stop)
        self.table_keeper.update(topics, image)

    async def _retry_offline(self) -> None:
        assert self._publisher is not None
        await self._publisher.host_offline()
        self.damaged_replicas.check()

    def _dispatcher_for(self, endpoint: Endpoint) -> RequestDispatcher:
        """Make what answers the requests of a listener. Those to a controller are answered while the broker
        of the node is not ready yet, as no node gets ready without them.
        """
        statistics = None
        if self.network_statistics.now_ns is not None:
            statistics = self.network_statistics.listener(endpoint.name)
        if endpoint.name in self.config.controller_listener_names:
            kind, opened = ListenerType.CONTROLLER, self.quorum.opened
        else:
            kind, opened = ListenerType.BROKER, self.ready
        dispatcher = Dispatcher(self._services, endpoint.name, kind, opened, statistics)
        if not self.config.flag("telemetry.traces.enable"):
            return dispatcher
        from ottla.node.telemetry.request_spans import TracingDispatcher

        return TracingDispatcher(dispatcher, self._tracing.tracer, endpoint.name)

    @cached_property
    def _tracing(self) -> Tracing:
        from ottla.node.telemetry.tracing import open_tracing

        tracing = open_tracing(self.config, self.cluster_id)

        async def flush() -> None:
            await self.runtime.pool.run(tracing.flush)

        self.stop_sequence.add(flush)
        return tracing

    def _make_logins(self) -> dict[str, SaslListener]:
        """Make what SASL listeners ask of clients. NodeFailed names a setting that cannot be used."""
        if not any(endpoint.protocol.sasl for endpoint in self.config.listeners):
            return {}
        from ottla.node.network.login import sasl_listeners
        from ottla.security.sasl.scram_credentials import MetadataScramCredentials, users_of_records
        from ottla.security.secret import Secret

        tokens = None
        if secret_key := self.config["delegation.token.secret.key"]:
            from ottla.security.sasl.token_credentials import TokenCredentials

            tokens = TokenCredentials(Secret(str(secret_key)), self.runtime.clock)
        users = MetadataScramCredentials(
            lambda: self.image, lambda: users_of_records(self.quorum.formatted_records), tokens
        )
        return sasl_listeners(
            self.config,
            self.runtime,
            users,
            self.tasks,
            opened=self.ready,
            opened_to_nodes=self.quorum.opened,
        )

    def _login_for(self, endpoint: Endpoint) -> SaslListener | None:
        return self.logins.get(endpoint.name)

    def _decide_locally(self, request: Request, version: int) -> Awaitable[Response | None]:
        return decide_locally(self._services, request, version)

    async def _create_internal_topic(self, name: str) -> None:
        """Have a topic created that a coordinator needs; where that fails, the broker tries again later."""
        from ottla.node.api.auto_topic_creation import create_missing_topics

        await create_missing_topics(self._services, [name])

    # While it runs

    def _on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        if self.authorizer is not None:
            self.authorizer.apply(delta, image)
        if self.dynamic_config.is_changed_by(delta):
            try:
                self.dynamic_config.reload(image)
            except Exception:
                log.exception("the changed settings of this broker could not be put in force")
        if delta.changed_quotas:
            self.quotas.update(image.client_quotas, delta.changed_quotas)
            self.server.update_ip_quotas(image.client_quotas, delta.changed_quotas)
        if self.quorum.active_controller.current is not None:
            # Only here, so that neither other controllers nor a replay after a restart count one again.
            self.unclean_elections += sum(topic.unclean_elections() for topic in delta.topics.values())
        if self._broker_tasks is not None and delta.changed_configs:
            self._update_tables(delta.changed_configs, image)
        if self._publisher is not None and self._publisher.is_applying:
            self.damaged_replicas.check()

    def _on_directory_failure_in_thread(self, directory: LogDirectory) -> None:
        """Continue on the event loop; this may be called in any thread."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._handle_directory_failure, directory)

    def _handle_directory_failure(self, directory: LogDirectory) -> None:
        try:
            self._on_directory_failure(directory)
        except Exception as error:
            self._fail_for(directory, error)

    def _fail_for(self, directory: LogDirectory, error: BaseException) -> None:
        # Its partitions would look as if they were served.
        log.error("the failure of %s could not be handled", directory.path, exc_info=error)
        self.fail(f"the failure of {directory.path} could not be handled: {error}")

    def _on_damage_in_thread(self, log_dir: str, error: KafkaError) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._on_damage, log_dir, error)

    def _on_damage(self, log_dir: str, error: KafkaError) -> None:
        if self._publisher is not None and self._publisher.is_applying:
            self.damaged_replicas.on_damage(log_dir, error)

    def _on_directory_failure(self, directory: LogDirectory) -> None:
        self.lifecycle.propagate_directory_failure(directory.path)
        if self._publisher is None or not self._publisher.is_applying:
            return
        given_up = self._publisher.on_directory_failure(directory)
        given_up.add_done_callback(partial(self._on_given_up, directory))
        if not self.logs.live_directories:
            self.fail(
                f"Shutdown broker because all log dirs have failed; {directory.path}: {directory.failure}"
            )

    def _on_given_up(self, directory: LogDirectory, given_up: asyncio.Future[None]) -> None:
        if not given_up.cancelled() and (error := given_up.exception()) is not None:
            self._fail_for(directory, error)

    def fail(self, reason: str) -> None:
        """Give up, and let `wait_until_failed` return the reason."""
        if self._failure_reason is None:
            self._failure_reason = reason
        if not self._failure.done():
            self._failure.set_result(reason)

    async def wait_until_failed(self) -> str:
        """Return why the node has to give up, if that ever happens."""
        return await asyncio.shield(self._failure)

    # Stopping

    async def stop(self) -> None:
        """Hand over, close everything and leave the marks of a clean shutdown. Stopping twice is harmless."""
        self._stopping = True
        self.phase = "stopping"
        await self.stop_sequence.run()
        if self._heavy_work_threads is not None:
            self._heavy_work_threads.abandon()

    async def _leave(self) -> None:
        """Hand over what this broker leads, then turn clients away."""
        alone = self.quorum.is_sole_voter
        if alone and not self._has_peers():
            # No other broker can take over. Clients would only hear that none is left, and some give up then.
            await self.server.stop()
        hand_over = self.config.flag("controlled.shutdown.enable")
        seconds = _HAND_OVER_ALONE_SECONDS if alone else _HAND_OVER_SECONDS
        if not (hand_over and await self.lifecycle.controlled_shutdown(seconds)):
            log.info("leaving without having handed over all leaderships")
        await self.server.stop()

    def _has_peers(self) -> bool:
        brokers = self.image.cluster.brokers.values()
        return any(broker.is_active for broker in brokers if broker.id != self.config.node_id)

    async def _close_logs(self) -> None:
        await self.log_flushes.close()
        await self.logs.shutdown(self._broker_epoch())


def configured_authorizer(config: NodeConfig, clock: Clock) -> StandardAuthorizer | None:
    """Make the authorizer of `authorizer.class.name`; none if that is empty."""
    if not config.text("authorizer.class.name"):
        return None
    from ottla.security.authorizer.audit_log import AuditLog
    from ottla.security.authorizer.standard_authorizer import StandardAuthorizer

    return StandardAuthorizer.configured(config.given, AuditLog(lambda: clock.monotonic_ns() / 1e9))


def _has_table(topic: str, image: MetadataImage) -> bool:
    config = image.config(ConfigResource(ConfigResourceType.TOPIC, topic))
    return config.get("table.format", "none") != "none"


async def _cancel_and_wait(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
