"""LeaveGroup: members leave a classic group, or an operator removes static ones by their instance ids.

Version 3 takes several members, each with a result of its own; before, the error of the response is that
  of the one member (KIP-345).
Version 4 is flexible (KIP-482).
Version 5 has a reason (KIP-800).
"""

from __future__ import annotations

from collections.abc import Awaitable

from ottla.coordinator.group.requests import LeaveGroup
from ottla.node.api.context import RequestContext
from ottla.node.api.group_requests import check_group, check_group_id, submit
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from ottla.runtime.turns import Turns

_FIRST_VERSION_OF_BATCHES = 3
_MEMBERS_AT_ONCE = 100


def handle(
    context: RequestContext, request: LeaveGroupRequest
) -> LeaveGroupResponse | Awaitable[LeaveGroupResponse]:
    check_group(context, request.group_id)
    check_group_id(request.group_id)
    if context.version < _FIRST_VERSION_OF_BATCHES:
        request.members = [MemberIdentity(member_id=request.member_id)]
    return _leave_in_parts(context, request) if context.is_long else _leave(context, request)


async def _leave_in_parts(context: RequestContext, request: LeaveGroupRequest) -> LeaveGroupResponse:
    """Have many members leave, some at a time; each has a result of its own."""
    response, turns = LeaveGroupResponse(), Turns(context.broker.runtime.clock)
    for start in range(0, len(request.members), _MEMBERS_AT_ONCE):
        part = request.members[start : start + _MEMBERS_AT_ONCE]
        answer = _leave(context, request.replace(members=part))
        if not isinstance(answer, LeaveGroupResponse):
            answer = await answer
        response.members += answer.members
        await turns.pause_if_due()
    return response


def _leave(
    context: RequestContext, request: LeaveGroupRequest
) -> LeaveGroupResponse | Awaitable[LeaveGroupResponse]:
    try:
        ticket = submit(context, request.group_id, LeaveGroup, request)
        return ticket.then(lambda response: _for_version(context, response))
    except KafkaError as error:
        if error.code is not ErrorCode.UNKNOWN_MEMBER_ID:
            raise
        # The group does not exist: each member gets the error.
        return _for_version(
            context,
            LeaveGroupResponse(
                members=[
                    MemberResponse(
                        member_id=member.member_id,
                        group_instance_id=member.group_instance_id,
                        error_code=int(error.code),
                    )
                    for member in request.members
                ]
            ),
        )


def _for_version(context: RequestContext, response: LeaveGroupResponse) -> LeaveGroupResponse:
    if context.version >= _FIRST_VERSION_OF_BATCHES:
        return response
    code = response.error_code or next((member.error_code for member in response.members), 0)
    return LeaveGroupResponse(error_code=code)
