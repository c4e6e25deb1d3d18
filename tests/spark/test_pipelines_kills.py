"""`ottla pipeline run` killed at any point, started twice, on a full disk: the next run completes by itself.

One life runs with all tests; `make test-faults` runs PIPELINE_LIVES of them.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from ottla.client.blocking import Producer
from ottla.testing.local_node import LocalNode
from tests.spark.test_pipelines import Pipeline, order, values

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

LIVES = int(os.environ.get("PIPELINE_LIVES", "1"))
SEED = int(os.environ.get("PIPELINE_SEED", "1"))
ROWS = 20
RUN_SECONDS = 400
# Lines of the progress after which a run may be killed, a moment later.
MOMENTS = (
    "is ready",
    "orders: starting",
    "orders: running",
    "orders: completed",
    "turnover: starting",
    "turnover: running",
    "find_large_orders: starting",
    "find_large_orders: running",
    "turnover: completed",
    "find_large_orders: completed",
)
ADDED_VIEW = "CREATE MATERIALIZED VIEW biggest AS SELECT max(cents) AS cents FROM orders\n"
ADDED_TABLE = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()


@dp.table
def cheap_orders():
    return spark.readStream.table("orders").where("cents < 5000")
"""


@pytest.fixture
def new_pipeline(node: LocalNode, tmp_path: Path) -> Callable[[str], Pipeline]:
    def create(name: str) -> Pipeline:
        Pipeline(tmp_path, node.bootstrap_servers).ok("init", name)
        return Pipeline(tmp_path / name, node.bootstrap_servers)

    return create


def start(pipeline: Pipeline, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ottla", "pipeline", "run", "-b", pipeline.bootstrap, *arguments]
    return subprocess.Popen(command, cwd=pipeline.directory, stderr=subprocess.PIPE, text=True)


def run_and_kill(pipeline: Pipeline, moment: str, delay_s: float, *arguments: str) -> str:
    """Start a run, and kill its process with SIGKILL this long after a line; returns how it ended."""
    with start(pipeline, *arguments) as process:
        assert process.stderr is not None
        deadline = time.monotonic() + RUN_SECONDS
        for line in process.stderr:
            if moment in line:
                time.sleep(delay_s)
                break
            assert time.monotonic() < deadline
        process.kill()
        process.stderr.read()
    return "killed" if process.returncode == -signal.SIGKILL else f"ended with {process.returncode}"


def check(
    pipeline: Pipeline, name: str, sent: list[int], *, added: bool = False, refreshed: bool = False
) -> None:
    """What an undisturbed run gives, from what was sent. What follows on a table that was refreshed is
    written again.
    """
    found = [row["number"] for row in pipeline.table("orders")]
    assert sorted(found) == sent
    assert [row["orders"] for row in pipeline.table("turnover")] == [len(sent)]
    large = [number for number in sent if number % 2]
    written = [record["number"] for record in values(pipeline.bootstrap, f"{name}.large-orders", len(large))]
    assert sorted(set(written) if refreshed else written) == large
    if added:
        assert [row["cents"] for row in pipeline.table("biggest")] == [9_000]
        cheap = [row["number"] for row in pipeline.table("cheap_orders")]
        assert sorted(cheap) == [number for number in sent if not number % 2]


def send(producer: Producer, name: str, sent: list[int]) -> None:
    for number in range(len(sent), len(sent) + ROWS):
        producer.send(f"{name}.orders", order(number, 9_000 if number % 2 else 100))
        sent.append(number)


@pytest.mark.parametrize("life", range(LIVES))
def test_killed_runs_leave_a_project_that_completes(
    new_pipeline: Callable[[str], Pipeline], producer: Producer, life: int
) -> None:
    dice = random.Random(SEED * 1000 + life)
    name = f"life-{SEED}-{life}"
    pipeline = new_pipeline(name)
    sent: list[int] = []

    def kill(*arguments: str) -> None:
        moment, delay_s = dice.choice(MOMENTS), dice.choice([0.0, 0.0, 0.1, 0.4, 1.0])
        print(f"{name}: {run_and_kill(pipeline, moment, delay_s, *arguments)}, {delay_s} s after {moment!r}")

    kill()  # the first run
    send(producer, name, sent)
    kill()
    send(producer, name, sent)
    if dice.random() < 0.5:
        pipeline.ok("run", "-b", pipeline.bootstrap)
        check(pipeline, name, sent)
    added = dice.random() < 0.7
    if added:
        (pipeline.directory / "transformations" / "biggest.sql").write_text(ADDED_VIEW)
        (pipeline.directory / "transformations" / "cheap.py").write_text(ADDED_TABLE)
        kill()  # a run that adds tables
    refreshed = not added and dice.random() < 0.5
    if refreshed:
        kill("--full-refresh", "orders")
    for _ in range(2):
        pipeline.ok("run", "-b", pipeline.bootstrap)
        check(pipeline, name, sent, added=added, refreshed=refreshed)
        send(producer, name, sent)


def test_of_two_runs_at_once_one_is_refused(
    new_pipeline: Callable[[str], Pipeline], producer: Producer
) -> None:
    pipeline = new_pipeline("twice")
    sent: list[int] = []
    pipeline.ok("run", "-b", pipeline.bootstrap)
    for _ in range(max(LIVES, 1)):
        send(producer, "twice", sent)
        processes = [start(pipeline), start(pipeline)]
        said = [process.communicate(timeout=RUN_SECONDS)[1] for process in processes]
        assert sorted(process.returncode for process in processes) == [0, 1], said
        refused = said[0] if processes[0].returncode else said[1]
        assert "this pipeline is running already: process " in refused
        check(pipeline, "twice", sent)


def test_a_run_that_fails_leaves_results_readable(
    new_pipeline: Callable[[str], Pipeline], producer: Producer
) -> None:
    pipeline = new_pipeline("fails")
    sent: list[int] = []
    pipeline.ok("run", "-b", pipeline.bootstrap)
    send(producer, "fails", sent)
    pipeline.ok("run", "-b", pipeline.bootstrap)
    definition = pipeline.directory / "transformations" / "orders.py"
    text = definition.read_text()
    definition.write_text("def (:\n")
    for arguments in ((), ("--full-refresh-all",)):
        ended = pipeline("run", "-b", pipeline.bootstrap, *arguments)
        assert ended.returncode == 1
        assert "orders.py, line 1: SyntaxError" in ended.stderr
        check(pipeline, "fails", sent)
    definition.write_text(text)


def test_a_node_that_a_killed_run_left_does_not_stop_the_next(
    new_pipeline: Callable[[str], Pipeline],
) -> None:
    pipeline = new_pipeline("left")
    command = [sys.executable, "-m", "ottla", "pipeline", "run", "--embedded"]
    with subprocess.Popen(command, cwd=pipeline.directory, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("node: 127.0.0.1:")
        node = int((pipeline.directory / ".ottla" / "node.pid").read_text())
        # It may not get the signal that comes with the end of the run, as on other systems than Linux.
        psutil.Process(node).suspend()
        process.kill()
    psutil.Process(node).resume()
    ended = pipeline("dry-run", "--embedded")
    assert ended.returncode == 0, ended.stderr
    assert not psutil.pid_exists(node) or psutil.Process(node).status() == psutil.STATUS_ZOMBIE
