"""Run a pipeline once or many times on one session of Spark, and show its progress.

On a terminal a live table shows the flows, elsewhere a line for each change. `--embedded` runs `ottla start`
as a process beside Spark: it listens on a free port of the loopback interface, keeps its data with the
project, and stops with the command.
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from time import monotonic, sleep
from typing import IO, TYPE_CHECKING, Any, Final

from ottla.cli.errors import CliError
from ottla.cli.output import note
from ottla.spark.pipelines import catalog
from ottla.spark.pipelines.progress import Flow, FlowState, PipelineProgress
from ottla.spark.pipelines.project import Project
from ottla.spark.pipelines.query_listener import listen_to_queries
from ottla.spark.pipelines.runner import Selection, run_once
from ottla.spark.session import connect_session

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, slots=True)
class PipelineRequest:
    """A pipeline to run, and how. `configuration` is the project's, overridden by the caller's values; `conf`
    has settings for the start of Spark. `runs` is None without a limit; only the first run uses the
    selection.
    """

    project: Project
    configuration: Mapping[str, str]
    conf: Mapping[str, str]
    master: str
    state: Path
    selection: Selection
    dry: bool
    runs: int | None
    interval_s: float


def run_all(request: PipelineRequest, log: IO[str] | None) -> None:
    """Run the project as often as requested. The output of Spark and of the definitions goes to `log`."""
    began = monotonic()
    project = request.project
    warehouse = project.directory / "spark-warehouse"
    settings = {"spark.sql.warehouse.dir": str(warehouse), **request.conf}
    keeps_catalog = not request.dry and catalog.is_needed(project, {**request.conf, **request.configuration})
    once = request.runs == 1
    with connect_session(request.master, name=project.name, conf=settings, log=log, short=once) as connected:
        spark, context = connected
        note(f"Spark {context.version} on {request.master} is ready, {monotonic() - began:.1f} s")
        if keeps_catalog:
            catalog.restore(spark, warehouse, request.state, request.selection)
        number = 1
        while request.runs is None or number <= request.runs:
            if number > 1:
                sleep(request.interval_s)
            try:
                _run(spark, context, request, log, number)
            finally:
                if keeps_catalog and number == 1:
                    catalog.remember(context, project, request.state)
            number += 1


def _run(spark: Any, context: Any, request: PipelineRequest, log: IO[str] | None, number: int) -> None:
    began = monotonic()
    progress = PipelineProgress()
    quiet = request.dry or number > 1
    with show_progress(progress, quiet=quiet), listen_to_queries(context, progress):
        run_once(
            spark,
            request.project,
            request.configuration,
            progress,
            selection=request.selection if number == 1 else Selection(),
            dry=request.dry,
            output=log,
        )
    took = f"{monotonic() - began:.1f} s"
    name = request.project.name
    if request.dry:
        note(f"{name}: the definitions are valid, {took}")
    elif number == 1 or progress.rows:  # of later runs only those with new rows
        done = sum(flow.state is FlowState.COMPLETED for flow in progress.flows.values())
        streams = any(flow.rows is not None for flow in progress.flows.values())
        rows = f"{_count_text(progress.rows, 'row')}, " if streams else ""
        again = "" if number == 1 else f" again ({number})"
        note(f"{name}: run complete{again}, {_count_text(done, 'flow')}, {rows}{took}")


def _count_text(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


_STYLES: Final = {
    FlowState.COMPLETED: "green",
    FlowState.RUNNING: "cyan",
    FlowState.FAILED: "bold red",
    FlowState.SKIPPED: "yellow",
}
_REFRESHES_PER_SECOND: Final = 4
_SECONDS_BETWEEN_LINES: Final = 2.0


@contextmanager
def show_progress(progress: PipelineProgress, *, quiet: bool = False) -> Iterator[None]:
    """Show the progress of a run during the block."""
    if quiet:
        yield
    elif sys.stderr.isatty():
        with _live(progress):
            yield
    else:
        lines = _Lines(progress)
        progress.observer = lines.update
        try:
            yield
        finally:
            lines.update(interval_s=0)


@contextmanager
def _live(progress: PipelineProgress) -> Iterator[None]:
    from rich.console import Console
    from rich.live import Live

    began = monotonic()
    with Live(
        get_renderable=lambda: _table(progress, monotonic() - began),
        console=Console(stderr=True, markup=False, emoji=False, highlight=False),
        refresh_per_second=_REFRESHES_PER_SECOND,
    ):
        yield


def _table(progress: PipelineProgress, seconds: float) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(
        box=SIMPLE_HEAD,
        pad_edge=False,
        header_style="bold",
        caption=f"{seconds:.0f} s",
        caption_justify="left",
    )
    for name in ("flow", "state", "rows", "rows/s", "lag"):
        table.add_column(name, justify="left" if name in ("flow", "state") else "right")
    for flow in list(progress.flows.values()):
        table.add_row(flow.name, _state(flow), *_figures(flow), style=_STYLES.get(flow.state, ""))
    return table


def _figures(flow: Flow) -> tuple[str, str, str]:
    return _count(flow.rows), _rate(flow.rows_per_second), _count(flow.lag)


def _rate(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _state(flow: Flow) -> str:
    return flow.state if flow.attempts < 2 else f"{flow.state}, try {flow.attempts}"


class _Lines:
    """Prints a line when the state of a flow changes, and at intervals when its rows do."""

    def __init__(self, progress: PipelineProgress) -> None:
        self._progress = progress
        self._printed: dict[str, tuple[str, int | None]] = {}
        self._at: dict[str, float] = {}
        self._lock = Lock()

    def update(self, *, interval_s: float = _SECONDS_BETWEEN_LINES) -> None:
        now = monotonic()
        with self._lock:
            for flow in list(self._progress.flows.values()):
                state, rows = _state(flow), flow.rows
                printed = self._printed.get(flow.name)
                waited = now - self._at.get(flow.name, 0) >= interval_s
                if printed is None or printed[0] != state or (waited and printed[1] != rows):
                    self._printed[flow.name], self._at[flow.name] = (state, rows), now
                    print(self._line(flow, state), file=sys.stderr, flush=True)

    def _line(self, flow: Flow, state: str) -> str:
        rows, rate, lag = _figures(flow)
        facts = [f"{rows} row{'s' * (flow.rows != 1)}"] if rows else []
        facts += [f"{rate} rows/s"] if rate else []
        facts += [f"lag {lag}"] if lag else []
        return ", ".join([f"{flow.name}: {state}", *facts])


_READY: Final = re.compile(r"is ready: (?P<address>[^,]+),")
_STOP_SECONDS: Final = 30


@contextlib.contextmanager
def embedded_node(data_dir: Path, log: Path) -> Iterator[str]:
    """Run a node during the block; yields its bootstrap servers."""
    data_dir.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "ottla", "start"]
    command += ["--data-dir", str(data_dir), "--listen", "127.0.0.1:0"]
    with log.open("ab") as errors:
        # In its own process group: Ctrl-C is for the pipeline, which then stops its node cleanly.
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL, process_group=0
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline().decode(errors="replace")
        ready = _READY.search(line)
        if ready is None:
            raise CliError(f"the embedded node did not start; see {log}")
        yield ready["address"].split()[0]
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    assert process.stdout is not None
    process.stdout.close()
