"""A project and a plain program, as users run them, on a master and two workers of Spark's own cluster."""

from __future__ import annotations

import os
import shutil
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


def submit(cluster: StandaloneCluster, driver_path: str, *arguments: str) -> None:
    """Run `spark-submit` as a user does, with a PYTHONPATH for the driver."""
    environment = dict(os.environ) | {"PYTHONPATH": driver_path, "SPARK_LOCAL_IP": "127.0.0.1"}
    for name in ("SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        environment.pop(name, None)
    prepare_environment(environment)
    command = [str(Path(environment["SPARK_HOME"]) / "bin" / "spark-submit"), "--master", cluster.url]
    for setting in ("spark.driver.host=127.0.0.1", "spark.executor.memory=512m", "spark.ui.enabled=false"):
        command += ["--conf", setting]
    ended = subprocess.run(
        [*command, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS * 4,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-6000:]


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
    there = ("--conf", f"spark.executorEnv.PYTHONPATH={source}")
    submit(standalone, source, *there, str(program), node.bootstrap_servers, str(tmp_path / "checkpoint"))
    assert sorted(values(node.bootstrap_servers, "shipped-copy", 10)) == list(range(10))


@pytest.mark.exhaustive
def test_a_plain_program_brings_its_packages_in_an_archive(
    standalone: StandaloneCluster, node: SparkNode, producer: Producer, admin: Admin, tmp_path: Path
) -> None:
    """As docs/spark/deploy.md says: packages in an archive, and modules of the program by `--py-files`."""
    import ottla

    for topic in ("archived", "archived-copy"):
        admin.topics.create(topic, partitions=2)
    for number in range(10):
        producer.send("archived", str(number).encode())
    packages, unwanted = tmp_path / "packages", shutil.ignore_patterns("__pycache__", "*.c", "*.pyx", "*.pxi")
    for name in ("ottla", "pyspark_ottla"):
        shutil.copytree(Path(ottla.__file__).parents[1] / name, packages / name, ignore=unwanted)
    archive = shutil.make_archive(str(packages), "zip", packages)
    (tmp_path / "shop.py").write_text("def doubled(value):\n    return str(int(value) * 2).encode()\n")
    (tmp_path / "program.py").write_text(ARCHIVED)
    places = tmp_path / "places"
    submit(
        standalone,
        str(packages),
        *("--archives", f"{archive}#packages", "--py-files", str(tmp_path / "shop.py")),
        *("--conf", "spark.executorEnv.PYTHONPATH=./packages"),
        *(str(tmp_path / "program.py"), node.bootstrap_servers, str(tmp_path / "checkpoint"), str(places)),
    )
    assert sorted(values(node.bootstrap_servers, "archived-copy", 10)) == [2 * n for n in range(10)]
    # The executors have the package from the archive that was sent to them.
    works = tuple(str(standalone.work_of(host)) for host in HOSTS)
    assert all(place.startswith(works) for place in places.read_text().splitlines())


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

ARCHIVED = """\
import os, sys
from pyspark.sql import SparkSession, functions as F
import shop

brokers, checkpoint, places = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()

def place(_):
    import ottla
    yield os.path.abspath(ottla.__file__)

with open(places, "w") as file:
    file.write("\\n".join(spark.sparkContext.parallelize(range(4), 4).mapPartitions(place).collect()))
doubled = F.udf(lambda value: shop.doubled(value), "binary")
source = spark.readStream.format("ottla").option("kafka.bootstrap.servers", brokers)
rows = source.option("subscribe", "archived").option("startingOffsets", "earliest").load()
rows = rows.select(doubled("value").alias("value"))
sink = rows.writeStream.format("ottla").option("kafka.bootstrap.servers", brokers)
sink = sink.option("topic", "archived-copy").option("checkpointLocation", checkpoint)
sink.trigger(availableNow=True).start().awaitTermination()
spark.stop()
"""
