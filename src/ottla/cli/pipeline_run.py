"""One or many runs of a pipeline on one session of Spark, shown as they go."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from time import monotonic, sleep
from typing import IO, TYPE_CHECKING, Any

from ottla.cli.output import note
from ottla.cli.pipeline_view import shown
from ottla.spark.pipelines import catalog
from ottla.spark.pipelines.listening import listening
from ottla.spark.pipelines.progress import Progress, State
from ottla.spark.pipelines.running import run_once
from ottla.spark.session import connect_session

if TYPE_CHECKING:
    from ottla.spark.pipelines.project import Project
    from ottla.spark.pipelines.running import Selection


def run_all(
    project: Project,
    configuration: Mapping[str, str],
    conf: Mapping[str, str],
    master: str,
    state: Path,
    log: IO[str] | None,
    selection: Selection,
    *,
    dry: bool,
    runs: int | None,
    interval: float,
) -> None:
    """Runs the project so many times, for ever if None; only the first run refreshes what is selected."""
    began = monotonic()
    settings = {"spark.sql.warehouse.dir": str(project.directory / "spark-warehouse"), **conf}
    remembers = not dry and catalog.is_needed(project, {**conf, **configuration})
    with connect_session(master, name=project.name, conf=settings, log=log) as (spark, context):
        note(f"Spark {context.version} on {master} is ready, {monotonic() - began:.1f} s")
        if remembers:
            catalog.restore(spark, project, state, selection)
        done = 0
        while runs is None or done < runs:
            if done:
                sleep(interval)
            try:
                _one(spark, context, project, configuration, selection, dry=dry, log=log, number=done + 1)
            finally:
                if remembers and done == 0:
                    catalog.remember(spark, state)
            selection = type(selection)()
            done += 1


def _one(
    spark: Any,
    context: Any,
    project: Project,
    configuration: Mapping[str, str],
    selection: Selection,
    *,
    dry: bool,
    log: IO[str] | None,
    number: int,
) -> None:
    began = monotonic()
    progress = Progress()
    with listening(context, progress), shown(progress, quiet=dry or number > 1) as changed:
        run_once(
            spark, project, configuration, progress, selection=selection, dry=dry, output=log, changed=changed
        )
    took = f"{monotonic() - began:.1f} s"
    if dry:
        note(f"{project.name}: the definitions are sound, {took}")
        return
    done = sum(flow.state is State.COMPLETED for flow in progress.flows.values())
    rows = (
        f"{progress.rows:,} rows, " if any(flow.rows is not None for flow in progress.flows.values()) else ""
    )
    run = "" if number == 1 else f" again ({number})"
    if number == 1 or progress.rows:
        note(f"{project.name}: run complete{run}, {done} flows, {rows}{took}")
