"""What `ottla pipeline` does with a project, on the Spark that the tests share. As a user runs it, in
processes here and on a cluster, is in `test_cluster.py`.
"""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest

from ottla.client.blocking import Admin, Producer
from tests.support.spark_pipelines import Pipeline, WarmPipeline, order

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.mark.exhaustive
def test_a_table_with_capitals_in_its_name_goes_on(
    warm_pipeline: Callable[[str], WarmPipeline], admin: Admin, producer: Producer
) -> None:
    """Spark's catalog has it in small letters, its checkpoint as the definitions do."""
    pipeline = warm_pipeline("capitals")
    pipeline.change("orders.py", "def orders()", "def rawOrders()")
    pipeline.change("large_orders.py", 'table("orders")', 'table("rawOrders")')
    pipeline.change("turnover.sql", "FROM orders", "FROM rawOrders")
    admin.topics.create("capitals.orders", partitions=2)
    producer.send("capitals.orders", order(1, 100))
    pipeline.run()
    assert [row["number"] for row in pipeline.table("raworders")] == [1]
    producer.send("capitals.orders", order(2, 100))
    pipeline.run("--full-refresh", "RAWORDERS", "--full-refresh", "LARGE_orders")
    assert len(pipeline.table("raworders")) == 2
    assert '"number":2' in pipeline("show", "rawOrders", "--json").stdout
    producer.send("capitals.orders", order(3, 100))
    pipeline.run("--continuous", "--runs", "2", "--interval", "0")
    assert [row["orders"] for row in pipeline.table("turnover")] == [3]


@pytest.mark.parametrize(
    ("arguments", "change", "complaint"),
    [
        (("dry-run", "--embedded"), ('"order.number is not', '"order.nunber is not'), ".*nunber"),
        pytest.param(
            ("run", "-b"),
            ("first.orders", "second.orders"),
            ".*second.orders",
            marks=pytest.mark.exhaustive,
        ),
    ],
    ids=["a column that does not exist", "a topic that does not exist"],
)
def test_a_flow_that_fails_is_named_and_the_command_fails(
    warm_pipeline: Callable[[str], WarmPipeline],
    arguments: tuple[str, ...],
    change: tuple[str, str],
    complaint: str,
) -> None:
    pipeline = warm_pipeline("first")
    pipeline.change("orders.py", *change)
    spec = pipeline.directory / "spark-pipeline.yml"
    spec.write_text(spec.read_text() + '  spark.sql.pipelines.maxFlowRetryAttempts: "0"\n')
    ended = pipeline(*arguments, *((pipeline.bootstrap,) if "-b" in arguments else ()))
    assert ended.returncode == 1, ended.stderr
    assert re.search(f"ottla: flow orders failed: {complaint}", ended.stderr), ended.stderr
    assert "Traceback" not in ended.stderr
    if "--embedded" in arguments:
        assert "node: 127.0.0.1:" in ended.stderr
        assert (pipeline.directory / ".ottla" / "node" / "meta.properties").exists()


def test_a_run_that_is_terminated_stops_its_node(new_pipeline: Callable[[str], Pipeline]) -> None:
    pipeline = new_pipeline("first")
    command = [sys.executable, "-m", "ottla", "pipeline", "run", "--embedded", "--continuous"]
    with subprocess.Popen(command, cwd=pipeline.directory, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        match = re.match(r"node: 127\.0\.0\.1:(\d+),", line)
        assert match, line
        process.terminate()
        # By SIGINT if the interrupt met Python in `exec` of a text, as dataclasses do: 130 in a shell too.
        assert process.wait(300) in (130, -signal.SIGINT)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(match[1]))) != 0
