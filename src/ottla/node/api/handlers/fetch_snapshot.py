"""FetchSnapshot: read a piece of a metadata snapshot, for a replica that is too far behind for the log.

Version 1 names replicas by their directories too (KIP-853).
"""

from __future__ import annotations

from ottla.node.api.context import RequestContext
from ottla.protocol.messages.fetch_snapshot import FetchSnapshotRequest
from ottla.protocol.schema import Response


async def handle(context: RequestContext, request: FetchSnapshotRequest) -> Response:
    context.require_cluster_action()
    return await context.controller.metadata.client.handle(request, context.version, context.listener.name)
