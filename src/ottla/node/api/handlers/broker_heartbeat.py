"""BrokerHeartbeat: a broker is alive, and wants to be unfenced, to stay fenced, or to shut down.

Version 1 names directories that have failed (KIP-858).
Version 2 names directories that take no new replicas (KIP-1066).
"""

from __future__ import annotations

from ottla.node.api.context import RequestContext
from ottla.node.api.services import ApiServices
from ottla.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse


async def handle(context: RequestContext, request: BrokerHeartbeatRequest) -> BrokerHeartbeatResponse:
    context.require_cluster_action()
    context.controller.liveness.on_heartbeat(context.connection, request.broker_id, request.broker_epoch)
    return await decide(context.services, request, context.version)


async def decide(
    services: ApiServices, request: BrokerHeartbeatRequest, _version: int
) -> BrokerHeartbeatResponse:
    reply = await services.controller.active_controller.require().process_broker_heartbeat(request)
    return BrokerHeartbeatResponse(
        is_caught_up=reply.is_caught_up,
        is_fenced=reply.is_fenced,
        should_shut_down=reply.should_shut_down,
    )
