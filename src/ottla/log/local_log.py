"""The segments of a partition and everything that changes which files there are.

The log is a list of segments in the order of their base offsets, the last of which takes the appends. Every
change of the set of files is ordered so that a crash at any point, with any subset of the unsynced names and
bytes lost, leaves something that recovery understands:

- A roll starts the new segment exactly at the log end offset. So a gap between two segments above the
  recovery point means that the end of the first was lost, and recovery removes what follows it.
- A truncation removes whole segments from the end, one durable step at a time, then cuts the last one, and is
  durable when it returns: nothing written later can mix with what was cut.
- Removal from the front needs no order, as the log start offset above it is durable before. Where the log
  keeps its start, as remote storage has the records, the batches of a segment go for good before its other
  files do, and before the next segment.
- A swap (compaction) makes the new segments durable under `.swap`, then the removal of the old ones, then the
  final names. Recovery undoes a swap that has not reached the first of these steps and completes one that
  has.

Invariant: base offsets ascend strictly, there is always at least one segment, and the log ends at or above
the base offset of the last one.
"""

from __future__ import annotations

import logging
import posixpath
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ottla.log.config.log_config import LogConfig
from ottla.log.directory.directory import LogDirectory
from ottla.log.leader_epoch_cache import EpochWrite
from ottla.log.segment.file_names import (
    CLEANED,
    DELETED,
    SEGMENT_KINDS,
    SWAP,
    parse_segment_file,
    segment_file_name,
)
from ottla.log.segment.handles import is_lack_of_handles
from ottla.log.segment.segment import LogSegment
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition
from ottla.records.batch import BatchHeader
from ottla.runtime.disk import Buffer, Disk

_log = logging.getLogger(__name__)


class SyncFailed(Exception):
    """The disk could not make durable what it had taken; nothing written since the last good sync counts."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(slots=True)
class FlushPlan:
    """The files to sync to make a log durable, in three steps so that the slow one can run off the event
    loop.

    `UnifiedLog.prepare_flush` makes the plan; `run` syncs, in any thread; `UnifiedLog.complete_flush` moves
    the recovery point, unless the log was truncated meanwhile. Closed segments are synced with their indexes;
    of the active one only the batches, as recovery rebuilds its indexes. If it is closed meanwhile and ends
    where the plan does, another flush has to follow. Before the recovery point moves, the leader epochs that
    begin below it are durable too, and so are the names of the files.
    """

    disk: Disk
    dir: str
    """The directory of the log."""
    upto: int
    """The recovery point once this is done."""
    truncation_count: int
    """How often the log had been truncated when the plan was made."""
    whole: list[LogSegment]
    """To be synced with their indexes."""
    active: LogSegment | None
    """To be synced without them."""
    dirs: list[str]
    """Directories whose names are to be synced, children first."""
    names_version: int
    writes: list[Callable[[], object]] = field(default_factory=list)
    """Further writes that must be durable: leader epochs, producer snapshots."""
    epochs: EpochWrite | None = None
    """The write of the leader epochs among `writes`, if there is one."""
    snapshots: tuple[int, ...] = ()
    """The producer snapshots that are synced, by their offsets."""
    abandoned: bool = False
    """True if the files were no longer there."""

    def run(self) -> None:
        """Sync it all; SyncFailed where that failed, OSError where something could not be written."""
        for segment in self.whole:
            # Without room the entries of an index that was rebuilt still wait in memory.
            segment.flush_indexes()
        try:
            for segment in self.whole:
                segment.sync()
            if self.active is not None:
                self.active.sync_log()
        except OSError as error:
            raise _failure(error) from error
        for write in self.writes:
            write()
        try:
            for dir in self.dirs:
                with suppress(FileNotFoundError):  # renamed for deletion meanwhile: nothing is left to keep
                    self.disk.sync_dir(dir)
        except OSError as error:
            raise _failure(error) from error


def _failure(error: OSError) -> Exception:
    """SyncFailed, unless the file could not even be opened: then no sync was attempted."""
    return error if is_lack_of_handles(error) else SyncFailed(error)


def _rename_all(segments: Iterable[LogSegment], suffix: str) -> None:
    for segment in segments:
        segment.rename(suffix)


class LocalLog:
    __slots__ = (
        "_bases",
        "_names_synced",
        "_names_version",
        "_segments",
        "config",
        "dir",
        "directory",
        "log_end_offset",
        "parent_synced",
        "partition",
        "recovery_point",
        "truncation_count",
    )

    def __init__(
        self,
        directory: LogDirectory,
        dir: str,
        partition: TopicPartition,
        config: LogConfig,
        segments: Sequence[LogSegment],
        log_end_offset: int,
        recovery_point: int,
        *,
        names_synced: bool,
    ) -> None:
        if not segments:
            raise ValueError(f"{dir}: a log needs a segment")
        self.directory = directory
        self.dir = dir
        self.partition = partition
        self.config = config
        self.log_end_offset = log_end_offset
        # Everything below it is durable.
        self.recovery_point = recovery_point
        # How often the log has been truncated at its end: a flush that was planned before does not count.
        self.truncation_count = 0
        self._names_version = 0
        # Up to which version the names in the directory, and its own name, are durable.
        self._names_synced = 0 if names_synced else -1
        self.parent_synced = names_synced
        self._set_segments(segments)

    def _set_segments(self, segments: Sequence[LogSegment]) -> None:
        # Both are replaced, never changed: a reader in another thread keeps a consistent pair.
        self._segments = tuple(segments)
        self._bases = tuple(segment.base_offset for segment in segments)

    @property
    def segments(self) -> tuple[LogSegment, ...]:
        return self._segments

    @property
    def active_segment(self) -> LogSegment:
        return self._segments[-1]

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self._segments)

    @property
    def known_size(self) -> int | None:
        """The size if it is known without asking the disk."""
        total = 0
        for segment in self._segments:
            size = segment.known_size
            if size < 0:
                return None
            total += size
        return total

    @property
    def names_synced(self) -> bool:
        return self._names_synced == self._names_version

    def segments_from(self, offset: int) -> tuple[LogSegment, ...]:
        """The segment that `offset` lies in and all after it."""
        segments = self._segments
        at = bisect_right(self._bases, offset) - 1
        return segments[max(at, 0) :]

    def end_below(self, offset: int) -> int:
        """Return the offset at which the log would end if it were truncated to `offset`, which is not below
        its first segment.
        """
        return self.segments_from(offset)[0].end_below(offset)

    # Growing

    def append(self, data: Buffer, batches: Sequence[BatchHeader]) -> None:
        """Write to the active segment. An OSError means that nothing was appended; if even the remains of the
        attempt could not be removed, the directory is offline.
        """
        assert batches[0].base_offset >= self.log_end_offset, (
            f"{self.dir}: a batch at {batches[0].base_offset} below the log end {self.log_end_offset}"
        )
        active = self.active_segment
        try:
            active.append(data, batches)
        except OSError as error:
            if not is_lack_of_handles(error):
                self._remove_failed_write(active, error)
            raise
        self.log_end_offset = batches[-1].next_offset
        if active.index_flush_due:
            self.flush_active_indexes()

    def flush_active_indexes(self) -> None:
        """Write the entries of the active segment's indexes that wait in memory, if the disk takes them."""
        try:
            self.active_segment.flush_indexes()
        except OSError as error:
            # The entries stay in memory; without room that is where they wait.
            self.directory.io_error(f"writing an index of {self.partition}", error)

    def _remove_failed_write(self, active: LogSegment, cause: OSError) -> None:
        try:
            active.remove_failed_write()
        except OSError as error:
            self.directory.fail(
                f"a write to {active.path('.log')} failed with {cause}, and what it left could not be "
                f"removed: {error}"
            )

    def undo_append(self, first_offset: int) -> None:
        """Remove the batches from `first_offset` on, which were appended last."""
        self.active_segment.truncate_to(first_offset)
        self.log_end_offset = first_offset

    def roll(self, base_offset: int, now_ms: int) -> LogSegment:
        """Close the active segment and begin a new one at `base_offset`. On OSError nothing has changed."""
        active = self.active_segment
        if base_offset == active.base_offset and active.size == 0:
            return active
        if base_offset <= active.base_offset or base_offset < self.log_end_offset:
            raise ValueError(
                f"{self.dir}: a segment at {base_offset} cannot follow the one at {active.base_offset}, "
                f"which ends at {self.log_end_offset}"
            )
        if base_offset > self.log_end_offset > self.recovery_point:
            raise ValueError(f"{self.dir}: a segment may leave a gap only behind what is durable")
        active.on_become_inactive()
        if self.recovery_point >= base_offset:
            # No flush will come back to this segment: it lies below the recovery point from now on.
            active.sync()
        segment = self.new_segment(base_offset, now_ms)
        active.close_indexes()
        self._set_segments([*self._segments, segment])
        return segment

    def new_segment(self, base_offset: int, now_ms: int) -> LogSegment:
        """Make an empty segment, not yet part of the log. On OSError its files are gone again."""
        config = self.config
        jitter_ms = 0
        if config.segment_jitter_ms > 0:
            bound = min(config.segment_jitter_ms, config.segment_ms)
            jitter_ms = self.directory.random.randrange(0, bound)
        try:
            segment = LogSegment.create(
                self.directory.handles,
                self.dir,
                base_offset,
                config,
                created_ms=now_ms,
                roll_jitter_ms=jitter_ms,
            )
        except OSError:
            for kind in SEGMENT_KINDS:
                with suppress(OSError):
                    self.directory.disk.unlink(posixpath.join(self.dir, segment_file_name(base_offset, kind)))
            raise
        self._names_version += 1
        return segment

    # Making durable

    def prepare_flush(
        self, upto: int | None = None, *, closing: bool = False, force: bool = False
    ) -> FlushPlan | None:
        """Plan what to sync so that everything below `upto` (the log end if None) is durable; None if it is,
        unless `force` asks for a plan. With `closing` the active segment is synced as the others are.
        """
        target = self.log_end_offset if upto is None else min(upto, self.log_end_offset)
        if target <= self.recovery_point and self.names_synced and not (closing or force):
            return None
        whole = []
        active = None
        for segment in self.segments_from(self.recovery_point):
            if segment is self.active_segment:
                if closing:
                    whole.append(segment)
                elif segment.base_offset < target:
                    active = segment
            elif segment.base_offset < target:
                whole.append(segment)
        dirs = []
        if not self.names_synced:
            dirs.append(self.dir)
        if not self.parent_synced:
            dirs.append(self.directory.path)
        return FlushPlan(
            disk=self.directory.disk,
            dir=self.dir,
            upto=target,
            truncation_count=self.truncation_count,
            whole=whole,
            active=active,
            dirs=dirs,
            names_version=self._names_version,
        )

    def complete_flush(self, plan: FlushPlan) -> bool:
        """Move the recovery point; False if the log has been truncated since the plan was made.

        It does not pass a segment that was active when the plan was made and has been closed since. Only its
        batches were synced, and recovery rebuilds no index below the recovery point: another flush has to
        sync them first.
        """
        if plan.truncation_count != self.truncation_count:
            return False
        if plan.active is None or self.segments_from(plan.upto)[0] is plan.active:
            self.recovery_point = max(self.recovery_point, plan.upto)
        if plan.dirs:
            self.on_names_synced(plan.names_version)
            self.parent_synced = True
        return True

    def on_names_changed(self) -> None:
        """Note that another part of the log has made or renamed a file in the directory."""
        self._names_version += 1

    @property
    def names_version(self) -> int:
        """How often the files in the directory have changed."""
        return self._names_version

    def sync_names(self) -> None:
        self.directory.disk.sync_dir(self.dir)
        self.on_names_synced(self._names_version)

    def on_names_synced(self, version: int) -> None:
        """Note that the directory was synced when its files had changed `version` times, or later."""
        self._names_synced = max(self._names_synced, version)

    # Shrinking

    def begin_truncation(self, end_offset: int) -> None:
        """Let no flush that was planned before raise the recovery point, which is not above `end_offset` from
        now on.
        """
        self.truncation_count += 1
        self.recovery_point = min(self.recovery_point, end_offset)

    def truncation(self, offset: int, end_offset: int) -> Iterator[Callable[[], object]]:
        """Remove every batch that holds `offset` or more, for good; the log then ends at `end_offset`
        (`end_below`), for readers at once. Yields calls that wait for the disk, for any thread.

        `offset` must not be below the first segment, and the durable recovery point not above the new end.
        """
        segments = self._segments
        kept = max(bisect_right(self._bases, offset), 1)
        last = segments[kept - 1]
        position = last.hide_from(offset)
        self._set_segments(segments[:kept])
        self.log_end_offset = end_offset
        self.recovery_point = min(self.recovery_point, end_offset)
        for segment in reversed(segments[kept:]):
            self._discard(segment)
            yield from self.names_sync()
        yield from last.truncation(offset, position)

    def full_truncation(self, offset: int, now_ms: int) -> Iterator[Callable[[], object]]:
        """Remove everything and go on empty at `offset`. Yields calls that wait for the disk, for any thread.

        The durable recovery point must not be above `offset`, and the durable log start must be `offset`: so
        a crash half-way ends in a log that starts there, with the old records up to some offset.
        """
        self.log_end_offset = offset
        self.recovery_point = min(self.recovery_point, offset)
        while len(self._segments) > 1:
            segment = self.active_segment
            self._set_segments(self._segments[:-1])
            self._discard(segment)
            if segment.base_offset >= offset:
                yield from self.names_sync()
        # The old names must be gone before the new segment is there, or their ranges might overlap.
        yield from self.names_sync()
        last = self.active_segment
        yield from last.truncation(last.base_offset, last.hide_from(last.base_offset))
        if last.base_offset != offset:
            self._set_segments([self.new_segment(offset, now_ms)])
            self._discard(last)
        yield from self.names_sync()

    def names_sync(self) -> Iterator[Callable[[], object]]:
        """Make the names of the files durable; yields the call that waits for the disk."""
        version = self._names_version
        yield partial(self.directory.disk.sync_dir, self.dir)
        self.on_names_synced(version)

    def remove_front(self, segments: Iterable[LogSegment]) -> None:
        """Remove segments below the log start offset, which is durable."""
        gone = set(segments)
        self._set_segments([segment for segment in self._segments if segment not in gone])
        for segment in sorted(gone, key=lambda segment: segment.base_offset):
            self._discard(segment)

    def first_removal(self) -> Iterator[Callable[[], object]]:
        """Remove the first segment, whose records remote storage has; its batches for good before its other
        files. Yields calls that wait for the disk, for any thread.
        """
        segment = self._segments[0]
        self._set_segments(self._segments[1:])
        for _ in segment.renaming(DELETED):
            self._names_version += 1
            yield from self.names_sync()
        self._close_discarded(segment)

    def _discard(self, segment: LogSegment) -> None:
        """Rename the files to `.deleted`; they are removed after `file.delete.delay.ms`, when no reader uses
        them any more.
        """
        segment.rename(DELETED)
        self._close_discarded(segment)

    def _close_discarded(self, segment: LogSegment) -> None:
        segment.close_handlers()
        self._names_version += 1
        self.directory.delete_later(
            [segment.path(kind) for kind in SEGMENT_KINDS], self.config.file_delete_delay_ms
        )

    # Replacing

    def replacement(
        self, new: Sequence[LogSegment], old: Sequence[LogSegment]
    ) -> Generator[Callable[[], object], Any, list[LogSegment]]:
        """Put `new` (complete, under `.cleaned`) in the place of `old`; return the old ones that have no
        successor of the same base offset. Yields calls that wait for the disk, for any thread.

        All of `old` must be closed and lie below the durable recovery point: above it recovery takes the
        gaps that compaction makes for lost bytes. Until the end no other change may remove one of them.
        """
        known = set(self._segments)
        replaced = sorted((each for each in old if each in known), key=lambda each: each.base_offset)
        added = sorted(new, key=lambda each: each.base_offset)
        if not replaced or not added or self.active_segment in replaced:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{self.dir}: the segments to replace are no longer part of the log, or take appends",
            )
        for segment in added:
            if segment.suffix != CLEANED:
                raise ValueError(f"{segment} is not a cleaned segment")
        yield partial(self._commit_to_swap, added)
        gone = set(replaced)
        kept = [segment for segment in self._segments if segment not in gone]
        assert len(kept) == len(self._segments) - len(replaced), f"{self.dir}: segments of a swap have gone"
        self._set_segments(sorted([*kept, *added], key=lambda each: each.base_offset))
        # No reader gets the old ones from now on; those that have one find its files under either name.
        # The names count as changed before and after: a flush meanwhile may sync the directory too early.
        self._names_version += 1
        yield partial(_rename_all, replaced, DELETED)
        for segment in replaced:
            self._close_discarded(segment)
        yield from self.names_sync()
        # Not in another thread: readers ask for files of these by their names.
        for segment in added:
            segment.rename("")
        self._names_version += 1
        yield from self.names_sync()
        bases = {segment.base_offset for segment in added}
        return [segment for segment in replaced if segment.base_offset not in bases]

    def _commit_to_swap(self, added: Sequence[LogSegment]) -> None:
        """Make the new segments durable under `.swap`: recovery completes the swap from then on. Readers do
        not know them yet, so any thread may do it.
        """
        sync_dir = self.directory.disk.sync_dir
        for segment in added:
            segment.sync()
        # Recovery undoes a swap if it finds a `.cleaned` file at or below it. So all of these must be there
        # for sure before the first gets its next name, and none that some other cleaning has left.
        self._remove_cleaned_below(added[0].base_offset)
        sync_dir(self.dir)
        _rename_all(reversed(added), SWAP)
        sync_dir(self.dir)

    def _remove_cleaned_below(self, base_offset: int) -> None:
        disk = self.directory.disk
        for name in disk.list_dir(self.dir):
            file = parse_segment_file(name)
            if file is not None and file.suffix == CLEANED and file.offset < base_offset:
                disk.unlink(posixpath.join(self.dir, name))

    # Leaving

    def on_dir_renamed(self, dir: str) -> None:
        """Note that the directory has another name now."""
        self.dir = dir
        for segment in self._segments:
            segment.on_dir_renamed(dir)

    def close_handlers(self) -> None:
        for segment in self._segments:
            segment.close_handlers()
