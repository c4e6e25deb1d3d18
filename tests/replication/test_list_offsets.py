"""Offsets by time, as clients of either isolation see them."""

from __future__ import annotations

import pytest

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.replication.list_offsets import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    ListedOffset,
    fetch_offset_for_timestamp,
)
from ottla.replication.partition import FetchIsolation
from tests.replication.partition_harness import PartitionHarness, registration


def test_the_special_values() -> None:
    leader = PartitionHarness()
    start_ms = leader.now_ms
    for _ in range(4):
        leader.produce()
        leader.clock.advance_ms(10)
    partition = leader.partition
    assert fetch_offset_for_timestamp(partition, LATEST) == ListedOffset(-1, 4, 0)
    assert fetch_offset_for_timestamp(partition, EARLIEST) == ListedOffset(-1, 0, 0)
    assert fetch_offset_for_timestamp(partition, EARLIEST_LOCAL) == ListedOffset(-1, 0, 0)
    assert fetch_offset_for_timestamp(partition, MAX_TIMESTAMP) == ListedOffset(start_ms + 30, 3, 0)
    assert fetch_offset_for_timestamp(partition, LATEST_TIERED) == ListedOffset(-1, -1, -1)
    assert fetch_offset_for_timestamp(partition, EARLIEST_PENDING_UPLOAD) == ListedOffset(-1, -1, -1)


def test_by_timestamp() -> None:
    leader = PartitionHarness()
    start_ms = leader.now_ms
    for _ in range(4):
        leader.produce()
        leader.clock.advance_ms(10)
    assert fetch_offset_for_timestamp(leader.partition, start_ms + 15) == ListedOffset(start_ms + 20, 2, 0)
    assert fetch_offset_for_timestamp(leader.partition, 0) == ListedOffset(start_ms, 0, 0)
    assert fetch_offset_for_timestamp(leader.partition, start_ms + 31) is None


def test_an_empty_log_has_neither_a_newest_record_nor_one_by_time() -> None:
    leader = PartitionHarness()
    assert fetch_offset_for_timestamp(leader.partition, MAX_TIMESTAMP) is None
    assert fetch_offset_for_timestamp(leader.partition, 0) is None
    assert fetch_offset_for_timestamp(leader.partition, LATEST) == ListedOffset(-1, 0, 0)


def test_what_is_not_committed_does_not_exist_for_clients() -> None:
    leader = PartitionHarness(replicas=(0, 1))
    start_ms = leader.now_ms
    leader.produce()
    leader.follow(1, 1)
    leader.clock.advance_ms(5)
    leader.produce()
    assert fetch_offset_for_timestamp(leader.partition, LATEST) == ListedOffset(-1, 1, 0)
    assert fetch_offset_for_timestamp(leader.partition, start_ms + 5) is None
    everything = FetchIsolation.LOG_END
    assert fetch_offset_for_timestamp(leader.partition, LATEST, isolation=everything) == ListedOffset(
        -1, 2, 0
    )
    assert fetch_offset_for_timestamp(leader.partition, start_ms + 5, isolation=everything) == ListedOffset(
        start_ms + 5, 1, 0
    )


def test_after_an_election_the_end_is_not_told_until_the_high_watermark_has_caught_up() -> None:
    leader = PartitionHarness(replicas=(0, 1))
    leader.produce(3)
    leader.partition.make_leader(
        registration(replicas=(0, 1), leader_epoch=1, partition_epoch=1), leader.now_ms
    )
    with pytest.raises(KafkaError) as error:
        fetch_offset_for_timestamp(leader.partition, LATEST)
    assert error.value.code is ErrorCode.OFFSET_NOT_AVAILABLE
    with pytest.raises(KafkaError):
        fetch_offset_for_timestamp(leader.partition, leader.now_ms)
    assert fetch_offset_for_timestamp(leader.partition, EARLIEST) == ListedOffset(-1, 0, 0)
    leader.follow(1, 3)
    assert fetch_offset_for_timestamp(leader.partition, LATEST) == ListedOffset(-1, 3, 1)


def test_the_leader_epoch_is_checked() -> None:
    leader = PartitionHarness()
    with pytest.raises(KafkaError) as error:
        fetch_offset_for_timestamp(leader.partition, LATEST, current_leader_epoch=3)
    assert error.value.code is ErrorCode.UNKNOWN_LEADER_EPOCH
