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
from dataclasses import dataclass
from typing import Final

from ottla.log.config import LogConfig
from ottla.log.directory import LogDirectory
from ottla.log.files import TopicPartition
from ottla.log.handles import FileHandles
from ottla.log.log import Log
from ottla.log.recovery import LoadOptions, create_log, load_log
from ottla.metadata.features import MetadataVersion
from ottla.metadata.image import MetadataImage, Provenance
from ottla.metadata.records import MetadataRecord, encode_record
from ottla.metadata.replay import Replayer
from ottla.metadata.snapshots import Snapshots
from ottla.metadata.storage import METADATA_PARTITION_DIR, StorageError
from ottla.protocol.control_records import KRaftVersionRecord, VotersRecord
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.metadata_records import decode_metadata_record
from ottla.raft.election_state import FILE_NAME as QUORUM_STATE
from ottla.raft.election_state import BadQuorumState, ElectionState
from ottla.raft.quorum import Quorum
from ottla.raft.snapshot import SnapshotId
from ottla.raft.voters import Address, ReplicaKey, Voter, VoterSet
from ottla.records.batch import BatchHeader, iter_batches, read_records
from ottla.records.builder import build_batch
from ottla.records.control import build_quorum_batch, parse_control_records
from ottla.records.validation import AppendOrigin
from ottla.runtime.disk import read_file, write_file
from ottla.runtime.runtime import Runtime

_log = logging.getLogger(__name__)

METADATA_PARTITION: Final = TopicPartition("__cluster_metadata", 0)
METADATA_TOPIC_ID: Final = bytes(15) + b"\x01"
MAX_BATCH_BYTES: Final = 8 * 1024 * 1024
_READ_BYTES: Final = 1024 * 1024
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

    def log_config(self) -> LogConfig:
        return LogConfig(
            segment_bytes=self.segment_bytes,
            segment_ms=self.segment_ms,
            retention_bytes=-1,
            retention_ms=-1,
            max_message_bytes=MAX_BATCH_BYTES,
            file_delete_delay_ms=0,
        )


DEFAULT_CONFIG: Final = MetadataLogConfig()


class _MetadataDirectory(LogDirectory):
    """The directory as the metadata log sees it: its start and recovery points are not in the broker's
    checkpoints.

    The start follows from the snapshots, and recovery looks at the whole log, as Kafka's does.
    """

    __slots__ = ()

    def write_recovery_points(self, offsets: object) -> None:
        pass

    def write_log_starts(self, offsets: object) -> None:
        pass


class MetadataLog:
    """Use :meth:`open`. ``on_commit(high_watermark)`` is called before whoever waits for the offset is
    woken.
    """

    def __init__(
        self,
        runtime: Runtime,
        directory: LogDirectory,
        log: Log,
        snapshots: Snapshots,
        config: MetadataLogConfig,
    ) -> None:
        self._runtime: Final = runtime
        self._directory: Final = directory
        self._log: Final = log
        self.snapshots: Final = snapshots
        self.config: Final = config
        self.quorum: Quorum
        self.on_commit: Callable[[int], None] | None = None
        self._replayer = Replayer()
        self._kraft_version = 0
        self._log_voters: VoterSet | None = None  # from control records in the log or the snapshot
        self._voters_offset: int | None = None
        self._failure: BaseException | None = None
        self._waiters: list[
            tuple[int, int, asyncio.Future[None]]
        ] = []  # heap of (end offset, number, future)
        self._waiter_count = 0
        self._flusher: asyncio.Task[None] | None = None
        self._bytes_since_snapshot = 0
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
        self = await runtime.pool.run(cls._load, runtime, dir, config)
        try:
            await self._lead(node_id, directory_id, static_voters, endpoints or {})
        except BaseException:
            self._log.release()
            raise
        return self

    # Loading

    @classmethod
    def _load(cls, runtime: Runtime, dir: str, config: MetadataLogConfig) -> MetadataLog:
        disk = runtime.disk
        directory = _MetadataDirectory(dir, FileHandles(disk), runtime.clock, runtime.random)
        path = posixpath.join(dir, METADATA_PARTITION_DIR)
        disk.make_dirs(path)
        snapshots = Snapshots(disk, path)
        snapshots.load()
        has_segments = any(name.endswith(".log") for name in disk.list_dir(path))
        if has_segments:
            log = load_log(
                directory,
                METADATA_PARTITION_DIR,
                METADATA_PARTITION,
                config.log_config(),
                LoadOptions(clean=False),
            )
        else:
            log = create_log(directory, METADATA_PARTITION_DIR, METADATA_PARTITION, config.log_config())
        log.assign_topic_id(METADATA_TOPIC_ID)
        self = cls(runtime, directory, log, snapshots, config)
        self._replay_everything()
        return self

    def _replay_everything(self) -> None:
        found = self.snapshots.read_newest()
        start = 0
        if found is not None:
            id, content = found
            if id.offset > self._log.log_end_offset or id.epoch > (self._log.latest_epoch or 0):
                # The log ends before the snapshot: it is from a leader that was ahead, and the log starts
                # over.
                self._log.truncate_fully_and_start_at(id.offset)
            self._kraft_version = content.kraft_version
            self._log_voters = content.voters
            self._voters_offset = id.offset - 1 if content.voters is not None else None
            provenance = Provenance(id.offset - 1, id.epoch, content.last_contained_log_timestamp)
            if content.values:
                self._replayer.replay([decode_metadata_record(v)[0] for v in content.values], provenance)
            start = id.offset
        if start < self._log.log_start_offset:
            raise StorageError(
                f"{self._log.dir}: the metadata log begins at offset {self._log.log_start_offset}, and there "
                "is no usable snapshot of what was before; restore one, or the directory, from a copy"
            )
        offset = start
        end = self._log.log_end_offset
        while offset < end:
            data = self._log.read(offset, _READ_BYTES).records
            for position, header in iter_batches(data):
                if header.last_offset >= offset:
                    self._replay_batch(data, position, header)
                    offset = header.next_offset

    def _replay_batch(self, data: bytes, position: int, header: BatchHeader) -> None:
        records = read_records(data, position)
        if not header.is_control:
            provenance = Provenance(header.last_offset, header.leader_epoch, header.max_timestamp)
            self._replayer.replay(
                [decode_metadata_record(record.value or b"")[0] for record in records], provenance
            )
            self._bytes_since_snapshot += header.size
            return
        for control in parse_control_records(records):
            if isinstance(control.value, KRaftVersionRecord):
                self._kraft_version = control.value.kraft_version
            elif isinstance(control.value, VotersRecord):
                self._log_voters = VoterSet.from_record(control.value)
                self._voters_offset = control.offset
        self._replayer.replay([], Provenance(header.last_offset, header.leader_epoch, header.max_timestamp))

    def take_replayer(self) -> Replayer:
        """What was loaded, to go on from: its image, and whether a metadata transaction is open."""
        return self._replayer

    # Leading

    async def _lead(
        self,
        node_id: int,
        directory_id: bytes,
        static_voters: VoterSet | None,
        endpoints: dict[str, Address],
    ) -> None:
        local = ReplicaKey(node_id, directory_id)
        if self._kraft_version >= 1 and self._log_voters is not None:
            voters = self._log_voters
        else:
            voters = static_voters or VoterSet.of(Voter(ReplicaKey(node_id), endpoints))
        newest = self.snapshots.newest
        log_epoch = max(self._log.latest_epoch or 0, 0 if newest is None else newest.epoch)
        self.quorum = Quorum(
            local,
            voters,
            kraft_version=self._kraft_version,
            election=self._read_election_state(),
            log_epoch=log_epoch,
        )
        await self._write_election_state(self.quorum.campaign())
        await self._write_election_state(self.quorum.elected(self._log.log_end_offset))
        records = self.quorum.start_of_epoch_records(Voter(local, endpoints), self._voters_offset)
        now_ms = self._runtime.clock.wall_ms()
        start = self._log.log_end_offset
        batch = build_quorum_batch(records, timestamp=now_ms, leader_epoch=self.epoch, base_offset=start)
        self._append(batch, now_ms)
        self._replayer.replay([], Provenance(self.next_offset - 1, self.epoch, now_ms))
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
        version = 1 if self._kraft_version >= 1 else 0
        await self._runtime.pool.run(write_file, self._runtime.disk, path, state.encode(version))

    @property
    def epoch(self) -> int:
        return self.quorum.epoch

    @property
    def kraft_version(self) -> int:
        return self._kraft_version

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
        voters = self.quorum.voters if self._kraft_version >= 1 else None
        id = await self._runtime.pool.run(self._write_snapshot, image, voters)
        self.snapshots.add(id)
        self._log.roll(self._runtime.clock.wall_ms())
        self.trim()
        return id

    def _write_snapshot(self, image: MetadataImage, voters: VoterSet | None) -> SnapshotId:
        return self.snapshots.write(
            image, kraft_version=self._kraft_version, voters=voters, now_ms=self._runtime.clock.wall_ms()
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
