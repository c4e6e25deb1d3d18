"""One segment of a log: a file of record batches and the indexes that find a place in it.

The file holds whole batches, one after another, in the order of their offsets; every other file of a segment
can be made again from it. A segment opened from disk reads nothing until it is asked: its size, its indexes
and its greatest timestamp are fetched when they are first needed, so that a node with many thousands of them
starts at once.

Appends are one write and no sync. A write that fails may leave a part of itself behind the end of the
segment; `cut` removes it. Invariant: the bytes up to `size` are whole batches.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from ottla.log.config import LogConfig
from ottla.log.files import INDEX, LOG, SEGMENT_KINDS, TIME_INDEX, TXN_INDEX, segment_file_name
from ottla.log.handles import FileHandles, LazyFile
from ottla.log.index import CorruptIndex, is_lack_of_room
from ottla.log.offset_index import MAX_RELATIVE_OFFSET, OffsetIndex
from ottla.log.time_index import NO_TIMESTAMP, TimeIndex, TimestampOffset
from ottla.log.txn_index import TransactionIndex
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.batch import HEADER_SIZE, LOG_OVERHEAD, BatchHeader, verify_crc
from ottla.runtime.disk import Buffer

_log = logging.getLogger(__name__)

# Base offset, length and last offset delta: what it takes to walk from batch to batch.
_STEP = Struct(">qi11xi")
_MIN_LENGTH = HEADER_SIZE - LOG_OVERHEAD
_WALK_BYTES = 16 * 1024
_SCAN_BYTES = 1024 * 1024


class CorruptBatch(KafkaError):
    """The bytes at `position` of a segment's file are not a batch, or not the one that was written."""

    __slots__ = ("path", "position", "reason")

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, f"{path}, position {position}: {reason}")
        self.path = path
        self.position = position
        self.reason = reason


class BatchPosition(NamedTuple):
    position: int
    size: int
    base_offset: int
    last_offset: int


class ScannedBatch(NamedTuple):
    """A batch with its bytes: `buffer` holds it whole, from `at` on."""

    position: int
    header: BatchHeader
    buffer: bytes
    at: int


class LogSegment:
    __slots__ = (
        "_bytes_since_index",
        "_config",
        "_damage",
        "_first_timestamp",
        "_handles",
        "_log",
        "_max_timestamp",
        "_offset_index",
        "_size",
        "_time_index",
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
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._txn_index: TransactionIndex | None = None
        # None until it has been looked up.
        self._max_timestamp: TimestampOffset | None = None
        # The greatest timestamp of the first batch: None until looked up, -1 while there is no batch.
        self._first_timestamp: int | None = None
        self._bytes_since_index = 0
        # Why its batches could not be indexed to the end.
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
        """Make the files of an empty segment; what had their names is overwritten."""
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
            file = segment._log.create()
            if config.preallocate:
                file.truncate(config.segment_bytes)
        except OSError:
            segment.release()
            raise
        segment._size = 0
        segment._first_timestamp = NO_TIMESTAMP
        segment._max_timestamp = TimestampOffset(NO_TIMESTAMP, base_offset)
        return segment

    def __repr__(self) -> str:
        return f"<segment {self.path(LOG)}, {self._size if self._size >= 0 else 'unknown'} bytes>"

    def path(self, kind: str) -> str:
        return posixpath.join(self.dir, segment_file_name(self.base_offset, kind, self.suffix))

    # What it holds

    @property
    def size(self) -> int:
        """Bytes of whole batches."""
        if self._size < 0:
            self._size = self._handles.disk.size(self._log.path)
        return self._size

    @property
    def offset_index(self) -> OffsetIndex:
        if self._offset_index is None:
            self._open_indexes()
            assert self._offset_index is not None
        return self._offset_index

    @property
    def time_index(self) -> TimeIndex:
        if self._time_index is None:
            self._open_indexes()
            assert self._time_index is not None
        return self._time_index

    @property
    def txn_index(self) -> TransactionIndex:
        if self._txn_index is None:
            self._txn_index = TransactionIndex(self._handles.disk, self.path(TXN_INDEX), self.base_offset)
        return self._txn_index

    @property
    def max_timestamp(self) -> TimestampOffset:
        """The greatest timestamp of its records and the last offset of the first batch that has it.
        CorruptBatch where that cannot be said.
        """
        if self._max_timestamp is None:
            self._max_timestamp = self.time_index.last_entry
        if self._damage is not None:
            raise self._damage
        return self._max_timestamp

    @property
    def largest_timestamp(self) -> int:
        """Of its records; where they have none, or are damaged, the time its file was last written."""
        try:
            timestamp = self.max_timestamp.timestamp
        except CorruptBatch:
            timestamp = NO_TIMESTAMP
        return timestamp if timestamp >= 0 else self._handles.disk.mtime_ms(self._log.path)

    @property
    def first_timestamp(self) -> int:
        """The greatest timestamp of the first batch, by which the age of the segment counts; -1 of none."""
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
        """True if these records belong into a new segment."""
        held = self.size
        config = self._config
        if held > config.segment_bytes - size:
            return True
        if held > 0:
            first = self.first_timestamp
            waited = max_timestamp - first if first >= 0 else now_ms - self.created_ms
            if waited > config.max_segment_ms - self.roll_jitter_ms:
                return True
        return self.offset_index.is_full or self.time_index.is_full or not self.fits(last_offset)

    def reconfigure(self, config: LogConfig) -> None:
        self._config = config

    # Writing

    def append(self, data: Buffer, batches: Sequence[BatchHeader]) -> None:
        """Write whole batches, given with their headers. After an OSError the segment is unchanged, but the
        file has to be cut.
        """
        offset_index, time_index = self.offset_index, self.time_index
        greatest = self.max_timestamp
        position = self.size
        self._log.get().pwrite(data, position)
        if position == 0:
            self._first_timestamp = batches[0].max_timestamp
        since_index = self._bytes_since_index
        interval = self._config.index_interval_bytes
        for batch in batches:
            if batch.max_timestamp > greatest.timestamp:
                greatest = TimestampOffset(batch.max_timestamp, batch.last_offset)
            if since_index > interval:
                offset_index.append(batch.last_offset, position)
                time_index.maybe_append(*greatest)
                since_index = 0
            position += batch.size
            since_index += batch.size
        self._bytes_since_index = since_index
        self._max_timestamp = greatest
        self._size = position

    @property
    def index_flush_due(self) -> bool:
        offset_index, time_index = self._offset_index, self._time_index
        return (offset_index is not None and offset_index.flush_due) or (
            time_index is not None and time_index.flush_due
        )

    def flush_indexes(self) -> None:
        """Write what the indexes hold in memory."""
        if self._offset_index is not None:
            self._offset_index.flush()
        if self._time_index is not None:
            self._time_index.flush()

    def cut(self) -> None:
        """Remove what a failed write has left behind the end, for good."""
        file = self._log.get()
        file.truncate(self.size)
        file.sync()

    def seal(self) -> None:
        """Make the files final: the greatest timestamp becomes the last entry of the time index, and nothing
        lies behind the ends.
        """
        self.time_index.maybe_append(*self.max_timestamp)
        self.offset_index.trim()
        self.time_index.trim()
        if self._config.preallocate:
            self._log.get().truncate(self.size)

    def sync_log(self) -> None:
        self._log.get().sync()

    def sync(self) -> None:
        """Make everything durable but the names of the files."""
        self.flush_indexes()
        self.sync_log()
        self.offset_index.sync()
        self.time_index.sync()
        self.txn_index.flush()

    def truncate_to(self, offset: int) -> bool:
        """Remove the batches that hold `offset` or more, for good; True if there were any."""
        found = self.find(offset)
        offset_index, time_index = self.offset_index, self.time_index
        offset_index.truncate_to(offset)
        time_index.truncate_to(offset)
        self.txn_index.truncate_to(offset)
        if found is None:
            return False
        self._size = found.position
        self.cut()
        self._bytes_since_index = 0
        if found.position == 0:
            self._first_timestamp = NO_TIMESTAMP
            self._max_timestamp = TimestampOffset(NO_TIMESTAMP, self.base_offset)
        else:
            greatest = time_index.last_entry
            for _, header in self.headers(offset_index.lookup(greatest.offset).position):
                if header.max_timestamp > greatest.timestamp:
                    greatest = TimestampOffset(header.max_timestamp, header.last_offset)
            self._max_timestamp = greatest
        return True

    # Reading

    def find(self, offset: int) -> BatchPosition | None:
        """The first batch that ends at or above `offset`; None if all end below it."""
        try:
            return self._find(offset)
        except CorruptIndex as error:
            self._rebuild(error)
            return self._find(offset)

    def _find(self, offset: int) -> BatchPosition | None:
        indexed = self.offset_index.lookup(offset)
        size = self.size
        file = self._log.get()
        position = indexed.position
        check = position > 0
        unpack = _STEP.unpack_from
        while position < size:
            chunk = file.pread(min(_WALK_BYTES, size - position), position)
            at = 0
            while len(chunk) - at >= _STEP.size:
                base_offset, length, delta = unpack(chunk, at)
                last_offset = base_offset + delta
                if check:
                    if last_offset != indexed.offset:
                        raise CorruptIndex(f"{self.path(INDEX)}: {indexed} is not where a batch ends")
                    check = False
                if length < _MIN_LENGTH or length + LOG_OVERHEAD > size - position - at:
                    raise CorruptBatch(
                        self.path(LOG),
                        position + at,
                        f"a batch of length {length}, with {size - position - at} bytes left in the file",
                    )
                if last_offset >= offset:
                    return BatchPosition(position + at, length + LOG_OVERHEAD, base_offset, last_offset)
                at += length + LOG_OVERHEAD
            if at == 0:
                raise CorruptBatch(self.path(LOG), position, f"{len(chunk)} bytes, too few for a batch")
            position += at
        return None

    def read(self, position: int, size: int) -> bytes:
        """Bytes of the file; short only if the segment ends before."""
        return self._log.get().pread(min(size, self.size - position), position)

    def headers(self, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """Position and header of each batch from a batch's position on, without reading the records;
        CorruptBatch where the file does not go on with a whole one.
        """
        size = self.size
        file = self._log.get()
        path = self.path(LOG)
        while position < size:
            chunk = file.pread(min(_WALK_BYTES, size - position), position)
            at = 0
            while len(chunk) - at >= HEADER_SIZE:
                header = _parse(chunk, at, path, position + at)
                left = size - position - at
                if header.size > left:
                    reason = f"a batch of {header.size} bytes, but the file ends after {left}"
                    raise CorruptBatch(path, position + at, reason)
                yield position + at, header
                at += header.size
            if at == 0:
                raise CorruptBatch(path, position, f"{len(chunk)} bytes, too few for a batch")
            position += at

    def batches(self, position: int = 0) -> Iterator[ScannedBatch]:
        """Each batch with its bytes, from a batch's position on, checksums verified; CorruptBatch where the
        file does not go on with a good one.
        """
        size = self.size
        path = self.path(LOG)
        while position < size:
            chunk = self.read(position, _SCAN_BYTES)
            at = 0
            while at < len(chunk):
                rest = len(chunk) - at
                if rest < HEADER_SIZE:
                    if position + len(chunk) < size:
                        break
                    raise CorruptBatch(path, position + at, f"{rest} bytes, too few for a batch")
                header = _parse(chunk, at, path, position + at)
                if header.size > rest:
                    left = size - position - at
                    if header.size > left:
                        reason = f"a batch of {header.size} bytes, but the file ends after {left}"
                        raise CorruptBatch(path, position + at, reason)
                    if at:
                        break
                    chunk = self.read(position, header.size)
                try:
                    verify_crc(chunk, at, header)
                except KafkaError as error:
                    raise CorruptBatch(path, position + at, error.message) from None
                yield ScannedBatch(position + at, header, chunk, at)
                at += header.size
            position += at

    def end_below(self, offset: int) -> int:
        """The offset after the last batch that ends below `offset`; the base offset if there is none."""
        end = self.base_offset
        for _, header in self.headers(self.offset_index.lookup(offset - 1).position):
            if header.last_offset >= offset:
                break
            end = header.next_offset
        return end

    def next_offset(self) -> int:
        """The offset after the last batch; the base offset of an empty segment. Reads from the last index
        entry on.
        """
        last = self.offset_index.last_entry
        next_offset = self.base_offset
        first = True
        for _, header in self.headers(last.position):
            if first and last.position and header.last_offset != last.offset:
                self._rebuild(CorruptIndex(f"{self.path(INDEX)}: {last} is not where a batch ends"))
                return self.next_offset()
            first = False
            next_offset = header.next_offset
        if first and last.position:
            self._rebuild(CorruptIndex(f"{self.path(INDEX)}: there is no batch at {last}"))
            return self.next_offset()
        return next_offset

    # Indexes

    def _new_indexes(self) -> None:
        self._close_indexes()
        size = self._config.segment_index_bytes
        self._offset_index = OffsetIndex(self._handles, self.path(INDEX), self.base_offset, size, new=True)
        self._time_index = TimeIndex(self._handles, self.path(TIME_INDEX), self.base_offset, size, new=True)

    def _open_indexes(self) -> None:
        size = self._config.segment_index_bytes
        try:
            offset_index = OffsetIndex(self._handles, self.path(INDEX), self.base_offset, size)
            time_index = TimeIndex(self._handles, self.path(TIME_INDEX), self.base_offset, size)
            offset_index.sanity_check(self.size)
            time_index.sanity_check()
            self._check_end(offset_index, time_index)
        except (CorruptIndex, CorruptBatch, FileNotFoundError) as error:
            self._rebuild(error)
            return
        self._offset_index, self._time_index = offset_index, time_index
        self._bytes_since_index = self.size - offset_index.last_entry.position

    def _check_end(self, offset_index: OffsetIndex, time_index: TimeIndex) -> None:
        """The last entries must fit the last batches: what a crash can take of an index is its end."""
        last = offset_index.last_entry
        newest = time_index.last_entry.timestamp
        for position, header in self.headers(last.position):
            if position == last.position and position and header.last_offset != last.offset:
                raise CorruptIndex(f"{offset_index.path}: {last} is not where a batch ends")
            if header.max_timestamp > newest:
                raise CorruptIndex(f"{time_index.path} does not know the timestamp {header.max_timestamp}")

    def _rebuild(self, error: Exception) -> None:
        _log.warning("an index is damaged and will be built anew from its segment: %s", error)
        self.start_rebuild()
        damage = None
        try:
            for position, header in self.headers():
                self.rebuild_from(position, header)
        except CorruptBatch as found:
            # What lies before it can be read; whoever asks for more will be told.
            _log.error("%s; the records from there on are not indexed and cannot be read", found)
            damage = found
        self.end_rebuild()
        self._damage = damage
        # The segment may lie below the recovery point, where no flush comes by any more.
        self.offset_index.sync()
        self.time_index.sync()

    def start_rebuild(self) -> None:
        """Empty both indexes; the batches are to follow, one by one."""
        self._new_indexes()
        self._damage = None
        self._max_timestamp = TimestampOffset(NO_TIMESTAMP, self.base_offset)
        self._first_timestamp = None
        self._bytes_since_index = 0

    def rebuild_from(self, position: int, header: BatchHeader) -> None:
        greatest = self.max_timestamp
        if header.max_timestamp > greatest.timestamp:
            greatest = self._max_timestamp = TimestampOffset(header.max_timestamp, header.last_offset)
        if self._bytes_since_index > self._config.index_interval_bytes:
            offset_index, time_index = self.offset_index, self.time_index
            if not (offset_index.is_full or time_index.is_full):
                offset_index.append(header.last_offset, position)
                time_index.maybe_append(*greatest)
            self._bytes_since_index = 0
        self._bytes_since_index += header.size

    def end_rebuild(self) -> None:
        self.time_index.maybe_append(*self.max_timestamp)
        try:
            self.flush_indexes()
        except OSError as error:
            if not is_lack_of_room(error):
                raise
            # A full disk must not keep a log from being read; the entries wait in memory.
            _log.warning("no room for an index that was built anew: %s", error)

    # Files

    def set_size(self, size: int) -> None:
        """Cut the file to `size`, which must be the end of a batch, for good."""
        self._size = size
        self.cut()

    def rename(self, suffix: str) -> None:
        """Give all files another suffix, the batches first; an index that is missing stays missing."""
        old = [self.path(kind) for kind in SEGMENT_KINDS]
        self.suffix = suffix
        for kind, path in zip(SEGMENT_KINDS, old):
            try:
                self._handles.disk.rename(path, self.path(kind))
            except FileNotFoundError:
                if kind == LOG:
                    raise
        self._renamed()

    def moved_to(self, dir: str) -> None:
        """The directory was renamed."""
        self.dir = dir
        self._renamed()

    def _renamed(self) -> None:
        self._log.path = self.path(LOG)
        if self._offset_index is not None:
            self._offset_index.moved(self.path(INDEX))
        if self._time_index is not None:
            self._time_index.moved(self.path(TIME_INDEX))
        if self._txn_index is not None:
            self._txn_index.path = self.path(TXN_INDEX)

    def release(self) -> None:
        """Close the files, if they are open; they open again when they are needed."""
        self._log.release()
        self._close_indexes()

    def _close_indexes(self) -> None:
        if self._offset_index is not None:
            self._offset_index.close()
        if self._time_index is not None:
            self._time_index.close()


def _parse(chunk: bytes, at: int, path: str, position: int) -> BatchHeader:
    try:
        return BatchHeader.parse(chunk, at)
    except KafkaError as error:
        raise CorruptBatch(path, position, error.message) from None
