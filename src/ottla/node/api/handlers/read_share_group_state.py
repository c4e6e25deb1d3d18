"""ReadShareGroupState: read the state of share partitions, as the leaders of their topics' partitions.

The first read of a leader at its epoch fences the leaders before it.
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial

from ottla.coordinator.share.persister import ShareState
from ottla.node.api.context import RequestContext
from ottla.node.api.share_state_requests import is_empty, run_for_partitions
from ottla.protocol.messages.read_share_group_state import (
    PartitionResult,
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadStateResult,
    StateBatch,
)
from ottla.protocol.names import TopicIdPartition


def handle(
    context: RequestContext, request: ReadShareGroupStateRequest
) -> ReadShareGroupStateResponse | Awaitable[ReadShareGroupStateResponse]:
    context.require_cluster_action()
    if is_empty(request.group_id, request.topics):
        return ReadShareGroupStateResponse()
    return _read(context, request)


async def _read(context: RequestContext, request: ReadShareGroupStateRequest) -> ReadShareGroupStateResponse:
    coordinator = context.broker.coordinators.share
    results = await run_for_partitions(
        context.broker.runtime.clock,
        request.topics,
        lambda part: part.leader_epoch,
        partial(coordinator.read_state, request.group_id),
    )
    return ReadShareGroupStateResponse(
        results=[
            ReadStateResult(
                topic_id=topic.topic_id,
                partitions=[
                    _result(part.partition, results[TopicIdPartition(topic.topic_id, part.partition)])
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _result(partition: int, state: ShareState) -> PartitionResult:
    if state.error:
        return PartitionResult(
            partition=partition, error_code=int(state.error), error_message=state.error_message
        )
    return PartitionResult(
        partition=partition,
        state_epoch=state.state_epoch,
        start_offset=state.start_offset,
        state_batches=[
            StateBatch(
                first_offset=first, last_offset=last, delivery_state=delivery_state, delivery_count=count
            )
            for first, last, delivery_state, count in state.batches
        ],
    )
