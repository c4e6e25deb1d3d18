"""ShareGroupHeartbeat: a member of a share group joins, stays, changes its subscription or leaves, and gets
its assignment.

Version 1 is the first stable one (KIP-932).
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from ottla.coordinator.group.requests import ShareGroupHeartbeat
from ottla.coordinator.runtime.coordinator_runtime import Ticket
from ottla.node.api.context import RequestContext
from ottla.node.api.group_requests import check_group, check_share_groups, submit
from ottla.protocol.acl import AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from ottla.runtime.steps import Steps, run_at_once

_LONGEST_MEMBER_ID: Final = 36
"""Members choose their ids, which are uuids."""


def handle(
    context: RequestContext, request: ShareGroupHeartbeatRequest
) -> ShareGroupHeartbeatResponse | Awaitable[ShareGroupHeartbeatResponse]:
    check_share_groups(context)
    check_group(context, request.group_id)
    if not 0 < len(request.member_id) <= _LONGEST_MEMBER_ID:
        return ShareGroupHeartbeatResponse(error_code=int(ErrorCode.INVALID_REQUEST))
    if context.is_long:
        return _submit_long(context, request)
    run_at_once(_check_topics(context, request))
    return _submit(context, request).now_or_later()


async def _submit_long(
    context: RequestContext, request: ShareGroupHeartbeatRequest
) -> ShareGroupHeartbeatResponse:
    await context.complete(_check_topics(context, request))
    return await _submit(context, request)


def _check_topics(context: RequestContext, request: ShareGroupHeartbeatRequest) -> Steps[None]:
    for topic in request.subscribed_topic_names or ():
        if not context.allowed(AclOperation.DESCRIBE, AclResourceType.TOPIC, topic):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        yield


def _submit(
    context: RequestContext, request: ShareGroupHeartbeatRequest
) -> Ticket[ShareGroupHeartbeatResponse]:
    if not request.group_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "GroupId can't be empty.")
    return submit(context, request.group_id, ShareGroupHeartbeat, request)
