"""Assertions (RFC 7523): tokens that a client signs with its own key, to get a token from a token server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ottla.runtime.clock import Clock
from ottla.runtime.disk import Disk, read_file
from ottla.runtime.random import Random
from ottla.security.oauth.jws import TokenError, base64url, decode_json
from ottla.security.secret import Secret

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

GRANT: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
ASSERTION_ALGORITHMS: Final = ("RS256", "ES256")


class AssertionFailed(ValueError):
    """There is no assertion; the text says why, and has no secret."""


@dataclass(frozen=True, slots=True)
class AssertionSettings:
    """`sasl.oauthbearer.assertion.*`"""

    # A file with a ready assertion; all else does not count then.
    file: str | None = None
    algorithm: str = "RS256"
    key_file: str | None = None
    key_pem: Secret | None = None
    passphrase: Secret | None = None
    template_file: str | None = None
    claims: Mapping[str, str] = field(default_factory=dict)
    expires_after_seconds: int = 300
    not_before_seconds: int = 60
    has_id: bool = False


def make_assertion(settings: AssertionSettings, disk: Disk, clock: Clock, random: Random) -> str:
    """Make the assertion for one request. AssertionFailed names the setting or file; it blocks."""
    if settings.file is not None:
        return _read(disk, settings.file).decode("utf-8", "replace").strip()
    header, claims = _template(disk, settings.template_file)
    now = clock.wall_ms() // 1000
    header |= {"alg": settings.algorithm, "typ": "JWT"}
    claims |= settings.claims
    claims |= {
        "iat": now,
        "exp": now + settings.expires_after_seconds,
        "nbf": now - settings.not_before_seconds,
    }
    if settings.has_id:
        claims["jti"] = random.uuid().hex()
    signed = ".".join(base64url(json.dumps(each).encode()) for each in (header, claims))
    return f"{signed}.{base64url(_sign(settings, disk, signed.encode()))}"


def _template(disk: Disk, path: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    if path is None:
        return {}, {}
    try:
        members = decode_json(_read(disk, path), "template")
    except TokenError as error:
        raise AssertionFailed(f"{path}: {error}") from None
    header, payload = members.get("header", {}), members.get("payload", {})
    if not isinstance(header, dict) or not isinstance(payload, dict):
        raise AssertionFailed(f"{path}: header and payload must be JSON objects")
    return dict(header), dict(payload)


def _sign(settings: AssertionSettings, disk: Disk, signed: bytes) -> bytes:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils

    key = _private_key(settings, disk)
    if settings.algorithm == "RS256" and isinstance(key, rsa.RSAPrivateKey):
        return key.sign(signed, padding.PKCS1v15(), hashes.SHA256())
    if settings.algorithm == "ES256" and isinstance(key, ec.EllipticCurvePrivateKey):
        numbers = utils.decode_dss_signature(key.sign(signed, ec.ECDSA(hashes.SHA256())))
        return b"".join(each.to_bytes(32, "big") for each in numbers)
    raise AssertionFailed(
        f"sasl.oauthbearer.assertion.algorithm: {settings.algorithm} does not fit the private key, or is "
        f"none of {', '.join(ASSERTION_ALGORITHMS)}"
    )


def _private_key(settings: AssertionSettings, disk: Disk) -> PrivateKeyTypes:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if settings.key_pem is not None:
        pem = settings.key_pem.reveal().encode()
    elif settings.key_file is not None:
        pem = _read(disk, settings.key_file)
    else:
        raise AssertionFailed("sasl.oauthbearer.assertion.private.key.file is missing")
    password = None if settings.passphrase is None else settings.passphrase.reveal().encode()
    try:
        return load_pem_private_key(pem, password)
    except (ValueError, TypeError):
        where = settings.key_file or "sasl.oauthbearer.assertion.private.key.pem"
        raise AssertionFailed(
            f"{where} is no private key in PEM, or sasl.oauthbearer.assertion.private.key.passphrase is wrong"
        ) from None


def _read(disk: Disk, path: str) -> bytes:
    try:
        return bytes(read_file(disk, path))
    except OSError as error:
        raise AssertionFailed(f"{path} cannot be read: {error.strerror or error}") from None
