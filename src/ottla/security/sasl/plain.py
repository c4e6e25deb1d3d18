"""PLAIN (RFC 4616): one token with the user's name and password, in clear, so it needs TLS beneath it.

The users of a listener are the options `user_NAME="password"` of its login module.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Final

from ottla.runtime.random import Random
from ottla.security.principal import USER_TYPE, KafkaPrincipal
from ottla.security.sasl.mechanism import AuthenticatedClient, SaslFailure, ServerStep
from ottla.security.secret import Secret

PLAIN: Final = "PLAIN"
_USER_OPTION: Final = "user_"


def plain_users(options: Mapping[str, str]) -> dict[str, Secret]:
    """The users of a login module's options, by name."""
    return {
        name.removeprefix(_USER_OPTION): Secret(value)
        for name, value in options.items()
        if name.startswith(_USER_OPTION)
    }


class PlainServerFactory:
    """The users of a listener. An unknown user costs the same work as a wrong password: both are compared, as
    digests of one length.
    """

    def __init__(self, users: Mapping[str, Secret], random: Random) -> None:
        self._digests = {name: _digest(password.reveal()) for name, password in users.items()}
        self._of_unknown = random.randbytes(32)

    def create(self) -> PlainServer:
        return PlainServer(self)

    def is_password(self, user: str, password: str) -> bool:
        expected = self._digests.get(user)
        is_same = hmac.compare_digest(expected or self._of_unknown, _digest(password))
        return is_same and expected is not None


class PlainServer:
    def __init__(self, users: PlainServerFactory) -> None:
        self._users = users

    def evaluate_response(self, response: bytes) -> ServerStep:
        fields = response.decode("utf-8", "replace").split("\0", 4)[:4]
        if len(fields) != 3:
            raise _failure(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(fields)}")
        authorization_id, user, password = fields
        if not user:
            raise _failure("Authentication failed: username not specified")
        if not password:
            raise _failure("Authentication failed: password not specified")
        if not self._users.is_password(user, password):
            raise _failure("Authentication failed: Invalid username or password")
        if authorization_id not in ("", user):
            raise _failure(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        return ServerStep(b"", AuthenticatedClient(KafkaPrincipal(USER_TYPE, user)))


class PlainClientFactory:
    mechanism: Final = PLAIN

    def __init__(self, username: str, password: Secret) -> None:
        self._username = username
        self._password = password

    async def create(self, host: str) -> PlainClient:
        return PlainClient(self._username, self._password)


class PlainClient:
    def __init__(self, username: str, password: Secret) -> None:
        self._username = username
        self._password = password

    def initial_response(self) -> bytes:
        return f"\0{self._username}\0{self._password.reveal()}".encode()

    def evaluate_challenge(self, challenge: bytes) -> None:
        if challenge:
            raise SaslFailure("the broker sent a challenge, and PLAIN has none")


def _digest(password: str) -> bytes:
    return hashlib.sha256(password.encode("utf-8", "surrogatepass")).digest()


def _failure(message: str) -> SaslFailure:
    return SaslFailure(message, client_message=message)
