"""Hand out the assignments of a classic group: the leader brings them, each member gets its own.

- v1: throttle time
- v3: static members
- v4: flexible
- v5: protocol type and name are checked
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, Struct, array, binary, int16, int32, string


class SyncGroupRequestAssignment(Struct):
    member_id: str = string()
    assignment: bytes = binary()


class SyncGroupRequest(Request, api_key=14, versions="0-5", flexible="4+"):
    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(versions="3+", nullable=True, default=None)
    protocol_type: str | None = string(versions="5+", nullable=True, default=None, ignorable=True)
    protocol_name: str | None = string(versions="5+", nullable=True, default=None, ignorable=True)
    assignments: list[SyncGroupRequestAssignment] = array(SyncGroupRequestAssignment)


class SyncGroupResponse(Response, api_key=14, versions="0-5", flexible="4+"):
    throttle_time_ms: int = int32(versions="1+", ignorable=True)
    error_code: int = int16()
    protocol_type: str | None = string(versions="5+", nullable=True, default=None, ignorable=True)
    protocol_name: str | None = string(versions="5+", nullable=True, default=None, ignorable=True)
    assignment: bytes = binary()
