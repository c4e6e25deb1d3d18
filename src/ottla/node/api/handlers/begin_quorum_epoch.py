"""BeginQuorumEpoch: the leader of an epoch makes itself known.

Version 1 tells where the leader is reached, and whom it means by the directory too."""

from __future__ import annotations

from ottla.node.api.context import RequestContext
from ottla.protocol.messages.begin_quorum_epoch import BeginQuorumEpochRequest
from ottla.protocol.schema import Response


async def handle(context: RequestContext, request: BeginQuorumEpochRequest) -> Response:
    context.require_cluster_action()
    return await context.controller.metadata.client.handle(request, context.version)
