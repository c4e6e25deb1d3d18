"""AlterPartitionReassignments: move partitions to other replicas, or (null replicas) call a move off.

Version 1 can forbid that the number of replicas changes.
"""

from __future__ import annotations

from ottla.node.authorization import CLUSTER_NAME, Operation, Resource
from ottla.node.context import RequestContext
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)


async def handle(
    context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    if not context.allowed(Operation.ALTER, Resource.CLUSTER, CLUSTER_NAME):
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return await context.node.control(lambda controller: controller.alter_partition_reassignments(request))
