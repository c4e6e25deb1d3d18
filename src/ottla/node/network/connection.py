"""One client connection: frames in, responses out, in order, within bounds.

Requests are started in the order in which they came and answered in that order, and later ones are worked on
while earlier ones wait. What a client can make the node hold is bounded at every point: a frame is refused by
its size before any of it is stored, storage for a large one grows only as its bytes arrive, and reading stops
while too many requests are in work, while the node's memory for requests is used up, or while the client does
not read its responses. Invariant: `_exchanges` holds what has been started and not yet written, oldest first.

Bytes arrive in a buffer that all connections share: between `get_buffer` and `buffer_updated` nothing else
runs, and whatever is to stay is copied out before `buffer_updated` returns.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, TypeAlias, cast

from ottla.node.network.limits import ClientFaultLog, ConnectionLimits, RequestMemoryPool
from ottla.node.network.protocol_guess import looks_like
from ottla.runtime.disk import Buffer

Parts: TypeAlias = list[Buffer]
"""A response as it goes out, its length first; buffers are sent one after the other without a copy."""

RECEIVE_BYTES: Final = 256 * 1024
_FIRST_ALLOCATION_BYTES: Final = 1024 * 1024
_LARGEST_GROWTH_BYTES: Final = 4 * 1024 * 1024
_ZEROS: Final = memoryview(bytes(_LARGEST_GROWTH_BYTES))
_WRITE_HIGH_BYTES: Final = 1024 * 1024
_JOIN_BYTES: Final = 64 * 1024
_WRITE_LOW_BYTES: Final = 256 * 1024
# How long requests of one connection are started before others have their turn.
_TURN_SECONDS: Final = 0.01
_LENGTH: Final = struct.Struct(">i")
_NOTHING: Final = memoryview(b"")


class ProtocolViolation(Exception):
    """What arrived cannot be answered; the connection is closed, and the text says why in the log."""


class RequestDispatcher(Protocol):
    """What is done with a request."""

    def start(self, exchange: PendingRequest, frame: memoryview) -> Parts | Awaitable[Parts | None] | None:
        """Begin to work on a request; the response, or what will give it, or None if it has none."""
        ...


class PendingRequest:
    """A request in work and its response. The request's handler sees it as its place in the line."""

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
        """Whether a response would go out now: nothing before it waits and the client keeps reading."""
        return self.connection.is_turn(self)

    async def turn(self) -> None:
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
        "_complaints",
        "_exchanges",
        "_filled",
        "_frame",
        "_frame_size",
        "_in_flight_bytes",
        "_leaving",
        "_loop",
        "_memory",
        "_on_close",
        "_on_open",
        "_out",
        "_out_bytes",
        "_reading_paused",
        "_receive",
        "_resting",
        "_service",
        "_waiting_for_memory",
        "_write_paused",
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
        service: RequestDispatcher,
        limits: ConnectionLimits,
        memory: RequestMemoryPool,
        receive: memoryview,
        on_open: Callable[[ClientConnection], bool],
        on_close: Callable[[ClientConnection], None],
        complaints: ClientFaultLog,
    ) -> None:
        self._service = service
        self.limits = limits
        self._complaints = complaints
        self._memory = memory
        self._receive = receive
        self._on_open = on_open
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._exchanges: deque[PendingRequest] = deque()
        self._in_flight_bytes = 0
        # The frame that is being received: its storage, how much has come, and how much there will be.
        self._frame: bytearray | None = None
        self._filled = 0
        self._frame_size = 0
        # Received bytes that are not looked at yet: less than a frame's length, or a pause came between.
        self._backlog = b""
        self._out: Parts = []
        self._out_bytes = 0
        self._reading_paused = False
        self._waiting_for_memory = False
        self._resting = False
        self._write_paused = False
        # The client sends nothing more; it is answered what it has asked for, and that is all.
        self._leaving = False
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

    # What the loop calls.

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
        """The client sends no more. One that has only closed its half still reads what it asked for; True
        keeps the connection for that. Over TLS there are no half-closed connections.
        """
        if self.closed or not self._exchanges or self.transport.get_extra_info("sslcontext") is not None:
            return False
        if not self._leaving:
            if self.limits.leaving >= self.limits.max_leaving:
                return False
            self._leaving = True
            self.limits.leaving += 1
            self._drop_frame()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._drop_frame()
        if self._leaving:
            self.limits.leaving -= 1
        exchanges, self._exchanges = self._exchanges, deque()
        for exchange in exchanges:
            if exchange.task is not None and not exchange.task.done():
                exchange.task.cancel()
            self._memory.give_back(exchange.size)
        self.limits.in_work -= len(exchanges)
        self._backlog = b""
        self._out.clear()
        if self._write_paused:
            self._write_paused = False
            self.limits.slow_readers -= 1
        self._on_close(self)

    def pause_writing(self) -> None:
        self._write_paused = True
        self.limits.slow_readers += 1
        self._pause_reading()

    def resume_writing(self) -> None:
        self._write_paused = False
        self.limits.slow_readers -= 1
        self._advance()

    # Frames.

    def _start_frames(self, data: memoryview, frame: bytearray | None) -> None:
        """Start a complete frame, if there is one, and then those in the data; keep what is left over."""
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
                if not self._memory.take(size, self):
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
                        self._rest()
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
            self._memory.give_back(self._frame_size)

    def _grow(self) -> None:
        assert self._frame is not None
        have = len(self._frame)
        self._frame += _ZEROS[: min(have, _LARGEST_GROWTH_BYTES, self._frame_size - have)]

    def _start(self, frame: bytearray) -> None:
        size = len(frame)
        exchange = PendingRequest(self, size)
        self._exchanges.append(exchange)
        self.limits.in_work += 1
        self._in_flight_bytes += size
        reply = self._service.start(exchange, memoryview(frame))
        if self.closed:
            return
        if reply is None or isinstance(reply, list):
            self._finish(exchange, reply)
        else:
            exchange.task = asyncio.ensure_future(reply)
            exchange.task.add_done_callback(lambda task: self._done(exchange, task))

    # Responses.

    def _done(self, exchange: PendingRequest, task: asyncio.Future[Parts | None]) -> None:
        if self.closed:
            if not task.cancelled():
                task.exception()
            return
        if task.cancelled():
            # By something that it waited for. Left unanswered, it would hold back all that come after it.
            self.close_because("its request was given up")
            return
        error = task.exception()
        if error is not None:
            self.close_because(
                str(error) if isinstance(error, ProtocolViolation) else f"its request failed: {error!r}"
            )
            return
        exchange.task = None
        self._finish(exchange, task.result())
        self._flush()
        self._advance()

    def _finish(self, exchange: PendingRequest, parts: Parts | None) -> None:
        """Take a response; it goes out with those after it that are ready, once all before it have."""
        exchange.ready = True
        exchange.parts = parts
        exchanges = self._exchanges
        if exchanges[0] is not exchange:
            return
        while exchanges and exchanges[0].ready:
            done = exchanges.popleft()
            self.limits.in_work -= 1
            if done.parts is not None:
                self._out += done.parts
                self._out_bytes += sum(map(len, done.parts))
            self._in_flight_bytes -= done.size
            self._memory.give_back(done.size)

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

    def is_turn(self, exchange: PendingRequest) -> bool:
        return bool(self._exchanges) and self._exchanges[0] is exchange and not self._write_paused

    # Flow.

    def _must_wait(self) -> bool:
        """Whether no further request may be started now."""
        if self._out_bytes >= _WRITE_HIGH_BYTES:
            # The transport tells at once, by `pause_writing`, when it holds too much.
            self._flush()
        return (
            self._write_paused
            or self._waiting_for_memory
            or self._resting
            or len(self._exchanges) >= self.limits.requests_at_once()
            or self._in_flight_bytes >= self.limits.max_in_flight_bytes
        )

    def _rest(self) -> None:
        """A client that sends much at once has had its share: go on when others have had theirs."""
        self._resting = True
        self._loop.call_soon(self._rested)

    def _rested(self) -> None:
        self._resting = False
        self.last_active = self._loop.time()
        self._advance()

    def _advance(self) -> None:
        """Something has become free: let the oldest request make its response, and go on reading."""
        if self.closed:
            return
        if self._leaving and not self._exchanges:
            self.close()
            return
        if self._exchanges and not self._write_paused:
            self._exchanges[0].wake()
        if self._reading_paused and not self._must_wait():
            if self._backlog:
                self._start_frames(_NOTHING, None)
            else:
                self._pause_or_resume()

    def memory_available(self) -> None:
        self._waiting_for_memory = False
        if not self.closed:
            self._loop.call_soon(self._advance)

    def _pause_or_resume(self) -> None:
        if self.closed or self._leaving:
            return
        if self._must_wait():
            self._pause_reading()
        elif self._reading_paused:
            self._reading_paused = False
            self.transport.resume_reading()

    def _pause_reading(self) -> None:
        if not self._reading_paused and not self.closed and not self._leaving:
            self._reading_paused = True
            self.transport.pause_reading()

    # Ends.

    @property
    def busy(self) -> bool:
        """Whether requests are in work."""
        return bool(self._exchanges)

    @property
    def leaving(self) -> bool:
        """Whether the client sends nothing more, and is gone or waits for its last answers."""
        return self._leaving

    @property
    def held_back(self) -> bool:
        """Whether nothing more is read from the client for now."""
        return self._reading_paused

    def close_because(self, reason: str) -> None:
        """Close for a fault of the client's, with one line in the log."""
        if not self.closed:
            self._complaints.about(self.peer, reason, self._loop.time())
            self.close()

    def close(self) -> None:
        """Send what is ready and close."""
        if self.closed:
            return
        self._flush()
        self.closed = True
        self.transport.close()

    def abort(self) -> None:
        """Close at once; what was not sent is dropped."""
        self.closed = True
        self.transport.abort()


def _address(name: Any) -> tuple[str, int]:
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) and len(name) >= 2 else ("", 0)
