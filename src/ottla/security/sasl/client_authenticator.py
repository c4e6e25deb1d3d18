"""The login of a client or a node on its connections to brokers: Kafka's `SaslClientAuthenticator`.

SaslHandshake names the mechanism, then SaslAuthenticate carries its tokens. Where the broker ends sessions,
the connection logs in again before that, and keeps other requests back meanwhile. `AuthenticationFailed` says
what to change; it is not retriable, as the same login would fail again.
"""

from __future__ import annotations

import asyncio
from typing import Final

from ottla.protocol.errors import ErrorCode, KafkaError, UnsupportedVersion
from ottla.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from ottla.rpc.connection import BrokerConnection
from ottla.rpc.errors import AuthenticationFailed, ConnectionFailed, ConnectionLost
from ottla.runtime.random import Random
from ottla.security.sasl.mechanism import SaslClientFactory, SaslFailure

_MAX_TOKENS: Final = 16
_HANDSHAKE_VERSION: Final = 1
# As Kafka's clients do it: after 85 % to 95 % of a session it is renewed.
_RENEW_AFTER: Final = 0.85
_RENEW_JITTER: Final = 0.10


class SaslLogin:
    """Logs in on any number of connections with one mechanism."""

    def __init__(self, factory: SaslClientFactory, random: Random) -> None:
        self._factory: Final = factory
        self._random: Final = random

    async def authenticate(self, connection: BrokerConnection, *, timeout_ms: int) -> None:
        """Log in, and see to it that the session is renewed. AuthenticationFailed says why that cannot be."""
        lifetime_ms = await self._log_in(connection, timeout_ms)
        if lifetime_ms > 0:
            share = _RENEW_AFTER + _RENEW_JITTER * self._random.random()
            connection.log_in_again_after(
                lifetime_ms * share / 1000, lambda: self.authenticate(connection, timeout_ms=timeout_ms)
            )

    async def _log_in(self, connection: BrokerConnection, timeout_ms: int) -> int:
        """Log in, and return the milliseconds that the session lasts; 0 if it does not end."""
        address, mechanism = connection.address, self._factory.mechanism
        try:
            client = await asyncio.wait_for(self._factory.create(address.host), timeout_ms / 1000)
            await self._shake_hands(connection, timeout_ms)
            token: bytes | None = client.initial_response()
            for _ in range(_MAX_TOKENS):
                assert token is not None
                answer = await self._send_token(connection, token, timeout_ms)
                token = client.evaluate_challenge(answer.auth_bytes)
                if token is None:
                    return answer.session_lifetime_ms
        except SaslFailure as failure:
            kind = ConnectionFailed if failure.is_temporary else AuthenticationFailed
            raise kind(f"{address}: SASL {mechanism} failed: {failure}") from None
        except TimeoutError:
            raise ConnectionFailed(
                f"{address}: SASL {mechanism} failed: there are no credentials within {timeout_ms} ms"
            ) from None
        except ConnectionLost as error:
            raise ConnectionLost(f"{error.message} during the login with SASL {mechanism}") from None
        raise AuthenticationFailed(f"{address}: SASL {mechanism} does not come to an end")

    async def _shake_hands(self, connection: BrokerConnection, timeout_ms: int) -> None:
        mechanism, address = self._factory.mechanism, connection.address
        try:
            response = await connection.send_for_login(
                SaslHandshakeRequest(mechanism=mechanism),
                SaslHandshakeResponse,
                timeout_ms=timeout_ms,
                version=_HANDSHAKE_VERSION,
            )
        except UnsupportedVersion as error:
            raise AuthenticationFailed(f"{address}: the broker has no SASL: {error.message}") from None
        code = ErrorCode.of(response.error_code)
        if code is ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            offered = ", ".join(response.mechanisms) or "none"
            raise AuthenticationFailed(
                f"{address}: the broker does not offer the SASL mechanism {mechanism}; it offers: {offered} "
                "(see sasl.mechanism)"
            )
        if code is ErrorCode.ILLEGAL_SASL_STATE:
            raise AuthenticationFailed(
                f"{address}: the broker expects no login there; is it a listener without SASL? "
                "(see security.protocol)"
            )
        if code is not ErrorCode.NONE:
            raise KafkaError(code, f"{address}: SASL {mechanism}: {code.text}")

    async def _send_token(
        self, connection: BrokerConnection, token: bytes, timeout_ms: int
    ) -> SaslAuthenticateResponse:
        response = await connection.send_for_login(
            SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse, timeout_ms=timeout_ms
        )
        if response.error_code:
            code = ErrorCode.of(response.error_code)
            raise SaslFailure(response.error_message or code.text)
        return response
