"""The pool: how much runs at once, what a cancelled caller leaves behind, and how errors come back."""

from __future__ import annotations

import asyncio
import threading

import pytest

from ottla.runtime.pool import InlinePool, ThreadPool
from ottla.sim.disk import SimCrash

DEADLINE_S = 60


async def until(condition: threading.Event) -> None:
    """Wait for a thread without blocking the loop."""
    assert await asyncio.get_running_loop().run_in_executor(None, condition.wait, DEADLINE_S)


async def test_calls_run_off_the_loop_and_return_their_result() -> None:
    pool = ThreadPool(1)
    assert await pool.run(divmod, 7, 2) == (3, 1)
    assert await pool.run(threading.get_ident) != threading.get_ident()
    pool.close()


async def test_errors_come_back_crashes_included() -> None:
    pool = ThreadPool(1)

    def crash() -> None:
        raise SimCrash("power lost")

    with pytest.raises(ZeroDivisionError):
        await pool.run(divmod, 1, 0)
    with pytest.raises(SimCrash):
        await pool.run(crash)
    pool.close()


async def test_no_more_than_its_workers_run_and_no_more_than_its_backlog_wait() -> None:
    pool = ThreadPool(2, backlog=1)
    busy, go = threading.Event(), threading.Event()
    started: list[int] = []

    def work(number: int) -> int:
        started.append(number)
        if len(started) == 2:
            busy.set()
        assert go.wait(DEADLINE_S)
        return number

    calls = [asyncio.ensure_future(pool.run(work, number)) for number in range(6)]
    await asyncio.sleep(0)
    await until(busy)
    assert sorted(started) == [0, 1]
    assert pool.accepted == 3
    go.set()
    assert await asyncio.gather(*calls) == list(range(6))
    assert sorted(started) == list(range(6))
    assert pool.accepted == 0
    pool.close()


async def test_a_cancelled_caller_does_not_stop_the_call_nor_free_its_slot() -> None:
    pool = ThreadPool(1, backlog=0)
    started, go, finished = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        assert go.wait(DEADLINE_S)
        finished.set()

    call = asyncio.ensure_future(pool.run(work))
    await asyncio.sleep(0)
    await until(started)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert pool.accepted == 1
    waiting = asyncio.ensure_future(pool.run(int, "7"))
    await asyncio.sleep(0)
    assert not waiting.done()
    go.set()
    assert await waiting == 7
    assert finished.is_set()
    pool.close()


async def test_a_caller_cancelled_before_its_turn_never_runs() -> None:
    pool = ThreadPool(1, backlog=0)
    go = threading.Event()
    first = asyncio.ensure_future(pool.run(go.wait, DEADLINE_S))
    await asyncio.sleep(0)
    ran: list[int] = []
    second = asyncio.ensure_future(pool.run(ran.append, 1))
    await asyncio.sleep(0)
    second.cancel()
    go.set()
    assert await first
    await pool.run(int)
    assert ran == []
    pool.close()


async def test_a_closed_pool_finishes_its_work_and_takes_no_more() -> None:
    pool = ThreadPool(1)
    go, finished = threading.Event(), threading.Event()

    def work() -> None:
        assert go.wait(DEADLINE_S)
        finished.set()

    call = asyncio.ensure_future(pool.run(work))
    await asyncio.sleep(0)
    go.set()
    pool.close()
    pool.close()
    assert finished.is_set()
    await call
    with pytest.raises(RuntimeError, match="shutdown"):
        await pool.run(int)
    assert pool.accepted == 0


def test_a_pool_without_workers_is_refused() -> None:
    with pytest.raises(ValueError, match="workers=0"):
        ThreadPool(0)


async def test_the_inline_pool_runs_at_once_on_the_loop() -> None:
    pool = InlinePool()
    assert await pool.run(threading.get_ident) == threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        await pool.run(divmod, 1, 0)
    pool.close()
    with pytest.raises(RuntimeError, match="closed"):
        await pool.run(int)
