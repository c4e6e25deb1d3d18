"""Certificates for tests: one authority for the whole run, and material made of it."""

from __future__ import annotations

import functools
import time
from pathlib import Path

from ottla.security.tls.authority import CertificateAuthority, IssuedCertificate


def now_ms() -> int:
    return int(time.time() * 1000)


@functools.cache
def authority(name: str = "CN=Test CA,O=Ottla") -> CertificateAuthority:
    return CertificateAuthority.create(name, now_ms())


@functools.cache
def server_certificate() -> IssuedCertificate:
    """A certificate for this machine."""
    return authority().issue("CN=localhost,O=Ottla", now_ms(), hosts=("localhost", "127.0.0.1", "::1"))


@functools.cache
def client_certificate(name: str = "CN=alice,OU=Orders,O=Example,C=DE") -> IssuedCertificate:
    return authority().issue(name, now_ms())


def write_pem(directory: Path, name: str, issued: IssuedCertificate, password: str | None = None) -> str:
    """Write the key and the chain into one file, as Kafka's PEM key stores are, and return its path."""
    path = directory / f"{name}.pem"
    path.write_text(issued.key_pem(password) + issued.chain_pem())
    return str(path)


def write_ca(directory: Path, name: str = "ca", from_authority: CertificateAuthority | None = None) -> str:
    path = directory / f"{name}.crt"
    path.write_text((from_authority or authority()).certificate_pem())
    return str(path)


def server_settings(directory: Path, listener: str = "SSL", **settings: str) -> dict[str, str]:
    """The settings of a node whose one listener speaks TLS; underscores in names stand for dots."""
    return {
        "listeners": f"{listener}://127.0.0.1:0",
        "security.inter.broker.protocol": listener,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": write_pem(directory, "server", server_certificate()),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": write_ca(directory),
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
