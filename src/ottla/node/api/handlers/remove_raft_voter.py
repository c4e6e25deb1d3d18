"""RemoveRaftVoter: make one of the quorum's voters an observer."""

from __future__ import annotations

from ottla.node.api.context import ApiRequestContext
from ottla.protocol.acl import AclOperation
from ottla.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest
from ottla.protocol.schema import Response


async def handle(context: ApiRequestContext, request: RemoveRaftVoterRequest) -> Response:
    context.require_of_cluster(AclOperation.ALTER)
    return await context.controller.metadata.client.handle(request, context.version, context.listener.name)
