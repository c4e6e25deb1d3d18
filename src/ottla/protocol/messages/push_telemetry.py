"""Push the metrics of a client."""

from __future__ import annotations

from ottla.protocol.schema import Buffer, Request, Response, binary, boolean, int8, int16, int32, uuid


class PushTelemetryRequest(Request, api_key=72, versions="0", flexible="0+"):
    client_instance_id: bytes = uuid()
    subscription_id: int = int32()
    terminating: bool = boolean()
    compression_type: int = int8()
    metrics: Buffer = binary(zero_copy=True)


class PushTelemetryResponse(Response, api_key=72, versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
