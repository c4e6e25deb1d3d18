"""Flushes of single logs that requests ask for, run in the background.

A flush is completed even if the request that asked for it ends first, as other requests may wait for the same
records. One that lacks room or file handles is tried again until it succeeds, as no later append may come;
its request has the error by then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine
from typing import Any, Final

from ottla.log.log_manager import LogManager
from ottla.log.unified_log import UnifiedLog
from ottla.protocol.errors import KafkaError
from ottla.replication.partition import Partition
from ottla.runtime.clock import Clock

_log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 0.5


class LogFlushScheduler:
    def __init__(self, logs: LogManager, clock: Clock) -> None:
        self._logs: Final = logs
        self._clock: Final = clock
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._retries: dict[Partition, asyncio.Task[None]] = {}
        self._in_background: dict[Partition, asyncio.Task[None]] = {}

    def flush_closed_segments(self, log: UnifiedLog) -> None:
        """Make the records of closed segments durable, in the background."""
        self._begin(self._logs.flush(log, log.active_segment.base_offset))

    def flush(self, partition: Partition) -> Awaitable[None]:
        """Make the log of a partition durable, and commit what had to wait for that."""
        return asyncio.shield(self._begin(self._flush(partition)))

    def flush_in_background(self, partition: Partition) -> None:
        """Flush the log of a partition that this broker leads as often as `flush.messages` asks for it."""
        if partition not in self._in_background:
            self._in_background[partition] = self._begin(self._flush_while_due(partition))

    async def _flush_while_due(self, partition: Partition) -> None:
        try:
            # A flush that was planned before an append does not cover it.
            while partition.is_leader and partition.log.committable_offset < partition.log.log_end_offset:
                flushed = partition.log.recovery_point
                await self._flush(partition)
                if partition.log.recovery_point == flushed:
                    self.retry(partition)  # the log is being truncated
                    return
        finally:
            # In the same turn as the last look, or the flush of an append right after it would be left out.
            self._in_background.pop(partition, None)

    async def close(self) -> None:
        """Return once the flushes under way have ended."""
        for retry in self._retries.values():
            retry.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def retry(self, partition: Partition) -> None:
        """Flush the log of a partition once there is room and a file handle for it."""
        if partition not in self._retries:
            task = self._retries[partition] = self._begin(self._retry(partition))
            task.add_done_callback(lambda _: self._retries.pop(partition, None))

    async def _retry(self, partition: Partition) -> None:
        log = partition.log
        while partition.is_leader and log.directory.is_online and not log.is_closed:
            await asyncio.sleep(_RETRY_SECONDS)
            try:
                await self._logs.flush(log)
            except KafkaError:
                continue
            partition.on_flush(self._clock.wall_ms())
            return

    async def _flush(self, partition: Partition) -> None:
        try:
            await self._logs.flush(partition.log)
        except KafkaError:
            self.retry(partition)
            raise
        partition.on_flush(self._clock.wall_ms())

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._on_flush_done)
        return task

    def _on_flush_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("a log could not be flushed: %s", error)
