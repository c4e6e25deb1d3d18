"""`ottla pipeline run --continuous` as a user runs it, and pipelines whose flows read each other's tables."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ottla.client.blocking import Producer
from ottla.testing.local_node import LocalNode
from tests.spark.test_pipelines import SECONDS, Pipeline, order, values

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

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
# `withWatermark` on a table and on more than a table, `drop`, a join of both sides, a window.
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
"""
FILLED = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()


@dp.table
def filled():
    return spark.readStream.table("orders").fillna(0)
"""


@pytest.fixture
def new_pipeline(node: LocalNode, tmp_path: Path) -> Callable[[str], Pipeline]:
    def create(name: str) -> Pipeline:
        Pipeline(tmp_path, node.bootstrap_servers).ok("init", name)
        return Pipeline(tmp_path / name, node.bootstrap_servers)

    return create


class ContinuousRun:
    """The command in a process, and what it has said so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip())

    def all_lines(self) -> list[str]:
        """What it has said, once it has ended."""
        self._reader.join(SECONDS)
        return self.lines

    def wait_for(self, pattern: str) -> str:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            for line in list(self.lines):
                if re.search(pattern, line):
                    return line
            assert self.process.poll() is None, "\n".join(self.lines)
            time.sleep(0.1)
        raise AssertionError(f"{pattern} in\n" + "\n".join(self.lines))


@contextmanager
def continuous(pipeline: Pipeline) -> Iterator[ContinuousRun]:
    command = [sys.executable, "-m", "ottla", "pipeline", "run", "--continuous", "-b", pipeline.bootstrap]
    with subprocess.Popen(command, cwd=pipeline.directory, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield ContinuousRun(process)
        finally:
            if process.poll() is None:
                process.kill()


def wait_until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def is_made(directory: Path) -> bool:
    """Make a directory; False while there is a file, as the run writes its catalog after its tables."""
    with contextlib.suppress(FileExistsError):
        directory.mkdir()
        return True
    return False


def test_flows_go_on_fail_alone_and_continue_in_the_next_run(
    node: LocalNode, new_pipeline: Callable[[str], Pipeline]
) -> None:
    pipeline = new_pipeline("shop")
    (pipeline.directory / "transformations" / "checked.py").write_text(CHECKED)

    def turnover() -> int:
        return sum(row["orders"] for row in pipeline.table("turnover"))

    with Producer(node.bootstrap_servers) as producer:
        with continuous(pipeline) as run:
            run.wait_for("run complete")
            run.wait_for("checked_orders: running")
            producer.send_many("shop.orders", [order(number, 6_000) for number in range(10)])
            assert len(values(node.bootstrap_servers, "shop.large-orders", 10)) == 10
            wait_until(lambda: turnover() == 10)
            in_the_way = pipeline.directory / ".ottla" / "catalog.tmp"
            wait_until(lambda: is_made(in_the_way))
            producer.send("shop.orders", order(10, 666))
            run.wait_for(r"turnover: failed, is computed again in .* s: .*catalog\.tmp")
            in_the_way.rmdir()
            wait_until(lambda: turnover() == 11)
            failed = run.wait_for("checked_orders: failed, starts again in 1 s")
            line = 1 + CHECKED.splitlines().index('        raise ValueError("an unlucky number")')
            assert f"transformations/checked.py, line {line}: ValueError: an unlucky number" in failed
            run.wait_for("checked_orders: failed, starts again in 2 s")
            producer.send("shop.orders", order(11, 7_000))
            assert len(values(node.bootstrap_servers, "shop.large-orders", 11)) == 11
            run.process.terminate()
            assert run.process.wait(SECONDS) == 130
            lines = run.all_lines()
            assert "orders: stopped" in [line.partition(",")[0] for line in lines]
            assert not [line for line in lines if "Error" in line and "unlucky" not in line]
            assert not [line for line in run.lines if re.match("(orders|find_large_orders): failed", line)]
        (pipeline.directory / "transformations" / "checked.py").write_text(CHECKED.replace("666", "-1"))
        with continuous(pipeline) as run:
            run.wait_for("run complete")
            run.wait_for("find_large_orders: running")
            producer.send_many("shop.orders", [order(number, 8_000) for number in range(12, 22)])
            wait_until(lambda: len(pipeline.table("orders")) > 12)
            run.process.send_signal(signal.SIGKILL)
            run.process.wait(SECONDS)
    pipeline.ok("run", "-b", pipeline.bootstrap)
    numbers = [row["number"] for row in values(node.bootstrap_servers, "shop.large-orders", 21)]
    assert sorted(numbers) == [*range(10), *range(11, 22)]
    assert sorted(row["number"] for row in pipeline.table("checked_orders")) == list(range(22))
    assert turnover() == 22


def test_watermarks_and_dropped_columns_on_tables_of_the_pipeline(
    node: LocalNode, new_pipeline: Callable[[str], Pipeline]
) -> None:
    pipeline = new_pipeline("hours")
    (pipeline.directory / "transformations" / "windowed.py").write_text(WINDOWED)
    with Producer(node.bootstrap_servers) as producer:
        pipeline.ok("dry-run", "-b", pipeline.bootstrap)
        producer.send_many("hours.orders", [order(number, 100) for number in range(5)])
        pipeline.ok("run", "-b", pipeline.bootstrap)
        producer.send_many("hours.orders", [order(number, 100) for number in range(5, 10)])
        pipeline.ok("run", "-b", pipeline.bootstrap)
    rows = pipeline.table("joined")
    assert sorted(row["number"] for row in rows) == list(range(10))
    assert set(rows[0]) == {"number", "item", "cents", "arrived", "other"}
    drawn = pipeline("graph").stdout
    assert "─ joined (streaming table)" in drawn
    assert "─ per_hour (streaming table)" in drawn
    shown = pipeline("show", "turnover", "--json")
    assert json.loads(shown.stdout)["orders"] == 10, shown.stderr
    answer = pipeline("sql", "SELECT count(*) AS n FROM joined j JOIN orders o USING (number)", "--json")
    assert json.loads(answer.stdout) == {"n": 10}, answer.stderr
    assert answer.stderr.startswith("starting Spark on local")
    (pipeline.directory / "transformations" / "windowed.py").write_text(FILLED)
    ended = pipeline("run", "-b", pipeline.bootstrap)
    assert ended.returncode == 1
    line = 1 + FILLED.splitlines().index("@dp.table")
    assert f"transformations/windowed.py, line {line}: flow filled: `fillna` on orders" in (ended.stderr)
