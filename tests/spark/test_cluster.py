"""A plain program on a cluster: a master and two workers of Spark's standalone mode, from pip's PySpark."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ottla.client.blocking import Admin, Producer
from ottla.spark.session import prepare_environment
from tests.spark.conftest import SparkNode
from tests.support.spark_pipelines import values
from tests.support.spark_standalone import StandaloneCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SECONDS = 120


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
