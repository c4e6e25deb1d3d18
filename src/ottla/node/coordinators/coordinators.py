"""The coordinators of a node, each made when it is first needed.

A node that leads no partition of a coordinator's topic, and that nobody has asked, does not even import it:
that keeps a start short and an idle node small. Once made, a coordinator follows the metadata like everything
else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from ottla.metadata.image.delta import MetadataDelta
from ottla.metadata.image.image import MetadataImage
from ottla.protocol.names import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from ottla.replication.partition import Partition
from ottla.replication.replica_manager import ReplicaChanges

if TYPE_CHECKING:
    from ottla.coordinator.group.service import GroupCoordinatorService
    from ottla.node.coordinators.transactions import NodeTransactions
    from ottla.node.node import Node


class Coordinators:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._groups: GroupCoordinatorService | None = None
        self._transactions: NodeTransactions | None = None

    @property
    def groups(self) -> GroupCoordinatorService:
        if self._groups is None:
            self._groups = self._make_groups()
        return self._groups

    def _make_groups(self) -> GroupCoordinatorService:
        from ottla.coordinator.group.service import GroupCoordinatorService
        from ottla.node.config.coordinator_settings import group_config
        from ottla.records.types import Codec

        node = self._node
        config = node.config
        groups = GroupCoordinatorService(
            node.runtime,
            group_config(config),
            codec=Codec(config.number("offsets.topic.compression.codec")),
            commit_timeout_ms=config.number("offsets.commit.timeout.ms"),
            load_bytes=config.number("offsets.load.buffer.size"),
        )
        node.replicas.add_progress_listener(groups.on_partition_progress)
        groups.on_metadata_update(node.image, leaders=_led(node.replicas, CONSUMER_OFFSETS_TOPIC))
        return groups

    @property
    def transactions(self) -> NodeTransactions:
        if self._transactions is None:
            self._transactions = self._make_transactions()
        return self._transactions

    def _make_transactions(self) -> NodeTransactions:
        from ottla.node.coordinators.transactions import NodeTransactions

        node = self._node
        transactions = NodeTransactions(node)
        service = transactions.service
        node.replicas.add_progress_listener(service.on_partition_progress)
        service.on_metadata_update(node.image, leaders=_led(node.replicas, TRANSACTION_STATE_TOPIC))
        return transactions

    def follow(
        self, image: MetadataImage, changes: ReplicaChanges, delta: MetadataDelta | None = None
    ) -> None:
        """The metadata moved on, and with it the partitions that are led and followed here."""
        deleted_topics = [] if delta is None else [topic.name for topic in delta.deleted_topics.values()]
        # Some may live on elsewhere, without a replica here.
        self.resigned(changes.deleted)
        led = {partition.topic_partition.topic for partition in changes.leaders}
        if self._groups is not None:
            self._groups.on_metadata_update(
                image, leaders=changes.leaders, followers=changes.followers, deleted_topics=deleted_topics
            )
        elif CONSUMER_OFFSETS_TOPIC in led:
            self._groups = self._make_groups()
        if self._transactions is not None:
            self._transactions.service.on_metadata_update(
                image, leaders=changes.leaders, followers=changes.followers, deleted_topics=deleted_topics
            )
            if delta is not None:
                self._transactions.gone(_gone(delta, image))
        elif TRANSACTION_STATE_TOPIC in led:
            self._transactions = self._make_transactions()

    def resigned(self, partitions: Collection[TopicPartition]) -> None:
        """Partitions that this node can no longer serve."""
        if self._groups is not None:
            self._groups.on_resignation(partitions)
        if self._transactions is not None:
            self._transactions.service.on_resignation(partitions)

    def configure(self) -> None:
        """The node's settings have changed."""
        if self._groups is not None:
            from ottla.node.config.coordinator_settings import group_config

            self._groups.configure(group_config(self._node.config))
        if self._transactions is not None:
            from ottla.node.config.coordinator_settings import transaction_config

            self._transactions.service.configure(transaction_config(self._node.config))

    async def close(self) -> None:
        if self._transactions is not None:
            await self._transactions.close()
        if self._groups is not None:
            await self._groups.close()


def _gone(delta: MetadataDelta, image: MetadataImage) -> list[int]:
    """Brokers that were fenced or have left by a delta."""
    brokers = image.cluster.brokers
    return [id for id in delta.changed_brokers if id not in brokers or brokers[id].fenced]


def _led(partitions: Iterable[Partition], topic: str) -> list[Partition]:
    return [
        partition
        for partition in partitions
        if partition.is_leader and partition.topic_partition.topic == topic
    ]
