"""A crash at any operation of a cleaning loses no record that compaction keeps, and the next cleaning ends
what was begun.

Each seed is a life of a partition (appends, transactions, rolls, earlier cleanings), then a cleaning in
which the power fails at one operation after another, each time with another set of surviving bytes and
names. A few seeds run with every test run; OTTLA_CRASH_SEEDS asks for more, a fiftieth of that number. To
replay one:

    OTTLA_CRASH_SEEDS=5000 pytest tests/log/test_compaction_crash.py -k 'test_name and seed'
"""

from __future__ import annotations

import asyncio
import os
import random

import pytest

from ottla.log.segment.file_names import LOG
from ottla.sim.disk import DiskOperation, Op, SimCrash, SimDisk
from ottla.sim.disk_faults import READ_ONLY
from tests.support.compaction_harness import PARTITION, CompactionHarness

SEEDS = int(os.environ.get("OTTLA_CRASH_SEEDS", "600")) // 50


def lived(seed: int) -> CompactionHarness:
    """A partition with a history, all of it durable, and due to be cleaned."""
    source = random.Random(seed)
    lab = CompactionHarness(seed=f"crash-{seed}")
    for _ in range(source.randrange(10, 60)):
        match source.randrange(12):
            case 0 | 1 | 2 | 3 | 4:
                lab.append(*some_records(source), producer_id=source.choice([-1, -1, 4, 5]))
            case 5 | 6 | 7:
                lab.append(*some_records(source), producer_id=source.choice([1, 2]), transactional=True)
            case 8:
                ended = [producer_id for producer_id in (1, 2) if producer_id in lab.producers]
                if ended:
                    lab.end(source.choice(ended), commit=source.random() < 0.5)
            case 9:
                lab.roll()
            case 10:
                lab.pass_time(source.randrange(1500))
            case 11:
                lab.clean()
    for producer_id in (1, 2):
        if producer_id in lab.producers:
            lab.end(producer_id, commit=source.random() < 0.5)
    lab.roll()
    lab.append((b"last", b"one"))
    lab.replicate_and_flush()
    return lab


def some_records(source: random.Random) -> list[tuple[bytes, bytes | None]]:
    return [
        (source.choice([b"a", b"b", b"c", b"d"]), source.choice([None, b"%d" % source.randrange(100)]))
        for _ in range(source.randrange(1, 4))
    ]


def crash_in_a_cleaning(lab: CompactionHarness, operations: int, *, keep_all: bool = False) -> bool:
    """Clean, and lose the power after so many operations; False if the cleaning was over before."""
    lab.disk.crash_after(operations)
    try:
        asyncio.run(lab.cleaner.clean_filthiest_log())
    except SimCrash:
        if keep_all:
            lab.disk.sync_all()
        lab.disk.crash()
        return True
    return False


def check(lab: CompactionHarness) -> None:
    lab.check_nothing_invented()
    lab.check_order()
    lab.check_reads()
    lab.check_committed_reads()
    lab.check_producers()
    assert not [path for path in lab.disk.contents() if path.endswith((".cleaned", ".swap"))]


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [seed if seed < 4 else pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(SEEDS)]
)
def test_a_crash_at_every_operation_of_a_cleaning(seed: int) -> None:
    lab = lived(seed)
    horizons, before, now_ms = lab.horizons(), lab.records(), lab.now_ms
    newest = {
        offset
        for offset, record in lab.latest(lab.log.log_end_offset).items()
        if offset in before and (record.value is not None or (horizons[record.batch] or now_ms + 1) > now_ms)
    }
    crashes: list[tuple[DiskOperation, SimDisk]] = []

    def crash_before(operation: DiskOperation) -> None:
        if operation.op not in READ_ONLY:
            crashes.append((operation, lab.disk.after_crash(f"{seed}/{operation.number}")))

    lab.disk.hook = crash_before
    assert asyncio.run(lab.cleaner.clean_filthiest_log())
    lab.disk.hook = None
    assert len(crashes) > 20
    for operation, disk in crashes:
        other = lab.on(disk)
        check(other)
        assert other.log.log_end_offset == lab.log.log_end_offset, operation
        assert newest <= other.records().keys() <= before.keys(), operation
        if other.clean():
            other.check_complete()
        check(other)
        assert not other.cleaner.uncleanable, operation


@pytest.mark.parametrize(
    "seed",
    [
        seed if seed < 105 else pytest.param(seed, marks=pytest.mark.exhaustive)
        for seed in range(100, 100 + 2 * SEEDS)
    ],
)
def test_crashes_in_one_cleaning_after_another(seed: int) -> None:
    """Crash again in the cleaning that follows, and in the one after that."""
    source = random.Random(seed)
    lab = lived(seed)
    for _ in range(12):
        crashed = crash_in_a_cleaning(lab, source.randrange(40))
        if not crashed:
            lab.replicate_and_flush()
            lab.directory.raise_recovery_points({PARTITION: lab.log.recovery_point})
            lab.disk.crash()
        lab.reload(clean=False)
        check(lab)
        lab.check_newest(lab.log.log_end_offset)
        for _ in range(source.randrange(1, 8)):
            lab.append(*some_records(source))
            lab.pass_time(source.randrange(400))
        lab.roll()
        lab.replicate_and_flush()
    while lab.clean():
        check(lab)
    lab.check_complete()


def three_values() -> CompactionHarness:
    lab = CompactionHarness()
    for value in "123":
        lab.put("a", value)
        lab.roll()
    lab.put("b", "1")
    lab.replicate_and_flush()
    lab.disk.sync_all()
    return lab


def operations_of_a_cleaning() -> list[DiskOperation]:
    lab = three_values()
    first = lab.disk.operations
    assert asyncio.run(lab.cleaner.clean_filthiest_log())
    changes = {each.number: each for each in lab.disk.trace.entries() if each.number > first}
    return [changes[number] for number in sorted(changes)]


def test_where_nothing_is_lost_a_swap_is_undone_before_its_last_rename_and_completed_after_it() -> None:
    steps = operations_of_a_cleaning()
    # There is no transaction index to rename, only an attempt to.
    swaps = [
        at
        for at, step in enumerate(steps)
        if step.target.endswith(("log.swap", ".index.swap", "timeindex.swap"))
    ]
    assert len(swaps) == 3
    for at in range(len(steps)):
        lab = three_values()
        before = lab.records()
        assert crash_in_a_cleaning(lab, at, keep_all=True)
        lab.reload(clean=False)
        check(lab)
        if at <= swaps[-1]:
            assert lab.records() == before, f"crashed at {steps[at]}"
        else:
            assert sorted(lab.records()) == [2, 3], f"crashed at {steps[at]}"


def test_files_of_an_unfinished_cleaning_are_removed_at_the_start() -> None:
    steps = operations_of_a_cleaning()
    first_rename = next(at for at, step in enumerate(steps) if step.op is Op.RENAME)
    lab = three_values()
    before = lab.records()
    assert crash_in_a_cleaning(lab, first_rename, keep_all=True)
    assert any(path.endswith(f"{LOG}.cleaned") for path in lab.disk.contents())
    lab.reload(clean=False)
    check(lab)
    assert lab.records() == before
