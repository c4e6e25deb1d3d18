"""One connection to one broker: requests go out as they come, answers come back in the same order.

The invariant: `_pending` holds, oldest first, exactly the requests that were sent and not yet answered, so
an answer always belongs to its first entry. Anything that breaks this (an unexpected correlation id, a
request that timed out or a frame that is too large) ends the connection, and everything pending fails with
the reason.

API versions are negotiated when the connection opens, per connection, because brokers of one cluster can
differ while it is being upgraded. One that nobody has used for a while ends by itself.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from typing import NamedTuple, TypeVar, cast

from ottla.protocol.api import API, API_VERSIONS, Api
from ottla.protocol.errors import ErrorCode, KafkaError, MalformedMessage, UnsupportedVersion
from ottla.protocol.headers import read_response, request_parts
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.schema import Buffer, Request, Response
from ottla.records._kernel import Block
from ottla.rpc.errors import ConnectionFailed, ConnectionLost, NotKafka, RequestTimedOut
from ottla.runtime.address import Address
from ottla.runtime.network import DEFAULT_OPTIONS, Network, SocketOptions

__all__ = ["BrokerVersions", "Connection"]

R = TypeVar("R", bound=Response)

SMALL_BUFFER_BYTES = 64 * 1024
MAX_RESPONSE_BYTES = 512 * 1024 * 1024
_SIZE = struct.Struct(">i")
_CORRELATION_AND_ERROR = struct.Struct(">ih")
_API_VERSIONS_FIRST_TRY = 4
_TLS_ALERT = 0x15
NEVER = -1


class _Pending(NamedTuple):
    correlation_id: int
    api: Api
    version: int
    answer: asyncio.Future[Response]
    timer: asyncio.TimerHandle


class BrokerVersions:
    """What a broker announced: the versions of each API, and the finalized feature levels."""

    __slots__ = ("_ranges", "features")

    def __init__(self, response: ApiVersionsResponse) -> None:
        self._ranges = {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}
        self.features = {feature.name: feature.max_version_level for feature in response.finalized_features}

    def supports(self, api_key: int, version: int) -> bool:
        first, last = self._ranges.get(api_key, (0, -1))
        return first <= version <= last

    def best(self, api_key: int, *, at_most: int | None = None, unstable: bool = False) -> int:
        """The highest version that both sides speak; UnsupportedVersion says what each side offers."""
        api = API[api_key]
        ours = api.last_version if unstable else api.max_version
        if at_most is not None:
            ours = min(ours, at_most)
        announced = self._ranges.get(api_key)
        if announced is None:
            raise UnsupportedVersion(f"the broker does not offer {api.name}")
        version = min(ours, announced[1])
        if version < max(api.min_version, announced[0]):
            raise UnsupportedVersion(
                f"{api.name}: the broker offers versions {announced[0]} to {announced[1]}, "
                f"this client speaks {api.min_version} to {ours}"
            )
        return version


class Connection(asyncio.BufferedProtocol):
    """Made by `Connection.open`. Small answers share one buffer; a large one is received in place."""

    def __init__(self, address: Address, client_id: str | None, *, max_idle_ms: int = NEVER) -> None:
        self.address = address
        self._client_id = client_id
        self._transport: asyncio.Transport | None = None
        self._pending: deque[_Pending] = deque()
        self._next_correlation_id = 0
        self._small = bytearray(SMALL_BUFFER_BYTES)
        self._small_end = 0
        # A frame too large for the small buffer, and how much of it has come.
        self._frame: Block | None = None
        self._frame_end = 0
        self._lost: KafkaError | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._closed = asyncio.get_running_loop().create_future()
        self.versions: BrokerVersions | None = None
        # Loop time of the last request or answer, and when it is looked at next.
        self._last_used = asyncio.get_running_loop().time()
        self._max_idle_s = max_idle_ms / 1000
        self._idle_check: asyncio.TimerHandle | None = None

    @classmethod
    async def open(
        cls,
        network: Network,
        address: Address,
        *,
        client_id: str | None,
        timeout_ms: int,
        max_idle_ms: int = NEVER,
        options: SocketOptions = DEFAULT_OPTIONS,
    ) -> Connection:
        """Connects and negotiates versions. ConnectionFailed and NotKafka name the address and the cause."""
        try:
            _, connection = await network.connect(
                lambda: cls(address, client_id, max_idle_ms=max_idle_ms),
                address.host,
                address.port,
                timeout_ms=timeout_ms,
                options=options,
            )
        except TimeoutError:
            raise ConnectionFailed(
                f"{address}: no connection within {timeout_ms} ms "
                "(is the address reachable from here? see advertised.listeners of the broker)"
            ) from None
        except OSError as error:
            raise ConnectionFailed(f"{address}: {_explain(error)}") from error
        try:
            await connection._negotiate(timeout_ms)
        except BaseException:
            await connection.close()
            raise
        return connection

    @property
    def is_open(self) -> bool:
        return self._lost is None and self._transport is not None

    @property
    def is_writable(self) -> bool:
        """Whether the transport takes more bytes without piling them up."""
        return self._writable.is_set()

    @property
    def in_flight(self) -> int:
        return len(self._pending)

    def version_for(
        self, request: type[Request], *, at_most: int | None = None, unstable: bool = False
    ) -> int:
        assert self.versions is not None, "version_for before negotiation"
        return self.versions.best(request.API_KEY, at_most=at_most, unstable=unstable)

    def send(
        self, request: Request, response_type: type[R], *, timeout_ms: int, version: int | None = None
    ) -> asyncio.Future[R]:
        """Sends at once and returns the answer's future. Raises ConnectionLost when the connection has
        ended. A request that times out ends the connection: what follows it on the wire would wait behind
        the missing answer.
        """
        if version is None:
            version = self.version_for(type(request))
        api = API[request.API_KEY]
        transport = self._usable_transport()
        correlation_id = self._next_correlation_id
        parts = request_parts(version, correlation_id, self._client_id, request)
        self._next_correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Response] = loop.create_future()
        timer = loop.call_later(timeout_ms / 1000, self._timed_out, api, timeout_ms)
        self._pending.append(_Pending(correlation_id, api, version, answer, timer))
        self._last_used = loop.time()
        transport.writelines(parts)
        return answer  # type: ignore[return-value]  # the response class follows from the request's API

    def send_and_forget(self, request: Request, *, version: int | None = None) -> None:
        """For what is never answered: Produce with acks=0."""
        if version is None:
            version = self.version_for(type(request))
        transport = self._usable_transport()
        parts = request_parts(version, self._next_correlation_id, self._client_id, request)
        self._next_correlation_id = (self._next_correlation_id + 1) & 0x7FFFFFFF
        self._last_used = asyncio.get_running_loop().time()
        transport.writelines(parts)

    async def request(
        self, request: Request, response_type: type[R], *, timeout_ms: int, version: int | None = None
    ) -> R:
        """Sends as soon as the transport takes more, and waits for the answer."""
        await self._writable.wait()
        return await self.send(request, response_type, timeout_ms=timeout_ms, version=version)

    def ping(self, *, timeout_ms: int) -> None:
        """Sends something harmless that nobody waits for: a machine that has forgotten the connection resets
        it then. The answer comes after those to earlier requests, so give it as much time as they have.
        """
        self.send(_hello(), ApiVersionsResponse, timeout_ms=timeout_ms)

    def _timed_out(self, api: Api, timeout_ms: int) -> None:
        self._end(RequestTimedOut(f"{self.address}: no answer to {api.name} within {timeout_ms} ms"))

    async def drained(self) -> None:
        """Waits until the transport takes more bytes without piling them up."""
        await self._writable.wait()

    async def close(self) -> None:
        """Ends the connection; whatever is pending fails with ConnectionLost."""
        if self._transport is None:
            return
        self._end(ConnectionLost(f"{self.address}: closed by this client"))
        await asyncio.shield(self._closed)

    # The asyncio protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._max_idle_s >= 0:
            self._look_for_idleness()

    def _look_for_idleness(self) -> None:
        loop = asyncio.get_running_loop()
        left = self._last_used + self._max_idle_s - loop.time()
        if self._pending:
            left = self._max_idle_s  # an answer is awaited, and its time-out watches over that
        if left > 0 or not self.is_open:
            self._idle_check = loop.call_later(left, self._look_for_idleness) if self.is_open else None
            return
        self._end(
            ConnectionLost(
                f"{self.address.host}:{self.address.port}: closed by this client after "
                f"connections.max.idle.ms={self._max_idle_s * 1000:.0f}"
            )
        )

    def connection_lost(self, exc: Exception | None) -> None:
        why = f": {exc}" if exc is not None else ""
        self._end(ConnectionLost(f"{self.address}: the broker ended the connection{why}"))
        if not self._closed.done():
            self._closed.set_result(None)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return memoryview(self._frame)[self._frame_end :]
        return memoryview(self._small)[self._small_end :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._lost is not None:
            return
        if self._frame is None:
            self._small_end += nbytes
            self._cut_frames()
            return
        self._frame_end += nbytes
        if self._frame_end == len(self._frame):
            frame, self._frame = self._frame, None
            self._received(memoryview(frame))

    def eof_received(self) -> bool:
        return False

    def _cut_frames(self) -> None:
        """Hands on every whole frame of the small buffer and keeps what is left over at its beginning."""
        small, end, position = self._small, self._small_end, 0
        if end and small[0] == _TLS_ALERT and self.versions is None:
            self._end(self._not_kafka(bytes(small[:8])))  # as a size, it would be waited for
            return
        while end - position >= 4 and self._lost is None:
            (size,) = _SIZE.unpack_from(small, position)
            if not 4 <= size <= MAX_RESPONSE_BYTES:
                self._end(self._not_kafka(bytes(small[position : position + 8])))
                return
            position += 4
            if end - position >= size:
                self._received(bytes(memoryview(small)[position : position + size]))
                position += size
            else:
                # Memory that former frames gave up: no page of it has to be made, and none is cleared.
                self._frame = Block(size=size, recycled=True)
                self._frame_end = end - position
                memoryview(self._frame)[: self._frame_end] = memoryview(small)[position:end]
                position = end
        small[: end - position] = small[position:end]
        self._small_end = end - position

    def _received(self, frame: Buffer) -> None:
        if not self._pending:
            self._end(self._not_kafka(bytes(frame[:8])))
            return
        pending = self._pending.popleft()
        pending.timer.cancel()
        self._last_used = asyncio.get_running_loop().time()
        version = pending.version
        correlation_id, error_code = _CORRELATION_AND_ERROR.unpack_from(frame) if len(frame) >= 6 else (-1, 0)
        if pending.api.key == API_VERSIONS and error_code == ErrorCode.UNSUPPORTED_VERSION:
            version = 0
        try:
            correlation_id, response = read_response(pending.api, version, frame)
        except MalformedMessage as error:
            self._fail(pending, error)
            return
        if correlation_id != pending.correlation_id:
            self._fail(pending, self._not_kafka(bytes(frame[:8])))
        elif not pending.answer.done():
            pending.answer.set_result(response)

    def _fail(self, pending: _Pending, error: KafkaError) -> None:
        self._pending.appendleft(pending)
        self._end(error)

    def _end(self, reason: KafkaError) -> None:
        """Fails all that is pending and lets the transport go. The first reason counts."""
        if self._lost is None:
            self._lost = reason
        self._writable.set()
        if self._idle_check is not None:
            self._idle_check.cancel()
        while self._pending:
            pending = self._pending.popleft()
            pending.timer.cancel()
            answer = pending.answer
            if not answer.done():
                answer.set_exception(self._lost)
                answer.exception()  # seen here, so that an abandoned request does not warn
        if self._transport is not None:
            self._transport.abort()

    def _usable_transport(self) -> asyncio.Transport:
        if self._lost is not None:
            raise self._lost
        if self._transport is None:
            raise ConnectionLost(f"{self.address}: not connected")
        return self._transport

    def _not_kafka(self, first_bytes: bytes) -> NotKafka:
        guess = ""
        if first_bytes.startswith(b"HTTP"):
            guess = ": it is an HTTP server"
        elif first_bytes[:1] == b"\x15":
            guess = ": it speaks TLS, and these clients do not"
        return NotKafka(
            f"{self.address} does not speak Kafka's protocol{guess} (its answer begins with {first_bytes!r})"
        )

    async def _negotiate(self, timeout_ms: int) -> None:
        hello = _hello()
        version = _API_VERSIONS_FIRST_TRY
        for _ in range(2):
            try:
                answer = await self.request(
                    hello, ApiVersionsResponse, timeout_ms=timeout_ms, version=version
                )
            except ConnectionLost as error:
                raise ConnectionLost(
                    f"{error.message} before it answered ApiVersions "
                    "(a TLS or SASL listener? a broker older than Kafka 0.10?)"
                ) from None
            announced = BrokerVersions(answer)
            if answer.error_code != ErrorCode.UNSUPPORTED_VERSION:
                break
            version = announced.best(API_VERSIONS) if answer.api_keys else 0
        if answer.error_code:
            raise KafkaError(ErrorCode.of(answer.error_code))
        self.versions = announced


def _hello() -> ApiVersionsRequest:
    from ottla import __version__

    return ApiVersionsRequest(client_software_name="ottla", client_software_version=__version__)


def _explain(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused (is a broker listening there?)"
    return error.strerror or str(error)
