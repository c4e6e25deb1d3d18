"""One or many runs of a pipeline on one session of Spark, shown as they go."""

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
    """What is to be run. `configuration` is the project's with the caller's values over it, `conf` are
    settings for the start of Spark. `runs` is None for ever; only the first of them refreshes what is
    selected.
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
    """Runs the project as often as asked. What Spark and the project's definitions print goes to `log`."""
    began = monotonic()
    project = request.project
    warehouse = project.directory / "spark-warehouse"
    settings = {"spark.sql.warehouse.dir": str(warehouse), **request.conf}
    remembers = not request.dry and catalog.is_needed(project, {**request.conf, **request.configuration})
    once = request.runs == 1
    with connect_session(request.master, name=project.name, conf=settings, log=log, short=once) as connected:
        spark, context = connected
        note(f"Spark {context.version} on {request.master} is ready, {monotonic() - began:.1f} s")
        if remembers:
            catalog.restore(spark, warehouse, request.state, request.selection)
        number = 1
        while request.runs is None or number <= request.runs:
            if number > 1:
                sleep(request.interval_s)
            try:
                _run(spark, context, request, log, number)
            finally:
                if remembers and number == 1:
                    catalog.remember(context, project, request.state)
            number += 1


def _run(spark: Any, context: Any, request: PipelineRequest, log: IO[str] | None, number: int) -> None:
    began = monotonic()
    progress = PipelineProgress()
    quiet = request.dry or number > 1
    with shown(progress, quiet=quiet), listen_to_queries(context, progress):
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
        note(f"{name}: the definitions are sound, {took}")
    elif number == 1 or progress.rows:  # of later runs only those that found something
        done = sum(flow.state is FlowState.COMPLETED for flow in progress.flows.values())
        streams = any(flow.rows is not None for flow in progress.flows.values())
        rows = f"{_counted(progress.rows, 'row')}, " if streams else ""
        again = "" if number == 1 else f" again ({number})"
        note(f"{name}: run complete{again}, {_counted(done, 'flow')}, {rows}{took}")


def _counted(count: int, what: str) -> str:
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
def shown(progress: PipelineProgress, *, quiet: bool = False) -> Iterator[None]:
    """Shows a run while the block lasts."""
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
            lines.update(patience_s=0)


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
    """One line when a flow's state changes, and now and then when its rows do."""

    def __init__(self, progress: PipelineProgress) -> None:
        self._progress = progress
        self._said: dict[str, tuple[str, int | None]] = {}
        self._at: dict[str, float] = {}
        self._lock = Lock()

    def update(self, *, patience_s: float = _SECONDS_BETWEEN_LINES) -> None:
        now = monotonic()
        with self._lock:
            for flow in list(self._progress.flows.values()):
                state, rows = _state(flow), flow.rows
                said = self._said.get(flow.name)
                waited = now - self._at.get(flow.name, 0) >= patience_s
                if said is None or said[0] != state or (waited and said[1] != rows):
                    self._said[flow.name], self._at[flow.name] = (state, rows), now
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
    """A node that runs while the block does; what clients connect to is handed out."""
    data_dir.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "ottla", "start"]
    command += ["--data-dir", str(data_dir), "--listen", "127.0.0.1:0"]
    with log.open("ab") as errors:
        # In a group of its own: Ctrl-C is for the pipeline, which then stops its node in good order.
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, stdin=subprocess.DEVNULL, process_group=0
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline().decode(errors="replace")
        ready = _READY.search(line)
        if ready is None:
            raise CliError(f"the embedded node did not start; {log} says why")
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
