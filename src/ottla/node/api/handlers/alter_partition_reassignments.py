"""AlterPartitionReassignments: move partitions to other replicas, or (null replicas) call a move off.

Version 1 can forbid that the number of replicas changes.
"""

from __future__ import annotations

from ottla.node.api.context import RequestContext
from ottla.protocol.acl import CLUSTER_NAME, AclOperation, ResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)


async def handle(
    context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    if not context.allowed(AclOperation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME):
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    response = await context.node.control(
        lambda controller: controller.alter_partition_reassignments(request)
    )
    if request.topics:
        response.error_message = response.error_message or None
    for topic in response.responses:
        for partition in topic.partitions:
            if partition.error_code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS:
                partition.error_message = None
    return response
