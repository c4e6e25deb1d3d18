"""Heartbeat: a member of a classic group is alive, and gets an error if it has to join again.

Version 3 has static members (KIP-345).
Version 4 is flexible (KIP-482).
"""

from __future__ import annotations

from collections.abc import Awaitable

from ottla.coordinator.group.requests import Heartbeat
from ottla.node.api.context import RequestContext
from ottla.node.api.group_requests import check_group, check_group_id, submit
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse


def handle(
    context: RequestContext, request: HeartbeatRequest
) -> HeartbeatResponse | Awaitable[HeartbeatResponse]:
    check_group(context, request.group_id)
    check_group_id(request.group_id)
    return submit(context, request.group_id, Heartbeat, request).now_or_later()


def failure_response(_request: HeartbeatRequest, code: int, _message: str | None) -> HeartbeatResponse:
    # While the coordinator loads the group, no member can miss its session timeout.
    loading = code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return HeartbeatResponse(error_code=0 if loading else int(code))
