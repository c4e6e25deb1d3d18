"""The records of `__remote_log_metadata`: where the segments of tiered partitions are.

The value of a record is the frame of `ottla.protocol.framed_records`; there is no key.
"""

from __future__ import annotations

from typing import Final

from ottla.protocol.framed_records import RecordTypes
from ottla.protocol.schema import (
    Message,
    Struct,
    array,
    binary,
    boolean,
    int8,
    int32,
    int64,
    nested,
    string,
    uuid,
)


class TopicIdPartitionEntry(Struct):
    name: str = string()
    id: bytes = uuid()
    partition: int = int32()


class RemoteLogSegmentIdEntry(Struct):
    topic_id_partition: TopicIdPartitionEntry = nested(TopicIdPartitionEntry)
    id: bytes = uuid()


class SegmentLeaderEpochEntry(Struct):
    leader_epoch: int = int32()
    offset: int = int64()


class RemoteLogSegmentMetadataRecord(Message, api_key=0, versions="0", flexible="0+"):
    """A segment is being copied to remote storage, or was."""

    remote_log_segment_id: RemoteLogSegmentIdEntry = nested(RemoteLogSegmentIdEntry)
    start_offset: int = int64()
    end_offset: int = int64()
    broker_id: int = int32()
    max_timestamp_ms: int = int64()
    event_timestamp_ms: int = int64()
    segment_leader_epochs: list[SegmentLeaderEpochEntry] = array(SegmentLeaderEpochEntry)
    segment_size_in_bytes: int = int32()
    custom_metadata: bytes | None = binary(nullable=True, default=None)
    remote_log_segment_state: int = int8()
    txn_index_empty: bool = boolean(tag=0)


class RemoteLogSegmentMetadataUpdateRecord(Message, api_key=1, versions="0", flexible="0+"):
    """The state of a remote segment changed."""

    remote_log_segment_id: RemoteLogSegmentIdEntry = nested(RemoteLogSegmentIdEntry)
    broker_id: int = int32()
    event_timestamp_ms: int = int64()
    custom_metadata: bytes | None = binary(nullable=True, default=None)
    remote_log_segment_state: int = int8()


class RemotePartitionDeleteMetadataRecord(Message, api_key=2, versions="0", flexible="0+"):
    """The state of a partition's deletion from remote storage changed."""

    topic_id_partition: TopicIdPartitionEntry = nested(TopicIdPartitionEntry)
    broker_id: int = int32()
    event_timestamp_ms: int = int64()
    remote_partition_delete_state: int = int8()


class RemoteLogSegmentMetadataSnapshotRecord(Message, api_key=3, versions="0", flexible="0+"):
    """A remote segment in a snapshot of the metadata."""

    segment_id: bytes = uuid()
    start_offset: int = int64()
    end_offset: int = int64()
    broker_id: int = int32()
    max_timestamp_ms: int = int64()
    event_timestamp_ms: int = int64()
    segment_leader_epochs: list[SegmentLeaderEpochEntry] = array(SegmentLeaderEpochEntry)
    segment_size_in_bytes: int = int32()
    custom_metadata: bytes | None = binary(nullable=True, default=None)
    remote_log_segment_state: int = int8()
    txn_index_empty: bool = boolean(tag=0)


RECORD_TYPES: Final = RecordTypes(
    (
        RemoteLogSegmentMetadataRecord,
        RemoteLogSegmentMetadataUpdateRecord,
        RemotePartitionDeleteMetadataRecord,
        RemoteLogSegmentMetadataSnapshotRecord,
    )
)
