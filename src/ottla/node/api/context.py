"""The context of a request, which a handler gets beside its body: the client, the listener, the version, and
the parts of the node that it may use.

A request that came by a connection has a `RequestContext`. One that another broker forwarded to the active
controller has a `ForwardedRequestContext`, which has no connection. Handlers of requests that may come either
way take their common base, `ApiRequestContext`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from ottla.metadata.controller.state import ControllerRequestContext
from ottla.protocol.acl import (
    CLUSTER_NAME,
    SUPPORTED_OPERATIONS,
    AclOperation,
    AclResourceType,
    operation_bits,
)
from ottla.protocol.api import ListenerType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.runtime.steps import Steps, run_at_once
from ottla.runtime.turns import Turns
from ottla.runtime.work_queue import in_turns
from ottla.security.principal import ANONYMOUS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ottla.metadata.image.image import MetadataImage
    from ottla.node.api.request_meter import RequestMeter
    from ottla.node.api.services import ApiServices, BrokerServices
    from ottla.node.cluster.quorum_member import QuorumMember
    from ottla.node.config.node_config import NodeConfig
    from ottla.node.network.connection import ClientConnection, PendingRequest
    from ottla.protocol.api import Api
    from ottla.protocol.schema import Request
    from ottla.security.principal import KafkaPrincipal
    from ottla.security.quota.quota_managers import ControllerMutationQuota


T = TypeVar("T")

ELEMENTS_OF_A_TURN: Final = 1_000
"""Elements of the arrays of a request that are decoded at once, which takes a few milliseconds."""


@dataclass(frozen=True, slots=True)
class RequestListener:
    """The listener by which a request came."""

    name: str
    kind: ListenerType
    # Whether it serves versions that are not stable yet (`unstable.api.versions.enable`).
    serves_unstable_versions: bool


@dataclass(slots=True)
class ApiRequestContext(ABC):
    services: ApiServices
    listener: RequestListener
    api: Api
    version: int
    correlation_id: int
    client_id: str | None
    # Set where decoding took more than a turn: the response may take as much to encode.
    is_long: bool = field(default=False, kw_only=True)

    @property
    @abstractmethod
    def client_host(self) -> str:
        """The address of the client, without its port."""

    @property
    @abstractmethod
    def principal(self) -> KafkaPrincipal:
        """The client as its listener has authenticated it; of a forwarded request, as the envelope says."""

    @property
    def config(self) -> NodeConfig:
        return self.services.node.config

    @property
    def image(self) -> MetadataImage:
        """The newest committed metadata that this node has applied."""
        return self.services.node.image

    @property
    def controller(self) -> QuorumMember:
        return self.services.controller

    @property
    def request_name(self) -> str:
        return self.api.name

    def allowed(
        self, operation: int, resource_type: int, name: str, *, count: int = 1, log_denied: bool = True
    ) -> bool:
        """Whether the client may do this; without an authorizer every client may do everything. A denial is
        logged unless it only leaves something out of the response.
        """
        authorizer = self.services.node.authorizer
        return authorizer is None or authorizer.allowed(
            self, operation, resource_type, name, count=count, log_denied=log_denied
        )

    def allowed_by_resource_type(self, operation: int, resource_type: int) -> bool:
        """Whether the client may do this to at least one resource of the type."""
        authorizer = self.services.node.authorizer
        return authorizer is None or authorizer.allowed_by_resource_type(self, operation, resource_type)

    def require_cluster_action(self) -> None:
        """Raise CLUSTER_AUTHORIZATION_FAILED unless the client may act as a node of the cluster."""
        self.require_of_cluster(AclOperation.CLUSTER_ACTION)

    def require_of_cluster(self, operation: AclOperation) -> None:
        """Raise CLUSTER_AUTHORIZATION_FAILED unless the client may do this to the cluster."""
        if not self.allowed(operation, AclResourceType.CLUSTER, CLUSTER_NAME):
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

    def authorized_operations(self, resource_type: int, name: str) -> int:
        """Return the operations that the client may do with a resource, one bit for each."""
        supported = SUPPORTED_OPERATIONS[resource_type]
        return operation_bits(
            op for op in supported if self.allowed(op, resource_type, name, log_denied=False)
        )

    def run_steps(self, steps: Steps[T]) -> T | Awaitable[T]:
        """Run what is done for each part of the request: at once, or of a long one in turns."""
        if self.is_long:
            return in_turns(steps, Turns(self.services.node.runtime.clock))
        return run_at_once(steps)

    async def complete(self, steps: Steps[T]) -> T:
        """As `run_steps`, for what waits anyway."""
        if self.is_long:
            return await in_turns(steps, Turns(self.services.node.runtime.clock))
        return run_at_once(steps)

    async def build(self, make: Callable[..., T], *args: object) -> T:
        """Make an answer by code that reads nothing that may change meanwhile: of a long one in a thread."""
        if self.is_long:
            return await self.services.node.runtime.pool.run(make, *args)
        return make(*args)

    def for_controller(self, quota: ControllerMutationQuota | None = None) -> ControllerRequestContext:
        """This request as the controller sees it, with the quota on the partitions that it changes."""
        if quota is None:
            return ControllerRequestContext(allowed=self.allowed, without_log=self._allowed_without_log)
        return ControllerRequestContext(
            allowed=self.allowed,
            apply_partition_change_quota=quota.record,
            without_log=self._allowed_without_log,
        )

    def _allowed_without_log(self, operation: int, resource_type: int, name: str) -> bool:
        return self.allowed(operation, resource_type, name, log_denied=False)

    def mutation_quota(self, *, strict_since: int) -> ControllerMutationQuota | None:
        """The quota of a request that changes partitions; None if no client has one. From version
        `strict_since` on clients know THROTTLING_QUOTA_EXCEEDED.
        """
        quotas = self.services.node.quotas
        if not quotas.controller_mutation.is_enabled:
            return None
        return quotas.mutation_quota(
            self.principal.name, self.client_id, is_strict=self.version >= strict_since
        )


@dataclass(slots=True)
class RequestContext(ApiRequestContext):
    """A request that came by a connection of this node; it is answered there."""

    pending: PendingRequest
    # Set where some client has a quota.
    meter: RequestMeter | None = None
    # What of the request was forwarded to the active controller, which logs its changes.
    forwarded: Request | None = None
    # Set by a handler whose response takes more than a turn of the event loop to encode: the pool does it.
    is_bulky: bool = False

    def mutation_quota(self, *, strict_since: int) -> ControllerMutationQuota | None:
        """As for each request, but what comes to a controller's own listener is of another node."""
        if self.listener.kind is ListenerType.CONTROLLER:
            return None
        return ApiRequestContext.mutation_quota(self, strict_since=strict_since)

    def count_error(self, code: int) -> None:
        """Count an error of one partition, where the handler counts the errors of its API."""
        statistics = self.services.node.network_statistics.listener(self.listener.name)
        statistics.count_error(self.api.name, self.version, code)

    @property
    def broker(self) -> BrokerServices:
        broker = self.services.broker
        assert broker is not None, f"{self.api.name} came to a listener of controllers"
        return broker

    def run_bulky(self, steps: Steps[T], items: int, at_once: int = 200) -> T | Awaitable[T]:
        """Run what is done for each of some items: at once, or where there are more than that in turns, and
        the pool encodes the response.
        """
        if items <= at_once:
            return run_at_once(steps)
        self.is_bulky = True
        return in_turns(steps, Turns(self.services.node.runtime.clock))

    async def run_heavy(self, cost_us: int, fn: Callable[[], T], *, memory_bytes: int = 0) -> T:
        """Have the work done in a thread when it is the client's turn: one that has logged in waits behind
        its own heavy work, others behind that of their connections. Its time counts for the client's quota.
        """
        meter, connection = self.meter, self.pending.connection
        client = connection if connection.principal == ANONYMOUS else connection.principal
        call = fn if meter is None else partial(meter.measured, fn)
        return await self.services.node.heavy_work.run(client, cost_us, call, memory_bytes=memory_bytes)

    @property
    def connection(self) -> ClientConnection:
        return self.pending.connection

    @property
    def client_host(self) -> str:
        return self.pending.connection.peer[0]

    @property
    def principal(self) -> KafkaPrincipal:
        return self.pending.connection.principal

    @property
    def local_address(self) -> tuple[str, int]:
        """The address of this node that the client connected to."""
        return self.pending.connection.local


@dataclass(slots=True)
class ForwardedRequestContext(ApiRequestContext):
    """A request that a broker forwarded to the active controller on this node, on behalf of a client."""

    forwarded_host: str
    forwarded_principal: KafkaPrincipal

    @property
    def client_host(self) -> str:
        return self.forwarded_host

    @property
    def principal(self) -> KafkaPrincipal:
        return self.forwarded_principal
