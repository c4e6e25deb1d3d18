"""DeleteShareGroupState: delete the state of share partitions; one without state is no error.

The group coordinator sends it, when a share group or its offsets are deleted.
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial

from ottla.node.api.context import RequestContext
from ottla.node.api.response_errors import error_for_each_part
from ottla.node.api.share_state_requests import fill_in, is_empty, run_for_partitions
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_share_group_state import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
)


def handle(
    context: RequestContext, request: DeleteShareGroupStateRequest
) -> DeleteShareGroupStateResponse | Awaitable[DeleteShareGroupStateResponse]:
    context.require_cluster_action()
    if is_empty(request.group_id, request.topics):
        return DeleteShareGroupStateResponse()
    return _delete(context, request)


async def _delete(
    context: RequestContext, request: DeleteShareGroupStateRequest
) -> DeleteShareGroupStateResponse:
    coordinator = context.broker.coordinators.share
    results = await run_for_partitions(
        context.broker.runtime.clock,
        request.topics,
        lambda _: None,
        partial(coordinator.delete_state, request.group_id),
    )
    response: DeleteShareGroupStateResponse = error_for_each_part(request, ErrorCode.NONE, None)
    fill_in(response.results, results)
    return response
