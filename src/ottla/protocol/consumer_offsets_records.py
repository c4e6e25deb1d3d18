"""The keys and values in `__consumer_offsets`: committed offsets, and the state of groups of all protocols.

Classic groups keep one record with all members; consumer, share and streams groups keep one for each member
and each part of its state. For the epochs of assignments and the classic metadata of a consumer group's
member, null and absent differ: write None if there is none. Framing and tombstones are those of
`ottla.protocol.coordinator_records`.
"""

from __future__ import annotations

from typing import Final

from ottla.protocol.coordinator_records import CoordinatorRecords
from ottla.protocol.schema import (
    Message,
    Struct,
    array,
    binary,
    int8,
    int16,
    int32,
    int64,
    nested,
    string,
    uint16,
    uuid,
)


class LegacyOffsetCommitKey(Message, api_key=0, versions="0"):
    """A committed offset as Kafka wrote it before 0.9; it is read, and never written."""

    group: str = string()
    topic: str = string()
    partition: int = int32()


class LegacyOffsetCommitValue(Message, api_key=0, versions="0"):
    offset: int = int64()
    metadata: str = string()
    commit_timestamp: int = int64()


class OffsetCommitKey(Message, api_key=1, versions="0"):
    """The offset that a group committed for a partition. Value v1: expiry; v3: leader epoch; v4: topic id."""

    group: str = string()
    topic: str = string()
    partition: int = int32()


class OffsetCommitValue(Message, api_key=1, versions="0-4", flexible="4+"):
    offset: int = int64()
    leader_epoch: int = int32(versions="3+", default=-1, ignorable=True)
    metadata: str = string()
    commit_timestamp: int = int64()
    expire_timestamp: int = int64(versions="1", default=-1, ignorable=True)
    topic_id: bytes = uuid(versions="4+", tag=0, ignorable=True)


class GroupMetadataKey(Message, api_key=2, versions="0"):
    """A classic group. Value v1: rebalance timeout; v2: time of the last change; v3: static members."""

    group: str = string()


class MemberMetadata(Struct):
    member_id: str = string()
    group_instance_id: str | None = string(versions="3+", nullable=True, default=None, ignorable=True)
    client_id: str = string()
    client_host: str = string()
    rebalance_timeout: int = int32(versions="1+", default=-1, ignorable=True)
    session_timeout: int = int32()
    subscription: bytes = binary()
    assignment: bytes = binary()


class GroupMetadataValue(Message, api_key=2, versions="0-4", flexible="4+"):
    protocol_type: str = string()
    generation: int = int32()
    protocol: str | None = string(nullable=True)
    leader: str | None = string(nullable=True)
    current_state_timestamp: int = int64(versions="2+", default=-1, ignorable=True)
    members: list[MemberMetadata] = array(MemberMetadata)


class ConsumerGroupMetadataKey(Message, api_key=3, versions="0"):
    """A consumer group and its epoch."""

    group_id: str = string()


class ConsumerGroupMetadataValue(Message, api_key=3, versions="0", flexible="0+"):
    epoch: int = int32()
    metadata_hash: int = int64(tag=0)


class ConsumerGroupPartitionMetadataKey(Message, api_key=4, versions="0"):
    """The topics of a consumer group; replaced by the hash in its metadata, so it is only removed."""

    group_id: str = string()


class PartitionMetadata(Struct):
    partition: int = int32()
    racks: list[str] = array("string")


class TopicMetadata(Struct):
    topic_id: bytes = uuid()
    topic_name: str = string()
    num_partitions: int = int32()
    partition_metadata: list[PartitionMetadata] = array(PartitionMetadata)


class ConsumerGroupPartitionMetadataValue(Message, api_key=4, versions="0", flexible="0+"):
    topics: list[TopicMetadata] = array(TopicMetadata)


class ConsumerGroupMemberMetadataKey(Message, api_key=5, versions="0"):
    """A member of a consumer group, as it described itself."""

    group_id: str = string()
    member_id: str = string()


class ClassicProtocol(Struct):
    name: str = string()
    metadata: bytes = binary()


class ClassicMemberMetadata(Struct):
    session_timeout_ms: int = int32()
    supported_protocols: list[ClassicProtocol] = array(ClassicProtocol)


class ConsumerGroupMemberMetadataValue(Message, api_key=5, versions="0", flexible="0+"):
    instance_id: str | None = string(nullable=True)
    rack_id: str | None = string(nullable=True)
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array("string")
    subscribed_topic_regex: str | None = string(nullable=True)
    rebalance_timeout_ms: int = int32(default=-1)
    server_assignor: str | None = string(nullable=True)
    classic_member_metadata: ClassicMemberMetadata | None = nested(
        ClassicMemberMetadata, nullable=True, tag=0
    )


class ConsumerGroupTargetAssignmentMetadataKey(Message, api_key=6, versions="0"):
    """The epoch of a consumer group's target assignment."""

    group_id: str = string()


class ConsumerGroupTargetAssignmentMetadataValue(Message, api_key=6, versions="0", flexible="0+"):
    assignment_epoch: int = int32()
    assignment_timestamp: int = int64(tag=0)


class ConsumerGroupTargetAssignmentMemberKey(Message, api_key=7, versions="0"):
    """The target assignment of a member of a consumer group."""

    group_id: str = string()
    member_id: str = string()


class TargetAssignmentTopicPartition(Struct):
    topic_id: bytes = uuid()
    partitions: list[int] = array("int32")


class ConsumerGroupTargetAssignmentMemberValue(Message, api_key=7, versions="0", flexible="0+"):
    topic_partitions: list[TargetAssignmentTopicPartition] = array(TargetAssignmentTopicPartition)


class ConsumerGroupCurrentMemberAssignmentKey(Message, api_key=8, versions="0"):
    """The current assignment of a member of a consumer group, and its partitions to revoke."""

    group_id: str = string()
    member_id: str = string()


class ConsumerGroupCurrentMemberAssignmentTopicPartitions(Struct):
    topic_id: bytes = uuid()
    partitions: list[int] = array("int32")
    assignment_epochs: list[int] | None = array("int32", nullable=True, tag=0)


class ConsumerGroupCurrentMemberAssignmentValue(Message, api_key=8, versions="0", flexible="0+"):
    member_epoch: int = int32()
    previous_member_epoch: int = int32()
    state: int = int8()
    assigned_partitions: list[ConsumerGroupCurrentMemberAssignmentTopicPartitions] = array(
        ConsumerGroupCurrentMemberAssignmentTopicPartitions
    )
    partitions_pending_revocation: list[ConsumerGroupCurrentMemberAssignmentTopicPartitions] = array(
        ConsumerGroupCurrentMemberAssignmentTopicPartitions
    )


class ShareGroupMemberMetadataKey(Message, api_key=10, versions="0"):
    """A member of a share group, as it described itself."""

    group_id: str = string()
    member_id: str = string()


class ShareGroupMemberMetadataValue(Message, api_key=10, versions="0", flexible="0+"):
    rack_id: str | None = string(nullable=True)
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array("string")


class ShareGroupMetadataKey(Message, api_key=11, versions="0"):
    """A share group and its epoch."""

    group_id: str = string()


class ShareGroupMetadataValue(Message, api_key=11, versions="0", flexible="0+"):
    epoch: int = int32()
    metadata_hash: int = int64()


class ShareGroupTargetAssignmentMetadataKey(Message, api_key=12, versions="0"):
    """The epoch of a share group's target assignment."""

    group_id: str = string()


class ShareGroupTargetAssignmentMetadataValue(Message, api_key=12, versions="0", flexible="0+"):
    assignment_epoch: int = int32()
    assignment_timestamp: int = int64(tag=0)


class ShareGroupTargetAssignmentMemberKey(Message, api_key=13, versions="0"):
    """The target assignment of a member of a share group."""

    group_id: str = string()
    member_id: str = string()


class ShareGroupTargetAssignmentMemberValue(Message, api_key=13, versions="0", flexible="0+"):
    topic_partitions: list[TargetAssignmentTopicPartition] = array(TargetAssignmentTopicPartition)


class ShareGroupCurrentMemberAssignmentKey(Message, api_key=14, versions="0"):
    """The current assignment of a member of a share group."""

    group_id: str = string()
    member_id: str = string()


class ShareGroupCurrentMemberAssignmentTopicPartitions(Struct):
    topic_id: bytes = uuid()
    partitions: list[int] = array("int32")


class ShareGroupCurrentMemberAssignmentValue(Message, api_key=14, versions="0", flexible="0+"):
    member_epoch: int = int32()
    previous_member_epoch: int = int32()
    state: int = int8()
    assigned_partitions: list[ShareGroupCurrentMemberAssignmentTopicPartitions] = array(
        ShareGroupCurrentMemberAssignmentTopicPartitions
    )


class ShareGroupStatePartitionMetadataKey(Message, api_key=15, versions="0"):
    """The partitions whose share state was, or is being, set up or deleted."""

    group_id: str = string()


class ShareGroupTopicPartitionsInfo(Struct):
    topic_id: bytes = uuid()
    topic_name: str = string()
    partitions: list[int] = array("int32")


class ShareGroupStatePartitionMetadataTopicInfo(Struct):
    topic_id: bytes = uuid()
    topic_name: str = string()


class ShareGroupStatePartitionMetadataValue(Message, api_key=15, versions="0", flexible="0+"):
    initializing_topics: list[ShareGroupTopicPartitionsInfo] = array(ShareGroupTopicPartitionsInfo)
    initialized_topics: list[ShareGroupTopicPartitionsInfo] = array(ShareGroupTopicPartitionsInfo)
    deleting_topics: list[ShareGroupStatePartitionMetadataTopicInfo] = array(
        ShareGroupStatePartitionMetadataTopicInfo
    )


class ConsumerGroupRegularExpressionKey(Message, api_key=16, versions="0"):
    """The topics that a regular expression of a consumer group matched."""

    group_id: str = string()
    regular_expression: str = string()


class ConsumerGroupRegularExpressionValue(Message, api_key=16, versions="0", flexible="0+"):
    topics: list[str] = array("string")
    version: int = int64()
    timestamp: int = int64()


class StreamsGroupMetadataKey(Message, api_key=17, versions="0"):
    """A streams group and its epoch."""

    group_id: str = string()


class LastAssignmentConfig(Struct):
    key: str = string()
    value: str = string()


class StreamsGroupMetadataValue(Message, api_key=17, versions="0", flexible="0+"):
    epoch: int = int32()
    metadata_hash: int = int64()
    validated_topology_epoch: int = int32(tag=0, default=-1)
    last_assignment_configs: list[LastAssignmentConfig] | None = array(
        LastAssignmentConfig, nullable=True, default=None, tag=1
    )


class StreamsGroupMemberMetadataKey(Message, api_key=19, versions="0"):
    """A member of a streams group, as it described itself."""

    group_id: str = string()
    member_id: str = string()


class StreamsGroupMemberEndpoint(Struct):
    host: str = string()
    port: int = uint16()


class KeyValue(Struct):
    key: str = string()
    value: str = string()


class StreamsGroupMemberMetadataValue(Message, api_key=19, versions="0", flexible="0+"):
    instance_id: str | None = string(nullable=True)
    rack_id: str | None = string(nullable=True)
    client_id: str = string()
    client_host: str = string()
    rebalance_timeout_ms: int = int32(default=-1)
    topology_epoch: int = int32()
    process_id: str = string()
    user_endpoint: StreamsGroupMemberEndpoint | None = nested(
        StreamsGroupMemberEndpoint, nullable=True, default=None
    )
    client_tags: list[KeyValue] = array(KeyValue)


class StreamsGroupTargetAssignmentMetadataKey(Message, api_key=20, versions="0"):
    """The epoch of a streams group's target assignment."""

    group_id: str = string()


class StreamsGroupTargetAssignmentMetadataValue(Message, api_key=20, versions="0", flexible="0+"):
    assignment_epoch: int = int32()
    assignment_timestamp: int = int64(tag=0)


class StreamsGroupTargetAssignmentMemberKey(Message, api_key=21, versions="0"):
    """The target tasks of a member of a streams group."""

    group_id: str = string()
    member_id: str = string()


class StreamsGroupTargetAssignmentMemberTaskIds(Struct):
    subtopology_id: str = string()
    partitions: list[int] = array("int32")


class StreamsGroupTargetAssignmentMemberValue(Message, api_key=21, versions="0", flexible="0+"):
    active_tasks: list[StreamsGroupTargetAssignmentMemberTaskIds] = array(
        StreamsGroupTargetAssignmentMemberTaskIds
    )
    standby_tasks: list[StreamsGroupTargetAssignmentMemberTaskIds] = array(
        StreamsGroupTargetAssignmentMemberTaskIds
    )
    warmup_tasks: list[StreamsGroupTargetAssignmentMemberTaskIds] = array(
        StreamsGroupTargetAssignmentMemberTaskIds
    )


class StreamsGroupCurrentMemberAssignmentKey(Message, api_key=22, versions="0"):
    """The current tasks of a member of a streams group, and its tasks to revoke."""

    group_id: str = string()
    member_id: str = string()


class StreamsGroupCurrentMemberAssignmentTaskIds(Struct):
    subtopology_id: str = string()
    partitions: list[int] = array("int32")
    # The schema of Kafka says null, but without quotes: its generator takes the empty list for the default.
    assignment_epochs: list[int] | None = array("int32", nullable=True, tag=0)


class StreamsGroupCurrentMemberAssignmentValue(Message, api_key=22, versions="0", flexible="0+"):
    member_epoch: int = int32()
    previous_member_epoch: int = int32()
    state: int = int8()
    active_tasks: list[StreamsGroupCurrentMemberAssignmentTaskIds] = array(
        StreamsGroupCurrentMemberAssignmentTaskIds
    )
    standby_tasks: list[StreamsGroupCurrentMemberAssignmentTaskIds] = array(
        StreamsGroupCurrentMemberAssignmentTaskIds
    )
    warmup_tasks: list[StreamsGroupCurrentMemberAssignmentTaskIds] = array(
        StreamsGroupCurrentMemberAssignmentTaskIds
    )
    active_tasks_pending_revocation: list[StreamsGroupCurrentMemberAssignmentTaskIds] = array(
        StreamsGroupCurrentMemberAssignmentTaskIds
    )
    standby_tasks_pending_revocation: list[StreamsGroupCurrentMemberAssignmentTaskIds] = array(
        StreamsGroupCurrentMemberAssignmentTaskIds
    )
    warmup_tasks_pending_revocation: list[StreamsGroupCurrentMemberAssignmentTaskIds] = array(
        StreamsGroupCurrentMemberAssignmentTaskIds
    )


class StreamsGroupTopologyKey(Message, api_key=23, versions="0"):
    """The topology of a streams group."""

    group_id: str = string()


class TopicConfig(Struct):
    key: str = string()
    value: str = string()


class StreamsGroupTopologyTopicInfo(Struct):
    name: str = string()
    partitions: int = int32()
    replication_factor: int = int16()
    topic_configs: list[TopicConfig] = array(TopicConfig)


class CopartitionGroup(Struct):
    source_topics: list[int] = array("int16")
    source_topic_regex: list[int] = array("int16")
    repartition_source_topics: list[int] = array("int16")


class Subtopology(Struct):
    subtopology_id: str = string()
    source_topics: list[str] = array("string")
    source_topic_regex: list[str] = array("string")
    state_changelog_topics: list[StreamsGroupTopologyTopicInfo] = array(StreamsGroupTopologyTopicInfo)
    repartition_sink_topics: list[str] = array("string")
    repartition_source_topics: list[StreamsGroupTopologyTopicInfo] = array(StreamsGroupTopologyTopicInfo)
    copartition_groups: list[CopartitionGroup] = array(CopartitionGroup)


class StreamsGroupTopologyValue(Message, api_key=23, versions="0", flexible="0+"):
    epoch: int = int32()
    subtopologies: list[Subtopology] = array(Subtopology)


RECORDS: Final = CoordinatorRecords(
    (
        (LegacyOffsetCommitKey, LegacyOffsetCommitValue),
        (OffsetCommitKey, OffsetCommitValue),
        (GroupMetadataKey, GroupMetadataValue),
        (ConsumerGroupMetadataKey, ConsumerGroupMetadataValue),
        (ConsumerGroupPartitionMetadataKey, ConsumerGroupPartitionMetadataValue),
        (ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue),
        (ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue),
        (ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue),
        (ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue),
        (ShareGroupMemberMetadataKey, ShareGroupMemberMetadataValue),
        (ShareGroupMetadataKey, ShareGroupMetadataValue),
        (ShareGroupTargetAssignmentMetadataKey, ShareGroupTargetAssignmentMetadataValue),
        (ShareGroupTargetAssignmentMemberKey, ShareGroupTargetAssignmentMemberValue),
        (ShareGroupCurrentMemberAssignmentKey, ShareGroupCurrentMemberAssignmentValue),
        (ShareGroupStatePartitionMetadataKey, ShareGroupStatePartitionMetadataValue),
        (ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue),
        (StreamsGroupMetadataKey, StreamsGroupMetadataValue),
        (StreamsGroupMemberMetadataKey, StreamsGroupMemberMetadataValue),
        (StreamsGroupTargetAssignmentMetadataKey, StreamsGroupTargetAssignmentMetadataValue),
        (StreamsGroupTargetAssignmentMemberKey, StreamsGroupTargetAssignmentMemberValue),
        (StreamsGroupCurrentMemberAssignmentKey, StreamsGroupCurrentMemberAssignmentValue),
        (StreamsGroupTopologyKey, StreamsGroupTopologyValue),
    )
)
