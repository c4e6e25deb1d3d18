"""What people do to tables while brokers keep them."""

from __future__ import annotations

import threading
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from ottla.cli.main import main
from ottla.tables.catalog import open_catalog
from ottla.tables.settings import CatalogSettings
from ottla.testing.local_node import LocalNode
from tests.support.java_driver import JavaDriver
from tests.support.table_metrics import metric
from tests.support.waiting import wait_until
from tests.tables.test_table_keeper import HTTP, TABLE, assert_same, create, produce

pytestmark = pytest.mark.slow

CONFIGS = "kafka.admin.ConfigCommand"
TOPICS = "org.apache.kafka.tools.TopicCommand"


def test_commands_at_once_and_a_table_that_is_dropped(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with LocalNode(HTTP | {"table.maintenance.interval.ms": "1000"}, data_dir=data) as node:
        create(node.bootstrap_servers, partitions=1)
        for number in range(1, 5):
            produce(node.bootstrap_servers, [b"x"] * 20)
            wait_until(lambda n=number: metric(node, "ottla_table_rows_total") == 20 * n, "it is behind", 240)
        ended: list[int] = []

        def run(*args: str) -> None:
            ended.append(main(["tables", *args, "-b", node.bootstrap_servers]))

        commands = [("compact", "orders")] * 2 + [("repair", "orders")] * 2 + [("expire", "orders")]
        threads = [threading.Thread(target=run, args=each) for each in commands]
        # The output is that of the process, so it is redirected once for all of them.
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()) as errors:
            for thread in threads:
                thread.start()
            produce(node.bootstrap_servers, [b"y"] * 20)
            for thread in threads:
                thread.join(240)
        said = errors.getvalue()
        assert len(ended) == 5
        assert len([status for status in ended if status]) <= said.count("try again"), (ended, said)
        assert "Traceback" not in said
        assert_same(node.bootstrap_servers, f"{data}-tables", 100)
        # Nothing new comes, and it is there again.
        open_catalog(CatalogSettings(warehouse=f"{data}-tables")).drop_table(("topics", "orders"))
        assert_same(node.bootstrap_servers, f"{data}-tables", 100)


@pytest.mark.kafka
def test_tools_of_apache_kafka_set_and_show_what_a_table_is_like(
    tmp_path: Path, java_driver: JavaDriver
) -> None:
    data = str(tmp_path / "data")
    with LocalNode(HTTP, data_dir=data) as node:
        at = ("--bootstrap-server", node.bootstrap_servers)
        java_driver.tool(TOPICS, *at, "--create", "--topic", "orders", "--partitions", "1")
        topic = ("--entity-type", "topics", "--entity-name", "orders")
        produce(node.bootstrap_servers, [b"1"] * 10)
        settings = ",".join(f"{name}={value}" for name, value in TABLE.items())
        java_driver.tool(CONFIGS, *at, "--alter", *topic, "--add-config", settings)
        assert_same(node.bootstrap_servers, f"{data}-tables", 10)
        assert "table.format=iceberg" in java_driver.tool(CONFIGS, *at, "--describe", *topic).out
        refused = java_driver.tool(
            CONFIGS, *at, "--alter", *topic, "--add-config", "table.mode=latest", check=False
        )
        assert "table.mode=latest needs cleanup.policy=compact" in refused.text
        java_driver.tool(CONFIGS, *at, "--alter", *topic, "--delete-config", "table.format")
        wait_until(lambda: metric(node, "ottla_table_rows_total") is None, "the table is still kept", 240)
