"""Delegation tokens as SCRAM sees them: the id of a token is a user's name, its HMAC in base64 the password.

Making a credential costs as much as a login, so those in use are kept, within a bound.
"""

from __future__ import annotations

import base64
import hmac
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from ottla.metadata.controller.delegation_tokens import is_expired, token_hmac
from ottla.metadata.controller.scram import scram_credential
from ottla.metadata.image.entities import DelegationToken, ScramCredential
from ottla.protocol import scram
from ottla.protocol.scram import ScramMechanism
from ottla.runtime.clock import Clock
from ottla.security.principal import KafkaPrincipal
from ottla.security.sasl.scram_server import TokenCredential
from ottla.security.secret import Secret

_MAX_KEPT: Final = 1_000


class TokenCredentials:
    def __init__(self, secret_key: Secret, clock: Clock) -> None:
        self._secret_key: Final = secret_key
        self._clock: Final = clock
        # The ones that were used last at the end.
        self._kept: OrderedDict[tuple[ScramMechanism, str], ScramCredential] = OrderedDict()

    def find(
        self, tokens: Mapping[str, DelegationToken], mechanism: ScramMechanism, token_id: str
    ) -> TokenCredential | None:
        """The credential of a token that is valid now, or None."""
        token = tokens.get(token_id)
        if token is None or is_expired(token, self._clock.wall_ms()):
            return None
        credential = self._credential(mechanism, token_id)
        return TokenCredential(credential, KafkaPrincipal.parse(token.owner), token.expiration_timestamp)

    def _credential(self, mechanism: ScramMechanism, token_id: str) -> ScramCredential:
        key = mechanism, token_id
        kept = self._kept.get(key)
        if kept is None:
            secret_key = self._secret_key.reveal().encode()
            password = base64.b64encode(token_hmac(secret_key, token_id)).decode()
            noise = hmac.digest(secret_key, f"salt {mechanism.name} {token_id}".encode(), "sha256")
            salt = scram.salt_of(noise)
            salted = scram.salted_password(mechanism, password, salt, scram.MIN_ITERATIONS)
            kept = self._kept[key] = scram_credential(mechanism, salt, salted, scram.MIN_ITERATIONS)
            if len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return kept
