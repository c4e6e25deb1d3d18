"""One partition as this broker hosts it: leader or follower, in-sync set, high watermark.

A deterministic object over a :class:`~ottla.log.unified_log.UnifiedLog`. It is told what the metadata log
says (``become_leader``, ``become_follower``), serves what clients and followers ask, and tells its listener
when something moved that others may wait for, or when the in-sync set should change. Every request that names
a leader epoch has it checked first. Invariants: the high watermark never goes back within a leader epoch and
never passes the end of the log of any in-sync replica; a change of the in-sync set counts for the high
watermark as soon as it makes it stricter, and only when the controller has confirmed it if it makes it laxer.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import Final

from ottla.log.append import LogAppendInfo, UnexpectedAppendOffset
from ottla.log.producers.state_entry import SENTINEL_GUARD, VerificationGuard
from ottla.log.segment.txn_index import AbortedTxn
from ottla.log.unified_log import UnifiedLog
from ottla.metadata.image.entities import PartitionRegistration
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition
from ottla.records.batch import BatchHeader, iter_batches
from ottla.records.validation import AppendOrigin
from ottla.replication.follower import FollowerState
from ottla.replication.isr import InSyncSet
from ottla.replication.types import (
    NO_EPOCH,
    EpochEndOffset,
    FetchFrom,
    Isolation,
    IsrProposal,
    PartitionFetch,
    PartitionListener,
)
from ottla.runtime.disk import Buffer, waiting

_log = logging.getLogger(__name__)

DELETE_UP_TO_HIGH_WATERMARK: Final = -1
DEFAULT_REPLICA_LAG_MS: Final = 30_000


class Partition:
    __slots__ = (
        "_followers",
        "_in_sync",
        "_listener",
        "broker_id",
        "follows_in_sync",
        "leader_epoch",
        "leader_epoch_start_offset",
        "leader_id",
        "log",
        "partition_epoch",
        "refuses_since_ms",
        "replica_lag_max_ms",
        "replicas",
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
    ) -> None:
        self.topic_partition: Final = topic_partition
        self.topic_id: Final = topic_id
        self.log = log
        self.broker_id: Final = broker_id
        self.replica_lag_max_ms = replica_lag_max_ms
        self.replicas: tuple[int, ...] = ()
        self.leader_id: int | None = None
        self.leader_epoch = NO_EPOCH
        self.partition_epoch = -1
        # Where the leader's epoch began; a follower below it may not join the in-sync set. None on a
        # follower.
        self.leader_epoch_start_offset: int | None = None
        # Since when the log has taken nothing, as for lack of room; None if it takes records.
        self.refuses_since_ms: int | None = None
        self.follows_in_sync = False
        self._listener: Final = listener
        self._followers: dict[int, FollowerState] = {}
        self._in_sync: Final = InSyncSet()

    def __repr__(self) -> str:
        role = "leader" if self.is_leader else "follower"
        return f"<{role} of {self.topic_partition} epoch {self.leader_epoch} isr {sorted(self.isr)}>"

    @property
    def is_leader(self) -> bool:
        return self.leader_id == self.broker_id

    @property
    def isr(self) -> frozenset[int]:
        """The in-sync set as the controller confirmed it; empty on a follower."""
        return self._in_sync.confirmed

    @property
    def followers(self) -> Collection[FollowerState]:
        return self._followers.values()

    @property
    def pending_proposal(self) -> IsrProposal | None:
        return self._in_sync.pending

    @property
    def min_isr(self) -> int:
        """``min.insync.replicas``, but never more than there are replicas."""
        return min(self.log.config.min_insync_replicas, len(self._followers) + 1)

    @property
    def is_under_min_isr(self) -> bool:
        return self.is_leader and len(self.isr) < self.min_isr

    # Roles

    def become_leader(self, registration: PartitionRegistration, now_ms: int) -> bool:
        """Lead in the registration's epoch; True if this broker was not the leader before."""
        if registration.partition_epoch < self.partition_epoch:
            return False
        was_leader = self.is_leader
        new_epoch = registration.leader_epoch > self.leader_epoch
        self._assign(registration.replicas, registration.isr, leader=True)
        end = self.log.log_end_offset
        if new_epoch:
            # Followers may hold records of epochs that this log never had; an entry of its own lets them find
            # out where to cut.
            self.log.assign_epoch_start_offset(registration.leader_epoch, end)
            for follower in self._followers.values():
                follower.reset(
                    end, new_leader=not was_leader, in_sync=follower.broker_id in self.isr, now_ms=now_ms
                )
            self.leader_epoch = registration.leader_epoch
            self.leader_epoch_start_offset = end
            self.refuses_since_ms = None
        self.partition_epoch = registration.partition_epoch
        self.leader_id = self.broker_id
        if self._advance_high_watermark(now_ms) or new_epoch:
            self._listener.partition_progressed(self)
        return not was_leader

    def become_follower(self, registration: PartitionRegistration) -> bool:
        """Follow; True if the leader epoch is new, so that fetching has to start over."""
        if registration.partition_epoch < self.partition_epoch:
            return False
        new_epoch = registration.leader_epoch > self.leader_epoch
        self.leader_id = registration.leader if registration.leader >= 0 else None
        self.leader_epoch = registration.leader_epoch
        self.leader_epoch_start_offset = None
        self.refuses_since_ms = None
        self.follows_in_sync = self.broker_id in registration.isr
        self.partition_epoch = registration.partition_epoch
        self._assign(registration.replicas, (), leader=False)
        self._listener.partition_progressed(self)
        return new_epoch

    def resign(self) -> None:
        """Give up the partition: it was deleted, or its directory failed. Whoever waits is told."""
        self.leader_id = None
        self.leader_epoch_start_offset = None
        self._assign((), (), leader=False)
        self._listener.partition_progressed(self)

    def _assign(self, replicas: Iterable[int], isr: Iterable[int], *, leader: bool) -> None:
        self.replicas = tuple(replicas)
        self._in_sync.reset(isr)
        if leader:
            known = self._followers
            self._followers = {
                id: known.get(id) or FollowerState(id) for id in self.replicas if id != self.broker_id
            }
        else:
            self._followers = {}

    # Checks

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Raise unless the caller knows the leader epoch that this broker knows; -1 asks for no check."""
        if current_leader_epoch == NO_EPOCH or current_leader_epoch == self.leader_epoch:
            return
        if current_leader_epoch < self.leader_epoch:
            raise KafkaError(
                ErrorCode.FENCED_LEADER_EPOCH,
                f"{self.topic_partition}: leader epoch {current_leader_epoch} is over; now it is "
                f"{self.leader_epoch}",
            )
        raise KafkaError(
            ErrorCode.UNKNOWN_LEADER_EPOCH,
            f"{self.topic_partition}: leader epoch {current_leader_epoch} is not known here yet, "
            f"only {self.leader_epoch}",
        )

    def check_leader(self, current_leader_epoch: int = NO_EPOCH) -> None:
        self.check_epoch(current_leader_epoch)
        if not self.is_leader:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"broker {self.broker_id} does not lead {self.topic_partition}; broker {self.leader_id} does",
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

    def append(
        self,
        data: Buffer,
        *,
        now_ms: int,
        acks: int = -1,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        guard: VerificationGuard = SENTINEL_GUARD,
        transaction_version: int | None = None,
        inline_flush: bool = True,
    ) -> LogAppendInfo:
        """Append as leader. With acks=all, NOT_ENOUGH_REPLICAS before anything is written if too few are in
        sync. A flush that is left to the caller is to be followed by ``flushed``.
        """
        if self.leader_id != self.broker_id:
            self.check_leader()
        if acks == -1 and len(self._in_sync.confirmed) < self.min_isr:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self.topic_partition} has {len(self.isr)} replica(s) in sync, on brokers "
                f"{sorted(self.isr)}; min.insync.replicas is {self.min_isr}",
            )
        try:
            info = self.log.append_as_leader(
                data,
                self.leader_epoch,
                now_ms=now_ms,
                origin=origin,
                guard=guard,
                transaction_version=transaction_version,
                inline_flush=inline_flush,
            )
        except KafkaError as error:
            self._refused(error, now_ms)
            if error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self.refuses_since_ms is not None:
                # It follows on one that found no room. A producer that is told of a gap begins a new epoch,
                # in which what is here already would be written again.
                raise KafkaError(
                    ErrorCode.KAFKA_STORAGE_ERROR, f"{self.topic_partition}: what comes before found no room"
                ) from error
            raise
        self.refuses_since_ms = None
        self._advance_high_watermark(now_ms)
        self._listener.partition_progressed(self)
        return info

    def flushed(self, now_ms: int) -> None:
        """The log was flushed: what had to wait for that may be committed."""
        if self.is_leader and self._advance_high_watermark(now_ms):
            self._listener.partition_progressed(self)

    def replicated(self, required_offset: int) -> ErrorCode | None:
        """How a produce with acks=all stands that ends at ``required_offset``; None: wait."""
        if not self.is_leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self.log.high_watermark < required_offset:
            return None
        # The records are committed; but the in-sync set may have shrunk since they were appended.
        if len(self._in_sync.maximal) < self.min_isr:
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return ErrorCode.NONE

    def append_as_follower(self, data: Buffer, leader_epoch: int, *, now_ms: int) -> LogAppendInfo:
        """Append what the leader sent, as it is.

        An empty log may begin in the middle of a batch, where the leader deleted records up to there. The
        batch comes whole, so the files begin with it, and the log start stays where it is.
        """
        try:
            info = self._append_as_follower(data, leader_epoch, now_ms)
        except KafkaError as error:
            self._refused(error, now_ms)
            raise
        self.refuses_since_ms = None
        return info

    def _refused(self, error: KafkaError, now_ms: int) -> None:
        if error.code is ErrorCode.KAFKA_STORAGE_ERROR and self.refuses_since_ms is None:
            self.refuses_since_ms = now_ms

    def _append_as_follower(self, data: Buffer, leader_epoch: int, now_ms: int) -> LogAppendInfo:
        log = self.log
        try:
            return log.append_as_follower(data, leader_epoch, now_ms=now_ms)
        except UnexpectedAppendOffset as error:
            start = log.log_start_offset
            if not (log.log_end_offset == start and error.first_offset < start <= error.last_offset):
                raise
            log.truncate_fully_and_start_at(error.first_offset, start)
            return log.append_as_follower(data, leader_epoch, now_ms=now_ms)

    # Fetching

    def fetch(
        self,
        offset: int,
        max_bytes: int,
        *,
        isolation: Isolation,
        now_ms: int,
        current_leader_epoch: int = NO_EPOCH,
        last_fetched_epoch: int = NO_EPOCH,
        follower: FetchFrom | None = None,
        only_leader: bool = True,
        min_one_batch: bool = True,
        may_wait: bool = True,
    ) -> PartitionFetch:
        """Read from ``offset``. A follower's fetch also tells how far it has come. Unless it ``may_wait`` for
        the disk, NotInMemory where it would have to; then nothing has changed.

        ``last_fetched_epoch`` is the epoch of the last record the reader has: where this log ended that
        epoch earlier, or never had it, the answer is the diverging epoch, and no records.
        """
        self.check_replica(current_leader_epoch, only_leader=only_leader)
        state = None if follower is None else self._follower(follower, current_leader_epoch)
        log = self.log
        high_watermark, end = log.high_watermark, log.log_end_offset
        last_stable, start = log.last_stable_offset, log.log_start_offset
        diverging = None
        records = b""
        if last_fetched_epoch != NO_EPOCH:
            diverging = self._divergence(offset, last_fetched_epoch)
        if diverging is None:
            if isolation is Isolation.HIGH_WATERMARK:
                upper = high_watermark
            else:
                upper = end if isolation is Isolation.LOG_END else last_stable
            with waiting(may_wait):
                records = log.read(offset, max_bytes, upper_offset=upper, min_one_batch=min_one_batch).records
            if state is not None and follower is not None:
                self._followed(state, follower, offset, end, now_ms)
        aborted = None
        if isolation is Isolation.COMMITTED:
            aborted = self._aborted(offset, last_stable, records)
        return PartitionFetch(records, high_watermark, last_stable, start, end, diverging, aborted)

    def _follower(self, follower: FetchFrom, current_leader_epoch: int) -> FollowerState:
        state = self._followers.get(follower.broker_id)
        if state is None:
            code = (
                ErrorCode.NOT_LEADER_OR_FOLLOWER
                if current_leader_epoch == NO_EPOCH
                else ErrorCode.UNKNOWN_LEADER_EPOCH  # it may know of a reassignment that this broker does not
            )
            raise KafkaError(
                code,
                f"broker {follower.broker_id} is not a replica of {self.topic_partition} in leader epoch "
                f"{self.leader_epoch} and partition epoch {self.partition_epoch}",
            )
        return state

    def _divergence(self, offset: int, last_fetched_epoch: int) -> EpochEndOffset | None:
        end = self.offset_for_leader_epoch(last_fetched_epoch, only_leader=False)
        if end.is_unknown:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.topic_partition} knows nothing of the last fetched epoch {last_fetched_epoch}",
            )
        if offset < self.log.log_start_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.topic_partition} has no offset {offset}, only {self.log.log_start_offset} to "
                f"{self.log.log_end_offset}",
            )
        if end.epoch < last_fetched_epoch or end.end_offset < offset:
            return end
        return None

    def _aborted(self, offset: int, last_stable: int, records: bytes) -> tuple[AbortedTxn, ...]:
        aborted = self.log.aborted_transactions(offset, last_stable) if records else []
        if not aborted:
            return ()
        last: BatchHeader | None = None
        for _, header in iter_batches(records):
            last = header
        next_offset = offset if last is None else last.next_offset
        return tuple(txn for txn in aborted if txn.first_offset < next_offset)

    def offset_for_leader_epoch(
        self, epoch: int, *, current_leader_epoch: int = NO_EPOCH, only_leader: bool = True
    ) -> EpochEndOffset:
        """The greatest epoch up to ``epoch`` that this log has, and where it ends."""
        self.check_replica(current_leader_epoch, only_leader=only_leader)
        return EpochEndOffset(*self.log.end_offset_for_epoch(epoch))

    # The in-sync set and the high watermark

    def _followed(
        self, state: FollowerState, follower: FetchFrom, offset: int, end_offset: int, now_ms: int
    ) -> None:
        before, start_before = state.log_end_offset, state.log_start_offset
        state.fetched(offset, follower.log_start_offset, end_offset, follower.broker_epoch, now_ms)
        self._maybe_expand_isr(state)
        moved = before != offset and self._advance_high_watermark(now_ms)
        if moved or state.log_start_offset != start_before:
            self._listener.partition_progressed(self)

    def _maybe_expand_isr(self, follower: FollowerState) -> None:
        if self._in_sync.pending is not None or follower.broker_id in self.isr:
            return
        start = self.leader_epoch_start_offset
        in_sync = start is not None and follower.log_end_offset >= max(self.log.high_watermark, start)
        if in_sync and self._listener.may_join_isr(follower.broker_id, follower.broker_epoch):
            self._propose(self.isr | {follower.broker_id})

    def shrink_isr(self, now_ms: int) -> None:
        """Propose to drop the followers that have not been caught up for ``replica.lag.time.max.ms``."""
        if not self.is_leader or self._in_sync.pending is not None:
            return
        end = self.log.log_end_offset
        lagging = {
            id
            for id in self.isr
            if id != self.broker_id
            and not self._followers[id].is_caught_up(end, self.replica_lag_max_ms, now_ms)
        }
        if lagging:
            self._propose(self.isr - lagging)

    def _propose(self, isr: frozenset[int]) -> None:
        members = tuple(sorted(isr))
        epochs = []
        for id in members:
            follower = self._followers.get(id)
            known = None if follower is None else follower.broker_epoch
            epochs.append(-1 if known is None else known)
        proposal = IsrProposal(
            self.topic_partition,
            self.topic_id,
            self.leader_epoch,
            self.partition_epoch,
            members,
            tuple(epochs),
        )
        self._in_sync.propose(proposal)
        self._listener.isr_proposed(self, proposal)

    def isr_altered(
        self, proposal: IsrProposal, isr: Iterable[int], leader_epoch: int, partition_epoch: int, now_ms: int
    ) -> None:
        """The controller's answer to a proposal; one that is out of date is ignored."""
        if self._in_sync.pending is not proposal or leader_epoch != self.leader_epoch:
            return
        if partition_epoch < self.partition_epoch:
            return
        self._in_sync.reset(isr)
        self.partition_epoch = partition_epoch
        if self._advance_high_watermark(now_ms):
            self._listener.partition_progressed(self)

    def isr_refused(self, proposal: IsrProposal, error: ErrorCode) -> bool:
        """The controller refused a proposal; True if it is to be sent again.

        Where the refusal says that this broker is behind, the proposal stays pending until the metadata log
        tells more.
        """
        return self._in_sync.refused(proposal, error)

    def _advance_high_watermark(self, now_ms: int) -> bool:
        """Raise the high watermark to what all that count have; True if it moved."""
        log = self.log
        target = log.committable_offset
        if self._followers:
            if len(self.isr) < self.min_isr:
                return False
            end = log.log_end_offset
            for id, follower in self._followers.items():
                if follower.log_end_offset < target and (
                    id in self._in_sync.maximal
                    or (
                        # It is about to join: committing without it now could mean committing it away.
                        follower.is_caught_up(end, self.replica_lag_max_ms, now_ms)
                        and self._listener.may_join_isr(id, follower.broker_epoch)
                    )
                ):
                    target = follower.log_end_offset
        if target <= log.high_watermark:
            return False
        log.update_high_watermark(target)
        return True

    def followed(self, leader_high_watermark: int, leader_log_start: int) -> None:
        """As a follower: what the leader says is committed and has deleted, as far as this log goes."""
        log = self.log
        before = log.high_watermark, log.log_start_offset
        log.update_high_watermark(min(leader_high_watermark, log.log_end_offset))
        if leader_log_start > log.log_start_offset:
            start = min(leader_log_start, log.high_watermark)
            log.increment_log_start_offset(start, "the leader has deleted what is below")
        if before != (log.high_watermark, log.log_start_offset):
            self._listener.partition_progressed(self)

    # Deleting

    def delete_records(self, offset: int) -> int:
        """Delete the records below ``offset`` (-1: the high watermark); the offset that all replicas must
        reach.
        """
        self.check_leader()
        config = self.log.config
        if "delete" not in config.cleanup_policy and "compact" in config.cleanup_policy:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"records of {self.topic_partition} can be deleted only where cleanup.policy has delete",
            )
        wanted = self.log.high_watermark if offset == DELETE_UP_TO_HIGH_WATERMARK else offset
        if wanted < 0:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"records of {self.topic_partition} cannot be deleted before offset {wanted}, "
                "only before -1 (all) or 0 and above",
            )
        self.log.increment_log_start_offset(wanted, "records were deleted by a client")
        self._listener.partition_progressed(self)
        return wanted

    @property
    def low_watermark(self) -> int:
        """The lowest log start of all replicas that are alive: DeleteRecords is done when it has moved."""
        starts = [self.log.log_start_offset]
        starts += [
            follower.log_start_offset
            for follower in self._followers.values()
            if self._listener.may_join_isr(follower.broker_id, -1)
        ]
        return min(starts)
