"""Group commit: appends of many requests and many logs share syncs, and none is taken for durable early."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from ottla.log.unified_log import UnifiedLog
from ottla.protocol.errors import KafkaError
from ottla.records.builder import build_batch
from ottla.runtime.pool import InlinePool
from tests.log.test_log_manager import CONFIG, A, B, Node

T = TypeVar("T")


class HeldPool(InlinePool):
    """Calls that are made only once they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.is_open = asyncio.Event()
        self.is_open.set()

    async def run(self, fn: Callable[..., T], *args: Any) -> T:
        self.calls += 1
        await self.is_open.wait()
        return await super().run(fn, *args)


@pytest.fixture
async def pool() -> HeldPool:
    return HeldPool()


@pytest.fixture
async def node(pool: HeldPool) -> Node:
    node = Node(A, B, pool=pool)
    node.config = replace(CONFIG, durability="disk")
    await node.start()
    for number, directory in enumerate(node.manager.directories):
        directory.directory_id = bytes([number]) * 16
    return node


def put(log: UnifiedLog) -> int:
    return log.append_as_leader(bytearray(build_batch([(0, None, b"x")])), 0, now_ms=0).last_offset


async def turns(number: int = 5) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def test_one_sync_serves_all_who_have_appended_before_it_begins(node: Node, pool: HeldPool) -> None:
    log = node.log()
    pool.calls = 0
    pool.is_open.clear()
    put(log)
    first = node.manager.commit(log)
    await turns()
    later = []
    for _ in range(1_000):
        put(log)
        later.append(node.manager.commit(log))
    await turns()
    assert not first.done()
    pool.is_open.set()
    await first
    assert log.recovery_point == 1, "what came later is not part of it"
    await asyncio.gather(*later)
    assert (log.recovery_point, log.is_flush_due) == (1_001, False)
    assert pool.calls == 2


async def test_logs_that_wait_at_the_same_time_share_a_few_threads(node: Node, pool: HeldPool) -> None:
    logs = [node.log("orders", number, directory_id=bytes(16)) for number in range(40)]
    pool.calls = 0
    for log in logs:
        put(log)
    await asyncio.gather(*(node.manager.commit(log) for log in logs))
    assert all(log.recovery_point == 1 for log in logs)
    assert pool.calls == 4


async def test_a_log_that_cannot_be_synced_fails_alone(node: Node) -> None:
    sound, broken = (node.log("orders", number, directory_id=bytes([number]) * 16) for number in range(2))
    for log in (sound, broken):
        put(log)
    node.sim_disk.fail(errno.EIO, ops=["sync"], prefix=B)
    outcomes = await asyncio.gather(
        node.manager.commit(sound), node.manager.commit(broken), return_exceptions=True
    )
    assert outcomes[0] is None
    assert isinstance(outcomes[1], KafkaError)
    assert (sound.recovery_point, broken.recovery_point) == (1, 0)


async def test_a_disk_that_hangs_does_not_hold_up_another_one(node: Node, pool: HeldPool) -> None:
    hanging = [node.log("orders", number, directory_id=bytes(16)) for number in range(20)]
    other = node.log("orders", 20, directory_id=bytes([1]) * 16)
    for log in (*hanging, other):
        put(log)
    pool.is_open.clear()
    waiting = [node.manager.commit(log) for log in hanging]
    await turns()
    pool.calls = 0
    commit = node.manager.commit(other)
    await turns()
    assert pool.calls == 1
    pool.is_open.set()
    await asyncio.gather(commit, *waiting)


async def test_a_commit_waits_for_another_flush_of_the_log(node: Node, pool: HeldPool) -> None:
    log = node.log()
    put(log)
    pool.is_open.clear()
    alone = asyncio.ensure_future(node.manager.flush(log))
    await turns()
    put(log)
    commit = node.manager.commit(log)
    await turns()
    assert not commit.done()
    pool.is_open.set()
    await asyncio.gather(alone, commit)
    assert log.recovery_point == 2


async def test_a_commit_is_over_only_when_a_segment_that_was_closed_meanwhile_is_durable(
    node: Node, pool: HeldPool
) -> None:
    log = node.log()
    put(log)
    pool.is_open.clear()
    commit = node.manager.commit(log)
    await turns()
    log.roll(0)
    pool.is_open.set()
    await commit
    assert log.recovery_point == 1
    path = log.segments[0].path(".index")
    assert node.sim_disk.durable_contents().get(path) == node.sim_disk.contents().get(path)


async def test_a_caller_that_is_cancelled_takes_no_other_with_it(node: Node, pool: HeldPool) -> None:
    log = node.log()
    put(log)
    pool.is_open.clear()

    async def wait() -> None:
        await asyncio.shield(node.manager.commit(log))

    leaver, stayer = asyncio.ensure_future(wait()), asyncio.ensure_future(wait())
    await turns()
    leaver.cancel()
    await turns()
    pool.is_open.set()
    await stayer
    assert log.recovery_point == 1
