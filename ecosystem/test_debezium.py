"""Debezium brings each change of a PostgreSQL once, over Kafka Connect with an exactly-once source."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support import kafka_libs
from tests.support.postgres import POSTGRES_SKIP, Connect, PostgresServer, missing_requirement
from tests.support.waiting import wait_until

MISSING = missing_requirement()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=f"{POSTGRES_SKIP}{MISSING}")

TOPIC = "once.public.customers"
KILLS, ROWS = 2, 4_000
DEADLINE_S = 280.0


@pytest.fixture(scope="module", autouse=True)
def jars() -> None:
    try:
        kafka_libs.classpath(kafka_libs.DEBEZIUM)
    except RuntimeError as error:
        pytest.skip(f"Debezium cannot be had here: {str(error).strip().splitlines()[-1]}")


class Changes:
    """The rows whose insertion is in the topic, as those see it who read committed records."""

    def __init__(self, servers: str) -> None:
        self.rows: list[int] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "reader-of-changes",
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
            }
        )
        self._consumer.subscribe([TOPIC])

    def close(self) -> None:
        self._consumer.close()

    def has(self, row: int) -> bool:
        for message in self._consumer.consume(1_000, 0.5):
            assert message.error() is None, message.error()
            change = json.loads(message.value())
            assert change["op"] in "cr", change  # created, or read at the beginning
            self.rows.append(change["after"]["id"])
        return row in self.rows


@pytest.mark.timeout(900)
def test_each_row_is_in_the_topic_once_through_kills(servers: str, tmp_path: Path) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    for made in admin.create_topics([NewTopic(TOPIC, 1, 1)]).values():
        made.result(60)
    changes, expected = Changes(servers), 0
    with (
        PostgresServer() as server,
        Connect(tmp_path / "connect", servers, server, "once", exactly_once=True) as connect,
    ):

        def insert(count: int) -> int:
            nonlocal expected
            for _ in range(4):  # in transactions
                rows = f"SELECT each FROM generate_series({expected}, {expected + count // 4 - 1}) AS each"
                server.execute(f"INSERT INTO customers {rows}")
                expected += count // 4
            return expected - 1

        def wait_for(row: int) -> None:
            wait_until(lambda: changes.has(row), f"row {row} is not in the topic", DEADLINE_S)

        server.execute("CREATE TABLE customers (id bigint PRIMARY KEY)")
        wait_until(connect.is_configured, "Connect takes no connector", DEADLINE_S)
        wait_for(insert(4))
        for _ in range(KILLS):
            first = expected
            insert(ROWS)
            wait_for(first)  # and the rest is on its way
            connect.kill()
            insert(ROWS)
            connect.start()
        wait_for(insert(4))
    changes.close()
    assert changes.rows == list(range(expected))
