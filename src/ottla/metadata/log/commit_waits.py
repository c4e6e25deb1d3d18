"""Those who wait until what they appended is committed, in the order of the log.

They are woken once everything below their offset has been committed and published, or told that nobody knows:
their epoch is over, and the next leader may have the records or not. Invariant: everybody is told once.
"""

from __future__ import annotations

import asyncio
import heapq

from ottla.protocol.errors import KafkaError


class CommitWaits:
    __slots__ = ("_count", "_heap")

    def __init__(self) -> None:
        # (end offset, number, epoch, future), the number to keep the order of equals
        self._heap: list[tuple[int, int, int, asyncio.Future[None]]] = []
        self._count = 0

    def add(self, end_offset: int, epoch: int) -> asyncio.Future[None]:
        """Wait for everything below ``end_offset``, which was appended in ``epoch``."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._heap, (end_offset, self._count, epoch, future))
        return future

    def reached(self, offset: int) -> None:
        """Everything below the offset is committed and published."""
        while self._heap and self._heap[0][0] <= offset:
            future = heapq.heappop(self._heap)[3]
            if not future.done():
                future.set_result(None)

    def give_up(self, error: KafkaError, epoch: int | None = None) -> None:
        """Nobody knows what becomes of what was appended up to ``epoch``; of anything, if it is None."""
        waiting = self._heap
        self._heap = [each for each in waiting if epoch is not None and each[2] > epoch]
        heapq.heapify(self._heap)
        for _, _, waited, future in waiting:
            if (epoch is None or waited <= epoch) and not future.done():
                future.set_exception(error)
                future.exception()  # seen, also where nobody waits any more
