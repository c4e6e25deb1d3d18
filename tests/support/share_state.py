"""Requests of the share coordinator's APIs in one line each: for share partitions of one group and topic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ottla.protocol.messages import (
    delete_share_group_state,
    initialize_share_group_state,
    read_share_group_state,
    read_share_group_state_summary,
    write_share_group_state,
)
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.names import SharePartitionKey

SHARE = 2
AVAILABLE, ACKNOWLEDGED, ARCHIVED = 0, 2, 4

Batch = tuple[int, int, int, int]
"""First and last offset, delivery state, delivery count."""


def find(group: str, topic_id: bytes, partitions: Iterable[int]) -> FindCoordinatorRequest:
    keys = [SharePartitionKey(group, topic_id, partition).coordinator_key for partition in partitions]
    return FindCoordinatorRequest(key_type=SHARE, coordinator_keys=keys)


def initialize(
    group: str, topic_id: bytes, states: Mapping[int, tuple[int, int]]
) -> initialize_share_group_state.InitializeShareGroupStateRequest:
    """Partitions with their state epochs and start offsets."""
    module = initialize_share_group_state
    return module.InitializeShareGroupStateRequest(
        group_id=group,
        topics=[
            module.InitializeStateData(
                topic_id=topic_id,
                partitions=[
                    module.PartitionData(partition=partition, state_epoch=epoch, start_offset=start)
                    for partition, (epoch, start) in states.items()
                ],
            )
        ],
    )


def read(
    group: str, topic_id: bytes, epochs: Mapping[int, int]
) -> read_share_group_state.ReadShareGroupStateRequest:
    """Partitions with their leader epochs."""
    module = read_share_group_state
    return module.ReadShareGroupStateRequest(
        group_id=group,
        topics=[
            module.ReadStateData(
                topic_id=topic_id,
                partitions=[
                    module.PartitionData(partition=partition, leader_epoch=epoch)
                    for partition, epoch in epochs.items()
                ],
            )
        ],
    )


def write(
    group: str,
    topic_id: bytes,
    partition: int,
    *batches: Batch,
    state_epoch: int = 1,
    leader_epoch: int = 0,
    start: int = -1,
    complete: int = -1,
) -> write_share_group_state.WriteShareGroupStateRequest:
    module = write_share_group_state
    return module.WriteShareGroupStateRequest(
        group_id=group,
        topics=[
            module.WriteStateData(
                topic_id=topic_id,
                partitions=[
                    module.PartitionData(
                        partition=partition,
                        state_epoch=state_epoch,
                        leader_epoch=leader_epoch,
                        start_offset=start,
                        delivery_complete_count=complete,
                        state_batches=[
                            module.StateBatch(
                                first_offset=first,
                                last_offset=last,
                                delivery_state=state,
                                delivery_count=count,
                            )
                            for first, last, state, count in batches
                        ],
                    )
                ],
            )
        ],
    )


def delete(
    group: str, topic_id: bytes, partitions: Iterable[int]
) -> delete_share_group_state.DeleteShareGroupStateRequest:
    module = delete_share_group_state
    return module.DeleteShareGroupStateRequest(
        group_id=group,
        topics=[
            module.DeleteStateData(
                topic_id=topic_id, partitions=[module.PartitionData(partition=each) for each in partitions]
            )
        ],
    )


def summary(
    group: str, topic_id: bytes, partitions: Sequence[int]
) -> read_share_group_state_summary.ReadShareGroupStateSummaryRequest:
    module = read_share_group_state_summary
    return module.ReadShareGroupStateSummaryRequest(
        group_id=group,
        topics=[
            module.ReadStateSummaryData(
                topic_id=topic_id,
                partitions=[module.PartitionData(partition=each, leader_epoch=0) for each in partitions],
            )
        ],
    )
