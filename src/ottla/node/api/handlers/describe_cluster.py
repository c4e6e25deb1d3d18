"""DescribeCluster: list the nodes of the cluster, and which of them is its controller.

Version 1 asks for brokers (by a broker's listener) or controllers (by a controller's listener); the other
  kind of listener answers MISMATCHED_ENDPOINT_TYPE (KIP-919).
Version 2 may include fenced brokers (KIP-1073).
"""

from __future__ import annotations

from ottla.node.api.context import RequestContext
from ottla.node.api.metadata_view import advertised_controller_id, broker_address
from ottla.protocol.acl import CLUSTER_NAME, AclOperation, AclResourceType
from ottla.protocol.api import ListenerType
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

_BROKERS, _CONTROLLERS = 1, 2
_NAMES = {_BROKERS: "BROKER", _CONTROLLERS: "CONTROLLER"}


def handle(context: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
    served = _BROKERS if context.listener.kind is ListenerType.BROKER else _CONTROLLERS
    if served == _CONTROLLERS:
        # As in Kafka: clients have no business there.
        context.require_of_cluster(AclOperation.ALTER)
    if request.endpoint_type not in _NAMES:
        return DescribeClusterResponse(
            error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"Unsupported endpoint type {request.endpoint_type}",
        )
    if request.endpoint_type != served:
        # Version 0 has no error code for this.
        error = ErrorCode.INVALID_REQUEST if context.version == 0 else ErrorCode.MISMATCHED_ENDPOINT_TYPE
        return DescribeClusterResponse(
            error_code=error,
            error_message=f"The request was sent to an endpoint of type {_NAMES[served]}, but we wanted an "
            f"endpoint of type {_NAMES[request.endpoint_type]}",
        )
    if served == _BROKERS:
        brokers, controller = _brokers(context, request), advertised_controller_id(context)
    else:
        brokers, controller = _controllers(context), _active_controller_id(context)
    response = DescribeClusterResponse(
        endpoint_type=served,
        cluster_id=context.services.node.cluster_id,
        controller_id=controller,
        brokers=brokers,
    )
    if request.include_cluster_authorized_operations:
        if context.allowed(AclOperation.DESCRIBE, AclResourceType.CLUSTER, CLUSTER_NAME):
            response.cluster_authorized_operations = context.authorized_operations(
                AclResourceType.CLUSTER, CLUSTER_NAME
            )
        else:
            response.cluster_authorized_operations = 0
    return response


def _active_controller_id(context: RequestContext) -> int:
    leader_id = context.controller.metadata.leader_id
    return -1 if leader_id is None else leader_id


def _brokers(context: RequestContext, request: DescribeClusterRequest) -> list[DescribeClusterBroker]:
    found = []
    for broker in context.image.cluster.brokers.values():
        if broker.fenced and not request.include_fenced_brokers:
            continue
        address = broker_address(context, broker)
        if address is not None:
            found.append(
                DescribeClusterBroker(
                    broker_id=address.id,
                    host=address.host,
                    port=address.port,
                    rack=address.rack,
                    is_fenced=address.fenced,
                )
            )
    return found


def _controllers(context: RequestContext) -> list[DescribeClusterBroker]:
    found = []
    for controller in context.image.cluster.controllers.values():
        endpoint = controller.listeners.get(context.listener.name)
        if endpoint is not None:
            found.append(
                DescribeClusterBroker(broker_id=controller.id, host=endpoint.host, port=endpoint.port)
            )
    return found
