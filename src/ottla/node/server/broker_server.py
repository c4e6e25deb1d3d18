"""The broker of a node: Kafka's `BrokerServer`.

`BrokerServer` is made once the node takes part in the quorum, of parts that are complete; `start` then does
what takes time, in this order: it registers, still fenced, reads the metadata up to there, loads the logs,
takes up the replicas, opens the listeners, and asks to be unfenced. What it has started stops in the opposite
order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from ottla.log.config.log_config import LogConfig
from ottla.log.directory.meta_properties import is_reserved_directory
from ottla.log.log_manager import LogManager
from ottla.log.segment import handles
from ottla.log.unified_log import UnifiedLog
from ottla.metadata.image.delta import MetadataDelta
from ottla.metadata.image.image import MetadataImage
from ottla.node.api.auto_topic_creation import create_missing_topics
from ottla.node.api.broker_extension import BrokerExtension
from ottla.node.api.services import ApiServices, BrokerServices
from ottla.node.cluster.alter_replica_log_dirs import AlterReplicaLogDirsManager
from ottla.node.cluster.broker_lifecycle import BrokerLifecycleManager
from ottla.node.cluster.damaged_replicas import DamagedReplicas
from ottla.node.cluster.quorum_member import QuorumMember
from ottla.node.cluster.replication import BrokerReplication
from ottla.node.config.component_settings import producer_config
from ottla.node.coordinators.coordinators import Coordinators
from ottla.node.coordinators.producer_id_manager import ProducerIdManager
from ottla.node.fetch.session import FetchSessionCache
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
    from ottla.node.share.dead_letter_topics import DeadLetterTopics
    from ottla.node.share.share_partition_manager import SharePartitionManager

_log = logging.getLogger(__name__)

# How long a broker that stops waits until others have taken over its partitions.
_HAND_OVER_SECONDS: Final = 10.0
_HAND_OVER_ALONE_SECONDS: Final = 1.0
# How long a disk may take for what is not on it yet. After that the next start recovers the logs.
_CLOSE_LOGS_SECONDS: Final = 600.0


class BrokerServer:
    def __init__(
        self,
        shared: SharedServer,
        sockets: SocketServers,
        quorum: QuorumMember,
        storage: NodeStorage,
        extensions: Iterable[Callable[[BrokerServer], BrokerExtension]],
    ) -> None:
        """`extensions` make the optional parts. NodeFailed names a setting that cannot be used."""
        self.shared: Final = shared
        self.quorum: Final = quorum
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
            shared.heavy_work,
            dynamic_config,
            metadata,
            self.replication.peers,
            self.replicas,
            self.log_flushes,
            self.producer_ids,
            self.create_internal_topic,
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
        self.share: Final = OnDemand(self._make_share_partitions)
        self.extensions: Final[list[BrokerExtension]] = []
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
            self.extensions,
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
            extensions=self.extensions,
        )
        add_broker_collectors(shared.metrics, shared.state, self.services, self.tasks)
        # Each is given the complete broker.
        self.extensions.extend(make(self) for make in extensions)

    # What it is asked

    def _broker_epoch(self) -> int:
        return self.lifecycle.epoch

    def _usable_directories(self) -> list[str]:
        return [path for path in self.shared.config.log_dirs if path not in self._storage.failed]

    def _topic_config(self, topic: str) -> LogConfig:
        """The settings of a topic's logs, as the newest image has them."""
        return self.shared.dynamic_config.topic_config(topic, self.quorum.metadata.image)

    def storage_status(self) -> StorageStatus:
        """What of its storage does not serve."""
        return StorageStatus.of(
            {each.path: str(each.failure) for each in self.logs.directories if not each.is_online},
            self.replicas.offline,
            self.logs.failed,
            list(self.logs.directories_set_aside),
        )

    # Starting

    async def start(self) -> None:
        """Start all parts, and serve. NodeFailed, StorageError or OSError say why that cannot be."""
        shared = self.shared
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
        shared, stops = self.shared, self.shared.stop_sequence
        image = self.quorum.metadata.subscribe(self._on_metadata_update)
        self.server.update_ip_quotas(image.client_quotas, image.client_quotas)
        # Addresses must be known before they are registered.
        await shared.endpoints.open_unknown(self.server)
        stops.add(self.server.stop)
        endpoints = shared.endpoints.reachable(shared.config.advertised_listeners)
        runtime, directories = shared.runtime, self._usable_directories()
        previous_epoch = await runtime.pool.run(clean_shutdown_epoch, runtime.disk, directories)
        stops.add(self.lifecycle.close)
        shared.state.waits_for = self.lifecycle.waits_for
        announce = self.quorum.announcer(shared.incarnation_id, endpoints)
        await self.lifecycle.register(endpoints, previous_epoch, announce)
        await self.lifecycle.wait_until_caught_up()

    async def _load_logs(self) -> None:
        stops = self.shared.stop_sequence
        stops.add(self.shared.tasks.start("failures of log directories", self._failures.run).stop)
        for extension in self.extensions:
            await extension.prepare(self.quorum.metadata.image)
        await self.logs.start(self._topic_config, self._is_assigned)
        stops.add(self._close_logs, limit_seconds=_CLOSE_LOGS_SECONDS)

    async def _take_up_replicas(self) -> None:
        """Host the replicas that the metadata assign to this broker, and follow the metadata."""
        stops = self.shared.stop_sequence
        stops.add(self.replication.close)
        stops.add(self.coordinators.close)
        stops.add(self.alter_log_dirs.stop)
        for extension in self.extensions:
            stops.add(extension.close)
        # Both may read through an extension, and begin with the first image that is published.
        stops.add(self.replication.stop_fetchers)
        stops.add(self._close_share_partitions)
        stops.add(self._publisher.stop)
        stops.add(self.damaged_replicas.stop)
        await self._publisher.start()
        self._failures.handle_offline()

    async def _open_listeners(self) -> None:
        shared = self.shared
        await shared.endpoints.open_known(self.server)
        shared.stop_sequence.add(self._leave)
        shared.endpoints.warn_of_open_listeners(is_authorized=shared.authorizer is not None)
        for text in start_warnings(
            shared.config,
            self.quorum.metadata.image,
            shared.endpoints.for_clients(),
            sole_voter=self.quorum.is_sole_voter,
        ):
            _log.warning("%s", text)

    async def _unfence(self) -> None:
        """Ask to be unfenced, and begin with the background tasks."""
        # From then on it may lead; what is damaged must not.
        await self.damaged_replicas.announce()
        self.damaged_replicas.check()
        await self.lifecycle.unfence()
        self.tasks.start()
        self.shared.stop_sequence.add(self.tasks.stop)
        for extension in self.extensions:
            extension.start()

    def answer_clients(self) -> None:
        """Answer the requests of clients, also those that have waited."""
        self.shared.broker_gate.open(ApiServices(self.services, self.quorum, self.services))

    # While it serves

    def _on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        if delta.changed_quotas:
            self.server.update_ip_quotas(image.client_quotas, delta.changed_quotas)
        if self._publisher.is_applying:
            self.damaged_replicas.check()

    def _is_assigned(self, found: UnifiedLog) -> bool:
        """Whether the metadata assign the replica to the directory of this log, of two of one partition."""
        node_id = self.shared.config.node_id
        try:
            registration = registration_of(found, self.quorum.metadata.image, node_id)
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

    async def create_internal_topic(self, name: str) -> None:
        """Have a topic created that a coordinator needs; where that fails, the broker tries again later."""
        await create_missing_topics(ApiServices(self.services, self.quorum), [name])

    # Stopping

    async def _leave(self) -> None:
        """Hand over what this broker leads, then turn clients away."""
        alone = self.quorum.is_sole_voter
        if alone and not self._has_peers():
            # No other broker can take over. Clients would only hear that none is left, and some give up then.
            await self.server.stop()
        hand_over = self.shared.config.flag("controlled.shutdown.enable")
        seconds = _HAND_OVER_ALONE_SECONDS if alone else _HAND_OVER_SECONDS
        if not (hand_over and await self.lifecycle.controlled_shutdown(seconds)):
            _log.info("leaving without having handed over all leaderships")
        await self.server.stop()

    def _has_peers(self) -> bool:
        brokers = self.quorum.metadata.image.cluster.brokers.values()
        return any(broker.is_active for broker in brokers if broker.id != self.shared.config.node_id)

    async def _close_logs(self) -> None:
        await self.log_flushes.close()
        await self.logs.shutdown(self.lifecycle.epoch)

    # Parts that are made where they are needed, and imported then

    def _make_share_partitions(self) -> SharePartitionManager:
        from ottla.node.share.share_partition_manager import SharePartitionManager

        return SharePartitionManager(
            self.services,
            lambda: self.coordinators.persister,
            self.shared.memory.clients,
            self._make_dead_letter_topics,
        )

    def _make_dead_letter_topics(self) -> DeadLetterTopics:
        from ottla.node.share.dead_letter_topics import DeadLetterTopics

        services = ApiServices(self.services, self.quorum)
        return DeadLetterTopics(
            self.shared.runtime,
            self.shared.dynamic_config,
            self.quorum.metadata,
            self.replication.peers,
            self.replicas,
            self.log_flushes,
            self.shared.heavy_work,
            markers=lambda: self.coordinators.transactions.marker_channel_manager,
            topic_config=self._topic_config,
            create_topic=lambda name, configs: create_missing_topics(services, [name], configs=configs),
        )

    def _apply_to_share_partitions(self, changes: ReplicaChanges) -> None:
        if self.share.made is not None:
            self.share.made.apply(changes)

    async def _close_share_partitions(self) -> None:
        if self.share.made is not None:
            await self.share.made.close()
