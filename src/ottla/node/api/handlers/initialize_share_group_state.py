"""InitializeShareGroupState: create the state of share partitions, or begin it again at a higher state epoch.

The group coordinator sends it, when topics are added to a share group or its offsets are altered.
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial

from ottla.coordinator.share.persister import InitialState
from ottla.node.api.context import RequestContext
from ottla.node.api.response_errors import error_for_each_part
from ottla.node.api.share_state_requests import fill_in, is_empty, run_for_partitions
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.initialize_share_group_state import (
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
)


def handle(
    context: RequestContext, request: InitializeShareGroupStateRequest
) -> InitializeShareGroupStateResponse | Awaitable[InitializeShareGroupStateResponse]:
    context.require_cluster_action()
    if is_empty(request.group_id, request.topics):
        return InitializeShareGroupStateResponse()
    return _initialize(context, request)


async def _initialize(
    context: RequestContext, request: InitializeShareGroupStateRequest
) -> InitializeShareGroupStateResponse:
    coordinator = context.broker.coordinators.share
    results = await run_for_partitions(
        context.broker.runtime.clock,
        request.topics,
        lambda part: InitialState(part.state_epoch, part.start_offset),
        partial(coordinator.initialize_state, request.group_id),
    )
    response: InitializeShareGroupStateResponse = error_for_each_part(request, ErrorCode.NONE, None)
    fill_in(response.results, results)
    return response
