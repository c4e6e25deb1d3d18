"""AssignReplicasToDirs: a broker tells in which of its directories replicas lie."""

from __future__ import annotations

from ottla.node.api.authorization import require_cluster_action
from ottla.node.api.context import RequestContext
from ottla.node.node import Node
from ottla.protocol.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)


async def handle(
    context: RequestContext, request: AssignReplicasToDirsRequest
) -> AssignReplicasToDirsResponse:
    require_cluster_action(context)
    return await decide(context.node, request, context.version)


async def decide(
    node: Node, request: AssignReplicasToDirsRequest, _version: int
) -> AssignReplicasToDirsResponse:
    return await node.control(lambda controller: controller.assign_replicas_to_dirs(request))
