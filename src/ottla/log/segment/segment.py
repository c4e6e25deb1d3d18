"""One segment of a log: a file of record batches and the indexes that find a place in it.

The file holds whole batches, one after another, in the order of their offsets; every other file of a segment
can be rebuilt from it. A segment opened from disk reads nothing until it is used: its size, its indexes
and its greatest timestamp are fetched when they are first needed, so that a node with many thousands of them
starts at once.

Appends are one write and no sync. A write that fails may leave a part of itself behind the end of the
segment; `remove_failed_write` removes it. Invariant: the bytes up to `size` are whole batches.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

from ottla.log.config.log_config import LogConfig
from ottla.log.segment.file_names import INDEX, LOG, SEGMENT_KINDS, TIME_INDEX, TXN_INDEX, segment_file_name
from ottla.log.segment.handles import FileHandles, LazyFile
from ottla.log.segment.offset_index import MAX_RELATIVE_OFFSET, OffsetIndex, OffsetPosition
from ottla.log.segment.soundness import AnyEpoch, EpochSpans, Stretch, stretches, unprotected_bytes
from ottla.log.segment.sparse_index import CorruptIndex
from ottla.log.segment.time_index import NO_TIMESTAMP, TimeIndex, TimestampOffset
from ottla.log.segment.timestamp_search import TimestampAndOffset, TimestampSearch, TimestampSearches
from ottla.log.segment.txn_index import AbortedTxn, TransactionIndex
from ottla.log.segment.walk import (
    BatchPosition,
    CorruptBatch,
    ScannedBatch,
    find_batch,
    scan_batches,
    walk_headers,
)
from ottla.records.batch import HEADER_SIZE, BatchHeader
from ottla.runtime.disk import Buffer, File, is_out_of_space, waiting

_log = logging.getLogger(__name__)

# How far behind an entry of the index a reader looks for records behind damage.
_BESIDE_DAMAGE_BYTES = 8 * 1024 * 1024
_REBUILT = ".rebuilt"


class LogSegment:
    """A file of record batches from `base_offset` on, with its offset, time and transaction index."""

    __slots__ = (
        "_config",
        "_damage",
        "_first_timestamp",
        "_handles",
        "_indexes",
        "_log",
        "_size",
        "_txn_index",
        "base_offset",
        "created_ms",
        "dir",
        "roll_jitter_ms",
        "suffix",
    )

    def __init__(
        self,
        handles: FileHandles,
        dir: str,
        base_offset: int,
        config: LogConfig,
        *,
        suffix: str = "",
        created_ms: int = 0,
        roll_jitter_ms: int = 0,
    ) -> None:
        self._handles = handles
        self._config = config
        self.dir = dir
        self.base_offset = base_offset
        self.suffix = suffix
        self.created_ms = created_ms
        self.roll_jitter_ms = roll_jitter_ms
        self._log = LazyFile(handles, self.path(LOG))
        # Opened when they are first needed.
        self._indexes: SegmentIndexes | None = None
        self._txn_index: TransactionIndex | None = None
        # The greatest timestamp of the first batch: None until looked up, -1 while there is no batch.
        self._first_timestamp: int | None = None
        # Why its batches could not be indexed to the end; None if they could.
        self._damage: CorruptBatch | None = None
        # -1 until it has been looked up.
        self._size = -1

    @classmethod
    def create(
        cls,
        handles: FileHandles,
        dir: str,
        base_offset: int,
        config: LogConfig,
        *,
        suffix: str = "",
        created_ms: int = 0,
        roll_jitter_ms: int = 0,
    ) -> LogSegment:
        """Create the files of an empty segment; files of the same names are overwritten."""
        segment = cls(
            handles,
            dir,
            base_offset,
            config,
            suffix=suffix,
            created_ms=created_ms,
            roll_jitter_ms=roll_jitter_ms,
        )
        try:
            segment.txn_index.delete_if_exists()
            segment._new_indexes()
            segment._log.create()
            if config.preallocate:
                segment._log.for_write().truncate(config.segment_bytes)
        except OSError:
            segment.close_handlers()
            raise
        segment._size = 0
        segment._first_timestamp = NO_TIMESTAMP
        return segment

    def __repr__(self) -> str:
        return f"<segment {self.path(LOG)}, {self._size if self._size >= 0 else 'unknown'} bytes>"

    def path(self, kind: str) -> str:
        return posixpath.join(self.dir, segment_file_name(self.base_offset, kind, self.suffix))

    # Contents

    @property
    def size(self) -> int:
        """Bytes of whole batches."""
        if self._size < 0:
            self._size = self._handles.disk.size(self._log.path)
        return self._size

    @property
    def known_size(self) -> int:
        """The size if it is known without asking the disk; -1 if not."""
        return self._size

    @property
    def indexes(self) -> SegmentIndexes:
        indexes = self._indexes
        return indexes if indexes is not None else self._open_indexes()

    @property
    def offset_index(self) -> OffsetIndex:
        return self.indexes.offsets

    @property
    def time_index(self) -> TimeIndex:
        return self.indexes.times

    @property
    def txn_index(self) -> TransactionIndex:
        if self._txn_index is None:
            self._txn_index = TransactionIndex(self._handles.disk, self.path(TXN_INDEX), self.base_offset)
        return self._txn_index

    @property
    def known_aborted(self) -> list[AbortedTxn] | None:
        """The entries of its transaction index as they are in memory; None if they are not."""
        return None if self._txn_index is None else self._txn_index.known

    @property
    def max_timestamp(self) -> TimestampOffset:
        """The greatest timestamp of its records and the last offset of the first batch that has it.
        CorruptBatch where that cannot be said.
        """
        greatest = self.indexes.greatest
        if self._damage is not None:
            raise self._damage
        return greatest

    @property
    def largest_timestamp(self) -> int:
        """The greatest timestamp of the records; where they have none, or are damaged, the modification time
        of the file.
        """
        try:
            timestamp = self.max_timestamp.timestamp
        except CorruptBatch:
            timestamp = NO_TIMESTAMP
        return timestamp if timestamp >= 0 else self._handles.disk.mtime_ms(self._log.path)

    @property
    def first_timestamp(self) -> int:
        """The greatest timestamp of the first batch, from which the age of the segment counts; -1 if there is
        none.
        """
        if self._first_timestamp is None:
            header = next(self.headers(), None)
            if header is None:
                return NO_TIMESTAMP
            self._first_timestamp = header[1].max_timestamp
        return self._first_timestamp

    @property
    def mtime_ms(self) -> int:
        return self._handles.disk.mtime_ms(self._log.path)

    def set_mtime_ms(self, mtime_ms: int) -> None:
        self._handles.disk.set_mtime_ms(self._log.path, mtime_ms)

    def fits(self, last_offset: int) -> bool:
        """True if the offset can be written relative to the base offset."""
        return 0 <= last_offset - self.base_offset <= MAX_RELATIVE_OFFSET

    def should_roll(self, size: int, last_offset: int, max_timestamp: int, now_ms: int) -> bool:
        """True if these records need a new segment."""
        held = self.size
        config = self._config
        if held > config.segment_bytes - size:
            return True
        if held > 0:
            first = self.first_timestamp
            waited = max_timestamp - first if first >= 0 else now_ms - self.created_ms
            if waited > config.max_segment_ms - self.roll_jitter_ms:
                return True
        return self.indexes.are_full or not self.fits(last_offset)

    def reconfigure(self, config: LogConfig) -> None:
        self._config = config

    # Writing

    def append(self, data: Buffer, batches: Sequence[BatchHeader]) -> None:
        """Write whole batches, given with their headers. After an OSError the segment is unchanged, but its
        file may hold a part of them: call `remove_failed_write`.
        """
        indexes = self.indexes
        position = self.size
        self._log.for_write().pwrite(data, position)
        if position == 0:
            self._first_timestamp = batches[0].max_timestamp
        interval = self._config.index_interval_bytes
        for batch in batches:
            indexes.add(position, batch, interval)
            position += batch.size
        self._size = position

    @property
    def index_flush_due(self) -> bool:
        return self._indexes is not None and self._indexes.flush_due

    def flush_indexes(self) -> None:
        """Write what the indexes hold in memory."""
        if self._indexes is not None:
            self._indexes.flush()

    def remove_failed_write(self) -> None:
        """Truncate the file to `size`, durably: a failed write may have left bytes behind it."""
        self._log.for_write().truncate(self.size)
        self._log.sync()

    def on_become_inactive(self) -> None:
        """Make the files final before another segment takes the appends: the greatest timestamp becomes the
        last entry of the time index, and nothing lies behind the ends.
        """
        self.indexes.seal()
        if self._config.preallocate:
            self._log.for_write().truncate(self.size)

    def sync_log(self) -> None:
        self._log.sync()

    def sync(self) -> None:
        """Make everything durable but the names of the files."""
        self.flush_indexes()
        self.sync_log()
        self.indexes.sync()
        self.txn_index.flush()

    def truncate_to(self, offset: int) -> bool:
        """Remove the batches that hold `offset` or more, for good; True if there were any."""
        found = self.hide_from(offset)
        for sync in self.truncation(offset, found):
            sync()
        return found is not None

    def hide_from(self, offset: int) -> int | None:
        """End the segment before the batch that holds `offset`, for readers; the position of that batch, or
        None if there is none. `truncation` is to follow.
        """
        found = self.translate_offset(offset)
        if found is None:
            return None
        self._size = found.position
        return found.position

    def truncation(self, offset: int, position: int | None) -> Iterator[Callable[[], None]]:
        """Remove what `hide_from` has hidden, for good. Yields calls that wait for the disk or take long, for
        any thread.
        """
        indexes = self.indexes
        indexes.truncate_to(offset)
        self.txn_index.truncate_to(offset)
        if position is None:
            return
        yield self.remove_failed_write
        if position == 0:
            self._first_timestamp = NO_TIMESTAMP
            indexes.clear_greatest()
        else:
            # Where timestamps do not rise, that is a walk over the whole segment.
            yield lambda: indexes.restore_greatest(self.headers(indexes.unindexed_position))

    # Reading

    def translate_offset(self, offset: int) -> BatchPosition | None:
        """The first batch that ends at or above `offset`; None if all end below it."""
        try:
            return self._translate_offset(offset)
        except CorruptIndex as error:
            self._rebuild(error)
            return self._translate_offset(offset)

    def _translate_offset(self, offset: int) -> BatchPosition | None:
        indexes = self._indexes if self._indexes is not None else self._open_indexes()
        size = self._size if self._size >= 0 else self.size
        return find_batch(self._log.get(), size, indexes.offsets.lookup(offset), offset, self.base_offset)

    def stretches(
        self,
        end_offset: int,
        epochs: EpochSpans,
        size: int | None = None,
        *,
        position: int = 0,
        least_offset: int | None = None,
    ) -> Iterator[Stretch]:
        """Tell what is sound from what is damaged, up to `size` if it may grow; its batches end at or below
        `end_offset`. From a batch's `position` on they begin at or above `least_offset`.
        """
        size = self.size if size is None else size
        least_offset = self.base_offset if least_offset is None else least_offset
        return stretches(self._log.get(), size, position, least_offset, end_offset, epochs)

    def end_once_mended(
        self, damaged: Stretch, epochs: EpochSpans, likely: EpochSpans | None = None
    ) -> int | None:
        """The offset behind a damaged batch that `mend` would write again; None if it would not."""
        data = unprotected_bytes(self._log.get(), self.size, damaged, epochs, likely)
        if data is None:
            return None
        rest = self._log.get().pread(HEADER_SIZE - len(data), damaged.position + len(data))
        return BatchHeader.parse(data + rest).next_offset

    def mend(self, damaged: Stretch, epochs: EpochSpans, likely: EpochSpans | None = None) -> bool:
        """Write a damaged batch again, for good and in any thread, if only those bytes have rotted that its
        checksum does not cover, and what is beside it says what they were (`unprotected_bytes`).
        """
        data = unprotected_bytes(self._log.get(), self.size, damaged, epochs, likely)
        if data is None:
            return False
        _log.error("%s: %s; its records are whole, and its header is mended", self.path(LOG), damaged.damage)
        file = self._handles.disk.open(self._log.path)
        try:
            file.pwrite(data, damaged.position)
            file.sync()
        finally:
            file.close()
        return True

    def find_beside_damage(
        self, offset: int, end_offset: int, epochs: EpochSpans
    ) -> tuple[BatchPosition, int] | None:
        """The first sound batch that ends at or above `offset`, and the position at which the damage behind
        it begins, or the end; None where that is too far. CorruptBatch if `offset` is damaged.
        """
        indexed = self.offset_index.lookup(offset)
        position = indexed.position
        size = min(self.size, position + _BESIDE_DAMAGE_BYTES)
        file = self._log.get()
        least_offset = self.base_offset
        if position:
            # The batch there ends where the index says, so it is not the one that is damaged.
            with suppress(CorruptIndex, CorruptBatch):
                first = find_batch(file, self.size, indexed, indexed.offset, least_offset)
                least_offset = first.base_offset if first is not None else least_offset
        for stretch in stretches(file, size, position, least_offset, end_offset, epochs):
            if stretch.reason is None:
                if stretch.next_offset > offset:
                    begin = OffsetPosition(stretch.first_offset, stretch.position)
                    found = find_batch(file, stretch.end, begin, offset, stretch.first_offset, check=False)
                    assert found is not None, stretch
                    return found, stretch.end
            elif stretch.end == size < self.size:
                return None
            elif stretch.next_offset > offset:
                raise CorruptBatch(self._log.path, stretch.position, stretch.damage)
        return None

    def read(self, position: int, size: int) -> bytes:
        """Read bytes of the file; fewer only if the segment ends before."""
        return self._log.get().pread(min(size, self.size - position), position)

    def open_file(self) -> File:
        """The open file of the records. Keep it no longer than one operation takes."""
        return self._log.get()

    def headers(self, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """Position and header of each batch from a batch's position on, without reading the records;
        CorruptBatch where the file does not go on with a whole one.
        """
        return walk_headers(self._log.get(), self.size, position)

    def batches(self, position: int = 0) -> Iterator[ScannedBatch]:
        """Each batch with its bytes, from a batch's position on, checksums verified; CorruptBatch where the
        file does not go on with a good one.
        """
        return scan_batches(self._log.get(), self.size, position)

    def end_below(self, offset: int) -> int:
        """The offset after the last batch that ends below `offset`; the base offset if there is none."""
        end = self.base_offset
        for _, header in self.headers(self.offset_index.lookup(offset - 1).position):
            if header.last_offset >= offset:
                break
            end = header.next_offset
        return end

    def read_next_offset(self) -> int:
        """The offset after the last batch; the base offset of an empty segment. Reads from the last index
        entry on.
        """
        last = self.offset_index.last_entry
        next_offset = self.base_offset
        first = True
        for _, header in self.headers(last.position):
            if first and last.position and header.last_offset != last.offset:
                self._rebuild(CorruptIndex(f"{self.path(INDEX)}: {last} is not where a batch ends"))
                return self.read_next_offset()
            first = False
            next_offset = header.next_offset
        if first and last.position:
            self._rebuild(CorruptIndex(f"{self.path(INDEX)}: there is no batch at {last}"))
            return self.read_next_offset()
        return next_offset

    # Searching by timestamp. The time index leads to the first batch that can hold the record; the record
    # itself is found in the batch, compressed or not. The answers are those of a scan of the segment: also
    # where timestamps run backwards, and where `start_offset` lies in the middle of a batch or behind the
    # greatest timestamp. With `searches` they do little at once, and raise SearchTooLong where more is to do.

    def find_offset_by_timestamp(
        self, timestamp: int, start_offset: int, searches: TimestampSearches | None = None
    ) -> TimestampAndOffset | None:
        """The first record from `start_offset` on that is not older than `timestamp`."""

        def begin() -> TimestampSearch:
            offset = max(self._time_entry(timestamp).offset, start_offset)
            position = self.offset_index.lookup(offset).position
            file = self._log.get()
            return TimestampSearch(file, self.size, position, timestamp=timestamp, start_offset=start_offset)

        return begin().run() if searches is None else searches.run((self.dir, self.base_offset, 1), begin)

    def _time_entry(self, timestamp: int) -> TimestampOffset:
        """The last entry of the time index that is not younger than `timestamp`."""
        entry = self.time_index.lookup(timestamp)
        try:
            self._check_time_entry(entry)
        except CorruptIndex as error:
            self._rebuild(error)
            entry = self.time_index.lookup(timestamp)
        return entry

    def _check_time_entry(self, entry: TimestampOffset) -> None:
        """CorruptIndex if the batch of the entry's offset does not have its timestamp: a search from there on
        would miss records.
        """
        if entry.timestamp == NO_TIMESTAMP:
            return
        found = self.translate_offset(entry.offset)
        if found is not None and found.base_offset <= entry.offset:
            header = next(walk_headers(self._log.get(), found.position + found.size, found.position))[1]
            if header.max_timestamp == entry.timestamp:
                return
        raise CorruptIndex(f"{self.path(TIME_INDEX)}: {entry} is not of a batch")

    def find_max_timestamp(
        self, start_offset: int, searches: TimestampSearches | None = None
    ) -> TimestampAndOffset | None:
        """The first record from `start_offset` on with the greatest timestamp; None if none has one."""
        is_whole = self.base_offset >= start_offset
        if is_whole and self.max_timestamp.timestamp < 0:
            return None

        def begin() -> TimestampSearch:
            file, size, offset = self._log.get(), self.size, start_offset
            if not is_whole:
                position = self.offset_index.lookup(offset).position
                return TimestampSearch(file, size, position, start_offset=offset, greatest=True)
            greatest = self.max_timestamp
            position = self.offset_index.lookup(greatest.offset).position
            return TimestampSearch(file, size, position, timestamp=greatest.timestamp, start_offset=offset)

        return begin().run() if searches is None else searches.run((self.dir, self.base_offset, 2), begin)

    # Indexes

    def _new_indexes(self) -> None:
        self.close_indexes()
        self._indexes = SegmentIndexes.create(
            self._handles,
            self.path(INDEX),
            self.path(TIME_INDEX),
            self.base_offset,
            self._config.segment_index_bytes,
        )

    def _open_indexes(self) -> SegmentIndexes:
        try:
            indexes = SegmentIndexes.open(
                self._handles,
                self.path(INDEX),
                self.path(TIME_INDEX),
                self.base_offset,
                self._config.segment_index_bytes,
                self.size,
            )
            indexes.check_end(self.headers(indexes.offsets.last_entry.position))
            self._indexes = indexes
            self._check_time_entry(indexes.times.last_entry)
        except (CorruptIndex, CorruptBatch, FileNotFoundError) as error:
            self._rebuild(error)
        assert self._indexes is not None
        return self._indexes

    def _rebuild(self, error: Exception) -> None:
        _log.warning("an index is damaged and will be rebuilt from its segment: %s", error)
        self.start_rebuild()
        damage: CorruptBatch | None = None
        with waiting(True):  # once begun, it has to be finished
            for stretch in self.stretches(self.base_offset + MAX_RELATIVE_OFFSET + 1, AnyEpoch()):
                if stretch.reason is None:
                    for position, header in walk_headers(self._log.get(), stretch.end, stretch.position):
                        self.rebuild_from(position, header)
                else:
                    # The batches beside it can be read.
                    damage = damage or CorruptBatch(self._log.path, stretch.position, stretch.damage)
                    _log.error("%s: %s", self._log.path, stretch.damage)
        self.end_rebuild()
        self._damage = damage
        # The segment may lie below the recovery point, which no flush visits any more.
        self.indexes.sync()

    def rebuild_indexes_aside(self) -> None:
        """Build both indexes in files beside the present ones, in any thread; `install_rebuilt_indexes` is to
        follow. For a segment that takes no more appends.
        """
        indexes = SegmentIndexes.create(
            self._handles,
            self.path(INDEX) + _REBUILT,
            self.path(TIME_INDEX) + _REBUILT,
            self.base_offset,
            self._config.segment_index_bytes,
        )
        try:
            for stretch in self.stretches(self.base_offset + MAX_RELATIVE_OFFSET + 1, AnyEpoch()):
                if stretch.reason is None:
                    for position, header in walk_headers(self._log.get(), stretch.end, stretch.position):
                        indexes.add(position, header, self._config.index_interval_bytes)
            indexes.seal()
            indexes.sync()
        finally:
            indexes.close()

    def install_rebuilt_indexes(self) -> None:
        """Put the indexes that were built aside in the place of the present ones."""
        self.close_indexes()
        self._indexes = None
        for kind in (INDEX, TIME_INDEX):
            self._handles.disk.rename(self.path(kind) + _REBUILT, self.path(kind))

    def start_rebuild(self) -> None:
        """Empty both indexes; `rebuild_from` follows for each batch, then `end_rebuild`."""
        self._new_indexes()
        self._damage = None
        self._first_timestamp = None

    def rebuild_from(self, position: int, header: BatchHeader) -> None:
        self.indexes.add(position, header, self._config.index_interval_bytes)

    def end_rebuild(self) -> None:
        self.indexes.add_last()
        try:
            self.flush_indexes()
        except OSError as error:
            if not is_out_of_space(error):
                raise
            # A full disk must not keep a log from being read; the entries wait in memory.
            _log.warning("no room for an index that was rebuilt: %s", error)

    # Files

    def set_size(self, size: int) -> None:
        """Truncate the file to `size`, which must be the end of a batch, durably."""
        self._size = size
        self.remove_failed_write()

    def rename(self, suffix: str) -> None:
        """Give all files another suffix, the batches first; an index that is missing stays missing."""
        for _ in self.renaming(suffix):
            pass

    def renaming(self, suffix: str) -> Iterator[None]:
        """Do what `rename` does, and pause once the batches are renamed: without its other files a segment
        that a crash brings back would lack what it knew of aborted transactions.
        """
        old = [self.path(kind) for kind in SEGMENT_KINDS]
        assert SEGMENT_KINDS[0] == LOG
        self.suffix = suffix
        self._log.next_path = self.path(LOG)
        if self._indexes is not None:
            self._indexes.on_renaming(self.path(INDEX), self.path(TIME_INDEX))
        for kind, path in zip(SEGMENT_KINDS, old):
            try:
                self._handles.disk.rename(path, self.path(kind))
            except FileNotFoundError:
                if kind == LOG:
                    raise
            if kind == LOG:
                yield
        self._update_paths()

    def on_dir_renamed(self, dir: str) -> None:
        """Note that the directory was renamed."""
        self.dir = dir
        self._update_paths()

    def _update_paths(self) -> None:
        self._log.path = self.path(LOG)
        if self._indexes is not None:
            self._indexes.on_renamed(self.path(INDEX), self.path(TIME_INDEX))
        if self._txn_index is not None:
            self._txn_index.path = self.path(TXN_INDEX)

    def close_handlers(self) -> None:
        """Close the files, if they are open; they open again when they are needed. Not for a segment that
        has yet to be synced.
        """
        self._log.release()
        self.close_indexes()

    def close_indexes(self) -> None:
        if self._indexes is not None:
            self._indexes.close()


class SegmentIndexes:
    """The offset index and the time index of a segment, kept in step with its batches.

    Whenever `index.interval.bytes` have passed since the last entry, the next batch gets an entry in each of
    them. The same goes for an append and for a rebuild, so an index that was rebuilt is the one that was
    lost.
    """

    __slots__ = (
        "are_full",
        "flush_due",
        "greatest_offset",
        "greatest_timestamp",
        "offsets",
        "since_entry",
        "times",
    )

    def __init__(self, offsets: OffsetIndex, times: TimeIndex, since_entry: int) -> None:
        self.offsets = offsets
        self.times = times
        # The greatest timestamp so far and the last offset of the first batch that has it.
        self.greatest_timestamp, self.greatest_offset = times.last_entry
        # Bytes since the batch that got the last entry.
        self.since_entry = since_entry
        # True if an index takes no more entries, and if enough entries wait to be written; plain values,
        # since every append reads them.
        self.are_full = self.flush_due = False
        self._entries_changed()

    def _entries_changed(self) -> None:
        self.are_full = self.offsets.is_full or self.times.is_full
        self.flush_due = self.offsets.flush_due or self.times.flush_due

    @property
    def greatest(self) -> TimestampOffset:
        return TimestampOffset(self.greatest_timestamp, self.greatest_offset)

    @classmethod
    def create(
        cls, handles: FileHandles, offsets_path: str, times_path: str, base_offset: int, max_bytes: int
    ) -> SegmentIndexes:
        """Create both files, empty."""
        offsets = OffsetIndex(handles, offsets_path, base_offset, max_bytes, new=True)
        try:
            times = TimeIndex(handles, times_path, base_offset, max_bytes, new=True)
        except OSError:
            offsets.close()
            raise
        return cls(offsets, times, 0)

    @classmethod
    def open(
        cls,
        handles: FileHandles,
        offsets_path: str,
        times_path: str,
        base_offset: int,
        max_bytes: int,
        log_bytes: int,
    ) -> SegmentIndexes:
        """Open both files. CorruptIndex where they contradict themselves or a log of this size."""
        offsets = OffsetIndex(handles, offsets_path, base_offset, max_bytes)
        times = TimeIndex(handles, times_path, base_offset, max_bytes)
        offsets.sanity_check(log_bytes)
        times.sanity_check()
        return cls(offsets, times, log_bytes - offsets.last_entry.position)

    def check_end(self, headers: Iterable[tuple[int, BatchHeader]]) -> None:
        """Check that the last entries fit the last batches, given from the position of the last entry on:
        a crash can damage only the end of an index.
        """
        last = self.offsets.last_entry
        newest = self.times.last_entry.timestamp
        for position, header in headers:
            if position == last.position and position and header.last_offset != last.offset:
                raise CorruptIndex(f"{self.offsets.path}: {last} is not where a batch ends")
            if header.max_timestamp > newest:
                raise CorruptIndex(f"{self.times.path} does not know the timestamp {header.max_timestamp}")

    def add(self, position: int, batch: BatchHeader, interval: int) -> None:
        """Account for the next batch, which lies at `position`, with an entry if one is due."""
        if batch.max_timestamp > self.greatest_timestamp:
            self.greatest_timestamp, self.greatest_offset = batch.max_timestamp, batch.last_offset
        if self.since_entry > interval:
            if not self.are_full:
                self.offsets.append(batch.last_offset, position)
                self.times.maybe_append(*self.greatest)
                self._entries_changed()
            self.since_entry = 0
        self.since_entry += batch.size

    def truncate_to(self, offset: int) -> None:
        """Remove the entries at or above `offset`; `restore_greatest` is to follow."""
        self.offsets.truncate_to(offset)
        self.times.truncate_to(offset)
        self._entries_changed()

    def restore_greatest(self, headers: Iterable[tuple[int, BatchHeader]]) -> None:
        """Recompute the greatest timestamp, with the batches from `unindexed_position` on."""
        greatest = self.times.last_entry
        for _, header in headers:
            if header.max_timestamp > greatest.timestamp:
                greatest = TimestampOffset(header.max_timestamp, header.last_offset)
        self.greatest_timestamp, self.greatest_offset = greatest
        self.since_entry = 0

    @property
    def unindexed_position(self) -> int:
        """The position from which on the time index may not know all timestamps."""
        return self.offsets.lookup(self.times.last_entry.offset).position

    def clear_greatest(self) -> None:
        """Reset the greatest timestamp of a segment that has no batch left."""
        self.greatest_timestamp, self.greatest_offset = NO_TIMESTAMP, self.offsets.base_offset
        self.since_entry = 0

    def seal(self) -> None:
        """Add the last entry of the time index, and leave nothing behind the ends of the files."""
        self.times.maybe_append(*self.greatest)
        self.offsets.trim()
        self.times.trim()
        self._entries_changed()

    def add_last(self) -> None:
        self.times.maybe_append(*self.greatest)
        self._entries_changed()

    def flush(self) -> None:
        """Write the entries that wait in memory."""
        self.offsets.flush()
        self.times.flush()
        self._entries_changed()

    def sync(self) -> None:
        self.offsets.sync()
        self.times.sync()

    def on_renaming(self, offsets_path: str, times_path: str) -> None:
        """Note that the files are about to get other names."""
        self.offsets.on_renaming(offsets_path)
        self.times.on_renaming(times_path)

    def on_renamed(self, offsets_path: str, times_path: str) -> None:
        """Note that the files have other names now."""
        self.offsets.on_renamed(offsets_path)
        self.times.on_renamed(times_path)

    def close(self) -> None:
        self.offsets.close()
        self.times.close()
