"""The time index: finds the offset from which to search for a timestamp: all records before it are older.

An entry is a timestamp and an offset relative to the segment's base offset; twelve bytes. It says: no record
up to this offset has a greater timestamp. Both ascend. The last entry of a closed segment holds its greatest
timestamp.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from ottla.log.segment.handles import FileHandles
from ottla.log.segment.offset_index import MAX_RELATIVE_OFFSET
from ottla.log.segment.sparse_index import CorruptIndex, SparseIndex

ENTRY = Struct(">qi")
NO_TIMESTAMP = -1


class TimestampOffset(NamedTuple):
    timestamp: int
    offset: int


class TimeIndex(SparseIndex):
    __slots__ = ()

    def __init__(
        self, handles: FileHandles, path: str, base_offset: int, max_bytes: int, *, new: bool = False
    ) -> None:
        super().__init__(handles, path, base_offset, max_bytes, ENTRY, new=new)

    @property
    def is_full(self) -> bool:
        """One slot stays free for the entry that closes the segment."""
        return self.entries >= self.max_entries - 1

    @property
    def last_entry(self) -> TimestampOffset:
        if self._last is None:
            return TimestampOffset(NO_TIMESTAMP, self.base_offset)
        timestamp, relative = self._last
        return TimestampOffset(timestamp, self.base_offset + relative)

    def entry(self, n: int) -> TimestampOffset:
        timestamp, relative = self._at(n)
        return TimestampOffset(timestamp, self.base_offset + relative)

    def maybe_append(self, timestamp: int, offset: int) -> None:
        """Add an entry if `timestamp` is greater than the last one."""
        last_timestamp, last_offset = self.last_entry
        if timestamp <= last_timestamp:
            return
        relative = offset - self.base_offset
        if not 0 <= relative <= MAX_RELATIVE_OFFSET or (self._last is not None and offset < last_offset):
            raise ValueError(
                f"{self.path}: entry {timestamp} at {offset} does not follow {self.last_entry} "
                f"of base offset {self.base_offset}"
            )
        self._append(timestamp, relative)

    def lookup(self, timestamp: int) -> TimestampOffset:
        """The last entry not younger than `timestamp`; the start of the segment where there is none."""
        count = self._count_at_most(timestamp, 0)
        return self.entry(count - 1) if count else TimestampOffset(NO_TIMESTAMP, self.base_offset)

    def truncate_to(self, offset: int) -> None:
        """Remove every entry at or above `offset`."""
        count = self._count_at_most(offset - self.base_offset - 1, 1)
        if count < self.entries:
            self._truncate_entries(count)

    def sanity_check(self) -> None:
        """CorruptIndex where the first and the last entry contradict each other."""
        if self.entries:
            first, last = self.entry(0), self.last_entry
            if last.timestamp < first.timestamp or not self.base_offset <= first.offset <= last.offset:
                raise CorruptIndex(f"{self.path}: the last entry {last} is older than the first, {first}")
