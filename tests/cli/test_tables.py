"""`ottla tables` shows the tables of topics, merges their files and mends their offsets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ottla.blocking import Producer
from ottla.testing.local_cluster import LocalCluster
from ottla.testing.local_node import LocalNode
from tests.support.command_line import CommandLine
from tests.support.table_metrics import metric
from tests.support.waiting import came_true, wait_until

STATUS = ("configs", "describe", "table.status", "--topic", "orders")


def produce(node: LocalNode, values: list[bytes]) -> None:
    with Producer(node.bootstrap_servers) as producer:
        producer.send_many("orders", values)


@pytest.mark.slow
def test_tables_are_shown_merged_and_repaired(tmp_path: Path) -> None:
    with LocalNode({"http.listener": "http://127.0.0.1:0"}, data_dir=str(tmp_path / "data")) as node:
        ottla = CommandLine(node.bootstrap_servers)
        assert ottla.ok("tables", "list", "--json").json == []
        assert "no topic has a table: `ottla topics create" in ottla.ok("tables", "list").err
        ottla.ok("topics", "create", "plain")
        settings = ("--config", "table.format=iceberg", "--config", "table.freshness.ms=100")
        ottla.ok("topics", "create", "orders", "--partitions", "1", *settings)
        ottla.ok("topics", "create", "later", "--config", "table.format=iceberg")  # in a minute
        assert "has no table yet: it has no records" in ottla("tables", "show", "later").err
        ottla.ok("topics", "delete", "later", "--yes")
        assert "--set table.format=iceberg" in ottla("tables", "show", "plain").err
        for number in range(3):
            produce(node, [b"x"] * 10)
            end = 10 * (number + 1)
            wait_until(
                lambda end=end: metric(node, "ottla_table_rows_total") == end, "the table is behind", 240
            )
        (listed,) = ottla.ok("tables", "list", "--json").json
        assert (listed["topic"], listed["table"]) == ("orders", "topics.orders")
        assert (listed["state"], listed["lag"], listed["rows"]) == ("complete", 0, 30)
        assert listed["files"] > 1
        assert "topics.orders" in ottla.ok("tables", "list").out
        shown = ottla.ok("tables", "show", "orders", "--json").json
        assert shown["offsets"] == shown["end_offsets"] == {"0": 30}
        assert "timestamptz" in ottla.ok("tables", "show", "orders").out
        assert ottla.ok("tables", "compact", "orders", "--json").json["files"] == 1
        expired = ottla.ok("tables", "expire", "orders", "--keep", "1", "--json").json
        assert expired["expired"] > 1
        assert expired["removed"] == 0  # they are too young
        repaired = ottla.ok("tables", "repair", "orders", "--json").json
        assert (repaired["rows"], repaired["duplicates"], repaired["needs_repair"]) == (30, 0, False)
        ended = ottla("tables", "show", "order")
        assert ended.status == 1
        assert "does not exist" in ended.err
        assert "did you mean orders" in ended.err
        ended = ottla("tables", "list", "--catalog", f"warehouse={tmp_path}/none")
        assert "there is no catalog" in ended.err
        ended = ottla("tables", "list", "--catalog", "url=http://localhost")
        assert ended.status == 2
        assert "--catalog url: there is no setting url; did you mean uri?" in ended.err
        ended = ottla("topics", "create", "other", "--config", "table.fromat=iceberg")
        assert "Unknown topic config name: table.fromat; did you mean table.format?" in ended.err
        for args in (
            ("alter", "--set", "table.fromat=iceberg"),
            ("alter", "--delete", "table.fromat"),
            ("describe", "table.fromat"),
        ):
            ended = ottla("configs", *args, "--topic", "plain")
            assert "there is no setting table.fromat; did you mean table.format" in ended.err
        ottla.ok("configs", "alter", "--topic", "orders", "--set", "table.format=none")
        (listed,) = ottla.ok("tables", "list", "--json").json
        assert listed["state"] == "stopped"


@pytest.mark.slow
def test_whoever_asks_sees_why_a_table_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    settings = {"table.catalog.warehouse": str(tmp_path / "file" / "tables")}
    with LocalNode(settings, data_dir=str(tmp_path / "data")) as node:
        ottla = CommandLine(node.bootstrap_servers)
        ottla.ok("topics", "create", "orders", "--partitions", "1", "--config", "table.format=iceberg")

        def state() -> str:
            (listed,) = ottla.ok("tables", "list", "--json").json
            return f"{listed['state']}: {listed['reason']}"

        assert state() == "waiting for records: None"
        # The first look, at an empty topic, is over when the next one has a time.
        wait_until(lambda: "due in" in ottla(*STATUS).out, "the broker has not begun", 240)
        produce(node, [b"x"])
        assert re.fullmatch(r"not kept yet: its next commit is due in \d+ s", state())
        ottla.ok("configs", "alter", "--topic", "orders", "--set", "table.freshness.ms=100")
        wait_until(lambda: "Not a directory" in state(), "the failure is not shown", 240)
        listed = ottla.ok("tables", "list")
        assert "orders is not kept yet: NotADirectoryError" in listed.err
        assert "the next attempt is" in listed.err
        ended = ottla("tables", "show", "orders")
        assert ended.status == 1
        assert "topic orders has no table yet: NotADirectoryError" in ended.err
        # It is no setting: it is not listed, and cannot be set.
        assert "table.status" not in ottla.ok("configs", "describe", "--topic", "orders", "--all").out
        ended = ottla("configs", "alter", "--topic", "orders", "--set", "table.status=x")
        assert ended.status == 1
        assert "table.status" in ended.err
        (tmp_path / "file").unlink()
        wait_until(lambda: state() == "complete: None", "the table is not kept", 240)


@pytest.mark.slow
def test_partitions_without_a_leader_are_named(tmp_path: Path) -> None:
    with LocalCluster(nodes=3, data_dir=str(tmp_path / "cluster")) as cluster:
        ottla = CommandLine(cluster.bootstrap_servers)
        replicas = ",".join(["2", *["1"] * 12])
        ottla.ok("topics", "create", "orders", "--replica-assignment", replicas, "-c", "table.format=iceberg")
        # It is a member of the cluster for a while, and the first that would be asked for its settings.
        cluster.kill(1)

        states: list[str] = []

        def is_shown() -> bool:
            ended = ottla("tables", "list", "--json", "--timeout", "5")
            # The broker that is asked may not know the topic yet.
            listed = ended.json if ended.out else []
            states.append(f"{listed[0]['state']}: {listed[0]['reason']}" if listed else ended.err)
            return states[-1].startswith("not kept yet: ") and shown in states[-1]

        shown = "partition 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 2 more: it has no leader"
        assert came_true(is_shown, 240), states
