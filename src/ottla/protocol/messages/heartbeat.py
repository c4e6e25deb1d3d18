"""Tell a classic group that the member lives.

- v1: throttle time
- v3: static members
- v4: flexible
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, int16, int32, string


class HeartbeatRequest(Request, api_key=12, versions="0-4", flexible="4+"):
    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(versions="3+", nullable=True, default=None)


class HeartbeatResponse(Response, api_key=12, versions="0-4", flexible="4+"):
    throttle_time_ms: int = int32(versions="1+", ignorable=True)
    error_code: int = int16()
