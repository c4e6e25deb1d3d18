"""The coordinators of a broker, each created when it is first needed.

A node that leads no partition of a coordinator's topic, and has had no request for it, does not even import
it: that keeps a start short and an idle node small. Once created, a coordinator follows the metadata.
"""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ottla.metadata.image.cache import MetadataCache
from ottla.metadata.image.delta import MetadataDelta
from ottla.metadata.image.image import MetadataImage
from ottla.node.cluster.peers import PeerBrokers
from ottla.node.config.dynamic import DynamicBrokerConfig
from ottla.node.config.node_config import NodeConfig
from ottla.node.coordinators.producer_id_manager import ProducerIdManager
from ottla.protocol.names import (
    CONSUMER_OFFSETS_TOPIC,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)
from ottla.replication.log_flush_scheduler import LogFlushScheduler
from ottla.replication.partition import Partition
from ottla.replication.replica_manager import ReplicaChanges, ReplicaManager
from ottla.runtime.heavy_work import SHORT_US, HeavyWork
from ottla.runtime.runtime import Runtime

if TYPE_CHECKING:
    from ottla.coordinator.group.service import GroupCoordinatorService
    from ottla.coordinator.share.service import ShareCoordinatorService
    from ottla.coordinator.transaction.service import TransactionCoordinatorService
    from ottla.node.coordinators.add_partitions_to_txn import AddPartitionsToTxnManager
    from ottla.node.coordinators.partition_metadata_client import PartitionMetadataClient
    from ottla.node.coordinators.share_groups import ShareGroupOperations
    from ottla.node.coordinators.streams_internal_topics import StreamsInternalTopics
    from ottla.node.coordinators.transaction_marker_channel_manager import TransactionMarkerChannelManager
    from ottla.node.share.persister import DefaultStatePersister

# What the coordinators of these topics need.
_MODULES: Final = {
    CONSUMER_OFFSETS_TOPIC: ("ottla.coordinator.group.service", "ottla.node.config.coordinator_settings"),
    TRANSACTION_STATE_TOPIC: (
        "ottla.coordinator.transaction.service",
        "ottla.node.config.coordinator_settings",
        "ottla.node.coordinators.add_partitions_to_txn",
        "ottla.node.coordinators.transaction_marker_channel_manager",
    ),
    SHARE_GROUP_STATE_TOPIC: (
        "ottla.coordinator.share.service",
        "ottla.node.config.coordinator_settings",
        "ottla.node.share.persister",
    ),
}


def _import_modules(names: Iterable[str]) -> None:
    for name in names:
        importlib.import_module(name)


@dataclass(frozen=True, slots=True)
class TransactionParts:
    """The parts of a broker for transactions: those that it coordinates, and those that write to its logs."""

    service: TransactionCoordinatorService
    marker_channel_manager: TransactionMarkerChannelManager
    add_partitions: AddPartitionsToTxnManager

    def on_broker_gone(self, broker: int) -> None:
        """Give up the requests to a broker that was fenced or has left."""
        self.add_partitions.on_broker_gone(broker)
        self.marker_channel_manager.on_broker_gone(broker)

    async def close(self) -> None:
        await self.service.close()
        await self.add_partitions.close()
        await self.marker_channel_manager.close()


class Coordinators:
    """`create_topic` has an internal topic created that does not exist yet; `is_cut_off` is whether the
    controller may have given this broker up.
    """

    def __init__(
        self,
        runtime: Runtime,
        heavy_work: HeavyWork,
        config: DynamicBrokerConfig,
        metadata: MetadataCache,
        peers: PeerBrokers,
        replicas: ReplicaManager,
        log_flushes: LogFlushScheduler,
        producer_ids: ProducerIdManager,
        create_topic: Callable[[str], Awaitable[object]],
        is_cut_off: Callable[[], bool],
    ) -> None:
        self._runtime: Final = runtime
        self._heavy_work: Final = heavy_work
        self._config: Final = config
        self._metadata: Final = metadata
        self._peers: Final = peers
        self._replicas: Final = replicas
        self._log_flushes: Final = log_flushes
        self._producer_ids: Final = producer_ids
        self._create_topic: Final = create_topic
        self._is_cut_off: Final = is_cut_off
        self._groups: GroupCoordinatorService | None = None
        self._transactions: TransactionParts | None = None
        self._share: ShareCoordinatorService | None = None
        self._persister: DefaultStatePersister | None = None
        self._share_groups: ShareGroupOperations | None = None
        self._partition_metadata: PartitionMetadataClient | None = None
        self._streams_internal_topics: StreamsInternalTopics | None = None
        config.add_reconfigurable(self._configure)

    @property
    def groups(self) -> GroupCoordinatorService:
        if self._groups is None:
            self._groups = self._make_groups()
        return self._groups

    def may_have_moved(self, group_id: str) -> bool:
        """Whether another broker may coordinate this group by now, and have committed offsets of it: the
        controller has given this broker up, as far as it can know, and of the followers that would be elected
        one does not fetch. Without a controller, but with its followers, a broker goes on.
        """
        if not self._is_cut_off():
            return False
        index = self.groups.partition_for(group_id)
        partition = self._replicas.find(TopicPartition(CONSUMER_OFFSETS_TOPIC, index))
        silent_ms = 2 * self._config.current.number("replica.fetch.wait.max.ms")
        return partition is not None and not partition.is_followed_since(
            self._runtime.clock.wall_ms() - silent_ms
        )

    @property
    def groups_in_use(self) -> GroupCoordinatorService | None:
        """The group coordinator, if it was needed so far: to look at."""
        return self._groups

    @property
    def transactions_in_use(self) -> TransactionParts | None:
        return self._transactions

    async def import_coordinator(self, topic: str) -> None:
        """Import what the coordinator of a topic needs, if there is none yet, in a thread: the event loop
        would stand still meanwhile. Only for one that is about to be needed.
        """
        made = {
            CONSUMER_OFFSETS_TOPIC: self._groups,
            TRANSACTION_STATE_TOPIC: self._transactions,
            SHARE_GROUP_STATE_TOPIC: self._share,
        }
        if made.get(topic) is None:
            await self._heavy_work.run("modules", SHORT_US, _import_modules, _MODULES.get(topic, ()))

    def _make_groups(self) -> GroupCoordinatorService:
        from ottla.coordinator.group.service import GroupCoordinatorService
        from ottla.node.config.coordinator_settings import group_config
        from ottla.records.types import Codec

        config = self._config.current
        groups = GroupCoordinatorService(
            self._runtime,
            group_config(config),
            on_sends=lambda index, work: self.share_groups.on_sends(index, work),
            codec=Codec(config.number("offsets.topic.compression.codec")),
            commit_timeout_ms=config.number("offsets.commit.timeout.ms"),
            load_bytes=config.number("offsets.load.buffer.size"),
        )
        self._replicas.add_progress_listener(groups.on_partition_progress)
        groups.on_metadata_update(
            self._metadata.image, leaders=_led_partitions(self._replicas, CONSUMER_OFFSETS_TOPIC)
        )
        return groups

    @property
    def share_groups(self) -> ShareGroupOperations:
        """The operations on share groups that wait."""
        if self._share_groups is None:
            from ottla.node.coordinators.share_groups import ShareGroupOperations

            self._share_groups = ShareGroupOperations(
                lambda: self.groups,
                self._metadata,
                lambda: self.persister,
                lambda: self._latest_offsets,
                self._runtime.clock,
            )
        return self._share_groups

    @property
    def _latest_offsets(self) -> PartitionMetadataClient:
        if self._partition_metadata is None:
            from ottla.node.coordinators.partition_metadata_client import PartitionMetadataClient

            self._partition_metadata = PartitionMetadataClient(
                self._config, self._metadata, self._peers, self._replicas, self._runtime.clock
            )
        return self._partition_metadata

    @property
    def streams_internal_topics(self) -> StreamsInternalTopics:
        if self._streams_internal_topics is None:
            from ottla.node.coordinators.streams_internal_topics import StreamsInternalTopics

            self._streams_internal_topics = StreamsInternalTopics(self._runtime.clock)
        return self._streams_internal_topics

    @property
    def transactions(self) -> TransactionParts:
        if self._transactions is None:
            self._transactions = self._make_transactions()
        return self._transactions

    def _make_transactions(self) -> TransactionParts:
        from ottla.coordinator.transaction.service import TransactionCoordinatorService
        from ottla.node.config.coordinator_settings import transaction_config
        from ottla.node.coordinators.add_partitions_to_txn import AddPartitionsToTxnManager
        from ottla.node.coordinators.transaction_marker_channel_manager import TransactionMarkerChannelManager

        config, clock = self._config, self._runtime.clock
        marker_channel_manager = TransactionMarkerChannelManager(
            config,
            self._metadata,
            self._peers,
            self._replicas,
            self._log_flushes,
            clock,
            groups=lambda: self.groups,
        )
        service = TransactionCoordinatorService(
            self._runtime,
            transaction_config(config.current),
            marker_channel_manager,
            self._producer_ids.generate_producer_id,
            commit_timeout_ms=config.current.number("request.timeout.ms"),
            load_bytes=config.current.number("transaction.state.log.load.buffer.size"),
        )
        add_partitions = AddPartitionsToTxnManager(
            config, self._metadata, self._peers, self._replicas, service, clock
        )
        self._replicas.add_progress_listener(service.on_partition_progress)
        service.on_metadata_update(
            self._metadata.image, leaders=_led_partitions(self._replicas, TRANSACTION_STATE_TOPIC)
        )
        return TransactionParts(service, marker_channel_manager, add_partitions)

    @property
    def share(self) -> ShareCoordinatorService:
        """The share coordinator, for the share partitions that this broker coordinates."""
        if self._share is None:
            self._share = self._make_share()
        return self._share

    @property
    def share_in_use(self) -> ShareCoordinatorService | None:
        return self._share

    def _make_share(self) -> ShareCoordinatorService:
        from ottla.coordinator.share.service import ShareCoordinatorService
        from ottla.node.config.coordinator_settings import share_config
        from ottla.records.types import Codec

        config = self._config.current
        share = ShareCoordinatorService(
            self._runtime,
            share_config(config),
            codec=Codec(config.number("share.coordinator.state.topic.compression.codec")),
            commit_timeout_ms=config.number("share.coordinator.write.timeout.ms"),
            load_bytes=config.number("share.coordinator.load.buffer.size"),
        )
        self._replicas.add_progress_listener(share.on_partition_progress)
        share.on_metadata_update(
            self._metadata.image, leaders=_led_partitions(self._replicas, SHARE_GROUP_STATE_TOPIC)
        )
        return share

    @property
    def persister(self) -> DefaultStatePersister:
        """The state of share partitions, whichever broker coordinates them."""
        if self._persister is None:
            from ottla.node.share.persister import DefaultStatePersister

            self._persister = DefaultStatePersister(
                self._runtime,
                self._config,
                self._metadata,
                self._peers,
                local=lambda: self.share,
                create_topic=self._create_topic,
            )
        return self._persister

    async def prepare(self, changes: ReplicaChanges) -> None:
        """Import what `apply` will need for these changes."""
        for topic in sorted({partition.topic_partition.topic for partition in changes.leaders}):
            await self.import_coordinator(topic)

    def apply(
        self, image: MetadataImage, changes: ReplicaChanges, delta: MetadataDelta | None = None
    ) -> None:
        """Follow new metadata, and with it the partitions that this broker leads and follows."""
        deleted_topics = [] if delta is None else [topic.name for topic in delta.deleted_topics.values()]
        # Some may live on elsewhere, without a replica here.
        self.resign(changes.deleted)
        led = {partition.topic_partition.topic for partition in changes.leaders}
        try:
            self._apply_to_groups(image, changes, deleted_topics, led)
        finally:
            try:
                self._apply_to_transactions(image, changes, deleted_topics, led)
            finally:
                self._apply_to_share(image, changes, delta, led)
        if delta is not None and (self._transactions is not None or self._persister is not None):
            for broker in _fenced_or_removed_brokers(delta, image):
                if self._transactions is not None:
                    self._transactions.on_broker_gone(broker)
                if self._persister is not None:
                    self._persister.on_broker_gone(broker)

    def _apply_to_groups(
        self, image: MetadataImage, changes: ReplicaChanges, deleted_topics: list[str], led: set[str]
    ) -> None:
        if self._groups is not None:
            self._groups.on_metadata_update(
                image, leaders=changes.leaders, followers=changes.followers, deleted_topics=deleted_topics
            )
        elif CONSUMER_OFFSETS_TOPIC in led:
            self._groups = self._make_groups()

    def _apply_to_transactions(
        self, image: MetadataImage, changes: ReplicaChanges, deleted_topics: list[str], led: set[str]
    ) -> None:
        if self._transactions is not None:
            self._transactions.service.on_metadata_update(
                image, leaders=changes.leaders, followers=changes.followers, deleted_topics=deleted_topics
            )
        elif TRANSACTION_STATE_TOPIC in led:
            self._transactions = self._make_transactions()

    def _apply_to_share(
        self, image: MetadataImage, changes: ReplicaChanges, delta: MetadataDelta | None, led: set[str]
    ) -> None:
        if self._share is not None:
            deleted = {} if delta is None else {id: topic.name for id, topic in delta.deleted_topics.items()}
            self._share.on_metadata_update(
                image, leaders=changes.leaders, followers=changes.followers, deleted_topics=deleted
            )
        elif SHARE_GROUP_STATE_TOPIC in led:
            self._share = self._make_share()

    def resign(self, partitions: Collection[TopicPartition]) -> None:
        """Stop coordinating what lives in partitions that this broker can no longer serve."""
        if self._groups is not None:
            self._groups.on_resignation(partitions)
        if self._transactions is not None:
            self._transactions.service.on_resignation(partitions)
        if self._share is not None:
            self._share.on_resignation(partitions)

    def _configure(self, config: NodeConfig) -> None:
        if self._groups is not None:
            from ottla.node.config.coordinator_settings import group_config

            self._groups.configure(group_config(config))
        if self._transactions is not None:
            from ottla.node.config.coordinator_settings import transaction_config

            self._transactions.service.configure(transaction_config(config))
        if self._share is not None:
            from ottla.node.config.coordinator_settings import share_config

            self._share.configure(share_config(config))

    async def close(self) -> None:
        if self._transactions is not None:
            await self._transactions.close()
        if self._share_groups is not None:
            await self._share_groups.close()
        if self._partition_metadata is not None:
            self._partition_metadata.close()
        if self._groups is not None:
            await self._groups.close()
        if self._persister is not None:
            await self._persister.close()
        if self._share is not None:
            await self._share.close()


def _fenced_or_removed_brokers(delta: MetadataDelta, image: MetadataImage) -> list[int]:
    """The brokers that a delta fences or removes."""
    brokers = image.cluster.brokers
    return [id for id in sorted(delta.changed_brokers) if id not in brokers or brokers[id].fenced]


def _led_partitions(partitions: Iterable[Partition], topic: str) -> list[Partition]:
    return [
        partition
        for partition in partitions
        if partition.is_leader and partition.topic_partition.topic == topic
    ]
