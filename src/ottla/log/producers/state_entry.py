"""The state of one producer id on a partition, and the rules that a new batch of that producer must pass.

A producer numbers its records per partition, so that the leader can recognise a duplicate (answered with the
offsets of the first time), a gap (refused), and a zombie by its epoch (fenced). `ProducerStateEntry` keeps
the epoch, the last five batches and the open transaction. `ProducerAppendInfo` collects what the
batches of one append would change and checks each of them against the entry and against its predecessors;
nothing is changed before the append has reached the log.

Invariant: the batches of an entry are all of its current epoch, in the order of the log, at most five.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.batch import BatchHeader
from ottla.records.control import ControlType, EndTransactionMarker
from ottla.records.types import NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP
from ottla.records.validation import AppendOrigin

MAX_SEQUENCE = 0x7FFF_FFFF
BATCHES_TO_RETAIN = 5

_log = logging.getLogger(__name__)


class BatchMetadata(NamedTuple):
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        # Sequences wrap from 2^31 - 1 to 0 and never become negative.
        return (self.last_sequence - self.offset_delta) & MAX_SEQUENCE

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class CompletedTxn(NamedTuple):
    """A transaction that its marker at `last_offset` has ended."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


class LastRecord(NamedTuple):
    """The batch of a producer that compaction must keep: the one that ends at `last_data_offset`, or, where
    no data of the epoch is known, the marker with this epoch.
    """

    last_data_offset: int | None
    producer_epoch: int


class VerificationGuard:
    """Proof that one verification of one transaction took place. Compared by identity alone."""

    __slots__ = ()


SENTINEL_GUARD = VerificationGuard()
"""No verification was needed, or none was made."""


class VerificationStateEntry:
    """A transaction that is being verified with its coordinator and has not yet written here.

    While a lower sequence waits for its verification, a higher one must not be written, or the lower one
    could never be written in order; hence `lowest_sequence`.
    """

    __slots__ = ("epoch", "guard", "lowest_sequence", "supports_epoch_bump", "timestamp")

    def __init__(self, timestamp: int, sequence: int, epoch: int, *, supports_epoch_bump: bool) -> None:
        self.timestamp = timestamp
        self.guard = VerificationGuard()
        self.lowest_sequence = sequence
        self.epoch = epoch
        self.supports_epoch_bump = supports_epoch_bump

    def observe(self, sequence: int, epoch: int) -> None:
        if epoch > self.epoch:
            self.epoch = epoch
            self.lowest_sequence = sequence
        elif epoch == self.epoch and sequence < self.lowest_sequence:
            self.lowest_sequence = sequence


class ProducerStateEntry:
    """The state of one producer id on one partition."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "current_txn_first_offset",
        "last_timestamp",
        "packed",
        "producer_epoch",
        "producer_id",
    )

    def __init__(
        self,
        producer_id: int,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        coordinator_epoch: int = -1,
        last_timestamp: int = NO_TIMESTAMP,
        current_txn_first_offset: int | None = None,
        batches: Iterable[BatchMetadata] = (),
    ) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        # The epoch of the coordinator of the last marker. A coordinator of an older epoch is a zombie.
        self.coordinator_epoch = coordinator_epoch
        # The timestamp of the last batch or marker, from which the expiration counts.
        self.last_timestamp = last_timestamp
        self.current_txn_first_offset = current_txn_first_offset
        self.batches: deque[BatchMetadata] = deque(batches, BATCHES_TO_RETAIN)
        # As a snapshot has it, until it changes: most producers are idle from one snapshot to the next.
        self.packed: bytes | None = None

    @property
    def is_empty(self) -> bool:
        """True if no batch of the current epoch is known: a new producer, or a marker came last."""
        return not self.batches

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_data_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else -1

    @property
    def last_offset_delta(self) -> int:
        return self.batches[-1].offset_delta if self.batches else 0

    @property
    def last_record(self) -> LastRecord:
        return LastRecord(self.batches[-1].last_offset if self.batches else None, self.producer_epoch)

    def find_duplicate(self, batch: BatchHeader) -> BatchMetadata | None:
        """The remembered batch with exactly these sequences, if the batch was written before."""
        if batch.producer_epoch != self.producer_epoch:
            return None
        last_sequence = batch.last_sequence
        for known in self.batches:
            if known.last_sequence == last_sequence and known.first_sequence == batch.base_sequence:
                return known
        return None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ProducerStateEntry):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__ if name != "packed")

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return (
            f"ProducerStateEntry(producer_id={self.producer_id}, producer_epoch={self.producer_epoch}, "
            f"coordinator_epoch={self.coordinator_epoch}, last_timestamp={self.last_timestamp}, "
            f"current_txn_first_offset={self.current_txn_first_offset}, batches={list(self.batches)})"
        )


class ProducerAppendInfo:
    """The changes of one append to the state of one producer.

    The origin of a batch decides what is checked: epoch and sequence of a client's batch, the epoch of a
    coordinator's, which has no sequence, and nothing of a batch that a leader has accepted.
    """

    __slots__ = (
        "_base",
        "_origin",
        "_partition",
        "_verification",
        "batches",
        "coordinator_epoch",
        "current_txn_first_offset",
        "last_timestamp",
        "producer_epoch",
        "producer_id",
        "started_txns",
    )

    def __init__(
        self,
        partition: str,
        entry: ProducerStateEntry,
        origin: AppendOrigin,
        verification: VerificationStateEntry | None,
    ) -> None:
        self._partition = partition
        self._base = entry
        self._origin = origin
        self._verification = verification
        self.producer_id = entry.producer_id
        self.producer_epoch = entry.producer_epoch
        self.coordinator_epoch = entry.coordinator_epoch
        self.last_timestamp = entry.last_timestamp
        self.current_txn_first_offset = entry.current_txn_first_offset
        self.batches: list[BatchMetadata] = []
        self.started_txns: list[int] = []

    def append_data(self, batch: BatchHeader) -> None:
        epoch = batch.producer_epoch
        self._check_epoch(batch, must_exceed=False)
        if self._origin is AppendOrigin.CLIENT:
            self._check_sequence(batch)
            self._verification = None  # it was about the first batch of the transaction
        if self.current_txn_first_offset is not None and not batch.is_transactional:
            self._refuse(
                ErrorCode.INVALID_TXN_STATE,
                f"Expected transactional write from {self._where(batch)}: the producer has had a transaction "
                f"open since offset {self.current_txn_first_offset}, end it first",
            )
        if epoch != self.producer_epoch:
            self.batches.clear()
            self.producer_epoch = epoch
        delta = batch.last_offset - batch.base_offset
        self.batches.append(BatchMetadata(batch.last_sequence, batch.last_offset, delta, batch.max_timestamp))
        self.last_timestamp = batch.max_timestamp
        if batch.is_transactional and self.current_txn_first_offset is None:
            self.current_txn_first_offset = batch.base_offset
            self.started_txns.append(batch.base_offset)

    def append_marker(
        self, batch: BatchHeader, marker: EndTransactionMarker, transaction_version: int | None
    ) -> CompletedTxn | None:
        """Take the marker in; None if there was no transaction here for it to end.

        From version 2 on the coordinator raises the epoch with every end of a transaction, so a marker that
        does not exceed the known epoch belongs to an earlier transaction and must not end this one.
        """
        if transaction_version is None and self._origin is not AppendOrigin.REPLICATION:
            raise ValueError(f"the marker of {self._where(batch)} needs the version of its transaction")
        self._check_epoch(batch, must_exceed=(transaction_version or 0) >= 2)
        if marker.coordinator_epoch < self.coordinator_epoch:
            self._refuse(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"Invalid coordinator epoch for {self._where(batch)}: {marker.coordinator_epoch} (zombie), "
                f"{self.coordinator_epoch} (current)",
            )
        completed = None
        if self.current_txn_first_offset is not None:
            completed = CompletedTxn(
                self.producer_id,
                self.current_txn_first_offset,
                batch.base_offset,
                marker.type is ControlType.ABORT,
            )
        if batch.producer_epoch != self.producer_epoch:
            self.batches.clear()
            self.producer_epoch = batch.producer_epoch
        self.coordinator_epoch = marker.coordinator_epoch
        self.last_timestamp = batch.max_timestamp
        self.current_txn_first_offset = None
        return completed

    def append_empty_control(self, batch: BatchHeader) -> None:
        """Take in a marker that compaction has emptied: it was kept for its epoch, which fences zombies."""
        if batch.producer_epoch > self.producer_epoch:
            self.batches.clear()
            self.producer_epoch = batch.producer_epoch
        self.last_timestamp = max(self.last_timestamp, batch.max_timestamp)

    def apply_to(self, entry: ProducerStateEntry) -> None:
        # A follower takes over what its leader has accepted; everything else has passed `_check_epoch`.
        assert self.producer_epoch >= entry.producer_epoch or self._origin is AppendOrigin.REPLICATION, (
            f"{self._partition}: the epoch of producer {self.producer_id} goes back from "
            f"{entry.producer_epoch} to {self.producer_epoch}"
        )
        if entry.producer_epoch != self.producer_epoch:
            entry.batches.clear()
            entry.producer_epoch = self.producer_epoch
        entry.batches.extend(self.batches)
        entry.packed = None
        entry.coordinator_epoch = self.coordinator_epoch
        entry.last_timestamp = self.last_timestamp
        entry.current_txn_first_offset = self.current_txn_first_offset

    def _check_epoch(self, batch: BatchHeader, *, must_exceed: bool) -> None:
        epoch = batch.producer_epoch
        known = self.producer_epoch
        if epoch > known or (epoch == known and not must_exceed):
            return
        if epoch == known and self.current_txn_first_offset is None:
            # The same marker once more: its response was lost, or a new coordinator could not know. Writing
            # it again does no harm; a refusal would make the coordinator try again and again.
            _log.info("the marker of %s repeats the end of a transaction", self._where(batch))
            return
        self._refuse(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"Epoch of {self._where(batch)} is {epoch}, which is "
            f"{'not greater' if must_exceed else 'smaller'} than the last seen epoch {known}",
        )

    def _check_sequence(self, batch: BatchHeader) -> None:
        base = self._base
        sequence = batch.base_sequence
        if self._verification is not None:
            if self._verification.supports_epoch_bump and sequence != 0 and base.is_empty:
                raise KafkaError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"Invalid sequence number for {self._where(batch)}: {sequence} (incoming seq. number), "
                    "expected 0, since the partition has no batch of this producer epoch",
                )
            if sequence > self._verification.lowest_sequence:
                raise KafkaError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"Out of order sequence number for {self._where(batch)}: {sequence} (incoming seq. "
                    f"number), {self._verification.lowest_sequence} (earliest seen sequence, unwritten)",
                )
        if batch.producer_epoch != self.producer_epoch:
            # A producer that the partition has never seen, or no longer knows, may begin anywhere.
            if sequence != 0 and self.producer_epoch != NO_PRODUCER_EPOCH:
                raise KafkaError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"Invalid sequence number for new epoch of {self._where(batch)}: "
                    f"{batch.producer_epoch} (request epoch), {sequence} (seq. number), "
                    f"{self.producer_epoch} (current producer epoch)",
                )
            return
        if self.batches:
            last = self.batches[-1].last_sequence
        elif batch.producer_epoch == base.producer_epoch:
            last = base.last_sequence
        else:
            last = NO_SEQUENCE
        if base.producer_epoch != NO_PRODUCER_EPOCH and sequence != (last + 1) & MAX_SEQUENCE:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Out of order sequence number for {self._where(batch)}: {sequence} (incoming seq. number), "
                f"{last} (current end sequence number)",
            )

    def _refuse(self, code: ErrorCode, message: str) -> None:
        if self._origin is not AppendOrigin.REPLICATION:
            raise KafkaError(code, message)
        _log.warning("%s (taken over, as the leader has accepted it)", message)

    def _where(self, batch: BatchHeader) -> str:
        return f"producer {self.producer_id} at offset {batch.base_offset} in partition {self._partition}"
