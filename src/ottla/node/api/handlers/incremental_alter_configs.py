"""IncrementalAlterConfigs: set, delete, append to and subtract from settings, resource by resource.

A resource changes as a whole or not at all; one that is rejected does not hold up the others. Log levels
change in this broker only.

Version 1 is flexible (KIP-482).
"""

from __future__ import annotations

from ottla.metadata.image.entities import ConfigResource
from ottla.node.api.config_admin_manager import Change, alter
from ottla.node.api.context import ApiRequestContext, ForwardedRequestContext
from ottla.node.api.forwarding import at_controller
from ottla.protocol.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


async def handle(
    context: ApiRequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    async def forward(remaining: list[AlterConfigsResource]) -> list[AlterConfigsResourceResponse]:
        remainder = IncrementalAlterConfigsRequest(resources=remaining, validate_only=request.validate_only)
        return (await _decide(context, remainder)).responses

    if isinstance(context, ForwardedRequestContext):
        return await _decide(context, request)

    responses = await alter(
        context,
        request.resources,
        lambda resource: (
            ConfigResource(resource.resource_type, resource.resource_name),
            (Change(config.name, config.config_operation, config.value) for config in resource.configs),
        ),
        forward,
        AlterConfigsResourceResponse,
        incremental=True,
        validate_only=request.validate_only,
    )
    return IncrementalAlterConfigsResponse(responses=responses)


async def _decide(
    context: ApiRequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    return await at_controller(
        context,
        request,
        lambda controller: controller.incremental_alter_configs(request, context.for_controller()),
    )
