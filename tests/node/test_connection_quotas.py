"""Limits of connections: how many, how fast, which of them come first, and what happens without handles."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest
from tests.support.loops import on_nodes_loop

from ottla.node.config.node_config import NodeConfig
from ottla.node.network.connection import Parts, PendingRequest
from ottla.node.network.connection_quotas import ConnectionQuotas, ConnectionRate
from ottla.node.network.server import SocketServer
from ottla.runtime.loop import run
from ottla.runtime.network import RealNetwork

DEADLINE_SECONDS = 60
TWO_LISTENERS = {
    "listeners": "CLIENTS://127.0.0.1:0,BROKERS://127.0.0.1:0",
    "listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT",
    "inter.broker.listener.name": "BROKERS",
}


class Echo:
    lane = None

    def start(self, pending: PendingRequest, data: memoryview) -> Parts | Awaitable[Parts | None] | None:
        return [len(data).to_bytes(4, "big"), bytes(data)]


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self) -> bytes:
        self.writer.write(b"\0\0\0\2hi")
        async with asyncio.timeout(DEADLINE_SECONDS):
            return await self.reader.readexactly(6)

    async def closed(self) -> bool:
        async with asyncio.timeout(DEADLINE_SECONDS):
            with contextlib.suppress(ConnectionError):
                return await self.reader.read() == b""
        return True


class Bench:
    def __init__(self, server: SocketServer, ports: dict[str, int]) -> None:
        self.server = server
        self.ports = ports
        self.clients: list[Client] = []

    async def client(self, listener: str = "CLIENTS") -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.ports[listener]))
        self.clients.append(client)
        return client


@contextlib.asynccontextmanager
async def serving(**settings: str) -> AsyncIterator[Bench]:
    config = NodeConfig(TWO_LISTENERS | {name.replace("_", "."): value for name, value in settings.items()})
    server = SocketServer(RealNetwork(), config, lambda endpoint: Echo())
    opened = await server.listen(config.listeners)
    bench = Bench(server, {name: endpoint.port for name, endpoint in opened.items()})
    try:
        yield bench
    finally:
        await server.stop_listening()
        server.abort_connections()
        for client in bench.clients:
            client.writer.close()


@on_nodes_loop
async def test_brokers_connect_although_the_limit_is_reached_and_the_least_used_client_goes() -> None:
    async with serving(max_connections="3") as bench:
        old, busy, other = [await bench.client() for _ in range(3)]
        for client in (old, other, busy):
            assert (await client.ask())[4:] == b"hi"
        waiting = await bench.client()
        waiting.writer.write(b"\0\0\0\2hi")
        broker = await bench.client("BROKERS")
        assert (await broker.ask())[4:] == b"hi"
        assert await old.closed()
        for client in (busy, other, broker):
            assert (await client.ask())[4:] == b"hi"
        assert bench.server.connections == 3
        # One that waits to be accepted gets its place when there is one.
        busy.writer.close()
        other.writer.close()
        assert (await waiting.ask())[4:] == b"hi"


@on_nodes_loop
async def test_the_limit_of_a_listener_holds_for_it_alone() -> None:
    async with serving(listener_name_clients_max_connections="1") as bench:
        first, second = await bench.client(), await bench.client()
        assert (await first.ask())[4:] == b"hi"
        for _ in range(3):
            assert (await (await bench.client("BROKERS")).ask())[4:] == b"hi"
        assert bench.server.connections == 4
        first.writer.close()
        assert (await second.ask())[4:] == b"hi"


@on_nodes_loop
async def test_a_lower_limit_closes_what_is_too_much() -> None:
    async with serving() as bench:
        clients = [await bench.client() for _ in range(4)]
        for client in clients:
            await client.ask()
        bench.server.configure(NodeConfig(TWO_LISTENERS | {"max.connections": "2"}))
        assert await clients[0].closed()
        assert await clients[1].closed()
        assert (await clients[3].ask())[4:] == b"hi"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def _accepted(quotas: ConnectionQuotas, clock: Clock, listener: str, seconds: float) -> int:
    """How many connections are accepted of clients that always come."""
    quota = quotas.listener(listener)
    ends = clock.now + seconds
    accepted = 0
    while clock.now < ends:
        delay_s = quota.delay_s()
        if delay_s > 0:
            clock.now += delay_s
        else:
            assert quota.on_accepted("192.0.2.1") is None
            accepted += 1
    return accepted


@pytest.mark.parametrize("prefix", ["", "listener.name.clients."])
def test_connections_are_accepted_at_the_rate(prefix: str) -> None:
    clock = Clock()
    settings = TWO_LISTENERS | {f"{prefix}max.connection.creation.rate": "20"}
    quotas = ConnectionQuotas(NodeConfig(settings), "BROKERS", clock)
    quotas.listener("BROKERS")
    first = _accepted(quotas, clock, "CLIENTS", 30)
    # The windows are empty at first, so ten seconds' worth may come at once.
    assert 20 * 30 * 0.8 <= first <= 20 * 41
    later = _accepted(quotas, clock, "CLIENTS", 60)
    assert 20 * 60 * 0.8 <= later <= 20 * 60 * 1.2
    # Brokers are exempt from the rate for all, not from that of their own listener.
    before = clock.now
    for _ in range(5000):
        assert quotas.listener("BROKERS").delay_s() == 0
        quotas.listener("BROKERS").on_accepted("192.0.2.2")
    assert clock.now == before


def test_a_rate_forgets_what_was_long_ago() -> None:
    rate = ConnectionRate()
    rate.limit = 1
    for _ in range(50):
        rate.record(0.0)
    assert rate.delay_s(0.0) == 1.0
    assert rate.delay_s(20.0) == 0.0


def test_each_listener_says_once_that_it_is_full(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    quotas = ConnectionQuotas(NodeConfig(TWO_LISTENERS | {"max.connections": "1"}), None, clock)
    clients, brokers = quotas.listener("CLIENTS"), quotas.listener("BROKERS")
    brokers.max_connections = 10
    assert clients.on_accepted("192.0.2.1") is None
    for _ in range(5):
        assert clients.delay_s() > 0
        assert brokers.delay_s() > 0
    assert [record.getMessage().split()[0] for record in caplog.records] == ["CLIENTS", "BROKERS"]


def test_an_address_may_connect_as_often_as_its_quota_says() -> None:
    clock = Clock()
    quotas = ConnectionQuotas(NodeConfig(TWO_LISTENERS), "BROKERS", clock)
    listener = quotas.listener("CLIENTS")

    def connect(host: str, times: int) -> int:
        return sum(listener.on_accepted(host) is None for _ in range(times))

    assert connect("192.0.2.1", 1000) == 1000
    quotas.update_ip_quota("192.0.2.1", 5)
    # Ten seconds' worth at once, and no other address is concerned.
    assert connect("192.0.2.1", 1000) == 50
    assert connect("192.0.2.2", 1000) == 1000
    # Those that are refused do not count, neither as connections nor for the rate.
    assert listener.connections == 2050
    delay_s = listener.on_accepted("192.0.2.1")
    assert delay_s is not None
    assert 0 < delay_s <= 1
    clock.now += 20
    assert connect("192.0.2.1", 1000) == 50
    quotas.update_ip_quota(None, 1)
    assert connect("192.0.2.3", 100) == 10
    quotas.update_ip_quota("192.0.2.3", 2**31 - 1)
    assert connect("192.0.2.3", 100) == 100
    quotas.update_ip_quota("192.0.2.3", None)
    quotas.update_ip_quota(None, None)
    assert connect("192.0.2.3", 100) == 100
    quotas.update_ip_quota("2001:DB8:0::1", 1)
    assert connect("2001:db8::1", 100) == 10
    quotas.update_ip_quota("::ffff:192.0.2.9", 1)
    assert connect("192.0.2.9", 100) == 10


def test_the_rates_of_many_addresses_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.node.network.connection_quotas._MAX_IPS", 100)
    clock = Clock()
    quotas = ConnectionQuotas(NodeConfig(TWO_LISTENERS), "BROKERS", clock)
    quotas.update_ip_quota(None, 1)
    listener = quotas.listener("CLIENTS")
    for number in range(10):
        assert listener.on_accepted("192.0.2.1") is None, number
    for number in range(1000):
        assert listener.on_accepted(f"198.51.{number // 256}.{number % 256}") is None
        assert listener.on_accepted("192.0.2.1") is not None
    assert len(quotas._ip_rates._rates) == 100


@pytest.mark.slow
@on_nodes_loop
async def test_a_client_that_connects_too_often_is_closed_after_a_while() -> None:
    async with serving() as bench:
        bench.server.update_ip_quotas(
            {(("ip", "127.0.0.1"),): {"connection_creation_rate": 1.0}}, [(("ip", "127.0.0.1"),)]
        )
        kept = [await bench.client() for _ in range(10)]
        for client in kept:
            assert (await client.ask())[4:] == b"hi"
        refused = await bench.client()
        refused.writer.write(b"\0\0\0\2hi")
        assert await refused.closed()
        for client in kept:
            assert (await client.ask())[4:] == b"hi"
        assert bench.server.connections == 10


@on_nodes_loop
async def test_an_address_of_ipv4_is_the_same_on_a_socket_for_both() -> None:
    settings = {"listeners": "CLIENTS://:0", "listener.security.protocol.map": "CLIENTS:PLAINTEXT"}
    config = NodeConfig(settings | {"max.connections.per.ip.overrides": "127.0.0.1:1"})
    server = SocketServer(RealNetwork(), config, lambda endpoint: Echo())
    opened = await server.listen(config.listeners)
    try:
        first, second = [
            Client(*await asyncio.open_connection("127.0.0.1", opened["CLIENTS"].port)) for _ in range(2)
        ]
        assert (await first.ask())[4:] == b"hi"
        assert [each.peer[0] for each in server._connections] == ["127.0.0.1"]
        assert await second.closed()
        first.writer.close()
        second.writer.close()
    finally:
        await server.stop_listening()
        server.abort_connections()


@pytest.mark.slow
def test_without_handles_connections_wait_and_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures = [OSError(errno.EMFILE, "Too many open files")] * 5
    accept = socket.socket.accept

    def failing(self: socket.socket) -> Any:
        if failures:
            raise failures.pop()
        return accept(self)

    async def main() -> None:
        async with serving() as bench:
            first = await bench.client()
            await first.ask()
            monkeypatch.setattr(socket.socket, "accept", failing)
            second = await bench.client()
            assert (await first.ask())[4:] == b"hi"
            assert (await second.ask())[4:] == b"hi"
            assert not failures

    run(main())
    assert sum("Too many open files" in record.message for record in caplog.records) == 1
