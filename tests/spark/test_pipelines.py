"""What `ottla pipeline` does with a project: once as a user runs it, in processes here and on a cluster, and
for all that is not about a process on the Spark that the tests share.
"""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.client.blocking import Admin, Producer
from tests.spark.conftest import SparkNode
from tests.support.spark_pipelines import Pipeline, WarmPipeline, order, traced, values
from tests.support.spark_standalone import CORES, HOSTS, SHORT_LIVED, StandaloneCluster

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]

ON_A_CLUSTER = [
    part
    for setting in (
        "spark.driver.host=127.0.0.1",
        "spark.executor.memory=512m",
        f"spark.driver.extraJavaOptions={SHORT_LIVED}",
        f"spark.executor.extraJavaOptions={SHORT_LIVED}",
        # No task begins before both workers have started their executors.
        f"spark.cores.max={CORES * len(HOSTS)}",
        "spark.scheduler.minRegisteredResourcesRatio=1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime=120s",
    )
    for part in ("--conf", setting)
]


def executors(cluster: StandaloneCluster, host: str) -> int:
    """The number of executors that the worker of this host has started so far."""
    return len(list(cluster.work_of(host).glob("app-*/*/stderr")))


def test_a_new_project_goes_on_where_the_last_run_ended_and_on_a_cluster(
    node: SparkNode, producer: Producer, standalone: StandaloneCluster, tmp_path: Path
) -> None:
    assert "cd first && ottla pipeline run" in Pipeline(tmp_path, "").ok("init", "first")
    pipeline = Pipeline(tmp_path / "first", node.bootstrap_servers)
    said = pipeline.run()  # nothing is there yet
    assert "topic first.orders: created with 2 partitions" in said
    places = [said.index(text) for text in ("starting Spark on ", " is ready, ", "reading the definitions")]
    assert places == sorted(places)
    assert "first: run complete, 3 flows, 0 rows read" in said
    assert " s with the start of Spark" in said

    sent = [b"rubbish", *(order(number, 100 * number) for number in range(100))]
    for number, value in enumerate(sent):
        producer.send("first.orders", value, partition=number % 2)
    assert pipeline.status()["orders"]["lag"] == len(sent)
    before = {host: executors(standalone, host) for host in HOSTS}
    said = pipeline.run("--master", standalone.url, *ON_A_CLUSTER)
    assert f"on {standalone.url} is ready" in said
    assert f"orders: completed, {len(sent)} rows" in said
    assert pipeline.status()["orders"]["lag"] == 0
    assert sorted(row["number"] for row in pipeline.table("orders")) == list(range(1, 100))
    assert [row["orders"] for row in pipeline.table("turnover")] == [99]
    large = values(pipeline.bootstrap, "first.large-orders", 50)
    assert sorted(record["number"] for record in large) == list(range(50, 100))
    assert all(each["code_version"] for each in traced(pipeline.bootstrap, "first.large-orders"))
    # Tasks ran in executors of both workers, and not in the driver.
    for host in HOSTS:
        assert executors(standalone, host) > before[host]


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
        (("run", "-b"), ("first.orders", "second.orders"), ".*second.orders"),
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
