"""The client's side of SCRAM: it proves that it knows the password, and makes the server prove the same.

A server that asks for fewer iterations than the mechanism's least would learn more about the password than it
should, and one that asks for very many would keep the client busy: neither gets an answer.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Final

from ottla.protocol import scram
from ottla.protocol.scram import ScramMechanism
from ottla.runtime.random import Random
from ottla.security.sasl.mechanism import SaslFailure
from ottla.security.sasl.scram_messages import (
    ScramFormatError,
    encoded,
    escaped,
    parse_server_final,
    parse_server_first,
)
from ottla.security.secret import Secret

# The extension by which a client logs in with a delegation token: its id and HMAC are name and password.
TOKEN_AUTH: Final = "tokenauth"
_NONCE_BYTES: Final = 24
_MOST_ITERATIONS: Final = 1_000_000
_NO_CHANNEL_BINDING: Final = "n,,"


class ScramClientFactory:
    """One user's login. The salted password is kept: connections to the same cluster all need the same one,
    and it is what costs time.
    """

    def __init__(
        self,
        mechanism: ScramMechanism,
        username: str,
        password: Secret,
        random: Random,
        extensions: Mapping[str, str] | None = None,
    ) -> None:
        self.kind: Final = mechanism
        self._username: Final = username
        self._password: Final = password
        self._random: Final = random
        self._extensions: Final = dict(extensions or {})
        self._salted: tuple[bytes, int, bytes] | None = None

    @property
    def mechanism(self) -> str:
        return self.kind.mechanism_name

    async def create(self, host: str) -> ScramClient:
        return ScramClient(self, self.first_message(encoded(self._random.randbytes(_NONCE_BYTES))))

    def first_message(self, nonce: str) -> tuple[str, str]:
        """The first message without its head, and its nonce."""
        extensions = "".join(f",{name}={value}" for name, value in self._extensions.items())
        return f"n={escaped(self._username)},r={nonce}{extensions}", nonce

    def salted_password(self, salt: bytes, iterations: int) -> bytes:
        if self._salted is None or self._salted[:2] != (salt, iterations):
            salted = scram.salted_password(self.kind, self._password.reveal(), salt, iterations)
            self._salted = (salt, iterations, salted)
        return self._salted[2]


class ScramClient:
    """`_server_signature` is what the server must send in the end; None before its first message."""

    def __init__(self, factory: ScramClientFactory, first: tuple[str, str]) -> None:
        self._factory = factory
        self._bare, self._nonce = first
        self._server_signature: bytes | None = None

    def initial_response(self) -> bytes:
        return (_NO_CHANNEL_BINDING + self._bare).encode()

    def evaluate_challenge(self, challenge: bytes) -> bytes | None:
        try:
            if self._server_signature is None:
                return self._on_server_first(challenge)
            self._on_server_final(challenge, self._server_signature)
        except ScramFormatError as error:
            raise SaslFailure(f"the broker's answer is no SCRAM message: {error}") from None
        return None

    def _on_server_first(self, message: bytes) -> bytes:
        mechanism = self._factory.kind
        first = parse_server_first(message)
        if not first.nonce.startswith(self._nonce) or first.nonce == self._nonce:
            raise SaslFailure("the broker's nonce does not continue that of this client")
        if not scram.MIN_ITERATIONS <= first.iterations <= _MOST_ITERATIONS:
            raise SaslFailure(
                f"the broker asks for {first.iterations} iterations of {mechanism.mechanism_name}, and this "
                f"client does {scram.MIN_ITERATIONS} to {_MOST_ITERATIONS}"
            )
        salted = self._factory.salted_password(first.salt, first.iterations)
        unproved = f"c={encoded(_NO_CHANNEL_BINDING.encode())},r={first.nonce}"
        auth_message = f"{self._bare},{first.text},{unproved}".encode()
        client_key = scram.client_key(mechanism, salted)
        stored_key = scram.stored_key(mechanism, client_key)
        proof = scram.exclusive_or(client_key, scram.signature(mechanism, stored_key, auth_message))
        self._server_signature = scram.signature(mechanism, scram.server_key(mechanism, salted), auth_message)
        return f"{unproved},p={encoded(proof)}".encode()

    def _on_server_final(self, message: bytes, expected: bytes) -> None:
        error, signature = parse_server_final(message)
        if error is not None:
            raise SaslFailure(f"the broker says: {error[:200]}")
        if not hmac.compare_digest(signature, expected):
            raise SaslFailure("the broker does not know the password: its signature is wrong")
