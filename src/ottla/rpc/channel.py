"""A broker as clients and other nodes see it: connections that are made when they are first needed, and made
again when they broke.

A broker answers each connection in order, so requests that it may hold for long (fetches, joins of a group)
have a connection of their own, a `Lane`, and other requests do not queue behind them. `BrokerChannel` has the
lanes of one address and raises `ClientFailure`; clients use it as it is. `InterNodeClient` is what one
component of a node asks other nodes with: it bounds every request by a timeout and raises `OSError`, as a
socket would. Invariant: at most one connection, or one attempt at one, for each address and lane; callers
that need it meanwhile wait for the same one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from ottla.protocol.api import FETCH, FETCH_SNAPSHOT
from ottla.protocol.errors import KafkaError, MalformedMessage
from ottla.protocol.messages.api_versions import ApiVersionsResponse
from ottla.protocol.schema import Request, Response
from ottla.rpc.backoff import ExponentialBackoff
from ottla.rpc.connection import (
    BUFFER_BYTES,
    MAX_RESPONSE_BYTES,
    NEVER,
    PLAINTEXT,
    BrokerConnection,
    ConnectionSecurity,
    ExpectedNode,
)
from ottla.rpc.connection_statistics import ConnectionStatistics
from ottla.rpc.errors import ClientFailure, RequestTimedOut, os_error
from ottla.runtime.address import Address
from ottla.runtime.network import DEFAULT_OPTIONS, Network, SocketOptions

_PEER_MAX_RESPONSE_BYTES: Final = 128 * 1024 * 1024
# A node has many connections to its peers, and most of their responses are small.
_PEER_BUFFER_BYTES: Final = 16 * 1024
# Requests in flight on one connection to a peer; a peer that lets more pile up is not healthy.
_PEER_MAX_IN_FLIGHT: Final = 100
_LONG_POLLS: Final = frozenset((FETCH, FETCH_SNAPSHOT))


class Lane(Enum):
    """Requests that share a connection. Behind one that the broker holds, a commit or a metadata request
    would wait too.
    """

    COMMON = "common"
    FETCH = "fetch"
    GROUP = "group"


@dataclass(frozen=True, slots=True)
class ChannelConfig:
    """The settings of a channel's connections."""

    client_id: str | None
    max_idle_ms: int = NEVER
    max_response_bytes: int = MAX_RESPONSE_BYTES
    buffer_bytes: int = BUFFER_BYTES
    # Whether memory of large responses is kept for the next ones: faster for consumers, dearer for a node.
    recycles_frames: bool = True
    options: SocketOptions = DEFAULT_OPTIONS
    security: ConnectionSecurity = PLAINTEXT


class _LaneState:
    """A lane's connection, or the attempt at one."""

    __slots__ = ("attempt", "backoff", "connection", "retry_at")

    def __init__(self, backoff: ExponentialBackoff | None) -> None:
        self.connection: BrokerConnection | None = None
        self.attempt: asyncio.Task[BrokerConnection] | None = None
        self.backoff = backoff
        self.retry_at = 0.0  # the loop time before which no attempt is made


class BrokerChannel:
    """The connections to one address. With `new_backoff`, an address that cannot be reached is left alone for
    a growing time, so that a dead one costs little.
    """

    def __init__(
        self,
        network: Network,
        address: Address,
        config: ChannelConfig,
        new_backoff: Callable[[], ExponentialBackoff] | None = None,
        statistics: ConnectionStatistics | None = None,
    ) -> None:
        self.address: Final = address
        self.statistics: Final = statistics
        self._network: Final = network
        self._config: Final = config
        self._new_backoff: Final = new_backoff
        self._lanes: dict[Lane, _LaneState] = {}

    @property
    def is_connected(self) -> bool:
        return any(lane.connection is not None and lane.connection.is_open for lane in self._lanes.values())

    def open_connection(self, lane: Lane = Lane.COMMON) -> BrokerConnection | None:
        """Return the lane's connection if it is open right now."""
        state = self._lanes.get(lane)
        if state is None or state.connection is None or not state.connection.is_open:
            return None
        return state.connection

    async def connection(
        self, lane: Lane = Lane.COMMON, *, timeout_ms: int, expected: ExpectedNode | None = None
    ) -> BrokerConnection:
        """Return the lane's connection; make it if there is none, or wait for the attempt under way. A new
        one is checked to be to the `expected` node.
        """
        state = self._lanes.get(lane)
        if state is None:
            backoff = None if self._new_backoff is None else self._new_backoff()
            state = self._lanes[lane] = _LaneState(backoff)
        if state.connection is not None and state.connection.is_open:
            return state.connection
        if state.attempt is None:
            state.attempt = asyncio.get_running_loop().create_task(
                self._connect(state, timeout_ms, expected), name=f"connect {self.address}"
            )
            state.attempt.add_done_callback(_mark_retrieved)
        shared = asyncio.shield(state.attempt)
        shared.add_done_callback(_mark_retrieved)  # the caller may be cancelled before it fails
        try:
            return await shared
        finally:
            del shared  # its error refers to this frame

    async def _connect(
        self, state: _LaneState, timeout_ms: int, expected: ExpectedNode | None
    ) -> BrokerConnection:
        loop = asyncio.get_running_loop()
        config = self._config
        try:
            if state.retry_at > loop.time():
                await asyncio.sleep(state.retry_at - loop.time())
            state.connection = await BrokerConnection.open(
                self._network,
                self.address,
                client_id=config.client_id,
                timeout_ms=timeout_ms,
                max_idle_ms=config.max_idle_ms,
                max_response_bytes=config.max_response_bytes,
                buffer_bytes=config.buffer_bytes,
                recycles_frames=config.recycles_frames,
                options=config.options,
                security=config.security,
                statistics=self.statistics,
                expected=expected,
            )
            if state.backoff is not None:
                state.backoff.reset()
            return state.connection
        except KafkaError:
            if state.backoff is not None:
                state.retry_at = loop.time() + state.backoff.next_ms() / 1000
            raise
        finally:
            state.attempt = None

    def abort(self) -> list[asyncio.Task[BrokerConnection]]:
        """End all connections, and cancel the attempts at others, which are returned."""
        states = list(self._lanes.values())
        self._lanes.clear()
        attempts = [state.attempt for state in states if state.attempt is not None]
        for attempt in attempts:
            attempt.cancel()
        for state in states:
            if state.connection is not None:
                state.connection.abort()
        return attempts

    async def close(self) -> None:
        """End all connections, and wait until their transports are closed."""
        connections = [state.connection for state in self._lanes.values() if state.connection is not None]
        await asyncio.gather(*self.abort(), return_exceptions=True)
        for connection in connections:
            await connection.close()


class InterNodeClient:
    """The channels of one component of a node to other nodes, by address. What one component waits for does
    not hold up another that has channels of its own.
    """

    def __init__(
        self,
        network: Network,
        client_id: str = "ottla-quorum",
        security: ConnectionSecurity = PLAINTEXT,
    ) -> None:
        self._network: Final = network
        self._config: Final = ChannelConfig(
            client_id,
            max_response_bytes=_PEER_MAX_RESPONSE_BYTES,
            buffer_bytes=_PEER_BUFFER_BYTES,
            recycles_frames=False,
            security=security,
        )
        self._channels: dict[Address, BrokerChannel] = {}
        self._closed = False

    async def request(
        self, address: Address, request: Request, newest_version: int, *, timeout_ms: int
    ) -> Response:
        """Send a request in the newest version that both sides speak, up to `newest_version`, and return the
        response. OSError (TimeoutError, ConnectionRefusedError) if the node cannot be reached or does not
        answer in time, which also drops its connections; KafkaError if it does not speak the API.
        """
        lane = Lane.FETCH if request.API_KEY in _LONG_POLLS else Lane.COMMON
        channel = self._channel(address)
        connection = channel.open_connection(lane)
        if connection is None:
            connection, timeout_ms = await self._connect(channel, lane, timeout_ms)
        assert connection.versions is not None, f"{address}: open before its versions are known"
        version = connection.versions.best(request.API_KEY, at_most=newest_version, unstable=True)
        if connection.in_flight >= _PEER_MAX_IN_FLIGHT:
            connection.abort()
            raise ConnectionError(f"{address}: {_PEER_MAX_IN_FLIGHT} requests wait for a response")
        try:
            return await connection.send(request, Response, timeout_ms=timeout_ms, version=version)
        except RequestTimedOut as error:
            self._discard(channel)
            raise os_error(error) from None
        except (ClientFailure, MalformedMessage) as error:
            raise os_error(error) from None

    async def api_versions(self, address: Address, *, timeout_ms: int) -> ApiVersionsResponse:
        """Ask a node, also one that is connected, for its versions and features. OSError as in `request`."""
        channel = self._channel(address)
        connection, timeout_ms = await self._connect(channel, Lane.COMMON, timeout_ms)
        try:
            return await connection.api_versions(timeout_ms=timeout_ms)
        except KafkaError as error:
            if isinstance(error, RequestTimedOut):
                self._discard(channel)
            raise os_error(error) from None

    def _channel(self, address: Address) -> BrokerChannel:
        channel = self._channels.get(address)
        if channel is None:
            if self._closed:
                raise ConnectionAbortedError("this node is closing")
            channel = self._channels[address] = BrokerChannel(self._network, address, self._config)
        return channel

    async def _connect(
        self, channel: BrokerChannel, lane: Lane, timeout_ms: int
    ) -> tuple[BrokerConnection, int]:
        """Return the connection, and how much of the timeout is left."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        try:
            async with asyncio.timeout_at(deadline):
                connection = await channel.connection(lane, timeout_ms=timeout_ms)
        except TimeoutError:
            self._discard(channel)
            raise
        except KafkaError as error:
            if isinstance(os_error(error), TimeoutError):
                self._discard(channel)
            raise os_error(error) from None
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and not current.cancelling():  # it was the attempt that was cancelled
                raise ConnectionAbortedError(f"{channel.address}: the connection was dropped") from None
            raise
        return connection, max(int((deadline - loop.time()) * 1000), 1)

    def _discard(self, channel: BrokerChannel) -> None:
        """Drop a channel that timed out, unless another one has taken its place."""
        if self._channels.get(channel.address) is channel:
            self.drop(channel.address)

    def drop(self, address: Address) -> None:
        """End the connections to a node: the next request makes new ones, which may get through."""
        channel = self._channels.pop(address, None)
        if channel is not None:
            channel.abort()

    def drop_all(self) -> None:
        """End all connections; every request under way fails with an OSError."""
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.abort()

    def close(self) -> None:
        self._closed = True
        self.drop_all()


def _mark_retrieved(task: asyncio.Future[Any]) -> None:
    """The callers may all be gone, and then the failure is not worth a warning."""
    if not task.cancelled():
        task.exception()
