"""`KafkaRaftLog`: the metadata log on disk, `__cluster_metadata-0`, with its snapshots;
`KafkaMetadataLog` before Kafka 4.1.

It is an ordinary partition log that is recovered as after a crash whenever it is opened: a torn batch at its
end was not committed. If a snapshot is ahead of the log, it came from a leader that was ahead, and the log
starts over after it. Invariant: `KafkaRaftLog.durable_end` is at or below the first record that a power cut
could destroy.
"""

from __future__ import annotations

import contextlib
import logging
import posixpath
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ottla.log.config.log_config import LogConfig
from ottla.log.directory.directory import LogDirectory
from ottla.log.local_log import FlushPlan
from ottla.log.log_loader import LoadOptions, create_log, load_log
from ottla.log.segment.handles import FileHandles, is_lack_of_handles
from ottla.log.unified_log import UnifiedLog
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import (
    CLUSTER_METADATA_PARTITION,
    CLUSTER_METADATA_TOPIC_ID,
    METADATA_PARTITION_DIR,
)
from ottla.raft.driver.snapshots import RawSnapshotWriter, SnapshotStore
from ottla.raft.log import NoRoom
from ottla.raft.messages import OffsetAndEpoch
from ottla.raft.snapshot import SnapshotContent, SnapshotId
from ottla.raft.voters import VoterSet, VoterSetHistory
from ottla.records.batch import iter_batches
from ottla.records.control import QuorumRecord, build_quorum_batch
from ottla.records.validation import AppendOrigin
from ottla.runtime.clock import Clock
from ottla.runtime.disk import Disk, is_out_of_space
from ottla.runtime.random import Random

_logger = logging.getLogger(__name__)

MAX_BATCH_BYTES: Final = 8 * 1024 * 1024
_READ_BYTES: Final = 1024 * 1024
_DAY_MS: Final = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class KafkaRaftLogConfig:
    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * _DAY_MS
    max_retention_bytes: int = 100 * 1024 * 1024
    max_retention_ms: int = 7 * _DAY_MS

    def log_config(self) -> LogConfig:
        return LogConfig(
            segment_bytes=self.segment_bytes,
            segment_ms=self.segment_ms,
            retention_bytes=-1,
            retention_ms=-1,
            max_message_bytes=MAX_BATCH_BYTES,
            file_delete_delay_ms=0,
        )


class _MetadataDirectory(LogDirectory):
    """A log directory that does not write the metadata log's start and recovery points into the broker's
    checkpoints.

    The start follows from the snapshots, and recovery reads the whole log, as Kafka's does.
    """

    __slots__ = ()

    def write_recovery_points(self, offsets: object) -> None:
        pass

    def write_log_starts(self, offsets: object) -> None:
        pass


class LogGap(Exception):
    """Neither a snapshot nor the log reaches back far enough."""


class KafkaRaftLog:
    """Create it by `open`, which blocks: run it in the pool."""

    def __init__(
        self, log: UnifiedLog, snapshots: SnapshotStore, config: KafkaRaftLogConfig, clock: Clock
    ) -> None:
        self._log: Final = log
        self.snapshots: Final = snapshots
        self._config: Final = config
        self._clock: Final = clock
        self._download: RawSnapshotWriter | None = None
        self._flushing = False
        self._trim_wanted = False

    @classmethod
    def open(
        cls, disk: Disk, clock: Clock, random: Random, dir: str, config: KafkaRaftLogConfig | None = None
    ) -> KafkaRaftLog:
        config = config or KafkaRaftLogConfig()
        directory = _MetadataDirectory(dir, FileHandles(disk), clock, random)
        path = posixpath.join(dir, METADATA_PARTITION_DIR)
        disk.make_dirs(path)
        snapshots = SnapshotStore(disk, path)
        snapshots.load()
        if any(name.endswith(".log") for name in disk.list_dir(path)):
            options = LoadOptions(clean=False)
            log = load_log(
                directory, METADATA_PARTITION_DIR, CLUSTER_METADATA_PARTITION, config.log_config(), options
            )
        else:
            log = create_log(
                directory,
                METADATA_PARTITION_DIR,
                CLUSTER_METADATA_PARTITION,
                config.log_config(),
                topic_id=CLUSTER_METADATA_TOPIC_ID,
            )
            log.complete_creation()  # here, as the first append is made on the event loop
        log.assign_topic_id(CLUSTER_METADATA_TOPIC_ID)
        # What recovery found may be in the page cache only; after this flush durable_end is true.
        log.flush()
        return cls(log, snapshots, config, clock)

    def load(self, static_voters: VoterSet | None) -> tuple[VoterSetHistory, LoadedSnapshot | None]:
        """Read the voters from the newest snapshot and the log after it; gives that snapshot too. Blocks."""
        voters = VoterSetHistory(static_voters)
        found = self.snapshots.read_newest()
        start = 0
        if found is not None:
            id, content = found
            if self._is_ahead(id):
                self._log.truncate_fully_and_start_at(id.offset)
            voters.load_snapshot(id.offset, content.kraft_version, content.voters)
            start = id.offset
        if start < self._log.log_start_offset:
            raise LogGap(
                f"{self._log.dir}: the metadata log begins at offset {self._log.log_start_offset}, and there "
                "is no usable snapshot of what was before; restore one, or the directory, from a copy"
            )
        for batches in self.batches(start):
            voters.replay_batches(batches, self._log.log_end_offset)
        self._log.update_high_watermark(start)
        return voters, None if found is None else LoadedSnapshot(*found)

    def batches(self, start: int, end: int | None = None) -> Iterable[bytes]:
        """Read the log from `start` on and below `end`, in pieces of whole batches."""
        offset = start
        end = self._log.log_end_offset if end is None else end
        while offset < end:
            data = self._log.read(offset, _READ_BYTES, upper_offset=end).records
            whole, first = 0, None
            for position, header in iter_batches(data):
                if header.last_offset < offset:
                    continue
                first = position if first is None else first
                whole, offset = position + header.size, header.next_offset
            if first is None:
                return
            yield data[first:whole]

    def _is_ahead(self, id: SnapshotId) -> bool:
        return id.offset > self._log.log_end_offset or id.epoch > (self._log.latest_epoch or 0)

    # RaftLog

    @property
    def is_online(self) -> bool:
        """False once the disk has failed; a full disk is not a failure."""
        return self._log.directory.is_online

    @property
    def start_offset(self) -> int:
        return self._log.log_start_offset

    @property
    def end(self) -> OffsetAndEpoch:
        offset = self._log.log_end_offset
        epoch = self._log.latest_epoch
        if epoch is None:
            newest = self.snapshots.newest
            epoch = newest.epoch if newest is not None and newest.offset == offset else 0
        return OffsetAndEpoch(offset, epoch)

    @property
    def high_watermark(self) -> int:
        return self._log.high_watermark

    def update_high_watermark(self, offset: int) -> None:
        assert offset >= self._log.high_watermark, (
            f"the high watermark would go back from {self._log.high_watermark} to {offset}"
        )
        self._log.update_high_watermark(offset)

    def end_offset_for_epoch(self, epoch: int) -> OffsetAndEpoch:
        found, offset = self._log.end_offset_for_epoch(epoch)
        if found < 0:
            return self.end
        earliest = self.snapshots.oldest
        if earliest is not None and offset == earliest.offset and found == epoch:
            return OffsetAndEpoch(*earliest)
        return OffsetAndEpoch(offset, found)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn the error of a write that can be tried again into `NoRoom`."""
        try:
            yield
        except OSError as error:
            if not is_out_of_space(error) and not is_lack_of_handles(error):
                raise
            raise NoRoom(f"no room for the metadata log ({error}); free some, and it will go on") from error
        except KafkaError as error:
            if error.code is not ErrorCode.KAFKA_STORAGE_ERROR or not self.is_online or self._log.is_closed:
                raise
            raise NoRoom(error.message) from error

    def append_as_leader(self, batch: bytes, epoch: int) -> None:
        with self._writing():
            self._log.append_as_leader(
                batch,
                epoch,
                now_ms=self._clock.wall_ms(),
                origin=AppendOrigin.RAFT_LEADER,
            )

    def append_control_as_leader(self, records: Sequence[QuorumRecord], epoch: int) -> None:
        batch = build_quorum_batch(
            records, timestamp=self._clock.wall_ms(), leader_epoch=epoch, base_offset=self.end.offset
        )
        self.append_as_leader(batch, epoch)

    def append_as_follower(self, records: bytes, epoch: int) -> None:
        with self._writing():
            self._log.append_as_follower(records, epoch, now_ms=self._clock.wall_ms())

    def read(self, offset: int, max_bytes: int) -> bytes:
        data = self._log.read(offset, max_bytes).records
        end = max((position + header.size for position, header in iter_batches(data)), default=0)
        return data[:end]

    def truncate_to(self, offset: int) -> None:
        with self._writing():
            self._log.truncate_to(offset)

    @property
    def earliest_snapshot(self) -> SnapshotId | None:
        return self.snapshots.oldest

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        return self.snapshots.newest

    def snapshot_size(self, id: SnapshotId) -> int | None:
        return self.snapshots.size(id) if id in self.snapshots.ids else None

    def read_snapshot(self, id: SnapshotId, position: int, max_bytes: int) -> bytes:
        return self.snapshots.read_bytes(id, position, max_bytes)

    def begin_snapshot(self, id: SnapshotId) -> None:
        self.abandon_snapshot()
        self._download = self.snapshots.create(id)

    def write_snapshot(self, id: SnapshotId, position: int, data: bytes) -> None:
        assert self._download is not None
        assert self._download.id == id
        with self._writing():
            self._download.write(position, data)

    def abandon_snapshot(self) -> None:
        download, self._download = self._download, None
        if download is not None:
            download.abandon()

    def take_download(self, id: SnapshotId) -> RawSnapshotWriter:
        """Hand over the snapshot that has been received, for `finish_download`; `abandon_snapshot` does not
        affect it any more.
        """
        download, self._download = self._download, None
        assert download is not None
        assert download.id == id
        return download

    def finish_download(self, download: RawSnapshotWriter) -> bool:
        """Make a received snapshot durable; False if it is damaged. If there is no room for it, it is deleted
        and has to be fetched again. Blocks.
        """
        try:
            download.check()
            with self._writing():
                download.freeze()
        except KafkaError as error:
            download.abandon()
            if error.code is not ErrorCode.CORRUPT_MESSAGE:
                raise
            return False
        return True

    def start_after_snapshot(self, id: SnapshotId) -> SnapshotContent:
        content = self.snapshots.read(id)
        with self._writing():
            self._log.truncate_fully_and_start_at(id.offset)
        for older in [other for other in self.snapshots.ids if other < id]:
            self.snapshots.remove(older)
        self.snapshots.add(id)
        return content

    # Durability

    @property
    def durable_end(self) -> int:
        return self._log.recovery_point

    def prepare_flush(self) -> FlushPlan | None:
        """Plan the next sync; there is one at a time."""
        assert not self._flushing, "a flush is under way"
        with self._writing():
            plan = self._log.prepare_flush()
        self._flushing = plan is not None
        return plan

    def run_flush(self, plan: FlushPlan) -> None:
        """Sync; blocks: run it in the pool. After `NoRoom` call `abandon_flush`."""
        with self._writing():
            self._log.run_flush(plan)

    def abandon_flush(self) -> None:
        """Give up a flush that found no room; nothing counts as durable by it."""
        self._flushing = False

    def complete_flush(self, plan: FlushPlan) -> None:
        self._log.complete_flush(plan)
        self._flushing = False
        if self._trim_wanted:
            self.trim()

    # SnapshotStore and retention

    @property
    def dir(self) -> str:
        return self._log.dir

    @property
    def size(self) -> int:
        return self._log.size

    def on_snapshot_written(self, id: SnapshotId) -> None:
        """Note that a snapshot of committed records is on disk: roll the segment, and delete what is not
        needed any more.
        """
        self.snapshots.add(id)
        self._log.roll(self._clock.wall_ms())
        self.trim()

    def trim(self) -> None:
        """Delete the oldest snapshots and the records before the next ones, while they are too large or too
        old. A flush in progress needs its files, so the deletion waits for it.
        """
        self._trim_wanted = self._flushing
        if self._flushing:
            return
        now_ms = self._clock.wall_ms()
        while len(self.snapshots.ids) > 1:
            total = self._log.size + sum(self.snapshots.size(id) for id in self.snapshots.ids)
            oldest, following = self.snapshots.ids[:2]
            too_large = 0 <= self._config.max_retention_bytes < total
            if not too_large and not self._too_old(oldest, now_ms):
                break
            if following.offset > self._log.high_watermark:
                break
            self._log.maybe_increment_log_start_offset(following.offset, "a newer snapshot is there")
            self._log.delete_old_segments(now_ms)
            self.snapshots.remove(oldest)
        self._log.directory.remove_due(now_ms)

    def _too_old(self, id: SnapshotId, now_ms: int) -> bool:
        limit = self._config.max_retention_ms
        return limit >= 0 and now_ms - self.snapshots.timestamp(id) > limit

    def close(self) -> None:
        """Sync what was appended and close the files. Blocks. Without room for that the files are closed as
        they are: what is committed was synced before, and the next start reads the whole log anyway.
        """
        try:
            with self._writing():
                self._log.close()
        except NoRoom as error:
            _logger.warning("the metadata log is closed without its last checkpoint: %s", error.message)
            self._log.close_handlers()

    def release(self) -> None:
        """Close the files without writing anything."""
        self._log.close_handlers()


@dataclass(frozen=True, slots=True)
class LoadedSnapshot:
    id: SnapshotId
    content: SnapshotContent
