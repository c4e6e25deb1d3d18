"""Requests of the share coordinator's APIs in one line each: for share partitions of one group and topic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ottla.protocol.names import SharePartitionKey
from ottla.protocol.schema import Request
from tests.support.messages import request_of

SHARE = 2
AVAILABLE, ACKNOWLEDGED, ARCHIVED = 0, 2, 4

Batch = tuple[int, int, int, int]
"""First and last offset, delivery state, delivery count."""


def find(group: str, topic_id: bytes, partitions: Iterable[int]) -> Request:
    keys = [SharePartitionKey(group, topic_id, partition).coordinator_key for partition in partitions]
    return request_of("FindCoordinator", key_type=SHARE, coordinator_keys=keys)


def _request(api: str, group: str, topic_id: bytes, partitions: Iterable[dict[str, Any]]) -> Request:
    return request_of(
        f"{api}ShareGroupState", group_id=group, topics=[{"topic_id": topic_id, "partitions": partitions}]
    )


def initialize(group: str, topic_id: bytes, states: Mapping[int, tuple[int, int]]) -> Request:
    """Partitions with their state epochs and start offsets."""
    partitions = [
        {"partition": partition, "state_epoch": epoch, "start_offset": start}
        for partition, (epoch, start) in states.items()
    ]
    return _request("Initialize", group, topic_id, partitions)


def read(group: str, topic_id: bytes, epochs: Mapping[int, int]) -> Request:
    """Partitions with their leader epochs."""
    partitions = [{"partition": partition, "leader_epoch": epoch} for partition, epoch in epochs.items()]
    return _request("Read", group, topic_id, partitions)


def write(
    group: str,
    topic_id: bytes,
    partition: int,
    *batches: Batch,
    state_epoch: int = 1,
    leader_epoch: int = 0,
    start: int = -1,
    complete: int = -1,
) -> Request:
    names = ("first_offset", "last_offset", "delivery_state", "delivery_count")
    written = {
        "partition": partition,
        "state_epoch": state_epoch,
        "leader_epoch": leader_epoch,
        "start_offset": start,
        "delivery_complete_count": complete,
        "state_batches": [dict(zip(names, batch, strict=True)) for batch in batches],
    }
    return _request("Write", group, topic_id, [written])


def delete(group: str, topic_id: bytes, partitions: Iterable[int]) -> Request:
    return _request("Delete", group, topic_id, [{"partition": each} for each in partitions])


def summary(group: str, topic_id: bytes, partitions: Iterable[int]) -> Request:
    topic = {
        "topic_id": topic_id,
        "partitions": [{"partition": each, "leader_epoch": 0} for each in partitions],
    }
    return request_of("ReadShareGroupStateSummary", group_id=group, topics=[topic])
