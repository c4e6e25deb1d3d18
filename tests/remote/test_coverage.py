"""Readers without a broker find the segments of a log's own lineage, and positions in them."""

from __future__ import annotations

import struct

import pytest

from ottla.log.leader_epoch_cache import EpochEntry
from ottla.log.segment.txn_index import AbortedTxn
from ottla.protocol.names import TopicPartition
from ottla.remote.coverage import (
    AbortedRange,
    SegmentPart,
    aborted_in,
    find_segments,
    position_before,
    position_behind,
)
from ottla.remote.metadata_cache import RemoteLogMetadataCache
from ottla.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemoteStorageError,
)

FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED


def segment(number: int, start: int, end: int, epochs: dict[int, int]) -> RemoteLogSegmentMetadata:
    id = RemoteLogSegmentId(b"t" * 16, TopicPartition("orders", 0), bytes([number] * 16))
    return RemoteLogSegmentMetadata(id, start, end, 0, 1, 0, 1000, epochs)


def cache_of(
    *segments: tuple[RemoteLogSegmentMetadata, *tuple[RemoteLogSegmentState, ...]],
) -> RemoteLogMetadataCache:
    cache = RemoteLogMetadataCache()
    for each, *states in segments:
        cache.add_copy_in_progress_segment(each)
        for state in states:
            cache.update_remote_log_segment_metadata(RemoteLogSegmentMetadataUpdate(each.id, 0, state, 1))
    return cache


def ranges(parts: list[SegmentPart]) -> list[tuple[int, int, int]]:
    return [(part.segment.id.id[0], part.start, part.end) for part in parts]


def test_segments_cover_a_range_up_to_what_is_not_finished() -> None:
    cache = cache_of(
        (segment(1, 0, 9, {0: 0}), FINISHED),
        (segment(2, 10, 19, {0: 10}), FINISHED),
        (segment(3, 20, 29, {0: 20}),),
    )
    epochs = [EpochEntry(0, 0)]
    assert ranges(find_segments(cache, epochs, 3, 100)) == [(1, 3, 10), (2, 10, 20)]
    assert ranges(find_segments(cache, epochs, 12, 15)) == [(2, 12, 15)]
    assert find_segments(cache, epochs, 20, 100) == []


def test_a_segment_that_is_being_deleted_ends_the_cover() -> None:
    cache = cache_of(
        (segment(1, 0, 9, {0: 0}), FINISHED),
        (segment(2, 10, 19, {0: 10}), FINISHED, DELETING),
        (segment(3, 20, 29, {0: 20}), FINISHED),
    )
    assert ranges(find_segments(cache, [EpochEntry(0, 0)], 0, 30)) == [(1, 0, 10)]


def test_records_of_another_lineage_are_left_out() -> None:
    """The leader of epoch 1 uploaded 0 to 19; the one of epoch 2 was elected without 10 to 19."""
    cache = cache_of(
        (segment(1, 0, 19, {0: 0, 1: 5}), FINISHED),
        (segment(2, 10, 29, {2: 10}), FINISHED),
    )
    log = [EpochEntry(0, 0), EpochEntry(1, 5), EpochEntry(2, 10)]
    assert ranges(find_segments(cache, log, 0, 30)) == [(1, 0, 10), (2, 10, 30)]
    assert find_segments(cache, [EpochEntry(3, 0)], 0, 30) == []
    assert find_segments(cache, [], 0, 30) == []


def test_aborted_transactions_are_those_with_a_marker_in_the_part() -> None:
    part = SegmentPart(segment(1, 0, 99, {0: 0}), 10, 50)
    entries = [
        AbortedTxn(7, 0, 9, 0),
        AbortedTxn(7, 2, 10, 0),
        AbortedTxn(8, 11, 49, 0),
        AbortedTxn(8, 50, 60, 0),
    ]
    index = b"".join(each.encode() for each in entries)
    assert aborted_in(part, index) == [AbortedRange(7, 2, 10), AbortedRange(8, 11, 49)]
    with pytest.raises(RemoteStorageError, match="is damaged"):
        aborted_in(part, b"\x01" * len(index))


def test_positions_are_on_the_safe_side() -> None:
    # Batches of ten records begin at 0, 100 and so on; an entry has the last offset of each.
    index = b"".join(struct.pack(">ii", 10 * n + 9, 100 * n) for n in range(1, 10))
    each = segment(1, 0, 99, {0: 0})
    for offset in range(100):
        begin = offset // 10 * 100
        assert begin - 100 <= position_before(each, index, offset) <= begin
        last = (offset - 1) // 10 * 100 if offset else 0
        assert position_behind(each, index, offset) >= last + 100 or not offset
    assert position_before(each, b"", 50) == 0
    assert position_behind(each, b"", 50) == each.segment_size_in_bytes
