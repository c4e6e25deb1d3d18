"""A truncation whose slow steps run in the pool: what may happen between them, and what a crash leaves."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from ottla.log.config.log_config import LogConfig
from ottla.log.local_log import FlushPlan
from ottla.log.truncation import REPLAYED_AT_ONCE, LogTruncation
from ottla.log.unified_log import RemoteLogAuxState, UnifiedLog
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition
from ottla.records.batch import iter_batches
from ottla.records.builder import build_batch
from ottla.runtime.pool import CallOnce, InlinePool
from ottla.runtime.turns import Turns
from ottla.sim.disk import SimDisk
from ottla.sim.disk_faults import DiskOperation, Op, SimCrash
from tests.log.test_log_manager import Node
from tests.support.log_harness import all_batches, check_log
from tests.support.rows import for_each

T = TypeVar("T")
ORDERS = TopicPartition("orders", 0)
SMALL = LogConfig(segment_bytes=400, index_interval_bytes=100, file_delete_delay_ms=1000)
SYNCS = frozenset((Op.SYNC, Op.SYNC_DIR))


class StepPool(InlinePool):
    """Lets something else happen between two calls, once, as far as it does not wait for the next one; counts
    the calls.
    """

    __slots__ = ("at", "calls", "is_inside", "meanwhile", "other")

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.at: int | None = None
        self.meanwhile: Callable[[], Coroutine[Any, Any, None]] | None = None
        self.other: asyncio.Task[None] | None = None
        self.is_inside = False

    async def end_other(self) -> None:
        """Wait for the end of what was begun between two calls."""
        if self.other is not None:
            await self.other

    async def run(self, fn: Callable[..., T], *args: Any) -> T:
        self.calls += 1
        await asyncio.sleep(0)
        if self.calls == self.at and self.meanwhile is not None:
            self.other = asyncio.get_running_loop().create_task(self.meanwhile())
            for _ in range(200):
                if not self.other.done():
                    await asyncio.sleep(0)
        self.is_inside = True
        try:
            return await super().run(fn, *args)
        finally:
            self.is_inside = False


async def filled_node(count: int = 24, seed: int = 3) -> tuple[Node, StepPool]:
    """A node with a log of several segments, a producer and several epochs, all of it synced."""
    pool = StepPool()
    node = Node(pool=pool, disk=SimDisk(seed))
    node.config = SMALL
    await node.start()
    fill(node, node.log(), count)
    node.log().flush()
    await node.manager.checkpoint_log_recovery_offsets()
    return node, pool


def fill(node: Node, log: UnifiedLog, count: int) -> None:
    for number in range(count):
        data = build_batch(
            [(node.clock.wall_ms(), None, b"x" * 40)], producer_id=9, producer_epoch=0, base_sequence=number
        )
        log.append_as_leader(bytearray(data), number // 3, now_ms=node.clock.wall_ms())
    log.update_high_watermark(min(count, 12))


def begin(log: UnifiedLog, kind: str) -> LogTruncation:
    return {
        "above the high watermark": lambda: log.begin_truncation(14),
        "below the high watermark": lambda: log.begin_truncation(7),
        "below the log start": lambda: log.begin_truncation(3),
        "all, and further on": lambda: log.begin_full_truncation(40),
        "all, and further back": lambda: log.begin_full_truncation(2),
    }[kind]()


ENDS = {
    "above the high watermark": 14,
    "below the high watermark": 7,
    "below the log start": 3,
    "all, and further on": 40,
    "all, and further back": 2,
}
KINDS = list(ENDS)


def prepare(log: UnifiedLog, kind: str) -> None:
    if "start" in kind or "back" in kind:
        log.maybe_increment_log_start_offset(5, "a test")


async def count_steps(kind: str) -> int:
    node, pool = await filled_node()
    prepare(node.log(), kind)
    pool.calls = 0
    await begin(node.log(), kind).run(pool)
    check(node, kind)
    return pool.calls


def check(node: Node, kind: str) -> None:
    log = node.log()
    assert not log.is_truncating
    assert log.log_end_offset == ENDS[kind]
    check_log(log, producers_from=log.log_start_offset)


def contents(log: UnifiedLog) -> list[bytes]:
    return [data for header, data in all_batches(log) if header.last_offset >= log.log_start_offset]


async def between_all_steps(kind: str, meanwhile: Callable[[Node], Coroutine[Any, Any, None]]) -> None:
    """Run truncations, each with something that happens before another one of its steps."""
    steps = await count_steps(kind)
    assert steps >= 3
    for step in range(1, steps + 1):
        node, pool = await filled_node()
        prepare(node.log(), kind)
        pool.calls, pool.at = 0, step

        async def happens(node: Node = node) -> None:
            await meanwhile(node)

        pool.meanwhile = happens
        await begin(node.log(), kind).run(pool)
        await pool.end_other()
        assert pool.calls >= step
        check(node, kind)
        content = contents(node.log())
        await node.crash()
        assert node.manager.failed == {}
        check(node, kind)
        assert contents(node.log()) == content


@pytest.mark.parametrize("kind", KINDS)
async def test_periodic_work_between_any_two_steps_changes_nothing(kind: str) -> None:
    await between_all_steps(kind, periodic_work)


@pytest.mark.parametrize("kind", KINDS)
async def test_readers_between_any_two_steps_get_what_stays_or_what_was_there(kind: str) -> None:
    async def read(node: Node) -> None:
        log = node.log()
        assert log.log_start_offset <= log.last_stable_offset <= log.high_watermark <= log.log_end_offset
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            for _, header in iter_batches(log.read(offset, 10**6).records):
                assert header.base_offset == offset
                offset = header.next_offset
        assert offset == log.log_end_offset
        assert log.log_end_offset in (24, ENDS[kind])
        with pytest.raises(KafkaError) as refused:
            log.read(100, 1000)
        assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE

    await between_all_steps(kind, read)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_flush_that_was_planned_before_does_not_raise_the_recovery_point(kind: str) -> None:
    node, pool = await filled_node()
    log = node.log()
    prepare(log, kind)
    log.append_as_leader(bytearray(build_batch([(0, None, b"more")])), 8, now_ms=0)
    plan = log.prepare_flush()
    assert plan is not None
    truncation = begin(log, kind)
    log.run_flush(plan)
    log.complete_flush(plan)
    await truncation.run(pool)
    assert log.recovery_point <= log.log_end_offset
    check(node, kind)


@pytest.mark.parametrize("offset", [20, 40])
async def test_a_flush_ends_between_any_two_steps_of_a_log_that_begins_behind_remote_storage(
    offset: int,
) -> None:
    state = RemoteLogAuxState(((0, 0),), None)
    step = steps = 0
    while step <= steps:
        node, pool = await filled_node()
        log = node.log()
        log.update_config(replace(SMALL, remote_storage_enable=True))
        log.append_as_leader(bytearray(build_batch([(0, None, b"more")])), 8, now_ms=0)
        plan = log.prepare_flush()
        assert plan is not None
        log.run_flush(plan)

        async def complete(log: UnifiedLog = log, plan: FlushPlan = plan) -> None:
            log.complete_flush(plan)
            assert log.log_start_offset <= log.high_watermark <= log.log_end_offset

        pool.calls, pool.at, pool.meanwhile = 0, step, complete
        await log.begin_full_truncation(offset, 0, state).run(pool)
        await pool.end_other()
        assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (0, offset, offset)
        step, steps = step + 1, pool.calls
    assert steps > 3


@pytest.mark.parametrize("kind", KINDS)
async def test_it_is_finished_here_and_now_before_the_log_changes_in_another_way(kind: str) -> None:
    async def finish(node: Node) -> None:
        node.log().finish_truncation()
        check(node, kind)

    await between_all_steps(kind, finish)


async def test_an_append_comes_after_the_truncation() -> None:
    steps = await count_steps(KINDS[0])
    for step in range(1, steps + 1):
        node, pool = await filled_node()
        log = node.log()
        pool.calls, pool.at = 0, step

        async def append(log: UnifiedLog = log) -> None:
            info = log.append_as_leader(bytearray(build_batch([(0, None, b"new")])), 9, now_ms=0)
            assert info.first_offset == 14

        pool.meanwhile = append
        await log.begin_truncation(14).run(pool)
        await pool.end_other()
        assert log.log_end_offset == 15
        check_log(log)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_log_that_is_deleted_meanwhile_leaves_nothing_to_its_successor(kind: str) -> None:
    steps = await count_steps(kind)
    for step in range(1, steps + 1):
        node, pool = await filled_node()
        prepare(node.log(), kind)
        pool.calls, pool.at = 0, step

        async def replace(node: Node = node) -> None:
            node.manager.delete_log(ORDERS)
            node.log().flush()

        pool.meanwhile = replace
        await begin(node.log(), kind).run(pool)
        await pool.end_other()
        await node.manager.checkpoint_log_recovery_offsets()
        await node.crash()
        assert node.manager.failed == {}
        assert (node.log().log_start_offset, node.log().log_end_offset) == (0, 0)


async def periodic_work(node: Node) -> None:
    manager, now_ms = node.manager, node.clock.wall_ms()
    await manager.checkpoint_log_recovery_offsets()
    await manager.checkpoint_log_start_offsets()
    await manager.checkpoint_high_watermarks()
    await manager.flush(node.log())
    await manager.cleanup_logs(now_ms + 10**12)
    await manager.remove_expired_producers(now_ms)
    await manager.remove_deleted_files(now_ms + 10**9)


async def crash_in_truncation(kind: str, seed: int, operation: int, step: int | None) -> bool:
    """Lose the power in an operation of a truncation, before one step of which other work is done, and check
    what is left; False if the truncation ended before.
    """
    node, pool = await filled_node(seed=seed)
    log = node.log()
    prepare(log, kind)
    before = {header.base_offset: data for header, data in all_batches(log)}
    pool.calls, pool.at, pool.meanwhile = 0, step, lambda: periodic_work(node)
    node.sim_disk.crash_after(operation)
    try:
        await begin(log, kind).run(pool)
        ended = True
    except SimCrash:
        ended = False
    pool.at = None
    if pool.other is not None:
        pool.other.cancel()
        await asyncio.gather(pool.other, return_exceptions=True)
    await node.crash()
    assert node.manager.failed == {}
    left = node.log()
    check_log(left, producers_from=left.log_start_offset)
    for header, data in all_batches(left):
        assert before[header.base_offset] == data
    if not kind.startswith("all"):
        assert ENDS[kind] <= left.log_end_offset <= 24
        assert {header.base_offset for header, _ in all_batches(left)} >= {
            offset for offset in before if left.log_start_offset <= offset < ENDS[kind]
        }
    return not ended


@pytest.mark.parametrize(
    "kind", [KINDS[0], *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS[1:])]
)
async def test_a_crash_at_any_operation_leaves_a_sound_log_with_all_that_was_to_stay(kind: str) -> None:
    operation = 0
    while await crash_in_truncation(kind, 3, operation, None):
        operation += 1
    assert operation > 5


@for_each("seed", range(40))
async def test_a_crash_beside_periodic_work_does_as_well(seed: int) -> None:
    chance = random.Random(seed)
    kind = chance.choice(KINDS)
    await crash_in_truncation(kind, seed, chance.randrange(60), chance.randrange(1, 12))


@pytest.mark.parametrize("kind", KINDS)
async def test_the_pool_waits_for_the_disk_and_the_event_loop_never_does(kind: str) -> None:
    node, pool = await filled_node()
    prepare(node.log(), kind)
    on_the_loop: list[DiskOperation] = []

    def note(operation: DiskOperation) -> None:
        if operation.op in SYNCS and not pool.is_inside:
            on_the_loop.append(operation)

    node.sim_disk.hook = note
    await begin(node.log(), kind).run(pool)
    assert on_the_loop == []


async def test_the_producer_state_is_replayed_in_bounded_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    node, pool = Node(), StepPool()
    node.config = LogConfig()
    await node.start()
    log = node.log()
    fill(node, log, 5 * REPLAYED_AT_ONCE)
    log.update_high_watermark(3 * REPLAYED_AT_ONCE + 5)
    replayed: list[int] = []
    replay = type(log.producer_state_manager).replay

    def counted(state: Any, batches: Any) -> Any:
        replayed.append(pool.calls)
        return replay(state, batches)

    monkeypatch.setattr(type(log.producer_state_manager), "replay", counted)
    await log.begin_truncation(4 * REPLAYED_AT_ONCE).run(pool)
    assert len(replayed) == 4 * REPLAYED_AT_ONCE
    assert all(replayed.count(call) <= REPLAYED_AT_ONCE for call in set(replayed))
    check_log(log)


async def test_without_room_for_the_checkpoint_the_log_stays_as_it_is() -> None:
    node, pool = await filled_node()
    log = node.log()
    fault = node.sim_disk.fail(errno.ENOSPC, ops=[Op.WRITE], times=None)
    with pytest.raises(KafkaError) as refused:
        await log.begin_truncation(14).run(pool)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.log_end_offset == 24
    assert log.directory.is_online
    assert not log.is_truncating
    node.sim_disk.heal(fault)
    await log.begin_truncation(14).run(pool)
    check(node, KINDS[0])


async def test_a_sync_that_fails_half_way_takes_the_directory_offline() -> None:
    node, pool = await filled_node()
    log = node.log()
    node.sim_disk.fail(errno.EIO, prefix=log.dir, ops=[Op.SYNC, Op.SYNC_DIR])
    with pytest.raises(KafkaError):
        await log.begin_truncation(14).run(pool)
    assert not log.directory.is_online
    assert node.failures == [log.directory]


async def test_a_crowd_of_truncations_shares_the_writes_of_a_checkpoint() -> None:
    pool = StepPool()
    node = Node(pool=pool)
    await node.start()
    logs = [node.log("orders", partition) for partition in range(100)]
    for log in logs:
        node.fill(log, 5)
        log.flush()
    await node.manager.checkpoint_log_recovery_offsets()
    renames: list[str] = []

    def note(operation: DiskOperation) -> None:
        if operation.op is Op.RENAME and "recovery-point" in operation.path:
            renames.append(operation.path)

    node.sim_disk.hook = note
    await asyncio.gather(*(log.begin_truncation(3).run(pool) for log in logs))
    assert len(renames) <= 3
    assert all(log.log_end_offset == 3 for log in logs)
    await node.crash()
    assert node.manager.failed == {}
    assert all(node.log("orders", partition).log_end_offset == 3 for partition in range(100))


def test_a_call_is_made_once_and_both_that_make_it_get_its_outcome() -> None:
    made: list[int] = []

    def make() -> int:
        made.append(1)
        return len(made)

    call = CallOnce(make)
    assert (call(), call()) == (1, 1)

    def fail() -> None:
        made.append(2)
        raise OSError("no")

    failing = CallOnce(fail)
    for _ in range(2):
        with pytest.raises(OSError, match="no"):
            failing()
    assert made == [1, 2]


async def test_truncations_deletions_and_checkpoints_do_not_overtake_each_other_for_good() -> None:
    pool = StepPool()
    node = Node(pool=pool)
    await node.start()
    logs = [node.log("orders", partition) for partition in range(20)]
    for log in logs:
        node.fill(log, 5)
        log.flush()
    await node.manager.checkpoint_log_recovery_offsets()
    async with asyncio.timeout(30):
        await asyncio.gather(
            *(log.begin_truncation(3).run(pool) for log in logs[:10]),
            node.manager.delete_logs_in_turns([log.topic_partition for log in logs[10:]], Turns(node.clock)),
            node.manager.checkpoint_log_recovery_offsets(),
            node.manager.checkpoint_log_start_offsets(),
        )
    await node.crash()
    assert node.manager.failed == {}
    assert sorted(log.log_end_offset for log in node.manager.logs()) == [3] * 10
