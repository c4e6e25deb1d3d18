"""What a consumer's position is after a fetch: the offset, and the epoch to ask the next leader for."""

from __future__ import annotations

from ottla.client.consumer.completed_fetch import CompletedFetch
from ottla.client.consumer.subscription_state import TopicPartitionState
from ottla.protocol.names import TopicPartition
from ottla.records.builder import build_batch
from ottla.records.control import ControlType, EndTransactionMarker, build_end_transaction_marker


def fetch_with_a_marker_of_the_next_leader() -> CompletedFetch:
    records = build_batch([(1, None, b"a"), (2, None, b"b")], base_offset=0, leader_epoch=1)
    marker = build_end_transaction_marker(
        EndTransactionMarker(ControlType.COMMIT, 0),
        producer_id=7,
        producer_epoch=0,
        timestamp=3,
        base_offset=2,
        leader_epoch=2,
    )
    state = TopicPartitionState(TopicPartition("t", 0))
    state.seek(0)
    return CompletedFetch(state, records + marker, fetch_offset=0, aborted=[], check_crcs=True, node_id=1)


def test_the_epoch_behind_a_marker_is_the_markers() -> None:
    fetch = fetch_with_a_marker_of_the_next_leader()
    assert len(fetch.take(10, None, None)) == 2
    assert (fetch.state.position, fetch.state.position_epoch) == (3, 2)


def test_the_epoch_behind_a_record_is_the_records() -> None:
    fetch = fetch_with_a_marker_of_the_next_leader()
    assert len(fetch.take(1, None, None)) == 1
    assert (fetch.state.position, fetch.state.position_epoch) == (1, 1)


def test_a_whole_fetch_as_columns_ends_with_the_epoch_of_its_marker() -> None:
    fetch = fetch_with_a_marker_of_the_next_leader()
    fetch.taken_arrow()
    assert (fetch.state.position, fetch.state.position_epoch) == (3, 2)
