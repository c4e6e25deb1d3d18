"""Kafka's own producer and tools: transactions of version 2, and what an administrator sees of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.testing.local_node import LocalNode
from tests.support.java_driver import JavaDriver, JavaDriverError, Message
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

COMMAND = "org.apache.kafka.tools.TransactionsCommand"
DUMP = "org.apache.kafka.tools.DumpLogSegments"


@pytest.fixture
def driver(java_driver: JavaDriver) -> JavaDriver:
    return java_driver


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNode]:
    directory = str(tmp_path_factory.mktemp("data"))
    with LocalNode({"transaction.max.timeout.ms": 900_000}, data_dir=directory) as running:
        yield running


@pytest.fixture
def topic(node: LocalNode, request: pytest.FixtureRequest) -> str:
    name = re.sub(r"\W", "-", request.node.name)
    admin = AdminClient({"bootstrap.servers": node.bootstrap_servers})
    for done in admin.create_topics([NewTopic(name, 2, 1)]).values():
        done.result(60)
    return name


def values(
    driver: JavaDriver, node: LocalNode, topic: str, partition: int, isolation: str
) -> list[bytes | None]:
    seen = driver.consume(node.bootstrap_servers, topic, partition, isolation_level=isolation)
    return [record.value for record in seen.records]


def await_committed(
    driver: JavaDriver, node: LocalNode, topic: str, partition: int, expected: list[bytes]
) -> None:
    """A commit is answered when it is decided; its markers come a moment later."""
    wait_until(
        lambda: len(values(driver, node, topic, partition, "read_committed")) >= len(expected),
        f"not all of {expected} are committed",
    )
    assert values(driver, node, topic, partition, "read_committed") == expected


def test_commits_and_aborts(driver: JavaDriver, node: LocalNode, topic: str) -> None:
    with driver.producer(node.bootstrap_servers, transactional_id=topic) as producer:
        producer.init_transactions()
        for number in range(6):
            producer.begin()
            producer.send([Message(topic, f"{number}".encode(), partition=part) for part in (0, 1)])
            if number % 3:
                producer.commit()
            else:
                producer.abort()
    for partition in (0, 1):
        await_committed(driver, node, topic, partition, [b"1", b"2", b"4", b"5"])
        assert values(driver, node, topic, partition, "read_uncommitted") == [b"%d" % n for n in range(6)]


def test_offsets_in_the_transaction(driver: JavaDriver, node: LocalNode, topic: str) -> None:
    with driver.producer(node.bootstrap_servers, transactional_id=topic) as producer:
        producer.init_transactions()
        for offset, end in ((1, producer.commit), (5, producer.abort), (3, producer.commit)):
            producer.begin()
            producer.send([Message(topic, b"x")])
            producer.send_offsets(topic, [(topic, 1, offset)])
            end()

    def described() -> str:
        return driver.tool(
            "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
            "--bootstrap-server", node.bootstrap_servers, "--group", topic, "--describe",
        ).text  # fmt: skip

    wait_until(lambda: re.search(rf"{topic}\s+1\s+3\s", described()) is not None, "3 is not committed")


def test_a_replaced_producer_is_fenced(driver: JavaDriver, node: LocalNode, topic: str) -> None:
    old = driver.producer(node.bootstrap_servers, transactional_id=topic)
    old.init_transactions()
    old.begin()
    old.send([Message(topic, b"old")])
    with driver.producer(node.bootstrap_servers, transactional_id=topic) as new:
        new.init_transactions()
        new.begin()
        new.send([Message(topic, b"new")])
        with pytest.raises(JavaDriverError) as raised:
            old.commit()
        assert raised.value.kind in ("ProducerFencedException", "InvalidProducerEpochException")
        new.commit()
    old.close(timeout_ms=0)
    await_committed(driver, node, topic, 0, [b"new"])


def test_the_tool_lists_describes_finds_and_aborts(driver: JavaDriver, node: LocalNode, topic: str) -> None:
    producer = driver.producer(
        node.bootstrap_servers, transactional_id=topic, transaction_timeout_ms="600000"
    )
    producer.init_transactions()
    producer.begin()
    producer.send([Message(topic, b"hangs")])
    producer.close(timeout_ms=0)

    def tool(*args: str) -> str:
        return driver.tool(COMMAND, "--bootstrap-server", node.bootstrap_servers, *args).text

    assert re.search(rf"{topic}\s+\d+\s+\d+\s+Ongoing", tool("list"))
    described = tool("describe", "--transactional-id", topic)
    assert "Ongoing" in described
    assert f"{topic}-0" in described
    producers = tool("describe-producers", "--topic", topic, "--partition", "0")
    assert re.search(r"^\d+\s+\d+\s+\S+\s+\d+\s+\d+\s+0\s*$", producers, re.MULTILINE), producers
    assert values(driver, node, topic, 0, "read_committed") == []
    tool("abort", "--topic", topic, "--partition", "0", "--start-offset", "0")
    plain = driver.producer(node.bootstrap_servers)
    plain.send([Message(topic, b"plain")])
    plain.close()
    assert values(driver, node, topic, 0, "read_committed") == [b"plain"]


def test_kafka_reads_the_records_of_the_coordinator(driver: JavaDriver, node: LocalNode, topic: str) -> None:
    with driver.producer(node.bootstrap_servers, transactional_id=topic) as producer:
        producer.init_transactions()
        producer.begin()
        producer.send([Message(topic, b"x", partition=1)])
        producer.commit()
        producer.begin()
        producer.abort()

    def states() -> list[int]:
        logs = sorted(Path(node.data_dir).glob("__transaction_state-*/*.log"))
        result = driver.tool(
            DUMP,
            "--transaction-log-decoder",
            "--files",
            ",".join(str(path) for path in logs if path.stat().st_size),
        )
        lines = [line for line in result.text.splitlines() if f'"transactionalId":"{topic}"' in line]
        return [int(found[1]) for line in lines if (found := re.search(r'"transactionStatus":(\d+)', line))]

    # The end of the commit is written when all its markers are.
    wait_until(lambda: len(states()) >= 4, "there are no four states")
    # Empty, Ongoing, PrepareCommit, CompleteCommit
    assert states()[:4] == [0, 1, 2, 4]
