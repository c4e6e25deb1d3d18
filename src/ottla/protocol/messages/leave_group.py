"""Leave a classic group.

- v1: throttle time
- v3: many members at once, static ones too
- v4: flexible
- v5: the reason for leaving
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, Struct, array, int16, int32, string


class MemberIdentity(Struct):
    member_id: str = string()
    group_instance_id: str | None = string(nullable=True, default=None)
    reason: str | None = string(versions="5+", nullable=True, default=None, ignorable=True)


class LeaveGroupRequest(Request, api_key=13, versions="0-5", flexible="4+"):
    group_id: str = string()
    member_id: str = string(versions="0-2")
    members: list[MemberIdentity] = array(MemberIdentity, versions="3+")


class MemberResponse(Struct):
    member_id: str = string()
    group_instance_id: str | None = string(nullable=True)
    error_code: int = int16()


class LeaveGroupResponse(Response, api_key=13, versions="0-5", flexible="4+"):
    throttle_time_ms: int = int32(versions="1+", ignorable=True)
    error_code: int = int16()
    members: list[MemberResponse] = array(MemberResponse, versions="3+")
