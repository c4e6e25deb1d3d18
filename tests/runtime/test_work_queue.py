"""Bulk work: one piece after the other, each in turns, the first turn at once."""

from __future__ import annotations

import asyncio

import pytest

from ottla.runtime.steps import Steps, run_at_once
from ottla.runtime.work_queue import WorkQueue, in_turns
from ottla.sim.clock import SimClock


async def nothing() -> int:
    return 7


def items(seen: list[int], count: int) -> Steps[int]:
    for number in range(count):
        seen.append(number)
        yield
    return len(seen)


async def test_work_that_fits_in_a_turn_is_done_when_submit_returns() -> None:
    queue = WorkQueue(SimClock(), "test")
    future = queue.submit(nothing)
    assert future.done()
    assert future.result() == 7
    assert queue.is_idle


async def test_longer_work_gives_way_and_the_next_piece_waits_for_it() -> None:
    queue = WorkQueue(SimClock(), "test")
    seen: list[int] = []
    first = queue.submit(lambda: in_turns(items(seen, 100), queue.turns))
    second = queue.submit(nothing)
    assert 0 < len(seen) < 100
    assert not queue.is_idle
    between = []
    while not first.done():
        between.append(len(seen))
        assert not second.done()
        await asyncio.sleep(0)
    assert len(set(between)) > 3
    assert await first == 100
    assert await second == 7
    assert queue.is_idle


async def test_an_error_goes_to_its_caller_and_the_next_piece_runs() -> None:
    queue = WorkQueue(SimClock(), "test")

    async def fails(late: bool) -> None:
        if late:
            await asyncio.sleep(0)
        raise ValueError("on purpose")

    for late in (False, True):
        failed = queue.submit(lambda late=late: fails(late))  # type: ignore[misc]
        after = queue.submit(nothing)
        with pytest.raises(ValueError, match="on purpose"):
            await failed
        assert await after == 7


async def test_work_may_wait_for_futures_in_its_first_turn() -> None:
    queue = WorkQueue(SimClock(), "test")
    gate: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def waits() -> str:
        return await gate + "!"

    future = queue.submit(waits)
    assert not future.done()
    gate.set_result("open")
    assert await future == "open!"
    gate = asyncio.get_running_loop().create_future()
    future = queue.submit(waits)
    gate.set_exception(OSError("shut"))
    with pytest.raises(OSError, match="shut"):
        await future


async def test_closing_stops_what_runs_and_drops_the_rest() -> None:
    queue = WorkQueue(SimClock(), "test")
    seen: list[int] = []
    running = queue.submit(lambda: in_turns(items(seen, 1000), queue.turns))
    waiting = queue.submit(nothing)
    await asyncio.sleep(0)
    await queue.close()
    assert running.cancelled()
    assert waiting.cancelled()
    assert len(seen) < 1000
    assert queue.submit(nothing).cancelled()


async def test_a_piece_whose_caller_has_gone_runs_to_its_end() -> None:
    queue = WorkQueue(SimClock(), "test")
    seen: list[int] = []
    queue.submit(lambda: in_turns(items(seen, 100), queue.turns)).cancel()
    assert await queue.submit(nothing) == 7
    assert len(seen) == 100


@pytest.mark.parametrize("late", [False, True])
async def test_work_that_awaits_what_is_cancelled_does_not_stop_the_queue(late: bool) -> None:
    queue = WorkQueue(SimClock(), "test")
    gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    if not late:
        gone.cancel()

    async def waits() -> None:
        await gone

    first, second = queue.submit(waits), queue.submit(nothing)
    gone.cancel()
    assert await asyncio.wait_for(second, 10) == 7
    with pytest.raises(RuntimeError, match="cancelled"):
        await first
    assert queue.is_idle
    assert await asyncio.wait_for(queue.submit(nothing), 10) == 7


async def test_a_cancelled_task_leaves_no_caller_waiting() -> None:
    queue = WorkQueue(SimClock(), "test")
    running = queue.submit(lambda: in_turns(items([], 1000), queue.turns))
    waiting = queue.submit(nothing)
    await asyncio.sleep(0)
    assert queue._task is not None
    queue._task.cancel()
    await asyncio.wait([running, waiting], timeout=10)
    assert running.cancelled()
    assert waiting.cancelled()
    assert await asyncio.wait_for(queue.submit(nothing), 10) == 7


async def test_what_ends_the_process_in_a_first_turn_leaves_the_queue_idle() -> None:
    queue = WorkQueue(SimClock(), "test")

    async def leaves() -> None:
        raise SystemExit(1)

    with pytest.raises(SystemExit):
        queue.submit(leaves)
    assert queue.is_idle


def test_steps_run_at_once() -> None:
    seen: list[int] = []
    assert run_at_once(items(seen, 5)) == 5
