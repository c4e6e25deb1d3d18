"""The transaction index: which transactions were aborted, segment by segment.

A reader at `read_committed` has to drop the records of aborted transactions. The `.txnindex` of a segment
holds one entry for each transaction whose abort marker lies in that segment, in the order of the markers,
with the range of offsets the transaction spans and the last stable offset at the moment of the abort. A
transaction may begin in an earlier segment, so a search starts at the segment of the fetch offset and walks
on until an entry's last stable offset shows that no later abort can reach back into the range.

The file is a plain run of 34-byte entries, made only when the first entry is due. Nothing is synced on
append: recovery rebuilds the entries of unsynced segments from the markers in the log.

Invariant: the last offsets of the entries increase strictly.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

from ottla.runtime.disk import Buffer, Disk

_ENTRY = struct.Struct(">hqqqq")
_CURRENT_VERSION = 0

ENTRY_SIZE = _ENTRY.size
assert ENTRY_SIZE == 34


class CorruptTxnIndexError(Exception):
    """The file is not a transaction index of this segment; rebuild it from the segment's markers."""


class AbortedTxn(NamedTuple):
    """An aborted transaction: `first_offset` is its first record, `last_offset` its abort marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int
    version: int = _CURRENT_VERSION

    def encode(self) -> bytes:
        return _ENTRY.pack(
            self.version, self.producer_id, self.first_offset, self.last_offset, self.last_stable_offset
        )


class TxnIndexSearchResult(NamedTuple):
    """`is_complete` means that no later segment can hold an abort of the range."""

    aborted: list[AbortedTxn]
    is_complete: bool


def decode_entries(data: Buffer) -> list[AbortedTxn]:
    """All whole entries; a torn one at the end is left out."""
    whole = len(data) - len(data) % ENTRY_SIZE
    entries: list[AbortedTxn] = []
    with memoryview(data)[:whole] as view:
        for version, producer_id, first, last, stable in _ENTRY.iter_unpack(view):
            if version != _CURRENT_VERSION:
                raise CorruptTxnIndexError(f"entry {len(entries)} has the unknown version {version}")
            entries.append(AbortedTxn(producer_id, first, last, stable, version))
    return entries


class TransactionIndex:
    """The aborted transactions of one segment, read from the file when first asked for."""

    __slots__ = ("_disk", "_entries", "path", "start_offset")

    def __init__(self, disk: Disk, path: str, start_offset: int) -> None:
        self._disk = disk
        self.path = path
        self.start_offset = start_offset
        # None until the file has been read; from then on it mirrors the file.
        self._entries: list[AbortedTxn] | None = None

    @property
    def entries(self) -> list[AbortedTxn]:
        """All entries in the order of their markers. Not to be changed by the caller.

        CorruptTxnIndexError where the file cannot be the index of this segment.
        """
        if self._entries is None:
            self._entries = self._load()
        return self._entries

    @property
    def known(self) -> list[AbortedTxn] | None:
        """The entries, if the file has been read."""
        return None if self._entries is None else list(self._entries)

    @property
    def is_known_empty(self) -> bool:
        """Whether the file has been read, and there is nothing in it."""
        return self._entries is not None and not self._entries

    @property
    def is_empty(self) -> bool:
        return not self.entries

    def append(self, txn: AbortedTxn) -> None:
        entries = self.entries
        if entries and txn.last_offset <= entries[-1].last_offset:
            raise ValueError(
                f"{self.path}: the last offset {txn.last_offset} of an aborted transaction of producer "
                f"{txn.producer_id} is not above {entries[-1].last_offset}, the last one of the index"
            )
        file = self._disk.open(self.path, create=True)
        try:
            file.pwrite(txn.encode(), len(entries) * ENTRY_SIZE)
        finally:
            file.close()
        entries.append(txn)

    def collect(self, fetch_offset: int, upper_bound_offset: int) -> TxnIndexSearchResult:
        """The aborted transactions with an offset in [`fetch_offset`, `upper_bound_offset`)."""
        entries = self.entries
        aborted = []
        start = bisect_left(entries, fetch_offset, key=_last_offset)
        for index in range(start, len(entries)):
            txn = entries[index]
            if txn.first_offset < upper_bound_offset:
                aborted.append(txn)
            if txn.last_stable_offset >= upper_bound_offset:
                return TxnIndexSearchResult(aborted, is_complete=True)
        return TxnIndexSearchResult(aborted, is_complete=False)

    def truncate_to(self, offset: int) -> None:
        """Forget the transactions whose marker is at or above `offset`."""
        entries = self.entries
        keep = bisect_left(entries, offset, key=_last_offset)
        if keep < len(entries):
            self._resize(keep)
            del entries[keep:]

    def reset(self, entries: Iterable[AbortedTxn] = ()) -> None:
        """Replace the content without reading what the file held."""
        kept = list(entries)
        self._entries = None
        if self._disk.exists(self.path):
            self._resize(0)
        self._entries = []
        for txn in kept:
            self.append(txn)

    def flush(self) -> None:
        """Make the entries durable (the name of the file too needs a sync of its directory)."""
        try:
            file = self._disk.open(self.path)
        except FileNotFoundError:
            return  # there is none, or its segment is just being deleted
        try:
            file.sync()
        finally:
            file.close()

    def delete_if_exists(self) -> None:
        if self._disk.exists(self.path):
            self._disk.unlink(self.path)
        self._entries = []

    def sanity_check(self) -> None:
        """Raise CorruptTxnIndexError if the file cannot be the index of this segment."""
        self._entries = self._load()

    def _load(self) -> list[AbortedTxn]:
        if not self._disk.exists(self.path):
            return []
        file = self._disk.open(self.path, writable=False)
        # Where the bytes are not in memory the exception keeps the file, which loads them, and its end closes
        # that.
        data = file.pread(file.size(), 0)
        file.close()
        try:
            entries = decode_entries(data)
        except CorruptTxnIndexError as error:
            raise CorruptTxnIndexError(f"{self.path}: {error}") from None
        previous = self.start_offset - 1
        for txn in entries:
            if txn.last_offset <= previous or txn.first_offset > txn.last_offset:
                raise CorruptTxnIndexError(
                    f"{self.path}: {txn} does not follow offset {previous} of the segment that starts at "
                    f"{self.start_offset}"
                )
            previous = txn.last_offset
        return entries

    def _resize(self, count: int) -> None:
        file = self._disk.open(self.path)
        try:
            file.truncate(count * ENTRY_SIZE)
        finally:
            file.close()

    def __repr__(self) -> str:
        return f"<transaction index {self.path!r} from offset {self.start_offset}>"


def _last_offset(txn: AbortedTxn) -> int:
    return txn.last_offset
