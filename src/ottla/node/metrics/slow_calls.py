"""Calls for a scrape that may block, as on a disk that hangs: the other metrics come all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar

from ottla.runtime.clock import Clock
from ottla.runtime.pool import Pool

T = TypeVar("T")

_SECONDS: Final = 1.0
# A call that has not ended by then is given up, and another one may begin.
_GIVEN_UP_NS: Final = 60_000_000_000


class SlowCall:
    """A call that runs in the pool, never twice at a time. A scrape waits for it for a bounded time, so a
    disk that hangs takes one thread a minute at most.
    """

    __slots__ = ("_began_ns", "_clock", "_pool", "_seconds")

    def __init__(self, pool: Pool, clock: Clock, seconds: float = _SECONDS) -> None:
        self._pool: Final = pool
        self._clock: Final = clock
        self._seconds: Final = seconds
        # When the call began that has not ended.
        self._began_ns: int | None = None

    async def run(self, fn: Callable[..., T], *args: Any) -> T | None:
        """What the call returns; None if it fails, takes too long, or the one before has not ended."""
        now_ns = self._clock.monotonic_ns()
        if self._began_ns is not None and now_ns - self._began_ns < _GIVEN_UP_NS:
            return None
        self._began_ns = now_ns
        try:
            async with asyncio.timeout(self._seconds):
                return await self._pool.run(self._call, fn, *args)
        except (OSError, TimeoutError):
            return None

    def _call(self, fn: Callable[..., T], *args: Any) -> T:
        try:
            return fn(*args)
        finally:
            self._began_ns = None
