"""What protects a node: the TLS of its listeners and of its connections to other nodes.

Connections to other brokers use the settings of the inter-broker listener, those to controllers the settings
of the first controller listener, also on a node that has no such listener itself. Nothing is loaded for a
node whose listeners are all in plain text.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from ottla.node.config.dynamic import DynamicBrokerConfig
from ottla.node.config.errors import NodeFailed
from ottla.node.config.listeners import Endpoint
from ottla.node.config.node_config import NodeConfig
from ottla.node.config.tables.config_def import ConfigError
from ottla.node.network.server import ListenerTls
from ottla.protocol.security_protocol import SecurityProtocol
from ottla.rpc.connection import BrokerConnection
from ottla.rpc.errors import AuthenticationFailed
from ottla.runtime.address import Address
from ottla.runtime.disk import Disk
from ottla.runtime.network import TlsContext
from ottla.runtime.runtime import Runtime
from ottla.security.principal import ANONYMOUS, USER_TYPE, KafkaPrincipal

if TYPE_CHECKING:
    from ottla.security.sasl.client_authenticator import SaslLogin
    from ottla.security.tls.settings import TlsSettings
    from ottla.security.tls.ssl_factory import SslFactory

log = logging.getLogger(__name__)


class InterNodeSecurity:
    """`ConnectionSecurity` of the connections of a node to one listener of others."""

    __slots__ = ("_failures", "factory", "login")

    def __init__(self) -> None:
        # None in plain text, and before the node has loaded its certificates.
        self.factory: SslFactory | None = None
        # None without SASL, and before the node has read its credentials.
        self.login: SaslLogin | None = None
        # The addresses whose refusals have been logged.
        self._failures: set[Address] = set()

    def tls(self) -> TlsContext | None:
        return None if self.factory is None else self.factory.client

    async def authenticate(self, connection: BrokerConnection, *, timeout_ms: int) -> None:
        if self.login is None:
            return
        try:
            await self.login.authenticate(connection, timeout_ms=timeout_ms)
        except AuthenticationFailed as error:
            # It is tried again and again, as the other node may learn of this one's user; one line is enough.
            if connection.address not in self._failures:
                self._failures.add(connection.address)
                log.error("this node cannot log in at another one: %s", error)
            raise
        self._failures.discard(connection.address)


class _NodeListenerTls:
    """`ListenerTls` of a node; clients are known by their certificates unless SASL asks who they are."""

    __slots__ = ("_factory", "_names_clients")

    def __init__(self, factory: SslFactory, *, names_clients: bool) -> None:
        self._factory: Final = factory
        self._names_clients: Final = names_clients

    def context(self) -> TlsContext:
        return self._factory.server_context()

    def principal(self, transport: asyncio.BaseTransport) -> KafkaPrincipal:
        tls = transport.get_extra_info("ssl_object")
        if not self._names_clients or tls is None:
            return ANONYMOUS
        certificate = tls.getpeercert(True)
        if certificate is None:
            return ANONYMOUS
        return KafkaPrincipal(USER_TYPE, self._factory.user_name(certificate))


class NodeSecurity:
    def __init__(self, runtime: Runtime, config: DynamicBrokerConfig) -> None:
        self._runtime: Final = runtime
        self._config: Final = config
        self.inter_broker: Final = InterNodeSecurity()
        self.controller: Final = InterNodeSecurity()
        # By the names of listeners.
        self._factories: dict[str, SslFactory] = {}

    async def load(self) -> None:
        """Read all key material. NodeFailed names the listener, the setting and the file."""
        config = self._config.current
        names = {each.name: each.protocol for each in config.listeners if each.protocol.tls}
        for name, security, mechanism in (
            (config.inter_broker_listener, self.inter_broker, "sasl.mechanism.inter.broker.protocol"),
            (config.controller_listener_names[0], self.controller, "sasl.mechanism.controller.protocol"),
        ):
            protocol = config.security_protocols.get(name, SecurityProtocol.PLAINTEXT)
            if protocol.sasl:
                security.login = self._login(name, mechanism)
            if protocol.tls:
                names[name] = protocol
                security.factory = await self._factory(name, protocol)
        for name, protocol in names.items():
            await self._factory(name, protocol)

    def _login(self, listener: str, mechanism: str) -> SaslLogin | None:
        config = self._config.current
        from ottla.node.config.sasl import client_mechanism
        from ottla.security.sasl.client_authenticator import SaslLogin
        from ottla.security.sasl.registry import SaslEnvironment

        environment = SaslEnvironment(self._runtime)
        try:
            return SaslLogin(client_mechanism(config, listener, mechanism, environment), self._runtime.random)
        except ConfigError as error:
            raise NodeFailed(str(error)) from None

    async def _factory(self, listener: str, protocol: SecurityProtocol) -> SslFactory:
        factory = self._factories.get(listener)
        if factory is None:
            from ottla.security.tls.errors import TlsError

            listens = any(each.name == listener for each in self._config.current.listeners)
            try:
                settings = listener_tls_settings(self._config.current, listener, protocol)
                factory = await self._runtime.pool.run(
                    _load_factory, self._runtime.disk, listener, settings, listens
                )
            except TlsError as error:
                raise NodeFailed(f"listener {listener}: {error}") from None
            self._factories[listener] = factory
        return factory

    def listener_tls(self, endpoint: Endpoint) -> ListenerTls | None:
        """The TLS of a listener; None in plain text."""
        factory = self._factories.get(endpoint.name)
        if factory is None or not endpoint.protocol.tls:
            return None
        return _NodeListenerTls(factory, names_clients=not endpoint.protocol.sasl)


def _load_factory(disk: Disk, listener: str, settings: TlsSettings, listens: bool) -> SslFactory:
    # Imported here, in a thread of the pool: it takes longer than the event loop may be held.
    from ottla.security.tls.ssl_factory import SslFactory

    return SslFactory.load(disk, listener, settings, listens)


def listener_tls_settings(config: NodeConfig, listener: str, protocol: SecurityProtocol) -> TlsSettings:
    """The settings of a listener's TLS, by its prefix or in general. TlsError if they cannot be used."""
    from ottla.security.tls.settings import tls_settings

    def get(name: str) -> object:
        # As Kafka has it: for SASL_SSL, only the prefix of the listener asks for certificates of clients.
        if name == "ssl.client.auth" and protocol.sasl and not config.is_set_for_listener(listener, name):
            return "none"
        return config.with_listener_prefix(listener, name)

    return tls_settings(
        get, is_set=lambda name: config.is_set(name) or config.is_set_for_listener(listener, name)
    )
