"""GetTelemetrySubscriptions: say which of its metrics a client pushes, and how often (KIP-714).

A client that sends an id of zeros gets one. A client that asks before its interval is over gets
THROTTLING_QUOTA_EXCEEDED, unless it was to ask again. No ACL is needed.
"""

from __future__ import annotations

from ottla.node.api.context import RequestContext
from ottla.node.telemetry.extension import ClientTelemetryExtension
from ottla.protocol.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)


def handle(
    context: RequestContext, request: GetTelemetrySubscriptionsRequest
) -> GetTelemetrySubscriptionsResponse:
    telemetry = context.broker.extension(ClientTelemetryExtension).telemetry()
    return telemetry.get_subscription(request, context.client_id, context.connection)
