"""DeleteShareGroupOffsets: forget the offsets of topics in a share group without members."""

from __future__ import annotations

from ottla.node.api.context import RequestContext
from ottla.node.api.group_requests import check_group, check_group_id, check_share_groups
from ottla.protocol.acl import AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
)


async def handle(
    context: RequestContext, request: DeleteShareGroupOffsetsRequest
) -> DeleteShareGroupOffsetsResponse:
    check_share_groups(context)
    check_group(context, request.group_id, AclOperation.DELETE)
    allowed = []
    refused = []
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    for topic in request.topics:
        if context.allowed(AclOperation.READ, AclResourceType.TOPIC, topic.topic_name):
            allowed.append(topic)
        else:
            refused.append(
                DeleteShareGroupOffsetsResponseTopic(
                    topic_name=topic.topic_name, error_code=int(denied), error_message=denied.text
                )
            )
    check_group_id(request.group_id)
    response = await context.broker.coordinators.share_groups.delete_offsets(
        context.version, request.replace(topics=allowed)
    )
    response.responses += refused
    return response
