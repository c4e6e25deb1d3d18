"""Which remote segments hold a range of a log's offsets, for readers that are no brokers.

Such a reader has the events of `__remote_log_metadata` and, from the leader, the leader epochs of the log. A
segment counts if its copy is finished and as far as its epochs are those of the log, as for a broker. What no
segment holds is left to the brokers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from ottla.log.leader_epoch_cache import EpochEntry
from ottla.log.segment.txn_index import CorruptTxnIndexError, decode_entries
from ottla.remote.log_lineage import end_of_lineage
from ottla.remote.metadata_cache import RemoteLogMetadataCache
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata, RemoteStorageError

__all__ = [
    "AbortedRange",
    "EpochEntry",
    "SegmentPart",
    "aborted_in",
    "position_behind",
    "find_segments",
    "position_before",
]

_OFFSET_ENTRY: Final = Struct(">ii")


class SegmentPart(NamedTuple):
    """Offsets from `start` to before `end` that a segment holds."""

    segment: RemoteLogSegmentMetadata
    start: int
    end: int


class AbortedRange(NamedTuple):
    """An aborted transaction: records of the producer from `first_offset` to its marker, `last_offset`."""

    producer_id: int
    first_offset: int
    last_offset: int


def find_segments(
    segments: RemoteLogMetadataCache, epochs: Sequence[EpochEntry], start: int, end: int
) -> list[SegmentPart]:
    """The segments that hold the offsets from `start` on without a gap, at most to before `end`. `epochs` are
    those of the log, ascending.
    """
    found: list[SegmentPart] = []
    offset = start
    while offset < end:
        at = bisect_right(epochs, offset, key=_start_offset)
        if not at:
            break
        epoch = epochs[at - 1].epoch
        segment = segments.remote_log_segment_metadata(epoch, offset)
        if segment is None:
            break
        stop = min(segment.end_offset + 1, end_of_lineage(epochs, segment, epoch), end)
        if stop <= offset:
            break
        found.append(SegmentPart(segment, offset, stop))
        offset = stop
    return found


def aborted_in(part: SegmentPart, transaction_index: bytes) -> list[AbortedRange]:
    """The aborted transactions whose markers are in this part of the segment."""
    try:
        entries = decode_entries(transaction_index)
    except CorruptTxnIndexError as error:
        raise RemoteStorageError(f"The transaction index of {part.segment.id} is damaged: {error}") from error
    return [
        AbortedRange(each.producer_id, each.first_offset, each.last_offset)
        for each in entries
        if part.start <= each.last_offset < part.end
    ]


def position_before(segment: RemoteLogSegmentMetadata, offset_index: bytes, offset: int) -> int:
    """The position of a batch that is not behind the one that holds `offset`."""
    count = bisect_right(
        range(len(offset_index) // _OFFSET_ENTRY.size),
        offset - segment.start_offset,
        key=lambda n: _OFFSET_ENTRY.unpack_from(offset_index, n * _OFFSET_ENTRY.size)[0],
    )
    return _position(offset_index, count - 1) if count else 0


def position_behind(segment: RemoteLogSegmentMetadata, offset_index: bytes, offset: int) -> int:
    """A position at or behind the end of all batches with offsets below `offset`."""
    count = len(offset_index) // _OFFSET_ENTRY.size
    # An entry has the last offset of a batch and the position where it begins.
    at = bisect_left(
        range(count),
        offset - segment.start_offset,
        key=lambda n: _OFFSET_ENTRY.unpack_from(offset_index, n * _OFFSET_ENTRY.size)[0],
    )
    return _position(offset_index, at + 1) if at + 1 < count else segment.segment_size_in_bytes


def _position(offset_index: bytes, number: int) -> int:
    position: int = _OFFSET_ENTRY.unpack_from(offset_index, number * _OFFSET_ENTRY.size)[1]
    return position


def _start_offset(entry: EpochEntry) -> int:
    return entry.start_offset
