"""ElectLeaders: make the preferred replicas leaders, or (unclean) any replica that is alive.

Version 1 names the kind of election and has an error for the whole request (KIP-460).
Version 2 is flexible (KIP-482).
"""

from __future__ import annotations

from ottla.node.api.context import ApiRequestContext
from ottla.protocol.acl import AclOperation
from ottla.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
)


async def handle(context: ApiRequestContext, request: ElectLeadersRequest) -> ElectLeadersResponse:
    context.require_of_cluster(AclOperation.ALTER)
    if request.topic_partitions == []:
        return ElectLeadersResponse()
    return await context.controller.control(lambda controller: controller.elect_leaders(request))
