"""Brokers keep tables of latest values: what a client makes of a compacted topic is what its table has."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
from confluent_kafka import Producer

from ottla.testing.local_cluster import LocalCluster
from ottla.testing.local_node import LocalNode
from tests.support.spark_sink_harness import await_markers
from tests.support.table_metrics import metric
from tests.support.waiting import wait_until
from tests.tables.test_table_keeper import HTTP, count_rows, create, kill_workers, records, rows, set_config

SETTINGS = {"table_mode": "latest", "cleanup_policy": "compact"}


def latest_values(bootstrap: str) -> dict[tuple[int, bytes], tuple[int, bytes]]:
    """What a client makes of the topic."""
    found: dict[tuple[int, bytes], tuple[int, bytes]] = {}
    for partition, offset, key, value in records(bootstrap):
        found.pop((partition, key), None)
        if value is not None:
            found[(partition, key)] = (offset, value)
    return found


def assert_same(node: LocalNode, warehouse: str) -> None:
    await_markers(node.bootstrap_servers, "orders")  # until then, readers of committed records see less
    wait_until(lambda: metric(node, "ottla_table_lag_records") == 0, "the table lags", 240)
    expected = latest_values(node.bootstrap_servers)
    with duckdb.connect() as connection:
        connection.register("orders", rows(warehouse))
        found = connection.sql('select partition, key, "offset", value from orders').fetchall()
    assert len(found) == len(expected)
    assert {(row[0], row[1]): (row[2], row[3]) for row in found} == expected


def update(bootstrap: str, round: int, count: int = 300) -> None:
    """Change each key, delete every third, and abort a transaction that would change all."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "t"})
    producer.init_transactions(60)
    for commits in (False, True):
        producer.begin_transaction()
        for number in range(count):
            is_deleted = commits and (number + round) % 3 == 0
            value = None if is_deleted else f"{round}-{commits}".encode()
            producer.produce("orders", key=str(number), value=value)
        assert producer.flush(60) == 0
        producer.commit_transaction(60) if commits else producer.abort_transaction(60)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_table_has_the_latest_values_of_its_topic_while_workers_are_killed(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    settings = HTTP | {"log.cleaner.backoff.ms": "200", "table.maintenance.interval.ms": "1000"}
    settings["table.compaction.min.files"] = "2"
    with LocalNode(settings, data_dir=data) as node:
        create(node.bootstrap_servers, segment_ms="500", min_cleanable_dirty_ratio="0.01", **SETTINGS)
        for round in range(4):
            update(node.bootstrap_servers, round)
            if round:
                kill_workers()
        assert_same(node, f"{data}-tables")
        # A table that was left alone while the log was cleaned, and tombstones went with it.
        set_config(node.bootstrap_servers, table_format="none", delete_retention_ms="0")
        update(node.bootstrap_servers, 4)
        update(node.bootstrap_servers, 5, 400)
        before = len(records(node.bootstrap_servers))
        producer = Producer({"bootstrap.servers": node.bootstrap_servers})

        def is_cleaned() -> bool:
            producer.produce("orders", key="a segment ends", value=b"x", partition=0)
            producer.produce("orders", key="a segment ends", value=b"x", partition=1)
            producer.flush(60)
            left = [value for *_, value in records(node.bootstrap_servers)]
            return len(left) < before / 2 and left.count(None) < 20

        wait_until(is_cleaned, "the log is not compacted", 240)
        set_config(node.bootstrap_servers, table_format="iceberg")
        wait_until(lambda: metric(node, "ottla_table_lag_records") is not None, "the table is not kept", 240)
        assert_same(node, f"{data}-tables")


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"table_mode": "latest"}, "table.mode=latest needs cleanup.policy=compact"),
        ({**SETTINGS, "cleanup_policy": "compact,delete"}, "needs cleanup.policy=compact without delete"),
        ({**SETTINGS, "table_partition_by": "day"}, "partitioned by the partition of the topic"),
        ({"table_mode": "newest"}, "append, latest"),
    ],
)
def test_settings_that_no_table_of_latest_values_can_have_are_refused(settings, problem: str) -> None:
    with LocalNode() as node, pytest.raises(Exception, match=problem):
        create(node.bootstrap_servers, **settings)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_brokers_keep_one_table_of_latest_values_and_take_over_from_each_other(tmp_path: Path) -> None:
    def check(cluster: LocalCluster) -> None:
        expected = latest_values(cluster.bootstrap_servers)

        def found() -> dict[tuple[int, bytes], tuple[int, bytes]]:
            table = rows(str(tmp_path / "cluster" / "tables")).to_pylist()
            values = {(row["partition"], row["key"]): (row["offset"], row["value"]) for row in table}
            assert len(values) == len(table), "a key is there twice"
            return values

        wait_until(lambda: found() == expected, "the table is not what the topic is", 240)

    def change(cluster: LocalCluster, round: int) -> None:
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"})
        for number in range(300):
            value = None if (number + round) % 3 == 0 else f"{round}".encode()
            producer.produce("orders", key=str(number), value=value)
        assert producer.flush(120) == 0

    with LocalCluster(nodes=3, data_dir=str(tmp_path / "cluster")) as cluster:
        create(cluster.bootstrap_servers, partitions=6, replicas=3, **SETTINGS)
        change(cluster, 0)
        wait_until(lambda: count_rows(str(tmp_path / "cluster" / "tables")) > 0, "there is no table", 240)
        check(cluster)
        killed = cluster.leader("orders", 0)
        change(cluster, 1)
        cluster.kill(killed)
        change(cluster, 2)
        check(cluster)
        cluster.start(killed)
        change(cluster, 3)
        check(cluster)
