"""Move a partition from one data directory to another while it is served.

A copy, the future log, grows in the other directory until it has all that the current one has; then it
takes its place, in one step on the event loop, so that no append falls between the two. What is appended
meanwhile is copied like the rest, and what is truncated is truncated there too. The copy, and what is
truncated, waits for the disk in the pool. A move that fails, or is cancelled by a move back, leaves the
current log as it was; unless one of the directories has failed, it is tried again.

The controller has written the new directory before the copy replaces the log. Otherwise, if the new directory
failed at the next start, the controller would take the replica for healthy, in a directory that it is not in
any more, and elect a broker that cannot lead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from ottla.log.directory.directory import LogDirectory
from ottla.log.log_manager import LogManager
from ottla.log.truncation import LogTruncation
from ottla.log.unified_log import RemoteLogAuxState, UnifiedLog
from ottla.node.cluster.assignments_manager import AssignmentsManager
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition
from ottla.replication.partition import Partition
from ottla.replication.partition_fetch_state import common_end_offset
from ottla.replication.replica_manager import ReplicaManager
from ottla.replication.replication_quota_manager import ReplicationQuotaManager
from ottla.runtime.clock import Clock
from ottla.runtime.disk import NotInMemory, waiting
from ottla.runtime.pool import Pool

log = logging.getLogger(__name__)

_STEP_BYTES: Final = 1024 * 1024
# How often a copy that is throttled by `replica.alter.log.dirs.io.max.bytes.per.second` looks again.
_THROTTLED_SECONDS: Final = 0.1
# How long a move waits after an error, at first and at most.
_FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 30.0


class AlterReplicaLogDirsManager:
    """The moves under way, at most one for each partition."""

    def __init__(
        self,
        logs: LogManager,
        replicas: ReplicaManager,
        assignments: AssignmentsManager,
        quota: ReplicationQuotaManager,
        clock: Clock,
        pool: Pool,
    ) -> None:
        self._logs: Final = logs
        self._replicas: Final = replicas
        self._assignments: Final = assignments
        self._quota: Final = quota
        self._clock: Final = clock
        self._pool: Final = pool
        self._moves: dict[TopicPartition, tuple[Partition, asyncio.Task[None]]] = {}

    def begin(self, partition: Partition, path: str) -> None:
        """Move a partition to a data directory; fine if it is there already, or being moved there."""
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
        self._copy_in_background(partition, future)

    def check_directory(self, path: str) -> None:
        """Raise LOG_DIR_NOT_FOUND if it is no data directory of this broker that serves."""
        self._directory(path)

    def _directory(self, path: str) -> LogDirectory:
        for directory in self._logs.live_directories:
            if directory.path == path:
                return directory
        raise KafkaError(
            ErrorCode.LOG_DIR_NOT_FOUND,
            f"The log directory {path} is not one of the data directories of this broker",
        )

    def cancel(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop the moves of partitions, and delete their future logs; fine if there are none."""
        gone = list(partitions)
        for tp in gone:
            partition, task = self._moves.pop(tp, (None, None))
            if partition is not None and task is not None:
                task.cancel()
                self._assignments.on_move_ended(partition)
        for tp, error in self._logs.delete_logs(gone, future=True).items():
            log.error("the future log of %s could not be deleted: %s", tp, error.message)

    def _copy_in_background(self, partition: Partition, future: UnifiedLog) -> None:
        tp = partition.topic_partition
        if tp in self._moves:
            return
        task = asyncio.get_running_loop().create_task(self._move(partition, future), name=f"move of {tp}")
        self._moves[tp] = (partition, task)
        task.add_done_callback(lambda done: self._on_move_ended(partition, done))

    def _on_move_ended(self, partition: Partition, task: asyncio.Task[None]) -> None:
        tp = partition.topic_partition
        if task.cancelled():
            return  # cancelled, or the node stops
        error = task.exception()
        if self._moves.get(tp) == (partition, task):
            del self._moves[tp]
            self._assignments.on_move_ended(partition)
        if error is not None:
            log.error("%s could not be moved: %s", tp, error)

    async def _move(self, partition: Partition, future: UnifiedLog) -> None:
        """Move, and try again after an error for as long as both logs can be used."""
        pause_s, cause = _FIRST_PAUSE_SECONDS, ""
        while True:
            try:
                await self._copy_and_promote(partition, future)
                return
            except Exception as error:
                if not (_is_usable(future) and _is_usable(partition.log)):
                    raise
                if cause != (cause := f"{type(error).__name__}: {error}"):
                    log.warning(
                        "%s could not be moved to %s yet: %s",
                        partition.topic_partition,
                        future.directory.path,
                        error,
                        exc_info=None if isinstance(error, KafkaError | OSError) else error,
                    )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_SECONDS)

    async def _copy_and_promote(self, partition: Partition, future: UnifiedLog) -> None:
        flushes, announced = 0, False
        while True:
            current = partition.log
            truncation = _begin_due_truncation(future, current)
            if truncation is not None:
                await truncation.run(self._pool)
            elif future.log_end_offset == current.log_end_offset:
                if flushes < 1 + announced:
                    # Before and after the controller is asked, so that little is left for the promotion.
                    await self._logs.flush(future)
                    flushes += 1
                elif not announced:
                    target = future.directory.directory_id
                    assert target is not None
                    await self._assignments.announce(partition, target)
                    announced = True
                else:
                    break
            elif self._quota.is_exceeded:
                await asyncio.sleep(_THROTTLED_SECONDS)
            else:
                try:
                    self._copy_step(current, future, may_wait=False)
                except NotInMemory as cold:
                    await self._pool.run(cold.load)
                await asyncio.sleep(0)
        self._promote(partition, future)

    def _promote(self, partition: Partition, future: UnifiedLog) -> None:
        future.maybe_increment_log_start_offset(
            min(partition.log.log_start_offset, future.high_watermark), "the log that is moved starts there"
        )
        future.highest_offset_in_remote_storage = partition.log.highest_offset_in_remote_storage
        partition.replace_log(self._logs.replace_current_with_future_log(partition.topic_partition))
        log.info("%s has moved to %s", partition.topic_partition, future.directory.path)

    def _copy_step(self, current: UnifiedLog, future: UnifiedLog, *, may_wait: bool = True) -> None:
        with waiting(may_wait):
            data = current.read(future.log_end_offset, _STEP_BYTES).records
        self._quota.record(len(data))
        epoch = current.latest_epoch
        now_ms = self._clock.wall_ms()
        future.append_as_follower(data, 0 if epoch is None else epoch, now_ms=now_ms)
        future.update_high_watermark(min(current.high_watermark, future.log_end_offset))

    def resume(self) -> None:
        """Continue the moves that were under way when the node stopped."""
        for tp in self._logs.future_partitions:
            partition, future = self._replicas.find(tp), self._logs.get_log(tp, future=True)
            if partition is not None and future is not None:
                self._copy_in_background(partition, future)

    async def stop(self) -> None:
        """Leave the moves for the next start, except those that the controller may know of: if the former
        directory is gone at that start, the controller takes the future log for a complete one.
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
        """Copy the rest without a pause: it is what was appended after the copy was complete."""
        future = self._logs.get_log(partition.topic_partition, future=True)
        if future is not None:
            while (
                truncation := _begin_due_truncation(future, partition.log)
            ) is not None or future.log_end_offset != partition.log.log_end_offset:
                if truncation is not None:
                    truncation.finish()
                else:
                    self._copy_step(partition.log, future)
            self._promote(partition, future)


def _is_usable(log: UnifiedLog) -> bool:
    return log.directory.is_online and not log.is_closed


def _auxiliary_state(current: UnifiedLog, offset: int) -> RemoteLogAuxState:
    """What a log knows of its records below `offset`."""
    epochs = tuple((entry.epoch, entry.start_offset) for entry in current.leader_epoch_cache.entries)
    return RemoteLogAuxState(epochs, current.producer_snapshot_at(offset))


def _begin_due_truncation(future: UnifiedLog, current: UnifiedLog) -> LogTruncation | None:
    """Begin to truncate the copy to what the log still has; None if it has nothing else. A follower truncates
    its log when its leader was elected without its last records, and then appends others.
    """
    if future.log_end_offset < current.log_start_offset:
        return future.begin_full_truncation(current.log_start_offset)
    if future.log_end_offset < current.local_log_start_offset:
        # The records before are in remote storage: the copy has to know of them what the log knows.
        local = current.local_log_start_offset
        return future.begin_full_truncation(local, current.log_start_offset, _auxiliary_state(current, local))
    epoch = future.latest_epoch
    if epoch is not None and future.log_end_offset > future.log_start_offset:
        known_epoch, end = current.end_offset_for_epoch(epoch)
        if known_epoch != epoch or future.log_end_offset > end:
            target = (
                common_end_offset(future, known_epoch, end) if known_epoch >= 0 else current.log_start_offset
            )
            return future.begin_truncation(max(target, future.log_start_offset))
    if future.log_end_offset > current.log_end_offset:
        return future.begin_truncation(current.log_end_offset)
    return None
