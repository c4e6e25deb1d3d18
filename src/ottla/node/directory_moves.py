"""Moving a partition from one data directory to another while it serves.

A copy, the future log, grows in the other directory until it has all that the current one has; then it
takes its place, in one step on the event loop, so that no append falls between the two. What is appended
meanwhile is copied like the rest, and what is cut off is cut off there too. A move that fails, or is called
off by a move back, leaves the current log as it was.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from ottla.log.directory import LogDirectory
from ottla.log.files import TopicPartition
from ottla.log.log import Log
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.replication.following import common_end
from ottla.replication.partition import Partition

if TYPE_CHECKING:
    from ottla.node.node import Node

log = logging.getLogger(__name__)

_STEP_BYTES: Final = 1024 * 1024


class DirectoryMoves:
    """The moves under way, one for each partition at most."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._moves: dict[TopicPartition, asyncio.Task[None]] = {}

    def begin(self, partition: Partition, path: str) -> None:
        """Move a partition to a data directory; fine if it is there already, or on its way."""
        target = self._directory(path)
        tp = partition.topic_partition
        current, future = partition.log, self._node.logs.get_log(tp, future=True)
        if future is not None and future.directory is target:
            self._copy_in_background(partition, future)
            return
        if future is not None:
            self._call_off(tp)
        if current.directory is target:
            return
        future = self._node.logs.get_or_create_log(
            tp,
            current.config,
            topic_id=partition.topic_id,
            directory_id=target.directory_id,
            future=True,
        )
        future.truncate_fully_and_start_at(current.log_start_offset)
        self._copy_in_background(partition, future)

    def _directory(self, path: str) -> LogDirectory:
        for directory in self._node.logs.live_directories:
            if directory.path == path:
                return directory
        raise KafkaError(ErrorCode.LOG_DIR_NOT_FOUND, f"{path} is not a data directory of this node")

    def _call_off(self, tp: TopicPartition) -> None:
        task = self._moves.pop(tp, None)
        if task is not None:
            task.cancel()
        self._node.logs.delete_log(tp, future=True)

    def _copy_in_background(self, partition: Partition, future: Log) -> None:
        tp = partition.topic_partition
        if tp in self._moves:
            return
        task = asyncio.get_running_loop().create_task(self._move(partition, future), name=f"move of {tp}")
        self._moves[tp] = task
        task.add_done_callback(lambda done: self._ended(tp, done))

    def _ended(self, tp: TopicPartition, task: asyncio.Task[None]) -> None:
        if self._moves.get(tp) is task:
            del self._moves[tp]
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("%s could not be moved: %s", tp, error)

    async def _move(self, partition: Partition, future: Log) -> None:
        logs = self._node.logs
        flushed = False
        while True:
            current = partition.log
            if future.log_end_offset < current.log_start_offset:
                future.truncate_fully_and_start_at(current.log_start_offset)
            _cut_what_differs(future, current)
            if future.log_end_offset == current.log_end_offset:
                if flushed:
                    break
                # Off the event loop; for what comes meanwhile the promotion does it.
                await logs.flush(future)
                flushed = True
                continue
            self._copy_step(current, future)
            await asyncio.sleep(0)
        future.increment_log_start_offset(
            min(current.log_start_offset, future.high_watermark), "the log that is moved begins there"
        )
        partition.log = logs.promote_future_log(partition.topic_partition)
        log.info("%s has moved to %s", partition.topic_partition, future.directory.path)
        self._node.replication.report([partition])

    def _copy_step(self, current: Log, future: Log) -> None:
        data = current.read(future.log_end_offset, _STEP_BYTES).records
        epoch = current.latest_epoch
        future.append_as_follower(data, 0 if epoch is None else epoch, now_ms=self._node.now_ms())
        future.update_high_watermark(min(current.high_watermark, future.log_end_offset))

    def resume(self) -> None:
        """Go on with the moves that were under way when the node stopped."""
        for partition in self._node.replicas:
            future = self._node.logs.get_log(partition.topic_partition, future=True)
            if future is not None:
                self._copy_in_background(partition, future)

    async def stop(self) -> None:
        tasks = list(self._moves.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _cut_what_differs(future: Log, current: Log) -> None:
    """Cut from the copy what the log that it copies has lost since, or has otherwise by now: a follower cuts
    its log when its leader was elected without its last records, and then grows anew.
    """
    while (epoch := future.latest_epoch) is not None and future.log_end_offset > future.log_start_offset:
        known_epoch, end = current.end_offset_for_epoch(epoch)
        if known_epoch == epoch and future.log_end_offset <= end:
            break
        target = common_end(future, known_epoch, end) if known_epoch >= 0 else current.log_start_offset
        future.truncate_to(max(target, future.log_start_offset))
    if future.log_end_offset > current.log_end_offset:
        future.truncate_to(current.log_end_offset)
