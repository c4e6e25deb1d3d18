"""What a handler knows of the request beside its body: who asks, by which listener, in which version."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from ottla.metadata.controller.state import ControllerRequestContext
from ottla.protocol.acl import SUPPORTED_OPERATIONS, operation_bits
from ottla.protocol.schema import Request, Response

if TYPE_CHECKING:
    from ottla.node.api.dispatch import Dispatcher
    from ottla.node.config.listeners import Endpoint
    from ottla.node.network.connection import PendingRequest
    from ottla.node.node import Node
    from ottla.protocol.api import Api
    from ottla.protocol.headers import RequestHeader


@dataclass(slots=True)
class RequestContext:
    node: Node
    dispatcher: Dispatcher
    exchange: PendingRequest
    api: Api
    version: int
    correlation_id: int
    client_id: str | None
    forwarded_for: str | None = None
    """The host of the client for which another broker passed the request on; then there is no connection of
    its own."""

    @classmethod
    def of_forwarded(
        cls, dispatcher: Dispatcher, api: Api, version: int, header: RequestHeader, host: str
    ) -> RequestContext:
        nothing = cast("PendingRequest", None)
        return cls(
            dispatcher.node, dispatcher, nothing, api, version, header.correlation_id, header.client_id, host
        )

    @property
    def endpoint(self) -> Endpoint:
        """The listener by which the request came."""
        return self.dispatcher.endpoint

    @property
    def client_host(self) -> str:
        if self.forwarded_for is not None:
            return self.forwarded_for
        return self.exchange.connection.peer[0]

    @property
    def came_by(self) -> tuple[str, int]:
        """The address of this node that the client connected to."""
        return self.exchange.connection.local

    def allowed(self, operation: int, resource_type: int, name: str) -> bool:
        """Whether the client may do this; without an authorizer everybody may do everything."""
        authorizer = self.node.authorizer
        return authorizer is None or authorizer.allowed(self, operation, resource_type, name)

    def operations(self, resource_type: int, name: str) -> int:
        """What the client may do with a resource, one bit for each operation."""
        supported = SUPPORTED_OPERATIONS[resource_type]
        return operation_bits(op for op in supported if self.allowed(op, resource_type, name))

    def control(self) -> ControllerRequestContext:
        """This request as the controller sees it."""
        return ControllerRequestContext(allowed=self.allowed)


Reply: TypeAlias = Response | Awaitable[Response | None] | None
"""The response, or what will give it; None where the request is not to be answered (Produce with acks=0)."""

Handler: TypeAlias = Callable[[RequestContext, Any], Reply]
ErrorBuilder: TypeAlias = Callable[[Request, int, str | None], Response]
