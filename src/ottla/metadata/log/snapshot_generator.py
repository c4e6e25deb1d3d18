"""When the image is written as a snapshot, and how: after so many bytes of records, or so much time.

A snapshot is of what is committed, and written in the pool while the node goes on. Once it is on disk, the
log before it may go, as far as retention allows.
"""

from __future__ import annotations

from typing import Final

from ottla.metadata.image.image import MetadataImage
from ottla.metadata.log.loader import MetadataLoader
from ottla.metadata.log.snapshots import snapshot_batches, snapshot_id
from ottla.raft.driver.disk_log import DiskLog
from ottla.raft.membership import VoterSetHistory
from ottla.raft.snapshot import SnapshotId
from ottla.runtime.runtime import Runtime


class SnapshotGenerator:
    def __init__(
        self,
        runtime: Runtime,
        log: DiskLog,
        membership: VoterSetHistory,
        loader: MetadataLoader,
        *,
        max_record_bytes: int,
        max_interval_ms: int,
    ) -> None:
        """Snapshots are due after ``max_record_bytes`` or ``max_interval_ms``; 0 means never."""
        self._runtime: Final = runtime
        self._log: Final = log
        self._membership: Final = membership
        self._loader: Final = loader
        self._max_record_bytes: Final = max_record_bytes
        self._max_interval_ms: Final = max_interval_ms
        self._bytes = 0  # of records since the last one
        self._last_ms = runtime.clock.wall_ms()
        self._running = False

    def replayed(self, size_bytes: int) -> None:
        """Take note of records that no snapshot has yet."""
        self._bytes += size_bytes

    def began_anew(self) -> None:
        """A snapshot of the leader's has taken the place of everything."""
        self._bytes = 0

    def is_due(self) -> bool:
        """Whether enough was written, or enough time went by, since the last snapshot."""
        image = self._loader.image
        if image.is_empty or image.provenance.last_contained_offset < 0 or self._loader.transaction_open:
            return False
        newest = self._log.snapshots.newest
        if newest is not None and image.provenance.last_contained_offset + 1 <= newest.offset:
            return False
        if self._bytes >= self._max_record_bytes:
            return True
        if self._max_interval_ms <= 0 or self._bytes == 0:
            return False
        return self._runtime.clock.wall_ms() - self._last_ms >= self._max_interval_ms

    async def write_if_due(self) -> SnapshotId | None:
        """Write a snapshot if it is due and none is being written; the snapshot."""
        if self._running or not self.is_due():
            return None
        self._running = True
        try:
            return await self.write(self._loader.image)
        finally:
            self._running = False

    async def write(self, image: MetadataImage) -> SnapshotId:
        """Write a committed image, then trim the log as far as retention allows."""
        log, snapshots = self._log, self._log.snapshots
        id = snapshot_id(image)
        assert id.offset <= log.high_watermark, "a snapshot of uncommitted records"
        now_ms = self._runtime.clock.wall_ms()
        self._bytes = 0
        self._last_ms = now_ms
        kraft_version, voters = self._membership.at(id.offset)
        batches = snapshot_batches(image, kraft_version=kraft_version, voters=voters, now_ms=now_ms)
        await self._runtime.pool.run(snapshots.write, id, batches)
        if id.offset < log.start_offset:
            # Meanwhile the leader sent a newer one, and the log begins behind it.
            snapshots.add(id)
            snapshots.remove(id)
            return id
        log.snapshot_written(id)
        self._membership.forget_before(log.start_offset)
        return id
