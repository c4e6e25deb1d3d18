"""AlterPartition: a leader asks for another in-sync set of its partition.

Version 2 knows topics by their ids; 3 the epochs of the brokers in the set."""

from __future__ import annotations

from ottla.node.api.authorization import require_cluster_action
from ottla.node.api.context import RequestContext
from ottla.node.node import Node
from ottla.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse


async def handle(context: RequestContext, request: AlterPartitionRequest) -> AlterPartitionResponse:
    require_cluster_action(context)
    return await decide(context.node, request, context.version)


async def decide(node: Node, request: AlterPartitionRequest, version: int) -> AlterPartitionResponse:
    return await node.control(lambda controller: controller.alter_partition(request, version=version))
