"""Clocks of simulated machines: one that a test moves, and one that follows the time of a loop."""

from __future__ import annotations

from collections.abc import Callable


class SimClock:
    """A clock that only moves when a test moves it.

    `advance_ms` moves both readings; `set_wall_ms` moves only the wall clock, in either direction, as an
    operator or NTP would. The monotonic reading never goes back.
    """

    __slots__ = ("_monotonic_ns", "_wall_ns")

    def __init__(self, wall_ms: int = 1_700_000_000_000, *, monotonic_ns: int = 0) -> None:
        self._wall_ns = wall_ms * 1_000_000
        self._monotonic_ns = monotonic_ns

    def wall_ms(self) -> int:
        return self._wall_ns // 1_000_000

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def advance_ms(self, ms: int) -> None:
        self.advance_ns(ms * 1_000_000)

    def advance_ns(self, ns: int) -> None:
        if ns < 0:
            raise ValueError(f"time passes forwards, got {ns} ns; set_wall_ms moves the wall clock back")
        self._wall_ns += ns
        self._monotonic_ns += ns

    def set_wall_ms(self, wall_ms: int) -> None:
        self._wall_ns = wall_ms * 1_000_000


class LoopClock:
    """The clock of one machine on a loop with virtual time.

    It may run fast or slow, and its wall clock may jump. The monotonic reading never goes back, also when
    the rate changes.
    """

    __slots__ = ("_now_ns", "_offset_ns", "_rate", "_wall_offset_ns")

    def __init__(
        self, now_ns: Callable[[], int], *, wall_ms: int = 1_700_000_000_000, rate: float = 1.0
    ) -> None:
        self._now_ns = now_ns
        self._wall_offset_ns = wall_ms * 1_000_000
        self._offset_ns = 0
        self._rate = rate

    def wall_ms(self) -> int:
        return (self._wall_offset_ns + self.monotonic_ns()) // 1_000_000

    def monotonic_ns(self) -> int:
        return self._offset_ns + int(self._now_ns() * self._rate)

    def jump_ms(self, ms: int) -> None:
        self._wall_offset_ns += ms * 1_000_000

    @property
    def rate(self) -> float:
        return self._rate

    @rate.setter
    def rate(self, rate: float) -> None:
        """Change the rate from now on; neither reading jumps."""
        before = self.monotonic_ns()
        self._rate = rate
        self._offset_ns = before - int(self._now_ns() * rate)
