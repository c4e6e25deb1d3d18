"""WriteShareGroupState: change the state of share partitions, as the leaders of their topics' partitions.

A leader that was replaced gets FENCED_LEADER_EPOCH, and one that does not know that the state was initialized
again gets FENCED_STATE_EPOCH.

Version 1 has the number of completed deliveries (KIP-1226).

A leader that is Ottla's says in a tagged field of its own where dead letters are written.
"""

from __future__ import annotations

from collections.abc import Awaitable

from ottla.coordinator.share.persister import PersisterStateBatch, WriteState
from ottla.coordinator.share.service import ShareCoordinatorService
from ottla.node.api.context import RequestContext
from ottla.node.api.share_state_requests import respond
from ottla.protocol.messages.write_share_group_state import (
    PartitionData,
    WriteShareGroupStateRequest,
)
from ottla.protocol.schema import Response
from ottla.protocol.share import DeadLetterPlace


def handle(context: RequestContext, request: WriteShareGroupStateRequest) -> Response | Awaitable[Response]:
    return respond(
        context,
        request,
        request.group_id,
        request.topics,
        _state,
        ShareCoordinatorService.write_state,
    )


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
        DeadLetterPlace.of(part),
    )
