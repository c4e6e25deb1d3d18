"""SyncGroup: the leader of a classic group submits the assignment, and each member gets its part.

Version 3 has static members (KIP-345).
Version 4 is flexible (KIP-482).
Version 5 has protocol type and name, checked against the group's (KIP-559).
"""

from __future__ import annotations

from collections.abc import Awaitable

from ottla.coordinator.group.requests import SyncGroup
from ottla.node.api.context import RequestContext
from ottla.node.api.group_requests import check_group, check_group_id, submit
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

_FIRST_VERSION_WITH_PROTOCOL = 5


def handle(
    context: RequestContext, request: SyncGroupRequest
) -> SyncGroupResponse | Awaitable[SyncGroupResponse]:
    if context.version >= _FIRST_VERSION_WITH_PROTOCOL and (
        request.protocol_type is None or request.protocol_name is None
    ):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    check_group(context, request.group_id)
    check_group_id(request.group_id)
    return submit(context, request.group_id, SyncGroup, request).now_or_later()


def failure_response(_request: SyncGroupRequest, code: int, _message: str | None) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=int(code), assignment=b"")
