"""AlterConfigs, the old way: what is given replaces all settings of a resource; the others are removed.

Log levels cannot be changed by it. IncrementalAlterConfigs does the same without the race. Version 2 is
flexible.
"""

from __future__ import annotations

from ottla.metadata.controller.configs import OpType
from ottla.metadata.image.entities import ConfigResource
from ottla.node.api.broker_config_changes import Change, all_failed, alter
from ottla.node.api.context import ApiRequestContext, ForwardedRequestContext
from ottla.node.api.forwarding import at_controller
from ottla.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


async def handle(context: ApiRequestContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
    async def pass_on(remaining: list[AlterConfigsResource]) -> list[AlterConfigsResourceResponse]:
        passed = AlterConfigsRequest(resources=remaining, validate_only=request.validate_only)
        return (await _decide(context, passed)).responses

    if isinstance(context, ForwardedRequestContext):
        return await _decide(context, request)

    responses = await alter(
        context,
        request.resources,
        lambda asked: (
            ConfigResource(asked.resource_type, asked.resource_name),
            [Change(config.name, OpType.SET, config.value) for config in asked.configs],
        ),
        pass_on,
        AlterConfigsResourceResponse,
        incremental=False,
        validate_only=request.validate_only,
    )
    return AlterConfigsResponse(responses=responses)


async def _decide(context: ApiRequestContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
    return await at_controller(
        context, request, lambda controller: controller.alter_configs(request, context.for_controller())
    )


def failed(request: AlterConfigsRequest, code: int, message: str | None) -> AlterConfigsResponse:
    return AlterConfigsResponse(
        responses=all_failed(request.resources, code, message, AlterConfigsResourceResponse)
    )
