"""What the rest of a broker asks of remote storage: put a segment there, read parts of it, delete it."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from ottla.protocol.names import TopicPartition
from ottla.remote.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata


class IndexType(Enum):
    """What is kept beside the records of a segment; the value is its name in the manifest."""

    OFFSET = "offset"
    TIMESTAMP = "timestamp"
    PRODUCER_SNAPSHOT = "producerSnapshot"
    LEADER_EPOCH = "leaderEpoch"
    TRANSACTION = "transaction"


@dataclass(frozen=True, slots=True)
class LogSegmentData:
    """The content of a segment that is to be copied.

    `log` returns the records in pieces, from the beginning each time it is called, `log_size` bytes in all.
    The indexes are whole; `transaction_index` is None if the segment has no aborted transaction.
    """

    log: Callable[[], AsyncIterable[bytes]]
    log_size: int
    offset_index: bytes
    time_index: bytes
    producer_snapshot: bytes
    leader_epochs: bytes
    transaction_index: bytes | None = None


class RemoteStorageManager(Protocol):
    """Remote storage. Every call raises `RemoteStorageError` if the store fails, and
    `RemoteResourceNotFound` if it does not have what was asked for.
    """

    async def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        """Copy the segment and return what is to be kept with its metadata. Repeating it is harmless."""

    async def fetch_log_segment(self, metadata: RemoteLogSegmentMetadata, start: int, end: int) -> bytes:
        """Return the bytes of the segment's records from `start` to before `end`, fewer at its end."""

    async def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        """Return an index of the segment. `RemoteResourceNotFound` if it has none of this type, as most have
        no transaction index.
        """

    async def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Delete what is there of the segment. Repeating it is harmless."""

    async def delete_partition_data(self, topic_id: bytes, topic_partition: TopicPartition) -> int:
        """Delete all objects of a partition whose topic is deleted, also those of segments that are not
        known; return how many there were.
        """

    async def list_log_segments(
        self, topic_id: bytes, topic_partition: TopicPartition, is_known: Callable[[RemoteLogSegmentId], bool]
    ) -> list[RemoteLogSegmentMetadata]:
        """Return the complete segments of a partition that are there and not known."""
