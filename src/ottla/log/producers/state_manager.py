"""The producers of a partition: which of them may append what, and which offsets are not yet stable.

`ProducerStateManager` maps each producer id to its `ProducerStateEntry`. An append goes in two steps, so
that a failed write leaves no trace: `analyze` checks the batches and returns what they would change (or finds
that they are duplicates), and after the log has taken them `apply` makes the change.

The open transactions determine the first unstable offset, which bounds what a `read_committed` reader may
see: a transaction is unstable from its first record until the high watermark has passed its marker, since a
marker that is not replicated may still be lost.

The manager holds no file and no clock. `UnifiedLog` keeps `map_end_offset` at the end of the log, lends it
the snapshot files (`ProducerSnapshots`) and replays the log from the snapshot that it reloads.

Invariants: `_txns` and `_ongoing` are in the order of first offsets; each producer with an open transaction
is in `_ongoing` once, and every entry of `_ongoing` is in `_txns`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from ottla.log.producers.snapshot import CorruptSnapshotError, ProducerSnapshots, encode_snapshot
from ottla.log.producers.state_entry import (
    SENTINEL_GUARD,
    BatchMetadata,
    CompletedTxn,
    LastRecord,
    ProducerAppendInfo,
    ProducerStateEntry,
    VerificationGuard,
    VerificationStateEntry,
)
from ottla.log.segment.segment import LogSegment
from ottla.log.segment.txn_index import AbortedTxn
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.batch import BatchHeader
from ottla.records.control import EndTransactionMarker, read_control_records
from ottla.records.types import NO_PRODUCER_ID
from ottla.records.validation import AppendOrigin
from ottla.runtime import invariants
from ottla.runtime.disk import Buffer

LATE_TRANSACTION_BUFFER_MS = 5 * 60 * 1000

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class ProducerStateManagerConfig:
    """The settings of the broker for producers and their transactions. All logs of a broker share one object,
    so that a change holds for all of them at once.
    """

    producer_id_expiration_ms: int = 86_400_000
    max_transaction_timeout_ms: int = 900_000
    transaction_verification: bool = True

    def update(self, other: ProducerStateManagerConfig) -> None:
        """Take over what may change while the broker runs."""
        self.producer_id_expiration_ms = other.producer_id_expiration_ms
        self.transaction_verification = other.transaction_verification


DEFAULT_PRODUCER_STATE_CONFIG = ProducerStateManagerConfig()


@dataclass(slots=True)
class ProducerAppend:
    """The changes of one append to the producers' states, or the batch of which it is a duplicate."""

    duplicate: BatchMetadata | None = None
    updated: dict[int, ProducerAppendInfo] = field(default_factory=dict)
    completed: list[CompletedTxn] = field(default_factory=list)
    # Producer ids whose verification the batches use up.
    verified: list[int] = field(default_factory=list)


class ProducerStateManager:
    """The producer state of one partition up to `map_end_offset`."""

    __slots__ = (
        "_completed",
        "_config",
        "_last_snapshot_offset",
        "_ongoing",
        "_partition",
        "_producers",
        "_txns",
        "_verifications",
        "loaded_at",
        "map_end_offset",
    )

    def __init__(
        self,
        partition: str,
        config: ProducerStateManagerConfig = DEFAULT_PRODUCER_STATE_CONFIG,
    ) -> None:
        self._partition = partition
        self._config = config
        self._producers: dict[int, ProducerStateEntry] = {}
        self._verifications: dict[int, VerificationStateEntry] = {}
        # First offset -> producer id, of all unstable transactions and of the undecided ones among them.
        self._txns: dict[int, int] = {}
        self._ongoing: dict[int, int] = {}
        # (last offset, first offset) of the decided transactions that are still unstable, by their markers.
        self._completed: deque[tuple[int, int]] = deque()
        # The state is that of the log up to here.
        self.map_end_offset = 0
        # The offset of the snapshot that the state was loaded from. A snapshot knows nothing of transactions
        # that end below it, also if the high watermark is below their markers.
        self.loaded_at = 0
        self._last_snapshot_offset = 0

    # Queries

    @property
    def active_producers(self) -> Mapping[int, ProducerStateEntry]:
        return MappingProxyType(self._producers)

    @property
    def is_empty(self) -> bool:
        return not self._producers and not self._txns

    def last_entry(self, producer_id: int) -> ProducerStateEntry | None:
        return self._producers.get(producer_id)

    def last_records_of_active_producers(self) -> dict[int, LastRecord]:
        return {producer_id: entry.last_record for producer_id, entry in self._producers.items()}

    def first_unstable_offset(self) -> int | None:
        """The first offset of a transaction that is undecided, or decided above the high watermark."""
        return next(iter(self._txns), None)

    def first_undecided_offset(self) -> int | None:
        return next(iter(self._ongoing), None)

    def has_late_transaction(self, now_ms: int) -> bool:
        """True if the oldest open transaction has outlived every timeout it can have: it hangs."""
        producer_id = next(iter(self._ongoing.values()), None)
        entry = self._producers.get(producer_id) if producer_id is not None else None
        if entry is None or entry.last_timestamp <= 0:
            return False
        return (
            now_ms - entry.last_timestamp
            > self._config.max_transaction_timeout_ms + LATE_TRANSACTION_BUFFER_MS
        )

    def has_ongoing_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        entry = self._producers.get(producer_id)
        return (
            entry is not None
            and entry.current_txn_first_offset is not None
            and entry.producer_epoch == producer_epoch
        )

    # Verification with the transaction coordinator (KIP-890)

    def maybe_start_verification(
        self, producer_id: int, sequence: int, epoch: int, *, supports_epoch_bump: bool, now_ms: int
    ) -> VerificationGuard:
        """The guard that the append has to present once the coordinator has confirmed the transaction; the
        sentinel if the transaction is open here already and needs no confirmation.
        """
        self._check_not_fenced(producer_id, epoch)
        if self.has_ongoing_transaction(producer_id, epoch):
            return SENTINEL_GUARD
        entry = self._verifications.get(producer_id)
        if entry is None:
            entry = VerificationStateEntry(now_ms, sequence, epoch, supports_epoch_bump=supports_epoch_bump)
            self._verifications[producer_id] = entry
        entry.observe(sequence, epoch)
        return entry.guard

    def verification_entry(self, producer_id: int) -> VerificationStateEntry | None:
        return self._verifications.get(producer_id)

    # An append

    def analyze(
        self,
        batches: Iterable[tuple[BatchHeader, EndTransactionMarker | None]],
        origin: AppendOrigin,
        *,
        guard: VerificationGuard = SENTINEL_GUARD,
        transaction_version: int | None = None,
    ) -> ProducerAppend:
        """Check the batches, with their final offsets, and say what they change. Changes nothing.

        A control batch comes with its marker; with None if compaction has left it empty. Raises KafkaError if
        a batch must not be written.
        """
        append = ProducerAppend()
        for batch, marker in batches:
            producer_id = batch.producer_id
            if producer_id == NO_PRODUCER_ID:
                continue
            if origin is AppendOrigin.CLIENT:
                known = self._producers.get(producer_id)
                duplicate = known.find_duplicate(batch) if known is not None else None
                if duplicate is not None:
                    return ProducerAppend(duplicate=duplicate)
            if origin is not AppendOrigin.REPLICATION and batch.is_transactional and not batch.is_control:
                self._check_verified(batch, guard)
            info = append.updated.get(producer_id)
            if info is None:
                info = append.updated[producer_id] = self._prepare(producer_id, origin)
            if not batch.is_control:
                info.append_data(batch)
            elif marker is not None:
                completed = info.append_marker(batch, marker, transaction_version)
                if completed is not None:
                    append.completed.append(completed)
            else:
                info.append_empty_control(batch)
            if batch.is_transactional and self._uses_up_verification(batch):
                append.verified.append(producer_id)
        return append

    def apply(self, append: ProducerAppend) -> list[AbortedTxn]:
        """Make the change; the log now holds the batches. Returns the entries for the transaction index.

        A transaction completed here is decided, but unstable until the high watermark has passed its marker.
        """
        started: list[tuple[int, int]] = []
        for producer_id, info in append.updated.items():
            entry = self._producers.get(producer_id)
            if entry is None:
                entry = self._producers[producer_id] = ProducerStateEntry(producer_id)
            info.apply_to(entry)
            started.extend((first_offset, producer_id) for first_offset in info.started_txns)
        if len(started) > 1:
            started.sort()
        for first_offset, producer_id in started:
            self._txns[first_offset] = producer_id
            self._ongoing[first_offset] = producer_id
        for producer_id in append.verified:
            self._verifications.pop(producer_id, None)
        aborted = [
            AbortedTxn(txn.producer_id, txn.first_offset, txn.last_offset, stable)
            for txn in append.completed
            for stable in [self._complete(txn)]
            if txn.is_aborted
        ]
        if invariants.thorough:
            self._check_transactions()
        return aborted

    def append_next(self, batch: BatchHeader) -> None:
        """Take in the next batch of a known producer without a transaction; the log now holds it."""
        entry = self._producers[batch.producer_id]
        delta = batch.last_offset - batch.base_offset
        entry.batches.append(
            BatchMetadata(batch.last_sequence, batch.last_offset, delta, batch.max_timestamp)
        )
        entry.packed = None
        entry.last_timestamp = batch.max_timestamp

    def _check_transactions(self) -> None:
        firsts = list(self._txns)
        assert firsts == sorted(firsts), f"{self._partition}: transactions out of order: {firsts}"
        assert self._ongoing.keys() <= self._txns.keys(), f"{self._partition}: {self._ongoing} {self._txns}"
        assert len(set(self._ongoing.values())) == len(self._ongoing), f"{self._partition}: {self._ongoing}"

    def replay(self, batches: Iterable[tuple[BatchHeader, EndTransactionMarker | None]]) -> list[AbortedTxn]:
        """Take in batches that are in the log already, in recovery or after a reload."""
        return self.apply(self.analyze(batches, AppendOrigin.REPLICATION))

    def _prepare(self, producer_id: int, origin: AppendOrigin) -> ProducerAppendInfo:
        entry = self._producers.get(producer_id) or ProducerStateEntry(producer_id)
        return ProducerAppendInfo(self._partition, entry, origin, self._verifications.get(producer_id))

    def _check_not_fenced(self, producer_id: int, epoch: int) -> None:
        entry = self._producers.get(producer_id)
        if entry is not None and epoch < entry.producer_epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"Epoch of producer {producer_id} in partition {self._partition} is {epoch}, which is "
                f"smaller than the last seen epoch {entry.producer_epoch}: another producer has taken over",
            )

    def _check_verified(self, batch: BatchHeader, guard: VerificationGuard) -> None:
        """Refuse a transactional batch unless its transaction is open here, or the coordinator has just
        confirmed it: otherwise no coordinator would ever end the transaction that the batch starts.
        """
        producer_id = batch.producer_id
        if self.has_ongoing_transaction(producer_id, batch.producer_epoch):
            return
        self._check_not_fenced(producer_id, batch.producer_epoch)
        if not self._config.transaction_verification:
            return
        entry = self._verifications.get(producer_id)
        if entry is None or guard is not entry.guard:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"Record was not part of an ongoing transaction: producer {producer_id} with epoch "
                f"{batch.producer_epoch} has none in partition {self._partition}; add the partition first",
            )

    def _uses_up_verification(self, batch: BatchHeader) -> bool:
        entry = self._verifications.get(batch.producer_id)
        if entry is None:
            return False
        # With version 2 the marker of the last transaction already carries the epoch of the next one, whose
        # verification may be on its way.
        return not (entry.supports_epoch_bump and batch.is_control and batch.producer_epoch == entry.epoch)

    def _complete(self, txn: CompletedTxn) -> int:
        """Mark the transaction as decided; the last stable offset at that moment."""
        if self._ongoing.pop(txn.first_offset, None) != txn.producer_id:
            raise ValueError(f"{self._partition}: {txn} was never begun")
        self._completed.append((txn.last_offset, txn.first_offset))
        return min(next(iter(self._ongoing), txn.last_offset + 1), txn.last_offset + 1)

    # Changes of the log's offsets

    def on_high_watermark_updated(self, high_watermark: int) -> None:
        """Drop the transactions whose marker is replicated: they are stable."""
        completed = self._completed
        while completed and completed[0][0] < high_watermark:
            del self._txns[completed.popleft()[1]]

    def on_log_start_offset_incremented(self, log_start_offset: int, latest_snapshot: int | None) -> None:
        self.on_high_watermark_updated(log_start_offset)
        self.map_end_offset = max(self.map_end_offset, log_start_offset)
        self._last_snapshot_offset = log_start_offset if latest_snapshot is None else latest_snapshot

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Forget everything; the log goes on empty at `offset`. The caller deletes the snapshots."""
        self._clear()
        self._last_snapshot_offset = 0
        self.map_end_offset = offset

    def truncate_and_reload(
        self, snapshots: ProducerSnapshots, log_start_offset: int, log_end_offset: int, now_ms: int
    ) -> None:
        """Go back to the newest snapshot at or below `log_end_offset`; the caller then replays the batches
        from `map_end_offset` on. The high watermark must not be below `log_end_offset`.
        """
        snapshots.delete_outside(log_start_offset, log_end_offset)
        if log_end_offset == self.map_end_offset:
            self.on_log_start_offset_incremented(log_start_offset, snapshots.latest)
            return
        self._clear()
        while (offset := snapshots.latest) is not None:
            try:
                entries = snapshots.load(offset)
            except CorruptSnapshotError as error:
                _log.warning("a producer snapshot is damaged and will be removed: %s", error)
                snapshots.delete(offset)
                continue
            self.load(entries, now_ms)
            self.loaded_at = offset
            break
        self._last_snapshot_offset = self.map_end_offset = log_start_offset if offset is None else offset

    def load(self, entries: Iterable[ProducerStateEntry], now_ms: int) -> None:
        """Add the entries of a snapshot, without those that have expired."""
        open_txns = []
        for entry in entries:
            if self._is_expired(entry, now_ms):
                continue
            self._producers[entry.producer_id] = entry
            if entry.current_txn_first_offset is not None:
                open_txns.append((entry.current_txn_first_offset, entry.producer_id))
        for first_offset, producer_id in sorted(open_txns):
            self._txns[first_offset] = producer_id
            self._ongoing[first_offset] = producer_id

    def adopt_unstable(self, before: ProducerStateManager) -> None:
        """Take over the transactions that are decided and unstable in `before`, the state at `loaded_at`."""
        unstable = {first: before._txns[first] for _, first in before._completed}
        self._txns = dict(sorted((unstable | self._txns).items()))
        self._completed.extendleft(reversed(before._completed))
        if invariants.thorough:
            self._check_transactions()

    # Snapshots and expiry

    def take_snapshot(self, snapshots: ProducerSnapshots, *, sync: bool = False) -> int | None:
        """Write a snapshot at `map_end_offset` if there is none yet; its offset, if one was written."""
        if self.map_end_offset <= self._last_snapshot_offset:
            return None
        snapshots.write(self.map_end_offset, self.snapshot(), sync=sync)
        self._last_snapshot_offset = self.map_end_offset
        return self.map_end_offset

    def snapshot(self) -> bytes:
        return encode_snapshot(self._producers.values())

    def remove_expired(self, now_ms: int) -> None:
        """Forget producers that were idle too long, unless a transaction is open, and stale verifications."""
        for producer_id in [id for id, entry in self._producers.items() if self._is_expired(entry, now_ms)]:
            del self._producers[producer_id]
        stale = [
            producer_id
            for producer_id, entry in self._verifications.items()
            if now_ms - entry.timestamp >= self._config.producer_id_expiration_ms
        ]
        for producer_id in stale:
            del self._verifications[producer_id]

    def _is_expired(self, entry: ProducerStateEntry, now_ms: int) -> bool:
        return (
            entry.current_txn_first_offset is None
            and now_ms - entry.last_timestamp >= self._config.producer_id_expiration_ms
        )

    def _clear(self) -> None:
        self._producers.clear()
        self._txns.clear()
        self._ongoing.clear()
        self._completed.clear()


def end_txn_marker(buffer: Buffer, at: int, header: BatchHeader) -> EndTransactionMarker | None:
    """The marker in a control batch; None if the batch is empty or its record is of another kind."""
    if not header.is_control or header.count == 0:
        return None
    value = read_control_records(buffer, at)[0].value
    return value if isinstance(value, EndTransactionMarker) else None


def with_markers(
    buffer: Buffer, batches: Sequence[BatchHeader]
) -> list[tuple[BatchHeader, EndTransactionMarker | None]]:
    """The batches that lie one after another in `buffer`."""
    result = []
    at = 0
    for header in batches:
        result.append((header, end_txn_marker(buffer, at, header) if header.is_control else None))
        at += header.size
    return result


def batches_between(
    segments: Sequence[LogSegment], start_offset: int, end_offset: int
) -> Iterator[tuple[BatchHeader, EndTransactionMarker | None]]:
    """The batches from `start_offset` to `end_offset`, by their headers only where that is enough."""
    for number, segment in enumerate(segments):
        if segment.base_offset >= end_offset:
            return
        if number + 1 < len(segments) and segments[number + 1].base_offset <= start_offset:
            continue
        found = segment.translate_offset(start_offset)
        if found is None:
            continue
        for position, header in segment.headers(found.position):
            if header.base_offset >= end_offset:
                return
            marker = None
            if header.is_control:
                marker = end_txn_marker(segment.read(position, header.size), 0, header)
            yield header, marker
