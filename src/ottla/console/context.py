"""What the endpoints of the API have at hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from ottla.console.api_request import ApiRequest, ConsoleError
from ottla.console.cluster_access import ClusterAccess
from ottla.console.config import ConsoleConfig, LoginMode
from ottla.console.files.inspector import NodeInspector
from ottla.console.messages.payload import PayloadDecoder
from ottla.console.sessions import ConsoleSession
from ottla.protocol.acl import AclOperation
from ottla.protocol.errors import ErrorCode
from ottla.runtime.http_server import HttpServerResponse
from ottla.runtime.runtime import Runtime

MAX_BODY_BYTES: Final = 1024 * 1024
_WHOLE_SECONDS: Final = 10.0


@dataclass(slots=True)
class WorkLimits:
    """How much the console does at once, for all sessions together."""

    searches: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(8))
    exports: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(2))
    tails: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(32))
    streams: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(100))
    wholes: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(2))
    """Messages that are held as a whole, each of which may be as large as brokers allow."""

    @asynccontextmanager
    async def one_of(self, kind: asyncio.Semaphore) -> AsyncIterator[None]:
        """Take a place, or refuse."""
        if kind.locked():
            raise ConsoleError(429, "BUSY", "too many searches and streams are running; try again later")
        async with kind:
            yield

    async def take_whole(self) -> None:
        """Take a place for a whole message, which the caller releases; refuse if none becomes free."""
        try:
            async with asyncio.timeout(_WHOLE_SECONDS):
                await self.wholes.acquire()
        except TimeoutError:
            raise ConsoleError(
                429, "BUSY", "too many large messages are being read; try again later"
            ) from None


@dataclass(frozen=True, slots=True)
class ConsoleServices:
    """What all sessions share."""

    runtime: Runtime
    config: ConsoleConfig
    decoder: PayloadDecoder
    inspector: NodeInspector | None
    limits: WorkLimits


@dataclass(frozen=True, slots=True)
class ApiContext:
    services: ConsoleServices
    session: ConsoleSession

    @property
    def access(self) -> ClusterAccess:
        return self.session.access

    @property
    def config(self) -> ConsoleConfig:
        return self.services.config

    @property
    def runtime(self) -> Runtime:
        return self.services.runtime

    def now_ms(self) -> int:
        return self.services.runtime.clock.wall_ms()

    async def require_cluster(self, operation: AclOperation) -> None:
        """Refuse a user who may not do this with the cluster: for what no request to the cluster checks, as
        the console has it from files.
        """
        if self._reads_as_its_operator():
            return
        allowed = await (await self.access.admin()).cluster.authorized_operations()
        self._check(allowed, operation, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "the cluster")

    async def require_topic(self, topic: str, operation: AclOperation) -> None:
        if self._reads_as_its_operator():
            return
        allowed = await (await self.access.admin(topic)).topics.authorized_operations(topic)
        self._check(allowed, operation, ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"topic {topic}")

    def _reads_as_its_operator(self) -> bool:
        """Whether files are read with the rights of the operator who started the console and named its
        directories. A node reads its files with rights that no other user of the machine has, so a console
        in a node asks the authorizer, also on loopback.
        """
        inspector = self.services.inspector
        in_node = inspector is not None and inspector.node_id is not None
        return self.config.login is not LoginMode.SASL and not in_node

    def _check(
        self, allowed: frozenset[AclOperation], operation: AclOperation, code: ErrorCode, resource: str
    ) -> None:
        if operation not in allowed:
            principal = self.access.principal
            raise ConsoleError(
                403, code.name, f"{code.text} Missing ACL: {principal} {operation.name} on {resource}."
            )


ApiHandler: TypeAlias = Callable[[ApiContext, ApiRequest], Awaitable[dict[str, Any] | HttpServerResponse]]


@dataclass(frozen=True, slots=True)
class ConsoleRoute:
    """An endpoint. `payloads` says that it shows what messages hold."""

    method: str
    path: str
    handle: ApiHandler
    max_body_bytes: int = MAX_BODY_BYTES
    payloads: bool = False
