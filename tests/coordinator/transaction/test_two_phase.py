"""Two-phase commit (KIP-939): transactions that an external coordinator decides, at any time."""

from __future__ import annotations

import pytest

from ottla.coordinator.runtime.effects import ProducerIdAndEpoch
from ottla.coordinator.transaction.config import NO_TIMEOUT_MS, TransactionConfig
from ottla.coordinator.transaction.requests import (
    AddPartitions,
    EndTransaction,
    InitProducerId,
    VerifyPartitions,
)
from ottla.coordinator.transaction.transaction_metadata import TransactionState
from ottla.protocol.errors import ErrorCode

from .transaction_harness import TXN, A, B, TransactionHarness

CONFIG = TransactionConfig(two_phase_commit_enabled=True)
TINY = TransactionConfig(two_phase_commit_enabled=True, max_epoch=3)


def prepared(config: TransactionConfig = CONFIG) -> tuple[TransactionHarness, ProducerIdAndEpoch]:
    """A transaction that is written and waits for the decision; its producer is gone."""
    lab = TransactionHarness(config)
    writer = lab.init(enable_two_phase=True).producer
    lab.add(writer, A, B)
    return lab, writer


def test_it_has_to_be_allowed() -> None:
    lab = TransactionHarness()
    request = InitProducerId(TXN, 60_000, enable_two_phase=True)
    assert lab.code(request) is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    lab.configure(CONFIG)
    assert lab.code(request) is ErrorCode.NONE
    assert lab[TXN].timeout_ms == NO_TIMEOUT_MS


def test_a_prepared_transaction_has_no_timeout() -> None:
    lab, writer = prepared()
    lab.leap(365 * 24 * 3600 * 1000)
    lab.reload()
    lab.advance(60_000)
    assert lab.state is TransactionState.ONGOING
    lab.commit(writer)
    assert lab.state is TransactionState.COMPLETE_COMMIT


def test_whoever_knows_the_writer_can_decide_and_ask_again() -> None:
    """The way of the Spark sink: the driver ends what tasks have written, by producer id and epoch."""
    lab, writer = prepared()
    after = lab.commit(writer)
    for _ in range(3):
        lab.reload()
        assert lab.end(writer) == after
    assert lab.code(EndTransaction(TXN, writer, False, 2)) is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("commit", [True, False])
def test_a_resumed_producer_decides(commit: bool) -> None:
    lab, writer = prepared()
    resumed = lab.init(enable_two_phase=True, keep_prepared=True)
    assert resumed.ongoing == writer
    me = resumed.producer
    assert me == ProducerIdAndEpoch(writer.id, writer.epoch + 1)
    assert lab.state is TransactionState.ONGOING
    # The one that wrote it has lost its say.
    assert lab.code(EndTransaction(TXN, writer, commit, 2)) is ErrorCode.PRODUCER_FENCED
    after = lab.end(me, commit=commit)
    assert after == ProducerIdAndEpoch(me.id, me.epoch + 1)
    marker = lab.markers[0]
    assert (marker.writer, marker.commit) == (ProducerIdAndEpoch(writer.id, writer.epoch + 1), commit)
    assert marker.partitions == {A, B}
    lab.confirm()
    assert lab.client == after
    assert lab.end(me, commit=commit) == after
    lab.add(after, A)
    lab.commit(after)


def test_a_kept_transaction_survives_restarts_and_further_producers() -> None:
    lab, writer = prepared()
    for count in range(1, 5):
        lab.reload()
        resumed = lab.init(enable_two_phase=True, keep_prepared=True)
        assert resumed.ongoing == writer
        assert resumed.producer == ProducerIdAndEpoch(writer.id, writer.epoch + count)
    me = resumed.producer
    after = lab.end(me)
    lab.reload()
    assert lab.markers[0].writer == ProducerIdAndEpoch(writer.id, writer.epoch + 1)
    lab.confirm()
    assert lab.client == after == ProducerIdAndEpoch(me.id, me.epoch + 1)


def test_a_kept_transaction_can_only_be_ended() -> None:
    lab, writer = prepared()
    me = lab.init(enable_two_phase=True, keep_prepared=True).producer
    for partitions in (frozenset({A}), frozenset({A, B})):
        assert lab.code(AddPartitions(TXN, me, partitions, 2)) is ErrorCode.INVALID_TXN_STATE
        assert lab.code(AddPartitions(TXN, writer, partitions, 2)) is ErrorCode.PRODUCER_FENCED
        assert lab.code(VerifyPartitions(TXN, me, partitions)) is ErrorCode.INVALID_TXN_STATE
    assert lab.code(EndTransaction(TXN, me, True, 0)) is ErrorCode.INVALID_TXN_STATE
    lab.commit(me)


def test_without_keeping_the_prepared_transaction_is_aborted() -> None:
    lab, writer = prepared()
    kept = lab.init(enable_two_phase=True, keep_prepared=True).producer
    assert lab.code(InitProducerId(TXN, 1, enable_two_phase=True)) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert not lab.markers[0].commit
    assert lab.markers[0].writer == ProducerIdAndEpoch(writer.id, writer.epoch + 1)
    lab.confirm()
    assert lab.init(enable_two_phase=True).producer == ProducerIdAndEpoch(kept.id, kept.epoch + 2)


def test_there_may_be_nothing_to_keep() -> None:
    lab = TransactionHarness(CONFIG)
    first = lab.init(enable_two_phase=True, keep_prepared=True)
    assert (first.producer, first.ongoing) == (ProducerIdAndEpoch(1000, 0), None)
    again = lab.init(enable_two_phase=True, keep_prepared=True)
    assert (again.producer, again.ongoing) == (ProducerIdAndEpoch(1000, 1), None)
    lab.add(again.producer, A)
    lab.end(again.producer)
    request = InitProducerId(TXN, 1, enable_two_phase=True, keep_prepared=True)
    assert lab.code(request) is ErrorCode.CONCURRENT_TRANSACTIONS


def test_keeping_needs_transactions_of_version_2() -> None:
    lab = TransactionHarness(CONFIG, version=1)
    assert lab.code(InitProducerId(TXN, 60_000, keep_prepared=True)) is ErrorCode.UNSUPPORTED_VERSION


def test_a_decision_over_the_end_of_the_epochs() -> None:
    lab, writer = prepared(TINY)
    seen = [lab.init(enable_two_phase=True, keep_prepared=True).producer for _ in range(4)]
    assert seen == [
        ProducerIdAndEpoch(1000, 1),
        ProducerIdAndEpoch(1000, 2),
        ProducerIdAndEpoch(1001, 0),
        ProducerIdAndEpoch(1001, 1),
    ]
    last = lab.init(enable_two_phase=True, keep_prepared=True).producer
    assert last == ProducerIdAndEpoch(1001, 2)
    after = lab.end(last)
    assert after == ProducerIdAndEpoch(1002, 0)
    assert lab.markers[0].writer == ProducerIdAndEpoch(writer.id, writer.epoch + 1)
    lab.reload()
    lab.confirm()
    assert lab.client == after
    assert lab.end(last) == after  # the end once more
    lab.add(after, A)
    lab.commit(after)
