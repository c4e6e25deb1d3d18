"""A producer against real brokers: where records go, what their senders learn, and how batches travel."""

from __future__ import annotations

import asyncio
import gc
import json

import pyarrow as pa
import pytest

from ottla.client.admin import Admin
from ottla.client.consumer import Consumer, ConsumerRecord
from ottla.client.errors import BootstrapFailed, BufferFull
from ottla.client.producer import Delivery, Producer, ProducerRecord
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records._kernel import partition_for


async def read_all(servers: str, topic: str, count: int, **settings: object) -> list[ConsumerRecord]:
    """The first `count` records of a topic, by partition and offset."""
    async with Consumer(servers, auto_offset_reset="earliest", **settings) as consumer:
        consumer.assign(await consumer.partitions_for(topic))
        records: list[ConsumerRecord] = []
        async with asyncio.timeout(60):
            while len(records) < count:
                records += await consumer.poll()
        records += await consumer.poll(timeout_ms=50)
    return sorted(records, key=lambda record: (record.partition, record.offset))


class TestSending:
    @pytest.mark.witness
    async def test_a_record_comes_back_as_it_was_sent(self, servers: str, topic: str) -> None:
        async with Producer(servers) as producer:
            sent = await producer.send(
                topic, b"value", key=b"key", partition=1, timestamp=1234, headers=[("a", b"1"), ("b", None)]
            )
        assert (sent.topic, sent.partition, sent.offset, sent.timestamp) == (topic, 1, 0, 1234)
        (record,) = await read_all(servers, topic, 1)
        assert (record.key, record.value, record.timestamp) == (b"key", b"value", 1234)
        assert record.headers == (("a", b"1"), ("b", None))

    async def test_null_keys_and_values_stay_null(self, servers: str, topic: str) -> None:
        async with Producer(servers) as producer:
            await producer.send(topic, None, key=None)
            await producer.send(topic, b"", key=b"")
        records = await read_all(servers, topic, 2)
        assert {(r.key, r.value) for r in records} == {(None, None), (b"", b"")}

    @pytest.mark.slow
    async def test_the_same_key_goes_where_murmur2_says(self, servers: str, topic: str) -> None:
        async with Producer(servers) as producer:
            for n in range(100):
                key = f"key {n}".encode()
                assert (await producer.send(topic, b"", key=key)).partition == partition_for(key, 3)

    async def test_records_of_a_partition_keep_their_order(self, servers: str, topic: str) -> None:
        async with Producer(servers, batch_size=200) as producer:
            await producer.ready(topic)
            handles = [producer.send_nowait(topic, b"%d" % n, partition=0) for n in range(2000)]
            await producer.flush()
        assert [handle.result().offset for handle in handles] == list(range(2000))
        records = await read_all(servers, topic, 2000)
        assert [r.value for r in records] == [b"%d" % n for n in range(2000)]

    @pytest.mark.witness
    @pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
    async def test_every_codec_is_understood(self, servers: str, topic: str, codec: str) -> None:
        async with Producer(servers, compression_type=codec) as producer:
            await producer.ready(topic)
            for n in range(500):
                producer.send_nowait(topic, b"value %d" % n * 20, partition=0)
            await producer.flush()
        records = await read_all(servers, topic, 500)
        assert [r.value for r in records] == [b"value %d" % n * 20 for n in range(500)]

    @pytest.mark.parametrize("acks", [0, 1, "all"])
    async def test_acks(self, servers: str, topic: str, acks: str | int) -> None:
        async with Producer(servers) as producer:
            # Apache Kafka announces a topic before its replicas exist, and drops records sent with acks=0.
            await producer.send(topic, b"w", partition=2)
        async with Producer(servers, acks=acks) as producer:
            sent = await producer.send(topic, b"x", partition=2)
            assert sent.offset == (-1 if acks == 0 else 1)
        assert len(await read_all(servers, topic, 2)) == 2

    async def test_a_topic_is_created_by_sending_to_it(self, servers: str, fresh_name: str) -> None:
        async with Producer(servers) as producer:
            assert (await producer.send(fresh_name, b"x")).offset == 0

    async def test_a_batch_that_the_broker_finds_too_large_is_split(
        self, servers: str, admin: Admin, fresh_name: str
    ) -> None:
        await admin.topics.create(fresh_name, partitions=1, configs={"max.message.bytes": "2000"})
        async with Producer(servers, batch_size=100_000, linger_ms=1000) as producer:
            await producer.ready(fresh_name)
            handles = [producer.send_nowait(fresh_name, b"%05d" % n * 20) for n in range(200)]
            with_callback: list[int] = []
            handles[150].add_done_callback(lambda handle: with_callback.append(handle.result().offset))
            await producer.flush()
            assert [handle.result().offset for handle in handles] == list(range(200))
            assert producer._accumulator.used_bytes == 0
            await asyncio.sleep(0)
            assert with_callback == [150]
        records = await read_all(servers, fresh_name, 200)
        assert [r.value for r in records] == [b"%05d" % n * 20 for n in range(200)]

    async def test_one_record_that_is_too_large_fails_alone(
        self, servers: str, admin: Admin, fresh_name: str
    ) -> None:
        await admin.topics.create(fresh_name, partitions=1, configs={"max.message.bytes": "2000"})
        async with Producer(servers, linger_ms=200) as producer:
            await producer.ready(fresh_name)
            before = producer.send_nowait(fresh_name, b"before")
            large = producer.send_nowait(fresh_name, b"x" * 5000)
            after = producer.send_nowait(fresh_name, b"after")
            await producer.flush()
            error = large.exception()
            assert error is not None
            assert error.code is ErrorCode.MESSAGE_TOO_LARGE
            assert before.exception() is None
            assert after.exception() is None
        assert [r.value for r in await read_all(servers, fresh_name, 2)] == [b"before", b"after"]


class TestLimits:
    async def test_a_record_above_max_request_size_is_refused_at_once(self, servers: str, topic: str) -> None:
        async with Producer(servers, max_request_size=1000) as producer:
            with pytest.raises(KafkaError, match=r"max\.request\.size=1000"):
                await producer.send(topic, b"x" * 1000)

    async def test_without_room_nowait_fails_and_send_waits(self, servers: str, topic: str) -> None:
        async with Producer(
            servers, buffer_memory=10_000, linger_ms=60_000, delivery_timeout_ms=120_000
        ) as producer:
            await producer.ready(topic)
            while producer._accumulator.has_room():
                producer.send_nowait(topic, b"x" * 100)
            with pytest.raises(BufferFull, match=r"buffer\.memory=10000 is full"):
                producer.send_nowait(topic, b"x")
            await asyncio.wait_for(producer.ready(topic), 60)
            producer.send_nowait(topic, b"y")

    async def test_an_unknown_partition_is_named(self, servers: str, topic: str) -> None:
        async with Producer(servers) as producer:
            with pytest.raises(KafkaError, match=r"has partitions 0 to 2; there is no partition 7"):
                await producer.send(topic, b"", partition=7)

    async def test_a_topic_that_never_comes_ends_the_wait(self, broker: object, servers: str) -> None:
        async with Producer(servers, max_block_ms=400) as producer:
            with pytest.raises(KafkaError) as caught:
                await producer.send("not/a/topic", b"")
            assert "not/a/topic" in str(caught.value)


class TestDress:
    async def test_serializers_by_name_and_by_function(self, servers: str, topic: str) -> None:
        async with Producer(servers, key_serializer="str", value_serializer="json") as producer:
            await producer.send(topic, {"n": 1}, key="kéy", partition=0)
            await producer.send(topic, None, key=None, partition=0)
        async with Consumer(
            servers,
            auto_offset_reset="earliest",
            key_deserializer="str",
            value_deserializer=lambda data: json.loads(data)["n"],
        ) as consumer:
            consumer.assign([(topic, 0)])
            records = await consumer.poll(timeout_ms=60_000)
        assert [(r.key, r.value) for r in records] == [("kéy", 1), (None, None)]

    async def test_interceptors_change_records_and_hear_of_their_end(self, servers: str, topic: str) -> None:
        heard: list[int] = []

        class Stamp:
            def on_send(self, record: ProducerRecord) -> ProducerRecord:
                record.value = b"<" + record.value + b">"
                return record

            def on_acknowledgement(self, delivery: Delivery) -> None:
                heard.append(delivery.result().offset)

        async with Producer(servers, interceptors=[Stamp()]) as producer:
            await producer.send(topic, b"x", partition=0)
        assert heard == [0]
        assert [r.value for r in await read_all(servers, topic, 1)] == [b"<x>"]

    async def test_partitioners(self, servers: str, topic: str) -> None:
        async with Producer(servers, partitioner="round_robin") as producer:
            placed = [(await producer.send(topic, b"")).partition for _ in range(6)]
            assert placed == [0, 1, 2, 0, 1, 2]
        async with Producer(servers, partitioner=lambda topic, key, value, count: count - 1) as producer:
            assert (await producer.send(topic, b"", key=b"k")).partition == 2

    async def test_without_keys_all_partitions_get_their_share(self, servers: str, topic: str) -> None:
        async with Producer(servers, batch_size=500) as producer:
            await producer.ready(topic)
            handles = [producer.send_nowait(topic, b"x" * 100) for _ in range(600)]
            await producer.flush()
        counts = [sum(h.result().partition == p for h in handles) for p in range(3)]
        assert min(counts) > 60, counts


class TestArrow:
    @pytest.mark.witness
    async def test_rows_become_records(self, servers: str, topic: str) -> None:
        table = pa.table(
            {
                "key": pa.array([b"a", None, b"b"], pa.binary()),
                "value": pa.array(["x", "y", None]),
                "partition": pa.array([0, 1, 0], pa.int32()),
                "timestamp": pa.array([1, 2, 3], pa.timestamp("ms", tz="UTC")),
                "headers": pa.array([[("h", b"1")], None, []], pa.map_(pa.string(), pa.binary())).cast(
                    pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
                ),
            }
        )
        async with Producer(servers) as producer:
            sent = await producer.send_arrow(topic, table)
        assert sorted((s.partition, s.base_offset, s.rows) for s in sent) == [(0, 0, 2), (1, 0, 1)]
        records = await read_all(servers, topic, 3)
        assert [(r.partition, r.key, r.value, r.timestamp) for r in records] == [
            (0, b"a", b"x", 1),
            (0, b"b", None, 3),
            (1, None, b"y", 2),
        ]
        assert records[0].headers == (("h", b"1"),)

    async def test_keys_decide_as_they_do_for_single_records(self, servers: str, topic: str) -> None:
        keys = [f"k{n}".encode() for n in range(1000)]
        async with Producer(servers, compression_type="lz4") as producer:
            await producer.send_arrow(topic, pa.table({"key": keys, "value": keys}))
        records = await read_all(servers, topic, 1000)
        assert all(r.partition == partition_for(r.key, 3) for r in records)
        for partition in range(3):
            mine = [k for k in keys if partition_for(k, 3) == partition]
            assert [r.key for r in records if r.partition == partition] == mine

    async def test_more_rows_than_fit_into_the_buffer(self, servers: str, topic: str) -> None:
        table = pa.table({"value": [b"%07d" % n * 100 for n in range(20_000)]})
        async with Producer(servers, buffer_memory=3_000_000) as producer:
            sent = await producer.send_arrow(topic, table)
            assert sum(s.rows for s in sent) == 20_000
            assert producer._accumulator.used_bytes == 0

    async def test_an_unknown_column_is_refused(self, servers: str, topic: str) -> None:
        async with Producer(servers) as producer:
            with pytest.raises(ValueError, match="valeu"):
                await producer.send_arrow(topic, pa.table({"valeu": [b""]}))


class TestLife:
    async def test_closing_delivers_what_was_sent(self, servers: str, topic: str) -> None:
        async with Producer(servers, linger_ms=60_000, delivery_timeout_ms=120_000) as producer:
            await producer.ready(topic)
            handle = producer.send_nowait(topic, b"x")
        assert handle.result().offset == 0

    async def test_a_cancelled_sender_loses_nothing(self, servers: str, topic: str) -> None:
        async with Producer(servers, linger_ms=100) as producer:
            await producer.ready(topic)
            waiter = asyncio.ensure_future(producer.send(topic, b"cancelled", partition=0))
            other = producer.send_nowait(topic, b"other", partition=0)
            await asyncio.sleep(0)
            waiter.cancel()
            assert (await other).offset >= 0
        assert {r.value for r in await read_all(servers, topic, 1)} >= {b"other"}

    async def test_no_task_is_left_behind(self, servers: str, topic: str) -> None:
        before = asyncio.all_tasks()
        async with Producer(servers) as producer:
            await producer.send(topic, b"x")
        assert asyncio.all_tasks() == before

    async def test_use_after_close_is_refused(self, servers: str, topic: str) -> None:
        async with Producer(servers) as producer:
            pass
        with pytest.raises(RuntimeError, match="closed"):
            await producer.send(topic, b"x")

    async def test_a_forgotten_close_warns(self, servers: str) -> None:
        producer = Producer(servers)
        await producer.start()
        with pytest.warns(ResourceWarning, match="Producer was not closed"):
            producer.__del__()
        await producer.close()
        del producer
        gc.collect()


async def test_no_broker_gives_one_error_with_the_address_and_the_cause() -> None:
    with pytest.raises(BootstrapFailed, match=r"127\.0\.0\.1:1: connection refused"):
        async with Producer("127.0.0.1:1"):
            pass


def test_settings_by_kafkas_names() -> None:
    producer = Producer({"bootstrap.servers": "a:1,b:2", "linger.ms": "20", "enable.idempotence": "false"})
    assert producer.config.linger_ms == 20
    assert producer.config.enable_idempotence is False
    with pytest.raises(ValueError, match=r"no setting 'linger\.m' for a producer; did you mean linger\.ms"):
        Producer({"linger.m": 1})
    with pytest.raises(ValueError, match=r"linger\.ms='soon' is not a number"):
        Producer({"linger.ms": "soon"})
