"""BrokerRegistration: register a broker that starts, fenced at first, and return its epoch.

Version 2 names log directories (KIP-858).
Version 3 has the broker's previous epoch, if it shut down cleanly (KIP-966).
Version 4 has features whose lowest level is 0 (KAFKA-17011).
"""

from __future__ import annotations

from ottla.node.api.context import RequestContext
from ottla.node.api.services import ApiServices
from ottla.protocol.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)


async def handle(context: RequestContext, request: BrokerRegistrationRequest) -> BrokerRegistrationResponse:
    context.require_cluster_action()
    response = await _register(context.services, request, context.version, supersede=False)
    context.controller.liveness.on_heartbeat(context.connection, request.broker_id, response.broker_epoch)
    return response


async def decide(
    services: ApiServices, request: BrokerRegistrationRequest, version: int
) -> BrokerRegistrationResponse:
    # The controller's own broker: this process holds the locks of its directories, so no other incarnation of
    # it is running.
    return await _register(services, request, version, supersede=True)


async def _register(
    services: ApiServices, request: BrokerRegistrationRequest, version: int, *, supersede: bool
) -> BrokerRegistrationResponse:
    epoch = await services.controller.active_controller.require().register_broker(
        request, supersede=supersede, version=version
    )
    return BrokerRegistrationResponse(broker_epoch=epoch)
