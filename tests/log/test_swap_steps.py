"""A swap of compacted segments whose slow steps run in the pool: what may happen between them, and what a
crash leaves."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from ottla.log.segment.file_names import LOG
from ottla.runtime.pool import InlinePool
from ottla.sim.disk_faults import DiskOperation, Op, SimCrash
from tests.support.compaction_harness import PARTITION, CompactionHarness
from tests.support.rows import for_each

T = TypeVar("T")
SYNCS = frozenset((Op.SYNC, Op.SYNC_DIR))
KEYS = "abcd"


class SwapPool(InlinePool):
    """Lets something else happen before each call of a swap, or before one of them."""

    __slots__ = ("at", "calls", "is_inside", "lab", "meanwhile")

    def __init__(self) -> None:
        super().__init__()
        self.lab: CompactionHarness | None = None
        self.calls = 0
        self.at: int | None = None
        self.meanwhile: Callable[[], None] | None = None
        self.is_inside = False

    async def run(self, fn: Callable[..., T], *args: Any) -> T:
        await asyncio.sleep(0)
        if self.lab is not None and self.lab.log._replacement is not None:
            self.calls += 1
            if self.meanwhile is not None and self.at in (None, self.calls):
                self.meanwhile()
        self.is_inside = True
        try:
            return await super().run(fn, *args)
        finally:
            self.is_inside = False


def dirty_log(seed: int = 1) -> tuple[CompactionHarness, SwapPool]:
    """A log of several closed segments with old values of all keys, all of it durable."""
    pool = SwapPool()
    lab = pool.lab = CompactionHarness(seed=f"swap-{seed}", pool=pool)
    for number in range(24):
        lab.put(KEYS[number % len(KEYS)], str(number), producer_id=4)
        if number % 4 == 3:
            lab.roll()
    lab.put("last", "one")
    lab.replicate_and_flush()
    lab.disk.sync_all()
    return lab, pool


def check(lab: CompactionHarness) -> None:
    lab.check_nothing_invented()
    lab.check_order()
    lab.check_reads()
    lab.check_producers()


def steps_of_a_cleaning() -> int:
    lab, pool = dirty_log()
    assert asyncio.run(lab.cleaner.clean_filthiest_log())
    check(lab)
    lab.check_complete()
    return pool.calls


def append(lab: CompactionHarness) -> None:
    lab.put("new", str(lab.log.log_end_offset))
    assert lab.log.read(0, 100).records


def truncate(lab: CompactionHarness) -> None:
    lab.truncate(5)


def truncate_fully(lab: CompactionHarness) -> None:
    lab.log.truncate_fully_and_start_at(40)
    lab.appended.clear()
    lab.producers.clear()


def delete_records(lab: CompactionHarness) -> None:
    lab.log.maybe_increment_log_start_offset(9, "a test")
    lab.log.delete_old_segments(lab.now_ms)


def append_roll_and_flush(lab: CompactionHarness) -> None:
    append(lab)
    lab.roll()
    append(lab)
    lab.replicate_and_flush()


CHANGES = [append, append_roll_and_flush, truncate, truncate_fully, delete_records]


def test_the_pool_waits_for_the_disk_and_the_event_loop_never_does() -> None:
    lab, pool = dirty_log()
    pool.meanwhile = lambda: append(lab)
    on_the_loop: list[DiskOperation] = []

    def note(operation: DiskOperation) -> None:
        if operation.op in SYNCS and not pool.is_inside:
            on_the_loop.append(operation)

    lab.disk.hook = note
    assert asyncio.run(lab.cleaner.clean_filthiest_log())
    assert pool.calls >= 4
    assert on_the_loop == []
    check(lab)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_between_two_steps_leaves_a_sound_log(change: Callable[[CompactionHarness], None]) -> None:
    for at in range(1, steps_of_a_cleaning() + 1):
        lab, pool = dirty_log()
        pool.at, pool.meanwhile = at, lambda lab=lab: change(lab)
        assert asyncio.run(lab.cleaner.clean_filthiest_log())
        pool.meanwhile = None
        check(lab)
        assert not lab.cleaner.uncleanable
        before = lab.records()
        lab.replicate_and_flush()
        lab.directory.raise_recovery_points({PARTITION: lab.log.recovery_point})
        lab.disk.crash()
        lab.reload(clean=False)
        check(lab)
        assert lab.records() == before, f"step {at}"
        assert not [path for path in lab.disk.contents() if path.endswith((".cleaned", ".swap"))]
        lab.put("z", "1")
        lab.roll_and_clean()
        check(lab)


@for_each("seed", range(60))
def test_a_crash_beside_other_changes_leaves_a_sound_log(seed: int) -> None:
    chance = random.Random(seed)
    lab, pool = dirty_log(seed)
    change = chance.choice(CHANGES)
    pool.at, pool.meanwhile = chance.randrange(1, 16), lambda: change(lab)
    lab.disk.crash_after(chance.randrange(70))
    with contextlib.suppress(SimCrash):
        asyncio.run(lab.cleaner.clean_filthiest_log())
    pool.meanwhile = None
    lab.disk.crash()
    lab.reload(clean=False)
    lab.check_nothing_invented()
    lab.check_order()
    lab.check_reads()
    if change in (append, append_roll_and_flush):
        # What was durable before is there, the newest value of each key at least.
        assert {20, 21, 22, 23, 24} <= lab.records().keys()
    assert not [path for path in lab.disk.contents() if path.endswith((".cleaned", ".swap"))]


@pytest.mark.parametrize("name", ["close", "delete"])
def test_a_log_that_is_closed_or_renamed_meanwhile_is_whole(name: str) -> None:
    for at in range(1, steps_of_a_cleaning() + 1):
        lab, pool = dirty_log()

        def leave(lab: CompactionHarness = lab) -> None:
            if name == "close":
                lab.log.close()
            else:
                lab.log.rename_dir("compacted-0.0123456789abcdef0123456789abcdef-delete")
                lab.log.close_handlers()

        pool.at, pool.meanwhile = at, leave
        asyncio.run(lab.cleaner.clean_filthiest_log())
        assert lab.directory.is_online
        assert not [path for path in lab.disk.contents() if path.endswith(".swap")]
        if name == "close":
            assert {20, 21, 22, 23, 24} <= lab.on(lab.disk).records().keys()


def test_a_cleaner_that_is_stopped_ends_the_swap_that_it_has_begun() -> None:
    for at in range(1, steps_of_a_cleaning() + 1):
        lab, pool = dirty_log()

        async def stop(at: int = at, lab: CompactionHarness = lab, pool: SwapPool = pool) -> None:
            cleaning = asyncio.get_running_loop().create_task(lab.cleaner.clean_filthiest_log())
            pool.at, pool.meanwhile = at, cleaning.cancel  # type: ignore[assignment]
            await asyncio.wait([cleaning])
            assert cleaning.cancelled()

        asyncio.run(stop())
        assert lab.log._replacement is None
        assert all(segment.suffix == "" for segment in lab.log.segments)
        assert not [path for path in lab.disk.contents() if path.endswith((".cleaned", ".swap"))]
        check(lab)


def test_a_directory_that_goes_offline_meanwhile_keeps_what_a_start_can_complete() -> None:
    for at in range(1, steps_of_a_cleaning() + 1):
        lab, pool = dirty_log()

        def fail(lab: CompactionHarness = lab) -> None:
            lab.directory.fail("a test")
            lab.log.close_handlers()

        pool.at, pool.meanwhile = at, fail
        asyncio.run(lab.cleaner.clean_filthiest_log())
        assert lab.log._replacement is None
        other = lab.on(lab.disk.after_crash(f"offline-{at}"))
        check(other)
        assert {20, 21, 22, 23, 24} <= other.records().keys()


def test_an_error_of_the_disk_in_a_swap_takes_the_directory_offline_and_loses_nothing() -> None:
    at = 0
    while True:
        lab, _ = dirty_log()
        operations = 0

        def fail(operation: DiskOperation, lab: CompactionHarness = lab, at: int = at) -> None:
            nonlocal operations
            if lab.log._replacement is not None and operation.op in (Op.RENAME, *SYNCS):
                operations += 1
                if operations == at + 1:
                    raise OSError(errno.EIO, "a test", operation.path)

        lab.disk.hook = fail
        asyncio.run(lab.cleaner.clean_filthiest_log())
        lab.disk.hook = None
        if operations <= at:
            break
        assert not lab.directory.is_online
        assert not lab.cleaner.uncleanable
        other = lab.on(lab.disk.after_crash(f"error-{at}"))
        check(other)
        assert {20, 21, 22, 23, 24} <= other.records().keys()
        at += 1
    assert at > 10
    assert any(path.endswith(LOG) for path in lab.disk.contents())
