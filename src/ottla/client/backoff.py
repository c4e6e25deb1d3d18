"""Waiting longer after each failure, up to a bound, with a fifth of jitter so that clients do not march in
step.
"""

from __future__ import annotations

from ottla.runtime.random import Random

__all__ = ["Backoff"]

JITTER = 0.2


class Backoff:
    """`next_ms` grows twofold from `first_ms` to `max_ms`; `reset` starts again after a success."""

    __slots__ = ("_failures", "_first_ms", "_max_ms", "_random")

    def __init__(self, random: Random, first_ms: int, max_ms: int) -> None:
        self._random = random
        self._first_ms = min(first_ms, max_ms)
        self._max_ms = max_ms
        self._failures = 0

    def next_ms(self) -> float:
        base = min(self._first_ms << min(self._failures, 20), self._max_ms)
        self._failures += 1
        return min(base * (1 - JITTER + 2 * JITTER * self._random.random()), self._max_ms)

    def reset(self) -> None:
        self._failures = 0
