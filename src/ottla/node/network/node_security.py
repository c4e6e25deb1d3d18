"""What protects a node: the TLS of its listeners and of its connections to other nodes.

Connections to other brokers use the settings of the inter-broker listener, those to controllers the settings
of the first controller listener, also on a node that has no such listener itself. Nothing is loaded for a
node whose listeners are all in plain text.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final

from ottla.node.config.definitions.config_def import ConfigError
from ottla.node.config.dynamic import DynamicBrokerConfig
from ottla.node.config.errors import NodeFailed
from ottla.node.config.listeners import HTTP_LISTENER_NAME, Endpoint
from ottla.node.config.node_config import NodeConfig
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
    from ottla.security.tls.expiry import ExpiryWarnings
    from ottla.security.tls.settings import TlsSettings
    from ottla.security.tls.ssl_factory import SslFactory

log = logging.getLogger(__name__)

# How often it is looked whether the files of certificates have changed.
_LOOK_SECONDS: Final = 2.0


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
        self._expiry: ExpiryWarnings | None = None
        # Settings and files that were tried and cannot be used; each is reported once.
        self._refused: dict[str, str] = {}
        # Set when settings have changed.
        self._changed: Final = asyncio.Event()
        config.add_reconfigurable(lambda _: self._changed.set())

    async def load(self) -> None:
        """Read all key material. NodeFailed names the listener, the setting and the file."""
        config = self._config.current
        names = {each.name: each.protocol for each in config.listeners if each.protocol.tls}
        for listener in (config.http_listener, config.schema_registry_listener):
            if listener is not None and listener.protocol.tls:
                names[HTTP_LISTENER_NAME] = listener.protocol
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
        self._warn_of_expiry()

    @property
    def has_certificates(self) -> bool:
        return bool(self._factories)

    async def watch(self) -> None:
        """Renew key material when settings or files change, for as long as the node runs."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._changed.wait()
            self._changed.clear()
            await self.renew()

    async def renew(self) -> None:
        """Use key material whose settings or files have changed, for the connections that follow. What cannot
        be used is logged, and the old one stays in use.
        """
        from ottla.security.tls.errors import TlsError

        for factory in self._factories.values():
            try:
                made = await self._renewed(factory, self._config.current)
            except (TlsError, ConfigError) as error:
                self._report_refusal(factory.listener, str(error))
                continue
            self._refused.pop(factory.listener, None)
            if made is not None:
                factory.adopt(made)
                facts = made.certificate
                log.info(
                    "listener %s uses new certificates%s",
                    factory.listener,
                    "" if facts is None else f": {facts.subject}, until {facts.end_text}",
                )
        self._warn_of_expiry()

    async def check_change(self, config: NodeConfig) -> None:
        """Raise TlsError if the key material of other settings could not be used in place of that in use."""
        for factory in self._factories.values():
            await self._renewed(factory, config)

    async def _renewed(self, factory: SslFactory, config: NodeConfig) -> SslFactory | None:
        """Read the key material that the settings have now; None if nothing has changed."""
        protocol = config.security_protocols.get(factory.listener, SecurityProtocol.SSL)
        settings = listener_tls_settings(config, factory.listener, protocol)
        if not factory.is_outdated(self._runtime.disk, settings):
            return None
        from ottla.security.tls.ssl_factory import RenewalRules

        rules = RenewalRules(
            allows_other_name=bool(config.with_listener_prefix(factory.listener, "ssl.allow.dn.changes")),
            allows_fewer_hosts=bool(config.with_listener_prefix(factory.listener, "ssl.allow.san.changes")),
        )
        return await self._runtime.pool.run(factory.renewed, self._runtime.disk, settings, rules)

    def _report_refusal(self, listener: str, reason: str) -> None:
        if self._refused.get(listener) != reason:
            self._refused[listener] = reason
            log.error(
                "listener %s keeps its certificates, as the new ones cannot be used: %s", listener, reason
            )

    def _warn_of_expiry(self) -> None:
        if not self._factories:
            return
        if self._expiry is None:
            from ottla.security.tls.expiry import ExpiryWarnings

            self._expiry = ExpiryWarnings()
        for factory in self._factories.values():
            facts = factory.certificate
            if facts is not None:
                line = self._expiry.warning(
                    f"listener {factory.listener}", facts, self._runtime.clock.wall_ms()
                )
                if line is not None:
                    log.warning("%s", line)

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

            config = self._config.current
            listens = listener == HTTP_LISTENER_NAME or any(
                each.name == listener for each in config.listeners
            )
            is_inter_broker = listener == config.inter_broker_listener
            try:
                settings = listener_tls_settings(config, listener, protocol)
                factory = await self._runtime.pool.run(
                    _load_factory, self._runtime.disk, listener, settings, listens, is_inter_broker
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


def _load_factory(
    disk: Disk, listener: str, settings: TlsSettings, listens: bool, is_inter_broker: bool
) -> SslFactory:
    # Imported here, in a thread of the pool: it takes longer than the event loop may be held.
    from ottla.security.tls.ssl_factory import SslFactory

    return SslFactory.load(disk, listener, settings, listens, is_inter_broker)


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
