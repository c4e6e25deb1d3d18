"""RemoveRaftVoter: one of the quorum's voters becomes none, and only follows from then on."""

from __future__ import annotations

from ottla.node.api.context import RequestContext
from ottla.protocol.acl import CLUSTER_NAME, AclOperation, ResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest
from ottla.protocol.schema import Response


async def handle(context: RequestContext, request: RemoveRaftVoterRequest) -> Response:
    if not context.allowed(AclOperation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME):
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return await context.node.metadata.client.handle(request, context.version)
