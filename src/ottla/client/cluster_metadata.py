"""The metadata of a cluster that a client holds: immutable, and replaced as a whole with every response."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic
from ottla.protocol.names import TopicPartition
from ottla.protocol.schema import ZERO_UUID

NO_LEADER = -1


@dataclass(frozen=True, slots=True)
class Broker:
    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...]
    error: ErrorCode


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic with its partitions. `topic_id` is None on brokers without topic ids; `error` says why there
    are no partitions.
    """

    name: str
    topic_id: bytes | None
    is_internal: bool
    partitions: tuple[PartitionInfo, ...]
    error: ErrorCode = ErrorCode.NONE
    authorized_operations: int | None = None


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """Brokers and topics as of the last metadata responses."""

    cluster_id: str | None = None
    controller_id: int = -1
    brokers: Mapping[int, Broker] = field(default_factory=dict)
    topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    names_by_id: Mapping[bytes, str] = field(default_factory=dict)

    def leader(self, partition: TopicPartition) -> PartitionInfo | None:
        """Return the partition if its leader is a known broker, or None when metadata has to be refreshed."""
        topic = self.topics.get(partition.topic)
        if topic is None or partition.partition >= len(topic.partitions):
            return None
        info = topic.partitions[partition.partition]
        return info if info.leader in self.brokers else None

    def updated(self, response: MetadataResponse, *, all_topics: bool) -> ClusterMetadata:
        """Return this metadata with a response applied. A response for all topics removes the others. A
        partition whose leader epoch went back keeps what is known, as the response came from a broker that
        lags behind.
        """
        topics = {} if all_topics else dict(self.topics)
        for entry in response.topics:
            if entry.name is not None:
                topics[entry.name] = self._newer(_topic(entry))
        ids = {topic.topic_id: name for name, topic in topics.items() if topic.topic_id is not None}
        brokers = {b.node_id: Broker(b.node_id, b.host, b.port, b.rack) for b in response.brokers}
        return ClusterMetadata(
            response.cluster_id or self.cluster_id,
            response.controller_id,
            brokers or self.brokers,
            topics,
            ids,
        )

    def _newer(self, topic: TopicInfo) -> TopicInfo:
        known = self.topics.get(topic.name)
        if known is None or known.topic_id != topic.topic_id or topic.topic_id is None:
            return topic
        partitions = tuple(
            known.partitions[new.partition]
            if new.partition < len(known.partitions)
            and known.partitions[new.partition].leader_epoch > new.leader_epoch >= 0
            else new
            for new in topic.partitions
        )
        return replace(topic, partitions=partitions)


def _topic(entry: MetadataResponseTopic) -> TopicInfo:
    assert entry.name is not None
    partitions = tuple(
        PartitionInfo(
            p.partition_index,
            p.leader_id,
            p.leader_epoch,
            tuple(p.replica_nodes),
            tuple(p.isr_nodes),
            tuple(p.offline_replicas),
            ErrorCode.of(p.error_code),
        )
        for p in sorted(entry.partitions, key=lambda p: p.partition_index)
    )
    operations = entry.topic_authorized_operations
    return TopicInfo(
        entry.name,
        entry.topic_id if entry.topic_id != ZERO_UUID else None,
        entry.is_internal,
        partitions,
        ErrorCode.of(entry.error_code),
        operations if operations != -(2**31) else None,
    )
