"""The doors by which handlers reach the coordinators, where a node has them."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ottla.node.context import RequestContext
    from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse


class TransactionCoordinator(Protocol):
    def init_producer_id(
        self, context: RequestContext, request: InitProducerIdRequest
    ) -> Awaitable[InitProducerIdResponse]: ...
