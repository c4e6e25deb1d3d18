"""Vote: a voter asks for this one's vote.

Version 1 knows voters by their directories too; 2 may ask whether it would get the vote (pre-vote)."""

from __future__ import annotations

from ottla.node.api.context import RequestContext
from ottla.protocol.messages.vote import VoteRequest
from ottla.protocol.schema import Response


async def handle(context: RequestContext, request: VoteRequest) -> Response:
    context.require_cluster_action()
    return await context.controller.metadata.client.handle(request, context.version)
