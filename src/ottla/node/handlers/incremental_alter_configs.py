"""IncrementalAlterConfigs: set, delete, append to and subtract from settings, resource by resource.

A resource changes as a whole or not at all; one that is refused does not hold up the others. Log levels are
changed in this broker only. Version 1 is flexible.
"""

from __future__ import annotations

from ottla.metadata.entities import ConfigResource
from ottla.node.config_admin import Change, preprocess
from ottla.node.context import RequestContext
from ottla.protocol.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


async def handle(
    context: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    resources = [
        (
            ConfigResource(asked.resource_type, asked.resource_name),
            [Change(config.name, config.config_operation, config.value) for config in asked.configs],
        )
        for asked in request.resources
    ]
    outcomes = preprocess(context, resources, incremental=True, validate_only=request.validate_only)
    remaining = [asked for asked, outcome in zip(request.resources, outcomes) if outcome is None]
    decided = {}
    if remaining:
        passed_on = IncrementalAlterConfigsRequest(resources=remaining, validate_only=request.validate_only)
        response = await context.node.control(
            lambda controller: controller.incremental_alter_configs(passed_on, context.control())
        )
        decided = {(r.resource_type, r.resource_name): r for r in response.responses}
    return IncrementalAlterConfigsResponse(
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


def failed(
    request: IncrementalAlterConfigsRequest, code: int, message: str | None
) -> IncrementalAlterConfigsResponse:
    return IncrementalAlterConfigsResponse(
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
