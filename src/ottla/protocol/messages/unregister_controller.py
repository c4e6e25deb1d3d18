"""Remove the registration of a controller that will not come back (KIP-1312)."""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, int16, int32, string


class UnregisterControllerRequest(Request, api_key=94, versions="0", flexible="0+"):
    controller_id: int = int32()


class UnregisterControllerResponse(Response, api_key=94, versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True)
