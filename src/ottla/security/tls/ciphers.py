"""Cipher suites by the names of Java, which are those of the standards, or by those of OpenSSL."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Final

from ottla.security.tls.errors import TlsError

TLS13: Final = ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
_KEY_EXCHANGES: Final = {
    "ECDHE_ECDSA": "ECDHE-ECDSA",
    "ECDHE_RSA": "ECDHE-RSA",
    "DHE_RSA": "DHE-RSA",
    "DHE_DSS": "DHE-DSS",
    "RSA": "",
}
_CIPHERS: Final = {
    "AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "CHACHA20_POLY1305_SHA256": "CHACHA20-POLY1305",
    "AES_256_CBC_SHA384": "AES256-SHA384",
    "AES_256_CBC_SHA256": "AES256-SHA256",
    "AES_128_CBC_SHA256": "AES128-SHA256",
    "AES_256_CBC_SHA": "AES256-SHA",
    "AES_128_CBC_SHA": "AES128-SHA",
    "AES_256_CCM": "AES256-CCM",
    "AES_128_CCM": "AES128-CCM",
}
_OLD: Final = ("TLSv1", "TLSv1.1")


def openssl_name(suite: str) -> str | None:
    """OpenSSL's name of a suite of TLS 1.2 that Java names; None if there is none.

    >>> openssl_name("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384")
    'ECDHE-RSA-AES256-GCM-SHA384'
    """
    name = suite.removeprefix("TLS_").removeprefix("SSL_")
    exchange, with_, cipher = name.partition("_WITH_")
    if not with_ or exchange not in _KEY_EXCHANGES or cipher not in _CIPHERS:
        return None
    return "-".join(filter(None, (_KEY_EXCHANGES[exchange], _CIPHERS[cipher])))


def apply_cipher_suites(context: ssl.SSLContext, suites: Iterable[str], protocols: Iterable[str]) -> None:
    """Restrict a context to the suites; without any, those of OpenSSL stay. TlsError names one that is not
    known. Python cannot choose among the suites of TLS 1.3: they are all good, and TLS 1.3 is off if others
    were named and none of them.
    """
    protocols = tuple(protocols)
    level = ":@SECLEVEL=0" if any(each in _OLD for each in protocols) else ""
    names: list[str] = []
    has_tls13 = False
    is_given = False
    for suite in suites:
        is_given = True
        if suite in TLS13:
            has_tls13 = True
            continue
        name = openssl_name(suite) if suite.startswith(("TLS_", "SSL_")) else suite
        if name is None:
            raise TlsError(f"ssl.cipher.suites: {suite} is not known, or not offered any more")
        names.append(name)
    if not is_given:
        if level:
            context.set_ciphers(f"DEFAULT{level}")
        return
    if names:
        try:
            context.set_ciphers(":".join(names) + level)
        except ssl.SSLError:
            raise TlsError(f"ssl.cipher.suites: OpenSSL offers none of {', '.join(names)}") from None
    elif "TLSv1.3" in protocols:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    if not has_tls13 and "TLSv1.3" in protocols:
        if not set(protocols) - {"TLSv1.3"}:
            raise TlsError("ssl.cipher.suites has no suite of TLSv1.3, the only one of ssl.enabled.protocols")
        context.maximum_version = ssl.TLSVersion.TLSv1_2
