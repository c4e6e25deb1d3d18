"""The log of a partition: appends, reads, and the offsets that bound them.

`Log` joins the parts: the segments (`LocalLog`), the leader epochs, the producer state and the transaction
index. It is synchronous and belongs to the event loop; `read` and the lookups may also run in another thread,
and a flush comes in three steps of which the slow one may (see `flush`).

Invariants: log start offset <= last stable offset <= high watermark <= log end offset, and recovery point <=
log end offset. An append that fails leaves nothing behind. After an I/O error that is not a lack of room the
whole directory is offline and every call raises KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from ottla.log import checkpoints, lookup
from ottla.log.append import AppendInfo, Incoming, as_given, check_offsets, from_producer
from ottla.log.append_origin import AppendOrigin
from ottla.log.config import LogConfig
from ottla.log.directory import IoGuard, LogDirectory
from ottla.log.files import DirKind, TopicPartition
from ottla.log.flush import FlushPlan, SyncFailed
from ottla.log.leader_epochs import LeaderEpochCache
from ottla.log.local_log import LocalLog
from ottla.log.log_epochs import LogEpochs
from ottla.log.log_identity import LogIdentity
from ottla.log.log_producers import LogProducers
from ottla.log.lookup import TimestampAndOffset
from ottla.log.offset_index import MAX_RELATIVE_OFFSET
from ottla.log.producer_state import ProducerAppend, ProducerStateManager
from ottla.log.producer_state_entry import SENTINEL_GUARD, VerificationGuard
from ottla.log.producer_state_snapshot import ProducerSnapshots
from ottla.log.replay import with_markers
from ottla.log.retention import Deletion, segments_to_delete
from ottla.log.segment import LogSegment
from ottla.log.settlement import Settlement
from ottla.log.txn_index import AbortedTxn
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.types import NO_TIMESTAMP
from ottla.runtime.disk import Buffer, Disk, remove_tree

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FetchData:
    records: bytes
    """Batches; the first may begin below the offset asked for, the last may be cut by the size limit."""
    offset: int
    """The offset asked for."""
    segment_base_offset: int
    position: int
    """Where the records lie in that segment's file; -1 if there are none."""


class Log:
    __slots__ = (
        "_closed",
        "_epochs",
        "_high_watermark",
        "_identity",
        "_last_flush_ms",
        "_local",
        "_log_start_offset",
        "_producers",
        "_upper",
        "_verified_end",
    )

    def __init__(
        self,
        local: LocalLog,
        log_start_offset: int,
        producers: LogProducers,
        *,
        epochs: LeaderEpochCache | None = None,
        verified_end: bool = True,
        settled: bool = True,
        topic_id: bytes | None = None,
    ) -> None:
        self._local = local
        self._log_start_offset = log_start_offset
        self._high_watermark = log_start_offset
        self._producers = producers
        self._epochs = LogEpochs(local, epochs)
        self._identity = LogIdentity(local, topic_id, settled=settled)
        # False while the end of the log is taken from the checkpoint of a clean shutdown, or the log is new.
        self._verified_end = verified_end and settled
        self._last_flush_ms = local.directory.clock.wall_ms()
        # Where the upper bound of the last read lies.
        self._upper: tuple[int, LogSegment, int] | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<log {self.dir}: {self._log_start_offset} to {self.log_end_offset}>"

    # What it is

    @property
    def topic_partition(self) -> TopicPartition:
        return self._local.partition

    @property
    def directory(self) -> LogDirectory:
        return self._local.directory

    @property
    def dir(self) -> str:
        return self._local.dir

    @property
    def is_closed(self) -> bool:
        """True once it was closed, deleted or taken offline."""
        return self._closed

    @property
    def is_future(self) -> bool:
        return self.dir.endswith(DirKind.FUTURE.value)

    @property
    def config(self) -> LogConfig:
        return self._local.config

    def update_config(self, config: LogConfig) -> None:
        """Put other settings in force, also for the segment that takes the appends."""
        self._local.config = config
        self._local.active.reconfigure(config)

    @property
    def topic_id(self) -> bytes | None:
        """The id of the topic that this partition belongs to, from `partition.metadata`."""
        with self._guard("reading the topic id"):
            return self._identity.topic_id()

    def assign_topic_id(self, topic_id: bytes) -> None:
        """Say which topic this is; INCONSISTENT_TOPIC_ID if it is known to be another."""
        with self._guard("writing the topic id"):
            self._identity.assign(topic_id)

    def settlement(self) -> Settlement | None:
        """What would settle this log without blocking; None if that is not needed."""
        return None if self._closed else self._identity.settlement()

    def install(self, settlement: Settlement) -> bool:
        """Take over what `Settlement.write` wrote; False if it is no longer wanted."""
        if self._identity.settled or self._closed or settlement.dir != self.dir:
            return False
        with self._guard("settling a new log"):
            settlement.install()
        return True

    def settled(self, settlement: Settlement) -> None:
        """Note that `Settlement.sync` was done."""
        if settlement.dir == self.dir:
            self._identity.settled = self._verified_end = True

    def _settle(self) -> None:
        """The same, here and now."""
        if not self._identity.settled:
            with self._guard("settling a new log"):
                self._identity.settle()
            self._verified_end = True

    @property
    def segments(self) -> tuple[LogSegment, ...]:
        """Oldest first; the last one takes the appends."""
        return self._local.segments

    @property
    def active_segment(self) -> LogSegment:
        return self._local.active

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        with self._guard("reading sizes"):
            return self._local.size

    @property
    def names_synced(self) -> bool:
        """True if a crash would leave exactly these files."""
        return self._local.names_synced

    # Offsets

    @property
    def log_start_offset(self) -> int:
        return self._log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self._local.log_end_offset

    @property
    def recovery_point(self) -> int:
        """Everything below it is durable."""
        return self._local.recovery_point

    @property
    def generation(self) -> int:
        """How often the log has been cut at its end; what was read of it before may no longer be true."""
        return self._local.generation

    def take_cut_offset(self) -> int | None:
        """The lowest offset that the log has been cut at since the last call; None if it has not been cut."""
        offset, self._local.cut_offset = self._local.cut_offset, None
        return offset

    @property
    def high_watermark(self) -> int:
        return self._high_watermark

    @high_watermark.setter
    def high_watermark(self, offset: int) -> None:
        self.update_high_watermark(offset)

    def update_high_watermark(self, offset: int) -> int:
        """Set the high watermark, at least to the log start and at most to the log end; what it became."""
        self._high_watermark = min(max(offset, self._log_start_offset), self.log_end_offset)
        producers = self._producers.loaded
        if producers is not None:
            producers.on_high_watermark_updated(self._high_watermark)
        return self._high_watermark

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of an open transaction, or of one that ends above the high watermark."""
        offset = self.producers.first_unstable_offset()
        return None if offset is None else max(offset, self._log_start_offset)

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction is decided: the bound of `read_committed`."""
        unstable = self.first_unstable_offset
        return self._high_watermark if unstable is None else min(unstable, self._high_watermark)

    @property
    def unflushed_messages(self) -> int:
        return self.log_end_offset - max(self.recovery_point, self._log_start_offset)

    @property
    def last_flush_ms(self) -> int:
        return self._last_flush_ms

    # Leader epochs

    @property
    def epochs(self) -> LeaderEpochCache:
        with self._guard("reading the leader epochs"):
            return self._epochs.cache(self._log_start_offset)

    @property
    def latest_epoch(self) -> int | None:
        return self.epochs.latest_epoch

    def assign_epoch_start_offset(self, epoch: int, start_offset: int) -> None:
        """Note that a leader of `epoch` writes from `start_offset` on."""
        self._check_usable()
        self.epochs.assign(epoch, start_offset)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """The greatest epoch up to `epoch` that wrote here and the offset at which it ended; (-1, -1) if
        unknown.
        """
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    # Producers

    @property
    def producers(self) -> ProducerStateManager:
        with self._guard("loading the producer state"):
            return self._producers.state(self._log_start_offset, self._high_watermark)

    @property
    def snapshots(self) -> ProducerSnapshots:
        with self._guard("listing the producer snapshots"):
            return self._producers.snapshots

    def remove_expired_producers(self, now_ms: int) -> None:
        producers = self._producers.loaded
        if producers is not None:
            producers.remove_expired(now_ms)

    def aborted_transactions(self, start_offset: int, upper_offset: int) -> list[AbortedTxn]:
        """The aborted transactions with records in [`start_offset`, `upper_offset`)."""
        aborted: list[AbortedTxn] = []
        with self._guard("reading the transaction index"):
            for segment in self._local.segments_from(start_offset):
                self._producers.mend_txn_index(segment)
                found = segment.txn_index.collect(start_offset, upper_offset)
                aborted.extend(found.aborted)
                if found.is_complete:
                    break
        return aborted

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
        inline_flush: bool = True,
    ) -> AppendInfo:
        """Check the batches, give them their offsets and the epoch, and append them.

        A batch that was appended before is answered with its old offsets. `guard` and `transaction_version`
        are for transactional batches and markers (see `ProducerStateManager`). With `inline_flush=False` a
        flush that `flush.messages` demands is left to the caller.
        """
        self._check_usable()
        self._verify_end()
        end_offset = self.log_end_offset
        if origin is AppendOrigin.RAFT_LEADER:
            given = as_given(data, self.topic_partition, end_offset, leader_epoch, origin)
            if given is None:
                raise KafkaError(ErrorCode.INVALID_RECORD, "the records hold no complete batch")
            incoming = given
        else:
            incoming = from_producer(data, self.config, end_offset, leader_epoch, now_ms, origin)
            check_offsets(incoming.batches[-1], self.topic_partition)
        return self._append(incoming, now_ms, origin, guard, transaction_version, inline_flush)

    def append_as_follower(
        self, data: Buffer, leader_epoch: int, *, now_ms: int, inline_flush: bool = True
    ) -> AppendInfo:
        """Append the leader's batches as they are. From the first one on that is of a later epoch than
        `leader_epoch` they are left out: the leader that sent them is no longer the one that was asked.
        """
        self._check_usable()
        self._verify_end()
        origin = AppendOrigin.REPLICATION
        incoming = as_given(data, self.topic_partition, self.log_end_offset, leader_epoch, origin)
        if incoming is None:
            return AppendInfo(-1, -1, NO_TIMESTAMP, NO_TIMESTAMP, self._log_start_offset)
        return self._append(incoming, now_ms, origin, SENTINEL_GUARD, None, inline_flush)

    def _append(
        self,
        incoming: Incoming,
        now_ms: int,
        origin: AppendOrigin,
        guard: VerificationGuard,
        transaction_version: int | None,
        inline_flush: bool,
    ) -> AppendInfo:
        data, batches = incoming.data, incoming.batches
        size = data.nbytes
        if size > self.config.segment_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"{self.topic_partition}: {size} bytes in one append, but segment.bytes is "
                f"{self.config.segment_bytes}",
            )
        change = None
        if incoming.has_producers:
            change = self.producers.analyze(
                with_markers(data, batches), origin, guard=guard, transaction_version=transaction_version
            )
            if change.duplicate is not None:
                known = change.duplicate
                return AppendInfo(
                    known.first_offset,
                    known.last_offset,
                    incoming.max_timestamp,
                    known.timestamp,
                    self._log_start_offset,
                    duplicate=True,
                )
        rolled = self._maybe_roll(incoming, size, now_ms)
        with self._guard("appending"):
            self._local.append(data, batches)
        if change is not None:
            self._apply(change, incoming.first_offset)
        epochs = self.epochs
        for batch in batches:
            if batch.leader_epoch >= 0:
                epochs.assign(batch.leader_epoch, batch.base_offset)
        producers = self._producers.loaded
        if producers is not None:
            producers.map_end_offset = self.log_end_offset
        flush_due = self.unflushed_messages >= self.config.flush_messages
        if flush_due and inline_flush:
            self.flush()
        return AppendInfo(
            incoming.first_offset,
            incoming.last_offset,
            incoming.max_timestamp,
            incoming.append_time,
            self._log_start_offset,
            batches[-1].leader_epoch,
            size,
            rolled=rolled,
            flush_due=flush_due and not inline_flush,
        )

    def _apply(self, change: ProducerAppend, first_offset: int) -> None:
        """Take over what the batches, which are in the log now, mean for their producers. If the transaction
        index cannot be written, take them out of the log again.
        """
        index = self.active_segment.txn_index
        try:
            for txn in self.producers.apply(change):
                index.append(txn)
                self._local.names_changed()  # the first entry makes the file
        except OSError as error:
            self._producers.forget()
            with self._guard("undoing an append", fatal=True):
                index.truncate_to(first_offset)
                self._local.undo_append(first_offset)
            raise self.directory.io_error(
                f"writing the transaction index of {self.topic_partition}", error
            ) from error

    def _maybe_roll(self, incoming: Incoming, size: int, now_ms: int) -> bool:
        last_offset = incoming.last_offset
        with self._guard("rolling a segment"):
            if not self.active_segment.should_roll(size, last_offset, incoming.max_timestamp, now_ms):
                return False
            # At the log end, so that segments join without a gap; unless the offsets would not fit.
            base_offset = self.log_end_offset
            if last_offset - base_offset > MAX_RELATIVE_OFFSET:
                base_offset = incoming.first_offset
                if last_offset - base_offset > MAX_RELATIVE_OFFSET:
                    raise KafkaError(
                        ErrorCode.INVALID_RECORD,
                        f"{self.topic_partition}: the offsets {base_offset} to {last_offset} of one append "
                        "do not fit into one segment",
                    )
            return self._roll(base_offset, now_ms)

    def roll(self, now_ms: int) -> bool:
        """Begin a new segment, unless the active one is empty; True if one was begun."""
        self._check_usable()
        self._verify_end()
        with self._guard("rolling a segment"):
            return self._roll(self.log_end_offset, now_ms)

    def _roll(self, base_offset: int, now_ms: int) -> bool:
        if self.active_segment.base_offset == base_offset:
            return False
        if base_offset > self.log_end_offset:
            self.flush()
            self.directory.raise_recovery_points({self.topic_partition: self.recovery_point})
        producers = self.producers
        self._local.roll(base_offset, now_ms)
        producers.map_end_offset = base_offset
        self._producers.take_snapshot()
        return True

    # Reading

    def read(
        self, offset: int, max_bytes: int, *, upper_offset: int | None = None, min_one_batch: bool = True
    ) -> FetchData:
        """Batches from the one that holds `offset` on, up to `max_bytes` and below `upper_offset` (the log
        end
        if None); the first batch in any case if `min_one_batch`.

        Nothing where `offset` is at or above `upper_offset`, up to the log end; beyond that, and below the
        log start, OFFSET_OUT_OF_RANGE.
        """
        self._check_usable()
        end = self.log_end_offset
        upper = end if upper_offset is None else min(upper_offset, end)
        if not self._log_start_offset <= offset <= end:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.topic_partition} has no offset {offset}, only {self._log_start_offset} to {end}",
            )
        if offset < upper:
            with self._guard("reading"):
                for segment in self._local.segments_from(offset):
                    if segment.base_offset >= upper:
                        break
                    found = segment.find(offset)
                    if found is not None:
                        limit = self._upper_position(segment, upper, end) - found.position
                        size = max(max_bytes, found.size) if min_one_batch else max_bytes
                        data = segment.read(found.position, min(size, limit)) if size > 0 < limit else b""
                        return FetchData(data, offset, segment.base_offset, found.position)
            # Compaction may have left nothing there; or the log is shorter than its last shutdown said.
            self._verify_end()
        return FetchData(b"", offset, self.active_segment.base_offset, -1)

    def _upper_position(self, segment: LogSegment, upper: int, end: int) -> int:
        """Where in `segment` the batches below `upper` end."""
        if upper >= end:
            return segment.size
        known = self._upper
        if known is not None and known[0] == upper and known[1] is segment:
            return known[2]
        found = segment.find(upper)
        if found is None:
            return segment.size
        self._upper = (upper, segment, found.position)
        return found.position

    def offset_for_timestamp(self, timestamp: int) -> TimestampAndOffset | None:
        """The first record that is not older than `timestamp`, wherever the high watermark is."""
        self._check_usable()
        with self._guard("searching a timestamp"):
            return lookup.first_at_or_after(self.segments, timestamp, self._log_start_offset)

    def offset_for_max_timestamp(self) -> TimestampAndOffset | None:
        """The first record that has the greatest timestamp of the log."""
        self._check_usable()
        with self._guard("searching the greatest timestamp"):
            return lookup.greatest(self.segments, self._log_start_offset)

    # Durability

    def prepare_flush(self, upto: int | None = None, *, closing: bool = False) -> FlushPlan | None:
        """What to sync so that the log is durable below `upto` (the log end if None); None if it is. With
        `closing` the indexes of the active segment too.
        """
        self._check_usable()
        plan = self._local.prepare_flush(upto, closing=closing, force=self._epochs.dirty)
        if plan is None:
            return None
        if self._epochs.dirty:
            self._keep_log_start()
            self._epochs.prepare(plan)
        plan.snapshots = self._producers.unsynced
        if plan.snapshots:
            plan.writes.append(partial(self._producers.sync_snapshots, plan.snapshots))
        return plan

    def _keep_log_start(self) -> None:
        """The leader epochs begin at the log start; in a file they must not begin above the durable one."""
        durable = self.directory.log_start(self.topic_partition) or 0
        if self._local.names_synced:
            durable = max(durable, self.segments[0].base_offset)
        if self._log_start_offset > durable:
            with self._guard("noting the start of a log"):
                self.directory.set_log_starts({self.topic_partition: self._log_start_offset})

    def run_flush(self, plan: FlushPlan) -> None:
        """Do what the plan says, in any thread. A failed sync takes the directory offline: nobody knows what
        the disk has kept. A plan whose files were renamed meanwhile, since the log is deleted or moved, is
        abandoned.
        """
        with self._guard("flushing"):
            try:
                plan.run()
            except (SyncFailed, FileNotFoundError) as failed:
                error = failed.error if isinstance(failed, SyncFailed) else failed
                if isinstance(error, FileNotFoundError) and not self._disk.is_dir(plan.dir):
                    _log.info("a flush of %s is abandoned, as its directory has gone", self.topic_partition)
                    plan.abandoned = True
                    return
                if isinstance(failed, SyncFailed):
                    self.directory.fail(f"syncing {self.topic_partition} failed with {error}")
                raise error from None

    def complete_flush(self, plan: FlushPlan) -> None:
        """Note what `run_flush` has made durable."""
        if plan.abandoned or not self._epochs.complete(plan):
            return
        if self._local.complete_flush(plan):
            self._producers.synced(plan.snapshots)
            self._last_flush_ms = self.directory.clock.wall_ms()

    def flush(self, upto: int | None = None, *, closing: bool = False) -> None:
        """Make the log durable below `upto`, the log end if None, and move the recovery point there."""
        plan = self.prepare_flush(upto, closing=closing)
        if plan is not None:
            self.run_flush(plan)
            self.complete_flush(plan)

    # Truncation and deletion

    def end_below(self, offset: int) -> int:
        """Where the log would end if it were cut at `offset`."""
        with self._guard("finding a batch"):
            return self._local.end_below(offset) if offset > self.segments[0].base_offset else offset

    def truncate_to(self, offset: int) -> bool:
        """Remove every batch that holds `offset` or more, for good; False if there was none.

        The log then ends with its last batch: at `offset`, unless that lay inside a batch.
        """
        self._check_usable()
        self._verify_end()
        if offset < 0:
            raise ValueError(f"{self.topic_partition} cannot be truncated to {offset}")
        if offset >= self.log_end_offset:
            # An epoch may begin at the end of the log without a record.
            self.epochs.truncate_from_end(self.log_end_offset)
            return False
        if offset < self._high_watermark:
            _log.warning("%s is cut at %d, below its high watermark %d", self, offset, self._high_watermark)
        if offset < self.segments[0].base_offset:
            self.truncate_fully_and_start_at(offset)
            return True
        epochs = self.epochs
        partition = self.topic_partition
        with self._guard("lowering the recovery point before a truncation"):
            end_offset = self.end_below(offset)
            for segment in self._local.segments_from(offset):
                self._producers.mend_txn_index(segment)
            self.directory.lower_recovery_points({partition: end_offset})
            if end_offset < self._log_start_offset:
                self._set_log_start(end_offset)
        with self._guard("truncating", fatal=True):
            self._upper = None
            self._local.truncate_to(offset)
            epochs.truncate_from_end(end_offset)
            self._log_start_offset = min(self._log_start_offset, end_offset)
            self._high_watermark = min(self._high_watermark, end_offset)
            self._producers.truncate(self._log_start_offset, self._high_watermark)
            # A snapshot of what was cut must not come back and be taken for one of what follows.
            self._local.sync_names()
        return True

    def truncate_fully_and_start_at(self, offset: int, log_start_offset: int | None = None) -> None:
        """Remove everything; the log goes on at `offset`, which is also its start unless told otherwise."""
        self._check_usable()
        self._settle()
        epochs = self.epochs
        partition = self.topic_partition
        with self._guard("noting the new start of a log"):
            self.directory.lower_recovery_points({partition: offset})
            self._set_log_start(offset)
        with self._guard("truncating", fatal=True):
            self._upper = None
            self._verified_end = True
            self._producers.start_anew(offset)
            self._local.truncate_fully_and_start_at(offset, self.directory.clock.wall_ms())
        epochs.clear()
        self._log_start_offset = offset if log_start_offset is None else min(log_start_offset, offset)
        self._high_watermark = offset

    def _set_log_start(self, offset: int) -> None:
        """Make another log start durable, a lower one maybe: then what was deleted must be gone for good."""
        if offset < self._log_start_offset and not self._local.names_synced:
            self._local.sync_names()
        self.directory.set_log_starts({self.topic_partition: offset})

    def increment_log_start_offset(self, offset: int, reason: str) -> bool:
        """Move the log start up, as DeleteRecords and retention do; False if it is there already."""
        self._check_usable()
        if offset > self._high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"the log start of {self.topic_partition} cannot move to {offset}, beyond the high watermark "
                f"{self._high_watermark}",
            )
        if offset <= self._log_start_offset:
            return False
        _log.info("%s: the log start moves to %d: %s", self.topic_partition, offset, reason)
        epochs = self.epochs
        self._log_start_offset = offset
        epochs.truncate_from_start(offset)
        producers = self._producers.loaded
        if producers is not None:
            producers.on_log_start_offset_incremented(offset, self.snapshots.latest)
        return True

    def deletable(self, now_ms: int) -> list[Deletion[LogSegment]]:
        """What retention would delete now."""
        config = self.config
        with self._guard("applying retention"):
            return segments_to_delete(
                self.segments,
                log_start_offset=self._log_start_offset,
                log_end_offset=self.log_end_offset,
                high_watermark=self._high_watermark,
                delete_policy=config.delete,
                retention_bytes=config.retention_bytes,
                retention_ms=config.retention_ms,
                now_ms=now_ms,
            )

    def delete_old_segments(self, now_ms: int) -> int:
        """Apply retention; how many segments went."""
        self._check_usable()
        return sum(self.delete_segments(each, now_ms) for each in self.deletable(now_ms))

    def delete_segments(self, deletion: Deletion[LogSegment], now_ms: int) -> int:
        """Remove segments from the front; how many went."""
        return self.remove_passed(self.pass_over(deletion, now_ms))

    def pass_over(self, deletion: Deletion[LogSegment], now_ms: int) -> list[LogSegment]:
        """The first half of a deletion: move the log start behind the segments; those that can now go."""
        self._check_usable()
        self._verify_end()
        known = set(self.segments)
        passed = [segment for segment in deletion.segments if segment in known]
        if passed:
            if passed[-1] is self.active_segment:
                with self._guard("rolling a segment"):
                    self._roll(self.log_end_offset, now_ms)
            self.increment_log_start_offset(deletion.new_log_start_offset, deletion.reason.value)
        return passed

    def remove_passed(self, passed: Sequence[LogSegment]) -> int:
        """The second half: make the log start durable, if it is not yet, and remove what lies below it."""
        self._check_usable()
        start, below = self._log_start_offset, set()
        for segment, following in pairwise(self.segments):
            if following.base_offset <= start:
                below.add(segment)
        gone = [segment for segment in passed if segment in below]
        if not gone:
            return 0
        with self._guard("noting the new start of a log"):
            self._set_log_start(start)
        with self._guard("deleting segments", fatal=True):
            self._local.remove_front(gone)
            self._producers.drop_snapshots(gone)
        return len(gone)

    def replace_segments(self, new: Sequence[LogSegment], old: Sequence[LogSegment]) -> None:
        """Put compacted segments, complete and named `.cleaned`, in the place of the old ones."""
        self._check_usable()
        end = max(segment.base_offset for segment in old)
        following = [segment.base_offset for segment in self.segments if segment.base_offset > end]
        if following and self.recovery_point < following[0]:
            self.flush(following[0])
        with self._guard("noting the recovery point before a swap"):
            self.directory.raise_recovery_points({self.topic_partition: self.recovery_point})
        with self._guard("swapping segments", fatal=True):
            self._upper = None
            self._producers.drop_snapshots(self._local.replace_segments(new, old))

    # The end

    def rename_dir(self, name: str) -> None:
        """Rename the directory: to delete the partition, or to make a future log the current one."""
        self._check_usable()
        path = posixpath.join(self.directory.path, name)
        with self._guard("renaming"):
            self._disk.rename(self.dir, path)
        self._local.renamed(path)
        self._producers.moved_to(path)
        with self._guard("renaming"):
            self._disk.sync_dir(self.directory.path)

    def close(self) -> None:
        """Make everything durable, with a producer snapshot at the end, and close the files. A log that was
        not touched since it was loaded is as it was.
        """
        self._check_usable()
        self._settle()
        if self._verified_end:
            self.producers  # noqa: B018 - loaded if it was not, so that there is something to write
            with self._guard("closing"):
                self._producers.take_snapshot()
                self.active_segment.seal()
        self.flush(closing=self._verified_end)
        self.release()

    def release(self) -> None:
        """Let go of the files without writing anything."""
        self._local.release()
        self._closed = True

    def delete(self) -> None:
        """Remove the partition's directory with everything in it, at once."""
        self.release()
        with self._guard("deleting a partition"):
            remove_tree(self._disk, self.dir)
            self._disk.sync_dir(self.directory.path)

    # Within

    @property
    def _disk(self) -> Disk:
        return self._local.directory.disk

    def _guard(self, action: str, *, fatal: bool = False) -> IoGuard:
        return IoGuard(self.directory, action, self.dir, fatal)

    def _check_usable(self) -> None:
        if not self.directory.is_online:
            self.directory.check_online()
        if self._closed:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log {self.dir} is closed")

    def _verify_end(self) -> None:
        """Before the first change after a clean shutdown, see that the log ends where the checkpoint says;
        before the first change of a new log, settle it.
        """
        if self._verified_end:
            return
        if not self._identity.settled:
            self._settle()
            return
        with self._guard("finding the end of the log"):
            actual = self.active_segment.next_offset()
            self._producers.mend_txn_index(self.active_segment)
        if actual != self.log_end_offset:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{self.dir} ends at offset {actual}, but at its clean shutdown it ended at "
                f"{self.log_end_offset}: its files were changed since. Restore them, or stop the node and "
                f"remove {checkpoints.CLEAN_SHUTDOWN} in {self.directory.path} to have the log recovered",
            )
        self._verified_end = True
