"""Background tasks: none ends unnoticed, and an operator sees what happened to each."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Awaitable

import pytest

from ottla.runtime.clock import SystemClock
from ottla.runtime.tasks import Deferred, FailurePolicy, TaskState, TaskSupervisor, cancel
from tests.support.waiting import until


class Broken(Exception):
    pass


def supervisor(fatal: list[str] | None = None) -> TaskSupervisor:
    return TaskSupervisor(SystemClock(), ([] if fatal is None else fatal).append)


async def test_a_loop_that_fails_starts_again_with_its_error_known(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tasks, runs = supervisor(), 0

    async def loop() -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise Broken("the first run")
        await asyncio.Event().wait()

    task = tasks.start("a loop", loop)
    await until(lambda: runs == 2 and task.status.state is TaskState.RUNNING)
    (status,) = tasks.statuses()
    assert (status.name, status.restarts, status.last_error) == ("a loop", 1, "Broken: the first run")
    assert status.last_error_ms is not None
    assert any("a loop failed" in record.message and record.exc_info for record in caplog.records)
    await tasks.stop()
    assert task.is_done
    assert tasks.statuses() == []


async def test_while_it_waits_to_start_again_it_says_so_and_can_be_stopped() -> None:
    tasks = supervisor()

    async def loop() -> None:
        raise Broken

    task = tasks.start("a loop", loop)
    await until(lambda: task.status.state is TaskState.BACKING_OFF)
    await task.stop()
    assert task.status.state is TaskState.ENDED


async def test_the_pause_grows_with_each_error(caplog: pytest.LogCaptureFixture) -> None:
    tasks = supervisor()

    async def loop() -> None:
        raise Broken

    task = tasks.start("a loop", loop)
    await until(lambda: task.status.restarts >= 3)
    await tasks.stop()
    pauses = [
        int(record.message.split()[-2]) for record in caplog.records if "starts again" in record.message
    ]
    assert pauses[:3] == [100, 200, 400]


async def test_a_cancellation_that_was_not_asked_for_does_not_end_a_loop() -> None:
    tasks, runs = supervisor(), 0

    async def loop() -> None:
        nonlocal runs
        runs += 1
        other = asyncio.get_running_loop().create_future()
        if runs == 1:
            other.cancel()
        await other

    task = tasks.start("a loop", loop)
    await until(lambda: runs == 2)
    assert task.status.last_error == "CancelledError"
    await tasks.stop()


async def test_what_must_not_continue_ends_the_node(caplog: pytest.LogCaptureFixture) -> None:
    fatal: list[str] = []
    tasks = supervisor(fatal)

    async def loop() -> None:
        raise Broken("state in the middle")

    task = tasks.start("the quorum", loop, on_error=FailurePolicy.END_NODE)
    await until(lambda: task.is_done)
    assert fatal == ["the quorum failed: Broken: state in the middle"]
    assert [status.state for status in tasks.statuses()] == [TaskState.FAILED]
    assert caplog.records[-1].levelno == logging.CRITICAL


async def test_work_that_returns_is_over_at_once() -> None:
    tasks = supervisor()
    seen: list[bool] = []

    async def work() -> None:
        asyncio.get_running_loop().call_soon(lambda: seen.append(task.is_done))

    task = tasks.start("work", work)
    await until(lambda: bool(seen))
    assert seen == [True]
    assert tasks.statuses() == []


async def test_a_task_that_is_stopped_before_its_first_step_leaves_the_list() -> None:
    tasks = supervisor()

    async def work() -> None:
        raise AssertionError

    task = tasks.start("work", work)
    await task.stop()
    assert task.is_done
    assert tasks.statuses() == []


async def test_periodic_work_survives_rounds_that_fail() -> None:
    tasks, rounds = supervisor(), 0

    async def work() -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 1:
            raise Broken
        if rounds == 2:
            raise asyncio.CancelledError

    task = tasks.every(lambda: 1, work, "work")
    await until(lambda: rounds >= 4)
    assert (task.status.state, task.status.restarts) == (TaskState.RUNNING, 2)
    await task.stop()


async def test_a_lack_of_room_is_one_line_and_not_one_for_each_round(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tasks, rounds = TaskSupervisor(SystemClock(), print, lambda error: isinstance(error, OSError)), 0

    async def work() -> None:
        nonlocal rounds
        rounds += 1
        raise OSError("no room")

    task = tasks.every(lambda: 1, work, "checkpoints")
    await until(lambda: rounds >= 5)
    await tasks.stop()
    assert [record.getMessage() for record in caplog.records] == [
        "checkpoints failed; it will be tried again: no room"
    ]
    assert not caplog.records[0].exc_info
    assert task.status.restarts >= 4


async def test_an_interval_that_can_not_be_read_is_read_again() -> None:
    tasks, reads, rounds = supervisor(), 0, 0

    def interval() -> int:
        nonlocal reads
        reads += 1
        if reads == 2:
            raise Broken
        return 1

    async def work() -> None:
        nonlocal rounds
        rounds += 1

    tasks.every(interval, work, "work")
    await until(lambda: rounds >= 3)
    await tasks.stop()


async def _outer(inner: Awaitable[None]) -> None:
    await inner


async def _inner() -> None:
    raise AssertionError("it is not to begin")


def never_awaited(warnings: pytest.WarningsRecorder) -> list[str]:
    gc.collect()
    return [str(each.message) for each in warnings if "never awaited" in str(each.message)]


async def test_a_task_that_is_cancelled_before_its_first_step_leaves_no_coroutine_behind(
    recwarn: pytest.WarningsRecorder,
) -> None:
    task = asyncio.ensure_future(_outer(_outer(_inner())))
    cancel(task)
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
    assert never_awaited(recwarn) == []


async def test_a_task_that_has_begun_is_cancelled_where_it_waits() -> None:
    ended: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("finally")

    task = asyncio.ensure_future(_outer(wait()))
    await asyncio.sleep(0)
    cancel(task)
    await asyncio.gather(task, return_exceptions=True)
    assert (task.cancelled(), ended) == (True, ["finally"])


async def test_what_is_deferred_begins_when_it_is_awaited(recwarn: pytest.WarningsRecorder) -> None:
    async def answer() -> int:
        return 7

    Deferred(_inner)
    assert await Deferred(answer) == 7
    assert never_awaited(recwarn) == []
