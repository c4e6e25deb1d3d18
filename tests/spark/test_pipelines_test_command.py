"""`ottla pipeline test` as a user runs it: a new project, a case with windows, a case that fails, a kill."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.spark.test_pipelines import Pipeline

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

WINDOWS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()
BROKERS = spark.conf.get("ottla.bootstrap.servers")
dp.create_sink("minutes", "ottla", {"kafka.bootstrap.servers": BROKERS, "topic": "per-minute"})


@dp.append_flow(target="minutes")
def count_minutes():
    return (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", BROKERS)
        .option("subscribe", "first.orders")
        .option("startingOffsets", "earliest")
        .load()
        .withWatermark("timestamp", "10 seconds")
        .groupBy(F.window("timestamp", "1 minute"))
        .count()
        .select(F.to_json(F.struct(F.col("window.start").alias("minute"), "count")).alias("value"))
    )
"""
CASES = """
def test_windows_close_when_event_time_has_passed(pipeline):
    pipeline.send("first.orders", [{"value": "x", "timestamp": "2026-01-31T12:00:10Z"}] * 3)
    pipeline.run()
    pipeline.expect_topic("per-minute", [])
    pipeline.send("first.orders", [{"value": "x", "timestamp": "2026-01-31T12:30:00Z"}])
    pipeline.run()
    pipeline.expect_topic("per-minute", [{"value": {"minute": "2026-01-31T12:00:00.000Z", "count": 3}}])


def test_wrong(pipeline):
    pipeline.send("first.orders", [{"value": {"number": 1, "item": "tea", "cents": 5000}}])
    pipeline.run()
    pipeline.expect_table("turnover", [{"item": "tea", "orders": 2}])
"""


def test_cases_pass_fail_and_survive_a_kill(tmp_path: Path) -> None:
    Pipeline(tmp_path, "").ok("init", "first")
    pipeline = Pipeline(tmp_path / "first", "")
    (pipeline.directory / "transformations" / "minutes.py").write_text(WINDOWS)
    spec = pipeline.directory / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace('first.large-orders:2"', 'first.large-orders:2, per-minute"'))
    (pipeline.directory / "tests" / "test_more.py").write_text(CASES)
    ended = pipeline("test", "--kill-at", "driver-batch-decided", "--junit", "report.xml")
    assert ended.returncode == 1, ended.stderr
    cases = ElementTree.parse(pipeline.directory / "report.xml").getroot()[0]
    results = {case.get("name", ""): [each.tag for each in case] for case in cases}
    assert results == {
        "large_orders": [],
        "large_orders, killed at driver-batch-decided of count_minutes": ["skipped"],
        "large_orders, killed at driver-batch-decided of find_large_orders": [],
        "test_more::test_windows_close_when_event_time_has_passed": [],
        "test_more::test_windows_close_when_event_time_has_passed, "
        "killed at driver-batch-decided of count_minutes": [],
        "test_more::test_windows_close_when_event_time_has_passed, "
        "killed at driver-batch-decided of find_large_orders": ["skipped"],
        "test_more::test_wrong": ["failure"],
    }, ended.stdout
    assert "table turnover: 1 missing, 1 unexpected, of 1 rows that are there" in ended.stdout
    assert "first: 4 passed, 1 failed, 2 skipped" in ended.stderr
    assert not (pipeline.directory / "spark-warehouse").exists()
    assert not (pipeline.directory / "pipeline-storage").exists()
