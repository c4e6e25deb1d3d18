"""Flushes of single logs that requests ask for, run in the background.

A flush is completed even if the request that asked for it ends first, as other requests may wait for the same
records.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine
from typing import Any, Final

from ottla.log.log_manager import LogManager
from ottla.log.unified_log import UnifiedLog
from ottla.replication.partition import Partition
from ottla.runtime.clock import Clock

_log = logging.getLogger(__name__)


class LogFlushScheduler:
    def __init__(self, logs: LogManager, clock: Clock) -> None:
        self._logs: Final = logs
        self._clock: Final = clock
        self._tasks: dict[asyncio.Task[None], None] = {}

    def flush_closed_segments(self, log: UnifiedLog) -> None:
        """Make the records of closed segments durable, in the background."""
        self._begin(self._logs.flush(log, log.active_segment.base_offset))

    def flush(self, partition: Partition) -> Awaitable[None]:
        """Make the log of a partition durable, and commit what had to wait for that."""
        return asyncio.shield(self._begin(self._flush(partition)))

    async def close(self) -> None:
        """Return once the flushes under way have ended."""
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _flush(self, partition: Partition) -> None:
        await self._logs.flush(partition.log)
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
