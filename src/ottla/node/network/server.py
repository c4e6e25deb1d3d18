"""The listeners of a node and the connections they accept.

A connection on which nothing has moved for `connections.max.idle.ms`, in either direction, is closed, also if
its client does not read a response or does not send the rest of a request; one that waits for the node's
response is not idle. Invariant: `_connections` holds every open connection, the oldest first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from heapq import nsmallest
from typing import TYPE_CHECKING, Final, Protocol

from ottla.metadata.image.entities import QuotaEntity
from ottla.node.config.listeners import Endpoint
from ottla.node.config.node_config import NodeConfig
from ottla.node.network.connection import (
    RECEIVE_BYTES,
    ClientConnection,
    ClientFaultLog,
    ConnectionLimits,
    RequestDispatcher,
)
from ottla.node.network.connection_quotas import ConnectionQuotas, ListenerQuota
from ottla.node.network.memory_budget import MemoryBudget
from ottla.node.network.request_statistics import NetworkStatistics
from ottla.protocol.client_quotas import CONNECTION_CREATION_RATE, IP
from ottla.runtime import process
from ottla.runtime.address import Address
from ottla.runtime.network import Network, NetworkListener, SocketOptions, TlsContext, peer_is_done
from ottla.runtime.tls import TlsAcceptor
from ottla.security.principal import KafkaPrincipal

if TYPE_CHECKING:
    from ottla.node.network.login import SaslListener

log = logging.getLogger(__name__)

_SWEEPS_PER_IDLE_TIME: Final = 10
_MAX_SWEEP_SECONDS: Final = 5.0
_MIN_SWEEP_SECONDS: Final = 0.05
_LINGER_SECONDS: Final = 10.0
_GONE_SECONDS: Final = 3.0
_LAST_RESPONSES_SECONDS: Final = 10.0


class ListenerTls(Protocol):
    """The TLS of a listener."""

    def context(self) -> TlsContext:
        """The context for the next connection."""
        ...

    def principal(self, transport: asyncio.BaseTransport) -> KafkaPrincipal:
        """The client, by its certificate. ValueError if no rule makes a user of it."""
        ...


class _Acceptor:
    """The TLS of a listener; each failed handshake gets a line in the log, within bounds."""

    __slots__ = ("_fault_log", "context")

    def __init__(self, context: Callable[[], TlsContext], fault_log: ClientFaultLog) -> None:
        self.context: Final = context
        self._fault_log: Final = fault_log

    def on_handshake_failed(self, peer: Address, reason: str) -> None:
        self._fault_log.log_closed(
            (peer.host, peer.port), f"SSL handshake failed: {reason}", asyncio.get_running_loop().time()
        )


class SocketServer:
    """Listeners for any number of endpoints; `dispatcher_for` gives what answers the requests of each."""

    def __init__(
        self,
        network: Network,
        config: NodeConfig,
        dispatcher_for: Callable[[Endpoint], RequestDispatcher],
        on_closed: Callable[[ClientConnection], None] | None = None,
        memory: MemoryBudget | None = None,
        tls_for: Callable[[Endpoint], ListenerTls | None] = lambda _: None,
        login_for: Callable[[Endpoint], SaslListener | None] = lambda _: None,
        statistics: NetworkStatistics | None = None,
    ) -> None:
        """`memory` is the budget of a node's other server, if there is one; `tls_for` gives the TLS of an
        endpoint, if that is not in plain text; `login_for` gives what an endpoint asks of clients before it
        serves them; `statistics` counts and times requests.
        """
        self._network = network
        self._statistics: Final = NetworkStatistics(None) if statistics is None else statistics
        self._dispatcher_for = dispatcher_for
        self._login_for = login_for
        self._on_closed = on_closed
        self._tls_for = tls_for
        self._listeners: dict[str, NetworkListener] = {}
        self._connections: dict[ClientConnection, None] = {}
        self._inter_broker_listener = config.inter_broker_listener
        self._of_controller = frozenset(config.controller_listener_names)
        self._quotas = ConnectionQuotas(
            config, self._inter_broker_listener, lambda: asyncio.get_running_loop().time()
        )
        self._receive = memoryview(bytearray(RECEIVE_BYTES))
        self._limits = ConnectionLimits()
        self._limits.max_logging_in = min(self._limits.max_logging_in, process.open_file_limit() // 4)
        if on_closed is not None:
            # `on_closed` is called at once, also while requests are in progress.
            self._limits.max_half_closed = 0
        self._fault_log = ClientFaultLog()
        self.memory: Final = memory if memory is not None else MemoryBudget()
        self._sweeper: asyncio.TimerHandle | None = None
        self.configure(config)

    def configure(self, config: NodeConfig) -> None:
        """Apply the settings, at the start and after each change."""
        self._limits.max_frame_bytes = config.number("socket.request.max.bytes")
        self._limits.max_in_flight = config.number("queued.max.requests")
        self.memory.configure(
            config.number("connections.memory.max.bytes"), config.number("queued.max.request.bytes")
        )
        self._quotas.configure(config)
        self._close_excess()
        self._idle_seconds = config.number("connections.max.idle.ms") / 1000
        self._backlog = config.number("socket.listen.backlog.size")
        # A fixed size turns the system's own tuning off, so only one that was asked for is set.
        self._options = SocketOptions(
            send_buffer_bytes=_if_given(config, "socket.send.buffer.bytes"),
            receive_buffer_bytes=_if_given(config, "socket.receive.buffer.bytes"),
        )

    def update_ip_quotas(
        self, quotas: Mapping[QuotaEntity, Mapping[str, float]], changed: Iterable[QuotaEntity]
    ) -> None:
        """Take up the quotas of addresses among the entities that have changed."""
        for entity in changed:
            for type, name in entity:
                if type == IP:
                    limit = quotas.get(entity, {}).get(CONNECTION_CREATION_RATE)
                    self._quotas.update_ip_quota(name, limit)

    async def listen(self, endpoints: Iterable[Endpoint]) -> dict[str, Endpoint]:
        """Open the endpoints and return them, by name, with the ports they really have.

        OSError if one cannot be opened; then none stays open.
        """
        opened: dict[str, Endpoint] = {}
        try:
            for endpoint in endpoints:
                quota = self._quotas.listener(endpoint.name)
                tls = self._tls_for(endpoint)
                listener = await self._network.listen(
                    self._factory(self._dispatcher_for(endpoint), self._login_for(endpoint), quota, tls),
                    endpoint.host,
                    endpoint.port,
                    backlog=self._backlog,
                    options=self._options,
                    gate=quota,
                    tls=self._acceptor(tls),
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

    def _factory(
        self,
        dispatcher: RequestDispatcher,
        login: SaslListener | None,
        listener: ListenerQuota,
        tls: ListenerTls | None,
    ) -> Callable[[], ClientConnection]:
        def connect(dispatcher: RequestDispatcher = dispatcher) -> ClientConnection:
            return ClientConnection(
                dispatcher,
                self._limits,
                self.memory,
                self._receive,
                self._add,
                self._remove,
                self._fault_log,
                listener=listener.name,
                is_inter_broker=listener.name in self._of_controller
                or self._quotas.is_protected(listener.name),
                principal_of=None if tls is None else tls.principal,
                now_ns=self._statistics.now_ns,
            )

        def connect_to_log_in() -> ClientConnection:
            assert login is not None
            gate = login.gate(dispatcher)
            connection = connect(gate)
            gate.begin(connection)
            return connection

        return connect if login is None else connect_to_log_in

    def _acceptor(self, tls: ListenerTls | None) -> TlsAcceptor | None:
        return None if tls is None else _Acceptor(tls.context, self._fault_log)

    @property
    def connections(self) -> int:
        return len(self._connections)

    @property
    def requests_in_progress(self) -> int:
        """Requests that have been started and not answered."""
        return self._limits.in_progress

    @property
    def closed_for_faults(self) -> int:
        """Connections that were closed for a fault of their client, so far."""
        return self._fault_log.closed

    def connections_by_listener(self) -> dict[str, int]:
        return self._quotas.connections_by_listener()

    def _add(self, connection: ClientConnection) -> bool:
        self._connections[connection] = None
        self._statistics.listener(connection.listener).accepted += 1
        self._close_excess()
        return True

    def _remove(self, connection: ClientConnection) -> None:
        if connection in self._connections:
            del self._connections[connection]
            self._quotas.remove(self._quotas.listener(connection.listener), connection.peer[0])
            if self._on_closed is not None:
                self._on_closed(connection)

    def _close_excess(self) -> None:
        """Close the least recently used connections that the limit for all leaves no room for: brokers have
        connected, or it is lower now.
        """
        excess = self._quotas.excess
        if not excess:
            return
        candidates = [
            each
            for each in self._connections
            if not each.closed and not self._quotas.is_protected(each.listener)
        ]
        closing = len(self._connections) - sum(not each.closed for each in self._connections)
        for connection in nsmallest(excess - closing, candidates, key=lambda each: each.last_active):
            log.debug("closed the connection from %s:%d for one of a broker", *connection.peer)
            connection.close()

    def _sweep(self) -> None:
        """Close connections that have been idle for too long.
        Abort a closed one whose client does not take the rest, a half-closed one whose last responses are not
        ready in time, and one that is not read from, as it has enough in progress, and whose client is gone:
        nothing else would find out.
        """
        loop = asyncio.get_running_loop()
        delay = min(max(self._idle_seconds / _SWEEPS_PER_IDLE_TIME, _MIN_SWEEP_SECONDS), _MAX_SWEEP_SECONDS)
        self._sweeper = loop.call_later(delay, self._sweep)  # first, so that no error ends the sweeps
        now = loop.time()
        for connection in list(self._connections):
            silent = now - connection.last_active
            if connection.closed:
                if silent > _LINGER_SECONDS:
                    connection.abort()
            elif connection.half_closed:
                if silent > _LAST_RESPONSES_SECONDS:
                    connection.abort()
            elif (
                silent > _GONE_SECONDS and connection.is_reading_paused and peer_is_done(connection.transport)
            ):
                connection.abort()
            elif connection.login_deadline is not None and now > connection.login_deadline:
                connection.abort_because("it did not log in in time")
            elif silent > self._idle_seconds and not connection.waits_for_node:
                log.debug("closed the idle connection from %s:%d", *connection.peer)
                if connection.transport.get_write_buffer_size():
                    connection.abort()
                else:
                    connection.close()

    async def stop(self) -> None:
        """Accept no more connections, and close every open one; responses that are ready still go out."""
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
