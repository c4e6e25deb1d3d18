"""The two measures of quotas: a rate over sample windows, and a bucket of tokens, both as in Kafka.

Time is passed in, in milliseconds of a clock that never goes back.
"""

from __future__ import annotations

import math
from typing import Final

MAX_THROTTLE_MS: Final = 2**31 - 1


class QuotaWindows:
    """How many windows a quota is measured over, and how long each is."""

    __slots__ = ("samples", "window_ms")

    def __init__(self, samples: int = 11, window_seconds: int = 1) -> None:
        self.samples: Final = samples
        self.window_ms: Final = window_seconds * 1000


class Rate:
    """What was recorded per second: Kafka's `Rate` of a `WindowedSum`.

    The rate is taken over all windows that had something recorded within the time of `samples` windows, and
    over at least `samples - 1` whole windows, so that a client may take much at once after a rest. Invariant:
    `_older` is ordered by time and has at most `samples` windows.
    """

    __slots__ = ("_last_ms", "_older", "_older_sum", "_start_ms", "_sum", "_windows")

    def __init__(self, windows: QuotaWindows, now_ms: int) -> None:
        self._windows: Final = windows
        # The newest window: when it began, when something was last recorded in it, and how much in all.
        self._start_ms = self._last_ms = now_ms
        self._sum = 0.0
        self._older: list[tuple[int, int, float]] = []
        self._older_sum = 0.0

    def record(self, value: float, now_ms: int) -> None:
        """Count a value; below 0, take back what was counted."""
        if now_ms - self._start_ms >= self._windows.window_ms:
            self._older.append((self._start_ms, self._last_ms, self._sum))
            self._older_sum += self._sum
            if len(self._older) > self._windows.samples:
                self._older_sum -= self._older.pop(0)[2]
            self._start_ms = now_ms
            self._sum = 0.0
        self._sum += value
        self._last_ms = now_ms

    def record_and_throttle_ms(self, value: float, limit: float, now_ms: int) -> int:
        """Count a value, and return what `throttle_ms` says then."""
        windows = self._windows
        if now_ms - self._start_ms < windows.window_ms:
            self._sum += value
            self._last_ms = now_ms
        else:
            self.record(value, now_ms)
        if (self._older_sum + self._sum) * 1000 <= limit * (windows.samples - 1) * windows.window_ms:
            return 0  # Whatever has expired, so much is within the limit.
        return self.throttle_ms(limit, now_ms)

    def throttle_ms(self, limit: float, now_ms: int) -> int:
        """For how long nothing may be recorded until the rate is down to the limit; 0 if it is not above."""
        elapsed_ms = self._elapsed_ms(now_ms)
        excess = (self._older_sum + self._sum) * 1000 / elapsed_ms - limit
        if excess <= 0:
            return 0
        return min(math.floor(excess / limit * elapsed_ms + 0.5), MAX_THROTTLE_MS)

    def _elapsed_ms(self, now_ms: int) -> int:
        """Forget what is too old, and return the time that the rest is measured over."""
        samples, window_ms = self._windows.samples, self._windows.window_ms
        expired = now_ms - samples * window_ms
        older = self._older
        while older and older[0][1] <= expired:
            self._older_sum -= older.pop(0)[2]
        if not older:
            self._older_sum = 0.0  # no error of rounding stays
            if self._last_ms <= expired:
                self._start_ms = self._last_ms = now_ms
                self._sum = 0.0
        elapsed_ms = now_ms - (older[0][0] if older else self._start_ms)
        missing = samples - 1 - elapsed_ms // window_ms
        if missing > 0:
            elapsed_ms += missing * window_ms
        return elapsed_ms or 1


class TokenBucket:
    """Tokens that come back at the rate of the limit, and of which a burst may be taken at once: as many as
    come in all windows. The last one to take may take more than there are; then nothing is left for a while.
    """

    __slots__ = ("_tokens", "_updated_ms", "_windows")

    def __init__(self, windows: QuotaWindows, limit: float, now_ms: int) -> None:
        self._windows: Final = windows
        self._tokens = self._burst(limit)
        self._updated_ms = now_ms

    def _burst(self, limit: float) -> float:
        return self._windows.samples * self._windows.window_ms / 1000 * limit

    def _refill(self, limit: float, now_ms: int) -> None:
        more = limit * (now_ms - self._updated_ms) / 1000
        self._tokens = min(self._burst(limit), self._tokens + more)
        self._updated_ms = now_ms

    def take(self, count: float, limit: float, now_ms: int) -> None:
        self._refill(limit, now_ms)
        self._tokens -= count

    def throttle_ms(self, limit: float, now_ms: int) -> int:
        """How long it takes until no token is owed any more."""
        self._refill(limit, now_ms)
        if self._tokens >= 0:
            return 0
        return min(math.floor(-self._tokens / limit * 1000 + 0.5), MAX_THROTTLE_MS)
