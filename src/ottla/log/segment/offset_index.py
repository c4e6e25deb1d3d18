"""The offset index: from an offset to a place in the segment's file that lies at or before it.

An entry is the last offset of a batch, relative to the segment's base offset, and the position of that batch
in the file; eight bytes. It says: every batch before this position ends below this offset.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from ottla.log.segment.handles import FileHandles
from ottla.log.segment.sparse_index import CorruptIndex, SparseIndex

ENTRY = Struct(">ii")
MAX_RELATIVE_OFFSET = 0x7FFF_FFFF


class OffsetPosition(NamedTuple):
    offset: int
    position: int


class OffsetIndex(SparseIndex):
    __slots__ = ()

    def __init__(
        self, handles: FileHandles, path: str, base_offset: int, max_bytes: int, *, new: bool = False
    ) -> None:
        super().__init__(handles, path, base_offset, max_bytes, ENTRY, new=new)

    @property
    def is_full(self) -> bool:
        return self.entries >= self.max_entries

    @property
    def last_entry(self) -> OffsetPosition:
        """The newest entry; of an empty index the start of the segment."""
        if self._last is None:
            return OffsetPosition(self.base_offset, 0)
        relative, position = self._last
        return OffsetPosition(self.base_offset + relative, position)

    def entry(self, n: int) -> OffsetPosition:
        relative, position = self._at(n)
        return OffsetPosition(self.base_offset + relative, position)

    def append(self, offset: int, position: int) -> None:
        relative = offset - self.base_offset
        last_relative, last_position = (-1, -1) if self._last is None else self._last
        if not last_relative < relative <= MAX_RELATIVE_OFFSET or position <= last_position:
            raise ValueError(
                f"{self.path}: entry {offset} at {position} does not follow {self.last_entry} "
                f"of base offset {self.base_offset}"
            )
        self._append(relative, position)

    def lookup(self, offset: int) -> OffsetPosition:
        """The last entry at or below `offset`; the start of the segment where there is none."""
        newest = self._last
        if newest is not None and newest[0] <= offset - self.base_offset:
            return OffsetPosition(self.base_offset + newest[0], newest[1])  # most read where the log grows
        count = self._count_at_most(offset - self.base_offset, 0)
        return self.entry(count - 1) if count else OffsetPosition(self.base_offset, 0)

    def truncate_to(self, offset: int) -> None:
        """Remove every entry at or above `offset`."""
        count = self._count_at_most(offset - self.base_offset - 1, 0)
        if count < self.entries:
            self._truncate_entries(count)

    def sanity_check(self, log_bytes: int) -> None:
        """CorruptIndex where the newest entry cannot belong to a log of this size."""
        if self.entries and not (0 <= self._at(0)[0] <= self._at(self.entries - 1)[0]):
            raise CorruptIndex(f"{self.path}: the offsets of the first and last entry descend")
        if self.entries and not 0 < self.last_entry.position < log_bytes:
            raise CorruptIndex(f"{self.path}: {self.last_entry} points outside a log of {log_bytes} bytes")
