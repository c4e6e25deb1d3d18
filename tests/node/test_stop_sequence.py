"""The stop of a node ends, whatever one of its parts does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.support.loops import in_virtual_time

from ottla.node.server.stop_sequence import STEP_SECONDS, StopSequence


def steps(done: list[str]) -> Callable[[str], Callable[[], Awaitable[None]]]:
    def step(name: str) -> Callable[[], Awaitable[None]]:
        async def work() -> None:
            await asyncio.sleep(1)
            done.append(name)

        return work

    return step


@in_virtual_time()
async def test_what_started_last_stops_first_also_if_it_started_during_the_stop() -> None:
    done: list[str] = []
    step, sequence = steps(done), StopSequence()
    sequence.add(step("log"))

    async def starts_another() -> None:
        sequence.add(step("late"))
        done.append("server")

    sequence.add(starts_another)
    sequence.add(step("tasks"))
    await sequence.run()
    assert done == ["tasks", "server", "late", "log"]
    await sequence.run()
    assert len(done) == 4


@in_virtual_time()
async def test_a_part_that_fails_does_not_keep_the_others_from_stopping(
    caplog: pytest.LogCaptureFixture,
) -> None:
    done: list[str] = []
    step, sequence = steps(done), StopSequence()

    async def fails() -> None:
        raise ValueError("no room")

    sequence.add(step("log"))
    sequence.add(fails)
    await sequence.run()
    assert done == ["log"]
    assert "a part of the node did not stop cleanly" in caplog.text
    assert "no room" in caplog.text


@in_virtual_time()
async def test_a_part_that_waits_without_end_is_named_and_left_behind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    done: list[str] = []
    step, sequence = steps(done), StopSequence()

    async def wait_for_what_never_comes() -> None:
        await asyncio.Event().wait()

    async def hang() -> None:
        try:
            await wait_for_what_never_comes()
        except asyncio.CancelledError:
            await wait_for_what_never_comes()  # not even then

    sequence.add(step("log"))
    sequence.add(hang)
    began = asyncio.get_running_loop().time()
    await sequence.run()
    assert done == ["log"]
    assert [name.rpartition(".")[2] for name in sequence.left_behind] == ["hang"]
    assert asyncio.get_running_loop().time() - began < STEP_SECONDS + 10
    assert "hang has not ended within 45 s" in caplog.text
    assert "wait_for_what_never_comes" in caplog.text


@in_virtual_time()
async def test_a_part_may_have_more_time() -> None:
    done: list[str] = []
    sequence = StopSequence()

    async def flush() -> None:
        await asyncio.sleep(4 * STEP_SECONDS)
        done.append("flushed")

    sequence.add(flush, limit_seconds=5 * STEP_SECONDS)
    await sequence.run()
    assert done == ["flushed"]
