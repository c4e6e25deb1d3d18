"""Which partition a record goes to, when its sender does not say.

With a key: Java's murmur2 of it, so that all of Kafka's clients agree where a key lives. Without: one
partition is kept for about a batch's worth of bytes, then another is drawn; partitions of slow brokers are
drawn less often.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

from ottla.runtime.random import Random

__all__ = ["Partitioner", "RoundRobin", "StickyPartitioner", "partitioner_of"]


class Partitioner(Protocol):
    """Chooses by topic, serialized key and value, and the number of partitions."""

    def __call__(self, topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int: ...


class RoundRobin:
    """One after the other, whatever the key."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def __call__(self, topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int:
        turn = self._next.get(topic, 0)
        self._next[topic] = turn + 1
        return turn % partitions


def partitioner_of(chosen: Partitioner | str | None) -> Partitioner | None:
    """None is Kafka's own way: by key, and sticky without one. "round_robin" or any callable instead."""
    if chosen == "round_robin":
        return RoundRobin()
    if chosen is None or callable(chosen):
        return chosen
    raise ValueError(f"partitioner={chosen!r}: allowed are round_robin, a callable, or None for Kafka's own")


class StickyPartitioner:
    """For one topic's records without a key: stays with a partition until `batch_size` bytes went to it."""

    __slots__ = ("_batch_size", "_random", "current", "left")

    def __init__(self, random: Random, batch_size: int) -> None:
        self._random = random
        self._batch_size = max(batch_size, 1)
        # Bytes that may still go to the current partition; at zero it is time to choose again.
        self.left = 0
        self.current = -1

    def choose(self, partitions: int, queued: Sequence[tuple[int, int]]) -> int:
        """Draws a partition. `queued` lists the partitions that have a leader with the batches waiting for
        each: the fewer wait, the likelier the draw. Without any leader known, all are alike.
        """
        self.left = self._batch_size
        if not queued:
            self.current = self._random.randrange(0, partitions)
        else:
            most = max(waiting for _, waiting in queued)
            limits = list(accumulate(most - waiting + 1 for _, waiting in queued))
            self.current = queued[bisect_right(limits, self._random.randrange(0, limits[-1]))][0]
        return self.current
