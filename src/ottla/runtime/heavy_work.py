"""The budget of a turn: work whose cost grows with what a client sent, stored or named.

Such work has an estimate before it is begun, in microseconds of a slow core. What is small is done at once
(`fits_turn`); what is larger goes to threads (`run`), where native code runs without the interpreter's lock:
other clients are served meanwhile. Bulk work of plain Python belongs to `ottla.runtime.turns` instead, as
threads would hold the lock that the event loop needs.

Clients share the threads fairly. One piece of work of a client runs at a time, so the heavy work of a client
waits behind its own; of the clients that wait, the one that has been given the least goes first. Short work
has a thread that long work never takes.

Memory that work takes beside its input is named with it and counted while it runs. Work that takes much of it
is long, so there is one piece of it at a time.

Invariants: `running` is at most `workers`, and at most `workers - 1` of them are long; what is done in one
round of the loop without threads is at most `TURN_US` and the last piece; what was counted as memory is that
of the pieces that run.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Final, TypeVar

from ottla.runtime.pool import Pool

T = TypeVar("T")

# The most that one piece of work may take without a thread, and all of them in one round of the loop.
INLINE_US: Final = 4_000
TURN_US: Final = 10_000
# Work up to this is short: what ordinary clients cause, as the check of a compressed batch of a megabyte.
SHORT_US: Final = 50_000
SHORT_BYTES: Final = 16 * 1024 * 1024
WORKERS: Final = 2
# Clients that wait for nothing, and are remembered because they were given more than others.
_MAX_REMEMBERED: Final = 1_000


class _Waiter:
    __slots__ = ("cost_us", "is_long", "memory_bytes", "started")

    def __init__(self, cost_us: int, memory_bytes: int, started: asyncio.Future[None]) -> None:
        self.cost_us = cost_us
        self.memory_bytes = memory_bytes
        self.is_long = cost_us > SHORT_US or memory_bytes > SHORT_BYTES
        self.started = started


class _Client:
    __slots__ = ("given_us", "is_running", "waiters")

    def __init__(self, given_us: int) -> None:
        # The cost of all that was begun for it, on a scale on which idle clients do not fall behind.
        self.given_us = given_us
        self.is_running = False
        self.waiters: deque[_Waiter] = deque()


class HeavyWork:
    """Belongs to one event loop. `pool` has the threads; `count_memory` is called with the bytes that a piece
    of work takes as it begins, and with as many below 0 as it ends.
    """

    def __init__(
        self, pool: Pool, count_memory: Callable[[int], None] | None = None, *, workers: int = WORKERS
    ) -> None:
        if workers < 2:
            raise ValueError(f"short and long work need a thread each, got {workers=}")
        self._pool: Final = pool
        self._count_memory: Final = count_memory
        self._workers: Final = workers
        self._clients: dict[Hashable, _Client] = {}
        self._calls: set[asyncio.Future[Any]] = set()
        # What the client was given that was begun last.
        self._given_us = 0
        # When work of this round of the loop does not fit any more; 0 before there is any.
        self._round_ends = 0.0
        self.running = 0
        self.running_long = 0
        # Pieces of work that were begun in threads.
        self.pieces = 0

    def fits_turn(self, cost_us: int) -> bool:
        """Whether work of this estimate may be done at once: one piece takes little, and all those of a round
        of the loop take a part of what a turn may.
        """
        if cost_us > INLINE_US:
            return False
        loop = asyncio.get_running_loop()
        now = loop.time()
        if self._round_ends == 0.0:
            self._round_ends = now + TURN_US / 1e6
            loop.call_soon(self._end_round)
        return now < self._round_ends

    def _end_round(self) -> None:
        self._round_ends = 0.0

    @property
    def waiting(self) -> int:
        """Pieces of work that wait for a thread."""
        return sum(len(client.waiters) for client in self._clients.values())

    async def run(
        self, client: Hashable, cost_us: int, fn: Callable[..., T], *args: Any, memory_bytes: int = 0
    ) -> T:
        """Call `fn(*args)` in a thread when it is the client's turn. A call that was begun runs to its end,
        also if its caller is cancelled, and keeps its place until then.
        """
        owner = self._clients.get(client)
        if owner is None:
            owner = self._clients[client] = _Client(self._given_us)
        waiter = _Waiter(cost_us, memory_bytes, asyncio.get_running_loop().create_future())
        owner.waiters.append(waiter)
        self._start_waiting()
        try:
            await waiter.started
        except asyncio.CancelledError:
            if waiter.started.done() and not waiter.started.cancelled():
                self._release(owner, waiter)
            else:
                owner.waiters.remove(waiter)
            raise
        call = asyncio.ensure_future(self._pool.run(fn, *args))
        self._calls.add(call)
        call.add_done_callback(lambda done: self._on_done(done, owner, waiter))
        try:
            return await asyncio.shield(call)
        finally:
            del call  # which has the error that it raised, and with it this frame

    def _start_waiting(self) -> None:
        while self.running < self._workers:
            found: _Client | None = None
            for client in self._clients.values():
                if client.is_running or not client.waiters:
                    continue
                if client.waiters[0].is_long and self.running_long >= self._workers - 1:
                    continue
                if found is None or client.given_us < found.given_us:
                    found = client
            if found is None:
                return
            waiter = found.waiters.popleft()
            self._given_us = max(self._given_us, found.given_us)
            found.given_us = max(found.given_us, self._given_us) + waiter.cost_us
            found.is_running = True
            self.running += 1
            self.running_long += waiter.is_long
            if waiter.memory_bytes and self._count_memory is not None:
                self._count_memory(waiter.memory_bytes)
            self.pieces += 1
            waiter.started.set_result(None)

    def _on_done(self, call: asyncio.Future[Any], owner: _Client, waiter: _Waiter) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # its caller may be gone
        self._release(owner, waiter)

    def _release(self, owner: _Client, waiter: _Waiter) -> None:
        owner.is_running = False
        self.running -= 1
        self.running_long -= waiter.is_long
        if waiter.memory_bytes and self._count_memory is not None:
            self._count_memory(-waiter.memory_bytes)
        assert self.running >= self.running_long >= 0, (self.running, self.running_long)
        self._start_waiting()
        if not self.running or len(self._clients) > _MAX_REMEMBERED:
            self._forget_idle()

    def _forget_idle(self) -> None:
        """Forget clients that wait for nothing and were given no more than others; all of them if no work
        runs.
        """
        self._clients = {
            key: client
            for key, client in self._clients.items()
            if client.is_running or client.waiters or (self.running and client.given_us > self._given_us)
        }
