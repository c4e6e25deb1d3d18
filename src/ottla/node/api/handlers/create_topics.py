"""CreateTopics: create topics with given counts or assignments and settings, or only validate the request.

The response goes out when the topics are in the metadata log and this node leads the partitions that it
should lead.

Version 4 takes -1 for the default number of partitions and replicas (KIP-464).
Version 5 is flexible (KIP-482), and returns the settings in force (KIP-525).
Version 6 may be throttled with THROTTLING_QUOTA_EXCEEDED (KIP-599).
Version 7 returns topic ids (KIP-516).
"""

from __future__ import annotations

from ottla.metadata.controller.state import ControllerRequestContext
from ottla.node.api.context import ApiRequestContext
from ottla.node.api.services import ApiServices
from ottla.protocol.messages.create_topics import (
    CreateTopicsRequest,
    CreateTopicsResponse,
)


async def handle(context: ApiRequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
    quota = context.mutation_quota(strict_since=6)
    response = await _create(context.services, request, context.for_controller(quota))
    if quota is not None:
        response.throttle_time_ms = quota.throttle_ms
    return response


async def decide(services: ApiServices, request: CreateTopicsRequest, _version: int) -> CreateTopicsResponse:
    return await _create(services, request, ControllerRequestContext())


async def _create(
    services: ApiServices, request: CreateTopicsRequest, control: ControllerRequestContext
) -> CreateTopicsResponse:
    response = await services.controller.control(
        lambda controller: controller.create_topics(request, control)
    )
    for topic in response.topics:
        topic.error_message = topic.error_message or None
    return response
