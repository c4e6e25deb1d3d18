"""Vote: answer a candidate that asks this voter for its vote.

Version 1 names voters by their directories too (KIP-853).
Version 2 may ask whether the voter would vote for it: pre-vote (KIP-996).
"""

from __future__ import annotations

from ottla.node.api.context import RequestContext
from ottla.protocol.messages.vote import VoteRequest
from ottla.protocol.schema import Response


async def handle(context: RequestContext, request: VoteRequest) -> Response:
    context.require_cluster_action()
    return await context.controller.metadata.client.handle(request, context.version, context.listener.name)
