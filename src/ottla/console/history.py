"""What the console remembers of the last minutes, for its charts: bounded, and only while it is looked at.

A history records from the first look on, for a while after the last one. Its samples cost the cluster
something, so the pause between two of them grows with the time that one takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from ottla.protocol.errors import KafkaError
from ottla.runtime.clock import Clock

_log = logging.getLogger(__name__)

# A sample takes at most this part of the time.
_DUTY: Final = 0.02
_MAX_PAUSE_SECONDS: Final = 60.0
_FIRST_PAUSE_SECONDS: Final = 1.0

Sample = dict[str, Any]


class SampledHistory:
    """Samples at most every `interval_seconds`, the last `size` of them. A sample that fails is left out."""

    def __init__(
        self,
        clock: Clock,
        take: Callable[[], Awaitable[Sample | None]],
        *,
        interval_seconds: float,
        size: int,
        keep_seconds: float,
    ) -> None:
        self._clock: Final = clock
        self._take: Final = take
        self._interval_seconds: Final = interval_seconds
        self._keep_ns: Final = int(keep_seconds * 1e9)
        self._looked_at_ns = 0
        self._task: asyncio.Task[None] | None = None
        self._arrived: Final = asyncio.Condition()
        # How many there were in all: readers know by it which ones they have seen.
        self._count = 0
        self.samples: Final[deque[Sample]] = deque(maxlen=size)

    def look(self) -> None:
        """Record, or go on recording."""
        self._looked_at_ns = self._clock.monotonic_ns()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._record(), name="history of the console")

    async def follow(self) -> AsyncIterator[Sample]:
        """All samples that there are, and each further one. Ends when the recording does."""
        self.look()
        seen = self._count - len(self.samples)
        while True:
            for sample in list(self.samples)[max(0, len(self.samples) - (self._count - seen)) :]:
                yield sample
            seen = self._count
            # Looked at also while no sample comes: a cluster that was away for long comes back.
            while self._count == seen:
                self.look()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._keep_ns / 2e9), self._arrived:
                        if self._count == seen:
                            await self._arrived.wait()
                if self._task is None:
                    return

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        async with self._arrived:
            self._arrived.notify_all()

    async def _record(self) -> None:
        while self._clock.monotonic_ns() - self._looked_at_ns < self._keep_ns:
            began = self._clock.monotonic_ns()
            try:
                sample = await self._take()
            except KafkaError as error:
                _log.debug("no sample: %s", error)
                sample = None
            except Exception:
                _log.exception("a sample of the console's charts failed")
                sample = None
            if sample is not None:
                async with self._arrived:
                    self.samples.append(sample)
                    self._count += 1
                    self._arrived.notify_all()
            took = (self._clock.monotonic_ns() - began) / 1e9
            pause = min(max(self._interval_seconds, took / _DUTY), _MAX_PAUSE_SECONDS)
            # The first look at a rate is no sample, and the second one should come soon.
            await asyncio.sleep(pause if self.samples else min(pause, _FIRST_PAUSE_SECONDS))


class SampledHistories:
    """Histories by name, of which the one that was looked at longest ago goes when there are too many."""

    def __init__(self, make: Callable[[str], SampledHistory], most: int) -> None:
        self._make: Final = make
        self._most: Final = most
        self._histories: Final[OrderedDict[str, SampledHistory]] = OrderedDict()

    async def of(self, name: str) -> SampledHistory:
        found = self._histories.get(name)
        if found is None:
            found = self._histories[name] = self._make(name)
            while len(self._histories) > self._most:
                _, former = self._histories.popitem(last=False)
                await former.close()
        self._histories.move_to_end(name)
        return found

    async def close(self) -> None:
        for history in self._histories.values():
            await history.close()
        self._histories.clear()
