"""DeleteTopics: delete topics by name or, from version 6 on, by id.

The topics are gone from the metadata when the response goes out; brokers remove their files in the
background.

Version 3 can return TOPIC_DELETION_DISABLED (KIP-322).
Version 4 is flexible (KIP-482).
Version 5 has error messages and may be throttled (KIP-599).
Version 6 takes topic ids (KIP-516).
"""

from __future__ import annotations

from ottla.node.api.context import ApiRequestContext
from ottla.protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)


async def handle(context: ApiRequestContext, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    quota = context.mutation_quota(strict_since=5)
    response = await context.controller.control(
        lambda controller: controller.delete_topics(
            request, context.for_controller(quota), version=context.version
        )
    )
    if quota is not None:
        response.throttle_time_ms = quota.throttle_ms
    return response
