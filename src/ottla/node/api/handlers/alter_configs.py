"""AlterConfigs: replace all settings of a resource; settings that the request does not name are removed.

It cannot change log levels. IncrementalAlterConfigs replaces it: there two clients cannot overwrite each
other's changes.

Version 2 is flexible (KIP-482).
"""

from __future__ import annotations

from ottla.metadata.controller.configs import OpType
from ottla.metadata.image.entities import ConfigResource
from ottla.node.api.config_admin_manager import Change, alter
from ottla.node.api.context import ApiRequestContext, ForwardedRequestContext
from ottla.node.api.forwarding import at_controller
from ottla.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


async def handle(context: ApiRequestContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
    async def forward(remaining: list[AlterConfigsResource]) -> list[AlterConfigsResourceResponse]:
        remainder = AlterConfigsRequest(resources=remaining, validate_only=request.validate_only)
        return (await _decide(context, remainder)).responses

    if isinstance(context, ForwardedRequestContext):
        return await _decide(context, request)

    responses = await alter(
        context,
        request.resources,
        lambda resource: (
            ConfigResource(resource.resource_type, resource.resource_name),
            (Change(config.name, OpType.SET, config.value) for config in resource.configs),
        ),
        forward,
        AlterConfigsResourceResponse,
        incremental=False,
        validate_only=request.validate_only,
    )
    return AlterConfigsResponse(responses=responses)


async def _decide(context: ApiRequestContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
    return await at_controller(
        context, request, lambda controller: controller.alter_configs(request, context.for_controller())
    )
