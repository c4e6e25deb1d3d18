"""AllocateProducerIds: a broker takes a block of ids to give to its producers."""

from __future__ import annotations

from ottla.node.api.authorization import require_cluster_action
from ottla.node.api.context import RequestContext
from ottla.node.node import Node
from ottla.protocol.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)


async def handle(context: RequestContext, request: AllocateProducerIdsRequest) -> AllocateProducerIdsResponse:
    require_cluster_action(context)
    return await decide(context.node, request, context.version)


async def decide(
    node: Node, request: AllocateProducerIdsRequest, _version: int
) -> AllocateProducerIdsResponse:
    return await node.control(lambda controller: controller.allocate_producer_ids(request))
