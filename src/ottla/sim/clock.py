"""A clock that stands still until it is told to move."""

from __future__ import annotations

__all__ = ["SimClock"]


class SimClock:
    """Both readings move together with `advance_ms`; `set_wall_ms` moves only the wall clock, as an
    operator or NTP would, in either direction. The monotonic reading never goes back.
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
