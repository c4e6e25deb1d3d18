"""UnregisterController: remove the registration of a controller that will not come back (KIP-1312).

It is removed from the quorum first. Nodes of Kafka 4.3 do not know the record, so metadata.version 4.4-IV2 is
needed.
"""

from __future__ import annotations

from ottla.node.api.context import ApiRequestContext
from ottla.protocol.acl import AclOperation
from ottla.protocol.messages.unregister_controller import (
    UnregisterControllerRequest,
    UnregisterControllerResponse,
)


async def handle(
    context: ApiRequestContext, request: UnregisterControllerRequest
) -> UnregisterControllerResponse:
    context.require_of_cluster(AclOperation.ALTER)
    await context.controller.control(
        lambda controller: controller.unregister_controller(request.controller_id)
    )
    return UnregisterControllerResponse(error_message=None)
