"""Heavy work: bounded at once, fair between clients, and long work does not hold up short work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from ottla.runtime.heavy_work import INLINE_US, SHORT_BYTES, SHORT_US, HeavyWork
from ottla.runtime.pool import InlinePool

T = TypeVar("T")
LONG_US = SHORT_US + 1


class HeldPool:
    """Begins calls, and ends each at `end`."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}

    async def run(self, fn: Callable[..., T], *args: Any) -> T:
        name = str(args[0])
        self.begun.append(name)
        self._ends[name] = asyncio.Event()
        await self._ends[name].wait()
        return fn(*args)

    def close(self) -> None:
        pass

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await turns()


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


class Bench:
    def __init__(self) -> None:
        self.pool = HeldPool()
        self.memory = 0
        self.work = HeavyWork(self.pool, self._count)
        self.tasks: list[asyncio.Task[str]] = []

    def _count(self, size: int) -> None:
        self.memory += size

    async def submit(
        self, client: str, name: str, cost_us: int = 100, memory_bytes: int = 0
    ) -> asyncio.Task[str]:
        task = asyncio.create_task(self.work.run(client, cost_us, str, name, memory_bytes=memory_bytes))
        self.tasks.append(task)
        await turns()
        return task

    async def end_all(self) -> None:
        while self.work.running:
            await self.pool.end(self.pool.begun[-self.work.running])


async def test_a_client_waits_behind_its_own_work() -> None:
    bench = Bench()
    for number in range(3):
        await bench.submit("busy", f"busy {number}")
    await bench.submit("other", "other")
    assert bench.pool.begun == ["busy 0", "other"]
    await bench.pool.end("busy 0")
    assert bench.pool.begun == ["busy 0", "other", "busy 1"]
    assert bench.work.running == 2
    await bench.pool.end("other")
    await bench.pool.end("busy 1")
    await bench.pool.end("busy 2")
    assert [await task for task in bench.tasks] == ["busy 0", "busy 1", "busy 2", "other"]
    assert (bench.work.running, bench.work.waiting) == (0, 0)


async def test_of_those_that_wait_the_one_that_was_given_least_goes_first() -> None:
    bench = Bench()
    await bench.submit("a", "a0", SHORT_US)
    await bench.submit("b", "b0", 10)
    await bench.submit("a", "a1", 10)
    await bench.submit("c", "c0", 10)
    await bench.submit("b", "b1", 10)
    await bench.pool.end("a0")
    await bench.pool.end("b0")
    # `a` has had the most, though it has waited longest.
    assert set(bench.pool.begun[2:]) == {"b1", "c0"}
    await bench.pool.end("b1")
    assert bench.pool.begun[-1] == "a1"


@pytest.mark.parametrize(("cost_us", "memory_bytes"), [(LONG_US, 0), (10, SHORT_BYTES + 1)])
async def test_long_work_leaves_a_thread_to_short_work(cost_us: int, memory_bytes: int) -> None:
    bench = Bench()
    for client in "abc":
        await bench.submit(client, f"long {client}", cost_us, memory_bytes)
    assert bench.pool.begun == ["long a"]
    assert bench.memory == memory_bytes  # of what runs, not of what waits
    for client in "de":
        await bench.submit(client, f"short {client}")
    assert bench.pool.begun == ["long a", "short d"]
    await bench.pool.end("short d")
    assert bench.pool.begun == ["long a", "short d", "short e"]
    await bench.pool.end("long a")
    assert bench.pool.begun[-1] == "long b"
    await bench.pool.end("short e")
    await bench.pool.end("long b")
    await bench.pool.end("long c")
    assert bench.memory == 0


async def test_a_client_that_leaves_keeps_its_place_until_its_call_has_ended() -> None:
    bench = Bench()
    begun = await bench.submit("a", "begun", LONG_US, SHORT_BYTES)
    waiting = await bench.submit("b", "waiting", LONG_US, SHORT_BYTES)
    begun.cancel()
    waiting.cancel()
    await turns()
    await bench.submit("c", "next", LONG_US, SHORT_BYTES)
    assert bench.pool.begun == ["begun"]
    await bench.pool.end("begun")
    assert bench.pool.begun == ["begun", "next"]
    await bench.pool.end("next")
    assert (bench.work.running, bench.work.running_long, bench.work.waiting, bench.memory) == (0, 0, 0, 0)


async def test_work_that_fails_is_its_callers_error_and_frees_its_place() -> None:
    work = HeavyWork(InlinePool())
    with pytest.raises(ZeroDivisionError):
        await work.run("a", 10, lambda: 1 // 0)
    assert await work.run("a", 10, lambda: 7) == 7
    assert work.running == 0


async def test_what_is_small_is_done_at_once_within_what_a_turn_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work = HeavyWork(InlinePool())
    assert not work.fits_turn(INLINE_US + 1)
    loop = asyncio.get_running_loop()
    now = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now)
    assert all(work.fits_turn(INLINE_US) for _ in range(100))
    now += 0.011
    assert not work.fits_turn(1)
    await asyncio.sleep(0)
    assert work.fits_turn(1)
