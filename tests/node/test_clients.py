"""Clients that people use, against a running node: what they write is what they read."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from tests.support.waiting import wait_until

from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PyTopicPartition
from ottla.testing.local_node import LocalNode

DEADLINE_SECONDS = 60
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    with LocalNode({"num.partitions": 2}) as node:
        yield node


@pytest.fixture
def admin(node: LocalNode) -> AdminClient:
    return AdminClient({"bootstrap.servers": node.bootstrap_servers})


@pytest.fixture
def topic(admin: AdminClient) -> str:
    return make_topic(admin, retention_ms="-1")  # some records are older than a node keeps them


def make_topic(admin: AdminClient, partitions: int = 1, **config: str) -> str:
    name = f"t-{uuid.uuid4().hex}"
    settings = {key.replace("_", "."): value for key, value in config.items()}
    done = admin.create_topics([NewTopic(name, partitions, 1, config=settings)])
    done[name].result(DEADLINE_SECONDS)
    return name


class Writer:
    """A librdkafka producer that collects what became of its records."""

    def __init__(self, node: LocalNode, **config: Any) -> None:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        self._producer = Producer({"bootstrap.servers": node.bootstrap_servers} | settings)
        self.delivered: list[Message] = []
        self.errors: list[str] = []

    def write(self, topic: str, value: bytes | None, **fields: Any) -> None:
        self._producer.produce(topic, value, on_delivery=self._done, **fields)

    def _done(self, error: Any, message: Message) -> None:
        if error is None:
            self.delivered.append(message)
        else:
            self.errors.append(error.name())

    def flush(self) -> None:
        assert self._producer.flush(DEADLINE_SECONDS) == 0


def read(node: LocalNode, topic: str, count: int, offset: int = 0, partition: int = 0) -> list[Message]:
    """The next `count` records, and no error."""
    consumer = Consumer(
        {"bootstrap.servers": node.bootstrap_servers, "group.id": "none", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, partition, offset)])
    found: list[Message] = []
    deadline = time.monotonic() + DEADLINE_SECONDS
    try:
        while len(found) < count and time.monotonic() < deadline:
            for message in consumer.consume(count - len(found), 1.0):
                assert message.error() is None, message.error()
                found.append(message)
    finally:
        consumer.close()
    return found


@pytest.mark.parametrize("codec", CODECS)
def test_librdkafka_writes_and_reads_with_every_codec(node: LocalNode, topic: str, codec: str) -> None:
    writer = Writer(node, compression_type=codec, linger_ms=20)
    values = [b"value %d " % n + b"x" * (n % 200) for n in range(500)]
    for value in values:
        writer.write(topic, value)
    writer.flush()
    assert writer.errors == []
    assert sorted(message.offset() for message in writer.delivered) == list(range(500))
    assert [message.value() for message in read(node, topic, 500)] == values


def test_keys_headers_timestamps_and_tombstones_come_back(node: LocalNode, topic: str) -> None:
    writer = Writer(node)
    writer.write(
        topic, b"v", key=b"k", headers=[("h", b"1"), ("h", None), ("é", b"")], timestamp=1_700_000_000_123
    )
    writer.write(topic, None, key=b"gone")
    writer.write(topic, b"", key=None)
    writer.flush()
    first, second, third = read(node, topic, 3)
    assert (first.key(), first.value(), first.timestamp()[1]) == (b"k", b"v", 1_700_000_000_123)
    assert first.headers() == [("h", b"1"), ("h", None), ("é", b"")]
    assert (second.key(), second.value()) == (b"gone", None)
    assert (third.key(), third.value()) == (None, b"")


@pytest.mark.parametrize("settings", [{"enable_idempotence": True}, {"acks": 1}, {"acks": 0}])
def test_every_kind_of_acknowledgement(node: LocalNode, topic: str, settings: dict[str, Any]) -> None:
    writer = Writer(node, **settings)
    for n in range(200):
        writer.write(topic, b"%d" % n)
    writer.flush()
    assert writer.errors == []
    assert [message.value() for message in read(node, topic, 200)] == [b"%d" % n for n in range(200)]


def test_large_records_pass_and_too_large_ones_are_refused(node: LocalNode, admin: AdminClient) -> None:
    topic = make_topic(admin, max_message_bytes="5000000")
    writer = Writer(node, message_max_bytes=10_000_000)
    large = bytes(range(256)) * 16_000
    writer.write(topic, large)
    writer.write(topic, bytes(6_000_000))
    writer.flush()
    assert len(writer.delivered) == 1
    assert writer.errors == ["MSG_SIZE_TOO_LARGE"]
    assert read(node, topic, 1)[0].value() == large


def test_a_reader_with_small_limits_still_gets_large_records(node: LocalNode, topic: str) -> None:
    writer = Writer(node)
    for _ in range(3):
        writer.write(topic, bytes(500_000))
    writer.flush()
    consumer = KafkaConsumer(
        bootstrap_servers=node.bootstrap_servers,
        max_partition_fetch_bytes=1000,
        fetch_max_bytes=1000,
        consumer_timeout_ms=DEADLINE_SECONDS * 1000,
    )
    consumer.assign([PyTopicPartition(topic, 0)])
    consumer.seek_to_beginning()
    seen = [len(record.value) for record in islice(consumer, 3)]
    consumer.close()
    assert seen == [500_000] * 3


def test_a_missing_topic_is_created_where_a_producer_asks_for_it(node: LocalNode, admin: AdminClient) -> None:
    topic = f"auto-{uuid.uuid4().hex}"
    writer = Writer(node)
    writer.write(topic, b"first")
    writer.flush()
    assert writer.errors == []
    assert len(admin.list_topics(topic, DEADLINE_SECONDS).topics[topic].partitions) == 2


def test_topics_are_listed_described_and_deleted(node: LocalNode, admin: AdminClient) -> None:
    topic = make_topic(admin, 3)
    partitions = admin.list_topics(timeout=DEADLINE_SECONDS).topics[topic].partitions
    assert sorted(partitions) == [0, 1, 2]
    assert {tuple(partition.replicas) for partition in partitions.values()} == {(1,)}
    with pytest.raises(KafkaException, match="TOPIC_ALREADY_EXISTS"):
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(DEADLINE_SECONDS)
    admin.delete_topics([topic])[topic].result(DEADLINE_SECONDS)
    assert topic not in admin.list_topics(timeout=DEADLINE_SECONDS).topics


def test_a_topic_that_grows_serves_its_new_partitions(
    node: LocalNode, admin: AdminClient, topic: str
) -> None:
    admin.create_partitions([NewPartitions(topic, 4)])[topic].result(DEADLINE_SECONDS)
    writer = Writer(node)
    for partition in range(4):
        writer.write(topic, b"%d" % partition, partition=partition)
    writer.flush()
    assert writer.errors == []
    for partition in range(4):
        assert read(node, topic, 1, partition=partition)[0].value() == b"%d" % partition


def test_settings_of_a_topic_change_while_it_is_used(node: LocalNode, admin: AdminClient, topic: str) -> None:
    writer = Writer(node, message_max_bytes=2_000_000)
    writer.write(topic, bytes(10_000))
    writer.flush()
    assert writer.errors == []
    alter(admin, ResourceType.TOPIC, topic, "max.message.bytes", "1000")
    writer.write(topic, bytes(10_000))
    writer.flush()
    assert writer.errors == ["MSG_SIZE_TOO_LARGE"]
    described = describe(admin, ResourceType.TOPIC, topic)
    assert described["max.message.bytes"] == "1000"
    assert described["segment.bytes"] == "1073741824"


def test_settings_of_a_broker_change_while_it_runs(node: LocalNode, admin: AdminClient) -> None:
    alter(admin, ResourceType.BROKER, "1", "log.retention.ms", "123456789")
    try:
        wait_until(lambda: describe(admin, ResourceType.BROKER, "1")["log.retention.ms"] == "123456789")
        assert describe(admin, ResourceType.TOPIC, make_topic(admin))["retention.ms"] == "123456789"
    finally:
        alter(admin, ResourceType.BROKER, "1", "log.retention.ms", None)


def alter(admin: AdminClient, kind: ResourceType, name: str, setting: str, value: str | None) -> None:
    operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    entry = ConfigEntry(setting, value, incremental_operation=operation)
    resource = ConfigResource(kind, name, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(DEADLINE_SECONDS)


def describe(admin: AdminClient, kind: ResourceType, name: str) -> dict[str, str]:
    (future,) = admin.describe_configs([ConfigResource(kind, name)]).values()
    return {name: entry.value for name, entry in future.result(DEADLINE_SECONDS).items()}


def test_offsets_are_found_by_time_and_at_the_ends(node: LocalNode, admin: AdminClient, topic: str) -> None:
    writer = Writer(node)
    for n in range(10):
        writer.write(topic, b"%d" % n, timestamp=1_700_000_000_000 + n * 1000)
    writer.flush()

    def offset(spec: OffsetSpec) -> int:
        (future,) = admin.list_offsets({TopicPartition(topic, 0): spec}).values()
        found: int = future.result(DEADLINE_SECONDS).offset
        return found

    assert offset(OffsetSpec.earliest()) == 0
    assert offset(OffsetSpec.latest()) == 10
    assert offset(OffsetSpec.max_timestamp()) == 9
    assert offset(OffsetSpec.for_timestamp(1_700_000_003_500)) == 4
    assert offset(OffsetSpec.for_timestamp(1_800_000_000_000)) == -1


def test_deleted_records_are_gone_for_readers(node: LocalNode, admin: AdminClient, topic: str) -> None:
    writer = Writer(node)
    for n in range(10):
        writer.write(topic, b"%d" % n)
    writer.flush()
    (future,) = admin.delete_records([TopicPartition(topic, 0, 7)]).values()
    assert future.result(DEADLINE_SECONDS).low_watermark == 7
    consumer = Consumer({"bootstrap.servers": node.bootstrap_servers, "group.id": "none"})
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), DEADLINE_SECONDS) == (7, 10)
    consumer.close()
    assert [message.value() for message in read(node, topic, 3, offset=7)] == [b"7", b"8", b"9"]


@pytest.mark.slow
def test_a_waiting_reader_gets_a_record_as_it_comes(node: LocalNode, topic: str) -> None:
    consumer = Consumer(
        {"bootstrap.servers": node.bootstrap_servers, "group.id": "none", "fetch.wait.max.ms": 60_000}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert consumer.poll(0.5) is None
    writer = Writer(node)
    began = time.monotonic()
    writer.write(topic, b"now")
    writer.flush()
    message = consumer.poll(DEADLINE_SECONDS)
    consumer.close()
    assert message is not None
    assert message.value() == b"now"
    assert time.monotonic() - began < 30, "the fetch would have waited for a minute"


def test_kafka_python_writes_and_reads(node: LocalNode, topic: str) -> None:
    producer = KafkaProducer(bootstrap_servers=node.bootstrap_servers, compression_type="gzip", acks="all")
    futures = [
        producer.send(topic, key=b"k%d" % n, value=b"v%d" % n, headers=[("n", b"%d" % n)]) for n in range(100)
    ]
    assert [future.get(DEADLINE_SECONDS).offset for future in futures] == list(range(100))
    producer.close()
    consumer = KafkaConsumer(
        bootstrap_servers=node.bootstrap_servers, consumer_timeout_ms=DEADLINE_SECONDS * 1000
    )
    partition = PyTopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    records = list(islice(consumer, 100))
    assert [(record.key, record.value) for record in records] == [
        (b"k%d" % n, b"v%d" % n) for n in range(100)
    ]
    assert records[7].headers == [("n", b"7")]
    assert consumer.end_offsets([partition]) == {partition: 100}
    consumer.close()


async def test_aiokafka_writes_and_reads(node: LocalNode, topic: str) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=node.bootstrap_servers, enable_idempotence=True)
    await producer.start()
    try:
        sent = await asyncio.gather(*[await producer.send(topic, b"%d" % n) for n in range(100)])
    finally:
        await producer.stop()
    assert [metadata.offset for metadata in sent] == list(range(100))
    consumer = AIOKafkaConsumer(bootstrap_servers=node.bootstrap_servers, enable_auto_commit=False)
    await consumer.start()
    try:
        partition = AioTopicPartition(topic, 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        async with asyncio.timeout(DEADLINE_SECONDS):
            values = [(await consumer.getone()).value for _ in range(100)]
        assert values == [b"%d" % n for n in range(100)]
        assert await consumer.end_offsets([partition]) == {partition: 100}
    finally:
        await consumer.stop()
