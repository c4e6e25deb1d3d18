"""Renew a delegation token.

- v2: flexible
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, binary, int16, int32, int64


class RenewDelegationTokenRequest(Request, api_key=39, versions="1-2", flexible="2+"):
    hmac: bytes = binary()
    renew_period_ms: int = int64()


class RenewDelegationTokenResponse(Response, api_key=39, versions="1-2", flexible="2+"):
    error_code: int = int16()
    expiry_timestamp_ms: int = int64()
    throttle_time_ms: int = int32()
