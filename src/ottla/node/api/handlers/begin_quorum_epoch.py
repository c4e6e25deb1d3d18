"""BeginQuorumEpoch: the leader of a new epoch announces itself to the voters.

Version 1 is flexible, has the leader's endpoints, and names the addressed voter by its directory too
  (KIP-853).
"""

from __future__ import annotations

from ottla.node.api.context import RequestContext
from ottla.protocol.messages.begin_quorum_epoch import BeginQuorumEpochRequest
from ottla.protocol.schema import Response


async def handle(context: RequestContext, request: BeginQuorumEpochRequest) -> Response:
    context.require_cluster_action()
    return await context.controller.metadata.client.handle(request, context.version, context.listener.name)
