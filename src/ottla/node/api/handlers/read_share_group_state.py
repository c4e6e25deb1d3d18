"""ReadShareGroupState: read the state of share partitions, as the leaders of their topics' partitions.

The first read of a leader at its epoch fences the leaders before it. A tagged field of our own says where
dead letters were written last.
"""

from __future__ import annotations

from collections.abc import Awaitable

from ottla.coordinator.share.persister import ShareState
from ottla.coordinator.share.service import ShareCoordinatorService
from ottla.node.api.context import RequestContext
from ottla.node.api.share_state_requests import respond
from ottla.protocol.messages.read_share_group_state import (
    PartitionResult,
    ReadShareGroupStateRequest,
    StateBatch,
)
from ottla.protocol.schema import Response


def handle(context: RequestContext, request: ReadShareGroupStateRequest) -> Response | Awaitable[Response]:
    return respond(
        context,
        request,
        request.group_id,
        request.topics,
        lambda part: part.leader_epoch,
        ShareCoordinatorService.read_state,
        _fill_in,
    )


def _fill_in(part: PartitionResult, state: ShareState) -> None:
    part.state_epoch = state.state_epoch
    part.start_offset = state.start_offset
    part.state_batches = [
        StateBatch(first_offset=first, last_offset=last, delivery_state=delivery_state, delivery_count=count)
        for first, last, delivery_state, count in state.batches
    ]
    if state.dead_letter_place is not None:
        state.dead_letter_place.put(part)
