"""The node's listeners and the connections they accept.

Counts connections against `max.connections` and `max.connections.per.ip`, and closes those that have been
idle for `connections.max.idle.ms`. Invariant: `_connections` holds every open connection, `_per_ip` counts
them by address.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from ottla.node.config.listeners import Endpoint
from ottla.node.config.node_config import NodeConfig
from ottla.node.config.rules import parse_ip_overrides
from ottla.node.network.connection import RECEIVE_BYTES, ClientConnection, RequestDispatcher
from ottla.node.network.limits import ClientFaultLog, ConnectionLimits, RequestMemoryPool
from ottla.runtime.network import Network, NetworkListener, SocketOptions, peer_is_done

log = logging.getLogger(__name__)

_SWEEPS_PER_IDLE_TIME: Final = 10
_MAX_SWEEP_SECONDS: Final = 5.0
_MIN_SWEEP_SECONDS: Final = 0.05
_LINGER_SECONDS: Final = 10.0
_GONE_SECONDS: Final = 3.0
_LAST_ANSWERS_SECONDS: Final = 10.0


class SocketServer:
    """Listeners for any number of endpoints; `service_for` gives each endpoint the service behind it."""

    def __init__(
        self,
        network: Network,
        config: NodeConfig,
        service_for: Callable[[Endpoint], RequestDispatcher],
        on_closed: Callable[[ClientConnection], None] | None = None,
    ) -> None:
        self._network = network
        self._service_for = service_for
        self._on_closed = on_closed
        self._listeners: dict[str, NetworkListener] = {}
        self._connections: dict[ClientConnection, None] = {}  # the oldest first
        self._per_ip: Counter[str] = Counter()
        self._receive = memoryview(bytearray(RECEIVE_BYTES))
        self._limits = ConnectionLimits()
        if on_closed is not None:
            # Whoever waits for the end of connections is told at once, also where requests are in work.
            self._limits.max_leaving = 0
        self._complaints = ClientFaultLog()
        self.memory = RequestMemoryPool()
        self._sweeper: asyncio.TimerHandle | None = None
        self._refused = 0
        self.configure(config)

    def configure(self, config: NodeConfig) -> None:
        """Take over settings, at the start and whenever they change."""
        self._limits.max_frame_bytes = config.number("socket.request.max.bytes")
        self._limits.max_in_flight = config.number("queued.max.requests")
        self.memory.limit = config.number("queued.max.request.bytes")
        self._max_connections = config.number("max.connections")
        self._max_per_ip = config.number("max.connections.per.ip")
        self._per_ip_overrides = parse_ip_overrides(config.text("max.connections.per.ip.overrides"))
        self._idle_seconds = config.number("connections.max.idle.ms") / 1000
        self._backlog = config.number("socket.listen.backlog.size")
        # A fixed size turns the system's own tuning off, so only one that was asked for is set.
        self._options = SocketOptions(
            send_buffer_bytes=_if_given(config, "socket.send.buffer.bytes"),
            receive_buffer_bytes=_if_given(config, "socket.receive.buffer.bytes"),
        )

    async def check(self, endpoints: Iterable[Endpoint]) -> None:
        """The OSError of `listen`, if one of the endpoints could not be opened; nobody can connect yet."""
        for endpoint in endpoints:
            await self._network.check_listen(endpoint.host, endpoint.port)

    async def listen(self, endpoints: Iterable[Endpoint]) -> dict[str, Endpoint]:
        """Open the endpoints and return them, by name, with the ports they really have.

        OSError where one cannot be opened; then none stays open.
        """
        opened: dict[str, Endpoint] = {}
        try:
            for endpoint in endpoints:
                listener = await self._network.listen(
                    self._factory(self._service_for(endpoint)),
                    endpoint.host,
                    endpoint.port,
                    backlog=self._backlog,
                    options=self._options,
                )
                self._listeners[endpoint.name] = listener
                opened[endpoint.name] = Endpoint(
                    endpoint.name, endpoint.protocol, endpoint.host, listener.port
                )
        except BaseException:
            await self.stop_listening()
            raise
        if self._sweeper is None:
            self._sweep()
        return opened

    def _factory(self, service: RequestDispatcher) -> Callable[[], ClientConnection]:
        def connect() -> ClientConnection:
            return ClientConnection(
                service,
                self._limits,
                self.memory,
                self._receive,
                self._opened,
                self._closed,
                self._complaints,
            )

        return connect

    @property
    def connections(self) -> int:
        return len(self._connections)

    def _opened(self, connection: ClientConnection) -> bool:
        host = connection.peer[0]
        allowed = self._per_ip_overrides.get(host, self._max_per_ip)
        if len(self._connections) >= self._max_connections:
            self._refuse(connection, f"max.connections is {self._max_connections}")
            return False
        if self._per_ip[host] >= allowed:
            self._refuse(connection, f"its address has {allowed}, as max.connections.per.ip allows")
            return False
        self._per_ip[host] += 1
        self._connections[connection] = None
        return True

    def _refuse(self, connection: ClientConnection, reason: str) -> None:
        # A client that is refused comes back at once, so not every refusal gets a line.
        self._refused += 1
        if self._refused & (self._refused - 1) == 0:
            log.warning(
                "refused a connection from %s: %s (%d refused so far)",
                connection.peer[0],
                reason,
                self._refused,
            )

    def _closed(self, connection: ClientConnection) -> None:
        if connection in self._connections:
            del self._connections[connection]
            host = connection.peer[0]
            self._per_ip[host] -= 1
            if not self._per_ip[host]:
                del self._per_ip[host]
            if self._on_closed is not None:
                self._on_closed(connection)

    def _sweep(self) -> None:
        """Close what has been idle for too long. A connection with requests in work is not idle. One that was
        closed and whose client does not take the rest is cut off; so is one whose client sends no more and
        whose last answers are not ready in time, and one that is not read from, as it has enough in work,
        and whose client is gone: nothing else would tell.
        """
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in list(self._connections):
            silent = now - connection.last_active
            if connection.closed:
                if silent > _LINGER_SECONDS:
                    connection.abort()
            elif connection.leaving:
                if silent > _LAST_ANSWERS_SECONDS:
                    connection.abort()
            elif connection.held_back:
                if silent > _GONE_SECONDS and peer_is_done(connection.transport):
                    connection.abort()
            elif silent > self._idle_seconds and not connection.busy:
                log.debug("closed the idle connection from %s:%d", *connection.peer)
                connection.close()
        delay = min(max(self._idle_seconds / _SWEEPS_PER_IDLE_TIME, _MIN_SWEEP_SECONDS), _MAX_SWEEP_SECONDS)
        self._sweeper = loop.call_later(delay, self._sweep)

    async def stop(self) -> None:
        """Let nobody in any more, and close every connection; responses that are ready still go out."""
        await self.stop_listening()
        for connection in list(self._connections):
            connection.close()

    async def stop_listening(self) -> None:
        for listener in self._listeners.values():
            await listener.close()
        self._listeners.clear()
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None

    def abort_connections(self) -> None:
        for connection in list(self._connections):
            connection.abort()


def _if_given(config: NodeConfig, name: str) -> int:
    return config.number(name) if config.is_set(name) else -1
