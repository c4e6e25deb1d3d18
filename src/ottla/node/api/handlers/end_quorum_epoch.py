"""EndQuorumEpoch: the leader resigns, and names its preferred successors.

Version 1 is flexible, names them by their directories too, and has the leader's endpoints (KIP-853).
"""

from __future__ import annotations

from ottla.node.api.context import RequestContext
from ottla.protocol.messages.end_quorum_epoch import EndQuorumEpochRequest
from ottla.protocol.schema import Response


async def handle(context: RequestContext, request: EndQuorumEpochRequest) -> Response:
    context.require_cluster_action()
    return await context.controller.metadata.client.handle(request, context.version, context.listener.name)
