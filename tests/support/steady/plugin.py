"""The plugin of pytest under `make steady`: it reports to the tool, and has its pauses look like none.

The tool pauses processes by SIGSTOP. A busy machine does that to a process without any sign, so a pause of
the tool must not end one that a test had begun, and must not be what a test sees when it asks whether a
node is paused. Tests' own pauses are therefore noted, by a file for each process; all others do not show.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScheduling

from ottla.testing import cluster_process
from tests.support import limits
from tests.support.steady.processes import RUN_VARIABLE

REPORTS = "reports.jsonl"
NOTES = "paused-by-tests"
# In the brackets of the name of a repeated test, with the number.
REPEAT = "repeat"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--steady-repeats", type=int, default=1)
    parser.addoption("--steady-run-seconds", type=float, default=limits.RUN_SECONDS)


def pytest_configure(config: pytest.Config) -> None:
    limits.RUN_SECONDS = config.getoption("--steady-run-seconds")
    run = Path(os.environ[RUN_VARIABLE])
    (run / NOTES).mkdir(exist_ok=True)
    note_pauses(run)
    hide_other_pauses(run)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Reports(run / REPORTS))


@pytest.fixture
def steady_repeat() -> None:
    """Make a test a parametrised one; a value does nothing."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    repeats = metafunc.config.getoption("--steady-repeats")
    if repeats > 1:
        metafunc.fixturenames.append("steady_repeat")
        metafunc.parametrize("steady_repeat", range(repeats), ids=lambda number: f"{REPEAT}{number + 1}")


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScheduling | None:
    """What is repeated runs on all workers, also if it is one test."""
    return LoadScheduling(config, log) if config.getoption("--steady-repeats") > 1 else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A test may ask for a time-out of its own, which is meant for a run without pauses."""
    least = config.getoption("timeout")
    for item in items:
        mark = item.get_closest_marker("timeout")
        if least and mark is not None and mark.args and 0 < mark.args[0] < least:
            item.add_marker(pytest.mark.timeout(least), append=False)


def without_repeat(test: str) -> str:
    return re.sub(rf"\[{REPEAT}\d+\]|{REPEAT}\d+-|-{REPEAT}\d+", "", test)


class _Reports:
    """Writes a line for each test that has run, and one with all that is known for each failure."""

    def __init__(self, path: Path) -> None:
        self._out = path.open("w")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._write_failure(report, report.when or "")
        elif report.when == "teardown":
            self._write(kind="ran", test=report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write_failure(report, "collection")

    def _write_failure(self, report: pytest.TestReport | pytest.CollectReport, when: str) -> None:
        captured = "".join(f"\n---- {title} ----\n{text}" for title, text in report.sections)
        worker = getattr(report, "worker_id", "")
        text = report.longreprtext + captured
        self._write(kind="failed", test=report.nodeid, when=when, worker=worker, text=text)

    def _write(self, **fields: Any) -> None:
        self._out.write(json.dumps(fields) + "\n")
        self._out.flush()  # the run may be ended from outside


def note_pauses(run: Path) -> None:
    """Note each pause that this process begins from now on before it begins, and forget it before its end."""
    kill: Callable[[int, int], None] = os.kill

    def kill_and_note(pid: int, number: int, /) -> None:
        note = _note(run, pid)
        if number == signal.SIGSTOP:
            note.touch()
        elif number in (signal.SIGCONT, signal.SIGKILL):
            note.unlink(missing_ok=True)
        kill(pid, number)

    os.kill = kill_and_note


def hide_other_pauses(run: Path) -> None:
    """Have nodes of clusters of processes look paused only where a test has paused them."""
    inspect = cluster_process.inspect_process

    def inspect_without_the_tool(pid: int) -> cluster_process.RunningProcess | None:
        found = inspect(pid)
        if found is not None and found.status.startswith("T") and not paused_by_a_test(run, pid):
            return found._replace(status="S")
        return found

    cluster_process.inspect_process = inspect_without_the_tool


def paused_by_a_test(run: Path, pid: int) -> bool:
    return _note(run, pid).exists()


def _note(run: Path, pid: int) -> Path:
    return run / NOTES / str(pid)
