"""OAUTHBEARER (RFC 7628): the client's one message has its token, in clear, so it needs TLS beneath it.

A token that is not valid is answered with a challenge of OAuth's error, which the client confirms with one
byte; only then the exchange has failed. The text of that failure is the challenge again, as Kafka has it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ottla.runtime.clock import Clock
from ottla.security.oauth.claims import TokenRefused, TokenValidator
from ottla.security.oauth.token_source import TokenSource, TokenUnavailable
from ottla.security.principal import USER_TYPE, KafkaPrincipal
from ottla.security.sasl.mechanism import AuthenticatedClient, SaslFailure, ServerStep

OAUTHBEARER: Final = "OAUTHBEARER"
_SEPARATOR: Final = "\x01"
_CONFIRMATION: Final = b"\x01"
_KEY: Final = re.compile(r"[A-Za-z]+")
_VALUE: Final = re.compile(r"[\x21-\x7e \t\r\n]+")
_AUTH: Final = re.compile(r"(\w+) +([-_~+/.a-zA-Z0-9]+=*)", re.ASCII)
# The header up to its second comma, without channel binding; =2C and =3D stand for "," and "=".
_GS2_HEADER: Final = re.compile(r"n,(?:a=((?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]++|=2C|=3D)++))?,")
_MAX_SHOWN: Final = 300
# A client is not known yet when its message is read. Tokens that list groups have some ten kilobytes.
MAX_MESSAGE_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class InitialResponse:
    """The message of a client."""

    token: str = field(repr=False)
    authorization_id: str = ""
    extensions: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, message: bytes) -> InitialResponse:
        """SaslFailure if it is no message of OAUTHBEARER, or a very long one."""
        if len(message) > MAX_MESSAGE_BYTES:
            raise SaslFailure("Invalid OAUTHBEARER client first message: it is too long")
        text = message.decode("utf-8", "replace")
        header = _GS2_HEADER.match(text)
        if header is None or not text.endswith(_SEPARATOR * 2) or text[header.end()] != _SEPARATOR:
            raise SaslFailure("Invalid OAUTHBEARER client first message")
        pairs: dict[str, str] = {}
        for pair in text[header.end() + 1 : -2].split(_SEPARATOR):
            name, _, value = pair.partition("=")
            if not _KEY.fullmatch(name) or not _VALUE.fullmatch(value) or name in pairs:
                raise SaslFailure("Invalid OAUTHBEARER client first message")
            pairs[name] = value
        auth = pairs.pop("auth", None)
        if auth is None:
            raise SaslFailure("Invalid OAUTHBEARER client first message: 'auth' not specified")
        match = _AUTH.fullmatch(auth)
        if match is None:
            raise SaslFailure("Invalid OAUTHBEARER client first message: invalid 'auth' format")
        if match[1].lower() != "bearer":
            raise SaslFailure("Invalid scheme in OAUTHBEARER client first message")
        return cls(match[2], header[1] or "", pairs)

    def encode(self) -> bytes:
        authorization_id = f"a={self.authorization_id}" if self.authorization_id else ""
        extensions = "".join(f"{_SEPARATOR}{name}={value}" for name, value in self.extensions.items())
        auth = f"auth=Bearer {self.token}"
        return f"n,{authorization_id},{_SEPARATOR}{auth}{extensions}{_SEPARATOR}{_SEPARATOR}".encode()


def check_extensions(extensions: Mapping[str, str]) -> None:
    """ValueError names an extension that no message can have."""
    for name, value in extensions.items():
        if name == "auth" or not _KEY.fullmatch(name):
            raise ValueError(f"Extension name {name} is invalid")
        if not _VALUE.fullmatch(value):
            raise ValueError(f"the value of the extension {name} is invalid")


class OAuthBearerServerFactory:
    def __init__(self, validator: TokenValidator, clock: Clock) -> None:
        self._validator: Final = validator
        self._clock: Final = clock

    def create(self) -> OAuthBearerServer:
        return OAuthBearerServer(self._validator, self._clock)


class OAuthBearerServer:
    """`_refusal` is the challenge that the client has to confirm, and why its token was refused."""

    def __init__(self, validator: TokenValidator, clock: Clock) -> None:
        self._validator = validator
        self._clock = clock
        self._refusal: tuple[str, str] | None = None

    def evaluate_response(self, response: bytes) -> ServerStep:
        if response == _CONFIRMATION and self._refusal is not None:
            challenge, reason = self._refusal
            raise SaslFailure(reason, client_message=challenge)
        self._refusal = None
        message = InitialResponse.parse(response)
        try:
            token = self._validator.validate(message.token, self._clock.wall_ms())
        except TokenRefused as refused:
            challenge = _challenge(refused)
            self._refusal = challenge, str(refused)
            return ServerStep(challenge.encode())
        if message.authorization_id not in ("", token.principal_name):
            text = (
                "Authentication failed: Client requested an authorization id "
                f"({message.authorization_id[:_MAX_SHOWN]}) that is different from the token's principal "
                f"name ({token.principal_name[:_MAX_SHOWN]})"
            )
            raise SaslFailure(text, client_message=text)
        principal = KafkaPrincipal(USER_TYPE, token.principal_name)
        return ServerStep(b"", AuthenticatedClient(principal, token.expires_at_ms))


def _challenge(refused: TokenRefused) -> str:
    scope = "" if refused.scope is None else f', "scope":"{refused.scope}"'
    return f'{{"status":"{refused.status}"{scope}}}'


class OAuthBearerClientFactory:
    mechanism: Final = OAUTHBEARER

    def __init__(self, tokens: TokenSource, extensions: Mapping[str, str]) -> None:
        """ValueError names an extension that no message can have."""
        check_extensions(extensions)
        self._tokens: Final = tokens
        self._extensions: Final = dict(extensions)

    async def create(self, host: str) -> OAuthBearerClient:
        try:
            token = await self._tokens.token()
        except TokenUnavailable as error:
            raise SaslFailure(f"there is no token: {error}", is_temporary=error.is_temporary) from None
        extensions = {**self._extensions, **token.extensions}
        try:
            check_extensions(token.extensions)
        except ValueError as error:
            raise SaslFailure(str(error)) from None
        return OAuthBearerClient(InitialResponse(token.value.reveal(), extensions=extensions))


class OAuthBearerClient:
    """`_challenge` is the broker's error, if it sent one."""

    def __init__(self, message: InitialResponse) -> None:
        self._message = message
        self._challenge: str | None = None

    def initial_response(self) -> bytes:
        return self._message.encode()

    def evaluate_challenge(self, challenge: bytes) -> bytes | None:
        if self._challenge is not None:
            raise SaslFailure(f"the broker refused the token: {self._challenge}")
        if not challenge:
            return None
        self._challenge = challenge.decode("utf-8", "replace")[:_MAX_SHOWN]
        return _CONFIRMATION
