"""One error for each cause, with the address that was tried; and connections that keep their order."""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from ottla.client.admin import Admin
from ottla.client.consumer import Consumer
from ottla.client.errors import BootstrapFailed, ConnectionFailed, ConnectionLost, NotKafka, RequestTimedOut
from ottla.client.network_client import NetworkClient
from ottla.client.producer import Producer
from ottla.client.settings import ConnectionConfig, parse_addresses
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.rpc.backoff import ExponentialBackoff
from ottla.rpc.connection import BrokerConnection
from ottla.runtime.address import Address
from ottla.runtime.random import SeededRandom
from ottla.runtime.runtime import Runtime
from ottla.testing.local_node import LocalNode
from tests.support.rows import for_each


@pytest.fixture
def runtime() -> Runtime:
    return Runtime.real(pool_workers=1)


@asynccontextmanager
async def server(
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], object],
) -> AsyncIterator[Address]:
    """Something that listens and is no broker."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)  # type: ignore[misc]
        finally:
            writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listener:
        yield Address("127.0.0.1", listener.sockets[0].getsockname()[1])


async def attempt(runtime: Runtime, address: Address, timeout_ms: int = 60_000) -> None:
    connection = await BrokerConnection.open(runtime.network, address, client_id="t", timeout_ms=timeout_ms)
    await connection.close()


class TestCauses:
    async def test_no_server_listens(self, runtime: Runtime) -> None:
        with pytest.raises(ConnectionFailed, match=r"^127\.0\.0\.1:1: connection refused \(is a broker"):
            await attempt(runtime, Address("127.0.0.1", 1))

    async def test_no_such_host(self, runtime: Runtime) -> None:
        with pytest.raises(ConnectionFailed, match=r"no-such-host\.invalid.*cannot be resolved"):
            await attempt(runtime, Address("no-such-host.invalid", 9092))

    async def test_an_http_server(self, runtime: Runtime) -> None:
        async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(10)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await writer.drain()

        async with server(http) as address:
            with pytest.raises(NotKafka, match=f":{address.port} does not speak Kafka.*HTTP server"):
                await attempt(runtime, address)

    async def test_a_tls_listener(self, runtime: Runtime) -> None:
        async def tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(10)
            writer.write(b"\x15\x03\x03\x00\x02\x02\x50")
            await writer.drain()
            await reader.read()

        async with server(tls) as address:
            with pytest.raises(NotKafka, match=r"speaks TLS \(set security"):
                await attempt(runtime, address)

    async def test_one_who_hangs_up(self, runtime: Runtime) -> None:
        async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(10)

        async with server(hang_up) as address:
            with pytest.raises(ConnectionLost, match="before it answered ApiVersions"):
                await attempt(runtime, address)

    @pytest.mark.slow
    async def test_one_who_says_nothing(self, runtime: Runtime) -> None:
        async def nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()

        async with server(nothing) as address:
            with pytest.raises(RequestTimedOut, match="no answer to ApiVersions within 500 ms"):
                await attempt(runtime, address, timeout_ms=500)

    async def test_a_size_that_would_eat_all_memory(self, runtime: Runtime) -> None:
        async def huge(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(10)
            writer.write(struct.pack(">i", 2**31 - 1) + b"x" * 100)
            await writer.drain()
            await reader.read()

        async with server(huge) as address:
            with pytest.raises(NotKafka):
                await attempt(runtime, address)

    async def test_bootstrap_names_every_address_and_its_cause(self, runtime: Runtime) -> None:
        async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(10)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await writer.drain()

        async with server(http) as address:
            servers = f"127.0.0.1:1,127.0.0.1:{address.port}"
            with pytest.raises(BootstrapFailed) as caught:
                async with NetworkClient(runtime, ConnectionConfig(servers)):
                    pass
        assert "127.0.0.1:1: connection refused" in str(caught.value)
        assert "HTTP server" in str(caught.value)

    async def test_an_advertised_address_that_cannot_be_reached(self, runtime: Runtime) -> None:
        async with LocalNode({"advertised.listeners": "PLAINTEXT://127.0.0.1:1"}) as node:
            config = ConnectionConfig(node.bootstrap_servers, socket_connection_setup_timeout_ms=60_000)
            async with NetworkClient(runtime, config) as cluster:
                (node_id,) = cluster.metadata.brokers
                for timeout_ms in (0, 500):  # the last of several attempts says it as well
                    with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1:1: connection refused"):
                        await cluster.retrying(
                            lambda: cluster.connection(node_id), timeout_ms=timeout_ms, what="a call"
                        )


class TestSharing:
    async def test_one_connection_and_one_refresh_serve_all_who_ask(
        self, runtime: Runtime, ottla_for_clients: LocalNode
    ) -> None:
        async with NetworkClient(runtime, ConnectionConfig(ottla_for_clients.bootstrap_servers)) as cluster:
            (node_id,) = cluster.metadata.brokers
            connections = await asyncio.gather(*(cluster.connection(node_id) for _ in range(20)))
            assert len(set(map(id, connections))) == 1
            views = await asyncio.gather(*(cluster.refresh() for _ in range(20)))
            assert len(set(map(id, views))) == 1

    async def test_a_caller_gets_its_topic_also_when_a_refresh_is_in_flight(
        self, runtime: Runtime, ottla_for_clients: LocalNode, fresh_name: str
    ) -> None:
        async with NetworkClient(runtime, ConnectionConfig(ottla_for_clients.bootstrap_servers)) as cluster:
            without = asyncio.ensure_future(cluster.refresh())
            for _ in range(3):  # now it has been sent
                await asyncio.sleep(0)
            views = await asyncio.gather(*(cluster.refresh(topics=[fresh_name]) for _ in range(3)))
            assert fresh_name not in (await without).topics
            assert all(fresh_name in view.topics for view in views)
            assert len(set(map(id, views))) == 1

    async def test_pipelined_requests_get_their_own_answers(
        self, runtime: Runtime, ottla_for_clients: LocalNode
    ) -> None:
        address = Address("127.0.0.1", ottla_for_clients.port)
        connection = await BrokerConnection.open(runtime.network, address, client_id="t", timeout_ms=60_000)
        try:
            answers = [
                connection.send(
                    MetadataRequest(topics=None if n % 2 else []), MetadataResponse, timeout_ms=60_000
                )
                for n in range(50)
            ]
            assert connection.in_flight == 50
            assert all(answer.cluster_id for answer in await asyncio.gather(*answers))
            assert connection.in_flight == 0
        finally:
            await connection.close()
        with pytest.raises(ConnectionLost, match="closed by this client"):
            connection.send(MetadataRequest(), MetadataResponse, timeout_ms=60_000)


class TestIdleness:
    async def test_an_idle_connection_is_closed_and_made_again_when_it_is_needed(
        self, runtime: Runtime, ottla_for_clients: LocalNode
    ) -> None:
        config = ConnectionConfig(ottla_for_clients.bootstrap_servers, connections_max_idle_ms=50)
        async with NetworkClient(runtime, config) as cluster:
            (node_id,) = cluster.metadata.brokers
            first = await cluster.connection(node_id)
            async with asyncio.timeout(60):
                await asyncio.shield(first._closed)
            with pytest.raises(ConnectionLost, match=r"connections\.max\.idle\.ms=50"):
                first.send(MetadataRequest(), MetadataResponse, timeout_ms=60_000)
            assert (await cluster.refresh()).brokers
            assert await cluster.connection(node_id) is not first

    @pytest.mark.slow
    async def test_waiting_for_an_answer_is_not_idle(self, runtime: Runtime) -> None:
        answered = asyncio.Event()

        async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(10)
            await answered.wait()

        async with server(slow) as address:
            opening = asyncio.create_task(
                BrokerConnection.open(runtime.network, address, client_id="t", timeout_ms=500, max_idle_ms=10)
            )
            with pytest.raises(RequestTimedOut, match="within 500 ms"):
                await opening
            answered.set()


async def test_an_admin_client_takes_kafkas_names_and_warns_when_it_is_forgotten(
    ottla_for_clients: LocalNode,
) -> None:
    settings = {"bootstrap.servers": ottla_for_clients.bootstrap_servers, "default.api.timeout.ms": "5000"}
    admin = Admin(settings, client_id="me")
    assert (admin.config.default_api_timeout_ms, admin.config.client_id) == (5000, "me")
    await admin.__aenter__()
    with pytest.warns(ResourceWarning, match="Admin was not closed"):
        admin.__del__()
    await admin.close()
    with pytest.raises(ValueError, match=r"no setting .acks. for an admin"):
        Admin(acks=1)


@for_each("client", [Producer, Consumer, Admin])
@for_each(
    ("settings", "message"),
    [
        ({"sasl_mechanism": "PLAIN"}, "sasl.mechanism is set, and security.protocol is not"),
        ({"sasl.username": "x"}, "sasl.username is set, and security.protocol is not"),
        ({"security.protocol": "SASL_MAGIC"}, "security.protocol='SASL_MAGIC' is not known"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "MAGIC"}, "SASL mechanism MAGIC is not"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "has no 'username'"),
        ({"security.protocol": "SASL_SSL", "sasl.plain.username": "x"}, "did you mean sasl.username"),
        (
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": "com.corp.Login required username='a' password='b';",
            },
            "com.corp.Login is not supported for PLAIN",
        ),
    ],
)
async def test_no_client_pretends_to_be_safe(client: type, settings: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        client({"bootstrap.servers": "localhost:9092", **settings})
    client({"bootstrap.servers": "localhost:9092", "security.protocol": "PLAINTEXT"})


def test_addresses() -> None:
    assert parse_addresses(["a:1", " b "]) == [Address("a", 1), Address("b", 9092)]
    for wrong in ("a:b", "a:70000", ":1", ""):
        with pytest.raises(ValueError, match=r"bootstrap\.servers"):
            parse_addresses(wrong)


def test_backoff_grows_and_jitters_within_its_bounds() -> None:
    backoff = ExponentialBackoff(SeededRandom(1), 100, 1000)
    waits = [backoff.next_ms() for _ in range(30)]
    assert 80 <= waits[0] <= 120
    assert all(wait <= 1000 for wait in waits)
    assert min(waits[5:]) >= 800
    backoff.reset()
    assert backoff.next_ms() <= 120
