"""Which batches of transactions compaction may drop, as it walks through a log."""

from __future__ import annotations

import pytest

from ottla.log.cleaner.compaction import CleanedTransactionMetadata
from ottla.log.segment.txn_index import AbortedTxn
from ottla.records.batch import BatchHeader
from ottla.records.builder import build_batch
from ottla.records.compaction import empty_batch
from ottla.records.control import ControlType, EndTransactionMarker, build_end_transaction_marker


def data(producer_id: int, offset: int, *, transactional: bool = True) -> BatchHeader:
    batch = build_batch(
        [(0, b"k", b"v")],
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        transactional=transactional,
    )
    return BatchHeader.parse(batch)


def marker(producer_id: int, offset: int, kind: ControlType) -> tuple[bytes, int, BatchHeader]:
    batch = build_end_transaction_marker(
        EndTransactionMarker(kind, 0),
        producer_id=producer_id,
        producer_epoch=0,
        timestamp=0,
        base_offset=offset,
    )
    return batch, 0, BatchHeader.parse(batch)


def abort(producer_id: int, offset: int) -> tuple[bytes, int, BatchHeader]:
    return marker(producer_id, offset, ControlType.ABORT)


def commit(producer_id: int, offset: int) -> tuple[bytes, int, BatchHeader]:
    return marker(producer_id, offset, ControlType.COMMIT)


def test_batches_between_the_first_offset_and_the_marker_are_aborted() -> None:
    txns = CleanedTransactionMetadata([AbortedTxn(1, 5, 9, 10)])
    assert not txns.on_batch_read(data(1, 4))
    assert txns.on_batch_read(data(1, 5))
    assert not txns.on_batch_read(data(2, 6))
    assert not txns.on_batch_read(data(1, 7, transactional=False))
    assert txns.on_batch_read(data(1, 8))
    assert not txns.on_control_batch_read(*abort(1, 9))
    assert not txns.on_batch_read(data(1, 10))


def test_a_transaction_whose_marker_is_missing_ends_where_its_marker_was() -> None:
    txns = CleanedTransactionMetadata([AbortedTxn(1, 5, 9, 10)])
    assert txns.on_batch_read(data(1, 5))
    assert not txns.on_batch_read(data(1, 10))


def test_a_walk_that_begins_late_is_not_misled_by_what_ended_before() -> None:
    txns = CleanedTransactionMetadata([AbortedTxn(1, 0, 9, 10), AbortedTxn(1, 12, 20, 21)])
    assert not txns.on_batch_read(data(1, 10))
    assert not txns.on_control_batch_read(*commit(1, 11))
    assert txns.on_batch_read(data(1, 12))


def test_an_abort_marker_may_go_when_no_batch_of_its_transaction_was_met() -> None:
    kept: list[AbortedTxn] = []
    first, second = AbortedTxn(1, 0, 2, 3), AbortedTxn(1, 5, 9, 10)
    txns = CleanedTransactionMetadata([second, first])
    txns.on_retained_abort = kept.append
    assert txns.on_batch_read(data(1, 0))
    assert not txns.on_control_batch_read(*abort(1, 2))
    assert kept == [first]
    assert txns.on_control_batch_read(*abort(1, 9)), "the batch of the first one says nothing of the second"
    assert kept == [first]
    assert txns.on_control_batch_read(*abort(1, 12)), "a marker of no transaction that is known"


def test_a_commit_marker_may_go_when_no_batch_was_met_since_the_last_marker() -> None:
    txns = CleanedTransactionMetadata([])
    assert txns.on_control_batch_read(*commit(1, 0))
    txns.on_batch_read(data(1, 1))
    txns.on_batch_read(data(2, 2))
    assert not txns.on_control_batch_read(*commit(1, 3))
    assert txns.on_control_batch_read(*commit(1, 4))
    assert not txns.on_control_batch_read(*commit(2, 5))


def test_an_emptied_marker_may_go() -> None:
    txns = CleanedTransactionMetadata([])
    batch = empty_batch(commit(1, 0)[2])
    assert txns.on_control_batch_read(batch, 0, BatchHeader.parse(batch))


@pytest.mark.parametrize("kind", [ControlType.LEADER_CHANGE, ControlType.SNAPSHOT_HEADER])
def test_other_control_records_stay(kind: ControlType) -> None:
    from ottla.protocol.control_records import LeaderChangeMessage, SnapshotHeaderRecord
    from ottla.records.control import build_quorum_batch

    message = LeaderChangeMessage() if kind is ControlType.LEADER_CHANGE else SnapshotHeaderRecord()
    batch = build_quorum_batch([message], timestamp=0, leader_epoch=1)
    assert not CleanedTransactionMetadata([]).on_control_batch_read(batch, 0, BatchHeader.parse(batch))
