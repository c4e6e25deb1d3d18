"""The snapshots of the metadata log on disk, written here or fetched from a leader.

A snapshot is written under a `.part` name, synced, and renamed: a file with the final name is complete.
Loading starts from the newest one that can be read; older ones are kept for replicas that are behind.
Invariant: the log starts at or below the oldest snapshot kept, so the records after each snapshot are there.
"""

from __future__ import annotations

import contextlib
import logging
import posixpath
from collections.abc import Iterable
from typing import Final

from ottla.protocol.errors import KafkaError
from ottla.raft.snapshot import (
    PART_SUFFIX,
    SUFFIX,
    SnapshotContent,
    SnapshotId,
    decode_snapshot,
    is_unfinished,
    parse_name,
    snapshot_timestamp,
)
from ottla.runtime.disk import Disk, File, read_file

_log = logging.getLogger(__name__)

_HEADER_BYTES: Final = 64 * 1024


class SnapshotStore:
    def __init__(self, disk: Disk, dir: str) -> None:
        self._disk: Final = disk
        self._dir: Final = dir
        self.ids: list[SnapshotId] = []  # oldest first

    def load(self) -> None:
        """List the snapshots, and delete the unfinished ones."""
        self.ids = []
        for name in self._disk.list_dir(self._dir):
            if is_unfinished(name):
                self._disk.unlink(self._path(name))
            elif (id := parse_name(name)) is not None:
                self.ids.append(id)
        self.ids.sort()

    @property
    def newest(self) -> SnapshotId | None:
        return self.ids[-1] if self.ids else None

    @property
    def oldest(self) -> SnapshotId | None:
        return self.ids[0] if self.ids else None

    def size(self, id: SnapshotId) -> int:
        return self._disk.size(self._path(id.file_name))

    def read(self, id: SnapshotId) -> SnapshotContent:
        return decode_snapshot(read_file(self._disk, self._path(id.file_name)))

    def timestamp(self, id: SnapshotId) -> int:
        """When the last record in the snapshot was appended."""
        return snapshot_timestamp(self.read_bytes(id, 0, _HEADER_BYTES))

    def read_bytes(self, id: SnapshotId, position: int, size: int) -> bytes:
        """Read a piece of the file, as FetchSnapshot serves it."""
        file = self._disk.open(self._path(id.file_name), writable=False)
        try:
            return file.pread(size, position)
        finally:
            file.close()

    def read_newest(self) -> tuple[SnapshotId, SnapshotContent] | None:
        """Read the newest snapshot that is not damaged; damaged ones are skipped with a warning."""
        for id in reversed(self.ids):
            try:
                return id, self.read(id)
            except KafkaError as error:
                _log.warning(
                    "the snapshot %s cannot be used (%s); an older one and the log stand in for it",
                    self._path(id.file_name),
                    error.message,
                )
        return None

    def write(self, id: SnapshotId, batches: Iterable[bytes]) -> None:
        """Write a snapshot of these batches; it is durable on return. Does not change `ids`: it may run in a
        thread.
        """
        writer = RawSnapshotWriter(self._disk, self._dir, id)
        try:
            position = 0
            for batch in batches:
                writer.write(position, batch)
                position += len(batch)
            writer.freeze()
        except OSError:
            writer.abandon()
            raise

    def create(self, id: SnapshotId) -> RawSnapshotWriter:
        """Start writing a snapshot that is received in pieces."""
        return RawSnapshotWriter(self._disk, self._dir, id)

    def add(self, id: SnapshotId) -> None:
        if id not in self.ids:
            self.ids.append(id)
            self.ids.sort()

    def remove(self, id: SnapshotId) -> None:
        self.ids.remove(id)
        self._disk.unlink(self._path(id.file_name))

    def _path(self, name: str) -> str:
        return posixpath.join(self._dir, name)


class RawSnapshotWriter:
    """A snapshot that is being written; it counts as a snapshot once `freeze` returns."""

    def __init__(self, disk: Disk, dir: str, id: SnapshotId) -> None:
        self.id: Final = id
        self._disk: Final = disk
        self._dir: Final = dir
        self._part: Final = posixpath.join(dir, id.file_name.removesuffix(SUFFIX) + PART_SUFFIX)
        self._file: File | None = None

    def write(self, position: int, data: bytes) -> None:
        if self._file is None:
            self._file = self._disk.open(self._part, create=True)
            self._file.truncate(0)
        self._file.pwrite(data, position)

    def check(self) -> None:
        """KafkaError CORRUPT_MESSAGE unless the file is a complete snapshot."""
        decode_snapshot(read_file(self._disk, self._part))

    def freeze(self) -> None:
        """Sync the file and give it its final name."""
        assert self._file is not None, "an empty file is not a snapshot"
        try:
            self._file.sync()
        finally:
            self._close()
        self._disk.rename(self._part, posixpath.join(self._dir, self.id.file_name))
        self._disk.sync_dir(self._dir)

    def abandon(self) -> None:
        """Delete the unfinished file."""
        self._close()
        with contextlib.suppress(OSError):
            self._disk.unlink(self._part)

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()
