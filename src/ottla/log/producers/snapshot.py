"""Producer snapshots: the producer state as of an offset, as a file beside the segments.

A snapshot saves the scan of the whole log at start and after a truncation: the newest one at or below the
wanted offset is loaded and only the batches from there on are replayed. The bytes are Kafka's: a version,
the CRC32C of all that follows it, and one fixed-size entry for each producer, which holds its last batch
only. A damaged snapshot is never trusted; the next older one, or the log itself, serves in its place.

`ProducerSnapshots` knows which snapshot files a partition has, which of them a power loss may take, and which
may be deleted: Kafka keeps one for each segment, at its base offset, and one at the end of the log after a
clean shutdown. What relies on a snapshot asks `is_durable` first: the records before it may leave the disk
only then. Invariant: a durable snapshot is never replaced by one that is not.
"""

from __future__ import annotations

import logging
import posixpath
import struct
from bisect import bisect_left
from collections.abc import Iterable

from ottla.log.producers.state_entry import BatchMetadata, ProducerStateEntry
from ottla.log.segment.file_names import DELETED, SNAPSHOT, parse_segment_file, segment_file_name
from ottla.records.checksum import crc32c
from ottla.records.types import NO_SEQUENCE, NO_TIMESTAMP
from ottla.runtime.disk import Buffer, Disk, read_file, write_file

_VERSION = 1
_PREFIX = struct.Struct(">hIi")  # version, crc, number of entries
_CRC_START = 6
_ENTRY = struct.Struct(">qhiqiqiq")

_NO_BATCH = BatchMetadata(NO_SEQUENCE, -1, 0, NO_TIMESTAMP)

_log = logging.getLogger(__name__)


class CorruptSnapshotError(Exception):
    """The bytes are not a whole producer snapshot."""


def encode_snapshot(entries: Iterable[ProducerStateEntry]) -> bytes:
    packed = [entry.packed or _pack(entry) for entry in entries]
    body = bytearray(_PREFIX.size)
    body += b"".join(packed)
    _PREFIX.pack_into(body, 0, _VERSION, 0, len(packed))
    _PREFIX.pack_into(body, 0, _VERSION, crc32c(bytes(memoryview(body)[_CRC_START:])), len(packed))
    return bytes(body)


def _pack(entry: ProducerStateEntry) -> bytes:
    last = entry.batches[-1] if entry.batches else _NO_BATCH
    first_offset = entry.current_txn_first_offset
    packed = entry.packed = _ENTRY.pack(
        entry.producer_id,
        entry.producer_epoch,
        last.last_sequence,
        last.last_offset,
        last.offset_delta,
        entry.last_timestamp,
        entry.coordinator_epoch,
        -1 if first_offset is None else first_offset,
    )
    return packed


def decode_snapshot(data: Buffer) -> list[ProducerStateEntry]:
    if len(data) < _PREFIX.size:
        raise CorruptSnapshotError(
            f"it is {len(data)} bytes long, less than the {_PREFIX.size} of an empty one"
        )
    version, crc, count = _PREFIX.unpack_from(data, 0)
    if version != _VERSION:
        raise CorruptSnapshotError(f"its version {version} is unknown, {_VERSION} was expected")
    actual = crc32c(bytes(memoryview(data)[_CRC_START:]))
    if crc != actual:
        raise CorruptSnapshotError(f"its checksum is {crc:#010x}, but the content has {actual:#010x}")
    expected = _PREFIX.size + count * _ENTRY.size
    if count < 0 or len(data) != expected:
        raise CorruptSnapshotError(f"{count} entries make {expected} bytes, but it has {len(data)}")
    return [_entry(*fields) for fields in _ENTRY.iter_unpack(memoryview(data)[_PREFIX.size :])]


def _entry(
    producer_id: int,
    epoch: int,
    last_sequence: int,
    last_offset: int,
    offset_delta: int,
    timestamp: int,
    coordinator_epoch: int,
    txn_first_offset: int,
) -> ProducerStateEntry:
    batches = [BatchMetadata(last_sequence, last_offset, offset_delta, timestamp)] if last_offset >= 0 else []
    first_offset = txn_first_offset if txn_first_offset >= 0 else None
    return ProducerStateEntry(producer_id, epoch, coordinator_epoch, timestamp, first_offset, batches)


class ProducerSnapshots:
    """The snapshot files of one partition, by offset."""

    __slots__ = ("_disk", "_offsets", "_unsynced", "dir")

    def __init__(self, disk: Disk, dir: str) -> None:
        self._disk = disk
        self.dir = dir
        # Ascending. Mirrors the directory, of which this object is the only writer.
        self._offsets: list[int] = []
        # Those that a power loss may tear.
        self._unsynced: set[int] = set()
        self.reload()

    def reload(self) -> None:
        """Read the directory again."""
        files = map(parse_segment_file, self._disk.list_dir(self.dir))
        self._offsets = sorted(
            file.offset for file in files if file is not None and file.kind == SNAPSHOT and not file.suffix
        )

    @property
    def offsets(self) -> tuple[int, ...]:
        return tuple(self._offsets)

    @property
    def latest(self) -> int | None:
        return self._offsets[-1] if self._offsets else None

    @property
    def oldest(self) -> int | None:
        return self._offsets[0] if self._offsets else None

    def path(self, offset: int) -> str:
        return posixpath.join(self.dir, segment_file_name(offset, SNAPSHOT))

    @property
    def unsynced(self) -> tuple[int, ...]:
        """Those that have yet to be synced, by their offsets."""
        return tuple(sorted(self._unsynced))

    def is_durable(self, offset: int) -> bool:
        """Whether the snapshot at `offset` is there and survives a power loss, once its name is synced."""
        return offset in self._offsets and offset not in self._unsynced

    def write(self, offset: int, data: Buffer, *, sync: bool = False) -> str:
        """Write the snapshot at `offset`, or replace it as a whole. Without `sync` a power loss may tear a
        new one, which its checksum shows.
        """
        sync = sync or self.is_durable(offset)
        write_file(self._disk, self.path(offset), data, sync=sync)
        self.on_written(offset, synced=sync)
        return self.path(offset)

    def on_written(self, offset: int, *, synced: bool) -> None:
        """Note that the snapshot at `offset` was written, perhaps by another thread."""
        if synced:
            self._unsynced.discard(offset)
        else:
            self._unsynced.add(offset)
        at = bisect_left(self._offsets, offset)
        if at == len(self._offsets) or self._offsets[at] != offset:
            self._offsets.insert(at, offset)

    def doubt_from(self, recovery_point: int) -> None:
        """Note that the snapshots from the recovery point on, where a segment may have begun after the flush,
        may be those of a process that was killed before it had synced them.
        """
        self._unsynced.update(offset for offset in self._offsets if offset >= recovery_point)

    def on_synced(self, offsets: Iterable[int]) -> None:
        self._unsynced.difference_update(offsets)

    def sync(self, offset: int) -> None:
        """Sync a snapshot, in any thread; `on_synced` is to follow. Fine where it has gone meanwhile."""
        try:
            file = self._disk.open(self.path(offset))
        except FileNotFoundError:
            return
        try:
            file.sync()
        finally:
            file.close()

    def load(self, offset: int) -> list[ProducerStateEntry]:
        try:
            return decode_snapshot(read_file(self._disk, self.path(offset)))
        except CorruptSnapshotError as error:
            raise CorruptSnapshotError(f"{self.path(offset)}: {error}") from None

    def delete(self, offset: int) -> None:
        if self._forget(offset):
            try:
                self._disk.unlink(self.path(offset))
            except FileNotFoundError:
                _log.info("producer snapshot %s had gone already", self.path(offset))

    def mark_deleted(self, offset: int) -> str | None:
        """Give the snapshot the suffix of files that wait for their removal; its new path, if it existed."""
        if not self._forget(offset):
            return None
        path = self.path(offset)
        try:
            self._disk.rename(path, path + DELETED)
        except FileNotFoundError:
            return None
        return path + DELETED

    def delete_outside(self, log_start_offset: int, log_end_offset: int) -> None:
        """Keep only what the log can be rebuilt from: above its start, up to its end."""
        for known in self.offsets:
            if known <= log_start_offset or known > log_end_offset:
                self.delete(known)

    def delete_all(self) -> None:
        for known in self.offsets:
            self.delete(known)

    def remove_stray(self, segment_base_offsets: Iterable[int]) -> None:
        """Delete the snapshots that belong to no segment, but the newest if it lies beyond the last segment:
        a clean shutdown wrote that one.
        """
        self.reload()
        bases = set(segment_base_offsets)
        stray = [offset for offset in self._offsets if offset not in bases]
        if stray and (not bases or stray[-1] >= max(bases)):
            stray.pop()
        for offset in stray:
            self.delete(offset)

    def _forget(self, offset: int) -> bool:
        at = bisect_left(self._offsets, offset)
        if at == len(self._offsets) or self._offsets[at] != offset:
            return False
        del self._offsets[at]
        self._unsynced.discard(offset)
        return True
