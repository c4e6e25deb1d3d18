"""A project and a plain program, as users run them, on a master and two workers of Spark's own cluster."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ottla.client.blocking import Admin, Producer
from ottla.spark.session import prepare_environment
from tests.spark.conftest import SparkNode
from tests.support.spark_pipelines import Pipeline, order, traced, values
from tests.support.spark_standalone import CORES, HOSTS, SHORT_LIVED, StandaloneCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SECONDS = 120


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


def test_a_new_project_runs_on_a_cluster(
    node: SparkNode, admin: Admin, producer: Producer, standalone: StandaloneCluster, tmp_path: Path
) -> None:
    assert "cd first && ottla pipeline run" in Pipeline(tmp_path, "").ok("init", "first")
    pipeline = Pipeline(tmp_path / "first", node.bootstrap_servers)
    admin.topics.create("first.orders", partitions=2)
    sent = [b"rubbish", *(order(number, 100 * number) for number in range(100))]
    for number, value in enumerate(sent):
        producer.send("first.orders", value, partition=number % 2)
    before = {host: executors(standalone, host) for host in HOSTS}
    said = pipeline.run("--master", standalone.url, *ON_A_CLUSTER)
    places = [
        said.index(text)
        for text in ("starting Spark on ", f"on {standalone.url} is ready", "reading the definitions")
    ]
    assert places == sorted(places)
    assert "first: run complete, 3 flows" in said
    assert " s with the start of Spark" in said
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
def test_a_plain_program_takes_its_package_along(
    standalone: StandaloneCluster, node: SparkNode, producer: Producer, admin: Admin, tmp_path: Path
) -> None:
    """As docs/spark/deploy.md says: PYTHONPATH for the driver, and another for the executors."""
    import ottla

    for topic in ("shipped", "shipped-copy"):
        admin.topics.create(topic, partitions=2)
    for number in range(10):
        producer.send("shipped", str(number).encode())
    source = str(Path(ottla.__file__).parents[1])
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = dict(os.environ) | {"PYTHONPATH": source, "SPARK_LOCAL_IP": "127.0.0.1"}
    prepare_environment(environment)
    submit = [str(Path(environment["SPARK_HOME"]) / "bin" / "spark-submit"), "--master", standalone.url]
    for setting in (
        "spark.driver.host=127.0.0.1",
        "spark.executor.memory=512m",
        "spark.ui.enabled=false",
        f"spark.executorEnv.PYTHONPATH={source}",
    ):
        submit += ["--conf", setting]
    ended = subprocess.run(
        [*submit, str(program), node.bootstrap_servers, str(tmp_path / "checkpoint")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS * 2,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert sorted(values(node.bootstrap_servers, "shipped-copy", 10)) == list(range(10)), ended.stderr[-2000:]


PROGRAM = """\
import sys
from pyspark.sql import SparkSession

brokers, checkpoint = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
source = spark.readStream.format("ottla").option("kafka.bootstrap.servers", brokers)
rows = source.option("subscribe", "shipped").option("startingOffsets", "earliest").load()
sink = rows.select("value").writeStream.format("ottla").option("kafka.bootstrap.servers", brokers)
sink = sink.option("topic", "shipped-copy").option("checkpointLocation", checkpoint)
sink.trigger(availableNow=True).start().awaitTermination()
spark.stop()
"""
