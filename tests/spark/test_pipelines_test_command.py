"""`ottla pipeline test`, expectations, `ottla trace` and `ottla pipeline replay` as a user runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from ottla.client.blocking import Producer
from ottla.testing.local_node import LocalNode
from tests.spark.test_pipelines import Pipeline, order, values

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CASES = """
def test_wrong(pipeline):
    pipeline.send("first.orders", [{"value": {"number": 1, "item": "tea", "cents": 5000}}])
    pipeline.run()
    pipeline.expect_table("turnover", [{"item": "tea", "orders": 2}])
"""


def test_cases_pass_fail_and_survive_a_kill(tmp_path: Path) -> None:
    Pipeline(tmp_path, "").ok("init", "first")
    pipeline = Pipeline(tmp_path / "first", "")
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
    assert "table turnover: 1 missing, 1 unexpected, of 1 rows that are there" in ended.stdout
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


def test_windows_close_by_the_time_of_the_records(tmp_path: Path) -> None:
    Pipeline(tmp_path, "").ok("init", "second")
    pipeline = Pipeline(tmp_path / "second", "")
    for unused in (*pipeline.directory.glob("transformations/*"), *pipeline.directory.glob("tests/*")):
        unused.unlink()
    (pipeline.directory / "transformations" / "clicks.py").write_text(WINDOWS)
    (pipeline.directory / "tests" / "windows.yml").write_text(WINDOWS_CASE)
    spec = pipeline.directory / "spark-pipeline.yml"
    spec.write_text(
        spec.read_text().replace("second.orders:2, second.large-orders:2", "clicks:2, per-minute")
    )
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


def test_a_batch_is_traced_and_replayed_on_a_secured_node_and_its_bad_rows_are_set_aside(
    tmp_path: Path,
) -> None:
    with LocalNode(security="SASL_SSL") as node:
        client = {"bootstrap.servers": node.bootstrap_servers, **node.client_settings}
        file = tmp_path / "client.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in node.client_settings.items()))
        with pytest.MonkeyPatch.context() as patch, Producer(client) as producer:
            patch.setenv("OTTLA_COMMAND_CONFIG", str(file))
            trace_and_replay(client, producer, tmp_path)


def trace_and_replay(client: dict[str, str], producer: Producer, tmp_path: Path) -> None:
    brokers = client["bootstrap.servers"]
    Pipeline(tmp_path, brokers).ok("init", "third")
    pipeline = Pipeline(tmp_path / "third", brokers)
    for unused in ("orders.py", "turnover.sql", "large_orders.py"):
        (pipeline.directory / "transformations" / unused).unlink()
    definition = pipeline.directory / "transformations" / "validate.py"
    definition.write_text(VALIDATE)
    spec = pipeline.directory / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("third.large-orders:2", "valid:2, dead:2"))
    pipeline.ok("run", "-b", brokers)
    for batch in range(2):
        for value in (order(batch * 10 + 1, 100), b"rubbish", order(batch * 10 + 2, -5)):
            producer.send("third.orders", value, partition=0)
        said = pipeline.ok("run", "-b", brokers)
        assert "'costs something': 1 of 3 dropped" in said
        assert "'is an order': 1 of 2 dead letters" in said
        assert "'is small': 2 of 5 dropped" in said
    assert sorted(record["number"] for record in values(client, "valid", 2)) == [1, 11]

    traced = [trace(brokers, "valid", partition, offset) for partition in (0, 1) for offset in range(4)]
    found = [each for each in traced if each is not None]
    assert sorted(each["inputs"][0]["start"] for each in found) == [0, 3]
    last = next(each for each in found if each["inputs"][0]["start"] == 3)
    assert last["inputs"] == [{"topic": "third.orders", "partition": 0, "start": 3, "end": 6}]
    assert last["flow"] == "validate"
    assert last["code_version"]

    definition.write_text(VALIDATE.replace("order.cents > 0", "order.cents < 0"))
    place = [str(last[name]) for name in ("topic", "partition", "offset")]
    said = pipeline.ok("replay", *place, "--into", "side", "--lineage-topic", "lineage", "-b", brokers)
    assert "3 records of third.orders-0" in said
    assert [record["number"] for record in values(client, "side", 1)] == [12]
    assert sorted(record["number"] for record in values(client, "valid", 2)) == [1, 11]


def trace(brokers: str, topic: str, partition: int, offset: int) -> dict[str, Any] | None:
    """What `ottla trace` finds; None for the end of a transaction, or no record."""
    command = [sys.executable, "-m", "ottla", "trace", topic, str(partition), str(offset)]
    command += ["--lineage-topic", "lineage", "-b", brokers, "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode in (0, 1), ended.stderr
    found: dict[str, Any] | None = json.loads(ended.stdout) if ended.returncode == 0 else None
    return found
