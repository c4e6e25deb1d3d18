"""How a client protects its connections and logs in on them: `ConnectionSecurity` of its settings.

Certificates are read again for the next connection once their files have changed, so that a long-lived client
needs no restart when they are renewed.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from ottla.protocol.security_protocol import SecurityProtocol
from ottla.rpc.connection import PLAINTEXT, BrokerConnection, ConnectionSecurity
from ottla.runtime.runtime import Runtime
from ottla.security.clients.settings import SecuritySettings
from ottla.security.sasl.client_authenticator import SaslLogin
from ottla.security.sasl.client_settings import client_login
from ottla.security.sasl.registry import SaslEnvironment

if TYPE_CHECKING:
    from ottla.runtime.network import TlsContext
    from ottla.security.tls.material import Identity

_log = logging.getLogger(__name__)


def client_security(runtime: Runtime, settings: SecuritySettings) -> ConnectionSecurity:
    """Make the security of a client's connections. ValueError (TlsError) if its key material cannot be read;
    it blocks while it is.
    """
    if settings.protocol is SecurityProtocol.PLAINTEXT:
        return PLAINTEXT
    return ClientSecurity(runtime, settings)


class ClientSecurity:
    """TLS and a login, where the protocol has them, for all connections of one client."""

    def __init__(self, runtime: Runtime, settings: SecuritySettings) -> None:
        self._disk: Final = runtime.disk
        self._settings: Final = settings
        self._login: SaslLogin | None = None
        if settings.protocol.sasl:
            environment = SaslEnvironment(runtime, oauth_cb=settings.oauth_cb)
            self._login = client_login(dict(settings.values), environment)
        self._context: TlsContext | None = None
        self._identity: Identity | None = None
        # When the files of the key material were last changed.
        self._times: tuple[int, ...] = ()
        if settings.protocol.tls:
            from ottla.security.tls.material import store_files
            from ottla.security.tls.settings import client_tls_settings

            self._tls: Final = client_tls_settings(dict(settings.values))
            self._files: Final = store_files(self._tls.keystore, self._tls.truststore)
            self._times = self._file_times()
            self._load()

    def tls(self) -> TlsContext | None:
        if self._context is not None and self._files:
            times = self._file_times()
            if times != self._times:
                self._times = times
                try:
                    self._load()
                except ValueError as error:
                    _log.warning("the changed certificates are not used: %s", error)
        return self._context

    async def authenticate(self, connection: BrokerConnection, *, timeout_ms: int) -> None:
        if self._login is not None:
            await self._login.authenticate(connection, timeout_ms=timeout_ms)

    @property
    def certificate_subject(self) -> str | None:
        """The name in the certificate that this client shows; None without one."""
        if self._identity is None:
            return None
        from ottla.security.tls.expiry import describe

        return describe(self._identity.certificate).subject

    def _load(self) -> None:
        from ottla.security.tls.context import TlsMaterial, client_context

        material = TlsMaterial.load(self._disk, self._tls)
        self._context, self._identity = client_context(self._tls, material), material.identity

    def _file_times(self) -> tuple[int, ...]:
        times = []
        for path in self._files:
            try:
                times.append(self._disk.mtime_ms(path))
            except OSError:
                times.append(-1)
        return tuple(times)
