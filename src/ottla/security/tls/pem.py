"""PEM texts: certificates and private keys, as Kafka's users write them into files and settings.

Kafka accepts PEM without line breaks as well, as it comes from one line of a properties file, so blocks are
brought into the usual form first.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from ottla.security.tls.errors import TlsError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
    from cryptography.x509 import Certificate

_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_LINE: Final = 64


def blocks(text: str) -> list[tuple[str, bytes]]:
    """The labels of the blocks of a text, and each block as PEM with line breaks."""
    found = []
    for match in _BLOCK.finditer(text):
        label, body = match[1], match[2].strip("\r\n")
        if ":" not in body:  # the old form of an encrypted key has headers, and stays as it is
            data = "".join(body.split())
            body = "\n".join(data[at : at + _LINE] for at in range(0, len(data), _LINE))
        found.append((label, f"-----BEGIN {label}-----\n{body}\n-----END {label}-----\n".encode()))
    return found


def certificates(text: str, source: str) -> list[Certificate]:
    """The certificates of a text, in their order. TlsError if there is none, or one is broken."""
    from cryptography.x509 import load_pem_x509_certificate

    found = [
        block
        for label, block in blocks(text)
        if label in ("CERTIFICATE", "X509 CERTIFICATE", "TRUSTED CERTIFICATE")
    ]
    if not found:
        raise TlsError(f"{source}: there is no certificate in it (-----BEGIN CERTIFICATE-----)")
    try:
        return [load_pem_x509_certificate(block) for block in found]
    except ValueError:
        raise TlsError(f"{source}: a certificate in it cannot be read") from None


def private_key(text: str, password: str | None, source: str) -> PrivateKeyTypes:
    """The private key of a text. TlsError if there is none, or the password does not fit."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    found = [block for label, block in blocks(text) if label.endswith("PRIVATE KEY")]
    if not found:
        raise TlsError(f"{source}: there is no private key in it (-----BEGIN PRIVATE KEY-----)")
    block = found[0]
    is_encrypted = b"ENCRYPTED" in block
    if is_encrypted and password is None:
        raise TlsError(f"{source}: the private key is encrypted; set ssl.key.password")
    try:
        return load_pem_private_key(block, password.encode() if is_encrypted and password else None)
    except (ValueError, TypeError) as error:
        if is_encrypted:
            raise TlsError(
                f"{source}: the private key cannot be decrypted; is ssl.key.password right?"
            ) from None
        raise TlsError(f"{source}: the private key cannot be read ({type(error).__name__})") from None
