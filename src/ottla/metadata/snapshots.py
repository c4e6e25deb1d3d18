"""The snapshots of the metadata log on disk.

A snapshot is written under a ``.part`` name, synced, and renamed: a file with the final name is complete.
The newest one that can be read is where loading starts; older ones are kept for readers that are behind, as
far as ``metadata.max.retention.bytes`` and ``metadata.max.retention.ms`` say. Invariant: the log begins at
or below the oldest snapshot kept, so every snapshot is followed by the records that come after it.
"""

from __future__ import annotations

import contextlib
import logging
import posixpath
from collections.abc import Iterable
from typing import Final

from ottla.metadata.image import MetadataImage
from ottla.metadata.records import encode_record
from ottla.protocol.errors import KafkaError
from ottla.raft.snapshot import (
    PART_SUFFIX,
    SnapshotContent,
    SnapshotId,
    decode_snapshot,
    encode_snapshot,
    is_leftover,
    parse_name,
    snapshot_timestamp,
)
from ottla.raft.voters import VoterSet
from ottla.runtime.disk import Disk, read_file

_log = logging.getLogger(__name__)

_HEADER_BYTES: Final = 64 * 1024


class Snapshots:
    def __init__(self, disk: Disk, dir: str) -> None:
        self._disk: Final = disk
        self._dir: Final = dir
        self.ids: list[SnapshotId] = []  # oldest first

    def load(self) -> None:
        """Find the snapshots, and remove what a crash left of others."""
        self.ids = []
        for name in self._disk.list_dir(self._dir):
            if is_leftover(name):
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
        """A piece of the file, as FetchSnapshot serves it."""
        file = self._disk.open(self._path(id.file_name), writable=False)
        try:
            return file.pread(size, position)
        finally:
            file.close()

    def read_newest(self) -> tuple[SnapshotId, SnapshotContent] | None:
        """The newest snapshot that can be read; damaged ones are passed over with a warning."""
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

    def write(
        self, image: MetadataImage, *, kraft_version: int, voters: VoterSet | None, now_ms: int
    ) -> SnapshotId:
        """Write the image as a snapshot; it is durable on return. Does not touch ``ids``: it may run in a
        thread.
        """
        provenance = image.provenance
        id = SnapshotId(provenance.last_contained_offset + 1, provenance.last_contained_epoch)
        version = image.metadata_version
        batches = encode_snapshot(
            (encode_record(record, version) for record in image.records()),
            epoch=id.epoch,
            timestamp=now_ms,
            last_contained_log_timestamp=provenance.last_contained_log_time_ms,
            kraft_version=kraft_version,
            voters=voters,
        )
        part = self._path(id.file_name.removesuffix(".checkpoint") + PART_SUFFIX)
        try:
            self._write_part(part, batches)
            self._disk.rename(part, self._path(id.file_name))
        except OSError:
            with contextlib.suppress(OSError):
                self._disk.unlink(part)  # give back the room; the first error is the one to report
            raise
        self._disk.sync_dir(self._dir)
        return id

    def _write_part(self, path: str, batches: Iterable[bytes]) -> None:
        file = self._disk.open(path, create=True)
        try:
            file.truncate(0)
            position = 0
            for batch in batches:
                file.pwrite(batch, position)
                position += len(batch)
            file.sync()
        finally:
            file.close()

    def add(self, id: SnapshotId) -> None:
        if id not in self.ids:
            self.ids.append(id)
            self.ids.sort()

    def remove(self, id: SnapshotId) -> None:
        self.ids.remove(id)
        self._disk.unlink(self._path(id.file_name))

    def _path(self, name: str) -> str:
        return posixpath.join(self._dir, name)
