"""The login of clients on SASL listeners: what answers a connection's requests until its client is known.

`SaslGate` stands where the listener's dispatcher will be. It gives frames to a `SaslServerAuthenticator` and
puts the dispatcher in its own place once the client is known, so that a logged-in client's requests pass no
further check. Only where a session ends at some time the gate stays: it then lets requests through until the
end of the session, and the client's new login. A login that fails is answered, and its connection closed,
after `connection.failed.authentication.delay.ms`, which slows down guesses of passwords.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Mapping
from typing import Final

from ottla.node.config.definitions.config_def import ConfigError
from ottla.node.config.errors import NodeFailed
from ottla.node.config.node_config import NodeConfig
from ottla.node.config.sasl import server_mechanisms
from ottla.node.network.connection import (
    ClientConnection,
    Parts,
    PendingRequest,
    ProtocolViolation,
    RequestDispatcher,
)
from ottla.protocol.api import SASL_HANDSHAKE
from ottla.runtime.clock import Clock
from ottla.runtime.runtime import Runtime
from ottla.runtime.tasks import TaskSupervisor
from ottla.security.sasl.registry import SaslEnvironment
from ottla.security.sasl.scram_server import ScramCredentials
from ottla.security.sasl.server_authenticator import (
    SaslReply,
    SaslServerAuthenticator,
    SaslSession,
    ServerMechanism,
)

_HANDSHAKE: Final = struct.pack(">h", SASL_HANDSHAKE)
# How long a client may take to log in. Kafka would wait for connections.max.idle.ms.
_LOGIN_SECONDS: Final = 60.0
# A client that tries to log in again sooner gets an error, as in Kafka.
_MIN_REAUTH_MS: Final = 1_000.0


def sasl_listeners(
    config: NodeConfig,
    runtime: Runtime,
    scram: ScramCredentials,
    tasks: TaskSupervisor,
    *,
    opened: asyncio.Event,
    opened_to_nodes: asyncio.Event,
) -> dict[str, SaslListener]:
    """Make the logins of a node's SASL listeners, by the listeners' names. NodeFailed names a setting that
    cannot be used. Listeners of controllers are open sooner than others.
    """
    environment = SaslEnvironment(runtime, scram, tasks.start)
    logins: dict[str, SaslListener] = {}
    for endpoint in config.listeners:
        if endpoint.protocol.sasl:
            try:
                mechanisms = server_mechanisms(config, endpoint.name, environment)
            except ConfigError as error:
                raise NodeFailed(str(error)) from None
            of_controller = endpoint.name in config.controller_listener_names
            logins[endpoint.name] = SaslListener(
                mechanisms,
                runtime.clock,
                max_frame_bytes=config.number("sasl.server.max.receive.size"),
                failure_delay_ms=config.number("connection.failed.authentication.delay.ms"),
                opened=opened_to_nodes if of_controller else opened,
            )
    return logins


class SaslListener:
    """What the gates of one listener share."""

    def __init__(
        self,
        mechanisms: Mapping[str, ServerMechanism],
        clock: Clock,
        *,
        max_frame_bytes: int,
        failure_delay_ms: int,
        opened: asyncio.Event,
    ) -> None:
        """Logins that come before `opened` is set wait for it: the credentials may not have been read."""
        self.mechanisms: Final = mechanisms
        self.clock: Final = clock
        self.max_frame_bytes: Final = max_frame_bytes
        self.failure_delay_seconds: Final = failure_delay_ms / 1000
        self.opened: Final = opened
        self.logins = 0
        self.failed_logins = 0

    def gate(self, dispatcher: RequestDispatcher) -> SaslGate:
        return SaslGate(self, dispatcher)


class SaslGate:
    """Answers the requests of one connection until its client is known, and again when its session ends.
    `_authenticator` is None while the client is known.
    """

    __slots__ = ("_authenticator", "_dispatcher", "_has_failed", "_last_reauth_ms", "_listener", "_session")

    def __init__(self, listener: SaslListener, dispatcher: RequestDispatcher) -> None:
        self._listener: Final = listener
        self._dispatcher: Final = dispatcher
        self._authenticator: SaslServerAuthenticator | None = SaslServerAuthenticator(listener.mechanisms)
        self._session: SaslSession | None = None
        self._last_reauth_ms: float | None = None
        self._has_failed = False

    def begin(self, connection: ClientConnection) -> None:
        """Take charge of a connection. A client has some time to log in."""
        deadline = asyncio.get_running_loop().time() + _LOGIN_SECONDS
        connection.begin_login(self._listener, deadline)

    @property
    def lane(self) -> None:
        """Whether the session is still good is looked at for each request."""

    def start(self, pending: PendingRequest, frame: memoryview) -> Parts | Awaitable[Parts | None] | None:
        if self._has_failed:
            return None
        if self._authenticator is None:
            now_ms = self._now_ms()
            if frame[:2] != _HANDSHAKE or not self._begin_reauth(pending.connection, now_ms):
                self._check_session(now_ms)
                return self._dispatcher.start(pending, frame)
        if not self._listener.opened.is_set():
            return self._start_when_opened(pending, frame)
        return self._take(pending, frame)

    async def _start_when_opened(self, pending: PendingRequest, frame: memoryview) -> Parts | None:
        await self._listener.opened.wait()
        reply = self.start(pending, frame)
        return reply if reply is None or isinstance(reply, list) else await reply

    def _take(self, pending: PendingRequest, frame: memoryview) -> Parts | Awaitable[Parts | None] | None:
        assert self._authenticator is not None
        reply = self._authenticator.on_frame(
            frame, wall_ms=self._listener.clock.wall_ms(), monotonic_ms=self._now_ms()
        )
        if reply.is_api_versions:
            return self._dispatcher.start(pending, frame)
        if reply.failure is not None:
            self._has_failed = True
            self._listener.failed_logins += 1
            return self._close_later(pending, reply)
        if reply.session is not None:
            self._on_login(pending.connection, reply.session)
        return reply.parts

    def _on_login(self, connection: ClientConnection, session: SaslSession) -> None:
        self._authenticator = None
        self._session = session
        self._listener.logins += 1
        ends = session.expires_at is not None
        connection.on_login(session.principal, self if ends else self._dispatcher)

    def _begin_reauth(self, connection: ClientConnection, now_ms: float) -> bool:
        """Begin to renew the session, unless it does not end or the client has just renewed it."""
        if self._session is None or self._session.expires_at is None:
            return False
        if self._last_reauth_ms is not None and now_ms - self._last_reauth_ms < _MIN_REAUTH_MS:
            return False
        self._last_reauth_ms = now_ms
        self._authenticator = SaslServerAuthenticator(self._listener.mechanisms, self._session)
        self.begin(connection)
        return True

    def _check_session(self, now_ms: float) -> None:
        session = self._session
        assert session is not None, "a client is known by its session"
        if session.expires_at is not None and now_ms > session.expires_at:
            raise ProtocolViolation(
                f"the session of {session.principal} has ended, and it did not authenticate again"
            )

    async def _close_later(self, pending: PendingRequest, reply: SaslReply) -> Parts | None:
        await asyncio.sleep(self._listener.failure_delay_seconds)
        await pending.wait_for_turn()
        reason = f"it failed to authenticate: {reply.failure}"
        pending.connection.close_with(reply.parts or [], reason)
        return None

    def _now_ms(self) -> float:
        return self._listener.clock.monotonic_ns() / 1e6
