"""AlterPartition: change the ISR of a partition, as its leader proposes.

Version 2 names topics by id (KIP-841).
Version 3 has the epochs of the brokers in the ISR (KIP-903).
"""

from __future__ import annotations

from ottla.node.api.context import RequestContext
from ottla.node.api.services import ApiServices
from ottla.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse


async def handle(context: RequestContext, request: AlterPartitionRequest) -> AlterPartitionResponse:
    context.require_cluster_action()
    return await decide(context.services, request, context.version)


async def decide(
    services: ApiServices, request: AlterPartitionRequest, version: int
) -> AlterPartitionResponse:
    return await services.controller.control(
        lambda controller: controller.alter_partition(request, version=version), for_client=False
    )
