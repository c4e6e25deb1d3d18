"""PKCS12 stores, as keytool and openssl make them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.security.tls.errors import TlsError
from ottla.security.tls.settings import StoreSettings

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12KeyAndCertificates
    from cryptography.x509 import Certificate


def key_and_chain(data: bytes, store: StoreSettings) -> tuple[PrivateKeyTypes, list[Certificate]]:
    """The key of a store and its chain, the key's own certificate first. TlsError if it has none."""
    loaded = _load(data, store)
    if loaded.key is None or loaded.cert is None:
        raise TlsError(f"{store.location}: the key store has no private key with a certificate")
    own = loaded.cert.certificate
    return loaded.key, [own, *_issuers(own, [each.certificate for each in loaded.additional_certs])]


def trusted(data: bytes, store: StoreSettings) -> list[Certificate]:
    """The trusted certificates of a store. The chain of a private key is not trusted by being there."""
    loaded = _load(data, store)
    if loaded.key is not None:
        known: set[Certificate] = set()
        if loaded.cert is not None:
            own = loaded.cert.certificate
            known = {own, *_issuers(own, [each.certificate for each in loaded.additional_certs])}
        return [each.certificate for each in loaded.additional_certs if each.certificate not in known]
    found = [each.certificate for each in loaded.additional_certs]
    return found if loaded.cert is None else [loaded.cert.certificate, *found]


def _load(data: bytes, store: StoreSettings) -> PKCS12KeyAndCertificates:
    from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12

    # A store has one password; that of the key stands for it where it is the only one that is given.
    passwords = (store.password,) if store.password is not None else (None, store.key_password)
    for password in passwords:
        try:
            return load_pkcs12(data, None if password is None else password.encode())
        except ValueError:
            continue
    hint = (
        f"set ssl.{store.name}.password" if store.password is None else "the password of the store is wrong"
    )
    raise TlsError(f"{store.location}: the PKCS12 store cannot be opened: {hint}, or the store is damaged")


def _issuers(own: Certificate, others: list[Certificate]) -> list[Certificate]:
    """The certificates that issued the first one, in their order."""
    chain: list[Certificate] = []
    last = own
    while last.issuer != last.subject:
        issuer = next((each for each in others if each.subject == last.issuer and each not in chain), None)
        if issuer is None:
            break
        chain.append(issuer)
        last = issuer
    return chain
