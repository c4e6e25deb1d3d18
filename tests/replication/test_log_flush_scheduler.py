"""Flushes in the background: what waits for them has its records committed, and no append is left out."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.replication.log_flush_scheduler import LogFlushScheduler
from ottla.sim.clock import SimClock
from tests.support.waiting import until


class Commits:
    """Commits of one log; the next one begins with `begin`."""

    def __init__(self) -> None:
        self.waiting: asyncio.Future[None] | None = None

    def commit(self, log: Any) -> asyncio.Future[None]:
        if self.waiting is None:
            self.waiting = asyncio.get_running_loop().create_future()
        return self.waiting

    def begin(self) -> asyncio.Future[None]:
        begun, self.waiting = self.waiting, None
        assert begun is not None
        return begun


class Led:
    is_leader = True
    topic_partition = "orders-0"

    def __init__(self) -> None:
        self.log = SimpleNamespace(directory=SimpleNamespace(is_online=True), is_closed=False)
        self.flushes = 0

    def on_flush(self, now_ms: int) -> None:
        self.flushes += 1


async def test_an_append_during_a_flush_waits_for_the_next_one() -> None:
    commits, partition = Commits(), Led()
    scheduler = LogFlushScheduler(commits, SimClock())  # type: ignore[arg-type]
    flush = scheduler.flush
    first = flush(partition)  # type: ignore[arg-type]
    assert flush(partition) is first  # type: ignore[arg-type]
    begun = commits.begin()
    second = flush(partition)  # type: ignore[arg-type]
    assert second is not first
    begun.set_result(None)
    await until(lambda: partition.flushes == 1)
    assert flush(partition) is second  # type: ignore[arg-type]
    commits.begin().set_result(None)
    await until(lambda: partition.flushes == 2)


async def test_the_records_are_committed_before_those_who_wait_go_on() -> None:
    commits, partition = Commits(), Led()
    scheduler = LogFlushScheduler(commits, SimClock())  # type: ignore[arg-type]
    flush = scheduler.flush(partition)  # type: ignore[arg-type]

    async def wait() -> int:
        await asyncio.shield(flush)
        return partition.flushes

    waiting = [asyncio.ensure_future(wait()) for _ in range(3)]
    await asyncio.sleep(0)
    commits.begin().set_result(None)
    assert await asyncio.gather(*waiting) == [1, 1, 1]


async def test_a_flush_that_fails_is_the_error_of_those_who_wait_and_is_tried_again() -> None:
    commits, partition = Commits(), Led()
    scheduler = LogFlushScheduler(commits, SimClock())  # type: ignore[arg-type]
    flush = scheduler.flush(partition)  # type: ignore[arg-type]
    commits.begin().set_exception(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no room"))
    with pytest.raises(KafkaError, match="no room"):
        await asyncio.shield(flush)
    assert partition.flushes == 0
    await until(lambda: commits.waiting is not None, "it is not tried again")
    commits.begin().set_result(None)
    await until(lambda: partition.flushes, "the records are not committed")
    await scheduler.close()
