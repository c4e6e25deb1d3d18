"""Deadlines by key: one for each, which can be moved and cancelled, in a heap with lazy deletion.

Invariant: an entry of the heap counts only while its number is the one that its key holds, so moving a
deadline costs a push and never a search. The heap is rebuilt when most of it is stale, which bounds it to a
small multiple of the live deadlines.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

A = TypeVar("A")

_SLACK: Final = 64


class CoordinatorTimer(Generic[A]):
    """`A` is the type of a deadline's action: a function to call, or any value that its owner interprets."""

    __slots__ = ("_count", "_heap", "_live")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Hashable]] = []
        self._live: dict[Hashable, tuple[int, int, A]] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._live

    def schedule(self, key: Hashable, deadline_ms: int, action: A) -> None:
        """Set the deadline of `key`, in place of the one that it had."""
        self._count += 1
        self._live[key] = (deadline_ms, self._count, action)
        if len(self._heap) > 2 * len(self._live) + _SLACK:
            self._heap = [(when, number, key) for key, (when, number, _) in self._live.items()]
            heapq.heapify(self._heap)
        else:
            heapq.heappush(self._heap, (deadline_ms, self._count, key))

    def cancel(self, key: Hashable) -> bool:
        return self._live.pop(key, None) is not None

    def cancel_if(self, condition: Callable[[Hashable], bool]) -> None:
        for key in [key for key in self._live if condition(key)]:
            del self._live[key]

    def deadline_ms(self, key: Hashable) -> int | None:
        entry = self._live.get(key)
        return None if entry is None else entry[0]

    def next_deadline_ms(self) -> int | None:
        heap = self._heap
        while heap:
            when, number, key = heap[0]
            entry = self._live.get(key)
            if entry is not None and entry[1] == number:
                return when
            heapq.heappop(heap)
        return None

    def pop_due(self, tick_ms: int) -> tuple[Hashable, A] | None:
        """Remove the earliest deadline that has passed, if there is one."""
        when = self.next_deadline_ms()
        if when is None or when > tick_ms:
            return None
        key = heapq.heappop(self._heap)[2]
        return key, self._live.pop(key)[2]

    def clear(self) -> None:
        self._heap.clear()
        self._live.clear()
