"""ReadShareGroupStateSummary: read the epochs and start offsets of share partitions, without their batches.

The group coordinator sends it to describe the offsets of a share group; it fences no leader.

Version 1 has the number of completed deliveries (KIP-1226).
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial

from ottla.coordinator.share.persister import StateSummary
from ottla.node.api.context import RequestContext
from ottla.node.api.share_state_requests import is_empty, run_for_partitions
from ottla.protocol.messages.read_share_group_state_summary import (
    PartitionResult,
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    ReadStateSummaryResult,
)
from ottla.protocol.names import TopicIdPartition


def handle(
    context: RequestContext, request: ReadShareGroupStateSummaryRequest
) -> ReadShareGroupStateSummaryResponse | Awaitable[ReadShareGroupStateSummaryResponse]:
    context.require_cluster_action()
    if is_empty(request.group_id, request.topics):
        return ReadShareGroupStateSummaryResponse()
    return _read(context, request)


async def _read(
    context: RequestContext, request: ReadShareGroupStateSummaryRequest
) -> ReadShareGroupStateSummaryResponse:
    coordinator = context.broker.coordinators.share
    results = await run_for_partitions(
        context.broker.runtime.clock,
        request.topics,
        lambda part: part.leader_epoch,
        partial(coordinator.read_summary, request.group_id),
    )
    return ReadShareGroupStateSummaryResponse(
        results=[
            ReadStateSummaryResult(
                topic_id=topic.topic_id,
                partitions=[
                    _result(part.partition, results[TopicIdPartition(topic.topic_id, part.partition)])
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _result(partition: int, summary: StateSummary) -> PartitionResult:
    if summary.error:
        return PartitionResult(
            partition=partition, error_code=int(summary.error), error_message=summary.error_message
        )
    return PartitionResult(
        partition=partition,
        state_epoch=summary.state_epoch,
        leader_epoch=summary.leader_epoch,
        start_offset=summary.start_offset,
        delivery_complete_count=summary.delivery_complete_count,
    )
