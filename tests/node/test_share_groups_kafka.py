"""Apache Kafka's tools and Java share consumers against our share groups; the time in which groups settle."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.java_driver import JavaDriver

from ottla.testing.local_node import LocalNode

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

SHARE_GROUPS = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
GROUPS = "org.apache.kafka.tools.GroupsCommand"
COUNT = 20
HEARTBEAT_INTERVAL_S = 40


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    # So rarely that a group that settled by these heartbeats would take longer than a pause of the machine.
    settings = {
        "group.consumer.heartbeat.interval.ms": HEARTBEAT_INTERVAL_S * 1000,
        "group.consumer.max.heartbeat.interval.ms": HEARTBEAT_INTERVAL_S * 1000,
    }
    with LocalNode(settings) as running:
        yield running


def fill(node: LocalNode, topic: str, partitions: int = 2) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap_servers})
    for done in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        done.result(60)
    producer = Producer({"bootstrap.servers": node.bootstrap_servers})
    for number in range(COUNT):
        producer.produce(topic, str(number), partition=number % partitions)
    assert producer.flush(60) == 0


def test_the_share_groups_tool(node: LocalNode, java_driver: JavaDriver) -> None:
    def tool(*args: str) -> str:
        return java_driver.tool(SHARE_GROUPS, "--bootstrap-server", node.bootstrap_servers, *args).text

    topic = group = "share-tool"
    fill(node, topic)
    # Offsets of a group that does not exist yet: this creates it.
    reset = tool("--reset-offsets", "--to-earliest", "--topic", topic, "--group", group, "--execute")
    assert [line.split()[-1] for line in reset.splitlines() if topic in line][-2:] == ["0", "0"], reset
    assert group in tool("--list")
    assert "Empty" in tool("--describe", "--group", group, "--state")
    described = tool("--describe", "--group", group)
    lines = [line.split() for line in described.splitlines() if topic in line and "no active" not in line]
    assert [(line[2], line[3], line[4]) for line in lines] == [("0", "0", "10"), ("1", "0", "10")], described
    deleted = tool("--delete-offsets", "--group", group, "--topic", topic)
    assert "Successful" in deleted, deleted
    listed = java_driver.tool(GROUPS, "--bootstrap-server", node.bootstrap_servers, "--list", "--share").text
    assert group in listed
    assert "successful" in tool("--delete", "--group", group)
    assert group not in tool("--list")


@pytest.mark.parametrize(("members", "apart_s"), [(2, 0.3), (10, 0.0)])
def test_a_fresh_consumer_group_of_librdkafka_settles_soon(
    node: LocalNode, members: int, apart_s: float
) -> None:
    topic = f"settle-{members}"
    fill(node, topic, partitions=members)
    assigned: dict[int, list[tuple[float, int]]] = {index: [] for index in range(members)}
    owned = [0] * members
    done = threading.Event()
    last_join = [0.0]

    def live(index: int) -> None:
        def on_assign(_consumer: Consumer, partitions: list[object]) -> None:
            owned[index] += len(partitions)
            assigned[index].append((time.monotonic(), owned[index]))

        def on_revoke(_consumer: Consumer, partitions: list[object]) -> None:
            owned[index] -= len(partitions)

        consumer = Consumer(
            {
                "bootstrap.servers": node.bootstrap_servers,
                "group.id": topic,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe([topic], on_assign=on_assign, on_revoke=on_revoke)
        last_join[0] = time.monotonic()
        while not done.is_set():
            consumer.poll(0.05)
        consumer.close()

    threads = [threading.Thread(target=live, args=(index,)) for index in range(members)]
    try:
        for thread, _ in pairwise([*threads, None]):
            assert thread is not None
            thread.start()
            time.sleep(apart_s)
        deadline = time.monotonic() + 60
        while owned != [1] * members:
            assert time.monotonic() < deadline, owned
            time.sleep(0.01)
        settled_s = max(times[-1][0] for times in assigned.values()) - last_join[0]
        # The aim is a second and a half; a busy machine gets time on top.
        assert settled_s < HEARTBEAT_INTERVAL_S - 1, settled_s
    finally:
        done.set()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
