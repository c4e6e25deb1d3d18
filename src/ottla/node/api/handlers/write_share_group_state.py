"""WriteShareGroupState: change the state of share partitions, as the leaders of their topics' partitions.

A leader that was replaced gets FENCED_LEADER_EPOCH, and one that does not know that the state was initialized
again gets FENCED_STATE_EPOCH.

Version 1 has the number of completed deliveries.
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial

from ottla.coordinator.share.persister import PersisterStateBatch, WriteState
from ottla.node.api.context import RequestContext
from ottla.node.api.share_state_requests import fill_in, is_empty, run_for_partitions
from ottla.protocol.messages.write_share_group_state import (
    PartitionData,
    PartitionResult,
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
    WriteStateResult,
)


def handle(
    context: RequestContext, request: WriteShareGroupStateRequest
) -> WriteShareGroupStateResponse | Awaitable[WriteShareGroupStateResponse]:
    context.require_cluster_action()
    if is_empty(request.group_id, request.topics):
        return WriteShareGroupStateResponse()
    return _write(context, request)


def failure_response(
    request: WriteShareGroupStateRequest, code: int, message: str | None
) -> WriteShareGroupStateResponse:
    return WriteShareGroupStateResponse(
        results=[
            WriteStateResult(
                topic_id=topic.topic_id,
                partitions=[
                    PartitionResult(partition=part.partition, error_code=int(code), error_message=message)
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


async def _write(
    context: RequestContext, request: WriteShareGroupStateRequest
) -> WriteShareGroupStateResponse:
    coordinator = context.broker.coordinators.share
    results = await run_for_partitions(
        request.topics, _state, partial(coordinator.write_state, request.group_id)
    )
    response = failure_response(request, 0, None)
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
