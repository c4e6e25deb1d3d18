"""A consumer of assigned partitions: where it begins, what it returns, and what stops it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ottla.client.admin import Admin
from ottla.client.consumer import Consumer, SerializationFailed, TopicPartition
from ottla.client.consumer.config import ConsumerConfig, Reset, parse_reset
from ottla.client.producer import Producer
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.types import TimestampType

EARLIEST = {"auto_offset_reset": "earliest"}


@pytest.fixture
async def producer(servers: str, topic: str) -> AsyncIterator[Producer]:
    async with Producer(servers, batch_size=500) as producer:
        await producer.ready(topic)
        yield producer


async def fill(producer: Producer, topic: str, count: int, partitions: int = 1) -> None:
    for n in range(count):
        producer.send_nowait(topic, b"%d" % n, partition=n % partitions, timestamp=1000 + n)
    await producer.flush()


async def take(consumer: Consumer[Any, Any], count: int) -> list[Any]:
    records: list[Any] = []
    async with asyncio.timeout(60):
        while len(records) < count:
            records += await consumer.poll(count - len(records))
    return records


async def has_partitions(admin: Admin, topic: str, count: int) -> bool:
    """What the controller has done, brokers tell a moment later."""
    try:
        return len((await admin.topics.describe(topic)).partitions) == count
    except KafkaError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        return False


class TestWhereToBegin:
    @pytest.mark.witness
    async def test_earliest_latest_and_offsets(self, servers: str, topic: str, producer: Producer) -> None:
        await fill(producer, topic, 10)
        async with Consumer(servers, **EARLIEST) as consumer:
            consumer.assign([(topic, 0)])
            assert await consumer.position((topic, 0)) == 0
            consumer.seek((topic, 0), 7)
            assert [r.offset for r in await take(consumer, 3)] == [7, 8, 9]
            consumer.seek_to_beginning()
            assert (await take(consumer, 1))[0].offset == 0
            consumer.seek_to_end((topic, 0))
            assert await consumer.position((topic, 0)) == 10
        async with Consumer(servers) as consumer:
            consumer.assign([(topic, 0)])
            assert await consumer.position((topic, 0)) == 10
            await fill(producer, topic, 1)
            assert [r.offset for r in await take(consumer, 1)] == [10]

    async def test_a_consumer_that_was_placed_by_an_offset_goes_on_with_what_arrives(
        self, servers: str, topic: str, producer: Producer
    ) -> None:
        """Records give the position an epoch that `seek` had not; it needs no validation for that."""
        await fill(producer, topic, 10)
        async with Consumer(servers) as consumer:
            consumer.assign([(topic, 0)])
            consumer.seek((topic, 0), 10)
            for n in range(5):
                await fill(producer, topic, 1)
                assert [r.offset for r in await take(consumer, 1)] == [10 + n]

    async def test_by_time(self, servers: str, topic: str, producer: Producer) -> None:
        await fill(producer, topic, 10)
        async with Consumer(servers) as consumer:
            consumer.assign([(topic, 0)])
            await consumer.seek_to_timestamp(1004)
            assert (await take(consumer, 1))[0].timestamp == 1004
            await consumer.seek_to_timestamp(5000)
            assert await consumer.position((topic, 0)) == 10
            partition = TopicPartition(topic, 0)
            found = await consumer.offsets_for_times({partition: 1003})
            assert found[partition] is not None
            assert found[partition].offset == 3
            assert await consumer.offsets_for_times({partition: 9999}) == {partition: None}

    async def test_by_duration(self, servers: str, topic: str, producer: Producer) -> None:
        await fill(producer, topic, 2)  # in 1970
        now = producer._clock.wall_ms()
        producer.send_nowait(topic, b"young", partition=0, timestamp=now - 60_000)
        await producer.flush()
        async with Consumer(servers, auto_offset_reset="by_duration:PT1H") as consumer:
            consumer.assign([(topic, 0)])
            assert (await take(consumer, 1))[0].value == b"young"
        async with Consumer(servers, auto_offset_reset="by_duration:PT1S") as consumer:
            consumer.assign([(topic, 0)])
            assert await consumer.position((topic, 0)) == 3

    @pytest.mark.slow
    async def test_none_asks_the_user(self, servers: str, topic: str, producer: Producer) -> None:
        async with Consumer(servers, auto_offset_reset="none") as consumer:
            consumer.assign([(topic, 0)])
            with pytest.raises(KafkaError, match=r"auto\.offset\.reset=none"):
                await consumer.poll(timeout_ms=60_000)
            await fill(producer, topic, 1)
            consumer.seek((topic, 0), 0)
            assert len(await take(consumer, 1)) == 1
            consumer.seek((topic, 0), 99)
            with pytest.raises(KafkaError, match="offset 99 is not in the log"):
                await consumer.poll(timeout_ms=60_000)

    async def test_out_of_range_follows_the_policy(
        self, servers: str, topic: str, producer: Producer
    ) -> None:
        await fill(producer, topic, 3)
        async with Consumer(servers, **EARLIEST) as consumer:
            consumer.assign([(topic, 0)])
            consumer.seek((topic, 0), 1000)
            assert [r.offset for r in await take(consumer, 3)] == [0, 1, 2]

    def test_policies_by_their_text(self) -> None:
        assert parse_reset("earliest").reset is Reset.EARLIEST
        assert parse_reset("by_duration:P1DT2H3M4.5S").back_ms == 93_784_500
        for wrong in ("soon", "by_duration", "by_duration:", "by_duration:PT", "by_duration:P"):
            with pytest.raises(ValueError, match="allowed are"):
                parse_reset(wrong)


class TestHandingOut:
    @pytest.mark.slow
    async def test_iteration_can_be_left_and_taken_up(
        self, servers: str, topic: str, producer: Producer
    ) -> None:
        await fill(producer, topic, 30, partitions=3)
        async with Consumer(servers, **EARLIEST) as consumer:
            consumer.assign([(topic, p) for p in range(3)])
            seen = []
            for stop in (7, 13):
                async for record in consumer:
                    seen.append(record)
                    if len(seen) == stop:
                        break
                assert sum(o.offset for o in consumer.positions().values()) == stop
            seen += await take(consumer, 17)
        assert len({(r.partition, r.offset) for r in seen}) == 30
        for p in range(3):
            assert [r.offset for r in seen if r.partition == p] == list(range(10))

    @pytest.mark.slow
    async def test_every_way_of_reading_goes_on_where_the_other_stopped(
        self, servers: str, topic: str, producer: Producer
    ) -> None:
        await fill(producer, topic, 1000)
        async with Consumer(servers, max_poll_records=90, **EARLIEST) as consumer:
            consumer.assign([(topic, 0)])
            values = [r.value for r in await take(consumer, 33)]
            async for record in consumer:
                values.append(record.value)
                if len(values) == 50:
                    break
            while len(values) < 700:
                values += (await consumer.poll_arrow(max_bytes=1)).column("value").to_pylist()
                values += [r.value for r in await consumer.poll(3)]
            while len(values) < 1000:
                values += [r.value for r in await consumer.poll()]
        assert values == [b"%d" % n for n in range(1000)]

    @pytest.mark.witness
    async def test_arrow_has_the_columns_of_sparks_source(
        self, servers: str, topic: str, producer: Producer
    ) -> None:
        await producer.send(topic, b"v", key=b"k", partition=2, timestamp=5, headers={"h": b"1"})
        async with Consumer(servers, **EARLIEST) as consumer:
            consumer.assign([(topic, 2)])
            table = await consumer.poll_arrow(timeout_ms=60_000)
            assert table.column_names[:4] == ["key", "value", "topic", "partition"]
            (row,) = table.to_pylist()
            assert (row["key"], row["value"], row["topic"], row["partition"]) == (b"k", b"v", topic, 2)
            assert row["headers"] == [{"key": "h", "value": b"1"}]
            assert (await consumer.poll_arrow(timeout_ms=10)).num_rows == 0
            consumer.seek_to_beginning()
            table = await consumer.poll_arrow(timeout_ms=60_000, columns=["offset", "partition"])
            assert table.to_pylist() == [{"offset": 0, "partition": 2}]

    async def test_paused_partitions_keep_their_records(
        self, servers: str, topic: str, producer: Producer
    ) -> None:
        await fill(producer, topic, 20, partitions=2)
        async with Consumer(servers, **EARLIEST) as consumer:
            consumer.assign([(topic, 0), (topic, 1)])
            consumer.pause((topic, 1))
            assert {r.partition for r in await take(consumer, 10)} == {0}
            assert await consumer.poll(timeout_ms=100) == []
            assert consumer.paused() == [TopicPartition(topic, 1)]
            consumer.resume((topic, 1))
            assert [r.offset for r in await take(consumer, 10)] == list(range(10))

    async def test_paused_partitions_do_not_take_the_others_room(
        self, servers: str, topic: str, producer: Producer
    ) -> None:
        for n in range(600):
            await producer.ready(topic)
            producer.send_nowait(topic, b"x" * 1000, partition=n % 2)
        await producer.flush()
        settings = {"prefetch_max_bytes": 100_000, "max_partition_fetch_bytes": 50_000, **EARLIEST}
        async with Consumer(servers, **settings) as consumer:
            consumer.assign([(topic, 0)])
            await take(consumer, 1)
            async with asyncio.timeout(60):
                while consumer._fetcher.buffered_bytes < 80_000:  # noqa: ASYNC110
                    await asyncio.sleep(0)
            consumer.pause((topic, 0))
            consumer.assign([(topic, 0), (topic, 1)])
            for _ in range(5):  # each time, what was fetched ahead is of no more use
                assert [r.offset for r in await take(consumer, 2)] == [0, 1]
                consumer.seek((topic, 1), 0)
            consumer.resume((topic, 0))
            found = await take(consumer, 599)
        assert [r.offset for r in found if r.partition == 0] == list(range(1, 300))
        assert [r.offset for r in found if r.partition == 1] == list(range(300))

    async def test_lag(self, servers: str, topic: str, producer: Producer) -> None:
        await fill(producer, topic, 10)
        async with Consumer(servers, **EARLIEST) as consumer:
            consumer.assign([(topic, 0)])
            assert consumer.lag((topic, 0)) is None
            await take(consumer, 4)
            assert consumer.lag((topic, 0)) == 6

    async def test_broker_time_is_marked_as_such(self, servers: str, admin: Admin, fresh_name: str) -> None:
        await admin.topics.create(
            fresh_name, partitions=1, configs={"message.timestamp.type": "LogAppendTime"}
        )
        async with Producer(servers) as producer:
            sent = await producer.send(fresh_name, b"x", timestamp=5)
            assert sent.timestamp > 1_600_000_000_000
        async with Consumer(servers, **EARLIEST) as consumer:
            consumer.assign([(fresh_name, 0)])
            (record,) = await take(consumer, 1)
        assert record.timestamp == sent.timestamp
        assert record.timestamp_type == TimestampType.LOG_APPEND_TIME

    async def test_memory_is_bounded_by_the_prefetch(
        self, servers: str, topic: str, producer: Producer
    ) -> None:
        for n in range(3000):
            await producer.ready(topic)
            producer.send_nowait(topic, b"x" * 1000, partition=n % 3)
        await producer.flush()
        settings = {"prefetch_max_bytes": 200_000, "max_partition_fetch_bytes": 50_000, **EARLIEST}
        async with Consumer(servers, **settings) as consumer:
            consumer.assign([(topic, p) for p in range(3)])
            count = most = 0
            async with asyncio.timeout(60):
                while count < 3000:
                    count += len(await consumer.poll(100))
                    most = max(most, consumer._fetcher.buffered_bytes)
            assert 0 < most < 260_000
            assert count == 3000


class TestWhatStops:
    async def test_a_record_that_cannot_be_deserialized_is_named_and_can_be_passed(
        self, servers: str, topic: str, producer: Producer
    ) -> None:
        for value in (b"1", b"{", b"2"):
            producer.send_nowait(topic, value, partition=0)
        await producer.flush()
        async with Consumer(servers, value_deserializer="json", **EARLIEST) as consumer:
            consumer.assign([(topic, 0)])
            assert [r.value for r in await take(consumer, 1)] == [1]
            with pytest.raises(SerializationFailed, match="offset 1 cannot be deserialized") as caught:
                await consumer.poll(timeout_ms=60_000)
            consumer.seek(caught.value.partition, caught.value.offset + 1)
            assert [r.value for r in await take(consumer, 1)] == [2]

    async def test_a_topic_that_comes_later_is_found(
        self, servers: str, admin: Admin, fresh_name: str
    ) -> None:
        async with Consumer(servers, allow_auto_create_topics=False, **EARLIEST) as consumer:
            consumer.assign([(fresh_name, 0)])
            assert await consumer.poll(timeout_ms=100) == []
            await admin.topics.create(fresh_name, partitions=1)
            async with Producer(servers) as producer:
                await producer.send(fresh_name, b"x")
            assert len(await take(consumer, 1)) == 1

    @pytest.mark.witness
    async def test_a_recreated_topic_is_read_from_its_beginning(
        self, servers: str, admin: Admin, topic: str, producer: Producer
    ) -> None:
        await fill(producer, topic, 5)
        # Otherwise the consumer's own look for the topic might bring it back.
        settings = {"retry_backoff_ms": 20, "allow_auto_create_topics": False, **EARLIEST}
        async with Consumer(servers, **settings) as consumer:
            consumer.assign([(topic, 0)])
            await take(consumer, 5)
            await admin.topics.delete(topic)
            async with asyncio.timeout(60):
                while True:
                    try:
                        await admin.topics.create(topic, partitions=1)
                        break
                    except KafkaError as error:
                        if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                            raise
                # Until the broker knows, too, it would take records for the old topic, and lose them with it.
                while not await has_partitions(admin, topic, 1):
                    pass
            async with Producer(servers) as again:
                await again.send(topic, b"new", partition=0)
            assert [r.value for r in await take(consumer, 1)] == [b"new"]

    @pytest.mark.slow
    async def test_no_task_is_left_behind_and_a_forgotten_close_warns(self, servers: str, topic: str) -> None:
        before = asyncio.all_tasks()
        async with Consumer(servers) as consumer:
            consumer.assign([(topic, 0)])
            waiting = asyncio.ensure_future(consumer.poll(timeout_ms=None))
            await asyncio.sleep(0.01)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        assert asyncio.all_tasks() == before
        with pytest.raises(RuntimeError, match="closed"):
            await consumer.poll()
        other = Consumer(servers)
        await other.start()
        with pytest.warns(ResourceWarning, match="Consumer was not closed"):
            other.__del__()
        await other.close()
        gc.collect()


@pytest.mark.parametrize("way", ["poll", "poll_arrow", "iteration"])
async def test_what_waits_for_records_ends_with_the_consumer(servers: str, topic: str, way: str) -> None:
    consumer = Consumer(servers)
    await consumer.start()
    consumer.assign([(topic, 0)])

    async def wait_for_records() -> int:
        if way == "poll":
            return len(await consumer.poll(timeout_ms=None))
        if way == "poll_arrow":
            return (await consumer.poll_arrow(timeout_ms=None)).num_rows
        return len([record async for record in consumer])

    async with asyncio.timeout(60):
        waiting = asyncio.create_task(wait_for_records())
        await consumer.position((topic, 0))
        await consumer.close()
        assert await waiting == 0
    with pytest.raises(RuntimeError, match="closed"):
        await consumer.poll()


def test_settings_are_checked() -> None:
    for wrong, text in (
        ({"isolation.level": "maybe"}, "read_uncommitted, read_committed"),
        ({"heartbeat.interval.ms": 50_000}, r"must be below session\.timeout\.ms=45000"),
        ({"fetch.max.wait.ms": 40_000}, r"request\.timeout\.ms=30000"),
        ({"group.instance.id": "me"}, r"group\.id"),
        ({"max.poll.records": 0}, "at least 1"),
        ({"autooffset.reset": "latest"}, r"did you mean auto\.offset\.reset"),
    ):
        with pytest.raises(ValueError, match=text):
            Consumer(wrong)
    assert ConsumerConfig().fetch_max_bytes == 52_428_800
