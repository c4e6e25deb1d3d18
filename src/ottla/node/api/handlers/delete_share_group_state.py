"""DeleteShareGroupState: delete the state of share partitions; one without state is no error.

The group coordinator sends it, when a share group or its offsets are deleted.
"""

from __future__ import annotations

from collections.abc import Awaitable

from ottla.coordinator.share.service import ShareCoordinatorService
from ottla.node.api.context import RequestContext
from ottla.node.api.share_state_requests import respond
from ottla.protocol.messages.delete_share_group_state import (
    DeleteShareGroupStateRequest,
)
from ottla.protocol.schema import Response


def handle(context: RequestContext, request: DeleteShareGroupStateRequest) -> Response | Awaitable[Response]:
    return respond(
        context,
        request,
        request.group_id,
        request.topics,
        lambda _: None,
        ShareCoordinatorService.delete_state,
    )
