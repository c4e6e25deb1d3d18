"""PushTelemetry: take the metrics of a client (KIP-714).

The metrics are OTLP's, compressed with a codec of the client's choice. Each refusal is an error code of the
whole response. No ACL is needed.
"""

from __future__ import annotations

from collections.abc import Awaitable

from ottla.node.api.context import RequestContext
from ottla.node.telemetry.extension import ClientTelemetryExtension
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse


def handle(context: RequestContext, request: PushTelemetryRequest) -> Awaitable[PushTelemetryResponse]:
    telemetry = context.broker.extension(ClientTelemetryExtension).telemetry()
    return _answer(telemetry.push(request, context.client_id, context.connection))


async def _answer(received: Awaitable[ErrorCode]) -> PushTelemetryResponse:
    return PushTelemetryResponse(error_code=await received)
