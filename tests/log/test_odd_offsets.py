"""Offsets, timestamps and clocks at the ends of what they can be."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from ottla.log.config.log_config import LogConfig
from ottla.log.log_loader import CorruptionPolicy
from ottla.log.segment.walk import CorruptLog
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.builder import build_batch
from ottla.records.types import TimestampType
from ottla.runtime.disk import write_file
from ottla.sim.clock import SimClock
from ottla.sim.disk import SimCrash
from tests.support.log_harness import LogHarness, all_batches, check_log

LAST = (1 << 63) - 1
RECOVERY_POINTS = "/data/recovery-point-offset-checkpoint"
LOG_STARTS = "/data/log-start-offset-checkpoint"


def batch(base_offset: int, last_offset_delta: int = 0, *, timestamp: int = 0, size: int = 10) -> bytes:
    """A batch of one record as a leader sends it, whole, with any span of offsets."""
    data = bytearray(build_batch([(timestamp, None, b"x" * size)], leader_epoch=0))
    struct.pack_into(">q", data, 0, base_offset)
    struct.pack_into(">i", data, 23, last_offset_delta)
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return bytes(data)


def follow(lab: LogHarness, data: bytes) -> int:
    return lab.log.append_as_follower(data, 0, now_ms=lab.now_ms).last_offset


# Offsets


def test_a_log_ends_before_there_are_no_more_offsets() -> None:
    lab = LogHarness()
    lab.log.truncate_fully_and_start_at(LAST - 3)
    for offset in range(LAST - 3, LAST):
        assert lab.put(b"x") == offset
    with pytest.raises(KafkaError, match="no log holds that") as refused:
        lab.put(b"x")
    assert refused.value.code is ErrorCode.INVALID_RECORD
    assert lab.log.log_end_offset == LAST
    lab.log.flush()
    lab.checkpoint()
    lab.crash()
    assert (lab.log.log_start_offset, lab.log.log_end_offset) == (LAST - 3, LAST)
    check_log(lab.log)


@pytest.mark.parametrize(("base", "delta"), [(5, -1), (5, -(1 << 31)), (LAST, 0), (LAST - 3, 5)])
def test_a_follower_refuses_a_batch_that_ends_where_no_log_does(base: int, delta: int) -> None:
    lab = LogHarness()
    lab.fill(5)
    with pytest.raises(KafkaError, match="no log holds that"):
        follow(lab, batch(base, delta))
    assert lab.log.log_end_offset == 5
    assert lab.put(b"x") == 5
    check_log(lab.log)


def test_a_batch_may_span_more_offsets_than_it_has_records() -> None:
    """Compaction leaves such batches, empty ones even."""
    lab = LogHarness(LogConfig(index_interval_bytes=0))
    assert follow(lab, batch(0, 9)) == 9
    assert follow(lab, batch(10, 0x7FFF_FFFF - 11)) == 0x7FFF_FFFE
    assert lab.put(b"x", timestamp=0) == 0x7FFF_FFFF
    assert lab.put(b"y", timestamp=0) == 0x8000_0000
    assert [segment.base_offset for segment in lab.log.segments] == [0, 0x8000_0000]
    assert lab.log.read(7, 10).position == 0
    assert lab.log.read(0x7FFF_FFFF, 10).position == 2 * len(batch(0))
    lab.log.flush()
    lab.checkpoint()
    lab.crash()
    assert lab.log.log_end_offset == 0x8000_0001
    check_log(lab.log)
    lab.log.truncate_to(5)
    assert lab.log.log_end_offset == 0


def test_batches_too_far_apart_for_one_segment_are_refused_as_a_whole() -> None:
    lab = LogHarness(LogConfig(index_interval_bytes=0))
    lab.fill(2)
    with pytest.raises(KafkaError, match="do not fit into one segment"):
        follow(lab, batch(2) + batch(3 + 0x7FFF_FFFF))
    assert lab.log.log_end_offset == 2
    check_log(lab.log)
    # One after the other they do.
    follow(lab, batch(2))
    follow(lab, batch(3 + 0x7FFF_FFFF))
    check_log(lab.log)


def test_a_cut_that_fails_half_way_leaves_no_hole_in_front_of_a_far_segment() -> None:
    """A segment that begins far above the end of the one before it may do so, and does not tell that there
    was one between them. So they must go one after the other, for sure.
    """
    for seed in range(15):
        for operation in range(100):
            lab = LogHarness(LogConfig(segment_bytes=400), seed=f"{seed}/{operation}")
            lab.fill(4)
            follow(lab, batch(lab.log.log_end_offset + 0x8000_0000))
            assert len(lab.log.segments) == 3
            lab.log.flush()
            lab.checkpoint()
            before = [data for _, data in all_batches(lab.log)]
            lab.sim_disk.crash_after(operation)
            cut = True
            try:
                lab.log.truncate_to(1)
            except SimCrash:
                cut = False
            lab.crash()
            after = [data for _, data in all_batches(lab.log)]
            assert after == before[: len(after)], f"{seed=} {operation=}"
            assert after
            if cut:
                assert len(after) == 1
                break


# Checkpoints that cannot be right


@pytest.mark.parametrize("path", [RECOVERY_POINTS, LOG_STARTS])
@pytest.mark.parametrize("offset", [-5, 1 << 63])
@pytest.mark.parametrize("clean", [True, False])
def test_an_impossible_offset_makes_a_checkpoint_count_as_empty(path: str, offset: int, clean: bool) -> None:
    lab = LogHarness()
    lab.fill(10)
    lab.close()
    write_file(lab.disk, path, f"0\n1\norders 3 {offset}\n".encode())
    lab.reload(clean=clean)
    assert (lab.log.log_start_offset, lab.log.log_end_offset) == (0, 10)
    assert lab.put(b"on") == 10
    check_log(lab.log)


def test_a_log_is_not_given_up_for_a_wrong_log_start() -> None:
    lab = LogHarness()
    lab.fill(10)
    lab.close()
    files = lab.sim_disk.contents()
    write_file(lab.disk, LOG_STARTS, b"0\n1\norders 3 1000\n")
    with pytest.raises(CorruptLog, match=r"ended at offset 10 .* everything below 1000 was deleted"):
        lab.reload(clean=True)
    assert {path: data for path, data in lab.sim_disk.contents().items() if path != LOG_STARTS} == {
        path: data for path, data in files.items() if path != LOG_STARTS
    }
    lab.reload(clean=True, policy=CorruptionPolicy.TRUNCATE)
    assert (lab.log.log_start_offset, lab.log.log_end_offset) == (1000, 1000)


# Time


@pytest.mark.parametrize("timestamp", [-1, -2, -(1 << 63), 0, LAST])
def test_any_timestamp_of_a_leader_is_kept_and_does_no_harm(timestamp: int) -> None:
    lab = LogHarness(LogConfig(index_interval_bytes=0, segment_ms=1000, retention_ms=1000))
    for offset in range(4):
        follow(lab, batch(offset, timestamp=timestamp, size=100))
    follow(lab, batch(4, timestamp=1000, size=100))
    lab.log.update_high_watermark(lab.log.log_end_offset)
    if timestamp >= 0:
        found = lab.log.fetch_offset_of_max_timestamp()
        assert found is not None
        assert found.offset == (0 if timestamp == LAST else 4)
    check_log(lab.log)
    lab.log.deletable_segments(lab.now_ms)
    lab.log.flush()
    lab.checkpoint()
    lab.crash()
    check_log(lab.log)


def test_a_clock_that_goes_back_neither_rolls_nor_deletes() -> None:
    clock = SimClock()
    config = LogConfig(
        segment_ms=10_000, retention_ms=20_000, message_timestamp_type=TimestampType.LOG_APPEND_TIME
    )
    lab = LogHarness(config, clock=clock)
    start = clock.wall_ms()
    lab.fill(3)
    clock.set_wall_ms(start - 3_600_000)
    lab.fill(3)
    assert len(lab.log.segments) == 1
    lab.log.update_high_watermark(lab.log.log_end_offset)
    assert lab.log.delete_old_segments(lab.now_ms) == 0
    assert lab.log.fetch_offset_of_max_timestamp() == (start, 0, 0)
    assert lab.log.fetch_offset_by_timestamp(start - 3_600_000) == (start, 0, 0)
    clock.set_wall_ms(start + 10_001)
    lab.fill(1)
    assert len(lab.log.segments) == 2
    check_log(lab.log)
