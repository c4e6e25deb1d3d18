"""The cache of remote segments finds what the lineage of a log has, and forgets nothing too early."""

from __future__ import annotations

import itertools
import tracemalloc

import pytest

from ottla.protocol.errors import MalformedMessage
from ottla.protocol.names import TopicIdPartition, TopicPartition
from ottla.remote.metadata_cache import RemoteLogMetadataCache
from ottla.remote.metadata_manager import metadata_partition
from ottla.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    RemoteResourceNotFound,
    decode_event,
    encode_event,
    is_valid_transition,
)

TOPIC_ID = bytes(range(16))
TP = TopicPartition("orders", 3)
STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
DELETED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED

_numbers = itertools.count(1)


def segment(
    start: int, end: int, epochs: dict[int, int] | None = None, *, txn_index_empty: bool = True
) -> RemoteLogSegmentMetadata:
    id = RemoteLogSegmentId(TOPIC_ID, TP, next(_numbers).to_bytes(16, "big"))
    return RemoteLogSegmentMetadata(
        id=id,
        start_offset=start,
        end_offset=end,
        max_timestamp_ms=end,
        broker_id=1,
        event_timestamp_ms=0,
        segment_size_in_bytes=100,
        segment_leader_epochs=epochs or {0: start},
        txn_index_empty=txn_index_empty,
    )


def update(
    metadata: RemoteLogSegmentMetadata, state: RemoteLogSegmentState
) -> RemoteLogSegmentMetadataUpdate:
    return RemoteLogSegmentMetadataUpdate(metadata.id, 5, state, 1)


def copied(cache: RemoteLogMetadataCache, *segments: RemoteLogSegmentMetadata) -> None:
    for each in segments:
        cache.add_copy_in_progress_segment(each)
        cache.update_remote_log_segment_metadata(update(each, FINISHED))


def test_a_segment_is_found_from_its_finished_copy_to_its_deletion() -> None:
    cache = RemoteLogMetadataCache()
    cache.is_initialized = True
    first = segment(0, 9)
    cache.add_copy_in_progress_segment(first)
    assert cache.remote_log_segment_metadata(0, 5) is None
    assert cache.highest_offset_for_epoch(0) is None
    cache.update_remote_log_segment_metadata(update(first, FINISHED))
    found = cache.remote_log_segment_metadata(0, 5)
    assert found is not None
    assert found.id == first.id
    assert found.state is FINISHED
    assert cache.highest_offset_for_epoch(0) == 9
    assert cache.remote_log_segment_metadata(0, 10) is None
    assert cache.remote_log_segment_metadata(1, 5) is None
    cache.update_remote_log_segment_metadata(update(first, DELETING))
    assert cache.remote_log_segment_metadata(0, 5) is None
    assert [each.state for each in cache.list_remote_log_segments(0)] == [DELETING]
    cache.update_remote_log_segment_metadata(update(first, DELETED))
    assert cache.list_remote_log_segments() == []
    assert cache.list_remote_log_segments(0) == []
    assert cache.highest_offset_for_epoch(0) == 9


def test_offsets_are_found_by_the_epoch_that_wrote_them() -> None:
    cache = RemoteLogMetadataCache()
    both = segment(10, 29, {3: 10, 5: 20})
    copied(cache, both)
    assert cache.remote_log_segment_metadata(3, 19) is not None
    assert cache.remote_log_segment_metadata(3, 20) is None
    assert cache.remote_log_segment_metadata(5, 19) is None
    assert cache.remote_log_segment_metadata(5, 29) is not None
    assert (cache.highest_offset_for_epoch(3), cache.highest_offset_for_epoch(5)) == (19, 29)


def test_a_larger_upload_takes_the_place_of_those_that_it_covers() -> None:
    cache = RemoteLogMetadataCache()
    small, next_small, large = segment(0, 49), segment(50, 99), segment(0, 199)
    copied(cache, small, next_small, large)
    for offset in (0, 49, 50, 99, 150):
        found = cache.remote_log_segment_metadata(0, offset)
        assert found is not None
        assert found.id == large.id
    assert len(cache.list_remote_log_segments(0)) == 3


def test_a_late_upload_of_an_earlier_leader_hides_nothing() -> None:
    cache = RemoteLogMetadataCache()
    large = segment(5, 200)
    copied(cache, large, segment(5, 100), segment(10, 90))
    for offset in (5, 50, 95, 150):
        found = cache.remote_log_segment_metadata(0, offset)
        assert found is not None
        assert found.id == large.id
    assert len(cache.list_remote_log_segments(0)) == 3


def test_events_may_be_repeated_and_wrong_ones_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    cache = RemoteLogMetadataCache()
    cache.is_initialized = True
    first = segment(0, 9)
    copied(cache, first)
    cache.update_remote_log_segment_metadata(update(first, FINISHED))
    assert cache.remote_log_segment_metadata(0, 0) is not None
    cache.update_remote_log_segment_metadata(update(first, DELETED))
    assert "the event is dropped" in caplog.text
    assert cache.remote_log_segment_metadata(0, 0) is not None
    with pytest.raises(RemoteResourceNotFound):
        cache.update_remote_log_segment_metadata(update(segment(10, 19), FINISHED))
    cache.is_initialized = False
    cache.update_remote_log_segment_metadata(update(segment(10, 19), FINISHED))


def test_the_transitions_are_those_of_kafka() -> None:
    allowed = {
        (None, STARTED),
        (STARTED, FINISHED),
        (STARTED, DELETING),
        (FINISHED, DELETING),
        (DELETING, DELETED),
        *((state, state) for state in RemoteLogSegmentState),
    }
    for source in (None, *RemoteLogSegmentState):
        for target in RemoteLogSegmentState:
            assert is_valid_transition(source, target) is ((source, target) in allowed), (source, target)


def test_events_survive_their_records() -> None:
    metadata = segment(10, 29, {3: 10, 5: 20})
    assert decode_event(encode_event(metadata)) == metadata
    change = RemoteLogSegmentMetadataUpdate(metadata.id, 7, DELETING, 2, b"custom")
    assert decode_event(encode_event(change)) == change
    deletion = RemotePartitionDeleteMetadata(
        TOPIC_ID, TP, RemotePartitionDeleteState.DELETE_PARTITION_MARKED, 8, 3
    )
    assert decode_event(memoryview(encode_event(deletion))) == deletion
    # Frame 1, record type 0, version 0; then the topic's name with its length, plus one.
    assert encode_event(metadata)[:10] == b"\x01\x00\x00\x07orders"
    with pytest.raises(MalformedMessage):
        decode_event(encode_event(metadata)[:20])


def test_the_records_are_those_of_kafka() -> None:
    # By `RemoteLogMetadataSerde` of Apache Kafka 4.3.1.
    id = RemoteLogSegmentId(TOPIC_ID, TP, bytes.fromhex("112233445566778899aabbccddeeff00"))
    metadata = RemoteLogSegmentMetadata(
        id=id,
        start_offset=10,
        end_offset=29,
        max_timestamp_ms=1234,
        broker_id=1,
        event_timestamp_ms=5678,
        segment_size_in_bytes=1000,
        segment_leader_epochs={3: 10, 5: 20},
        txn_index_empty=True,
    )
    of_segment = (
        "00076f7264657273000102030405060708090a0b0c0d0e0f0000000300112233445566778899aabbccddeeff0000"
    )
    assert encode_event(metadata).hex() == (
        f"0100{of_segment}000000000000000a000000000000001d0000000100000000000004d2000000000000162e03"
        "00000003000000000000000a0000000005000000000000001400000003e8000001000101"
    )
    change = RemoteLogSegmentMetadataUpdate(id, 99, FINISHED, 1, b"\x01\x02")
    assert encode_event(change).hex() == f"0101{of_segment}0000000100000000000000630301020100"


def test_the_metadata_partition_is_the_one_that_kafka_chooses() -> None:
    # By `RemoteLogMetadataTopicPartitioner` of Apache Kafka 4.3.1.
    for number, count, expected in (
        *((0, 1, 0), (12345, 1, 0), (0, 2, 1), (7, 2, 1)),
        *((0, 3, 2), (1, 3, 2), (2, 3, 1), (7, 3, 0), (12345, 3, 2)),
        *((0, 50, 45), (1, 50, 3), (2, 50, 5), (7, 50, 45), (12345, 50, 47)),
    ):
        assert metadata_partition(TopicIdPartition(TOPIC_ID, number), count) == expected


def test_segments_are_listed_in_order_however_they_came() -> None:
    cache = RemoteLogMetadataCache()
    cache.is_initialized = True
    first, second, third = segment(0, 9), segment(10, 19), segment(20, 29)
    again = segment(10, 14)
    for each in (third, first, again, second):
        cache.add_copy_in_progress_segment(each)
        cache.add_copy_in_progress_segment(each)
    assert [each.id for each in cache.unfinished_copies()] == [third.id, first.id, again.id, second.id]
    assert cache.first_start_offset(0) == 0
    assert cache.first_start_offset(1) is None
    for each in (second, third, first):
        cache.update_remote_log_segment_metadata(update(each, FINISHED))
    assert [each.id for each in cache.unfinished_copies()] == [again.id]
    assert [each.id for each in cache.list_remote_log_segments()] == [
        first.id,
        again.id,
        second.id,
        third.id,
    ]
    cache.update_remote_log_segment_metadata(update(first, DELETING))
    assert cache.first_start_offset(0) == 10
    cache.update_remote_log_segment_metadata(update(first, DELETED))
    assert cache.first_start_offset(0) == 10
    assert [each.state for each in cache.list_remote_log_segments()] == [STARTED, FINISHED, FINISHED]


def test_a_segment_takes_less_than_a_kilobyte_of_memory() -> None:
    count = 2_000
    events = []
    for number in range(count):
        metadata = segment(number * 100_000, number * 100_000 + 99_999, {7: number * 100_000})
        events += [encode_event(metadata), encode_event(update(metadata, FINISHED))]
    cache = RemoteLogMetadataCache()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for value in events:
            event = decode_event(value)
            if isinstance(event, RemoteLogSegmentMetadata):
                cache.add_copy_in_progress_segment(event)
            else:
                assert isinstance(event, RemoteLogSegmentMetadataUpdate)
                cache.update_remote_log_segment_metadata(event)
            del event
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(cache) == count
    assert (after - before) / count < 1000


def test_the_newest_epoch_that_has_an_offset_is_found_among_finished_segments() -> None:
    cache = RemoteLogMetadataCache()
    copied(cache, segment(0, 99, {0: 0}), segment(50, 149, {2: 50, 4: 120}))
    cache.add_copy_in_progress_segment(segment(100, 199, {9: 100}))
    assert [cache.newest_epoch_of(offset) for offset in (0, 49, 50, 119, 120, 149, 150)] == [
        0,
        0,
        2,
        2,
        4,
        4,
        None,
    ]
