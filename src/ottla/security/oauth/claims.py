"""What a token must say: Kafka's `BrokerJwtValidator`, and its validator of unsecured tokens.

Both are pure: the time is passed in. A client learns only OAuth's status of a refusal; the text of a
`TokenRefused` is for the log of this node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ottla.security.oauth.jwks import JsonWebKeySet, is_verified
from ottla.security.oauth.jws import SignedToken, TokenError, check_header, parse_token

INVALID_TOKEN: Final = "invalid_token"
INSUFFICIENT_SCOPE: Final = "insufficient_scope"
_MAX_SECONDS: Final = (2**63 - 1) // 1000
_UNSECURED: Final = "unsecuredValidator"


class TokenRefused(Exception):
    """The token does not let its bearer in. `status` and `scope` go to the client (RFC 7628)."""

    def __init__(self, reason: str, status: str = INVALID_TOKEN, scope: str | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.scope = scope


@dataclass(frozen=True, slots=True)
class BearerToken:
    """What a valid token says of its bearer."""

    principal_name: str
    expires_at_ms: int
    scope: frozenset[str] = frozenset()


class TokenValidator(Protocol):
    def validate(self, token: str, now_ms: int) -> BearerToken:
        """TokenRefused says why the token is not valid."""
        ...


class KeySource(Protocol):
    """The keys of the server that issues tokens."""

    @property
    def name(self) -> str:
        """Where they come from, for messages."""
        ...

    def keys(self) -> JsonWebKeySet | None:
        """The keys as they are known now; None if they never were."""
        ...

    def on_unknown_key(self) -> None:
        """A token names a key that is not there; ask for the keys soon, unless that was done just now."""
        ...


@dataclass(frozen=True, slots=True)
class ClaimRules:
    """`sasl.oauthbearer.*` of a listener."""

    issuer: str | None = None
    audiences: frozenset[str] = frozenset()
    clock_skew_seconds: int = 30
    subject_claim: str = "sub"
    scope_claim: str = "scope"


class SignedTokenValidator:
    """Takes tokens that a known key has signed."""

    def __init__(self, source: KeySource, rules: ClaimRules) -> None:
        self._source: Final = source
        self._rules: Final = rules

    def validate(self, token: str, now_ms: int) -> BearerToken:
        try:
            parsed = parse_token(token)
            check_header(parsed)
            self._verify(parsed)
            return _check_claims(parsed.payload, self._rules, now_ms // 1000)
        except TokenError as error:
            raise TokenRefused(f"the token is refused: {error}") from None

    def _verify(self, token: SignedToken) -> None:
        keys = self._source.keys()
        if keys is None:
            self._source.on_unknown_key()
            raise TokenError(f"the keys of {self._source.name} are not known yet")
        candidates = keys.candidates(token)
        if not candidates:
            self._source.on_unknown_key()
            raise TokenError(f"none of the keys of {self._source.name} is for its key id and algorithm")
        if not is_verified(token, candidates):
            raise TokenError("its signature is wrong")


def _check_claims(claims: Mapping[str, Any], rules: ClaimRules, now: int) -> BearerToken:
    expires, issued = _time(claims, "exp"), _time(claims, "iat")
    not_before = _time(claims, "nbf") if "nbf" in claims else None
    if expires is None:
        raise TokenError("it has no expiration time (exp)")
    if issued is None:
        raise TokenError("it has no time of issue (iat)")
    if now - rules.clock_skew_seconds >= expires:
        raise TokenError(f"it expired {now - expires} seconds ago")
    if expires < issued or (not_before is not None and expires < not_before):
        raise TokenError("it expires before it begins")
    if not_before is not None and now + rules.clock_skew_seconds < not_before:
        raise TokenError(f"it is valid only in {not_before - now} seconds (nbf)")
    _check_issuer(claims.get("iss"), rules.issuer)
    _check_audience(claims.get("aud"), rules.audiences)
    for name in ("sub", "jti"):
        _string(claims, name)
    subject = _string(claims, rules.subject_claim)
    if subject is None or not subject.strip():
        raise TokenError(f"it names no principal ({rules.subject_claim})")
    scope = _scope(claims.get(rules.scope_claim), rules.scope_claim)
    return BearerToken(subject.strip(), expires * 1000, scope)


def _check_issuer(issuer: Any, expected: str | None) -> None:
    if issuer is not None and not isinstance(issuer, str):
        raise TokenError("its issuer (iss) is no text")
    if expected is not None and issuer != expected:
        raise TokenError(f"its issuer (iss) is not {expected}")


def _check_audience(audience: Any, expected: frozenset[str]) -> None:
    """A token that is for some audience is refused where none is expected, as in Kafka."""
    if audience is None:
        if expected:
            raise TokenError("it is for no audience (aud)")
        return
    given = [audience] if isinstance(audience, str) else audience
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise TokenError("its audience (aud) is no text")
    if not expected.intersection(given):
        wanted = ", ".join(sorted(expected)) or "none, see sasl.oauthbearer.expected.audience"
        raise TokenError(f"it is for another audience (aud) than the expected: {wanted}")


def _scope(value: Any, name: str) -> frozenset[str]:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        return frozenset()
    if not all(isinstance(each, str) and each.strip() for each in value):
        raise TokenError(f"its {name} has what is no text, or an empty one")
    scope = frozenset(each.strip() for each in value)
    if len(scope) != len(value):
        raise TokenError(f"its {name} has a value twice")
    return scope


def _time(claims: Mapping[str, Any], name: str) -> int | None:
    """Seconds since the epoch."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TokenError(f"{name} is no number")
    if not 0 <= value <= _MAX_SECONDS:
        raise TokenError(f"{name} is no time")
    return int(value)


def _string(claims: Mapping[str, Any], name: str) -> str | None:
    value = claims.get(name)
    if value is not None and not isinstance(value, str):
        raise TokenError(f"{name} is no text")
    return value


class UnsecuredTokenValidator:
    """Takes tokens without a signature: any client may say that it is anyone. For development only."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Read a login module's options `unsecuredValidator…`. ValueError if the clock skew is no number."""

        def option(name: str) -> str | None:
            return (options.get(_UNSECURED + name) or "").strip() or None

        self._principal_claim: Final = option("PrincipalClaimName") or "sub"
        self._scope_claim: Final = option("ScopeClaimName") or "scope"
        self._required_scope: Final = (option("RequiredScope") or "").split()
        skew = option("AllowableClockSkewMs") or "0"
        if not (skew.isascii() and skew.isdecimal()):
            raise ValueError(f"{_UNSECURED}AllowableClockSkewMs is no number of milliseconds")
        self._skew_ms: Final = int(skew)

    def validate(self, token: str, now_ms: int) -> BearerToken:
        try:
            return self._validate(token, now_ms)
        except TokenError as error:
            raise TokenRefused(f"the token is refused: {error}") from None

    def _validate(self, text: str, now_ms: int) -> BearerToken:
        token = parse_token(text)
        if token.algorithm != "none" or token.signature:
            raise TokenError("it is signed, and this listener takes only unsecured tokens")
        claims = token.payload
        principal = _string(claims, self._principal_claim)
        if principal is None or not principal.strip():
            raise TokenError(f"it names no principal ({self._principal_claim})")
        expires_ms, issued_ms = _milliseconds(claims, "exp"), _milliseconds(claims, "iat")
        if expires_ms is None:
            raise TokenError("it has no expiration time (exp)")
        if issued_ms is not None and issued_ms > now_ms + self._skew_ms:
            raise TokenError("it was issued in the future (iat)")
        if now_ms - self._skew_ms >= expires_ms:
            raise TokenError(f"it expired {now_ms - expires_ms} ms ago")
        if issued_ms is not None and expires_ms <= issued_ms:
            raise TokenError("it expires before it begins")
        scope = _unsecured_scope(claims.get(self._scope_claim))
        if not scope.issuperset(self._required_scope):
            shown = f"[{', '.join(self._required_scope)}]"
            raise TokenRefused(f"the token has not the scope {shown}", INSUFFICIENT_SCOPE, shown)
        return BearerToken(principal, expires_ms, scope)


def _milliseconds(claims: Mapping[str, Any], name: str) -> int | None:
    if _time(claims, name) is None:
        return None
    seconds: float = claims[name]
    return min(round(seconds * 1000), 2**63 - 1)


def _unsecured_scope(value: Any) -> frozenset[str]:
    if isinstance(value, str):
        return frozenset([value.strip()] if value.strip() else [])
    if isinstance(value, list):
        return frozenset(each.strip() for each in value if isinstance(each, str) and each.strip())
    return frozenset()
