"""Envelope: a request of a client that another broker passes on, since only the active controller decides it.

What is in it is handled as if it had come by this listener, for the client that it names; if the controller
is elsewhere by then, the envelope as a whole says so, and the broker tries again.
"""

from __future__ import annotations

from ottla.node.api.authorization import require_cluster_action
from ottla.node.api.context import RequestContext
from ottla.node.api.forwarding import sender
from ottla.node.node import Node
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse


async def handle(context: RequestContext, request: EnvelopeRequest) -> EnvelopeResponse:
    require_cluster_action(context)
    return await decide(context.node, request, context.version)


async def decide(node: Node, request: EnvelopeRequest, _version: int) -> EnvelopeResponse:
    if node.active_controller.current is None:
        return EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
    try:
        host = sender(request)
        answer = await node.quorum.decisions.answer_forwarded(request.request_data, host)
        return EnvelopeResponse(response_data=answer)
    except KafkaError as error:
        return EnvelopeResponse(error_code=error.code)


def failed(_request: EnvelopeRequest, code: int, _message: str | None) -> EnvelopeResponse:
    return EnvelopeResponse(error_code=code)
