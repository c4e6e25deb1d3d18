"""The producer state accepts, recognises and refuses batches as Kafka 4 does."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from ottla.log.producers.snapshot import ProducerSnapshots, decode_snapshot
from ottla.log.producers.state_entry import MAX_SEQUENCE, SENTINEL_GUARD, LastRecord
from ottla.log.producers.state_manager import (
    DEFAULT_PRODUCER_STATE_CONFIG,
    LATE_TRANSACTION_BUFFER_MS,
    ProducerStateManager,
    ProducerStateManagerConfig,
)
from ottla.log.segment.txn_index import AbortedTxn
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.validation import AppendOrigin
from ottla.runtime.disk import RealDisk
from tests.support.producer_batches import Logged, data, end

DAY_MS = 86_400_000


@pytest.fixture
def state() -> ProducerStateManager:
    return ProducerStateManager("topic-0", ProducerStateManagerConfig(transaction_verification=False))


@pytest.fixture
def snapshots(tmp_path: Path) -> ProducerSnapshots:
    return ProducerSnapshots(RealDisk(), str(tmp_path))


def append(
    state: ProducerStateManager,
    *batches: Logged,
    origin: AppendOrigin = AppendOrigin.CLIENT,
    version: int | None = None,
) -> list[AbortedTxn]:
    analyzed = state.analyze(batches, origin, transaction_version=version)
    assert analyzed.duplicate is None
    state.map_end_offset = batches[-1][0].last_offset + 1
    return state.apply(analyzed)


def refused(
    state: ProducerStateManager,
    *batches: Logged,
    origin: AppendOrigin = AppendOrigin.CLIENT,
    version: int | None = None,
) -> ErrorCode:
    before = state.snapshot()
    with pytest.raises(KafkaError) as error:
        state.analyze(batches, origin, transaction_version=version)
    assert "topic-0" in str(error.value)
    assert state.snapshot() == before
    return error.value.code


def commit(state: ProducerStateManager, marker: Logged, *, version: int = 0) -> list[AbortedTxn]:
    return append(state, marker, origin=AppendOrigin.COORDINATOR, version=version)


# Sequences and duplicates


def test_batches_in_sequence_are_accepted(state: ProducerStateManager) -> None:
    append(state, data(1, 0, 0, 0, count=3))
    append(state, data(1, 0, 3, 3))
    append(state, data(1, 0, 4, 4), data(1, 0, 5, 5, count=2))
    entry = state.active_producers[1]
    assert (entry.last_sequence, entry.last_data_offset) == (6, 6)


def test_a_gap_is_refused(state: ProducerStateManager) -> None:
    append(state, data(1, 0, 0, 0))
    assert refused(state, data(1, 0, 2, 1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(state, data(1, 0, 1, 1), data(1, 0, 3, 2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_repetition_is_answered_with_the_first_offsets_and_timestamp(state: ProducerStateManager) -> None:
    for i in range(5):
        append(state, data(1, 0, 2 * i, 10 * i, count=2, timestamp=100 + i))
    for i in range(5):
        duplicate = state.analyze(
            [data(1, 0, 2 * i, 999, count=2, timestamp=7)], AppendOrigin.CLIENT
        ).duplicate
        assert duplicate is not None
        assert (duplicate.first_offset, duplicate.last_offset) == (10 * i, 10 * i + 1)
        assert duplicate.timestamp == 100 + i


def test_only_five_batches_are_remembered(state: ProducerStateManager) -> None:
    for i in range(6):
        append(state, data(1, 0, i, i))
    assert refused(state, data(1, 0, 0, 6)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert state.analyze([data(1, 0, 1, 6)], AppendOrigin.CLIENT).duplicate is not None


def test_part_of_a_known_batch_is_no_duplicate(state: ProducerStateManager) -> None:
    append(state, data(1, 0, 0, 0, count=3))
    assert refused(state, data(1, 0, 0, 3, count=2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(state, data(1, 0, 1, 3, count=2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequences_wrap_to_zero(state: ProducerStateManager) -> None:
    append(state, data(1, 0, MAX_SEQUENCE - 1, 0))
    append(state, data(1, 0, MAX_SEQUENCE, 1))
    append(state, data(1, 0, 0, 2))
    across = data(2, 0, MAX_SEQUENCE, 3, count=3)
    append(state, across)
    assert state.active_producers[2].last_sequence == 1
    duplicate = state.analyze([data(2, 0, MAX_SEQUENCE, 9, count=3)], AppendOrigin.CLIENT).duplicate
    assert duplicate is not None
    assert duplicate.first_offset == 3
    append(state, data(2, 0, 2, 6))


def test_an_unknown_producer_may_begin_at_any_sequence(state: ProducerStateManager) -> None:
    append(state, data(1, 4, 17, 0))
    append(state, data(1, 4, 18, 1))
    assert refused(state, data(1, 4, 18, 2, count=2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_the_batches_of_an_unknown_producer_may_have_any_sequences(state: ProducerStateManager) -> None:
    append(state, data(1, 4, 17, 0), data(1, 4, 30, 1))
    assert state.active_producers[1].last_sequence == 30


def test_a_new_epoch_begins_at_zero(state: ProducerStateManager) -> None:
    append(state, data(1, 0, 0, 0), data(1, 0, 1, 1))
    assert refused(state, data(1, 1, 2, 2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    append(state, data(1, 1, 0, 2))
    assert state.active_producers[1].batches[0].last_offset == 2


def test_an_old_epoch_is_fenced(state: ProducerStateManager) -> None:
    append(state, data(1, 3, 0, 0))
    assert refused(state, data(1, 2, 1, 1)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert (
        refused(state, data(1, 2, 1, 1), origin=AppendOrigin.COORDINATOR) == ErrorCode.INVALID_PRODUCER_EPOCH
    )


def test_the_same_sequences_in_another_epoch_are_no_duplicate(state: ProducerStateManager) -> None:
    append(state, data(1, 0, 0, 0))
    append(state, data(1, 1, 0, 1))
    assert state.active_producers[1].producer_epoch == 1


def test_a_coordinator_writes_without_sequences(state: ProducerStateManager) -> None:
    for offset in range(3):
        append(state, data(1, 0, -1, offset, transactional=True), origin=AppendOrigin.COORDINATOR)
    assert state.first_unstable_offset() == 0


def test_a_replica_takes_what_the_leader_accepted(
    state: ProducerStateManager, caplog: pytest.LogCaptureFixture
) -> None:
    append(state, data(1, 3, 0, 0), origin=AppendOrigin.REPLICATION)
    with caplog.at_level(logging.WARNING):
        append(state, data(1, 2, 9, 1), data(1, 2, 20, 2), origin=AppendOrigin.REPLICATION)
    assert "which is smaller than the last seen epoch" in caplog.text
    assert state.active_producers[1].producer_epoch == 2


def test_batches_without_a_producer_id_leave_no_trace(state: ProducerStateManager) -> None:
    append(state, data(-1, -1, -1, 0))
    assert state.is_empty


# Transactions


def test_a_transaction_is_unstable_until_its_marker_is_replicated(state: ProducerStateManager) -> None:
    append(state, data(1, 0, 0, 0))
    append(state, data(2, 0, 0, 1, transactional=True))
    append(state, data(2, 0, 1, 2, transactional=True))
    assert state.first_unstable_offset() == state.first_undecided_offset() == 1
    state.on_high_watermark_updated(3)
    assert state.first_unstable_offset() == 1
    assert commit(state, end(2, 0, 3)) == []
    assert state.first_undecided_offset() is None
    state.on_high_watermark_updated(3)
    assert state.first_unstable_offset() == 1, "the marker at 3 is not below the high watermark"
    state.on_high_watermark_updated(4)
    assert state.first_unstable_offset() is None


def test_the_oldest_of_several_transactions_bounds_the_stable_part(state: ProducerStateManager) -> None:
    for producer_id in (1, 2, 3):
        append(state, data(producer_id, 0, 0, producer_id, transactional=True))
    commit(state, end(2, 0, 4))
    commit(state, end(1, 0, 5))
    assert state.first_unstable_offset() == 1
    assert state.first_undecided_offset() == 3
    state.on_high_watermark_updated(5)
    assert state.first_unstable_offset() == 1
    state.on_high_watermark_updated(6)
    assert state.first_unstable_offset() == 3


def test_an_abort_goes_to_the_transaction_index_with_the_last_stable_offset(
    state: ProducerStateManager,
) -> None:
    append(state, data(1, 0, 0, 0, transactional=True))
    append(state, data(2, 0, 0, 1, transactional=True))
    assert commit(state, end(1, 0, 2, commit=False)) == [AbortedTxn(1, 0, 2, 1)]
    assert commit(state, end(2, 0, 3, commit=False)) == [AbortedTxn(2, 1, 3, 4)]


def test_one_append_may_hold_the_end_of_one_transaction_and_the_begin_of_the_next(
    state: ProducerStateManager,
) -> None:
    aborted = append(
        state,
        data(1, 0, 0, 0, transactional=True),
        end(1, 0, 1, commit=False),
        data(1, 0, 1, 2),
        data(2, 0, 0, 3, transactional=True),
        data(1, 0, 2, 4, transactional=True),
        origin=AppendOrigin.REPLICATION,
    )
    assert aborted == [AbortedTxn(1, 0, 1, 2)], "stable up to the marker, whatever began behind it"
    assert state.first_undecided_offset() == 3
    assert state.first_unstable_offset() == 0
    state.on_high_watermark_updated(5)
    assert state.first_unstable_offset() == 3


def test_the_oldest_transaction_comes_first_in_whatever_order_the_producers_are_met(
    state: ProducerStateManager,
) -> None:
    append(
        state,
        data(1, 0, 0, 0),
        data(2, 0, 0, 1, transactional=True),
        data(1, 0, 1, 2, transactional=True),
        origin=AppendOrigin.REPLICATION,
    )
    assert state.first_unstable_offset() == 1
    loaded = ProducerStateManager("topic-0")
    loaded.load(reversed(decode_snapshot(state.snapshot())), now_ms=0)
    assert loaded.first_unstable_offset() == loaded.first_undecided_offset() == 1
    loaded = ProducerStateManager("topic-0")
    loaded.load(decode_snapshot(state.snapshot()), now_ms=0)
    assert loaded.first_unstable_offset() == loaded.first_undecided_offset() == 1


def test_a_marker_without_a_transaction_only_updates_the_producer(state: ProducerStateManager) -> None:
    assert commit(state, end(1, 2, 0, commit=False, coordinator_epoch=5, timestamp=77)) == []
    entry = state.active_producers[1]
    assert (entry.producer_epoch, entry.coordinator_epoch, entry.last_timestamp) == (2, 5, 77)
    assert entry.last_record == LastRecord(None, 2)
    assert state.first_unstable_offset() is None


def test_after_a_marker_of_the_same_epoch_the_sequences_go_on(state: ProducerStateManager) -> None:
    append(state, data(1, 0, 0, 0, transactional=True))
    commit(state, end(1, 0, 1))
    append(state, data(1, 0, 1, 2, transactional=True))
    assert state.first_unstable_offset() == 0
    assert state.first_undecided_offset() == 2


def test_a_marker_with_a_new_epoch_clears_the_sequences(state: ProducerStateManager) -> None:
    append(state, data(1, 0, 0, 0, transactional=True))
    commit(state, end(1, 1, 1), version=2)
    assert state.active_producers[1].last_record == LastRecord(None, 1)
    assert refused(state, data(1, 1, 1, 2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    append(state, data(1, 1, 0, 2))


def test_a_plain_batch_inside_a_transaction_is_refused(state: ProducerStateManager) -> None:
    append(state, data(1, 0, 0, 0, transactional=True))
    assert refused(state, data(1, 0, 1, 1)) == ErrorCode.INVALID_TXN_STATE


def test_a_fenced_coordinator_cannot_end_a_transaction(state: ProducerStateManager) -> None:
    append(state, data(1, 0, 0, 0, transactional=True))
    commit(state, end(1, 0, 1, coordinator_epoch=5))
    append(state, data(1, 0, 1, 2, transactional=True))
    marker = end(1, 0, 3, coordinator_epoch=4)
    assert (
        refused(state, marker, origin=AppendOrigin.COORDINATOR, version=1)
        == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    )
    append(state, marker, origin=AppendOrigin.REPLICATION)
    assert state.first_undecided_offset() is None


def test_an_old_marker_is_refused_under_both_transaction_versions(state: ProducerStateManager) -> None:
    append(state, data(1, 5, 0, 0, transactional=True))
    for version in (0, 1, 2):
        code = refused(state, end(1, 4, 1), origin=AppendOrigin.COORDINATOR, version=version)
        assert code == ErrorCode.INVALID_PRODUCER_EPOCH


def test_version_2_ends_a_transaction_only_with_a_higher_epoch(state: ProducerStateManager) -> None:
    append(state, data(1, 5, 0, 0, transactional=True))
    late = end(1, 5, 1)
    assert (
        refused(state, late, origin=AppendOrigin.COORDINATOR, version=2) == ErrorCode.INVALID_PRODUCER_EPOCH
    )
    commit(state, end(1, 6, 1), version=2)
    assert state.first_undecided_offset() is None


def test_version_2_lets_a_marker_be_repeated_once_the_transaction_has_ended(
    state: ProducerStateManager,
) -> None:
    append(state, data(1, 5, 0, 0, transactional=True))
    commit(state, end(1, 6, 1), version=2)
    assert commit(state, end(1, 6, 2), version=2) == []
    append(state, data(1, 6, 0, 3, transactional=True))
    assert (
        refused(state, end(1, 6, 4), origin=AppendOrigin.COORDINATOR, version=2)
        == ErrorCode.INVALID_PRODUCER_EPOCH
    ), "the next transaction has begun, so it is late"


def test_a_marker_from_a_coordinator_must_say_its_version(state: ProducerStateManager) -> None:
    with pytest.raises(ValueError, match="version"):
        state.analyze([end(1, 0, 0)], AppendOrigin.COORDINATOR)


def test_a_marker_emptied_by_compaction_still_fences(state: ProducerStateManager) -> None:
    batch, _ = end(1, 4, 0, timestamp=50)
    append(state, (batch, None), origin=AppendOrigin.REPLICATION)
    assert state.active_producers[1].last_record == LastRecord(None, 4)
    assert state.active_producers[1].last_timestamp == 50
    assert refused(state, data(1, 3, 0, 1)) == ErrorCode.INVALID_PRODUCER_EPOCH
    append(state, data(1, 4, 0, 1, transactional=True))
    batch, _ = end(1, 4, 2)
    append(state, (batch, None), origin=AppendOrigin.REPLICATION)
    assert state.first_undecided_offset() == 1, "it ends no transaction"


def test_a_transaction_that_outlives_every_timeout_is_late(state: ProducerStateManager) -> None:
    append(state, data(1, 0, 0, 0, transactional=True, timestamp=1000))
    append(state, data(2, 0, 0, 1, transactional=True, timestamp=10**9))
    limit = 1000 + DEFAULT_PRODUCER_STATE_CONFIG.max_transaction_timeout_ms + LATE_TRANSACTION_BUFFER_MS
    assert not state.has_late_transaction(limit)
    assert state.has_late_transaction(limit + 1)
    commit(state, end(1, 0, 2))
    assert not state.has_late_transaction(limit + 1)


# Verification (KIP-890)


@pytest.fixture
def verifying() -> ProducerStateManager:
    return ProducerStateManager("topic-0")


def start_verification(
    state: ProducerStateManager, producer_id: int, sequence: int, epoch: int, *, bump: bool = False
) -> object:
    return state.maybe_start_verification(producer_id, sequence, epoch, supports_epoch_bump=bump, now_ms=0)


def test_the_first_batch_of_a_transaction_needs_the_guard_of_its_verification(
    verifying: ProducerStateManager,
) -> None:
    first = data(1, 0, 0, 0, transactional=True)
    assert refused(verifying, first) == ErrorCode.INVALID_TXN_STATE
    guard = start_verification(verifying, 1, 0, 0)
    other = start_verification(verifying, 2, 0, 0)
    assert refused(verifying, first) == ErrorCode.INVALID_TXN_STATE
    with pytest.raises(KafkaError):
        verifying.analyze([first], AppendOrigin.CLIENT, guard=other)
    verifying.apply(verifying.analyze([first], AppendOrigin.CLIENT, guard=guard))
    assert verifying.verification_entry(1) is None
    append(verifying, data(1, 0, 1, 1, transactional=True))
    assert start_verification(verifying, 1, 2, 0) is SENTINEL_GUARD


def test_concurrent_verifications_of_one_transaction_share_the_guard(verifying: ProducerStateManager) -> None:
    assert start_verification(verifying, 1, 0, 0) is start_verification(verifying, 1, 5, 0)


def test_a_marker_between_verification_and_append_makes_the_guard_void(
    verifying: ProducerStateManager,
) -> None:
    guard = start_verification(verifying, 1, 0, 0)
    commit(verifying, end(1, 0, 0, commit=False), version=1)
    with pytest.raises(KafkaError) as error:
        verifying.analyze([data(1, 0, 0, 1, transactional=True)], AppendOrigin.CLIENT, guard=guard)
    assert error.value.code == ErrorCode.INVALID_TXN_STATE
    again = start_verification(verifying, 1, 0, 0)
    assert again is not guard


def test_with_version_2_the_marker_of_the_last_transaction_keeps_the_guard_of_the_next(
    verifying: ProducerStateManager,
) -> None:
    guard = start_verification(verifying, 1, 0, 1, bump=True)
    commit(verifying, end(1, 1, 0), version=2)
    verifying.apply(
        verifying.analyze([data(1, 1, 0, 1, transactional=True)], AppendOrigin.CLIENT, guard=guard)
    )
    stale = start_verification(verifying, 2, 0, 0, bump=True)
    commit(verifying, end(2, 1, 2), version=2)
    with pytest.raises(KafkaError):
        verifying.analyze([data(2, 1, 0, 3, transactional=True)], AppendOrigin.CLIENT, guard=stale)


def test_a_higher_sequence_waits_for_the_lowest_one_being_verified(verifying: ProducerStateManager) -> None:
    start_verification(verifying, 1, 4, 0)
    guard = start_verification(verifying, 1, 0, 0)
    start_verification(verifying, 1, 9, 0)
    with pytest.raises(KafkaError) as error:
        verifying.analyze([data(1, 0, 4, 0, transactional=True)], AppendOrigin.CLIENT, guard=guard)
    assert error.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    verifying.apply(
        verifying.analyze([data(1, 0, 0, 0, transactional=True)], AppendOrigin.CLIENT, guard=guard)
    )


def test_a_new_epoch_forgets_the_sequences_of_the_old_verification(verifying: ProducerStateManager) -> None:
    start_verification(verifying, 1, 0, 0)
    guard = start_verification(verifying, 1, 7, 1)
    start_verification(verifying, 1, 0, 0)
    entry = verifying.verification_entry(1)
    assert entry is not None
    assert (entry.epoch, entry.lowest_sequence, entry.guard) == (1, 7, guard)


def test_with_version_2_an_unknown_producer_begins_at_zero(verifying: ProducerStateManager) -> None:
    guard = start_verification(verifying, 1, 3, 0, bump=True)
    with pytest.raises(KafkaError) as error:
        verifying.analyze([data(1, 0, 3, 0, transactional=True)], AppendOrigin.CLIENT, guard=guard)
    assert error.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    old = start_verification(verifying, 2, 3, 0)
    verifying.apply(verifying.analyze([data(2, 0, 3, 0, transactional=True)], AppendOrigin.CLIENT, guard=old))


def test_with_version_2_a_known_producer_goes_on(verifying: ProducerStateManager) -> None:
    append(verifying, data(1, 0, 0, 0), data(1, 0, 1, 1))
    guard = start_verification(verifying, 1, 2, 0, bump=True)
    verifying.apply(
        verifying.analyze([data(1, 0, 2, 2, transactional=True)], AppendOrigin.CLIENT, guard=guard)
    )
    assert verifying.first_undecided_offset() == 2


def test_a_fenced_producer_is_refused_before_it_is_verified(verifying: ProducerStateManager) -> None:
    append(verifying, data(1, 5, 0, 0))
    with pytest.raises(KafkaError) as error:
        start_verification(verifying, 1, 1, 4)
    assert error.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert refused(verifying, data(1, 4, 1, 1, transactional=True)) == ErrorCode.INVALID_PRODUCER_EPOCH, (
        "and not INVALID_TXN_STATE, so that the client may recover"
    )


def test_two_batches_of_one_verified_append_are_checked_against_each_other(
    verifying: ProducerStateManager,
) -> None:
    guard = start_verification(verifying, 1, 0, 0, bump=True)
    batches = [data(1, 0, 0, 0, count=5, transactional=True), data(1, 0, 5, 5, transactional=True)]
    verifying.apply(verifying.analyze(batches, AppendOrigin.CLIENT, guard=guard))
    assert verifying.active_producers[1].last_sequence == 5


# Expiry


def test_idle_producers_expire_but_not_those_with_an_open_transaction(state: ProducerStateManager) -> None:
    append(state, data(1, 0, 0, 0, timestamp=0))
    append(state, data(2, 0, 0, 1, timestamp=0, transactional=True))
    append(state, data(3, 0, 0, 2, timestamp=1))
    state.remove_expired(DAY_MS - 1)
    assert set(state.active_producers) == {1, 2, 3}
    state.remove_expired(DAY_MS)
    assert set(state.active_producers) == {2, 3}
    commit(state, end(2, 0, 3, timestamp=DAY_MS))
    state.remove_expired(DAY_MS + 1)
    assert set(state.active_producers) == {2}, "its marker counts as a sign of life"
    append(state, data(1, 0, 17, 4, timestamp=DAY_MS))


def test_unfinished_verifications_expire(verifying: ProducerStateManager) -> None:
    start_verification(verifying, 1, 0, 0)
    verifying.remove_expired(DAY_MS - 1)
    assert verifying.verification_entry(1) is not None
    verifying.remove_expired(DAY_MS)
    assert verifying.verification_entry(1) is None


# Snapshots, truncation, reload


def test_a_snapshot_is_taken_once_for_an_offset(
    state: ProducerStateManager, snapshots: ProducerSnapshots
) -> None:
    assert state.take_snapshot(snapshots) is None
    append(state, data(1, 0, 0, 0))
    assert state.take_snapshot(snapshots) == 1
    assert state.take_snapshot(snapshots) is None
    state.map_end_offset = 5
    assert state.take_snapshot(snapshots, sync=True) == 5
    assert snapshots.offsets == (1, 5)


def test_a_reload_brings_back_the_state_of_the_newest_snapshot_in_range(
    state: ProducerStateManager, snapshots: ProducerSnapshots
) -> None:
    append(state, data(1, 0, 0, 0, count=2, timestamp=50))
    append(state, data(2, 3, 0, 2, transactional=True, timestamp=60))
    state.take_snapshot(snapshots)
    append(state, data(1, 0, 2, 3, timestamp=70))
    append(state, end(2, 3, 4, timestamp=70), origin=AppendOrigin.COORDINATOR, version=0)
    state.take_snapshot(snapshots)
    state.truncate_and_reload(snapshots, 0, 4, now_ms=100)
    assert snapshots.offsets == (3,)
    assert state.map_end_offset == 3
    assert state.active_producers[1].last_data_offset == 1
    assert state.first_unstable_offset() == state.first_undecided_offset() == 2
    duplicate = state.analyze([data(1, 0, 0, 9, count=2)], AppendOrigin.CLIENT).duplicate
    assert duplicate is not None
    assert (duplicate.first_offset, duplicate.timestamp) == (0, 50)


def test_a_reload_drops_what_has_expired_but_keeps_open_transactions(
    state: ProducerStateManager, snapshots: ProducerSnapshots
) -> None:
    append(state, data(1, 0, 0, 0), data(2, 0, 0, 1, transactional=True))
    append(state, data(3, 0, 0, 2, timestamp=10))
    state.take_snapshot(snapshots)
    fresh = ProducerStateManager("topic-0")
    fresh.truncate_and_reload(snapshots, 0, 3, now_ms=DAY_MS)
    assert set(fresh.active_producers) == {2, 3}
    assert fresh.first_undecided_offset() == 1


def test_a_reload_without_a_snapshot_begins_at_the_log_start(
    state: ProducerStateManager, snapshots: ProducerSnapshots
) -> None:
    append(state, data(1, 0, 0, 0, transactional=True), data(2, 0, 0, 1))
    state.truncate_and_reload(snapshots, 1, 1, now_ms=0)
    assert state.is_empty
    assert state.first_unstable_offset() is None
    assert state.map_end_offset == 1


def test_a_damaged_snapshot_gives_way_to_the_one_before(
    state: ProducerStateManager, snapshots: ProducerSnapshots, caplog: pytest.LogCaptureFixture
) -> None:
    append(state, data(1, 0, 0, 0))
    state.take_snapshot(snapshots)
    append(state, data(1, 0, 1, 1))
    state.take_snapshot(snapshots)
    newest = Path(snapshots.path(2))
    newest.write_bytes(newest.read_bytes()[:-1])
    state.truncate_and_reload(snapshots, 0, 9, now_ms=0)
    assert state.map_end_offset == 1
    assert state.active_producers[1].last_sequence == 0
    assert snapshots.offsets == (1,)
    assert not newest.exists()
    assert str(newest) in caplog.text


def test_a_reload_at_the_present_end_keeps_the_state(
    state: ProducerStateManager, snapshots: ProducerSnapshots
) -> None:
    append(state, data(1, 0, 0, 0), data(1, 0, 1, 1))
    state.truncate_and_reload(snapshots, 1, 2, now_ms=0)
    assert len(state.active_producers[1].batches) == 2


def test_a_higher_log_start_moves_the_end_and_drops_old_transactions(state: ProducerStateManager) -> None:
    append(state, data(1, 0, 0, 0, transactional=True))
    commit(state, end(1, 0, 1))
    assert state.first_unstable_offset() == 0
    state.on_log_start_offset_incremented(5, None)
    assert state.first_unstable_offset() is None
    assert state.map_end_offset == 5
    assert 1 in state.active_producers


def test_truncate_fully_forgets_everything(state: ProducerStateManager, snapshots: ProducerSnapshots) -> None:
    append(state, data(1, 0, 0, 0, transactional=True))
    state.take_snapshot(snapshots)
    state.truncate_fully_and_start_at(100)
    snapshots.delete_all()
    assert state.is_empty
    assert state.map_end_offset == 100
    append(state, data(1, 0, 7, 100))
    assert state.take_snapshot(snapshots) == 101
