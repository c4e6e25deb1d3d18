"""The metadata log: what the quorum agrees on, as records of metadata.

Opening it loads the newest snapshot and the log after it, and waits until this node leads, as a quorum of
one does at once. From then on records are appended in batches of its epoch; a batch is committed once a
majority has it on disk, and syncs are shared by all that was appended meanwhile. Invariant: nobody is told
that a record is committed before it would survive a power cut.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ottla.metadata.delta import ReplayError
from ottla.metadata.features import MetadataVersion
from ottla.metadata.image import MetadataImage, Provenance
from ottla.metadata.loader import replay_log, replay_snapshot
from ottla.metadata.records import MetadataRecord, encode_record
from ottla.metadata.replay import Replayer
from ottla.metadata.snapshots import snapshot_batches, snapshot_id
from ottla.metadata.storage import StorageError
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.raft.client import RaftClient, read_election
from ottla.raft.config import QuorumConfig
from ottla.raft.disk_log import MAX_BATCH_BYTES, METADATA_PARTITION, DiskLog, DiskLogConfig, LogGap
from ottla.raft.election_state import BadQuorumState
from ottla.raft.membership import Membership
from ottla.raft.snapshot import SnapshotId
from ottla.raft.snapshots import Snapshots
from ottla.raft.voters import Address, ReplicaKey, Voter, VoterSet
from ottla.records.builder import build_batch
from ottla.runtime.runtime import Runtime

__all__ = ["DEFAULT_CONFIG", "METADATA_PARTITION", "MetadataLog", "MetadataLogConfig"]

_DAY_MS: Final = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class MetadataLogConfig:
    """The settings whose names begin with ``metadata.log`` and ``metadata.max``."""

    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * _DAY_MS
    max_retention_bytes: int = 100 * 1024 * 1024
    max_retention_ms: int = 7 * _DAY_MS
    max_record_bytes_between_snapshots: int = 20 * 1024 * 1024
    max_snapshot_interval_ms: int = 60 * 60 * 1000

    def on_disk(self) -> DiskLogConfig:
        return DiskLogConfig(
            self.segment_bytes, self.segment_ms, self.max_retention_bytes, self.max_retention_ms
        )


DEFAULT_CONFIG: Final = MetadataLogConfig()


@dataclass(slots=True)
class _Loaded:
    log: DiskLog
    membership: Membership
    replayer: Replayer
    bytes_since_snapshot: int


def _load(runtime: Runtime, dir: str, config: MetadataLogConfig, static_voters: VoterSet) -> _Loaded:
    """Everything that the files say. Blocks: for the pool."""
    log = DiskLog.open(runtime.disk, runtime.clock, runtime.random, dir, config.on_disk())
    try:
        membership, snapshot = log.load(static_voters)
        replayer = Replayer()
        start = replay_snapshot(replayer, snapshot)
        size = replay_log(replayer, log, start, log.end.offset)
    except LogGap as error:
        log.release()
        raise StorageError(str(error)) from error
    except (ReplayError, KafkaError) as error:
        log.release()
        raise StorageError(f"{log.dir}: the metadata log cannot be replayed: {error}") from error
    return _Loaded(log, membership, replayer, size)


class MetadataLog:
    """Use :meth:`open`. ``on_commit(high_watermark)`` is called before whoever waits for the offset is
    woken.
    """

    def __init__(self, runtime: Runtime, loaded: _Loaded, config: MetadataLogConfig) -> None:
        self._runtime: Final = runtime
        self._log: Final = loaded.log
        self._membership: Final = loaded.membership
        self._replayer: Final = loaded.replayer
        self.config: Final = config
        self.client: RaftClient
        self.on_commit: Callable[[int], None] | None = None
        # A heap of (end offset, number, epoch, future).
        self._waiters: list[tuple[int, int, int, asyncio.Future[None]]] = []
        self._waiter_count = 0
        self._led_epoch = -1  # the last one of which it was told that it leads
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
        cluster_id: str = "",
        static_voters: VoterSet | None = None,
        endpoints: Mapping[str, Address] | None = None,
        config: MetadataLogConfig = DEFAULT_CONFIG,
        quorum: QuorumConfig | None = None,
    ) -> MetadataLog:
        """Load the metadata log of a formatted log directory and become its leader.

        ``static_voters`` is what ``controller.quorum.voters`` says, if anything; ``endpoints`` are this
        node's controller listeners, for a quorum whose voters are in the log.
        """
        local = Voter(ReplicaKey(node_id, directory_id), endpoints or {})
        configured = static_voters or VoterSet.of(Voter(ReplicaKey(node_id), local.endpoints))
        self = cls(runtime, await runtime.pool.run(_load, runtime, dir, config, configured), config)
        try:
            self._check_voters(local.key)
            try:
                election = await runtime.pool.run(read_election, runtime.disk, self._log.dir)
            except BadQuorumState as error:
                raise StorageError(f"{self._log.dir}/quorum-state: {error}") from error
            self.client = RaftClient(
                runtime,
                self._log,
                self._membership,
                local,
                self,
                cluster_id=cluster_id,
                election=election,
                config=quorum,
            )
            self.client.start()
            await self.committed_end(self.next_offset)
        except BaseException:
            self._log.release()
            raise
        now_ms = runtime.clock.wall_ms()
        self._replayer.replay([], Provenance(self.next_offset - 1, self.epoch, now_ms))
        return self

    def _check_voters(self, local: ReplicaKey) -> None:
        voters = self._membership.voters
        if voters is None or not voters.is_voter(local):
            ids = () if voters is None else voters.ids
            raise StorageError(
                f"{self._log.dir}: node {local.id} is not among the voters {ids}; check node.id and "
                "controller.quorum.voters"
            )
        if len(voters.voters) > 1:
            raise StorageError(
                f"{self._log.dir}: the voters {voters.ids} are more than one; this node can only form a "
                "quorum alone"
            )

    def take_replayer(self) -> Replayer:
        """What was loaded, to go on from: its image, and whether a metadata transaction is open."""
        return self._replayer

    # What the quorum tells

    def committed(self, high_watermark: int) -> None:
        if self.on_commit is not None:
            self.on_commit(high_watermark)
        while self._waiters and self._waiters[0][0] <= high_watermark:
            future = heapq.heappop(self._waiters)[3]
            if not future.done():
                future.set_result(None)

    def leader_changed(self, leader_id: int | None, epoch: int) -> None:
        if leader_id == self.client.raft.core.local.key.id:
            self._led_epoch = epoch
            return
        # Before it is told that it leads an epoch it is told that nobody does yet; who waits by then stays.
        lost = epoch if self._led_epoch == epoch else epoch - 1
        news = f"the leader of epoch {epoch} is {leader_id}"
        self._give_up(KafkaError(ErrorCode.NOT_CONTROLLER, news), lost)

    def snapshot_loaded(self, id: SnapshotId) -> None:
        """A leader never begins anew."""

    def failed(self, error: BaseException) -> None:
        self._give_up(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the metadata log failed: {error}"))

    def _give_up(self, error: KafkaError, epoch: int | None = None) -> None:
        """Nobody knows what becomes of what was appended up to ``epoch``; of anything, if it is None."""
        waiters = self._waiters
        self._waiters = [each for each in waiters if epoch is not None and each[2] > epoch]
        heapq.heapify(self._waiters)
        for _, _, waited, future in waiters:
            if (epoch is None or waited <= epoch) and not future.done():
                future.set_exception(error)
                future.exception()  # seen, also where nobody waits any more

    # What is known

    @property
    def voters(self) -> VoterSet:
        voters = self._membership.voters
        assert voters is not None, "a voter knows the voters"
        return voters

    @property
    def kraft_version(self) -> int:
        return self._membership.kraft_version

    @property
    def snapshots(self) -> Snapshots:
        return self._log.snapshots

    @property
    def epoch(self) -> int:
        return self.client.raft.core.epoch

    @property
    def next_offset(self) -> int:
        """The offset that the next record gets."""
        return self._log.end.offset

    @property
    def start_offset(self) -> int:
        return self._log.start_offset

    @property
    def high_watermark(self) -> int:
        return self._log.high_watermark

    @property
    def failure(self) -> BaseException | None:
        """Why the log cannot be written any more; the node has to stop then."""
        return self.client.failure

    # Appending

    def append(self, records: Sequence[MetadataRecord], version: MetadataVersion) -> Provenance:
        """Append records as one batch, all or nothing; they are committed once :meth:`committed_end` returns
        for :attr:`next_offset` as it is after this call."""
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
        self.client.append(batch)
        self._bytes_since_snapshot += len(batch)
        return Provenance(self.next_offset - 1, self.epoch, now_ms)

    async def committed_end(self, end_offset: int) -> None:
        """Return once everything below ``end_offset`` is committed."""
        self.client.check_usable()
        high_watermark = self.client.raft.core.high_watermark
        if high_watermark is not None and high_watermark >= end_offset:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiter_count += 1
        heapq.heappush(self._waiters, (end_offset, self._waiter_count, self.epoch, future))
        await future

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
        self.client.check_usable()
        id = snapshot_id(image)
        assert id.offset <= self.high_watermark, "a snapshot of uncommitted records"
        now_ms = self._runtime.clock.wall_ms()
        self._bytes_since_snapshot = 0
        self._last_snapshot_ms = now_ms
        kraft_version, voters = self._membership.at(id.offset)
        batches = snapshot_batches(image, kraft_version=kraft_version, voters=voters, now_ms=now_ms)
        await self._runtime.pool.run(self.snapshots.write, id, batches)
        self._log.snapshot_written(id)
        self._membership.forget_before(self.start_offset)
        return id

    def trim(self) -> None:
        """Drop the oldest snapshots and the records before the next ones, while they are too many or too
        old.
        """
        self._log.trim()

    async def close(self) -> None:
        """Sync what was appended and close the files."""
        await self.client.close()
