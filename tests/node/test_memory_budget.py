"""The memory that connections may make a node hold is bounded, and clients that behave do not notice."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import pytest
from tests.support.loops import on_nodes_loop
from tests.support.waiting import until

from ottla.node.config.node_config import NodeConfig
from ottla.node.network import connection, memory_budget
from ottla.node.network import server as server_module
from ottla.node.network.connection import Parts, PendingRequest
from ottla.node.network.memory_budget import MemoryPool
from ottla.node.network.server import SocketServer
from ottla.runtime.loop import run
from ottla.runtime.network import RealNetwork

DEADLINE_SECONDS = 60
MB = 1024 * 1024


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


class Script:
    """Answers `fetch N` as the handler of Fetch does, and what begins as Produce when `gate` opens."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.in_progress = 0
        self.most_in_progress = 0
        self.answered = 0

    lane = None

    def start(self, pending: PendingRequest, data: memoryview) -> Parts | Awaitable[Parts | None] | None:
        if bytes(data[:2]) == b"\0\0":
            return self._produce(len(data))
        verb, _, rest = bytes(data).partition(b" ")
        match verb:
            case b"fetch":
                size = int(rest)
                return self._fetch(pending, size) if pending.is_turn else self._fetch_later(pending, size)
            case b"poll":
                pending.count_decoded(int(rest))
                return self._poll(pending)
            case b"broker":
                pending.connection.mark_inter_broker()
        return [frame(bytes(data))]

    def _fetch(self, pending: PendingRequest, size: int) -> Parts:
        size = min(size, pending.response_bytes)
        pending.hold(size)
        return [struct.pack(">i", size), bytes(size)]

    async def _fetch_later(self, pending: PendingRequest, size: int) -> Parts:
        await pending.wait_for_turn()
        return self._fetch(pending, size)

    async def _poll(self, pending: PendingRequest) -> Parts:
        await self.gate.wait()
        return await self._fetch_later(pending, 1000)

    async def _produce(self, size: int) -> Parts:
        self.in_progress += size
        self.most_in_progress = max(self.most_in_progress, self.in_progress)
        try:
            await self.gate.wait()
        finally:
            self.in_progress -= size
        self.answered += 1
        return [frame(b"appended")]


class Client:
    """A client that reads only when it is asked to, with as little as possible in the system's buffers."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._loop = asyncio.get_running_loop()

    async def send(self, *bodies: bytes) -> None:
        await self.write(b"".join(map(frame, bodies)))

    async def write(self, data: bytes) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            await self._loop.sock_sendall(self.sock, data)

    async def receive(self) -> bytes:
        (size,) = struct.unpack(">i", await self._read(4))
        return await self._read(size)

    async def ask(self, body: bytes) -> bytes:
        await self.send(body)
        return await self.receive()

    async def _read(self, size: int) -> bytes:
        parts = bytearray()
        async with asyncio.timeout(DEADLINE_SECONDS):
            while len(parts) < size:
                data = await self._loop.sock_recv(self.sock, size - len(parts))
                if not data:
                    raise ConnectionError("the server has closed the connection")
                parts += data
        return bytes(parts)

    async def closed(self) -> bool:
        """Whether the server ends the connection; what it sent before is read."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            with contextlib.suppress(ConnectionError):
                while await self._loop.sock_recv(self.sock, 65536):
                    pass
        return True


class Bench:
    def __init__(self, script: Script, server: SocketServer, ports: dict[str, int]) -> None:
        self.script = script
        self.server = server
        self.ports = ports
        self._clients: list[Client] = []

    @property
    def pool(self) -> MemoryPool:
        return self.server.memory.clients

    async def client(self, listener: str = "PLAINTEXT") -> Client:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        client = Client(sock)
        self._clients.append(client)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.ports[listener]))
        return client

    async def close(self) -> None:
        self.script.gate.set()
        await self.server.stop_listening()
        self.server.abort_connections()
        for client in self._clients:
            client.sock.close()
        await until(lambda: self.server.connections == 0)
        assert self.server.memory.used == 0
        assert self.pool.waiting == 0


@contextlib.asynccontextmanager
async def serving(listeners: str = "PLAINTEXT://127.0.0.1:0", **settings: str) -> AsyncIterator[Bench]:
    config = NodeConfig(
        {"listeners": listeners, "socket.send.buffer.bytes": "4096", "socket.receive.buffer.bytes": "4096"}
        | {name.replace("_", "."): value for name, value in settings.items()}
    )
    script = Script()
    server = SocketServer(RealNetwork(), config, lambda endpoint: script)
    opened = await server.listen(config.listeners)
    bench = Bench(script, server, {name: endpoint.port for name, endpoint in opened.items()})
    try:
        yield bench
    finally:
        await bench.close()


def scenario(main: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def test() -> None:
        run(main())

    test.__name__ = main.__name__
    test.__doc__ = main.__doc__
    return test


@pytest.fixture(autouse=True)
def frequent_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server looks often for connections to close, however long they may be idle."""
    monkeypatch.setattr(server_module, "_MAX_SWEEP_SECONDS", 0.05)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are closed after a short stall."""
    monkeypatch.setattr(memory_budget, "_STALL_SECONDS", 0.3)
    monkeypatch.setattr(memory_budget, "_STALL_WHEN_FULL_SECONDS", 0.2)
    monkeypatch.setattr(memory_budget, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(memory_budget, "_LOOK_WHEN_SHORT_SECONDS", 0.02)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection is closed for a stall within the time of a test."""
    monkeypatch.setattr(memory_budget, "_STALL_SECONDS", 600.0)
    monkeypatch.setattr(memory_budget, "_STALL_WHEN_FULL_SECONDS", 600.0)
    monkeypatch.setattr(memory_budget, "_LOOK_WHEN_SHORT_SECONDS", 0.02)


@pytest.mark.usefixtures("patient")
@on_nodes_loop
async def test_clients_that_do_not_read_together_hold_no_more_than_the_limit() -> None:
    async with serving(connections_memory_max_bytes=str(16 * MB)) as bench:
        pool, server = bench.pool, bench.server
        good = await bench.client()
        assert len(await good.ask(b"fetch 1000000")) == 1_000_000
        slow = [await bench.client() for _ in range(23)]
        for client in slow:
            await client.send(b"fetch 4000000", b"fetch 4000000")
            # Each is counted before the next response is made.
            assert len(await good.ask(b"echo still here")) == 15
            assert pool.used <= pool.limit + pool.small
        await until(lambda: pool.use().unread_connections == 23)
        in_transports = sum(each.transport.get_write_buffer_size() for each in server._connections)
        assert in_transports <= pool.used <= pool.limit + pool.small
        assert pool.is_short
        # A client that reads gets small responses at once.
        for _ in range(20):
            assert 0 < len(await good.ask(b"fetch 4000000")) <= 2 * pool.small
        assert server.connections == 24
        assert pool.use().slow_readers_closed == 0


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_slow_readers_are_closed_when_memory_is_short_and_only_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with serving(connections_memory_max_bytes=str(16 * MB)) as bench:
            pool = bench.pool
            good, first = await bench.client(), await bench.client()
            await first.send(b"fetch 1000000")
            await until(lambda: pool.use().unread_connections == 1)
            for _ in range(20):  # longer than a stall may last, with memory to spare
                await asyncio.sleep(0.02)
                assert await good.ask(b"echo") == b"echo"
            assert bench.server.connections == 2
            slow = [await bench.client() for _ in range(30)]
            for client in slow:
                await client.send(b"fetch 4000000")
            await until(lambda: pool.use().slow_readers_closed > 0 and not pool.is_short)
            # The longest stalled is closed first, and no more than it takes.
            assert await first.closed()
            assert pool.used <= pool.plenty
            assert bench.server.connections > 10
            assert len(await good.ask(b"fetch 100000")) == 100_000

    run(main())
    assert "read nothing of its responses for" in caplog.text
    assert "connections.memory.max.bytes" in caplog.text


class LoopWithoutPauses(asyncio.SelectorEventLoop):
    """A loop for which a pause of the process, and with it of the client and the server, is short."""

    _passed = 0.0
    _seen: float | None = None

    def time(self) -> float:
        now = super().time()
        self._passed += min(now - (now if self._seen is None else self._seen), 0.25)
        self._seen = now
        return self._passed


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_a_slow_client_that_still_reads_is_not_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_budget, "_STALL_SECONDS", 3.5)
    monkeypatch.setattr(memory_budget, "_STALL_WHEN_FULL_SECONDS", 3.0)

    async def main() -> None:
        async with serving(connections_memory_max_bytes=str(16 * MB)) as bench:
            pool = bench.pool
            steady = await bench.client()
            await steady.send(b"fetch 4000000")
            slow = [await bench.client() for _ in range(30)]
            for client in slow:
                await client.send(b"fetch 4000000")
            (size,) = struct.unpack(">i", await steady._read(4))
            while size:
                size -= len(await steady._read(min(size, 20_000)))
                await asyncio.sleep(0.02)  # in all longer than others may stall
            await until(lambda: pool.use().slow_readers_closed > 0)
            assert await steady.ask(b"echo") == b"echo"

    with asyncio.Runner(loop_factory=LoopWithoutPauses) as runner:
        runner.run(main())


@pytest.mark.usefixtures("patient")
def test_clients_that_read_a_little_are_closed_when_others_wait_the_slowest_first(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection, "_RATE_SECONDS", 0.5)

    async def read_a_little(clients: list[Client]) -> None:
        while True:
            await asyncio.sleep(0.05)
            for client in clients:
                with contextlib.suppress(OSError):
                    client.sock.recv(16)

    async def main() -> None:
        async with serving(connections_memory_max_bytes=str(16 * MB)) as bench:
            pool = bench.pool
            slow = [await bench.client() for _ in range(100)]
            reading = asyncio.create_task(read_a_little(slow))
            for client in slow:
                await client.send(b"fetch 4000000", b"fetch 4000000")
            # What waits is served, although all that hold the memory read something all the time.
            good = await bench.client()
            assert len(await good.ask(b"fetch 4000000")) >= pool.small
            # Their second requests wait as well, so slow ones are closed even if this client came first.
            await until(lambda: pool.use().slow_readers_closed > 0)
            reading.cancel()

    run(main())
    assert "to read its responses as slowly as it does" in caplog.text
    assert "read nothing" not in caplog.text


@pytest.mark.usefixtures("patient")
@on_nodes_loop
async def test_requests_that_take_all_memory_once_decoded_are_answered_nevertheless() -> None:
    async with serving(connections_memory_max_bytes=str(16 * MB)) as bench:
        pool = bench.pool
        clients = [await bench.client() for _ in range(3)]
        for number, client in enumerate(clients, 1):
            await client.send(b"poll 6000000")
            await until(lambda number=number: pool.requests >= number * 6_000_000)  # type: ignore[misc]
        late = await bench.client()
        await late.send(b"poll 6000000")
        assert pool.requests < 4 * 6_000_000
        bench.script.gate.set()
        for client in (*clients, late):
            assert len(await client.receive()) == 1000
        await until(lambda: pool.used == 0)


@pytest.mark.usefixtures("patient")
@on_nodes_loop
async def test_a_response_that_waits_for_memory_is_made_when_others_have_read() -> None:
    async with serving(connections_memory_max_bytes=str(16 * MB)) as bench:
        pool = bench.pool
        slow = [await bench.client() for _ in range(100)]
        for client in slow:
            await client.send(b"fetch 4000000")
        await until(lambda: len(pool._reading) > 0)
        late = await bench.client()
        await late.send(b"fetch 4000000")
        for client in slow:
            assert len(await client.receive()) >= pool.small
        assert len(await late.receive()) >= pool.small
        assert pool.waiting == 0


@pytest.mark.usefixtures("impatient")
def test_a_thousand_requests_of_which_only_the_beginning_comes(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving(connections_memory_max_bytes=str(16 * MB)) as bench:
            pool = bench.pool
            good = await bench.client()
            for number in range(1000):
                client = await bench.client()
                await client.write(struct.pack(">i", 50 * MB) + bytes(1000))
                if number % 50 == 0:
                    assert await good.ask(b"echo") == b"echo"
                    assert pool.used <= pool.limit + MB
            await until(lambda: pool.use().slow_senders_closed > 0 and not pool.is_short)
            assert pool.used <= pool.plenty
            # A large request of a client that sends all of it gets through.
            bench.script.gate.set()
            assert await good.ask(b"\0\0" + bytes(3 * MB)) == b"appended"

    run(main())
    assert "sent nothing more of its request" in caplog.text


@pytest.mark.usefixtures("impatient")
@on_nodes_loop
async def test_a_sender_that_stalls_while_it_goes_before_others_is_closed() -> None:
    async with serving(connections_memory_max_bytes=str(16 * MB)) as bench:
        pool = bench.pool
        bench.script.gate.set()
        stalled = [await bench.client() for _ in range(pool.plenty // MB)]
        for client in stalled[1:]:
            await client.write(struct.pack(">i", 50 * MB) + bytes(1000))
        await until(lambda: pool.use().incomplete_requests == len(stalled) - 1)
        # The only one that may grow beyond what is plenty, and then it does not go on.
        await stalled[0].write(struct.pack(">i", 50 * MB) + bytes(2 * MB + 1000))
        await until(lambda: pool._express is not None)
        good = await bench.client()
        assert await good.ask(b"\0\0" + bytes(3 * MB)) == b"appended"


@pytest.mark.usefixtures("patient")
@on_nodes_loop
async def test_large_requests_in_progress_over_many_connections_are_bounded() -> None:
    async with serving(connections_memory_max_bytes=str(16 * MB)) as bench:
        pool, script = bench.pool, bench.script
        clients = [await bench.client() for _ in range(12)]
        body = b"\0\0" + bytes(700_000)
        sends = [asyncio.create_task(client.send(*[body] * 6)) for client in clients]
        await until(lambda: pool.waiting > 0 and script.in_progress > 0)
        quiet = await bench.client()
        for _ in range(50):
            # What carries no records is served at once: a follower's fetch may be what all wait for.
            assert await quiet.ask(b"heartbeat") == b"heartbeat"
        assert 0 < script.most_in_progress <= pool.limit
        assert pool.requests <= pool.limit + len(body) + MB
        script.gate.set()
        for client, sent in zip(clients, sends, strict=True):
            for _ in range(6):
                assert await client.receive() == b"appended"
            await sent
        assert script.answered == 72
        assert script.most_in_progress <= pool.limit + len(body)
        await until(lambda: pool.requests == 0)


@scenario
async def test_a_request_larger_than_the_budget_gets_through_alone() -> None:
    async with serving(connections_memory_max_bytes=str(MB)) as bench:
        bench.script.gate.set()
        clients = [await bench.client() for _ in range(4)]
        sends = [asyncio.create_task(client.send(b"\0\0" + bytes(5 * MB))) for client in clients]
        for client in clients:
            assert await client.receive() == b"appended"
        await asyncio.gather(*sends)
        assert bench.script.most_in_progress <= 6 * MB  # one after the other


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
@on_nodes_loop
async def test_other_nodes_are_served_while_clients_use_all_of_theirs() -> None:
    async with serving(
        "CLIENTS://127.0.0.1:0,BROKERS://127.0.0.1:0",
        listener_security_protocol_map="CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT",
        inter_broker_listener_name="BROKERS",
        connections_memory_max_bytes=str(16 * MB),
    ) as bench:
        pool, nodes = bench.pool, bench.server.memory.nodes
        follower = await bench.client("CLIENTS")
        assert await follower.ask(b"broker") == b"broker"
        for _ in range(40):
            client = await bench.client("CLIENTS")
            await client.send(b"fetch 4000000")
        await until(lambda: pool.used > pool.plenty)
        broker = await bench.client("BROKERS")
        for node in (broker, follower):
            assert len(await node.ask(b"fetch 500000")) == 500_000
        await until(lambda: nodes.used == 0)
        assert pool.used > pool.plenty


@pytest.mark.slow
@scenario
async def test_the_idle_limit_closes_connections_with_unread_responses_and_half_sent_requests() -> None:
    async with serving() as bench:
        unread, half_sent, behind, waiting = [await bench.client() for _ in range(4)]
        await unread.send(b"fetch 4000000")
        await half_sent.write(struct.pack(">i", 1000) + b"half")
        await behind.send(*[b"fetch 4000000"] * 3)  # more requests wait for it to read
        await waiting.send(b"\0\0 produce")
        await until(lambda: bench.script.in_progress > 0)  # the last of them was accepted
        bench.server._idle_seconds = 0.5
        # One that waits for the node is not idle.
        await until(lambda: bench.server.connections == 1)
        bench.script.gate.set()
        assert await waiting.receive() == b"appended"
        assert await waiting.closed()


@pytest.mark.slow
@scenario
async def test_a_slow_client_that_reads_is_not_idle() -> None:
    async with serving() as bench:
        steady, unread = await bench.client(), await bench.client()

        def active(client: Client) -> float:
            """When something moved between the server and a client, in either direction."""
            name = client.sock.getsockname()
            (found,) = [each for each in bench.server._connections if each.peer == name]
            return found.last_active

        await unread.send(b"fetch 9000000")
        await steady.send(b"fetch 9000000")
        (size,) = struct.unpack(">i", await steady._read(4))
        while active(steady) < active(unread) + 1:
            size -= len(await steady._read(min(size, 30_000)))
            await asyncio.sleep(0.02)
        # At once, and between the two: it does not matter for how long the machine stands still.
        between = (active(steady) + active(unread)) / 2
        bench.server._idle_seconds = asyncio.get_running_loop().time() - between
        bench.server._sweep()
        bench.server._idle_seconds = 600
        await until(lambda: bench.server.connections == 1)
        await steady._read(size)
        assert await steady.ask(b"echo") == b"echo"


@on_nodes_loop
async def test_the_use_of_memory_can_be_inspected() -> None:
    async with serving(connections_memory_max_bytes=str(16 * MB)) as bench:
        client = await bench.client()
        await client.send(b"fetch 2000000")
        await client.write(struct.pack(">i", 100))
        await until(lambda: bench.pool.use().responses > 0)
        use = bench.pool.use()
        assert use.limit == 10 * MB
        assert use.used == use.requests + use.responses
        assert use.unread_connections == 1
        assert (use.waiting, use.slow_readers_closed, use.slow_senders_closed) == (0, 0, 0)
