"""Reading by offset and by timestamp, against plain scans."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.log.config.log_config import LogConfig
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.batch import iter_batches
from ottla.records.builder import build_batch
from ottla.records.types import Codec, TimestampType
from ottla.runtime.clock import SystemClock
from ottla.runtime.disk import RealDisk
from tests.support.log_harness import (
    LogHarness,
    all_batches,
    check_lookups,
    scan_for_greatest,
    scan_for_timestamp,
)

NOW = 1_700_000_000_000


@st.composite
def logs(draw: st.DrawFn) -> LogHarness:
    """A log of some segments, with batches of several sizes and codecs, gaps, and times that run back."""
    lab = LogHarness(
        LogConfig(
            segment_bytes=draw(st.sampled_from([300, 800, 5000, 100_000])),
            index_interval_bytes=draw(st.sampled_from([0, 100, 1000])),
            message_timestamp_type=draw(st.sampled_from(list(TimestampType))),
        ),
        open_files=draw(st.sampled_from([1, 64])),
    )
    batch = st.tuples(
        st.lists(st.integers(NOW - 20, NOW + 20) | st.just(-1), min_size=1, max_size=4),
        st.sampled_from([Codec.NONE, Codec.LZ4, Codec.GZIP]),
        st.sampled_from([0, 0, 0, 4]),
        # A search for a batch reads 5 kB at once: some batches are larger than that.
        st.sampled_from([30, 30, 30, 3000]),
    )
    for timestamps, codec, gap, size in draw(st.lists(batch, max_size=15)):
        data = build_batch(
            [(timestamp, None, b"x" * size) for timestamp in timestamps],
            codec=codec,
            base_offset=lab.log.log_end_offset + gap,
            leader_epoch=0,
        )
        lab.log.append_as_follower(data, 0, now_ms=NOW)
    lab.log.update_high_watermark(lab.log.log_end_offset)
    return lab


@given(logs(), st.data())
def test_a_read_is_the_batches_from_the_offset_on(lab: LogHarness, data: st.DataObject) -> None:
    log = lab.log
    offset = data.draw(st.integers(0, log.log_end_offset))
    upper = data.draw(st.integers(0, log.log_end_offset))
    max_bytes = data.draw(st.integers(0, 1000) | st.integers(0, 20_000))
    whole = data.draw(st.booleans())
    fetched = log.read(offset, max_bytes, upper_offset=upper, min_one_batch=whole).records
    wanted = [(header, each) for header, each in all_batches(log) if offset <= header.last_offset < upper]
    if offset >= upper or not wanted:
        assert fetched == b""
        return
    # One segment at a time; what is cut off at the end is cut by the size alone.
    everything = b"".join(each for _, each in wanted)
    assert everything.startswith(fetched)
    limit = max(max_bytes, wanted[0][0].size) if whole else max_bytes
    assert len(fetched) <= limit
    found = list(iter_batches(fetched))
    if whole:
        assert found
    if len(fetched) < min(limit, len(everything)):
        ends = [segment.base_offset for segment in log.segments]
        assert sum(header.size for _, header in found) == len(fetched)
        assert found[-1][1].next_offset in ends


@pytest.mark.slow
@given(logs())
def test_reading_on_from_where_a_read_ended_reads_everything(lab: LogHarness) -> None:
    log = lab.log
    offset, seen = 0, []
    while offset < log.log_end_offset:
        found = list(iter_batches(log.read(offset, 200, upper_offset=log.high_watermark).records))
        seen += [header.base_offset for _, header in found]
        offset = found[-1][1].next_offset
    assert seen == [header.base_offset for header, _ in all_batches(log)]


@pytest.mark.slow
@settings(max_examples=200)
@given(logs(), st.data())
def test_timestamps_are_found_as_by_a_scan(lab: LogHarness, data: st.DataObject) -> None:
    log = lab.log
    if log.log_end_offset:
        log.maybe_increment_log_start_offset(data.draw(st.integers(0, log.log_end_offset)), "a test")
    check_lookups(log, range(NOW - 21, NOW + 22))
    lab.close()
    lab.reload(clean=True)
    check_lookups(lab.log, range(NOW - 21, NOW + 22, 5))


@pytest.mark.parametrize("offset", [-1, 3, 9, 2**40])
def test_an_offset_outside_the_log_is_out_of_range(offset: int) -> None:
    lab = LogHarness()
    lab.fill(8)
    lab.log.update_high_watermark(8)
    lab.log.maybe_increment_log_start_offset(4, "a test")
    with pytest.raises(KafkaError, match=f"offset {offset} for partition orders-3, .*: 4 upto 8") as refused:
        lab.log.read(offset, 1000)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_the_end_of_the_log_and_what_is_above_the_bound_read_as_nothing() -> None:
    lab = LogHarness()
    lab.fill(8)
    assert lab.log.read(8, 1000).records == b""
    assert lab.log.read(5, 1000, upper_offset=5).records == b""
    assert lab.log.read(7, 1000, upper_offset=5).records == b""
    assert lab.log.read(4, 0, upper_offset=5).records != b""
    assert lab.log.read(4, 0, upper_offset=5, min_one_batch=False).records == b""


def test_a_batch_is_returned_whole_although_it_begins_before_the_offset() -> None:
    lab = LogHarness()
    lab.put(*[b"x"] * 5)
    lab.put(b"y")
    found = [header.base_offset for _, header in iter_batches(lab.log.read(3, 10_000).records)]
    assert found == [0, 5]


def test_a_damaged_index_is_rebuilt(caplog: pytest.LogCaptureFixture) -> None:
    lab = LogHarness(LogConfig(index_interval_bytes=0))
    lab.fill(50)
    lab.log.roll(lab.now_ms)
    lab.close()
    index = "/data/orders-3/00000000000000000000.index"
    good = lab.sim_disk.contents()[index]
    for damage in (
        good[:8] + b"\x00\x00\x00\x09" + good[12:],  # a wrong offset
        good[:12] + b"\x00\x00\x00\x77" + good[16:],  # a wrong position
        good[:13],
        good[:-4] + b"\x7f\xff\xff\xff",
        b"",
    ):
        file = lab.disk.open(index)
        file.truncate(0)
        file.pwrite(damage, 0)
        lab.reload(clean=True)
        for offset in range(50):
            assert next(iter_batches(lab.log.read(offset, 1).records))[1].base_offset == offset
    assert "will be rebuilt" in caplog.text
    assert lab.sim_disk.contents()[index] in (good, b"")


def test_a_missing_index_is_rebuilt() -> None:
    lab = LogHarness(LogConfig(index_interval_bytes=0))
    lab.fill(50)
    lab.log.roll(lab.now_ms)
    lab.close()
    for kind in ("index", "timeindex"):
        before = lab.sim_disk.contents()
        lab.disk.unlink(f"/data/orders-3/00000000000000000000.{kind}")
        lab.reload(clean=True)
        assert lab.log.read(20, 1).position == lab.log.segments[0].translate_offset(20).position  # type: ignore[union-attr]
        assert lab.sim_disk.contents() == before


def test_reads_and_lookups_on_the_real_disk(tmp_path: Path) -> None:
    lab = LogHarness(
        LogConfig(segment_bytes=2000, index_interval_bytes=200),
        disk=RealDisk(),
        clock=SystemClock(),
        path=str(tmp_path / "data"),
        open_files=2,
    )
    for number in range(200):
        lab.put(b"%d" % number, timestamp=NOW + number % 70)
    assert len(lab.log.segments) > 5
    lab.log.update_high_watermark(200)
    batches = all_batches(lab.log)
    for timestamp in range(NOW, NOW + 71, 7):
        assert lab.log.fetch_offset_by_timestamp(timestamp) == scan_for_timestamp(batches, timestamp, 0)
    assert lab.log.fetch_offset_of_max_timestamp() == scan_for_greatest(batches, 0)
    for offset in range(200):
        assert next(iter_batches(lab.log.read(offset, 1).records))[1].base_offset == offset
    lab.close()


@pytest.mark.parametrize("sizes", [[7000, 7000, 7000], [7000, 10, 10, 10], [10, 7000, 10, 20_000, 10]])
def test_batches_are_found_behind_large_ones(sizes: list[int]) -> None:
    lab = LogHarness(LogConfig(index_interval_bytes=1 << 30))
    for size in sizes * 4:
        lab.put(b"x" * size, b"y")
    batches = all_batches(lab.log)
    for offset in range(lab.log.log_end_offset):
        (expected,) = [data for header, data in batches if header.base_offset <= offset <= header.last_offset]
        assert lab.log.read(offset, 1).records == expected
