"""The HTTP listener of a node: where health, metrics and the console are mounted.

It is open from the first moment of a start to the last one of a stop, so that health can be asked for all
that time. Until the first client connects only the socket is there: the server, and each thing that is
mounted, is imported when it is first asked for.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from ottla.node.config.definitions.config_def import ConfigError
from ottla.node.config.errors import NodeFailed
from ottla.node.config.listeners import Endpoint, parse_http_listener
from ottla.node.config.node_config import NodeConfig
from ottla.node.http.mounts import MountAccess
from ottla.node.network.connection import ClientFaultLog
from ottla.node.network.server import ListenerTls
from ottla.runtime.address import Address
from ottla.runtime.network import NetworkListener
from ottla.runtime.runtime import Runtime
from ottla.runtime.tasks import SupervisedTask, TaskSupervisor

if TYPE_CHECKING:
    from ottla.metadata.image.image import MetadataImage
    from ottla.node.http.access import HttpAccess
    from ottla.runtime.http_server import HttpMount, HttpServer
    from ottla.security.authorizer.standard_authorizer import StandardAuthorizer
    from ottla.security.oauth.claims import TokenValidator

log = logging.getLogger(__name__)

# How long a client that comes before the server is there waits until it is looked for again.
_LOADING_SECONDS: Final = 0.01
DEFAULT_HTTP_LISTENER: Final = "http://127.0.0.1:9644"


class NodeHttp:
    """`setting` names the setting with its address; `default` is where to listen if that is not set, unless
    that address is taken.
    """

    def __init__(
        self,
        runtime: Runtime,
        config: NodeConfig,
        tasks: TaskSupervisor,
        *,
        setting: str = "http.listener",
        default: str = "",
        image: Callable[[], MetadataImage],
        authorizer: StandardAuthorizer | None,
    ) -> None:
        self._runtime: Final = runtime
        self._config: Final = config
        self._tasks: Final = tasks
        self._image: Final = image
        self._authorizer: Final = authorizer
        self._setting: Final = setting
        self._is_optional: Final = not config.is_set(setting)
        text = default if self._is_optional else config.text(setting)
        self._endpoint: Endpoint | None = parse_http_listener(text, setting)
        # The default address, if another program has it.
        self.taken: Address | None = None
        self._listener: NetworkListener | None = None
        self._server: HttpServer | None = None
        self._mounts: dict[str, tuple[Callable[[], Awaitable[HttpMount]], MountAccess]] = {}
        self._tls: ListenerTls | None = None
        self._tokens: TokenValidator | None = None
        self._loading: SupervisedTask | None = None
        self._access: HttpAccess | None = None

    @property
    def endpoint(self) -> Endpoint | None:
        """Where it listens, with the port that is really open; None if it does not."""
        if self._endpoint is None or self._listener is None:
            return None
        return Endpoint(
            self._endpoint.name, self._endpoint.protocol, self._endpoint.host, self._listener.port
        )

    @property
    def url(self) -> str | None:
        """The address of the root page; None if there is none."""
        endpoint = self.endpoint
        if endpoint is None:
            return None
        host = self._runtime.network.host_name() if endpoint.wildcard else endpoint.host
        return f"{'https' if endpoint.protocol.tls else 'http'}://{Address(host, endpoint.port)}"

    @property
    def connections(self) -> int:
        return 0 if self._server is None else self._server.connections

    @property
    def requests(self) -> int:
        """Requests that were answered."""
        return 0 if self._server is None else self._server.requests

    @property
    def refused(self) -> int:
        """Connections that ended for a fault of the client, or for lack of room."""
        return 0 if self._server is None else self._server.refused

    @property
    def refused_logins(self) -> int:
        """Logins that were refused, for the name or the password or because too many failed before."""
        return 0 if self._access is None else self._access.refused_logins

    def mount(
        self,
        prefix: str,
        load: Callable[[], Awaitable[HttpMount]],
        access: MountAccess = MountAccess.LOGIN,
    ) -> None:
        """Have a path, and those below it, answered by routes that `load` returns when one is first asked
        for. A longer prefix goes before a shorter one, and `/` has all that is left.
        """
        prefix = prefix.rstrip("/") or "/"
        assert prefix not in self._mounts, f"{prefix} is mounted already"
        self._mounts[prefix] = (load, access)
        if self._server is not None:
            self._server.router.mount(prefix, load)

    async def open(self, tls_for: Callable[[Endpoint], ListenerTls | None]) -> None:
        """Listen, if that is asked for. NodeFailed if an address that a setting names cannot be bound."""
        endpoint = self._endpoint
        if endpoint is None:
            return
        self._tls = tls_for(endpoint)
        if self._tls is not None and not endpoint.is_loopback:
            self._tokens = self._token_validator(endpoint.name)
        try:
            self._listener = await self._runtime.network.listen(
                self._connect,
                endpoint.host,
                endpoint.port,
                tls=None if self._tls is None else _HttpTls(self._tls),
                gate=self,
            )
        except OSError as error:
            if self._is_optional and error.errno == errno.EADDRINUSE:
                log.info("%s; there is no HTTP for health, metrics and the console", error.strerror)
                self.taken = Address(endpoint.host, endpoint.port)
                return
            raise NodeFailed(f"{self._setting}: {error.strerror or error}") from None

    def _token_validator(self, listener: str) -> TokenValidator | None:
        from ottla.node.config.sasl import http_token_validator
        from ottla.security.sasl.registry import SaslEnvironment

        environment = SaslEnvironment(self._runtime, start_task=self._tasks.start)
        try:
            return http_token_validator(self._config, listener, environment)
        except ConfigError as error:
            raise NodeFailed(str(error)) from None

    # Clients are accepted once there is a server for them: it is imported in a thread of the pool, as that
    # takes longer than the event loop may be held.

    def delay_s(self) -> float:
        if self._server is not None:
            return 0.0
        if self._loading is None:
            self._loading = self._tasks.start("loading of the HTTP server", self._load)
        return _LOADING_SECONDS

    def on_accepted(self, host: str) -> float | None:
        return None

    def on_failed(self, host: str) -> None:
        pass

    async def _load(self) -> None:
        await self._runtime.pool.run(_import_server)
        self._server = self._make_server()

    def _connect(self) -> asyncio.BaseProtocol:
        assert self._server is not None
        return self._server.connect()

    def _make_server(self) -> HttpServer:
        from ottla.node.http.access import HttpAccess
        from ottla.runtime.http_server import HttpRouter, HttpServer

        assert self._endpoint is not None
        router = HttpRouter()
        for prefix, (load, _) in self._mounts.items():
            router.mount(prefix, load)
        self._access = access = HttpAccess(
            self._endpoint,
            self._config.names("http.public.paths"),
            lambda prefix: self._mounts[prefix][1],
            self._image,
            self._tls,
            self._authorizer,
            self._runtime.pool,
            self._runtime.clock,
            self._tokens,
        )
        return HttpServer(self._runtime.clock, router, guard=access.check, hosts=access.hosts)

    async def close(self) -> None:
        """Stop listening, and end all connections."""
        if self._listener is not None:
            await self._listener.close()
            self._listener = None
        if self._loading is not None:
            await self._loading.stop()
        if self._server is not None:
            await self._server.close()


def _import_server() -> None:
    import ottla.node.http.access
    import ottla.runtime.http_server  # noqa: F401


class _HttpTls:
    """`TlsAcceptor` of the listener."""

    __slots__ = ("_fault_log", "context")

    def __init__(self, tls: ListenerTls) -> None:
        self.context: Final = tls.context
        self._fault_log: Final = ClientFaultLog()

    def on_handshake_failed(self, peer: Address, reason: str) -> None:
        now = asyncio.get_running_loop().time()
        self._fault_log.log_closed((peer.host, peer.port), f"SSL handshake failed: {reason}", now)
