"""Exponential backoff with jitter, so that clients that failed together do not retry together."""

from __future__ import annotations

from ottla.runtime.random import Random

JITTER = 0.2


class ExponentialBackoff:
    """A pause that doubles with each failure from `first_ms` to `max_ms`, within a fifth; `reset` after a
    success.
    """

    __slots__ = ("_failures", "_first_ms", "_max_ms", "_random")

    def __init__(self, random: Random, first_ms: int, max_ms: int) -> None:
        self._random = random
        self._first_ms = min(first_ms, max_ms)
        self._max_ms = max_ms
        self._failures = 0

    def next_ms(self) -> float:
        """Count a failure and return the pause before the next attempt."""
        base = min(self._first_ms << min(self._failures, 20), self._max_ms)
        self._failures += 1
        return min(base * (1 - JITTER + 2 * JITTER * self._random.random()), self._max_ms)

    def reset(self) -> None:
        self._failures = 0
