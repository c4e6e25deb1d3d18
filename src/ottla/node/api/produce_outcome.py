"""What becomes of records that were appended: the wait for the replicas of what the lane has appended, and
the leaders of partitions that have moved, which a Produce response names from version 10 on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ottla.node.api.context import RequestContext
from ottla.node.api.metadata_view import LEADER_CHANGED, CurrentLeaders
from ottla.node.api.responses import encode
from ottla.node.network.connection import Parts
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.produce import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceResponse,
)
from ottla.replication.partition import Partition

# The size, the correlation id and no tagged fields.
_RESPONSE_HEAD_BYTES: Final = 9


def name_leaders(
    context: RequestContext,
    response: ProduceResponse,
    moved: Sequence[tuple[bytes | str, PartitionProduceResponse]],
) -> None:
    """Name the leaders of partitions that this broker does not lead, each given with its topic."""
    if context.version >= 10:
        leaders = CurrentLeaders(context)
        for topic, part in moved:
            leader = leaders.current_leader(topic, part.index)
            if leader is not None:
                part.current_leader = LeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1])
        response.node_endpoints = [
            NodeEndpoint(node_id=at.id, host=at.host, port=at.port, rack=at.rack)
            for at in leaders.addresses.values()
        ]


async def wait_for_replicas(
    context: RequestContext, encoded: bytes, waiting: list[tuple[Partition, int, int]], timeout_ms: int
) -> Parts:
    """Wait for the in-sync replicas of what the lane has appended; return its response, or one with the
    errors of some partitions. Each in `waiting` has the offset that its high watermark must reach, and its
    place in the response.
    """
    undecided = waiting
    failed: dict[int, ErrorCode] = {}

    def are_decided() -> bool:
        nonlocal undecided
        left = []
        for each in undecided:
            partition, offset, place = each
            outcome = partition.check_enough_replicas_reach_offset(offset)
            if outcome is None:
                left.append(each)
            elif outcome:
                failed[place] = outcome
        undecided = left
        return not left

    purgatory = context.broker.replicas.purgatory
    keys = [partition.topic_partition for partition, _, _ in waiting]
    if not await purgatory.try_complete_else_watch(keys, are_decided, timeout_ms) and not are_decided():
        failed.update((place, ErrorCode.REQUEST_TIMED_OUT) for _, _, place in undecided)
    if not failed:
        return [encoded]
    response, _ = ProduceResponse.decode_from(encoded, _RESPONSE_HEAD_BYTES, context.version)
    parts = [(topic, part) for topic in response.responses for part in topic.partition_responses]
    moved: list[tuple[bytes | str, PartitionProduceResponse]] = []
    for place, code in failed.items():
        topic, part = parts[place]
        part.error_code = int(code)
        context.count_error(part.error_code)
        if code in LEADER_CHANGED:
            moved.append((bytes(topic.topic_id) if context.version >= 13 else topic.name, part))
    if moved:
        name_leaders(context, response, moved)
    return encode(context, response)
