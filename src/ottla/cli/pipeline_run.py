"""One or many runs of a pipeline on one session of Spark, shown as they go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import IO, Any

from ottla.cli.output import note
from ottla.cli.pipeline_view import shown
from ottla.spark.pipelines import catalog
from ottla.spark.pipelines.progress import FlowState, PipelineProgress
from ottla.spark.pipelines.project import Project
from ottla.spark.pipelines.query_listener import listen_to_queries
from ottla.spark.pipelines.runner import Selection, run_once
from ottla.spark.session import connect_session


@dataclass(frozen=True, slots=True)
class Request:
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


def run_all(request: Request, log: IO[str] | None) -> None:
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


def _run(spark: Any, context: Any, request: Request, log: IO[str] | None, number: int) -> None:
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
