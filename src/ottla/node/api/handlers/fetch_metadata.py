"""Fetch, on a controller's listener: read the metadata log, for the other voters and for brokers."""

from __future__ import annotations

from ottla.node.api.context import RequestContext
from ottla.node.api.handlers.fetch import failure_response
from ottla.protocol.messages.fetch import FetchRequest
from ottla.protocol.schema import Response

__all__ = ["failure_response", "handle"]


async def handle(context: RequestContext, request: FetchRequest) -> Response:
    context.require_cluster_action()
    return await context.controller.metadata.client.handle(request, context.version, context.listener.name)
