"""WriteShareGroupState: change the state of share partitions, as the leaders of their topics' partitions.

A leader that was replaced gets FENCED_LEADER_EPOCH, and one that does not know that the state was initialized
again gets FENCED_STATE_EPOCH.

Version 1 has the number of completed deliveries (KIP-1226).
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial

from ottla.coordinator.share.persister import PersisterStateBatch, WriteState
from ottla.node.api.context import RequestContext
from ottla.node.api.response_errors import error_for_each_part
from ottla.node.api.share_state_requests import fill_in, is_empty, run_for_partitions
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.write_share_group_state import (
    PartitionData,
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
)


def handle(
    context: RequestContext, request: WriteShareGroupStateRequest
) -> WriteShareGroupStateResponse | Awaitable[WriteShareGroupStateResponse]:
    context.require_cluster_action()
    if is_empty(request.group_id, request.topics):
        return WriteShareGroupStateResponse()
    return _write(context, request)


async def _write(
    context: RequestContext, request: WriteShareGroupStateRequest
) -> WriteShareGroupStateResponse:
    coordinator = context.broker.coordinators.share
    results = await run_for_partitions(
        context.broker.runtime.clock,
        request.topics,
        _state,
        partial(coordinator.write_state, request.group_id),
    )
    response: WriteShareGroupStateResponse = error_for_each_part(request, ErrorCode.NONE, None)
    fill_in(response.results, results)
    return response


def _state(part: PartitionData) -> WriteState:
    return WriteState(
        part.state_epoch,
        part.leader_epoch,
        part.start_offset,
        part.delivery_complete_count,
        tuple(
            PersisterStateBatch(
                batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count
            )
            for batch in part.state_batches
        ),
    )
