"""Random lives of a partition's producers, compared with what a reading of the whole log says.

The model keeps nothing but the log of accepted batches, and for each producer the offset below which it has
been forgotten by expiry; every expectation is derived from these by a walk over the log.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ottla.log.producers.snapshot import ProducerSnapshots, decode_snapshot, encode_snapshot
from ottla.log.producers.state_entry import MAX_SEQUENCE
from ottla.log.producers.state_manager import ProducerAppend, ProducerStateManager, ProducerStateManagerConfig
from ottla.log.segment.txn_index import AbortedTxn
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.control import ControlType
from ottla.records.validation import AppendOrigin
from ottla.runtime.disk import RealDisk
from tests.support.producer_batches import Logged, data, end

EXPIRATION_MS = 100
PRODUCERS = st.integers(1, 3)


@dataclass
class Model:
    log: list[Logged] = field(default_factory=list)
    forgotten: dict[int, int] = field(default_factory=dict)

    @property
    def end_offset(self) -> int:
        return self.log[-1][0].last_offset + 1 if self.log else 0

    def of(self, producer_id: int) -> list[Logged]:
        since = self.forgotten.get(producer_id, 0)
        return [
            (batch, marker)
            for batch, marker in self.log
            if batch.producer_id == producer_id and batch.base_offset >= since
        ]

    def epoch(self, producer_id: int) -> int:
        mine = self.of(producer_id)
        return mine[-1][0].producer_epoch if mine else -1

    def coordinator_epoch(self, producer_id: int) -> int:
        markers = [marker for _, marker in self.of(producer_id) if marker is not None]
        return markers[-1].coordinator_epoch if markers else -1

    def batches_of_epoch(self, producer_id: int) -> list[Logged]:
        """The data since the epoch last changed."""
        run: list[Logged] = []
        for logged in reversed(self.of(producer_id)):
            if logged[0].producer_epoch != self.epoch(producer_id):
                break
            if logged[1] is None:
                run.append(logged)
        return run[::-1]

    def open_txn(self, producer_id: int) -> int | None:
        first = None
        for batch, marker in self.of(producer_id):
            if marker is not None:
                first = None
            elif batch.is_transactional and first is None:
                first = batch.base_offset
        return first

    def last_timestamp(self, producer_id: int) -> int:
        return self.of(producer_id)[-1][0].max_timestamp

    def expire(self, now_ms: int, *, at_offset: int) -> None:
        for producer_id in {batch.producer_id for batch, _ in self.log}:
            mine = self.of(producer_id)
            idle = bool(mine) and now_ms - self.last_timestamp(producer_id) >= EXPIRATION_MS
            if idle and self.open_txn(producer_id) is None:
                self.forgotten[producer_id] = at_offset

    def unstable(self, high_watermark: int) -> list[int]:
        """First offsets of transactions whose marker is missing or not below the high watermark."""
        open_txns: dict[int, int] = {}
        unstable = []
        for batch, marker in self.log:
            if marker is None:
                if batch.is_transactional:
                    open_txns.setdefault(batch.producer_id, batch.base_offset)
            elif batch.producer_id in open_txns:
                first = open_txns.pop(batch.producer_id)
                if batch.base_offset >= high_watermark:
                    unstable.append(first)
        return sorted(unstable + list(open_txns.values()))

    def data_verdict(self, producer_id: int, epoch: int, sequence: int, transactional: bool) -> ErrorCode:
        known = self.epoch(producer_id)
        if epoch < known:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if known != -1:
            batches = self.batches_of_epoch(producer_id) if epoch == known else []
            expected = (batches[-1][0].last_sequence + 1) % (MAX_SEQUENCE + 1) if batches else 0
            if sequence != expected:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if self.open_txn(producer_id) is not None and not transactional:
            return ErrorCode.INVALID_TXN_STATE
        return ErrorCode.NONE

    def marker_verdict(self, producer_id: int, epoch: int, coordinator: int, version: int) -> ErrorCode:
        known = self.epoch(producer_id)
        repeated = epoch == known and self.open_txn(producer_id) is None
        if epoch < known or (version == 2 and epoch == known and not repeated):
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if coordinator < self.coordinator_epoch(producer_id):
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED
        return ErrorCode.NONE


class ProducerLives(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.snapshots = ProducerSnapshots(RealDisk(), self.folder.name)
        self.model = Model()
        self.now_ms = 0
        self.high_watermark = 0
        # Offset of a snapshot -> who was forgotten when it was taken.
        self.forgotten_at: dict[int, dict[int, int]] = {}
        self.state = self.new_state()

    def teardown(self) -> None:
        self.folder.cleanup()

    def new_state(self) -> ProducerStateManager:
        return ProducerStateManager(
            "topic-0",
            ProducerStateManagerConfig(
                producer_id_expiration_ms=EXPIRATION_MS, transaction_verification=False
            ),
        )

    def take_in(self, logged: Logged, origin: AppendOrigin, expected: ErrorCode, version: int | None) -> None:
        try:
            analyzed = self.state.analyze([logged], origin, transaction_version=version)
        except KafkaError as error:
            analyzed, verdict = ProducerAppend(), error.code
        else:
            verdict = ErrorCode.NONE
        assert verdict == expected
        if verdict != ErrorCode.NONE:
            return
        assert analyzed.duplicate is None
        first = self.model.open_txn(logged[0].producer_id)
        self.model.log.append(logged)
        aborted = self.state.apply(analyzed)
        self.state.map_end_offset = self.model.end_offset
        marker = logged[1]
        if marker is None or first is None or marker.type is ControlType.COMMIT:
            assert aborted == []
        else:
            open_txns = [self.model.open_txn(producer_id) for producer_id in (1, 2, 3)]
            stable = min([offset for offset in open_txns if offset is not None] + [self.model.end_offset])
            last = logged[0].base_offset
            assert aborted == [AbortedTxn(logged[0].producer_id, first, last, stable)]

    @rule(
        producer_id=PRODUCERS,
        bump=st.sampled_from([0, 0, 0, 0, 1, -1]),
        step=st.sampled_from([0, 0, 0, 0, 0, 1, 7, -1]),
        count=st.integers(1, 3),
        transactional=st.booleans(),
        anywhere=st.sampled_from([0, 5, MAX_SEQUENCE - 1, MAX_SEQUENCE]),
    )
    def append(
        self, producer_id: int, bump: int, step: int, count: int, transactional: bool, anywhere: int
    ) -> None:
        model = self.model
        known = model.epoch(producer_id)
        epoch = max(known + bump, 0) if known != -1 else 1
        batches = model.batches_of_epoch(producer_id)
        if known == -1:
            sequence = anywhere
        elif epoch == known and batches:
            sequence = (batches[-1][0].last_sequence + 1 + step) % (MAX_SEQUENCE + 1)
        else:
            sequence = max(step, 0)
        logged = data(
            producer_id,
            epoch,
            sequence,
            model.end_offset,
            count=count,
            transactional=transactional,
            timestamp=self.now_ms,
        )
        if epoch == known and any(
            (batch.base_sequence, batch.last_sequence) == (sequence, logged[0].last_sequence)
            for batch, _ in batches[-5:]
        ):
            return  # the rule `repeat` is about these
        self.take_in(
            logged, AppendOrigin.CLIENT, model.data_verdict(producer_id, epoch, sequence, transactional), None
        )

    @rule(producer_id=PRODUCERS, back=st.integers(0, 7))
    def repeat(self, producer_id: int, back: int) -> None:
        batches = self.model.batches_of_epoch(producer_id)
        if back >= len(batches):
            return
        old = batches[-1 - back][0]
        again = data(
            producer_id, old.producer_epoch, old.base_sequence, self.model.end_offset, count=old.count
        )
        try:
            duplicate = self.state.analyze([again], AppendOrigin.CLIENT).duplicate
        except KafkaError:
            assert back > 0, "the last batch is always recognised, also after a reload"
            return
        assert duplicate is not None
        assert back < 5
        assert duplicate.first_offset == old.base_offset
        assert duplicate.last_offset == old.last_offset
        assert duplicate.timestamp == old.max_timestamp

    @rule(
        producer_id=PRODUCERS,
        bump=st.sampled_from([0, 0, 1, -1]),
        commit=st.booleans(),
        coordinator=st.sampled_from([0, 0, 0, 1, -1]),
        version=st.sampled_from([0, 1, 2, 2]),
    )
    def end_transaction(
        self, producer_id: int, bump: int, commit: bool, coordinator: int, version: int
    ) -> None:
        model = self.model
        epoch = max(model.epoch(producer_id) + bump, 0)
        coordinator_epoch = max(model.coordinator_epoch(producer_id) + coordinator, 0)
        marker = end(
            producer_id,
            epoch,
            model.end_offset,
            commit=commit,
            coordinator_epoch=coordinator_epoch,
            timestamp=self.now_ms,
        )
        verdict = model.marker_verdict(producer_id, epoch, coordinator_epoch, version)
        self.take_in(marker, AppendOrigin.COORDINATOR, verdict, version)

    @rule(to=st.floats(0, 1))
    def replicate(self, to: float) -> None:
        self.high_watermark += int((self.model.end_offset - self.high_watermark) * to)
        self.state.on_high_watermark_updated(self.high_watermark)

    @rule(ms=st.integers(0, 60))
    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        self.state.remove_expired(self.now_ms)
        self.model.expire(self.now_ms, at_offset=self.model.end_offset)

    @rule()
    def snapshot(self) -> None:
        if self.state.take_snapshot(self.snapshots) is not None:
            self.forgotten_at[self.model.end_offset] = dict(self.model.forgotten)

    @rule(keep=st.floats(0, 1), ms=st.integers(0, 60))
    def truncate(self, keep: float, ms: int) -> None:
        del self.model.log[int(len(self.model.log) * keep) :]
        self.reload(ms)

    @rule(ms=st.integers(0, 60))
    def restart(self, ms: int) -> None:
        self.state = self.new_state()
        self.reload(ms)

    def reload(self, ms: int) -> None:
        """Reload from the newest snapshot and replay the rest, as a log does it."""
        model = self.model
        self.now_ms += ms
        self.high_watermark = model.end_offset
        self.forgotten_at = {at: who for at, who in self.forgotten_at.items() if at <= model.end_offset}
        in_place = self.state.map_end_offset == model.end_offset
        self.state.truncate_and_reload(self.snapshots, 0, model.end_offset, self.now_ms)
        if in_place:
            # Nothing was lost, so the state is the one in memory, whatever has expired since.
            self.state.on_high_watermark_updated(self.high_watermark)
            return
        start = self.state.map_end_offset
        assert start == max(self.forgotten_at, default=0)
        tail = [logged for logged in model.log if logged[0].base_offset >= start]
        model.log = [logged for logged in model.log if logged[0].base_offset < start]
        model.forgotten = dict(self.forgotten_at.get(start, {}))
        model.expire(self.now_ms, at_offset=start)
        model.log += tail
        self.state.replay(tail)
        self.state.map_end_offset = model.end_offset
        self.state.on_high_watermark_updated(self.high_watermark)

    @invariant()
    def the_state_says_what_the_log_says(self) -> None:
        model = self.model
        alive = {producer_id for producer_id in (1, 2, 3) if model.of(producer_id)}
        assert set(self.state.active_producers) == alive
        for producer_id in alive:
            entry = self.state.active_producers[producer_id]
            batches = model.batches_of_epoch(producer_id)
            assert entry.producer_epoch == model.epoch(producer_id)
            assert entry.current_txn_first_offset == model.open_txn(producer_id)
            assert entry.last_timestamp == model.last_timestamp(producer_id)
            assert entry.last_data_offset == (batches[-1][0].last_offset if batches else -1)
            assert len(entry.batches) <= min(5, len(batches))

    @invariant()
    def the_stable_part_is_what_the_log_says(self) -> None:
        assert self.state.first_unstable_offset() == next(
            iter(self.model.unstable(self.high_watermark)), None
        )
        assert self.state.first_undecided_offset() == next(iter(self.model.unstable(2**62)), None)

    @invariant()
    def a_snapshot_of_the_state_reads_back(self) -> None:
        snapshot = self.state.snapshot()
        assert encode_snapshot(decode_snapshot(snapshot)) == snapshot


TestProducerLives = pytest.mark.slow(ProducerLives.TestCase)
TestProducerLives.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
