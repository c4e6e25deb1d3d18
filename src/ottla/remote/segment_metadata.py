"""A segment in remote storage, as the records of `__remote_log_metadata` describe it.

A segment has an id of its own, because one range of offsets may be uploaded more than once: by a leader that
was killed half-way, and by the next leader. Its state only goes forward: a copy is started and finished, a
deletion is started and finished. What has no finished copy is never read; what has no finished deletion is
never forgotten, so that no object is left behind.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import lru_cache
from typing import Final, NamedTuple

from ottla.protocol.errors import ErrorCode, KafkaError, MalformedMessage
from ottla.protocol.framed_records import encode_framed
from ottla.protocol.names import TopicIdPartition, TopicPartition, uuid_text
from ottla.protocol.remote_log_records import (
    RECORD_TYPES,
    RemoteLogSegmentIdEntry,
    RemoteLogSegmentMetadataRecord,
    RemoteLogSegmentMetadataUpdateRecord,
    RemotePartitionDeleteMetadataRecord,
    SegmentLeaderEpochEntry,
    TopicIdPartitionEntry,
)
from ottla.protocol.schema import Buffer

RECORD_VERSION: Final = 0
# Names of partitions, and tuples of leader epochs, that are kept to be shared between segments.
_SHARED_NAMES: Final = 10_000


class RemoteLogSegmentState(IntEnum):
    """The state of a segment in remote storage, with the number that stands in its records."""

    COPY_SEGMENT_STARTED = 0
    COPY_SEGMENT_FINISHED = 1
    DELETE_SEGMENT_STARTED = 2
    DELETE_SEGMENT_FINISHED = 3


class RemotePartitionDeleteState(IntEnum):
    """How far the deletion of a whole partition has come."""

    DELETE_PARTITION_MARKED = 0
    DELETE_PARTITION_STARTED = 1
    DELETE_PARTITION_FINISHED = 2


_NEXT_STATES: Final[Mapping[RemoteLogSegmentState | None, frozenset[RemoteLogSegmentState]]] = {
    None: frozenset({RemoteLogSegmentState.COPY_SEGMENT_STARTED}),
    RemoteLogSegmentState.COPY_SEGMENT_STARTED: frozenset(
        {RemoteLogSegmentState.COPY_SEGMENT_FINISHED, RemoteLogSegmentState.DELETE_SEGMENT_STARTED}
    ),
    RemoteLogSegmentState.COPY_SEGMENT_FINISHED: frozenset({RemoteLogSegmentState.DELETE_SEGMENT_STARTED}),
    RemoteLogSegmentState.DELETE_SEGMENT_STARTED: frozenset({RemoteLogSegmentState.DELETE_SEGMENT_FINISHED}),
    RemoteLogSegmentState.DELETE_SEGMENT_FINISHED: frozenset(),
}


def is_valid_transition(source: RemoteLogSegmentState | None, target: RemoteLogSegmentState) -> bool:
    """Whether a segment may go from one state to another. The same state again is valid: events may be
    repeated by retries and by the next leader.

    >>> is_valid_transition(None, RemoteLogSegmentState.COPY_SEGMENT_FINISHED)
    False
    """
    return source == target or target in _NEXT_STATES[source]


class RemoteStorageError(KafkaError):
    """Remote storage did not do what it was asked for; trying again later may help."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR) -> None:
        super().__init__(code, message)


class RemoteResourceNotFound(RemoteStorageError):
    """Remote storage does not have the segment, the index or the metadata."""


class RemoteStorageNotReady(RemoteStorageError):
    """The metadata of a partition's remote segments is still being read; asking again later helps."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ErrorCode.LEADER_NOT_AVAILABLE)


class RemoteLogSegmentId(NamedTuple):
    """The identity of one upload of a segment."""

    topic_id: bytes
    topic_partition: TopicPartition
    id: bytes

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        return TopicIdPartition(self.topic_id, self.topic_partition.partition)

    def __str__(self) -> str:
        return f"{self.topic_partition} segment {uuid_text(self.id)}"


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentMetadata:
    """What is known of a segment in remote storage.

    `segment_leader_epochs` has the offset at which each epoch begins within the segment, by epoch, ascending;
    the first of them begins at `start_offset`. `end_offset` is the last offset of the segment.
    """

    id: RemoteLogSegmentId
    start_offset: int
    end_offset: int
    max_timestamp_ms: int
    broker_id: int
    event_timestamp_ms: int
    segment_size_in_bytes: int
    segment_leader_epochs: Mapping[int, int]
    state: RemoteLogSegmentState = RemoteLogSegmentState.COPY_SEGMENT_STARTED
    custom_metadata: bytes | None = None
    txn_index_empty: bool = False
    _epochs: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.segment_leader_epochs:
            raise ValueError(
                f"segment {uuid_text(self.id.id)} of {self.id.topic_partition} has no leader epoch"
            )
        if self.start_offset < 0 or self.end_offset < self.start_offset - 1:
            raise ValueError(f"a segment cannot be from {self.start_offset} to {self.end_offset}")
        object.__setattr__(self, "_epochs", _shared_epochs(tuple(sorted(self.segment_leader_epochs))))

    @property
    def leader_epochs(self) -> tuple[int, ...]:
        """The epochs of the segment, ascending."""
        return self._epochs

    def epoch_end_offset(self, epoch: int) -> int:
        """The last offset that belongs to the epoch within this segment."""
        after = bisect_right(self._epochs, epoch)
        if after == len(self._epochs):
            return self.end_offset
        return self.segment_leader_epochs[self._epochs[after]] - 1

    def with_update(self, update: RemoteLogSegmentMetadataUpdate) -> RemoteLogSegmentMetadata:
        """Return the metadata after a change of state."""
        assert update.id == self.id, (update.id, self.id)
        return replace(
            self,
            state=update.state,
            event_timestamp_ms=update.event_timestamp_ms,
            broker_id=update.broker_id,
            custom_metadata=update.custom_metadata,
        )


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentMetadataUpdate:
    """A change of a segment's state. Its custom metadata takes the place of what was there, as in Kafka."""

    id: RemoteLogSegmentId
    event_timestamp_ms: int
    state: RemoteLogSegmentState
    broker_id: int
    custom_metadata: bytes | None = None


@dataclass(frozen=True, slots=True)
class RemotePartitionDeleteMetadata:
    """A change in the deletion of a whole partition."""

    topic_id: bytes
    topic_partition: TopicPartition
    state: RemotePartitionDeleteState
    event_timestamp_ms: int
    broker_id: int

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        return TopicIdPartition(self.topic_id, self.topic_partition.partition)


RemoteLogMetadataEvent = (
    RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate | RemotePartitionDeleteMetadata
)


# The records of the topic


def encode_event(event: RemoteLogMetadataEvent) -> bytes:
    """Return the value of the event's record."""
    record: (
        RemoteLogSegmentMetadataRecord
        | RemoteLogSegmentMetadataUpdateRecord
        | RemotePartitionDeleteMetadataRecord
    )
    match event:
        case RemoteLogSegmentMetadata():
            record = RemoteLogSegmentMetadataRecord(
                remote_log_segment_id=_id_entry(event.id),
                start_offset=event.start_offset,
                end_offset=event.end_offset,
                broker_id=event.broker_id,
                max_timestamp_ms=event.max_timestamp_ms,
                event_timestamp_ms=event.event_timestamp_ms,
                segment_leader_epochs=[
                    SegmentLeaderEpochEntry(leader_epoch=epoch, offset=event.segment_leader_epochs[epoch])
                    for epoch in event.leader_epochs
                ],
                segment_size_in_bytes=event.segment_size_in_bytes,
                custom_metadata=event.custom_metadata,
                remote_log_segment_state=event.state,
                txn_index_empty=event.txn_index_empty,
            )
        case RemoteLogSegmentMetadataUpdate():
            record = RemoteLogSegmentMetadataUpdateRecord(
                remote_log_segment_id=_id_entry(event.id),
                broker_id=event.broker_id,
                event_timestamp_ms=event.event_timestamp_ms,
                custom_metadata=event.custom_metadata,
                remote_log_segment_state=event.state,
            )
        case RemotePartitionDeleteMetadata():
            record = RemotePartitionDeleteMetadataRecord(
                topic_id_partition=_partition_entry(event.topic_id, event.topic_partition),
                broker_id=event.broker_id,
                event_timestamp_ms=event.event_timestamp_ms,
                remote_partition_delete_state=event.state,
            )
    return encode_framed(record, RECORD_VERSION)


def decode_event(value: Buffer) -> RemoteLogMetadataEvent | None:
    """Read the value of a record; None for a snapshot record, which belongs into no topic. MalformedMessage
    or UnsupportedVersion if it cannot be read.
    """
    record, _ = RECORD_TYPES.decode(value)
    try:
        match record:
            case RemoteLogSegmentMetadataRecord():
                return RemoteLogSegmentMetadata(
                    id=_segment_id(record.remote_log_segment_id),
                    start_offset=record.start_offset,
                    end_offset=record.end_offset,
                    max_timestamp_ms=record.max_timestamp_ms,
                    broker_id=record.broker_id,
                    event_timestamp_ms=record.event_timestamp_ms,
                    segment_size_in_bytes=record.segment_size_in_bytes,
                    segment_leader_epochs={
                        entry.leader_epoch: entry.offset for entry in record.segment_leader_epochs
                    },
                    state=RemoteLogSegmentState(record.remote_log_segment_state),
                    custom_metadata=_copy(record.custom_metadata),
                    txn_index_empty=record.txn_index_empty,
                )
            case RemoteLogSegmentMetadataUpdateRecord():
                return RemoteLogSegmentMetadataUpdate(
                    id=_segment_id(record.remote_log_segment_id),
                    event_timestamp_ms=record.event_timestamp_ms,
                    state=RemoteLogSegmentState(record.remote_log_segment_state),
                    broker_id=record.broker_id,
                    custom_metadata=_copy(record.custom_metadata),
                )
            case RemotePartitionDeleteMetadataRecord():
                entry = record.topic_id_partition
                return RemotePartitionDeleteMetadata(
                    bytes(entry.id),
                    TopicPartition(entry.name, entry.partition),
                    RemotePartitionDeleteState(record.remote_partition_delete_state),
                    record.event_timestamp_ms,
                    record.broker_id,
                )
    except ValueError as error:
        raise MalformedMessage(f"{type(record).__name__}: {error}") from None
    return None


def _copy(data: bytes | None) -> bytes | None:
    """The bytes themselves: what was decoded may be a view of a buffer that is much larger."""
    return None if data is None else bytes(data)


def _partition_entry(topic_id: bytes, partition: TopicPartition) -> TopicIdPartitionEntry:
    return TopicIdPartitionEntry(name=partition.topic, id=topic_id, partition=partition.partition)


def _id_entry(id: RemoteLogSegmentId) -> RemoteLogSegmentIdEntry:
    return RemoteLogSegmentIdEntry(
        topic_id_partition=_partition_entry(id.topic_id, id.topic_partition), id=id.id
    )


def _segment_id(entry: RemoteLogSegmentIdEntry) -> RemoteLogSegmentId:
    at = entry.topic_id_partition
    return RemoteLogSegmentId(*_partition_names(bytes(at.id), at.name, at.partition), bytes(entry.id))


@lru_cache(maxsize=_SHARED_NAMES)
def _partition_names(topic_id: bytes, topic: str, partition: int) -> tuple[bytes, TopicPartition]:
    """The names of a partition, the same objects for all of its segments."""
    return topic_id, TopicPartition(topic, partition)


@lru_cache(maxsize=_SHARED_NAMES)
def _shared_epochs(epochs: tuple[int, ...]) -> tuple[int, ...]:
    return epochs
