"""The metadata log on disk: ``__cluster_metadata-0``, its snapshots and ``quorum-state``.

Opening it loads the newest snapshot and the log after it, and takes the leadership of a new epoch, as a
quorum of one does. From then on records are appended in batches of that epoch; a batch is committed once it
is synced to disk, and syncs are shared by all that was appended meanwhile. Invariant: nobody is told that a
record is committed before it would survive a power cut.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import posixpath
from collections.abc import Callable, Sequence
from typing import Final

from ottla.metadata.features import MetadataVersion
from ottla.metadata.image import MetadataImage, Provenance
from ottla.metadata.loader import (
    DEFAULT_CONFIG,
    MAX_BATCH_BYTES,
    METADATA_PARTITION,
    LoadedMetadata,
    MetadataLogConfig,
    load_metadata,
)
from ottla.metadata.records import MetadataRecord, encode_record
from ottla.metadata.replay import Replayer
from ottla.metadata.storage import StorageError
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.raft.election_state import FILE_NAME as QUORUM_STATE
from ottla.raft.election_state import BadQuorumState, ElectionState
from ottla.raft.quorum import Quorum
from ottla.raft.snapshot import SnapshotId
from ottla.raft.voters import Address, ReplicaKey, Voter, VoterSet
from ottla.records.builder import build_batch
from ottla.records.control import build_quorum_batch
from ottla.records.validation import AppendOrigin
from ottla.runtime.disk import read_file, write_file
from ottla.runtime.runtime import Runtime

_log = logging.getLogger(__name__)

__all__ = ["DEFAULT_CONFIG", "METADATA_PARTITION", "MetadataLog", "MetadataLogConfig"]


class MetadataLog:
    """Use :meth:`open`. ``on_commit(high_watermark)`` is called before whoever waits for the offset is
    woken.
    """

    def __init__(self, runtime: Runtime, loaded: LoadedMetadata, config: MetadataLogConfig) -> None:
        self._runtime: Final = runtime
        self._directory: Final = loaded.directory
        self._log: Final = loaded.log
        self._loaded = loaded
        self.snapshots: Final = loaded.snapshots
        self.config: Final = config
        self.kraft_version: Final = loaded.kraft_version
        self.quorum: Quorum
        self.on_commit: Callable[[int], None] | None = None
        self._failure: BaseException | None = None
        # A heap of (end offset, number, future).
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        self._waiter_count = 0
        self._flusher: asyncio.Task[None] | None = None
        self._bytes_since_snapshot = loaded.bytes_since_snapshot
        self._last_snapshot_ms = runtime.clock.wall_ms()

    @classmethod
    async def open(
        cls,
        runtime: Runtime,
        dir: str,
        *,
        node_id: int,
        directory_id: bytes,
        static_voters: VoterSet | None = None,
        endpoints: dict[str, Address] | None = None,
        config: MetadataLogConfig = DEFAULT_CONFIG,
    ) -> MetadataLog:
        """Load the metadata log of a formatted log directory and become its leader.

        ``static_voters`` is what ``controller.quorum.voters`` says, if anything; ``endpoints`` are this
        node's controller listeners, for a quorum whose voters are in the log.
        """
        self = cls(runtime, await runtime.pool.run(load_metadata, runtime, dir, config), config)
        try:
            await self._lead(node_id, directory_id, static_voters, endpoints or {})
        except BaseException:
            self._log.release()
            raise
        return self

    def take_replayer(self) -> Replayer:
        """What was loaded, to go on from: its image, and whether a metadata transaction is open."""
        return self._loaded.replayer

    # Leading

    async def _lead(
        self,
        node_id: int,
        directory_id: bytes,
        static_voters: VoterSet | None,
        endpoints: dict[str, Address],
    ) -> None:
        local = ReplicaKey(node_id, directory_id)
        if self.kraft_version >= 1 and self._loaded.voters is not None:
            voters = self._loaded.voters
        else:
            voters = static_voters or VoterSet.of(Voter(ReplicaKey(node_id), endpoints))
        newest = self.snapshots.newest
        log_epoch = max(self._log.latest_epoch or 0, 0 if newest is None else newest.epoch)
        try:
            self.quorum = Quorum(
                local,
                voters,
                kraft_version=self.kraft_version,
                election=self._read_election_state(),
                log_epoch=log_epoch,
            )
        except ValueError as error:
            raise StorageError(f"{self._log.dir}: {error}") from error
        await self._write_election_state(self.quorum.campaign())
        await self._write_election_state(self.quorum.elected(self._log.log_end_offset))
        records = self.quorum.start_of_epoch_records(Voter(local, endpoints), self._loaded.voters_offset)
        now_ms = self._runtime.clock.wall_ms()
        start = self._log.log_end_offset
        batch = build_quorum_batch(records, timestamp=now_ms, leader_epoch=self.epoch, base_offset=start)
        self._append(batch, now_ms)
        self._loaded.replayer.replay([], Provenance(self.next_offset - 1, self.epoch, now_ms))
        await self.committed(self.next_offset)

    def _read_election_state(self) -> ElectionState | None:
        path = posixpath.join(self._log.dir, QUORUM_STATE)
        if not self._runtime.disk.exists(path):
            return None
        try:
            return ElectionState.decode(read_file(self._runtime.disk, path))
        except BadQuorumState as error:
            raise StorageError(f"{path}: {error}") from error

    async def _write_election_state(self, state: ElectionState) -> None:
        path = posixpath.join(self._log.dir, QUORUM_STATE)
        version = 1 if self.kraft_version >= 1 else 0
        await self._runtime.pool.run(write_file, self._runtime.disk, path, state.encode(version))

    @property
    def epoch(self) -> int:
        return self.quorum.epoch

    @property
    def next_offset(self) -> int:
        """The offset that the next record gets."""
        return self._log.log_end_offset

    @property
    def start_offset(self) -> int:
        return self._log.log_start_offset

    @property
    def high_watermark(self) -> int:
        return self._log.high_watermark

    # Appending

    def append(self, records: Sequence[MetadataRecord], version: MetadataVersion) -> Provenance:
        """Append records as one batch, all or nothing; they are committed once :meth:`committed` returns for
        :attr:`next_offset` as it is after this call."""
        now_ms = self._runtime.clock.wall_ms()
        batch = build_batch(
            [(now_ms, None, encode_record(record, version)) for record in records],
            base_offset=self.next_offset,
            leader_epoch=self.epoch,
        )
        if len(batch) > MAX_BATCH_BYTES:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"The change takes {len(batch)} bytes of metadata records, more than the {MAX_BATCH_BYTES} "
                "that fit in one batch. Split it into smaller requests.",
            )
        self._append(batch, now_ms)
        self._bytes_since_snapshot += len(batch)
        return Provenance(self.next_offset - 1, self.epoch, now_ms)

    def _append(self, batch: bytes, now_ms: int) -> None:
        self._check_usable()
        self._log.append_as_leader(
            batch, self.epoch, now_ms=now_ms, origin=AppendOrigin.RAFT_LEADER, inline_flush=False
        )
        if self._flusher is None:
            self._flusher = asyncio.get_running_loop().create_task(self._flush(), name="metadata-log-flush")

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise KafkaError(
                ErrorCode.NOT_CONTROLLER, f"the metadata log cannot be written any more: {self._failure}"
            ) from self._failure

    async def committed(self, end_offset: int) -> None:
        """Return once everything below ``end_offset`` is committed."""
        self._check_usable()
        high_watermark = self.quorum.high_watermark
        if high_watermark is not None and high_watermark >= end_offset:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiter_count += 1
        heapq.heappush(self._waiters, (end_offset, self._waiter_count, future))
        await future

    async def _flush(self) -> None:
        """Sync until everything appended is on disk. One sync covers all that came while the last one ran."""
        try:
            while (plan := self._log.prepare_flush()) is not None:
                await self._runtime.pool.run(self._log.run_flush, plan)
                self._log.complete_flush(plan)
                high_watermark = self.quorum.flushed(plan.upto)
                if high_watermark is not None:
                    self._log.update_high_watermark(high_watermark)
                    self._wake(high_watermark)
                if plan.upto == self._log.log_end_offset:
                    break
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._flusher = None

    def _wake(self, high_watermark: int) -> None:
        if self.on_commit is not None:
            self.on_commit(high_watermark)
        while self._waiters and self._waiters[0][0] <= high_watermark:
            future = heapq.heappop(self._waiters)[2]
            if not future.done():
                future.set_result(None)

    def _fail(self, error: BaseException) -> None:
        expected = isinstance(error, OSError | KafkaError)
        _log.error("the metadata log failed: %s", error, exc_info=None if expected else error)
        self._failure = error
        failure = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the metadata log failed: {error}")
        waiters, self._waiters = self._waiters, []
        for _, _, future in waiters:
            if not future.done():
                future.set_exception(failure)

    @property
    def failure(self) -> BaseException | None:
        """Why the log cannot be written any more; the node has to stop then."""
        return self._failure

    # Snapshots

    def snapshot_due(self, image: MetadataImage) -> bool:
        """Whether enough was written, or enough time went by, since the last snapshot."""
        if image.is_empty or image.provenance.last_contained_offset < 0:
            return False
        newest = self.snapshots.newest
        if newest is not None and image.provenance.last_contained_offset + 1 <= newest.offset:
            return False
        if self._bytes_since_snapshot >= self.config.max_record_bytes_between_snapshots:
            return True
        interval = self.config.max_snapshot_interval_ms
        if interval <= 0 or self._bytes_since_snapshot == 0:
            return False
        return self._runtime.clock.wall_ms() - self._last_snapshot_ms >= interval

    async def write_snapshot(self, image: MetadataImage) -> SnapshotId:
        """Write a committed image as a snapshot, then trim the log as far as retention allows."""
        self._check_usable()
        assert image.provenance.last_contained_offset < self.high_watermark, (
            "a snapshot of uncommitted records"
        )
        self._bytes_since_snapshot = 0
        self._last_snapshot_ms = self._runtime.clock.wall_ms()
        voters = self.quorum.voters if self.kraft_version >= 1 else None
        id = await self._runtime.pool.run(self._write_snapshot, image, voters)
        self.snapshots.add(id)
        self._log.roll(self._runtime.clock.wall_ms())
        self.trim()
        return id

    def _write_snapshot(self, image: MetadataImage, voters: VoterSet | None) -> SnapshotId:
        return self.snapshots.write(
            image, kraft_version=self.kraft_version, voters=voters, now_ms=self._runtime.clock.wall_ms()
        )

    def trim(self) -> None:
        """Drop the oldest snapshots and the records before the next ones, while they are too many or too
        old.
        """
        now_ms = self._runtime.clock.wall_ms()
        while len(self.snapshots.ids) > 1:
            total = self._log.size + sum(self.snapshots.size(id) for id in self.snapshots.ids)
            oldest = self.snapshots.ids[0]
            too_large = 0 <= self.config.max_retention_bytes < total
            if not too_large and not self._too_old(oldest, now_ms):
                break
            following = self.snapshots.ids[1]
            self._log.increment_log_start_offset(following.offset, "a newer snapshot is there")
            self._log.delete_old_segments(now_ms)
            self.snapshots.remove(oldest)
        self._directory.remove_due(now_ms)

    def _too_old(self, id: SnapshotId, now_ms: int) -> bool:
        limit = self.config.max_retention_ms
        if limit < 0:
            return False
        return now_ms - self.snapshots.timestamp(id) > limit

    async def close(self) -> None:
        """Sync what was appended and close the files."""
        if self._flusher is not None:
            await self._flusher
        if self._failure is None:
            await self._runtime.pool.run(self._log.close)
        else:
            self._log.release()
