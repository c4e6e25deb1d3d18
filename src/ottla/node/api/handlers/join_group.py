"""JoinGroup: join a classic group, or its next generation.

The response goes out when all members have joined or the rebalance timeout is over; that of the group's
leader holds the subscriptions of all members.

Version 1 has the rebalance timeout (KIP-62).
Version 3 has the client, not the broker, wait while it is throttled (KIP-219).
Version 4 has new members join again with the id that MEMBER_ID_REQUIRED gave them (KIP-394).
Version 5 has static members (KIP-345).
Version 6 is flexible (KIP-482).
Version 7 has the protocol type in the response (KIP-559).
Version 8 has a reason (KIP-800).
Version 9 lets a static leader skip the assignment (KIP-814).
"""

from __future__ import annotations

from collections.abc import Awaitable

from ottla.coordinator.group.requests import JoinGroup
from ottla.node.api.context import RequestContext
from ottla.node.api.group_requests import check_group, check_group_id, submit
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse

_FIRST_VERSION_WITH_NULL_PROTOCOL = 7


def handle(
    context: RequestContext, request: JoinGroupRequest
) -> JoinGroupResponse | Awaitable[JoinGroupResponse]:
    try:
        check_group(context, request.group_id)
    except KafkaError as error:
        return _error_response(context, error)
    try:
        check_group_id(request.group_id)
        config = context.broker.coordinators.groups.config
        timeout_ms = request.session_timeout_ms
        if not config.group_min_session_timeout_ms <= timeout_ms <= config.group_max_session_timeout_ms:
            raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT)
        reply = submit(context, request.group_id, JoinGroup, request).now_or_later()
    except KafkaError as error:
        return _error_response(context, error, request.member_id)
    if isinstance(reply, JoinGroupResponse):
        return _for_version(context, reply)
    return _respond_later(context, request, reply)


async def _respond_later(
    context: RequestContext, request: JoinGroupRequest, reply: Awaitable[JoinGroupResponse]
) -> JoinGroupResponse:
    try:
        return _for_version(context, await reply)
    except KafkaError as error:
        return _error_response(context, error, request.member_id)


def _error_response(context: RequestContext, error: KafkaError, member_id: str = "") -> JoinGroupResponse:
    response = JoinGroupResponse(error_code=int(error.code), member_id=member_id, protocol_name=None)
    return _for_version(context, response)


def _for_version(context: RequestContext, response: JoinGroupResponse) -> JoinGroupResponse:
    if context.version < _FIRST_VERSION_WITH_NULL_PROTOCOL and response.protocol_name is None:
        response.protocol_name = ""
    return response
