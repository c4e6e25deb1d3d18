"""Java's own key store format, JKS: read only.

A store is a magic number, a version, and entries: private keys with their certificate chains, and trusted
certificates. It ends with a SHA-1 over the password and all that is before. Java protects each key by a
stream of SHA-1 sums, which hides it only from those who do not try; that is the reason why Java writes PKCS12
today. Every length is checked against what is left before it is used.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ottla.security.tls.errors import TlsError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
    from cryptography.x509 import Certificate

_MAGIC: Final = 0xFEEDFEED
_WHITENER: Final = b"Mighty Aphrodite"
_DIGEST_BYTES: Final = 20
_MAX_ENTRIES: Final = 100_000
_PRIVATE_KEY: Final = 1
_TRUSTED_CERTIFICATE: Final = 2
# 1.3.6.1.4.1.42.2.17.1.1, the object identifier of the protection of keys.
_PROTECTION: Final = bytes.fromhex("2b060104012a02110101")
_U2: Final = struct.Struct(">H")
_U4: Final = struct.Struct(">I")
_SEQUENCE: Final = 0x30
_OID: Final = 0x06
_OCTETS: Final = 0x04


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """A key as it is stored, with its chain: the key's own certificate is first."""

    alias: str
    protected_key: bytes
    chain: list[Certificate]


@dataclass(frozen=True, slots=True)
class JksStore:
    keys: list[KeyEntry]
    trusted: list[Certificate]


class _Reader:
    __slots__ = ("_at", "_data", "_source")

    def __init__(self, data: bytes, source: str) -> None:
        self._data = data
        self._source = source
        self._at = 0

    def take(self, size: int) -> bytes:
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise TlsError(f"{self._source}: the store is cut short or damaged")
        taken, self._at = self._data[self._at : end], end
        return taken

    def u4(self) -> int:
        return int(_U4.unpack(self.take(4))[0])

    def text(self) -> str:
        return self.take(_U2.unpack(self.take(2))[0]).decode("utf-8", "replace")


def read(data: bytes, password: str | None, source: str) -> JksStore:
    """Read a store. Without a password the certificates are read and nothing is checked, as in Java. TlsError
    if the password is wrong or the store damaged.
    """
    if len(data) < _DIGEST_BYTES:
        raise TlsError(f"{source}: the store is cut short or damaged")
    body, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if password is not None:
        expected = hashlib.sha1(_encoded(password) + _WHITENER + body, usedforsecurity=False).digest()
        if not hmac.compare_digest(expected, digest):
            raise TlsError(f"{source}: the password of the store is wrong, or the store is damaged")
    reader = _Reader(body, source)
    if reader.u4() != _MAGIC:
        raise TlsError(f"{source}: it is no JKS store")
    version, count = reader.u4(), reader.u4()
    if version not in (1, 2) or count > _MAX_ENTRIES:
        raise TlsError(f"{source}: it is no JKS store of a known version")
    store = JksStore([], [])
    for _ in range(count):
        kind, alias = reader.u4(), reader.text()
        reader.take(8)  # when it was made
        if kind == _PRIVATE_KEY:
            protected = reader.take(reader.u4())
            chain = [_certificate(reader, version, source) for _ in range(min(reader.u4(), _MAX_ENTRIES))]
            store.keys.append(KeyEntry(alias, protected, chain))
        elif kind == _TRUSTED_CERTIFICATE:
            store.trusted.append(_certificate(reader, version, source))
        else:
            raise TlsError(f"{source}: entry {alias!r} is of a kind that JKS does not have")
    return store


def recover_key(entry: KeyEntry, password: str, source: str) -> PrivateKeyTypes:
    """Decrypt the key of an entry. TlsError if the password is not that of the key."""
    from cryptography.hazmat.primitives.serialization import load_der_private_key

    sealed = _protected_bytes(entry.protected_key, source)
    if len(sealed) < 2 * _DIGEST_BYTES:
        raise TlsError(f"{source}: the key {entry.alias!r} is damaged")
    salt, check = sealed[:_DIGEST_BYTES], sealed[-_DIGEST_BYTES:]
    encrypted, secret = sealed[_DIGEST_BYTES:-_DIGEST_BYTES], _encoded(password)
    stream, block = bytearray(), salt
    while len(stream) < len(encrypted):
        block = hashlib.sha1(secret + block, usedforsecurity=False).digest()
        stream += block
    plain = bytes(a ^ b for a, b in zip(encrypted, stream, strict=False))
    if not hmac.compare_digest(hashlib.sha1(secret + plain, usedforsecurity=False).digest(), check):
        raise TlsError(f"{source}: the key {entry.alias!r} cannot be decrypted; is ssl.key.password right?")
    try:
        return load_der_private_key(plain, None)
    except (ValueError, TypeError):
        raise TlsError(f"{source}: the key {entry.alias!r} is of no known kind") from None


def _encoded(password: str) -> bytes:
    return password.encode("utf-16-be")


def _certificate(reader: _Reader, version: int, source: str) -> Certificate:
    from cryptography.x509 import load_der_x509_certificate

    kind = reader.text() if version == 2 else "X.509"
    data = reader.take(reader.u4())
    if kind != "X.509":
        raise TlsError(f"{source}: a certificate of type {kind!r} is not supported")
    try:
        return load_der_x509_certificate(data)
    except ValueError:
        raise TlsError(f"{source}: a certificate in it cannot be read") from None


def _protected_bytes(data: bytes, source: str) -> bytes:
    """The sealed bytes of an `EncryptedPrivateKeyInfo`."""
    reader = _Reader(data, source)
    whole = _Reader(_value(reader, _SEQUENCE, source), source)
    algorithm = _Reader(_value(whole, _SEQUENCE, source), source)
    if _value(algorithm, _OID, source) != _PROTECTION:
        raise TlsError(f"{source}: its keys are protected in a way that JKS does not have")
    return _value(whole, _OCTETS, source)


def _value(reader: _Reader, tag: int, source: str) -> bytes:
    """The content of the next DER value, which must have the tag."""
    if reader.take(1)[0] != tag:
        raise TlsError(f"{source}: a key in it is damaged")
    size = reader.take(1)[0]
    if size & 0x80:
        size = int.from_bytes(reader.take(min(size & 0x7F, 8)), "big")
    return reader.take(size)
