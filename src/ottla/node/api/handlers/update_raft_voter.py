"""UpdateRaftVoter: update the endpoints of a voter and the versions of the quorum's protocol that it has."""

from __future__ import annotations

from ottla.node.api.context import RequestContext
from ottla.protocol.messages.update_raft_voter import UpdateRaftVoterRequest
from ottla.protocol.schema import Response


async def handle(context: RequestContext, request: UpdateRaftVoterRequest) -> Response:
    context.require_cluster_action()
    return await context.controller.metadata.client.handle(request, context.version, context.listener.name)
