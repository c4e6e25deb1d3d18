"""A pipeline on a cluster: a master and two workers of Spark's standalone mode, from pip's PySpark."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.client.blocking import Admin, Producer
from ottla.spark.session import prepare_environment
from ottla.testing.local_node import LocalNode
from tests.spark.test_pipelines import Pipeline, order, values
from tests.support.effort import THOROUGH

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SECONDS = 120


class Cluster:
    """Spark's own daemons, in the foreground of processes that end with the test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._environment = dict(os.environ) | {"SPARK_LOCAL_IP": "127.0.0.1"}
        prepare_environment(self._environment)
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def start(self) -> None:
        port, web = free_port(), free_port()
        self.url = f"spark://127.0.0.1:{port}"
        self._daemon("master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(web))
        self._wait_for("master.Master", "I have been elected leader")
        for number in (1, 2):
            work = str(self.directory / f"work-{number}")
            limits = ("--cores", "1", "--memory", "1g", "--webui-port", "0")
            self._daemon("worker.Worker", "--host", "127.0.0.1", "--work-dir", work, *limits, self.url)
        self._wait_for("worker.Worker", "Successfully registered with master", times=2)

    def _daemon(self, name: str, *arguments: str) -> None:
        program = Path(self._environment["SPARK_HOME"]) / "bin" / "spark-class"
        with (self.directory / f"{name}.log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    [str(program), f"org.apache.spark.deploy.{name}", *arguments],
                    env=self._environment,
                    stdout=log,
                    stderr=log,
                )
            )

    def _wait_for(self, name: str, text: str, *, times: int = 1) -> None:
        log = self.directory / f"{name}.log"
        deadline = time.monotonic() + SECONDS
        while log.read_text().count(text) < times:
            assert time.monotonic() < deadline, f"{name} did not say {text!r}:\n{log.read_text()[-2000:]}"
            assert all(process.poll() is None for process in self._processes), log.read_text()[-2000:]
            time.sleep(0.1)

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def test_the_same_pipeline_runs_on_a_cluster(
    cluster: Cluster, node: LocalNode, producer: Producer, admin: Admin, tmp_path: Path
) -> None:
    Pipeline(tmp_path, node.bootstrap_servers).ok("init", "clustered")
    pipeline = Pipeline(tmp_path / "clustered", node.bootstrap_servers)
    admin.topics.create("clustered.orders", partitions=2)
    for number in range(100):
        producer.send("clustered.orders", order(number, 100 * number), partition=number % 2)
    settings = ("spark.driver.host=127.0.0.1", "spark.executor.memory=512m")
    confs = [part for setting in settings for part in ("--conf", setting)]
    said = pipeline.ok("run", "-b", pipeline.bootstrap, "--master", cluster.url, *confs)
    assert f"on {cluster.url} is ready" in said
    assert "orders: completed, 100 rows" in said
    assert len(pipeline.table("orders")) == 99  # an order of nothing is none
    large = values(pipeline.bootstrap, "clustered.large-orders", 50)
    assert sorted(record["number"] for record in large) == list(range(50, 100))
    # Tasks ran in executors of both workers, and not in the driver.
    for number in (1, 2):
        assert any((cluster.directory / f"work-{number}").glob("app-*/*/stderr"))


@pytest.mark.skipif(not THOROUGH, reason="a minute more; OTTLA_THOROUGH=1 runs it")
def test_a_plain_program_takes_its_package_along(
    cluster: Cluster, node: LocalNode, producer: Producer, admin: Admin, tmp_path: Path
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
    submit = [str(Path(environment["SPARK_HOME"]) / "bin" / "spark-submit"), "--master", cluster.url]
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
