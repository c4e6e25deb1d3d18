"""A console on a listener of its own, beside any cluster: `ottla console`."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ottla.console.config import ConsoleConfig
from ottla.console.console import Console, console_routes
from ottla.console.files.inspector import NodeInspector
from ottla.console.guard import LOOPBACK_NAMES
from ottla.console.sessions import KEY
from ottla.runtime.address import Address
from ottla.runtime.http_server import HttpRouter, HttpServer
from ottla.runtime.network import NetworkListener
from ottla.runtime.runtime import Runtime

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerCertificate:
    """Files of PEM: the certificate with its chain, and its key."""

    certificate: str
    key: str

    def context(self) -> ssl.SSLContext:
        """OSError or ssl.SSLError if they cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.certificate, self.key)
        return context


class ConsoleServer:
    """`async with` listens; `url` is where. With a certificate it speaks TLS only. `on_address` is called
    with the address to open, and with the next one when a browser has used that.
    """

    def __init__(
        self,
        runtime: Runtime,
        config: ConsoleConfig,
        host: str,
        port: int,
        *,
        certificate: ServerCertificate | None = None,
        make_inspector: Callable[[Runtime], NodeInspector | None] = lambda _: None,
        on_address: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._runtime: Final = runtime
        self._config: Final = config
        self._host: Final = host
        self._port: Final = port
        self._tls: Final = None if certificate is None else _Tls(certificate.context())
        self._on_address: Final = on_address
        self._console: Final = Console(runtime, config, make_inspector(runtime), self._show_address)
        self._server: HttpServer | None = None
        self._listener: NetworkListener | None = None

    async def __aenter__(self) -> ConsoleServer:
        hosts = frozenset((*LOOPBACK_NAMES, self._host)) if self._config.loopback_only else None
        self._server = HttpServer(self._runtime.clock, HttpRouter(console_routes(self._console)), hosts=hosts)
        self._listener = await self._runtime.network.listen(
            self._server.connect, self._host, self._port, tls=self._tls
        )
        self._show_address()
        return self

    def _show_address(self) -> None:
        self._on_address(self.url)

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        assert self._listener is not None
        await self._listener.close()
        await self._server.close()
        await self._console.close()

    @property
    def port(self) -> int:
        assert self._listener is not None
        return self._listener.port

    @property
    def url(self) -> str:
        scheme = "http" if self._tls is None else "https"
        query = "" if self._console.key is None else f"?{KEY}={self._console.key}"
        return f"{scheme}://{Address(self._host or '0.0.0.0', self.port)}/{query}"


class _Tls:
    """`TlsAcceptor` of the listener."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context: Final = context

    def context(self) -> ssl.SSLContext:
        return self._context

    def on_handshake_failed(self, peer: Address, reason: str) -> None:
        _log.debug("no TLS with %s: %s", peer, reason)


async def serve_until(stop: asyncio.Event, server: ConsoleServer) -> None:
    """Serve until the event is set."""
    async with server:
        await stop.wait()
