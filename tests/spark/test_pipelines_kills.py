"""`ottla pipeline run` killed at any point, started twice, on a full disk: the next run completes by itself.

One of each runs with all tests; `make test-faults` runs PIPELINE_LIVES projects of three to five kills each,
PIPELINE_PAIRS pairs of runs and PIPELINE_DISKS full disks. PIPELINE_SEED chooses others.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from ottla.client.blocking import Admin, Producer
from tests.spark.conftest import SparkNode
from tests.support.spark_pipelines import Pipeline, Run, WarmPipeline, WarmSpark, order, values
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(5400)]

LIVES = int(os.environ.get("PIPELINE_LIVES", "1"))
PAIRS = int(os.environ.get("PIPELINE_PAIRS", "1"))
DISKS = int(os.environ.get("PIPELINE_DISKS", "1"))
SEED = int(os.environ.get("PIPELINE_SEED", "1"))
ROWS = 20
# Lines of the progress after which a run may be killed, a moment later; None is a time after its start, when
# it takes the lock, starts the JVM or connects to it.
MOMENTS = (
    None,
    None,
    None,
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
CHANGES = ("refresh all", "edit the sink's flow", "add tables", "refresh a table")
ADDED_VIEW = "CREATE MATERIALIZED VIEW biggest AS SELECT max(cents) AS cents FROM orders\n"
ADDED_TABLE = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()


@dp.table
def cheap_orders():
    return spark.readStream.table("orders").where("cents < 5000")
"""
# The project is on a file system of this size while it fills up.
DISK_KB = 65_536


def check(
    pipeline: Pipeline,
    name: str,
    sent: list[int],
    *,
    added: bool = False,
    refreshed: int = 0,
    edited: int | None = None,
) -> None:
    """What undisturbed runs give, from what was sent.

    If a full refresh was begun, the first `refreshed` orders are written to the topic once more, all or none.
    From order `edited` on, the flow into the topic also takes every fourth order; of those before, it depends
    on the batch that each was in.
    """
    found = [row["number"] for row in pipeline.table("orders")]
    assert sorted(found) == sent
    assert [row["orders"] for row in pipeline.table("turnover")] == [len(sent)]
    large = [number for number in sent if number % 2]
    chosen = [number for number in sent if edited is not None and number >= edited and not number % 4]
    written = Counter(
        record["number"]
        for record in values(pipeline.bootstrap, f"{name}.large-orders", len(large) + len(chosen))
    )
    optional = {number for number in sent if edited is not None and number < edited and not number % 4}
    assert set(written) - optional == {*large, *chosen}
    assert {written[number] for number in large if number < refreshed} <= {1, 2}
    assert len({written[number] for number in large if number < refreshed}) <= 1
    assert {count for number, count in written.items() if number >= refreshed} <= {1}
    if added:
        assert [row["cents"] for row in pipeline.table("biggest")] == [9_000]
        cheap = [row["number"] for row in pipeline.table("cheap_orders")]
        assert sorted(cheap) == [number for number in sent if not number % 2]


def create_topics(pipeline: Pipeline, name: str) -> None:
    """Create the topics of the project that no run has come to."""
    with Admin(pipeline.bootstrap) as admin:
        known = {topic.name for topic in admin.topics.list()}
        for topic in {f"{name}.orders", f"{name}.large-orders"} - known:
            admin.topics.create(topic, partitions=2)


def send(producer: Producer, name: str, sent: list[int]) -> None:
    first = len(sent)
    sent += range(first, first + ROWS)
    producer.send_many(f"{name}.orders", [order(n, 9_000 if n % 2 else 100) for n in sent[first:]])


def warm(pipeline: Pipeline, warm_spark: WarmSpark) -> WarmPipeline:
    """The same project, for runs that are not killed."""
    return WarmPipeline(pipeline.directory, pipeline.bootstrap, warm_spark)


@pytest.mark.exhaustive
@pytest.mark.parametrize("life", range(LIVES))
def test_killed_runs_leave_a_project_that_completes(
    new_pipeline: Callable[[str], Pipeline], warm_spark: WarmSpark, producer: Producer, life: int
) -> None:
    dice = random.Random(SEED * 1000 + life)
    name = f"life-{SEED}-{life}"
    pipeline = new_pipeline(name)
    undisturbed = warm(pipeline, warm_spark)
    sent: list[int] = []

    def kill(*arguments: str) -> None:
        moment, jvm = dice.choice(MOMENTS), dice.random() < 0.3
        delay_s = dice.choice([0.0, 0.0, 0.1, 0.4, 1.0]) if moment else round(dice.uniform(0, 12), 1)
        with Run(pipeline, *arguments) as run:
            if moment is None or run.reaches(moment):
                time.sleep(delay_s)
            status = run.kill(jvm=jvm)
        what = "JVM killed" if jvm else "killed"
        print(f"{name}: {what}, ended with {status}, {delay_s} s after {moment or 'its start'} {arguments}")

    kill()  # the first run
    create_topics(pipeline, name)
    send(producer, name, sent)
    kill()
    send(producer, name, sent)
    change = CHANGES[life % len(CHANGES)]
    added, refreshed, edited = change == "add tables", 0, None
    if change == "add tables":
        pipeline.file("biggest.sql").write_text(ADDED_VIEW)
        pipeline.file("cheap.py").write_text(ADDED_TABLE)
    elif change == "edit the sink's flow":
        kill()
        pipeline.change("large_orders.py", '"cents >= 5000"', '"cents >= 5000 or number % 4 = 0"')
        edited = len(sent)
        send(producer, name, sent)
    else:
        undisturbed.run()
        check(pipeline, name, sent)
        refreshed = len(sent)
    refreshed_parts = ("--full-refresh", "orders", "--full-refresh", "large_orders")
    arguments = {"refresh all": ("--full-refresh-all",), "refresh a table": refreshed_parts}
    kill(*arguments.get(change, ()))
    kill()
    for _ in range(2):
        undisturbed.run()
        check(pipeline, name, sent, added=added, refreshed=refreshed, edited=edited)
        send(producer, name, sent)


@pytest.mark.exhaustive
def test_the_end_of_the_jvm_fails_the_run_with_a_reason(
    new_pipeline: Callable[[str], Pipeline], warm_spark: WarmSpark, producer: Producer
) -> None:
    """As when the system ends it for lack of memory."""
    pipeline = new_pipeline("memory")
    sent: list[int] = []
    create_topics(pipeline, "memory")
    send(producer, "memory", sent)
    for arguments, moment in (((), "orders: starting"), (("--continuous",), "find_large_orders: running")):
        with Run(pipeline, *arguments) as run:
            run.wait_for(moment)
            assert run.kill(jvm=True) == 1
        assert (
            "ottla: the process of Spark (Java) was killed by signal 9, as the system does when" in run.said
        )
        assert "What Spark logged is in " in run.said
        assert "Py4J" not in run.said
    warm(pipeline, warm_spark).run()
    check(pipeline, "memory", sent)


@pytest.mark.exhaustive
def test_of_two_runs_at_once_one_is_refused(
    new_pipeline: Callable[[str], Pipeline], producer: Producer
) -> None:
    pipeline = new_pipeline("twice")
    sent: list[int] = []
    create_topics(pipeline, "twice")
    for pair in range(PAIRS):  # the first ones are the first runs of the project
        send(producer, "twice", sent)
        with Run(pipeline) as first, Run(pipeline) as second:
            ended = {run.end(): run for run in (first, second)}
        assert sorted(ended) == [0, 1], [first.said, second.said]
        running = ended[0].process.pid
        assert f"this pipeline is running already: process {running} of " in ended[1].said
        check(pipeline, "twice", sent)
        print(f"pair {pair}: process {running} ran, the other was refused")


@pytest.mark.exhaustive
def test_a_run_whose_lock_another_one_has_taken_ends(new_pipeline: Callable[[str], Pipeline]) -> None:
    """As after a pause of its machine, on a file system without locks."""
    pipeline = new_pipeline("paused")
    lock = pipeline.directory / ".ottla" / "run.lock"
    other = '{"host": "elsewhere", "pid": 1, "user": "ada", "since": "today", "token": "x"}'
    with Run(pipeline, "--continuous") as run:
        run.wait_for("find_large_orders: running")
        # In one step: an empty file would be that of no run.
        (draft := lock.with_name("draft")).write_text(other)
        draft.replace(lock)
        assert run.end() == 1
    taken = "this pipeline is running already: process 1 of ada on elsewhere, since today (this one "
    assert taken in run.said
    assert lock.read_text() == other


class SmallDisk:
    """A file system of a few megabytes, mounted in a namespace that a process keeps."""

    def __init__(self, process: subprocess.Popen[str], mounted: Path) -> None:
        self._process = process
        self._mounted = mounted
        # How the files look from outside of the namespace.
        self.directory = Path(f"/proc/{process.pid}/root{mounted}")

    def inside(self, directory: str = "") -> list[str]:
        """The command that runs another one there."""
        enter = ["nsenter", f"--target={self._process.pid}", "--user", "--preserve-credentials", "--mount"]
        return [*enter, "sh", "-c", 'cd "$0" && exec "$@"', str(self._mounted / directory)]

    def fill(self, room_kb: int) -> None:
        """Take all its room but this."""
        filler = self.directory / "filler"
        with suppress(OSError), filler.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        os.truncate(filler, max(filler.stat().st_size - room_kb * 1024, 0))

    def free(self) -> None:
        (self.directory / "filler").unlink()


@contextmanager
def small_disk(directory: Path) -> Iterator[SmallDisk]:
    """Mount a small file system in a namespace of its own, which needs no rights where users may do that."""
    directory.mkdir()
    mount = f"mount -t tmpfs -o size={DISK_KB}k none {directory} && echo mounted && exec cat"
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount]
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    except FileNotFoundError:
        pytest.skip("FULL DISKS ARE NOT TESTED: there is no `unshare` to mount a small file system with")
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        if process.stdout.readline() != "mounted\n":
            why = process.stderr.read().strip()
            pytest.skip(f"FULL DISKS ARE NOT TESTED: this system lets users mount no file system ({why})")
        yield SmallDisk(process, directory)
        process.communicate()


FULL_AT = (
    (None, 0),
    ("orders: running", 0),
    ("orders: starting", 8),
    ("turnover: running", 0),
    ("is ready", 16),
    ("find_large_orders: running", 4),
    ("orders: running", 32),
    (None, 64),
    ("turnover: starting", 12),
    ("find_large_orders: starting", 0),
)


@pytest.mark.exhaustive
def test_a_run_on_a_full_disk_fails_and_the_next_one_completes(
    node: SparkNode, producer: Producer, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        Pipeline(disk.directory, node.bootstrap_servers, disk.inside()).ok("init", "disk")
        pipeline = Pipeline(disk.directory / "disk", node.bootstrap_servers, disk.inside("disk"))
        sent: list[int] = []
        create_topics(pipeline, "disk")
        failed = 0
        for number in range(DISKS):
            moment, room_kb = FULL_AT[number % len(FULL_AT)]
            arguments = ("--full-refresh-all",) if number >= len(FULL_AT) else ()
            send(producer, "disk", sent)
            if moment is None:
                disk.fill(room_kb)
            with Run(pipeline, *arguments) as run:
                if moment is not None and run.reaches(moment):
                    disk.fill(room_kb)
                status = run.end()
            disk.free()
            failed += status != 0
            print(f"full {moment or 'before the run'}, {room_kb} kB left: {status}, {run.lines[-2:]}")
            assert status == 0 or "No space left" in run.said, run.said
            pipeline.run()
            check(pipeline, "disk", sent, refreshed=len(sent) if arguments else 0)
        assert failed > 0


@pytest.mark.exhaustive
def test_a_run_that_fails_leaves_results_readable(
    warm_pipeline: Callable[[str], WarmPipeline], producer: Producer
) -> None:
    pipeline = warm_pipeline("fails")
    sent: list[int] = []
    create_topics(pipeline, "fails")
    send(producer, "fails", sent)
    pipeline.run()
    pipeline.file("orders.py").write_text("def (:\n")
    for arguments in ((), ("--full-refresh-all",)):
        ended = pipeline("run", "-b", pipeline.bootstrap, *arguments)
        assert ended.returncode == 4
        assert "orders.py, line 1: SyntaxError" in ended.stderr
        check(pipeline, "fails", sent)


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_node_that_a_killed_run_left_does_not_stop_the_next(
    warm_pipeline: Callable[[str], WarmPipeline],
) -> None:
    pipeline = warm_pipeline("left")
    with Pipeline(pipeline.directory, "").start("run", "--embedded") as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("node: 127.0.0.1:")
        node = int((pipeline.directory / ".ottla" / "node.pid").read_text())
        # It may not get the signal that comes with the end of the run, as on other systems than Linux.
        psutil.Process(node).suspend()
        process.kill()
    with suppress(psutil.NoSuchProcess):
        psutil.Process(node).resume()
    pipeline.ok("dry-run", "--embedded")
    wait_until(lambda: has_ended(node), "the node of the killed run is still there")
