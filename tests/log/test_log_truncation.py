"""Cutting a log at its end and at its start."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.log.config.log_config import LogConfig
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.builder import build_batch
from ottla.sim.disk import SimCrash
from tests.support.log_harness import PARTITION, LogHarness, all_batches, check_log

SMALL = LogConfig(segment_bytes=400, index_interval_bytes=100, file_delete_delay_ms=1000)


def filled(sizes: list[int], config: LogConfig = SMALL) -> LogHarness:
    """A log with batches of so many records, a new epoch with every third."""
    lab = LogHarness(config)
    for number, size in enumerate(sizes):
        data = build_batch(
            [(lab.now_ms + number, None, b"x" * 40)] * size,
            producer_id=9,
            producer_epoch=0,
            base_sequence=sum(sizes[:number]),
        )
        lab.log.append_as_leader(bytearray(data), number // 3, now_ms=lab.now_ms)
    lab.log.update_high_watermark(lab.log.log_end_offset)
    return lab


SIZES = st.lists(st.integers(1, 4), max_size=15)


@given(SIZES, st.data())
def test_what_is_left_is_what_ended_below_the_offset(sizes: list[int], data: st.DataObject) -> None:
    lab = filled(sizes)
    before = all_batches(lab.log)
    offset = data.draw(st.integers(0, lab.log.log_end_offset + 3))
    cut = lab.log.truncate_to(offset)
    left = [batch for batch in before if batch[0].last_offset < offset]
    assert [each for _, each in all_batches(lab.log)] == [each for _, each in left]
    assert lab.log.log_end_offset == (left[-1][0].next_offset if left else 0)
    assert cut == (len(left) < len(before))
    check_log(lab.log)
    # It goes on from there, and it is all there after a restart.
    lab.put(b"on", epoch=50)
    lab.log.update_high_watermark(lab.log.log_end_offset)
    check_log(lab.log)
    content = [each for _, each in all_batches(lab.log)]
    lab.close()
    lab.reload(clean=True)
    assert [each for _, each in all_batches(lab.log)] == content
    check_log(lab.log)


@given(SIZES, st.data())
def test_a_cut_is_durable_when_it_returns(sizes: list[int], data: st.DataObject) -> None:
    lab = filled(sizes)
    lab.log.flush()
    lab.checkpoint()
    offset = data.draw(st.integers(0, lab.log.log_end_offset))
    lab.log.truncate_to(offset)
    end = lab.log.log_end_offset
    lab.crash()
    assert lab.log.log_end_offset == end
    check_log(lab.log)


def test_nothing_of_what_was_cut_mixes_with_what_is_written_next() -> None:
    """Batches of the same size and offsets: a lost truncation or a lost write would go unnoticed."""
    for seed in range(30):
        lab = LogHarness(LogConfig(), seed=seed)
        for _ in range(20):
            lab.put(b"old" * 20, epoch=1)
        lab.log.flush()
        lab.checkpoint()
        lab.log.truncate_to(10)
        for _ in range(10):
            lab.put(b"new" * 20, epoch=2)
        lab.crash()
        epochs = [header.leader_epoch for header, _ in all_batches(lab.log)]
        assert epochs == [1] * 10 + [2] * (len(epochs) - 10)


@given(SIZES, st.integers(0, 60))
def test_an_emptied_log_goes_on_at_the_new_offset(sizes: list[int], offset: int) -> None:
    lab = filled(sizes)
    lab.log.truncate_fully_and_start_at(offset)
    log = lab.log
    assert log.log_start_offset == log.log_end_offset == log.high_watermark == offset
    assert [segment.base_offset for segment in log.segments] == [offset]
    assert log.leader_epoch_cache.entries == ()
    assert log.producer_state_manager.is_empty
    assert log.producer_snapshots.offsets == ()
    assert lab.put(b"on", epoch=50) == offset
    lab.crash()
    assert lab.log.log_start_offset == offset
    assert lab.log.log_end_offset in (offset, offset + 1)
    check_log(lab.log, producers_from=offset)


def test_a_log_that_is_emptied_at_an_offset_inside_a_batch_survives_a_crash_at_any_point() -> None:
    """The old log is refused if no batch of it ends at the recovery point."""
    done = False
    for steps in itertools.count():
        lab = filled([4] * 5)
        lab.log.flush()
        lab.checkpoint()
        lab.sim_disk.crash_after(steps)
        try:
            lab.log.truncate_fully_and_start_at(6)
            done = True
        except SimCrash:
            pass
        lab.crash()
        assert lab.log.log_start_offset in ((6,) if done else (0, 6)), steps
        check_log(lab.log, producers_from=lab.log.log_start_offset)
        if done:
            break
    assert steps > 10


def test_an_emptied_log_may_start_below_where_it_goes_on() -> None:
    lab = filled([3, 3])
    lab.log.truncate_fully_and_start_at(10, log_start_offset=4)
    assert (lab.log.log_start_offset, lab.log.log_end_offset) == (4, 10)


def test_cutting_below_the_first_segment_empties_the_log() -> None:
    lab = filled([2] * 10)
    lab.log.maybe_increment_log_start_offset(12, "a test")
    lab.log.delete_old_segments(lab.now_ms)
    assert lab.log.segments[0].base_offset > 4
    lab.log.truncate_to(4)
    assert (lab.log.log_start_offset, lab.log.log_end_offset) == (4, 4)


def test_an_epoch_without_records_is_cut_too() -> None:
    lab = filled([1])
    lab.log.assign_epoch_start_offset(7, 1)
    assert not lab.log.truncate_to(5)
    assert lab.log.latest_epoch == 0


def test_a_negative_offset_is_refused() -> None:
    with pytest.raises(ValueError, match="-1"):
        LogHarness().log.truncate_to(-1)


# The start


def test_the_start_moves_up_to_the_high_watermark_and_no_further() -> None:
    lab = filled([2] * 5)
    lab.log.update_high_watermark(6)
    with pytest.raises(KafkaError, match="larger than the high watermark 6") as refused:
        lab.log.maybe_increment_log_start_offset(7, "a test")
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert lab.log.maybe_increment_log_start_offset(6, "a test")
    assert not lab.log.maybe_increment_log_start_offset(3, "a test")
    assert lab.log.log_start_offset == 6


@given(SIZES, st.data())
def test_epochs_and_producers_follow_the_start(sizes: list[int], data: st.DataObject) -> None:
    lab = filled(sizes)
    start = data.draw(st.integers(0, lab.log.log_end_offset))
    lab.log.maybe_increment_log_start_offset(start, "a test")
    check_log(lab.log, producers_from=start)
    lab.close()
    lab.reload(clean=True)
    assert lab.log.log_start_offset == start
    check_log(lab.log, producers_from=start)


def test_segments_below_the_start_are_renamed_and_go_after_a_while() -> None:
    lab = filled([2] * 20)
    first = lab.log.segments[0]
    bases = [segment.base_offset for segment in lab.log.segments]
    lab.log.maybe_increment_log_start_offset(bases[2] + 1, "a test")
    assert lab.log.delete_old_segments(lab.now_ms) == 2
    assert [segment.base_offset for segment in lab.log.segments] == bases[2:]
    names = lab.disk.list_dir(lab.log.dir)
    assert "00000000000000000000.log.deleted" in names
    assert "00000000000000000000.log" not in names
    # A reader that has the file open goes on reading.
    assert first.size > 0
    assert lab.directory.remove_due(lab.now_ms) == 0
    lab.clock.advance_ms(1000)  # type: ignore[attr-defined]
    assert lab.directory.remove_due(lab.now_ms) > 0
    assert not [name for name in lab.disk.list_dir(lab.log.dir) if name.endswith(".deleted")]
    # The producer snapshots of segments that are gone have gone with them.
    assert min(lab.log.producer_snapshots.offsets) > bases[1]


def test_a_durable_start_precedes_the_removal_of_segments() -> None:
    """A crash may keep some removals and lose others; below the log start no reader notices."""
    for seed in range(20):
        lab = LogHarness(SMALL, seed=seed)
        lab.fill(30)
        lab.log.flush()
        lab.log.update_high_watermark(30)
        start = lab.log.segments[5].base_offset
        lab.log.maybe_increment_log_start_offset(start, "a test")
        lab.log.delete_old_segments(lab.now_ms)
        lab.crash()
        assert (lab.log.log_start_offset, lab.log.log_end_offset) == (start, 30)
        check_log(lab.log)


def test_retention_takes_even_the_active_segment() -> None:
    lab = filled([2] * 6, LogConfig(segment_bytes=400, retention_ms=100))
    lab.clock.advance_ms(1000)  # type: ignore[attr-defined]
    segments = len(lab.log.segments)
    assert lab.log.delete_old_segments(lab.now_ms) == segments
    assert lab.log.log_start_offset == lab.log.log_end_offset == 12
    assert [segment.base_offset for segment in lab.log.segments] == [12]
    assert lab.log.latest_epoch == 1
    assert lab.log.delete_old_segments(lab.now_ms) == 0
    assert lab.directory.log_start(PARTITION) == 12


def test_retention_by_size_keeps_at_least_so_much() -> None:
    lab = filled([2] * 20, LogConfig(segment_bytes=400, retention_bytes=900))
    lab.log.delete_old_segments(lab.now_ms)
    assert 900 <= lab.log.size < 900 + 400
    lab.configure(retention_bytes=-1)
    assert lab.log.delete_old_segments(lab.now_ms) == 0
