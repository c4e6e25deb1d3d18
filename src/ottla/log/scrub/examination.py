"""Examine the files of a partition: is what was written still there?

Every file is compared with what it follows from: batches with their checksums and neighbours, the indexes
with the batches, snapshots with their checksums. All of this reads some bytes at a time and yields how many,
so that the caller sets the pace. Nothing is changed, and what is not in memory does not stay there: readers
want that room.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from itertools import pairwise
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from ottla.log.directory import checkpoints
from ottla.log.directory.checkpoints import CorruptCheckpoint
from ottla.log.leader_epoch_cache import LEADER_EPOCH_CHECKPOINT, encode_epochs, read_epochs
from ottla.log.producers.snapshot import CorruptSnapshotError, decode_snapshot
from ottla.log.segment.file_names import INDEX, LOG, SNAPSHOT, TIME_INDEX, TXN_INDEX, segment_file_name
from ottla.log.segment.segment import LogSegment
from ottla.log.segment.soundness import EpochSpans, Stretch, stretches
from ottla.log.segment.txn_index import CorruptTxnIndexError, TransactionIndex
from ottla.log.segment.walk import walk_headers
from ottla.protocol.errors import KafkaError
from ottla.records.batch import HEADER_SIZE, BatchHeader
from ottla.runtime.disk import Disk, File, drop_cached, is_in_memory, read_file

_OFFSET_ENTRY: Final = Struct(">ii")
_TIME_ENTRY: Final = Struct(">qi")
_BATCHES_AT_ONCE: Final = 512

SEGMENT: Final = "segment"
OFFSET_INDEX: Final = "offset index"
TIMESTAMP_INDEX: Final = "time index"
TRANSACTION_INDEX: Final = "transaction index"
PRODUCER_SNAPSHOT: Final = "producer snapshot"
LEADER_EPOCHS: Final = "leader epochs"
TOPIC_ID: Final = "topic id"
KINDS: Final = (
    SEGMENT,
    OFFSET_INDEX,
    TIMESTAMP_INDEX,
    TRANSACTION_INDEX,
    PRODUCER_SNAPSHOT,
    LEADER_EPOCHS,
    TOPIC_ID,
)


class RottenFile(NamedTuple):
    """A file that is not what was written."""

    kind: str
    path: str
    detail: str
    stretch: Stretch | None = None
    """The part of a segment that is damaged."""


Examined: TypeAlias = int | RottenFile
"""Bytes that were read and are as they should be, or what is not."""


class _Passing:
    """A file whose bytes do not stay in memory because of this reader."""

    __slots__ = ("_brought", "_file", "path")

    def __init__(self, file: File) -> None:
        self._file = file
        self.path = file.path
        # The parts that were not in memory before.
        self._brought: list[tuple[int, int]] = []

    def pread(self, size: int, offset: int) -> bytes:
        if not is_in_memory(self._file, size, offset):
            self._brought.append((offset, size))
        return self._file.pread(size, offset)

    def release(self) -> None:
        """Let the system use the memory of what was read."""
        for offset, size in self._brought:
            drop_cached(self._file, offset, size)
        self._brought.clear()


def examine_segment(
    disk: Disk, segment: LogSegment, size: int, end_offset: int, epochs: EpochSpans, *, is_closed: bool
) -> Iterator[Examined]:
    """Check every batch of a segment up to `size`, and its indexes if it takes no more appends. These batches
    end at or below `end_offset`.
    """
    path = segment.path(LOG)
    file = disk.open(path, writable=False)
    try:
        indexes = _Indexes(disk, segment) if is_closed else None
        if indexes is not None:
            yield from indexes.problems()
        passing = _Passing(file)
        for each in stretches(passing, size, 0, segment.base_offset, end_offset, epochs):
            if each.reason is not None:
                yield RottenFile(SEGMENT, path, each.damage, each)
            elif indexes is not None:
                yield from indexes.compare(passing, each)
            passing.release()
            yield each.end - each.position
        if indexes is not None:
            yield from indexes.end()
    finally:
        file.close()


class _Indexes:
    """Both indexes of a segment, to be compared with its batches in their order."""

    __slots__ = ("_base_offset", "_greatest", "_offsets", "_times")

    def __init__(self, disk: Disk, segment: LogSegment) -> None:
        self._offsets = _Entries(disk, OFFSET_INDEX, segment.path(INDEX), _OFFSET_ENTRY)
        self._times = _Entries(disk, TIMESTAMP_INDEX, segment.path(TIME_INDEX), _TIME_ENTRY)
        self._base_offset = segment.base_offset
        self._greatest = -1

    def problems(self) -> Iterator[Examined]:
        yield from self._offsets.problems()
        yield from self._times.problems()

    def compare(self, file: _Passing, stretch: Stretch) -> Iterator[Examined]:
        """Compare the entries of these batches."""
        offsets, times = self._offsets, self._times
        for number, (position, header) in enumerate(walk_headers(file, stretch.end, stretch.position), 1):
            relative = header.last_offset - self._base_offset
            if offsets.next is not None and offsets.next[1] <= position:
                yield from offsets.take(offsets.next == (relative, position))
            is_greater = header.max_timestamp > self._greatest
            self._greatest = max(self._greatest, header.max_timestamp)
            if times.next is not None and times.next[1] <= relative:
                yield from times.take(is_greater and times.next == (header.max_timestamp, relative))
            if number % _BATCHES_AT_ONCE == 0:
                yield 0  # their bytes are counted with the stretch

    def end(self) -> Iterator[Examined]:
        """Behind the last batch no entry may be left."""
        yield from self._offsets.take(self._offsets.next is None)
        yield from self._times.take(self._times.next is None)


class _Entries:
    """The entries of an index in their order, without the zeros that a crash may leave behind them."""

    __slots__ = ("_count", "_data", "_kind", "_layout", "_number", "_path", "next")

    def __init__(self, disk: Disk, kind: str, path: str, layout: Struct) -> None:
        self._kind = kind
        self._path = path
        self._layout = layout
        try:
            self._data = read_file(disk, path)
        except FileNotFoundError:
            self._data = b""  # it is built when it is needed
        self._count = -(-len(self._data.rstrip(b"\0")) // layout.size)
        self._number = 0
        # None behind the last one, and once a wrong one was found.
        self.next: tuple[int, ...] | None = None
        self._advance()

    def _advance(self) -> None:
        at = self._number * self._layout.size
        is_left = self._number < self._count and at + self._layout.size <= len(self._data)
        self.next = self._layout.unpack_from(self._data, at) if is_left else None
        self._number += 1

    def problems(self) -> Iterator[Examined]:
        if len(self._data) % self._layout.size:
            self.next = None
            detail = f"it has {len(self._data)} bytes, which is no multiple of {self._layout.size}"
            yield RottenFile(self._kind, self._path, detail)

    def take(self, is_right: bool) -> Iterator[Examined]:
        """Pass over the next entry; a wrong one is a finding."""
        if is_right:
            self._advance()
            yield self._layout.size
        else:
            self.next = None
            yield RottenFile(self._kind, self._path, f"entry {self._number - 1} is not that of a batch")


def examine_transaction_index(disk: Disk, segment: LogSegment) -> Iterator[Examined]:
    """Check that the file has what is known of it in memory, or else that every entry has its marker."""
    path = segment.path(TXN_INDEX)
    stored = TransactionIndex(disk, path, segment.base_offset)
    try:
        entries = stored.entries
    except CorruptTxnIndexError as error:
        yield RottenFile(TRANSACTION_INDEX, path, str(error))
        return
    known = segment.known_aborted
    if known is not None:
        if known != entries:
            yield RottenFile(TRANSACTION_INDEX, path, "it does not have the entries that were written")
        return
    for entry in entries:
        try:
            found = segment.translate_offset(entry.last_offset)
            header = None if found is None else BatchHeader.parse(segment.read(found.position, HEADER_SIZE))
        except KafkaError:
            header = None
        if (
            header is None
            or not header.is_control
            or (header.producer_id, header.last_offset) != (entry.producer_id, entry.last_offset)
            or not entry.first_offset <= entry.last_offset
            or not entry.last_stable_offset <= entry.last_offset + 1
        ):
            detail = f"the producer {entry.producer_id} has no marker at offset {entry.last_offset}"
            yield RottenFile(TRANSACTION_INDEX, path, detail)
            return
        yield HEADER_SIZE


def examine_snapshots(disk: Disk, dir: str, offsets: Sequence[int]) -> Iterator[Examined]:
    """Check the producer snapshots at these offsets."""
    for offset in offsets:
        path = posixpath.join(dir, segment_file_name(offset, SNAPSHOT))
        try:
            data = read_file(disk, path)
            decode_snapshot(data)
        except FileNotFoundError:
            continue
        except CorruptSnapshotError as error:
            yield RottenFile(PRODUCER_SNAPSHOT, path, str(error))
        else:
            yield len(data)


def examine_leader_epochs(
    disk: Disk, dir: str, written: Sequence[tuple[int, int]] | None
) -> Iterator[Examined]:
    """Check the file of the leader epochs; `written` is what it should have, if that is known."""
    path = posixpath.join(dir, LEADER_EPOCH_CHECKPOINT)
    try:
        found = read_epochs(disk, path)
        data = read_file(disk, path)
    except CorruptCheckpoint as error:
        yield RottenFile(LEADER_EPOCHS, path, str(error))
        return
    except FileNotFoundError:
        return
    right = found if written is None else written
    if data and data not in (encode_epochs(right), encode_epochs(right, sealed=False)):
        yield RottenFile(LEADER_EPOCHS, path, "it does not have the epochs that were written")
    elif any(one >= other for pair in pairwise(found) for one, other in zip(*pair)):
        yield RottenFile(LEADER_EPOCHS, path, "its epochs and offsets do not rise")


def examine_topic_id(disk: Disk, dir: str, topic_id: bytes | None) -> Iterator[Examined]:
    """Check the topic id of a partition; `topic_id` is the one that it should have, if that is known."""
    path = posixpath.join(dir, checkpoints.PARTITION_METADATA)
    try:
        found = checkpoints.read_topic_id(disk, path)
    except CorruptCheckpoint as error:
        yield RottenFile(TOPIC_ID, path, str(error))
        return
    if topic_id is not None and found is not None and found != topic_id:
        yield RottenFile(TOPIC_ID, path, "it names another topic than the one that the broker serves")
