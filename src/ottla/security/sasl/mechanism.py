"""The two sides of a SASL mechanism, as the exchange that carries its tokens sees them.

Both are pure: tokens go in, tokens come out, until the client is known or the exchange has failed. The
exchange (`server_authenticator`, `client_authenticator`) has the order of requests, the limits and the clock;
a mechanism knows none of them. A mechanism is made for one exchange and used once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ottla.security.principal import KafkaPrincipal


class SaslFailure(Exception):
    """The client is not who it says, or does not speak the mechanism. `client_message` is all that the client
    learns; None stands for Kafka's sentence about invalid credentials, which tells no cause. The exception's
    text is for the log of this node, and has neither passwords nor tokens. `is_temporary` says that the same
    login may succeed later: the service that has the client's credential does not answer.
    """

    def __init__(self, reason: str, *, client_message: str | None = None, is_temporary: bool = False) -> None:
        super().__init__(reason)
        self.client_message = client_message
        self.is_temporary = is_temporary


@dataclass(frozen=True, slots=True)
class AuthenticatedClient:
    """The result of an exchange."""

    principal: KafkaPrincipal
    # The wall clock's milliseconds at which the client's credential ends; None if it does not.
    expires_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ServerStep:
    """A server's answer to one token: the next token, and the client once it is known."""

    token: bytes
    client: AuthenticatedClient | None = None


class SaslServer(Protocol):
    """A server's side of one exchange."""

    def evaluate_response(self, response: bytes) -> ServerStep:
        """Take a client's token. SaslFailure ends the exchange; it is not called again after that, nor after
        a step that has a client.
        """
        ...


class SaslServerFactory(Protocol):
    """A mechanism of a listener, with the credentials that it checks against."""

    def create(self) -> SaslServer: ...


class SaslClient(Protocol):
    """A client's side of one exchange. The client speaks first."""

    def initial_response(self) -> bytes: ...

    def evaluate_challenge(self, challenge: bytes) -> bytes | None:
        """Take a server's token; None once the server is known and nothing is left to send. SaslFailure if
        the server cannot be trusted, or says that the login failed.
        """
        ...


class SaslClientFactory(Protocol):
    """A mechanism of a client, with the credentials that it logs in with."""

    @property
    def mechanism(self) -> str: ...

    async def create(self, host: str) -> SaslClient:
        """Make the client's side of an exchange with a host. May wait for a credential that comes from
        elsewhere; SaslFailure if there is none.
        """
        ...
