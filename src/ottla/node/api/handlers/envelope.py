"""Envelope: handle a client's request that another broker forwards to the active controller.

The enclosed request is handled as if the client had sent it to this listener. If the active controller is on
another node by then, the response to the envelope says so, and the broker tries again.
"""

from __future__ import annotations

from ottla.node.api.context import RequestContext
from ottla.node.api.forwarding import answer_forwarded
from ottla.node.api.services import ApiServices
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse


async def handle(context: RequestContext, request: EnvelopeRequest) -> EnvelopeResponse:
    context.require_cluster_action()
    return await decide(context.services, request, context.version)


async def decide(services: ApiServices, request: EnvelopeRequest, _version: int) -> EnvelopeResponse:
    if services.controller.active_controller.current is None:
        return EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
    try:
        return EnvelopeResponse(response_data=await answer_forwarded(services, request))
    except KafkaError as error:
        return EnvelopeResponse(error_code=error.code)
