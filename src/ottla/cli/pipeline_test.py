"""`ottla pipeline test`: play the cases in a project's `tests/`, and report rows that differ.

One session of Spark serves all cases. Each case has a node, topics, tables and checkpoints of its own, in
temporary directories; the project's are not touched.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import IO, TYPE_CHECKING, Annotated, Final

from ottla.cli.commands import Argument, Option
from ottla.cli.errors import CliError, WrongUsage
from ottla.cli.options import named_values
from ottla.cli.output import note, print_line
from ottla.cli.pipeline_options import (
    DEFAULT_MASTER,
    Master,
    ProjectPath,
    Settings,
    Verbose,
    log_file,
    naming_full_disks,
    project_of,
)
from ottla.cli.session import terminable

if TYPE_CHECKING:
    from ottla.spark.pipelines.project import Project
    from ottla.spark.pipelines.testing.cases import PipelineCase
    from ottla.spark.pipelines.testing.report import CaseResult
    from ottla.spark.pipelines.testing.stop_points import StopPoint

_WAREHOUSE: Final = "spark.sql.warehouse.dir"
# Event time belongs to the test: records of any time are accepted, and none is too old to stay.
_NODE_SETTINGS: Final = {"log.retention.ms": -1, "log.message.timestamp.after.max.ms": 2**63 - 1}


def play_tests(
    names: Annotated[
        list[str] | None, Argument(metavar="[CASE]...", help="Cases to play, as `large*`; all by default.")
    ] = None,
    project: ProjectPath = ".",
    kill: Annotated[
        bool,
        Option("--kill", help="Play each case again, killed at each point of an exactly-once write."),
    ] = False,
    kill_at: Annotated[
        list[str] | None,
        Option("--kill-at", metavar="POINT", help="As --kill, at this point only; may be repeated."),
    ] = None,
    junit: Annotated[
        str | None, Option("--junit", metavar="FILE", help="Write a report in JUnit's XML, for a CI.")
    ] = None,
    listing: Annotated[bool, Option("--list", help="Print the names of the cases, and play none.")] = False,
    master: Master = DEFAULT_MASTER,
    settings: Settings = None,
    verbose: Verbose = False,
) -> None:
    """Play the cases in the project's tests/, and compare tables and topics with what they expect.

    Exits with 1 if a case fails. Nothing of the project is changed: each case has its own node, topics,
    tables and checkpoints.
    """
    from ottla.spark.java import NoJava
    from ottla.spark.pipelines.project import ProjectError
    from ottla.spark.pipelines.testing.cases import DIRECTORY, choose_cases, find_cases
    from ottla.spark.pipelines.testing.report import CaseOutcome, summary, write_junit
    from ottla.spark.session import NoSpark

    found = project_of(project)
    points = _points(kill, kill_at or [])
    conf = named_values("--conf", settings or ())
    began = monotonic()
    try:
        cases = choose_cases(find_cases(found), names or ())
        if listing:
            for case in cases:
                print_line(case.name)
            return
        refuse_own_catalog(found, conf)
        if not cases:
            raise CliError(f"{found.directory / DIRECTORY} has no cases: *.yml, or test_*.py")
        results = []
        with (
            naming_full_disks(found.directory),
            terminable(),
            test_log(found, verbose=verbose) as log,
        ):
            for result in _play(found, cases, points, master, conf, log):
                results.append(result)
                _show(result)
    except (ProjectError, NoJava, NoSpark) as error:
        raise CliError(str(error)) from None
    seconds = monotonic() - began
    if junit is not None:
        write_junit(Path(junit), found.name, results, seconds)
    if any(result.outcome is CaseOutcome.FAILED for result in results):
        raise CliError(f"{found.name}: {summary(results)}, {seconds:.1f} s")
    note(f"{found.name}: {summary(results)}, {seconds:.1f} s")


def refuse_own_catalog(project: Project, conf: dict[str, str]) -> None:
    """Raise ProjectError if the project has a catalog that is not of this process only."""
    from ottla.spark.pipelines.project import ProjectError
    from ottla.spark.pipelines.tables import has_own_catalog

    local = replace(project, storage=str(project.directory))
    if has_own_catalog(local, {**conf, **project.configuration}):
        raise ProjectError(f"{project.spec}: the project has its own catalog, which would be changed")


def _points(kill: bool, names: list[str]) -> list[StopPoint]:
    """The points at which to kill; none without --kill or --kill-at."""
    from ottla.spark.pipelines.testing.stop_points import StopPoint

    known = {point.value: point for point in StopPoint}
    for name in names:
        if name not in known:
            raise WrongUsage(f"--kill-at {name}: there is no such point; known are {', '.join(known)}")
    return [known[name] for name in names] or (list(StopPoint) if kill else [])


def _play(
    project: Project,
    cases: list[PipelineCase],
    points: list[StopPoint],
    master: str,
    conf: dict[str, str],
    log: IO[str] | None,
) -> Iterator[CaseResult]:
    from ottla.spark.pipelines.testing.case_runner import CaseRunner
    from ottla.spark.pipelines.testing.warm_run import WarmSession
    from ottla.spark.session import connect_session

    began = monotonic()
    note(f"starting Spark on {master}")
    with TemporaryDirectory(prefix="ottla-warehouse-") as warehouse:
        settings = {_WAREHOUSE: warehouse, **conf}
        with connect_session(master, name=project.name, conf=settings, log=log, short=True) as started:
            spark, context = started
            note(f"Spark {context.version} on {master} is ready, {monotonic() - began:.1f} s")
            session = WarmSession(spark, context, log)
            runner = CaseRunner(
                project, session, new_node, master, settings, log, lambda title: note(f"playing {title}")
            )
            for case in cases:
                yield from runner.play(case, points)


@contextmanager
def new_node() -> Iterator[str]:
    """An empty node during the block, which accepts records of any time; its bootstrap servers."""
    from ottla.testing.local_node import LocalNode

    with LocalNode(_NODE_SETTINGS) as node:
        yield node.bootstrap_servers


def test_log(project: Project, *, verbose: bool) -> AbstractContextManager[IO[str] | None]:
    """The file for what Spark logs in a test; None to show it."""
    if verbose:
        return nullcontext()
    state = project.state
    state.mkdir(exist_ok=True)
    log: AbstractContextManager[IO[str]] = log_file(state / "test.log")
    return log


def _show(result: CaseResult) -> None:
    print_line(f"{result.outcome.upper():<8}{result.title}  {result.seconds:.1f} s", flush=True)
    for line in result.text.splitlines():
        print_line(f"        {line}", flush=True)
