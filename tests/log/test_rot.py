"""Bits that rot in the file of a segment: whatever they hit, readers get what was appended, or an error for
exactly the records that are damaged.
"""

from __future__ import annotations

from random import Random

import pytest

from ottla.log.config.log_config import LogConfig
from ottla.log.segment.walk import CorruptBatch
from ottla.records.batch import iter_offsets
from tests.log.test_log_loader import FIRST, damage
from tests.support.log_harness import LogHarness, all_batches

BATCHES = 16


def closed_log(index_interval_bytes: int) -> tuple[LogHarness, dict[int, bytes]]:
    """Two epochs in three segments, closed cleanly; and each batch by its base offset."""
    lab = LogHarness(LogConfig(segment_bytes=600, index_interval_bytes=index_interval_bytes))
    for number in range(BATCHES):
        lab.put(*[b"%d" % number + b"x" * 15] * (1 + number % 3), epoch=3 if number < 4 else 4)
    assert len(lab.log.segments) >= 3
    batches = {header.base_offset: data for header, data in all_batches(lab.log)}
    lab.close()
    return lab, batches


def flip(lab: LogHarness, path: str, position: int, bit: int) -> None:
    byte = lab.sim_disk.contents()[path][position]
    damage(lab, path, position, bytes([byte ^ 1 << bit]))


def read_everything(lab: LogHarness, batches: dict[int, bytes], max_bytes: int) -> set[int]:
    """Read from each offset; the base offsets of the batches that were refused."""
    refused = set()
    log = lab.log
    for base in batches:
        try:
            data = log.read(base, max_bytes).records
        except CorruptBatch:
            refused.add(base)
            continue
        first = next(iter_offsets(data))
        assert first[2] == base, f"asked for {base}, got {first[2]}"
        for at, size, found, _ in iter_offsets(data):
            assert data[at : at + size] == batches[found], f"the batch at {found} is not the one appended"
    return refused


def check_flips(positions: list[int], index_interval_bytes: int, max_bytes: int) -> None:
    for position in positions:
        lab, batches = closed_log(index_interval_bytes)
        random = Random(position)
        bit = random.randrange(8)
        start = 0
        hit = -1
        for base in batches:
            if base < lab.log.segments[1].base_offset and start <= position < start + len(batches[base]):
                hit = base
            start += len(batches[base])
        flip(lab, FIRST + ".log", position, bit)
        lab.reload(clean=True)
        assert read_everything(lab, batches, max_bytes) == {hit}, f"bit {bit} of byte {position}"


def first_segment_bytes() -> int:
    lab, _ = closed_log(0)
    return lab.log.segments[0].size


HEADERS = [*range(21), *range(79, 130), *range(395, 420)]


@pytest.mark.parametrize("index_interval_bytes", [0, 4096])
@pytest.mark.parametrize("max_bytes", [1, 10_000])
def test_no_flipped_bit_reaches_a_reader_and_nothing_else_is_lost(
    index_interval_bytes: int, max_bytes: int
) -> None:
    check_flips(HEADERS, index_interval_bytes, max_bytes)


@pytest.mark.exhaustive
@pytest.mark.parametrize("index_interval_bytes", [0, 200, 4096])
@pytest.mark.parametrize("max_bytes", [1, 150, 10_000])
def test_no_flipped_bit_of_a_segment_reaches_a_reader(index_interval_bytes: int, max_bytes: int) -> None:
    check_flips(list(range(first_segment_bytes())), index_interval_bytes, max_bytes)


@pytest.mark.parametrize("bit", [0, 5])
def test_a_flipped_base_offset_of_the_last_batch_is_not_served(bit: int) -> None:
    lab = LogHarness()
    lab.fill(10)
    path = FIRST + ".log"
    last = [position for position, _ in lab.log.segments[0].headers()][-1]
    flip(lab, path, last + 3, bit)
    lab.log.update_high_watermark(10)
    for upper in (None, 10):
        assert len(list(iter_offsets(lab.log.read(0, 10_000, upper_offset=upper).records))) == 9
        with pytest.raises(CorruptBatch):
            lab.log.read(9, 10_000, upper_offset=upper)
    assert lab.log.confirm_damage(CorruptBatch(path, last, "a reader met it")) is not None


def timed_log() -> LogHarness:
    """A record every ten milliseconds, closed cleanly."""
    lab = LogHarness(LogConfig(segment_bytes=900, index_interval_bytes=0))
    for number in range(24):
        lab.put(b"x" * 15, timestamp=1_000 + 10 * number)
    lab.close()
    return lab


def test_no_flipped_bit_of_a_time_index_hides_a_record() -> None:
    path = FIRST + ".timeindex"
    size = len(timed_log().sim_disk.contents()[path])
    assert size >= 60
    for position in range(size):
        lab = timed_log()
        bit = Random(position).randrange(8)
        flip(lab, path, position, bit)
        lab.reload(clean=True)
        for number in range(24):
            at = 1_000 + 10 * number
            for timestamp in (at - 5, at):
                found = lab.log.fetch_offset_by_timestamp(timestamp)
                assert found is not None
                assert found[:2] == (at, number), f"bit {bit} of byte {position}, {timestamp}"
