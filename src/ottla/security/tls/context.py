"""TLS contexts for listeners and for connections to them, made of settings and key material.

A context is never changed once it is in use: renewed key material makes a new context, and connections that
exist keep theirs.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Final

from ottla.runtime.disk import Disk
from ottla.security.tls.ciphers import apply_cipher_suites
from ottla.security.tls.errors import TlsError
from ottla.security.tls.material import Identity, load_identity, load_trusted
from ottla.security.tls.settings import KNOWN_PROTOCOLS, TlsSettings

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

_VERSIONS: Final = {
    "TLSv1": ssl.TLSVersion.TLSv1,
    "TLSv1.1": ssl.TLSVersion.TLSv1_1,
    "TLSv1.2": ssl.TLSVersion.TLSv1_2,
    "TLSv1.3": ssl.TLSVersion.TLSv1_3,
}
_CLIENT_AUTH: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


class TlsMaterial:
    """What a side of TLS has: its own identity, if any, and what it trusts; None is what the system does."""

    __slots__ = ("identity", "trusted")

    def __init__(self, identity: Identity | None, trusted: list[Certificate] | None) -> None:
        self.identity: Final = identity
        self.trusted: Final = trusted

    @classmethod
    def load(cls, disk: Disk, settings: TlsSettings) -> TlsMaterial:
        """Read the stores. TlsError names the file, and what is wrong with it. It blocks."""
        return cls(load_identity(disk, settings.keystore), load_trusted(disk, settings.truststore))


def server_context(settings: TlsSettings, material: TlsMaterial) -> ssl.SSLContext:
    """Make the context of a listener. TlsError if it has no certificate, or settings do not fit."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if material.identity is None:
        raise TlsError(
            "there is no certificate for the listener: set ssl.keystore.location, or ssl.keystore.key and "
            "ssl.keystore.certificate.chain"
        )
    _apply(context, settings, material)
    context.verify_mode = _CLIENT_AUTH[settings.client_auth]
    if context.verify_mode is not ssl.CERT_NONE:
        _trust(context, material)
    # Clients of Kafka keep their connections and do not resume sessions; tickets of TLS 1.3 would only cost.
    context.num_tickets = 0
    return context


def client_context(settings: TlsSettings, material: TlsMaterial) -> ssl.SSLContext:
    """Make the context of connections to listeners."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _apply(context, settings, material)
    context.check_hostname = settings.verifies_host_name
    if settings.verifies_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
        _trust(context, material)
        if settings.crl_location is not None:
            try:
                context.load_verify_locations(cafile=settings.crl_location)
            except OSError as error:
                reason = error.strerror or str(error)
                raise TlsError(
                    f"ssl.crl.location: {settings.crl_location} cannot be read: {reason}"
                ) from None
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    else:
        context.verify_mode = ssl.CERT_NONE
    return context


def _apply(context: ssl.SSLContext, settings: TlsSettings, material: TlsMaterial) -> None:
    protocols = [each for each in KNOWN_PROTOCOLS if each in settings.enabled_protocols]
    context.minimum_version = _VERSIONS[protocols[0]]
    context.maximum_version = _VERSIONS[protocols[-1]]
    if len(protocols) <= KNOWN_PROTOCOLS.index(protocols[-1]) - KNOWN_PROTOCOLS.index(protocols[0]):
        raise TlsError(f"ssl.enabled.protocols leaves one out in between: {', '.join(protocols)}")
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    apply_cipher_suites(context, settings.cipher_suites, protocols)
    # Any certificate of the trust store is trusted, as in Java, also one that another has issued.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if material.identity is not None:
        _load_identity(context, material.identity)


def _trust(context: ssl.SSLContext, material: TlsMaterial) -> None:
    from cryptography.hazmat.primitives.serialization import Encoding

    if material.trusted is None:
        context.load_default_certs()
        return
    unique = dict.fromkeys(each.public_bytes(Encoding.DER) for each in material.trusted)
    context.load_verify_locations(cadata=b"".join(unique))


def _load_identity(context: ssl.SSLContext, identity: Identity) -> None:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    from ottla.runtime.key_files import load_certificate_chain

    key = identity.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    chain = b"".join(each.public_bytes(Encoding.PEM) for each in identity.chain)
    try:
        load_certificate_chain(context, key + chain)
    except ssl.SSLError as error:
        raise TlsError(f"the certificate cannot be used: {error.reason or error}") from None
