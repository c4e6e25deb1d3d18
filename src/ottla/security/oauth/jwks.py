"""The public keys that tokens may be signed with: a JSON Web Key Set (RFC 7517).

Keys that cannot be used (of another kind, for encryption, too short) are left out, as servers publish keys
for many purposes in one set. An empty set is refused: it would lock every client out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ottla.security.oauth.jws import (
    ALGORITHMS,
    SignedToken,
    TokenError,
    decode_base64url,
    decode_json,
    is_signed_by,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes

_MIN_RSA_BITS: Final = 2048
_MAX_RSA_BITS: Final = 16384
_MAX_KEYS: Final = 1000
# A token without a key id is tried with so many keys at most.
_MAX_TRIES: Final = 8


class JwksError(ValueError):
    """The bytes are no set of usable keys; the text says why."""


@dataclass(frozen=True, slots=True)
class JsonWebKey:
    key_id: str | None
    kind: str
    # The only algorithm that it may be used with, if it says so.
    algorithm: str | None
    key: PublicKeyTypes

    def fits(self, token: SignedToken) -> bool:
        algorithm = token.algorithm
        if ALGORITHMS.get(algorithm) != self.kind or self.algorithm not in (None, algorithm):
            return False
        return token.key_id is None or token.key_id == self.key_id


@dataclass(frozen=True, slots=True)
class JsonWebKeySet:
    keys: tuple[JsonWebKey, ...]

    def candidates(self, token: SignedToken) -> list[JsonWebKey]:
        return [key for key in self.keys if key.fits(token)]


def is_verified(token: SignedToken, candidates: list[JsonWebKey]) -> bool:
    """Whether one of the keys has signed the token."""
    return any(is_signed_by(token, each.key) for each in candidates[:_MAX_TRIES])


def parse_jwks(data: bytes) -> JsonWebKeySet:
    """Read a key set. JwksError if it is none, or has no key that can verify a token."""
    try:
        members = decode_json(data, "key set")
    except TokenError as error:
        raise JwksError(f"the key set is not acceptable: {error}") from None
    given = members.get("keys")
    if not isinstance(given, list):
        raise JwksError("the key set has no list of keys")
    keys = tuple(key for each in given[:_MAX_KEYS] if (key := _key(each)) is not None)
    if not keys:
        raise JwksError(f"none of the {len(given)} keys of the key set can verify a token")
    return JsonWebKeySet(keys)


def _key(members: Any) -> JsonWebKey | None:
    if not isinstance(members, dict) or members.get("use", "sig") != "sig":
        return None
    operations = members.get("key_ops")
    if operations is not None and (not isinstance(operations, list) or "verify" not in operations):
        return None
    key_id, algorithm, kind = members.get("kid"), members.get("alg"), members.get("kty")
    if any(each is not None and not isinstance(each, str) for each in (key_id, algorithm)):
        return None
    try:
        key = _public_key(kind, members)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return None if key is None else JsonWebKey(key_id, str(kind), algorithm, key)


def _public_key(kind: Any, members: dict[str, Any]) -> PublicKeyTypes | None:
    from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa

    if kind == "RSA":
        modulus = _number(members["n"])
        if not _MIN_RSA_BITS <= modulus.bit_length() <= _MAX_RSA_BITS:
            return None
        return rsa.RSAPublicNumbers(_number(members["e"]), modulus).public_key()
    if kind == "EC":
        curves: dict[str, ec.EllipticCurve] = {
            "P-256": ec.SECP256R1(),
            "P-384": ec.SECP384R1(),
            "P-521": ec.SECP521R1(),
        }
        curve = curves[members["crv"]]
        return ec.EllipticCurvePublicNumbers(_number(members["x"]), _number(members["y"]), curve).public_key()
    if kind == "OKP" and members["crv"] == "Ed25519":
        return ed25519.Ed25519PublicKey.from_public_bytes(decode_base64url(members["x"]))
    if kind == "OKP" and members["crv"] == "Ed448":
        return ed448.Ed448PublicKey.from_public_bytes(decode_base64url(members["x"]))
    return None


def _number(text: str) -> int:
    return int.from_bytes(decode_base64url(text.rstrip("=")), "big")
