"""`ottla pipeline` as a user runs it: in a separate process, with Spark, against a node."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from ottla.client.blocking import Consumer, Producer
from ottla.spark.pipelines.tables import committed_files
from ottla.testing.local_node import LocalNode

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SECONDS = 400


class Pipeline:
    """A project, and the command in its directory. `prefix` is a command that runs the command there."""

    def __init__(self, directory: Path, bootstrap: str, prefix: Sequence[str] = ()) -> None:
        self.directory = directory
        self.bootstrap = bootstrap
        self._prefix = prefix

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [*self._prefix, sys.executable, "-m", "ottla", "pipeline", *arguments]
        where = None if self._prefix else self.directory
        return subprocess.Popen(command, cwd=where, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments)
        try:
            said, told = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            self._dump_threads(process.pid)
            process.kill()
            said, told = process.communicate()
            pytest.fail(f"{arguments} did not end in {SECONDS} s:\n{said}{told}\n{self.log(200_000)}")
        return subprocess.CompletedProcess(process.args, process.returncode, said, told)

    def _dump_threads(self, pid: int) -> None:
        """Let the JVMs of a run that hangs write the stacks of their threads to the log."""
        virtual_machines = [
            each for each in psutil.Process(pid).children(recursive=True) if each.name() == "java"
        ]
        for each in virtual_machines:
            each.send_signal(signal.SIGQUIT)
        time.sleep(5 if virtual_machines else 0)
        for each in virtual_machines:
            each.kill()

    def ok(self, *arguments: str) -> str:
        ended = self(*arguments)
        assert ended.returncode == 0, f"{arguments}: {ended.returncode}\n{ended.stderr}\n{self.log()}"
        return ended.stderr

    def status(self) -> dict[str, dict[str, Any]]:
        ended = self("status", "--json", "-b", self.bootstrap)
        assert ended.returncode == 0, ended.stderr
        return {row["flow"]: row for row in json.loads(ended.stdout)}

    def log(self, size: int = 4000) -> str:
        file = self.directory / ".ottla" / "spark.log"
        return file.read_text()[-size:] if file.exists() else ""

    def table(self, name: str) -> list[dict[str, Any]]:
        """The rows of a table; of one that a stream writes, those of batches that are committed."""
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                return self._read_table(name)
            except FileNotFoundError:  # a run replaced the files after they were listed
                assert time.monotonic() < deadline
                time.sleep(0.1)

    def _read_table(self, name: str) -> list[dict[str, Any]]:
        import pyarrow.dataset

        directory = self.directory / "spark-warehouse" / name
        committed = committed_files(directory)
        files = [file for file in directory.rglob("*.parquet") if not file.name.startswith((".", "_"))]
        chosen = [str(file) for file in files if committed is None or file.name in committed]
        rows: list[dict[str, Any]] = []
        if chosen:
            rows = pyarrow.dataset.dataset(chosen, format="parquet").to_table().to_pylist()
        return rows


@pytest.fixture
def new_pipeline(node: LocalNode, tmp_path: Path) -> Callable[[str], Pipeline]:
    def create(name: str) -> Pipeline:
        Pipeline(tmp_path, node.bootstrap_servers).ok("init", name)
        return Pipeline(tmp_path / name, node.bootstrap_servers)

    return create


def order(number: int, cents: int) -> bytes:
    return json.dumps({"number": number, "customer": "ada", "item": "tea", "cents": cents}).encode()


def values(client: str | dict[str, str], topic: str, count: int) -> list[Any]:
    """The committed records, after a wait for one too many."""
    found: list[Any] = []
    with Consumer(client, isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, partition) for partition in range(2)])
        while records := consumer.poll(timeout_ms=60_000 if len(found) < count else 500):
            found += [json.loads(record.value or b"null") for record in records]
    return found


def test_a_new_project_goes_on_where_the_last_run_ended(
    new_pipeline: Callable[[str], Pipeline], producer: Producer
) -> None:
    pipeline = new_pipeline("first")
    brokers = ("-b", pipeline.bootstrap)
    said = pipeline.ok("run", *brokers)  # nothing is there yet
    assert "topic first.orders: created with 2 partitions" in said
    places = [said.index(text) for text in ("starting Spark on ", " is ready, ", "reading the definitions")]
    assert places == sorted(places)
    assert "first: run complete, 3 flows, 0 rows read" in said
    assert " s with the start of Spark" in said

    for value in (order(1, 100), order(2, 5_000), b"rubbish", order(3, -1), order(4, 9_999)):
        producer.send("first.orders", value)
    assert pipeline.status()["orders"]["lag"] == 5
    said = pipeline.ok("run", *brokers, "--continuous", "--runs", "2", "--interval", "0")
    assert "orders: completed, 5 rows" in said
    assert pipeline.status()["orders"]["lag"] == 0
    assert sorted(row["number"] for row in pipeline.table("orders")) == [1, 2, 4]
    assert [row["orders"] for row in pipeline.table("turnover")] == [3]
    large = values(pipeline.bootstrap, "first.large-orders", 2)
    assert sorted(record["number"] for record in large) == [2, 4]


def test_a_table_with_capitals_in_its_name_goes_on(
    new_pipeline: Callable[[str], Pipeline], producer: Producer
) -> None:
    """Spark's catalog has it in small letters, its checkpoint as the definitions do."""
    pipeline = new_pipeline("capitals")
    for file, old, new in (
        ("orders.py", "def orders()", "def rawOrders()"),
        ("large_orders.py", 'table("orders")', 'table("rawOrders")'),
        ("turnover.sql", "FROM orders", "FROM rawOrders"),
    ):
        definition = pipeline.directory / "transformations" / file
        assert old in definition.read_text()
        definition.write_text(definition.read_text().replace(old, new))
    brokers = ("-b", pipeline.bootstrap)
    for number in (1, 2):
        pipeline.ok("run", *brokers)
        producer.send("capitals.orders", order(number, 100))
    assert [row["number"] for row in pipeline.table("raworders")] == [1]
    pipeline.ok("run", *brokers, "--full-refresh", "RAWORDERS")
    assert len(pipeline.table("raworders")) == 2
    assert '"number":2' in pipeline("show", "rawOrders", "--json").stdout
    pipeline.ok("run", *brokers)
    assert [row["orders"] for row in pipeline.table("turnover")] == [2]


@pytest.mark.parametrize(
    ("arguments", "change", "complaint"),
    [
        (
            ("dry-run", "--embedded"),
            ('"order.number is not', '"order.nunber is not'),
            "orders failed: .*nunber",
        ),
        (("run", "-b"), ("first.orders", "second.orders"), "orders failed: .*second.orders"),
    ],
    ids=["a column that does not exist", "a topic that does not exist"],
)
def test_a_flow_that_fails_is_named_and_the_command_fails(
    new_pipeline: Callable[[str], Pipeline],
    arguments: tuple[str, ...],
    change: tuple[str, str],
    complaint: str,
) -> None:
    pipeline = new_pipeline("first")
    definition = pipeline.directory / "transformations" / "orders.py"
    definition.write_text(definition.read_text().replace(*change))
    spec = pipeline.directory / "spark-pipeline.yml"
    spec.write_text(spec.read_text() + '  spark.sql.pipelines.maxFlowRetryAttempts: "0"\n')
    ended = pipeline(*arguments, *((pipeline.bootstrap,) if "-b" in arguments else ()))
    assert ended.returncode == 1, ended.stderr
    assert re.search(f"ottla: flow {complaint}", ended.stderr), ended.stderr
    assert "Traceback" not in ended.stderr
    if "--embedded" in arguments:
        assert "node: 127.0.0.1:" in ended.stderr
        assert (pipeline.directory / ".ottla" / "node" / "meta.properties").exists()


def test_a_run_that_is_terminated_stops_its_node(new_pipeline: Callable[[str], Pipeline]) -> None:
    pipeline = new_pipeline("first")
    command = [sys.executable, "-m", "ottla", "pipeline", "run", "--embedded", "--continuous"]
    with subprocess.Popen(command, cwd=pipeline.directory, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        match = re.match(r"node: 127\.0\.0\.1:(\d+),", line)
        assert match, line
        process.terminate()
        # By SIGINT if the interrupt met Python in `exec` of a text, as dataclasses do: 130 in a shell too.
        assert process.wait(300) in (130, -signal.SIGINT)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(match[1]))) != 0


class TestRefused:
    """Commands that end before Spark is started."""

    def test_without_a_project(self, tmp_path: Path) -> None:
        ended = Pipeline(tmp_path, "")("run")
        assert (ended.returncode, "ottla pipeline init" in ended.stderr) == (1, True)

    @pytest.mark.parametrize(
        "arguments",
        [
            ("--full-refresh-all", "--refresh", "a"),
            ("--runs", "2"),
            ("--embedded", "-b", "127.0.0.1:1"),
            ("--conf", "nothing"),
        ],
    )
    def test_options_that_contradict_each_other(
        self, new_pipeline: Callable[[str], Pipeline], arguments: tuple[str, ...]
    ) -> None:
        assert new_pipeline("first")("run", *arguments).returncode == 2

    def test_a_broker_that_is_not_there(self, new_pipeline: Callable[[str], Pipeline]) -> None:
        ended = new_pipeline("first")("run", "-b", "127.0.0.1:1")
        assert ended.returncode == 3
        assert "127.0.0.1:1" in ended.stderr

    def test_status_before_the_first_run(self, new_pipeline: Callable[[str], Pipeline]) -> None:
        ended = new_pipeline("first")("status")
        assert (ended.returncode, ended.stdout) == (0, "")
        assert "ottla pipeline run" in ended.stderr
