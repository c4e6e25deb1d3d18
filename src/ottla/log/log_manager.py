"""The log directories of a node and the partitions in them.

`LogManager` locks the directories, loads their logs side by side, creates and deletes logs, and has a method
for each periodic task (flush, checkpoint, retention, removal of deleted files); the node decides when to call
it. Calls that may block run in the pool; everything else runs on the event loop, in small steps.

A directory that fails is offline with all its logs; the others go on. A log that cannot be recovered is
refused with the reason (`failed`), and its files and checkpoints are kept until it is deleted, set aside to
be fetched again from a leader (`set_aside`), or repaired by the operator. A report in its directory makes
every later load check all of it again, so that the mark of a clean shutdown is true of the others.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import posixpath
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from ottla.log.config.log_config import LogConfig
from ottla.log.directory import checkpoints
from ottla.log.directory.contents import list_directory, open_directory
from ottla.log.directory.dir_names import DirKind, dir_name, moved_dir_name, parse_dir_name
from ottla.log.directory.directory import LogDirectory
from ottla.log.directory.log_creation import LogCreation
from ottla.log.log_flusher import LogFlusher
from ottla.log.log_loader import LoadedPartition, LoadOptions, create_log, load_part, report_damage
from ottla.log.log_statistics import LogStatistics
from ottla.log.producers.state_manager import DEFAULT_PRODUCER_STATE_CONFIG, ProducerStateManagerConfig
from ottla.log.segment.handles import DEFAULT_CAPACITY, DEFAULT_UNSYNCED_CAPACITY, FileHandles
from ottla.log.segment.segment import LogSegment
from ottla.log.unified_log import UnifiedLog
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import CLUSTER_METADATA_TOPIC, TopicPartition
from ottla.runtime.clock import Clock
from ottla.runtime.disk import Disk, Lock, remove_tree
from ottla.runtime.pool import CallOnce, Pool
from ottla.runtime.random import Random
from ottla.runtime.turns import Turns

_log = logging.getLogger(__name__)

_AT_ONCE = 256
"""Logs that one call in the pool loads."""
CREATIONS_AT_ONCE = 64
"""New logs that one call in the pool creates, or makes durable."""
_CLOSED_AT_ONCE = 16
"""Logs that one call in the pool closes."""
_HIGH_WATERMARKS_AT_ONCE = 2_000
"""High watermarks that are collected in one turn."""
_ATTEMPTS_TO_COLLECT = 3
"""Times that the content of a checkpoint is collected, if each time something else is written meanwhile."""
_METADATA_LOG = TopicPartition(CLUSTER_METADATA_TOPIC, 0)
MAX_SET_ASIDE = 3
"""Damaged logs of one partition that are kept in a log directory. Where there are more, the disk is failing,
and a replica that is fetched again and again would only fill it.
"""

ConfigOf = Callable[[str], LogConfig]


class DamagedLog(NamedTuple):
    """A log that is not served because synced records are damaged or missing."""

    directory: LogDirectory
    dir: str | None
    """The path of its files; None once they were renamed."""
    error: KafkaError
    is_reported: bool
    """True if a report in `dir` makes the next load check all of it."""
    aside: str | None = None
    """Where its files are set aside; None if they are not, and once that is durable."""


class NewLog(NamedTuple):
    """A log that a partition needs, unless it is there."""

    partition: TopicPartition
    config: LogConfig
    topic_id: bytes
    is_new: bool
    """False if the partition may lie in a directory that is offline."""
    directory_id: bytes | None = None
    """The directory that it is assigned to; None to have one chosen."""


class LogManager:
    """All logs of a node. Belongs to the event loop."""

    def __init__(
        self,
        dirs: Sequence[str],
        *,
        disk: Disk,
        clock: Clock,
        random: Random,
        pool: Pool,
        producer_config: ProducerStateManagerConfig = DEFAULT_PRODUCER_STATE_CONFIG,
        open_files: int = DEFAULT_CAPACITY,
        unsynced_files: int = DEFAULT_UNSYNCED_CAPACITY,
        on_directory_failure: Callable[[LogDirectory], None] | None = None,
        on_damage: Callable[[str, KafkaError], None] | None = None,
        recovery_threads: int = 2,
        lock: bool = True,
        failed: Mapping[str, str] | None = None,
    ) -> None:
        """`open_files` and, besides, `unsynced_files` bound the files that are open at once (`FileHandles`).
        `on_directory_failure` may be called in any thread, once for each directory, and so may `on_damage`,
        with the path of a log and the error, each time that damaged batches are met. So many
        `recovery_threads` of the pool load the logs of one directory. Without `lock` the caller holds the
        locks of the directories itself, and says why those that `failed` stay offline.
        """
        if not dirs or len(set(dirs)) != len(dirs):
            raise KafkaError(
                ErrorCode.INVALID_CONFIG, f"log.dirs must name at least one directory, each once: {dirs}"
            )
        self._disk = disk
        self._clock = clock
        self._random = random
        self._pool = pool
        self._producer_config = replace(producer_config)  # its own, which may change
        self.handles = FileHandles(disk, open_files, unsynced_files)
        self.statistics = LogStatistics()
        # Called when a segment was closed because it is to go to remote storage.
        self.on_segment_closed: Callable[[UnifiedLog], None] = lambda _: None
        self._directories = [
            LogDirectory(path, self.handles, clock, random, on_directory_failure, on_damage) for path in dirs
        ]
        for directory in self._directories:
            if failed is not None and directory.path in failed:
                directory.fail(failed[directory.path])
        self._recovery_threads = recovery_threads
        self._lock = lock
        self._locks: dict[str, Lock] = {}
        self._logs: dict[TopicPartition, UnifiedLog] = {}
        self._future_logs: dict[TopicPartition, UnifiedLog] = {}
        self._failed: dict[TopicPartition, DamagedLog] = {}
        # Future logs that could not be loaded, until it is known whether they are the only copy.
        self._failed_futures: dict[TopicPartition, DamagedLog] = {}
        # (due time, number, directory, path): partitions to remove, and when.
        self._removals: list[tuple[int, int, LogDirectory, str]] = []
        self._removals_made = 0
        self._flusher = LogFlusher(pool, clock, self.statistics.flushes.observe)
        # The last creation of logs in the pool, until it is known to be over.
        self._making: CallOnce[list[UnifiedLog | None]] | None = None
        # New logs whose creation is not durable yet, and the task that completes it.
        self._created: deque[UnifiedLog] = deque()
        # How many they are, with those that are in work.
        self.new_logs = 0
        self._creating: asyncio.Task[None] | None = None
        # The completion of single creations, ahead of the queue.
        self._completing: dict[asyncio.Task[None], None] = {}
        self._strays: list[str] = []
        self._set_aside: list[str] = []
        # Logs loaded beside another log of the same partition, each with the map that holds the other.
        self._duplicates: list[tuple[dict[TopicPartition, UnifiedLog], UnifiedLog]] = []
        self._clean_epochs: dict[str, int] = {}

    # Directories and logs

    @property
    def directories(self) -> tuple[LogDirectory, ...]:
        return tuple(self._directories)

    @property
    def live_directories(self) -> tuple[LogDirectory, ...]:
        return tuple(each for each in self._directories if each.is_online)

    @property
    def failed(self) -> dict[TopicPartition, KafkaError]:
        """The partitions that could not be loaded, and why."""
        return {partition: damaged.error for partition, damaged in self._failed.items()}

    @property
    def has_failed(self) -> bool:
        return bool(self._failed)

    @property
    def directories_set_aside(self) -> tuple[str, ...]:
        """The directories of damaged logs that were replaced, for the operator to remove."""
        return tuple(self._set_aside)

    @property
    def strays(self) -> tuple[str, ...]:
        """The directories of partitions that do not belong to this node."""
        return tuple(self._strays)

    @property
    def clean_shutdown_epoch(self) -> int | None:
        """The broker epoch of the last shutdown if every directory agrees that it was clean; None if not."""
        epochs = dict.fromkeys(self._clean_epochs.get(directory.path) for directory in self._directories)
        return next(iter(epochs)) if len(epochs) == 1 else None

    def logs(self) -> list[UnifiedLog]:
        """The current logs, without the future ones."""
        return list(self._logs.values())

    def logs_in(self, directory: LogDirectory) -> list[UnifiedLog]:
        """All logs of a directory, the future ones too."""
        every = (*self._logs.values(), *self._future_logs.values())
        return [log for log in every if log.directory is directory]

    @property
    def log_count(self) -> int:
        """The number of partitions that have a log."""
        return len(self._logs)

    def holds(self, log: UnifiedLog) -> bool:
        """Whether it is still the log, or the future log, of its partition."""
        partition = log.topic_partition
        return log is self._logs.get(partition) or log is self._future_logs.get(partition)

    @property
    def future_partitions(self) -> list[TopicPartition]:
        """The partitions that are being moved to another directory."""
        return list(self._future_logs)

    def get_log(self, partition: TopicPartition, *, future: bool = False) -> UnifiedLog | None:
        """The log of a partition; None if there is none, KAFKA_STORAGE_ERROR if it cannot be used."""
        log = (self._future_logs if future else self._logs).get(partition)
        if log is not None:
            log.directory.check_online()
        elif not future and partition in self._failed:
            raise self._failed[partition].error
        return log

    def directory_by_id(self, directory_id: bytes) -> LogDirectory | None:
        for directory in self.live_directories:
            if directory.directory_id == directory_id:
                return directory
        return None

    # Starting

    async def start(
        self, config_of: ConfigOf, belongs: Callable[[UnifiedLog], bool] = lambda _: True
    ) -> None:
        """Lock the directories and load their logs; `config_of` gives the settings of a topic by its name.
        Where a partition is in two directories, `belongs` decides whether a log is the one of the metadata.

        A directory whose disk fails is offline afterwards. KAFKA_STORAGE_ERROR if that is true of all, or if
        another process uses one of them, or if both logs of a partition belong here.
        """
        try:
            for directory in self.live_directories:
                lock = await self._pool.run(partial(open_directory, directory, lock=self._lock))
                if lock is not None:
                    self._locks[directory.path] = lock
            self._check_some_online()
            await asyncio.gather(*(self._load(each, config_of) for each in self.live_directories))
            await self._pool.run(self._resolve_duplicates, belongs)
            await self._pool.run(self._complete_moves)
            await self._resolve_damaged_futures()
            self._check_some_online()
        except BaseException:
            self._unlock()
            raise

    def _check_some_online(self) -> None:
        if not self.live_directories:
            reasons = "; ".join(f"{each.path}: {each.failure}" for each in self._directories)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"no log directory can be used: {reasons}")

    async def _load(self, directory: LogDirectory, config_of: ConfigOf) -> None:
        try:
            contents = await self._pool.run(list_directory, directory)
        except OSError as error:
            directory.fail(f"it could not be listed: {error}")
            return
        if contents.clean_epoch is not None:
            self._clean_epochs[directory.path] = contents.clean_epoch
        for path in contents.deleted:
            self._remove_later(directory, path, 0)
        self._strays.extend(contents.strays)
        self._set_aside.extend(contents.damaged)
        options = LoadOptions(contents.clean_epoch is not None, self._producer_config)
        directory.high_watermarks.load(contents.high_watermarks)
        directory.high_watermarks.forget(
            contents.high_watermarks.keys() - {each.partition for each in contents.partitions}
        )
        found = [(each, config_of(each.partition.topic)) for each in contents.partitions]
        size = min(_AT_ONCE, max(1, -(-len(found) // self._recovery_threads)))
        parts = iter([found[start : start + size] for start in range(0, len(found), size)])

        async def load_parts() -> None:
            for part in parts:
                loaded = await self._pool.run(load_part, directory, part, options)
                for each in loaded:
                    self._take_in(directory, each, contents.high_watermarks)
                logs = [each.result for each in loaded if isinstance(each.result, UnifiedLog)]
                behind = [log for log in logs if log.high_watermark < log.log_end_offset]
                if behind:
                    await self._pool.run(_find_unstable, behind)

        # Loading after a crash waits for the disk most of the time, so that threads help; after a clean
        # shutdown there is little to wait for.
        await asyncio.gather(*(load_parts() for _ in range(self._recovery_threads)))

    def _take_in(
        self, directory: LogDirectory, loaded: LoadedPartition, high_watermarks: Mapping[TopicPartition, int]
    ) -> None:
        (name, partition, kind), result, reported = loaded
        if isinstance(result, OSError):
            directory.fail(f"{name} could not be loaded: {result}")
        elif isinstance(result, KafkaError):
            _log.error("%s is not served: %s", name, result.message)
            path = posixpath.join(directory.path, name)
            failed = self._failed_futures if kind is DirKind.FUTURE else self._failed
            failed[partition] = DamagedLog(directory, path, result, reported)
        else:
            logs = self._future_logs if kind is DirKind.FUTURE else self._logs
            if partition in high_watermarks:
                result.update_high_watermark(high_watermarks[partition])
            if logs.setdefault(partition, result) is not result:
                self._duplicates.append((logs, result))

    def _resolve_duplicates(self, belongs: Callable[[UnifiedLog], bool]) -> None:
        while self._duplicates:
            logs, one = self._duplicates.pop()
            partition = one.topic_partition
            logs[partition], stray = _choose_duplicate(one, logs[partition], belongs)
            gone, errors = self._take_out([partition], {partition: stray}, DirKind.STRAY)
            self._strays.extend(log.dir for log in gone)
            if errors and stray.directory.is_online:
                raise errors[partition]

    def _complete_moves(self) -> None:
        """Let a future log replace a current one that is gone: the node stopped between the two renames of
        `replace_current_with_future_log`, and the future log is the only copy. Not while a directory is
        offline, since the current log may be there.
        """
        if len(self.live_directories) < len(self._directories):
            return
        for partition, future in list(self._future_logs.items()):
            if partition not in self._logs and partition not in self._failed:
                _log.warning("%s has no other copy and becomes the log of %s", future.dir, partition)
                self._adopt(partition)

    async def _resolve_damaged_futures(self) -> None:
        """Set damaged future logs aside: the moves begin again. One without a current log may be the only
        copy, and is not served, as a damaged current log is not.
        """
        for partition, damaged in list(self._failed_futures.items()):
            if partition in self._logs and damaged.dir is not None:
                path = self._path_aside(partition, damaged.directory)
                try:
                    await self._pool.run(_rename_durably, self._disk, damaged.dir, path)
                    self._set_aside.append(path)
                except OSError as error:
                    _log.error("%s", damaged.directory.io_error(f"renaming {damaged.dir}", error).message)
            else:
                self._failed.setdefault(partition, damaged)
        self._failed_futures.clear()

    def recover_abandoned_future_logs(self, is_counted_on: Callable[[UnifiedLog], bool]) -> None:
        """Let future logs replace current ones that are not here, where `is_counted_on` says that the
        controller has assigned the replica to the future log's directory and the node stopped before the
        move was complete.
        """
        for partition, future in list(self._future_logs.items()):
            here = partition in self._logs or partition in self._failed
            if not here and is_counted_on(future):
                _log.warning(
                    "%s was about to become the log of %s and does so now: the other one is offline",
                    future.dir,
                    partition,
                )
                self._adopt(partition)

    def _adopt(self, partition: TopicPartition) -> None:
        try:
            self._future_logs[partition].rename_dir(dir_name(partition))
        except KafkaError as error:
            _log.error("the move of %s could not be completed: %s", partition, error.message)
            return
        self._logs[partition] = self._future_logs.pop(partition)

    # Creating and deleting

    def get_or_create_log(
        self,
        partition: TopicPartition,
        config: LogConfig,
        *,
        topic_id: bytes | None = None,
        is_new: bool = True,
        directory_id: bytes | None = None,
        future: bool = False,
    ) -> UnifiedLog:
        """Return the log of the partition; create it if there is none, in the requested directory or else in
        the one with the fewest logs.

        A partition that is not `is_new` may lie in a directory that is offline; then it is not created in
        another one. INCONSISTENT_TOPIC_ID if the log here is that of another topic of the same name.
        """
        log = self.get_log(partition, future=future)
        if log is None:
            log = self._create(partition, config, topic_id, is_new, directory_id, future)
        elif topic_id is not None:
            log.assign_topic_id(topic_id)
        return log

    def _create(
        self,
        partition: TopicPartition,
        config: LogConfig,
        topic_id: bytes | None,
        is_new: bool,
        directory_id: bytes | None,
        future: bool,
    ) -> UnifiedLog:
        self._check_not_offline(partition, is_new)
        current = self._logs.get(partition)
        if future and current is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{partition} is not here, so it cannot be moved"
            )
        wanted = self.directory_by_id(directory_id) if directory_id is not None else None
        if future and (wanted is None or (current is not None and current.directory is wanted)):
            raise KafkaError(
                ErrorCode.LOG_DIR_NOT_FOUND, f"{partition} can be moved only to another log directory"
            )
        name = dir_name(partition)
        if future:
            name = moved_dir_name(partition, DirKind.FUTURE, self._random.uuid())
        error: KafkaError | None = None
        for directory in [wanted] if wanted is not None else self._next_log_dirs():
            try:
                log = create_log(
                    directory,
                    name,
                    partition,
                    config,
                    topic_id=topic_id,
                    producer_config=self._producer_config,
                )
            except KafkaError as refused:
                if refused.code is not ErrorCode.KAFKA_STORAGE_ERROR:
                    raise
                error = refused
                continue
            self._host(log, self._future_logs if future else self._logs)
            return log
        raise error or KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"no log directory is online: {partition}")

    def _check_not_offline(self, partition: TopicPartition, is_new: bool) -> None:
        offline = [each.path for each in self._directories if not each.is_online]
        if offline and not is_new:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"Can not create log for {partition} because log directories {', '.join(offline)} are "
                "offline: the partition may be there",
            )

    def _host(self, log: UnifiedLog, logs: dict[TopicPartition, UnifiedLog]) -> None:
        """Take a new log into service."""
        logs[log.topic_partition] = log
        self._created.append(log)
        self.new_logs += 1
        log.directory.high_watermarks.moved[log] = None

    def _next_log_dirs(self) -> list[LogDirectory]:
        """The directories that can be used, the one with the fewest logs first."""
        counts = self._count_logs()
        return sorted(counts, key=lambda directory: counts[directory])

    def _count_logs(self) -> dict[LogDirectory, int]:
        """The directories that can be used, each with the number of its logs if there are several."""
        counts = dict.fromkeys(self.live_directories, 0)
        if len(self._directories) > 1:
            for log in (*self._logs.values(), *self._future_logs.values()):
                if log.directory in counts:
                    counts[log.directory] += 1
        return counts

    async def create_logs(self, wanted: Sequence[NewLog]) -> None:
        """Create the logs that are not there, in the pool: where the disk is busy, it keeps even the making
        of an empty file waiting. Only for the one caller that creates logs, apart from future ones. A log
        that could not be created is left out; `get_or_create_log` tries again, and says why it cannot.
        """
        places = self._places_of([each for each in wanted if self._lacks(each.partition)])
        if not places:
            return
        await self._forget_former_logs(places)
        # Only the event loop changes checkpoints.
        places = [(directory, new) for directory, new in places if not directory.knows(new.partition)]
        self._making = CallOnce(partial(_create_all, places, self._producer_config))
        made = await self._pool.run(self._making)
        self._making = None
        for log in made:
            if log is None:
                continue
            if log.directory.is_online and self._lacks(log.topic_partition):
                self._host(log, self._logs)
            else:
                log.close_handlers()

    def _lacks(self, partition: TopicPartition) -> bool:
        return partition not in self._logs and partition not in self._failed

    def _places_of(self, wanted: Sequence[NewLog]) -> list[tuple[LogDirectory, NewLog]]:
        """Choose the directories of new logs."""
        places: list[tuple[LogDirectory, NewLog]] = []
        counts = self._count_logs() if wanted else {}
        for new in wanted:
            try:
                self._check_not_offline(new.partition, new.is_new)
            except KafkaError:
                continue
            directory = self.directory_by_id(new.directory_id) if new.directory_id is not None else None
            if directory is None:
                directory = min(counts, key=lambda each: counts[each], default=None)
            if directory is not None:
                counts[directory] += 1
                places.append((directory, new))
        return places

    async def _forget_former_logs(self, places: Iterable[tuple[LogDirectory, NewLog]]) -> None:
        """Drop new logs from the checkpoints: one that was set aside has left its offsets there."""
        known: dict[LogDirectory, set[TopicPartition]] = {}
        for directory, new in places:
            if directory.knows(new.partition):
                known.setdefault(directory, set()).add(new.partition)
        for directory, gone in known.items():
            try:
                await directory.forget_in_pool(gone, self._pool)
            except OSError as error:
                directory.io_error("forgetting logs that are gone", error)

    def delete_logs(
        self, partitions: Iterable[TopicPartition], *, future: bool = False
    ) -> dict[TopicPartition, KafkaError]:
        """Take logs out of service at once, and remove their directories after `file.delete.delay.ms`; return
        why logs could not be deleted for good.
        """
        partitions = tuple(partitions)
        gone, errors = self._take_out(partitions, self._future_logs if future else self._logs, DirKind.DELETE)
        for log in gone:
            self._remove_later(log.directory, log.dir, log.config.file_delete_delay_ms)
        return errors if future else errors | self._delete_damaged(partitions)

    def _delete_damaged(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, KafkaError]:
        if not self._failed:
            return {}
        damaged, errors = self._take_out_damaged(partitions, DirKind.DELETE)
        for directory, path in damaged:
            self._remove_later(directory, path, LogConfig().file_delete_delay_ms)
        return errors

    async def delete_logs_in_turns(
        self, partitions: Collection[TopicPartition], turns: Turns
    ) -> dict[TopicPartition, KafkaError]:
        """The same for any number of logs, with the syncs in the pool. Their checkpoints are written when it
        returns, so that a new log of the same name does not inherit the offsets of the old one.
        """
        errors: dict[TopicPartition, KafkaError] = {}
        gone: dict[LogDirectory, list[UnifiedLog]] = {}
        for log in [self._logs[partition] for partition in partitions if partition in self._logs]:
            self._take_out_one(log, self._logs, DirKind.DELETE, gone, errors)
            await turns.pause_if_due()
        for directory, moved in gone.items():
            try:
                await self._pool.run(self._disk.sync_dir, directory.path)
                await directory.forget_in_pool({log.topic_partition for log in moved}, self._pool)
            except OSError as error:
                failure = directory.io_error("forgetting logs that are gone", error)
                errors |= {log.topic_partition: failure for log in moved}
            for log in moved:
                self._remove_later(directory, log.dir, log.config.file_delete_delay_ms)
                await turns.pause_if_due()
        return errors | self._delete_damaged(partitions)

    def delete_log(self, partition: TopicPartition, *, future: bool = False) -> None:
        for error in self.delete_logs([partition], future=future).values():
            raise error

    def mark_stray(self, partition: TopicPartition) -> None:
        """Take the log out of service, but keep its directory: the metadata does not know it."""
        gone, errors = self._take_out([partition], self._logs, DirKind.STRAY)
        self._strays.extend(log.dir for log in gone)
        if partition in self._failed:
            damaged, more = self._take_out_damaged([partition], DirKind.STRAY)
            self._strays.extend(path for _, path in damaged)
            errors |= more
        for error in errors.values():
            raise error

    def _take_out(
        self, partitions: Iterable[TopicPartition], logs: dict[TopicPartition, UnifiedLog], kind: DirKind
    ) -> tuple[list[UnifiedLog], dict[TopicPartition, KafkaError]]:
        """Close logs and rename their directories, with one sync of names and one write of each checkpoint
        for all of them; return the logs that are gone, and the errors.
        """
        errors: dict[TopicPartition, KafkaError] = {}
        gone: dict[LogDirectory, list[UnifiedLog]] = {}
        for log in [logs[partition] for partition in partitions if partition in logs]:
            self._take_out_one(log, logs, kind, gone, errors)
        for directory, moved in gone.items():
            try:
                self._disk.sync_dir(directory.path)
                directory.forget(log.topic_partition for log in moved)
            except OSError as error:
                failure = directory.io_error("forgetting logs that are gone", error)
                errors |= {log.topic_partition: failure for log in moved}
        return [log for moved in gone.values() for log in moved], errors

    def _take_out_one(
        self,
        log: UnifiedLog,
        logs: dict[TopicPartition, UnifiedLog],
        kind: DirKind,
        gone: dict[LogDirectory, list[UnifiedLog]],
        errors: dict[TopicPartition, KafkaError],
    ) -> None:
        """Close a log and rename its directory; the caller syncs that."""
        partition = log.topic_partition
        try:
            log.rename_dir(moved_dir_name(partition, kind, self._random.uuid()), sync=False)
        except KafkaError as error:
            errors[partition] = error
            return
        del logs[partition]
        try:
            log.close_handlers()
        except OSError as error:
            errors[partition] = log.directory.io_error("closing a log that is gone", error)
        gone.setdefault(log.directory, []).append(log)

    # Damaged logs

    def topic_id_of_damaged(self, partition: TopicPartition) -> bytes | None:
        """The topic id of a log that is not served; None if that cannot be read either."""
        dir = self._failed[partition].dir
        if dir is None:
            return None
        try:
            return checkpoints.read_topic_id(self._disk, posixpath.join(dir, checkpoints.PARTITION_METADATA))
        except (OSError, checkpoints.CorruptCheckpoint):
            return None

    def fail_log(self, partition: TopicPartition, error: KafkaError) -> None:
        """Take a log out of service in which damage was found; its files stay as they are."""
        log = self._logs.pop(partition, None)
        if log is None:
            return
        log.close_handlers()
        _log.error("%s is not served any more: %s", log.dir, error.message)
        directory, reported = log.directory, False
        try:
            # No later load may take what it has now for a tail that a crash has lost.
            directory.raise_recovery_points({partition: log.log_end_offset})
            reported = report_damage(directory, log.dir, error)
        except OSError as failure:
            _log.error("%s", directory.io_error("keeping the end of a damaged log", failure).message)
        self._failed[partition] = DamagedLog(directory, log.dir, error, reported)

    async def set_aside(self, partition: TopicPartition) -> None:
        """Rename the directory of a damaged log, so that the partition can be created again here and fetched
        from its leader. The operator may look at it and removes it. KAFKA_STORAGE_ERROR if that cannot be
        done, or if too many of this partition are kept already.
        """
        damaged = self._failed.get(partition)
        if damaged is None:
            return
        directory = damaged.directory
        if damaged.dir is not None:
            damaged = self._rename_aside(partition, damaged, damaged.dir)
        if damaged.aside is None:
            return
        # Until that is durable, no log of this name is created. If it fails, the next call tries it again.
        try:
            await self._pool.run(self._disk.sync_dir, directory.path)
        except OSError as error:
            raise directory.io_error(f"setting {damaged.aside} aside", error) from error
        if self._failed.get(partition) is not damaged:
            return  # another call was faster, or the partition is gone
        self._set_aside.append(damaged.aside)
        del self._failed[partition]
        _log.error(
            "the damaged log of %s is set aside as %s: %s", partition, damaged.aside, damaged.error.message
        )

    def _rename_aside(self, partition: TopicPartition, damaged: DamagedLog, dir: str) -> DamagedLog:
        directory = damaged.directory
        path = self._path_aside(partition, directory)
        same = [each for each in self._set_aside if _partition_of(each) == _partition_of(path)]
        kept = [each for each in same if self._disk.exists(each)]
        if len(kept) >= MAX_SET_ASIDE:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{partition} was damaged before, and {', '.join(kept)} are kept: the disk seems to fail. "
                f"Remove them to have the partition fetched again. {damaged.error.message}",
            )
        try:
            self._disk.rename(dir, path)
        except OSError as error:
            raise directory.io_error(f"setting {dir} aside", error) from error
        self._failed[partition] = moved = damaged._replace(dir=None, aside=path)
        return moved

    def _path_aside(self, partition: TopicPartition, directory: LogDirectory) -> str:
        name = moved_dir_name(partition, DirKind.DAMAGED, self._random.uuid())
        return posixpath.join(directory.path, name)

    def _take_out_damaged(
        self, partitions: Iterable[TopicPartition], kind: DirKind
    ) -> tuple[list[tuple[LogDirectory, str]], dict[TopicPartition, KafkaError]]:
        """Rename the directories of damaged logs; return where they are now, and the errors."""
        errors: dict[TopicPartition, KafkaError] = {}
        gone: list[tuple[LogDirectory, str]] = []
        changed: dict[LogDirectory, list[TopicPartition]] = {}
        for partition in partitions:
            damaged = self._failed.get(partition)
            if damaged is None:
                continue
            directory = damaged.directory
            try:
                directory.check_online()
                if damaged.dir is not None:
                    name = moved_dir_name(partition, kind, self._random.uuid())
                    path = posixpath.join(directory.path, name)
                    self._disk.rename(damaged.dir, path)
                    gone.append((directory, path))
            except KafkaError as error:
                errors[partition] = error
                continue
            except OSError as error:
                errors[partition] = directory.io_error(f"renaming {damaged.dir}", error)
                continue
            if damaged.aside is not None:
                self._set_aside.append(damaged.aside)
            del self._failed[partition]
            changed.setdefault(directory, []).append(partition)
        for directory, moved in changed.items():
            try:
                self._disk.sync_dir(directory.path)
                directory.forget(moved)
            except OSError as error:
                failure = directory.io_error("forgetting logs that are gone", error)
                errors |= dict.fromkeys(moved, failure)
        return gone, errors

    def replace_current_with_future_log(self, partition: TopicPartition) -> UnifiedLog:
        """Let the future log, which has caught up, replace the current one."""
        future, current = self._future_logs.get(partition), self._logs.get(partition)
        if future is None or current is None:
            raise KafkaError(
                ErrorCode.REPLICA_NOT_AVAILABLE, f"{partition} has no log to replace, or none to do it"
            )
        # Durable before the old one is removed: from then on it is the only copy.
        future.flush()
        current.rename_dir(moved_dir_name(partition, DirKind.DELETE, self._random.uuid()))
        future.rename_dir(dir_name(partition))
        future.update_high_watermark(current.high_watermark)
        del self._future_logs[partition]
        self._logs[partition] = future
        self._drop(current)
        self._remove_later(current.directory, current.dir, current.config.file_delete_delay_ms)
        return future

    def _drop(self, log: UnifiedLog) -> None:
        log.close_handlers()
        try:
            log.directory.forget([log.topic_partition])
        except OSError as error:
            raise log.directory.io_error(f"forgetting {log.topic_partition}", error) from error

    def _remove_later(self, directory: LogDirectory, path: str, delay_ms: int) -> None:
        self._removals_made += 1
        due_ms = self._clock.wall_ms() + delay_ms
        heapq.heappush(self._removals, (due_ms, self._removals_made, directory, path))

    def truncate_to(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Truncate several logs, with one write of each checkpoint for all of them."""
        logs = {partition: self._logs[partition] for partition in offsets if partition in self._logs}
        for directory in self.live_directories:
            here = {
                partition: log.end_after_truncation(offsets[partition])
                for partition, log in logs.items()
                if log.directory is directory and offsets[partition] < log.log_end_offset
            }
            if here:
                try:
                    directory.lower_recovery_points(here)
                except OSError as error:
                    raise directory.io_error("lowering recovery points", error) from error
        for partition, log in logs.items():
            log.truncate_to(offsets[partition])

    # Periodic tasks

    def complete_log_creations(self) -> None:
        """Begin to make the logs that were created since the last time durable, off the event loop."""
        if self._created and (self._creating is None or self._creating.done()):
            self._creating = asyncio.get_running_loop().create_task(self._complete_log_creations())

    async def complete_creation(self, log: UnifiedLog) -> None:
        """Make a new log durable without blocking the event loop, ahead of those in the queue. If it fails,
        the first record of the log tries it again.
        """
        work = asyncio.get_running_loop().create_task(log.complete_creation_in(self._pool))
        self._completing[work] = None
        work.add_done_callback(self._completing.pop)
        try:
            await asyncio.shield(work)  # `close` waits for it if the caller is cancelled
        except KafkaError as error:
            _log.warning("a new log could not be made durable yet: %s", error.message)

    async def _complete_log_creations(self) -> None:
        """Complete the creations that are queued, and those that join the queue meanwhile."""
        logs = self._created
        while logs:
            part = [logs.popleft() for _ in range(min(CREATIONS_AT_ONCE, len(logs)))]
            by_directory: dict[LogDirectory, list[UnifiedLog]] = {}
            for log in part:
                by_directory.setdefault(log.directory, []).append(log)
            for directory, here in by_directory.items():
                try:
                    await self._complete_log_creations_in(directory, here)
                except Exception:
                    # The other logs in the queue go on.
                    _log.exception("new logs could not be made durable yet")
                finally:
                    self.new_logs -= len(here)

    async def _complete_log_creations_in(self, directory: LogDirectory, logs: Iterable[UnifiedLog]) -> None:
        """Make new logs of a directory durable. After an error that passes, the first record of each log
        completes its creation.
        """
        if not directory.is_online:
            return
        found = [(log, log.begin_creation()) for log in logs]
        begun = [(log, creation) for log, creation in found if creation is not None]
        try:
            await self._pool.run(_complete_all, [creation for _, creation in begun])
        except OSError as error:
            failure = directory.io_error("making new logs durable", error)
            _log.warning("new logs could not be made durable yet: %s", failure.message)
        finally:
            for log, creation in begun:
                log.on_creation_ended(creation)

    async def flush_dirty_logs(self, now_ms: int) -> int:
        """Flush the logs that `flush.ms` says are due, and closed segments; how many logs were flushed."""
        flushed = 0
        async for log in self._each_log():
            due = log.unflushed_messages > 0 and now_ms - log.last_flush_ms >= log.config.flush_ms
            closed = log.recovery_point < log.active_segment.base_offset
            if due or closed:
                try:
                    await self.flush(log, None if due else log.active_segment.base_offset)
                    flushed += 1
                except KafkaError as error:
                    _log.error("flushing %s: %s", log.topic_partition, error.message)
        return flushed

    async def flush(self, log: UnifiedLog, upto: int | None = None) -> None:
        """Make a log durable below `upto`, the log end if None, without blocking the event loop."""
        await self._flusher.flush(log, upto)

    def commit(self, log: UnifiedLog) -> asyncio.Future[None]:
        """Make durable what was appended to a log, with what was appended to others (`LogFlusher.commit`)."""
        return self._flusher.commit(log)

    async def checkpoint_log_recovery_offsets(self) -> None:
        """Write the recovery points of all logs, so that the next recovery is short."""
        for directory in self.live_directories:
            await self._checkpoint(directory, directory.recovery_points, _recovery_point)

    async def checkpoint_log_start_offsets(self) -> None:
        """Write the log starts that do not follow from the file names."""
        for directory in self.live_directories:
            await self._checkpoint(directory, directory.log_starts, _log_start_to_keep)

    async def checkpoint_high_watermarks(self) -> None:
        """Write the high watermarks, if one has moved since the last time."""
        for directory in self.live_directories:
            turns = Turns(self._clock)
            while directory.high_watermarks.collect(_HIGH_WATERMARKS_AT_ONCE):
                await turns.pause()
            write = directory.high_watermarks.stage()
            if write is not None:
                await _try_write(directory, self._pool.run(write))

    async def _checkpoint(
        self,
        directory: LogDirectory,
        checkpoint: checkpoints.OffsetCheckpoint,
        offset_of: Callable[[UnifiedLog], int | None],
    ) -> None:
        """Write a checkpoint of a directory if it has changed. The event loop collects the content, in turns,
        and gives the file its name; what blocks runs in the pool. A failed write is reported to the directory
        and logged, not raised: the next write may succeed, and if not, the directory is offline.
        """
        async with checkpoint.staging:
            await self._collect_and_write(directory, checkpoint, offset_of)

    async def _collect_and_write(
        self,
        directory: LogDirectory,
        checkpoint: checkpoints.OffsetCheckpoint,
        offset_of: Callable[[UnifiedLog], int | None],
    ) -> None:
        for _ in range(_ATTEMPTS_TO_COLLECT):
            version = checkpoint.begin()
            offsets = {}
            async for log in self._each_log():
                if log.directory is directory and (offset := offset_of(log)) is not None:
                    offsets[log.topic_partition] = offset
            if checkpoint.is_newest(version):
                break
        # A log may have been found damaged meanwhile, so these come last.
        offsets |= _offsets_of_unloaded_logs(checkpoint.offsets, _damaged_in(directory, self._failed))
        staged = checkpoint.stage(offsets, version)
        if staged is None or not await _try_write(directory, self._pool.run(staged.write)):
            return
        try:
            installed = checkpoint.install(staged)
        except OSError as error:
            _log.error("%s", directory.io_error("installing a checkpoint", error).message)
            return
        if not installed:
            await _try_write(directory, self._pool.run(staged.drop))
        elif await _try_write(directory, self._pool.run(staged.sync_name)):
            checkpoint.on_synced(staged)

    def _offsets(self, directory: LogDirectory) -> _DirectoryOffsets:
        refused = _damaged_in(directory, self._failed)
        unreported = any(not damaged.is_reported for damaged in refused.values())
        return _DirectoryOffsets(directory, self.logs_in(directory), refused, unreported)

    async def cleanup_logs(self, now_ms: int) -> int:
        """Apply retention to all logs; how many segments were removed. One checkpoint of the log starts
        serves a whole directory.
        """
        passed: list[tuple[UnifiedLog, list[LogSegment]]] = []
        copied: list[tuple[UnifiedLog, Sequence[LogSegment]]] = []
        async for log in self._each_log():
            if log.has_no_records:
                continue
            try:
                for each in log.deletable_segments(now_ms):
                    if each.is_local:
                        copied.append((log, each.segments))
                    else:
                        passed.append((log, log.advance_start_past(each, now_ms)))
                if log.config.copies_to_remote and log.roll_if_expired(now_ms):
                    self.on_segment_closed(log)
            except KafkaError as error:
                _log.error("retention of %s: %s", log.topic_partition, error.message)
        if not (passed or copied):
            return 0
        await self.checkpoint_log_start_offsets()
        self._keep_log_starts([log for log, _ in passed])
        deleted = 0
        for log, segments in copied:
            deleted += await self._remove_copied_segments(log, segments)
        for log, segments in passed:
            try:
                deleted += log.remove_segments_below_start(segments)
            except KafkaError as error:
                _log.error("retention of %s: %s", log.topic_partition, error.message)
            # The names of each log are synced: let other tasks run in between.
            await asyncio.sleep(0)
        self.statistics.deleted_segments += deleted
        return deleted

    async def _remove_copied_segments(self, log: UnifiedLog, segments: Iterable[LogSegment]) -> int:
        """Remove segments that are in remote storage, each for good before the next; how many it were."""
        removed = 0
        try:
            await self.flush(log, log.active_segment.base_offset)
            for segment in segments:
                removal = log.begin_removal(segment)
                if removal is None or not await removal.run(self._pool):
                    break
                removed += 1
        except KafkaError as error:
            _log.error("retention of %s: %s", log.topic_partition, error.message)
        return removed

    def _keep_log_starts(self, logs: Sequence[UnifiedLog]) -> None:
        """Make these log starts durable where another write of the checkpoint has overtaken the staged one:
        once for all logs, not for each.
        """
        starts: dict[LogDirectory, dict[TopicPartition, int]] = {}
        for log in logs:
            if log.directory.is_online and not log.is_closed:
                starts.setdefault(log.directory, {})[log.topic_partition] = log.log_start_to_checkpoint
        for directory, offsets in starts.items():
            try:
                directory.set_log_starts(offsets)
            except OSError as error:
                _log.error("%s", directory.io_error("checkpointing log starts", error).message)

    def update_producer_config(self, config: ProducerStateManagerConfig) -> None:
        """Put other settings for producers in force, in all logs."""
        self._producer_config.update(config)

    async def remove_expired_producers(self, now_ms: int) -> None:
        async for log in self._each_log():
            log.remove_expired_producers(now_ms)

    async def remove_deleted_files(self, now_ms: int) -> int:
        """Remove the files and partitions whose `file.delete.delay.ms` is over; how many were removed."""
        removed = 0
        for directory in self.live_directories:
            due = directory.take_due(now_ms)
            try:
                removed += await self._pool.run(directory.remove, due) if due else 0
            except OSError as error:
                directory.delete_later(due, 0)
                _log.error("%s", directory.io_error("removing files", error).message)
        while self._removals and self._removals[0][0] <= now_ms:
            _, _, directory, path = heapq.heappop(self._removals)
            if not directory.is_online:
                continue
            try:
                await self._pool.run(remove_tree, self._disk, path)
                removed += 1
            except OSError as error:
                _log.error("%s", directory.io_error(f"removing {path}", error).message)
        return removed

    async def _each_log(self) -> AsyncIterator[UnifiedLog]:
        """Yield all logs whose directory is online, in turns."""
        turns = Turns(self._clock)
        for log in [*self._logs.values(), *self._future_logs.values()]:
            if log.directory.is_online and not log.is_closed:
                yield log
            if turns.is_due():
                await turns.pause()

    # Stopping

    async def shutdown(self, broker_epoch: int = -1) -> None:
        """Close all logs, mark each directory as cleanly shut down, and unlock the directories.

        What all logs of a directory share is done once and first: their names in the directory, and the log
        starts that their leader epochs begin with. Then they are closed side by side, many at a time in the
        pool: most of that time is spent waiting for the disk, which completes many syncs at once about as
        fast as one. The checkpoints follow, and at last the mark of the clean shutdown, so that it is never
        there without the rest. Where any of it fails there is no mark, and the next start recovers.
        """
        self.new_logs -= len(self._created)
        self._created.clear()
        if self._making is not None:
            # Its caller was cancelled. No thread may make files in a directory that is not locked any more.
            await self._pool.run(self._making)
        if self._creating is not None:
            await self._creating
        if self._completing:
            await asyncio.wait(list(self._completing))
        try:
            await asyncio.gather(*(self._close(each, broker_epoch) for each in self.live_directories))
        finally:
            self._unlock()

    async def _close(self, directory: LogDirectory, broker_epoch: int) -> None:
        offsets = self._offsets(directory)
        if await _close_logs(directory, offsets.logs, self._pool) and directory.is_online:
            await self._pool.run(_write_clean_shutdown, offsets, broker_epoch)

    def _unlock(self) -> None:
        while self._locks:
            self._locks.popitem()[1].release()


def _rename_durably(disk: Disk, src: str, dst: str) -> None:
    disk.rename(src, dst)
    disk.sync_dir(posixpath.dirname(dst))


def _partition_of(path: str) -> TopicPartition:
    """The partition of a directory; with a topic that was cut, where the name would have been too long."""
    return parse_dir_name(posixpath.basename(path))[0]


def _find_unstable(logs: Iterable[UnifiedLog]) -> None:
    """Find the transactions that are not stable yet, in any thread. Who reads a log meets an error again."""
    for log in logs:
        with suppress(KafkaError):
            log.find_unstable()


def _create_all(
    places: Iterable[tuple[LogDirectory, NewLog]], producer_config: ProducerStateManagerConfig
) -> list[UnifiedLog | None]:
    """Create logs, in any thread; None for each that could not be created."""
    made: list[UnifiedLog | None] = []
    for directory, new in places:
        name = dir_name(new.partition)
        try:
            log = create_log(
                directory,
                name,
                new.partition,
                new.config,
                topic_id=new.topic_id,
                producer_config=producer_config,
            )
        except Exception as error:
            _log.warning("%s could not be created: %s", name, error)
            made.append(None)
        else:
            made.append(log)
    return made


def _complete_all(creations: Sequence[LogCreation]) -> None:
    for creation in creations:
        creation.write()
    for creation in creations:
        creation.install()
    for creation in creations:
        creation.sync()


def _choose_duplicate(
    one: UnifiedLog, other: UnifiedLog, belongs: Callable[[UnifiedLog], bool]
) -> tuple[UnifiedLog, UnifiedLog]:
    """Of two logs of a partition, return the one to keep and the stray: a stray was left on a disk that had
    failed while the topic was deleted, or the replica removed, and created again elsewhere. One that never
    had a record was left by a creation that failed, or that a crash came between.
    """
    if belongs(one) and belongs(other) and one.log_end_offset and other.log_end_offset:
        both = f"{one.topic_partition} is in both {other.dir} and {one.dir}"
        hint = "remove the one that is out of date: most likely the one on the disk that failed last"
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{both}; {hint}")
    keeps_one = belongs(one) and bool(one.log_end_offset or not belongs(other))
    kept, stray = (one, other) if keeps_one else (other, one)
    _log.warning("%s is in %s, too; that one is kept as a stray", kept.topic_partition, stray.directory.path)
    return kept, stray


@dataclass(frozen=True, slots=True)
class _DirectoryOffsets:
    """The offsets for the last checkpoints of a log directory."""

    directory: LogDirectory
    logs: Sequence[UnifiedLog]
    """All logs of the directory."""
    refused: Collection[TopicPartition]
    """The logs that could not be loaded: their entries in the checkpoints stay."""
    has_unreported_damage: bool
    """True if a load after a clean shutdown would overlook that one of them is damaged."""

    def recovery_points(self) -> dict[TopicPartition, int]:
        kept = _offsets_of_unloaded_logs(self.directory.recovery_points.offsets, self.refused)
        return kept | {log.topic_partition: log.recovery_point for log in self.logs}

    def log_starts(self) -> dict[TopicPartition, int]:
        """The log starts that do not follow from the names of files."""
        offsets = _offsets_of_unloaded_logs(self.directory.log_starts.offsets, self.refused)
        for log in self.logs:
            start = _log_start_to_keep(log)
            if start is not None:
                offsets[log.topic_partition] = start
        return offsets

    def high_watermarks(self) -> dict[TopicPartition, int]:
        return {log.topic_partition: log.high_watermark for log in self.logs}


def _recovery_point(log: UnifiedLog) -> int:
    return log.recovery_point


def _log_start_to_keep(log: UnifiedLog) -> int | None:
    """The log start; None where it follows from the names of files."""
    start = log.log_start_to_checkpoint
    follows = (
        start <= log.segments[0].base_offset
        and log.local_log.names_synced
        and not log.is_truncating
        and not log.config.is_remote
    )
    return None if follows else start


def _damaged_in(
    directory: LogDirectory, damaged: Mapping[TopicPartition, DamagedLog]
) -> dict[TopicPartition, DamagedLog]:
    return {partition: log for partition, log in damaged.items() if log.directory is directory}


def _offsets_of_unloaded_logs(
    offsets: Mapping[TopicPartition, int], refused: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """The entries of logs that a manager does not load: refused ones, and the metadata log."""
    wanted = (_METADATA_LOG, *refused)
    return {partition: offsets[partition] for partition in wanted if partition in offsets}


async def _try_write(directory: LogDirectory, work: Awaitable[object]) -> bool:
    try:
        await work
    except OSError as error:
        failure = directory.io_error("writing a checkpoint", error)
        if not directory.lacks_room:  # the directory logs that itself, and not each time
            _log.error("%s", failure.message)
        return False
    return True


async def _close_logs(directory: LogDirectory, logs: Sequence[UnifiedLog], pool: Pool) -> bool:
    """Close all logs of a directory; True if all could be closed."""
    if not await pool.run(_prepare_close, directory, logs):
        return False
    parts = (logs[start : start + _CLOSED_AT_ONCE] for start in range(0, len(logs), _CLOSED_AT_ONCE))
    return all(await asyncio.gather(*(pool.run(_close_part, part) for part in parts)))


def _prepare_close(directory: LogDirectory, logs: Sequence[UnifiedLog]) -> bool:
    """Do once for the directory what each log would do for itself; False if that failed."""
    new = [log for log in logs if not log.local_log.parent_synced]
    try:
        if new:
            directory.disk.sync_dir(directory.path)
            for log in new:
                log.local_log.parent_synced = True
        starts = {
            log.topic_partition: log.log_start_offset
            for log in logs
            if log.log_start_offset > (directory.log_start(log.topic_partition) or 0)
        }
        if starts:
            directory.set_log_starts(starts)
    except OSError as error:
        _log.error("%s", directory.io_error("closing the directory", error).message)
        return False
    return True


def _close_part(logs: Iterable[UnifiedLog]) -> bool:
    sound = True
    for log in logs:
        try:
            log.close()
        except KafkaError as error:
            _log.error("%s could not be closed: %s", log.topic_partition, error.message)
            sound = False
    return sound


def _write_clean_shutdown(offsets: _DirectoryOffsets, broker_epoch: int) -> None:
    """Write the last checkpoints and the mark of a clean shutdown."""
    directory = offsets.directory
    try:
        directory.write_recovery_points(offsets.recovery_points())
        directory.write_log_starts(offsets.log_starts())
        path = posixpath.join(directory.path, checkpoints.HIGH_WATERMARKS)
        checkpoints.write_offsets(directory.disk, path, offsets.high_watermarks())
        if offsets.has_unreported_damage:
            _log.warning("%s has a damaged log and will be recovered at the next start", directory.path)
        else:
            checkpoints.write_clean_shutdown(directory.disk, directory.path, broker_epoch)
    except OSError as error:
        _log.error("%s", directory.io_error("closing the directory", error).message)
