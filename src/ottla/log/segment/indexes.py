"""The offset index and the time index of a segment, kept in step with its batches.

Whenever `index.interval.bytes` have passed since the last entry, the next batch gets one in each of them. The
same goes for an append and for a rebuild, so an index that was built anew is the one that was lost.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.log.segment.handles import FileHandles
from ottla.log.segment.offset_index import OffsetIndex
from ottla.log.segment.sparse_index import CorruptIndex
from ottla.log.segment.time_index import NO_TIMESTAMP, TimeIndex, TimestampOffset
from ottla.records.batch import BatchHeader


class SegmentIndexes:
    __slots__ = ("_since_entry", "are_full", "flush_due", "greatest", "offsets", "times")

    def __init__(self, offsets: OffsetIndex, times: TimeIndex, since_entry: int) -> None:
        self.offsets = offsets
        self.times = times
        # The greatest timestamp so far and the last offset of the first batch that has it.
        self.greatest: TimestampOffset = times.last_entry
        # Bytes since the batch that got the last entry.
        self._since_entry = since_entry
        # True if one of them takes no more entries, and if enough wait to be written; every append asks.
        self.are_full = self.flush_due = False
        self._entries_changed()

    def _entries_changed(self) -> None:
        self.are_full = self.offsets.is_full or self.times.is_full
        self.flush_due = self.offsets.flush_due or self.times.flush_due

    @classmethod
    def create(
        cls, handles: FileHandles, offsets_path: str, times_path: str, base_offset: int, max_bytes: int
    ) -> SegmentIndexes:
        """Make both files, empty."""
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
        """See that the last entries fit the last batches, given from the position of the last entry on: what
        a crash can take of an index is its end.
        """
        last = self.offsets.last_entry
        newest = self.times.last_entry.timestamp
        for position, header in headers:
            if position == last.position and position and header.last_offset != last.offset:
                raise CorruptIndex(f"{self.offsets.path}: {last} is not where a batch ends")
            if header.max_timestamp > newest:
                raise CorruptIndex(f"{self.times.path} does not know the timestamp {header.max_timestamp}")

    def add(self, position: int, batch: BatchHeader, interval: int) -> None:
        """Take note of the next batch, which lies at `position`."""
        if batch.max_timestamp > self.greatest.timestamp:
            self.greatest = TimestampOffset(batch.max_timestamp, batch.last_offset)
        if self._since_entry > interval:
            if not self.are_full:
                self.offsets.append(batch.last_offset, position)
                self.times.maybe_append(*self.greatest)
                self._entries_changed()
            self._since_entry = 0
        self._since_entry += batch.size

    def truncate_to(self, offset: int) -> None:
        """Remove the entries at or above `offset`; `restore_greatest` is to follow."""
        self.offsets.truncate_to(offset)
        self.times.truncate_to(offset)
        self._entries_changed()

    def restore_greatest(self, headers: Iterable[tuple[int, BatchHeader]]) -> None:
        """Find the greatest timestamp anew, with the batches from `unindexed_position` on."""
        greatest = self.times.last_entry
        for _, header in headers:
            if header.max_timestamp > greatest.timestamp:
                greatest = TimestampOffset(header.max_timestamp, header.last_offset)
        self.greatest = greatest
        self._since_entry = 0

    @property
    def unindexed_position(self) -> int:
        """From here on the time index may not know all timestamps."""
        return self.offsets.lookup(self.times.last_entry.offset).position

    def clear_greatest(self) -> None:
        """There is no batch left."""
        self.greatest = TimestampOffset(NO_TIMESTAMP, self.offsets.base_offset)
        self._since_entry = 0

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
        """Write what waits in memory."""
        self.offsets.flush()
        self.times.flush()
        self._entries_changed()

    def sync(self) -> None:
        self.offsets.sync()
        self.times.sync()

    def moved(self, offsets_path: str, times_path: str) -> None:
        """The files have other names now."""
        self.offsets.moved(offsets_path)
        self.times.moved(times_path)

    def close(self) -> None:
        self.offsets.close()
        self.times.close()
