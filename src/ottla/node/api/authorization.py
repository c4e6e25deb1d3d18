"""How handlers ask an authorizer.

Without an authorizer (`authorizer.class.name` is empty) everything is allowed, and a client that asks what it
may do gets every operation that the resource supports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ottla.protocol.acl import CLUSTER_NAME, AclOperation, ResourceType
from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.node.api.context import RequestContext


class Authorizer(Protocol):
    def allowed(self, context: RequestContext, operation: int, resource_type: int, name: str) -> bool: ...


def require_cluster_action(context: RequestContext) -> None:
    """KafkaError CLUSTER_AUTHORIZATION_FAILED unless the client may act as a node of the cluster."""
    if not context.allowed(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME):
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
