"""What a node makes and drops all the time leaves no cycles: the garbage collector may never see it again.

`runtime/garbage_collection.py` freezes what has survived while a node grows, and cycles among frozen objects
stay until a complete collection, which is rare.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from bench.attack import NOT_SENT
from bench.bystander import bomb
from tests.support.messages import MessageMaker
from tests.support.wire import WireClient, create_topic, fetch_request, produce_request

from ottla import LocalNode
from ottla.client.network_client import ConnectionConfig, NetworkClient
from ottla.node.api.routes import ROUTES
from ottla.protocol.api import API
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.schema import Request
from ottla.records.builder import build_batch
from ottla.rpc.channel import InterNodeClient
from ottla.rpc.connection import BrokerConnection
from ottla.runtime.address import Address
from ottla.runtime.network import RealNetwork
from ottla.runtime.runtime import Runtime
from ottla.testing.cluster_plan import free_ports

pytestmark = pytest.mark.slow

ROUNDS = 20


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    with LocalNode() as running:
        yield running


def garbage_of(work: Callable[[], None], rounds: int = ROUNDS) -> Counter[str]:
    """How many objects of this project only the garbage collector can free after the work."""
    for _ in range(min(rounds, 3)):
        work()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(rounds):
            work()
        # What waits for another turn of the node's loop, such as the end of a connection.
        time.sleep(0.3)
        gc.collect()
        found = Counter(
            f"{type(each).__module__}.{type(each).__qualname__}"
            for each in gc.garbage
            if type(each).__module__.startswith("ottla.") or "function" in type(each).__name__
        )
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    return found


class _Cyclic:
    __module__ = "ottla.of_this_test"

    def __init__(self) -> None:
        self.itself = self


def test_cycles_are_found() -> None:
    # Threads of tests before this one may leave something meanwhile.
    found = garbage_of(lambda: [_Cyclic() for _ in range(2)].clear())
    assert found["ottla.of_this_test._Cyclic"] == 2 * ROUNDS


def delete(client: WireClient, name: str) -> None:
    client.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=30_000), 6)


def produce(name: str) -> ProduceRequest:
    return produce_request(name, build_batch([(0, None, b"x")]), timeout_ms=30_000)


def fetch(name: str, session_epoch: int = -1) -> FetchRequest:
    return fetch_request(
        name, max_wait_ms=10, min_bytes=1 << 20, max_bytes=1 << 20, session_epoch=session_epoch
    )


def test_connections_leave_no_cycles(node: LocalNode) -> None:
    with WireClient(node.bootstrap_servers) as client:
        create_topic(client, "kept")

    def work() -> None:
        with WireClient(node.bootstrap_servers) as client:
            client.ask(ApiVersionsRequest(), 0)
            client.ask(produce("kept"), 11)
            client.ask(fetch("kept"), 12)
            client.ask(fetch("kept", session_epoch=0), 12)

    found = garbage_of(work)
    assert sum(found.values()) < ROUNDS, found


def test_connections_that_cannot_be_made_leave_no_cycles() -> None:
    """An error that a client keeps refers to the frames that it has passed through, with their payloads."""
    (port,) = free_ports(1)
    config = ConnectionConfig(bootstrap_servers=f"127.0.0.1:{port}")

    async def ask_peer() -> None:
        peers = InterNodeClient(RealNetwork())
        for _ in range(2):
            with contextlib.suppress(OSError):
                await peers.request(Address("127.0.0.1", port), ApiVersionsRequest(), 3, timeout_ms=60_000)
        peers.close()

    async def start() -> None:
        await ask_peer()
        client = NetworkClient(Runtime.real(guest=True), config)
        with contextlib.suppress(KafkaError):
            await client.start()
        await client.close()
        client.runtime.close()

    found = garbage_of(lambda: asyncio.run(start()))
    assert sum(found.values()) < ROUNDS, found


def test_connections_that_end_leave_no_cycles(node: LocalNode) -> None:
    async def ask(connection: BrokerConnection) -> None:
        with contextlib.suppress(KafkaError):
            await connection.request(fetch("kept"), FetchResponse, timeout_ms=60_000)

    async def lose() -> None:
        address = Address("127.0.0.1", node.port)
        connection = await BrokerConnection.open(RealNetwork(), address, client_id=None, timeout_ms=60_000)
        asked = [asyncio.ensure_future(ask(connection)) for _ in range(2)]
        await asyncio.sleep(0)
        await connection.close()
        await asyncio.gather(*asked)
        await ask(connection)

    found = garbage_of(lambda: asyncio.run(lose()))
    assert sum(found.values()) < ROUNDS, found


def test_topics_leave_no_cycles(node: LocalNode) -> None:
    with WireClient(node.bootstrap_servers) as client:

        def work() -> None:
            create_topic(client, "dropped", 4)
            client.ask(produce("dropped"), 11)
            delete(client, "dropped")

        found = garbage_of(work)
    assert sum(found.values()) < ROUNDS, found


def test_requests_that_fail_leave_no_cycles(node: LocalNode) -> None:
    """An error that is kept refers to the frames that it has passed through, with the request in them."""
    drawn: list[tuple[Request, int]] = []
    for api in [API[key] for key in sorted(ROUTES) if API[key].name not in NOT_SENT]:
        for number in range(4):
            maker = MessageMaker((api.key, number))
            version = maker.random.randint(api.min_version, api.max_version)
            request = maker.make(api.request_class, version)
            for name in ("timeout_ms", "max_wait_ms", "rebalance_timeout_ms", "session_timeout_ms"):
                if hasattr(request, name):
                    setattr(request, name, 0)
            if getattr(request, "acks", None) != 0:  # which has no response
                drawn.append((request, version))
    with WireClient(node.bootstrap_servers) as client:

        def work() -> None:
            for request, version in drawn:
                with contextlib.suppress(OSError):
                    client.ask(request, version)

        found = garbage_of(work, 1)
    assert sum(found.values()) < 20, found


def test_batches_that_are_refused_leave_no_cycles(node: LocalNode) -> None:
    refused = produce("compacted")
    refused.topic_data[0].partition_data[0].records = bomb(2_000_000)  # its record has no key
    with WireClient(node.bootstrap_servers) as client:
        create_topic(client, "compacted", 1, cleanup_policy="compact")
        found = garbage_of(lambda: [client.ask(refused, 11)].clear())
    assert sum(found.values()) < ROUNDS, found
