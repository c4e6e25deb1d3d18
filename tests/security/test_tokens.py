"""Tokens of OAuth: which are taken, and which never are."""

from __future__ import annotations

import base64
import hmac
import json
import time
from typing import Any

import pytest

from ottla.security.oauth.claims import (
    ClaimRules,
    SignedTokenValidator,
    TokenRefused,
    UnsecuredTokenValidator,
)
from ottla.security.oauth.jwks import JsonWebKeySet, JwksError, parse_jwks
from ottla.security.sasl.mechanism import SaslFailure
from ottla.security.sasl.oauthbearer import InitialResponse
from tests.support.rows import for_each
from tests.support.tokens import AUDIENCE, ISSUER, Issuer, claims, compact, encoded

RULES = ClaimRules(issuer=ISSUER, audiences=frozenset((AUDIENCE, "another")))
ISSUERS = {name: Issuer(name) for name in ("RS256", "ES256")}


class Keys:
    """`KeySource` with fixed keys, which counts the tokens with unknown ones."""

    name = "the test"

    def __init__(self, keys: JsonWebKeySet | None) -> None:
        self._keys = keys
        self.unknown = 0

    def keys(self) -> JsonWebKeySet | None:
        return self._keys

    def on_unknown_key(self) -> None:
        self.unknown += 1


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def validator(issuer: Issuer, rules: ClaimRules = RULES) -> SignedTokenValidator:
    return SignedTokenValidator(Keys(parse_jwks(issuer.jwks())), rules)


@pytest.mark.parametrize(
    "algorithm", ["RS256", "RS384", "RS512", "PS256", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
)
def test_a_token_that_a_known_key_signed_names_its_bearer(algorithm: str) -> None:
    issuer = Issuer(algorithm)
    given = claims(scope=["a", "b"])
    token = validator(issuer).validate(issuer.token(given), now_ms())
    assert token.principal_name == "alice"
    assert token.expires_at_ms == given["exp"] * 1000
    assert token.scope == {"a", "b"}
    tampered = issuer.token().split(".")
    tampered[1] = encoded(json.dumps(claims(sub="admin")).encode())
    with pytest.raises(TokenRefused, match="signature is wrong"):
        validator(issuer).validate(".".join(tampered), now_ms())


def test_a_token_without_a_key_id_is_verified_with_all_keys() -> None:
    first, second = Issuer(key_id=None), Issuer(key_id=None)
    keys = parse_jwks(json.dumps({"keys": [first.jwk(), second.jwk()]}).encode())
    assert (
        SignedTokenValidator(Keys(keys), RULES).validate(second.token(), now_ms()).principal_name == "alice"
    )


# Of the import: a test may come much later.
NOW = int(time.time())
DAY = 86_400
RS = ISSUERS["RS256"]


def hs256_with_public_key() -> str:
    """Signed with the public key as if that were a password."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public = RS.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    signed = compact({"alg": "HS256", "kid": "key-1"}, claims()).removesuffix(".")
    return f"{signed}.{encoded(hmac.digest(public, signed.encode(), 'sha256'))}"


def with_embedded_key() -> str:
    attacker = Issuer()
    return attacker.token(jwk=attacker.jwk(), jku="http://127.0.0.1:1/keys", x5u="http://127.0.0.1:1/cert")


BAD_TOKENS: dict[str, str] = {
    "none": compact({"alg": "none"}, claims()),
    "none, with a key id": compact({"alg": "none", "kid": "key-1"}, claims()),
    "None": compact({"alg": "None"}, claims()),
    "no algorithm": compact({}, claims()),
    "an algorithm that is no text": RS.token(alg=["RS256"]),
    "a stripped signature": RS.token().rpartition(".")[0] + ".",
    "HS256 with the public key": hs256_with_public_key(),
    "another key": Issuer().token(),
    "a wrong key id": RS.token(kid="key-2"),
    "a key id that is no text": RS.token(kid=7),
    "another algorithm of the same key": RS.token(alg="PS256"),
    "an algorithm of another kind of key": RS.token(alg="ES256"),
    "a key in its own header": with_embedded_key(),
    "critical extensions": RS.token(crit=["exp"]),
    "expired": RS.token(claims(exp=NOW - 31)),
    "no end": RS.token(claims(exp=None)),
    "an end that is a text": RS.token(claims(exp=str(NOW + 60))),
    "an end that is true": RS.token(claims(exp=True)),
    "an end that is infinite": RS.token('{"sub":"alice","iat":1,"exp":Infinity}'),
    "an end beyond all bounds": RS.token(claims(exp=10**400)),
    "a negative end": RS.token(claims(exp=-1)),
    "no issue time": RS.token(claims(iat=None)),
    "not yet valid": RS.token(claims(nbf=NOW + DAY, exp=NOW + 2 * DAY)),
    "end before begin": RS.token(claims(iat=NOW + 7200)),
    "a wrong issuer": RS.token(claims(iss=ISSUER + "/")),
    "no issuer": RS.token(claims(iss=None)),
    "a wrong audience": RS.token(claims(aud="another-cluster")),
    "wrong audiences": RS.token(claims(aud=["a", "b"])),
    "no audience": RS.token(claims(aud=None)),
    "an audience that is no text": RS.token(claims(aud={"kafka": 1})),
    "no subject": RS.token(claims(sub=None)),
    "an empty subject": RS.token(claims(sub="  ")),
    "a subject that is no text": RS.token(claims(sub=["alice"])),
    "a name twice": RS.token(json.dumps(claims()).removesuffix("}") + ', "sub": "admin"}'),
    "a scope twice": RS.token(claims(scope=["a", "a"])),
    "claims that are a list": RS.token([claims()]),
    "claims that are no JSON": RS.token("{"),
    "claims that are nested deeply": RS.token('{"a":' + "[" * 100_000 + "]" * 100_000 + "}"),
    "two parts": "a.b",
    "five parts": RS.token() + ".a.b",
    "nothing": "..",
    "padding": RS.token() + "==",
    "huge": "A" * 500_000,
}


@for_each("name", BAD_TOKENS)
def test_such_a_token_never_lets_in(name: str) -> None:
    begin = time.perf_counter()
    with pytest.raises(TokenRefused) as refused:
        validator(RS).validate(BAD_TOKENS[name], now_ms())
    assert refused.value.status == "invalid_token"
    assert len(str(refused.value)) < 300
    assert time.perf_counter() - begin < 30


def test_clocks_may_differ_by_the_skew() -> None:
    for good in (claims(exp=NOW - 5, iat=NOW - 60), claims(nbf=NOW + 5)):
        assert validator(RS).validate(RS.token(good), NOW * 1000).principal_name == "alice"
    strict = ClaimRules(ISSUER, frozenset((AUDIENCE,)), clock_skew_seconds=0)
    for bad in (claims(exp=NOW, iat=NOW - 60), claims(nbf=NOW + 5)):
        with pytest.raises(TokenRefused):
            validator(RS, strict).validate(RS.token(bad), NOW * 1000)


def test_other_claims_may_name_principal_and_scope() -> None:
    rules = ClaimRules(ISSUER, frozenset((AUDIENCE,)), subject_claim="client_id", scope_claim="scp")
    token = validator(RS, rules).validate(RS.token(claims(client_id=" billing ", scp="read")), now_ms())
    assert (token.principal_name, token.scope) == ("billing", {"read"})


def test_a_token_for_an_audience_is_refused_where_none_is_expected() -> None:
    """As Kafka does it."""
    rules = ClaimRules()
    with pytest.raises(TokenRefused, match=r"expected\.audience"):
        validator(RS, rules).validate(RS.token(), now_ms())
    assert validator(RS, rules).validate(RS.token(claims(aud=None)), now_ms()).principal_name == "alice"


def test_unknown_keys_are_asked_for() -> None:
    for keys in (Keys(None), Keys(parse_jwks(RS.jwks()))):
        with pytest.raises(TokenRefused):
            SignedTokenValidator(keys, RULES).validate(RS.token(kid="new"), now_ms())
        assert keys.unknown == 1


def test_keys_that_cannot_verify_tokens_are_left_out() -> None:
    good = RS.jwk()
    small: dict[str, Any] = good | {"kid": "small", "n": encoded(b"\x81" * 128)}
    others: list[Any] = [
        {"kty": "oct", "kid": "key-1", "k": encoded(b"secret")},
        good | {"use": "enc", "kid": "e"},
        good | {"key_ops": ["encrypt"], "kid": "o"},
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA", "kid": "not-on-the-curve"},
        {"kty": "RSA", "kid": "no-numbers"},
        {"kty": ["RSA"]},
        "text",
        small,
    ]
    assert [key.key_id for key in parse_jwks(json.dumps({"keys": [*others, good]}).encode()).keys] == [
        "key-1"
    ]
    for bad in (b"", b"[]", b"{}", b'{"keys": 1}', b'{"keys": []}', json.dumps({"keys": others}).encode()):
        with pytest.raises(JwksError):
            parse_jwks(bad)


def test_unsecured_tokens_are_taken_only_by_their_own_validator() -> None:
    unsecured = UnsecuredTokenValidator({"unsecuredValidatorRequiredScope": "a b"})
    good = compact({"alg": "none"}, claims(scope=["b", "a"]))
    assert unsecured.validate(good, now_ms()).principal_name == "alice"
    with pytest.raises(TokenRefused) as refused:
        unsecured.validate(compact({"alg": "none"}, claims(scope="a")), now_ms())
    assert (refused.value.status, refused.value.scope) == ("insufficient_scope", "[a, b]")
    for bad in (
        RS.token(claims(scope=["a", "b"])),
        good + encoded(b"signature"),
        compact({"alg": "none"}, claims(scope=["a", "b"], exp=NOW - 1)),
        compact({"alg": "none"}, claims(scope=["a", "b"], iat=NOW + DAY, exp=NOW + 2 * DAY)),
        compact({"alg": "none"}, claims(scope=["a", "b"], sub="")),
    ):
        with pytest.raises(TokenRefused):
            unsecured.validate(bad, now_ms())


def test_the_payload_is_decoded_after_the_signature_has_been_verified() -> None:
    header, _, signature = RS.token().split(".")
    with pytest.raises(TokenRefused, match="signature is wrong"):
        validator(RS).validate(f"{header}.{encoded(b'no JSON')}.{signature}", now_ms())


@pytest.mark.parametrize("part", [0, 2])
def test_a_header_and_a_signature_are_short(part: int) -> None:
    parts = RS.token().split(".")
    parts[part] = "A" * 5_000
    with pytest.raises(TokenRefused, match="too long"):
        validator(RS).validate(".".join(parts), now_ms())


def test_a_message_with_a_token_is_bounded() -> None:
    InitialResponse.parse(InitialResponse("a" * 60_000).encode())
    with pytest.raises(SaslFailure, match="too long"):
        InitialResponse.parse(InitialResponse("a" * 70_000).encode())


def test_no_secret_is_shown() -> None:
    from ottla.security.oauth.jws import parse_token
    from ottla.security.oauth.token_source import parsed_token
    from ottla.security.sasl.oauthbearer import InitialResponse

    token = RS.token()
    for shown in (parse_token(token), parsed_token(token), InitialResponse(token)):
        assert token[:20] not in repr(shown)
        assert "alice" not in repr(shown)
    assert base64.b64encode(b"alice").decode() not in repr(parse_token(token))
