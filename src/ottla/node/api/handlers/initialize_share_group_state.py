"""InitializeShareGroupState: create the state of share partitions, or begin it again at a higher state epoch.

The group coordinator sends it, when topics are added to a share group or its offsets are altered.
"""

from __future__ import annotations

from collections.abc import Awaitable

from ottla.coordinator.share.persister import InitialState
from ottla.coordinator.share.service import ShareCoordinatorService
from ottla.node.api.context import RequestContext
from ottla.node.api.share_state_requests import respond
from ottla.protocol.messages.initialize_share_group_state import (
    InitializeShareGroupStateRequest,
)
from ottla.protocol.schema import Response


def handle(
    context: RequestContext, request: InitializeShareGroupStateRequest
) -> Response | Awaitable[Response]:
    return respond(
        context,
        request,
        request.group_id,
        request.topics,
        lambda part: InitialState(part.state_epoch, part.start_offset),
        ShareCoordinatorService.initialize_state,
    )
