"""Replication throttles: how fast replicas that are far behind may catch up.

A topic names its throttled replicas (`leader.` and `follower.replication.throttled.replicas`), a broker the
bytes per second for all of them together (`...throttled.rate`). Replicas that have caught up are never held
back: a throttle that shrinks the in-sync set would do more harm than any transfer. What they get counts too,
so that all the traffic of throttled replicas stays within the rate.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from typing import Final

from ottla.runtime.clock import Clock

UNLIMITED: Final = 2**63 - 1
_ALL: Final = "*"
_REMEMBERED: Final = 256
_NS_PER_MS: Final = 1_000_000


@lru_cache(_REMEMBERED)
def _indexes(replicas: tuple[str, ...], broker: int) -> frozenset[int] | None:
    """The partitions of a topic that are throttled on a broker; None for all."""
    if _ALL in replicas:
        return None
    pairs = (each.partition(":") for each in replicas)
    return frozenset(int(index) for index, _, on in pairs if on.isdecimal() and int(on) == broker)


def is_throttled(replicas: tuple[str, ...], index: int, broker: int) -> bool:
    """Whether a topic's list of throttled replicas, as `0:1,1:2` or `*`, names a partition on a broker."""
    if not replicas:
        return False
    found = _indexes(replicas, broker)
    return found is None or index in found


class ReplicationQuotaManager:
    """Bytes per second over a sliding window, by `replication.quota.window.num` and `.size.seconds`: Kafka's
    `SimpleRate`. Samples count while something was recorded in them within the time of all windows.
    """

    __slots__ = ("_clock", "_samples", "_total", "_window_ms", "_windows", "limit")

    def __init__(
        self, clock: Clock, limit: int = UNLIMITED, *, samples: int = 11, window_ms: int = 1_000
    ) -> None:
        self.limit = limit
        self._clock: Final = clock
        self._samples: Final = samples
        self._window_ms: Final = window_ms
        # When each began, when something was last recorded in it, and the bytes; the oldest first.
        self._windows: deque[list[int]] = deque()
        self._total = 0

    def record(self, size: int) -> None:
        if self.limit == UNLIMITED:
            return
        now_ms = self._now_ms()
        self._forget(now_ms)
        if not self._windows or now_ms - self._windows[-1][0] >= self._window_ms:
            self._windows.append([now_ms, now_ms, 0])
        self._windows[-1][1] = now_ms
        self._windows[-1][2] += size
        self._total += size

    @property
    def rate(self) -> float:
        """Bytes per second over the window."""
        now_ms = self._now_ms()
        self._forget(now_ms)
        if not self._windows:
            return 0.0
        return self._total * 1000 / max(now_ms - self._windows[0][0], self._window_ms)

    @property
    def is_exceeded(self) -> bool:
        return self.limit != UNLIMITED and self.rate > self.limit

    def _forget(self, now_ms: int) -> None:
        while self._windows and now_ms - self._windows[0][1] >= self._samples * self._window_ms:
            self._total -= self._windows.popleft()[2]

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // _NS_PER_MS
