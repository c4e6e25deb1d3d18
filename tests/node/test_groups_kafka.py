"""Apache Kafka's own tools and Java consumer against our groups."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support import java
from tests.support.java_driver import JavaDriver

from ottla.testing.local_node import LocalNode

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
VERIFIABLE_CONSUMER = "org.apache.kafka.tools.VerifiableConsumer"
COUNT = 20


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    settings = {
        "group.consumer.min.heartbeat.interval.ms": 50,
        "group.consumer.heartbeat.interval.ms": 200,
        "group.consumer.assignment.interval.ms": 0,
    }
    with LocalNode(settings) as running:
        yield running


def fill(node: LocalNode, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap_servers})
    for done in admin.create_topics([NewTopic(topic, 2, 1)]).values():
        done.result(60)
    producer = Producer({"bootstrap.servers": node.bootstrap_servers})
    for number in range(COUNT):
        producer.produce(topic, str(number), partition=number % 2)
    assert producer.flush(60) == 0


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_java_consumer_and_the_groups_tool(
    node: LocalNode, protocol: str, java_driver: JavaDriver
) -> None:
    def groups(*args: str) -> str:
        return java_driver.tool(GROUPS, "--bootstrap-server", node.bootstrap_servers, *args).text

    topic = group = f"java-{protocol}"
    fill(node, topic)
    read = java.run_tool(
        VERIFIABLE_CONSUMER,
        "--bootstrap-server",
        node.bootstrap_servers,
        "--topic",
        topic,
        "--group-id",
        group,
        "--group-protocol",
        protocol,
        "--max-messages",
        str(COUNT),
        "--reset-policy",
        "earliest",
    )
    assert '"name":"offsets_committed"' in read.out
    assert "Exception" not in read.text
    assert group in groups("--list")
    described = groups("--describe", "--group", group)
    lines = [line.split() for line in described.splitlines() if topic in line and "no active" not in line]
    assert [(line[2], line[3], line[4], line[5]) for line in lines if line[2] in "01"] == [
        ("0", "10", "10", "0"),
        ("1", "10", "10", "0"),
    ], described
    assert "Empty" in groups("--describe", "--group", group, "--state")
    reset = groups("--reset-offsets", "--to-earliest", "--topic", topic, "--group", group, "--execute")
    assert [line.split()[-1] for line in reset.splitlines() if topic in line] == ["0", "0"]
    deleted = groups("--delete-offsets", "--group", group, "--topic", topic)
    assert deleted.count("Successful") == 2, deleted
    assert "successful" in groups("--delete", "--group", group)
