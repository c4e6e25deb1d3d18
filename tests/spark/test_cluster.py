"""A pipeline on a cluster: a master and two workers of Spark's standalone mode, from pip's PySpark."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ottla.client.blocking import Admin, Producer
from ottla.spark.session import prepare_environment
from ottla.testing.local_node import LocalNode
from tests.spark.test_pipelines import Pipeline, order, values
from tests.support.effort import THOROUGH
from tests.support.spark_standalone import CORES, HOSTS, SHORT_LIVED, StandaloneCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SECONDS = 120


def executors(cluster: StandaloneCluster, host: str) -> int:
    """The number of executors that the worker of this host has started so far."""
    return len(list(cluster.work_of(host).glob("app-*/*/stderr")))


def test_the_same_pipeline_runs_on_a_cluster(
    standalone: StandaloneCluster, node: LocalNode, producer: Producer, admin: Admin, tmp_path: Path
) -> None:
    Pipeline(tmp_path, node.bootstrap_servers).ok("init", "clustered")
    pipeline = Pipeline(tmp_path / "clustered", node.bootstrap_servers)
    admin.topics.create("clustered.orders", partitions=2)
    for number in range(100):
        producer.send("clustered.orders", order(number, 100 * number), partition=number % 2)
    before = {host: executors(standalone, host) for host in HOSTS}
    settings = (
        "spark.driver.host=127.0.0.1",
        "spark.executor.memory=512m",
        f"spark.driver.extraJavaOptions={SHORT_LIVED}",
        f"spark.executor.extraJavaOptions={SHORT_LIVED}",
        # No task begins before both workers have started their executors.
        f"spark.cores.max={CORES * len(HOSTS)}",
        "spark.scheduler.minRegisteredResourcesRatio=1.0",
        f"spark.scheduler.maxRegisteredResourcesWaitingTime={SECONDS}s",
    )
    confs = [part for setting in settings for part in ("--conf", setting)]
    said = pipeline.ok("run", "-b", pipeline.bootstrap, "--master", standalone.url, *confs)
    assert f"on {standalone.url} is ready" in said
    assert "orders: completed, 100 rows" in said
    assert len(pipeline.table("orders")) == 99  # an order of nothing is none
    large = values(pipeline.bootstrap, "clustered.large-orders", 50)
    assert sorted(record["number"] for record in large) == list(range(50, 100))
    # Tasks ran in executors of both workers, and not in the driver.
    for host in HOSTS:
        assert executors(standalone, host) > before[host]


@pytest.mark.skipif(not THOROUGH, reason="a minute more; OTTLA_THOROUGH=1 runs it")
def test_a_plain_program_takes_its_package_along(
    standalone: StandaloneCluster, node: LocalNode, producer: Producer, admin: Admin, tmp_path: Path
) -> None:
    """As docs/spark/deploy.md says: PYTHONPATH for the driver, and another for the executors."""
    import ottla

    admin.topics.create("shipped", partitions=2)
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
