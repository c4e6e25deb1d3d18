"""A pipeline from the command line: `ottla pipeline run` beside Spark's own `spark-pipelines run`.

The same trivial project, the one that `spark-pipelines init` writes, from scratch each time. Wall-clock
time is what the user waits for; processor time, of the command and all its children, does not depend on the
load of the machine.
"""

import contextlib
import ctypes
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench.harness import Row, scaled

VIEW = """\
from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()


@dp.materialized_view
def numbers() -> DataFrame:
    return spark.range(10)
"""
EVEN = "CREATE MATERIALIZED VIEW even AS SELECT id FROM numbers WHERE id % 2 = 0\n"
AIM = "≥ 1.67× (0.6 of the time)"
PEER = "spark-pipelines run"
PR_SET_CHILD_SUBREAPER = 36  # of Linux


class Cost(NamedTuple):
    wall: float
    processor: float


def project(directory: Path) -> Path:
    (directory / "transformations").mkdir(parents=True)
    (directory / "transformations" / "numbers.py").write_text(VIEW)
    (directory / "transformations" / "even.sql").write_text(EVEN)
    storage = (directory / "storage").as_uri()
    spec = f"name: trivial\nstorage: {storage}\nlibraries:\n  - glob:\n      include: transformations/**\n"
    (directory / "spark-pipeline.yml").write_text(spec)
    return directory


def adopt_orphans() -> None:
    """Make this process the parent of orphaned descendants, so that they are counted, too."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> set[int]:
    found = Path("/proc/self/task").glob("*/children")
    return {int(pid) for file in found for pid in file.read_text().split()}


def wait_for_orphans(but: set[int]) -> None:
    for pid in children() - but:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
    if children() - but:  # what those have left behind
        wait_for_orphans(but)


def cost(command: list[str], environment: dict[str, str]) -> Cost:
    """Run it in a new project. The time ends with the command; its processes may take longer."""
    directory = Path(tempfile.mkdtemp(prefix="ottla-bench-"))
    others = children()  # as the JVM of measurements that went before
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    try:
        done = subprocess.run(
            command, cwd=project(directory / "trivial"), env=environment, capture_output=True, text=True
        )
        wall = time.perf_counter() - began
        if done.returncode:
            raise RuntimeError(f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    wait_for_orphans(others)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Cost(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def ours() -> Cost:
    # Brokers are given, so that no node is started: the peer does not start one either.
    command = [sys.executable, "-m", "ottla", "pipeline", "run", "-b", "localhost:9092"]
    return cost(command, dict(os.environ))


def theirs() -> Cost:
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    return cost(["spark-pipelines", "run"], environment)


def rows() -> Iterator[Row]:
    adopt_orphans()
    pairs: list[tuple[Cost, Cost]] = []
    for turn in range(scaled(5, 2)):
        first, second = (ours, theirs) if turn % 2 == 0 else (theirs, ours)
        a, b = first(), second()
        pairs.append((a, b) if turn % 2 == 0 else (b, a))
    for name, field in (("from nothing to done", 0), ("processor time of it", 1)):
        ratios = sorted(peer[field] / mine[field] for mine, peer in pairs)
        yield Row(
            name,
            "s",
            statistics.median(mine[field] for mine, _ in pairs),
            statistics.median(peer[field] for _, peer in pairs),
            PEER,
            statistics.median(ratios),
            ratios[0],
            ratios[-1],
            AIM,
        )
