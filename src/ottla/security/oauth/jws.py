"""Signed tokens in their compact form (RFC 7515): read strictly, and verified with a public key.

Only signatures by private keys count. `none` is no signature, and HS* would make a public key into a
password. Each algorithm fits one kind of key, so that the header, which the sender writes, cannot choose how
a key is used; keys and addresses of keys in the header (`jwk`, `jku`, `x5u`, `x5c`) are not looked at. JSON
must not name a member twice: two readers could see two tokens. Messages have nothing of the token.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes

_BASE64URL: Final = re.compile(r"[A-Za-z0-9_-]*")
_MAX_JSON_DEPTH: Final = 32
# Of base64url. An RSA key of 16,384 bits signs with 2,731 characters.
_MAX_HEADER: Final = 4_096
_MAX_SIGNATURE: Final = 4_096
# Algorithm -> the `kty` of its keys.
ALGORITHMS: Final = {
    "RS256": "RSA",
    "RS384": "RSA",
    "RS512": "RSA",
    "PS256": "RSA",
    "PS384": "RSA",
    "PS512": "RSA",
    "ES256": "EC",
    "ES384": "EC",
    "ES512": "EC",
    "EdDSA": "OKP",
}
# Algorithm -> the curve of its keys, and the bytes of each of the two numbers of a signature.
_CURVES: Final = {"ES256": ("secp256r1", 32), "ES384": ("secp384r1", 48), "ES512": ("secp521r1", 66)}


class TokenError(ValueError):
    """The token is not acceptable; the text says why."""


@dataclass(frozen=True, slots=True)
class SignedToken:
    """A token whose signature has not been verified yet."""

    header: dict[str, Any] = field(repr=False)
    encoded_payload: str = field(repr=False)
    signed: bytes = field(repr=False)
    signature: bytes = field(repr=False)

    @property
    def algorithm(self) -> str:
        return _text(self.header, "alg") or ""

    @property
    def payload(self) -> dict[str, Any]:
        """What the token says, decoded at each call. TokenError if it is no JSON object. Verify the signature
        first: what any client may send is not worth the time to decode it.
        """
        return decode_json(_decode(self.encoded_payload, "payload"), "payload")

    @property
    def key_id(self) -> str | None:
        return _text(self.header, "kid")


def parse_token(text: str) -> SignedToken:
    """Take a token apart. TokenError if it has not exactly the parts of a signed token."""
    parts = text.split(".", 3)
    if len(parts) != 3:
        raise TokenError("it has not the three parts of a signed token")
    if len(parts[0]) > _MAX_HEADER or len(parts[2]) > _MAX_SIGNATURE:
        raise TokenError("its header or its signature is too long")
    header = decode_json(_decode(parts[0], "header"), "header")
    return SignedToken(header, parts[1], f"{parts[0]}.{parts[1]}".encode(), _decode(parts[2], "signature"))


def check_header(token: SignedToken) -> None:
    """Refuse what cannot be verified whatever the key. TokenError says why."""
    if "crit" in token.header:
        raise TokenError("its header has extensions that must be understood (crit), and none is")
    algorithm = token.algorithm
    if algorithm not in ALGORITHMS:
        shown = algorithm if algorithm in ("none", "HS256", "HS384", "HS512") else "another one"
        raise TokenError(
            f"its algorithm is {shown or 'missing'}, and only these are taken: {', '.join(ALGORITHMS)}"
        )
    if not token.signature:
        raise TokenError("it has no signature")


def is_signed_by(token: SignedToken, key: PublicKeyTypes) -> bool:
    """Whether the signature is by the private half of this key, by the algorithm that the token names."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, padding, rsa, utils

    algorithm = token.algorithm
    kind = ALGORITHMS.get(algorithm)
    digests: dict[str, hashes.HashAlgorithm] = {
        "256": hashes.SHA256(),
        "384": hashes.SHA384(),
        "512": hashes.SHA512(),
    }
    digest = digests.get(algorithm[2:])
    try:
        if kind == "RSA" and isinstance(key, rsa.RSAPublicKey) and digest is not None:
            scheme: padding.AsymmetricPadding = padding.PKCS1v15()
            if algorithm.startswith("PS"):
                scheme = padding.PSS(padding.MGF1(digest), digest.digest_size)
            key.verify(token.signature, token.signed, scheme, digest)
            return True
        if kind == "EC" and isinstance(key, ec.EllipticCurvePublicKey) and digest is not None:
            curve, size = _CURVES[algorithm]
            if key.curve.name != curve or len(token.signature) != 2 * size:
                return False
            numbers = (token.signature[:size], token.signature[size:])
            signature = utils.encode_dss_signature(*(int.from_bytes(each, "big") for each in numbers))
            key.verify(signature, token.signed, ec.ECDSA(digest))
            return True
        if kind == "OKP" and isinstance(key, ed25519.Ed25519PublicKey | ed448.Ed448PublicKey):
            key.verify(token.signature, token.signed)
            return True
    except InvalidSignature:
        return False
    return False


def base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decode_base64url(text: str) -> bytes:
    """Decode text without padding. ValueError if that is not what it is."""
    if not _BASE64URL.fullmatch(text) or len(text) % 4 == 1:
        raise ValueError("not base64url")
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _decode(text: str, what: str) -> bytes:
    try:
        return decode_base64url(text)
    except (ValueError, binascii.Error):
        raise TokenError(f"its {what} is not base64url") from None


def decode_json(data: bytes, what: str) -> dict[str, Any]:
    """Read a JSON object in which no name comes twice and numbers are finite. TokenError if it is not one."""
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except TokenError:
        raise
    except (ValueError, RecursionError):
        raise TokenError(f"its {what} is not JSON") from None
    if not isinstance(value, dict):
        raise TokenError(f"its {what} is not a JSON object")
    if _is_deeper(value, _MAX_JSON_DEPTH):
        raise TokenError(f"its {what} is nested too deeply")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise TokenError("a name comes twice in its JSON")
    return members


def _refuse_constant(_name: str) -> Any:
    raise TokenError("a number in its JSON is not finite")


def _is_deeper(value: Any, levels: int) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return False
    return levels == 0 or any(_is_deeper(each, levels - 1) for each in value)


def _text(members: dict[str, Any], name: str) -> str | None:
    value = members.get(name)
    if value is not None and not isinstance(value, str):
        raise TokenError(f"{name} in its header is no text")
    return value
