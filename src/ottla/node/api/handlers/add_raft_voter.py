"""AddRaftVoter: a controller that follows the quorum becomes one of its voters.

Version 1 can ask for the answer before the change is committed."""

from __future__ import annotations

from ottla.node.api.context import RequestContext
from ottla.protocol.acl import CLUSTER_NAME, AclOperation, ResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.add_raft_voter import AddRaftVoterRequest
from ottla.protocol.schema import Response


async def handle(context: RequestContext, request: AddRaftVoterRequest) -> Response:
    if not context.allowed(AclOperation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME):
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return await context.node.metadata.client.handle(request, context.version)
