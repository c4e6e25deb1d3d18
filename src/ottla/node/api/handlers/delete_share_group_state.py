"""DeleteShareGroupState: delete the state of share partitions; one without state is no error.

The group coordinator sends it, when a share group or its offsets are deleted.
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial

from ottla.node.api.context import RequestContext
from ottla.node.api.share_state_requests import fill_in, is_empty, run_for_partitions
from ottla.protocol.messages.delete_share_group_state import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
    DeleteStateResult,
    PartitionResult,
)


def handle(
    context: RequestContext, request: DeleteShareGroupStateRequest
) -> DeleteShareGroupStateResponse | Awaitable[DeleteShareGroupStateResponse]:
    context.require_cluster_action()
    if is_empty(request.group_id, request.topics):
        return DeleteShareGroupStateResponse()
    return _delete(context, request)


def failure_response(
    request: DeleteShareGroupStateRequest, code: int, message: str | None
) -> DeleteShareGroupStateResponse:
    return DeleteShareGroupStateResponse(
        results=[
            DeleteStateResult(
                topic_id=topic.topic_id,
                partitions=[
                    PartitionResult(partition=part.partition, error_code=int(code), error_message=message)
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


async def _delete(
    context: RequestContext, request: DeleteShareGroupStateRequest
) -> DeleteShareGroupStateResponse:
    coordinator = context.broker.coordinators.share
    results = await run_for_partitions(
        request.topics, lambda _: None, partial(coordinator.delete_state, request.group_id)
    )
    response = failure_response(request, 0, None)
    fill_in(response.results, results)
    return response
