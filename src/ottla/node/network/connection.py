"""One client connection: frames in, responses out, in order, within bounds.

There is no queue and no pool of threads between a connection and the handlers (Kafka's `RequestChannel` and
`KafkaRequestHandler`): requests are started in the order in which they came and answered in that order, and
later ones are worked on while earlier ones wait. What a client can make the node hold is bounded at every
point: a frame is refused by its size before any of it is stored, storage for a large one grows only as its
bytes arrive, and reading stops while too many requests are in progress, while the memory for connections is
short (`memory_budget`), or while the client does not read its responses. Invariants: `_pending` holds the
requests that were started and whose responses were not written yet, oldest first; `_request_bytes` and
`_response_bytes` are what the connection has counted in its pool.

Bytes arrive in a buffer that all connections share: between `get_buffer` and `buffer_updated` no other code
runs, and what is to stay is copied out before `buffer_updated` returns.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from bisect import bisect_left
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, TypeAlias, cast

from ottla.node.network.memory_budget import MemoryBudget
from ottla.node.network.protocol_guess import looks_like
from ottla.node.network.request_statistics import TIME_BOUNDS_NS, RequestStatistics
from ottla.runtime.address import Address
from ottla.runtime.disk import Buffer
from ottla.runtime.network import unacknowledged_bytes
from ottla.runtime.tasks import cancel
from ottla.security.principal import ANONYMOUS, KafkaPrincipal

_log = logging.getLogger(__name__)

Parts: TypeAlias = list[Buffer]
"""A response as it goes out, its length first; buffers are sent one after the other without a copy."""

RECEIVE_BYTES: Final = 256 * 1024
_FIRST_ALLOCATION_BYTES: Final = 1024 * 1024
_LARGEST_GROWTH_BYTES: Final = 4 * 1024 * 1024
_ZEROS: Final = memoryview(bytes(_LARGEST_GROWTH_BYTES))
_WRITE_HIGH_BYTES: Final = 1024 * 1024
_JOIN_BYTES: Final = 64 * 1024
_WRITE_LOW_BYTES: Final = 256 * 1024
# How long requests of one connection are started before other connections have their turn.
_TURN_SECONDS: Final = 0.002
# As long, for requests of which one or a few fill a turn.
_BYTES_OF_A_TURN: Final = 512 * 1024
_LENGTH: Final = struct.Struct(">i")
_NOTHING: Final = memoryview(b"")
# What is received at once, and of a large frame at first, while memory is short.
_RECEIVE_WHEN_SHORT_BYTES: Final = 16 * 1024
_FIRST_ALLOCATION_WHEN_SHORT_BYTES: Final = 64 * 1024
# Bytes of responses after which it is looked whether the client reads them.
_UNWATCHED_BYTES: Final = 16 * 1024
# Over how long it is measured how fast a client reads, at least.
_RATE_SECONDS: Final = 3.0
_PRODUCE: Final = b"\0\0"
# Requests that all connections together may have in progress before each may have only one.
_MANY_IN_PROGRESS: Final = 20_000
# Mostly their clients are gone for good, so only so many are kept for those that still read.
_MOST_HALF_CLOSED: Final = 500
# Clients that have not logged in, before the oldest are closed, and for how long none of them is.
_MOST_LOGGING_IN: Final = 2_000
_LOGIN_GRACE_SECONDS: Final = 2.0
_FAULTS_BURST: Final = 50
_FAULTS_PER_SECOND: Final = 5
_MAX_REASON: Final = 1_000
# A client that was throttled within this time may soon be throttled again.
_LATELY_SECONDS: Final = 60.0


class ProtocolViolation(Exception):
    """A request cannot be answered; the connection is closed, and the text says why in the log."""


class RequestLane(Protocol):
    """Answers requests that need nothing special, from the bytes that were received."""

    @property
    def appended(self) -> list[tuple[int, int, int]] | None:
        """Set by `take` if the frame at which it stopped was done in part; see `PendingRequest.appended`."""
        ...

    def take(
        self, connection: ClientConnection, data: memoryview, position: int, room: int, received_ns: int
    ) -> int:
        """Answer the frames from a position on, up to the first that the dispatcher has to answer; return the
        position behind them. None of them may take more memory than `room`. The responses are added to those
        that go out next (`add_responses`).
        """
        ...


class RequestDispatcher(Protocol):
    """Answers the requests of a listener."""

    @property
    def lane(self) -> RequestLane | None:
        """What answers some of the requests before they come here, while none is in progress."""
        ...

    def start(self, pending: PendingRequest, frame: memoryview) -> Parts | Awaitable[Parts | None] | None:
        """Begin to work on a request; return its response, or an awaitable of it, or None if it has none."""
        ...


class KeptForClient(Protocol):
    """What a handler keeps for later requests of the same connection."""

    def close(self) -> None:
        """The connection is lost."""


class FrameBounds(Protocol):
    """Says how large a frame may be."""

    @property
    def max_frame_bytes(self) -> int: ...


class ConnectionLimits:
    """Bounds that all connections of a server share and that may change while it runs, and their counters,
    which are never negative.
    """

    __slots__ = (
        "half_closed",
        "in_progress",
        "logging_in",
        "max_frame_bytes",
        "max_half_closed",
        "max_in_flight",
        "max_in_flight_bytes",
        "max_logging_in",
    )

    def __init__(
        self,
        max_frame_bytes: int = 100 * 1024 * 1024,
        max_in_flight: int = 500,
        max_in_flight_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        self.max_frame_bytes = max_frame_bytes
        self.max_in_flight = max_in_flight
        self.max_in_flight_bytes = max_in_flight_bytes
        # Requests that have been started and not yet answered.
        self.in_progress = 0
        # Connections whose clients send nothing more and have not got all their responses.
        self.half_closed = 0
        self.max_half_closed = _MOST_HALF_CLOSED
        # Connections whose clients have not logged in yet, the oldest first, and when they were made.
        self.logging_in: dict[ClientConnection, float] = {}
        self.max_logging_in = _MOST_LOGGING_IN

    def add_login(self, connection: ClientConnection, now: float) -> None:
        """Count a client that has to log in. Of too many the oldest are closed, unless they have just come:
        they hold handles that those who can log in need.
        """
        logging_in = self.logging_in
        logging_in[connection] = now
        while len(logging_in) > self.max_logging_in:
            oldest, since = next(iter(logging_in.items()))
            if now - since < _LOGIN_GRACE_SECONDS:
                return
            del logging_in[oldest]
            oldest.abort_because("it did not log in while many others came")

    def requests_at_once(self) -> int:
        """How many requests one connection may have in progress; at least one, as each goes on by its own
        responses.
        """
        return self.max_in_flight if self.in_progress < _MANY_IN_PROGRESS else 1


class ClientFaultLog:
    """Lines in the log about clients at fault: each gets one, but a flood of them does not flood the log."""

    __slots__ = ("_left", "_refilled", "_suppressed", "closed")

    def __init__(self) -> None:
        # Connections that were closed for a fault of their client.
        self.closed = 0
        self._left = float(_FAULTS_BURST)
        self._refilled = 0.0
        self._suppressed = 0

    def log_closed(self, peer: tuple[str, int], reason: str, now: float) -> None:
        """Log that the connection of a client was closed, and why."""
        self.closed += 1
        self._log_fault("closed the connection from", peer, reason, now)

    def log_refused_login(self, peer: tuple[str, int], reason: str, now: float) -> None:
        """Log that a login of a client was refused, whose connection stays."""
        self._log_fault("refused a login from", peer, reason, now)

    def _log_fault(self, event: str, peer: tuple[str, int], reason: str, now: float) -> None:
        self._left = min(_FAULTS_BURST, self._left + (now - self._refilled) * _FAULTS_PER_SECOND)
        self._refilled = now
        if self._left < 1:
            self._suppressed += 1
            return
        self._left -= 1
        if self._suppressed:
            _log.warning("left out %d more lines on faults of clients", self._suppressed)
            self._suppressed = 0
        # Names of users and what TLS and clients say may be in it: it stays one line.
        shown = reason if reason.isprintable() else ascii(reason)[1:-1]
        _log.warning("%s %s:%d: %s", event, *peer, shown[:_MAX_REASON])


class PendingRequest:
    """A request in progress and its response. The request's handler sees it as its place in the line."""

    __slots__ = (
        "_turn",
        "appended",
        "connection",
        "decoded_bytes",
        "held_bytes",
        "parts",
        "ready",
        "ready_ns",
        "received_ns",
        "response_size",
        "returned_ns",
        "size",
        "started_ns",
        "statistics",
        "task",
    )

    def __init__(self, connection: ClientConnection, size: int) -> None:
        self.connection = connection
        self.size = size
        # Of a Produce request whose first batches were appended before a write failed: their base offsets,
        # the offsets behind them, and the log starts.
        self.appended: list[tuple[int, int, int]] | None = None
        self.ready = False
        # Set with the response.
        self.response_size: int
        # Where the request counts; None where it does not. The dispatcher sets it. Where requests are timed:
        # when it was received and started, when its handler returned an awaitable, 0 if it did not, and when
        # the response was ready.
        self.statistics: RequestStatistics | None = None
        self.received_ns: int
        self.started_ns: int
        self.returned_ns = 0
        self.ready_ns: int
        # What `hold` and `count_decoded` have counted.
        self.held_bytes = 0
        self.decoded_bytes = 0
        self.parts: Parts | None = None
        self.task: asyncio.Future[Parts | None] | None = None
        self._turn: asyncio.Future[None] | None = None

    @property
    def response_bytes(self) -> int:
        """How large the response should be at most, if it is made now."""
        return self.connection.pool.response_bytes()

    @property
    def is_turn(self) -> bool:
        """Whether the response may be made now: it would go out, as none before it waits and the client keeps
        reading, and there is memory for it.
        """
        return self.connection.is_turn(self)

    async def wait_for_turn(self) -> None:
        """Wait until `is_turn`. A response that takes much memory should be made only then."""
        while not self.connection.is_turn(self):
            self._turn = asyncio.get_running_loop().create_future()
            self.connection.wait_for_turn(self)
            await self._turn

    def hold(self, size: int) -> None:
        """Count the bytes that were read for the response, in the turn in which `response_bytes` allowed
        them; 0 if they were dropped.
        """
        self.connection.count_response(size - self.held_bytes)
        self.held_bytes = size

    def count_decoded(self, size: int) -> None:
        """Count the bytes that the request takes beyond those of its frame until it is answered, once."""
        self.decoded_bytes = self.connection.count_decoded(size)

    def wake(self) -> None:
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)


class ClientConnection(asyncio.BufferedProtocol):
    __slots__ = (
        "_backlog",
        "_dispatcher",
        "_fault_log",
        "_filled",
        "_frame",
        "_frame_bounds",
        "_frame_bytes",
        "_frame_size",
        "_half_closed",
        "_holding_back",
        "_lane",
        "_last_left",
        "_loop",
        "_mark_ns",
        "_memory",
        "_now_ns",
        "_offered",
        "_on_close",
        "_on_open",
        "_out",
        "_out_bytes",
        "_pending",
        "_principal_of",
        "_rate_bytes",
        "_rate_since",
        "_reading_paused",
        "_receive",
        "_received_ns",
        "_request_bytes",
        "_response_bytes",
        "_sending",
        "_throttle_timer",
        "_throttled_until",
        "_unbroken",
        "_unread",
        "_unwatched",
        "_waiting_for_memory",
        "_write_paused",
        "_yielding",
        "broker_incarnation",
        "client_software",
        "closed",
        "kept_fetch",
        "kept_share_sessions",
        "kept_telemetry",
        "last_active",
        "last_produce",
        "last_taken",
        "limits",
        "listener",
        "local",
        "login_deadline",
        "peer",
        "pool",
        "principal",
        "transport",
    )

    def __init__(
        self,
        dispatcher: RequestDispatcher,
        limits: ConnectionLimits,
        memory: MemoryBudget,
        receive: memoryview,
        on_open: Callable[[ClientConnection], bool],
        on_close: Callable[[ClientConnection], None],
        fault_log: ClientFaultLog,
        *,
        listener: str = "",
        is_inter_broker: bool = False,
        principal_of: Callable[[asyncio.BaseTransport], KafkaPrincipal] | None = None,
        now_ns: Callable[[], int] | None = None,
    ) -> None:
        """`now_ns` is the clock by which requests are timed; without it they are not."""
        self._dispatcher = dispatcher
        self._lane = dispatcher.lane
        self._now_ns = now_ns
        # When bytes were last received. None are while others wait, so it is true of those too.
        self._received_ns = 0
        # The last time that was read of the clock: when the next request starts, as nothing is done before.
        self._mark_ns = 0
        # The requests that are timed and whose responses go out with the next write.
        self._sending: list[PendingRequest] = []
        self._principal_of = principal_of
        self.limits = limits
        self._frame_bounds: FrameBounds = limits
        self._fault_log = fault_log
        self._memory = memory
        self.pool = memory.nodes if is_inter_broker else memory.clients
        self.listener = listener
        # Replaced once the client has authenticated.
        self.principal: KafkaPrincipal = ANONYMOUS
        self._receive = receive
        self._on_open = on_open
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._pending: deque[PendingRequest] = deque()
        # What is counted in the pool: requests in progress, the frame that is being received and the backlog;
        # responses that are held (`PendingRequest.hold`) and those that were written and are unread.
        self._request_bytes = 0
        self._response_bytes = 0
        self._unread = 0
        # Bytes of responses since it was last looked how many are unread.
        self._unwatched = 0
        # How many were left when it was last looked, and when the client was last seen to take some.
        self._last_left = 0
        self.last_taken = 0.0
        # What the client has taken of its responses lately, and since when that is counted.
        self._rate_bytes = 0
        self._rate_since = 0.0
        # The frame that is being received: its storage and how large that may become by what is counted, how
        # much has come, and how much there will be.
        self._frame: bytearray | None = None
        self._frame_bytes = 0
        self._filled = 0
        self._frame_size = 0
        # Received bytes that wait: less than a frame's length, or no further request may be started now.
        self._backlog = b""
        self._out: Parts = []
        self._out_bytes = 0
        self._reading_paused = False
        self._waiting_for_memory = False
        self._yielding = False
        # Requests that were started and are still decoded; those behind them wait.
        self._holding_back = 0
        # The size of the buffer that was given out last, and the bytes since one was not filled.
        self._offered = 0
        self._unbroken = 0
        self._write_paused = False
        # Until when no further request is started, as the client has exceeded a quota; 0 if it never has.
        self._throttled_until = 0.0
        self._throttle_timer: asyncio.TimerHandle | None = None
        # The client sends nothing more; it gets the responses to its requests, and that is all.
        self._half_closed = False
        self.closed = False
        self.last_active = 0.0
        # When the client must have logged in, if it must and has not.
        self.login_deadline: float | None = None
        self.peer: tuple[str, int] = ("", 0)
        self.local: tuple[str, int] = ("", 0)
        self.transport: asyncio.Transport
        # The name and version of the client's software, once ApiVersions has said so.
        self.client_software: str | None = None
        # The id and epoch of the broker whose heartbeats come by this connection.
        self.broker_incarnation: tuple[int, int] | None = None
        # While Produce requests of this connection wait for their turn to append: completes when the last of
        # them has appended.
        self.last_produce: asyncio.Future[None] | None = None
        # The partitions of the client's last Fetch, if it uses no fetch sessions.
        self.kept_fetch: KeptForClient | None = None
        # The instance as which the client pushes its metrics.
        self.kept_telemetry: KeptForClient | None = None
        # The share sessions that the client has begun by this connection.
        self.kept_share_sessions: KeptForClient | None = None

    # What the event loop calls

    def on_accepted_from(self, peer: Address) -> None:
        self.peer = (peer.host, peer.port)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self.transport = transport = cast("asyncio.Transport", transport)
        if not self.peer[0]:
            self.peer = _address(transport.get_extra_info("peername"))
        self.local = _address(transport.get_extra_info("sockname"))
        self.last_active = self._loop.time()
        transport.set_write_buffer_limits(_WRITE_HIGH_BYTES, _WRITE_LOW_BYTES)
        if not self._on_open(self):
            self.closed = True
            transport.abort()
            return
        if self.login_deadline is not None:
            self.limits.add_login(self, self.last_active)
        if self._principal_of is not None:
            try:
                self.principal = self._principal_of(transport)
            except ValueError as error:
                self.close_because(str(error))

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is None:
            # What is received before the client is throttled again waits here, so that is to be little.
            is_little = self.pool.is_short or (
                self._throttled_until and self.last_active - self._throttled_until < _LATELY_SECONDS
            )
            buffer = self._receive[:_RECEIVE_WHEN_SHORT_BYTES] if is_little else self._receive
            self._offered = len(buffer)
            return buffer
        if self._filled == len(self._frame):
            if self._filled == self._frame_bytes:
                self._count_growth(self._growth())  # Bytes that were on their way already.
            self._frame += _ZEROS[: self._frame_bytes - self._filled]
        self._offered = len(self._frame) - self._filled
        return memoryview(self._frame)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self.last_active = self._loop.time()
        if self._now_ns is not None:
            self._received_ns = self._mark_ns = self._now_ns()
        unbroken = self._unbroken + nbytes if nbytes == self._offered else 0
        self._take(nbytes)
        if unbroken >= _BYTES_OF_A_TURN:
            # The event loop would read on for as long as the client sends.
            unbroken = 0
            if not self.closed:
                self._yield()
                self._pause_reading()
        self._unbroken = unbroken

    def _take(self, nbytes: int) -> None:
        """Start the requests that have come, and keep the rest."""
        if self._frame is not None:
            self._filled = filled = self._filled + nbytes
            if filled < self._frame_bytes:
                return
            if filled < self._frame_size:
                self._grow()
                return
            frame, self._frame = self._frame, None
            self.pool.on_complete(self)
            self._start_frames(_NOTHING, frame)
            return
        self._start_frames(self._receive[:nbytes], None)

    def eof_received(self) -> bool:
        """The client sends no more. One that has only closed its half still reads its responses; True keeps
        the connection for that. Over TLS there are no half-closed connections.
        """
        if self.closed or not self._pending or self.transport.get_extra_info("sslcontext") is not None:
            return False
        if not self._half_closed:
            if self.limits.half_closed >= self.limits.max_half_closed:
                return False
            self._half_closed = True
            self.limits.half_closed += 1
            self._drop_frame()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._drop_frame()
        limits = self.limits
        limits.logging_in.pop(self, None)
        if self._half_closed:
            limits.half_closed -= 1
        requests, self._pending = self._pending, deque()
        for request in requests:
            if request.task is not None and not request.task.done():
                cancel(request.task)
        limits.in_progress -= len(requests)
        self._backlog = b""
        self._out.clear()
        self._sending.clear()
        self._write_paused = False
        if self._throttle_timer is not None:
            self._throttle_timer.cancel()
            self._throttle_timer = None
        pool = self.pool
        pool.requests -= self._request_bytes
        pool.responses -= self._response_bytes
        self._request_bytes = self._response_bytes = self._unread = 0
        pool.forget(self)
        if self.kept_fetch is not None:
            self.kept_fetch.close()
        if self.kept_telemetry is not None:
            self.kept_telemetry.close()
        if self.kept_share_sessions is not None:
            self.kept_share_sessions.close()
        self._on_close(self)
        assert pool.requests >= 0, pool.requests
        assert pool.responses >= 0, pool.responses
        assert limits.half_closed >= 0, limits.half_closed
        assert limits.in_progress >= 0, limits.in_progress

    def pause_writing(self) -> None:
        self._write_paused = True
        self._pause_reading()

    def resume_writing(self) -> None:
        self._set_unread(self.transport.get_write_buffer_size())
        self._write_paused = False
        self._advance()

    # Frames

    def _start_frames(self, data: memoryview, frame: bytearray | None) -> None:
        """Start a complete frame, if there is one, and then those in the data; keep the rest."""
        try:
            if frame is not None:
                self._start(frame)
            if self._backlog:
                if self._now_ns is not None:
                    self._mark_ns = self._now_ns()
                data = memoryview(bytearray(self._backlog) + data)
                self._release_request(len(self._backlog))
                self._backlog = b""
            position, end = 0, len(data)
            turn_ends: float | None = None
            lane, pending = self._lane, self._pending
            while position < end and not self.closed:
                if end - position < 4 or self._must_wait():
                    self._backlog = bytes(data[position:])
                    self._count_request(end - position)
                    break
                if lane is not None and not pending:
                    before, position = position, self._take_lane(lane, data, position)
                    if position > before:
                        if position < end:
                            turn_ends = self._turn_ends(turn_ends)
                        continue
                (size,) = _LENGTH.unpack_from(data, position)
                if not 0 <= size <= self._frame_bounds.max_frame_bytes:
                    raise self._wrong_size(size, data[position:])
                position += 4
                pool = self.pool
                is_complete = end - position >= size
                storage = size if is_complete else self._first_allocation(size, end - position)
                if pool.requests + pool.responses + storage > pool.unasked and not pool.try_start(
                    self, storage, has_records=bytes(data[position : position + 2]) in (_PRODUCE, b"")
                ):
                    self._waiting_for_memory = True
                    position -= 4
                    continue
                pool.requests += storage
                self._request_bytes += storage
                if not is_complete:
                    self._begin_frame(size, data[position:], storage)
                    break
                self._start(bytearray(data[position : position + size]))
                position += size
                if position < end:
                    turn_ends = self._turn_ends(turn_ends)
        except ProtocolViolation as violation:
            self.close_because(str(violation))
        self._flush()
        self._pause_or_resume()

    def _turn_ends(self, turn_ends: float | None) -> float:
        """When the turn of the connection ends; it has begun if that is None, and yields if it is over."""
        now = self._loop.time()
        if turn_ends is None:
            return now + _TURN_SECONDS
        if now >= turn_ends:
            self._yield()
        return turn_ends

    def _take_lane(self, lane: RequestLane, data: memoryview, position: int) -> int:
        """Have the lane answer what it can; return the position from which on the dispatcher answers."""
        pool = self.pool
        room = min(pool.unasked - pool.requests - pool.responses, self._frame_bounds.max_frame_bytes)
        position = lane.take(self, data, position, room, self._received_ns)
        appended = lane.appended
        if appended is not None:
            # Whatever the bounds say, it is answered now: a part of it is done.
            (size,) = _LENGTH.unpack_from(data, position)
            self._count_request(size)
            position += 4
            self._start(bytearray(data[position : position + size]), appended)
            position += size
        if self._now_ns is not None:
            self._mark_ns = self._now_ns()
        return position

    def add_responses(self, data: bytes) -> None:
        """Let responses of the lane go out next; no request is in progress."""
        self._out.append(data)
        self._out_bytes += len(data)

    def _wrong_size(self, size: int, data: memoryview) -> ProtocolViolation:
        guess = looks_like(bytes(data[:64]))
        if guess is not None:
            return ProtocolViolation(f"it sent what looks like {guess}; this port speaks Kafka's protocol")
        bounds = self._frame_bounds
        setting = "socket.request.max.bytes" if bounds is self.limits else "sasl.server.max.receive.size"
        return ProtocolViolation(
            f"it announced a request of {size} bytes, and {setting} is {bounds.max_frame_bytes}"
        )

    def _first_allocation(self, size: int, received: int) -> int:
        first = _FIRST_ALLOCATION_WHEN_SHORT_BYTES if self.pool.is_short else _FIRST_ALLOCATION_BYTES
        return min(size, max(first, received))

    def _begin_frame(self, size: int, data: memoryview, storage: int) -> None:
        """Make room for a frame of which only the beginning is here. More room is made as it fills."""
        self._frame = bytearray(storage)
        self._frame[: len(data)] = data
        self._frame_bytes = storage
        self._frame_size = size
        self._filled = len(data)
        self.pool.incomplete[self] = None
        self.pool.watch()
        if self._filled == storage:
            self._grow()

    def _drop_frame(self) -> None:
        if self._frame is not None:
            self._frame = None
            self._release_request(self._frame_bytes)
            self.pool.on_complete(self)

    def _growth(self) -> int:
        return min(self._frame_bytes, _LARGEST_GROWTH_BYTES, self._frame_size - self._frame_bytes)

    def _grow(self) -> None:
        """Let the storage of the frame grow, or wait until it may. The buffer of the event loop is a view of
        it, so it is made larger when the next one is asked for.
        """
        pool, growth = self.pool, self._growth()
        if pool.requests + pool.responses + growth <= pool.unasked or pool.try_grow(self, growth):
            self._count_growth(growth)
        else:
            self._waiting_for_memory = True
            self._pause_reading()

    def _count_growth(self, growth: int) -> None:
        self._frame_bytes += growth
        self._request_bytes += growth
        self.pool.requests += growth

    def _start(self, frame: bytearray, appended: list[tuple[int, int, int]] | None = None) -> None:
        size = len(frame)
        request = PendingRequest(self, size)
        request.appended = appended
        self._pending.append(request)
        self.limits.in_progress += 1
        now_ns = self._now_ns
        if now_ns is not None:
            request.received_ns = self._received_ns
            request.started_ns = self._mark_ns
        reply = self._dispatcher.start(request, memoryview(frame))
        if self.closed:
            return
        if reply is None or isinstance(reply, list):
            self._finish(request, reply)
        else:
            if now_ns is not None:
                request.returned_ns = self._mark_ns = now_ns()
            request.task = asyncio.ensure_future(reply)
            request.task.add_done_callback(lambda task: self._on_request_done(request, task))

    # Responses

    def _on_request_done(self, request: PendingRequest, task: asyncio.Future[Parts | None]) -> None:
        request.task = None
        if self.closed:
            if not task.cancelled():
                task.exception()
            return
        if task.cancelled():
            # By something that it waited for. Unanswered, it would hold back all requests after it.
            self.close_because("its request was given up")
            return
        error = task.exception()
        if error is not None:
            self.close_because(
                str(error) if isinstance(error, ProtocolViolation) else f"its request failed: {error!r}"
            )
            return
        self._finish(request, task.result())
        self._flush()
        self._advance()

    def _finish(self, request: PendingRequest, parts: Parts | None) -> None:
        """Take a response; it goes out with those after it that are ready, once all before it have."""
        request.ready = True
        request.parts = parts
        request.response_size = 0 if parts is None else sum(map(len, parts))
        if self._now_ns is not None:
            request.ready_ns = self._mark_ns = self._now_ns()
        requests = self._pending
        if requests[0] is not request:
            if parts is not None:
                request.hold(request.response_size)
            return
        pool = self.pool
        while requests and requests[0].ready:
            done = requests.popleft()
            self.limits.in_progress -= 1
            if done.parts is not None:
                self._out += done.parts
                self._out_bytes += done.response_size
            if done.statistics is not None:
                self._sending.append(done)
            if done.held_bytes:
                done.hold(0)
            size = done.size + done.decoded_bytes
            self._request_bytes -= size
            pool.requests -= size
        if pool.has_waiting:
            pool.on_released()

    def _flush(self) -> None:
        if self._out and not self.closed:
            parts, self._out = self._out, []
            size, self._out_bytes = self._out_bytes, 0
            self.last_active = self._loop.time()
            # A few small responses cost less as one buffer than as many.
            if size < _JOIN_BYTES and len(parts) > 1:
                self.transport.write(b"".join(parts))
            else:
                self.transport.writelines(parts)
            self._unwatched += size
            if self._unwatched >= _UNWATCHED_BYTES:
                self._watch_unread(size)
        if self._sending and not self.closed:
            self._count_sent()

    def _count_sent(self) -> None:
        """Count the requests whose responses were just given to the transport, or that have none."""
        assert self._now_ns is not None
        now_ns = self._now_ns()
        for request in self._sending:
            statistics = request.statistics
            assert statistics is not None
            received_ns, started_ns, ready_ns = request.received_ns, request.started_ns, request.ready_ns
            statistics.count += 1
            statistics.request_bytes += request.size
            statistics.response_bytes += request.response_size
            statistics.queue_ns += started_ns - received_ns
            if request.returned_ns:
                statistics.remote_ns += ready_ns - request.returned_ns
                ready_ns = request.returned_ns
            statistics.local_ns += ready_ns - started_ns
            statistics.send_ns += now_ns - request.ready_ns
            statistics.times[bisect_left(TIME_BOUNDS_NS, now_ns - received_ns)] += 1
        self._sending.clear()

    def is_turn(self, request: PendingRequest) -> bool:
        pool = self.pool
        return (
            bool(self._pending)
            and self._pending[0] is request
            and not self._write_paused
            and (pool.requests + pool.responses <= pool.unasked or pool.may_read(self))
        )

    def wait_for_turn(self, request: PendingRequest) -> None:
        """Have the request woken when its turn may have come."""
        if self._pending and self._pending[0] is request and not self._unread:
            self.pool.wait_to_read(request)

    # What is counted

    @property
    def held_bytes(self) -> int:
        """The bytes of requests and responses that the connection makes the node hold."""
        return self._request_bytes + self._response_bytes

    def has_unread(self) -> bool:
        """Whether responses were written that the client has not taken yet."""
        self.look_at_unread(self._loop.time())
        return self._unread > 0

    def _count_request(self, size: int) -> None:
        self._request_bytes += size
        self.pool.requests += size

    def count_decoded(self, size: int) -> int:
        """Count the bytes of a request beyond those of its frame; return how many are counted."""
        if self.closed:
            return 0
        self._count_request(size)
        return size

    def _release_request(self, size: int) -> None:
        self._request_bytes -= size
        self.pool.requests -= size
        self.pool.on_released()

    def count_response(self, size: int) -> None:
        """Count bytes of responses; below 0, that many less."""
        if not self.closed:
            self._response_bytes += size
            self.pool.responses += size
            if size < 0:
                self.pool.on_released()

    @property
    def is_inter_broker(self) -> bool:
        """Whether its memory is counted among that of other nodes."""
        return self.pool is self._memory.nodes

    def mark_inter_broker(self) -> None:
        """Count the memory of the connection among that of other nodes from now on, as its client says that
        it is a broker. No quota is lifted by that: without an authorizer any client may say so.
        """
        nodes, pool = self._memory.nodes, self.pool
        if pool is nodes or self.closed:
            return
        pool.requests -= self._request_bytes
        pool.responses -= self._response_bytes
        nodes.requests += self._request_bytes
        nodes.responses += self._response_bytes
        if self in pool.incomplete:
            nodes.incomplete[self] = None
        if self in pool.unread:
            nodes.unread[self] = None
            nodes.watch()
        self.pool = nodes
        pool.forget(self)
        if self._waiting_for_memory:
            self.on_memory_available()

    def _watch_unread(self, size: int) -> None:
        """Count what the client has not read, after so many bytes more were written. The transport keeps the
        memory of a large response until all of it has gone out.
        """
        self._unwatched = 0
        left = self.transport.get_write_buffer_size()
        self._set_unread(max(left, self._unread + size) if self._write_paused else left)

    def _set_unread(self, unread: int) -> None:
        if unread == self._unread or self.closed:
            return
        if not self._unread:
            self.last_taken = self._rate_since = self._loop.time()
            self._last_left = self._rate_bytes = 0
            self.pool.unread[self] = None
            self.pool.watch()
        elif not unread:
            self.pool.unread.pop(self, None)
            if not self._write_paused:  # `resume_writing` advances at once.
                self._loop.call_soon(self._advance)
        before, self._unread = self._unread, unread
        self.count_response(unread - before)

    def look_at_unread(self, now: float) -> None:
        """See whether the client has read since the last look."""
        if not self._unread:
            return
        left = self.transport.get_write_buffer_size()
        if not self._write_paused:
            self._set_unread(left)
        if not left:
            return
        left += unacknowledged_bytes(self.transport)
        if left != self._last_left:
            self._rate_bytes += max(self._last_left - left, 0)
            self._last_left = left
            self.last_taken = self.last_active = now
        if now - self._rate_since > 2 * _RATE_SECONDS:
            self._rate_since += _RATE_SECONDS
            self._rate_bytes //= 2

    def drain_seconds(self, now: float) -> float:
        """How long the client would take to read its responses at the rate of late; 0 if that is not known
        yet.
        """
        seconds = now - self._rate_since
        if seconds < _RATE_SECONDS:
            return 0.0
        return self._unread * seconds / max(self._rate_bytes, 1)

    # Flow control

    def _must_wait(self) -> bool:
        """Whether no further request may be started now."""
        if self._out_bytes >= _WRITE_HIGH_BYTES:
            # The transport calls `pause_writing` at once when it holds too much.
            self._flush()
        # The request that is being received can only be started once all of it is here.
        started = self._request_bytes if self._frame is None else self._request_bytes - self._frame_bytes
        return (
            self._write_paused
            or self._waiting_for_memory
            or self._yielding
            or self._holding_back > 0
            or (self._throttle_timer is not None and self._frame is None)
            or len(self._pending) >= self.limits.requests_at_once()
            or started >= self.limits.max_in_flight_bytes
        )

    def throttle(self, delay_s: float) -> None:
        """Start no further request for so long, and do not read the next one; responses that are ready go
        out. One that is being received is received to its end: others may wait for its memory.
        """
        ends = self._loop.time() + delay_s
        if self.closed or (self._throttle_timer is not None and ends <= self._throttled_until):
            return
        if self._throttle_timer is not None:
            self._throttle_timer.cancel()
        self._throttled_until = ends
        self._throttle_timer = self._loop.call_at(ends, self._on_throttled)
        if self._frame is None:
            self._pause_reading()

    def _on_throttled(self) -> None:
        """Go on with a client that was throttled for long enough."""
        self._throttle_timer = None
        self.last_active = self._loop.time()
        self._advance()

    def _yield(self) -> None:
        """Let other connections have their turn before more requests of this one are started."""
        if not self._yielding:
            self._yielding = True
            self._loop.call_soon(self._on_yielded)

    def _on_yielded(self) -> None:
        self._yielding = False
        self.last_active = self._loop.time()
        self._advance()

    def hold_back(self) -> None:
        """Start no further request until `go_on`."""
        self._holding_back += 1

    def go_on(self) -> None:
        self._holding_back -= 1
        assert self._holding_back >= 0, self._holding_back
        self._advance()

    def _advance(self) -> None:
        """Let the oldest request make its response, and continue to read: something has become free."""
        if self.closed:
            return
        if self._half_closed and not self._pending:
            self.close()
            return
        if self._pending and not self._write_paused:
            self._pending[0].wake()
        if self._reading_paused and not self._must_wait():
            if self._backlog:
                self._start_frames(_NOTHING, None)
            else:
                self._pause_or_resume()

    def on_memory_available(self) -> None:
        """Try again to receive what there was no memory for."""
        self._waiting_for_memory = False
        if self.closed:
            return
        if self._frame is not None and self._filled == self._frame_bytes:
            self._grow()
        self._advance()

    def _pause_or_resume(self) -> None:
        if self.closed or self._half_closed:
            return
        if self._must_wait():
            self._pause_reading()
        elif self._reading_paused:
            self._reading_paused = False
            self.transport.resume_reading()

    def _pause_reading(self) -> None:
        if not self._reading_paused and not self.closed and not self._half_closed:
            self._reading_paused = True
            self.transport.pause_reading()

    # The login

    def begin_login(self, bounds: FrameBounds, deadline: float) -> None:
        """Bound the frames of a client that is not known yet, and the time until it is."""
        self._frame_bounds = bounds
        self.login_deadline = deadline

    def on_login(self, principal: KafkaPrincipal, dispatcher: RequestDispatcher) -> None:
        """Serve the client, which is known now."""
        self.principal = principal
        self._dispatcher = dispatcher
        self._lane = dispatcher.lane
        self._frame_bounds = self.limits
        self.login_deadline = None
        self.limits.logging_in.pop(self, None)

    # Closing

    @property
    def waits_for_node(self) -> bool:
        """Whether it is the node's turn: a request is in progress, or waits for memory, or the client is
        throttled, and has taken its former responses.
        """
        is_due = self._pending or self._waiting_for_memory or self._throttle_timer is not None
        return bool(is_due) and not self._unread

    @property
    def half_closed(self) -> bool:
        """Whether the client sends nothing more, and is gone or waits for its last responses."""
        return self._half_closed

    @property
    def is_reading_paused(self) -> bool:
        """Whether the client is not read from for now."""
        return self._reading_paused

    def close_because(self, reason: str) -> None:
        """Close for a fault of the client, with one line in the log."""
        if not self.closed:
            self._fault_log.log_closed(self.peer, reason, self._loop.time())
            self.close()

    def abort_because(self, reason: str) -> None:
        """Close at once for a fault of the client, with one line in the log."""
        if not self.closed:
            self._fault_log.log_closed(self.peer, reason, self._loop.time())
            self.abort()

    def close_with(self, parts: Parts, reason: str) -> None:
        """Send a last response and close for a fault of the client, with one line in the log."""
        if not self.closed:
            self._out += parts
            self._out_bytes += sum(map(len, parts))
            self.close_because(reason)

    def close(self) -> None:
        """Send what is ready and close."""
        if self.closed:
            return
        self._flush()
        self.closed = True
        self.transport.close()

    def abort(self) -> None:
        """Close at once and drop what was not sent."""
        self.closed = True
        self.transport.abort()


def _address(name: Any) -> tuple[str, int]:
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) and len(name) >= 2 else ("", 0)
