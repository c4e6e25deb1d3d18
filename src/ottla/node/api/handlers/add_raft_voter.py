"""AddRaftVoter: make a controller that observes the quorum one of its voters.

Version 1 can ask for a response before the change is committed (KIP-1186).
"""

from __future__ import annotations

from ottla.node.api.context import ApiRequestContext
from ottla.protocol.acl import AclOperation
from ottla.protocol.messages.add_raft_voter import AddRaftVoterRequest
from ottla.protocol.schema import Response


async def handle(context: ApiRequestContext, request: AddRaftVoterRequest) -> Response:
    context.require_of_cluster(AclOperation.ALTER)
    return await context.controller.metadata.client.handle(request, context.version, context.listener.name)
