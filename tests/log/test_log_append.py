"""Appending: offsets, epochs, timestamps, producers, and when a new segment begins."""

from __future__ import annotations

import pytest

from ottla.log.config.log_config import LogConfig
from ottla.log.unified_log import UnexpectedAppendOffset
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.batch import BatchHeader, iter_batches, read_records
from ottla.records.builder import build_batch
from ottla.records.control import ControlType, EndTransactionMarker, build_end_transaction_marker
from ottla.records.types import Codec, TimestampType
from ottla.records.validation import AppendOrigin
from tests.support.log_harness import LogHarness, all_batches, check_log


def batch(count: int = 1, **how: object) -> bytearray:
    timestamp = how.pop("timestamp", 1_700_000_000_000)
    size = how.pop("size", 10)
    return bytearray(build_batch([(timestamp, b"k", b"v" * size)] * count, **how))  # type: ignore[operator, list-item]


def headers(lab: LogHarness) -> list[BatchHeader]:
    return [header for header, _ in all_batches(lab.log)]


def test_the_leader_gives_offsets_and_its_epoch() -> None:
    lab = LogHarness()
    first = lab.log.append_as_leader(batch(3), 5, now_ms=lab.now_ms)
    second = lab.log.append_as_leader(batch(2), 6, now_ms=lab.now_ms)
    assert (first.first_offset, first.last_offset, first.last_leader_epoch) == (0, 2, 5)
    assert (second.first_offset, second.last_offset, second.last_leader_epoch) == (3, 4, 6)
    assert lab.log.log_end_offset == 5
    assert [(each.base_offset, each.leader_epoch) for each in headers(lab)] == [(0, 5), (3, 6)]
    assert [tuple(entry) for entry in lab.log.leader_epoch_cache.entries] == [(5, 0), (6, 3)]
    check_log(lab.log)


def test_the_bytes_that_came_are_the_bytes_that_are_written() -> None:
    lab = LogHarness()
    data = batch(3)
    lab.log.append_as_leader(data, 0, now_ms=lab.now_ms)
    assert lab.log.active_segment.read(0, 10_000) == bytes(data)
    assert [
        each.op for each in lab.sim_disk.trace.entries() if each.op == "write" and each.path.endswith(".log")
    ] == ["write"]


def test_the_broker_may_set_the_timestamps() -> None:
    lab = LogHarness(LogConfig(message_timestamp_type=TimestampType.LOG_APPEND_TIME))
    info = lab.log.append_as_leader(batch(2, timestamp=5), 0, now_ms=1234)
    assert (info.log_append_time, info.max_timestamp) == (1234, 1234)
    ((header, data),) = all_batches(lab.log)
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert [record.timestamp for record in read_records(data)] == [1234, 1234]
    assert LogHarness().log.append_as_leader(batch(), 0, now_ms=lab.now_ms).log_append_time == -1


def test_the_broker_may_recompress() -> None:
    lab = LogHarness(LogConfig(compression_type="zstd"))
    lab.log.append_as_leader(batch(20), 0, now_ms=lab.now_ms)
    ((header, data),) = all_batches(lab.log)
    assert header.codec is Codec.ZSTD
    assert len(read_records(data)) == 20


@pytest.mark.parametrize(
    ("config", "data", "code"),
    [
        (LogConfig(max_message_bytes=100), batch(size=200), ErrorCode.MESSAGE_TOO_LARGE),
        (LogConfig(segment_bytes=100), batch(size=200), ErrorCode.RECORD_LIST_TOO_LARGE),
        (LogConfig(), batch(base_offset=1), ErrorCode.INVALID_RECORD),
        (LogConfig(), batch()[:-1] + b"!", ErrorCode.CORRUPT_MESSAGE),
        (
            LogConfig(message_timestamp_after_max_ms=10),
            batch(timestamp=1_700_000_001_000),
            ErrorCode.INVALID_TIMESTAMP,
        ),
    ],
)
def test_what_breaks_a_rule_is_refused_and_leaves_nothing(
    config: LogConfig, data: bytearray, code: ErrorCode
) -> None:
    lab = LogHarness(config)
    with pytest.raises(KafkaError) as refused:
        lab.log.append_as_leader(data, 0, now_ms=lab.now_ms)
    assert refused.value.code is code
    assert lab.log.log_end_offset == lab.log.size == 0
    assert lab.log.leader_epoch_cache.entries == ()


# Producers


def produce(
    lab: LogHarness, sequence: int, *, producer_id: int = 7, epoch: int = 0, count: int = 1, **how: object
):  # type: ignore[no-untyped-def]
    data = batch(count, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, **how)
    return lab.log.append_as_leader(data, 0, now_ms=lab.now_ms)


def end(lab: LogHarness, kind: ControlType, *, producer_id: int = 7, epoch: int = 0):  # type: ignore[no-untyped-def]
    marker = build_end_transaction_marker(
        EndTransactionMarker(kind, 0), producer_id=producer_id, producer_epoch=epoch, timestamp=lab.now_ms
    )
    return lab.log.append_as_leader(
        bytearray(marker), 0, now_ms=lab.now_ms, origin=AppendOrigin.COORDINATOR, transaction_version=1
    )


def test_a_repeated_batch_is_answered_with_its_first_offsets() -> None:
    lab = LogHarness()
    lab.put(b"before")
    first = produce(lab, 0, count=3)
    lab.put(b"between")
    again = produce(lab, 0, count=3)
    assert again.duplicate
    assert not first.duplicate
    assert (again.first_offset, again.last_offset) == (first.first_offset, first.last_offset) == (1, 3)
    assert lab.log.log_end_offset == 5


def test_a_gap_in_the_sequence_is_refused() -> None:
    lab = LogHarness()
    produce(lab, 0)
    with pytest.raises(KafkaError) as refused:
        produce(lab, 2)
    assert refused.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert lab.log.log_end_offset == 1


def test_an_open_transaction_holds_the_last_stable_offset() -> None:
    lab = LogHarness()
    lab.put(b"a")
    produce(lab, 0, transactional=True)
    lab.put(b"b")
    lab.log.update_high_watermark(lab.log.log_end_offset)
    assert lab.log.first_unstable_offset == lab.log.last_stable_offset == 1
    end(lab, ControlType.COMMIT)
    # Decided, but the marker is not replicated yet.
    assert lab.log.last_stable_offset == 1
    lab.log.update_high_watermark(lab.log.log_end_offset)
    assert lab.log.last_stable_offset == 4
    assert lab.log.first_unstable_offset is None


@pytest.mark.parametrize("clean", [True, False])
def test_an_end_that_was_not_replicated_before_a_restart_is_awaited_after_it(clean: bool) -> None:
    """Also if the snapshot of the producers, which knows open transactions only, is from after that end."""
    lab = LogHarness()
    lab.put(b"a")
    lab.log.roll(lab.now_ms)
    for producer_id in (7, 8, 9):
        produce(lab, 0, transactional=True, producer_id=producer_id)
    end(lab, ControlType.COMMIT, producer_id=7)  # at 4
    end(lab, ControlType.ABORT, producer_id=8)  # at 5
    lab.log.roll(lab.now_ms)
    lab.log.flush()
    lab.checkpoint()
    end(lab, ControlType.COMMIT, producer_id=9)  # at 6
    produce(lab, 1, transactional=True, producer_id=7)
    if clean:
        lab.close()
    else:
        lab.log.flush()
        lab.sim_disk.crash()
    log = lab.reload(clean=clean, high_watermark=4)
    assert log.producer_state_manager.first_unstable_offset() == (7 if clean else 3), "what snapshots know"
    stable = []
    for high_watermark in range(4, 9):
        log.update_high_watermark(high_watermark)
        stable.append(log.last_stable_offset)
    assert stable == [1, 2, 3, 7, 7]
    end(lab, ControlType.ABORT, producer_id=7)
    assert log.last_stable_offset == 7
    log.update_high_watermark(log.log_end_offset)
    assert log.last_stable_offset == 9


def test_an_aborted_transaction_is_found_by_those_who_read_its_range() -> None:
    lab = LogHarness(LogConfig(segment_bytes=300))
    produce(lab, 0, transactional=True, size=50)
    lab.fill(4)
    produce(lab, 1, transactional=True, size=50)
    marker = end(lab, ControlType.ABORT)
    lab.fill(4)
    assert len(lab.log.segments) > 3
    (aborted,) = lab.log.collect_aborted_transactions(0, lab.log.log_end_offset)
    assert (aborted.producer_id, aborted.first_offset, aborted.last_offset) == (7, 0, marker.first_offset)
    assert lab.log.collect_aborted_transactions(marker.first_offset + 1, lab.log.log_end_offset) == []
    assert lab.log.collect_aborted_transactions(2, 3) == [aborted]
    lab.log.update_high_watermark(lab.log.log_end_offset)
    check_log(lab.log)


# Followers


def given(*bases: int, epoch: int = 0, **how: object) -> bytes:
    return b"".join(bytes(batch(base_offset=base, leader_epoch=epoch, **how)) for base in bases)


def test_a_follower_takes_the_batches_as_they_are() -> None:
    lab = LogHarness()
    info = lab.log.append_as_follower(given(0, 1, 5, epoch=3), 3, now_ms=lab.now_ms)
    assert (info.first_offset, info.last_offset, info.last_leader_epoch) == (0, 5, 3)
    assert [each.base_offset for each in headers(lab)] == [0, 1, 5]
    check_log(lab.log)


def test_a_follower_leaves_out_what_is_of_a_later_epoch() -> None:
    lab = LogHarness()
    info = lab.log.append_as_follower(
        given(0, 1, epoch=3) + given(2, epoch=4) + given(3, epoch=3), 3, now_ms=0
    )
    assert info.last_offset == 1
    assert lab.log.log_end_offset == 2
    nothing = lab.log.append_as_follower(given(2, epoch=4), 3, now_ms=0)
    assert nothing.size == 0
    assert lab.log.log_end_offset == 2


def test_a_follower_ignores_a_batch_that_the_fetch_cut_off() -> None:
    lab = LogHarness()
    lab.log.append_as_follower(given(0, 1)[:-5], 0, now_ms=0)
    assert lab.log.log_end_offset == 1


def test_batches_below_the_end_are_refused_with_their_offsets() -> None:
    lab = LogHarness()
    lab.log.append_as_follower(given(0, 1, 2), 0, now_ms=0)
    with pytest.raises(UnexpectedAppendOffset) as refused:
        lab.log.append_as_follower(given(2, 3), 0, now_ms=0)
    assert (refused.value.first_offset, refused.value.last_offset) == (2, 2)
    with pytest.raises(UnexpectedAppendOffset):
        lab.log.append_as_follower(given(5, 4), 0, now_ms=0)
    assert lab.log.log_end_offset == 3


def test_a_follower_checks_the_checksums() -> None:
    lab = LogHarness()
    damaged = bytearray(given(0, 1))
    damaged[-1] ^= 1
    with pytest.raises(KafkaError) as refused:
        lab.log.append_as_follower(damaged, 0, now_ms=0)
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
    assert lab.log.log_end_offset == 0


def test_the_raft_leader_sets_offsets_and_epoch_itself() -> None:
    lab = LogHarness()
    lab.log.append_as_leader(given(0, 1, epoch=2), 2, now_ms=0, origin=AppendOrigin.RAFT_LEADER)
    assert lab.log.log_end_offset == 2
    with pytest.raises(KafkaError, match="epoch 3"):
        lab.log.append_as_leader(given(2, epoch=3), 2, now_ms=0, origin=AppendOrigin.RAFT_LEADER)


# Rolling


def bases(lab: LogHarness) -> list[int]:
    return [segment.base_offset for segment in lab.log.segments]


def test_a_segment_is_closed_before_it_grows_too_large() -> None:
    lab = LogHarness(LogConfig(segment_bytes=500))
    infos = [lab.log.append_as_leader(batch(size=130), 0, now_ms=lab.now_ms) for _ in range(5)]
    assert bases(lab) == [0, 2, 4]
    assert [info.rolled for info in infos] == [False, False, True, False, True]
    assert all(segment.size <= 500 for segment in lab.log.segments)
    check_log(lab.log)


def test_a_segment_may_be_filled_to_its_last_byte() -> None:
    size = len(build_batch([(0, None, b"x" * 100)]))
    for spare, segments in ((0, [0, 3]), (-1, [0, 2])):
        lab = LogHarness(LogConfig(segment_bytes=3 * size + spare))
        for _ in range(4):
            lab.put(b"x" * 100, timestamp=0)
        assert [segment.base_offset for segment in lab.log.segments] == segments


def test_a_segment_is_closed_by_the_age_of_its_first_records() -> None:
    lab = LogHarness(LogConfig(segment_ms=1000))
    start = lab.now_ms
    lab.put(b"a", timestamp=start)
    lab.put(b"b", timestamp=start + 1000)
    assert bases(lab) == [0]
    lab.put(b"c", timestamp=start + 1001)
    assert bases(lab) == [0, 2]
    # Not by the clock on the wall, as long as the records have timestamps.
    lab.clock.advance_ms(5000)  # type: ignore[attr-defined]
    lab.put(b"d", timestamp=start + 1001)
    assert bases(lab) == [0, 2]


def test_without_timestamps_the_clock_decides() -> None:
    lab = LogHarness(LogConfig(segment_ms=1000))
    lab.put(b"a", timestamp=-1)
    lab.clock.advance_ms(1001)  # type: ignore[attr-defined]
    lab.put(b"b", timestamp=-1)
    assert bases(lab) == [0, 1]


def test_the_age_is_taken_from_the_file_after_a_restart() -> None:
    lab = LogHarness(LogConfig(segment_ms=1000))
    start = lab.now_ms
    lab.put(b"a", timestamp=start)
    lab.close()
    lab.reload(clean=True)
    lab.put(b"b", timestamp=start + 1001)
    assert bases(lab) == [0, 1]


def test_jitter_makes_segments_close_earlier() -> None:
    lab = LogHarness(LogConfig(segment_ms=1000, segment_jitter_ms=900, segment_bytes=10**9))
    lab.log.roll(lab.now_ms)
    lab.put(b"a")
    lab.log.roll(lab.now_ms)
    jitters = []
    for _ in range(20):
        lab.put(b"a")
        lab.log.roll(lab.now_ms)
        jitters.append(lab.log.active_segment.roll_jitter_ms)
    assert all(0 <= jitter < 900 for jitter in jitters)
    assert len(set(jitters)) > 5
    segment = lab.log.active_segment
    lab.put(b"a", timestamp=lab.now_ms)
    lab.put(b"b", timestamp=lab.now_ms + 1001 - segment.roll_jitter_ms)
    assert lab.log.active_segment is not segment


def test_a_full_index_closes_the_segment() -> None:
    lab = LogHarness(LogConfig(index_interval_bytes=0, segment_index_bytes=24))
    for number in range(10):
        lab.put(b"x", timestamp=lab.now_ms + number)
    assert len(lab.log.segments) > 2
    for segment in lab.log.segments:
        assert segment.offset_index.entries <= 3
        assert segment.time_index.entries <= 2
    check_log(lab.log)


def test_an_offset_too_far_from_the_base_begins_a_new_segment() -> None:
    lab = LogHarness()
    lab.log.append_as_follower(given(0, 1), 0, now_ms=0)
    lab.log.append_as_follower(given(2**31 - 1), 0, now_ms=0)
    assert bases(lab) == [0]
    lab.log.append_as_follower(given(2**31), 0, now_ms=0)
    assert bases(lab) == [0, 2**31]
    # Farther than a segment can reach from the end of the log: the segment begins with the batch.
    lab.log.append_as_follower(given(2**33), 0, now_ms=0)
    assert bases(lab) == [0, 2**31, 2**33]
    check_log(lab.log)
    lab.log.flush()
    lab.crash()
    assert lab.log.log_end_offset == 2**33 + 1
    assert bases(lab) == [0, 2**31, 2**33]


def test_a_follower_rolls_where_its_log_ends() -> None:
    """So that segments join without a gap, and a gap means loss."""
    lab = LogHarness(LogConfig(segment_bytes=200))
    lab.log.append_as_follower(given(0, size=100), 0, now_ms=0)
    lab.log.append_as_follower(given(10, size=100), 0, now_ms=0)
    assert bases(lab) == [0, 1]
    assert [header.base_offset for _, header in lab.log.segments[1].headers()] == [10]
    assert next(iter_batches(lab.log.read(1, 1000).records))[1].base_offset == 10


def test_an_empty_segment_is_not_closed() -> None:
    lab = LogHarness()
    assert not lab.log.roll(lab.now_ms)
    lab.put(b"a")
    assert lab.log.roll(lab.now_ms)
    assert not lab.log.roll(lab.now_ms)
    assert bases(lab) == [0, 1]


def test_every_roll_leaves_a_producer_snapshot() -> None:
    lab = LogHarness()
    produce(lab, 0)
    lab.log.roll(lab.now_ms)
    produce(lab, 1)
    lab.log.roll(lab.now_ms)
    assert lab.log.producer_snapshots.offsets == (1, 2)
    lab.close()
    assert "/data/orders-3/00000000000000000002.snapshot" in lab.sim_disk.contents()


def test_a_preallocated_segment_is_cut_when_it_is_closed() -> None:
    lab = LogHarness(LogConfig(preallocate=True, segment_bytes=5000))
    lab.put(b"a")
    path = lab.log.active_segment.path(".log")
    assert len(lab.sim_disk.contents()[path]) == 5000
    size = lab.log.active_segment.size
    lab.log.roll(lab.now_ms)
    assert len(lab.sim_disk.contents()[path]) == size
    lab.put(b"b")
    lab.close()
    lab.reload(clean=True)
    lab.put(b"c")
    check_log(lab.log)
