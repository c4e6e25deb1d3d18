"""`readFrom`: what is in a topic's table comes from files, the rest from brokers, and each record once."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.client.blocking import Admin, Producer
from ottla.spark.source.batch_reader import FilePartition, RangePartition, batch_reader
from ottla.spark.source.columns import COLUMNS, spark_schema
from ottla.testing.local_node import LocalNode
from tests.support.spark_sink_harness import await_markers
from tests.support.table_metrics import metric
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

# The times of records are ahead of the markers of transactions, which searches for a time find too.
AHEAD_MS = 600_000
HALF_MS = 500_000


class Shop:
    """A topic whose table has two thirds of its records; the rest came after the table was stopped."""

    def __init__(self, node: LocalNode, base_ms: int) -> None:
        self.node = node
        self.base_ms = base_ms

    def reader(self, **options: Any) -> Any:
        given = {
            "kafka.bootstrap.servers": self.node.bootstrap_servers,
            "subscribe": "orders",
            "includeHeaders": "true",
            **{name: str(value) for name, value in options.items()},
        }
        return batch_reader(given, spark_schema(COLUMNS))

    def rows(self, **options: Any) -> list[dict[str, Any]]:
        reader = self.reader(**options)
        found = [
            row for each in reader.partitions() for batch in reader.read(each) for row in batch.to_pylist()
        ]
        return sorted(found, key=lambda row: (row["partition"], row["offset"]))


def send(producer: Producer, base_ms: int, start: int, count: int) -> None:
    headers = [("h", b"1"), ("h", None)]
    for number in range(start, start + count):
        producer.send_nowait(
            "orders",
            f"{number}".encode(),
            key=f"k{number}".encode(),
            partition=number % 2,
            timestamp=base_ms + number * 1000,
            headers=headers if number % 3 == 0 else (),
        )
    producer.flush()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    data: Path = tmp_path_factory.mktemp("shop") / "data"
    base_ms = int(time.time() * 1000) + AHEAD_MS
    with (
        LocalNode({"http.listener": "http://127.0.0.1:0"}, data_dir=str(data)) as node,
        Admin(node.bootstrap_servers) as admin,
        Producer(node.bootstrap_servers, transactional_id="t") as producer,
    ):
        admin.topics.create(
            "orders", partitions=2, configs={"table.format": "iceberg", "table.freshness.ms": "100"}
        )
        for begin in (0, 500):
            with producer.transaction():
                send(producer, base_ms, begin, 500)
            producer.begin_transaction()
            send(producer, base_ms, begin + 490, 10)
            producer.abort_transaction()
            wanted = begin + 500
            wait_until(
                lambda wanted=wanted: metric(node, "ottla_table_rows_total") == wanted, "it is behind", 240
            )
        set_format(admin, "none")
        wait_until(lambda: metric(node, "ottla_table_rows_total") is None, "the table is kept", 240)
        with producer.transaction():
            send(producer, base_ms, 1000, 500)
        await_markers(node.bootstrap_servers, "orders")
        yield Shop(node, base_ms)


def set_format(admin: Admin, format: str) -> None:
    from ottla.client.admin.configs import ResourceType

    admin.configs.alter(ResourceType.TOPIC, "orders", set={"table.format": format})


def kinds(shop: Shop, **options: Any) -> set[type]:
    return {type(each) for each in shop.reader(**options).partitions()}


def test_both_sides_together_are_what_brokers_have(shop: Shop) -> None:
    expected = shop.rows(**{"kafka.isolation.level": "read_committed"})
    assert len(expected) == 1500
    assert kinds(shop) == {RangePartition}
    assert kinds(shop, readFrom="auto") == {FilePartition, RangePartition}
    assert shop.rows(readFrom="auto") == expected


def test_a_table_alone_ends_where_it_ends(shop: Shop) -> None:
    expected = shop.rows(**{"kafka.isolation.level": "read_committed"})
    assert kinds(shop, readFrom="table") == {FilePartition}
    assert shop.rows(readFrom="table") == [row for row in expected if int(row["value"]) < 1000]


def of_orders(*offsets: int) -> dict[str, Any]:
    return {"orders": {str(partition): offset for partition, offset in enumerate(offsets)}}


@pytest.mark.parametrize(
    "limits",
    [
        {
            "startingOffsets": {"orders": {"0": 100, "1": 600}},
            "endingOffsets": {"orders": {"0": 101, "1": -1}},
        },
        {"startingOffsets": {"orders": {"0": 5, "1": 7}}, "endingOffsets": {"orders": {"0": 300, "1": 7}}},
        {"startingTimestamp": HALF_MS, "endingTimestamp": HALF_MS + 600_000},
        {"endingTimestamp": HALF_MS},
    ],
)
def test_limits_are_exact_on_both_sides(shop: Shop, limits: dict[str, Any]) -> None:
    given = {
        name: json.dumps(each) if isinstance(each, dict) else shop.base_ms + each
        for name, each in limits.items()
    }
    expected = shop.rows(**given, **{"kafka.isolation.level": "read_committed"})
    assert expected
    assert shop.rows(readFrom="auto", **given) == expected


def test_small_tasks_read_the_same(shop: Shop) -> None:
    few = shop.reader(readFrom="table").partitions()
    many = shop.reader(readFrom="table", maxBytesPerPartition=1).partitions()
    assert len(many) > len(few)
    assert shop.rows(readFrom="auto", maxBytesPerPartition=2000) == shop.rows(readFrom="auto")


def test_columns_may_be_few(shop: Shop) -> None:
    given = {"kafka.bootstrap.servers": shop.node.bootstrap_servers, "subscribe": "orders"}
    for columns in (("value",), ("topic",), ("topic", "headers"), ("partition", "timestamp")):
        reader = batch_reader(
            {**given, "readFrom": "table", "columns": ",".join(columns)}, spark_schema(columns)
        )
        batches = [batch for each in reader.partitions() for batch in reader.read(each)]
        assert sum(batch.num_rows for batch in batches) == 1000
        assert all(batch.schema.names == list(columns) for batch in batches)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"readFrom": "disk"}, "brokers, table, tier and auto"),
        ({"readFrom": "auto", "kafka.isolation.level": "read_uncommitted"}, "committed records"),
        ({"readFrom": "auto", "pushdown": "true"}, "cannot be combined"),
        ({"readFrom": "table", "subscribe": "other"}, "has no table"),
    ],
)
def test_what_cannot_be_read_is_said(shop: Shop, options: dict[str, str], problem: str) -> None:
    with Admin(shop.node.bootstrap_servers) as admin:
        if "other" not in [topic.name for topic in admin.topics.list()]:
            admin.topics.create("other", partitions=1)
    with pytest.raises(ValueError, match=problem):
        shop.reader(**options).partitions()


def test_a_topic_without_a_table_is_read_from_brokers(shop: Shop) -> None:
    with Producer(shop.node.bootstrap_servers) as producer:
        producer.send("plain", b"x")
    assert kinds(shop, subscribe="plain", readFrom="auto") == {RangePartition}


def test_a_table_of_latest_values_does_not_stand_for_its_topic(shop: Shop) -> None:
    settings = {"table.format": "iceberg", "table.freshness.ms": "100", "table.mode": "latest"}
    with Admin(shop.node.bootstrap_servers) as admin, Producer(shop.node.bootstrap_servers) as producer:
        admin.topics.create("users", partitions=1, configs=settings | {"cleanup.policy": "compact"})
        for value in (b"1", b"2"):
            producer.send("users", value, key=b"k")
    wait_until(lambda: metric(shop.node, "ottla_table_rows_total", "users") == 2, "it is behind", 240)
    found = shop.rows(subscribe="users", readFrom="auto", startingOffsets="earliest")
    assert [row["value"] for row in found] == [b"1", b"2"]
    with pytest.raises(ValueError, match="latest values by key only"):
        shop.reader(subscribe="users", readFrom="table").partitions()


def test_what_retention_has_deleted_still_comes_from_the_table(shop: Shop) -> None:
    """Last, as it deletes records."""
    from ottla.protocol.names import TopicPartition

    expected = shop.rows(readFrom="auto")
    with Admin(shop.node.bootstrap_servers) as admin:
        admin.offsets.delete_records({TopicPartition("orders", 0): 200, TopicPartition("orders", 1): 300})
    assert shop.rows(readFrom="auto") == expected
    assert len(shop.rows(**{"kafka.isolation.level": "read_committed"})) < 1500
    starting = json.dumps({"orders": {"0": 10, "1": 10}})
    wanted = [row for row in expected if row["offset"] >= 10]
    assert shop.rows(readFrom="auto", startingOffsets=starting) == wanted
    early = [row for row in expected if int(row["value"]) >= 100]
    assert shop.rows(readFrom="auto", startingTimestamp=shop.base_ms + 100_000) == early
    # All of it is older than the log.
    ending = json.dumps({"orders": {"0": 150, "1": 250}})
    ends = {0: 150, 1: 250}
    old = [row for row in wanted if row["offset"] < ends[row["partition"]]]
    assert shop.rows(readFrom="auto", startingOffsets=starting, endingOffsets=ending) == old
