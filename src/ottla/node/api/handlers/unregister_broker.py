"""UnregisterBroker: remove the registration of a broker that will not come back."""

from __future__ import annotations

from ottla.node.api.context import ApiRequestContext
from ottla.protocol.acl import AclOperation
from ottla.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse


async def handle(context: ApiRequestContext, request: UnregisterBrokerRequest) -> UnregisterBrokerResponse:
    context.require_of_cluster(AclOperation.ALTER)
    await context.controller.control(lambda controller: controller.unregister_broker(request.broker_id))
    return UnregisterBrokerResponse(error_message=None)
