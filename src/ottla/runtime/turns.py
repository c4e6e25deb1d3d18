"""Bulk work on the event loop, in turns that are bounded by time.

Work whose amount grows with the number of partitions, groups or connections must not hold the loop until it
is done: heartbeats, votes and other clients' requests wait meanwhile. Such work asks after each item whether
its turn is over, and gives way if it is:

    turns = Turns(runtime.clock)
    for partition in partitions:
        partition.on_leader_change(image)
        await turns.pause_if_due()

In a tight loop `if turns.is_due(): await turns.pause()` saves the coroutine. All else may run during a pause,
so state that was read before it has to be read again, and a collection that others change has to be walked as
a copy. Work that must not be left half done (an append, a choice of the controller) is not for turns: keep it
small, or decide first and carry out in turns. What blocks (fsync, a cold read) belongs to the pool instead.

Pieces of work that are in turns at the same time share them: the loop runs all that is ready before it looks
at sockets and timers again, so their time in one round of the loop counts together. Each gets its part of
it, or the one that comes first would use it up in every round.

Under a simulated clock, which stands still while code runs, turns end after a number of items, so that the
interleavings are exercised there and replay exactly.
"""

from __future__ import annotations

import asyncio
from typing import Final
from weakref import WeakKeyDictionary

from ottla.runtime.clock import Clock

# Half of what a turn of the loop may take: other callbacks run in the same turn.
BUDGET_MS: Final = 5.0
# Items of a turn for which the clock has not moved at all.
_ITEMS_WITHOUT_TIME: Final = 16


class _Round:
    """The present round of an event loop, from the first turn in it."""

    __slots__ = ("clock_id", "is_open", "pauses", "sharers", "start_ns")

    def __init__(self) -> None:
        self.is_open = False
        self.start_ns = 0
        # Of the clock by which it started: simulated nodes share a loop, and each has a clock of its own. Not
        # the clock itself, which knows its loop: neither of them would ever go.
        self.clock_id = 0
        # Pieces of work that have paused in this round, and those that go on in it since the one before.
        self.pauses = 0
        self.sharers = 1

    def close(self) -> None:
        self.is_open = False


_rounds: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, _Round]] = WeakKeyDictionary()


class Turns:
    """The turns of one piece of work: `is_due` after each item, `pause` to end the turn.

    `check_every` items share one reading of the clock, for items that take much less than a microsecond.
    Invariant: the turns of one round of the loop end within the budget and the time of `check_every` items
    of each.
    """

    __slots__ = (
        "_budget_ns",
        "_check_every",
        "_clock",
        "_items",
        "_round",
        "_round_budget_ns",
        "_round_start_ns",
        "_share_ns",
        "_start_ns",
        "_unchecked",
        "taken",
    )

    def __init__(self, clock: Clock, *, budget_ms: float = BUDGET_MS, check_every: int = 1) -> None:
        if budget_ms <= 0 or check_every < 1:
            raise ValueError(f"a turn needs time and items, got {budget_ms=} {check_every=}")
        self._clock = clock
        self._budget_ns = int(budget_ms * 1e6)
        self._round_budget_ns = int(max(budget_ms, BUDGET_MS) * 1e6)
        self._round: _Round | None = None
        self._check_every = check_every
        # Pauses so far.
        self.taken = 0
        self.begin()

    def begin(self) -> None:
        """Start a turn. Only for work that has waited for something else since it last ended one."""
        self._start_ns = self._round_start_ns = self._clock.monotonic_ns()
        self._share_ns = self._budget_ns
        self._items = self._unchecked = 0
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # made before the loop runs
        found = _rounds.get(loop)
        if found is None:
            found = _rounds[loop] = _Round()
        if not found.is_open:
            found.is_open, found.start_ns, found.clock_id = True, self._start_ns, id(self._clock)
            found.sharers, found.pauses = max(found.pauses, 1), 0
            loop.call_soon(found.close)  # in the next round
        self._round = found
        if found.clock_id == id(self._clock):
            self._round_start_ns = found.start_ns
            self._share_ns = self._budget_ns // found.sharers

    def is_due(self) -> bool:
        """Count one item; true if the work should give way before the next."""
        self._unchecked += 1
        if self._unchecked < self._check_every:
            return False
        self._items += self._unchecked
        self._unchecked = 0
        now_ns = self._clock.monotonic_ns()
        in_round_ns = now_ns - self._round_start_ns
        return (
            now_ns - self._start_ns >= self._share_ns
            or in_round_ns >= self._round_budget_ns
            or (in_round_ns == 0 and self._items >= _ITEMS_WITHOUT_TIME)
        )

    async def pause(self) -> None:
        """Let everything else that is ready run, I/O and timers included, and start the next turn."""
        self.taken += 1
        if self._round is not None:
            self._round.pauses += 1
        await asyncio.sleep(0)
        self.begin()

    async def pause_if_due(self) -> None:
        """Count one item, and give way if the turn is over."""
        if self.is_due():
            await self.pause()
