"""ListPartitionReassignments: list the reassignments of partitions that are in progress."""

from __future__ import annotations

from ottla.node.api.context import ApiRequestContext
from ottla.protocol.acl import AclOperation
from ottla.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


async def handle(
    context: ApiRequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    context.require_of_cluster(AclOperation.DESCRIBE)
    response = await context.controller.control(
        lambda controller: controller.list_partition_reassignments(request)
    )
    response.error_message = response.error_message or None
    return response
