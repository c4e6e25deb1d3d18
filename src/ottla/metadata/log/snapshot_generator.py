"""`SnapshotGenerator`: write the image as a snapshot after a number of bytes of records, or after some time.

A snapshot contains committed records only. It is encoded in turns and written in the pool while the node goes
on. Once it is on disk, the log before it may be deleted, as far as retention allows.
"""

from __future__ import annotations

from typing import Final

from ottla.metadata.image.image import MetadataImage
from ottla.metadata.log.loader import MetadataLoader
from ottla.metadata.log.log_driver import MetadataRecordStore
from ottla.metadata.records import encode_record
from ottla.raft.snapshot import SnapshotId, encode_snapshot
from ottla.raft.voters import VoterSetHistory
from ottla.runtime.runtime import Runtime
from ottla.runtime.turns import Turns


class SnapshotGenerator:
    def __init__(
        self,
        runtime: Runtime,
        log: MetadataRecordStore,
        voter_history: VoterSetHistory,
        loader: MetadataLoader,
        *,
        max_record_bytes: int,
        max_interval_ms: int,
    ) -> None:
        """A snapshot is due after `max_record_bytes` or `max_interval_ms`; 0 means never."""
        self._runtime: Final = runtime
        self._log: Final = log
        self._voter_history: Final = voter_history
        self._loader: Final = loader
        self._max_record_bytes: Final = max_record_bytes
        self._max_interval_ms: Final = max_interval_ms
        self._bytes = 0  # of records since the last snapshot
        self._last_ms = runtime.clock.wall_ms()
        self._running = False

    def on_replayed(self, size_bytes: int) -> None:
        """Note the size of records that no snapshot contains yet."""
        self._bytes += size_bytes

    def on_load_snapshot(self) -> None:
        """Note that a snapshot of the leader has replaced everything."""
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
        """Write a snapshot if one is due and none is being written; the id of the snapshot, or None."""
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
        id = _snapshot_id(image)
        assert id.offset <= log.high_watermark, "a snapshot of uncommitted records"
        now_ms = self._runtime.clock.wall_ms()
        self._bytes = 0
        self._last_ms = now_ms
        kraft_version, voters = self._voter_history.at(id.offset)
        batches = encode_snapshot(
            await self._encode(image),
            epoch=id.epoch,
            timestamp=now_ms,
            last_contained_log_timestamp=image.provenance.last_contained_log_time_ms,
            kraft_version=kraft_version,
            voters=voters,
        )
        await self._runtime.pool.run(snapshots.write, id, batches)
        if id.offset < log.start_offset:
            # Meanwhile the leader sent a newer one, and the log starts after it.
            snapshots.add(id)
            snapshots.remove(id)
            return id
        log.on_snapshot_written(id)
        self._voter_history.truncate_before(log.start_offset)
        return id

    async def _encode(self, image: MetadataImage) -> list[bytes]:
        version = image.metadata_version
        turns = Turns(self._runtime.clock)
        values = []
        for record in image.iter_records():
            values.append(encode_record(record, version))
            if turns.is_due():
                await turns.pause()
        return values


def _snapshot_id(image: MetadataImage) -> SnapshotId:
    provenance = image.provenance
    return SnapshotId(provenance.last_contained_offset + 1, provenance.last_contained_epoch)
