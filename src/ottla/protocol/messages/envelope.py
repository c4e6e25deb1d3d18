"""Forward a client's request to the active controller, with its principal and address."""

from __future__ import annotations

from ottla.protocol.schema import Buffer, Request, Response, binary, int16


class EnvelopeRequest(Request, api_key=58, versions="0", flexible="0+"):
    request_data: Buffer = binary(zero_copy=True)
    request_principal: bytes | None = binary(nullable=True)
    client_host_address: bytes = binary()


class EnvelopeResponse(Response, api_key=58, versions="0", flexible="0+"):
    response_data: Buffer | None = binary(nullable=True, default=None, zero_copy=True)
    error_code: int = int16()
