"""Flushes of logs that somebody asked for: they happen even if whoever asked is gone before they are done, as
others may wait for the same records.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from ottla.log.unified_log import Log
from ottla.replication.partition import Partition

if TYPE_CHECKING:
    from ottla.node.node import Node

_log = logging.getLogger(__name__)


class Flushes:
    def __init__(self, node: Node) -> None:
        self._node: Final = node
        self._tasks: set[asyncio.Task[None]] = set()

    def later(self, closed: Log) -> None:
        """Make what lies in closed segments durable, in the background."""
        self._begin(self._node.logs.flush(closed, closed.active_segment.base_offset))

    def now(self, partition: Partition) -> Awaitable[None]:
        """Make the partition's log durable, and let it commit what had to wait for that."""
        return asyncio.shield(self._begin(self._flush(partition)))

    async def ended(self) -> None:
        """Return once nothing is being flushed any more."""
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _flush(self, partition: Partition) -> None:
        await self._node.logs.flush(partition.log)
        partition.flushed(self._node.now_ms())

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("a log could not be flushed: %s", error)
