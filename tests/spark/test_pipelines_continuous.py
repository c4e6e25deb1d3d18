"""`ottla pipeline run --continuous` as a user runs it, and pipelines whose flows read each other's tables."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.client.blocking import Producer
from tests.support.spark_pipelines import SECONDS, Pipeline, Run, WarmPipeline, WarmSpark, order, values
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]

CHECKED = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()


@F.udf("long")
def checked(cents):
    if cents == 666:
        raise ValueError("an unlucky number")
    return cents


@dp.table
def checked_orders():
    return spark.readStream.table("orders").select("number", checked("cents").alias("cents"))
"""
# `withWatermark` on a table and on more than a table, `drop`, a join of both sides, a window; columns of the
# frame itself in `withColumn`.
WINDOWED = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()


@dp.table
def joined():
    left = spark.readStream.table("orders").withWatermark("arrived", "1 hour 30 minutes").drop("customer")
    right = (
        spark.readStream.table("orders")
        .select(F.col("number").alias("other"), F.col("arrived").alias("seen"))
        .withWatermark("seen", "2 hours")
    )
    near = F.expr("seen between arrived - interval 1 hour and arrived + interval 1 hour")
    return left.join(right, (left.number == right.other) & near).drop("seen")


@dp.table
def per_hour():
    orders = spark.readStream.table("orders").withWatermark("arrived", "10 minutes")
    return orders.groupBy(F.window("arrived", "1 hour"), "item").count()


@dp.table
def named():
    orders = spark.readStream.table("orders")
    doubled = orders.withColumn("cents", orders.cents * 2).withColumnRenamed("cents", "twice")
    return doubled.withColumns({"name": F.upper("item"), "day": F.to_date("arrived")})


@dp.materialized_view
def names():
    return spark.read.table("named").withColumn("one", F.lit(1)).groupBy("name").agg(F.sum("one"))
"""
FILLED = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()


@dp.table
def filled():
    return spark.readStream.table("orders").fillna(0)
"""


def is_made(directory: Path) -> bool:
    """Make a directory; False while there is a file, as the run writes its catalog after its tables."""
    with contextlib.suppress(FileExistsError):
        directory.mkdir()
        return True
    return False


def orders_counted(pipeline: Pipeline) -> int:
    return sum(row["orders"] for row in pipeline.table("turnover"))


def await_orders(pipeline: Pipeline, count: int) -> None:
    wait_until(
        lambda: orders_counted(pipeline) == count, f"turnover has no {count} orders", SECONDS, poll_s=0.2
    )


@pytest.mark.exhaustive
def test_flows_go_on_fail_alone_and_continue_in_the_next_run(
    new_pipeline: Callable[[str], Pipeline], warm_spark: WarmSpark, producer: Producer
) -> None:
    pipeline = new_pipeline("shop")
    pipeline.file("checked.py").write_text(CHECKED)
    with Run(pipeline, "--continuous") as run:
        run.wait_for("run complete")
        run.wait_for("checked_orders: running")
        producer.send_many("shop.orders", [order(number, 6_000) for number in range(10)])
        assert len(values(pipeline.bootstrap, "shop.large-orders", 10)) == 10
        await_orders(pipeline, 10)
        in_the_way = pipeline.directory / ".ottla" / "catalog.tmp"
        wait_until(lambda: is_made(in_the_way), f"{in_the_way} is a file", SECONDS)
        producer.send("shop.orders", order(10, 666))
        run.wait_for(r"turnover: failed, is computed again in .* s: .*catalog\.tmp")
        in_the_way.rmdir()
        await_orders(pipeline, 11)
        failed = run.wait_for("checked_orders: failed, starts again in 1 s")
        line = 1 + CHECKED.splitlines().index('        raise ValueError("an unlucky number")')
        assert f"transformations/checked.py, line {line}: ValueError: an unlucky number" in failed
        run.wait_for("checked_orders: failed, starts again in 2 s")
        producer.send("shop.orders", order(11, 7_000))
        assert len(values(pipeline.bootstrap, "shop.large-orders", 11)) == 11
        run.process.terminate()
        assert run.end() == 130
        assert "orders: stopped" in [line.partition(",")[0] for line in run.lines]
        assert not [line for line in run.lines if "Error" in line and "unlucky" not in line]
        assert not [line for line in run.lines if re.match("(orders|find_large_orders): failed", line)]
    pipeline.change("checked.py", "666", "-1")
    pipeline = WarmPipeline(pipeline.directory, pipeline.bootstrap, warm_spark)
    pipeline.run()
    assert sorted(row["number"] for row in pipeline.table("checked_orders")) == list(range(12))
    assert orders_counted(pipeline) == 12


@pytest.mark.exhaustive
def test_a_continuous_run_that_is_killed_continues_in_the_next_run(
    new_pipeline: Callable[[str], Pipeline], warm_spark: WarmSpark, producer: Producer
) -> None:
    pipeline = new_pipeline("killed")
    with Run(pipeline, "--continuous") as run:
        run.wait_for("find_large_orders: running")
        producer.send_many("killed.orders", [order(number, 8_000) for number in range(10)])
        wait_until(lambda: bool(pipeline.table("orders")), "no orders are in the table", SECONDS)
        run.kill()
    pipeline = WarmPipeline(pipeline.directory, pipeline.bootstrap, warm_spark)
    pipeline.run()
    large = values(pipeline.bootstrap, "killed.large-orders", 10)
    assert sorted(row["number"] for row in large) == list(range(10))
    assert orders_counted(pipeline) == 10


@pytest.mark.exhaustive
def test_watermarks_and_dropped_columns_on_tables_of_the_pipeline(
    warm_pipeline: Callable[[str], WarmPipeline], producer: Producer
) -> None:
    pipeline = warm_pipeline("hours")
    pipeline.file("windowed.py").write_text(WINDOWED)
    pipeline.ok("dry-run", "-b", pipeline.bootstrap)
    for first in (0, 5):
        producer.send_many("hours.orders", [order(number, 100) for number in range(first, first + 5)])
        pipeline.run()
    rows = pipeline.table("joined")
    assert sorted(row["number"] for row in rows) == list(range(10))
    assert set(rows[0]) == {"number", "item", "cents", "arrived", "other"}
    # Of this run, and not of the one before: Spark knew the tables when the second was defined.
    assert sorted(row["number"] for row in pipeline.table("named") if row["name"] == "TEA") == list(range(10))
    assert {row["twice"] for row in pipeline.table("named")} == {200}
    assert [list(row.values()) for row in pipeline.table("names")] == [["TEA", 10]]
    drawn = pipeline("graph").stdout
    assert "  └─ names (materialized view)" in drawn
    assert "─ joined (streaming table)" in drawn
    assert "─ per_hour (streaming table)" in drawn
    shown = pipeline("show", "turnover", "--json")
    assert json.loads(shown.stdout)["orders"] == 10, shown.stderr
    answer = pipeline("sql", "SELECT count(*) AS n FROM joined j JOIN orders o USING (number)", "--json")
    assert json.loads(answer.stdout) == {"n": 10}, answer.stderr
    assert answer.stderr.startswith("starting Spark on local")
    pipeline.file("windowed.py").write_text(FILLED)
    ended = pipeline("run", "-b", pipeline.bootstrap)
    assert ended.returncode == 4
    line = 1 + FILLED.splitlines().index("@dp.table")
    assert f"transformations/windowed.py, line {line}: flow filled: `fillna` on orders" in (ended.stderr)
