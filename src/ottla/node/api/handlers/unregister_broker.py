"""UnregisterBroker: forget a broker that will not come back."""

from __future__ import annotations

from ottla.node.api.context import RequestContext
from ottla.protocol.acl import CLUSTER_NAME, AclOperation, ResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse


async def handle(context: RequestContext, request: UnregisterBrokerRequest) -> UnregisterBrokerResponse:
    if not context.allowed(AclOperation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME):
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    await context.node.control(lambda controller: controller.unregister_broker(request.broker_id))
    return UnregisterBrokerResponse(error_message=None)
