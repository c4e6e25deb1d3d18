"""Envelope: a request of a client that another broker passes on, since only the active controller decides it.

What is in it is handled as if it had come by this listener, for the client that it names; if the controller
is elsewhere by then, the envelope as a whole says so, and the broker tries again.
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
