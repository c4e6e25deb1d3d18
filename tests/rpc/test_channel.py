"""Requests of one node to another: every failure is an OSError, and a timeout drops the connections."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ottla.protocol.api import API, FETCH
from ottla.protocol.errors import UnsupportedVersion
from ottla.protocol.headers import SIZE, read_request_header, response_parts
from ottla.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.schema import Response
from ottla.rpc import channel as rpc_channel
from ottla.rpc.channel import InterNodeClient
from ottla.runtime.address import Address
from ottla.runtime.runtime import Runtime

METADATA = MetadataRequest.API_KEY
NEWEST = 12
OFFERED = {18: (0, 4), METADATA: (0, 12), FETCH: (4, 17)}


class Peer:
    """A broker that answers ApiVersions, and other requests when it is `willing`."""

    def __init__(self) -> None:
        self.willing = asyncio.Event()
        self.requests: list[tuple[int, int]] = []
        self.connections = 0
        self.received = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    async def asked_for(self, key: int) -> None:
        """Wait for a request of an API that is not ApiVersions."""
        async with self.received:
            await self.received.wait_for(lambda: any(key == asked for asked, _ in self.requests))

    async def end(self) -> None:
        self.willing.set()
        await asyncio.gather(*self._tasks)

    async def on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self.serve(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (size,) = SIZE.unpack(await reader.readexactly(4))
                header = read_request_header(await reader.readexactly(size))
                self.requests.append((header.api.key, header.version))
                async with self.received:
                    self.received.notify_all()
                if header.api.key != 18:
                    await self.willing.wait()
                parts = response_parts(
                    header.api, header.version, header.correlation_id, answer(header.api.key)
                )
                writer.write(b"".join(parts))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass


def answer(key: int) -> Response:
    if key == 18:
        keys = [
            ApiVersion(api_key=key, min_version=low, max_version=high) for key, (low, high) in OFFERED.items()
        ]
        return ApiVersionsResponse(api_keys=keys)
    return API[key].response_class()


@asynccontextmanager
async def listening(peer: Peer, client: InterNodeClient) -> AsyncIterator[Address]:
    server = await asyncio.start_server(peer.on_connection, "127.0.0.1", 0)
    try:
        yield Address("127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        client.close()
        await peer.end()
        server.close()


@pytest.fixture
def client() -> InterNodeClient:
    return InterNodeClient(Runtime.real(pool_workers=1).network, "test")


async def test_a_request_goes_out_in_the_newest_version_of_both_sides(client: InterNodeClient) -> None:
    peer = Peer()
    peer.willing.set()
    async with listening(peer, client) as address:
        response = await client.request(address, MetadataRequest(), 13, timeout_ms=60_000)
        assert isinstance(response, MetadataResponse)
        assert peer.requests[-1] == (METADATA, 12)
        await client.request(address, MetadataRequest(), 5, timeout_ms=60_000)
        assert peer.requests[-1] == (METADATA, 5)
        with pytest.raises(UnsupportedVersion):
            await client.request(address, HeartbeatRequest(), 4, timeout_ms=60_000)
        assert peer.connections == 1


async def test_a_fetch_that_waits_does_not_hold_up_other_requests(client: InterNodeClient) -> None:
    peer = Peer()
    async with listening(peer, client) as address:
        fetch = asyncio.ensure_future(client.request(address, FetchRequest(), 17, timeout_ms=60_000))
        await peer.asked_for(FETCH)
        assert (await client.api_versions(address, timeout_ms=60_000)).error_code == 0
        assert not fetch.done()
        assert peer.connections == 2
        peer.willing.set()
        assert isinstance(await fetch, FetchResponse)


async def test_a_node_that_is_not_there_refuses(client: InterNodeClient) -> None:
    with pytest.raises(ConnectionRefusedError):
        await client.request(Address("127.0.0.1", 1), MetadataRequest(), NEWEST, timeout_ms=60_000)
    client.close()


async def test_a_timeout_drops_all_connections_to_the_node(client: InterNodeClient) -> None:
    peer = Peer()
    async with listening(peer, client) as address:
        fetch = asyncio.ensure_future(client.request(address, FetchRequest(), 17, timeout_ms=60_000))
        await peer.asked_for(FETCH)
        # Connected before, so that all of the little time is for the request itself.
        await client.api_versions(address, timeout_ms=60_000)
        with pytest.raises(TimeoutError, match="no answer to Metadata within"):
            await client.request(address, MetadataRequest(), NEWEST, timeout_ms=20)
        with pytest.raises(ConnectionResetError):
            await fetch
        peer.willing.set()
        await client.request(address, MetadataRequest(), NEWEST, timeout_ms=60_000)
        assert peer.connections == 3


async def test_a_server_that_says_nothing_times_out(client: InterNodeClient) -> None:
    class Silent(Peer):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                await reader.read()

    async with listening(Silent(), client) as address:
        with pytest.raises(TimeoutError):
            await client.request(address, MetadataRequest(), NEWEST, timeout_ms=20)


async def test_requests_under_way_fail_when_connections_are_dropped(client: InterNodeClient) -> None:
    peer = Peer()
    async with listening(peer, client) as address:
        waiting = asyncio.ensure_future(client.request(address, MetadataRequest(), NEWEST, timeout_ms=60_000))
        await peer.asked_for(METADATA)
        connecting = asyncio.ensure_future(client.request(address, FetchRequest(), 17, timeout_ms=60_000))
        await asyncio.sleep(0)
        client.drop_all()
        for request in (waiting, connecting):
            with pytest.raises(ConnectionError):
                await request
        client.close()
        with pytest.raises(ConnectionAbortedError, match="closing"):
            await client.request(address, MetadataRequest(), NEWEST, timeout_ms=60_000)


async def test_requests_that_pile_up_end_the_connection(
    client: InterNodeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc_channel, "_PEER_MAX_IN_FLIGHT", 2)
    peer = Peer()
    async with listening(peer, client) as address:
        waiting = [
            asyncio.ensure_future(client.request(address, MetadataRequest(), NEWEST, timeout_ms=60_000))
            for _ in range(3)
        ]
        for request in waiting:
            with pytest.raises(ConnectionError):
                await request
