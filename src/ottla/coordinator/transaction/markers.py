"""Markers: how a decision reaches every partition of its transaction.

`MarkerDriver` is given what the machines send once a decision is committed. It has the markers written by a
`MarkerWriter`, which knows where partitions are led, and tries again, at growing distances, until each one is
confirmed or has nothing left to end: a partition that was deleted, or in which the producer has a higher
epoch by now, as after an operator has aborted the transaction there. Then it says so, once.

If another coordinator has been at a partition, that one will end the transaction; and when this node no
longer coordinates, the driver forgets what was under way. A decision is never lost by that, as whoever
loads the partition of the coordinator's topic drives the markers again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol, TypeAlias

from ottla.coordinator.transaction.config import TransactionConfig
from ottla.coordinator.transaction.requests import WriteMarkers
from ottla.protocol.errors import ErrorCode
from ottla.protocol.names import TopicPartition

_log = logging.getLogger(__name__)

MarkerResults: TypeAlias = Mapping[TopicPartition, ErrorCode]


class MarkerWriter(Protocol):
    def write(
        self, marker: WriteMarkers, partitions: frozenset[TopicPartition]
    ) -> MarkerResults | Awaitable[MarkerResults]:
        """Write the marker to these partitions; what became of each, at once or later."""

    def exists(self, partition: TopicPartition) -> bool:
        """Whether the cluster has this partition at all."""


class _CoordinatorFencedError(Exception):
    pass


class MarkerDriver:
    """`on_written` is called with the index of the coordinator's partition and the marker."""

    def __init__(
        self,
        writer: MarkerWriter,
        config: Callable[[], TransactionConfig],
        on_written: Callable[[int, WriteMarkers], None],
    ) -> None:
        self._writer: Final = writer
        self._config: Final = config
        self._on_written: Final = on_written
        # One for each transactional id whose markers could not all be written at once.
        self._tasks: dict[tuple[int, str], asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def drive(self, index: int, marker: WriteMarkers) -> None:
        key = index, marker.transactional_id
        before = self._tasks.pop(key, None)
        if before is not None:
            before.cancel()
        remaining: frozenset[TopicPartition] = marker.partitions
        pending: Awaitable[MarkerResults] | None = None
        try:
            results = self._writer.write(marker, remaining) if remaining else {}
            if isinstance(results, Mapping):
                remaining = self._unconfirmed(marker, results)
                if not remaining:
                    self._on_written(index, marker)
                    return
            else:
                pending = results
        except _CoordinatorFencedError:
            return
        task = asyncio.get_running_loop().create_task(self._persist(index, marker, remaining, pending))
        self._tasks[key] = task
        task.add_done_callback(lambda done: self._finished(key, done))

    def resigned(self, index: int) -> None:
        """The coordinator's partition is led elsewhere: the markers are the business of its leader."""
        for key in [key for key in self._tasks if key[0] == index]:
            self._tasks.pop(key).cancel()

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _finished(self, key: tuple[int, str], task: asyncio.Task[None]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("the markers of %r could not be driven", key[1], exc_info=error)

    async def _persist(
        self,
        index: int,
        marker: WriteMarkers,
        remaining: frozenset[TopicPartition],
        pending: Awaitable[MarkerResults] | None,
    ) -> None:
        config = self._config()
        backoff_ms = config.marker_retry_backoff_ms
        try:
            if pending is not None:
                remaining = self._unconfirmed(marker, await pending)
            while remaining:
                await asyncio.sleep(backoff_ms / 1000)
                backoff_ms = min(2 * backoff_ms, config.marker_retry_backoff_max_ms)
                results = self._writer.write(marker, remaining)
                if not isinstance(results, Mapping):
                    results = await results
                remaining = self._unconfirmed(marker, results)
        except _CoordinatorFencedError:
            return
        self._on_written(index, marker)

    def _unconfirmed(self, marker: WriteMarkers, results: MarkerResults) -> frozenset[TopicPartition]:
        """The partitions that still lack their marker."""
        left = set()
        for partition, code in results.items():
            if code is ErrorCode.NONE:
                continue
            if code is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                _log.info(
                    "%s has heard of a newer coordinator of %r, which will end the transaction",
                    partition,
                    marker.transactional_id,
                )
                raise _CoordinatorFencedError
            if code is ErrorCode.INVALID_PRODUCER_EPOCH:
                _log.warning(
                    "%s knows producer %d of %r with a higher epoch than %d: there is no transaction left to "
                    "end there",
                    partition,
                    marker.writer.id,
                    marker.transactional_id,
                    marker.writer.epoch,
                )
            elif not self._writer.exists(partition):
                _log.info("%s is gone, and the transaction of %r in it", partition, marker.transactional_id)
            else:
                _log.debug("the marker of %r in %s: %s", marker.transactional_id, partition, code.name)
                left.add(partition)
        return frozenset(left)
