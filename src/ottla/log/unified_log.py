"""The log of one partition: appends, reads, flushes, truncation, and the offsets that bound them.

`UnifiedLog` joins the parts: the segments (`LocalLog`), the leader epochs, the producer state with its
snapshots, and the transaction index. It is synchronous and belongs to the event loop; `read` and the lookups
may also run in another thread (the list of segments is replaced and never changed, and a segment that is
removed keeps its open file until its readers are done), and a flush has three steps of which the slow one may
(`FlushPlan`).

**Appends.** Batches are checked first, by themselves and against the state of their producers; then they are
written; then the producer state, the transaction index and the leader epochs follow. An append that is
refused leaves nothing behind: the remains of a failed write are cut off, and batches whose aborted
transaction cannot be indexed are removed again.

**Durability.** An append never waits for a sync. Where the topic asks for one (`durability=disk`,
`flush.messages`), a flush is due after it, and until that is done `committable_offset` stays at the recovery
point: no high watermark passes it, a follower does not claim what is above it, and no producer has its
acknowledgement. A flush that finds no room, or no file handle, leaves the records in the log, for the next
one; any other failure of a flush takes the directory offline.

**Truncation, deletion, compaction.** These are safe because of what is durable before the first file is
touched: a recovery point that is not above the new end, a log start that is above what is removed. Up to
there an error changes nothing; from there on the work must not stop half-way, and any error takes the
directory offline. A truncation may run in steps, of which the slow ones may run in another thread
(`begin_truncation`). Until the last one the log takes part in no flush and no deletion, readers see the new
end from the moment at which files begin to change, and every other change of the log finishes it first. So
may the swap of compacted segments (`begin_replacement`). Appends and flushes go on meanwhile, as they touch
other segments; retention passes the log over, and a truncation, a rename or the close of the log finishes the
swap first.

**Remote storage.** The log of a topic with remote storage may start below its first segment here: what is
between is in remote storage only, and reading it is OFFSET_MOVED_TO_TIERED_STORAGE. Segments that remote
storage has leave the disk one by one, oldest first, each for good before the next, so that a crash leaves no
hole.

**What something relies on is durable before what it stands for may go.** The producers at the local start are
known by the snapshot there alone, once the records before it are in remote storage only: `_remove_first` has
it on the disk, made of the records if need be, before the first file changes. The leader epochs and the log
start are durable before that too, a recovery point only rises over what is synced, snapshots included, and a
snapshot is only deleted where no durable log start needs it. A log that lacks the snapshot all the same, as
after damage of its disk, knows that (`lacks_producers`): its producers are restored from remote storage, and
until then no producer may append with its id, and `read_committed` shows nothing.

**Invariants**: log start offset <= last stable offset <= high watermark <= log end offset, and recovery point
<= log end offset. After an I/O error that is not a lack of room or of file handles the whole directory is
offline and every call raises KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice, pairwise
from typing import Any, NamedTuple

from ottla.log.config.log_config import LogConfig
from ottla.log.directory import checkpoints
from ottla.log.directory.checkpoints import PARTITION_METADATA
from ottla.log.directory.dir_names import DirKind
from ottla.log.directory.directory import IoGuard, LogDirectory
from ottla.log.directory.log_creation import LogCreation
from ottla.log.leader_epoch_cache import (
    LEADER_EPOCH_CHECKPOINT,
    EpochEntry,
    LeaderEpochCache,
    leader_epochs_of_batches,
    read_leader_epochs,
)
from ottla.log.local_log import FlushPlan, LocalLog, SyncFailed
from ottla.log.producers.snapshot import CorruptSnapshotError, ProducerSnapshots, decode_snapshot
from ottla.log.producers.state_entry import SENTINEL_GUARD, BatchMetadata, VerificationGuard
from ottla.log.producers.state_manager import (
    ProducerAppend,
    ProducerStateManager,
    ProducerStateManagerConfig,
    batches_between,
    with_markers,
)
from ottla.log.retention import Deletion, segments_to_delete
from ottla.log.segment.file_names import LOG
from ottla.log.segment.offset_index import MAX_RELATIVE_OFFSET
from ottla.log.segment.segment import LogSegment
from ottla.log.segment.soundness import NEXT_BYTES, AnyEpoch, EpochSpans, Stretch, sound_end
from ottla.log.segment.sparse_index import CorruptIndex
from ottla.log.segment.timestamp_search import TimestampAndOffset, TimestampSearches
from ottla.log.segment.txn_index import AbortedTxn, CorruptTxnIndexError
from ottla.log.segment.walk import BatchPosition, CorruptBatch, CorruptLog
from ottla.log.truncation import (
    REPLAYED_AT_ONCE,
    CheckpointOffsets,
    LogChange,
    LogTruncation,
    RaiseRecoveryPoint,
    Step,
    Steps,
    run_here,
)
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition, uuid_text
from ottla.records._kernel import read_batches
from ottla.records.batch import (
    BatchHeader,
    iter_batches,
    iter_offsets,
    verify_crc,
)
from ottla.records.checksum import crc32c
from ottla.records.control import EndTransactionMarker
from ottla.records.types import NO_PRODUCER_ID, NO_TIMESTAMP, TimestampType
from ottla.records.validation import AppendOrigin, BatchCheck, validate_and_assign_offsets
from ottla.runtime import invariants
from ottla.runtime.disk import Buffer, remove_tree, write_file
from ottla.runtime.pool import Pool

MAX_OFFSET = (1 << 63) - 1

_log = logging.getLogger(__name__)


class LogAppendInfo(NamedTuple):
    """The result of an append."""

    first_offset: int
    last_offset: int
    max_timestamp: int
    log_append_time: int
    """The time that the broker gave the records; -1 where the producer's timestamps stand."""
    log_start_offset: int
    last_leader_epoch: int = -1
    """Of the last batch; -1 if nothing was appended."""
    size: int = 0
    """Bytes appended: 0 for a duplicate, and where a follower's fetch held nothing new."""
    duplicate: bool = False
    """True if the batch was appended before; the offsets are those of the first time."""
    rolled: bool = False
    """True if this append closed a segment, which is then due to be flushed."""


class FetchDataInfo(NamedTuple):
    """The result of a read."""

    records: bytes
    """Batches; the first may begin below the requested offset, the last may be cut by the size limit."""
    offset: int
    """The requested offset."""
    segment_base_offset: int
    position: int
    """The position of the records in that segment's file; -1 if there are none."""


class RemoteLogAuxState(NamedTuple):
    """What a replica has to know of the records that it does not fetch, as they are in remote storage: from
    the newest of their segments.
    """

    leader_epochs: tuple[tuple[int, int], ...]
    """(epoch, start offset), from the log start on."""
    producer_snapshot: bytes | None
    """The producers at the offset where the log begins on this disk; None if there is no file of them."""


class UnexpectedAppendOffset(KafkaError):
    """A follower received batches that begin below the end of its log."""

    __slots__ = ("first_offset", "last_offset")

    def __init__(self, message: str, first_offset: int, last_offset: int) -> None:
        super().__init__(ErrorCode.OFFSET_OUT_OF_RANGE, message)
        self.first_offset = first_offset
        self.last_offset = last_offset


class UnifiedLog:
    """One partition on disk."""

    __slots__ = (
        "_creation",
        "_creation_durable",
        "_doubt",
        "_end_verified",
        "_lacks_producers",
        "_leader_epochs",
        "_producer_config",
        "_producer_state",
        "_replacement",
        "_snapshots",
        "_topic_id",
        "_truncation",
        "_upper_bound",
        "directory",
        "high_watermark",
        "highest_offset_in_remote_storage",
        "is_closed",
        "last_flush_ms",
        "local_log",
        "log_start_offset",
        "on_log_start_moved",
        "request_listener",
        "topic_partition",
    )

    def __init__(
        self,
        local_log: LocalLog,
        log_start_offset: int,
        producer_config: ProducerStateManagerConfig,
        *,
        producer_state: ProducerStateManager | None = None,
        snapshots: ProducerSnapshots | None = None,
        lacks_producers: bool = False,
        leader_epochs: LeaderEpochCache | None = None,
        end_verified: bool = True,
        creation_durable: bool = True,
        topic_id: bytes | None = None,
        doubtful_from: int | None = None,
    ) -> None:
        """The producer state, its snapshots and the leader epochs are read from disk when they are first
        needed, unless they are given here.
        """
        self.local_log = local_log
        self.topic_partition: TopicPartition = local_log.partition
        self.directory: LogDirectory = local_log.directory
        # The first offset that readers may ask for. Only rises, except by a truncation below it.
        self.log_start_offset = log_start_offset
        # Called when the log start has moved up, as by retention.
        self.on_log_start_moved: Callable[[], None] | None = None
        # Consumers read below it. In [log start, log end]; set by `update_high_watermark` and truncations.
        self.high_watermark = max(log_start_offset, local_log.segments[0].base_offset)
        # The last offset that is known to be in remote storage, with all below it; -1 if none is.
        self.highest_offset_in_remote_storage = -1
        self._producer_config = producer_config
        self._producer_state = producer_state
        self._snapshots = snapshots
        # True if the producer state is that of the records on this disk alone, and the log starts below.
        self._lacks_producers = lacks_producers
        self._leader_epochs = leader_epochs
        # From `partition.metadata`; None until it is read.
        self._topic_id = topic_id
        # The work that makes a new log durable, once that has begun off the event loop.
        self._creation: LogCreation | None = None
        # False while a crash may leave anything, or nothing, of a new log; then the log is empty.
        self._creation_durable = creation_durable
        # False while the log end is taken from the checkpoint of a clean shutdown, or the log is new.
        self._end_verified = end_verified and creation_durable
        # Where the doubtful last batch follows on the others, and ends; None if there is none.
        self._doubt = None if doubtful_from is None else (doubtful_from, self.log_end_offset)
        self.last_flush_ms = self.directory.clock.wall_ms()
        # (offset, segment, position): where the upper bound of the last read lies.
        self._upper_bound: tuple[int, LogSegment, int] | None = None
        # The truncation under way, to which the log belongs until it is done.
        self._truncation: LogTruncation | None = None
        # The swap of compacted segments, or the removal of a copied one, that is under way.
        self._replacement: LogChange | None = None
        # True once the log was closed, deleted or taken offline.
        self.is_closed = False
        # Called when the log start rises or the settings change: for a follower's requests to its leader.
        self.request_listener: Callable[[], None] | None = None
        self._check_offsets()

    def __repr__(self) -> str:
        return f"<log {self.dir}: {self.log_start_offset} to {self.log_end_offset}>"

    # Files and settings

    @property
    def dir(self) -> str:
        return self.local_log.dir

    @property
    def is_future(self) -> bool:
        return self.dir.endswith(DirKind.FUTURE.value)

    @property
    def config(self) -> LogConfig:
        return self.local_log.config

    def update_config(self, config: LogConfig) -> None:
        """Put other settings in force, also for the active segment."""
        self.local_log.config = config
        self.local_log.active_segment.reconfigure(config)
        if self.request_listener is not None:
            self.request_listener()

    @property
    def segments(self) -> tuple[LogSegment, ...]:
        """Oldest first; the last one takes the appends."""
        return self.local_log.segments

    @property
    def active_segment(self) -> LogSegment:
        return self.local_log.active_segment

    @property
    def has_no_records(self) -> bool:
        """Whether it is as empty as a new log: one segment, and that without a record."""
        local = self.local_log
        return local.log_end_offset == local.segments[0].base_offset

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        with self._guard("reading sizes"):
            return self.local_log.size

    # Topic id and creation

    @property
    def topic_id(self) -> bytes | None:
        """The id of the topic that this partition belongs to, from `partition.metadata`."""
        if self._topic_id is None:
            with self._guard("reading the topic id"):
                try:
                    self._topic_id = checkpoints.read_topic_id(self.directory.disk, self._metadata_path)
                except checkpoints.CorruptCheckpoint as error:
                    raise CorruptLog(
                        f"{error}; without it the topic of the data in {self.dir} is unknown. Where another "
                        "replica leads the partition, the log is set aside and fetched from it. If there is "
                        f"none, and the data is of the present topic, stop the node and remove "
                        f"{PARTITION_METADATA} and {checkpoints.DAMAGE_REPORT}"
                    ) from None
        return self._topic_id

    def assign_topic_id(self, topic_id: bytes) -> None:
        """Write the topic id; INCONSISTENT_TOPIC_ID if the log is known to be of another topic."""
        known = self.topic_id
        if known is None:
            with self._guard("writing the topic id"):
                checkpoints.write_topic_id(self.directory.disk, self._metadata_path, topic_id)
            self._topic_id = topic_id
        elif known != topic_id:
            raise KafkaError(
                ErrorCode.INCONSISTENT_TOPIC_ID,
                f"Tried to assign topic ID {uuid_text(topic_id)} to log for topic partition "
                f"{self.topic_partition}, but log already contained topic ID {uuid_text(known)} ({self.dir})",
            )

    @property
    def _metadata_path(self) -> str:
        return posixpath.join(self.local_log.dir, PARTITION_METADATA)

    @property
    def is_new(self) -> bool:
        """Whether its creation is not durable yet; the first change would wait for that on the event loop."""
        return not self._creation_durable

    def begin_creation(self) -> LogCreation | None:
        """The work that makes a new log durable off the event loop, which others may have begun already; None
        if there is none to do.
        """
        if self.is_closed or self._creation_durable or self._topic_id is None:
            return None
        local = self.local_log
        if self._creation is None:
            self._creation = LogCreation(self.directory.disk, local.dir, self._topic_id, local.names_version)
        return self._creation

    async def complete_creation_in(self, pool: Pool) -> None:
        """Make a new log durable off the event loop."""
        creation = self.begin_creation()
        if creation is None:
            return
        try:
            await pool.run(creation.complete)
        except OSError as error:
            raise self.directory.io_error(f"making {self.dir} durable", error) from error
        finally:
            self.on_creation_ended(creation)

    def _cancel_creation(self) -> None:
        if self._creation is not None:
            self._creation.cancel()
            self._creation = None

    def on_creation_ended(self, creation: LogCreation) -> None:
        """Note that the work of `begin_creation` was done, or has failed: then it may be begun again."""
        if self._creation is creation:
            self._creation = None
            if creation.is_durable:
                self._creation_durable = self._end_verified = True
                self.local_log.on_names_synced(creation.names_version)
            else:
                # Another thread may still be at it. It could not be cancelled later, and a log of another
                # topic that takes the directory's name would get the id of this one.
                creation.cancel()

    def complete_creation(self) -> None:
        """Make a new log durable here and now, unless it is."""
        if self._creation_durable:
            return
        self._cancel_creation()
        local = self.local_log
        with self._guard("making a new log durable"):
            if self._topic_id is not None:
                checkpoints.write_topic_id(self.directory.disk, self._metadata_path, self._topic_id)
                local.on_names_synced(local.names_version)
            else:
                local.sync_names()
        self._creation_durable = self._end_verified = True

    # Offsets

    @property
    def log_end_offset(self) -> int:
        return self.local_log.log_end_offset

    @property
    def local_log_start_offset(self) -> int:
        """The first offset that can be read from this disk: above the log start where the records between
        are in remote storage only.
        """
        return max(self.log_start_offset, self.local_log.segments[0].base_offset)

    def update_highest_offset_in_remote_storage(self, offset: int) -> None:
        """Note that everything up to `offset` is in remote storage."""
        if offset < self.highest_offset_in_remote_storage:
            _log.warning(
                "%s: the highest offset in remote storage goes back from %d to %d",
                self.topic_partition,
                self.highest_offset_in_remote_storage,
                offset,
            )
        self.highest_offset_in_remote_storage = offset

    @property
    def recovery_point(self) -> int:
        """Everything below it is durable."""
        return self.local_log.recovery_point

    @property
    def truncation_count(self) -> int:
        """The number of times that the log was truncated at its end; a change makes earlier reads invalid."""
        return self.local_log.truncation_count

    def update_high_watermark(self, offset: int) -> int:
        """Set the high watermark, at least to the log start and at most to the log end; return it."""
        high_watermark = min(max(offset, self.log_start_offset), self.local_log.log_end_offset)
        if high_watermark != self.high_watermark:
            self.high_watermark = high_watermark
            self.directory.high_watermarks.moved[self] = None
        producers = self._producer_state
        if producers is not None:
            producers.on_high_watermark_updated(high_watermark)
        if invariants.thorough:
            self._check_offsets()
        return high_watermark

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of an open transaction, or of one that ends above the high watermark."""
        offset = self._producers_with_unstable().first_unstable_offset()
        return None if offset is None else max(offset, self.log_start_offset)

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction is decided: the bound of `read_committed`."""
        return self._last_stable_offset(self._producers_with_unstable())

    def _last_stable_offset(self, producers: ProducerStateManager) -> int:
        unstable = producers.first_unstable_offset()
        if (self._truncation is not None and self._truncation.reopens_transactions) or (
            self._lacks_producers and self.lacks_producers
        ):
            return self.log_start_offset
        if unstable is None:
            return self.high_watermark
        return min(max(unstable, self.log_start_offset), self.high_watermark)

    @property
    def loaded_producer_state(self) -> ProducerStateManager | None:
        """The producers, if they were needed so far: to look at."""
        return self._producer_state

    @property
    def unflushed_messages(self) -> int:
        local = self.local_log
        return local.log_end_offset - max(local.recovery_point, self.log_start_offset)

    @property
    def committable_offset(self) -> int:
        """What this replica has below it counts as replicated: the log end or, while a flush is due, the
        recovery point.
        """
        local = self.local_log
        unflushed = local.log_end_offset - max(local.recovery_point, self.log_start_offset)
        due = unflushed >= local.config.flush_due_messages
        return local.recovery_point if due else local.log_end_offset

    @property
    def is_flush_due(self) -> bool:
        """Whether what was appended last is to be synced before it counts as replicated."""
        return self.committable_offset < self.local_log.log_end_offset

    @property
    def doubtful_from(self) -> int | None:
        """Where the log would end without its last batch, if recovery has found a gap before that one: its
        offset, which no checksum covers, may have rotted. A follower had better fetch it again.
        """
        doubt = self._doubt
        return doubt[0] if doubt is not None and doubt[1] == self.log_end_offset else None

    def _check_offsets(self) -> None:
        """Assert the order of the offsets; called where one of them may have fallen, or two have moved."""
        local = self.local_log
        assert self.log_start_offset <= self.high_watermark <= local.log_end_offset, (
            f"{local.dir}: log start {self.log_start_offset}, high watermark {self.high_watermark}, "
            f"log end {local.log_end_offset}"
        )
        assert local.recovery_point <= local.log_end_offset, (
            f"{local.dir}: recovery point {local.recovery_point} above the log end {local.log_end_offset}"
        )
        if invariants.thorough and self._producer_state is not None:
            stable = self._last_stable_offset(self._producer_state)
            assert self.log_start_offset <= stable <= self.high_watermark, (
                f"{local.dir}: last stable offset {stable} is not between the log start "
                f"{self.log_start_offset} and the high watermark {self.high_watermark}"
            )

    # Leader epochs

    @property
    def leader_epoch_cache(self) -> LeaderEpochCache:
        cache = self._leader_epochs
        return cache if cache is not None else self._load_leader_epochs()

    @property
    def epoch_spans(self) -> EpochSpans:
        """The leader epochs for a check of the batches: any, where their file is damaged and a batch too, so
        that the check still finds that batch.
        """
        try:
            return self.leader_epoch_cache
        except CorruptBatch:
            return AnyEpoch()

    def _load_leader_epochs(self) -> LeaderEpochCache:
        local = self.local_log
        with self._guard("reading the leader epochs"):
            cache = read_leader_epochs(
                self.directory.disk, local.dir, () if self.has_no_records else local.segments
            )
            cache.fit(self.log_start_offset, local.log_end_offset)
        self._leader_epochs = cache
        return cache

    def check_leader_epochs(self, leader_epoch: int) -> None:
        """Check that no leader epoch is above `leader_epoch`, that of the present leader: this replica could
        not follow. The epochs of the file are read from the batches then; a batch that has such an epoch
        itself is damaged.
        """
        cache = self.leader_epoch_cache
        latest = cache.latest_epoch
        if latest is None or latest <= leader_epoch:
            return
        self.finish_truncation()
        local = self.local_log
        with self._guard("reading the leader epochs"):
            if not cache.is_of_batches:
                _log.error(
                    "%s: the leader epochs are read from the log, as %s names the epoch %d, but the leader "
                    "has %d",
                    self.topic_partition,
                    LEADER_EPOCH_CHECKPOINT,
                    latest,
                    leader_epoch,
                )
                older = cache.entries
                cache = leader_epochs_of_batches(local.segments, is_file_known=False)
                if self.config.is_remote:
                    cache.prepend(older, local.segments[0].base_offset)
                cache.fit(self.log_start_offset, local.log_end_offset)
                self._leader_epochs = cache
            offset = cache.remove_above(leader_epoch)
            if offset is not None and offset < local.log_end_offset:
                segment = local.segments_from(offset)[0]
                found = segment.translate_offset(offset)
                reason = f"a batch of a leader epoch above {leader_epoch}, that of the present leader"
                position = segment.size if found is None else found.position
                self.directory.report_damage(self.dir, CorruptBatch(segment.path(LOG), position, reason))

    @property
    def latest_epoch(self) -> int | None:
        return self.leader_epoch_cache.latest_epoch

    def assign_epoch_start_offset(self, epoch: int, start_offset: int) -> None:
        """Note that a leader of `epoch` writes from `start_offset` on."""
        self.finish_truncation()
        self._check_usable()
        self.leader_epoch_cache.assign(epoch, start_offset)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """The greatest epoch up to `epoch` that wrote here and the offset at which it ended; (-1, -1) if
        unknown.
        """
        return self.leader_epoch_cache.end_offset_for(epoch, self.log_end_offset)

    # Producers

    @property
    def producer_state_manager(self) -> ProducerStateManager:
        state = self._producer_state
        if state is not None:
            return state
        with self._guard("loading the producer state"):
            return self._load_producer_state()

    def _load_producer_state(self) -> ProducerStateManager:
        """Build the producer state at the log end from the newest whole snapshot and the batches after it."""
        local = self.local_log
        state = self._new_producer_state()
        self._producer_snapshots().remove_stray(segment.base_offset for segment in local.segments)
        run_here(self._rebuild_producer_state(state, local.log_end_offset))
        self._producer_state = state
        return state

    def find_unstable(self) -> None:
        """Find the transactions that end between the high watermark and the snapshot of the producers: a
        snapshot does not know them. In any thread, and before the log is used, as that reads the batches
        between. Without it the first reader waits for that.
        """
        if self.high_watermark < self.log_end_offset:
            self._producers_with_unstable()

    def _producers_with_unstable(self) -> ProducerStateManager:
        """The producer state, with the transactions that end between the high watermark and the snapshot that
        it was loaded from. They matter where readers ask: a follower's high watermark has passed them soon.
        """
        state = self.producer_state_manager
        is_settled = self._truncation is None and not self.is_closed
        if state.loaded_at > self.high_watermark and is_settled:
            with self._guard("reading the ends of transactions"):
                self._find_unstable(state)
            state.loaded_at = 0
        return state

    def _find_unstable(self, state: ProducerStateManager) -> None:
        segments = self.local_log.segments
        start, end = max(self.high_watermark, segments[0].base_offset), state.loaded_at
        if all(entry.coordinator_epoch < 0 for entry in state.active_producers.values()):
            return  # no transaction has ended here
        if all(marker is None for _, marker in batches_between(segments, start, end)):
            return
        before = self._new_producer_state()
        try:
            start = self._load_newest_snapshot(before, start)
        except KafkaError:
            # Open transactions below may have ended above. What remote storage knows of them is replayed.
            self._note_lack_of_producers(True)
            return
        for batch in batches_between(segments, start, end):
            before.replay([batch])
        before.on_high_watermark_updated(self.high_watermark)
        state.adopt_unstable(before)

    def _new_producer_state(self) -> ProducerStateManager:
        return ProducerStateManager(str(self.topic_partition), self._producer_config)

    @property
    def lacks_producers(self) -> bool:
        """Whether producers and open transactions of the records that are in remote storage only are not
        known here.
        """
        self.producer_state_manager  # noqa: B018 - finds it out
        return self._lacks_producers and self.log_start_offset < self.local_log.segments[0].base_offset

    def _rebuild_producer_state(
        self, state: ProducerStateManager, snapshot_bound: int
    ) -> Generator[Step, Any, None]:
        """Load the newest snapshot at or below `snapshot_bound` and replay the batches up to the log end.
        Yields the calls that take long, for any thread.
        """
        local = self.local_log
        now_ms = self.directory.clock.wall_ms()
        snapshots = self._producer_snapshots()
        first = local.segments[0].base_offset
        start = self.log_start_offset
        durable_start = self.directory.log_start(self.topic_partition) or 0
        if start < first or (self.config.is_remote and durable_start < first):
            # The snapshot at the first segment is all there is of the producers before it. A crash may bring
            # the durable start back.
            start = min(start, first - 1)
            snapshot_bound = max(snapshot_bound, first)
        yield lambda: state.truncate_and_reload(snapshots, start, snapshot_bound, now_ms)
        self._note_lack_of_producers(snapshots.latest is None and self.log_start_offset < first)
        start_offset = max(state.map_end_offset, start)
        if start_offset < local.log_end_offset:
            segments = local.segments_from(start_offset)
            batches = batches_between(segments, start_offset, local.log_end_offset)
            while (yield partial(_replay_some, state, batches)):
                pass
        state.map_end_offset = local.log_end_offset
        state.on_high_watermark_updated(self.high_watermark)

    def _truncate_producer_state(self) -> Generator[Step, Any, None]:
        """Go back to the producer state at the new log end."""
        local = self.local_log
        snapshot_bound = local.log_end_offset
        if self._producer_state is None:
            self._producer_snapshots().remove_stray(segment.base_offset for segment in local.segments)
        else:
            # A snapshot knows nothing of transactions whose end is not replicated yet.
            snapshot_bound = max(min(snapshot_bound, self.high_watermark), self.log_start_offset)
        state = self._new_producer_state()
        yield from self._rebuild_producer_state(state, snapshot_bound)
        self._producer_state = state

    def _note_lack_of_producers(self, lacks: bool) -> None:
        if lacks and not self._lacks_producers:
            _log.error(
                "%s lacks the producer snapshot at offset %d, where it begins on this disk; it is restored "
                "from remote storage",
                self.topic_partition,
                self.local_log.segments[0].base_offset,
            )
        self._lacks_producers = lacks

    @property
    def producer_snapshots(self) -> ProducerSnapshots:
        with self._guard("listing the producer snapshots"):
            return self._producer_snapshots()

    def _producer_snapshots(self) -> ProducerSnapshots:
        if self._snapshots is None:
            self._snapshots = ProducerSnapshots(self.directory.disk, self.local_log.dir)
        return self._snapshots

    def _take_producer_snapshot(self) -> None:
        """Write the loaded producer state to a file, if the newest file is older. The next flush syncs it: a
        torn snapshot is recognised by its checksum, and an older one serves in its place.
        """
        if self._producer_state is not None and not self.lacks_producers:
            written = self._producer_state.take_snapshot(self._producer_snapshots())
            if written is not None:
                self.local_log.on_names_changed()

    def _sync_producer_snapshots(self, offsets: Sequence[int]) -> None:
        snapshots = self._producer_snapshots()
        for offset in offsets:
            snapshots.sync(offset)

    def _delete_producer_snapshots(self, segments: Sequence[LogSegment]) -> None:
        """Remove the snapshots at the base offsets of segments that were removed."""
        snapshots = self._producer_snapshots()
        marked = (snapshots.mark_deleted(segment.base_offset) for segment in segments)
        self.directory.delete_later(
            [path for path in marked if path is not None], self.config.file_delete_delay_ms
        )

    def remove_expired_producers(self, now_ms: int) -> None:
        if self._producer_state is not None:
            self._producer_state.remove_expired(now_ms)

    def collect_aborted_transactions(self, start_offset: int, upper_offset: int) -> list[AbortedTxn]:
        """The aborted transactions with records in [`start_offset`, `upper_offset`)."""
        segments = self.local_log.segments_from(start_offset)
        for segment in segments:
            if not segment.txn_index.is_known_empty:
                break
        else:
            return []
        aborted: list[AbortedTxn] = []
        with self._guard("reading the transaction index"):
            for segment in segments:
                self._repair_txn_index(segment)
                found = segment.txn_index.collect(start_offset, upper_offset)
                aborted.extend(found.aborted)
                if found.is_complete:
                    break
        return aborted

    def _repair_txn_index(self, segment: LogSegment) -> None:
        """Rebuild the transaction index of the segment if its file is damaged: from the markers, with the
        transactions that were open where the segment begins.
        """
        try:
            segment.txn_index.entries  # noqa: B018 - reads the file
            return
        except CorruptTxnIndexError as error:
            _log.warning("a transaction index is damaged and will be rebuilt from the log: %s", error)
        self._rebuild_txn_index(segment)

    def _rebuild_txn_index(self, segment: LogSegment) -> None:
        segments = self.local_log.segments
        following = [other.base_offset for other in segments if other.base_offset > segment.base_offset]
        state = self._new_producer_state()
        start = self._load_newest_snapshot(state, segment.base_offset)
        aborted = []
        for batch in batches_between(segments, start, min([*following, self.log_end_offset])):
            ended = state.replay([batch])
            if batch[0].base_offset >= segment.base_offset:
                aborted += ended
        segment.txn_index.reset(aborted)
        segment.txn_index.flush()

    def repair_transaction_index(self, segment: LogSegment) -> None:
        """Write the transaction index of a segment again: what is known of it, or what the batches say."""
        with self._guard("repairing a transaction index"):
            known = segment.known_aborted
            if known is None:
                self._rebuild_txn_index(segment)
            else:
                segment.txn_index.reset(known)
                segment.txn_index.flush()

    @property
    def snapshot_offsets(self) -> tuple[int, ...]:
        """The offsets of the producer snapshots, read from the directory."""
        with self._guard("listing snapshots"):
            return ProducerSnapshots(self.directory.disk, self.dir).offsets

    def repair_producer_snapshot(self, path: str) -> bool:
        """Write a damaged snapshot again, in any thread, from an older one and the batches behind it; False
        where there is neither an older one nor the beginning of the log.
        """
        snapshots = ProducerSnapshots(self.directory.disk, self.dir)
        offset = next((each for each in snapshots.offsets if snapshots.path(each) == path), None)
        if offset is None:
            return True  # it has gone
        state = self._new_producer_state()
        try:
            start = self._load_newest_snapshot(state, offset)
        except KafkaError:
            return False
        if start not in snapshots.offsets and start > 0:
            return False
        for batch in batches_between(self.local_log.segments, start, offset):
            state.replay([batch])
        with self._guard("repairing a producer snapshot"):
            snapshots.write(offset, state.snapshot(), sync=True)
        return True

    def repair_leader_epochs(self) -> None:
        """Let the next flush replace the file of the leader epochs."""
        self.leader_epoch_cache.forget_file()

    def repair_topic_id(self) -> None:
        """Write the topic id again, if it is known in memory."""
        if self._topic_id is not None:
            with self._guard("writing the topic id"):
                checkpoints.write_topic_id(self.directory.disk, self._metadata_path, self._topic_id)

    @property
    def known_topic_id(self) -> bytes | None:
        """The topic id, if it has been read."""
        return self._topic_id

    @property
    def written_leader_epochs(self) -> tuple[EpochEntry, ...] | None:
        """What the file of the leader epochs should have; None if that is not known."""
        return None if self._leader_epochs is None else self._leader_epochs.written

    def _load_newest_snapshot(self, state: ProducerStateManager, offset: int) -> int:
        """Load the newest whole snapshot at or below `offset`; return where the batches after it begin."""
        snapshots = self._producer_snapshots()
        for at in reversed([known for known in snapshots.offsets if known <= offset]):
            try:
                entries = snapshots.load(at)
            except CorruptSnapshotError:
                continue
            state.load(entries, self.directory.clock.wall_ms())
            return at
        first = self.local_log.segments[0].base_offset
        if self.log_start_offset < first:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{self.dir} has no producer snapshot up to offset {offset}, and its records before {first} "
                "are in remote storage only",
            )
        return first

    def producer_snapshot_at(self, offset: int) -> bytes:
        """The producers at `offset`, up to the log end, in any thread: the snapshot there or, if there is
        none that is whole, one of the records. KAFKA_STORAGE_ERROR where these are not on this disk.
        """
        with self._guard("reading a producer snapshot"):
            state = self._new_producer_state()
            start = self._load_newest_snapshot(state, offset)
            for batch in batches_between(self.local_log.segments_from(start), start, offset):
                state.replay([batch])
            return state.snapshot()

    def begin_restoring_producers(self, snapshot: bytes) -> LogTruncation:
        """Begin to take over the producers at the first offset on this disk, which remote storage knows."""
        return self._begin_truncation(self._restore_producers(snapshot))

    def _restore_producers(self, snapshot: bytes) -> Steps:
        self._check_usable()
        local = self.local_log
        first, end = local.segments[0].base_offset, local.log_end_offset
        with self._guard("restoring producers", fatal=True):
            yield from self._write_base_snapshot(first, snapshot)
            state = self._new_producer_state()
            state.load((yield partial(decode_snapshot, snapshot)), self.directory.clock.wall_ms())
            for segment in local.segments:
                # Recovery has rebuilt it without the transactions that were open where the log begins here.
                yield partial(_replay_segment, state, segment, end)
            state.map_end_offset = end
            state.on_high_watermark_updated(self.high_watermark)
            self._producer_state = state
            self._lacks_producers = False
        _log.info("%s has its producers at offset %d from remote storage", self.topic_partition, first)
        return True

    def _write_base_snapshot(self, offset: int, data: bytes) -> Generator[Step, Any, None]:
        """Make a snapshot durable, its name too."""
        snapshots = self._producer_snapshots()
        yield partial(write_file, self.directory.disk, snapshots.path(offset), data)
        snapshots.on_written(offset, synced=True)

    # Appending

    def append_as_leader(
        self,
        data: Buffer,
        leader_epoch: int,
        *,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        guard: VerificationGuard = SENTINEL_GUARD,
        transaction_version: int | None = None,
        max_cost_us: int | None = None,
        check: BatchCheck | None = None,
    ) -> LogAppendInfo:
        """Check the batches, give them their offsets and the epoch, and append them.

        With `max_cost_us` a batch that costs more to check raises BatchTooCostly, before anything is changed;
        its caller has the pool do that check (`begin_check`), and comes with it again.

        A batch that was appended before is answered with its old offsets. `guard` and `transaction_version`
        are for transactional batches and markers (see `ProducerStateManager`). The leader of the metadata log
        (origin RAFT_LEADER) has given the batches their offsets and epoch already.
        """
        if self._truncation is not None:
            self.finish_truncation()
        self._check_usable()
        if not self._end_verified:
            self._verify_end()
        if origin is AppendOrigin.RAFT_LEADER:
            given = self._check_assigned_batches(data, leader_epoch, origin)
            if given is None:
                raise KafkaError(ErrorCode.INVALID_RECORD, "the records hold no complete batch")
            buffer, batches, max_timestamp = given
            append_time = NO_TIMESTAMP
        else:
            local = self.local_log
            config = local.config
            timestamp_type = config.message_timestamp_type
            if check is not None:
                records = check.place(local.log_end_offset, leader_epoch, now_ms)
            else:
                records = validate_and_assign_offsets(
                    data,
                    first_offset=local.log_end_offset,
                    leader_epoch=leader_epoch,
                    now_ms=now_ms,
                    timestamp_type=timestamp_type,
                    before_max_ms=config.message_timestamp_before_max_ms,
                    after_max_ms=config.message_timestamp_after_max_ms,
                    compacted=config.compact,
                    codec_target=config.target_codec,
                    level=config.target_level,
                    max_message_bytes=config.max_message_bytes,
                    max_cost_us=max_cost_us,
                    origin=origin,
                )
            buffer, batches, max_timestamp = records.buffer, records.batches, records.max_timestamp
            append_time = now_ms if timestamp_type is TimestampType.LOG_APPEND_TIME else NO_TIMESTAMP
            self._check_batch_offsets(batches[-1])
        return self._append(
            buffer,
            batches,
            max_timestamp,
            append_time,
            now_ms,
            origin,
            guard,
            transaction_version,
        )

    def begin_check(self, data: Buffer, header: BatchHeader, now_ms: int) -> BatchCheck:
        """The check of a client's batch, for another thread."""
        config = self.local_log.config
        return BatchCheck(
            data,
            header,
            now_ms=now_ms,
            timestamp_type=config.message_timestamp_type,
            before_max_ms=config.message_timestamp_before_max_ms,
            after_max_ms=config.message_timestamp_after_max_ms,
            compacted=config.compact,
            codec_target=config.target_codec,
            level=config.target_level,
            max_message_bytes=config.max_message_bytes,
        )

    def append_as_follower(self, data: Buffer, leader_epoch: int, *, now_ms: int) -> LogAppendInfo:
        """Append the leader's batches as they are. Batches from the first one on that is of a later epoch
        than `leader_epoch` are left out: the leader that sent them is no longer the one that was asked.
        """
        if self._truncation is not None:
            self.finish_truncation()
        self._check_usable()
        if not self._end_verified:
            self._verify_end()
        given = self._check_assigned_batches(data, leader_epoch, AppendOrigin.REPLICATION)
        if given is None:
            return LogAppendInfo(-1, -1, NO_TIMESTAMP, NO_TIMESTAMP, self.log_start_offset)
        buffer, batches, max_timestamp = given
        return self._append(
            buffer,
            batches,
            max_timestamp,
            NO_TIMESTAMP,
            now_ms,
            AppendOrigin.REPLICATION,
            SENTINEL_GUARD,
            None,
        )

    def _check_batch_offsets(self, header: BatchHeader) -> None:
        """Refuse a batch that spans less than one offset, or that reaches the last offset of all, after which
        the log could not go on.
        """
        if not 0 <= header.base_offset <= header.last_offset < MAX_OFFSET:
            raise KafkaError(
                ErrorCode.INVALID_RECORD,
                f"{self.topic_partition}: a batch that begins at offset {header.base_offset} and spans "
                f"{header.last_offset_delta + 1} offsets; no log holds that",
            )

    def _check_assigned_batches(
        self, data: Buffer, leader_epoch: int, origin: AppendOrigin
    ) -> tuple[memoryview, list[BatchHeader], int] | None:
        """Check that batches that have their offsets are whole and follow on the log end; their bytes, their
        headers and the greatest timestamp, or None if there is no batch to append.
        """
        batches: list[BatchHeader] = []
        size = 0
        max_timestamp = NO_TIMESTAMP
        end_offset = self.local_log.log_end_offset
        for at, header in iter_batches(data):
            if header.leader_epoch != leader_epoch and origin is AppendOrigin.RAFT_LEADER:
                raise KafkaError(
                    ErrorCode.INVALID_RECORD,
                    f"{self.topic_partition}: a batch of epoch {header.leader_epoch} from the leader of "
                    f"{leader_epoch}",
                )
            if header.leader_epoch > leader_epoch:
                break
            verify_crc(data, at, header)
            if header.base_offset < end_offset:
                raise UnexpectedAppendOffset(
                    f"Unexpected offset in append to {self.topic_partition}. First offset "
                    f"{header.base_offset} is less than the next offset {end_offset}; last offset in append: "
                    f"{header.last_offset}",
                    header.base_offset,
                    header.last_offset,
                )
            self._check_batch_offsets(header)
            end_offset = header.next_offset
            max_timestamp = max(max_timestamp, header.max_timestamp)
            batches.append(header)
            size = at + header.size
        if not batches:
            return None
        view = memoryview(data)
        return view if view.nbytes == size else view[:size], batches, max_timestamp

    def _append(
        self,
        data: memoryview,
        batches: list[BatchHeader],
        max_timestamp: int,
        append_time: int,
        now_ms: int,
        origin: AppendOrigin,
        guard: VerificationGuard,
        transaction_version: int | None,
    ) -> LogAppendInfo:
        """Append batches that have their final offsets and epochs, at least one."""
        first_offset, last_offset = batches[0].base_offset, batches[-1].last_offset
        size = data.nbytes
        local = self.local_log
        # A follower takes what its leader has taken: segment.bytes may have been lowered since.
        if size > local.config.segment_bytes and origin is not AppendOrigin.REPLICATION:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"Message batch size is {size} bytes in append to partition {self.topic_partition}, which "
                f"exceeds the maximum configured segment size of {local.config.segment_bytes} "
                "(segment.bytes).",
            )
        change = self._analyze_and_validate_producer_state(data, batches, origin, guard, transaction_version)
        if change is not None and origin is not AppendOrigin.REPLICATION and self._lacks_producers:
            self._check_producers_known()
        if change is not None and change.duplicate is not None:
            return self._duplicate_info(change.duplicate, max_timestamp)
        rolled = False
        try:
            if local.active_segment.should_roll(size, last_offset, max_timestamp, now_ms):
                rolled = self._roll_for(first_offset, last_offset, now_ms)
            local.append(data, batches)
        except OSError as error:
            raise self._guard("appending").failure(error) from error
        if change is not None:
            self._update_producer_state(change, first_offset)
        epochs = self._leader_epochs
        if epochs is None:
            epochs = self._load_leader_epochs()
        for batch in batches:
            epoch = batch.leader_epoch
            if epoch != epochs.latest_epoch and epoch >= 0:
                epochs.assign(epoch, batch.base_offset)
        producers = self._producer_state
        if producers is not None:
            producers.map_end_offset = local.log_end_offset
        return LogAppendInfo(
            first_offset,
            last_offset,
            max_timestamp,
            append_time,
            self.log_start_offset,
            epoch,
            size,
            False,
            rolled,
        )

    def _analyze_and_validate_producer_state(
        self,
        data: memoryview,
        batches: list[BatchHeader],
        origin: AppendOrigin,
        guard: VerificationGuard,
        transaction_version: int | None,
    ) -> ProducerAppend | None:
        """Return the changes of the batches to the producer state; None if no batch has a producer id."""
        for batch in batches:
            if batch.producer_id != NO_PRODUCER_ID:
                return self.producer_state_manager.analyze(
                    with_markers(data, batches), origin, guard=guard, transaction_version=transaction_version
                )
        return None

    def _check_producers_known(self) -> None:
        if self.lacks_producers:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{self.topic_partition}: the producers are being restored from remote storage",
            )

    def _update_producer_state(self, change: ProducerAppend, first_offset: int) -> None:
        """Update the producer state and the transaction index by batches that are in the log now. If the
        transaction index cannot be written, remove the batches from the log again.
        """
        local = self.local_log
        index = local.active_segment.txn_index
        try:
            for txn in self.producer_state_manager.apply(change):
                index.append(txn)
                local.on_names_changed()  # the first entry makes the file
        except OSError as error:
            self._producer_state = None  # loaded again when it is needed
            with self._guard("undoing an append", fatal=True):
                index.truncate_to(first_offset)
                local.undo_append(first_offset)
            raise self.directory.io_error(
                f"writing the transaction index of {self.topic_partition}", error
            ) from error

    def _duplicate_info(self, known: BatchMetadata, max_timestamp: int) -> LogAppendInfo:
        """The answer to a batch that is in the log."""
        return LogAppendInfo(
            known.first_offset,
            known.last_offset,
            max_timestamp,
            known.timestamp,
            self.log_start_offset,
            duplicate=True,
        )

    def roll(self, now_ms: int) -> bool:
        """Begin a new segment, unless the active one is empty; True if one was begun."""
        self.finish_truncation()
        self._check_usable()
        self._verify_end()
        with self._guard("rolling a segment"):
            return self._roll_at(self.log_end_offset, now_ms)

    def _roll_for(self, first_offset: int, last_offset: int, now_ms: int) -> bool:
        """Begin a segment for batches with these offsets."""
        with self._guard("rolling a segment"):
            # At the log end, so that segments join without a gap; unless the offsets would not fit.
            base_offset = self.log_end_offset
            if last_offset - base_offset > MAX_RELATIVE_OFFSET:
                base_offset = first_offset
                if last_offset - base_offset > MAX_RELATIVE_OFFSET:
                    raise KafkaError(
                        ErrorCode.INVALID_RECORD,
                        f"{self.topic_partition}: the offsets {base_offset} to {last_offset} of one append "
                        "do not fit into one segment",
                    )
            return self._roll_at(base_offset, now_ms)

    def _roll_at(self, base_offset: int, now_ms: int) -> bool:
        local = self.local_log
        if local.active_segment.base_offset == base_offset:
            return False
        if base_offset > local.log_end_offset:
            self.flush()
            self.directory.raise_recovery_points({self.topic_partition: local.recovery_point})
        producers = self.producer_state_manager
        local.roll(base_offset, now_ms)
        producers.map_end_offset = base_offset
        self._take_producer_snapshot()
        return True

    # Reading

    def read(
        self, offset: int, max_bytes: int, *, upper_offset: int | None = None, min_one_batch: bool = True
    ) -> FetchDataInfo:
        """Batches from the one that holds `offset` on, up to `max_bytes` and below `upper_offset` (the log
        end if None); the first batch in any case if `min_one_batch`.

        Nothing where `offset` is at or above `upper_offset`, up to the log end; beyond that, and below the
        log start, OFFSET_OUT_OF_RANGE.
        """
        self._check_usable()
        local = self.local_log
        end = local.log_end_offset
        upper = end if upper_offset is None else min(upper_offset, end)
        if not self.log_start_offset <= offset <= end:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Received request for offset {offset} for partition {self.topic_partition}, but we only "
                f"have log segments from offset: {self.log_start_offset} upto {end}.",
            )
        if offset < upper:
            plain = self._read_plain(offset, max_bytes, upper, end, min_one_batch=min_one_batch)
            if plain is not None:
                return plain
            segments = local.segments_from(offset)
            if offset < segments[0].base_offset:
                raise KafkaError(
                    ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE,
                    f"The offset {offset} of partition {self.topic_partition} is in remote storage; on this "
                    f"disk the log begins at {segments[0].base_offset}",
                )
            for number, segment in enumerate(segments):
                if segment.base_offset >= upper:
                    break
                last = number + 1 == len(segments)
                try:
                    found = segment.translate_offset(offset)
                    if found is not None:
                        limit = self._upper_position(segment, upper, end) - found.position
                        size = min(max(max_bytes, found.size) if min_one_batch else max_bytes, limit)
                        data = _read_at(segment, found, 0, size) if size > 0 else b""
                        # Where its batches end at the latest. In another thread the log may have grown.
                        bound = upper if upper < end else max(end, local.log_end_offset)
                        bound = bound if last else min(bound, segments[number + 1].base_offset)
                        data = self._sound_part(segment, found, data, bound)
                        return FetchDataInfo(data, offset, segment.base_offset, found.position)
                except OSError as error:
                    raise self._guard("reading").failure(error) from error
                except CorruptBatch as error:
                    self.directory.report_damage(self.dir, error)
                    segment_end = local.log_end_offset if last else segments[number + 1].base_offset
                    return self._read_beside_damage(
                        segment, offset, max_bytes, upper, segment_end, error, min_one_batch=min_one_batch
                    )
            # Compaction may have left nothing there; or the log is shorter than its last shutdown said.
            self._verify_end()
        return FetchDataInfo(b"", offset, local.active_segment.base_offset, -1)

    def _read_plain(
        self, offset: int, max_bytes: int, upper: int, end: int, *, min_one_batch: bool
    ) -> FetchDataInfo | None:
        """As `read`, where nothing is unusual; else None. The kernel does it, as most reads are such."""
        try:
            found = read_batches(self, offset, max_bytes, min_one_batch, upper, end, crc32c)
        except OSError as error:
            raise self._guard("reading").failure(error) from error
        except (CorruptBatch, CorruptIndex):
            return None
        if found is None:
            return None
        data, base_offset, position = found
        return FetchDataInfo(data, offset, base_offset, position)

    def _sound_part(self, segment: LogSegment, found: BatchPosition, data: bytes, bound: int) -> bytes:
        """The batches of `data`, which was read where `found` is, up to the first that is damaged; what is
        damaged is reported. CorruptBatch if that is the first one. Only what the producer or the leader sent
        leaves this broker, whatever the disk has made of it.
        """
        epochs = self.leader_epoch_cache
        end, next_offset, reason = sound_end(data, found.least_offset, epochs)
        if reason is None:
            if end == len(data):
                # What follows says whether the last one ends where it should.
                following = _read_at(segment, found, end, NEXT_BYTES)
                if len(following) == NEXT_BYTES:
                    _, _, reason = sound_end(following, next_offset, epochs)
            if reason is None and next_offset > bound:
                reason = f"a batch up to offset {next_offset - 1}, where {bound} is the next one"
            if reason is None:
                return data
            *_, (end, _, _, _) = iter_offsets(data)  # the last of the batches
        damage = CorruptBatch(segment.path(LOG), found.position + end, reason)
        if not end:
            raise damage
        self.directory.report_damage(self.dir, damage)
        return data[:end]

    def _read_beside_damage(
        self,
        segment: LogSegment,
        offset: int,
        max_bytes: int,
        upper: int,
        segment_end: int,
        error: CorruptBatch,
        *,
        min_one_batch: bool,
    ) -> FetchDataInfo:
        """As `read`, in a segment with damage: of two batches that contradict each other the other one may be
        damaged, and what lies behind damage is not lost. CorruptBatch if the offset itself is damaged.
        """
        with self._guard("reading"):
            beside = segment.find_beside_damage(offset, segment_end, self.leader_epoch_cache)
            if beside is None:
                raise error
            found, end = beside
            size = max(max_bytes, found.size) if min_one_batch else max_bytes
            data = segment.read(found.position, min(size, end - found.position))
        for at, _, _, last_offset in iter_offsets(data):
            if last_offset >= upper:
                data = data[:at]
                break
        return FetchDataInfo(data, offset, segment.base_offset, found.position)

    def _upper_position(self, segment: LogSegment, upper: int, end: int) -> int:
        """Return the position in `segment` at which the batches below `upper` end. It is remembered, since
        the readers at the end of a log all have the same bound: the high watermark or the last stable offset.
        """
        if upper >= end:
            return segment.size
        known = self._upper_bound
        if known is not None and known[0] == upper and known[1] is segment:
            return known[2]
        found = segment.translate_offset(upper)
        if found is None:
            return segment.size
        self._upper_bound = (upper, segment, found.position)
        return found.position

    def fetch_offset_by_timestamp(
        self, timestamp: int, searches: TimestampSearches | None = None
    ) -> TimestampAndOffset | None:
        """The first record from the log start on that is not older than `timestamp`, wherever the high
        watermark is. `searches` bounds what is done at once (see `LogSegment`).
        """
        self._check_usable()
        start = self.log_start_offset
        with self._guard("searching a timestamp"):
            for segment in self.local_log.segments_from(start):
                if segment.max_timestamp.timestamp >= timestamp:
                    found = segment.find_offset_by_timestamp(timestamp, start, searches)
                    if found is not None:
                        return found
        return None

    def fetch_offset_of_max_timestamp(
        self, searches: TimestampSearches | None = None
    ) -> TimestampAndOffset | None:
        """The first record that has the greatest timestamp of the log; None if no record has one."""
        self._check_usable()
        start = self.log_start_offset
        best: TimestampAndOffset | None = None
        newest: LogSegment | None = None
        with self._guard("searching the greatest timestamp"):
            for segment in self.local_log.segments_from(start):
                if segment.base_offset < start:
                    best = segment.find_max_timestamp(start, searches)
                elif newest is None or segment.max_timestamp.timestamp > newest.max_timestamp.timestamp:
                    newest = segment
            if newest is not None and (best is None or newest.max_timestamp.timestamp > best.timestamp):
                best = newest.find_max_timestamp(start, searches)
        return best

    # Flushing

    def prepare_flush(self, upto: int | None = None, *, closing: bool = False) -> FlushPlan | None:
        """Plan the syncs that make the log durable below `upto` (the log end if None); None if it is durable.
        With `closing`, the indexes of the active segment are synced too. None also during a truncation.
        """
        self._check_usable()
        if self._truncation is not None:
            return None
        epochs = self._leader_epochs
        write_epochs = epochs is not None and not epochs.is_written(
            self.log_start_offset, self.log_end_offset
        )
        unsynced = self._snapshots.unsynced if self._snapshots is not None else ()
        plan = self.local_log.prepare_flush(upto, closing=closing, force=write_epochs or bool(unsynced))
        if plan is None:
            return None
        if epochs is not None and write_epochs:
            self._checkpoint_log_start()
            plan.epochs = epochs.prepare_write()
            plan.writes.append(partial(epochs.write, self.directory.disk, plan.dir, plan.epochs))
            if plan.dir not in plan.dirs:
                plan.dirs.insert(0, plan.dir)
        plan.snapshots = unsynced
        if plan.snapshots:
            plan.writes.append(partial(self._sync_producer_snapshots, plan.snapshots))
        return plan

    def _checkpoint_log_start(self) -> None:
        """Make the log start durable where it is not. The leader epochs begin at the log start; in their file
        they must not begin above the durable one.
        """
        durable = self.directory.log_start(self.topic_partition) or 0
        if self.local_log.names_synced and not self.config.is_remote:
            durable = max(durable, self.local_log.segments[0].base_offset)
        if self.log_start_offset > durable:
            with self._guard("checkpointing the log start"):
                self.directory.set_log_starts({self.topic_partition: self.log_start_offset})

    def run_flush(self, plan: FlushPlan) -> None:
        """Sync what the plan says, in any thread. A failed sync takes the directory offline: what the disk
        has kept of the writes before it is unknown, and a second sync might succeed without them. A plan
        whose files were renamed since, because the log is deleted or moved, is abandoned.
        """
        with self._guard("flushing"):
            try:
                plan.run()
            except (SyncFailed, FileNotFoundError) as failed:
                error = failed.error if isinstance(failed, SyncFailed) else failed
                if isinstance(error, FileNotFoundError) and not self.directory.disk.is_dir(plan.dir):
                    _log.info("a flush of %s is abandoned, as its directory has gone", self.topic_partition)
                    plan.abandoned = True
                    return
                if isinstance(failed, SyncFailed):
                    self.directory.fail(f"syncing {self.topic_partition} failed with {error}")
                raise error from None

    def complete_flush(self, plan: FlushPlan) -> bool:
        """Note what `run_flush` has made durable, unless the log was truncated since or a later flush has
        overtaken this one. True if the same flush has to follow once more, as the active segment was closed
        meanwhile and its indexes are not durable.
        """
        if plan.abandoned:
            return False
        epochs = self._leader_epochs
        if plan.epochs is not None and epochs is not None and not epochs.complete_write(plan.epochs):
            return False
        counts = self.local_log.complete_flush(plan)
        if counts:
            if plan.snapshots:
                self._producer_snapshots().on_synced(plan.snapshots)
            self.last_flush_ms = self.directory.clock.wall_ms()
        self._check_offsets()
        return counts and self.local_log.recovery_point < plan.upto

    def flush(self, upto: int | None = None, *, closing: bool = False) -> None:
        """Make the log durable below `upto`, the log end if None, and move the recovery point there."""
        self.finish_truncation()
        plan = self.prepare_flush(upto, closing=closing)
        if plan is not None:
            self.run_flush(plan)
            self.complete_flush(plan)

    # Truncation

    def end_after_truncation(self, offset: int) -> int:
        """Return the offset at which the log would end if it were truncated to `offset`."""
        local = self.local_log
        with self._guard("finding a batch"):
            return local.end_below(offset) if offset > local.segments[0].base_offset else offset

    def truncate_to(self, offset: int) -> bool:
        """Remove every batch that holds `offset` or more, for good; False if there was none.

        The log then ends with its last batch: at `offset`, unless that lay inside a batch.
        """
        return self.begin_truncation(offset).finish()

    def truncate_fully_and_start_at(
        self,
        offset: int,
        log_start_offset: int | None = None,
        auxiliary_state: RemoteLogAuxState | None = None,
    ) -> None:
        """Remove everything; the log goes on at `offset`, which is also its start unless a lower one is
        given. With remote storage that one stays, as the records between are there, and `auxiliary_state`
        has what is to be known of them.
        """
        self.begin_full_truncation(offset, log_start_offset, auxiliary_state).finish()

    def begin_truncation(self, offset: int) -> LogTruncation:
        """Begin what `truncate_to` does, for a caller that runs the slow steps off the event loop."""
        return self._begin_truncation(self._truncate_to(offset))

    def begin_full_truncation(
        self,
        offset: int,
        log_start_offset: int | None = None,
        auxiliary_state: RemoteLogAuxState | None = None,
    ) -> LogTruncation:
        """Begin what `truncate_fully_and_start_at` does."""
        return self._begin_truncation(self._truncate_fully(offset, log_start_offset, auxiliary_state))

    @property
    def is_truncating(self) -> bool:
        return self._truncation is not None

    @property
    def truncation(self) -> LogTruncation | None:
        """The truncation that is under way."""
        return self._truncation

    def finish_truncation(self) -> None:
        """Finish a truncation that is under way here and now: the log is about to change in another way."""
        if self._truncation is not None:
            self._truncation.finish()

    def _begin_truncation(self, steps: Steps) -> LogTruncation:
        self.finish_truncation()
        self.finish_replacement()
        truncation = self._truncation = LogTruncation(self._exclusively(steps))
        truncation.begin()
        return truncation

    def _exclusively(self, steps: Steps) -> Steps:
        try:
            return (yield from steps)
        finally:
            self._truncation = None

    def _truncate_to(self, offset: int) -> Steps:
        self._check_usable()
        if not self._end_verified:
            yield self._verify_end
        if offset < 0:
            raise ValueError(f"{self.topic_partition} cannot be truncated to {offset}")
        local = self.local_log
        epochs = self.leader_epoch_cache
        if offset >= local.log_end_offset:
            # An epoch may begin at the end of the log without a record.
            epochs.truncate_from_end(local.log_end_offset)
            return False
        if offset < self.high_watermark:
            _log.warning(
                "Truncating %s to offset %d below high watermark %d",
                self.topic_partition,
                offset,
                self.high_watermark,
            )
        if offset < local.segments[0].base_offset:
            start = self.log_start_offset if self.config.is_remote else None
            return (yield from self._truncate_fully(offset, start))
        with self._guard("lowering the recovery point before a truncation"):
            end_offset = yield partial(self._prepare_truncation, offset)
            # From now on no checkpoint of this log holds more.
            local.begin_truncation(end_offset)
            log_start = end_offset if end_offset < self.log_start_offset else None
            yield from self._checkpoint_before_truncation(end_offset, log_start)
        with self._guard("truncating", fatal=True):
            self._upper_bound = None
            self._note_truncation_below_high_watermark(end_offset)
            self.log_start_offset = min(self.log_start_offset, end_offset)
            self.high_watermark = min(self.high_watermark, end_offset)
            self._note_truncation_of_copied(end_offset)
            self.directory.high_watermarks.moved[self] = None
            epochs.truncate_from_end(end_offset)
            yield from local.truncation(offset, end_offset)
            yield from self._truncate_producer_state()
            # A snapshot of removed records must not come back after a crash and pass for one of new records.
            yield from local.names_sync()
        self._check_offsets()
        return True

    def _note_truncation_of_copied(self, end_offset: int) -> None:
        """What comes in the place of truncated records is not in remote storage, though they may be."""
        if self.highest_offset_in_remote_storage >= end_offset:
            self.highest_offset_in_remote_storage = end_offset - 1

    def _prepare_truncation(self, offset: int) -> int:
        """Read what a truncation needs, in any thread: the offset at which the log will end."""
        end_offset = self.end_after_truncation(offset)
        for segment in self.local_log.segments_from(offset):
            self._repair_txn_index(segment)
        return end_offset

    def _truncate_fully(
        self,
        offset: int,
        log_start_offset: int | None,
        auxiliary_state: RemoteLogAuxState | None = None,
    ) -> Steps:
        self._check_usable()
        if not self._creation_durable:
            yield self.complete_creation
        local = self.local_log
        epochs = self.leader_epoch_cache
        # Where the records below are in remote storage, the log keeps its start. Then a crash half-way leaves
        # what there was, up to some offset: as after a truncation at the end.
        keeps_start = self.config.is_remote and log_start_offset is not None and log_start_offset < offset
        with self._guard("checkpointing the new log start"):
            recovery_point = offset if keeps_start else min(local.recovery_point, offset)
            # Until the log start is durable there, a crash leaves the old log. A batch has to end at its
            # recovery point, and `offset` may lie inside of one.
            local.begin_truncation(min(offset, local.segments_from(offset)[0].base_offset))
            if keeps_start:
                self._mark_tiered()
                first = local.segments[0].base_offset
                yield from self._checkpoint_before_truncation(min(first, offset), log_start_offset)
            else:
                yield from self._checkpoint_before_truncation(offset, offset)
        with self._guard("truncating", fatal=True):
            self._upper_bound = None
            self._end_verified = True
            self._producer_snapshots().delete_all()
            state = self._new_producer_state()
            state.truncate_fully_and_start_at(offset)
            self._producer_state = state
            self._lacks_producers = keeps_start
            if keeps_start and auxiliary_state is None:
                epochs.truncate_from_end(offset)
            else:
                epochs.clear()
            if auxiliary_state is not None:
                # The file must not pass for that of the records below `offset`, which it does not know.
                yield from self._write_leader_epochs()
            # Together with the log end, which moves before the next step.
            self.log_start_offset = self.high_watermark = offset
            self._note_truncation_of_copied(offset)
            self.directory.high_watermarks.moved[self] = None
            yield from local.full_truncation(offset, self.directory.clock.wall_ms())
            local.recovery_point = recovery_point
            if auxiliary_state is not None:
                yield from self._restore_auxiliary_state(offset, auxiliary_state)
        if log_start_offset is not None:
            self.log_start_offset = min(log_start_offset, offset)
        self._check_offsets()
        return True

    def _restore_auxiliary_state(self, offset: int, state: RemoteLogAuxState) -> Generator[Step, Any, None]:
        """Write what is known of the records below `offset`, where the log begins on this disk: first the
        producers, then the leader epochs. Without these the log is known to lack both.
        """
        if state.producer_snapshot is not None:
            snapshots = self._producer_snapshots()
            yield partial(snapshots.write, offset, state.producer_snapshot, sync=True)
            producers = self._new_producer_state()
            start, now_ms = min(self.log_start_offset, offset - 1), self.directory.clock.wall_ms()
            yield partial(producers.truncate_and_reload, snapshots, start, offset, now_ms)
            producers.map_end_offset = offset
            self._producer_state = producers
            self._lacks_producers = False
            self.local_log.on_names_changed()
            yield from self.local_log.names_sync()
        epochs = self.leader_epoch_cache
        epochs.clear()
        for epoch, start_offset in state.leader_epochs:
            epochs.assign(epoch, start_offset)
        epochs.truncate_from_end(offset)
        yield from self._write_leader_epochs()

    def _write_leader_epochs(self) -> Generator[Step, Any, None]:
        """Make the leader epochs durable as they are."""
        epochs = self.leader_epoch_cache
        write = epochs.prepare_write()
        yield partial(epochs.write, self.directory.disk, self.local_log.dir, write)
        self.local_log.on_names_changed()
        yield from self.local_log.names_sync()
        epochs.complete_write(write)

    @property
    def lacks_auxiliary_state(self) -> bool:
        """Whether the leader epochs of the records that are in remote storage only are not known here."""
        start = self.log_start_offset
        if start >= self.local_log.segments[0].base_offset:
            return False
        earliest = self.leader_epoch_cache.earliest
        return earliest is None or earliest.start_offset > start

    def _checkpoint_before_truncation(
        self, recovery_point: int, log_start: int | None
    ) -> Generator[Step, Any, None]:
        """Make a recovery point, at most this one, and another log start durable before files change."""
        truncation, local = self._truncation, self.local_log
        if log_start is not None and truncation is not None:
            if log_start < self.log_start_offset and not local.names_synced:
                # The deleted segments must be gone for good before the log starts below them.
                yield from local.names_sync()
            truncation.log_start = log_start
        recovery_point = min(recovery_point, local.recovery_point)
        yield CheckpointOffsets(self.directory, self.topic_partition, recovery_point, log_start)

    def _note_truncation_below_high_watermark(self, end_offset: int) -> None:
        """Until the producer state is rebuilt it does not know transactions that are open once more."""
        if self._truncation is not None:
            self._truncation.reopens_transactions = end_offset < self.high_watermark

    @property
    def log_start_to_checkpoint(self) -> int:
        """The log start that may be written to the checkpoint of the directory."""
        truncation = self._truncation
        return (
            self.log_start_offset
            if truncation is None or truncation.log_start is None
            else truncation.log_start
        )

    def _set_durable_log_start(self, offset: int) -> None:
        """Make another log start durable; if it is a lower one, after the deleted segments are gone for
        good.
        """
        if offset < self.log_start_offset and not self.local_log.names_synced:
            self.local_log.sync_names()
        self.directory.set_log_starts({self.topic_partition: offset})

    # Deletion at the start of the log

    def _mark_tiered(self) -> None:
        """Have the directory say that the log may start below its first segment, whatever the settings of the
        topic are by the next start.
        """
        disk, dir = self.directory.disk, self.local_log.dir
        with self._guard("marking a log"):
            if not checkpoints.is_marked_tiered_log(disk, dir):
                checkpoints.mark_tiered_log(disk, dir)
                self.local_log.on_names_changed()

    def maybe_increment_log_start_offset(self, offset: int, reason: str) -> bool:
        """Move the log start up, as DeleteRecords and retention do; False if it is there already."""
        self.finish_truncation()
        self._check_usable()
        if offset > self.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Cannot increment the log start offset to {offset} of partition {self.topic_partition} "
                f"since it is larger than the high watermark {self.high_watermark}",
            )
        if offset <= self.log_start_offset:
            return False
        _log.info("%s: incremented log start offset to %d due to %s", self.topic_partition, offset, reason)
        epochs = self.leader_epoch_cache
        self.log_start_offset = offset
        epochs.truncate_from_start(offset)
        producers = self._producer_state
        if producers is not None:
            producers.on_log_start_offset_incremented(offset, self.producer_snapshots.latest)
        self._check_offsets()
        if self.on_log_start_moved is not None:
            self.on_log_start_moved()
        if self.request_listener is not None:
            self.request_listener()
        return True

    def deletable_segments(self, now_ms: int) -> list[Deletion[LogSegment]]:
        """Return the deletions that retention would make now; none while the log is truncated or segments
        are swapped.
        """
        if self._truncation is not None or self._replacement is not None:
            return []
        config = self.config
        copies = config.copies_to_remote
        with self._guard("applying retention"):
            return segments_to_delete(
                self.segments,
                log_start_offset=self.log_start_offset,
                log_end_offset=self.log_end_offset,
                high_watermark=self.high_watermark,
                delete_policy=config.delete,
                retention_bytes=config.retention_bytes_here,
                retention_ms=config.retention_ms_here,
                now_ms=now_ms,
                copied_below=self.highest_offset_in_remote_storage + 1 if copies else None,
            )

    def roll_if_expired(self, now_ms: int) -> bool:
        """Close the active segment if it is due to leave this disk, as only closed ones go to remote storage;
        True if it was closed.
        """
        config, active = self.config, self.active_segment
        if not config.copies_to_remote or config.retention_ms_here < 0 or self.is_truncating:
            return False
        with self._guard("applying retention"):
            if (
                not active.size
                or self.high_watermark < self.log_end_offset
                or now_ms - active.largest_timestamp <= config.retention_ms_here
            ):
                return False
        return self.roll(now_ms)

    def delete_old_segments(self, now_ms: int) -> int:
        """Apply retention; how many segments were removed."""
        self._check_usable()
        return sum(self.delete_segments(each, now_ms) for each in self.deletable_segments(now_ms))

    def delete_segments(self, deletion: Deletion[LogSegment], now_ms: int) -> int:
        """Remove segments from the front; how many were removed."""
        if not deletion.is_local:
            return self.remove_segments_below_start(self.advance_start_past(deletion, now_ms))
        removed = 0
        self.flush()
        for segment in deletion.segments:
            if not self.remove_copied_segment(segment):
                break
            removed += 1
        return removed

    def remove_copied_segment(self, segment: LogSegment) -> bool:
        """Remove the first segment, which remote storage has too, for good; False if it has to stay, as until
        it is flushed.
        """
        removal = self.begin_removal(segment)
        return removal is not None and removal.finish()

    def begin_removal(self, segment: LogSegment) -> LogChange | None:
        """Begin what `remove_copied_segment` does, for a caller that runs the slow steps off the event loop;
        None while another change is under way.
        """
        if self._truncation is not None or self._replacement is not None:
            return None
        removal = self._replacement = LogChange(self._remove_first(segment))
        removal.begin()
        return removal

    def _remove_first(self, segment: LogSegment) -> Steps:
        try:
            self._check_usable()
            segments = self.segments
            if segment is not segments[0] or len(segments) == 1:
                return False
            end = segments[1].base_offset
            if end > min(self.highest_offset_in_remote_storage + 1, self.high_watermark):
                return False
            if end > self.recovery_point:
                # The leader epochs of these records are not durable yet.
                return False
            if not self._end_verified:
                yield self._verify_end
            if not (yield partial(self._has_durable_snapshot, end)):
                if self.lacks_producers:
                    return False
                snapshot = yield partial(self.producer_snapshot_at, end)
                with self._guard("writing a producer snapshot"):
                    yield from self._write_base_snapshot(end, snapshot)
            self._mark_tiered()
            if self.directory.log_start(self.topic_partition) != self.log_start_offset:
                with self._guard("checkpointing the log start"):
                    self._set_durable_log_start(self.log_start_offset)
            with self._guard("deleting segments", fatal=True):
                self._check_producers_are_durable(end)
                yield from self.local_log.first_removal()
                self._delete_producer_snapshots([segment])
            return True
        finally:
            self._replacement = None

    def _has_durable_snapshot(self, offset: int) -> bool:
        """Whether there is a whole and durable snapshot at `offset`, in any thread."""
        snapshots = self.producer_snapshots
        try:
            if not snapshots.is_durable(offset):
                return False
            with self._guard("reading a producer snapshot"):
                snapshots.load(offset)
        except CorruptSnapshotError as error:
            _log.warning("a producer snapshot is damaged and will be replaced: %s", error)
            return False
        return True

    def _check_producers_are_durable(self, first: int) -> None:
        """Assert that the log may begin at `first` on this disk, and above its start."""
        snapshots = self._producer_snapshots()
        assert snapshots.is_durable(first), (
            f"{self.dir}: no durable producer snapshot at {first}, only at {snapshots.offsets}, and of these "
            f"{snapshots.unsynced} are not synced"
        )
        assert first <= self.recovery_point, f"{self.dir}: durable up to {self.recovery_point}, not {first}"

    def advance_start_past(self, deletion: Deletion[LogSegment], now_ms: int) -> list[LogSegment]:
        """The first half of a deletion that is not local: move the log start behind the segments; those that
        can now be removed.
        """
        self._check_usable()
        if self._truncation is not None or self._replacement is not None:
            return []
        self._verify_end()
        known = set(self.segments)
        passed = [segment for segment in deletion.segments if segment in known]
        if passed:
            if passed[-1] is self.active_segment:
                self.roll(now_ms)
            self.maybe_increment_log_start_offset(deletion.new_log_start_offset, deletion.reason.value)
        return passed

    def remove_segments_below_start(self, passed: Sequence[LogSegment]) -> int:
        """The second half: make the log start durable, if it is not yet, and remove those of the segments
        that lie below it; how many were removed.
        """
        self._check_usable()
        if self._truncation is not None or self._replacement is not None:
            return 0
        start, below = self.log_start_offset, set()
        for segment, following in pairwise(self.segments):
            if following.base_offset <= start:
                below.add(segment)
        gone = [segment for segment in passed if segment in below]
        if not gone:
            return 0
        with self._guard("checkpointing the new log start"):
            self._set_durable_log_start(start)
        with self._guard("deleting segments", fatal=True):
            self.local_log.remove_front(gone)
            self._delete_producer_snapshots(gone)
        return len(gone)

    # Compaction

    def replace_segments(self, new: Sequence[LogSegment], old: Sequence[LogSegment]) -> None:
        """Put compacted segments, complete and named `.cleaned`, in the place of the old ones."""
        self.begin_replacement(new, old).finish()

    def begin_replacement(self, new: Sequence[LogSegment], old: Sequence[LogSegment]) -> LogChange:
        """Begin what `replace_segments` does, for a caller that runs the slow steps off the event loop."""
        self.finish_truncation()
        self.finish_replacement()
        replacement = self._replacement = LogChange(self._replace_segments(new, old))
        replacement.begin()
        return replacement

    def finish_replacement(self) -> None:
        """Finish a swap that is under way here and now: its segments are about to change in another way."""
        if self._replacement is not None:
            self._replacement.finish()

    def _replace_segments(self, new: Sequence[LogSegment], old: Sequence[LogSegment]) -> Steps:
        try:
            self._check_usable()
            yield from self._make_durable_below_successor(old)
            self._check_usable()
            with self._guard("swapping segments", fatal=True):
                gone = yield from self.local_log.replacement(new, old)
                self._upper_bound = None
                self._delete_producer_snapshots(gone)
            return True
        finally:
            self._replacement = None

    def _make_durable_below_successor(self, old: Sequence[LogSegment]) -> Generator[Step, Any, None]:
        """Have segments that are about to be replaced, and the gaps that compaction makes in them, lie below
        the durable recovery point.
        """
        local = self.local_log
        end = max(segment.base_offset for segment in old)
        following = [segment.base_offset for segment in local.segments if segment.base_offset > end]
        if following and local.recovery_point < following[0]:
            plan = self.prepare_flush(following[0])
            if plan is not None:
                yield partial(self.run_flush, plan)
                self.complete_flush(plan)
            if local.recovery_point < following[0]:
                raise KafkaError(
                    ErrorCode.KAFKA_STORAGE_ERROR,
                    f"{self.dir}: no swap up to offset {following[0]}, as the recovery point is "
                    f"{local.recovery_point}",
                )
        with self._guard("checkpointing the recovery point before a swap"):
            yield RaiseRecoveryPoint(self.directory, self.topic_partition, local.recovery_point)

    # Closing

    def rename_dir(self, name: str, *, sync: bool = True) -> None:
        """Rename the directory: to delete the partition, or to make a future log the current one. Without
        `sync` the caller makes that durable.
        """
        self.finish_truncation()
        self.finish_replacement()
        self._check_usable()
        self._cancel_creation()
        disk = self.directory.disk
        path = posixpath.join(self.directory.path, name)
        with self._guard("renaming"):
            disk.rename(self.dir, path)
        self.local_log.on_dir_renamed(path)
        if self._snapshots is not None:
            self._snapshots.dir = path
        if sync:
            with self._guard("renaming"):
                disk.sync_dir(self.directory.path)

    def close(self) -> None:
        """Make everything durable, with a producer snapshot at the log end, and close the files. A log that
        was not touched since it was loaded stays as it was.
        """
        self.finish_truncation()
        self.finish_replacement()
        self._check_usable()
        self.complete_creation()
        if self._end_verified:
            self.producer_state_manager  # noqa: B018 - loads it, so that there is something to write
            with self._guard("closing"):
                self._take_producer_snapshot()
                self.active_segment.on_become_inactive()
        self.flush(closing=self._end_verified)
        self.close_handlers()

    def close_handlers(self) -> None:
        """Close the files without writing anything, except to finish a swap that is under way."""
        self._cancel_creation()
        if self._replacement is not None:
            if self.directory.is_online:
                with suppress(KafkaError):  # the directory is offline then
                    self._replacement.finish()
            else:
                self._replacement.abandon(f"the log {self.dir} is closed")
        self.local_log.close_handlers()
        self.is_closed = True

    def delete(self) -> None:
        """Remove the partition's directory with everything in it, at once."""
        self.close_handlers()
        disk = self.directory.disk
        with self._guard("deleting a partition"):
            remove_tree(disk, self.dir)
            disk.sync_dir(self.directory.path)

    # Damage

    def confirm_damage(self, error: KafkaError) -> str | None:
        """Look a second time whether a log is damaged, in any thread: a reader may have met a file that was
        being truncated. Return what is damaged, or None.
        """
        if not isinstance(error, CorruptBatch):
            return error.message
        for segment in self.segments:
            if segment.path(LOG) == error.path:
                try:
                    # Twice: an append in progress may look like damage.
                    is_damaged = any(self.damage_of(segment))
                    found = "; ".join(each.damage for each in self.damage_of(segment)) if is_damaged else ""
                except OSError:
                    return None
                is_known = found and not self.is_closed and segment in self.segments
                return f"{segment.path(LOG)}: {found}" if is_known else None
        return None

    def damage_of(self, segment: LogSegment) -> Iterator[Stretch]:
        """The damaged parts of a segment, in any thread."""
        return (each for each in self.check_segment(segment) if each.reason is not None)

    def mend_headers(self) -> bool:
        """Write the headers of damaged batches again whose records are whole, in any thread; False if there
        is other damage.
        """
        spans = self.epoch_spans
        mended = [segment.mend(each, spans) for segment in self.segments for each in self.damage_of(segment)]
        return all(mended)

    def check_segment(self, segment: LogSegment) -> Iterator[Stretch]:
        """Check every batch of a segment, some of them at a time, in any thread."""
        size = segment.size
        following = next((each for each in self.segments if each.base_offset > segment.base_offset), None)
        end = self.log_end_offset if following is None else following.base_offset
        return segment.stretches(end, self.epoch_spans, size)

    # Whether the log can be used

    def _guard(self, action: str, *, fatal: bool = False) -> IoGuard:
        """A context for everything that touches the disk."""
        return IoGuard(self.directory, action, self.local_log.dir, fatal)

    def _check_usable(self) -> None:
        directory = self.directory
        if not directory.is_online:
            directory.check_online()
        if self.is_closed:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log {self.local_log.dir} is closed")

    def _verify_end(self) -> None:
        """Before the first change after a clean shutdown, check that the log ends where the checkpoint says;
        before the first change of a new log, make its creation durable.
        """
        if self._end_verified:
            return
        if not self._creation_durable:
            self.complete_creation()
            return
        with self._guard("finding the end of the log"):
            actual = self.active_segment.read_next_offset()
            self._repair_txn_index(self.active_segment)
        if actual != self.log_end_offset:
            damage = CorruptLog(
                f"{self.dir} ends at offset {actual}, but at its clean shutdown it ended at "
                f"{self.log_end_offset}: its files were changed since. Where another replica leads the "
                "partition, they are set aside and the log is fetched from it. If there is none, restore "
                f"them, or stop the node and run `ottla storage repair --topic {self.topic_partition.topic}`"
            )
            self.directory.report_damage(self.dir, damage)
            raise damage
        self._end_verified = True


def _replay_segment(state: ProducerStateManager, segment: LogSegment, end_offset: int) -> None:
    """Replay a segment, and have its transaction index agree with that."""
    aborted: list[AbortedTxn] = []
    for batch in batches_between([segment], segment.base_offset, end_offset):
        aborted += state.replay([batch])
    segment.txn_index.reset(aborted)
    segment.txn_index.flush()


def _replay_some(
    state: ProducerStateManager, batches: Iterator[tuple[BatchHeader, EndTransactionMarker | None]]
) -> bool:
    """Replay some batches of the log; True if there may be more."""
    number = 0
    for number, batch in enumerate(islice(batches, REPLAYED_AT_ONCE), 1):  # noqa: B007
        state.replay([batch])
    return number == REPLAYED_AT_ONCE


def _read_at(segment: LogSegment, found: BatchPosition, begin: int, size: int) -> bytes:
    """Read from `begin` of a batch on; its search has most often read that already."""
    at = found.at + begin
    if at + size <= len(found.chunk):
        return found.chunk[at : at + size]
    return segment.read(found.position + begin, size)
