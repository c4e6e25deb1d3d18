"""One client connection: frames in, responses out, in order, within bounds.

There is no queue and no pool of threads between a connection and the handlers (Kafka's `RequestChannel` and
`KafkaRequestHandler`): requests are started in the order in which they came and answered in that order, and
later ones are worked on while earlier ones wait. What a client can make the node hold is bounded at every
point: a frame is refused by its size before any of it is stored, storage for a large one grows only as its
bytes arrive, and reading stops while too many requests are in progress, while the node's memory for requests
is used up, or while the client does not read its responses. Invariant: `_pending` holds the requests that
were started and whose responses were not written yet, oldest first.

Bytes arrive in a buffer that all connections share: between `get_buffer` and `buffer_updated` no other code
runs, and what is to stay is copied out before `buffer_updated` returns.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, TypeAlias, cast

from ottla.node.network.protocol_guess import looks_like
from ottla.runtime.disk import Buffer

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
_TURN_SECONDS: Final = 0.01
_LENGTH: Final = struct.Struct(">i")
_NOTHING: Final = memoryview(b"")
# What all slow readers together may have unread, and what each may have in any case.
_UNREAD_BYTES: Final = 512 * 1024 * 1024
_MIN_SHARE_BYTES: Final = 256 * 1024
# Requests that all connections together may have in progress before each may have only one.
_MANY_IN_PROGRESS: Final = 20_000
# Mostly their clients are gone for good, so only so many are kept for those that still read.
_MOST_HALF_CLOSED: Final = 500
_FAULTS_BURST: Final = 50
_FAULTS_PER_SECOND: Final = 5


class ProtocolViolation(Exception):
    """A request cannot be answered; the connection is closed, and the text says why in the log."""


class RequestDispatcher(Protocol):
    """Answers the requests of a listener."""

    def start(self, pending: PendingRequest, frame: memoryview) -> Parts | Awaitable[Parts | None] | None:
        """Begin to work on a request; return its response, or an awaitable of it, or None if it has none."""
        ...


class MemoryWaiter(Protocol):
    def on_memory_available(self) -> None:
        """There may be memory again: try once more."""


class RequestMemoryPool:
    """How many bytes of requests may be held at once, over all connections (`queued.max.request.bytes`).

    A frame is admitted while less than the limit is in use, so that one is always let in, whatever its size.
    Invariant: `used` is the sum of what was allocated and not released, and never negative.
    """

    __slots__ = ("_waiting", "limit", "used")

    def __init__(self, limit: int = -1) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: deque[MemoryWaiter] = deque()

    def try_allocate(self, size: int, waiter: MemoryWaiter) -> bool:
        """Whether the bytes may be held now; otherwise the waiter is called when it may try again."""
        if self.limit > 0 and self.used >= self.limit:
            self._waiting.append(waiter)
            return False
        self.used += size
        return True

    def release(self, size: int) -> None:
        self.used = used = self.used - size
        assert used >= 0, used
        while self._waiting and (self.limit <= 0 or self.used < self.limit):
            self._waiting.popleft().on_memory_available()


class ConnectionLimits:
    """Bounds that all connections of a server share and that may change while it runs, and their counters,
    which are never negative.
    """

    __slots__ = (
        "half_closed",
        "in_progress",
        "max_frame_bytes",
        "max_half_closed",
        "max_in_flight",
        "max_in_flight_bytes",
        "slow_readers",
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
        # Connections whose clients have not read what they were sent.
        self.slow_readers = 0
        # Requests that have been started and not yet answered.
        self.in_progress = 0
        # Connections whose clients send nothing more and have not got all their responses.
        self.half_closed = 0
        self.max_half_closed = _MOST_HALF_CLOSED

    def requests_at_once(self) -> int:
        """How many requests one connection may have in progress; at least one, as each goes on by its own
        responses.
        """
        return self.max_in_flight if self.in_progress < _MANY_IN_PROGRESS else 1

    def response_bytes(self) -> int:
        """How large a response should be at most, so that slow readers together do not hold too much."""
        return max(_MIN_SHARE_BYTES, _UNREAD_BYTES // (1 + self.slow_readers))


class ClientFaultLog:
    """Lines in the log about clients at fault: each gets one, but a flood of them does not flood the log."""

    __slots__ = ("_left", "_refilled", "_suppressed")

    def __init__(self) -> None:
        self._left = float(_FAULTS_BURST)
        self._refilled = 0.0
        self._suppressed = 0

    def log_closed(self, peer: tuple[str, int], reason: str, now: float) -> None:
        """Log that the connection of a client was closed, and why."""
        self._left = min(_FAULTS_BURST, self._left + (now - self._refilled) * _FAULTS_PER_SECOND)
        self._refilled = now
        if self._left < 1:
            self._suppressed += 1
            return
        self._left -= 1
        if self._suppressed:
            _log.warning("closed %d more connections for faults of their clients", self._suppressed)
            self._suppressed = 0
        _log.warning("closed the connection from %s:%d: %s", *peer, reason)


class PendingRequest:
    """A request in progress and its response. The request's handler sees it as its place in the line."""

    __slots__ = ("_turn", "connection", "parts", "ready", "size", "task")

    def __init__(self, connection: ClientConnection, size: int) -> None:
        self.connection = connection
        self.size = size
        self.ready = False
        self.parts: Parts | None = None
        self.task: asyncio.Future[Parts | None] | None = None
        self._turn: asyncio.Future[None] | None = None

    @property
    def response_bytes(self) -> int:
        """How large the response should be at most."""
        return self.connection.limits.response_bytes()

    @property
    def is_turn(self) -> bool:
        """Whether a response would go out now: none before it waits and the client keeps reading."""
        return self.connection.is_turn(self)

    async def wait_for_turn(self) -> None:
        """Wait until `is_turn`. A response that takes much memory should be made only then."""
        while not self.is_turn:
            self._turn = asyncio.get_running_loop().create_future()
            await self._turn

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
        "_frame_size",
        "_half_closed",
        "_in_flight_bytes",
        "_loop",
        "_memory",
        "_on_close",
        "_on_open",
        "_out",
        "_out_bytes",
        "_pending",
        "_reading_paused",
        "_receive",
        "_waiting_for_memory",
        "_write_paused",
        "_yielding",
        "broker_incarnation",
        "client_software",
        "closed",
        "last_active",
        "last_produce",
        "limits",
        "local",
        "peer",
        "transport",
    )

    def __init__(
        self,
        dispatcher: RequestDispatcher,
        limits: ConnectionLimits,
        memory: RequestMemoryPool,
        receive: memoryview,
        on_open: Callable[[ClientConnection], bool],
        on_close: Callable[[ClientConnection], None],
        fault_log: ClientFaultLog,
    ) -> None:
        self._dispatcher = dispatcher
        self.limits = limits
        self._fault_log = fault_log
        self._memory = memory
        self._receive = receive
        self._on_open = on_open
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._pending: deque[PendingRequest] = deque()
        self._in_flight_bytes = 0
        # The frame that is being received: its storage, how much has come, and how much there will be.
        self._frame: bytearray | None = None
        self._filled = 0
        self._frame_size = 0
        # Received bytes that wait: less than a frame's length, or no further request may be started now.
        self._backlog = b""
        self._out: Parts = []
        self._out_bytes = 0
        self._reading_paused = False
        self._waiting_for_memory = False
        self._yielding = False
        self._write_paused = False
        # The client sends nothing more; it gets the responses to its requests, and that is all.
        self._half_closed = False
        self.closed = False
        self.last_active = 0.0
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

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self.transport = transport = cast("asyncio.Transport", transport)
        self.peer = _address(transport.get_extra_info("peername"))
        self.local = _address(transport.get_extra_info("sockname"))
        self.last_active = self._loop.time()
        transport.set_write_buffer_limits(_WRITE_HIGH_BYTES, _WRITE_LOW_BYTES)
        if not self._on_open(self):
            self.closed = True
            transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is None:
            return self._receive
        if self._filled == len(self._frame):
            self._grow()
        return memoryview(self._frame)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self.last_active = self._loop.time()
        if self._frame is not None:
            self._filled += nbytes
            if self._filled == self._frame_size:
                frame, self._frame = self._frame, None
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
        if self._half_closed:
            limits.half_closed -= 1
        requests, self._pending = self._pending, deque()
        for request in requests:
            if request.task is not None and not request.task.done():
                request.task.cancel()
            self._memory.release(request.size)
        limits.in_progress -= len(requests)
        self._backlog = b""
        self._out.clear()
        if self._write_paused:
            self._write_paused = False
            limits.slow_readers -= 1
        self._on_close(self)
        assert limits.half_closed >= 0, limits.half_closed
        assert limits.in_progress >= 0, limits.in_progress
        assert limits.slow_readers >= 0, limits.slow_readers

    def pause_writing(self) -> None:
        self._write_paused = True
        self.limits.slow_readers += 1
        self._pause_reading()

    def resume_writing(self) -> None:
        self._write_paused = False
        self.limits.slow_readers -= 1
        self._advance()

    # Frames

    def _start_frames(self, data: memoryview, frame: bytearray | None) -> None:
        """Start a complete frame, if there is one, and then those in the data; keep the rest."""
        try:
            if frame is not None:
                self._start(frame)
            if self._backlog:
                data = memoryview(self._backlog + data)
                self._backlog = b""
            position, end = 0, len(data)
            turn_ends: float | None = None
            while position < end and not self.closed:
                if end - position < 4 or self._must_wait():
                    self._backlog = bytes(data[position:])
                    break
                (size,) = _LENGTH.unpack_from(data, position)
                if not 0 <= size <= self.limits.max_frame_bytes:
                    raise self._wrong_size(size, data[position:])
                if not self._memory.try_allocate(size, self):
                    self._waiting_for_memory = True
                    continue
                position += 4
                if end - position < size:
                    self._begin_frame(size, data[position:])
                    break
                self._start(bytearray(data[position : position + size]))
                position += size
                if position < end:
                    now = self._loop.time()
                    if turn_ends is None:
                        turn_ends = now + _TURN_SECONDS
                    elif now >= turn_ends:
                        self._yield()
        except ProtocolViolation as violation:
            self.close_because(str(violation))
        self._flush()
        self._pause_or_resume()

    def _wrong_size(self, size: int, data: memoryview) -> ProtocolViolation:
        guess = looks_like(bytes(data[:64]))
        if guess is not None:
            return ProtocolViolation(f"it sent what looks like {guess}; this port speaks Kafka's protocol")
        return ProtocolViolation(
            f"it announced a request of {size} bytes, and socket.request.max.bytes is "
            f"{self.limits.max_frame_bytes}"
        )

    def _begin_frame(self, size: int, data: memoryview) -> None:
        """Make room for a frame of which only the beginning is here. More room is made as it fills."""
        self._frame = bytearray(min(size, max(_FIRST_ALLOCATION_BYTES, len(data))))
        self._frame[: len(data)] = data
        self._frame_size = size
        self._filled = len(data)

    def _drop_frame(self) -> None:
        if self._frame is not None:
            self._frame = None
            self._memory.release(self._frame_size)

    def _grow(self) -> None:
        assert self._frame is not None
        have = len(self._frame)
        self._frame += _ZEROS[: min(have, _LARGEST_GROWTH_BYTES, self._frame_size - have)]

    def _start(self, frame: bytearray) -> None:
        size = len(frame)
        request = PendingRequest(self, size)
        self._pending.append(request)
        self.limits.in_progress += 1
        self._in_flight_bytes += size
        reply = self._dispatcher.start(request, memoryview(frame))
        if self.closed:
            return
        if reply is None or isinstance(reply, list):
            self._finish(request, reply)
        else:
            request.task = asyncio.ensure_future(reply)
            request.task.add_done_callback(lambda task: self._on_request_done(request, task))

    # Responses

    def _on_request_done(self, request: PendingRequest, task: asyncio.Future[Parts | None]) -> None:
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
        request.task = None
        self._finish(request, task.result())
        self._flush()
        self._advance()

    def _finish(self, request: PendingRequest, parts: Parts | None) -> None:
        """Take a response; it goes out with those after it that are ready, once all before it have."""
        request.ready = True
        request.parts = parts
        requests = self._pending
        if requests[0] is not request:
            return
        while requests and requests[0].ready:
            done = requests.popleft()
            self.limits.in_progress -= 1
            if done.parts is not None:
                self._out += done.parts
                self._out_bytes += sum(map(len, done.parts))
            self._in_flight_bytes -= done.size
            self._memory.release(done.size)

    def _flush(self) -> None:
        if self._out and not self.closed:
            parts, self._out = self._out, []
            # A few small responses cost less as one buffer than as many.
            small = len(parts) > 1 and self._out_bytes < _JOIN_BYTES
            self._out_bytes = 0
            self.last_active = self._loop.time()
            if small:
                self.transport.write(b"".join(parts))
            else:
                self.transport.writelines(parts)

    def is_turn(self, request: PendingRequest) -> bool:
        return bool(self._pending) and self._pending[0] is request and not self._write_paused

    # Flow control

    def _must_wait(self) -> bool:
        """Whether no further request may be started now."""
        if self._out_bytes >= _WRITE_HIGH_BYTES:
            # The transport calls `pause_writing` at once when it holds too much.
            self._flush()
        return (
            self._write_paused
            or self._waiting_for_memory
            or self._yielding
            or len(self._pending) >= self.limits.requests_at_once()
            or self._in_flight_bytes >= self.limits.max_in_flight_bytes
        )

    def _yield(self) -> None:
        """Let other connections have their turn before more requests of this one are started."""
        self._yielding = True
        self._loop.call_soon(self._on_yielded)

    def _on_yielded(self) -> None:
        self._yielding = False
        self.last_active = self._loop.time()
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
        self._waiting_for_memory = False
        if not self.closed:
            self._loop.call_soon(self._advance)

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

    # Closing

    @property
    def is_busy(self) -> bool:
        """Whether requests are in progress."""
        return bool(self._pending)

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
