"""Connections: frames, order, bounds, and what happens to clients that speak something else."""

import asyncio
import contextlib
import gc
import logging
import socket
import struct
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any
from unittest.mock import Mock

import pytest
from tests.support.loops import on_nodes_loop
from tests.support.waiting import until

from ottla.node.config.listeners import Endpoint
from ottla.node.config.node_config import NodeConfig
from ottla.node.network import connection as connections
from ottla.node.network import server as server_module
from ottla.node.network.connection import ClientConnection, Parts, PendingRequest, ProtocolViolation
from ottla.node.network.memory_budget import MemoryBudget
from ottla.node.network.server import SocketServer
from ottla.runtime.loop import run
from ottla.runtime.network import RealNetwork

DEADLINE_SECONDS = 60


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def reply(body: bytes) -> Parts:
    return [struct.pack(">i", len(body)), body]


class Script:
    """A service that does what the request's text says."""

    def __init__(self) -> None:
        self.started: list[bytes] = []
        self.gates: dict[bytes, asyncio.Future[None]] = {}
        self.turns: list[bytes] = []

    lane = None

    def start(self, pending: PendingRequest, data: memoryview) -> Parts | Awaitable[Parts | None] | None:
        body = bytes(data)
        self.started.append(body)
        verb, _, rest = body.partition(b" ")
        match verb:
            case b"silent":
                return None
            case b"wait":
                return self._wait(rest)
            case b"big":
                return reply(bytes(int(rest)))
            case b"turn":
                return self._in_turn(pending, rest)
            case b"throttle":
                pending.connection.throttle(float(rest))
                return reply(body)
            case b"work":
                _work(float(rest))
                return reply(body)
            case b"bad":
                raise ProtocolViolation("it said bad")
            case b"fail":
                return self._fail()
        return reply(body)

    async def _wait(self, name: bytes) -> Parts:
        self.gates[name] = asyncio.get_running_loop().create_future()
        await self.gates[name]
        return reply(b"waited " + name)

    async def _in_turn(self, pending: PendingRequest, name: bytes) -> Parts:
        await pending.wait_for_turn()
        self.turns.append(name)
        return reply(name)

    async def _fail(self) -> Parts:
        raise RuntimeError("boom")


def _work(seconds: float) -> None:
    """Use the loop for so long, as a request does that takes much to answer."""
    ends = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < ends:
        pass


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, *bodies: bytes) -> None:
        self.writer.write(b"".join(map(frame, bodies)))

    async def receive(self) -> bytes:
        async with asyncio.timeout(DEADLINE_SECONDS):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            return await self.reader.readexactly(size)

    @property
    def nothing_came(self) -> bool:
        return not self.reader._buffer  # type: ignore[attr-defined]

    async def closed(self) -> bool:
        """Whether the other side ends the connection, with nothing left to read."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            try:
                return await self.reader.read() == b""
            except ConnectionError:
                return True


class Bench:
    """A server on a free port, and clients for it."""

    def __init__(self, script: Script, server: SocketServer, port: int) -> None:
        self.script = script
        self.server = server
        self.port = port
        self._writers: list[asyncio.StreamWriter] = []

    async def client(self, limit: int = 2**16) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=limit)
        self._writers.append(writer)
        return Client(reader, writer)

    async def settle(self) -> None:
        """Let the server see everything that was sent before this, by a round trip of another client."""
        client = await self.client()
        for _ in range(3):
            client.send(b"echo settle")
            await client.receive()
            self.script.started.remove(b"echo settle")

    async def close(self) -> None:
        await self.server.stop_listening()
        self.server.abort_connections()
        for writer in self._writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


@contextlib.asynccontextmanager
async def serving(
    on_closed: Callable[[ClientConnection], None] | None = None, **settings: str
) -> AsyncIterator[Bench]:
    config = NodeConfig(
        {"listeners": "PLAINTEXT://127.0.0.1:0"} | {k.replace("_", "."): v for k, v in settings.items()}
    )
    script = Script()
    server = SocketServer(RealNetwork(), config, lambda endpoint: script, on_closed)
    opened: dict[str, Endpoint] = await server.listen(config.listeners)
    bench = Bench(script, server, opened["PLAINTEXT"].port)
    try:
        yield bench
    finally:
        await bench.close()


@pytest.fixture(autouse=True)
def frequent_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server looks often for connections to close, however long they may be idle."""
    monkeypatch.setattr(server_module, "_MAX_SWEEP_SECONDS", 0.05)


def scenario(main: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test's coroutine on the loop that nodes run on."""

    def test() -> None:
        run(main())

    test.__name__ = main.__name__
    test.__doc__ = main.__doc__
    return test


@scenario
async def test_pipelined_requests_are_answered_in_order() -> None:
    async with serving() as bench:
        client = await bench.client()
        bodies = [b"echo %d" % n for n in range(1000)]
        client.send(*bodies)
        assert [await client.receive() for _ in bodies] == bodies


@scenario
async def test_later_requests_are_worked_on_while_an_earlier_one_waits() -> None:
    async with serving() as bench:
        client = await bench.client()
        client.send(b"wait a", b"echo 1", b"wait b", b"echo 2")
        await until(lambda: len(bench.script.started) == 4 and len(bench.script.gates) == 2)
        bench.script.gates[b"b"].set_result(None)
        await bench.settle()
        assert client.nothing_came
        bench.script.gates[b"a"].set_result(None)
        assert [await client.receive() for _ in range(4)] == [b"waited a", b"echo 1", b"waited b", b"echo 2"]


@scenario
async def test_a_request_without_a_response_leaves_no_gap() -> None:
    async with serving() as bench:
        client = await bench.client()
        client.send(b"silent", b"echo 1", b"wait a", b"silent", b"echo 2")
        assert await client.receive() == b"echo 1"
        await until(lambda: b"a" in bench.script.gates)
        bench.script.gates[b"a"].set_result(None)
        assert [await client.receive() for _ in range(2)] == [b"waited a", b"echo 2"]


@scenario
async def test_frames_arrive_in_any_pieces() -> None:
    async with serving() as bench:
        client = await bench.client()
        for byte in frame(b"echo slow") + frame(b""):
            client.writer.write(bytes((byte,)))
            await asyncio.sleep(0)
        assert await client.receive() == b"echo slow"
        assert await client.receive() == b""
        large = b"echo " + bytes(range(256)) * 40_000
        client.send(b"echo 1", large, b"echo 2")
        assert [await client.receive() for _ in range(3)] == [b"echo 1", large, b"echo 2"]


@scenario
async def test_storage_for_a_frame_grows_with_what_arrives() -> None:
    async with serving() as bench:
        client = await bench.client()
        client.writer.write(struct.pack(">i", 90 * 1024 * 1024) + b"x")
        await until(lambda: bench.server.memory.used > 0)
        (connection,) = bench.server._connections
        await until(lambda: connection._frame is not None)
        assert connection._frame is not None
        assert len(connection._frame) <= 1024 * 1024


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "an HTTP request"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "an HTTP/2 request"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "a TLS handshake"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "an SSH client"),
        (b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n", "the PROXY protocol"),
        (b"hello, is a broker here?", "plain text ('hello, is a brok')"),
        (b"\x7f\xff\xff\xff\x00\x03", "a request of 2147483647 bytes"),
        (b"\xff\xff\xff\xff\x00\x03", "a request of -1 bytes"),
    ],
)
def test_garbage_closes_the_connection_with_one_line(
    data: bytes, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with serving() as bench:
            client, other = await bench.client(), await bench.client()
            client.writer.write(data)
            assert await client.closed()
            other.send(b"echo still here")
            assert await other.receive() == b"echo still here"

    with caplog.at_level(logging.WARNING):
        run(main())
    assert len(caplog.records) == 1
    assert expected in caplog.text
    assert "127.0.0.1" in caplog.text


def test_a_frame_above_the_limit_is_refused_before_it_is_read(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving(socket_request_max_bytes="100") as bench:
            client = await bench.client()
            client.send(b"echo " + bytes(95))
            assert len(await client.receive()) == 100
            client.writer.write(struct.pack(">i", 101))
            assert await client.closed()

    run(main())
    assert "101 bytes, and socket.request.max.bytes is 100" in caplog.text


def test_a_violation_closes_only_its_own_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving() as bench:
            client, other = await bench.client(), await bench.client()
            client.send(b"echo 1", b"bad", b"echo 2")
            assert await client.receive() == b"echo 1"
            assert await client.closed()
            other.send(b"echo fine")
            assert await other.receive() == b"echo fine"

    run(main())
    assert "it said bad" in caplog.text


def test_a_request_that_fails_closes_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving() as bench:
            client = await bench.client()
            client.send(b"fail")
            assert await client.closed()

    run(main())
    assert "boom" in caplog.text


def test_a_request_that_is_given_up_does_not_hold_back_those_after_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with serving() as bench:
            client = await bench.client()
            client.send(b"wait a", b"echo b")
            await until(lambda: b"echo b" in bench.script.started)
            bench.script.gates[b"a"].cancel()
            assert await client.closed()
            await until(lambda: bench.server.connections == 0 and bench.server.memory.used == 0)

    run(main())
    assert "given up" in caplog.text


@scenario
async def test_no_more_requests_are_started_than_may_be_in_work() -> None:
    async with serving(queued_max_requests="3") as bench:
        client = await bench.client()
        client.send(*(b"wait %d" % n for n in range(10)))
        script = bench.script
        await until(lambda: len(script.gates) == 3)
        await bench.settle()
        assert len(script.started) == 3
        script.gates[b"0"].set_result(None)
        await until(lambda: len(script.gates) == 4)
        for n in range(1, 10):
            await until(lambda name=b"%d" % n: name in script.gates)  # type: ignore[misc]
            script.gates[b"%d" % n].set_result(None)
        assert [await client.receive() for _ in range(10)] == [b"waited %d" % n for n in range(10)]


@on_nodes_loop
async def test_many_clients_that_ask_for_much_at_once_have_one_request_in_work_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "_MANY_IN_PROGRESS", 10)
    async with serving() as bench:
        script, server = bench.script, bench.server
        crowd = [await bench.client() for _ in range(4)]
        crowd[0].send(*(b"wait first %d" % n for n in range(20)))
        await until(lambda: len(script.gates) == 10)
        for number, client in enumerate(crowd[1:], 1):
            client.send(*(b"wait %d %d" % (number, n) for n in range(20)))
            await until(lambda count=10 + number: len(script.gates) == count)  # type: ignore[misc]
        await bench.settle()
        assert len(script.gates) == 13
        assert server._limits.in_progress == 13
        # Each goes on by its own answers, and who has gone makes room for the others.
        script.gates[b"1 0"].set_result(None)
        await until(lambda: b"1 1" in script.gates)
        for connection in server._connections:
            if len(connection._pending) == 10:
                connection.abort()
        await until(lambda: server._limits.in_progress == 3)
        script.gates[b"2 0"].set_result(None)
        await until(lambda: b"2 5" in script.gates)
        server.abort_connections()
        await until(lambda: server._limits.in_progress == 0)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
@pytest.mark.parametrize("end", ["close", "reset"])
@on_nodes_loop
async def test_a_client_that_vanishes_while_it_is_not_read_from_is_noticed(
    monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(server_module, "_GONE_SECONDS", 0.05)
    async with serving(queued_max_requests="2") as bench:
        staying, leaving = await bench.client(), await bench.client()
        for client in (staying, leaving):
            client.send(*(b"wait %d" % n for n in range(10)))
        await until(lambda: len(bench.script.started) == 4)
        if end == "reset":
            leaving.writer.transport.abort()
        else:
            leaving.writer.close()
        await until(lambda: bench.server.connections == 1)
        assert bench.server._limits.in_progress == 2


@scenario
async def test_a_client_that_does_not_read_stops_being_served() -> None:
    async with serving() as bench:
        client = await bench.client(limit=2**10)
        count = 200
        client.send(*(b"big 1000000" for _ in range(count)))
        await until(lambda: len(bench.script.started) > 0)
        (connection,) = bench.server._connections
        await until(lambda: connection._write_paused)
        await bench.settle()
        started = len(bench.script.started)
        assert started < count / 4
        assert connection.transport.get_write_buffer_size() < 5_000_000
        for _ in range(count):
            assert len(await client.receive()) == 1_000_000


@scenario
async def test_a_large_request_that_paused_on_its_way_goes_on() -> None:
    async with serving() as bench:
        bench.server._limits.max_in_flight_bytes = 2 * 1024 * 1024
        client = await bench.client()
        body = b"echo " + bytes(6 * 1024 * 1024)
        data = frame(body)
        client.writer.write(data[: len(data) // 2])
        await until(lambda: bench.server.memory.used > 3 * 1024 * 1024)
        (connection,) = bench.server._connections
        # As when the client has not read its former responses, or memory was short.
        connection.pause_writing()
        client.writer.write(data[len(data) // 2 :])
        await bench.settle()
        connection.resume_writing()
        async with asyncio.timeout(60):
            assert await client.receive() == body


@pytest.mark.slow
@scenario
async def test_a_client_that_asks_for_much_at_once_does_not_keep_others_waiting() -> None:
    async with serving() as bench:
        greedy, modest = await bench.client(), await bench.client()
        modest.send(b"echo hello")
        await modest.receive()
        count = 300
        greedy.send(*(b"work 0.005" for _ in range(count)))
        await until(lambda: bench.script.started.count(b"work 0.005") > 0)
        modest.send(b"echo me too")
        assert await modest.receive() == b"echo me too"
        assert bench.script.started.count(b"work 0.005") < count / 2
        for _ in range(count):
            assert await greedy.receive() == b"work 0.005"


@scenario
async def test_a_response_can_wait_for_its_turn() -> None:
    async with serving() as bench:
        client = await bench.client()
        client.send(b"wait a", b"turn b", b"turn c")
        await until(lambda: len(bench.script.started) == 3)
        assert bench.script.turns == []
        bench.script.gates[b"a"].set_result(None)
        assert [await client.receive() for _ in range(3)] == [b"waited a", b"b", b"c"]
        assert bench.script.turns == [b"b", b"c"]


@scenario
async def test_the_memory_for_requests_is_shared_and_bounded() -> None:
    async with serving(socket_request_max_bytes="1000", queued_max_request_bytes="1000") as bench:
        first, second = await bench.client(), await bench.client()
        first.send(b"wait " + b"a" * 900, b"wait " + b"b" * 900)
        await until(lambda: len(bench.script.gates) == 2)
        second.send(b"echo later")
        await until(lambda: len(bench.server.memory.clients._small_starting) == 1)
        assert second.nothing_came
        bench.script.gates[b"a" * 900].set_result(None)
        assert await second.receive() == b"echo later"
        bench.script.gates[b"b" * 900].set_result(None)
        await until(lambda: bench.server.memory.used == 0)


@scenario
async def test_a_vanished_client_takes_its_work_with_it() -> None:
    async with serving() as bench:
        client = await bench.client()
        client.send(b"wait a", b"wait b")
        await until(lambda: len(bench.script.gates) == 2)
        reset = struct.pack("ii", 1, 0)
        client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        client.writer.transport.abort()
        await until(lambda: bench.script.gates[b"a"].cancelled() and bench.script.gates[b"b"].cancelled())
        await until(lambda: bench.server.connections == 0 and bench.server.memory.used == 0)


@scenario
async def test_a_client_that_has_closed_its_half_still_gets_its_answers() -> None:
    async with serving() as bench:
        client = await bench.client()
        client.send(b"wait a", b"echo b", b"wait c")
        client.writer.write(b"\0\0\1\0 the beginning of another")
        client.writer.write_eof()
        await until(lambda: len(bench.script.gates) == 2)
        (connection,) = bench.server._connections
        await until(lambda: connection.half_closed)
        bench.script.gates[b"a"].set_result(None)
        assert await client.receive() == b"waited a"
        assert await client.receive() == b"echo b"
        bench.script.gates[b"c"].set_result(None)
        assert await client.receive() == b"waited c"
        assert await client.closed()
        await until(lambda: bench.server.connections == 0 and bench.server.memory.used == 0)
        assert bench.server._limits.half_closed == 0


@scenario
async def test_who_waits_for_the_end_of_connections_is_told_at_once() -> None:
    """A controller fences a broker whose process has ended by that."""
    ended: list[ClientConnection] = []
    async with serving(on_closed=ended.append) as bench:
        client = await bench.client()
        client.send(b"wait a")
        await until(lambda: b"a" in bench.script.gates)
        client.writer.close()
        await until(lambda: len(ended) == 1)
        assert bench.script.gates[b"a"].cancelled()


def test_what_is_kept_for_a_client_ends_with_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_LAST_RESPONSES_SECONDS", 0.05)

    class Kept:
        closed = 0

        def close(self) -> None:
            self.closed += 1

    async def main() -> None:
        kept = Kept()
        async with serving() as bench:
            client = await bench.client()
            client.send(b"wait a")
            await until(lambda: b"a" in bench.script.gates)
            (connection,) = bench.server._connections
            connection.kept_fetch = kept
            client.writer.close()
            await until(lambda: kept.closed == 1)

    run(main())


@on_nodes_loop
async def test_clients_that_have_closed_are_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "_LAST_RESPONSES_SECONDS", 0.05)
    async with serving() as bench:
        bench.server._limits.max_half_closed = 2
        for n in range(5):
            client = await bench.client()
            client.send(b"wait %d" % n)
            client.writer.write_eof()
        await until(lambda: len(bench.script.started) == 5)
        await until(lambda: bench.server.connections == 0 and bench.server._limits.half_closed == 0)
        assert all(gate.cancelled() for gate in bench.script.gates.values())


@pytest.mark.slow
@scenario
async def test_idle_connections_are_closed_and_busy_ones_are_not() -> None:
    async with serving(connections_max_idle_ms="300000") as bench:
        busy = await bench.client()
        busy.send(b"wait a")
        await until(lambda: b"a" in bench.script.gates)
        idle = await bench.client()
        assert bench.server._idle_seconds == 300
        bench.server._idle_seconds = 0.3  # only now: a machine may stand still before something is sent
        assert await idle.closed()
        assert bench.server.connections == 1
        bench.script.gates[b"a"].set_result(None)
        assert await busy.receive() == b"waited a"
        assert await busy.closed()


def test_connections_beyond_the_limits_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving(max_connections_per_ip="2") as bench:
            clients = [await bench.client() for _ in range(3)]
            assert await clients[2].closed()
            clients[0].send(b"echo 1")
            assert await clients[0].receive() == b"echo 1"
            clients[0].writer.close()
            await until(lambda: bench.server.connections == 1)
            again = await bench.client()
            again.send(b"echo 2")
            assert await again.receive() == b"echo 2"
        async with serving(max_connections="1") as bench:
            clients = [await bench.client() for _ in range(2)]
            clients[1].send(b"echo 2")
            clients[0].send(b"echo 1")
            assert await clients[0].receive() == b"echo 1"
            await until(lambda: "does not accept more connections" in caplog.text)
            assert bench.server.connections == 1
            clients[0].writer.close()
            assert await clients[1].receive() == b"echo 2"

    run(main())
    assert "address already has the configured maximum of 2 connections (max.connections.per" in caplog.text
    assert "the node 1 of at most 1 (max.connections)" in caplog.text


def test_a_flood_of_faulty_clients_does_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving() as bench:
            for _ in range(120):
                client = await bench.client()
                client.send(b"bad")
                assert await client.closed()

    began = time.monotonic()
    run(main())
    # A burst, and then a few a second, each with a word about those in between.
    later = 1 + (time.monotonic() - began) * connections._FAULTS_PER_SECOND
    assert 50 <= len(caplog.records) <= connections._FAULTS_BURST + 2 * later


def test_a_connection_that_is_lost_leaves_no_request_unawaited(recwarn: pytest.WarningsRecorder) -> None:
    """The response awaits another coroutine, and neither has begun when the client is gone."""

    class Nested:
        lane = None

        def start(self, pending: PendingRequest, data: memoryview) -> Awaitable[Parts | None]:
            return self._outer(self._inner())

        async def _outer(self, inner: Awaitable[Parts]) -> Parts | None:
            return await inner

        async def _inner(self) -> Parts:
            raise AssertionError("it is not to begin")

    @scenario
    async def lose() -> None:
        connection = ClientConnection(
            Nested(),
            connections.ConnectionLimits(),
            MemoryBudget(),
            memoryview(bytearray(connections.RECEIVE_BYTES)),
            lambda _: True,
            lambda _: None,
            connections.ClientFaultLog(),
        )
        connection.connection_made(Mock(get_extra_info=Mock(return_value=("127.0.0.1", 1))))
        data = frame(b"request")
        connection.get_buffer(-1)[: len(data)] = data
        connection.buffer_updated(len(data))
        connection.connection_lost(None)
        await asyncio.sleep(0)

    lose()
    gc.collect()
    assert [each for each in recwarn if "never awaited" in str(each.message)] == []


@scenario
async def test_a_client_that_sends_without_pause_gives_way_to_others() -> None:
    """The event loop reads on as long as there is something, so the connection itself has to stop."""
    script = Script()
    connection = ClientConnection(
        script,
        connections.ConnectionLimits(),
        MemoryBudget(),
        memoryview(bytearray(connections.RECEIVE_BYTES)),
        lambda _: True,
        lambda _: None,
        connections.ClientFaultLog(),
    )
    connection.connection_made(
        Mock(
            get_extra_info=Mock(return_value=("127.0.0.1", 1)),
            get_write_buffer_size=Mock(return_value=0),
        )
    )
    requests = 40
    sent = bytearray(frame(b"silent " + bytes(500_000)) * requests)
    most = turns = 0
    while sent:
        taken = 0
        while sent and not connection.is_reading_paused:
            buffer = connection.get_buffer(-1)
            size = min(len(buffer), len(sent))
            buffer[:size] = sent[:size]
            del sent[:size]
            connection.buffer_updated(size)
            taken += size
        most, turns = max(most, taken), turns + 1
        await asyncio.sleep(0)
    assert len(script.started) == requests
    # What a turn has, and the buffer that was given out at its end.
    assert most <= connections._BYTES_OF_A_TURN + 1024 * 1024
    assert turns >= 10


A_LONG_TIME = b"3600"


@pytest.mark.slow
@scenario
async def test_a_throttled_client_has_its_response_and_nothing_after_it_is_started() -> None:
    async with serving(connection_failed_authentication_delay_ms="50") as bench:
        noisy, quiet = await bench.client(), await bench.client()
        noisy.send(b"throttle " + A_LONG_TIME, b"echo second")
        assert await noisy.receive() == b"throttle " + A_LONG_TIME
        noisy.send(b"echo third", *[b"echo " + bytes(1_000_000)] * 20)
        for number in range(100):
            quiet.send(b"echo %d" % number)
            assert await quiet.receive() == b"echo %d" % number
        await bench.settle()
        (connection,) = [each for each in bench.server._connections if each.is_reading_paused]
        assert b"echo second" not in bench.script.started
        # It is not idle, as another one is after the same time, and what it sends stays with the system.
        bench.server._idle_seconds = 0.5
        assert await quiet.closed()
        assert connection in bench.server._connections
        assert bench.server.memory.used < 100_000
        connection._on_throttled()
        assert [await noisy.receive() for _ in range(2)] == [b"echo second", b"echo third"]


@scenario
async def test_the_longest_time_of_a_throttled_client_counts() -> None:
    async with serving() as bench:
        client = await bench.client()
        client.send(b"wait a", b"wait b", b"echo 0")
        await until(lambda: len(bench.script.gates) == 2)
        (connection,) = bench.server._connections
        connection.throttle(float(A_LONG_TIME))
        connection.throttle(0.001)
        client.send(b"echo 1")
        # Those that have been started are answered.
        for gate in (b"a", b"b"):
            bench.script.gates[gate].set_result(None)
            assert await client.receive() == b"waited " + gate
        assert await client.receive() == b"echo 0"
        await asyncio.sleep(0.05)
        await bench.settle()
        assert b"echo 1" not in bench.script.started
        connection.throttle(float(A_LONG_TIME) * 2)
        connection._on_throttled()
        assert await client.receive() == b"echo 1"


@scenario
async def test_a_throttled_client_goes_on_when_its_time_is_over() -> None:
    async with serving() as bench:
        client = await bench.client()
        for _ in range(5):
            client.send(b"throttle 0.01")
            assert await client.receive() == b"throttle 0.01"


@scenario
async def test_a_request_that_has_begun_is_received_while_its_client_is_throttled() -> None:
    async with serving() as bench:
        client = await bench.client()
        body = b"echo " + bytes(6 * 1024 * 1024)
        data = frame(body)
        client.send(b"wait a")
        client.writer.write(data[: len(data) // 2])
        await until(lambda: bench.server.memory.used > 2 * 1024 * 1024)
        (connection,) = bench.server._connections
        connection.throttle(float(A_LONG_TIME))
        client.writer.write(data[len(data) // 2 :])
        client.send(b"echo next")
        bench.script.gates[b"a"].set_result(None)
        assert await client.receive() == b"waited a"
        assert await client.receive() == body
        await bench.settle()
        assert b"echo next" not in bench.script.started


@pytest.mark.slow
@scenario
async def test_a_throttled_client_that_is_gone_is_noticed() -> None:
    async with serving() as bench:
        client = await bench.client()
        client.send(b"throttle " + A_LONG_TIME)
        await client.receive()
        client.writer.close()
        await until(lambda: not bench.server._connections)
