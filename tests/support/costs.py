"""What a run of the tests costs, and where: `pytest --costs=DIRECTORY`.

Every process of the run writes one line of JSON for each phase of a test and for each fixture that was made,
with its seconds and the processor seconds of this process and of the children that have ended. Where tests
are handed out, the processes of the run are looked at every second, and written with the test that started
each: Java, Spark, nodes, browsers. `python -m tests.support.costs DIRECTORY` prints where the time went.
"""

from __future__ import annotations

import collections
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import psutil
import pytest

LOOK_SECONDS = 1.0
# What a process is, by the words of its command; the first that fits counts.
KINDS = (
    ("Spark", ("SparkSubmit",)),
    ("Spark's master or worker", ("org.apache.spark.deploy",)),
    ("Spark's executor", ("CoarseGrainedExecutorBackend",)),
    ("Apache Kafka", ("java", "kafka.Kafka")),
    ("ZooKeeper", ("java", "org.apache.zookeeper")),
    ("resident JVM", ("java", ".java")),
    ("Maven", ("java", "maven")),
    ("other JVM", ("java",)),
    ("browser", ("chromium", "--headless")),
    ("ottla start", ("ottla", "start")),
    ("node of a cluster", ("python", "ottla.testing")),
    ("other ottla command", ("ottla",)),
)


class Costs:
    """A plugin that writes what phases and fixtures take."""

    def __init__(self, config: pytest.Config, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        worker = getattr(config, "workerinput", {}).get("workerid", "main")
        self._out: IO[str] = (directory / f"{worker}.jsonl").open("w")
        self._hands_out = worker == "main"
        self._ended = threading.Event()
        self._directory = directory
        self._watcher: threading.Thread | None = None

    def pytest_sessionstart(self) -> None:
        from ottla.testing.local_node import LocalNode

        start = LocalNode.start

        def counted(node: LocalNode) -> Any:
            since = time.monotonic()
            made = start(node)
            self._write(kind="node", name="LocalNode", seconds=time.monotonic() - since)
            return made

        LocalNode.start = counted  # type: ignore[assignment, method-assign]
        if self._hands_out:
            self._watcher = threading.Thread(target=self._watch_processes, daemon=True)
            self._watcher.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Iterator[None]:
        since = time.monotonic()
        result = yield
        name = f"{fixturedef.baseid}::{fixturedef.argname}"
        self._write(
            kind="fixture",
            name=name,
            scope=fixturedef.scope,
            seconds=time.monotonic() - since,
            test=request.node.nodeid,
        )
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        yield from self._phase("setup", item)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        yield from self._phase("call", item)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        yield from self._phase("teardown", item)

    def pytest_sessionfinish(self) -> None:
        self._ended.set()
        if self._watcher is not None:
            self._watcher.join()
        self._out.flush()

    def _phase(self, kind: str, item: pytest.Item) -> Iterator[None]:
        since, cpu_since = time.monotonic(), _cpu_seconds()
        try:
            return (yield)
        finally:
            marks = sorted({mark.name for mark in item.iter_markers()})
            self._write(
                kind=kind,
                name=item.nodeid,
                seconds=time.monotonic() - since,
                cpu=_cpu_seconds() - cpu_since,
                marks=marks,
            )

    def _write(self, **fields: Any) -> None:
        if "seconds" in fields:
            fields["seconds"] = round(fields["seconds"], 4)
        self._out.write(json.dumps(fields) + "\n")

    def _watch_processes(self) -> None:
        """Note what each process takes until it was last seen, and write all at the end."""
        seen: dict[tuple[int, float], dict[str, Any]] = {}
        while not self._ended.wait(LOOK_SECONDS):
            for process in psutil.Process().children(recursive=True):
                try:
                    key = (process.pid, process.create_time())
                    if key not in seen:
                        command = " ".join(process.cmdline())
                        by = process.environ().get("PYTEST_CURRENT_TEST", "").partition(" ")[0]
                        seen[key] = {"kind": _kind_of(command), "command": command[-400:], "test": by}
                    times = process.cpu_times()
                    seen[key]["cpu"] = round(times.user + times.system, 2)
                except psutil.Error:
                    continue
        with (self._directory / "processes.jsonl").open("w") as out:
            out.writelines(json.dumps(each) + "\n" for each in seen.values())


def _cpu_seconds() -> float:
    return sum(os.times()[:4])


def _kind_of(command: str) -> str:
    return next((kind for kind, words in KINDS if all(word in command for word in words)), "other")


def main(directory: Path, most: int = 40) -> None:
    """Print the sums of a run, by folder, module and fixture."""
    folders: collections.Counter[str] = collections.Counter()
    modules: collections.Counter[str] = collections.Counter()
    tests: collections.Counter[str] = collections.Counter()
    fixtures: collections.Counter[str] = collections.Counter()
    made: collections.Counter[str] = collections.Counter()
    nodes = cpu = 0.0
    for path in directory.glob("*.jsonl"):
        if path.name == "processes.jsonl":
            continue
        for line in path.open():
            each = json.loads(line)
            if each["kind"] == "fixture":
                fixtures[each["name"]] += each["seconds"]
                made[each["name"]] += 1
            elif each["kind"] == "node":
                nodes += 1
            else:
                module = each["name"].partition("::")[0]
                folders["/".join(module.split("/")[:2])] += each["seconds"]
                modules[module] += each["seconds"]
                tests[each["name"]] += each["seconds"]
                cpu += each["cpu"]
    print(
        f"{len(tests)} tests, {sum(tests.values()):.0f} s, {cpu:.0f} s of processors, {nodes:.0f} LocalNodes"
    )
    kinds: collections.Counter[str] = collections.Counter()
    kinds_cpu: collections.Counter[str] = collections.Counter()
    started_cpu: collections.Counter[str] = collections.Counter()
    for line in (directory / "processes.jsonl").open():
        each = json.loads(line)
        kinds[each["kind"]] += 1
        kinds_cpu[each["kind"]] += each.get("cpu", 0)
        started_cpu[each["test"] or "no test"] += each.get("cpu", 0)
    print("processes, with their seconds of processors as far as they were seen:")
    for kind, seconds in kinds_cpu.most_common():
        print(f"{seconds:8.1f}  {kind}  x{kinds[kind]}")
    for title, sums in (
        ("folders", folders),
        ("modules", modules),
        ("tests", tests),
        ("fixtures", fixtures),
        ("tests, by the processors of what they started", started_cpu),
    ):
        print(f"\n{title}")
        for name, seconds in sums.most_common(most):
            print(f"{seconds:8.1f}  {name}" + (f"  x{made[name]}" if sums is fixtures else ""))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *(int(each) for each in sys.argv[2:3]))
