"""A small HTTP/1.1 server: for metrics, health and the console of a node, in the node's own event loop.

    async def hello(request: HttpServerRequest) -> HttpServerResponse:
        return HttpServerResponse.json({"hello": request.params["name"]})

    server = HttpServer(runtime.clock, HttpRouter([HttpRoute("GET", "/hello/{name}", hello)]))
    listener = await runtime.network.listen(server.connect, "127.0.0.1", 0)

A request has a task from the end of its head to the end of its response; a connection between two requests
has none. Pipelined requests are answered one after the other. A handler whose client is gone is cancelled.
What a client can make the server hold is bounded at every point: the head and the number of headers
(`http_parser`), what is read ahead of a handler, the body of a request (`HttpRoute.max_body_bytes`), a
response that the client does not read (the handler waits), the number of connections, and the time of each of
these. Where there are too many connections, the one that has waited longest for a request goes.

Invariant: `HttpServer._waiting` holds each connection that has no request in progress, the oldest first.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import gmtime
from typing import Any, Final, NamedTuple, TypeAlias, cast
from urllib.parse import parse_qsl, unquote

from ottla.runtime.address import Address, plain_host
from ottla.runtime.clock import Clock
from ottla.runtime.http_parser import (
    ChunkedBody,
    HttpHeaders,
    HttpProblem,
    RequestHead,
    SizedBody,
    body_of,
    find_head_end,
    parse_head,
)

__all__ = [
    "HttpLimits",
    "HttpMatch",
    "HttpMount",
    "HttpProblem",
    "HttpRoute",
    "HttpRouter",
    "HttpServer",
    "HttpServerRequest",
    "HttpServerResponse",
    "SseEvent",
    "sse_stream",
]

_log = logging.getLogger(__name__)

HttpHandler: TypeAlias = "Callable[[HttpServerRequest], Awaitable[HttpServerResponse]]"

JSON: Final = "application/json; charset=utf-8"
TEXT: Final = "text/plain; charset=utf-8"

_REASONS: Final = {
    int(line[:3]): line[4:]
    for line in """\
200 OK
201 Created
202 Accepted
204 No Content
301 Moved Permanently
302 Found
303 See Other
304 Not Modified
307 Temporary Redirect
400 Bad Request
401 Unauthorized
403 Forbidden
404 Not Found
405 Method Not Allowed
408 Request Timeout
409 Conflict
413 Content Too Large
414 URI Too Long
415 Unsupported Media Type
417 Expectation Failed
421 Misdirected Request
422 Unprocessable Content
429 Too Many Requests
431 Request Header Fields Too Large
500 Internal Server Error
501 Not Implemented
502 Bad Gateway
503 Service Unavailable
504 Gateway Timeout
505 HTTP Version Not Supported""".splitlines()
}
_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_NO_BODY_STATUS: Final = frozenset((204, 304))

_RECEIVE_BYTES: Final = 64 * 1024
# What is received ahead of a handler, or behind its request.
_READ_AHEAD_BYTES: Final = 64 * 1024
_WRITE_HIGH_BYTES: Final = 256 * 1024
_WRITE_LOW_BYTES: Final = 64 * 1024
# Parts of a stream are sent in pieces of at least this size where the next part is ready at once.
_MAX_WRITE_BYTES: Final = 256 * 1024
# What is read and dropped of a client that was refused, so that it gets to see why.
_MAX_DROPPED_BYTES: Final = 16 * 1024 * 1024
_SSE_COMMENT: Final = b": keep-alive\n\n"


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """The bounds of a server. Times are in seconds."""

    max_connections: int = 256
    head_seconds: float = 10.0
    """From the first byte of a request to the end of its head, and from a connection to its first request."""
    idle_seconds: float = 75.0
    """Between two requests."""
    body_seconds: float = 20.0
    """For a body that the handler waits for, with one more for each `body_bytes_per_second`."""
    body_bytes_per_second: int = 16 * 1024
    write_seconds: float = 30.0
    """Until a client that has much to read has read some of it."""
    linger_seconds: float = 2.0
    """For a client to take its last response, after which the connection ends."""
    max_body_bytes: int = 1024 * 1024


@dataclass(slots=True)
class HttpServerResponse:
    """The response to a request. A body that is an iterator is sent as it comes, in chunks; `length` is its
    size where that is known. Responses are not stored by clients unless a `Cache-Control` header is given.
    """

    status: int = 200
    body: bytes | AsyncIterator[bytes] = b""
    content_type: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    length: int | None = None
    cookies: list[str] = field(default_factory=list)
    """Values of `Set-Cookie`."""

    @classmethod
    def json(cls, value: object, status: int = 200) -> HttpServerResponse:
        return cls(status, json.dumps(value, separators=(",", ":")).encode() + b"\n", JSON)

    @classmethod
    def text(cls, text: str, status: int = 200) -> HttpServerResponse:
        return cls(status, text.encode(), TEXT)


class HttpServerRequest:
    """A request, for its handler. `params` are the parts of the path that the route names, unquoted."""

    __slots__ = ("_body", "_connection", "_head", "body_length", "max_body_bytes", "params", "principal")

    def __init__(
        self,
        connection: _Connection,
        head: RequestHead,
        body: SizedBody | ChunkedBody,
        length: int | None,
    ) -> None:
        self._connection: Final = connection
        self._head: Final = head
        self._body: Final = body
        self.body_length: Final = length
        """The size of the body in bytes; None where only its end will tell."""
        self.max_body_bytes = 0
        self.params: Mapping[str, str] = {}
        self.principal: object = None
        """Who asks, as the guard of the server found out; None if it does not know."""

    @property
    def method(self) -> str:
        return self._head.method

    @property
    def path(self) -> str:
        """The path as it was sent, still quoted."""
        return self._head.path

    @property
    def host(self) -> str:
        """The host of the `Host` header in lower case, without its port."""
        return self._head.host

    @property
    def headers(self) -> HttpHeaders:
        return self._head.headers

    @property
    def peer(self) -> Address:
        """The address of the client."""
        return self._connection.peer

    @property
    def transport(self) -> asyncio.Transport:
        return self._connection.transport

    @property
    def is_tls(self) -> bool:
        return self._connection.transport.get_extra_info("ssl_object") is not None

    @property
    def raw_query(self) -> str:
        return self._head.query

    def query(self) -> dict[str, str]:
        """The parameters after the `?`; of a name that is there twice, the last. HttpProblem if there are too
        many.
        """
        try:
            return dict(parse_qsl(self._head.query, keep_blank_values=True, max_num_fields=100))
        except ValueError:
            raise HttpProblem(400, "There are too many parameters.") from None

    def cookie(self, name: str) -> str | None:
        for value in self.headers.all("cookie"):
            for pair in value.split(";"):
                found, equals, text = pair.strip().partition("=")
                if equals and found == name:
                    return text
        return None

    async def chunks(self) -> AsyncIterator[bytes]:
        """Iterate over the body as it arrives. HttpProblem if it is too large, too slow or malformed."""
        received = 0
        while part := await self._connection.next_part(self._body, received):
            received += len(part)
            if received > self.max_body_bytes:
                raise _too_large(self.max_body_bytes)
            yield part

    async def read(self) -> bytes:
        """Return the whole body. HttpProblem as `chunks`."""
        return b"".join([part async for part in self.chunks()])

    async def json(self) -> Any:
        """Return the body as JSON. HttpProblem unless it is JSON and its Content-Type says so, which no page
        of another origin can send without being asked first.
        """
        kind = (self.headers.get("content-type") or "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise HttpProblem(415, "The body has to be JSON, with Content-Type: application/json.")
        try:
            return json.loads(await self.read())
        except (ValueError, RecursionError) as error:
            raise HttpProblem(400, f"The body is no JSON: {str(error) or 'nested too deeply'}") from None


# Routes


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """What answers a method on a path. `{name}` in the path matches one part of it, and `{name*}` at its end
    all the rest, which may be empty. A route for GET answers HEAD too.
    """

    method: str
    path: str
    handle: HttpHandler
    max_body_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class HttpMount:
    """Routes that are loaded when they are first asked for; `close` is called when the server closes."""

    routes: Sequence[HttpRoute]
    close: Callable[[], Awaitable[None]] | None = None


class _Level:
    """The routes whose paths begin with the same parts."""

    __slots__ = ("exact", "name", "named", "rest", "routes")

    def __init__(self) -> None:
        self.exact: dict[str, _Level] = {}
        self.named: _Level | None = None
        self.name = ""
        # By method: routes that end here, and those that take all the rest, with its name.
        self.routes: dict[str, HttpRoute] = {}
        self.rest: dict[str, tuple[str, HttpRoute]] = {}


class _LazyMount:
    __slots__ = ("_load", "_loading", "close", "prefix", "router")

    def __init__(self, prefix: str, load: Callable[[], Awaitable[HttpMount]]) -> None:
        self.prefix: Final = prefix
        self.router: HttpRouter | None = None
        self.close: Callable[[], Awaitable[None]] | None = None
        self._load: Final = load
        self._loading: asyncio.Lock | None = None

    async def routes(self) -> HttpRouter:
        if self.router is None:
            if self._loading is None:
                self._loading = asyncio.Lock()
            async with self._loading:
                if self.router is None:
                    loaded = await self._load()
                    self.close = loaded.close
                    self.router = HttpRouter(loaded.routes)
        return self.router


class HttpMatch(NamedTuple):
    """A route for a request, with what the names in its path stand for and the mount that it came by."""

    route: HttpRoute
    params: dict[str, str]
    mount: str = ""


class HttpRouter:
    """Finds the route of a request: a fixed part of a path goes before a named one, routes before mounts, and
    of mounts the longest prefix.
    """

    def __init__(self, routes: Iterable[HttpRoute] = ()) -> None:
        self._root: Final = _Level()
        self._mounts: list[_LazyMount] = []
        for route in routes:
            self.add(route)

    def add(self, route: HttpRoute) -> None:
        level = self._root
        for part in route.path.split("/")[1:]:
            if part.startswith("{") and part.endswith("*}"):
                level.rest[route.method] = (part[1:-2], route)
                return
            if part.startswith("{") and part.endswith("}"):
                if level.named is None:
                    level.named, level.name = _Level(), part[1:-1]
                assert level.name == part[1:-1], f"{route.path}: this part is {level.name!r} elsewhere"
                level = level.named
            else:
                level = level.exact.setdefault(part, _Level())
        level.routes[route.method] = route

    def mount(self, prefix: str, load: Callable[[], Awaitable[HttpMount]]) -> None:
        """Have the paths below a prefix (`/` is all) answered by routes that `load` returns once one is asked
        for; their paths are complete ones. If it fails, that is logged, and the next request tries again.
        """
        self._mounts.append(_LazyMount(prefix.rstrip("/"), load))
        self._mounts.sort(key=lambda mount: -len(mount.prefix))

    async def find(self, method: str, path: str) -> HttpMatch:
        """Return the route of a path. HttpProblem 404 or 405 if there is none."""
        methods: dict[str, tuple[HttpRoute, dict[str, str]]] = {}
        parts = [unquote(part, errors="replace") for part in path.split("/")[1:]]
        _match(self._root, parts, 0, {}, methods)
        found = methods.get(method) or (methods.get("GET") if method == "HEAD" else None)
        if found is not None:
            return HttpMatch(*found)
        for mount in self._mounts:
            if path == mount.prefix or path.startswith(mount.prefix + "/"):
                try:
                    match = await (await mount.routes()).find(method, path)
                    return HttpMatch(match.route, match.params, mount.prefix or "/")
                except HttpProblem as problem:
                    if problem.status != 404 or methods:
                        raise
                    break
        if not methods:
            raise HttpProblem(404, "There is nothing here.")
        allowed = sorted({*methods, *(("HEAD",) if "GET" in methods else ())})
        raise HttpProblem(405, f"{method} is not possible here.", {"Allow": ", ".join(allowed)})

    async def close(self) -> None:
        """Close what was mounted and loaded."""
        for mount in self._mounts:
            if mount.close is not None:
                try:
                    await mount.close()
                except Exception:
                    _log.exception("what was mounted at %s did not close cleanly", mount.prefix or "/")
                mount.close = None


def _match(
    level: _Level,
    parts: list[str],
    at: int,
    params: dict[str, str],
    found: dict[str, tuple[HttpRoute, dict[str, str]]],
) -> None:
    """Collect the routes of a path by method, the most exact first. There are few levels, so it recurses; the
    depth is that of the routes, not that of the path.
    """
    if at == len(parts):
        for method, route in level.routes.items():
            found.setdefault(method, (route, dict(params)))
    else:
        if (exact := level.exact.get(parts[at])) is not None:
            _match(exact, parts, at + 1, params, found)
        if level.named is not None and parts[at]:
            _match(level.named, parts, at + 1, {**params, level.name: parts[at]}, found)
    for method, (name, route) in level.rest.items():
        found.setdefault(method, (route, {**params, name: "/".join(parts[at:])}))


# The server

HttpGuard: TypeAlias = "Callable[[HttpServerRequest, HttpMatch], Awaitable[HttpServerResponse | None]]"


class HttpServer:
    """`guard` sees each request before its handler, and returns the response if it refuses it. `hosts` are
    the names by which clients reach the server, all if None: a page of another host whose name suddenly has
    the address of this machine gets nothing.
    """

    def __init__(
        self,
        clock: Clock,
        router: HttpRouter,
        *,
        limits: HttpLimits | None = None,
        guard: HttpGuard | None = None,
        hosts: frozenset[str] | None = None,
    ) -> None:
        self.router: Final = router
        self.limits: Final = limits or HttpLimits()
        self.requests = 0
        """Requests that were answered."""
        self.refused = 0
        """Connections that ended for a fault of the client, or for lack of room."""
        self._clock: Final = clock
        self._guard: Final = guard
        self._hosts: Final = hosts
        # Shared by all connections: what was received is copied out before any other code runs.
        self.receive: Final = memoryview(bytearray(_RECEIVE_BYTES))
        self._connections: dict[_Connection, None] = {}
        self._waiting: dict[_Connection, None] = {}
        self._date = (-1, "")
        self._closing = False

    @property
    def connections(self) -> int:
        return len(self._connections)

    def connect(self) -> asyncio.BufferedProtocol:
        """Make the protocol of one more connection."""
        return _Connection(self)

    async def respond(self, request: HttpServerRequest) -> HttpServerResponse:
        """Answer a request; an error of a handler is logged and becomes a status of 500."""
        try:
            if self._hosts is not None and request.host not in self._hosts:
                raise HttpProblem(421, f"This server is not {request.host or 'without a name'!r}.")
            match = await self.router.find(request.method, request.path)
            request.params = match.params
            bound = match.route.max_body_bytes
            request.max_body_bytes = self.limits.max_body_bytes if bound is None else bound
            if request.body_length is not None and request.body_length > request.max_body_bytes:
                raise _too_large(request.max_body_bytes)
            if self._guard is not None and (refusal := await self._guard(request, match)) is not None:
                return refusal
            return await match.route.handle(request)
        except HttpProblem as problem:
            return problem_response(problem)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is None or current.cancelling():
                raise
            _log.exception("%s %s was cancelled by other code", request.method, request.path[:200])
            return problem_response(HttpProblem(500, "The server failed to answer; its log says why."))
        except Exception:
            _log.exception("%s %s failed", request.method, request.path[:200])
            return problem_response(HttpProblem(500, "The server failed to answer; its log says why."))

    async def close(self) -> None:
        """End all connections; responses that are not streams have a little time to go out."""
        self._closing = True
        tasks = [task for connection in list(self._connections) if (task := connection.stop()) is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=self.limits.linger_seconds)
        for connection in list(self._connections):
            connection.abort_unless_flushing()
        await self.router.close()

    # What connections call

    @property
    def is_closing(self) -> bool:
        return self._closing

    def on_connected(self, connection: _Connection) -> None:
        self._connections[connection] = None
        self._waiting[connection] = None
        if len(self._connections) > self.limits.max_connections:
            oldest = next(iter(self._waiting))
            if oldest is connection:
                connection.refuse(HttpProblem(503, "There are too many connections."))
            else:
                self.refused += 1
                # It counts no more, although its transport ends later: of many clients that come at once,
                # each takes the place of another one.
                self.on_lost(oldest)
                oldest.abort()

    def on_request(self, connection: _Connection) -> None:
        self._waiting.pop(connection, None)

    def on_waiting(self, connection: _Connection) -> None:
        if connection in self._connections:
            self._waiting[connection] = None

    def on_lost(self, connection: _Connection) -> None:
        self._connections.pop(connection, None)
        self._waiting.pop(connection, None)

    def date(self) -> str:
        """The `Date` of a response."""
        seconds = self._clock.wall_ms() // 1000
        if self._date[0] != seconds:
            at = gmtime(seconds)
            self._date = (
                seconds,
                f"{_DAYS[at.tm_wday]}, {at.tm_mday:02} {_MONTHS[at.tm_mon - 1]} {at.tm_year} "
                f"{at.tm_hour:02}:{at.tm_min:02}:{at.tm_sec:02} GMT",
            )
        return self._date[1]


class _Connection(asyncio.BufferedProtocol):
    __slots__ = (
        "_arrived",
        "_body_began",
        "_continue_due",
        "_dropped",
        "_ended",
        "_eof",
        "_is_streaming",
        "_limits",
        "_looked_at",
        "_loop",
        "_reading_paused",
        "_received",
        "_server",
        "_task",
        "_timer",
        "_writable",
        "_write_paused",
        "peer",
        "transport",
    )

    def __init__(self, server: HttpServer) -> None:
        self._server: Final = server
        self._limits: Final = server.limits
        self._loop: Final = asyncio.get_running_loop()
        self.transport: asyncio.Transport = None  # type: ignore[assignment]  # until `connection_made`
        self.peer = Address("", 0)
        self._received = bytearray()
        # How much of it was looked at for the end of a head.
        self._looked_at = 0
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        # Set by what arrives, for a handler that waits for its body.
        self._arrived: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._write_paused = False
        self._reading_paused = False
        self._is_streaming = False
        self._body_began = 0.0
        # Whether the client waits to be asked for its body.
        self._continue_due = False
        self._eof = False
        # Whether no further request is read: the last response is on its way.
        self._ended = False
        self._dropped = 0

    # What the transport calls

    def on_accepted_from(self, peer: Address) -> None:
        self.peer = peer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        if not self.peer.host and isinstance(name := transport.get_extra_info("peername"), tuple):
            self.peer = Address(plain_host(str(name[0])), int(name[1]))
        self.transport.set_write_buffer_limits(_WRITE_HIGH_BYTES, _WRITE_LOW_BYTES)
        if self._server.is_closing:
            self.transport.abort()
            return
        self._set_timer(self._limits.head_seconds, self._on_head_timeout)
        self._server.on_connected(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._server.receive

    def buffer_updated(self, nbytes: int) -> None:
        if self._ended:
            self._dropped += nbytes
            if self._dropped > _MAX_DROPPED_BYTES:
                self.abort()
            return
        self._received += self._server.receive[:nbytes]
        if self._task is None:
            self._start()
            return
        _wake(self._arrived)
        if len(self._received) > _READ_AHEAD_BYTES and not self._reading_paused:
            self._reading_paused = True
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        """Serve the request of a client that sends no more: it may wait for its response. Mostly it is gone,
        so it does not get much time, and no endless response.
        """
        self._eof = True
        _wake(self._arrived)
        if self._task is None or self._is_streaming or self._ended:
            return False
        self._set_timer(self._limits.linger_seconds, self.abort)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._set_timer(0, None)
        self._server.on_lost(self)
        self._ended = self._eof = True
        _wake(self._arrived)
        _wake(self._writable)
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        _wake(self._writable)

    # Requests

    def _start(self) -> None:
        """Begin with the request that has arrived, if its head is complete."""
        is_first = not self._looked_at
        try:
            request = self._take_request()
        except HttpProblem as problem:
            self.refuse(problem)
            return
        if request is not None:
            self._set_timer(0, None)
            self._server.on_request(self)
            self._task = self._loop.create_task(self._serve(request), name="HTTP request")
        elif is_first:
            self._set_timer(self._limits.head_seconds, self._on_head_timeout)

    def _take_request(self) -> HttpServerRequest | None:
        """Return the request whose head has arrived, and forget that; None if it is not complete."""
        if self._received.startswith(b"\r\n"):
            del self._received[:2]  # some clients send one line too much after a body
            self._looked_at = 0
        end = find_head_end(self._received, self._looked_at)
        if end < 0:
            self._looked_at = len(self._received)
            return None
        head = parse_head(bytes(self._received[:end]))
        del self._received[: end + 4]
        self._looked_at = 0
        body, length = body_of(head)
        expects = head.headers.get("expect")
        if expects is not None and expects.lower() != "100-continue":
            raise HttpProblem(417, "The only expectation is `100-continue`.")
        self._body_began = self._loop.time()
        self._continue_due = expects is not None and head.is_http_11 and not body.is_done
        return HttpServerRequest(self, head, body, length)

    async def _serve(self, request: HttpServerRequest | None) -> None:
        """Answer a request, and those that have arrived behind it."""
        try:
            while request is not None:
                response = await self._server.respond(request)
                self._server.requests += 1
                await self._send(request, response)
                if self._ended:
                    return
                if self._server.is_closing or self._eof:
                    break
                # Other connections have their turn before a further request of this one.
                await asyncio.sleep(0)
                self._resume_reading()
                request = self._take_request()
        except asyncio.CancelledError:
            self.abort()
            raise
        except HttpProblem as problem:
            self._task = None
            self.refuse(problem)
            return
        except ConnectionError:
            self.abort()
            return
        except Exception:
            _log.exception("the response of an HTTP request could not be sent")
            self.abort()
            return
        self._task = None
        if self._server.is_closing or self._eof:
            self._end()
            return
        self._server.on_waiting(self)
        limits = self._limits
        seconds = limits.head_seconds if self._received else limits.idle_seconds
        self._set_timer(seconds, self._on_head_timeout)

    async def next_part(self, body: SizedBody | ChunkedBody, received: int) -> bytes:
        """Return the next part of a body; empty at its end."""
        limits = self._limits
        while True:
            if part := body.take(self._received):
                self._resume_reading()
                return part
            if body.is_done:
                return b""
            if self._eof:
                raise HttpProblem(400, "The connection ended within the body.")
            if self._continue_due:
                self._continue_due = False
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._resume_reading()
            self._arrived = self._loop.create_future()
            in_time_s = limits.body_seconds + received / limits.body_bytes_per_second
            try:
                async with asyncio.timeout_at(self._body_began + in_time_s):
                    await self._arrived
            except TimeoutError:
                raise HttpProblem(408, "The body did not arrive in time.") from None
            finally:
                self._arrived = None

    def _resume_reading(self) -> None:
        if self._reading_paused and len(self._received) <= _READ_AHEAD_BYTES:
            self._reading_paused = False
            self.transport.resume_reading()

    # Responses

    async def _send(self, request: HttpServerRequest, response: HttpServerResponse) -> None:
        """Send a response, and read the request to its end; `_ended` if the connection cannot go on."""
        body = response.body
        has_body = response.status not in _NO_BODY_STATUS
        is_stream = has_body and not isinstance(body, bytes)
        # A body that no handler has read is dropped, unless it is large: then so is the connection.
        keeps = request._head.keeps_alive and not self._server.is_closing and not self._eof
        keeps = keeps and self._has_whole_body(request)
        chunked = is_stream and response.length is None and request._head.is_http_11
        if is_stream and response.length is None and not chunked:
            keeps = False
        lines = [f"HTTP/1.1 {response.status} {_REASONS.get(response.status, 'Status')}"]
        headers = {
            "Date": self._server.date(),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
        }
        if response.content_type is not None:
            headers["Content-Type"] = response.content_type
        headers |= response.headers
        if chunked:
            headers["Transfer-Encoding"] = "chunked"
        elif has_body and (not is_stream or response.length is not None):
            headers["Content-Length"] = str(len(body) if isinstance(body, bytes) else response.length)
        if not keeps:
            headers["Connection"] = "close"
        lines += [f"{_header_text(name)}: {_header_text(value)}" for name, value in headers.items()]
        lines += [f"Set-Cookie: {_header_text(cookie)}" for cookie in response.cookies]
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
        sends_body = has_body and request.method != "HEAD"
        if isinstance(body, bytes):
            if len(body) <= _MAX_WRITE_BYTES or not sends_body:
                self.transport.write(head + body if sends_body else head)
                await self._drain()
            else:
                await self._send_pieces(head, memoryview(body))
        else:
            try:
                self.transport.write(head)
                if sends_body:
                    self._is_streaming = True
                    await self._send_stream(body, chunked, response.length)
            finally:
                self._is_streaming = False
                if (aclose := getattr(body, "aclose", None)) is not None:
                    await aclose()
        if not keeps:
            self._end()

    async def _send_pieces(self, head: bytes, body: memoryview) -> None:
        """Send a large body as fast as the client reads it: a transport copies what is not read."""
        self.transport.write(head)
        for start in range(0, len(body), _MAX_WRITE_BYTES):
            self.transport.write(body[start : start + _MAX_WRITE_BYTES])
            await self._drain()

    def _has_whole_body(self, request: HttpServerRequest) -> bool:
        """Drop what has arrived of a body that was not read; whether that is all of it."""
        body = request._body
        try:
            while not body.is_done and body.take(self._received):
                pass
        except HttpProblem:
            return False
        return body.is_done

    async def _send_stream(self, body: AsyncIterator[bytes], chunked: bool, length: int | None) -> None:
        sent = 0
        async for part in body:
            if not part:
                continue
            sent += len(part)
            if length is not None and sent > length:
                raise ValueError(f"a response is longer than the {length} bytes that it announced")
            for start in range(0, len(part), _MAX_WRITE_BYTES):
                piece = part if len(part) <= _MAX_WRITE_BYTES else part[start : start + _MAX_WRITE_BYTES]
                if chunked:
                    self.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                else:
                    self.transport.write(piece)
                await self._drain()
        if length is not None and sent < length:
            raise ValueError(f"a response has {sent} bytes of the {length} that it announced")
        if chunked:
            self.transport.write(b"0\r\n\r\n")

    async def _drain(self) -> None:
        """Wait until the client has read enough. ConnectionError if it does not, or is gone."""
        while True:
            if self._ended or self.transport.is_closing():
                raise ConnectionResetError("the client is gone")
            if not self._write_paused:
                return
            self._writable = self._loop.create_future()
            try:
                async with asyncio.timeout(self._limits.write_seconds):
                    await self._writable
            except TimeoutError:
                self._server.refused += 1
                raise ConnectionAbortedError("the client does not read its response") from None
            finally:
                self._writable = None

    # Ends

    def _set_timer(self, seconds: float, callback: Callable[[], None] | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if callback is None else self._loop.call_later(seconds, callback)

    def _on_head_timeout(self) -> None:
        if self._received:
            self.refuse(HttpProblem(408, "The request did not arrive in time."))
        else:
            self.transport.close()
            self._set_timer(self._limits.linger_seconds, self.abort)

    def refuse(self, problem: HttpProblem) -> None:
        """Send an error as the last response, for a request that was not understood."""
        if self._ended:
            return
        self._server.refused += 1
        response = problem_response(problem)
        assert isinstance(response.body, bytes)
        head = (
            f"HTTP/1.1 {problem.status} {_REASONS.get(problem.status, 'Status')}\r\n"
            f"Date: {self._server.date()}\r\nContent-Type: {response.content_type}\r\n"
            f"Content-Length: {len(response.body)}\r\nConnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + response.body)
        self._end()

    def _end(self) -> None:
        """Read no further request, and close once the client has its last response or does not take it. What
        the client still sends is dropped meanwhile: it would otherwise lose the response with the connection.
        """
        if self._ended:
            return
        self._ended = True
        self._received = bytearray()
        self._server.on_waiting(self)
        if self._reading_paused:
            self._reading_paused = False
            self.transport.resume_reading()
        self._set_timer(self._limits.linger_seconds, self.abort)
        if self._eof or not self.transport.can_write_eof():
            self.transport.close()
        else:
            with contextlib.suppress(OSError):
                self.transport.write_eof()

    def stop(self) -> asyncio.Task[None] | None:
        """End soon, as the server closes; the request that is in progress, to wait for."""
        if self._task is None or self._ended:
            self.transport.close()
            return None
        if self._is_streaming:
            self._task.cancel()
        return self._task

    def abort_unless_flushing(self) -> None:
        """Close, without waiting for the client any more."""
        if self._task is None or self._task.done():
            self.transport.close()
        else:
            self.abort()

    def abort(self) -> None:
        self._ended = True
        self.transport.abort()


# Events


@dataclass(frozen=True, slots=True)
class SseEvent:
    """An event of a stream that a browser's `EventSource` reads."""

    data: str
    event: str | None = None
    id: str | None = None

    def encode(self) -> bytes:
        fields = (("event", self.event), ("id", self.id))
        lines = [f"{name}: {_header_text(value)}" for name, value in fields if value is not None]
        lines += [f"data: {line}" for line in self.data.replace("\r\n", "\n").replace("\r", "\n").split("\n")]
        return ("\n".join(lines) + "\n\n").encode()


def sse_stream(events: AsyncIterator[SseEvent], *, keep_alive_seconds: float = 15.0) -> HttpServerResponse:
    """Send events as they come, and a comment where none has come for a while: a client that is gone is
    noticed, and proxies do not end the connection.
    """
    return HttpServerResponse(
        200,
        _encoded(events, keep_alive_seconds),
        "text/event-stream; charset=utf-8",
        {"X-Accel-Buffering": "no"},
    )


async def _encoded(events: AsyncIterator[SseEvent], keep_alive_seconds: float) -> AsyncIterator[bytes]:
    following: asyncio.Future[SseEvent] | None = None
    try:
        yield _SSE_COMMENT
        while True:
            if following is None:
                following = asyncio.ensure_future(anext(events))
            done, _ = await asyncio.wait((following,), timeout=keep_alive_seconds)
            if not done:
                yield _SSE_COMMENT
                continue
            try:
                event = following.result()
            except StopAsyncIteration:
                return
            following = None
            yield event.encode()
    finally:
        if following is not None:
            following.cancel()
            # Also where it is done: its end, or its error, would be logged as one that nothing has looked at.
            await asyncio.gather(following, return_exceptions=True)
        if (aclose := getattr(events, "aclose", None)) is not None:
            await aclose()


def problem_response(problem: HttpProblem) -> HttpServerResponse:
    """The response of an error: JSON with a text that says what is wrong."""
    response = HttpServerResponse.json({"error": problem.text}, problem.status)
    response.headers |= problem.headers
    return response


def _too_large(bound: int) -> HttpProblem:
    return HttpProblem(413, f"The body is larger than {bound} bytes.")


def _header_text(text: str) -> str:
    """A name or value of a header, which is one line. ValueError if it is not."""
    if not text.isprintable():
        raise ValueError(f"a header has a character that none may have: {text!r}")
    return text


def _wake(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
