"""AlterConfigs, the old way: what is given replaces all settings of a resource; what is not given is removed.

Log levels cannot be changed by it. IncrementalAlterConfigs does the same without the race. Version 2 is
flexible.
"""

from __future__ import annotations

from ottla.metadata.control_configs import OpType
from ottla.metadata.entities import ConfigResource
from ottla.node.config_admin import Change, preprocess
from ottla.node.context import RequestContext
from ottla.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


async def handle(context: RequestContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
    resources = [
        (
            ConfigResource(asked.resource_type, asked.resource_name),
            [Change(config.name, OpType.SET, config.value) for config in asked.configs],
        )
        for asked in request.resources
    ]
    outcomes = preprocess(context, resources, incremental=False, validate_only=request.validate_only)
    remaining = [asked for asked, outcome in zip(request.resources, outcomes) if outcome is None]
    decided = {}
    if remaining:
        passed_on = AlterConfigsRequest(resources=remaining, validate_only=request.validate_only)
        response = await context.node.control(
            lambda controller: controller.alter_configs(passed_on, context.control())
        )
        decided = {(r.resource_type, r.resource_name): r for r in response.responses}
    return AlterConfigsResponse(
        responses=[
            decided[asked.resource_type, asked.resource_name]
            if outcome is None
            else AlterConfigsResourceResponse(
                error_code=int(outcome.code),
                error_message=outcome.message,
                resource_type=asked.resource_type,
                resource_name=asked.resource_name,
            )
            for asked, outcome in zip(request.resources, outcomes)
        ]
    )


def failed(request: AlterConfigsRequest, code: int, message: str | None) -> AlterConfigsResponse:
    return AlterConfigsResponse(
        responses=[
            AlterConfigsResourceResponse(
                error_code=int(code),
                error_message=message,
                resource_type=asked.resource_type,
                resource_name=asked.resource_name,
            )
            for asked in request.resources
        ]
    )
