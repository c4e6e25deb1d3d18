"""Time enters the program here and nowhere else.

Two readings are kept apart because they mean different things: `wall_ms` is what a record's timestamp or a
retention decision is about and may jump, `monotonic_ns` is for durations and never goes back.
"""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


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

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()
