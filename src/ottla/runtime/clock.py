"""The clock: the only source of time in the program.

It has two readings: `wall_ms`, for timestamps of records and for retention, may jump; `monotonic_ns`, for
durations and deadlines, never goes back.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch. May jump either way when the machine's clock is set."""
        ...

    def monotonic_ns(self) -> int:
        """Nanoseconds since an arbitrary moment. Never decreases."""
        ...


class SystemClock:
    """The machine's own clocks."""

    __slots__ = ()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    # Read several times for each request: without a call of its own it costs half.
    monotonic_ns = staticmethod(time.monotonic_ns)


def pause_thread(seconds: float) -> None:
    """Block this thread, in a process that has no event loop."""
    time.sleep(seconds)
