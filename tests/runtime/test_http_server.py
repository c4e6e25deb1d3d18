"""The HTTP server with real sockets: routes, bodies, streams, and clients that mean it no good."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
import uvloop

from ottla.runtime.address import Address
from ottla.runtime.clock import SystemClock
from ottla.runtime.http_server import (
    HttpLimits,
    HttpMatch,
    HttpMount,
    HttpProblem,
    HttpRoute,
    HttpRouter,
    HttpServer,
    HttpServerRequest,
    HttpServerResponse,
    SseEvent,
    sse_stream,
)
from ottla.runtime.network import RealNetwork
from tests.support.waiting import until

pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy. fixture")

DEADLINE_S = 60
CERTIFICATE = Path(__file__).parent / "localhost.pem"
GET = b"GET /hello/you HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(scope="module", params=[asyncio.DefaultEventLoopPolicy, uvloop.EventLoopPolicy])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    """Nodes run on uvloop where it is there."""
    policy: asyncio.AbstractEventLoopPolicy = request.param()
    return policy


@dataclass(slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


class Client:
    """A connection that is used by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, *, is_head: bool = False) -> Answer:
        async with asyncio.timeout(DEADLINE_S):
            lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            status = int(lines[0].split(" ")[1])
            headers = {
                name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:-2])
            }
            body = b""
            if is_head or status in (100, 204, 304):
                pass
            elif headers.get("transfer-encoding") == "chunked":
                while size := int((await self.reader.readuntil(b"\r\n")).strip(), 16):
                    body += (await self.reader.readexactly(size + 2))[:-2]
                await self.reader.readexactly(2)
            elif "content-length" in headers:
                body = await self.reader.readexactly(int(headers["content-length"]))
            else:
                body = await self.reader.read()
            return Answer(status, headers, body)

    async def ask(self, request: bytes) -> Answer:
        await self.send(request)
        return await self.answer()

    async def wait_until_closed(self) -> bytes:
        """Read to the end of the connection; what came before it."""
        async with asyncio.timeout(DEADLINE_S):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""

    def close(self) -> None:
        self.writer.close()


@dataclass(slots=True)
class Site:
    """A server with some routes, and what its handlers saw."""

    server: HttpServer
    port: int
    cancelled: list[str] = field(default_factory=list)
    clients: list[Client] = field(default_factory=list)

    async def connect(self, tls: ssl.SSLContext | None = None) -> Client:
        client = Client(
            *await asyncio.open_connection(
                "127.0.0.1", self.port, ssl=tls, server_hostname="localhost" if tls else None
            )
        )
        self.clients.append(client)
        return client

    async def connect_with(self, data: bytes) -> Client:
        """Connect and send before the server has a turn."""
        sock = socket.create_connection(("127.0.0.1", self.port))
        sock.sendall(data)
        client = Client(*await asyncio.open_connection(sock=sock))
        self.clients.append(client)
        return client

    async def get(self, path: str, *headers: str) -> Answer:
        lines = "".join(f"{header}\r\n" for header in headers)
        client = await self.connect()
        return await client.ask(
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{lines}\r\n".encode()
        )


class Acceptor:
    def __init__(self) -> None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(CERTIFICATE)
        self.context = lambda: tls

    def on_handshake_failed(self, peer: Address, reason: str) -> None:
        raise AssertionError(reason)


@asynccontextmanager
async def serving(
    *, limits: HttpLimits | None = None, is_tls: bool = False, hosts: frozenset[str] | None = None
) -> AsyncIterator[Site]:
    released = asyncio.Event()

    async def hello(request: HttpServerRequest) -> HttpServerResponse:
        return HttpServerResponse.json({"hello": request.params["name"], "query": request.query()})

    async def echo(request: HttpServerRequest) -> HttpServerResponse:
        return HttpServerResponse(200, await request.read(), "application/octet-stream")

    async def ignore(request: HttpServerRequest) -> HttpServerResponse:
        return HttpServerResponse.text("ignored")

    async def add(request: HttpServerRequest) -> HttpServerResponse:
        return HttpServerResponse.json(sum(await request.json()), 201)

    async def fail(request: HttpServerRequest) -> HttpServerResponse:
        raise ValueError("a secret")

    async def split(request: HttpServerRequest) -> HttpServerResponse:
        return HttpServerResponse(200, b"", headers={"X-Given": request.query()["x"]})

    async def wait(request: HttpServerRequest) -> HttpServerResponse:
        try:
            await released.wait()
        except asyncio.CancelledError:
            site.cancelled.append(request.path)
            raise
        return HttpServerResponse.text("waited")

    async def stream(request: HttpServerRequest) -> HttpServerResponse:
        async def parts() -> AsyncIterator[bytes]:
            try:
                for number in range(int(request.query().get("parts", "3"))):
                    yield b"%d," % number + b"x" * int(request.query().get("size", "0"))
            finally:
                site.cancelled.append("stream")

        given = request.query().get("length")
        return HttpServerResponse(200, parts(), "text/plain", length=None if given is None else int(given))

    async def events(request: HttpServerRequest) -> HttpServerResponse:
        async def each() -> AsyncIterator[SseEvent]:
            try:
                yield SseEvent("one\ntwo", event="news", id="7")
                await released.wait()
            finally:
                site.cancelled.append("events")

        return sse_stream(each(), keep_alive_seconds=0.05)

    async def rest(request: HttpServerRequest) -> HttpServerResponse:
        return HttpServerResponse.text(request.params["path"])

    router = HttpRouter(
        (
            HttpRoute("GET", "/hello/{name}", hello),
            HttpRoute("GET", "/hello/world", ignore),
            HttpRoute("POST", "/echo", echo, max_body_bytes=200_000),
            HttpRoute("POST", "/ignore", ignore),
            HttpRoute("POST", "/add", add),
            HttpRoute("DELETE", "/hello/{name}", ignore),
            HttpRoute("GET", "/fail", fail),
            HttpRoute("GET", "/split", split),
            HttpRoute("GET", "/wait", wait),
            HttpRoute("GET", "/stream", stream),
            HttpRoute("GET", "/events", events),
            HttpRoute("GET", "/files/{path*}", rest),
        )
    )
    server = HttpServer(SystemClock(), router, limits=limits, hosts=hosts)
    listener = await RealNetwork().listen(server.connect, "127.0.0.1", 0, tls=Acceptor() if is_tls else None)
    site = Site(server, listener.port)
    try:
        yield site
    finally:
        await listener.close()
        await server.close()
        for client in site.clients:
            client.close()
        await until(lambda: server.connections == 0)


class TestRoutes:
    async def test_a_path_has_its_handler_and_its_names(self) -> None:
        async with serving() as site:
            answer = await site.get("/hello/J%C3%BCrgen%2F2?a=1&b=%20&c")
            assert json.loads(answer.body) == {"hello": "Jürgen/2", "query": {"a": "1", "b": " ", "c": ""}}
            assert answer.headers["content-type"] == "application/json; charset=utf-8"
            assert answer.headers["cache-control"] == "no-store"
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert (await site.get("/hello/world")).body == b"ignored"
            assert (await site.get("/files/a/b%20c")).body == b"a/b c"
            assert (await site.get("/files/")).body == b""

    async def test_what_is_not_there_is_said_so(self) -> None:
        async with serving() as site:
            assert (await site.get("/nothing")).status == 404
            assert (await site.get("/hello")).status == 404
            assert (await site.get("/hello/")).status == 404
            refused = await site.get("/echo")
            assert (refused.status, refused.headers["allow"]) == (405, "POST")

    async def test_head_is_get_without_a_body(self) -> None:
        async with serving() as site:
            client = await site.connect()
            for path in (b"/hello/you", b"/stream"):
                await client.send(b"HEAD " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
                answer = await client.answer(is_head=True)
                assert answer.status == 200
                assert "content-length" in answer.headers or "transfer-encoding" in answer.headers
            assert (await client.ask(GET)).status == 200

    async def test_mounts_are_loaded_once_and_when_they_are_asked_for(self) -> None:
        loads: list[str] = []

        async def page(request: HttpServerRequest) -> HttpServerResponse:
            return HttpServerResponse.text(f"page {request.params.get('name', '')}")

        def load(name: str, path: str) -> Callable[[], Awaitable[HttpMount]]:
            async def routes() -> HttpMount:
                await asyncio.sleep(0)
                loads.append(name)
                if len(loads) == 1:
                    raise ValueError("not yet")
                return HttpMount((HttpRoute("GET", path, page),), closing(name))

            return routes

        def closing(name: str) -> Callable[[], Awaitable[None]]:
            async def close() -> None:
                loads.append(f"{name} closed")

            return close

        async with serving() as site:
            site.server.router.mount("/", load("root", "/"))
            site.server.router.mount("/sub", load("sub", "/sub/{name}"))
            assert (await site.get("/hello/you")).status == 200
            assert loads == []
            assert (await site.get("/sub/x")).status == 500  # it fails at first
            answers = await asyncio.gather(*(site.get("/sub/x") for _ in range(5)))
            assert {answer.body for answer in answers} == {b"page x"}
            assert loads == ["sub", "sub"]
            assert (await site.get("/subway")).status == 404
            assert (await site.get("/")).body == b"page "
        assert sorted(loads) == ["root", "root closed", "sub", "sub", "sub closed"]

    async def test_an_error_of_a_handler_shows_no_details(self, caplog: pytest.LogCaptureFixture) -> None:
        async with serving() as site:
            answer = await site.get("/fail")
            assert answer.status == 500
            assert b"secret" not in answer.body
        assert "a secret" in caplog.text

    async def test_a_header_cannot_be_made_two(self) -> None:
        async with serving() as site:
            assert (await site.get("/split?x=fine")).headers["x-given"] == "fine"
            client = await site.connect()
            await client.send(b"GET /split?x=a%0D%0AEvil:%201 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"Evil" not in await client.wait_until_closed()

    async def test_only_clients_that_ask_for_this_host_are_answered(self) -> None:
        async with serving(hosts=frozenset(("localhost", "127.0.0.1"))) as site:
            client = await site.connect()
            assert (await client.ask(GET)).status == 200
            assert (await client.ask(GET.replace(b"localhost", b"127.0.0.1:80"))).status == 200
            assert (await client.ask(GET.replace(b"localhost", b"evil.example"))).status == 421
            evil = GET.replace(b"/hello", b"http://evil.example/hello")
            assert (await client.ask(evil)).status == 421

    async def test_a_guard_sees_a_request_before_its_handler(self) -> None:
        async def guard(request: HttpServerRequest, match: HttpMatch) -> HttpServerResponse | None:
            request.principal = "you"
            if match.mount == "/mounted":
                raise HttpProblem(401, "who?", {"WWW-Authenticate": "Basic"})
            return None

        async def load() -> HttpMount:
            return HttpMount((HttpRoute("GET", "/mounted", who),))

        async def who(request: HttpServerRequest) -> HttpServerResponse:
            return HttpServerResponse.text(str(request.principal))

        router = HttpRouter((HttpRoute("GET", "/who", who),))
        router.mount("/mounted", load)
        server = HttpServer(SystemClock(), router, guard=guard)
        listener = await RealNetwork().listen(server.connect, "127.0.0.1", 0)
        site = Site(server, listener.port)
        assert (await site.get("/who")).body == b"you"
        refused = await site.get("/mounted")
        assert (refused.status, refused.headers["www-authenticate"]) == (401, "Basic")
        assert (await site.get("/%6dounted")).status == 404
        await listener.close()
        await server.close()
        for client in site.clients:
            client.close()


class TestBodies:
    async def test_a_body_comes_by_its_length_or_in_chunks(self) -> None:
        async with serving() as site:
            client = await site.connect()
            post = b"POST /echo HTTP/1.1\r\nHost: localhost\r\n"
            data = bytes(range(256)) * 700
            sized = await client.ask(post + b"Content-Length: %d\r\n\r\n" % len(data) + data)
            assert sized.body == data
            chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (data[:10], data[10:]))
            chunked = await client.ask(post + b"Transfer-Encoding: Chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
            assert chunked.body == data
            assert (await client.ask(post + b"\r\n")).body == b""

    async def test_a_client_that_expects_to_be_asked_is_asked(self) -> None:
        async with serving() as site:
            client = await site.connect()
            await client.send(
                b"POST /echo HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
            )
            assert (await client.answer()).status == 100
            assert (await client.ask(b"hi")).body == b"hi"
            await client.send(GET.replace(b"\r\n\r\n", b"\r\nExpect: a miracle\r\n\r\n"))
            assert (await client.answer()).status == 417

    async def test_a_body_that_is_too_large_is_refused(self) -> None:
        async with serving() as site:
            client = await site.connect()
            post = b"POST /echo HTTP/1.1\r\nHost: localhost\r\n"
            answer = await client.ask(post + b"Content-Length: 200001\r\n\r\n")
            assert (answer.status, answer.headers["connection"]) == (413, "close")
            client = await site.connect()
            chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
            await client.send(post + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 4)
            assert (await client.answer()).status == 413

    async def test_a_body_that_no_handler_reads_is_not_the_next_request(self) -> None:
        async with serving() as site:
            client = await site.connect()
            body = GET * 3
            post = b"POST /ignore HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
            assert (await client.ask(post + body + GET)).body == b"ignored"
            assert json.loads((await client.answer()).body)["hello"] == "you"
            # Where the rest is not there yet, the connection ends.
            answer = await client.ask(post + body[:10])
            assert (answer.body, answer.headers["connection"]) == (b"ignored", "close")
            await client.send(body[10:] + GET)
            assert await client.wait_until_closed() == b""

    async def test_json_is_what_says_so_and_is_it(self) -> None:
        async with serving() as site:
            client = await site.connect()

            async def post(body: bytes, kind: bytes = b"application/json; charset=utf-8") -> Answer:
                head = b"POST /add HTTP/1.1\r\nHost: localhost\r\nContent-Type: " + kind
                return await client.ask(head + b"\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

            added = await post(b"[1, 2]")
            assert (added.status, added.body) == (201, b"3\n")
            assert (await post(b"[1, 2]", b"text/plain")).status == 415
            assert (await post(b"[1, 2")).status == 400
            assert (await post(b"[" * 100_000)).status == 400
            assert (await post(b"\xff")).status == 400


class TestStreams:
    async def test_a_stream_goes_out_in_chunks_or_to_the_end(self) -> None:
        async with serving() as site:
            client = await site.connect()
            stream = GET.replace(b"/hello/you", b"/stream?parts=3")
            answer = await client.ask(stream)
            assert (answer.body, answer.headers["transfer-encoding"]) == (b"0,1,2,", "chunked")
            known = await client.ask(GET.replace(b"/hello/you", b"/stream?parts=2&length=4"))
            assert (known.body, known.headers["content-length"]) == (b"0,1,", "4")
            old = await client.ask(stream.replace(b"HTTP/1.1", b"HTTP/1.0"))
            assert (old.body, old.headers.get("transfer-encoding")) == (b"0,1,2,", None)

    @pytest.mark.parametrize("length", [3, 5])
    async def test_a_stream_of_another_length_than_announced_breaks(
        self, length: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with serving() as site:
            client = await site.connect()
            await client.send(GET.replace(b"/hello/you", b"/stream?parts=2&length=%d" % length))
            with pytest.raises(asyncio.IncompleteReadError):
                await client.answer()
        assert "announced" in caplog.text

    async def test_a_stream_waits_for_a_client_that_does_not_read(self) -> None:
        async with serving() as site:
            client = await site.connect()
            # 1 GB, of which the server holds a part.
            await client.send(GET.replace(b"/hello/you", b"/stream?parts=10000&size=100000"))
            await client.reader.readexactly(1_000)
            client.close()
            await until(lambda: site.cancelled == ["stream"])

    async def test_a_client_that_never_reads_is_given_up(self) -> None:
        async with serving(limits=HttpLimits(write_seconds=0.2)) as site:
            client = await site.connect()
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await client.send(GET.replace(b"/hello/you", b"/stream?parts=10000&size=100000"))
            await until(lambda: site.server.connections == 0)
            assert site.server.refused == 1

    async def test_events_go_out_as_they_come(self) -> None:
        async with serving() as site:
            client = await site.connect()
            await client.send(GET.replace(b"/hello/you", b"/events"))
            async with asyncio.timeout(DEADLINE_S):
                await client.reader.readuntil(b"event: news\nid: 7\ndata: one\ndata: two\n\n")
                await client.reader.readuntil(b": keep-alive\n\n")
                await client.reader.readuntil(b": keep-alive\n\n")
            client.close()
            await until(lambda: site.cancelled == ["events"])

    async def test_a_client_that_leaves_as_the_events_end_is_no_error(self) -> None:
        """Otherwise asyncio logs an exception of a task that was never retrieved."""
        reading: list[asyncio.Task[bytes]] = []

        async def events() -> AsyncIterator[SseEvent]:
            yield SseEvent("only")
            reading[0].cancel()

        async def read(parts: AsyncIterator[bytes]) -> bytes:
            return await anext(parts)

        body = sse_stream(events()).body
        assert not isinstance(body, bytes)
        assert [(await anext(body))[:1], (await anext(body))[:5]] == [b":", b"data:"]
        before = {id(each) for each in gc.get_objects() if isinstance(each, asyncio.Task)}
        reading.append(asyncio.create_task(read(body)))
        with pytest.raises(asyncio.CancelledError):
            await reading[0]
        tasks = [each for each in gc.get_objects() if isinstance(each, asyncio.Task) and each.done()]
        unseen = [each for each in tasks if id(each) not in before and getattr(each, "_log_traceback", False)]
        assert unseen == []

    async def test_a_server_that_closes_ends_streams(self) -> None:
        async with serving() as site:
            client = await site.connect()
            await client.send(GET.replace(b"/hello/you", b"/events"))
            await client.reader.readuntil(b"\r\n\r\n")
        assert site.cancelled == ["events"]


class TestConnections:
    async def test_requests_in_one_piece_are_answered_in_order(self) -> None:
        async with serving() as site:
            client = await site.connect()
            await client.send(b"".join(GET.replace(b"you", b"%d" % n) for n in range(200)) + b"\r\n" + GET)
            names = [json.loads((await client.answer()).body)["hello"] for _ in range(201)]
            assert names == [*map(str, range(200)), "you"]

    async def test_a_request_may_come_byte_by_byte(self) -> None:
        async with serving() as site:
            client = await site.connect()
            client.writer.transport.set_write_buffer_limits(0)
            for byte in GET:
                await client.send(bytes([byte]))
            assert (await client.answer()).status == 200

    async def test_a_handler_ends_with_its_client(self) -> None:
        async with serving(limits=HttpLimits(linger_seconds=0.1)) as site:
            client = await site.connect()
            await client.send(GET.replace(b"/hello/you", b"/wait"))
            client.close()
            await until(lambda: site.cancelled == ["/wait"])

    async def test_a_client_that_sends_no_more_gets_its_answer(self) -> None:
        async with serving() as site:
            client = await site.connect()
            client.writer.write(GET)
            client.writer.write_eof()
            assert (await client.answer()).status == 200
            assert await client.wait_until_closed() == b""

    async def test_what_is_no_request_is_refused_and_the_connection_closed(self) -> None:
        async with serving() as site:
            for text in (
                b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\r\n\r\n",
                b"\x00\x00\x00\x12\x00\x12\x00\x03\x00\x00\x00\x01\x00\x04test\r\n\r\n",
                b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n" + GET,
                GET.replace(b"Host:", b"Host :") + GET,
                b"A" * 9_000,
                GET[:-2] + b"X: " + b"a" * 40_000,
            ):
                client = await site.connect()
                answer = await client.ask(text)
                assert 400 <= answer.status < 500, text
                assert answer.headers["connection"] == "close"
                # What came behind it is no request any more.
                assert await client.wait_until_closed() == b""

    async def test_a_smuggled_request_is_never_answered(self) -> None:
        """The body of the first request looks like a request to a parser that frames it differently."""
        smuggled = b"GET /hello/smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"
        post = b"POST /echo HTTP/1.1\r\nHost: localhost\r\n"
        async with serving() as site:
            for request in (
                post + b"Content-Length: 0\r\nContent-Length: %d\r\n\r\n" % len(smuggled),
                post + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
                post + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
                post + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
                post + b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
                post + b"Transfer-Encoding: chunked\r\n\r\n1\r\nab0\r\n\r\n",
                post + b"Transfer-Encoding: chunked\r\n\r\n0;\n\r\n\r\n",
                post + b"X: 1\r\n Content-Length: 0\r\n\r\n",
            ):
                client = await site.connect()
                await client.send(request + smuggled)
                said = await client.wait_until_closed()
                assert said.startswith((b"HTTP/1.1 400", b"HTTP/1.1 501")), (request, said)
                assert b"smuggled" not in said

    async def test_no_bytes_make_it_fail(self, caplog: pytest.LogCaptureFixture) -> None:
        """Requests with random changes are answered or refused, and the server logs no error of its own."""
        random = Random(17)
        chunked = b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX: 1\r\n\r\n"
        originals = (
            GET,
            GET.replace(b"/hello/you", b"/stream"),
            b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello" + GET,
            b"POST /echo HTTP/1.1\r\nHost: localhost\r\n" + chunked + GET,
        )
        pieces = (b"\r\n", b"\n", b":", b" ", b"\0", b"0", b"%", b"\xff", b"HTTP/1.1", b"chunked", b"9" * 30)
        async with serving(limits=HttpLimits(body_seconds=0.2, linger_seconds=0.2)) as site:

            async def attack(text: bytes) -> None:
                client = await site.connect()
                await client.send(text)
                client.writer.write_eof()
                said = await client.wait_until_closed()
                assert not said or said.startswith(b"HTTP/1.1 "), (text, said)
                assert b"HTTP/1.1 500" not in said, (text, said)

            for _ in range(20):
                texts = []
                for _ in range(20):
                    text = bytearray(random.choice(originals))
                    for _ in range(random.randint(1, 4)):
                        at = random.randrange(len(text))
                        text[at : at + random.randint(0, 3)] = random.choice(pieces)
                    texts.append(bytes(text))
                await asyncio.gather(*map(attack, texts))
            assert (await site.get("/hello/you")).status == 200
        assert [record for record in caplog.records if record.levelname == "ERROR"] == []

    @pytest.mark.slow
    async def test_slow_clients_are_given_up(self) -> None:
        async with serving(limits=HttpLimits(head_seconds=0.5)) as site:
            silent = await site.connect()
            assert await silent.wait_until_closed() == b""
            # Its first bytes are there when the server gets to know of it.
            slow = await site.connect_with(b"GET / HTTP/1.1\r\nX: ")
            assert (await slow.answer()).status == 408
        async with serving(limits=HttpLimits(head_seconds=60, idle_seconds=0.5)) as site:
            idle = await site.connect()
            assert (await idle.ask(GET)).status == 200
            assert await idle.wait_until_closed() == b""
        async with serving(limits=HttpLimits(head_seconds=60, body_seconds=0.5)) as site:
            trickling = await site.connect()
            await trickling.send(b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\nab")
            assert (await trickling.answer()).status == 408

    async def test_a_slow_loris_does_not_keep_others_out(self) -> None:
        async with serving(limits=HttpLimits(max_connections=20)) as site:
            for _ in range(100):
                await (await site.connect()).send(b"GET / HTTP/1.1\r\nX: ")
            await until(lambda: site.server.refused >= 80)
            assert (await site.get("/hello/you")).status == 200
            assert site.server.connections <= 21

    @pytest.mark.slow
    async def test_the_bound_holds_when_many_come_at_once(self) -> None:
        async with serving(limits=HttpLimits(max_connections=20)) as site:
            counts: list[int] = []
            on_connected = site.server.on_connected

            def count(connection: Any) -> None:
                on_connected(connection)
                counts.append(site.server.connections)

            site.server.on_connected = count  # type: ignore[method-assign]
            await asyncio.gather(*(site.connect() for _ in range(150)))
            # Fewer than all: the kernel drops some where its queue is full, and they come seconds later.
            await until(lambda: len(counts) >= 60)
            assert max(counts) <= 20
            assert (await site.get("/hello/you")).status == 200

    async def test_where_all_connections_are_busy_a_further_one_is_refused(self) -> None:
        async with serving(limits=HttpLimits(max_connections=3, linger_seconds=0.2)) as site:
            for _ in range(3):
                await (await site.connect()).send(GET.replace(b"/hello/you", b"/wait"))
            # Their requests have begun once a fourth client does not take the place of one of them.
            for _ in range(1_000):
                if (await (await site.connect()).wait_until_closed()).startswith(b"HTTP/1.1 503"):
                    break
            else:
                raise AssertionError("it was never refused")
            assert site.server.connections <= 4

    async def test_tls(self) -> None:
        trusting = ssl.create_default_context(cafile=str(CERTIFICATE))
        trusting.check_hostname = False
        async with serving(is_tls=True) as site:
            client = await site.connect(trusting)
            assert (await client.ask(GET)).status == 200
            stream = await client.ask(GET.replace(b"/hello/you", b"/stream?parts=100&size=20000"))
            assert len(stream.body) > 2_000_000
            closing = GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
            assert (await client.ask(closing)).status == 200
            assert await client.wait_until_closed() == b""
