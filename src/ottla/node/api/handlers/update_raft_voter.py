"""UpdateRaftVoter: a voter tells by which addresses it is reached and which versions it speaks."""

from __future__ import annotations

from ottla.node.api.authorization import require_cluster_action
from ottla.node.api.context import RequestContext
from ottla.protocol.messages.update_raft_voter import UpdateRaftVoterRequest
from ottla.protocol.schema import Response


async def handle(context: RequestContext, request: UpdateRaftVoterRequest) -> Response:
    require_cluster_action(context)
    return await context.node.metadata.client.handle(request, context.version)
