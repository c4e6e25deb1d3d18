"""The TLS contexts of one listener, and of the connections that a node makes to that listener of others.

It is Kafka's `SslFactory`. Invariant: `server` and `client` are made of the same settings and key material,
and only connections made after a change use the new ones. New material is checked before it is used: the
certificate must name the same node, and where brokers speak to each other, those that still have the old
material must understand those that have the new.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, replace
from typing import Final

from ottla.runtime.disk import Disk
from ottla.security.tls.context import TlsMaterial, client_context, server_context
from ottla.security.tls.distinguished_name import subject_name
from ottla.security.tls.errors import TlsError
from ottla.security.tls.expiry import CertificateFacts, describe
from ottla.security.tls.material import store_files
from ottla.security.tls.principal_mapper import PrincipalMapper
from ottla.security.tls.settings import TlsSettings

_HAS_EXPIRED: Final = 10  # X509_V_ERR_CERT_HAS_EXPIRED


@dataclass(frozen=True, slots=True)
class RenewalRules:
    """What may change with new key material: `ssl.allow.dn.changes` and `ssl.allow.san.changes`."""

    allows_other_name: bool = False
    allows_fewer_hosts: bool = False


class SslFactory:
    __slots__ = (
        "_mapper",
        "_times",
        "client",
        "is_inter_broker",
        "listener",
        "material",
        "server",
        "settings",
    )

    def __init__(
        self,
        listener: str,
        settings: TlsSettings,
        material: TlsMaterial,
        *,
        listens: bool = True,
        is_inter_broker: bool = False,
        times: tuple[int, ...] = (),
    ) -> None:
        """`listens` is whether this node has the listener, and not only connects to that of others."""
        self.listener = listener
        self.settings = settings
        self.material = material
        self.is_inter_broker = is_inter_broker
        # When the files of the material were last changed, as they were read.
        self._times = times
        self.server: ssl.SSLContext | None = server_context(settings, material) if listens else None
        self._mapper = PrincipalMapper.parse(settings.principal_mapping_rules)
        self.client: ssl.SSLContext = client_context(settings, material)

    @classmethod
    def load(
        cls, disk: Disk, listener: str, settings: TlsSettings, listens: bool, is_inter_broker: bool
    ) -> SslFactory:
        """Read the key material. TlsError names the file, and what is wrong with it. It blocks."""
        times = file_times(disk, settings)
        material = TlsMaterial.load(disk, settings)
        made = cls(
            listener, settings, material, listens=listens, is_inter_broker=is_inter_broker, times=times
        )
        if listens and is_inter_broker:
            made._check_handshake(
                made,
                "A client SSLEngine created with the provided settings can't connect to a server SSLEngine "
                "created with those settings",
            )
        return made

    def is_outdated(self, disk: Disk, settings: TlsSettings) -> bool:
        """Whether the settings are others, or a file was changed since it was read."""
        return settings != self.settings or file_times(disk, settings) != self._times

    def renewed(self, disk: Disk, settings: TlsSettings, rules: RenewalRules) -> SslFactory:
        """Read the key material again. TlsError if it cannot be used in the place of this one. It blocks."""
        # Before the files are read: one that is changed meanwhile is read again by the next look.
        times = file_times(disk, settings)
        made = SslFactory(
            self.listener,
            settings,
            TlsMaterial.load(disk, settings),
            listens=self.server is not None,
            is_inter_broker=self.is_inter_broker,
            times=times,
        )
        before, after = self.material.identity, made.material.identity
        if before is None and after is not None:
            raise TlsError(
                "Cannot add SSL keystore to an existing listener for which no keystore was configured"
            )
        if before is not None and after is None:
            raise TlsError(
                "Cannot remove the SSL keystore from an existing listener for which a keystore was configured"
            )
        if self.material.trusted is None and made.material.trusted is not None:
            raise TlsError(
                "Cannot add SSL truststore to an existing listener for which no truststore was configured"
            )
        if before is not None and after is not None:
            _check_names(describe(before.certificate), describe(after.certificate), rules)
        if self.is_inter_broker and self.server is not None:
            why = "nodes with the certificates in use and nodes with the new ones could not connect"
            self._check_handshake(made, why)
            made._check_handshake(self, why)
        return made

    def adopt(self, other: SslFactory) -> None:
        """Use the contexts of another factory from now on."""
        self.settings, self.material, self._times = other.settings, other.material, other._times
        self.server, self.client, self._mapper = other.server, other.client, other._mapper

    def _check_handshake(self, client: SslFactory, failure: str) -> None:
        """Check that a client with the material of a factory can connect to the listener of this one."""
        assert self.server is not None
        # Only trust is checked: the host names are those of other nodes as well.
        without_host = client_context(replace(client.settings, verifies_host_name=False), client.material)
        try:
            _shake_hands(self.server, without_host)
        except ssl.SSLError as error:
            reason = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else error.reason
            raise TlsError(f"{failure}: {reason or error}{self._ended_text(error)}") from None

    def _ended_text(self, error: ssl.SSLError) -> str:
        """If a certificate has expired: which one, where it is, and how to renew it."""
        identity, file = self.material.identity, self.settings.keystore.location
        if identity is None or getattr(error, "verify_code", None) != _HAS_EXPIRED:
            return ""
        first = min((describe(each) for each in identity.chain), key=lambda facts: facts.ends_ms)
        return (
            f". The certificate of {first.subject}{f' in {file}' if file else ''} ended on {first.end_text}; "
            "with the CA of `ottla secure init`, it is renewed by `ottla secure issue NAME --host HOST "
            f"--out {file or 'FILE'} --replace`"
        )

    @property
    def certificate(self) -> CertificateFacts | None:
        """The certificate that this node shows; None if it has none."""
        identity = self.material.identity
        return None if identity is None else describe(identity.certificate)

    def user_name(self, certificate: bytes) -> str:
        """The user that the owner of a certificate is. ValueError if no rule makes a user of its name."""
        return self._mapper.name(subject_name(certificate))

    def server_context(self) -> ssl.SSLContext:
        assert self.server is not None, self.listener
        return self.server


def file_times(disk: Disk, settings: TlsSettings) -> tuple[int, ...]:
    """When the files of the stores were last changed; -1 for one that is not there."""
    times = []
    for path in store_files(settings.keystore, settings.truststore):
        try:
            times.append(disk.mtime_ms(path))
        except OSError:
            times.append(-1)
    return tuple(times)


def _check_names(before: CertificateFacts, after: CertificateFacts, rules: RenewalRules) -> None:
    if not rules.allows_other_name and before.subject.lower() != after.subject.lower():
        raise TlsError(
            f"Keystore DistinguishedName does not match: existing={before.subject}, new={after.subject}; "
            "ssl.allow.dn.changes=true permits it"
        )
    missing = sorted(set(before.hosts) - set(after.hosts))
    if not rules.allows_fewer_hosts and missing:
        raise TlsError(
            f"Keystore SubjectAltNames do not match: {', '.join(missing)} of the existing certificate are "
            "not in the new one; ssl.allow.san.changes=true permits it"
        )


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Run a handshake in memory. SSLError if one side refuses the other."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname="localhost"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    waiting = sides
    for _ in range(20):
        remaining = []
        for side in waiting:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                remaining.append(side)
        waiting = remaining
        if not waiting:
            # In TLS 1.3 the server's opinion of the client's certificate follows the client's handshake.
            return
    raise ssl.SSLError("the handshake does not end")
