"""Join a classic group, and wait for the others.

- v1: rebalance timeout of its own
- v2: throttle time
- v4: a new member gets its id and joins again
- v5: static members
- v6: flexible
- v7: the response has the protocol type
- v8: the reason for joining
- v9: the leader may skip the assignment
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, Struct, array, binary, boolean, int16, int32, string


class JoinGroupRequestProtocol(Struct):
    name: str = string(map_key=True)
    metadata: bytes = binary()


class JoinGroupRequest(Request, api_key=11, versions="0-9", flexible="6+"):
    group_id: str = string()
    session_timeout_ms: int = int32()
    rebalance_timeout_ms: int = int32(versions="1+", default=-1, ignorable=True)
    member_id: str = string()
    group_instance_id: str | None = string(versions="5+", nullable=True, default=None)
    protocol_type: str = string()
    protocols: list[JoinGroupRequestProtocol] = array(JoinGroupRequestProtocol)
    reason: str | None = string(versions="8+", nullable=True, default=None, ignorable=True)


class JoinGroupResponseMember(Struct):
    member_id: str = string()
    group_instance_id: str | None = string(versions="5+", nullable=True, default=None, ignorable=True)
    metadata: bytes = binary()


class JoinGroupResponse(Response, api_key=11, versions="0-9", flexible="6+"):
    throttle_time_ms: int = int32(versions="2+", ignorable=True)
    error_code: int = int16()
    generation_id: int = int32(default=-1)
    protocol_type: str | None = string(versions="7+", nullable=True, default=None, ignorable=True)
    protocol_name: str | None = string(nullable="7+")
    leader: str = string()
    skip_assignment: bool = boolean(versions="9+")
    member_id: str = string()
    members: list[JoinGroupResponseMember] = array(JoinGroupResponseMember)
