"""The cleaner works in the background: on the right log, within its budget, without harm to the others."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from ottla.log.cleaner.cleaner import CleanerConfig, LogCleaner
from ottla.log.cleaner.compaction import SegmentTooLarge
from ottla.log.cleaner.throttler import Throttler
from ottla.log.directory.checkpoints import read_offsets
from ottla.log.log_loader import create_log
from ottla.log.segment.file_names import LOG
from ottla.log.unified_log import UnifiedLog
from ottla.protocol.errors import KafkaError
from ottla.protocol.names import TopicPartition
from ottla.runtime.pool import InlinePool
from ottla.runtime.random import SeededRandom
from ottla.sim.clock import SimClock
from tests.support.compaction_harness import CONFIG, PARTITION, PATH, CompactionHarness

T = TypeVar("T")


@pytest.fixture
def lab() -> CompactionHarness:
    lab = CompactionHarness()
    for round in range(4):
        for key in "abcd":
            lab.put(key, f"{key}{round}" + "x" * 50)
        lab.roll()
    lab.replicate_and_flush()
    return lab


LATEST = {key: f"{key}3" + "x" * 50 for key in "abcd"}


class InterruptedPool(InlinePool):
    """Does something else in between, as the event loop would."""

    def __init__(self, interrupt: Callable[[], None], after: int) -> None:
        super().__init__()
        self._interrupt = interrupt
        self._left = after

    async def run(self, fn: Callable[..., T], *args: Any) -> T:
        result = await super().run(fn, *args)
        self._left -= 1
        if self._left == 0:
            self._interrupt()
        return result

    @property
    def has_interrupted(self) -> bool:
        return self._left <= 0


def cleaner_of(
    lab: CompactionHarness,
    pool: InlinePool | None = None,
    logs: Iterable[UnifiedLog] | None = None,
    **config: Any,
) -> LogCleaner:
    chosen = [lab.log] if logs is None else list(logs)
    return LogCleaner(
        lab.clock, SeededRandom(3), pool or InlinePool(), lambda: chosen, CleanerConfig(**config)
    )


async def until(condition: Callable[[], bool]) -> None:
    """Let the event loop go round until the condition holds."""
    for _ in range(100_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("the condition was never met")


def leftovers(lab: CompactionHarness) -> list[str]:
    return [path for path in lab.disk.contents() if path.endswith((".cleaned", ".swap"))]


def test_the_checkpoint_is_written_and_read(lab: CompactionHarness) -> None:
    assert lab.clean()
    assert read_offsets(lab.disk, f"{PATH}/cleaner-offset-checkpoint") == {PARTITION: 16}
    lab.restart()
    assert lab.clean_until == 16
    assert not lab.clean(), "there is nothing dirty"


def test_a_damaged_checkpoint_costs_a_second_cleaning(
    lab: CompactionHarness, caplog: pytest.LogCaptureFixture
) -> None:
    assert lab.clean()
    lab.restart()
    file = lab.disk.open(f"{PATH}/cleaner-offset-checkpoint")
    file.pwrite(b"nonsense", 0)
    lab.reload(clean=False)
    lab.put("a", "new")
    assert lab.roll_and_clean()
    assert "nonsense" in caplog.text
    assert lab.values() == LATEST | {"a": "new"}


def test_a_choice_among_many_logs_is_made_in_turns(lab: CompactionHarness) -> None:
    others = [
        create_log(lab.directory, f"other-{index}", TopicPartition("other", index), CONFIG)
        for index in range(64)
    ]
    cleaner = cleaner_of(lab, logs=[*others, lab.log])

    async def turns_of_others() -> int:
        count = 0

        async def other() -> None:
            nonlocal count
            while True:
                count += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        assert await cleaner._grab_filthiest_log(lab.clock.wall_ms()) is not None
        task.cancel()
        return count

    assert asyncio.run(turns_of_others()) >= 4


def test_the_dirtiest_of_several_logs_comes_first(lab: CompactionHarness) -> None:
    other = create_log(lab.directory, "other-0", TopicPartition("other", 0), CONFIG)
    lab.clean()
    lab.put("a", "x")
    lab.roll()
    lab.replicate_and_flush()
    first, lab.log = lab.log, other
    for _ in range(3):
        lab.put("k", "v")
        lab.roll()
    lab.replicate_and_flush()
    logs = [first, other]
    cleaner = cleaner_of(lab, logs=logs)
    cleaned = []
    while asyncio.run(cleaner.clean_filthiest_log()):
        cleaned.append({log.topic_partition: cleaner.clean_until(log) for log in logs})
    assert cleaned == [
        {PARTITION: 16, TopicPartition("other", 0): 3},
        {PARTITION: 17, TopicPartition("other", 0): 3},
    ]


def test_a_log_that_is_not_compacted_is_left_alone(lab: CompactionHarness) -> None:
    lab.with_config(cleanup_policy=frozenset({"delete"}))
    assert not lab.clean()


def test_nothing_is_cleaned_that_is_not_durable(lab: CompactionHarness) -> None:
    fresh = CompactionHarness()
    fresh.put("a", "1")
    fresh.roll()
    fresh.put("a", "2")
    fresh.roll()
    fresh.log.update_high_watermark(fresh.log.log_end_offset)
    assert fresh.log.recovery_point == 0
    assert not asyncio.run(fresh.cleaner.clean_filthiest_log())
    fresh.log.flush()
    assert asyncio.run(fresh.cleaner.clean_filthiest_log())


def test_nothing_is_cleaned_above_the_high_watermark() -> None:
    lab = CompactionHarness()
    for value in "123":
        lab.put("a", value)
        lab.roll()
    lab.log.flush()
    lab.log.update_high_watermark(2)
    assert asyncio.run(lab.cleaner.clean_filthiest_log())
    assert lab.clean_until == 2
    assert sorted(lab.records()) == [1, 2]


# The log changes meanwhile


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """One chunk of 200 bytes at a time: the map takes the first five slices or so, the groups the others."""
    monkeypatch.setattr("ottla.log.cleaner.cleaner.SLICE_BYTES", 1)


@pytest.mark.usefixtures("small_slices")
@pytest.mark.parametrize("after", [1, 8, 16, 20, 24])
def test_a_truncation_ends_the_cleaning(lab: CompactionHarness, after: int) -> None:
    pool = InterruptedPool(lambda: lab.truncate(10), after)
    cleaner = cleaner_of(lab, pool, io_buffer_size=200)
    asyncio.run(cleaner.clean_filthiest_log())
    assert pool.has_interrupted
    assert not cleaner.uncleanable
    assert not leftovers(lab)
    assert cleaner.clean_until(lab.log) is None
    lab.check_order()
    lab.check_nothing_invented()
    assert lab.log.log_end_offset == 10
    assert {8, 9} <= lab.records().keys()
    for key in "abcd":
        lab.put(key, "again")
    lab.roll()
    lab.replicate_and_flush()
    assert asyncio.run(cleaner.clean_filthiest_log())
    assert lab.values() == dict.fromkeys("abcd", "again")


def test_what_was_cut_below_the_clean_part_is_dirty_again(lab: CompactionHarness) -> None:
    assert lab.clean()
    assert lab.clean_until == 16
    lab.truncate(12)
    for _ in range(3):
        for key in "abcd":
            lab.put(key, "again")
    lab.roll_and_clean()
    assert lab.values() == dict.fromkeys("abcd", "again")
    assert len(lab.records()) == 4


@pytest.mark.usefixtures("small_slices")
@pytest.mark.parametrize("after", [1, 8, 13])
def test_retention_ends_the_cleaning(lab: CompactionHarness, after: int) -> None:
    def delete() -> None:
        lab.log.maybe_increment_log_start_offset(5, "a test")
        lab.log.delete_old_segments(lab.now_ms)

    pool = InterruptedPool(delete, after)
    cleaner = cleaner_of(lab, pool, io_buffer_size=200)
    asyncio.run(cleaner.clean_filthiest_log())
    assert pool.has_interrupted
    assert not cleaner.uncleanable
    assert not leftovers(lab)
    assert [segment.base_offset for segment in lab.log.segments] == [4, 8, 12, 16]
    assert asyncio.run(cleaner.clean_filthiest_log())
    assert lab.values() == LATEST


@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_deletion_of_the_partition_ends_the_cleaning(lab: CompactionHarness, after: int) -> None:
    cleaner = cleaner_of(lab, InterruptedPool(lambda: lab.log.delete(), after), io_buffer_size=200)
    asyncio.run(cleaner.clean_filthiest_log())
    assert not cleaner.uncleanable
    assert lab.directory.is_online
    assert not lab.disk.exists(lab.log.dir)


def test_a_cancelled_cleaning_leaves_nothing_behind(lab: CompactionHarness) -> None:
    async def scenario() -> None:
        cleaner = cleaner_of(lab, io_buffer_size=200)
        work = asyncio.ensure_future(cleaner.run())
        await until(lambda: cleaner.is_cleaning(PARTITION))
        for _ in range(3):
            await asyncio.sleep(0)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert not cleaner.is_cleaning(PARTITION)

    asyncio.run(scenario())
    assert not leftovers(lab)
    assert lab.clean()
    assert lab.values() == LATEST


def test_workers_take_different_logs(lab: CompactionHarness) -> None:
    first = lab.log
    lab.log = second = create_log(lab.directory, "other-0", TopicPartition("other", 0), CONFIG)
    for _ in range(4):
        lab.put("k", "v")
        lab.roll()
    lab.replicate_and_flush()

    async def scenario() -> None:
        cleaner = cleaner_of(lab, logs=[first, second], threads=2, io_buffer_size=400)
        work = asyncio.ensure_future(cleaner.run())
        partitions = [first.topic_partition, second.topic_partition]
        await until(lambda: all(map(cleaner.is_cleaning, partitions)))
        await until(lambda: not any(map(cleaner.is_cleaning, partitions)) and cleaner.max_dirty_ratio == 0)
        work.cancel()
        await asyncio.wait([work])

    asyncio.run(scenario())
    assert lab.values() == {"k": "v"}
    assert len(lab.records()) == 1
    lab.log = first
    assert lab.values() == LATEST


def test_a_checkpoint_above_the_end_of_the_log_does_not_count_when_the_log_has_grown(
    lab: CompactionHarness, caplog: pytest.LogCaptureFixture
) -> None:
    lab.directory.cleaned_offsets.write({PARTITION: 20})
    lab.with_config(min_cleanable_dirty_ratio=1.0)
    assert not lab.clean()
    assert "was clean up to 20, but the log is 0 to 16" in caplog.text
    for value in "12345678":
        lab.put("a", value)
    lab.with_config(min_cleanable_dirty_ratio=0.01)
    assert lab.roll_and_clean()
    assert lab.values() == LATEST | {"a": "8"}
    assert len(lab.records()) == 4


# What goes wrong


def test_a_damaged_batch_makes_the_log_uncleanable_and_says_so(
    lab: CompactionHarness, caplog: pytest.LogCaptureFixture
) -> None:
    segment = lab.log.segments[1]
    before = segment.read(0, segment.size)
    file = lab.disk.open(segment.path(LOG))
    file.pwrite(b"\xff", 70)
    with caplog.at_level(logging.ERROR):
        assert lab.clean()
    assert list(lab.cleaner.uncleanable) == [PARTITION]
    assert f"{segment.path(LOG)}, position 0" in caplog.text
    assert "left alone" in caplog.text
    assert not leftovers(lab)
    assert len(segment.read(0, segment.size)) == len(before), "the file is left as it is"
    assert not lab.clean()
    fresh = cleaner_of(lab)
    file.pwrite(before[70:71], 70)
    assert asyncio.run(fresh.clean_filthiest_log())
    assert lab.values() == LATEST


def test_a_damaged_length_is_no_endless_loop(lab: CompactionHarness) -> None:
    file = lab.disk.open(lab.log.segments[0].path(LOG))
    file.pwrite(b"\x7f\xff\xff\xff", 8)
    assert lab.clean()
    assert "not a whole batch" in lab.cleaner.uncleanable[PARTITION]


def test_damage_that_shows_before_the_cleaning_harms_no_other_log(lab: CompactionHarness) -> None:
    lab.with_config(max_compaction_lag_ms=1)
    damaged = lab.log
    file = lab.disk.open(damaged.segments[0].path(LOG))
    file.pwrite(b"\x09", 16)  # the magic byte
    for segment in damaged.segments:
        segment._first_timestamp = None
    lab.log = create_log(lab.directory, "other-0", TopicPartition("other", 0), CONFIG)
    for value in "12":
        lab.put("k", value)
        lab.roll()
    lab.replicate_and_flush()
    cleaner = cleaner_of(lab, logs=[damaged, lab.log])
    assert asyncio.run(cleaner.clean_filthiest_log())
    assert list(cleaner.uncleanable) == [PARTITION]
    assert "magic 9" in cleaner.uncleanable[PARTITION]
    assert len(lab.records()) == 1


def test_without_room_the_log_stays_as_it_is_and_is_cleaned_later(
    lab: CompactionHarness, caplog: pytest.LogCaptureFixture
) -> None:
    fault = lab.disk.fail(errno.ENOSPC, ops=["write"], times=None)
    lab.clean()
    assert "no room" in caplog.text
    assert lab.directory.is_online
    assert not lab.cleaner.uncleanable
    assert not leftovers(lab)
    assert sorted(lab.records()) == list(range(16))
    assert not lab.clean(), "it is not tried again at once, and other logs have their turn"
    lab.disk.heal(fault)
    lab.pass_time(lab.cleaner.config.backoff_ms)
    assert lab.clean()
    assert lab.values() == LATEST


def test_an_io_error_takes_the_directory_offline(lab: CompactionHarness) -> None:
    lab.disk.fail(errno.EIO, ops=["write"])
    lab.clean()
    assert not lab.directory.is_online
    assert not lab.cleaner.uncleanable
    with pytest.raises(KafkaError, match="offline"):
        lab.put("a", "1")
    assert not asyncio.run(lab.cleaner.clean_filthiest_log())


def test_groups_that_became_too_large_are_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = CompactionHarness(config=replace(CONFIG, segment_bytes=3000))
    for number in range(20):
        lab.put(f"key{number}", "x" * 50)
        if number % 5 == 4:
            lab.roll()
    monkeypatch.setattr("ottla.log.cleaner.compaction._MAX_SEGMENT_BYTES", 1500)
    rounds = 0
    while not lab.clean_until:
        assert lab.clean()
        assert not lab.cleaner.uncleanable
        assert not leftovers(lab)
        rounds += 1
    assert 2 < rounds < 30
    assert len(lab.values()) == 20
    assert [segment.base_offset for segment in lab.log.segments] == [0, 10, 20]
    lab.check_order()


def test_a_segment_that_is_too_large_by_itself_is_uncleanable(
    lab: CompactionHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.with_config(segment_bytes=100)
    monkeypatch.setattr("ottla.log.cleaner.compaction._MAX_SEGMENT_BYTES", 100)
    assert lab.clean()
    assert list(lab.cleaner.uncleanable) == [PARTITION]
    assert str(SegmentTooLarge("x", 1)).startswith("x: 1 segments")


@pytest.mark.parametrize(
    "wrong",
    [
        {"threads": 0},
        {"dedupe_buffer_size": 1000},
        {"threads": 2, "dedupe_buffer_size": 2 * 1024 * 1024 - 1},
        {"io_buffer_load_factor": 1.0},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(KafkaError, match=r"log\.cleaner"):
        CleanerConfig(**wrong)


# The budget


def test_the_throttle_spreads_the_bytes_over_time() -> None:
    clock = SimClock()
    throttle = Throttler(clock, 1000)
    clock.advance_ms(10_000)
    waited = 0.0
    for _ in range(20):
        delay = throttle.delay_after(500)
        waited += delay
        clock.advance_ns(int(delay * 1e9))
    assert waited == pytest.approx(10 - 0.3, abs=0.01), "10000 bytes, less the credit of 300 ms"
    clock.advance_ms(200)
    assert throttle.delay_after(200) == pytest.approx(0, abs=0.001), "time that was not used counts"
    assert throttle.delay_after(1000) == pytest.approx(1, abs=0.001)
    throttle.set_rate(4000)
    assert throttle.delay_after(1000) == pytest.approx(1.25, abs=0.001)
    with pytest.raises(ValueError, match="above 0"):
        throttle.set_rate(0)


def test_a_cleaning_waits_for_its_budget(lab: CompactionHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    slept = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        lab.clock.advance_ns(int(seconds * 1e9))

    # The cleaner's alone: other tests of this process may have left a node running in a thread.
    monkeypatch.setattr(
        "ottla.log.cleaner.cleaner.asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep})
    )
    cleaner = cleaner_of(lab, io_max_bytes_per_second=100.0)
    started = lab.clock.monotonic_ns()
    assert asyncio.run(cleaner.clean_filthiest_log())
    assert cleaner.last_stats is not None
    stats = cleaner.last_stats
    moved = stats.map_bytes_read + stats.bytes_read + stats.bytes_written
    seconds = (lab.clock.monotonic_ns() - started) / 1e9
    assert moved / 100 - 0.4 < seconds < 1.5 * moved / 100
    assert slept
    cleaner.reconfigure(replace(cleaner.config, io_max_bytes_per_second=1e12))
    slept.clear()
    lab.put("a", "1")
    lab.roll()
    lab.replicate_and_flush()
    assert asyncio.run(cleaner.clean_filthiest_log())
    assert sum(slept) < 1
