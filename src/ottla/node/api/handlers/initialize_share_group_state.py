"""InitializeShareGroupState: create the state of share partitions, or begin it again at a higher state epoch.

The group coordinator sends it, when topics are added to a share group or its offsets are altered.
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial

from ottla.coordinator.share.persister import InitialState
from ottla.node.api.context import RequestContext
from ottla.node.api.share_state_requests import fill_in, is_empty, run_for_partitions
from ottla.protocol.messages.initialize_share_group_state import (
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
    InitializeStateResult,
    PartitionResult,
)


def handle(
    context: RequestContext, request: InitializeShareGroupStateRequest
) -> InitializeShareGroupStateResponse | Awaitable[InitializeShareGroupStateResponse]:
    context.require_cluster_action()
    if is_empty(request.group_id, request.topics):
        return InitializeShareGroupStateResponse()
    return _initialize(context, request)


def failure_response(
    request: InitializeShareGroupStateRequest, code: int, message: str | None
) -> InitializeShareGroupStateResponse:
    return InitializeShareGroupStateResponse(
        results=[
            InitializeStateResult(
                topic_id=topic.topic_id,
                partitions=[
                    PartitionResult(partition=part.partition, error_code=int(code), error_message=message)
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


async def _initialize(
    context: RequestContext, request: InitializeShareGroupStateRequest
) -> InitializeShareGroupStateResponse:
    coordinator = context.broker.coordinators.share
    results = await run_for_partitions(
        request.topics,
        lambda part: InitialState(part.state_epoch, part.start_offset),
        partial(coordinator.initialize_state, request.group_id),
    )
    response = failure_response(request, 0, None)
    fill_in(response.results, results)
    return response
