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

_FIRST_VERSION_OF_BATCHES = 3


def handle(
    context: RequestContext, request: LeaveGroupRequest
) -> LeaveGroupResponse | Awaitable[LeaveGroupResponse]:
    check_group(context, request.group_id)
    check_group_id(request.group_id)
    if context.version < _FIRST_VERSION_OF_BATCHES:
        request.members = [MemberIdentity(member_id=request.member_id)]
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
