"""JoinGroup: become a member of a classic group, or of the next generation of it.

The answer comes when all members have joined or the rebalance has run out of time; the leader's holds what
each member wants.

Version 1 added the rebalance timeout; 3 only promises less throttling; 4 has new members come back with the
id that MEMBER_ID_REQUIRED gave them; 5 static members; 6 is flexible; 7 the protocol type in the response; 8
a reason; 9 lets a static leader skip the assignment.
"""

from __future__ import annotations

from collections.abc import Awaitable

from ottla.node.context import RequestContext
from ottla.node.groups import check_group, check_group_id, submit
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse

_FIRST_VERSION_WITH_NULL_PROTOCOL = 7


def handle(
    context: RequestContext, request: JoinGroupRequest
) -> JoinGroupResponse | Awaitable[JoinGroupResponse]:
    check_group(context, request.group_id)
    check_group_id(request.group_id)
    config = context.node.groups.config
    timeout_ms = request.session_timeout_ms
    if not config.group_min_session_timeout_ms <= timeout_ms <= config.group_max_session_timeout_ms:
        raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT)
    return submit(context, request.group_id, request, lambda response: _for_version(context, response))


def failed(request: JoinGroupRequest, code: int, _message: str | None) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=int(code), member_id=request.member_id, protocol_name="")


def _for_version(context: RequestContext, response: JoinGroupResponse) -> JoinGroupResponse:
    if context.version < _FIRST_VERSION_WITH_NULL_PROTOCOL and response.protocol_name is None:
        response.protocol_name = ""
    return response
