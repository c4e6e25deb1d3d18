"""ListPartitionReassignments: the moves of partitions that are under way."""

from __future__ import annotations

from ottla.metadata.controller.state import Result
from ottla.node.api.context import RequestContext
from ottla.protocol.acl import CLUSTER_NAME, AclOperation, ResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


async def handle(
    context: RequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    if not context.allowed(AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    response = await context.node.control(
        lambda controller: Result([], controller.list_partition_reassignments(request))
    )
    response.error_message = response.error_message or None
    return response
