"""ControllerRegistration: a controller tells by which addresses it is reached and what it supports."""

from __future__ import annotations

from ottla.node.api.authorization import require_cluster_action
from ottla.node.api.context import RequestContext
from ottla.node.node import Node
from ottla.protocol.messages.controller_registration import (
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
)


async def handle(
    context: RequestContext, request: ControllerRegistrationRequest
) -> ControllerRegistrationResponse:
    require_cluster_action(context)
    return await decide(context.node, request, context.version)


async def decide(
    node: Node, request: ControllerRegistrationRequest, _version: int
) -> ControllerRegistrationResponse:
    await node.control(lambda controller: controller.register_controller(request))
    return ControllerRegistrationResponse(error_message=None)
