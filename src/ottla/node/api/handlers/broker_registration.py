"""BrokerRegistration: a broker joins the cluster, or comes back to it, fenced at first; it gets its epoch.

Version 2 names log directories; 3 the epoch of the last life, if that ended cleanly; 4 features whose lowest
level is 0.
"""

from __future__ import annotations

from ottla.node.api.authorization import require_cluster_action
from ottla.node.api.context import RequestContext
from ottla.node.node import Node
from ottla.protocol.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)


async def handle(context: RequestContext, request: BrokerRegistrationRequest) -> BrokerRegistrationResponse:
    require_cluster_action(context)
    response = await _register(context.node, request, context.version, supersede=False)
    context.node.quorum.liveness.heard(context.exchange.connection, request.broker_id, response.broker_epoch)
    return response


async def decide(node: Node, request: BrokerRegistrationRequest, version: int) -> BrokerRegistrationResponse:
    # The controller's own broker: this process holds the locks of its directories, so no former one is left.
    return await _register(node, request, version, supersede=True)


async def _register(
    node: Node, request: BrokerRegistrationRequest, version: int, *, supersede: bool
) -> BrokerRegistrationResponse:
    epoch = await node.controller.register_broker(request, supersede=supersede, version=version)
    return BrokerRegistrationResponse(broker_epoch=epoch)
