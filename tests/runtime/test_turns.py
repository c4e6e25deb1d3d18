"""Turns: bulk work gives way by time, or by items where the clock stands still."""

import asyncio
import gc
import socket
import weakref
from collections.abc import Callable

import pytest

from ottla.runtime.clock import SystemClock
from ottla.runtime.loop import new_event_loop
from ottla.runtime.turns import Turns
from ottla.sim.loop import SimLoop


class _Clock:
    """A clock that advances by `step_ns` with each reading."""

    def __init__(self, step_ns: int) -> None:
        self.now_ns = 0
        self.step_ns = step_ns
        self.readings = 0

    def wall_ms(self) -> int:
        return 0

    def monotonic_ns(self) -> int:
        self.readings += 1
        self.now_ns += self.step_ns
        return self.now_ns


def _items_until_due(turns: Turns) -> int:
    for count in range(1, 10_000):
        if turns.is_due():
            return count
    raise AssertionError("the turn never ends")


def test_a_turn_ends_with_its_budget() -> None:
    assert _items_until_due(Turns(_Clock(1_000_000), budget_ms=5)) == 5
    assert _items_until_due(Turns(_Clock(50_000), budget_ms=5)) == 100


def test_one_reading_of_the_clock_serves_several_items() -> None:
    clock = _Clock(1_000_000)
    assert _items_until_due(Turns(clock, budget_ms=5, check_every=10)) == 50
    assert clock.readings == 6


def test_a_clock_that_stands_still_ends_turns_by_items() -> None:
    assert _items_until_due(Turns(_Clock(0))) == 16
    assert _items_until_due(Turns(_Clock(0), check_every=64)) == 64


def test_impossible_turns_are_refused() -> None:
    with pytest.raises(ValueError, match="budget_ms=0"):
        Turns(SystemClock(), budget_ms=0)
    with pytest.raises(ValueError, match="check_every=0"):
        Turns(SystemClock(), check_every=0)


@pytest.mark.parametrize("new_loop", [new_event_loop, asyncio.new_event_loop])
def test_io_and_timers_run_between_turns(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Work that never ends by itself sees a timer and bytes from a socket."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        here, there = socket.socketpair()
        here.setblocking(False)
        seen: set[str] = set()
        loop.call_later(0.01, seen.add, "timer")
        loop.add_reader(here, seen.add, "bytes")
        there.send(b"x")
        turns = Turns(SystemClock(), budget_ms=0.1)
        async with asyncio.timeout(30):
            while seen != {"timer", "bytes"}:
                await turns.pause_if_due()
        loop.remove_reader(here)
        here.close()
        there.close()
        assert turns.taken > 0

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())


def test_two_pieces_of_work_interleave_in_the_simulator() -> None:
    loop = SimLoop(1)  # type: ignore[abstract]
    order: list[str] = []

    class _SimulatedClock(_Clock):
        def monotonic_ns(self) -> int:
            return loop.now_ns

    async def work(name: str) -> None:
        turns = Turns(_SimulatedClock(0))
        for _ in range(32):
            order.append(name)
            await turns.pause_if_due()

    async def main() -> None:
        await asyncio.gather(work("a"), work("b"))

    loop.run_until_complete(main())
    loop.close()
    assert order == ["a"] * 16 + ["b"] * 16 + ["a"] * 16 + ["b"] * 16


async def test_work_that_is_ready_at_the_same_time_shares_a_round_of_the_loop() -> None:
    clock = _Clock(1_000_000)
    first = Turns(clock, budget_ms=5)
    assert _items_until_due(first) == 5
    second = Turns(clock, budget_ms=5)
    assert _items_until_due(second) == 1
    await asyncio.gather(first.pause(), second.pause())
    assert _items_until_due(first) + _items_until_due(second) <= 6
    assert _items_until_due(Turns(_Clock(1_000_000), budget_ms=5)) == 5  # another clock


def test_work_that_comes_first_in_each_round_leaves_time_for_the_others() -> None:
    clock = _Clock(0)
    done = {"first": 0, "second": 0}

    async def work(name: str, turns: Turns) -> None:
        while done["second"] < 1000:
            clock.now_ns += 100_000
            done[name] += 1
            await turns.pause_if_due()

    async def main() -> None:
        await asyncio.gather(work("first", Turns(clock)), work("second", Turns(clock, budget_ms=2.5)))

    asyncio.run(main())
    assert done["first"] < 3 * done["second"]


def test_turns_keep_no_loop_whose_clock_knows_it() -> None:
    class LoopClock(_Clock):
        def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
            super().__init__(1_000)
            self.loop = loop

    async def take_turns(clock: LoopClock) -> None:
        turns = Turns(clock)
        for _ in range(3):
            await turns.pause()

    def run() -> weakref.ref[asyncio.AbstractEventLoop]:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(take_turns(LoopClock(loop)))
        loop.close()
        return weakref.ref(loop)

    gone = run()
    gc.collect()
    assert gone() is None
