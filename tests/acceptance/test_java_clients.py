"""Kafka's Java clients, of today and of years ago, against a node: what they write is what they read."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from ottla.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.testing.local_node import LocalNode
from tests.support.java_driver import ConsumedRecord, JavaDriver, JavaDriverError, Message
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
THEN = 1_700_000_000_000


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    with LocalNode({"log.retention.ms": -1}) as node:  # the records are older than a node keeps them
        yield node


DRIVERS = {"4.3.1": "java_driver", "3.5.0": "old_java_driver", "4.4.0": "new_java_driver"}


@pytest.fixture(
    params=["4.3.1", *(pytest.param(other, marks=pytest.mark.exhaustive) for other in ("3.5.0", "4.4.0"))]
)
def client(request: pytest.FixtureRequest) -> JavaDriver:
    """One of the clients; the witnesses of the others are in `tests/kafka/test_harness.py` and
    `test_newest_client.py`.
    """
    driver: JavaDriver = request.getfixturevalue(DRIVERS[request.param])
    return driver


def make_topic(node: LocalNode, **config: str) -> str:
    name = f"java-{uuid.uuid4().hex[:12]}"
    configs = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in config.items()]
    topic = CreatableTopic(name=name, num_partitions=2, replication_factor=1, configs=configs)
    with WireClient(node.bootstrap_servers) as wire:
        answer = wire.get(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7, CreateTopicsResponse)
    assert answer.topics[0].error_code == 0, answer
    return name


def read_until(
    client: JavaDriver, node: LocalNode, topic: str, count: int, **config: str
) -> tuple[ConsumedRecord, ...]:
    """All records as soon as there are so many: what is not waited for, as the marker of a transaction that
    is committed, may come a moment later.
    """
    found: list[ConsumedRecord] = []

    def are_there() -> bool:
        found[:] = client.consume(node.bootstrap_servers, topic, **config).records
        return len(found) >= count

    wait_until(are_there, f"no {count} records", poll_s=0.1)
    return tuple(found)


@pytest.mark.parametrize("codec", CODECS)
def test_records_of_every_codec_come_back_as_they_were(
    node: LocalNode, client: JavaDriver, codec: str
) -> None:
    topic = make_topic(node)
    messages = [
        Message(
            topic,
            None if n % 7 == 3 else b"value %d " % n * (n % 30),
            key=None if n % 5 == 0 else b"key %d" % n,
            timestamp=THEN + n * 3,
            headers=(("n", b"%d" % n), ("n", None), ("größe", b"")) if n % 2 else (),
        )
        for n in range(200)
    ]
    with client.producer(node.bootstrap_servers, compression_type=codec) as producer:
        sent = producer.send(messages, flush_every=40)
    assert [result.offset for result in sent] == list(range(200))
    found = client.consume(node.bootstrap_servers, topic)
    assert (found.beginning_offset, found.end_offset, found.position) == (0, 200, 200)
    for n, (message, record) in enumerate(zip(messages, found.records, strict=True)):
        assert (record.offset, record.timestamp, record.timestamp_type) == (n, message.timestamp, 0)
        assert (record.key, record.value, record.headers) == (message.key, message.value, message.headers)


@pytest.mark.parametrize("codec", CODECS)
def test_a_topic_with_a_codec_of_its_own_keeps_every_record(
    node: LocalNode, client: JavaDriver, codec: str
) -> None:
    topic = make_topic(node, compression_type="uncompressed" if codec == "none" else codec)
    values = [b"%d" % n * 20 for n in range(100)]
    with client.producer(node.bootstrap_servers, compression_type="lz4") as producer:
        producer.send([Message(topic, value) for value in values])
    assert [record.value for record in client.consume(node.bootstrap_servers, topic).records] == values


def test_log_append_time_is_told_to_producer_and_consumer(node: LocalNode, client: JavaDriver) -> None:
    topic = make_topic(node, message_timestamp_type="LogAppendTime")
    with client.producer(node.bootstrap_servers) as producer:
        (sent,) = producer.send([Message(topic, b"1", timestamp=THEN)])
    (record,) = client.consume(node.bootstrap_servers, topic).records
    assert sent.timestamp == record.timestamp > THEN
    assert record.timestamp_type == 1


def test_large_records_pass_and_too_large_ones_are_refused(node: LocalNode, client: JavaDriver) -> None:
    topic = make_topic(node, max_message_bytes="3000000")
    large = bytes(range(256)) * 8_000
    config = {"max_request_size": "8000000", "buffer_memory": "64000000"}
    with client.producer(node.bootstrap_servers, **config) as producer:
        first, second, third = producer.try_send(
            [Message(topic, value) for value in (large, bytes(4_000_000), b"small")], flush_every=1
        )
    assert (first.offset, first.error) == (0, None)
    assert second.error == "RecordTooLargeException"
    assert (third.offset, third.error) == (1, None)
    found = client.consume(
        node.bootstrap_servers, topic, max_partition_fetch_bytes="1000", fetch_max_bytes="1000"
    )
    assert [record.value for record in found.records] == [large, b"small"]


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_kind_of_acknowledgement(node: LocalNode, client: JavaDriver, acks: str) -> None:
    topic = make_topic(node)
    idempotence = "true" if acks == "all" else "false"
    with client.producer(node.bootstrap_servers, acks=acks, enable_idempotence=idempotence) as producer:
        producer.send([Message(topic, b"%d" % n) for n in range(50)], flush_every=5)
        # On the same connection, so it comes after what was not waited for.
        producer.send([Message(topic, b"last")])
    records = read_until(client, node, topic, 51)
    assert [record.value for record in records] == [b"%d" % n for n in range(50)] + [b"last"]


def test_a_read_of_what_is_not_there_is_told_so(node: LocalNode, client: JavaDriver) -> None:
    topic = make_topic(node)
    with client.producer(node.bootstrap_servers) as producer:
        producer.send([Message(topic, b"1")])
    with pytest.raises(JavaDriverError) as failure:
        client.consume(node.bootstrap_servers, topic, start=-1)
    assert failure.value.kind == "IllegalArgumentException"
    found = client.consume(node.bootstrap_servers, topic, start=1)
    assert found.records == ()


def test_a_missing_topic_is_made_for_a_producer(node: LocalNode, client: JavaDriver) -> None:
    topic = f"auto-{uuid.uuid4().hex[:12]}"
    with client.producer(node.bootstrap_servers) as producer:
        (sent,) = producer.send([Message(topic, b"first")])
    assert sent.offset == 0
    assert [record.value for record in client.consume(node.bootstrap_servers, topic).records] == [b"first"]


def test_transactions_are_seen_when_they_are_committed(node: LocalNode, client: JavaDriver) -> None:
    topic = make_topic(node)
    name = f"txn-{uuid.uuid4().hex[:12]}"
    with client.producer(node.bootstrap_servers, transactional_id=name) as producer:
        producer.init_transactions()
        for number, commit in enumerate((True, False, True)):
            producer.begin()
            producer.send([Message(topic, b"%d.%d" % (number, n)) for n in range(3)])
            if commit:
                producer.commit()
            else:
                producer.abort()
    committed = read_until(client, node, topic, 6, isolation_level="read_committed")
    assert [record.value for record in committed] == [
        b"%d.%d" % (number, n) for number in (0, 2) for n in range(3)
    ]
    everything = client.consume(node.bootstrap_servers, topic)
    assert len(everything.records) == 9
