"""AlterPartitionReassignments: move partitions to other replicas, or (null replicas) cancel a move.

Version 1 can forbid that the number of replicas changes (KIP-860).
"""

from __future__ import annotations

from ottla.node.api.context import ApiRequestContext
from ottla.protocol.acl import AclOperation
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)


async def handle(
    context: ApiRequestContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    context.require_of_cluster(AclOperation.ALTER)
    response = await context.controller.control(
        lambda controller: controller.alter_partition_reassignments(request)
    )
    if request.topics:
        response.error_message = response.error_message or None
    for topic in response.responses:
        for partition in topic.partitions:
            if partition.error_code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS:
                partition.error_message = None
    return response
