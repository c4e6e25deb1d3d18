"""The fast tier, `pytest --fast`: tests in this process alone, each of them quick.

A test that starts a process fails and says that it is to be marked `slow`. A test that uses the processor
for more than two seconds is named in the summary and does not fail: time is no verdict. Modules that are
slow as a whole are not even imported.
"""

from __future__ import annotations

import re
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support import tiers

LEFT_OUT: Final = ("exhaustive", "slow", "kafka", "spark")
EXPRESSION: Final = " and ".join(f"not {mark}" for mark in LEFT_OUT)
STARTS: Final = frozenset(
    ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.exec", "os.system", "pty.spawn")
)
SLOW_SECONDS: Final = 2.0
_MARKED_WHOLE: Final = re.compile(
    rf"^pytestmark\b[^=]*=\s*(?:\[[^\]]*|.*)\bmark\.(?:{'|'.join(LEFT_OUT)})\b", re.MULTILINE
)
_PROPERTY: Final = "slow in fast"


def add_option(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="run what is quick and starts no process")


def is_left_out(source: str) -> bool:
    """Whether the marks of the module itself leave all of its tests out."""
    return _MARKED_WHOLE.search(source) is not None


class Processes:
    """Sees what processes this one starts, in any of its threads."""

    def __init__(self) -> None:
        self._started: list[str] | None = None
        sys.addaudithook(self._on_event)

    @contextmanager
    def watched(self) -> Iterator[list[str]]:
        """The list that is yielded has what was started while the block ran."""
        started: list[str] = []
        self._started = started
        faults = _faults_of_children()
        try:
            yield started
        finally:
            self._started = None
            if not started and _faults_of_children() != faults:
                started.append("that Python did not start and that has ended")  # libuv did, for one

    def _on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in STARTS and (started := self._started) is not None:
            started.append(f"by {event}{f': {arguments[1]}' if len(arguments) > 1 else ''}")


def _faults_of_children() -> int:
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt


class Fast:
    """A plugin that leaves out what is marked, and watches over the rest."""

    def __init__(self, config: pytest.Config) -> None:
        tiers.choose(config, EXPRESSION)
        self._processes: Final = Processes()
        self._cpu_seconds = 0.0
        self._slow: Final[dict[str, float]] = {}

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        if not collection_path.name.startswith("test_") or collection_path.suffix != ".py":
            return None
        return True if is_left_out(collection_path.read_text()) else None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        self._cpu_seconds = 0.0
        yield from self._watch(item)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        yield from self._watch(item)
        if self._cpu_seconds > SLOW_SECONDS:
            item.user_properties.append((_PROPERTY, self._cpu_seconds))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == _PROPERTY:
                self._slow[report.nodeid] = float(str(value))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for name, seconds in sorted(self._slow.items(), key=lambda each: -each[1]):
            line = f"slow in fast: {name} uses the processor for {seconds:.1f} s"
            terminalreporter.write_line(line, yellow=True)

    def _watch(self, item: pytest.Item) -> Iterator[None]:
        since = time.process_time()
        with self._processes.watched() as started:
            try:
                yield
            finally:
                self._cpu_seconds += time.process_time() - since
        if started:
            pytest.fail(f"{item.nodeid} starts a process {started[0]}: mark it `slow`", pytrace=False)
