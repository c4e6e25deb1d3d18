"""A transaction coordinator in a harness: a virtual clock, a log in memory, and requests in one line each.

`TransactionHarness` does what the runtime does, without asyncio: an event's records are encoded, kept as the
log, decoded and replayed, and its answers are collected. Markers stay in `markers` until `confirm` says that
they are written. With `fail_writes` a write is refused as if replicas were missing. `reload` builds another
shard from the log alone, as after a restart, with the coordinator's next epoch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ottla.coordinator.runtime.effects import Effects, EventTime, ProducerIdAndEpoch, ReplayedRecord
from ottla.coordinator.transaction.config import TransactionConfig, TransactionSettings
from ottla.coordinator.transaction.requests import (
    AbortTimedOut,
    AddPartitions,
    EndTransaction,
    Initialized,
    InitProducerId,
    MarkersWritten,
    MissingInput,
    NewTransactionSettings,
    ProducerIdWanted,
    VerifyPartitions,
    WriteMarkers,
)
from ottla.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from ottla.coordinator.transaction.transaction_metadata import TransactionMetadata, TransactionState
from ottla.protocol.coordinator_records import encode_key, encode_value
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition
from ottla.protocol.transaction_state_records import RECORDS, TransactionLogValue

TXN = "txn"
WALL_MS = 1_700_000_000_000
A = TopicPartition("a", 0)
B = TopicPartition("b", 1)
_NO_ANSWER = object()


class TransactionHarness:
    def __init__(self, config: TransactionConfig | None = None, *, version: int = 2) -> None:
        self.settings = TransactionSettings(config or TransactionConfig(), version)
        self.log: list[tuple[bytes, bytes | None]] = []
        self.clock_error_ms = 0
        self.now = EventTime(WALL_MS, 0)
        self.epoch = 0
        self.markers: list[WriteMarkers] = []
        self.fail_writes = False
        self.fresh_ids = iter(range(1000, 10_000))
        self.shard = TransactionCoordinator(self.settings, self.epoch)
        self._run(self.shard.on_loaded(self.now))

    def __getitem__(self, transactional_id: str) -> TransactionMetadata:
        return self.shard.transactions[transactional_id]

    @property
    def state(self) -> TransactionState:
        return self[TXN].state

    @property
    def client(self) -> ProducerIdAndEpoch:
        return self[TXN].client

    # The runtime's part

    def submit(self, request: Any) -> Any:
        """The answer; an error is raised. A fresh producer id is there as soon as one is asked for."""
        answer = self._event(request)
        if answer is MissingInput.PRODUCER_ID:
            answer = self._event(replace(request, fresh_id=next(self.fresh_ids)))
        if isinstance(answer, KafkaError):
            raise answer
        return answer

    def code(self, request: Any) -> ErrorCode:
        """The error that a request is answered with, or NONE."""
        try:
            self.submit(request)
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE

    def _event(self, request: Any) -> Any:
        token = object()
        try:
            effects = self.shard.handle(token, request, self.now)
        except KafkaError as error:
            return error
        replies = self._run(effects)
        return next((answer for to, answer in replies if to is token), _NO_ANSWER)

    def _run(self, effects: Effects) -> list[tuple[Any, Any]]:
        if effects.records and self.fail_writes:
            error = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the replicas are gone")
            if effects.on_failed is not None:
                self._run(effects.on_failed(error, self.now))
            return [(token, error) for token, _ in effects.replies]
        for record in effects.records:
            value = None if record.value is None else encode_value(record.value, record.version)
            self.log.append((encode_key(record.key), value))
            self._replay(len(self.log) - 1)
        for send in effects.sends:
            if isinstance(send, WriteMarkers):
                self.markers.append(send)
            else:
                assert isinstance(send, ProducerIdWanted)
                self._event(AbortTimedOut(send.transactional_id, send.writer, next(self.fresh_ids)))
        if effects.on_applied is not None:
            effects.on_applied(self.now)
        return effects.replies

    def _replay(self, offset: int) -> None:
        key, value = RECORDS.decode(*self.log[offset])
        self.shard.replay(ReplayedRecord(key, value, offset, self.now.wall_ms))

    def reload(self) -> None:
        self.epoch += 1
        self.markers.clear()
        self.shard = TransactionCoordinator(self.settings, self.epoch)
        for offset in range(len(self.log)):
            self._replay(offset)
        self._run(self.shard.on_loaded(self.now))

    def advance(self, ms: int) -> None:
        """Let time pass, and all that is due happen in its order."""
        end = self.now.tick_ms + ms
        while (deadline := self.shard.next_deadline_ms()) is not None and deadline <= end:
            self._set(deadline)
            self._run(self.shard.on_timer(self.now))
        self._set(end)

    def leap(self, ms: int) -> None:
        """Let a long time pass at once, as after the machine was suspended."""
        self._set(self.now.tick_ms + ms)
        while (deadline := self.shard.next_deadline_ms()) is not None and deadline <= self.now.tick_ms:
            self._run(self.shard.on_timer(self.now))

    def _set(self, tick_ms: int) -> None:
        self.now = EventTime(WALL_MS + self.clock_error_ms + tick_ms, tick_ms)

    def set_clock_back(self, ms: int) -> None:
        """Set the wall clock back, as that of the next coordinator may be."""
        self.clock_error_ms -= ms
        self._set(self.now.tick_ms)

    def configure(self, config: TransactionConfig | None = None, *, version: int | None = None) -> None:
        self.settings = TransactionSettings(
            config or self.settings.config, self.settings.transaction_version if version is None else version
        )
        self._event(NewTransactionSettings(self.settings))

    # What producers and leaders do

    def confirm(self) -> None:
        """Confirm that all markers are written."""
        markers, self.markers = self.markers, []
        for marker in markers:
            self._event(MarkersWritten(marker.transactional_id, marker.writer))

    def init(
        self, expected: ProducerIdAndEpoch | None = None, *, timeout_ms: int = 60_000, **options: Any
    ) -> Initialized:
        answer = self.submit(InitProducerId(TXN, timeout_ms, expected, **options))
        assert isinstance(answer, Initialized)
        return answer

    def begin(self) -> ProducerIdAndEpoch:
        """Begin with a new producer, whatever state the producer before has left."""
        if TXN in self.shard.transactions and self.state is TransactionState.ONGOING:
            assert self.code(InitProducerId(TXN, 60_000)) is ErrorCode.CONCURRENT_TRANSACTIONS
        self.confirm()
        return self.init().producer

    def add(self, producer: ProducerIdAndEpoch, *partitions: TopicPartition, version: int = 2) -> None:
        self.submit(AddPartitions(TXN, producer, frozenset(partitions or (A,)), version))

    def verify(
        self, producer: ProducerIdAndEpoch, *partitions: TopicPartition
    ) -> dict[TopicPartition, ErrorCode]:
        codes: dict[TopicPartition, ErrorCode] = self.submit(
            VerifyPartitions(TXN, producer, frozenset(partitions))
        )
        return codes

    def end(
        self, producer: ProducerIdAndEpoch, *, commit: bool = True, version: int = 2
    ) -> ProducerIdAndEpoch:
        answer = self.submit(EndTransaction(TXN, producer, commit, version))
        assert isinstance(answer, ProducerIdAndEpoch)
        return answer

    def commit(self, producer: ProducerIdAndEpoch, **options: Any) -> ProducerIdAndEpoch:
        """Commit, and confirm the markers."""
        after = self.end(producer, commit=True, **options)
        self.confirm()
        return after

    def abort(self, producer: ProducerIdAndEpoch, **options: Any) -> ProducerIdAndEpoch:
        after = self.end(producer, commit=False, **options)
        self.confirm()
        return after


def in_state(
    state: TransactionState, *, version: int, config: TransactionConfig | None = None
) -> TransactionHarness:
    """A lab whose transactional id has come to this state by requests of this version."""
    lab = TransactionHarness(config, version=2)
    producer = lab.init().producer
    if state is TransactionState.EMPTY:
        return lab
    lab.add(producer, A, B, version=version)
    if state is TransactionState.ONGOING:
        return lab
    commit = state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
    lab.end(producer, commit=commit, version=version)
    if not state.is_prepared:
        lab.confirm()
    assert lab.state is state
    return lab


def written(lab: TransactionHarness) -> list[str]:
    """The states in the log, in order; a tombstone is 'gone'."""
    states = []
    for key, value in lab.log:
        decoded = RECORDS.decode(key, value)[1]
        states.append(
            TransactionState(decoded.transaction_status).title
            if isinstance(decoded, TransactionLogValue)
            else "gone"
        )
    return states
