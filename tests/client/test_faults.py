"""Broker faults as a client sees them, by a proxy that cuts and delays connections.

Whatever happens to connections, an idempotent producer's records are in the log once each and in order, and a
consumer gets each of them once.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from ottla.client.consumer import Consumer
from ottla.client.errors import ConnectionLost, TransactionAborted
from ottla.client.producer import Delivery, Producer, RecordMetadata
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.testing.local_node import LocalNode
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

IMPATIENT = {
    "retry_backoff_ms": 5,
    "retry_backoff_max_ms": 20,
    "reconnect_backoff_ms": 2,
    "reconnect_backoff_max_ms": 10,
}


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    """A node that all clients reach through a proxy."""
    async with Proxy() as proxy:
        settings = {"advertised.listeners": f"PLAINTEXT://{proxy.address}", "num.partitions": 2}
        node = LocalNode(settings)
        await asyncio.to_thread(node.start)
        try:
            proxy.target = ("127.0.0.1", node.port)
            yield proxy
        finally:
            await asyncio.to_thread(node.stop)


async def read(proxy: Proxy, topic: str, count: int) -> dict[int, list[bytes]]:
    """What lies in the partitions, read over a connection that holds."""
    async with Consumer(proxy.address, auto_offset_reset="earliest") as consumer:
        consumer.assign(await consumer.partitions_for(topic))
        found: dict[int, list[bytes]] = {}
        total = 0
        async with asyncio.timeout(60):
            while total < count:
                for record in await consumer.poll():
                    found.setdefault(record.partition, []).append(record.value)
                    total += 1
            for record in await consumer.poll(timeout_ms=100):
                found.setdefault(record.partition, []).append(record.value)
        return found


@pytest.mark.parametrize("seed", range(6))
async def test_cut_connections_lose_nothing_double_nothing_and_keep_order(proxy: Proxy, seed: int) -> None:
    dice = random.Random(seed)
    done = asyncio.Event()
    handles: list[Delivery] = []

    async def cut() -> None:
        delivered, pause_s = 0, 0.02
        while not done.is_set():
            await asyncio.sleep(dice.random() * pause_s)
            if dice.random() < 0.5:
                proxy.cut_all()
            else:
                proxy.cut_after(dice.randrange(1, 200))
            # Where nothing gets through between the cuts, because the machine is busy, they become rarer.
            before, delivered = delivered, sum(handle.done() for handle in handles)
            pause_s = 0.02 if delivered > before else min(pause_s * 1.2, 2.0)

    async with Producer(proxy.address, batch_size=300, linger_ms=1, **IMPATIENT) as producer:
        await producer.ready("t")
        cutter = asyncio.create_task(cut())
        try:
            for n in range(1500):
                handles.append(producer.send_nowait("t", b"%d" % n, partition=n % 2))
                if n % 25 == 0:
                    await asyncio.sleep(0.002)
            async with asyncio.timeout(120):
                await producer.flush()
        finally:
            done.set()
            await cutter
            proxy.heal()
        offsets = [handle.result().offset for handle in handles]
    found = await read(proxy, "t", 1500)
    assert found == {p: [b"%d" % n for n in range(p, 1500, 2)] for p in (0, 1)}
    assert proxy.connections > 5
    for p in (0, 1):
        known = [(offset, n) for n, offset in enumerate(offsets) if n % 2 == p and offset >= 0]
        assert known == sorted(known)


async def test_a_consumer_reads_on_through_cuts(proxy: Proxy) -> None:
    async with Producer(proxy.address) as producer:
        await producer.ready("t")
        for n in range(3000):
            producer.send_nowait("t", b"%d" % n * 20, partition=0)
        await producer.flush()
    settings = {"auto_offset_reset": "earliest", "max_partition_fetch_bytes": 2000, **IMPATIENT}
    async with Consumer(proxy.address, **settings) as consumer:
        consumer.assign([("t", 0)])
        values: list[bytes] = []
        async with asyncio.timeout(120):
            while len(values) < 3000:
                proxy.cut_after(5000)
                values += [record.value for record in await consumer.poll()]
    assert values == [b"%d" % n * 20 for n in range(3000)]
    assert proxy.connections > 5


@pytest.mark.slow
async def test_a_broker_that_is_silent_ends_the_request_and_not_the_client(proxy: Proxy) -> None:
    settings = {
        # Enough for a busy machine to connect and to answer what is not held.
        "request_timeout_ms": 1_000,
        "socket_connection_setup_timeout_ms": 1_000,
        "delivery_timeout_ms": 200_000,
        **IMPATIENT,
    }
    async with Producer(proxy.address, **settings) as producer:
        await producer.send("t", b"before", partition=0)
        proxy.hold_answers()
        before = proxy.connections
        handle = producer.send_nowait("t", b"held", partition=0)
        async with asyncio.timeout(60):
            await proxy.connected(before + 2)
        proxy.release_answers()
        async with asyncio.timeout(60):
            await handle
    assert (await read(proxy, "t", 2))[0] == [b"before", b"held"]


async def delivered(producer: Producer, value: bytes) -> RecordMetadata:
    """Sends until it is delivered: a busy machine may take longer than the time-out for a record."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await producer.send("t", value, partition=0)
            except KafkaError as error:
                if error.code is not ErrorCode.REQUEST_TIMED_OUT:
                    raise


@pytest.mark.slow
async def test_records_that_cannot_be_delivered_fail_by_their_timeout_and_memory_stays_bounded(
    proxy: Proxy,
) -> None:
    settings = {"request_timeout_ms": 500, "delivery_timeout_ms": 1_000, "linger_ms": 0, **IMPATIENT}
    async with Producer(proxy.address, buffer_memory=50_000, max_block_ms=60_000, **settings) as producer:
        await delivered(producer, b"first")
        proxy.refuse = True
        proxy.cut_all()
        handles = []
        most = 0
        for _ in range(1000):
            await producer.ready("t")
            handles.append(producer.send_nowait("t", b"x" * 1000, partition=0))
            most = max(most, producer._accumulator.used_bytes)
            if len(handles) > 60:  # more than there is memory for
                break
        assert most < 52_000
        for handle in (handles[0], handles[-1]):
            with pytest.raises(KafkaError, match=r"delivery\.timeout\.ms=1000") as caught:
                await asyncio.wait_for(handle, 60)
            assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
        # Of the first, whose time may have passed at once, perhaps no attempt has failed.
        assert "; last: " in caught.value.message
        proxy.refuse = False
        assert (await delivered(producer, b"after")).offset >= 1


async def test_a_request_in_the_middle_of_a_cut_answer_fails_with_the_address(proxy: Proxy) -> None:
    async with Producer(proxy.address) as producer:
        await producer.ready("t")
        connection = await producer._cluster.any_connection()
        proxy.cut_after(10)
        with pytest.raises(ConnectionLost, match=proxy.address):
            await connection.request(MetadataRequest(topics=None), MetadataResponse, timeout_ms=60_000)


async def test_a_record_that_was_sent_without_an_answer_is_aborted_with_its_transaction(proxy: Proxy) -> None:
    """The broker has begun the transaction with the record; the producer cannot know, and has to end it."""
    async with Producer(proxy.address, transactional_id="t", linger_ms=0, **IMPATIENT) as producer:
        await producer.ready("t")
        producer.transactions.begin()
        proxy.hold_answers()
        sent = producer.send_nowait("t", b"aborted", partition=0)
        async with asyncio.timeout(60):
            await asyncio.to_thread(wait_until, lambda: end_offset(proxy, "t") > 0, "it did not arrive")
            proxy.refuse = True
            proxy.cut_all()
            await proxy.connected(proxy.connections + 1)  # it knows that the connection is lost
            abort = asyncio.create_task(producer.transactions.abort())
            with pytest.raises(TransactionAborted):
                await sent
            proxy.heal()
            await abort
            producer.transactions.begin()
            producer.send_nowait("t", b"committed", partition=0)
            await producer.transactions.commit()
    async with Consumer(
        proxy.address, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        consumer.assign([("t", 0)])
        async with asyncio.timeout(60):
            assert [record.value for record in await consumer.poll(timeout_ms=None)] == [b"committed"]


def end_offset(proxy: Proxy, topic: str) -> int:
    """The end of partition 0, as the node says it, not through the proxy."""
    host, port = proxy.target
    wanted = ListOffsetsTopic(name=topic, partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])
    with WireClient(f"{host}:{port}") as wire:
        answer = wire.get(ListOffsetsRequest(topics=[wanted]), 6, ListOffsetsResponse)
    return answer.topics[0].partitions[0].offset
