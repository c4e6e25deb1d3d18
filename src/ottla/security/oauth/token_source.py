"""How a client gets its token: from a file, from a token server (`client_credentials`, or RFC 7523's
assertions), from a callable of the program, or made by itself where the broker takes unsecured tokens.

A token is used for all logins until most of its life is over, by Kafka's `sasl.login.refresh.*`; then the
next login asks for another one. If there is none then, the old token is used while it is valid.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from ottla.runtime.clock import Clock
from ottla.runtime.disk import Disk, read_file
from ottla.runtime.http import HttpError, HttpRequest, HttpResponse, http_fetch
from ottla.runtime.pool import Pool
from ottla.runtime.random import Random
from ottla.security.oauth.assertion import AssertionFailed
from ottla.security.oauth.jws import TokenError, base64url, decode_json, parse_token
from ottla.security.secret import Secret

_log = logging.getLogger(__name__)

_MAX_SHOWN: Final = 200


class TokenUnavailable(Exception):
    """There is no token to log in with; the text says why, and has no secret. `is_temporary` if the token
    server does not answer.
    """

    def __init__(self, reason: str, *, is_temporary: bool = False) -> None:
        super().__init__(reason)
        self.is_temporary = is_temporary


@dataclass(frozen=True, slots=True)
class ClientToken:
    value: Secret
    # Both by the wall clock; None if that is not known.
    issued_at_ms: int | None = None
    expires_at_ms: int | None = None
    extensions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RefreshSettings:
    """`sasl.login.refresh.*`"""

    window_factor: float = 0.8
    window_jitter: float = 0.05
    min_period_seconds: int = 60
    buffer_seconds: int = 300


class TokenSource(Protocol):
    async def token(self) -> ClientToken:
        """TokenUnavailable if there is none."""
        ...


class RefreshingTokens:
    """Keeps a token while it is good. Logins that come while it is being fetched wait for the same one."""

    def __init__(
        self,
        fetch: Callable[[], Awaitable[ClientToken]],
        clock: Clock,
        random: Random,
        settings: RefreshSettings,
    ) -> None:
        self._fetch: Final = fetch
        self._clock: Final = clock
        self._random: Final = random
        self._settings: Final = settings
        self._token: ClientToken | None = None
        # When the token is to be replaced, by the wall clock.
        self._refresh_at_ms = 0
        # Made in the event loop that uses it first.
        self._lock: asyncio.Lock | None = None

    async def token(self) -> ClientToken:
        if self._lock is None:
            self._lock = asyncio.Lock()
        async with self._lock:
            now_ms = self._clock.wall_ms()
            if self._token is not None and now_ms < self._refresh_at_ms:
                return self._token
            try:
                token = await self._fetch()
            except TokenUnavailable as error:
                kept = self._token
                if kept is None or kept.expires_at_ms is None or kept.expires_at_ms <= now_ms:
                    raise
                _log.warning("the token of this client is used a while longer: %s", error)
                return kept
            self._token = token
            self._refresh_at_ms = self._refresh_time_ms(token, self._clock.wall_ms())
            return token

    def _refresh_time_ms(self, token: ClientToken, now_ms: int) -> int:
        """As Kafka's `ExpiringCredentialRefreshingLogin` has it; at once if the token does not say when it
        ends.
        """
        expires_ms = token.expires_at_ms
        if expires_ms is None:
            return now_ms
        begin_ms = now_ms if token.issued_at_ms is None else min(token.issued_at_ms, now_ms)
        settings = self._settings
        factor = settings.window_factor + settings.window_jitter * self._random.random()
        planned = begin_ms + round((expires_ms - begin_ms) * factor)
        buffer_ms, period_ms = settings.buffer_seconds * 1000, settings.min_period_seconds * 1000
        if now_ms + buffer_ms + period_ms > expires_ms:
            return max(now_ms, planned)
        return max(now_ms + period_ms, min(planned, expires_ms - buffer_ms))


def parsed_token(text: str, expires_at_ms: int | None = None) -> ClientToken:
    """A token with the times that it says itself, if it is a JWT. TokenUnavailable if it cannot be sent."""
    text = text.strip()
    if not text or any(not "!" <= char <= "~" for char in text):
        raise TokenUnavailable("what was found is no token")
    issued_ms = None
    try:
        claims = parse_token(text).payload
        issued, expires = claims.get("iat"), claims.get("exp")
        if isinstance(issued, int | float):
            issued_ms = int(issued * 1000)
        if isinstance(expires, int | float):
            expires_at_ms = int(expires * 1000)
    except TokenError:
        pass
    return ClientToken(Secret(text), issued_ms, expires_at_ms)


class FileTokens:
    """A token in a file, which another program renews: read for each login."""

    def __init__(self, disk: Disk, pool: Pool, path: str) -> None:
        self._disk: Final = disk
        self._pool: Final = pool
        self._path: Final = path

    async def token(self) -> ClientToken:
        try:
            data = await self._pool.run(read_file, self._disk, self._path)
        except OSError as error:
            raise TokenUnavailable(f"{self._path} cannot be read: {error.strerror or error}") from None
        return parsed_token(bytes(data).decode("utf-8", "replace"))


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """`sasl.login.retry.backoff.*`, and how long all attempts may take."""

    backoff_ms: int = 100
    max_backoff_ms: int = 10_000


class TokenServer:
    """A token server; `make_request` makes the request for one token, as assertions differ each time."""

    def __init__(
        self, pool: Pool, clock: Clock, make_request: Callable[[], HttpRequest], retry: RetrySettings
    ) -> None:
        self._pool: Final = pool
        self._clock: Final = clock
        self._make_request: Final = make_request
        self._retry: Final = retry

    async def token(self) -> ClientToken:
        backoff_ms, waited_ms = self._retry.backoff_ms, 0
        while True:
            try:
                response = await self._pool.run(lambda: http_fetch(self._make_request()))
                if response.status < 500 and response.status != 429:
                    break
                problem = f"the token server answers with status {response.status}"
            except AssertionFailed as error:
                raise TokenUnavailable(str(error)) from None
            except HttpError as error:
                problem = str(error)
            if waited_ms + backoff_ms > self._retry.max_backoff_ms:
                raise TokenUnavailable(problem, is_temporary=True)
            await asyncio.sleep(backoff_ms / 1000)
            waited_ms += backoff_ms
            backoff_ms = min(backoff_ms * 2, self._retry.max_backoff_ms)
        return read_token(response, self._clock.wall_ms())


def read_token(response: HttpResponse, now_ms: int) -> ClientToken:
    """The token in a token server's answer. TokenUnavailable if there is none."""
    try:
        answer = decode_json(response.body, "answer")
    except TokenError as error:
        if response.status == 200:
            raise TokenUnavailable(f"the token server's answer is not understood: {error}") from None
        answer = {}
    if response.status != 200:
        parts = (answer.get("error"), answer.get("error_description"))
        detail = ": ".join(str(each)[:_MAX_SHOWN] for each in parts if each)
        raise TokenUnavailable(
            f"the token server answers with status {response.status}{f' ({detail})' if detail else ''}"
        )
    value = answer.get("access_token") or answer.get("id_token")
    if not isinstance(value, str):
        raise TokenUnavailable("the token server's answer has no access_token")
    expires_at_ms = None
    if isinstance(answer.get("expires_in"), int | float):
        expires_at_ms = now_ms + int(answer["expires_in"] * 1000)
    return parsed_token(value, expires_at_ms)


class CallbackTokens:
    """A function of the program, as confluent-kafka's `oauth_cb` is: it takes `sasl.oauthbearer.config` and
    returns the token, its end in seconds since the epoch and, if it likes, a principal and extensions. It may
    be a coroutine; if not, it runs in the pool, as it may wait for a token server.
    """

    def __init__(self, pool: Pool, callback: Callable[[str], Any], config: str) -> None:
        self._pool: Final = pool
        self._callback: Final = callback
        self._config: Final = config

    async def token(self) -> ClientToken:
        try:
            if inspect.iscoroutinefunction(self._callback):
                given = await self._callback(self._config)
            else:
                given = await self._pool.run(self._callback, self._config)
        except Exception as error:
            raise TokenUnavailable(f"oauth_cb failed: {type(error).__name__}: {error}") from error
        if isinstance(given, str):
            return parsed_token(given)
        if not isinstance(given, tuple | list) or len(given) < 2 or not isinstance(given[0], str):
            raise TokenUnavailable("oauth_cb must return the token and its end in seconds since the epoch")
        extensions = given[3] if len(given) > 3 and given[3] else {}
        token = parsed_token(given[0])
        return ClientToken(
            token.value,
            token.issued_at_ms,
            int(given[1] * 1000),
            {str(name): str(value) for name, value in dict(extensions).items()},
        )


class UnsecuredTokens:
    """Tokens without a signature, of a login module's options `unsecuredLogin…`."""

    PREFIX: Final = "unsecuredLogin"

    def __init__(self, clock: Clock, options: Mapping[str, str]) -> None:
        """ValueError names an option that is wrong."""
        self._clock: Final = clock
        self._claims: Final[dict[str, Any]] = {}
        for name, value in options.items():
            if not name.startswith(self.PREFIX):
                continue
            kind, _, claim = name.removeprefix(self.PREFIX).partition("_")
            if kind in ("StringClaim", "NumberClaim", "ListClaim") and claim in ("iat", "exp"):
                raise ValueError(f"Cannot explicitly set the '{claim}' claim")
            if kind == "StringClaim":
                self._claims[claim] = value
            elif kind == "NumberClaim":
                self._claims[claim] = float(value)
            elif kind == "ListClaim":
                self._claims[claim] = value[1:].split(value[0]) if len(value) > 1 else []
        principal = options.get(self.PREFIX + "PrincipalClaimName", "").strip() or "sub"
        if not str(self._claims.get(principal, "")).strip():
            raise ValueError(f"No principal name in JWT claim: {principal}")
        self._lifetime_ms: Final = int(options.get(self.PREFIX + "LifetimeSeconds", "3600")) * 1000

    async def token(self) -> ClientToken:
        now_ms = self._clock.wall_ms()
        claims = {**self._claims, "iat": now_ms / 1000, "exp": (now_ms + self._lifetime_ms) / 1000}
        parts = (base64url(json.dumps(each).encode()) for each in ({"alg": "none"}, claims))
        return ClientToken(Secret(f"{'.'.join(parts)}."), now_ms, now_ms + self._lifetime_ms)
