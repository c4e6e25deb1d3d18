"""AllocateProducerIds: give a broker a block of ids for its producers."""

from __future__ import annotations

from ottla.node.api.context import ApiRequestContext
from ottla.node.api.services import ApiServices
from ottla.protocol.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)


async def handle(
    context: ApiRequestContext, request: AllocateProducerIdsRequest
) -> AllocateProducerIdsResponse:
    context.require_cluster_action()
    return await decide(context.services, request, context.version)


async def decide(
    services: ApiServices, request: AllocateProducerIdsRequest, _version: int
) -> AllocateProducerIdsResponse:
    return await services.controller.control(
        lambda controller: controller.allocate_producer_ids(request), for_client=False
    )
