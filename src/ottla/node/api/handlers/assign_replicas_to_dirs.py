"""AssignReplicasToDirs: record in which of its directories a broker keeps replicas."""

from __future__ import annotations

from ottla.node.api.context import RequestContext
from ottla.node.api.services import ApiServices
from ottla.protocol.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)


async def handle(
    context: RequestContext, request: AssignReplicasToDirsRequest
) -> AssignReplicasToDirsResponse:
    context.require_cluster_action()
    return await decide(context.services, request, context.version)


async def decide(
    services: ApiServices, request: AssignReplicasToDirsRequest, _version: int
) -> AssignReplicasToDirsResponse:
    return await services.controller.control(
        lambda controller: controller.assign_replicas_to_dirs(request), for_client=False
    )
