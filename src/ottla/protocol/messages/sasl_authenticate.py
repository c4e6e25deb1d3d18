"""Carry the tokens of a SASL mechanism.

- v1: how long the session may last
- v2: flexible
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, binary, int16, int64, string


class SaslAuthenticateRequest(Request, api_key=36, versions="0-2", flexible="2+"):
    auth_bytes: bytes = binary()


class SaslAuthenticateResponse(Response, api_key=36, versions="0-2", flexible="2+"):
    error_code: int = int16()
    error_message: str | None = string(nullable=True)
    auth_bytes: bytes = binary()
    session_lifetime_ms: int = int64(versions="1+", ignorable=True)
