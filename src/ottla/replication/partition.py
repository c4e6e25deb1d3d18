"""One partition as this broker hosts it: its role, its replicas, the in-sync set (ISR), the high watermark.

A `Partition` is a deterministic object over a `UnifiedLog`; it reads no clock. The replica manager gives it
the role that the metadata log assigns (`make_leader`, `make_follower`). Handlers append and fetch through it.
It calls its listener when an offset moves that requests may wait for, and when the ISR should change. Every
request that names a leader epoch has that epoch checked first.

Invariants:

* the high watermark never goes back within a leader epoch, and never passes the end of the log of any replica
  in the maximal ISR;
* the ISR of a leader contains the leader;
* leader epoch and partition epoch never go back;
* a watcher hears of the first progress after it was added, before the broker does;
* a pending change of the ISR counts for the high watermark at once where it adds a replica, and only after
  the controller has confirmed it where it removes one.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, Protocol

from ottla.log.producers.state_entry import SENTINEL_GUARD, VerificationGuard
from ottla.log.segment.txn_index import AbortedTxn
from ottla.log.unified_log import LogAppendInfo, UnexpectedAppendOffset, UnifiedLog
from ottla.metadata.image.entities import PartitionRegistration
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicIdPartition, TopicPartition
from ottla.records.batch import BatchHeader, iter_batches
from ottla.records.validation import AppendOrigin, BatchCheck
from ottla.replication.topic_statistics import TopicStatistics
from ottla.runtime import invariants
from ottla.runtime.disk import Buffer, waiting

_log = logging.getLogger(__name__)

NO_EPOCH: Final = -1
UNKNOWN_OFFSET: Final = -1
DELETE_UP_TO_HIGH_WATERMARK: Final = -1
DEFAULT_REPLICA_LAG_MS: Final = 30_000

# Errors of AlterPartition which mean that this broker's metadata is behind: the metadata log will bring the
# partition's new state.
_WAIT_FOR_METADATA: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    }
)
# Producers whose first batch was refused: how many of them a partition knows, and for how long. Clients give
# a batch up after two minutes (`delivery.timeout.ms`).
_MAX_REFUSED_PRODUCERS: Final = 1_000
_REFUSED_SEQUENCE_MS: Final = 120_000


class FetchIsolation(Enum):
    """The offset up to which a fetch may read."""

    LOG_END = "log end"  # followers
    HIGH_WATERMARK = "high watermark"  # read_uncommitted
    TXN_COMMITTED = "last stable offset"  # read_committed


@dataclass(frozen=True, slots=True)
class EpochEndOffset:
    """An epoch and the offset at which it ends in this log; (-1, -1) if the log does not know the epoch."""

    epoch: int
    end_offset: int

    @property
    def is_unknown(self) -> bool:
        return self.epoch < 0 or self.end_offset < 0


@dataclass(frozen=True, slots=True)
class FollowerFetch:
    """The follower that sends a fetch: its id, its log start, and the epoch of its registration."""

    broker_id: int
    log_start_offset: int
    broker_epoch: int = -1


class LogReadInfo(NamedTuple):
    """The result of a fetch of one partition. All offsets are from before the read."""

    records: bytes
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    log_end_offset: int
    diverging_epoch: EpochEndOffset | None = None
    aborted: tuple[AbortedTxn, ...] | None = None  # None unless the isolation is TXN_COMMITTED
    is_remote: bool = False  # whether remote storage was asked; without records, they did not come in time


@dataclass(frozen=True, slots=True)
class PendingPartitionChange:
    """An ISR that the leader asks the controller for (AlterPartition) and that is not confirmed yet."""

    partition: TopicPartition
    topic_id: bytes
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    broker_epochs: tuple[int, ...]  # in the order of `isr`; -1 where the leader does not know it


class PartitionListener(Protocol):
    """The broker as a partition calls it: on progress, for changes of the ISR, and for the state of
    replicas.
    """

    def on_partition_progress(self, partition: Partition) -> None:
        """Its log end, high watermark, last stable offset or log start moved, its ISR or its leadership
        changed.
        """

    def on_flush_due(self, partition: Partition) -> None:
        """Records of the leader wait for a flush of the log before they are committed. It is to be done off
        the event loop, again where it lacks room or file handles, and `on_flush` is to be called then.
        Called after each append for which one is due, also while there is one under way, which may not have
        the records.
        """

    def submit_alter_partition(self, partition: Partition, change: PendingPartitionChange) -> None:
        """Ask the controller for an ISR; the answer goes to `handle_alter_partition_update` or `_error`."""

    def is_replica_isr_eligible(self, broker: int, broker_epoch: int | None) -> bool:
        """Whether the metadata image shows the broker active and, unless -1, registered with this epoch."""


class PartitionWatcher(Protocol):
    """A fetch that has read what a partition has."""

    def on_partition_progress(self) -> None:
        """The partition has, or may have, something else to read. The watcher is no longer one; it may not
        read the partition here, as the change may be under way.
        """


class FollowerSession(Protocol):
    """The fetch session of a follower."""

    @property
    def last_fetch_ms(self) -> int:
        """The time of its last fetch."""


@dataclass(slots=True)
class Replica:
    """A follower as its leader knows it from the follower's fetches.

    A follower in the ISR that has everything keeps fetching in its session, without a read of this partition.
    `idle_session` is that session meanwhile: each of its fetches says that the follower still has everything.
    """

    broker_id: int
    log_end_offset: int = UNKNOWN_OFFSET  # offset of its last fetch: its log has everything below
    log_start_offset: int = UNKNOWN_OFFSET
    broker_epoch: int | None = None  # of its last fetch; None before the first
    idle_session: FollowerSession | None = None
    _last_caught_up_ms: int = 0
    _last_fetch_ms: int = 0
    _leader_end_at_last_fetch: int = UNKNOWN_OFFSET

    @property
    def last_caught_up_ms(self) -> int:
        """The latest time at which it is known to have had all of the leader's log."""
        session = self.idle_session
        return (
            self._last_caught_up_ms
            if session is None
            else max(self._last_caught_up_ms, session.last_fetch_ms)
        )

    @property
    def last_fetch_ms(self) -> int:
        session = self.idle_session
        return self._last_fetch_ms if session is None else max(self._last_fetch_ms, session.last_fetch_ms)

    def end_idle_session(self) -> None:
        """Note the last fetch of the idle session: from now on, or because of what has just been appended,
        its fetches do not say that the follower has everything.
        """
        session = self.idle_session
        if session is not None:
            self.idle_session = None
            self._last_caught_up_ms = max(self._last_caught_up_ms, session.last_fetch_ms)
            self._last_fetch_ms = max(self._last_fetch_ms, session.last_fetch_ms)

    def update_fetch_state(
        self, offset: int, log_start_offset: int, leader_end_offset: int, broker_epoch: int, now_ms: int
    ) -> None:
        """Note a fetch from `offset` that arrived when the leader's log ended at `leader_end_offset`.

        A follower that fetches from the leader's end is caught up now; one that fetches from where the
        leader's log ended at its previous fetch was caught up then. So a follower that is always one fetch
        behind a busy leader stays in sync.
        """
        self.end_idle_session()
        if offset >= leader_end_offset:
            self._last_caught_up_ms = max(self._last_caught_up_ms, now_ms)
        elif offset >= self._leader_end_at_last_fetch:
            self._last_caught_up_ms = max(self._last_caught_up_ms, self._last_fetch_ms)
        self.log_end_offset = offset
        self.log_start_offset = log_start_offset
        self.broker_epoch = broker_epoch
        self._leader_end_at_last_fetch = max(leader_end_offset, self._leader_end_at_last_fetch)
        self._last_fetch_ms = now_ms

    def reset_replica_state(
        self, leader_end_offset: int, *, new_leader: bool, in_sync: bool, now_ms: int
    ) -> None:
        """Begin a leader epoch: replicas in the ISR count as caught up now, others must not hold the high
        watermark back.
        """
        self.idle_session = None
        self._last_caught_up_ms = now_ms if in_sync else 0
        if new_leader:
            self.log_end_offset = UNKNOWN_OFFSET
            self.log_start_offset = UNKNOWN_OFFSET
            self.broker_epoch = None
            self._last_fetch_ms = 0
            self._leader_end_at_last_fetch = UNKNOWN_OFFSET
        else:
            self._last_fetch_ms = now_ms if in_sync else 0
            self._leader_end_at_last_fetch = leader_end_offset

    def is_caught_up(self, leader_end_offset: int, max_lag_ms: int, now_ms: int) -> bool:
        return leader_end_offset == self.log_end_offset or now_ms - self.last_caught_up_ms <= max_lag_ms


class IsrState:
    """The in-sync set of a partition, and the change of it that waits for the controller.

    Invariant: `maximal_isr` contains `isr`. The high watermark waits for `maximal_isr`: a replica that is
    being added counts at once, since waiting for it does no harm if the controller refuses; one that is being
    removed counts until the controller has agreed, since committing without it would lose records if the
    controller does not.
    """

    __slots__ = ("isr", "maximal_isr", "pending")

    def __init__(self) -> None:
        self.isr: frozenset[int] = frozenset()  # as the controller last confirmed; empty on a follower
        self.maximal_isr: frozenset[int] = frozenset()
        self.pending: PendingPartitionChange | None = None  # sent to the controller, not answered

    def reset(self, isr: Iterable[int]) -> None:
        """Take the ISR of the controller or the metadata log; a pending change lapses."""
        self.isr = self.maximal_isr = frozenset(isr)
        self.pending = None

    def prepare(self, change: PendingPartitionChange) -> None:
        self.pending = change
        self.maximal_isr = self.isr | frozenset(change.isr)

    def on_refused(self, change: PendingPartitionChange, error: ErrorCode) -> bool:
        """Handle the controller's refusal; True if the change is to be sent again."""
        if self.pending is not change:
            return False
        if error in (ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA):
            self.reset(self.isr)
            return False
        return error not in _WAIT_FOR_METADATA


class Partition:
    __slots__ = (
        "_isr_state",
        "_listener",
        "_refused_sequences",
        "_remote_replicas",
        "_watchers",
        "broker_id",
        "is_in_sync_follower",
        "leader_epoch",
        "leader_epoch_start_offset",
        "leader_id",
        "log",
        "partition_epoch",
        "rejects_appends_since_ms",
        "replica_lag_max_ms",
        "replicas",
        "statistics",
        "topic_id",
        "topic_partition",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: bytes,
        log: UnifiedLog,
        broker_id: int,
        listener: PartitionListener,
        *,
        replica_lag_max_ms: int = DEFAULT_REPLICA_LAG_MS,
        statistics: TopicStatistics | None = None,
    ) -> None:
        """`statistics` is what all partitions of the topic add to."""
        self.topic_partition: Final = topic_partition
        self.topic_id: Final = topic_id
        self.statistics: Final = TopicStatistics() if statistics is None else statistics
        self.log = log
        self.broker_id: Final = broker_id
        self.replica_lag_max_ms = replica_lag_max_ms
        self.replicas: tuple[int, ...] = ()
        self.leader_id: int | None = None
        self.leader_epoch = NO_EPOCH  # never goes back
        self.partition_epoch = -1  # never goes back
        # The offset at which the leader epoch began; a follower below it may not join the ISR. None on a
        # follower.
        self.leader_epoch_start_offset: int | None = None
        # Since when appends have failed, as for lack of disk space; None if the last one did not.
        self.rejects_appends_since_ms: int | None = None
        # By producer id, of producers that the log does not know: the epoch and the lowest sequence whose
        # append was refused for a reason that passes, and when. None most of the time.
        self._refused_sequences: dict[int, tuple[int, int, int]] | None = None
        self.is_in_sync_follower = False
        self._listener: Final = listener
        self._remote_replicas: dict[int, Replica] = {}
        self._isr_state: Final = IsrState()
        self._watchers: dict[PartitionWatcher, None] = {}
        log.on_log_start_moved = self._on_progress

    def __repr__(self) -> str:
        role = "leader" if self.is_leader else "follower"
        return f"<{role} of {self.topic_partition} epoch {self.leader_epoch} isr {sorted(self.isr)}>"

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        return TopicIdPartition(self.topic_id, self.topic_partition.partition)

    @property
    def is_leader(self) -> bool:
        return self.leader_id == self.broker_id

    @property
    def isr(self) -> frozenset[int]:
        """The in-sync set that the controller last confirmed; empty on a follower."""
        return self._isr_state.isr

    @property
    def remote_replicas(self) -> Collection[Replica]:
        return self._remote_replicas.values()

    @property
    def pending_change(self) -> PendingPartitionChange | None:
        return self._isr_state.pending

    @property
    def min_isr(self) -> int:
        """`min.insync.replicas`, but never more than the number of replicas."""
        return min(self.log.config.min_insync_replicas, len(self._remote_replicas) + 1)

    # Roles

    def make_leader(self, registration: PartitionRegistration, now_ms: int) -> bool:
        """Lead in the registration's epoch; True if this broker was not the leader before."""
        if registration.partition_epoch < self.partition_epoch:
            return False
        assert registration.leader_epoch >= self.leader_epoch, (self, registration)
        if invariants.thorough:
            # Not on a running node: the metadata may be of another controller, and are durable.
            assert self.broker_id in registration.isr, (self, registration)
        self.log.finish_truncation()
        was_leader = self.is_leader
        new_epoch = registration.leader_epoch > self.leader_epoch
        if was_leader:
            self._count_isr_change(len(registration.isr))
        self._update_assignment_and_isr(registration.replicas, registration.isr, leader=True)
        end = self.log.log_end_offset
        if new_epoch:
            self.log.check_leader_epochs(registration.leader_epoch)
            # Followers may hold records of epochs that this log never had; an entry for the new epoch lets
            # them find out where to truncate.
            self.log.assign_epoch_start_offset(registration.leader_epoch, end)
            for follower in self._remote_replicas.values():
                follower.reset_replica_state(
                    end, new_leader=not was_leader, in_sync=follower.broker_id in self.isr, now_ms=now_ms
                )
            self.leader_epoch = registration.leader_epoch
            self.leader_epoch_start_offset = end
            self.rejects_appends_since_ms = None
        self.partition_epoch = registration.partition_epoch
        self.leader_id = self.broker_id
        if not was_leader and self.log.is_flush_due:
            # As a follower it had no file handle for this flush, or no time, and no append may come.
            self._listener.on_flush_due(self)
        self._maybe_increment_high_watermark(now_ms)
        self._on_progress()
        return not was_leader

    def make_follower(self, registration: PartitionRegistration) -> bool:
        """Follow in the registration's epoch; True if that epoch is new, so that fetching restarts."""
        if registration.partition_epoch < self.partition_epoch:
            return False
        assert registration.leader_epoch >= self.leader_epoch, (self, registration)
        new_epoch = registration.leader_epoch > self.leader_epoch
        self.leader_id = registration.leader if registration.leader >= 0 else None
        self.leader_epoch = registration.leader_epoch
        self.leader_epoch_start_offset = None
        self.rejects_appends_since_ms = None
        self._refused_sequences = None
        self.is_in_sync_follower = self.broker_id in registration.isr
        self.partition_epoch = registration.partition_epoch
        self._update_assignment_and_isr(registration.replicas, (), leader=False)
        self._on_progress()
        return new_epoch

    def resign(self) -> None:
        """Give up the partition: it was deleted, or its directory failed. Requests that wait are woken."""
        self.leader_id = None
        self.leader_epoch_start_offset = None
        self.log.on_log_start_moved = None
        self._update_assignment_and_isr((), (), leader=False)
        self._on_progress()

    def _update_assignment_and_isr(
        self, replicas: Iterable[int], isr: Iterable[int], *, leader: bool
    ) -> None:
        self.replicas = tuple(replicas)
        self._isr_state.reset(isr)
        if leader:
            known = self._remote_replicas
            self._remote_replicas = {
                id: known.get(id) or Replica(id) for id in self.replicas if id != self.broker_id
            }
        else:
            self._remote_replicas = {}

    def replace_log(self, log: UnifiedLog) -> None:
        """Go on with a log that has all that the former one has, in another directory."""
        listener, self.log.request_listener = self.log.request_listener, None
        self.log.on_log_start_moved = None
        self.log = log
        log.request_listener = listener
        log.on_log_start_moved = self._on_progress
        if listener is not None:
            listener()
        self._on_progress()

    # Progress

    def watch(self, watcher: PartitionWatcher) -> None:
        """Call a watcher at the next progress, once."""
        self._watchers[watcher] = None

    def unwatch(self, watcher: PartitionWatcher) -> None:
        self._watchers.pop(watcher, None)

    def begin_idle_session(self, follower: int, session: FollowerSession) -> None:
        """Note that a follower in the ISR has everything and goes on with fetches in which this partition is
        not read, until there is progress.
        """
        self._remote_replicas[follower].idle_session = session

    def end_idle_session(self, follower: int, session: FollowerSession) -> None:
        """Note that the session ends or does not fetch this partition any longer."""
        replica = self._remote_replicas.get(follower)
        if replica is not None and replica.idle_session is session:
            replica.end_idle_session()

    def on_truncation(self) -> None:
        """Note that the log was truncated at its end: what consumers may read here is another."""
        self._on_progress()

    def _on_progress(self) -> None:
        if self._watchers:
            self._wake_watchers()
        self._listener.on_partition_progress(self)

    def _wake_watchers(self) -> None:
        watchers, self._watchers = self._watchers, {}
        for replica in self._remote_replicas.values():
            replica.end_idle_session()
        for watcher in watchers:
            watcher.on_partition_progress()

    # Checks

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Raise unless the caller's leader epoch is that of this broker; -1 is not checked."""
        if current_leader_epoch == NO_EPOCH or current_leader_epoch == self.leader_epoch:
            return
        if current_leader_epoch < self.leader_epoch:
            raise KafkaError(
                ErrorCode.FENCED_LEADER_EPOCH,
                f"{self.topic_partition}: leader epoch {current_leader_epoch} is older than the current "
                f"epoch {self.leader_epoch}",
            )
        raise KafkaError(
            ErrorCode.UNKNOWN_LEADER_EPOCH,
            f"{self.topic_partition}: leader epoch {current_leader_epoch} is newer than the current epoch "
            f"{self.leader_epoch} of broker {self.broker_id}",
        )

    def check_leader(self, current_leader_epoch: int = NO_EPOCH) -> None:
        self.check_epoch(current_leader_epoch)
        if not self.is_leader:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"Leader not local for partition {self.topic_partition} on broker {self.broker_id}; the "
                f"leader is broker {self.leader_id}",
            )

    def check_replica(self, current_leader_epoch: int, *, only_leader: bool) -> None:
        if only_leader:
            self.check_leader(current_leader_epoch)
            return
        self.check_epoch(current_leader_epoch)
        if self.broker_id not in self.replicas:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"broker {self.broker_id} has no replica of {self.topic_partition}",
            )

    # Producing

    def append_records_to_leader(
        self,
        data: Buffer,
        *,
        now_ms: int,
        acks: int = -1,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        guard: VerificationGuard = SENTINEL_GUARD,
        transaction_version: int | None = None,
        max_cost_us: int | None = None,
        check: BatchCheck | None = None,
    ) -> LogAppendInfo:
        """Append records as the leader. With acks=all, NOT_ENOUGH_REPLICAS before anything is written if the
        ISR is too small. Where a flush is due then (`on_flush_due`), the records are committed after it.
        `max_cost_us` and `check` are those of `UnifiedLog.append_as_leader`.
        """
        if self.leader_id != self.broker_id:
            self.check_leader()
        if self._refused_sequences is not None and origin is AppendOrigin.CLIENT:
            self._check_refused_sequences(data, now_ms)
        if acks == -1 and len(self._isr_state.isr) < self.min_isr:
            self._note_refused_sequence(data, now_ms)
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"The size of the current ISR {sorted(self.isr)} is insufficient to satisfy the min.isr "
                f"requirement of {self.min_isr} for partition {self.topic_partition}",
            )
        try:
            info = self.log.append_as_leader(
                data,
                self.leader_epoch,
                now_ms=now_ms,
                origin=origin,
                guard=guard,
                transaction_version=transaction_version,
                max_cost_us=max_cost_us,
                check=check,
            )
        except KafkaError as error:
            self.note_refused_append(error, now_ms)
            if error.code is ErrorCode.KAFKA_STORAGE_ERROR and origin is AppendOrigin.CLIENT:
                self._note_refused_sequence(data, now_ms)
            if (
                error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
                and self.rejects_appends_since_ms is not None
            ):
                # The batch before it found no disk space. A producer that gets the error of a gap begins a
                # new epoch, in which it would write again what is in the log already.
                raise KafkaError(
                    ErrorCode.KAFKA_STORAGE_ERROR,
                    f"{self.topic_partition}: the batch before found no disk space",
                ) from error
            raise
        self.rejects_appends_since_ms = None
        if self._refused_sequences is not None:
            self._forget_refused_sequence(data)
        if info.size:
            statistics = self.statistics
            statistics.produces += 1
            statistics.bytes_in += info.size
            statistics.messages_in += info.last_offset - info.first_offset + 1
        if info.last_offset >= self.log.committable_offset:
            self._listener.on_flush_due(self)
        self._maybe_increment_high_watermark(now_ms)
        self._on_progress()
        return info

    def _note_refused_sequence(self, data: Buffer, now_ms: int) -> None:
        """Note that the first batch of a producer was refused, and may come again. The log accepts any
        sequence of a producer that it does not know: without this the next batch would be written, the first
        one never after it, and a producer that then sees a later one succeed takes it for written.
        """
        header = _first_header(data)
        if header is None or header.producer_id < 0 or header.base_sequence < 0:
            return
        known = self.log.producer_state_manager.last_entry(header.producer_id)
        if known is not None and known.producer_epoch == header.producer_epoch:
            return  # the log expects the next sequence
        refused = self._refused_sequences
        if refused is None:
            refused = self._refused_sequences = {}
        epoch, lowest, _ = refused.pop(header.producer_id, (NO_EPOCH, 0, 0))
        if epoch != header.producer_epoch or header.base_sequence < lowest:
            lowest = header.base_sequence
        refused[header.producer_id] = header.producer_epoch, lowest, now_ms
        if len(refused) > _MAX_REFUSED_PRODUCERS:
            del refused[next(iter(refused))]

    def _check_refused_sequences(self, data: Buffer, now_ms: int) -> None:
        """Refuse a batch of a producer whose first batch was refused and has not come again yet. A client may
        have given that one up, or be gone: after some time it is forgotten.
        """
        refused = self._refused_sequences
        while refused:  # the oldest first
            oldest, (_, _, since_ms) = next(iter(refused.items()))
            if 0 <= now_ms - since_ms < _REFUSED_SEQUENCE_MS:
                break
            del refused[oldest]
        if not refused:
            self._refused_sequences = None
            return
        header = _first_header(data)
        if header is None:
            return
        epoch, lowest, _ = refused.get(header.producer_id, (NO_EPOCH, 0, 0))
        if header.producer_epoch == epoch and header.base_sequence > lowest:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{self.topic_partition}: the batch of producer {header.producer_id} with sequence {lowest} "
                f"was refused, and that with {header.base_sequence} has to follow it",
            )

    def _forget_refused_sequence(self, data: Buffer) -> None:
        header = _first_header(data)
        if header is not None and self._refused_sequences is not None:
            self._refused_sequences.pop(header.producer_id, None)
            if not self._refused_sequences:
                self._refused_sequences = None

    def on_flush(self, now_ms: int) -> None:
        """Commit the records that had to wait for a flush of the log."""
        if self.is_leader and self._maybe_increment_high_watermark(now_ms):
            self._on_progress()

    def check_enough_replicas_reach_offset(self, required_offset: int) -> ErrorCode | None:
        """The outcome of a produce with acks=all that ends at `required_offset`; None while it waits."""
        if not self.is_leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self.log.high_watermark < required_offset:
            return None
        # The records are committed, but the ISR may have shrunk since they were appended.
        if len(self._isr_state.maximal_isr) < self.min_isr:
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return ErrorCode.NONE

    def append_records_to_follower(self, data: Buffer, leader_epoch: int, *, now_ms: int) -> LogAppendInfo:
        """Append records of the leader, as they are.

        An empty log may begin in the middle of a batch, where the leader deleted records up to there. The
        batch comes whole, so the files begin with it, and the log start stays where it is. A flush that
        is due then is left to the caller.
        """
        try:
            info = self._append_as_follower(data, leader_epoch, now_ms)
        except KafkaError as error:
            self.note_refused_append(error, now_ms)
            raise
        self.rejects_appends_since_ms = None
        self.statistics.replication_bytes_in += info.size
        return info

    def note_refused_append(self, error: KafkaError, now_ms: int) -> None:
        """Note that records could not be appended, or not be made durable."""
        if error.code is ErrorCode.KAFKA_STORAGE_ERROR and self.rejects_appends_since_ms is None:
            self.rejects_appends_since_ms = now_ms

    def _append_as_follower(self, data: Buffer, leader_epoch: int, now_ms: int) -> LogAppendInfo:
        log = self.log
        try:
            return log.append_as_follower(data, leader_epoch, now_ms=now_ms)
        except UnexpectedAppendOffset as error:
            start = log.log_start_offset
            if not (log.log_end_offset == start and error.first_offset < start <= error.last_offset):
                raise
            log.truncate_fully_and_start_at(error.first_offset, start)
            self.on_truncation()
            return log.append_as_follower(data, leader_epoch, now_ms=now_ms)

    # Fetching

    def fetch_records(
        self,
        offset: int,
        max_bytes: int,
        *,
        isolation: FetchIsolation,
        now_ms: int,
        current_leader_epoch: int = NO_EPOCH,
        last_fetched_epoch: int = NO_EPOCH,
        follower: FollowerFetch | None = None,
        only_leader: bool = True,
        min_one_batch: bool = True,
        may_wait: bool = True,
    ) -> LogReadInfo:
        """Read from `offset`. A follower's fetch also updates the state of its replica. Unless `may_wait`,
        raise NotInMemory instead of waiting for the disk; then nothing has changed.

        `last_fetched_epoch` is the epoch of the last record that the reader has: if this log ended that epoch
        earlier, or never had it, the result is the diverging epoch, and no records.
        """
        self.check_replica(current_leader_epoch, only_leader=only_leader)
        state = None if follower is None else self._replica_of(follower, current_leader_epoch)
        log = self.log
        high_watermark, end = log.high_watermark, log.log_end_offset
        last_stable, start = log.last_stable_offset, log.log_start_offset
        diverging = None
        records = b""
        aborted: tuple[AbortedTxn, ...] | None = () if isolation is FetchIsolation.TXN_COMMITTED else None
        if last_fetched_epoch != NO_EPOCH:
            diverging = self._divergence(offset, last_fetched_epoch)
        if diverging is None:
            if isolation is FetchIsolation.HIGH_WATERMARK:
                upper = high_watermark
            else:
                upper = end if isolation is FetchIsolation.LOG_END else last_stable
            with waiting(may_wait):
                records = log.read(offset, max_bytes, upper_offset=upper, min_one_batch=min_one_batch).records
                if records and aborted is not None:
                    aborted = self._aborted_transactions(offset, last_stable, records)
            if state is not None and follower is not None:
                self._update_follower_fetch_state(state, follower, offset, end, now_ms)
        return LogReadInfo(records, high_watermark, last_stable, start, end, diverging, aborted)

    def _replica_of(self, follower: FollowerFetch, current_leader_epoch: int) -> Replica:
        state = self._remote_replicas.get(follower.broker_id)
        if state is None:
            code = (
                ErrorCode.NOT_LEADER_OR_FOLLOWER
                if current_leader_epoch == NO_EPOCH
                else ErrorCode.UNKNOWN_LEADER_EPOCH  # it may know a reassignment that this broker does not
            )
            raise KafkaError(
                code,
                f"broker {follower.broker_id} is not a replica of {self.topic_partition} in leader epoch "
                f"{self.leader_epoch} and partition epoch {self.partition_epoch}",
            )
        return state

    def find_preferred_read_replica(
        self, rack: str, racks: Mapping[int, str | None], offset: int, now_ms: int
    ) -> int | None:
        """The follower that a consumer in `rack` should fetch from (KIP-392, Kafka's
        RackAwareReplicaSelector); None: this leader.

        `racks` has the brokers that the consumer can reach. Only followers in the ISR that have the offset
        are candidates: one that lags would hold the consumer back for as long as it is preferred.
        """
        if not rack or not self.is_leader or racks.get(self.broker_id) == rack:
            return None
        isr = self.isr
        near = [
            replica
            for replica in self._remote_replicas.values()
            if replica.broker_id in isr
            and racks.get(replica.broker_id) == rack
            and 0 <= replica.log_start_offset <= offset <= replica.log_end_offset
        ]
        if not near:
            return None
        best = max(
            near, key=lambda each: (each.log_end_offset, each.last_caught_up_ms - now_ms, -each.broker_id)
        )
        return best.broker_id

    def _divergence(self, offset: int, last_fetched_epoch: int) -> EpochEndOffset | None:
        end = self.last_offset_for_leader_epoch(last_fetched_epoch, only_leader=False)
        if end.is_unknown:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Could not find the end offset of the last fetched epoch {last_fetched_epoch} in "
                f"{self.topic_partition}",
            )
        if offset < self.log.log_start_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Received request for offset {offset} for partition {self.topic_partition}, but we only "
                f"have log segments in the range {self.log.log_start_offset} to {self.log.log_end_offset}",
            )
        if end.epoch < last_fetched_epoch or end.end_offset < offset:
            return end
        return None

    def _aborted_transactions(self, offset: int, last_stable: int, records: bytes) -> tuple[AbortedTxn, ...]:
        aborted = self.log.collect_aborted_transactions(offset, last_stable)
        if not aborted:
            return ()
        last: BatchHeader | None = None
        for _, header in iter_batches(records):
            last = header
        next_offset = offset if last is None else last.next_offset
        return tuple(txn for txn in aborted if txn.first_offset < next_offset)

    def last_offset_for_leader_epoch(
        self, epoch: int, *, current_leader_epoch: int = NO_EPOCH, only_leader: bool = True
    ) -> EpochEndOffset:
        """The greatest epoch up to `epoch` that this log has, and its end offset."""
        self.check_replica(current_leader_epoch, only_leader=only_leader)
        return EpochEndOffset(*self.log.end_offset_for_epoch(epoch))

    # The ISR and the high watermark

    def _update_follower_fetch_state(
        self, state: Replica, follower: FollowerFetch, offset: int, end_offset: int, now_ms: int
    ) -> None:
        before, start_before = state.log_end_offset, state.log_start_offset
        state.update_fetch_state(offset, follower.log_start_offset, end_offset, follower.broker_epoch, now_ms)
        self.maybe_expand_isr(state)
        moved = before != offset and self._maybe_increment_high_watermark(now_ms)
        # A follower that went back, as it lost records, may hold up others from now on.
        if moved or offset < before or state.log_start_offset != start_before:
            self._on_progress()

    def maybe_expand_isr(self, follower: Replica) -> None:
        if self._isr_state.pending is not None or follower.broker_id in self.isr:
            return
        start = self.leader_epoch_start_offset
        in_sync = start is not None and follower.log_end_offset >= max(self.log.high_watermark, start)
        if in_sync and self._listener.is_replica_isr_eligible(follower.broker_id, follower.broker_epoch):
            self._submit_alter_partition(self.isr | {follower.broker_id})

    def maybe_shrink_isr(self, now_ms: int) -> None:
        """Ask the controller to remove the followers that lag behind from the ISR."""
        if not self.is_leader or self._isr_state.pending is not None:
            return
        lagging = self.get_out_of_sync_replicas(now_ms)
        if lagging:
            self._submit_alter_partition(self.isr - lagging)

    def get_out_of_sync_replicas(self, now_ms: int) -> set[int]:
        """The followers in the ISR that have not been caught up for `replica.lag.time.max.ms`."""
        end = self.log.log_end_offset
        return {
            id
            for id in self.isr
            if id != self.broker_id
            and not self._remote_replicas[id].is_caught_up(end, self.replica_lag_max_ms, now_ms)
        }

    def is_followed_since(self, time_ms: int) -> bool:
        """Whether it leads, and each follower in the ISR has fetched since then: none of them had become the
        leader.
        """
        return self.is_leader and all(
            self._remote_replicas[id].last_fetch_ms >= time_ms for id in self.isr if id != self.broker_id
        )

    @property
    def has_lagging_follower(self) -> bool:
        """Whether it leads and a follower in the ISR does not have everything, so that it may have to leave
        the ISR.
        """
        if not self.is_leader:
            return False
        end = self.log.log_end_offset
        isr = self.isr
        return any(id in isr and each.log_end_offset != end for id, each in self._remote_replicas.items())

    def _submit_alter_partition(self, isr: frozenset[int]) -> None:
        members = tuple(sorted(isr))
        epochs = []
        for id in members:
            follower = self._remote_replicas.get(id)
            known = None if follower is None else follower.broker_epoch
            epochs.append(-1 if known is None else known)
        change = PendingPartitionChange(
            self.topic_partition,
            self.topic_id,
            self.leader_epoch,
            self.partition_epoch,
            members,
            tuple(epochs),
        )
        self._isr_state.prepare(change)
        self._listener.submit_alter_partition(self, change)

    def handle_alter_partition_update(
        self,
        change: PendingPartitionChange,
        isr: Iterable[int],
        leader_epoch: int,
        partition_epoch: int,
        now_ms: int,
    ) -> None:
        """Take the ISR of the controller's response to a change; an outdated response is ignored."""
        if self._isr_state.pending is not change or leader_epoch != self.leader_epoch:
            return
        if partition_epoch < self.partition_epoch:
            return
        isr = frozenset(isr)
        self._count_isr_change(len(isr))
        self._isr_state.reset(isr)
        if invariants.thorough:
            assert self.broker_id in self.isr, (self, change)
        self.partition_epoch = partition_epoch
        self._maybe_increment_high_watermark(now_ms)
        self._on_progress()

    def handle_alter_partition_error(self, change: PendingPartitionChange, error: ErrorCode) -> bool:
        """Handle an error of the controller's response to a change; True if it is to be sent again.

        If the error means that this broker's metadata is behind, the change stays pending until the metadata
        log brings the partition's new state.
        """
        self.statistics.failed_isr_updates += 1
        return self._isr_state.on_refused(change, error)

    def _count_isr_change(self, size: int) -> None:
        before = len(self._isr_state.isr)
        if size < before:
            self.statistics.isr_shrinks += 1
        elif size > before:
            self.statistics.isr_expands += 1

    def _maybe_increment_high_watermark(self, now_ms: int) -> bool:
        """Raise the high watermark to what all replicas of the maximal ISR have; True if it moved. (Kafka's
        maybeIncrementLeaderHW.)
        """
        log = self.log
        target = log.committable_offset
        if self._remote_replicas:
            if len(self.isr) < self.min_isr:
                return False
            end = log.log_end_offset
            for id, follower in self._remote_replicas.items():
                if follower.log_end_offset < target and (
                    id in self._isr_state.maximal_isr
                    or (
                        # It is about to join the ISR: a record committed without it could be lost.
                        follower.is_caught_up(end, self.replica_lag_max_ms, now_ms)
                        and self._listener.is_replica_isr_eligible(id, follower.broker_epoch)
                    )
                ):
                    target = follower.log_end_offset
        if target <= log.high_watermark:
            return False
        assert target <= log.log_end_offset, (self, target, log.log_end_offset)
        log.update_high_watermark(target)
        return True

    def follow_leader_offsets(self, leader_high_watermark: int, leader_log_start: int) -> None:
        """As a follower, take over the leader's high watermark and log start, as far as this log goes."""
        log = self.log
        before = log.high_watermark, log.log_start_offset
        log.update_high_watermark(min(leader_high_watermark, log.log_end_offset))
        if leader_log_start > log.log_start_offset:
            start = min(leader_log_start, log.high_watermark)
            log.maybe_increment_log_start_offset(start, "the leader has deleted the records below")
        if before != (log.high_watermark, log.log_start_offset):
            self._on_progress()

    # Deleting

    def delete_records_on_leader(self, offset: int, reason: str = "records were deleted by a client") -> int:
        """Delete the records below `offset` (-1: the high watermark); returns the offset that the log start
        of all replicas must reach.
        """
        self.check_leader()
        config = self.log.config
        if "delete" not in config.cleanup_policy and "compact" in config.cleanup_policy:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"Records of partition {self.topic_partition} can not be deleted due to the configured "
                "policy: cleanup.policy has no delete",
            )
        wanted = self.log.high_watermark if offset == DELETE_UP_TO_HIGH_WATERMARK else offset
        if wanted < 0:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"The offset {wanted} for partition {self.topic_partition} is not valid; -1 stands for "
                "the high watermark",
            )
        self.log.maybe_increment_log_start_offset(wanted, reason)
        self._on_progress()
        return wanted

    @property
    def low_watermark(self) -> int:
        """The lowest log start of all live replicas; DeleteRecords is done when it has reached the offset."""
        starts = [self.log.log_start_offset]
        starts += [
            follower.log_start_offset
            for follower in self._remote_replicas.values()
            if self._listener.is_replica_isr_eligible(follower.broker_id, -1)
        ]
        return min(starts)


def _first_header(data: Buffer) -> BatchHeader | None:
    """The header of the first batch of a request; None if it has none."""
    return next((header for _, header in iter_batches(data)), None)
