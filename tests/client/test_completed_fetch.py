"""What a consumer's position is after a fetch: the offset, and the epoch to ask the next leader for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ottla.client.consumer.completed_fetch import CompletedFetch, UnreadableBatch
from ottla.client.consumer.fetch_collector import FetchCollector
from ottla.client.consumer.subscription_state import TopicPartitionState
from ottla.protocol.names import TopicPartition
from ottla.records.builder import build_batch
from ottla.records.control import ControlType, EndTransactionMarker, build_end_transaction_marker
from ottla.records.types import Codec
from ottla.runtime.pool import InlinePool


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


MB = 1024 * 1024


def fetch_of_compressed(sizes: list[int], *, max_decompressed_bytes: int = 256 * MB) -> CompletedFetch:
    """A batch of one record for each size, of bytes that compress to almost nothing."""
    records = b"".join(
        bytes(build_batch([(1, None, bytes(size))], base_offset=at, codec=Codec.ZSTD))
        for at, size in enumerate(sizes)
    )
    state = TopicPartitionState(TopicPartition("t", 0))
    state.seek(0)
    return CompletedFetch(
        state,
        records,
        fetch_offset=0,
        aborted=[],
        check_crcs=True,
        node_id=1,
        max_decompressed_bytes=max_decompressed_bytes,
    )


def collector_of(fetch: CompletedFetch) -> FetchCollector[bytes, bytes]:
    fetcher: Any = SimpleNamespace(first_readable=lambda: fetch, finish=lambda _: None)
    return FetchCollector(fetcher, Any, None, None, lambda: None, InlinePool())


def test_compressed_batches_are_decoded_until_a_poll_has_enough() -> None:
    fetch = fetch_of_compressed([30 * MB] * 20)
    assert fetch.size < 64 * 1024
    collector = collector_of(fetch)
    for poll in range(5):
        found = collector.take(500, 50 * MB)
        assert [record.offset for record in found] == [2 * poll, 2 * poll + 1]
        assert fetch.inflated_bytes < (poll + 1) * 61 * MB


def test_a_batch_that_is_larger_than_a_poll_comes_alone() -> None:
    collector = collector_of(fetch_of_compressed([40 * MB, 80 * MB, 40 * MB]))
    assert [[record.offset for record in collector.take(500, MB)] for _ in range(3)] == [[0], [1], [2]]


def test_a_batch_that_inflates_to_more_than_is_allowed_says_where_to_go_on() -> None:
    fetch = fetch_of_compressed([10, 10, 3 * MB, 10], max_decompressed_bytes=2 * MB)
    assert sum(len(fetch.take(500, None, None)) for _ in range(2)) == 2
    with pytest.raises(UnreadableBatch, match="2097152 bytes allowed") as refused:
        fetch.take(500, None, None)
    assert (refused.value.offset, refused.value.next_offset) == (2, 3)
