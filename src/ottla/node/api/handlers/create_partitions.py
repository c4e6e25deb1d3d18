"""CreatePartitions: add partitions to topics, placed by the controller or as the request assigns them.

Version 2 is flexible (KIP-482).
Version 3 may be throttled with THROTTLING_QUOTA_EXCEEDED (KIP-599).
"""

from __future__ import annotations

from ottla.node.api.context import ApiRequestContext
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
)


async def handle(context: ApiRequestContext, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
    quota = context.mutation_quota(strict_since=3)
    response = await context.controller.control(
        lambda controller: controller.create_partitions(request, context.for_controller(quota))
    )
    if quota is not None:
        response.throttle_time_ms = quota.throttle_ms
    for topic in response.results:
        if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            topic.error_message = None
    return response
