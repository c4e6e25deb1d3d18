"""What a node does every so often: each chore runs alone, again and again, until the node stops.

A chore that fails is logged and tried again the next time. Intervals may change while the node runs, so they
are asked for before each pause.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

log = logging.getLogger(__name__)

# A timer further out than this is as good as none; loops take no timers of centuries.
_MAX_PAUSE_MS: Final = 7 * 24 * 60 * 60 * 1000
_MIN_PAUSE_MS: Final = 1


class Chores:
    __slots__ = ("_tasks",)

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def every(
        self,
        interval_ms: Callable[[], int],
        work: Callable[[], Awaitable[None]],
        name: str,
        *,
        first_ms: int | None = None,
    ) -> None:
        """Do the work each time the interval has passed; `first_ms` is the pause before the first time."""
        self._tasks.append(asyncio.create_task(_repeat(interval_ms, work, name, first_ms), name=name))

    def run(self, work: Callable[[], Awaitable[None]], name: str) -> None:
        """Run something that goes on by itself until it is cancelled."""
        self._tasks.append(asyncio.create_task(_guarded(work, name), name=name))

    async def stop(self) -> None:
        """Cancel every chore and wait until it has ended."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _repeat(
    interval_ms: Callable[[], int], work: Callable[[], Awaitable[None]], name: str, first_ms: int | None
) -> None:
    pause = interval_ms() if first_ms is None else first_ms
    while True:
        await asyncio.sleep(min(max(pause, _MIN_PAUSE_MS), _MAX_PAUSE_MS) / 1000)
        try:
            await work()
        except Exception:
            log.exception("%s failed; it will be tried again", name)
        pause = interval_ms()


async def _guarded(work: Callable[[], Awaitable[None]], name: str) -> None:
    try:
        await work()
    except Exception:
        log.exception("%s has ended", name)
