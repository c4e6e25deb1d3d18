"""Settings that no other test needs do what they say."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from ottla.client.admin import Admin
from ottla.client.consumer import Consumer
from ottla.client.network_client import NetworkClient
from ottla.client.producer import Producer
from ottla.client.producer.config import ProducerConfig
from ottla.client.settings import ConnectionConfig
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.fetch import FetchRequest, FetchResponse, PartitionData
from ottla.protocol.messages.produce import ProduceRequest, ProduceResponse
from ottla.records._kernel import partition_for
from ottla.runtime.runtime import Runtime
from ottla.testing.local_node import LocalNode
from tests.support.fake_brokers import (
    TOPIC,
    FakeCluster,
    FakePartition,
    batch,
    fetched,
    produced,
)
from tests.support.waiting import until

PART = (TOPIC, 0)


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster() as cluster:
        cluster.on(ProduceRequest, lambda _, request: produced(request))
        yield cluster


class TestProducer:
    async def test_compression_level(self, cluster: FakeCluster) -> None:
        text = b" ".join(b"%x" % (n * n % 7919) for n in range(5000))
        for levels in (
            {"compression_level": 1},
            {"compression_level": 9},
            {"compression_gzip_level": 9, "compression_level": 1, "compression_zstd_level": 22},
        ):
            async with Producer(cluster.servers, compression_type="gzip", linger_ms=0, **levels) as producer:
                await producer.send(TOPIC, text, partition=0)
        fast, small, of_codec = (
            len(request.topic_data[0].partition_data[0].records or b"")
            for _, request in cluster.asked(ProduceRequest)
        )
        assert of_codec == small < fast

    @pytest.mark.parametrize("name", ["compression_level", "compression_gzip_level"])
    def test_a_level_that_the_codec_has_not_is_refused(self, name: str) -> None:
        with pytest.raises(ValueError, match=r"compression\.level: .* 10 of gzip is not within 1\.\.9"):
            ProducerConfig(compression_type="gzip", **{name: 10})

    @pytest.mark.parametrize("most", [1, 3])
    async def test_max_in_flight_requests_per_connection(self, cluster: FakeCluster, most: int) -> None:
        answered = 0
        unanswered: list[int] = []
        begun = asyncio.Event()

        async def answer(node_id: int, request: ProduceRequest) -> ProduceResponse:
            nonlocal answered
            await begun.wait()
            # Whatever may come beside this one has come once the loop has nothing left to do.
            for _ in range(10):
                await asyncio.sleep(0)
            unanswered.append(len(cluster.asked(ProduceRequest)) - answered)
            answered += 1
            return produced(request)

        cluster.on(ProduceRequest, answer)
        settings = {"enable_idempotence": False, "max_in_flight_requests_per_connection": most}
        async with Producer(cluster.servers, batch_size=100, linger_ms=0, **settings) as producer:
            await producer.ready(TOPIC)
            for _ in range(20):
                producer.send_nowait(TOPIC, b"x" * 100, partition=0)
            flushing = asyncio.create_task(producer.flush())
            await until(lambda: len(cluster.asked(ProduceRequest)) >= most)
            begun.set()
            await flushing
        assert max(unanswered) == most

    async def test_retries(self, cluster: FakeCluster) -> None:
        cluster.on(
            ProduceRequest, lambda _, request: produced(request, code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        )
        settings = {"enable_idempotence": False, "retries": 2, "retry_backoff_ms": 1, "linger_ms": 0}
        async with Producer(cluster.servers, **settings) as producer:
            with pytest.raises(KafkaError, match="t-0"):
                await producer.send(TOPIC, b"", partition=0)
        assert len(cluster.asked(ProduceRequest)) == 3

    async def test_partitioner_ignore_keys(self, cluster: FakeCluster) -> None:
        cluster.partitions = [FakePartition() for _ in range(8)]
        keys = [b"%d" % n for n in range(40)]
        for ignored in (False, True):
            async with Producer(cluster.servers, partitioner_ignore_keys=ignored) as producer:
                await producer.ready(TOPIC)
                handles = [producer.send_nowait(TOPIC, b"", key=key) for key in keys]
                await producer.flush()
                placed = [handle.result().partition for handle in handles]
            if ignored:
                assert len(set(placed)) == 1, "they all fit into one batch"
            else:
                assert placed == [partition_for(key, 8) for key in keys]

    @pytest.mark.slow
    async def test_partitioner_adaptive_partitioning_enable(self, cluster: FakeCluster) -> None:
        """Broker 2 answers nothing: its batches pile up, and new ones are placed elsewhere."""
        cluster.partitions = [FakePartition(leader=1), FakePartition(leader=2)]
        shares = {}
        for adaptive in (True, False):
            hold = asyncio.Event()

            async def answer(
                node_id: int, request: ProduceRequest, hold: asyncio.Event = hold
            ) -> ProduceResponse:
                if node_id == 2:
                    await hold.wait()
                return produced(request)

            cluster.on(ProduceRequest, answer)
            placed: Counter[int] = Counter()
            async with Producer(
                cluster.servers,
                batch_size=100,
                linger_ms=0,
                partitioner_adaptive_partitioning_enable=adaptive,
            ) as producer:
                await producer.ready(TOPIC)
                route = producer._router.route(TOPIC)
                for _ in range(400):
                    producer.send_nowait(TOPIC, b"x" * 100)
                    placed[route.sticky.current] += 1
                    await until(lambda first=route.queues[0]: not first.batches)
                hold.set()
            shares[adaptive] = placed[1] / 400
        assert shares[True] < 0.25 < 0.35 < shares[False] < 0.65, shares

    async def test_transaction_timeout_ms(self, servers: str, fresh_name: str) -> None:
        with pytest.raises(KafkaError) as refused:
            async with Producer(servers, transactional_id=fresh_name, transaction_timeout_ms=2**31 - 1):
                pass
        assert refused.value.code is ErrorCode.INVALID_TRANSACTION_TIMEOUT


class TestConsumer:
    @pytest.mark.parametrize("way", ["records", "arrow"])
    async def test_check_crcs(self, cluster: FakeCluster, way: str) -> None:
        damaged = bytearray(batch(0, 5, epoch=0))
        damaged[-3] ^= 0xFF  # within the last value

        def answer(node_id: int, request: FetchRequest) -> FetchResponse:
            return fetched(
                request,
                lambda p: PartitionData(
                    partition_index=0,
                    high_watermark=5,
                    last_stable_offset=5,
                    records=damaged if p.fetch_offset < 5 else None,
                ),
            )

        cluster.on(FetchRequest, answer)

        async def count(consumer: Consumer[bytes, bytes]) -> int:
            if way == "records":
                return len(await consumer.poll(timeout_ms=60_000))
            table = await consumer.poll_arrow(timeout_ms=60_000)
            return int(table.num_rows)

        settings = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 10}
        async with Consumer(cluster.servers, check_crcs=False, **settings) as consumer:
            consumer.assign([PART])
            assert await count(consumer) == 5
        async with Consumer(cluster.servers, **settings) as consumer:
            consumer.assign([PART])
            with pytest.raises(KafkaError, match=r"t-0.*offset 0.*crc") as corrupt:
                await count(consumer)
            assert corrupt.value.code is ErrorCode.CORRUPT_MESSAGE

    async def test_what_a_fetch_asks_for(self, cluster: FakeCluster) -> None:
        cluster.on(FetchRequest, lambda _, r: fetched(r, lambda p: PartitionData(partition_index=0)))
        async with Consumer(
            cluster.servers,
            auto_offset_reset="earliest",
            fetch_min_bytes=7,
            fetch_max_bytes=70_000,
            fetch_max_wait_ms=17,
            max_partition_fetch_bytes=7_000,
            isolation_level="read_committed",
        ) as consumer:
            consumer.assign([PART])
            async with asyncio.timeout(60):
                while not cluster.asked(FetchRequest):
                    await consumer.poll(timeout_ms=100)
        request = cluster.asked(FetchRequest)[0][1]
        asked = (request.min_bytes, request.max_bytes, request.max_wait_ms, request.isolation_level)
        assert asked == (7, 70_000, 17, 1)
        assert request.topics[0].partitions[0].partition_max_bytes == 7_000

    @pytest.mark.parametrize("assignor", ["range", "uniform"])
    async def test_group_remote_assignor(
        self, servers: str, admin: Admin, topic: str, fresh_name: str, assignor: str
    ) -> None:
        settings = {"group_protocol": "consumer", "group_remote_assignor": assignor}
        async with Consumer(servers, group_id=fresh_name, **settings) as consumer:
            consumer.subscribe(topic)
            await until_assigned(consumer)
            assert (await admin.groups.describe(fresh_name)).assignor == assignor

    async def test_exclude_internal_topics(self, servers: str, topic: str, fresh_name: str) -> None:
        pattern = f"{topic}|__consumer_offsets"
        topics = {}
        for excluded in (True, False):
            async with Consumer(
                servers, group_id=f"{fresh_name}-{excluded}", exclude_internal_topics=excluded
            ) as consumer:
                consumer.subscribe(pattern=pattern)
                await until_assigned(consumer)
                topics[excluded] = {partition.topic for partition in consumer.assignment()}
        assert topics == {True: {topic}, False: {topic, "__consumer_offsets"}}


async def until_assigned(consumer: Consumer[bytes, bytes]) -> None:
    async with asyncio.timeout(60):
        while not consumer.assignment():
            await consumer.poll(timeout_ms=50)


async def test_the_sizes_of_socket_buffers(ottla_for_clients: LocalNode) -> None:
    config = ConnectionConfig(
        ottla_for_clients.bootstrap_servers, send_buffer_bytes=20_000, receive_buffer_bytes=30_000
    )
    async with NetworkClient(Runtime.real(pool_workers=1), config) as cluster:
        (node_id,) = cluster.metadata.brokers
        connection = await cluster.connection(node_id)
        assert connection._transport is not None
        sock = connection._transport.get_extra_info("socket")
        factor = 2 if os.uname().sysname == "Linux" else 1  # Linux counts its own bookkeeping, too
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 20_000 * factor
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 30_000 * factor
