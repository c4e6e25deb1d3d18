"""Limit the I/O of the cleaner: a number of bytes per second, over all its workers together."""

from __future__ import annotations

from ottla.runtime.clock import Clock

_CREDIT_NS = 300_000_000


class Throttler:
    """Computes how long to wait after moving bytes, so that the average rate stays within the limit.

    Bytes are accounted for after they were moved: they postpone the time at which the next may be moved. Idle
    time counts as credit, but no more than the last 300 ms of it.
    """

    __slots__ = ("_bytes_per_second", "_clock", "_free_at_ns")

    def __init__(self, clock: Clock, bytes_per_second: float) -> None:
        self._clock = clock
        self._free_at_ns = clock.monotonic_ns()
        self.set_rate(bytes_per_second)

    def set_rate(self, bytes_per_second: float) -> None:
        if not bytes_per_second > 0:
            raise ValueError(f"log.cleaner.io.max.bytes.per.second must be above 0, got {bytes_per_second}")
        self._bytes_per_second = bytes_per_second

    def delay_after(self, size: int) -> float:
        """Record that `size` bytes were moved; return the seconds to wait before the next."""
        now_ns = self._clock.monotonic_ns()
        start_ns = max(self._free_at_ns, now_ns - _CREDIT_NS)
        self._free_at_ns = start_ns + int(size * 1e9 / self._bytes_per_second)
        return max(0.0, (self._free_at_ns - now_ns) / 1e9)
