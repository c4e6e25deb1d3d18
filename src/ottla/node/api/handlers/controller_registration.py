"""ControllerRegistration: record the endpoints of a controller and the features that it supports."""

from __future__ import annotations

from ottla.node.api.context import RequestContext
from ottla.node.api.services import ApiServices
from ottla.protocol.messages.controller_registration import (
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
)


async def handle(
    context: RequestContext, request: ControllerRegistrationRequest
) -> ControllerRegistrationResponse:
    context.require_cluster_action()
    return await decide(context.services, request, context.version)


async def decide(
    services: ApiServices, request: ControllerRegistrationRequest, _version: int
) -> ControllerRegistrationResponse:
    await services.controller.control(
        lambda controller: controller.register_controller(request), for_client=False
    )
    return ControllerRegistrationResponse(error_message=None)
