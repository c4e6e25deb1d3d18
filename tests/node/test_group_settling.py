"""The time in which a group of the consumer protocol settles: not by the interval of its heartbeats."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest
from confluent_kafka import Consumer

from ottla import blocking
from ottla.testing.local_node import LocalNode

pytestmark = pytest.mark.slow

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


@pytest.mark.parametrize(("members", "apart_s"), [(2, 0.3), (10, 0.0)])
def test_a_fresh_consumer_group_of_librdkafka_settles_soon(
    node: LocalNode, members: int, apart_s: float
) -> None:
    topic = f"settle-{members}"
    with blocking.Admin(node.bootstrap_servers) as admin:
        admin.topics.create(topic, partitions=members)
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
