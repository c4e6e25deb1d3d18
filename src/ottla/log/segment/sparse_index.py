"""The base of the two indexes of a segment: a file of fixed-size entries in ascending order.

An index is sparse and can always be rebuilt from the log, so new entries wait in memory and reach the file
when enough of them have gathered, when the segment is flushed or closed. The file is searched where it lies:
a few reads narrow the range to one block, and the block is searched in memory. Invariant: both fields of the
entries never descend, and a file longer than its entries (Apache Kafka allocates it in advance) has zeros
behind them.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

from ottla.log.segment.handles import FileHandles, LazyFile
from ottla.runtime.disk import File

PENDING_BYTES = 4096
"""Entries gather up to this size before they are written."""
BLOCK_ENTRIES = 512
"""A range of this size is read at once and searched in memory."""


class CorruptIndex(Exception):
    """The index contradicts itself or its log; it must be built again."""


class SparseIndex:
    """The entries of one index file, with those that are not written yet."""

    __slots__ = ("_file", "_is_exact", "_last", "_state", "_struct", "_synced", "base_offset", "max_bytes")

    def __init__(
        self, handles: FileHandles, path: str, base_offset: int, max_bytes: int, layout: Struct, *, new: bool
    ) -> None:
        self._file = LazyFile(handles, path)
        self._struct = layout
        self.base_offset = base_offset
        self.max_bytes = max_bytes
        # How many entries the file holds, and the bytes of those that follow. One tuple, replaced as a whole,
        # so that a reader in another thread never sees the one without the other.
        self._state: tuple[int, bytearray] = (0, bytearray())
        self._last: tuple[Any, ...] | None = None
        # True if the disk has all that the file has.
        self._synced = False
        # True if it is known that the file ends with its last written entry.
        self._is_exact = new
        if new:
            self._file.create()
            self._synced = self._file.is_new
        else:
            self._state = (self._count_entries(), bytearray())
            if self.entries:
                self._last = self._at(self.entries - 1)

    @property
    def path(self) -> str:
        return self._file.path

    @property
    def entries(self) -> int:
        written, pending = self._state
        return written + len(pending) // self._struct.size

    @property
    def max_entries(self) -> int:
        return self.max_bytes // self._struct.size

    def flush(self) -> None:
        """Write the entries that wait in memory."""
        written, pending = self._state
        if pending:
            is_exact, self._is_exact = self._is_exact, False  # a write that fails may leave a part
            self._for_write().pwrite(pending, written * self._struct.size)
            self._is_exact = is_exact
            self._state = (written + len(pending) // self._struct.size, bytearray())

    def _for_write(self) -> File:
        # Not held open until it is synced (`LazyFile.for_write`): lost entries can be rebuilt.
        self._synced = False
        return self._file.get()

    def sync(self) -> None:
        if not self._synced:
            self._synced = True  # first, as another thread may write meanwhile
            try:
                self._file.get().sync()
            except OSError:
                self._synced = False
                raise

    def trim(self) -> None:
        """Truncate the file behind the last entry."""
        self.flush()
        if not self._is_exact:
            if self._file.get().size() != self.entries * self._struct.size:
                self._for_write().truncate(self.entries * self._struct.size)
            self._is_exact = True

    def reset(self) -> None:
        """Remove all entries."""
        self._truncate_entries(0)

    def on_renaming(self, path: str) -> None:
        """Note that the file is about to get another name."""
        self._file.next_path = path

    def on_renamed(self, path: str) -> None:
        """Note that the file has another name now."""
        self._file.path = path

    def close(self) -> None:
        self._file.release()

    def _append(self, *fields: int) -> None:
        self._state[1].extend(self._struct.pack(*fields))
        self._last = fields

    @property
    def flush_due(self) -> bool:
        return len(self._state[1]) >= PENDING_BYTES

    def _at(self, n: int) -> tuple[Any, ...]:
        written, pending = self._state
        size = self._struct.size
        if n >= written:
            return self._struct.unpack_from(pending, (n - written) * size)
        return self._struct.unpack(self._read(n, 1))

    def _read(self, n: int, count: int) -> bytes:
        size = self._struct.size
        data = self._file.get().pread(count * size, n * size)
        if len(data) != count * size:
            raise CorruptIndex(f"{self.path} ends at {n * size + len(data)}, inside entry {n} to {n + count}")
        return data

    def _count_at_most(self, target: int, field: int) -> int:
        """Count the entries with a `field` of at most `target`; they are the first ones."""
        written, pending = self._state
        size = self._struct.size
        unpack_from = self._struct.unpack_from
        if not pending or unpack_from(pending, 0)[field] > target:
            low, high, block, start = 0, written, b"", 0
            while high - low > BLOCK_ENTRIES:
                middle = (low + high) // 2
                if self._struct.unpack(self._read(middle, 1))[field] <= target:
                    low = middle + 1
                else:
                    high = middle
            if high > low:
                start, block = low, self._read(low, high - low)
            return start + _bisect(block, (high - low), target, field, size, unpack_from) if block else low
        return written + _bisect(pending, len(pending) // size, target, field, size, unpack_from)

    def _truncate_entries(self, count: int) -> None:
        written, pending = self._state
        size = self._struct.size
        if count < written:
            self._for_write().truncate(count * size)
            self._state = (count, bytearray())
        else:
            self._state = (written, bytearray(pending[: (count - written) * size]))
        self._last = self._at(count - 1) if count else None

    def _count_entries(self) -> int:
        size = self._file.get().size()
        width = self._struct.size
        if size % width:
            raise CorruptIndex(f"{self.path} has {size} bytes, which is no multiple of {width}")
        count = size // width
        blank = bytes(width)
        if count < 2 or self._read(count - 1, 1) != blank:
            return count
        low, high = 0, count - 1  # the first blank entry is in low..high
        while low < high:
            middle = (low + high) // 2
            if self._read(middle, 1) == blank:
                high = middle
            else:
                low = middle + 1
        return low


def _bisect(data: Any, count: int, target: int, field: int, size: int, unpack_from: Any) -> int:
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if unpack_from(data, middle * size)[field] <= target:
            low = middle + 1
        else:
            high = middle
    return low
