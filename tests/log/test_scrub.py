"""One pass of the scrubber finds every bit that has rotted, in every kind of file, and mends what can be."""

from __future__ import annotations

import asyncio
from random import Random
from unittest import mock

import pytest

from ottla.log.config.log_config import LogConfig
from ottla.log.producers.snapshot import decode_snapshot
from ottla.log.scrub.examination import SEGMENT
from ottla.log.scrub.scrubber import LogScrubber, ScrubConfig
from ottla.log.unified_log import UnifiedLog
from ottla.protocol.errors import KafkaError
from ottla.runtime.pool import InlinePool
from ottla.sim.clock import SimClock
from tests.log.test_damage import abort_one
from tests.support.log_harness import LogHarness

KINDS = (".log", ".index", ".timeindex", ".txnindex", ".snapshot", "leader-epoch-checkpoint")


class Rot:
    """A log with every kind of file, its files as they were written, and the damage that was reported."""

    def __init__(self) -> None:
        self.lab = LogHarness(LogConfig(segment_bytes=2000, index_interval_bytes=200))
        for number in range(40):
            self.lab.put(*[b"%d" % number + b"x" * 15] * (1 + number % 3), epoch=0, timestamp=1000 + number)
            if number % 4 == 3:
                abort_one(self.lab, number // 4)
        self.lab.put(b"of another epoch", epoch=2)
        self.lab.log.roll(self.lab.now_ms)
        self.lab.log.flush()
        self.files = self.lab.sim_disk.contents()
        self.reported: list[KafkaError] = []

    def flip(self, path: str, position: int, bit: int) -> None:
        disk = self.lab.disk
        file = disk.open(path)
        file.pwrite(bytes([file.pread(1, position)[0] ^ 1 << bit]), position)
        file.close()

    def scrub(self) -> LogScrubber:
        lab = self.lab

        async def flush(log: UnifiedLog) -> None:
            log.flush()

        scrubber = LogScrubber(
            lab.clock, InlinePool(), lambda: [lab.log], flush, ScrubConfig(max_bytes_per_second=1 << 40)
        )
        report = mock.patch.object(
            type(lab.directory), "report_damage", lambda _, log_dir, error: self.reported.append(error)
        )
        with report:
            asyncio.run(scrubber.scrub())
        return scrubber


def check_flips(count: int, seed: int, kinds: tuple[str, ...] = KINDS) -> None:
    """Flip one bit at a time, in a file of a kind that is drawn, and see it found and mended."""
    random = Random(seed)
    rot = Rot()
    at_rest = rot.lab.log.segments[-1].base_offset
    kept = {
        kind: [
            path
            for path, data in sorted(rot.files.items())
            if path.endswith(kind) and data and f"{at_rest:020}" not in path
        ]
        for kind in kinds
    }
    for kind in kinds:
        assert kept[kind], f"there is no {kind}"
    for _ in range(count):
        path = random.choice(kept[random.choice(kinds)])
        position, bit = random.randrange(len(rot.files[path])), random.randrange(8)
        where = f"bit {bit} of byte {position} of {path}"
        rot.flip(path, position, bit)
        rot.reported.clear()
        scrubber = rot.scrub()
        assert any(each.finding.path == path for each in scrubber.findings), f"{where} was not found"
        if path.endswith(".log"):
            assert scrubber.found[SEGMENT] == 1, where
            assert rot.reported, f"{where} was not reported"
            rot = Rot()  # its replica is fetched again
            continue
        now = rot.lab.sim_disk.contents()
        if path.endswith(".snapshot"):
            assert open_transactions(now[path]) == open_transactions(rot.files[path]), where
            rot.files[path] = now[path]  # what is known of producers that have expired is not in it
        assert {each: now[each] for each in rot.files} == rot.files, f"{where} was not mended"


def open_transactions(snapshot: bytes) -> list[tuple[int, int | None, object]]:
    return [
        (each.producer_id, each.current_txn_first_offset, each.batches) for each in decode_snapshot(snapshot)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_is_found_and_mended(kind: str) -> None:
    check_flips(12, 1, (kind,))


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(10))
def test_each_of_a_thousand_flipped_bits_is_found_in_one_pass(seed: int) -> None:
    check_flips(100, seed + 10)


def test_a_rotten_batch_is_found_where_the_leader_epochs_have_rotted_too() -> None:
    """The epochs are read from the batches then, which the rotten one prevents: it is found all the same, in
    the pass and by the second look at what a reader met.
    """
    rot = Rot()
    rot.lab.close()
    (epochs,) = (path for path in rot.files if path.endswith("leader-epoch-checkpoint"))
    batches = rot.lab.log.segments[1].path(".log")
    rot.flip(epochs, 0, 5)
    rot.flip(batches, 16, 1)
    rot.lab.reload(clean=True)
    scrubber = rot.scrub()
    assert {each.finding.path for each in scrubber.findings} >= {epochs, batches}
    assert all(rot.lab.log.confirm_damage(error) for error in rot.reported)


def test_a_sound_log_has_no_findings() -> None:
    scrubber = Rot().scrub()
    assert not scrubber.findings
    assert scrubber.passes == 1
    assert scrubber.bytes_read > 2000


def test_a_pass_takes_the_time_that_the_rate_asks_for() -> None:
    rot = Rot()
    size = rot.lab.log.size
    slept: list[float] = []
    clock = rot.lab.clock
    assert isinstance(clock, SimClock)

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.advance_ms(int(seconds * 1000))

    scrubber = LogScrubber(
        clock,
        InlinePool(),
        lambda: [rot.lab.log],
        mock.AsyncMock(),
        ScrubConfig(max_bytes_per_second=1000),
    )
    with mock.patch("asyncio.sleep", sleep):
        asyncio.run(scrubber.scrub())
    assert sum(slept) >= size / 1000 - 1
