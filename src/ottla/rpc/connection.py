"""One connection to one broker: framing, correlation and version negotiation.

Requests are written as they come, and the broker responds in the same order. Invariant: `_pending` holds,
oldest first, exactly the requests that were sent and have no response yet, so a response always belongs to
its first entry. Anything that breaks this (an unexpected correlation id, a request that times out, a frame
that is too large) ends the connection, and everything pending fails with the reason.

API versions are negotiated when the connection opens, for each connection, because the brokers of a cluster
can differ while it is upgraded. A connection that is idle for `connections.max.idle.ms` ends by itself.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Protocol, TypeVar, cast

from ottla.protocol.api import API, API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE, Api
from ottla.protocol.errors import ErrorCode, KafkaError, MalformedMessage, UnsupportedVersion
from ottla.protocol.headers import read_response, request_parts
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.schema import Buffer, Request, Response
from ottla.records._kernel import Block
from ottla.rpc.connection_statistics import ConnectionStatistics
from ottla.rpc.errors import ConnectionFailed, ConnectionLost, NotKafka, RequestTimedOut, WrongNode
from ottla.runtime.address import Address
from ottla.runtime.network import DEFAULT_OPTIONS, Network, SocketOptions, TlsContext
from ottla.runtime.tls import TlsFailure

R = TypeVar("R", bound=Response)

BUFFER_BYTES = 64 * 1024
MAX_RESPONSE_BYTES = 512 * 1024 * 1024
NEVER = -1
_SIZE = struct.Struct(">i")
_CORRELATION_AND_ERROR = struct.Struct(">ih")
_API_VERSIONS_FIRST_TRY = 4
_FIRST_VERSION_WITH_NODE = 5
_TLS_ALERT = 0x15
_OF_LOGIN = frozenset((SASL_HANDSHAKE, SASL_AUTHENTICATE))


class ConnectionSecurity(Protocol):
    """How a client or a node protects its connections to others, and logs in on them. One object serves any
    number of connections, also at the same time.
    """

    def tls(self) -> TlsContext | None:
        """The TLS context for the next connection, which also decides whether the host name is checked; None
        for plain text. ConnectionFailed if there is none that could be used.
        """
        ...

    async def authenticate(self, connection: BrokerConnection, *, timeout_ms: int) -> None:
        """Log in on a connection whose versions are known, before it is used. An error ends it."""
        ...


class _Plaintext:
    __slots__ = ()

    def tls(self) -> None:
        return None

    async def authenticate(self, connection: BrokerConnection, *, timeout_ms: int) -> None:
        return None


PLAINTEXT: Final[ConnectionSecurity] = _Plaintext()


class ExpectedNode(NamedTuple):
    """The node that an address is said to be of."""

    cluster_id: str
    node_id: int


class _Pending(NamedTuple):
    correlation_id: int
    api: Api
    version: int
    response: asyncio.Future[Response]
    timer: asyncio.TimerHandle
    # Loop time.
    sent_at: float


class BrokerVersions:
    """The versions of each API and the finalized feature levels that a broker announced."""

    __slots__ = ("_ranges", "features")

    def __init__(self, response: ApiVersionsResponse) -> None:
        self._ranges = {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}
        self.features = {feature.name: feature.max_version_level for feature in response.finalized_features}

    def supports(self, api_key: int, version: int) -> bool:
        first, last = self._ranges.get(api_key, (0, -1))
        return first <= version <= last

    def best(self, api_key: int, *, at_most: int | None = None, unstable: bool = False) -> int:
        """Return the highest version that both sides speak; UnsupportedVersion says what each side offers."""
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


class BrokerConnection(asyncio.BufferedProtocol):
    """Made by `BrokerConnection.open`. Small responses share one buffer; a large one is received in place."""

    def __init__(
        self,
        address: Address,
        client_id: str | None,
        *,
        max_idle_ms: int = NEVER,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
        buffer_bytes: int = BUFFER_BYTES,
        recycles_frames: bool = True,
        statistics: ConnectionStatistics | None = None,
    ) -> None:
        self.address = address
        self._statistics = statistics
        self.versions: BrokerVersions | None = None  # None until they are negotiated
        self._client_id = client_id
        self._max_response_bytes = max_response_bytes
        self._transport: asyncio.Transport | None = None
        self._pending: deque[_Pending] = deque()
        self._next_correlation_id = 0
        self._recycles_frames = recycles_frames
        self._small = bytearray(buffer_bytes)
        self._small_end = 0
        # A frame too large for the small buffer, and how many of its bytes have been received.
        self._frame: Block | None = None
        self._frame_end = 0
        # Why the connection ended; None while it is open. Once set, nothing is pending.
        self._lost: KafkaError | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._closed = asyncio.get_running_loop().create_future()
        # Loop time of the last request or response, and when idleness is checked next.
        self._last_used = asyncio.get_running_loop().time()
        self._max_idle_s = max_idle_ms / 1000
        self._idle_check: asyncio.TimerHandle | None = None
        # Requests that wait until the session has been renewed; None while none have to.
        self._held_back: list[tuple[_Pending | None, list[Buffer]]] | None = None
        self._login_timer: asyncio.TimerHandle | None = None
        self._login: asyncio.Task[None] | None = None
        # Whether the broker has answered nothing yet but what every client may ask.
        self._is_unheard = True

    @classmethod
    async def open(
        cls,
        network: Network,
        address: Address,
        *,
        client_id: str | None,
        timeout_ms: int,
        max_idle_ms: int = NEVER,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
        buffer_bytes: int = BUFFER_BYTES,
        recycles_frames: bool = True,
        options: SocketOptions = DEFAULT_OPTIONS,
        security: ConnectionSecurity = PLAINTEXT,
        statistics: ConnectionStatistics | None = None,
        expected: ExpectedNode | None = None,
    ) -> BrokerConnection:
        """Connect, negotiate versions and log in. ConnectionFailed and NotKafka name the address and the
        cause; WrongNode says that another node than the expected one is there, where nodes can tell.
        """
        tls = security.tls()
        try:
            _, connection = await network.connect(
                lambda: cls(
                    address,
                    client_id,
                    max_idle_ms=max_idle_ms,
                    max_response_bytes=max_response_bytes,
                    buffer_bytes=buffer_bytes,
                    recycles_frames=recycles_frames,
                    statistics=statistics,
                ),
                address.host,
                address.port,
                timeout_ms=timeout_ms,
                options=options,
                tls=tls,
            )
        except TimeoutError as error:
            raise ConnectionFailed(
                f"{address}: no connection within {timeout_ms} ms "
                "(is the address reachable from here? see advertised.listeners of the broker)"
            ) from error
        except OSError as error:
            raise ConnectionFailed(f"{address}: {_explain(error)}") from error
        try:
            await connection._negotiate(timeout_ms, expected)
            await security.authenticate(connection, timeout_ms=timeout_ms)
        except BaseException:
            await connection.close()
            raise
        return connection

    @property
    def is_open(self) -> bool:
        return self._lost is None and self._transport is not None

    @property
    def is_writable(self) -> bool:
        """Whether the transport takes more bytes without queueing them."""
        return self._writable.is_set()

    @property
    def in_flight(self) -> int:
        """The number of requests that wait for their response."""
        return len(self._pending) + len(self._held_back or ())

    def version_for(
        self, request: type[Request], *, at_most: int | None = None, unstable: bool = False
    ) -> int:
        assert self.versions is not None, "version_for before negotiation"
        return self.versions.best(request.API_KEY, at_most=at_most, unstable=unstable)

    def send(
        self, request: Request, response_type: type[R], *, timeout_ms: int, version: int | None = None
    ) -> asyncio.Future[R]:
        """Send at once and return the future of the response. Raises ConnectionLost when the connection has
        ended. A request that times out ends the connection: requests behind it on the wire would wait for the
        missing response.
        """
        if version is None:
            version = self.version_for(type(request))
        api = API[request.API_KEY]
        transport = self._usable_transport()
        correlation_id = self._next_correlation_id
        parts = request_parts(version, correlation_id, self._client_id, request)
        self._next_correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        loop = asyncio.get_running_loop()
        response: asyncio.Future[Response] = loop.create_future()
        timer = loop.call_later(timeout_ms / 1000, self._on_timeout, api, timeout_ms)
        self._last_used = now = loop.time()
        pending = _Pending(correlation_id, api, version, response, timer, now)
        if self._statistics is not None:
            self._statistics.requests += 1
            self._statistics.sent_bytes += sum(map(len, parts))
        if self._held_back is not None and api.key not in _OF_LOGIN:
            self._held_back.append((pending, parts))
        else:
            self._pending.append(pending)
            transport.writelines(parts)
        return response  # type: ignore[return-value]  # the response class follows from the request's API

    def send_and_forget(self, request: Request, *, version: int | None = None) -> None:
        """Send a request that gets no response: Produce with acks=0."""
        if version is None:
            version = self.version_for(type(request))
        transport = self._usable_transport()
        parts = request_parts(version, self._next_correlation_id, self._client_id, request)
        self._next_correlation_id = (self._next_correlation_id + 1) & 0x7FFFFFFF
        self._last_used = asyncio.get_running_loop().time()
        if self._statistics is not None:
            self._statistics.requests += 1
            self._statistics.sent_bytes += sum(map(len, parts))
        if self._held_back is not None:
            self._held_back.append((None, parts))
        else:
            transport.writelines(parts)

    async def request(
        self, request: Request, response_type: type[R], *, timeout_ms: int, version: int | None = None
    ) -> R:
        """Send as soon as the transport takes more bytes, and wait for the response."""
        await self._writable.wait()
        return await self.send(request, response_type, timeout_ms=timeout_ms, version=version)

    async def api_versions(self, *, timeout_ms: int) -> ApiVersionsResponse:
        """Ask the broker again for its versions and features."""
        response = await self.send(_api_versions_request(), ApiVersionsResponse, timeout_ms=timeout_ms)
        if response.error_code:
            raise KafkaError(ErrorCode.of(response.error_code))
        return response

    def ping(self, *, timeout_ms: int) -> None:
        """Send a harmless request without waiting for it: a host that has forgotten the connection resets it
        then. The response follows those to earlier requests, so it needs as much time as they have.
        """
        self.send(_api_versions_request(), ApiVersionsResponse, timeout_ms=timeout_ms)

    async def send_for_login(
        self, request: Request, response_type: type[R], *, timeout_ms: int, version: int | None = None
    ) -> R:
        """Send a request of a login, also while others are held back, and wait for the response."""
        assert request.API_KEY in _OF_LOGIN, request.API_KEY
        return await self.send(request, response_type, timeout_ms=timeout_ms, version=version)

    def log_in_again_after(self, seconds: float, log_in: Callable[[], Awaitable[None]]) -> None:
        """Have `log_in` renew the session then, and hold other requests back meanwhile: the broker would end
        the connection for them. If it fails the connection ends.
        """
        self._login_timer = asyncio.get_running_loop().call_later(seconds, self._begin_login, log_in)

    def _begin_login(self, log_in: Callable[[], Awaitable[None]]) -> None:
        self._held_back = []
        self._login = asyncio.get_running_loop().create_task(
            self._log_in_again(log_in), name=f"login {self.address}"
        )

    async def _log_in_again(self, log_in: Callable[[], Awaitable[None]]) -> None:
        try:
            await log_in()
        except KafkaError as error:
            self._end(error)
            return
        held, self._held_back = self._held_back or [], None
        transport = self._transport
        if self._lost is None and transport is not None:
            for pending, parts in held:
                if pending is not None:
                    self._pending.append(pending)
                transport.writelines(parts)

    def _on_timeout(self, api: Api, timeout_ms: int) -> None:
        self._end(RequestTimedOut(f"{self.address}: no answer to {api.name} within {timeout_ms} ms"))

    async def drain(self) -> None:
        """Wait until the transport takes more bytes without queueing them."""
        await self._writable.wait()

    def abort(self) -> None:
        """End the connection; everything pending fails with ConnectionLost."""
        if self._transport is not None:
            self._end(ConnectionLost(f"{self.address}: closed by this client"))

    async def close(self) -> None:
        """Abort the connection, and wait until its transport is closed."""
        self.abort()
        if self._transport is not None:
            await asyncio.shield(self._closed)

    # The asyncio protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        if self._statistics is not None:
            self._statistics.connections_made += 1
        if self._max_idle_s >= 0:
            self._check_idle()

    def _check_idle(self) -> None:
        loop = asyncio.get_running_loop()
        left = self._last_used + self._max_idle_s - loop.time()
        if self._pending:
            left = self._max_idle_s  # the timer of the pending request guards this time
        if left > 0 or not self.is_open:
            self._idle_check = loop.call_later(left, self._check_idle) if self.is_open else None
            return
        self._end(
            ConnectionLost(
                f"{self.address.host}:{self.address.port}: closed by this client after "
                f"connections.max.idle.ms={self._max_idle_s * 1000:.0f}"
            )
        )

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, TlsFailure):
            self._end(ConnectionFailed(f"{self.address}: TLS failed: {exc}"))
        else:
            why = f": {exc}" if exc is not None else ""
            if self._is_unheard and self.versions is not None and self._pending:
                why += " at its first request (does the listener expect a login? see security.protocol)"
            self._end(ConnectionLost(f"{self.address}: the broker ended the connection{why}"))
        if self._statistics is not None:
            self._statistics.connections_closed += 1
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
            self._parse_frames()
            return
        self._frame_end += nbytes
        if self._frame_end == len(self._frame):
            frame, self._frame = self._frame, None
            self._on_frame(memoryview(frame))

    def eof_received(self) -> bool:
        return False

    def _parse_frames(self) -> None:
        """Process every whole frame of the small buffer, and move the rest to its beginning."""
        small, end, position = self._small, self._small_end, 0
        if end and small[0] == _TLS_ALERT and self.versions is None:
            self._end(self._not_kafka(bytes(small[:8])))  # read as a size, it would be waited for
            return
        while end - position >= 4 and self._lost is None:
            (size,) = _SIZE.unpack_from(small, position)
            if not 4 <= size <= self._max_response_bytes:
                self._end(self._not_kafka(bytes(small[position : position + 8])))
                return
            position += 4
            if end - position >= size:
                self._on_frame(bytes(memoryview(small)[position : position + size]))
                position += size
            else:
                # Recycled memory of former frames needs no page mapped and none cleared, but stays allocated.
                self._frame = Block(size=size, recycled=self._recycles_frames)
                self._frame_end = end - position
                memoryview(self._frame)[: self._frame_end] = memoryview(small)[position:end]
                position = end
        small[: end - position] = small[position:end]
        self._small_end = end - position

    def _on_frame(self, frame: Buffer) -> None:
        if not self._pending:
            self._end(self._not_kafka(bytes(frame[:8])))
            return
        pending = self._pending.popleft()
        pending.timer.cancel()
        self._last_used = now = asyncio.get_running_loop().time()
        if self._statistics is not None:
            self._statistics.responses += 1
            self._statistics.received_bytes += len(frame)
            self._statistics.latency_ms.record((now - pending.sent_at) * 1000, now)
        version = pending.version
        correlation_id, error_code = _CORRELATION_AND_ERROR.unpack_from(frame) if len(frame) >= 6 else (-1, 0)
        if pending.api.key == API_VERSIONS and error_code == ErrorCode.UNSUPPORTED_VERSION:
            version = 0  # in which a broker refuses a version that it does not know
        try:
            correlation_id, response = read_response(pending.api, version, frame)
        except MalformedMessage as error:
            self._fail(pending, error)
            return
        if correlation_id != pending.correlation_id:
            self._fail(pending, self._not_kafka(bytes(frame[:8])))
            return
        if pending.api.key != API_VERSIONS:
            self._is_unheard = False
        if not pending.response.done():
            pending.response.set_result(response)

    def _fail(self, pending: _Pending, error: KafkaError) -> None:
        self._pending.appendleft(pending)
        self._end(error)

    def _end(self, reason: KafkaError) -> None:
        """Fail everything pending and abort the transport. The first reason counts."""
        if self._lost is None:
            self._lost = reason.again()
        self._writable.set()
        if self._idle_check is not None:
            self._idle_check.cancel()
        if self._login_timer is not None:
            self._login_timer.cancel()
        held, self._held_back = self._held_back or [], None
        self._pending.extend(pending for pending, _ in held if pending is not None)
        while self._pending:
            pending = self._pending.popleft()
            pending.timer.cancel()
            response = pending.response
            if not response.done():
                response.set_exception(self._lost.again())
                response.exception()  # marks it as retrieved, so that an abandoned request does not warn
        if self._transport is not None:
            self._transport.abort()

    def _usable_transport(self) -> asyncio.Transport:
        if self._lost is not None:
            raise self._lost.again()
        if self._transport is None:
            raise ConnectionLost(f"{self.address}: not connected")
        return self._transport

    def _not_kafka(self, first_bytes: bytes) -> NotKafka:
        guess = ""
        if first_bytes.startswith(b"HTTP"):
            guess = ": it is an HTTP server"
        elif first_bytes[:1] == b"\x15":
            guess = ": it speaks TLS (set security.protocol=SSL or SASL_SSL)"
        return NotKafka(
            f"{self.address} does not speak Kafka's protocol{guess} (its answer begins with {first_bytes!r})"
        )

    async def _negotiate(self, timeout_ms: int, expected: ExpectedNode | None) -> None:
        request = _api_versions_request()
        version = _API_VERSIONS_FIRST_TRY
        if expected is not None:
            request.cluster_id, request.node_id = expected
            version = _FIRST_VERSION_WITH_NODE
        for _ in range(2):
            try:
                response = await self.request(
                    request, ApiVersionsResponse, timeout_ms=timeout_ms, version=version
                )
            except ConnectionLost as error:
                raise ConnectionLost(
                    f"{error.message} before it answered ApiVersions "
                    "(a TLS or SASL listener? a broker older than Kafka 0.10?)"
                ) from None
            announced = BrokerVersions(response)
            if response.error_code != ErrorCode.UNSUPPORTED_VERSION:
                break
            version = announced.best(API_VERSIONS) if response.api_keys else 0
        if response.error_code == ErrorCode.REBOOTSTRAP_REQUIRED and expected is not None:
            raise WrongNode(
                f"{self.address} is not node {expected.node_id} of cluster {expected.cluster_id} "
                "(the cluster may have moved; see advertised.listeners of the broker)"
            )
        if response.error_code:
            raise KafkaError(ErrorCode.of(response.error_code))
        self.versions = announced


def _api_versions_request() -> ApiVersionsRequest:
    from ottla import __version__

    return ApiVersionsRequest(client_software_name="ottla", client_software_version=__version__)


def _explain(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused (is a broker listening there?)"
    return error.strerror or str(error)
