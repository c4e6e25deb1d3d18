"""Copies closed segments to remote storage, and deletes there what expires (Kafka's `RemoteLogManager`).

A leader copies the closed segments of its log whose records are stable, oldest first, one at a time. A copy
is announced before its first object is written, and counts once it is announced as finished; the same goes
for a deletion. So whatever a crash leaves behind is in the metadata, and the next leader finds it: a copy
that this broker had begun is done again under its own name, others are deleted once another copy has their
records. The log start passes what expires before its deletion begins.

The metadata may have lost events. Then all begins again for their partitions, and a leader whose log has
records that neither its disk nor the metadata have looks for them in the store: the manifests there say what
was announced once, and it is announced again.

Nothing here runs for a partition at rest. A segment is copied when it is closed and stable, which the
progress of the partition shows; expiry is checked when something was copied, when the log start or a setting
changed, and at the time at which the oldest segment becomes too old. What fails is tried again after a pause
that grows. Copies, and deletions, of different partitions run at the same time, up to the sizes of Kafka's
pools.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Final

from ottla.log.leader_epoch_cache import EpochEntry
from ottla.log.unified_log import UnifiedLog
from ottla.metadata.image.image import MetadataImage
from ottla.node.config.dynamic import DynamicBrokerConfig
from ottla.node.remote.segment_data import (
    SegmentToCopy,
    UncopyableSegment,
    local_only_bytes,
    next_segment_to_copy,
    read_segment_data,
    segment_leader_epochs,
    uncopied_segments,
)
from ottla.protocol.errors import KafkaError
from ottla.protocol.names import TopicIdPartition, TopicPartition
from ottla.remote.expiration import plan_expiration
from ottla.remote.log_lineage import (
    NO_REMOTE_OFFSET,
    FindSegment,
    find_gap,
    find_highest_remote_offset,
    find_remote_log_start_offset,
    is_covered_by_others,
)
from ottla.remote.log_reader import RemoteLogReader
from ottla.remote.metadata_manager import RemoteLogMetadataManager
from ottla.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    RemoteStorageError,
    RemoteStorageNotReady,
)
from ottla.remote.storage_manager import LogSegmentData, RemoteStorageManager
from ottla.replication.partition import Partition
from ottla.replication.replica_manager import ReplicaChanges
from ottla.rpc.backoff import ExponentialBackoff
from ottla.runtime.clock import Clock
from ottla.runtime.runtime import Runtime
from ottla.runtime.tasks import SupervisedTask, TaskSupervisor
from ottla.runtime.turns import Turns
from ottla.runtime.work_queue import in_turns
from ottla.security.quota.rate import QuotaWindows, Rate

_log = logging.getLogger(__name__)

_MARKED: Final = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
_FINISHED: Final = RemotePartitionDeleteState.DELETE_PARTITION_FINISHED
_DELETING: Final = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
# Partitions of deleted topics whose segments are being deleted; others wait for them.
_DELETIONS_AT_A_TIME: Final = 10
_DAY_MS: Final = 24 * 60 * 60 * 1000
# A copy that waits for its quota looks again after this time at the latest.
_QUOTA_PAUSE_MS: Final = 1_000
# Copies that were given up and whose objects could not be deleted: so many are kept, and tried so often.
_MAX_GIVEN_UP: Final = 1_000
_GIVEN_UP_ATTEMPTS: Final = 100


class RemoteLogStatistics:
    """What was done since the node started, for metrics."""

    __slots__ = (
        "copied_bytes",
        "copied_segments",
        "copy_errors",
        "copy_requests",
        "copy_throttled_ms",
        "delete_errors",
        "delete_requests",
        "deleted_segments",
    )

    def __init__(self) -> None:
        self.copied_bytes = self.copied_segments = self.copy_requests = self.copy_errors = 0
        self.delete_requests = self.delete_errors = self.deleted_segments = 0
        self.copy_throttled_ms = 0


class _Work:
    """One kind of work of a partition: whether it is to be done, is being done, or waits for its time."""

    __slots__ = ("is_pausing", "is_queued", "is_running", "pauses", "timer")

    def __init__(self, pauses: ExponentialBackoff) -> None:
        self.pauses: Final = pauses
        # True if it is to be done, once more if it is being done.
        self.is_queued = False
        self.is_running = False
        # True after a failure, until `timer`: nothing brings it forward, or traffic would undo the pauses.
        self.is_pausing = False
        self.timer: asyncio.TimerHandle | None = None

    def cancel_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class _LedPartition:
    """A partition that this broker leads, in one leader epoch."""

    __slots__ = (
        "copied_offset",
        "copy",
        "copying",
        "expiration",
        "has_lost_metadata",
        "id",
        "is_blocked",
        "is_closed",
        "leader_epoch",
        "log_start_offset",
        "partition",
        "seen_base",
        "wanted_end",
    )

    def __init__(self, partition: Partition, id: TopicIdPartition, copy: _Work, expiration: _Work) -> None:
        self.partition: Final = partition
        self.id: Final = id
        self.leader_epoch: Final = partition.leader_epoch
        self.copy: Final = copy
        self.expiration: Final = expiration
        # The last offset that is in remote storage; None until the metadata have been read.
        self.copied_offset: int | None = None
        # The last stable offset at which the next segment can be copied; None if there is none that is
        # closed. True for the log as long as its active segment begins at `seen_base`.
        self.wanted_end: int | None = None
        self.seen_base = -1
        # The copy under way, or the one that failed last and is tried again.
        self.copying: RemoteLogSegmentMetadata | None = None
        # The log start as expiry has seen it.
        self.log_start_offset = -1
        # True if events of the metadata were lost, so the store may have more than they say.
        self.has_lost_metadata = False
        # True once the next segment was found to be one that cannot be copied.
        self.is_blocked = False
        self.is_closed = False

    @property
    def log(self) -> UnifiedLog:
        return self.partition.log

    @property
    def is_led(self) -> bool:
        partition = self.partition
        return not self.is_closed and partition.is_leader and partition.leader_epoch == self.leader_epoch


class _Pool:
    """Workers that do the work of partitions which are due, in the order in which they became due."""

    def __init__(
        self,
        name: str,
        clock: Clock,
        tasks: TaskSupervisor,
        size: Callable[[], int],
        work_of: Callable[[_LedPartition], _Work],
        work: Callable[[_LedPartition], Awaitable[None]],
    ) -> None:
        self._name: Final = name
        self._clock: Final = clock
        self._tasks: Final = tasks
        self._size: Final = size
        self._work_of: Final = work_of
        self._work: Final = work
        self._due: deque[_LedPartition] = deque()
        self._workers: dict[SupervisedTask, None] = {}
        self._running = 0

    @property
    def has_due(self) -> bool:
        return bool(self._due)

    def submit(self, led: _LedPartition) -> None:
        """Have the work of a partition done, once more if it is being done; a pause goes on to its end."""
        work = self._work_of(led)
        if work.is_queued or work.is_pausing or led.is_closed:
            return
        work.is_queued = True
        work.cancel_timer()
        if not work.is_running:
            self._due.append(led)
            self._start_worker()

    def submit_later(self, led: _LedPartition, pause_ms: float) -> None:
        """The same after a pause, unless it comes sooner."""
        work = self._work_of(led)
        work.cancel_timer()
        if not led.is_closed:
            loop = asyncio.get_running_loop()
            work.timer = loop.call_later(min(pause_ms, _DAY_MS) / 1000, self.submit, led)

    def retry_later(self, led: _LedPartition, pause_ms: float) -> None:
        """Have work that has failed done again after a pause, and not sooner."""
        work = self._work_of(led)
        work.cancel_timer()
        if not led.is_closed:
            work.is_queued, work.is_pausing = False, True
            work.timer = asyncio.get_running_loop().call_later(pause_ms / 1000, self._retry, led)

    def _retry(self, led: _LedPartition) -> None:
        self._work_of(led).is_pausing = False
        self.submit(led)

    def _start_worker(self) -> None:
        if self._running < self._size():
            self._running += 1
            worker = self._tasks.start(self._name, self._run)
            self._workers[worker] = None

    async def _run(self) -> None:
        """Work until nothing is due. There are as many workers as there is work at the same time."""
        turns = Turns(self._clock)
        try:
            while self._due and self._running <= self._size():
                led = self._due.popleft()
                work = self._work_of(led)
                work.is_queued, work.is_running = False, True
                try:
                    await self._work(led)
                finally:
                    work.is_running = False
                    if work.is_queued and not led.is_closed:
                        self._due.append(led)
                if turns.is_due():
                    await turns.pause()
        finally:
            self._running -= 1
            self._workers = {each: None for each in self._workers if not each.is_done}

    async def stop(self) -> None:
        self._due.clear()
        await self._tasks.stop(list(self._workers))


class RemoteLogManager:
    """Belongs to the event loop. `apply` follows the metadata, `on_partition_progress` the partitions."""

    def __init__(
        self,
        runtime: Runtime,
        tasks: TaskSupervisor,
        config: DynamicBrokerConfig,
        metadata: RemoteLogMetadataManager,
        storage: RemoteStorageManager,
        reader: RemoteLogReader,
    ) -> None:
        self._runtime: Final = runtime
        self._tasks: Final = tasks
        self._config: Final = config
        self._broker_id: Final = config.current.node_id
        self._metadata: Final = metadata
        self._storage: Final = storage
        self._reader: Final = reader
        self.statistics: Final = RemoteLogStatistics()
        self._led: dict[TopicPartition, _LedPartition] = {}
        self._led_by_id: dict[TopicIdPartition, _LedPartition] = {}
        self._followed: dict[TopicIdPartition, Partition] = {}
        self._ids: dict[TopicPartition, TopicIdPartition] = {}
        # How many partitions of each topic are led here, and those of them that may have segments to copy.
        self._led_of_topic: dict[str, int] = {}
        self._behind: dict[TopicPartition, _LedPartition] = {}
        # Copies that are being made now, also by a leader of an epoch that is over: each has one writer.
        self._being_copied: dict[RemoteLogSegmentId, None] = {}
        # Those of them, and of the ones that were given up, whose partition has lost events meanwhile.
        self._lost_copies: dict[RemoteLogSegmentId, None] = {}
        # Copies that were given up, and whose objects are still to be deleted. No leader has them in mind, as
        # their partitions may have moved to brokers that never heard of them.
        self._given_up: dict[RemoteLogSegmentId, RemoteLogSegmentMetadata] = {}
        self._given_up_deletion: SupervisedTask | None = None
        # Partitions of deleted topics whose segments are being deleted.
        self._deletions: dict[TopicIdPartition, SupervisedTask] = {}
        # The names of those of them that were led here.
        self._deleted_names: dict[TopicIdPartition, TopicPartition] = {}
        self._deletions_at_a_time: Final = asyncio.Semaphore(_DELETIONS_AT_A_TIME)
        self._announcements_at_a_time: Final = asyncio.Semaphore(_DELETIONS_AT_A_TIME)
        current = config.current
        self._quota_windows: Final = QuotaWindows(
            current.number("remote.log.manager.copy.quota.window.num"),
            current.number("remote.log.manager.copy.quota.window.size.seconds"),
        )
        self._copy_rate: Final = Rate(self._quota_windows, self._monotonic_ms())
        self._copies: Final = _Pool(
            "copies to remote storage",
            runtime.clock,
            tasks,
            lambda: self._config.current.number("remote.log.manager.copier.thread.pool.size"),
            lambda led: led.copy,
            self._copy,
        )
        self._expirations: Final = _Pool(
            "expiry in remote storage",
            runtime.clock,
            tasks,
            lambda: self._config.current.number("remote.log.manager.expiration.thread.pool.size"),
            lambda led: led.expiration,
            self._expire,
        )
        metadata.add_listener(self._on_metadata_changed)

    async def close(self) -> None:
        for led in list(self._led.values()):
            self._close(led)
        await self._copies.stop()
        await self._expirations.stop()
        await self._tasks.stop(list(self._deletions.values()))
        if self._given_up_deletion is not None:
            await self._tasks.stop([self._given_up_deletion])

    def _monotonic_ms(self) -> int:
        return self._runtime.clock.monotonic_ns() // 1_000_000

    def _now_ms(self) -> int:
        return self._runtime.clock.wall_ms()

    def _pauses(self) -> ExponentialBackoff:
        config = self._config.current
        return ExponentialBackoff(
            self._runtime.random,
            config.number("remote.log.manager.task.retry.backoff.ms"),
            config.number("remote.log.manager.task.retry.backoff.max.ms"),
        )

    # What is led and followed

    def apply(self, image: MetadataImage, changes: ReplicaChanges) -> None:
        """Follow changes of replicas: those that are gone first."""
        self.resign(changes.offline)
        for tp in changes.deleted:
            self._on_deleted(tp, image)
        for partition in changes.leaders:
            self._begin(partition)
        for partition in changes.followers:
            self._begin(partition)

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions that may have segments in remote storage."""
        return list(self._ids)

    def on_configs_changed(self, partitions: Iterable[Partition]) -> None:
        """Look again at partitions whose settings have changed: remote storage may be on or off now."""
        for partition in partitions:
            tp = partition.topic_partition
            if not partition.log.config.is_remote:
                partition.log.highest_offset_in_remote_storage = NO_REMOTE_OFFSET
            led = self._led.get(tp)
            if led is None or not led.is_led or not partition.log.config.is_remote:
                self._begin(partition)
            else:
                self._submit_copy(led)
                self._expirations.submit(led)

    def _begin(self, partition: Partition) -> None:
        """Take up a partition in the role that it has now, if it may have segments in remote storage."""
        tp = partition.topic_partition
        config = partition.log.config
        self._stop(tp)
        if not (config.is_remote or config.remote_log_delete_on_disable) or partition.topic_id is None:
            self._forget(tp)
            return
        id = TopicIdPartition(partition.topic_id, tp.partition)
        self._ids[tp] = id
        # Until the metadata say otherwise nothing may leave this disk.
        partition.log.highest_offset_in_remote_storage = NO_REMOTE_OFFSET
        if partition.is_leader:
            led = _LedPartition(partition, id, _Work(self._pauses()), _Work(self._pauses()))
            self._led[tp] = self._led_by_id[id] = led
            self._led_of_topic[tp.topic] = self._led_of_topic.get(tp.topic, 0) + 1
        else:
            self._followed[id] = partition
        self._metadata.assign_partitions([id])
        if self._metadata.is_ready(id):
            self._on_metadata_changed(id)

    def _stop(self, tp: TopicPartition) -> None:
        """End the role that a partition has had; its metadata stay."""
        led = self._led.pop(tp, None)
        if led is not None:
            self._led_by_id.pop(led.id, None)
            self._behind.pop(tp, None)
            self._led_of_topic[tp.topic] -= 1
            if not self._led_of_topic[tp.topic]:
                del self._led_of_topic[tp.topic]
            self._close(led)
        id = self._ids.get(tp)
        if id is not None:
            self._followed.pop(id, None)

    def _close(self, led: _LedPartition) -> None:
        led.is_closed = True
        led.copy.cancel_timer()
        led.expiration.cancel_timer()

    def _forget(self, tp: TopicPartition) -> None:
        id = self._ids.pop(tp, None)
        if id is not None and id not in self._deletions:
            self._metadata.stop_partitions([id])

    def resign(self, partitions: Iterable[TopicPartition]) -> None:
        """Give up partitions that this broker cannot serve any more."""
        for tp in partitions:
            self._stop(tp)
            self._forget(tp)

    def _on_deleted(self, tp: TopicPartition, image: MetadataImage) -> None:
        """Give up a partition that this broker no longer hosts; of a deleted topic that it has led, delete
        the segments too.
        """
        led = self._led.get(tp)
        id = self._ids.get(tp)
        self._stop(tp)
        if led is not None and id is not None and id.topic_id not in image.topics.by_id:
            self._deleted_names[id] = tp
            self.delete_partitions([id])
        self._forget(tp)

    def delete_partitions(self, partitions: Iterable[TopicIdPartition]) -> None:
        """Delete all segments of partitions whose topics were deleted."""
        for id in partitions:
            if id not in self._deletions:
                self._metadata.assign_partitions([id])
                self._deletions[id] = self._tasks.start(
                    "deletion of a partition from remote storage", partial(self._delete_partition, id)
                )

    def is_being_deleted(self, topic_id: bytes) -> bool:
        """Whether segments of a deleted topic are still to be deleted by this broker."""
        return any(id.topic_id == topic_id for id in self._deletions)

    def _on_metadata_changed(self, id: TopicIdPartition) -> None:
        """Something is known of remote segments that was not before, or events are lost."""
        if not self._metadata.is_ready(id):
            self._on_metadata_lost(id)
            return
        led = self._led_by_id.get(id)
        if led is not None:
            if led.copied_offset is None and not led.copy.is_running:
                self._submit_copy(led)
                self._expirations.submit(led)
            elif led.copied_offset is not None and self._left_copies(led):
                # What an earlier leader has written may come later than its end.
                self._expirations.submit(led)
            return
        partition = self._followed.get(id)
        if partition is not None and partition.log.config.is_remote:
            self._update_highest_offset(partition.log, id)

    def _on_metadata_lost(self, id: TopicIdPartition) -> None:
        """Take up a partition again: what is believed to be in remote storage may not be known there."""
        self._lost_copies.update({each: None for each in self._being_copied if each.topic_id_partition == id})
        led = self._led_by_id.get(id)
        partition = self._followed.get(id) if led is None else led.partition
        if partition is None:
            return
        self._begin(partition)
        led = self._led_by_id.get(id)
        if led is not None:
            led.has_lost_metadata = True

    def _submit_copy(self, led: _LedPartition) -> None:
        if not led.is_closed:
            self._behind[led.partition.topic_partition] = led
            self._copies.submit(led)

    def _update_highest_offset(self, log: UnifiedLog, id: TopicIdPartition) -> int:
        """Note up to where the log is in remote storage: as far it may leave this disk."""
        known = log.highest_offset_in_remote_storage
        highest = find_highest_remote_offset(
            log.leader_epoch_cache,
            # What was there in this leader epoch is still there, or was expired.
            max(log.segments[0].base_offset, known + 1),
            log.log_end_offset,
            self._find_of(id),
        )
        highest = max(highest, known)
        if highest != log.highest_offset_in_remote_storage:
            log.update_highest_offset_in_remote_storage(highest)
        return highest

    def is_settled(self, id: TopicIdPartition) -> bool:
        """Whether all remote segments of a partition are known, if this broker copies its segments."""
        led = self._led_by_id.get(id)
        return led is None or led.copied_offset is not None or not led.log.config.is_remote

    def on_partition_progress(self, partition: Partition) -> None:
        """Called after every progress of any partition, so it looks at little."""
        led = self._led.get(partition.topic_partition)
        if led is None or led.copied_offset is None:
            return
        log = partition.log
        if log.log_start_offset != led.log_start_offset:
            self._expirations.submit(led)
            if led.is_blocked:
                self._submit_copy(led)
        if log.active_segment.base_offset != led.seen_base or (
            led.wanted_end is not None and log.last_stable_offset >= led.wanted_end
        ):
            self._submit_copy(led)

    def on_segment_closed(self, log: UnifiedLog) -> None:
        """A segment of a log was closed other than by an append."""
        led = self._led.get(log.topic_partition)
        if led is not None:
            self._submit_copy(led)

    # Copying

    async def _copy(self, led: _LedPartition) -> None:
        try:
            if led.is_led and led.log.config.is_remote and self._metadata.is_ready(led.id):
                if led.copied_offset is None:
                    await self._initialize(led)
                    self._expirations.submit(led)
                if led.log.config.copies_to_remote and led.copied_offset is not None:
                    await self._copy_segments(led)
            led.copy.pauses.reset()
            if not led.copy.is_queued and not led.is_closed and not uncopied_segments(led.log):
                self._behind.pop(led.partition.topic_partition, None)
        except UncopyableSegment as error:
            # Trying again does not help before the log start has passed it, which is noticed.
            self.statistics.copy_errors += 1
            if not led.is_blocked:
                _log.error("%s", error.message)
            led.is_blocked = True
        except Exception as error:
            _log_unexpected(error)
            self.statistics.copy_errors += 1
            pause_ms = led.copy.pauses.next_ms()
            _log.warning(
                "%s: copying to remote storage failed, and is tried again in %d ms: %s",
                led.partition.topic_partition,
                pause_ms,
                error,
            )
            self._copies.retry_later(led, pause_ms)

    async def _initialize(self, led: _LedPartition) -> None:
        """Find out how far the log is in remote storage, and where it starts there."""
        log = led.log
        await self._recover_metadata(led)
        if not led.is_led:
            return
        if log.lacks_producers:
            snapshot = await self._reader.fetch_producers(led.id, log)
            if not led.is_led:
                return
            await log.begin_restoring_producers(snapshot).run(self._runtime.pool)
        self._move_log_start(led)
        led.copied_offset = self._update_highest_offset(log, led.id)

    def _move_log_start(self, led: _LedPartition) -> None:
        """Have the log start where there are records: a broker that was killed may have deleted segments and
        not have written yet that the log starts behind them.
        """
        log, id = led.log, led.id
        if log.lacks_auxiliary_state:
            # It cannot tell which segments have its first records, so it leaves all of them.
            start = self._metadata.first_offset_from(id, log.log_start_offset)
        else:
            start = find_remote_log_start_offset(
                log.leader_epoch_cache, lambda epoch: self._metadata.first_start_offset(id, epoch)
            )
        # What is on the disk can be read, wherever remote storage begins.
        local_start = log.local_log_start_offset
        start = local_start if start is None else min(start, local_start)
        if log.log_start_offset >= start:
            return
        if start > log.high_watermark:
            raise RemoteStorageError(
                f"{led.partition.topic_partition} starts at {start} in remote storage; its high watermark "
                f"is {log.high_watermark} until its followers have fetched"
            )
        led.partition.delete_records_on_leader(start, "the start of what remote storage has")

    async def _recover_metadata(self, led: _LedPartition) -> None:
        """Announce the segments again that the store has and the metadata do not know, if events were lost or
        records of the log are nowhere else.
        """
        log = led.log
        if not led.has_lost_metadata:
            gap = find_gap(
                log.leader_epoch_cache,
                log.log_start_offset,
                log.local_log_start_offset,
                self._find_of(led.id),
            )
            if await in_turns(gap, Turns(self._runtime.clock)) is None:
                return
            start = log.log_start_offset
            if log.lacks_auxiliary_state and self._metadata.first_offset_from(led.id, start) == start:
                return  # which segments are its own it cannot tell; one of them has the first record
        tp = led.partition.topic_partition
        segments = await self._storage.list_log_segments(
            led.id.topic_id, tp, lambda id: self._is_accounted_for(led, id)
        )
        for metadata in segments:
            if not led.is_led:
                return
            if not self._is_accounted_for(led, metadata.id):
                await self._announce_again(metadata)
        led.has_lost_metadata = False
        if segments:
            _log.warning(
                "%s: %d segments in remote storage were not in the metadata, and are announced again",
                tp,
                len(segments),
            )

    def _is_accounted_for(self, led: _LedPartition, id: RemoteLogSegmentId) -> bool:
        """Whether the metadata say all of a segment that is in the store. Of one that this broker has on its
        disk, an unfinished copy is repeated or deleted; of others, it is what a kill has left of this. One
        that was under way when events were lost is given up by itself: its objects go.
        """
        known = self._metadata.segment_by_id(id)
        return id in self._being_copied or (
            known is not None
            and (
                known.state is not RemoteLogSegmentState.COPY_SEGMENT_STARTED
                or known.end_offset >= led.log.local_log_start_offset
            )
        )

    async def _announce_again(self, metadata: RemoteLogSegmentMetadata) -> None:
        if self._metadata.segment_by_id(metadata.id) is None:
            await self._metadata.add_remote_log_segment_metadata(metadata)
        await self._metadata.update_remote_log_segment_metadata(
            RemoteLogSegmentMetadataUpdate(
                metadata.id,
                self._now_ms(),
                RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
                self._broker_id,
                metadata.custom_metadata,
            )
        )

    def _find_of(self, id: TopicIdPartition) -> FindSegment:
        return lambda epoch, offset: self._metadata.remote_log_segment_metadata(id, epoch, offset)

    async def _copy_segments(self, led: _LedPartition) -> None:
        while led.is_led and led.log.config.copies_to_remote:
            assert led.copied_offset is not None
            self._note_next_end(led)
            found = next_segment_to_copy(led.log, led.copied_offset)
            if found is None:
                return
            epochs = segment_leader_epochs(led.log, found)
            led.is_blocked = False
            await self._wait_for_quota(led, found)
            if not led.is_led:
                return
            await self._copy_segment(led, found, epochs)
            config = led.log.config
            expires_first = config.retention_ms >= 0 and led.expiration.timer is None
            if config.retention_bytes >= 0 or expires_first or self._left_copies(led):
                # What is kept may be too much now, copies that were given up may not be needed any more, or
                # this segment is the first to expire.
                self._expirations.submit(led)
            if self._copies.has_due:
                # Others have waited longer.
                self._copies.submit(led)
                return

    def _note_next_end(self, led: _LedPartition) -> None:
        """Note at which last stable offset there is something to copy, so that progress below is cheap."""
        assert led.copied_offset is not None
        log = led.log
        segments = log.local_log.segments_from(max(led.copied_offset + 1, log.log_start_offset))
        led.wanted_end = segments[1].base_offset if len(segments) > 1 else None
        led.seen_base = log.active_segment.base_offset

    async def _wait_for_quota(self, led: _LedPartition, found: SegmentToCopy) -> None:
        """Wait until copies are below their rate, as far as it was measured."""
        while led.is_led:
            limit = self._config.current.number("remote.log.manager.copy.max.bytes.per.second")
            throttle_ms = self._copy_rate.throttle_ms(limit, self._monotonic_ms())
            if throttle_ms <= 0:
                break
            pause_ms = min(throttle_ms, _QUOTA_PAUSE_MS)
            self.statistics.copy_throttled_ms += pause_ms
            await asyncio.sleep(pause_ms / 1000)
        self._copy_rate.record(found.segment.size, self._monotonic_ms())

    async def _copy_segment(
        self, led: _LedPartition, found: SegmentToCopy, epochs: Sequence[EpochEntry]
    ) -> None:
        log = led.log
        self.statistics.copy_requests += 1
        truncations = log.truncation_count
        data = await read_segment_data(log, found, self._runtime.pool)
        metadata = await self._prepare_copy(
            led, found, epochs, txn_index_empty=data.transaction_index is None
        )
        self._being_copied[metadata.id] = None
        try:
            await self._announce(led, metadata)
            await self._write_copy(led, found, metadata, data, truncations)
        finally:
            if metadata.id not in self._given_up:
                self._end_copy(metadata.id)

    async def _write_copy(
        self,
        led: _LedPartition,
        found: SegmentToCopy,
        metadata: RemoteLogSegmentMetadata,
        data: LogSegmentData,
        truncations: int,
    ) -> None:
        """Write what is announced, and announce that it is finished."""
        log = led.log
        try:
            custom = await self._storage.copy_log_segment_data(metadata, data)
        except (KafkaError, OSError):
            if not led.is_led:
                await self._give_up_copy(led, metadata)
            raise
        limit = self._config.current.number("remote.log.metadata.custom.metadata.max.bytes")
        if not led.is_led or log.truncation_count != truncations or log.is_closed:
            # Who leads now copies what is in its own log.
            await self._give_up_copy(led, metadata)
            return
        if custom is not None and len(custom) > limit:
            await self._give_up_copy(led, metadata)
            raise RemoteStorageError(
                f"the store keeps {len(custom)} bytes with each segment; "
                f"remote.log.metadata.custom.metadata.max.bytes allows {limit}"
            )
        await self._metadata.update_remote_log_segment_metadata(
            RemoteLogSegmentMetadataUpdate(
                metadata.id,
                self._now_ms(),
                RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
                self._broker_id,
                custom,
            )
        )
        led.copying = None
        known = self._metadata.segment_by_id(metadata.id)
        if known is None or known.state is not RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
            # Another leader has given the copy up meanwhile, and deleted what was there by then.
            await self._give_up_copy(led, metadata)
            return
        self.statistics.copied_segments += 1
        self.statistics.copied_bytes += metadata.segment_size_in_bytes
        if not led.is_led or log.truncation_count != truncations:
            return  # the next leader of this log finds out what of it is in remote storage
        led.copied_offset = found.end_offset
        if log.highest_offset_in_remote_storage < found.end_offset:
            log.update_highest_offset_in_remote_storage(found.end_offset)
        _log.info(
            "%s: copied the segment of %d to %d to remote storage, %d bytes",
            led.partition.topic_partition,
            metadata.start_offset,
            metadata.end_offset,
            metadata.segment_size_in_bytes,
        )

    async def _prepare_copy(
        self,
        led: _LedPartition,
        found: SegmentToCopy,
        epochs: Sequence[EpochEntry],
        *,
        txn_index_empty: bool,
    ) -> RemoteLogSegmentMetadata:
        """What is to be copied, under the name of the attempt before if that was one of this leadership. An
        earlier life may have asked the store to delete what it had written: such a request can take effect at
        any time, so its names are not used again.
        """
        segment = found.segment
        max_timestamp = await self._runtime.pool.run(lambda: segment.largest_timestamp)
        metadata = RemoteLogSegmentMetadata(
            id=RemoteLogSegmentId(
                led.id.topic_id, led.partition.topic_partition, self._runtime.random.uuid()
            ),
            start_offset=segment.base_offset,
            end_offset=found.end_offset,
            max_timestamp_ms=max_timestamp,
            broker_id=self._broker_id,
            event_timestamp_ms=self._now_ms(),
            segment_size_in_bytes=segment.size,
            segment_leader_epochs={each.epoch: each.start_offset for each in epochs},
            txn_index_empty=txn_index_empty,
        )
        known = None if led.copying is None else self._metadata.segment_by_id(led.copying.id)
        if known is not None and known.id not in self._being_copied and _is_same_copy(known, metadata):
            return known
        return metadata

    async def _announce(self, led: _LedPartition, metadata: RemoteLogSegmentMetadata) -> None:
        """Write that a copy begins, unless that is known."""
        led.copying = metadata
        if self._metadata.segment_by_id(metadata.id) is None:
            await self._metadata.add_remote_log_segment_metadata(metadata)

    async def _give_up_copy(self, led: _LedPartition, metadata: RemoteLogSegmentMetadata) -> None:
        """Delete what was written of a copy; later, if that fails."""
        led.copying = None
        try:
            await self._delete_copy(metadata)
        except (KafkaError, OSError) as error:
            _log.warning("%s was given up, and is still in remote storage: %s", metadata.id, error)
            if len(self._given_up) >= _MAX_GIVEN_UP:
                self._leave_copy(next(iter(self._given_up)))
            self._given_up[metadata.id] = metadata
            if self._given_up_deletion is None:
                self._given_up_deletion = self._tasks.start(
                    "deletion of copies that were given up", self._delete_given_up
                )

    async def _delete_given_up(self) -> None:
        """Delete the copies that were given up, with pauses that grow as long as none of them can be."""
        pauses = self._pauses()
        attempts = 0
        while self._given_up and attempts < _GIVEN_UP_ATTEMPTS:
            await asyncio.sleep(pauses.next_ms() / 1000)
            attempts += 1
            for metadata in list(self._given_up.values()):
                try:
                    await self._delete_copy(metadata)
                except (KafkaError, OSError) as error:
                    _log.warning("%s is still in remote storage: %s", metadata.id, error)
                    break  # most likely it is the same with the others
                self._forget_given_up(metadata.id)
                pauses.reset()
                attempts = 0
        for id in list(self._given_up):
            self._leave_copy(id)
        self._given_up_deletion = None

    def _leave_copy(self, id: RemoteLogSegmentId) -> None:
        self._forget_given_up(id)
        _log.error("the objects of %s stay in remote storage: they could not be deleted", id)

    def _forget_given_up(self, id: RemoteLogSegmentId) -> None:
        if self._given_up.pop(id, None) is not None:
            self._end_copy(id)

    def _end_copy(self, id: RemoteLogSegmentId) -> None:
        self._being_copied.pop(id, None)
        self._lost_copies.pop(id, None)

    async def _delete_copy(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Delete a copy that was given up, unless it counts after all.

        If events were lost meanwhile and another broker leads, that one lists the store, and may announce
        this copy as finished at this moment: records that are nowhere else would go with it. So it is left.
        """
        if metadata.id in self._lost_copies and metadata.id.topic_id_partition not in self._led_by_id:
            _log.warning("%s was given up, and is left to the leader: events of it were lost", metadata.id)
            return
        if not self._metadata.is_ready(metadata.id.topic_id_partition):
            await self._storage.delete_log_segment_data(metadata)
            return
        known = self._metadata.segment_by_id(metadata.id)
        if known is None or known.state is not RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
            await self._delete_segment(metadata)

    # Expiry

    async def _expire(self, led: _LedPartition) -> None:
        try:
            if led.is_led and self._metadata.is_ready(led.id):
                if led.log.config.is_remote:
                    await self._expire_segments(led)
                else:
                    await self._delete_disabled(led)
            led.expiration.pauses.reset()
        except Exception as error:
            _log_unexpected(error)
            pause_ms = led.expiration.pauses.next_ms()
            _log.warning(
                "%s: deleting from remote storage failed, and is tried again in %d ms: %s",
                led.partition.topic_partition,
                pause_ms,
                error,
            )
            self._expirations.retry_later(led, pause_ms)

    async def _expire_segments(self, led: _LedPartition) -> None:
        log = led.log
        if led.copied_offset is None:
            return  # when that is known, this is called again
        copying = led.copying
        steps = plan_expiration(
            self._metadata.list_remote_log_segments(led.id),
            epochs=log.leader_epoch_cache.entries,
            log_start_offset=log.log_start_offset,
            log_end_offset=log.log_end_offset,
            local_only_bytes=local_only_bytes(log),
            retention_ms=log.config.retention_ms,
            retention_bytes=log.config.retention_bytes,
            now_ms=self._now_ms(),
            being_copied=() if copying is None else (copying.id,),
        )
        plan = await in_turns(steps, Turns(self._runtime.clock, check_every=16))
        if not led.is_led:
            return
        if plan.new_log_start_offset is not None:
            start = min(plan.new_log_start_offset, log.high_watermark)
            led.partition.delete_records_on_leader(start, "expiry in remote storage")
        led.log_start_offset = log.log_start_offset
        for metadata in plan.segments:
            if not led.is_led:
                return
            await self._delete_segment(metadata)
        if led.is_led and any(each.state is _DELETING for each in plan.segments):
            # An earlier leader had begun with them.
            self._move_log_start(led)
            led.log_start_offset = log.log_start_offset
        await self._delete_left_copies(led)
        if plan.next_check_ms is not None and led.is_led and not led.expiration.is_queued:
            self._expirations.submit_later(led, max(1, plan.next_check_ms - self._now_ms()))

    def _left_copies(self, led: _LedPartition) -> list[RemoteLogSegmentMetadata]:
        """What was begun in an earlier life of a leader, or was given up, and is not deleted yet."""
        return [
            each
            for each in self._metadata.unfinished_copies(led.id)
            # An earlier leader of this broker gives its own up itself.
            if each.id not in self._being_copied and (led.copying is None or led.copying.id != each.id)
        ]

    async def _delete_left_copies(self, led: _LedPartition) -> None:
        """Delete what copies have left that were given up, once other copies have their records."""
        for metadata in self._left_copies(led):
            if led.is_led and is_covered_by_others(
                metadata, self._find_of(led.id), led.log.leader_epoch_cache
            ):
                await self._delete_segment(metadata)

    async def _delete_disabled(self, led: _LedPartition) -> None:
        """Delete all segments of a partition whose topic has turned remote storage off."""
        log = led.log
        segments = self._metadata.list_remote_log_segments(led.id)
        first = log.segments[0].base_offset
        if log.log_start_offset < first <= log.high_watermark:
            led.partition.delete_records_on_leader(first, "remote storage was turned off")
        for metadata in segments:
            if not led.is_led or log.config.is_remote:
                return
            await self._delete_segment(metadata)
        if led.is_led and not log.config.is_remote:
            self._stop(led.partition.topic_partition)
            self._forget(led.partition.topic_partition)

    async def _delete_segment(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Delete a segment: announced before, and again when it is done."""
        self.statistics.delete_requests += 1
        try:
            await self._announce_deletion(metadata, RemoteLogSegmentState.DELETE_SEGMENT_STARTED)
            await self._storage.delete_log_segment_data(metadata)
            await self._announce_deletion(metadata, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED)
        except (KafkaError, OSError):
            self.statistics.delete_errors += 1
            raise
        self.statistics.deleted_segments += 1
        _log.info(
            "%s: deleted the segment of %d to %d from remote storage",
            metadata.id.topic_partition,
            metadata.start_offset,
            metadata.end_offset,
        )

    async def _announce_deletion(
        self, metadata: RemoteLogSegmentMetadata, state: RemoteLogSegmentState
    ) -> None:
        known = self._metadata.segment_by_id(metadata.id)
        if known is not None and known.state is not state:
            await self._metadata.update_remote_log_segment_metadata(
                RemoteLogSegmentMetadataUpdate(
                    metadata.id, self._now_ms(), state, self._broker_id, metadata.custom_metadata
                )
            )

    async def _delete_partition(self, id: TopicIdPartition) -> None:
        """Delete all segments of a partition whose topic was deleted, however long that takes."""
        pauses = self._pauses()
        is_announced = False
        while True:
            try:
                await self._metadata.wait_until_ready(id)
            except RemoteStorageNotReady:
                break
            try:
                if not is_announced:
                    # Before it lists them: with its own event it has read all that came before.
                    async with self._announcements_at_a_time:
                        await self._announce_partition(id, _MARKED)
                    is_announced = True
                async with self._deletions_at_a_time:
                    await self._delete_all_segments(id)
                break
            except (KafkaError, OSError) as error:
                pause_ms = pauses.next_ms()
                _log.warning("segments of a deleted topic are still in remote storage: %s", error)
                await asyncio.sleep(pause_ms / 1000)
        del self._deletions[id]
        self._deleted_names.pop(id, None)
        if id not in self._led_by_id and id not in self._followed:
            self._metadata.stop_partitions([id])

    async def _delete_all_segments(self, id: TopicIdPartition) -> None:
        segments = self._metadata.list_remote_log_segments(id)
        if segments:
            for metadata in segments:
                await self._delete_segment(metadata)
            await self._announce_partition(id, _FINISHED, segments[0].id.topic_partition)
        await self._delete_unknown_objects(id, segments[0].id.topic_partition if segments else None)

    async def _delete_unknown_objects(self, id: TopicIdPartition, tp: TopicPartition | None) -> None:
        """Delete what is left of a partition whose events were lost. A store may not allow lists."""
        tp = tp or self._deleted_names.get(id)
        if tp is None:
            return
        try:
            deleted = await self._storage.delete_partition_data(id.topic_id, tp)
        except RemoteStorageError as error:
            _log.warning("objects of a deleted topic may be left in remote storage: %s", error.message)
            return
        if deleted:
            _log.warning(
                "%s: %d objects in remote storage were not in the metadata, and are deleted", tp, deleted
            )

    async def _announce_partition(
        self, id: TopicIdPartition, state: RemotePartitionDeleteState, tp: TopicPartition | None = None
    ) -> None:
        """Write how far the deletion of a partition is, unless it has no segments and never had."""
        if tp is None:
            segments = self._metadata.list_remote_log_segments(id)
            if not segments:
                return
            tp = segments[0].id.topic_partition
        await self._metadata.put_remote_partition_delete_metadata(
            RemotePartitionDeleteMetadata(id.topic_id, tp, state, self._now_ms(), self._broker_id)
        )

    # What metrics show

    @property
    def led_topics(self) -> list[str]:
        """The topics of which partitions with remote storage are led here."""
        return list(self._led_of_topic)

    def lag(self) -> list[tuple[TopicPartition, int, int]]:
        """The closed segments of each partition that are still to be copied: how many, and their bytes.
        Partitions that have none are left out.
        """
        found = []
        for tp, led in self._behind.items():
            if led.log.config.copies_to_remote and not led.log.is_closed:
                segments = uncopied_segments(led.log)
                if segments:
                    found.append((tp, len(segments), sum(segment.size for segment in segments)))
        return found


def _log_unexpected(error: Exception) -> None:
    """Log an error with its origin that no store and no disk has."""
    if not isinstance(error, KafkaError | OSError):
        _log.error("an unexpected error of tiered storage", exc_info=error)


def _is_same_copy(known: RemoteLogSegmentMetadata, wanted: RemoteLogSegmentMetadata) -> bool:
    """Whether this copy was begun before, and not finished."""
    return (
        known.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED
        and known.start_offset == wanted.start_offset
        and known.end_offset == wanted.end_offset
        and known.segment_size_in_bytes == wanted.segment_size_in_bytes
        and dict(known.segment_leader_epochs) == dict(wanted.segment_leader_epochs)
        and known.txn_index_empty == wanted.txn_index_empty
    )
