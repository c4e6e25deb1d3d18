"""The broker of a node: Kafka's `BrokerServer`.

`BrokerServer` is made once the node takes part in the quorum, of parts that are complete; `start` then does
what takes time, in this order: it registers, still fenced, reads the metadata up to there, loads the logs,
takes up the replicas, opens the listeners, and asks to be unfenced. What it has started stops in the opposite
order.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Final

from ottla.log.config.log_config import LogConfig
from ottla.log.directory.meta_properties import is_reserved_directory
from ottla.log.log_manager import LogManager
from ottla.log.segment import handles
from ottla.log.unified_log import UnifiedLog
from ottla.metadata.image.delta import MetadataDelta
from ottla.metadata.image.entities import ConfigResource, ConfigResourceType
from ottla.metadata.image.image import MetadataImage
from ottla.node.api.auto_topic_creation import create_missing_topics
from ottla.node.api.services import ApiServices, BrokerServices
from ottla.node.cluster.alter_replica_log_dirs import AlterReplicaLogDirsManager
from ottla.node.cluster.broker_lifecycle import BrokerLifecycleManager
from ottla.node.cluster.damaged_replicas import DamagedReplicas
from ottla.node.cluster.quorum_member import QuorumMember
from ottla.node.cluster.replication import BrokerReplication
from ottla.node.config.component_settings import producer_config
from ottla.node.config.errors import NodeFailed
from ottla.node.coordinators.coordinators import Coordinators
from ottla.node.coordinators.producer_id_manager import ProducerIdManager
from ottla.node.fetch.session import FetchSessionCache
from ottla.node.http.mounts import MountAccess
from ottla.node.server.broker_tasks import BrokerTasks
from ottla.node.server.log_dir_failures import LogDirFailureChannel, LogDirFailureHandler
from ottla.node.server.metadata_publisher import BrokerMetadataPublisher
from ottla.node.server.node_metrics import add_broker_collectors
from ottla.node.server.process_status import StorageStatus
from ottla.node.server.shared_server import SharedServer
from ottla.node.server.socket_servers import SocketServers
from ottla.node.server.start_warnings import start_warnings
from ottla.node.server.storage import NodeStorage, clean_shutdown_epoch
from ottla.protocol.api import ListenerType
from ottla.protocol.errors import KafkaError
from ottla.replication.log_flush_scheduler import LogFlushScheduler
from ottla.replication.replica_manager import ReplicaChanges, ReplicaManager, registration_of
from ottla.runtime import process
from ottla.runtime.on_demand import OnDemand

if TYPE_CHECKING:
    from ottla.node.http.listener import NodeHttp
    from ottla.node.registry.service import SchemaRegistryService
    from ottla.node.remote.remote_storage import RemoteStorage
    from ottla.node.share.share_partition_manager import SharePartitionManager
    from ottla.node.tables.table_keeper import TableKeeper
    from ottla.node.telemetry.client_telemetry import ClientTelemetry
    from ottla.runtime.http_server import HttpMount
    from ottla.runtime.metrics import Collector

_log = logging.getLogger(__name__)

# How long a broker that stops waits until others have taken over its partitions.
_HAND_OVER_SECONDS: Final = 10.0
_HAND_OVER_ALONE_SECONDS: Final = 1.0
# How long a disk may take for what is not on it yet. After that the next start recovers the logs.
_CLOSE_LOGS_SECONDS: Final = 600.0
_SCHEMA_REGISTRY_PATH: Final = "/schema-registry"
# How long a fetch of what is new in the schema registry's topic waits at its leader: there are few writes.
_REGISTRY_FETCH_WAIT_MS: Final = 5_000


class BrokerServer:
    def __init__(
        self, shared: SharedServer, sockets: SocketServers, quorum: QuorumMember, storage: NodeStorage
    ) -> None:
        """NodeFailed names a setting that cannot be used."""
        self._shared: Final = shared
        self._quorum: Final = quorum
        self._storage: Final = storage
        runtime, tasks, dynamic_config, config = (
            shared.runtime,
            shared.tasks,
            shared.dynamic_config,
            shared.config,
        )
        metadata = quorum.metadata
        self.server: Final = sockets.make(ListenerType.BROKER, shared.broker_gate, storage.cluster_id)
        self.lifecycle: Final = BrokerLifecycleManager(
            tasks,
            quorum.controller_channel("ottla-broker-lifecycle"),
            metadata,
            dynamic_config,
            cluster_id=storage.cluster_id,
            incarnation_id=shared.incarnation_id,
            directories={path: storage.directories[path] for path in self._usable_directories()},
            on_fatal=shared.state.fail,
        )
        failures = LogDirFailureChannel()
        open_files, unsynced_files = handles.shares(process.open_file_limit())
        self.logs: Final = LogManager(
            config.log_dirs,
            disk=runtime.disk,
            clock=runtime.clock,
            random=runtime.random,
            pool=runtime.pool,
            producer_config=producer_config(config),
            open_files=open_files,
            unsynced_files=unsynced_files,
            recovery_threads=config.number("num.recovery.threads.per.data.dir"),
            on_directory_failure=failures.on_failure,
            on_damage=failures.on_damage,
            lock=False,
            failed=storage.failed,
        )
        self.log_flushes: Final = LogFlushScheduler(self.logs, runtime.clock)
        self.producer_ids: Final = ProducerIdManager(config.node_id, self._broker_epoch, quorum.controllers)
        self.replication: Final = BrokerReplication(
            tasks,
            runtime,
            dynamic_config,
            self.logs,
            metadata,
            quorum.controllers,
            self._broker_epoch,
            shared.security.inter_broker,
        )
        self.replicas: Final = ReplicaManager(
            config.node_id,
            self.logs,
            self._topic_config,
            replica_lag_max_ms=config.number("replica.lag.time.max.ms"),
            submit_change=self.replication.alter_partition_manager.submit,
            begin_flush=self.log_flushes.flush,
        )
        self.coordinators: Final = Coordinators(
            runtime,
            dynamic_config,
            metadata,
            self.replication.peers,
            self.replicas,
            self.log_flushes,
            self.producer_ids,
            self._create_internal_topic,
            lambda: self.lifecycle.is_cut_off,
        )
        self.alter_log_dirs: Final = AlterReplicaLogDirsManager(
            self.logs,
            self.replicas,
            self.replication.assignments,
            self.replication.move_quota,
            runtime.clock,
            runtime.pool,
        )
        self.remote_storage: Final = self._make_remote_storage()
        self.share: Final = OnDemand(self._make_share_partitions)
        self.tables: Final = OnDemand(self._make_table_keeper)
        self._schema_registry: Final = OnDemand(self._make_schema_registry)
        self._publisher: Final = BrokerMetadataPublisher(
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
        self.damaged_replicas: Final = DamagedReplicas(
            tasks,
            config.node_id,
            metadata,
            self.logs,
            self.replication.assignments,
            runtime.pool,
            self._publisher.host_offline,
            self._publisher.on_log_damage,
        )
        self._failures: Final = LogDirFailureHandler(
            failures, self.logs, self.lifecycle, self._publisher, self.damaged_replicas, shared.state.fail
        )
        self.tasks: Final = BrokerTasks(
            tasks,
            runtime,
            dynamic_config,
            self.logs,
            self.replicas,
            self.lifecycle,
            self._retry_offline,
        )
        self.services: Final = BrokerServices(
            runtime=runtime,
            dynamic_config=dynamic_config,
            metadata=metadata,
            cluster_id=storage.cluster_id,
            security=shared.security,
            authorizer=shared.authorizer,
            endpoints=shared.endpoints,
            quotas=shared.quotas,
            network_statistics=shared.network_statistics,
            heavy_work=shared.heavy_work,
            has_telemetry_receiver=shared.has_telemetry_receiver,
            logs=self.logs,
            log_flushes=self.log_flushes,
            replicas=self.replicas,
            replication=self.replication,
            alter_log_dirs=self.alter_log_dirs,
            fetch_sessions=FetchSessionCache(
                config.number("max.incremental.fetch.session.cache.slots"),
                runtime.random,
                runtime.clock,
                memory=shared.memory,
            ),
            coordinators=self.coordinators,
            producer_ids=self.producer_ids,
            share=self.share,
            client_telemetry=OnDemand(self._make_client_telemetry),
            tables=self.tables,
        )
        add_broker_collectors(shared.metrics, shared.state, self.services, self.tasks)
        if config.flag("schema.registry.enable"):
            self._mount_schema_registry(shared.http, _SCHEMA_REGISTRY_PATH)
        self._mount_schema_registry(shared.schema_registry_http, "")

    # What it is asked

    def _broker_epoch(self) -> int:
        return self.lifecycle.epoch

    def _usable_directories(self) -> list[str]:
        return [path for path in self._shared.config.log_dirs if path not in self._storage.failed]

    def _topic_config(self, topic: str) -> LogConfig:
        """The settings of a topic's logs, as the newest image has them."""
        return self._shared.dynamic_config.topic_config(topic, self._quorum.metadata.image)

    def storage_status(self) -> StorageStatus:
        """What of its storage does not serve."""
        return StorageStatus.of(
            {each.path: str(each.failure) for each in self.logs.directories if not each.is_online},
            self.replicas.offline,
            self.logs.failed,
            list(self.logs.directories_set_aside),
        )

    @property
    def schema_registry_url(self) -> str | None:
        """Where clients of the schema registry connect; None if no listener answers for it."""
        own, http = self._shared.schema_registry_http.url, self._shared.http.url
        if own is not None:
            return own.rstrip("/")
        if http is None or not self._shared.config.flag("schema.registry.enable"):
            return None
        return http.rstrip("/") + _SCHEMA_REGISTRY_PATH

    # Starting

    async def start(self) -> None:
        """Start all parts, and serve. NodeFailed, StorageError or OSError say why that cannot be."""
        shared = self._shared
        shared.state.enter("registering with the controller")
        await self._register()
        shared.state.enter("loading its logs")
        await self._load_logs()
        await self._take_up_replicas()
        shared.state.enter("waiting for the controller to let it serve", self.lifecycle.waits_for)
        await self._open_listeners()
        await self._unfence()

    async def _register(self) -> None:
        """Register this broker, fenced, and read the metadata log as far as that."""
        shared, stops = self._shared, self._shared.stop_sequence
        image = self._quorum.metadata.subscribe(self._on_metadata_update)
        self.server.update_ip_quotas(image.client_quotas, image.client_quotas)
        # Addresses must be known before they are registered.
        await shared.endpoints.open_unknown(self.server)
        stops.add(self.server.stop)
        endpoints = shared.endpoints.reachable(shared.config.advertised_listeners)
        runtime, directories = shared.runtime, self._usable_directories()
        previous_epoch = await runtime.pool.run(clean_shutdown_epoch, runtime.disk, directories)
        stops.add(self.lifecycle.close)
        shared.state.waits_for = self.lifecycle.waits_for
        announce = self._quorum.announcer(shared.incarnation_id, endpoints)
        await self.lifecycle.register(endpoints, previous_epoch, announce)
        await self.lifecycle.wait_until_caught_up()

    async def _load_logs(self) -> None:
        stops = self._shared.stop_sequence
        stops.add(self._shared.tasks.start("failures of log directories", self._failures.run).stop)
        if self.remote_storage is None:
            _check_no_remote_topics(self._quorum.metadata.image)
        await self.logs.start(self._topic_config, self._is_assigned)
        stops.add(self._close_logs, limit_seconds=_CLOSE_LOGS_SECONDS)

    async def _take_up_replicas(self) -> None:
        """Host the replicas that the metadata assign to this broker, and follow the metadata."""
        stops = self._shared.stop_sequence
        stops.add(self.replication.close)
        stops.add(self.coordinators.close)
        stops.add(self.alter_log_dirs.stop)
        if self.remote_storage is not None:
            stops.add(self.remote_storage.close)
        # Both read remote storage, and begin with the first image that is published.
        stops.add(self.replication.stop_fetchers)
        stops.add(self._close_share_partitions)
        stops.add(self._publisher.stop)
        stops.add(self.damaged_replicas.stop)
        await self._publisher.start()
        self._failures.handle_offline()

    async def _open_listeners(self) -> None:
        shared = self._shared
        await shared.endpoints.open_known(self.server)
        shared.stop_sequence.add(self._leave)
        shared.endpoints.warn_of_open_listeners(is_authorized=shared.authorizer is not None)
        for text in start_warnings(
            shared.config,
            self._quorum.metadata.image,
            shared.endpoints.for_clients(),
            sole_voter=self._quorum.is_sole_voter,
        ):
            _log.warning("%s", text)

    async def _unfence(self) -> None:
        """Ask to be unfenced, and begin with the background tasks."""
        if self.remote_storage is not None:
            self.remote_storage.start()
        # From then on it may lead; what is damaged must not.
        await self.damaged_replicas.announce()
        self.damaged_replicas.check()
        await self.lifecycle.unfence()
        self.tasks.start()
        self._shared.stop_sequence.add(self.tasks.stop)
        image = self._quorum.metadata.subscribe(self._on_settings_of_tables)
        self._update_tables(image.configs, image)

    def answer_clients(self) -> None:
        """Answer the requests of clients, also those that have waited."""
        self._shared.broker_gate.open(ApiServices(self.services, self._quorum, self.services))

    # While it serves

    def _on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        if delta.changed_quotas:
            self.server.update_ip_quotas(image.client_quotas, delta.changed_quotas)
        if self._publisher.is_applying:
            self.damaged_replicas.check()

    def _is_assigned(self, found: UnifiedLog) -> bool:
        """Whether the metadata assign the replica to the directory of this log, of two of one partition."""
        node_id = self._shared.config.node_id
        try:
            registration = registration_of(found, self._quorum.metadata.image, node_id)
        except KafkaError:
            if found.directory.is_online:
                raise
            return False
        if registration is None:
            return False
        directory = registration.directory(node_id)
        return is_reserved_directory(directory) or directory == found.directory.directory_id

    async def _retry_offline(self) -> None:
        await self._publisher.host_offline()
        self.damaged_replicas.check()

    async def _create_internal_topic(self, name: str) -> None:
        """Have a topic created that a coordinator needs; where that fails, the broker tries again later."""
        await create_missing_topics(ApiServices(self.services, self._quorum), [name])

    # Stopping

    async def _leave(self) -> None:
        """Hand over what this broker leads, then turn clients away."""
        alone = self._quorum.is_sole_voter
        if alone and not self._has_peers():
            # No other broker can take over. Clients would only hear that none is left, and some give up then.
            await self.server.stop()
        hand_over = self._shared.config.flag("controlled.shutdown.enable")
        seconds = _HAND_OVER_ALONE_SECONDS if alone else _HAND_OVER_SECONDS
        if not (hand_over and await self.lifecycle.controlled_shutdown(seconds)):
            _log.info("leaving without having handed over all leaderships")
        await self.server.stop()

    def _has_peers(self) -> bool:
        brokers = self._quorum.metadata.image.cluster.brokers.values()
        return any(broker.is_active for broker in brokers if broker.id != self._shared.config.node_id)

    async def _close_logs(self) -> None:
        await self.log_flushes.close()
        await self.logs.shutdown(self.lifecycle.epoch)

    # Parts that are made where they are needed, and imported then

    def _make_share_partitions(self) -> SharePartitionManager:
        from ottla.node.share.share_partition_manager import SharePartitionManager

        return SharePartitionManager(
            self.services, lambda: self.coordinators.persister, self._shared.memory.clients
        )

    def _apply_to_share_partitions(self, changes: ReplicaChanges) -> None:
        if self.share.made is not None:
            self.share.made.apply(changes)

    async def _close_share_partitions(self) -> None:
        if self.share.made is not None:
            await self.share.made.close()

    def _on_settings_of_tables(self, delta: MetadataDelta, image: MetadataImage) -> None:
        if delta.changed_configs:
            self._update_tables(delta.changed_configs, image)

    def _update_tables(self, changed: Iterable[ConfigResource], image: MetadataImage) -> None:
        """Have the tables of topics kept, from the first topic on that asks for one."""
        topics = [each for each in changed if each.type == ConfigResourceType.TOPIC]
        if self.tables.made is not None or any(_has_table(topic, image) for topic in topics):
            self.tables().update([topic.name for topic in topics], image)

    def _make_table_keeper(self) -> TableKeeper:
        from ottla.node.tables.table_keeper import TableKeeper

        shared = self._shared
        keeper = TableKeeper(self.services)
        self.replicas.add_progress_listener(keeper.on_partition_progress)
        shared.stop_sequence.add(keeper.close)
        for name, work in (("upkeep of tables", keeper.run), ("upkeep of slow tables", keeper.run_slow)):
            shared.stop_sequence.add(shared.tasks.start(name, work).stop)

        def collector() -> Collector:
            from ottla.node.metrics.tables import TableCollector

            return TableCollector(keeper, shared.dynamic_config).collect

        shared.metrics.add_collector_on_demand("tables", collector)
        return keeper

    def _mount_schema_registry(self, http: NodeHttp, path: str) -> None:
        """Have a listener answer for the schema registry, which is made when the first client asks."""

        async def load() -> HttpMount:
            await self._shared.runtime.pool.run(import_module, "ottla.node.registry.service")
            endpoint = http.endpoint
            assert endpoint is not None
            return self._schema_registry().mount(path, is_local=endpoint.is_loopback)

        http.mount(path, load, MountAccess.USER)

    def _make_schema_registry(self) -> SchemaRegistryService:
        from ottla.node.cluster.internal_topic import InternalTopic
        from ottla.node.registry.service import SchemaRegistryService

        shared = self._shared
        topic = InternalTopic(
            shared.config.text("schema.registry.topic"),
            shared.runtime,
            shared.config.node_id,
            self._quorum.metadata,
            self.replication.peers,
            self.replicas,
            self.log_flushes,
            self._create_internal_topic,
            fetch_wait_ms=_REGISTRY_FETCH_WAIT_MS,
        )
        registry = SchemaRegistryService(
            shared.runtime,
            shared.tasks,
            topic,
            shared.heavy_work,
            shared.authorizer,
            self._storage.cluster_id,
            lambda: shared.state.is_serving,
        )
        shared.stop_sequence.add(registry.close)

        def collector() -> Collector:
            from ottla.node.metrics.schema_registry import SchemaRegistryCollector

            return SchemaRegistryCollector(registry).collect

        shared.metrics.add_collector_on_demand("schema registry", collector)
        return registry

    def _make_client_telemetry(self) -> ClientTelemetry:
        """Make what receives the metrics that clients push."""
        from ottla.node.config.otlp import METRICS, parse_headers, signal_url
        from ottla.node.telemetry.client_metrics_manager import ClientMetricsManager
        from ottla.node.telemetry.client_metrics_store import ClientMetricsStore
        from ottla.node.telemetry.client_telemetry import ClientTelemetry
        from ottla.node.telemetry.otlp_forwarder import OtlpForwarder

        shared, metadata = self._shared, self._quorum.metadata
        runtime, config = shared.runtime, shared.config
        forwarder = None
        if endpoint := config.text("telemetry.otlp.endpoint"):
            headers = parse_headers(str(config["telemetry.otlp.headers"] or ""))
            forwarder = OtlpForwarder(runtime, signal_url(endpoint, METRICS), headers)
            forwarding = shared.tasks.start("forwarding of client metrics", forwarder.run)
            shared.stop_sequence.add(forwarding.stop)
        telemetry = ClientTelemetry(
            ClientMetricsManager(
                lambda: metadata.image.configs, runtime.random.uuid, config.number("telemetry.max.bytes")
            ),
            ClientMetricsStore(
                config.number("telemetry.max.series"), lambda: runtime.clock.monotonic_ns() // 1_000_000
            ),
            forwarder,
            runtime,
        )
        shared.metrics.add_collector("client telemetry", telemetry.collect)
        return telemetry

    def _make_remote_storage(self) -> RemoteStorage | None:
        """Make tiered storage, where the broker has it."""
        shared, quorum = self._shared, self._quorum
        if not shared.config.flag("remote.log.storage.system.enable"):
            return None
        from ottla.node.cluster.metadata_barrier import MetadataBarrier
        from ottla.node.remote.remote_storage import RemoteStorage

        remote = RemoteStorage(
            shared.runtime,
            shared.tasks,
            shared.dynamic_config,
            quorum.metadata,
            self.replication.peers,
            self.replicas,
            self.log_flushes,
            self._create_internal_topic,
            MetadataBarrier(
                shared.config.node_id, self._broker_epoch, quorum.controllers, quorum.metadata
            ).newest_image,
        )
        self.replication.remote_log_reader = remote.reader

        def collector() -> Collector:
            from ottla.node.metrics.remote import RemoteStorageCollector

            return RemoteStorageCollector(remote).collect

        shared.metrics.add_collector_on_demand("remote", collector)
        return remote


def _has_table(topic: ConfigResource, image: MetadataImage) -> bool:
    return image.config(topic).get("table.format", "none") != "none"


def _check_no_remote_topics(image: MetadataImage) -> None:
    """Raise if topics have segments in remote storage, and this broker has none."""
    remote = sorted(
        resource.name
        for resource, values in image.configs.items()
        if resource.type == ConfigResourceType.TOPIC and values.get("remote.storage.enable") == "true"
    )
    if remote:
        named = ", ".join(remote[:5]) + (", ..." if len(remote) > 5 else "")
        raise NodeFailed(
            "You have to delete all topics with the property remote.storage.enable=true before disabling "
            f"tiered storage cluster-wide: {named}. Start the node with "
            "remote.log.storage.system.enable=true"
        )
