"""The server's side of SCRAM: it verifies a client's proof without knowing the password, and proves itself.

A user that does not exist goes through the same exchange as one that does, with a salt that is made up but
stays the same, and fails where a wrong password fails. (Apache Kafka ends the exchange at once, which tells
names that exist from those that do not.) Nonces make a recorded exchange useless; both sides' are in what is
signed, and the last message must repeat exactly the one of this exchange.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import Final, Protocol

from ottla.metadata.image.entities import ScramCredential
from ottla.protocol import scram
from ottla.protocol.scram import ScramMechanism
from ottla.runtime.random import Random
from ottla.security.principal import USER_TYPE, KafkaPrincipal
from ottla.security.sasl.mechanism import AuthenticatedClient, SaslFailure, ServerStep
from ottla.security.sasl.scram_client import TOKEN_AUTH
from ottla.security.sasl.scram_messages import (
    ClientFirst,
    ScramFormatError,
    encoded,
    parse_client_final,
    parse_client_first,
)

_NONCE_BYTES: Final = 24
_LOWER_BASE_36: Final = frozenset(b"0123456789abcdefghijklmnopqrstuvwxyz")


@dataclass(frozen=True, slots=True)
class TokenCredential:
    """A delegation token as SCRAM sees it: its HMAC is the password."""

    credential: ScramCredential
    owner: KafkaPrincipal
    expires_at_ms: int


class ScramCredentials(Protocol):
    """The users and delegation tokens of the cluster, as the newest metadata have them."""

    def of_user(self, mechanism: ScramMechanism, name: str) -> ScramCredential | None: ...

    def of_token(self, mechanism: ScramMechanism, token_id: str) -> TokenCredential | None: ...

    def example(self, mechanism: ScramMechanism) -> ScramCredential | None:
        """A credential of some user, the same on every node: those that are made up are shaped by it."""
        ...


class ScramServerFactory:
    def __init__(self, mechanism: ScramMechanism, credentials: ScramCredentials, random: Random) -> None:
        self.mechanism: Final = mechanism
        self.credentials: Final = credentials
        self._random: Final = random
        # Takes the place of a secret that all nodes know, while there is no user at all.
        self._secret: Final = random.randbytes(32)

    def create(self) -> ScramServer:
        return ScramServer(self, encoded(self._random.randbytes(_NONCE_BYTES)))

    def made_up(self, name: str) -> ScramCredential:
        """A credential that no password fits, for a user that does not exist. Its salt looks like others, and
        is the same at each attempt and on each node.
        """
        example = self.credentials.example(self.mechanism)
        secret = self._secret if example is None else example.server_key
        size = scram.SALT_BYTES if example is None else max(1, len(example.salt))
        noise = hashlib.shake_256(hmac.digest(secret, b"salt of " + name.encode(), "sha256")).digest(size)
        if example is None or _LOWER_BASE_36.issuperset(example.salt):
            alphabet = sorted(_LOWER_BASE_36)
            noise = bytes(alphabet[byte % len(alphabet)] for byte in noise)
        key_size = hashlib.new(self.mechanism.hash_name).digest_size
        iterations = scram.DEFAULT_ITERATIONS if example is None else example.iterations
        return ScramCredential(noise, bytes(key_size), bytes(key_size), iterations)


class ScramServer:
    """`_first` is the client's first message once it has come."""

    def __init__(self, factory: ScramServerFactory, nonce: str) -> None:
        self._factory = factory
        self._own_nonce = nonce
        self._first: ClientFirst | None = None
        self._server_first = ""
        self._nonce = ""
        self._credential: ScramCredential
        # Who the client will be, if the proof is right; None for a user that does not exist.
        self._client: AuthenticatedClient | None = None

    def evaluate_response(self, response: bytes) -> ServerStep:
        try:
            return self._on_first(response) if self._first is None else self._on_final(response, self._first)
        except ScramFormatError as error:
            raise SaslFailure(str(error)) from None

    def _on_first(self, message: bytes) -> ServerStep:
        self._first = first = parse_client_first(message)
        if first.extensions.get(TOKEN_AUTH, "").lower() == "true":
            credential = self._find_token(first.username)
        else:
            credential = self._find_user(first.username)
        made_up = self._factory.made_up(first.username)
        if credential is None:
            self._client = None
            credential = made_up
        if first.authorization_id not in ("", first.username):
            text = (
                "Authentication failed: Client requested an authorization id that is different from username"
            )
            raise SaslFailure(text, client_message=text)
        if credential.iterations < scram.MIN_ITERATIONS:
            raise SaslFailure(
                f"Iterations {credential.iterations} is less than the minimum {scram.MIN_ITERATIONS}"
            )
        self._credential = credential
        self._nonce = first.nonce + self._own_nonce
        self._server_first = f"r={self._nonce},s={encoded(credential.salt)},i={credential.iterations}"
        return ServerStep(self._server_first.encode())

    def _find_user(self, name: str) -> ScramCredential | None:
        self._client = AuthenticatedClient(KafkaPrincipal(USER_TYPE, name))
        return self._factory.credentials.of_user(self._factory.mechanism, name)

    def _find_token(self, token_id: str) -> ScramCredential | None:
        token = self._factory.credentials.of_token(self._factory.mechanism, token_id)
        if token is None:
            return None
        owner = KafkaPrincipal(token.owner.type, token.owner.name, token_authenticated=True)
        self._client = AuthenticatedClient(owner, token.expires_at_ms)
        return token.credential

    def _on_final(self, message: bytes, first: ClientFirst) -> ServerStep:
        final = parse_client_final(message)
        if final.nonce != self._nonce:
            raise SaslFailure("Invalid client nonce in the final client message.")
        if final.channel_binding != first.gs2_header.encode():
            raise SaslFailure("Invalid channel binding in the final client message.")
        mechanism, credential = self._factory.mechanism, self._credential
        auth_message = f"{first.bare},{self._server_first},{final.unproved}".encode()
        client_signature = scram.signature(mechanism, credential.stored_key, auth_message)
        if len(final.proof) != len(client_signature):
            raise SaslFailure("Invalid client credentials")
        client_key = scram.exclusive_or(client_signature, final.proof)
        is_proved = hmac.compare_digest(scram.stored_key(mechanism, client_key), credential.stored_key)
        if not is_proved or self._client is None:
            raise SaslFailure("Invalid client credentials")
        server_signature = scram.signature(mechanism, credential.server_key, auth_message)
        return ServerStep(f"v={encoded(server_signature)}".encode(), self._client)
