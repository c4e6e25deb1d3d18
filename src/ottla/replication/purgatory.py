"""Where requests wait for partitions to move on: acks=all for the high watermark, fetches for bytes.

A waiter names the partitions it watches and a condition; the condition is looked at again when one of them
moved, at most once per turn of the event loop however often they moved, and the waiter leaves when it holds
or its time is up. Invariant: nobody stays longer than their timeout, and a partition that nobody watches
costs one look-up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable
from typing import Final

DEFAULT_MAX_WAITERS: Final = 100_000


class _Waiter:
    __slots__ = ("condition", "future", "keys")

    def __init__(
        self, keys: tuple[Hashable, ...], condition: Callable[[], bool], future: asyncio.Future[bool]
    ) -> None:
        self.keys = keys
        self.condition = condition
        self.future = future


class DelayedOperationPurgatory:
    def __init__(self, max_waiters: int = DEFAULT_MAX_WAITERS) -> None:
        self._max_waiters: Final = max_waiters
        self._watchers: dict[Hashable, dict[_Waiter, None]] = {}  # in the order of arrival
        self._moved: dict[_Waiter, None] = {}  # whose condition is to be looked at in this turn
        self._drain_scheduled = False
        self._waiting = 0

    def __len__(self) -> int:
        """How many are waiting."""
        return self._waiting

    async def wait(self, keys: Iterable[Hashable], condition: Callable[[], bool], timeout_ms: float) -> bool:
        """Wait until the condition holds; False if the time was up first, or if too many wait already.

        What the condition raises is raised here.
        """
        if condition():
            return True
        if timeout_ms <= 0 or self._waiting >= self._max_waiters:
            return False
        loop = asyncio.get_running_loop()
        waiter = _Waiter(tuple(dict.fromkeys(keys)), condition, loop.create_future())
        timer = loop.call_later(timeout_ms / 1000, _time_up, waiter.future)
        for key in waiter.keys:
            self._watchers.setdefault(key, {})[waiter] = None
        self._waiting += 1
        try:
            return await waiter.future
        finally:
            timer.cancel()
            self._leave(waiter)

    def _leave(self, waiter: _Waiter) -> None:
        self._waiting -= 1
        self._moved.pop(waiter, None)
        for key in waiter.keys:
            watchers = self._watchers[key]
            del watchers[waiter]
            if not watchers:
                del self._watchers[key]

    def moved(self, key: Hashable) -> None:
        """Something that the watchers of ``key`` may wait for has happened."""
        watchers = self._watchers.get(key)
        if watchers is None:
            return
        self._moved.update(watchers)
        if not self._drain_scheduled:
            self._drain_scheduled = True
            asyncio.get_running_loop().call_soon(self._drain)

    def _drain(self) -> None:
        self._drain_scheduled = False
        moved, self._moved = self._moved, {}
        for waiter in moved:
            if waiter.future.done():
                continue
            try:
                holds = waiter.condition()
            except Exception as error:
                waiter.future.set_exception(error)
            else:
                if holds:
                    waiter.future.set_result(True)


def _time_up(future: asyncio.Future[bool]) -> None:
    if not future.done():
        future.set_result(False)
