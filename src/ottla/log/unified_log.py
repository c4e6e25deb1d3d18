"""The log of a partition: appends, reads, and the offsets that bound them.

`UnifiedLog` joins the parts: the segments (`LocalLog`), the leader epochs, the producer state and the
transaction index. It is synchronous and belongs to the event loop; `read` and the lookups may also run in
another thread, and a flush comes in three steps of which the slow one may (see `flush`). How it is done is
next door: `log_appends`, `log_reads`, `log_flushes`, `log_cuts`, over the `LogCore` that they share.

Invariants: log start offset <= last stable offset <= high watermark <= log end offset, and recovery point <=
log end offset. An append that is refused leaves nothing behind (`log_appends` tells of the one error that
comes later). After an I/O error that is not a lack of room or of handles the whole directory is offline and
every call raises KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from ottla.log import log_appends, log_cuts, log_flushes, log_reads
from ottla.log.append import LogAppendInfo
from ottla.log.append_origin import AppendOrigin
from ottla.log.directory.directory import LogDirectory
from ottla.log.directory.log_creation import Settlement
from ottla.log.epochs.leader_epoch_cache import LeaderEpochCache
from ottla.log.files import DirKind
from ottla.log.flush import FlushPlan
from ottla.log.local_log import LocalLog
from ottla.log.log_config import LogConfig
from ottla.log.log_core import LogCore
from ottla.log.log_reads import FetchDataInfo
from ottla.log.producers.log_producers import LogProducers
from ottla.log.producers.snapshot import ProducerSnapshots
from ottla.log.producers.state_entry import SENTINEL_GUARD, VerificationGuard
from ottla.log.producers.state_manager import ProducerStateManager
from ottla.log.retention import Deletion
from ottla.log.segment.segment import LogSegment
from ottla.log.segment.timestamp_lookup import TimestampAndOffset
from ottla.log.segment.txn_index import AbortedTxn
from ottla.protocol.names import TopicPartition
from ottla.runtime.disk import Buffer, remove_tree

__all__ = ["FetchDataInfo", "UnifiedLog"]


class UnifiedLog:
    __slots__ = ("_core",)

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
        self._core = LogCore(
            local,
            log_start_offset,
            producers,
            epochs=epochs,
            verified_end=verified_end,
            settled=settled,
            topic_id=topic_id,
        )

    def __repr__(self) -> str:
        return f"<log {self.dir}: {self.log_start_offset} to {self.log_end_offset}>"

    # What it is

    @property
    def topic_partition(self) -> TopicPartition:
        return self._core.local.partition

    @property
    def directory(self) -> LogDirectory:
        return self._core.local.directory

    @property
    def dir(self) -> str:
        return self._core.local.dir

    @property
    def is_closed(self) -> bool:
        """True once it was closed, deleted or taken offline."""
        return self._core.closed

    @property
    def is_future(self) -> bool:
        return self.dir.endswith(DirKind.FUTURE.value)

    @property
    def config(self) -> LogConfig:
        return self._core.local.config

    def update_config(self, config: LogConfig) -> None:
        """Put other settings in force, also for the segment that takes the appends."""
        self._core.local.config = config
        self._core.active.reconfigure(config)

    @property
    def topic_id(self) -> bytes | None:
        """The id of the topic that this partition belongs to, from `partition.metadata`."""
        with self._core.guard("reading the topic id"):
            return self._core.identity.topic_id()

    def assign_topic_id(self, topic_id: bytes) -> None:
        """Say which topic this is; INCONSISTENT_TOPIC_ID if it is known to be another."""
        with self._core.guard("writing the topic id"):
            self._core.identity.assign(topic_id)

    def settlement(self) -> Settlement | None:
        """What would settle this log without blocking; None if that is not needed."""
        return None if self._core.closed else self._core.identity.settlement()

    def install(self, settlement: Settlement) -> bool:
        """Take over what `Settlement.write` wrote; False if it is no longer wanted."""
        core = self._core
        if core.identity.settled or core.closed or settlement.dir != self.dir:
            return False
        with core.guard("settling a new log"):
            settlement.install()
        return True

    def settled(self, settlement: Settlement) -> None:
        """Note that `Settlement.sync` was done."""
        core = self._core
        if settlement.dir == self.dir:
            core.identity.settled = core.verified_end = True
            core.local.note_names_synced(settlement.names_version)

    @property
    def segments(self) -> tuple[LogSegment, ...]:
        """Oldest first; the last one takes the appends."""
        return self._core.local.segments

    @property
    def active_segment(self) -> LogSegment:
        return self._core.local.active

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        with self._core.guard("reading sizes"):
            return self._core.local.size

    @property
    def names_synced(self) -> bool:
        """True if a crash would leave exactly these files."""
        return self._core.local.names_synced

    @property
    def parent_synced(self) -> bool:
        """True if the name of its own directory is durable."""
        return self._core.local.parent_synced

    def note_parent_synced(self) -> None:
        """The directory that holds the directories of logs was synced since this one was made."""
        self._core.local.parent_synced = True

    # Offsets

    @property
    def log_start_offset(self) -> int:
        return self._core.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self._core.local.log_end_offset

    @property
    def recovery_point(self) -> int:
        """Everything below it is durable."""
        return self._core.local.recovery_point

    @property
    def generation(self) -> int:
        """How often the log has been cut at its end; what was read of it before may no longer be true."""
        return self._core.local.generation

    def take_cut_offset(self) -> int | None:
        """The lowest offset that the log has been cut at since the last call; None if it has not been cut."""
        local = self._core.local
        offset, local.cut_offset = local.cut_offset, None
        return offset

    @property
    def high_watermark(self) -> int:
        return self._core.high_watermark

    @high_watermark.setter
    def high_watermark(self, offset: int) -> None:
        self.update_high_watermark(offset)

    def update_high_watermark(self, offset: int) -> int:
        """Set the high watermark, at least to the log start and at most to the log end; what it became."""
        core = self._core
        core.high_watermark = min(max(offset, core.log_start_offset), core.log_end_offset)
        producers = core.producers.loaded
        if producers is not None:
            producers.on_high_watermark_updated(core.high_watermark)
        return core.high_watermark

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of an open transaction, or of one that ends above the high watermark."""
        offset = self._core.producer_state().first_unstable_offset()
        return None if offset is None else max(offset, self._core.log_start_offset)

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction is decided: the bound of `read_committed`."""
        core = self._core
        unstable = core.producer_state().first_unstable_offset()
        if unstable is None:
            return core.high_watermark
        return min(max(unstable, core.log_start_offset), core.high_watermark)

    @property
    def unflushed_messages(self) -> int:
        return self._core.unflushed_messages

    @property
    def committable_offset(self) -> int:
        """Below it records may be shown to consumers once they are replicated: the log end, or, while a flush
        that `flush.messages` asks for has yet to be done, the recovery point.
        """
        core = self._core
        local = core.local
        due = core.unflushed_messages >= local.config.flush_messages
        return local.recovery_point if due else local.log_end_offset

    @property
    def last_flush_ms(self) -> int:
        return self._core.last_flush_ms

    # Leader epochs

    @property
    def epochs(self) -> LeaderEpochCache:
        return self._core.epoch_cache()

    @property
    def latest_epoch(self) -> int | None:
        return self.epochs.latest_epoch

    def assign_epoch_start_offset(self, epoch: int, start_offset: int) -> None:
        """Note that a leader of `epoch` writes from `start_offset` on."""
        self._core.check_usable()
        self.epochs.assign(epoch, start_offset)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """The greatest epoch up to `epoch` that wrote here and the offset at which it ended; (-1, -1) if
        unknown.
        """
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    # Producers

    @property
    def producers(self) -> ProducerStateManager:
        return self._core.producer_state()

    @property
    def snapshots(self) -> ProducerSnapshots:
        with self._core.guard("listing the producer snapshots"):
            return self._core.producers.snapshots

    def remove_expired_producers(self, now_ms: int) -> None:
        producers = self._core.producers.loaded
        if producers is not None:
            producers.remove_expired(now_ms)

    def aborted_transactions(self, start_offset: int, upper_offset: int) -> list[AbortedTxn]:
        """The aborted transactions with records in [`start_offset`, `upper_offset`)."""
        return log_reads.aborted_transactions(self._core, start_offset, upper_offset)

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
    ) -> LogAppendInfo:
        """Check the batches, give them their offsets and the epoch, and append them.

        A batch that was appended before is answered with its old offsets. `guard` and `transaction_version`
        are for transactional batches and markers (see `ProducerStateManager`). With `inline_flush=False` a
        flush that `flush.messages` demands is left to the caller.
        """
        return log_appends.append_as_leader(
            self._core, data, leader_epoch, now_ms, origin, guard, transaction_version, inline_flush
        )

    def append_as_follower(
        self, data: Buffer, leader_epoch: int, *, now_ms: int, inline_flush: bool = True
    ) -> LogAppendInfo:
        """Append the leader's batches as they are. From the first one on that is of a later epoch than
        `leader_epoch` they are left out: the leader that sent them is no longer the one that was asked.
        """
        return log_appends.append_as_follower(self._core, data, leader_epoch, now_ms, inline_flush)

    def roll(self, now_ms: int) -> bool:
        """Begin a new segment, unless the active one is empty; True if one was begun."""
        return log_appends.roll(self._core, now_ms)

    # Reading

    def read(
        self, offset: int, max_bytes: int, *, upper_offset: int | None = None, min_one_batch: bool = True
    ) -> FetchDataInfo:
        """Batches from the one that holds `offset` on, up to `max_bytes` and below `upper_offset` (the log
        end if None); the first batch in any case if `min_one_batch`.

        Nothing where `offset` is at or above `upper_offset`, up to the log end; beyond that, and below the
        log start, OFFSET_OUT_OF_RANGE.
        """
        return log_reads.read(self._core, offset, max_bytes, upper_offset, min_one_batch)

    def offset_for_timestamp(self, timestamp: int) -> TimestampAndOffset | None:
        """The first record that is not older than `timestamp`, wherever the high watermark is."""
        return log_reads.offset_for_timestamp(self._core, timestamp)

    def offset_for_max_timestamp(self) -> TimestampAndOffset | None:
        """The first record that has the greatest timestamp of the log."""
        return log_reads.offset_for_max_timestamp(self._core)

    # Durability

    def prepare_flush(self, upto: int | None = None, *, closing: bool = False) -> FlushPlan | None:
        """What to sync so that the log is durable below `upto` (the log end if None); None if it is. With
        `closing` the indexes of the active segment too.
        """
        return log_flushes.prepare(self._core, upto, closing=closing)

    def run_flush(self, plan: FlushPlan) -> None:
        """Do what the plan says, in any thread. A failed sync takes the directory offline: nobody knows what
        the disk has kept. A plan whose files were renamed meanwhile, since the log is deleted or moved, is
        abandoned.
        """
        log_flushes.run(self._core, plan)

    def complete_flush(self, plan: FlushPlan) -> None:
        """Note what `run_flush` has made durable."""
        log_flushes.complete(self._core, plan)

    def flush(self, upto: int | None = None, *, closing: bool = False) -> None:
        """Make the log durable below `upto`, the log end if None, and move the recovery point there."""
        log_flushes.flush(self._core, upto, closing=closing)

    # Truncation and deletion

    def end_below(self, offset: int) -> int:
        """Where the log would end if it were cut at `offset`."""
        return log_cuts.end_below(self._core, offset)

    def truncate_to(self, offset: int) -> bool:
        """Remove every batch that holds `offset` or more, for good; False if there was none.

        The log then ends with its last batch: at `offset`, unless that lay inside a batch.
        """
        return log_cuts.truncate_to(self._core, offset)

    def truncate_fully_and_start_at(self, offset: int, log_start_offset: int | None = None) -> None:
        """Remove everything; the log goes on at `offset`, which is also its start unless told otherwise."""
        log_cuts.truncate_fully_and_start_at(self._core, offset, log_start_offset)

    def increment_log_start_offset(self, offset: int, reason: str) -> bool:
        """Move the log start up, as DeleteRecords and retention do; False if it is there already."""
        return log_cuts.increment_log_start_offset(self._core, offset, reason)

    def deletable(self, now_ms: int) -> list[Deletion[LogSegment]]:
        """What retention would delete now."""
        return log_cuts.deletable(self._core, now_ms)

    def delete_old_segments(self, now_ms: int) -> int:
        """Apply retention; how many segments went."""
        self._core.check_usable()
        return sum(self.delete_segments(each, now_ms) for each in self.deletable(now_ms))

    def delete_segments(self, deletion: Deletion[LogSegment], now_ms: int) -> int:
        """Remove segments from the front; how many went."""
        return self.remove_passed(self.pass_over(deletion, now_ms))

    def pass_over(self, deletion: Deletion[LogSegment], now_ms: int) -> list[LogSegment]:
        """The first half of a deletion: move the log start behind the segments; those that can now go."""
        return log_cuts.pass_over(self._core, deletion, now_ms)

    def remove_passed(self, passed: Sequence[LogSegment]) -> int:
        """The second half: make the log start durable, if it is not yet, and remove what lies below it."""
        return log_cuts.remove_passed(self._core, passed)

    def replace_segments(self, new: Sequence[LogSegment], old: Sequence[LogSegment]) -> None:
        """Put compacted segments, complete and named `.cleaned`, in the place of the old ones."""
        log_cuts.replace_segments(self._core, new, old)

    # The end

    def rename_dir(self, name: str, *, sync: bool = True) -> None:
        """Rename the directory: to delete the partition, or to make a future log the current one. Without
        `sync` the caller is to make that durable.
        """
        core = self._core
        core.check_usable()
        path = posixpath.join(self.directory.path, name)
        with core.guard("renaming"):
            core.disk.rename(self.dir, path)
        core.local.renamed(path)
        core.producers.moved_to(path)
        if sync:
            with core.guard("renaming"):
                core.disk.sync_dir(self.directory.path)

    def close(self) -> None:
        """Make everything durable, with a producer snapshot at the end, and close the files. A log that was
        not touched since it was loaded is as it was.
        """
        log_flushes.close(self._core)

    def release(self) -> None:
        """Let go of the files without writing anything."""
        log_flushes.release(self._core)

    def delete(self) -> None:
        """Remove the partition's directory with everything in it, at once."""
        self.release()
        with self._core.guard("deleting a partition"):
            remove_tree(self._core.disk, self.dir)
            self._core.disk.sync_dir(self.directory.path)
