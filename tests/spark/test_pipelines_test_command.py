"""`ottla pipeline test`, expectations, `ottla trace` and `ottla pipeline replay` as a user runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from ottla.client.blocking import Admin, Producer
from ottla.testing.local_node import LocalNode
from tests.spark.conftest import SparkNode
from tests.support.spark_pipelines import Pipeline, WarmPipeline, order, traced, values

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]

warm_and_cold = pytest.mark.parametrize(
    "kind", ["warm_pipeline", pytest.param("new_pipeline", marks=pytest.mark.exhaustive)]
)

CASES = """
def test_wrong(pipeline):
    pipeline.send("first.orders", [{"value": {"number": 1}}])
    pipeline.expect_topic("first.orders", [{"value": {"number": 2}}])
"""


@warm_and_cold
def test_cases_pass_fail_and_survive_a_kill(kind: str, request: pytest.FixtureRequest) -> None:
    """The run that is killed has a process of its own in any case."""
    pipeline: Pipeline = request.getfixturevalue(kind)("first")
    (pipeline.directory / "tests" / "test_more.py").write_text(CASES)
    ended = pipeline("test", "--kill-at", "driver-batch-decided", "--junit", "report.xml")
    assert ended.returncode == 1, ended.stderr
    cases = ElementTree.parse(pipeline.directory / "report.xml").getroot()[0]
    results = {case.get("name", ""): [each.tag for each in case] for case in cases}
    assert results == {
        "large_orders": [],
        "large_orders, killed at driver-batch-decided of find_large_orders": [],
        "test_more::test_wrong": ["failure"],
    }, ended.stdout
    assert "topic first.orders: 1 missing, 1 unexpected, of 1 rows that are there" in ended.stdout
    assert "first: 2 passed, 1 failed" in ended.stderr
    for text in ("starting Spark on ", "playing large_orders\n", "playing large_orders, killed at"):
        assert text in ended.stderr
    assert not (pipeline.directory / "spark-warehouse").exists()
    assert not (pipeline.directory / "pipeline-storage").exists()


WINDOWS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()
BROKERS = spark.conf.get("ottla.bootstrap.servers")
dp.create_sink("per_minute", "ottla", {"kafka.bootstrap.servers": BROKERS, "topic": "per-minute"})


@dp.append_flow(target="per_minute")
def count_clicks():
    clicks = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", BROKERS)
        .option("subscribe", "clicks")
        .option("startingOffsets", "earliest")
        .load()
    )
    minutes = clicks.withWatermark("timestamp", "10 seconds").groupBy(F.window("timestamp", "1 minute"))
    start = F.date_format("window.start", "yyyy-MM-dd'T'HH:mm:ssXXX").alias("minute")
    return minutes.count().select(F.to_json(F.struct(start, F.col("count").alias("clicks"))).alias("value"))
"""
WINDOWS_CASE = """
steps:
  - send: {clicks: [{value: a, timestamp: 2026-01-31T12:00:10Z}]}
    expect: {topics: {per-minute: []}}
  - send: {clicks: [{value: b, timestamp: 2026-01-31T12:30:00Z}]}
    expect: {topics: {per-minute: [{value: {minute: 2026-01-31T12:00:00Z, clicks: 1}}]}}
"""


@pytest.mark.exhaustive
def test_windows_close_by_the_time_of_the_records(warm_pipeline: Callable[[str], WarmPipeline]) -> None:
    pipeline = warm_pipeline("second")
    pipeline.define("clicks.py", WINDOWS, cases={"windows.yml": WINDOWS_CASE})
    pipeline.create_topics("clicks:2, per-minute")
    assert "second: 1 passed" in pipeline.ok("test")


VALIDATE = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from ottla.spark.expectations import expect_or_dead_letter, expect_or_drop, source_record

spark = SparkSession.active()
BROKERS = spark.conf.get("ottla.bootstrap.servers")
OPTIONS = {"kafka.bootstrap.servers": BROKERS, "topic": "valid", "lineageTopic": "lineage"}
dp.create_sink("valid", "ottla", OPTIONS)


@dp.append_flow(target="valid")
@expect_or_dead_letter("is an order", "order.number is not null", topic="dead")
@expect_or_drop("costs something", "order.number is null or order.cents > 0")
def validate():
    records = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", BROKERS)
        .option("subscribe", "third.orders")
        .option("startingOffsets", "earliest")
        .load()
    )
    order = F.from_json(F.col("value").cast("string"), "number long, cents long")
    rows = records.select(source_record(), order.alias("order"))
    return rows.select("*", F.to_json("order").alias("value"))


@dp.materialized_view
@expect_or_drop("is small", "id < 3")
def numbers():
    return spark.range(5)
"""


def test_a_batch_is_traced_and_replayed_and_its_bad_rows_are_set_aside(
    warm_pipeline: Callable[[str], WarmPipeline], node: SparkNode
) -> None:
    trace_and_replay(warm_pipeline("third"), {"bootstrap.servers": node.bootstrap_servers})


@pytest.fixture
def secured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """A node that asks for a login over TLS, whose settings the commands take from a file."""
    with LocalNode(security="SASL_SSL") as node:
        file = tmp_path / "client.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in node.client_settings.items()))
        monkeypatch.setenv("OTTLA_COMMAND_CONFIG", str(file))
        yield {"bootstrap.servers": node.bootstrap_servers, **node.client_settings}


@pytest.mark.exhaustive
def test_on_a_secured_node_a_batch_is_traced_and_replayed(secured: dict[str, str], tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path / "third", secured["bootstrap.servers"])
    pipeline.create()
    assert trace_and_replay(pipeline, secured)["code_version"]


def trace_and_replay(pipeline: Pipeline, client: dict[str, str]) -> dict[str, Any]:
    """Run a project twice, and again over what its last batch has read; returns the trace of that."""
    pipeline.define("validate.py", VALIDATE)
    pipeline.create_topics("third.orders:2, valid:2, dead:2")
    with Admin(client) as admin:
        admin.topics.create("third.orders", partitions=2)
    for batch in range(2):
        with Producer(client) as producer:
            for value in (order(batch * 10 + 1, 100), b"rubbish", order(batch * 10 + 2, -5)):
                producer.send("third.orders", value, partition=0)
        said = pipeline.run()
        assert "'costs something': 1 of 3 dropped" in said
        assert "'is an order': 1 of 2 dead letters" in said
        assert "'is small': 2 of 5 dropped" in said
    assert sorted(record["number"] for record in values(client, "valid", 2)) == [1, 11]

    found = traced(pipeline.bootstrap, "valid", "--lineage-topic", "lineage")
    (first, last) = sorted(found, key=lambda each: each["inputs"][0]["end"])
    assert first["inputs"][0]["end"] == 3
    assert last["inputs"] == [{"topic": "third.orders", "partition": 0, "start": 3, "end": 6}]
    assert last["flow"] == "validate"

    pipeline.change("validate.py", "order.cents > 0", "order.cents < 0")
    place = [str(last[name]) for name in ("topic", "partition", "offset")]
    where = ("--lineage-topic", "lineage", "-b", pipeline.bootstrap)
    said = pipeline.ok("replay", *place, "--into", "side", *where)
    assert "3 records of third.orders-0" in said
    assert [record["number"] for record in values(client, "side", 1)] == [12]
    assert sorted(record["number"] for record in values(client, "valid", 2)) == [1, 11]
    return last
