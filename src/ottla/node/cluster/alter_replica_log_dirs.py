"""Moving a partition from one data directory to another while it serves.

A copy, the future log, grows in the other directory until it has all that the current one has; then it
takes its place, in one step on the event loop, so that no append falls between the two. What is appended
meanwhile is copied like the rest, and what is cut off is cut off there too. A move that fails, or is called
off by a move back, leaves the current log as it was.

The controller is told of the new place before the copy takes over, and has written it down. Otherwise, if the
new directory failed with the next start, the controller would take the replica for sound, in a directory that
it is not in any more, and let a broker lead that cannot.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from ottla.log.directory.directory import LogDirectory
from ottla.log.log_manager import LogManager
from ottla.log.unified_log import UnifiedLog
from ottla.node.cluster.assignments_manager import AssignmentsManager
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition
from ottla.replication.partition import Partition
from ottla.replication.partition_fetch_state import common_end_offset
from ottla.replication.replica_manager import ReplicaManager
from ottla.replication.replication_quota_manager import ReplicationQuotaManager
from ottla.runtime.clock import Clock

log = logging.getLogger(__name__)

_STEP_BYTES: Final = 1024 * 1024
# How often a copy that is held back by `replica.alter.log.dirs.io.max.bytes.per.second` looks again.
_HELD_BACK_SECONDS: Final = 0.1


class AlterReplicaLogDirsManager:
    """The moves under way, one for each partition at most."""

    def __init__(
        self,
        logs: LogManager,
        replicas: ReplicaManager,
        assignments: AssignmentsManager,
        quota: ReplicationQuotaManager,
        clock: Clock,
    ) -> None:
        self._logs: Final = logs
        self._replicas: Final = replicas
        self._assignments: Final = assignments
        self._quota: Final = quota
        self._clock: Final = clock
        self._moves: dict[TopicPartition, tuple[Partition, asyncio.Task[None]]] = {}

    def begin(self, partition: Partition, path: str) -> None:
        """Move a partition to a data directory; fine if it is there already, or on its way."""
        target = self._directory(path)
        tp = partition.topic_partition
        current, future = partition.log, self._logs.get_log(tp, future=True)
        if future is not None and future.directory is target:
            self._copy_in_background(partition, future)
            return
        if future is not None:
            self.cancel([tp])
        if current.directory is target:
            return
        future = self._logs.get_or_create_log(
            tp,
            current.config,
            topic_id=partition.topic_id,
            directory_id=target.directory_id,
            future=True,
        )
        future.truncate_fully_and_start_at(current.log_start_offset)
        self._copy_in_background(partition, future)

    def _directory(self, path: str) -> LogDirectory:
        for directory in self._logs.live_directories:
            if directory.path == path:
                return directory
        raise KafkaError(ErrorCode.LOG_DIR_NOT_FOUND, f"{path} is not a data directory of this node")

    def cancel(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop the moves of partitions, and delete their copies; fine if there are none."""
        gone = list(partitions)
        for tp in gone:
            partition, task = self._moves.pop(tp, (None, None))
            if partition is not None and task is not None:
                task.cancel()
                self._assignments.settle(partition)
        for tp, error in self._logs.delete_logs(gone, future=True).items():
            log.error("the copy of %s could not be deleted: %s", tp, error.message)

    def _copy_in_background(self, partition: Partition, future: UnifiedLog) -> None:
        tp = partition.topic_partition
        if tp in self._moves:
            return
        task = asyncio.get_running_loop().create_task(self._move(partition, future), name=f"move of {tp}")
        self._moves[tp] = (partition, task)
        task.add_done_callback(lambda done: self._ended(partition, done))

    def _ended(self, partition: Partition, task: asyncio.Task[None]) -> None:
        tp = partition.topic_partition
        if task.cancelled():
            return  # called off, or the node stops
        error = task.exception()
        if self._moves.get(tp) == (partition, task):
            del self._moves[tp]
            self._assignments.settle(partition)
        if error is not None:
            log.error("%s could not be moved: %s", tp, error)

    async def _move(self, partition: Partition, future: UnifiedLog) -> None:
        flushed = announced = False
        while True:
            current = partition.log
            if _is_complete(future, current):
                if not flushed:
                    # Off the event loop; for what comes meanwhile the promotion does it.
                    await self._logs.flush(future)
                    flushed = True
                elif not announced:
                    target = future.directory.directory_id
                    assert target is not None
                    await self._assignments.announce(partition, target)
                    announced = True
                else:
                    break
            elif self._quota.is_exceeded:
                await asyncio.sleep(_HELD_BACK_SECONDS)
            else:
                self._copy_step(current, future)
                await asyncio.sleep(0)
        self._promote(partition, future)

    def _promote(self, partition: Partition, future: UnifiedLog) -> None:
        future.maybe_increment_log_start_offset(
            min(partition.log.log_start_offset, future.high_watermark), "the log that is moved begins there"
        )
        partition.log = self._logs.replace_current_with_future_log(partition.topic_partition)
        log.info("%s has moved to %s", partition.topic_partition, future.directory.path)

    def _copy_step(self, current: UnifiedLog, future: UnifiedLog) -> None:
        data = current.read(future.log_end_offset, _STEP_BYTES).records
        self._quota.record(len(data))
        epoch = current.latest_epoch
        future.append_as_follower(data, 0 if epoch is None else epoch, now_ms=self._clock.wall_ms())
        future.update_high_watermark(min(current.high_watermark, future.log_end_offset))

    def resume(self) -> None:
        """Go on with the moves that were under way when the node stopped."""
        for partition in self._replicas:
            future = self._logs.get_log(partition.topic_partition, future=True)
            if future is not None:
                self._copy_in_background(partition, future)

    async def stop(self) -> None:
        """Leave the moves for the next start, but for those that the controller may know of: should the other
        directory be gone by then, it would take what the copy has for everything.
        """
        moves = list(self._moves.values())
        for _, task in moves:
            task.cancel()
        await asyncio.gather(*(task for _, task in moves), return_exceptions=True)
        for partition, _ in moves:
            if self._assignments.is_announced(partition):
                try:
                    self._finish(partition)
                except KafkaError as error:
                    log.error("%s could not be moved: %s", partition.topic_partition, error.message)

    def _finish(self, partition: Partition) -> None:
        """Copy the rest in one go: it is what came after the copy had everything."""
        future = self._logs.get_log(partition.topic_partition, future=True)
        if future is not None:
            while not _is_complete(future, partition.log):
                self._copy_step(partition.log, future)
            self._promote(partition, future)


def _is_complete(future: UnifiedLog, current: UnifiedLog) -> bool:
    """Whether the copy has all that the log has, after it was cut where it has something else."""
    if future.log_end_offset < current.log_start_offset:
        future.truncate_fully_and_start_at(current.log_start_offset)
    _cut_what_differs(future, current)
    return future.log_end_offset == current.log_end_offset


def _cut_what_differs(future: UnifiedLog, current: UnifiedLog) -> None:
    """Cut from the copy what the log that it copies has lost since, or has otherwise by now: a follower cuts
    its log when its leader was elected without its last records, and then grows anew.
    """
    while (epoch := future.latest_epoch) is not None and future.log_end_offset > future.log_start_offset:
        known_epoch, end = current.end_offset_for_epoch(epoch)
        if known_epoch == epoch and future.log_end_offset <= end:
            break
        target = common_end_offset(future, known_epoch, end) if known_epoch >= 0 else current.log_start_offset
        future.truncate_to(max(target, future.log_start_offset))
    if future.log_end_offset > current.log_end_offset:
        future.truncate_to(current.log_end_offset)
