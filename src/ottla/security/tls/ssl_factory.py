"""The TLS contexts of one listener, and of the connections that a node makes to that listener of others.

It is Kafka's `SslFactory`. Invariant: `server` and `client` are made of the same settings and key material,
and only connections made after a change use the new ones.
"""

from __future__ import annotations

import ssl

from ottla.runtime.disk import Disk
from ottla.security.tls.context import TlsMaterial, client_context, server_context
from ottla.security.tls.distinguished_name import subject_name
from ottla.security.tls.principal_mapper import PrincipalMapper
from ottla.security.tls.settings import TlsSettings


class SslFactory:
    __slots__ = ("_mapper", "client", "listener", "material", "server", "settings")

    def __init__(
        self, listener: str, settings: TlsSettings, material: TlsMaterial, *, listens: bool = True
    ) -> None:
        """`listens` is whether this node has the listener, and not only connects to that of others."""
        self.listener = listener
        self.settings = settings
        self.material = material
        self.server: ssl.SSLContext | None = server_context(settings, material) if listens else None
        self._mapper = PrincipalMapper.parse(settings.principal_mapping_rules)
        self.client: ssl.SSLContext = client_context(settings, material)

    @classmethod
    def load(cls, disk: Disk, listener: str, settings: TlsSettings, listens: bool) -> SslFactory:
        """Read the key material. TlsError names the file, and what is wrong with it. It blocks."""
        return cls(listener, settings, TlsMaterial.load(disk, settings), listens=listens)

    def user_name(self, certificate: bytes) -> str:
        """The user that the owner of a certificate is. ValueError if no rule makes a user of its name."""
        return self._mapper.name(subject_name(certificate))

    def server_context(self) -> ssl.SSLContext:
        assert self.server is not None, self.listener
        return self.server
