"""Write the markers of a decided transaction to all of its partitions.

The `PendingTransactionMarkers` is given the markers that the coordinator sends once a decision is
committed. A `MarkerWriter`, which knows the leaders of partitions, writes them; the manager tries again, with
a growing backoff, until each partition has confirmed its marker or has nothing left to end: it was deleted,
or the producer has a higher epoch in it, as after an operator has aborted the transaction there. Then it
calls `on_written`, once.

If another coordinator has written to a partition, that one will end the transaction; and when this broker no
longer leads the coordinator's partition, the manager drops its markers. A decision is never lost by that: the
coordinator that loads the partition sends the markers again.
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
        """Write the marker to these partitions; the result for each, at once or later."""

    def exists(self, partition: TopicPartition) -> bool:
        """Whether the cluster has this partition at all."""


class _CoordinatorFencedError(Exception):
    pass


class PendingTransactionMarkers:
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

    def add_markers(self, index: int, marker: WriteMarkers) -> None:
        key = index, marker.transactional_id
        before = self._tasks.pop(key, None)
        if before is not None:
            before.cancel()
        remaining: frozenset[TopicPartition] = marker.partitions
        pending: Awaitable[MarkerResults] | None = None
        try:
            results = self._writer.write(marker, remaining) if remaining else {}
            if isinstance(results, Mapping):
                remaining = self._unconfirmed_partitions(marker, results)
                if not remaining:
                    self._on_written(index, marker)
                    return
            else:
                pending = results
        except _CoordinatorFencedError:
            return
        except Exception:
            self._log_error(marker)
        task = asyncio.get_running_loop().create_task(self._persist(index, marker, remaining, pending))
        self._tasks[key] = task
        task.add_done_callback(lambda done: self._on_markers_finished(key, done))

    def remove_markers(self, index: int) -> None:
        """Drop the markers of a coordinator's partition that another broker leads: they are its task now."""
        for key in [key for key in self._tasks if key[0] == index]:
            self._tasks.pop(key).cancel()

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_markers_finished(self, key: tuple[int, str], task: asyncio.Task[None]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("the markers of %r could not be written", key[1], exc_info=error)

    async def _persist(
        self,
        index: int,
        marker: WriteMarkers,
        remaining: frozenset[TopicPartition],
        pending: Awaitable[MarkerResults] | None,
    ) -> None:
        config = self._config()
        backoff_ms = config.marker_retry_backoff_ms
        while True:
            try:
                if pending is not None:
                    remaining = self._unconfirmed_partitions(marker, await pending)
                    pending = None
                if not remaining:
                    break
                await asyncio.sleep(backoff_ms / 1000)
                backoff_ms = min(2 * backoff_ms, config.marker_retry_backoff_max_ms)
                results = self._writer.write(marker, remaining)
                if isinstance(results, Mapping):
                    remaining = self._unconfirmed_partitions(marker, results)
                else:
                    pending = results
            except _CoordinatorFencedError:
                return
            except Exception:
                # A transaction without its markers would stay open for good.
                pending = None
                self._log_error(marker)
        self._on_written(index, marker)

    def _log_error(self, marker: WriteMarkers) -> None:
        _log.exception("the markers of %r could not be written; they will be again", marker.transactional_id)

    def _unconfirmed_partitions(
        self, marker: WriteMarkers, results: MarkerResults
    ) -> frozenset[TopicPartition]:
        """The partitions that still lack their marker."""
        left = set()
        for partition, code in results.items():
            if code is ErrorCode.NONE:
                continue
            if code is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                _log.info(
                    "%s knows a newer coordinator of %r, which will end the transaction",
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
                _log.info(
                    "%s is deleted, and the transaction of %r in it", partition, marker.transactional_id
                )
            else:
                _log.debug("the marker of %r in %s: %s", marker.transactional_id, partition, code.name)
                left.add(partition)
        return frozenset(left)
