"""Flushes of logs that requests and partitions ask for, in the background.

A flush is completed even if the request that asked for it ends first, as other requests may wait for the same
records. One that lacks room or file handles is tried again until it succeeds, as no later append may come;
its requests have the error by then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from functools import partial
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
        # The commits under way, and for each partition the last one.
        self._commits: dict[asyncio.Future[None], None] = {}
        self._last_commit: dict[Partition, asyncio.Future[None]] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._retries: dict[Partition, asyncio.Task[None]] = {}

    def flush_closed_segments(self, log: UnifiedLog) -> None:
        """Make the records of closed segments durable, in the background."""
        self._begin(self._logs.flush(log, log.active_segment.base_offset))

    def flush(self, partition: Partition) -> asyncio.Future[None]:
        """Make durable what the log of a partition has now, in the background, and then commit what had to
        wait for that. Wait for the result with `asyncio.shield`: others have the same one.
        """
        commit = self._logs.commit(partition.log)
        if self._last_commit.get(partition) is not commit:
            self._last_commit[partition] = commit
            self._commits[commit] = None
            # Before those that wait for it: they find the records committed.
            commit.add_done_callback(partial(self._on_commit_done, partition))
        return commit

    def _on_commit_done(self, partition: Partition, commit: asyncio.Future[None]) -> None:
        self._commits.pop(commit, None)
        if self._last_commit.get(partition) is commit:
            del self._last_commit[partition]
        error = commit.exception()
        if error is None:
            partition.on_flush(self._clock.wall_ms())
            return
        _log.error("the log of %s could not be flushed: %s", partition.topic_partition, error)
        if isinstance(error, KafkaError):
            self.retry(partition)

    async def close(self) -> None:
        """Return once the flushes under way have ended."""
        for retry in self._retries.values():
            retry.cancel()
        await asyncio.gather(*self._tasks, *self._commits, return_exceptions=True)

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
                await asyncio.shield(self._logs.commit(log))
            except KafkaError:
                continue
            partition.on_flush(self._clock.wall_ms())
            return

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("a log could not be flushed: %s", error)
