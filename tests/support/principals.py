"""Users who log in by SASL PLAIN, for tests of what principals may do: the password is the name.

`sasl_settings` are those of a node, of Ottla or of Apache Kafka, whose users are `USERS`; `client_of` is a
connection whose requests come from one of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ottla.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from ottla.protocol.schema import Buffer
from ottla.security.authorizer.standard_authorizer import CLASS_NAME
from tests.support.wire import WireClient

_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
ADMIN: Final = "admin"


def sasl_settings(users: Iterable[str], listener: str = "sasl_plaintext") -> dict[str, str]:
    """Settings of a node with an authorizer and a listener on which these users log in. ADMIN is a super
    user, and so are those who need no login (other listeners).
    """
    logins = " ".join(f'user_{user}="{user}"' for user in (ADMIN, *users))
    return {
        "sasl.enabled.mechanisms": "PLAIN",
        f"listener.name.{listener}.plain.sasl.jaas.config": f"{_MODULE} required {logins};",
        "authorizer.class.name": CLASS_NAME,
        "super.users": f"User:{ADMIN};User:ANONYMOUS",
    }


def controller_settings(users: Iterable[str]) -> dict[str, str]:
    """Settings of a listener CONTROLLER on which the same users log in, and the node itself as ADMIN."""
    logins = " ".join(f'user_{user}="{user}"' for user in (ADMIN, *users))
    return {
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.controller.plain.sasl.jaas.config": (
            f'{_MODULE} required username="{ADMIN}" password="{ADMIN}" {logins};'
        ),
    }


def own_settings(users: Iterable[str]) -> dict[str, str]:
    """As `sasl_settings`, for a `LocalNode`, whose first listener is the one for users."""
    return {**sasl_settings(users), "listeners": "SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0"}


def login_settings(
    address: str, user: str, password: str | None = None, *, mechanism: str = "PLAIN"
) -> dict[str, str]:
    """Settings of a client that logs in; the password is the name, if none is given."""
    return {
        "bootstrap.servers": address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": user if password is None else password,
    }


class UserClient(WireClient):
    """A connection of a user, who logs in whenever it is opened."""

    def __init__(self, address: str, user: str) -> None:
        super().__init__(address, client_id=f"client-of-{user}")
        self._user = user
        self._is_logging_in = False

    def send_bytes(self, data: Buffer) -> None:
        if self._socket is None and not self._is_logging_in:
            self._is_logging_in = True
            try:
                self.get(SaslHandshakeRequest(mechanism="PLAIN"), 1, SaslHandshakeResponse)
                token = f"\0{self._user}\0{self._user}".encode()
                login = self.get(SaslAuthenticateRequest(auth_bytes=token), 2, SaslAuthenticateResponse)
                assert login.error_code == 0, login
            finally:
                self._is_logging_in = False
        super().send_bytes(data)


def client_of(address: str, user: str) -> UserClient:
    return UserClient(address, user)
