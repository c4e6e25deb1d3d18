"""Key material: the node's or client's own key with its certificates, and the certificates that it trusts.

It is read from PEM texts, PEM files, PKCS12 and JKS stores. The type of a store is taken from its first bytes
where it was not given, as JKS is Kafka's default and Java reads PKCS12 under that name too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ottla.runtime.disk import Disk, read_file
from ottla.security.tls import pem
from ottla.security.tls.errors import TlsError
from ottla.security.tls.settings import PEM_HAS_NO_PASSWORD, StoreSettings

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
    from cryptography.x509 import Certificate

_MAX_STORE_BYTES: Final = 16 * 1024 * 1024
_JKS_MAGIC: Final = b"\xfe\xed\xfe\xed"


@dataclass(frozen=True, slots=True)
class Identity:
    """A private key, and its certificate followed by those that issued it."""

    key: PrivateKeyTypes = field(repr=False)
    chain: tuple[Certificate, ...]

    @property
    def certificate(self) -> Certificate:
        return self.chain[0]


def load_identity(disk: Disk, store: StoreSettings) -> Identity | None:
    """Read the key and certificates of a key store; None if none is configured. TlsError names the file and
    what is wrong.
    """
    if not store.is_given and store.key_location is None:
        return None
    if store.key is not None or store.key_location is not None or store.certificates is not None:
        return _pem_identity(disk, store)
    assert store.location is not None
    data = _read(disk, store.location, f"ssl.{store.name}.location")
    kind = _type(store, data)
    if kind == "PEM":
        if store.password is not None:
            raise TlsError(f"{store.location}: {PEM_HAS_NO_PASSWORD.format(store=store.name)}")
        text = _text(data)
        return _identity(
            pem.private_key(text, store.key_password, store.location),
            pem.certificates(text, store.location),
            store.location,
        )
    if kind == "JKS":
        from ottla.security.tls import jks

        entries = jks.read(data, store.password, store.location)
        if not entries.keys or not entries.keys[0].chain:
            raise TlsError(f"{store.location}: the key store has no private key with a certificate")
        password = store.key_password if store.key_password is not None else store.password
        if password is None:
            raise TlsError(f"{store.location}: set ssl.{store.name}.password")
        key = jks.recover_key(entries.keys[0], password, store.location)
        return _identity(key, entries.keys[0].chain, store.location)
    from ottla.security.tls import pkcs12

    return _identity(*pkcs12.key_and_chain(data, store), store.location)


def load_trusted(disk: Disk, store: StoreSettings) -> list[Certificate] | None:
    """Read the certificates of a trust store; None if none is configured, which means those of the system."""
    if not store.is_given:
        return None
    if store.certificates is not None:
        return pem.certificates(store.certificates, "ssl.truststore.certificates")
    assert store.location is not None
    name = f"ssl.{store.name}.location"
    if disk.exists(store.location) and disk.is_dir(store.location):
        return _directory(disk, store.location)
    data = _read(disk, store.location, name)
    kind = _type(store, data)
    if kind == "PEM":
        return pem.certificates(_text(data), store.location)
    if kind == "JKS":
        from ottla.security.tls import jks

        found = jks.read(data, store.password, store.location).trusted
    else:
        from ottla.security.tls import pkcs12

        found = pkcs12.trusted(data, store)
    if not found:
        raise TlsError(f"{store.location}: the trust store has no trusted certificates")
    return found


def store_files(*stores: StoreSettings) -> list[str]:
    """The files that stores are read from."""
    return [path for store in stores for path in (store.location, store.key_location) if path is not None]


def _directory(disk: Disk, path: str) -> list[Certificate]:
    found: list[Certificate] = []
    for name in disk.list_dir(path):
        file = f"{path}/{name}"
        if not disk.is_dir(file):
            text = _text(_read(disk, file, "ssl.ca.location"))
            if "-----BEGIN CERTIFICATE-----" in text:
                found += pem.certificates(text, file)
    if not found:
        raise TlsError(f"{path}: none of the files in it has a certificate")
    return found


def _pem_identity(disk: Disk, store: StoreSettings) -> Identity:
    chain_text, chain_source = store.certificates, "ssl.keystore.certificate.chain"
    if chain_text is None and store.location is not None:
        chain_text = _text(_read(disk, store.location, "ssl.certificate.location"))
        chain_source = store.location
    key_text, key_source = store.key, "ssl.keystore.key"
    if key_text is None and store.key_location is not None:
        key_text = _text(_read(disk, store.key_location, "ssl.key.location"))
        key_source = store.key_location
    if key_text is None:
        raise TlsError("SSL private key must be specified with the certificate chain: set ssl.keystore.key")
    if chain_text is None:
        raise TlsError(
            "SSL certificate chain is not specified with the private key: set ssl.keystore.certificate.chain"
        )
    return _identity(
        pem.private_key(key_text, store.key_password, key_source),
        pem.certificates(chain_text, chain_source),
        chain_source,
    )


def _identity(key: PrivateKeyTypes, chain: list[Certificate], source: str) -> Identity:
    """Check that the first certificate is that of the key."""
    if not _belongs(key, chain[0]):
        raise TlsError(f"{source}: the private key is not that of the first certificate")
    return Identity(key, tuple(chain))


def _belongs(key: PrivateKeyTypes, certificate: Certificate) -> bool:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    def encoded(public: object) -> bytes:
        return public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)  # type: ignore[attr-defined,no-any-return]

    return encoded(key.public_key()) == encoded(certificate.public_key())


def _type(store: StoreSettings, data: bytes) -> str:
    """What the store is: by its first bytes, if they fit to the type that was given."""
    assert store.location is not None
    found = "PEM"
    if data.startswith(_JKS_MAGIC):
        found = "JKS"
    elif data[:1] == b"\x30":
        found = "PKCS12"
    if store.type in ("", found) or {store.type, found} == {"JKS", "PKCS12"}:
        return found
    raise TlsError(f"{store.location}: it looks like {found}, and ssl.{store.name}.type is {store.type}")


def _read(disk: Disk, path: str, name: str) -> bytes:
    try:
        if disk.size(path) > _MAX_STORE_BYTES:
            raise TlsError(f"{name}: {path} is larger than {_MAX_STORE_BYTES} bytes, and no store of keys")
        return read_file(disk, path)
    except OSError as error:
        raise TlsError(f"{name}: {path} cannot be read: {error.strerror or error}") from None


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")
