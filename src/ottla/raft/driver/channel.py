"""Connections to the other nodes of a quorum, made when they are first needed and again when they broke.

A connection begins with ApiVersions, so each request goes out in the newest version that both sides speak.
Answers come in the order of the requests; since a fetch may wait at the leader for something new, fetches
have a connection of their own, and a vote does not queue behind them. Invariant: a request is answered,
refused with an OSError, or gone with its connection; it never waits for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol, TypeVar, cast

from ottla.protocol.api import API
from ottla.protocol.errors import ErrorCode, KafkaError, UnsupportedVersion
from ottla.protocol.headers import SIZE, read_response, request_parts
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.fetch import FetchRequest
from ottla.protocol.messages.fetch_snapshot import FetchSnapshotRequest
from ottla.protocol.schema import Request, Response
from ottla.runtime.address import Address

_MAX_FRAME_BYTES: Final = 128 * 1024 * 1024
# Requests on one connection that wait for their answers; a peer that lets more pile up is not well.
_MAX_WAITING: Final = 100
_UNSUPPORTED: Final = int(ErrorCode.UNSUPPORTED_VERSION).to_bytes(2, "big")
_LONG_REQUESTS: Final = (FetchRequest, FetchSnapshotRequest)


class _Connection(asyncio.Protocol):
    def __init__(self, client_id: str) -> None:
        self._client_id: Final = client_id
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._waiting: dict[int, tuple[Request, int, asyncio.Future[Response]]] = {}
        self._number = 0
        self._lost: Exception | None = None
        self.versions: dict[int, tuple[int, int]] = {}
        self.api_versions: ApiVersionsResponse | None = None

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        position = 0
        while len(self._received) - position >= SIZE.size:
            (size,) = SIZE.unpack_from(self._received, position)
            if not 0 <= size <= _MAX_FRAME_BYTES:
                self._break(ConnectionError(f"a frame of {size} bytes"))
                return
            end = position + SIZE.size + size
            if len(self._received) < end:
                break
            self._answer(bytes(self._received[position + SIZE.size : end]))
            position = end
        del self._received[:position]

    def connection_lost(self, error: Exception | None) -> None:
        self._break(error or ConnectionResetError("the peer closed the connection"))

    # Requests

    @property
    def is_usable(self) -> bool:
        return self._lost is None

    async def ask(self, request: Request, version: int) -> Response:
        if self._lost is not None or self._transport is None:
            raise ConnectionResetError(f"the connection is lost: {self._lost}")
        if len(self._waiting) >= _MAX_WAITING:
            error = ConnectionError(f"{len(self._waiting)} requests wait for an answer")
            self._break(error)
            raise error
        self._number = number = (self._number + 1) & 0x7FFF_FFFF
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._waiting[number] = (request, version, answer)
        self._transport.writelines(request_parts(version, number, self._client_id, request))
        return await answer

    def _answer(self, frame: bytes) -> None:
        try:
            number = int.from_bytes(frame[:4], "big", signed=True)
            request, version, answer = self._waiting.pop(number)
            if isinstance(request, ApiVersionsRequest) and frame[4:6] == _UNSUPPORTED:
                version = 0  # in which a server refuses one that it does not know
            _, response = read_response(API[request.API_KEY], version, frame)
        except (KeyError, KafkaError) as error:
            self._break(ConnectionError(f"an answer that makes no sense: {error!r}"))
            return
        if not answer.done():
            answer.set_result(response)

    def _break(self, error: Exception) -> None:
        if self._lost is not None:
            return
        self._lost = error
        if self._transport is not None:
            self._transport.abort()
        waiting, self._waiting = self._waiting, {}
        for _, _, answer in waiting.values():
            if not answer.done():
                answer.set_exception(ConnectionResetError(str(error)))
                answer.exception()  # seen, also where nobody waits any more

    def close(self) -> None:
        self._break(ConnectionAbortedError("closed by this node"))

    async def greet(self) -> None:
        """Learn the versions of the other side."""
        request = ApiVersionsRequest(client_software_name="ottla", client_software_version="1")
        answer = await self.ask(request, 4)
        assert isinstance(answer, ApiVersionsResponse)
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
            answer = await self.ask(request, 3)
            assert isinstance(answer, ApiVersionsResponse)
        if answer.error_code != ErrorCode.NONE:
            raise ConnectionError(f"ApiVersions was answered with the error {answer.error_code}")
        self.api_versions = answer
        self.versions = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}

    def version_for(self, request: Request, newest: int) -> int:
        lowest, highest = self.versions.get(request.API_KEY, (0, -1))
        version = min(highest, newest)
        if version < max(lowest, 0):
            raise UnsupportedVersion(f"the peer does not speak {type(request).__name__}")
        return version


P = TypeVar("P", bound=asyncio.BaseProtocol)


class Connector(Protocol):
    """The part of :class:`ottla.runtime.network.Network` that is needed here; where the listener asks for
    TLS, something that wraps it.
    """

    async def connect(
        self, factory: Callable[[], P], host: str, port: int, *, timeout_ms: int | None = None
    ) -> tuple[asyncio.Transport, P]: ...


class Channel:
    """All connections of one node to the others."""

    def __init__(self, network: Connector, client_id: str = "ottla-quorum") -> None:
        self._network: Final = network
        self._client_id: Final = client_id
        self._connections: dict[tuple[Address, bool], asyncio.Task[_Connection]] = {}
        self._closed = False

    async def ask(self, address: Address, request: Request, newest: int, *, timeout_ms: int) -> Response:
        """Ask a node; OSError (TimeoutError among them) if it cannot be reached or does not answer,
        KafkaError if it does not speak the version that the request needs.
        """
        async with asyncio.timeout(timeout_ms / 1000):
            connection = await self._connection(address, isinstance(request, _LONG_REQUESTS), timeout_ms)
            return await connection.ask(request, connection.version_for(request, newest))

    async def api_versions(self, address: Address, *, timeout_ms: int) -> ApiVersionsResponse:
        """What a node says of itself, asked afresh."""
        async with asyncio.timeout(timeout_ms / 1000):
            connection = await self._connection(address, False, timeout_ms)
            await connection.greet()
            assert connection.api_versions is not None
            return connection.api_versions

    async def _connection(self, address: Address, long: bool, timeout_ms: int) -> _Connection:
        if self._closed:
            raise ConnectionAbortedError("this node is closing")
        key = (address, long)
        task = self._connections.get(key)
        if task is None or (task.done() and not _is_usable(task)):
            task = asyncio.get_running_loop().create_task(
                self._connect(address, timeout_ms), name=f"connect {address.host}:{address.port}"
            )
            self._connections[key] = task
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if task.cancelled() and current is not None and not current.cancelling():
                raise ConnectionAbortedError("the connection was given up") from None
            raise

    async def _connect(self, address: Address, timeout_ms: int) -> _Connection:
        _, connection = await self._network.connect(
            lambda: _Connection(self._client_id), address.host, address.port, timeout_ms=timeout_ms
        )
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await connection.greet()
        except BaseException:
            connection.close()
            raise
        return connection

    def drop(self, address: Address) -> None:
        """Give the connections to a node up: it did not answer, and a new one may get through."""
        for long in (False, True):
            self._discard(self._connections.pop((address, long), None))

    def drop_all(self) -> None:
        """Give all connections up, and with them whatever was asked; the next question makes new ones."""
        connections, self._connections = self._connections, {}
        for task in connections.values():
            self._discard(task)

    @staticmethod
    def _discard(task: asyncio.Task[_Connection] | None) -> None:
        if task is None:
            return
        if _is_usable(task):
            task.result().close()
        else:
            task.cancel()

    def close(self) -> None:
        self._closed = True
        self.drop_all()


def _is_usable(task: asyncio.Task[_Connection]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None and task.result().is_usable
