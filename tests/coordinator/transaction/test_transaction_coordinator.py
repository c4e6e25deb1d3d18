"""The transaction coordinator: epochs that run out, timeouts, restarts, expiry."""

from __future__ import annotations

import pytest

from ottla.coordinator.runtime.effects import ProducerIdAndEpoch
from ottla.coordinator.transaction.config import TransactionConfig
from ottla.coordinator.transaction.requests import (
    AddPartitions,
    DescribeTransaction,
    EndTransaction,
    InitProducerId,
    ListTransactions,
    MarkersWritten,
    WriteMarkers,
)
from ottla.coordinator.transaction.transaction_log import transaction_of, transaction_record
from ottla.coordinator.transaction.transaction_metadata import BY_TITLE, TransactionMetadata, TransactionState
from ottla.protocol.coordinator_records import encode_key, encode_value
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.transaction_state_records import TransactionLogValue

from .transaction_harness import TXN, WALL_MS, A, B, TransactionHarness, in_state, written

TINY = TransactionConfig(max_epoch=3)
"""Epochs 0, 1 and 2; 3 is for fencing."""


def test_a_transaction_of_version_1() -> None:
    lab = TransactionHarness()
    me = lab.init().producer
    assert me == ProducerIdAndEpoch(1000, 0)
    lab.add(me, A, version=0)
    lab.add(me, B, version=0)
    assert lab.end(me, version=0) == me
    assert lab.markers == [WriteMarkers(TXN, me, True, frozenset({A, B}), 0, 0)]
    lab.confirm()
    assert written(lab) == ["Empty", "Ongoing", "Ongoing", "PrepareCommit", "CompleteCommit"]
    assert lab.client == me


def test_a_transaction_of_version_2_moves_the_epoch() -> None:
    lab = TransactionHarness()
    me = lab.init().producer
    lab.add(me, A)
    after = lab.end(me)
    assert after == ProducerIdAndEpoch(me.id, me.epoch + 1)
    assert lab.markers == [WriteMarkers(TXN, after, True, frozenset({A}), 0, 2)]
    lab.confirm()
    assert lab.client == after
    # A late message of the transaction that has ended is refused.
    assert lab.code(AddPartitions(TXN, me, frozenset({A}), 2)) is ErrorCode.PRODUCER_FENCED


def test_an_end_with_partitions_added_and_nothing_written_succeeds() -> None:
    for version in (0, 2):
        lab = TransactionHarness()
        me = lab.init().producer
        lab.add(me, A, version=version)
        lab.commit(me, version=version)
        assert lab.state is TransactionState.COMPLETE_COMMIT


def test_an_abort_of_nothing_moves_the_epoch_on() -> None:
    lab = TransactionHarness()
    me = lab.init().producer
    after = lab.end(me, commit=False)
    assert lab.markers[0].partitions == frozenset()
    lab.confirm()
    assert written(lab) == ["Empty", "PrepareAbort", "CompleteAbort"]
    assert (lab.client, lab[TXN].start_ms) == (after, WALL_MS)


def test_markers_that_were_confirmed_for_another_end_complete_nothing() -> None:
    lab = in_state(TransactionState.PREPARE_COMMIT, version=2)
    me = lab[TXN].writer
    lab.submit(MarkersWritten(TXN, ProducerIdAndEpoch(me.id, me.epoch - 1)))
    lab.submit(MarkersWritten("unknown", me))
    assert lab.state is TransactionState.PREPARE_COMMIT
    lab.confirm()
    lab.submit(MarkersWritten(TXN, me))
    assert written(lab).count("CompleteCommit") == 1


def test_a_completion_that_cannot_be_written_is_tried_again() -> None:
    lab = in_state(TransactionState.PREPARE_ABORT, version=2)
    lab.fail_writes = True
    lab.confirm()
    lab.advance(1_000)
    assert lab.state is TransactionState.PREPARE_ABORT
    lab.fail_writes = False
    lab.advance(1_000)
    assert lab.state is TransactionState.COMPLETE_ABORT


# After a restart


@pytest.mark.parametrize("state", [TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT])
@pytest.mark.parametrize("version", [0, 2])
def test_markers_are_driven_again_until_they_are_confirmed(state: TransactionState, version: int) -> None:
    lab = in_state(state, version=version)
    ordered = lab.markers[0]
    for restart in range(1, 4):
        lab.reload()
        assert lab.markers == [
            WriteMarkers(
                TXN, ordered.writer, ordered.commit, frozenset({A, B}), restart, ordered.client_version
            )
        ]
        assert lab.code(InitProducerId(TXN, 60_000)) is ErrorCode.CONCURRENT_TRANSACTIONS
    lab.confirm()
    lab.reload()
    assert lab.markers == []
    assert lab.init().producer.epoch == ordered.writer.epoch + 1


def test_the_state_survives_a_restart_at_any_record() -> None:
    lab = TransactionHarness(TINY)
    for commit in (True, False) * 4:
        me = lab.begin()
        lab.add(me, A)
        lab.add(me, B)
        lab.end(me, commit=commit)
        lab.confirm()
    for length in range(len(lab.log) + 1):
        half = TransactionHarness(TINY)
        half.log = lab.log[:length]
        half.reload()
        before = dict(half.shard.transactions)
        half.reload()
        assert half.shard.transactions == before


# Epochs that run out


def test_epochs_of_version_2_run_over_to_a_new_producer_id() -> None:
    lab = TransactionHarness(TINY)
    me = lab.init().producer
    seen = [me]
    for _ in range(6):
        lab.add(me, A)
        me = lab.commit(me)
        seen.append(me)
    assert [(each.id, each.epoch) for each in seen] == [
        (1000, 0), (1000, 1), (1000, 2), (1001, 0), (1001, 1), (1001, 2), (1002, 0),
    ]  # fmt: skip


def test_the_end_that_runs_over_writes_markers_with_the_last_epoch() -> None:
    lab = TransactionHarness(TINY)
    me = lab.init().producer
    for _ in range(2):
        lab.add(me, A)
        me = lab.commit(me)
    lab.add(me, A)
    after = lab.end(me)
    assert after == ProducerIdAndEpoch(1001, 0)
    assert lab.markers[0].writer == ProducerIdAndEpoch(1000, 3)
    # The next transaction has to wait, though the producer has its new id already.
    assert lab.code(AddPartitions(TXN, after, frozenset({A}), 2)) is ErrorCode.CONCURRENT_TRANSACTIONS
    lab.reload()
    assert lab.markers[0].writer == ProducerIdAndEpoch(1000, 3)
    lab.confirm()
    assert lab.end(me) == after  # the end once more, as its answer was lost
    assert lab.code(EndTransaction(TXN, me, False, 2)) is ErrorCode.INVALID_TXN_STATE
    lab.add(after, A)
    assert lab.code(EndTransaction(TXN, me, True, 2)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_new_producers_use_up_epochs_too() -> None:
    lab = TransactionHarness(TINY)
    seen = [lab.init().producer for _ in range(5)]
    assert [(each.id, each.epoch) for each in seen] == [
        (1000, 0), (1000, 1), (1000, 2), (1001, 0), (1001, 1),
    ]  # fmt: skip


def test_a_producer_that_goes_on_over_the_end_of_its_epochs_may_ask_twice() -> None:
    lab = TransactionHarness(TINY)
    for _ in range(3):
        me = lab.init().producer
    after = lab.init(me).producer
    assert after == ProducerIdAndEpoch(1001, 0)
    assert lab.init(me).producer == after
    lab.add(after, A)
    assert lab.code(InitProducerId(TXN, 60_000, me)) is ErrorCode.PRODUCER_FENCED


def test_replacing_a_producer_at_the_last_epoch_does_not_overflow() -> None:
    for version in (1, 2):
        lab = TransactionHarness(TINY, version=version)
        for _ in range(3):
            me = lab.init().producer
        lab.add(me, A, version=0)
        assert lab.code(InitProducerId(TXN, 60_000)) is ErrorCode.CONCURRENT_TRANSACTIONS
        assert lab.markers[0].writer == ProducerIdAndEpoch(1000, 3)
        lab.confirm()
        assert lab.init().producer.id > me.id
        assert lab.client.epoch < TINY.max_epoch


def test_a_timeout_at_the_last_epoch_does_not_overflow() -> None:
    lab = TransactionHarness(TINY)
    for _ in range(3):
        me = lab.init(timeout_ms=1_000).producer
    lab.add(me, A)
    lab.advance(20_000)
    assert lab.markers[0].writer == ProducerIdAndEpoch(1000, 3)
    lab.confirm()
    assert lab.client == ProducerIdAndEpoch(1001, 0)
    # The producer that was too slow aborts, and gets its new identity.
    assert lab.end(me, commit=False) == ProducerIdAndEpoch(1001, 0)


def test_initialisation_does_not_move_the_epoch_twice_when_it_aborts() -> None:
    lab = in_state(TransactionState.ONGOING, version=2)
    me = lab.client
    assert lab.code(InitProducerId(TXN, 60_000)) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert lab.markers[0].writer == ProducerIdAndEpoch(me.id, me.epoch + 1)
    for _ in range(3):
        assert lab.code(InitProducerId(TXN, 60_000)) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert len(lab.markers) == 1
    lab.confirm()
    assert lab.init().producer.epoch == me.epoch + 2


def test_a_zombie_does_not_abort_the_transaction_of_its_successor() -> None:
    lab = TransactionHarness()
    zombie = lab.init().producer
    lab.add(zombie, A)
    me = lab.begin()
    lab.add(me, A)
    assert lab.code(InitProducerId(TXN, 60_000, zombie)) is ErrorCode.PRODUCER_FENCED
    assert lab.state is TransactionState.ONGOING
    lab.commit(me)


# Timeouts


@pytest.mark.parametrize("version", [1, 2])
def test_a_transaction_past_its_timeout_is_aborted(version: int) -> None:
    lab = TransactionHarness(version=version)
    client_version = 2 if version == 2 else 0
    me = lab.init(timeout_ms=5_000).producer
    lab.add(me, A, version=client_version)
    lab.advance(4_999)
    assert lab.state is TransactionState.ONGOING
    lab.advance(10_002)
    assert lab.state is TransactionState.PREPARE_ABORT
    assert not lab.markers[0].commit
    assert lab.markers[0].writer == ProducerIdAndEpoch(me.id, me.epoch + 1)
    lab.confirm()
    # A commit that was on its way comes too late.
    assert lab.code(EndTransaction(TXN, me, True, client_version)) is ErrorCode.PRODUCER_FENCED
    assert lab.code(AddPartitions(TXN, me, frozenset({B}), client_version)) is ErrorCode.PRODUCER_FENCED


def test_the_timeout_counts_from_the_beginning_of_the_transaction() -> None:
    lab = TransactionHarness()
    me = lab.init(timeout_ms=15_000).producer
    lab.advance(60_000)
    lab.add(me, A)
    lab.advance(10_000)
    lab.add(me, B)
    assert lab.state is TransactionState.ONGOING
    lab.advance(16_000)
    assert lab.state is TransactionState.PREPARE_ABORT


def test_a_timeout_is_found_after_a_restart() -> None:
    lab = TransactionHarness()
    me = lab.init(timeout_ms=5_000).producer
    lab.add(me, A)
    lab.reload()
    lab.advance(20_000)
    assert lab.state is TransactionState.PREPARE_ABORT


def test_a_clock_that_is_behind_keeps_no_transaction_open() -> None:
    lab = TransactionHarness()
    me = lab.init(timeout_ms=25_000).producer
    lab.add(me, A)
    lab.set_clock_back(240_000)
    lab.reload()
    lab.advance(30_000)
    assert lab.state is TransactionState.ONGOING  # seen after ten seconds, and has its time from then on
    lab.advance(20_000)
    assert lab.state is TransactionState.PREPARE_ABORT
    assert not lab.markers[0].commit
    # The next one that begins by the clock as it is now has its own time.
    lab.confirm()
    me = lab.init(timeout_ms=25_000).producer
    lab.add(me, A)
    lab.advance(25_000)
    assert lab.state is TransactionState.ONGOING
    lab.advance(11_000)
    assert lab.state is TransactionState.PREPARE_ABORT


def test_a_clock_that_is_a_little_behind_gives_a_little_more_time() -> None:
    lab = TransactionHarness()
    me = lab.init(timeout_ms=25_000).producer
    lab.add(me, A)
    lab.set_clock_back(12_000)
    lab.advance(36_999)
    assert lab.state is TransactionState.ONGOING
    lab.advance(10_002)
    assert lab.state is TransactionState.PREPARE_ABORT


def test_a_timeout_that_cannot_be_written_is_tried_again() -> None:
    lab = TransactionHarness()
    me = lab.init(timeout_ms=1_000).producer
    lab.add(me, A)
    lab.fail_writes = True
    lab.advance(30_000)
    assert (lab.state, lab.markers) == (TransactionState.ONGOING, [])
    lab.fail_writes = False
    lab.advance(10_000)
    assert lab.state is TransactionState.PREPARE_ABORT


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001, 2**31 - 1])
def test_a_timeout_has_to_be_sensible(timeout_ms: int) -> None:
    lab = TransactionHarness()
    assert lab.code(InitProducerId(TXN, timeout_ms)) is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert not lab.log


# Expiry


def test_an_id_that_nobody_uses_expires() -> None:
    week = TransactionConfig().transactional_id_expiration_ms
    lab = TransactionHarness()
    me = lab.init().producer
    lab.add(me, A)
    after = lab.commit(me)
    lab.leap(week - 1)
    lab.add(after, A)
    lab.commit(after)
    lab.leap(week - 3_600_000)
    assert TXN in lab.shard.transactions
    lab.leap(2 * 3_600_000)
    assert TXN not in lab.shard.transactions
    assert written(lab)[-1] == "gone"
    lab.reload()
    assert not lab.shard.transactions
    assert lab.code(EndTransaction(TXN, me, True, 2)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert lab.init(me).producer == ProducerIdAndEpoch(1001, 0)  # a producer that comes back begins again


@pytest.mark.parametrize(
    "state", [TransactionState.ONGOING, TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT]
)
def test_what_is_open_does_not_expire(state: TransactionState) -> None:
    lab = in_state(state, version=2, config=TransactionConfig(two_phase_commit_enabled=True))
    if state is TransactionState.ONGOING:
        lab = TransactionHarness(TransactionConfig(two_phase_commit_enabled=True))
        lab.add(lab.init(enable_two_phase=True).producer, A)
    lab.leap(3 * TransactionConfig().transactional_id_expiration_ms)
    assert lab.state is state


# Looking


def test_lists_are_filtered() -> None:
    lab = TransactionHarness()
    producers = {}
    for number, name in enumerate(("pay-1", "pay-2", "ship")):
        producers[name] = lab.submit(InitProducerId(name, 60_000)).producer
        lab.submit(AddPartitions(name, producers[name], frozenset({A}), 2))
        lab.advance(1_000 * (number + 1))
    lab.submit(EndTransaction("ship", producers["ship"], True, 2))

    def listed(**filters: object) -> list[str]:
        values: dict[str, object] = {
            "states": None, "producer_ids": frozenset(), "duration_ms": -1, "matches": None, **filters
        }  # fmt: skip
        return [each.transactional_id for each in lab.submit(ListTransactions(**values))]  # type: ignore[arg-type]

    assert listed() == ["pay-1", "pay-2", "ship"]
    assert listed(states=frozenset({BY_TITLE["PrepareCommit"]})) == ["ship"]
    assert listed(states=frozenset()) == []  # all that were asked for are unknown
    assert listed(producer_ids=frozenset({1001})) == ["pay-2"]
    assert listed(duration_ms=5_000) == ["pay-1"]
    assert listed(matches=lambda name: name.startswith("pay")) == ["pay-1", "pay-2"]


def test_a_description_says_it_all() -> None:
    lab = in_state(TransactionState.ONGOING, version=2)
    found = lab.submit(DescribeTransaction(TXN))
    assert (found.state.title, found.partitions, found.timeout_ms) == ("Ongoing", {A, B}, 60_000)
    assert (found.producer_id, found.producer_epoch, found.start_ms) == (1000, 0, WALL_MS)


# Records


def test_records_are_those_of_kafka() -> None:
    """Value version 1: non-flexible fields, then tagged ones that differ from their default."""
    lab = TransactionHarness()
    me = lab.init().producer
    lab.add(me, A)
    lab.end(me)
    key, value = lab.log[-1]
    assert key.hex() == "0000" + "0003" + b"txn".hex()
    assert value is not None
    assert value.hex() == (
        "0001"  # version
        "00000000000003e8"  # producer id 1000
        "0001"  # epoch 1
        "0000ea60"  # timeout 60 s
        "02"  # PrepareCommit
        "02" "02" "61" "02" "00000000" "00"  # one topic, "a", one partition, 0, no tags
        "0000018bcfe56800" "0000018bcfe56800"  # last update, start
        "02"  # two tags
        "00" "08" "00000000000003e8"  # previous producer id
        "02" "02" "0002"  # client's transaction version
    )  # fmt: skip


def test_an_old_cluster_gets_records_of_version_0() -> None:
    lab = TransactionHarness(version=0)
    me = lab.init().producer
    lab.add(me, A, version=0)
    lab.commit(me, version=0)
    assert {value[:2] for _, value in lab.log if value is not None} == {b"\x00\x00"}
    before = lab[TXN]
    lab.reload()
    assert lab[TXN] == before
    # What version 0 cannot hold is written in version 1, rather than lost.
    lab.add(me, A)
    lab.commit(me)
    last = lab.log[-1][1]
    assert last is not None
    assert last[:2] == b"\x00\x01"


def test_every_field_survives_a_record() -> None:
    full = TransactionMetadata(
        TXN, 5, 6, 7, TransactionState.ONGOING, frozenset({A, B}), 8, 9, 10, 11, 12, 2
    )  # fmt: skip
    record = transaction_record(full, 2)
    assert isinstance(record.value, TransactionLogValue)
    data = encode_value(record.value, record.version)
    assert transaction_of(TXN, TransactionLogValue.decode(data[2:], 1)) == full
    assert encode_key(record.key).endswith(b"txn")


def test_a_state_from_the_future_is_not_guessed() -> None:
    with pytest.raises(KafkaError, match="unknown state 99") as raised:
        transaction_of(TXN, TransactionLogValue(transaction_status=99))
    assert raised.value.code is ErrorCode.CORRUPT_MESSAGE
