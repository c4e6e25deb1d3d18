"""What the requests to one address cost: counted on each connection as requests go out and responses come in.

Averages and maxima are over the last thirty to sixty seconds, as Kafka's clients show them: two windows, of
which the older one ends when the newer one is full.
"""

from __future__ import annotations

import math
from typing import Final

WINDOW_S: Final = 30.0


class AverageAndMax:
    """The average and the largest of the values of the last two windows. `now` is a loop's time."""

    __slots__ = ("_before_count", "_before_max", "_before_total", "_count", "_max", "_started", "_total")

    def __init__(self) -> None:
        self._started = -math.inf
        self._count = self._before_count = 0
        self._total = self._before_total = 0.0
        self._max = self._before_max = -math.inf

    def record(self, value: float, now: float) -> None:
        if now - self._started >= WINDOW_S:
            self._roll(now)
        self._count += 1
        self._total += value
        if value > self._max:
            self._max = value

    def _roll(self, now: float) -> None:
        """Begin a new window; the last one stays as the older one, unless it is long over."""
        is_recent = now - self._started < 2 * WINDOW_S
        self._before_count = self._count if is_recent else 0
        self._before_total = self._total if is_recent else 0.0
        self._before_max = self._max if is_recent else -math.inf
        self._started, self._count, self._total, self._max = now, 0, 0.0, -math.inf

    def read(self, now: float) -> tuple[float, float]:
        """Return the average and the maximum; NaN for both while there are no values."""
        if now - self._started >= WINDOW_S:
            self._roll(now)
        count = self._count + self._before_count
        if not count:
            return math.nan, math.nan
        return (self._total + self._before_total) / count, max(self._max, self._before_max)


class ConnectionStatistics:
    """Counters of the connections to one address; they only grow."""

    __slots__ = (
        "connections_closed",
        "connections_made",
        "latency_ms",
        "received_bytes",
        "requests",
        "responses",
        "sent_bytes",
    )

    def __init__(self) -> None:
        self.connections_made = 0
        self.connections_closed = 0
        self.requests = 0
        self.responses = 0
        self.sent_bytes = 0
        self.received_bytes = 0
        self.latency_ms: Final = AverageAndMax()
