"""Bits that rot in the file of a segment: whatever they hit, readers get what was appended, or an error for
exactly the records that are damaged.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from ottla.log.config.log_config import LogConfig
from ottla.log.log_loader import report_damage
from ottla.log.log_repair import find_damage
from ottla.log.segment.walk import CorruptBatch
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.batch import iter_offsets
from tests.log.test_log_loader import FIRST, damage
from tests.support.log_harness import PARTITION, LogHarness, all_batches, check_log

BATCHES = 16
END = 31


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


@pytest.mark.parametrize("end", range(1, 12))
def test_zeros_that_end_in_a_header_do_not_give_its_batch_the_offsets_of_those_before(end: int) -> None:
    """A base offset of zeros is one, and no checksum covers it."""
    lab, batches = closed_log(0)
    positions = [position for position, _ in lab.log.segments[0].headers()]
    damage(lab, FIRST + ".log", 0, bytes(positions[2] + end))
    lab.reload(clean=True)
    is_offset_gone = end >= 8
    assert read_everything(lab, batches, 10_000) == set(list(batches)[: 3 if is_offset_gone else 2])


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


# Recovery


UNPROTECTED = range(17)
"""Base offset, length, leader epoch and magic of a batch: no checksum covers them."""


def rot_headers(every: bool, *, checkpointed: bool) -> Iterator[tuple[LogHarness, list[bytes], int, int]]:
    """Flip a bit of one of these bytes of a batch, in a log of two epochs that was synced and not closed; the
    log, its batches, and number and byte of the one that has rotted.
    """
    random = Random(1)
    for number in range(BATCHES) if every else (0, 3, 4, BATCHES - 1):
        for byte in UNPROTECTED if every else sorted(random.sample(UNPROTECTED, 4)):
            lab = LogHarness(LogConfig(segment_bytes=600, index_interval_bytes=0))
            for n in range(BATCHES):
                lab.put(*[b"%d" % n + b"x" * 15] * (1 + n % 3), epoch=3 if n < 4 else 4)
            lab.log.flush()
            if checkpointed:
                lab.checkpoint()
                report_damage(lab.directory, lab.log.dir, KafkaError(ErrorCode.CORRUPT_MESSAGE, "met"))
            whole = [bytes(data) for _, data in all_batches(lab.log)]
            places = [
                (segment.path(".log"), at) for segment in lab.log.segments for at, _ in segment.headers()
            ]
            path, position = places[number]
            flip(lab, path, position + byte, random.randrange(8))
            yield lab, whole, number, byte


def without_epoch(batch: bytes) -> list[bytes]:
    return [batch[:12] + batch[16:]]


EVERY = pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.exhaustive)])


@EVERY
def test_recovery_loses_nothing_to_rotten_headers_of_synced_batches(every: bool) -> None:
    """What is beside a batch says what its header was, and so does the checkpoint of the leader epochs."""
    for lab, whole, number, byte in rot_headers(every, checkpointed=True):
        assert find_damage(lab.directory, PARTITION) is None, (number, byte)
        lab.reload()
        assert [bytes(data) for _, data in all_batches(lab.log)] == whole, (number, byte)
        check_log(lab.log)


@EVERY
def test_above_the_recovery_point_a_rotten_header_costs_nothing_that_a_leader_cannot_give_back(
    every: bool,
) -> None:
    for lab, whole, number, byte in rot_headers(every, checkpointed=False):
        log = lab.reload()
        if number == BATCHES - 1:
            if byte in range(8) and log.log_end_offset > END:
                # Nothing behind it contradicts its offset: it is fetched again.
                assert log.doubtful_from is not None, (number, byte)
                log.truncate_to(log.doubtful_from)
            # Nor a new epoch; the next leader does.
            log.check_leader_epochs(4)
            assert log.mend_headers()
        left = [bytes(data) for _, data in all_batches(log)]
        if number == 0 and byte in range(12, 16):
            # Before it there is none, so an older epoch contradicts nothing: the leader's epochs do.
            left[:1], whole[:1] = (without_epoch(each[0]) for each in (left, whole))
        assert left == whole[: len(left)], (number, byte)
        assert len(left) == BATCHES or number == BATCHES - 1, (number, byte)
        check_log(log)


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
