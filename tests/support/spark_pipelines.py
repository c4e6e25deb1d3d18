"""Projects of pipelines, and `ottla pipeline` over them: in processes as a user starts it, or in this one.

A run in a process of its own is a start of Spark, half a minute of a processor. `WarmPipeline` runs the same
commands here, from their arguments to their exit status, and gives them the Spark that the tests share: for
all that is about what a pipeline does, and not about the life of its process.
"""

from __future__ import annotations

import contextlib
import contextvars
import io
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import pytest

from ottla.cli.main import main
from ottla.client.blocking import Consumer
from ottla.spark.pipelines.tables import committed_files
from ottla.spark.pipelines.template import write_project
from ottla.spark.pipelines.testing.warm_run import WarmSession
from tests.support.command_line import CommandLine
from tests.support.spark_sink_harness import await_markers
from tests.support.waiting import wait_until

SECONDS = 400.0


class Pipeline:
    """A project, and the command in its directory. `prefix` is a command that runs the command there."""

    def __init__(self, directory: Path, bootstrap: str, prefix: Sequence[str] = ()) -> None:
        self.directory = directory
        self.bootstrap = bootstrap
        self._prefix = prefix

    def create(self) -> None:
        """Write the project of `ottla pipeline init`."""
        write_project(self.directory)

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

    def run(self, *arguments: str) -> str:
        """Run the project on its brokers, which must succeed; returns what is said."""
        return self.ok("run", "-b", self.bootstrap, *arguments)

    def status(self) -> dict[str, dict[str, Any]]:
        ended = self("status", "--json", "-b", self.bootstrap)
        assert ended.returncode == 0, ended.stderr
        return {row["flow"]: row for row in json.loads(ended.stdout)}

    def log(self, size: int = 4000) -> str:
        file = self.directory / ".ottla" / "spark.log"
        return file.read_text()[-size:] if file.exists() else ""

    def file(self, name: str) -> Path:
        """A file of definitions."""
        return self.directory / "transformations" / name

    def change(self, name: str, old: str, new: str) -> None:
        """Replace a text in a file of definitions."""
        text = self.file(name).read_text()
        assert old in text
        self.file(name).write_text(text.replace(old, new))

    def define(self, name: str, text: str, *, cases: Mapping[str, str] | None = None) -> None:
        """Put one file into the place of all definitions, and these cases into the place of all cases."""
        tests = self.directory / "tests"
        for unused in (*self.file("").iterdir(), *(tests.iterdir() if cases is not None else ())):
            if unused.is_file():
                unused.unlink()
        self.file(name).write_text(text)
        for case, written in (cases or {}).items():
            (tests / case).write_text(written)

    def create_topics(self, topics: str) -> None:
        """Let the project have other topics than those of the template."""
        spec = self.directory / "spark-pipeline.yml"
        text, count = re.subn(r"(ottla\.create\.topics: ).*", rf'\1"{topics}"', spec.read_text())
        assert count == 1, text
        spec.write_text(text)

    def table(self, name: str) -> list[dict[str, Any]]:
        """The rows of a table; of one that a stream writes, those of batches that are committed."""
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                return self._read_table(name)
            except FileNotFoundError:  # a run replaced the files after they were listed
                assert time.monotonic() < deadline, f"the files of {name} go while they are read"
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


class WarmPipeline(Pipeline):
    """A project whose commands run in this process, on the Spark of the tests."""

    def __init__(self, directory: Path, bootstrap: str, spark: WarmSpark) -> None:
        super().__init__(directory, bootstrap)
        self._spark = spark

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self._spark.command("pipeline", *arguments, directory=self.directory)


class WarmSpark:
    """The Spark of this process, behind Spark Connect. `classic` is its session; a command gets one of its
    own, and finds no tables but those that its project remembers.
    """

    def __init__(self, classic: Any) -> None:
        self._context = classic.sparkContext
        service = classic._jvm.org.apache.spark.sql.connect.service.SparkConnectService
        service.start(self._context._jsc.sc())
        companion = getattr(classic._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
        self._port = getattr(companion, "MODULE$").localPort()

    def command(self, *arguments: str, directory: Path) -> subprocess.CompletedProcess[str]:
        """Run `ottla` in a directory. It may change the environment and the settings of its clients."""
        out, err = io.StringIO(), io.StringIO()
        with ExitStack() as stack:
            stack.enter_context(contextlib.chdir(directory))
            stack.enter_context(redirect_stdout(out))
            stack.enter_context(redirect_stderr(err))
            stack.enter_context(patch.dict(os.environ))
            for module in ("ottla.spark.session", "ottla.cli.pipeline_run"):
                stack.enter_context(patch(f"{module}.connect_session", self._connect))
            status = contextvars.copy_context().run(main, list(arguments))
        return subprocess.CompletedProcess(arguments, status, out.getvalue(), err.getvalue())

    @contextmanager
    def _connect(
        self, master: str, *, conf: Mapping[str, str] | None = None, **_: object
    ) -> Iterator[tuple[Any, Any]]:
        """In the place of `connect_session`: a new session, and tables of none."""
        from pyspark.sql.connect.session import SparkSession as RemoteSession

        unknown = (conf or {}).keys() - {"spark.sql.warehouse.dir"}
        assert not unknown, (
            f"settings for the start of Spark are for a run in a process of its own: {unknown}"
        )
        with patch.dict(os.environ, SPARK_CONNECT_MODE_ENABLED="1"):
            remote = RemoteSession.builder.remote(f"sc://localhost:{self._port}").create()
            try:
                WarmSession(remote, self._context, None).forget_tables()
                yield remote, self._context
            finally:
                remote.stop()


class Run:
    """A run in a process of its own, and what it says. At the end of the block it is killed if it lives."""

    def __init__(self, pipeline: Pipeline, *arguments: str) -> None:
        self.process = pipeline.start("run", "-b", pipeline.bootstrap, *arguments)
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._has_ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.end()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._changed:
                self.lines.append(line.rstrip())
                self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def reaches(self, pattern: str) -> bool:
        """Wait for a line with this pattern; False if the run ends without it."""
        return self._find(pattern) is not None

    def wait_for(self, pattern: str) -> str:
        """Wait for a line with this pattern, and return it."""
        found = self._find(pattern)
        assert found is not None, f"the run ended without {pattern!r}:\n{self.said}"
        return found

    def _find(self, pattern: str) -> str | None:
        found: list[str] = []

        def is_there() -> bool:
            found[:] = [line for line in self.lines if re.search(pattern, line)]
            return bool(found) or self._has_ended

        with self._changed:
            assert self._changed.wait_for(is_there, SECONDS), f"waited for {pattern!r}:\n{self.said}"
        return found[0] if found else None

    def kill(self, *, jvm: bool = False) -> int:
        """Kill the run with SIGKILL, or only its JVM, and wait for its end; returns its status."""
        if jvm and (found := self.java()) is not None:
            found.kill()
        else:
            self.process.kill()
        return self.end()

    def java(self) -> psutil.Process | None:
        """The JVM of the run, if it has started it."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for each in psutil.Process(self.process.pid).children(recursive=True):
                if each.name() == "java":
                    return each
        return None

    def end(self) -> int:
        """Wait for the end of the run; returns its status."""
        status = self.process.wait(SECONDS)
        self._reader.join(SECONDS)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        assert "Traceback" not in self.said, self.said
        return status

    @property
    def said(self) -> str:
        return "\n".join(self.lines)


def order(number: int, cents: int) -> bytes:
    return json.dumps({"number": number, "customer": "ada", "item": "tea", "cents": cents}).encode()


def values(client: str | dict[str, str], topic: str, count: int) -> list[Any]:
    """The committed records of a topic of two partitions, all that there are once this many have come."""
    found: list[Any] = []
    reader: Consumer[bytes, bytes] = Consumer(
        client, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    with reader as consumer:
        consumer.assign([(topic, partition) for partition in range(2)])

        def read_on() -> bool:
            ends = consumer.end_offsets(consumer.assignment())
            while any(consumer.position(each) < end for each, end in ends.items()):
                found.extend(json.loads(record.value or b"null") for record in consumer.poll(timeout_ms=200))
            return len(found) >= count

        wait_until(read_on, f"{topic} has no {count} records", SECONDS)
        await_markers(client, topic)
        read_on()
    return found


def traced(bootstrap: str, topic: str, *more: str) -> list[dict[str, Any]]:
    """What `ottla trace` finds of the first offsets in both partitions; some have no record."""
    command = CommandLine(bootstrap)
    found = []
    for partition, offset in itertools.product((0, 1), range(4)):
        ended = command("trace", topic, str(partition), str(offset), "--json", *more)
        assert ended.status in (0, 1), ended.err
        found += [ended.json] if ended.status == 0 else []
    return found
