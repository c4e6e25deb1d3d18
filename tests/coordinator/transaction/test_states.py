"""Every request in every state: the reply to the producer, as tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ottla.coordinator.runtime.effects import ProducerIdAndEpoch
from ottla.coordinator.transaction.requests import (
    AddPartitions,
    DescribeTransaction,
    EndTransaction,
    InitProducerId,
    VerifyPartitions,
)
from ottla.coordinator.transaction.transaction_metadata import (
    VALID_PREVIOUS_STATES,
    TransactionMetadata,
    TransactionState,
)
from ottla.protocol.errors import ErrorCode

from .transaction_harness import TXN, A, B, TransactionHarness, in_state

EMPTY, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
PREPARE_COMMIT, PREPARE_ABORT = TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT
COMPLETE_COMMIT, COMPLETE_ABORT = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT
STATES = [EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT]

NONE, CONCURRENT = ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS
INVALID, FENCED = ErrorCode.INVALID_TXN_STATE, ErrorCode.PRODUCER_FENCED
MAPPING = ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize(
    ("state", "commit", "abort"),
    [
        (EMPTY, INVALID, INVALID),
        (ONGOING, NONE, NONE),
        (PREPARE_COMMIT, CONCURRENT, CONCURRENT),
        (PREPARE_ABORT, CONCURRENT, CONCURRENT),
        (COMPLETE_COMMIT, NONE, INVALID),
        (COMPLETE_ABORT, INVALID, NONE),
    ],
)
def test_end_of_version_1(state: TransactionState, commit: ErrorCode, abort: ErrorCode) -> None:
    for committed, expected in ((True, commit), (False, abort)):
        lab = in_state(state, version=0)
        before = lab[TXN]
        assert lab.code(EndTransaction(TXN, lab.client, committed, 0)) is expected
        if expected is NONE and state is not ONGOING:
            assert lab[TXN] == before  # repeated: nothing was written
        assert lab[TXN].producer_epoch == before.producer_epoch


@pytest.mark.parametrize(
    ("state", "commit", "commit_again", "abort", "abort_again"),
    [
        (EMPTY, INVALID, FENCED, NONE, FENCED),
        (ONGOING, NONE, FENCED, NONE, FENCED),
        (PREPARE_COMMIT, CONCURRENT, CONCURRENT, CONCURRENT, CONCURRENT),
        (PREPARE_ABORT, CONCURRENT, CONCURRENT, CONCURRENT, CONCURRENT),
        (COMPLETE_COMMIT, INVALID, NONE, NONE, INVALID),
        (COMPLETE_ABORT, INVALID, FENCED, NONE, NONE),
    ],
)
def test_end_of_version_2(
    state: TransactionState,
    commit: ErrorCode,
    commit_again: ErrorCode,
    abort: ErrorCode,
    abort_again: ErrorCode,
) -> None:
    """'Again' is with the epoch before the present one: what a producer sends whose answer was lost."""
    for committed, repeated, expected in (
        (True, False, commit),
        (True, True, commit_again),
        (False, False, abort),
        (False, True, abort_again),
    ):
        lab = in_state(state, version=2)
        before = lab[TXN]
        epoch = before.producer_epoch - 1 if repeated else before.producer_epoch
        request = EndTransaction(TXN, ProducerIdAndEpoch(before.producer_id, epoch), committed, 2)
        assert lab.code(request) is expected, (committed, repeated)
        if expected is NONE and repeated:
            assert lab[TXN] == before
            assert lab.submit(request) == before.client  # the producer learns who it is
        elif expected is NONE:
            assert lab[TXN].producer_epoch == before.producer_epoch + 1
        else:
            assert lab[TXN] == before


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("state", STATES)
def test_end_of_somebody_else(state: TransactionState, version: int) -> None:
    """While an end is under way, a client of version 2 may carry an identity that is not in force yet."""
    busy = state.is_prepared and version == 2
    for commit in (True, False):
        lab = in_state(state, version=version)
        other_id = ProducerIdAndEpoch(lab.client.id + 7, lab.client.epoch)
        assert lab.code(EndTransaction(TXN, other_id, commit, version)) is (CONCURRENT if busy else MAPPING)
        for epoch in (lab.client.epoch - 2, lab.client.epoch + 1):
            stranger = ProducerIdAndEpoch(lab.client.id, epoch)
            expected = CONCURRENT if busy else FENCED
            assert lab.code(EndTransaction(TXN, stranger, commit, version)) is expected


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("state", STATES)
def test_add_partitions(state: TransactionState, version: int) -> None:
    lab = in_state(state, version=version)
    before, producer = lab[TXN], lab.client
    busy = state.is_prepared
    add = AddPartitions(TXN, producer, frozenset({A}), version)
    assert lab.code(add) is (CONCURRENT if busy else NONE)
    if state is ONGOING:
        assert lab[TXN] == before  # it was in already: nothing was written
    elif not busy:
        assert (lab.state, lab[TXN].partitions) == (ONGOING, {A})
        assert lab[TXN].start_ms == lab.now.wall_ms
    assert lab[TXN].client == producer
    for stranger, expected in (
        (ProducerIdAndEpoch(producer.id + 7, producer.epoch), MAPPING),
        (ProducerIdAndEpoch(producer.id, producer.epoch - 1), FENCED),
        (ProducerIdAndEpoch(producer.id, producer.epoch + 1), FENCED),
    ):
        assert lab.code(replace(add, producer=stranger)) is (CONCURRENT if busy else expected)


@pytest.mark.parametrize("state", STATES)
def test_verify_partitions(state: TransactionState) -> None:
    lab = in_state(state, version=0)
    producer = lab.client
    request = VerifyPartitions(TXN, producer, frozenset({A}))
    if state.is_prepared:
        assert lab.code(request) is CONCURRENT
    else:
        part = NONE if state is ONGOING else ErrorCode.TRANSACTION_ABORTABLE
        assert lab.verify(producer, A) == {A: part}
    assert lab.code(replace(request, producer=ProducerIdAndEpoch(producer.id + 7, producer.epoch))) is MAPPING
    assert lab.code(replace(request, producer=ProducerIdAndEpoch(producer.id, producer.epoch + 1))) is FENCED


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("state", STATES)
def test_a_new_producer(state: TransactionState, version: int) -> None:
    lab = in_state(state, version=version)
    before = lab.client
    request = InitProducerId(TXN, 60_000)
    if state in (EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT):
        assert lab.init().producer == ProducerIdAndEpoch(before.id, before.epoch + 1)
        assert lab.state is EMPTY
        return
    assert lab.code(request) is CONCURRENT
    assert lab.state is (PREPARE_ABORT if state is ONGOING else state)
    lab.confirm()
    assert lab.init().producer == ProducerIdAndEpoch(before.id, before.epoch + (2 if state is ONGOING else 1))


@pytest.mark.parametrize("state", STATES)
def test_a_producer_that_goes_on(state: TransactionState) -> None:
    lab = in_state(state, version=2)
    me = lab.client
    code = lab.code(InitProducerId(TXN, 60_000, me))
    if state is ONGOING or state.is_prepared:
        assert code is CONCURRENT
        return
    assert code is NONE
    assert lab.client == ProducerIdAndEpoch(me.id, me.epoch + 1)
    assert lab.init(me).producer == ProducerIdAndEpoch(
        me.id, me.epoch + 1
    )  # once more, as the answer was lost
    for stranger in (
        ProducerIdAndEpoch(me.id, me.epoch - 1),
        ProducerIdAndEpoch(me.id, me.epoch + 2),
        ProducerIdAndEpoch(me.id + 7, me.epoch),
    ):
        assert lab.code(InitProducerId(TXN, 60_000, stranger)) is FENCED


@pytest.mark.parametrize("version", [0, 2])
def test_a_transactional_id_that_nobody_has(version: int) -> None:
    lab = TransactionHarness()
    stranger = ProducerIdAndEpoch(1, 0)
    assert lab.code(AddPartitions(TXN, stranger, frozenset({A}), version)) is MAPPING
    assert lab.code(VerifyPartitions(TXN, stranger, frozenset({A}))) is MAPPING
    assert lab.code(EndTransaction(TXN, stranger, True, version)) is MAPPING
    assert lab.code(DescribeTransaction(TXN)) is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert not lab.log


@pytest.mark.parametrize("state", STATES)
def test_a_failed_write_changes_nothing(state: TransactionState) -> None:
    for request in (
        InitProducerId(TXN, 60_000),
        AddPartitions(TXN, ProducerIdAndEpoch(1000, 0), frozenset({A, B}), 2),
        EndTransaction(TXN, ProducerIdAndEpoch(1000, 0), False, 2),
    ):
        lab = in_state(state, version=2)
        if not isinstance(request, InitProducerId):
            request = replace(request, producer=lab.client)
        before, log = lab[TXN], list(lab.log)
        lab.fail_writes = True
        lab.code(request)
        assert (lab[TXN], lab.log) == (before, log)
        lab.markers.clear()
        lab.fail_writes = False
        lab.reload()
        assert lab[TXN] == before


def test_the_table_of_steps_is_kept() -> None:
    """A step that the table does not have is refused, whatever asked for it."""
    for state in STATES:
        transaction = TransactionMetadata(TXN, 1, 0, 1, state)
        steps = {
            EMPTY: lambda it: it.with_epoch(1, 1, 1),
            ONGOING: lambda it: it.with_partitions(frozenset({A}), 0, 1),
            PREPARE_COMMIT: lambda it: it.prepare(
                commit=True, client_version=0, epoch=0, next_client=None, wall_ms=1
            ),
            PREPARE_ABORT: lambda it: it.prepare(
                commit=False, client_version=0, epoch=0, next_client=None, wall_ms=1
            ),
        }
        for target, step in steps.items():
            if state in VALID_PREVIOUS_STATES[target]:
                assert step(transaction).state is target
            else:
                with pytest.raises(ValueError, match="cannot go from"):
                    step(transaction)
