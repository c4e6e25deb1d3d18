"""Play cases one after another on one session of Spark, each on a node and in directories of its own."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from traceback import extract_tb
from typing import IO, Final

from ottla.client.blocking import Admin
from ottla.spark.pipelines.project import BOOTSTRAP, CREATE_TOPICS, Project, ProjectError, topics_to_create
from ottla.spark.pipelines.runner import RunFailed
from ottla.spark.pipelines.testing.cases import PipelineCase
from ottla.spark.pipelines.testing.killed_run import Kill, flows_into_sinks, run_and_kill
from ottla.spark.pipelines.testing.pipeline_under_test import PipelineUnderTest, UnexpectedRows
from ottla.spark.pipelines.testing.report import CaseOutcome, CaseResult, case_title
from ottla.spark.pipelines.testing.stop_points import StopPoint
from ottla.spark.pipelines.testing.warm_run import CaseDirectories, WarmSession

_NOT_REACHED: Final = "no run of this case reaches this point"


@dataclass(frozen=True, slots=True)
class CaseRunner:
    """Plays cases. `new_node` starts an empty node and yields its bootstrap servers; `conf` and `master` are
    for the Spark of runs that are killed. `on_started` hears of each case before it is played.
    """

    project: Project
    session: WarmSession
    new_node: Callable[[], AbstractContextManager[str]]
    master: str
    conf: Mapping[str, str]
    log: IO[str] | None
    on_started: Callable[[str], None] = lambda _: None

    def play(self, case: PipelineCase, points: Sequence[StopPoint] = ()) -> Iterator[CaseResult]:
        """Play a case and, if it passed, again for each of these points, killed there in each flow."""
        result, flows = self._play(case, None)
        yield result
        if result.outcome is not CaseOutcome.PASSED:
            return
        for flow in flows:
            for point in points:
                killed, _ = self._play(case, Kill(flow, point))
                yield killed
                if killed.outcome is CaseOutcome.SKIPPED and point is StopPoint.TRANSACTION_OPENED:
                    break  # it writes nothing, or not to a topic

    def _play(self, case: PipelineCase, kill: Kill | None) -> tuple[CaseResult, list[str]]:
        began = time.monotonic()
        self.on_started(case_title(case.name, str(kill or "")))
        outcome, text = CaseOutcome.PASSED, ""
        with tempfile.TemporaryDirectory(prefix="ottla-case-") as root, self.new_node() as bootstrap:
            directories = CaseDirectories(Path(root))
            run = _CaseRun(self, case, bootstrap, directories, kill)
            try:
                run.create_topics()
                case.play(PipelineUnderTest(bootstrap, run.run, self.session.rows))
                if kill is not None and not run.was_killed:
                    outcome, text = CaseOutcome.SKIPPED, _NOT_REACHED
            except Exception as error:
                outcome, text = CaseOutcome.FAILED, failure_text(case, error)
            finally:
                self.session.end_case()
            flows = flows_into_sinks(directories)
        seconds = time.monotonic() - began
        return CaseResult(case.name, case.file, seconds, outcome, text, str(kill or "")), flows


class _CaseRun:
    """The runs of one case. With `kill`, the first run that reaches that point is killed there, and the
    next one completes what it has left.
    """

    def __init__(
        self,
        runner: CaseRunner,
        case: PipelineCase,
        bootstrap: str,
        directories: CaseDirectories,
        kill: Kill | None,
    ) -> None:
        self._runner = runner
        self._directories = directories
        self._kill = kill
        self.was_killed = False
        self._configuration = {
            **runner.project.configuration,
            **case.configuration,
            BOOTSTRAP: bootstrap,
        }

    def create_topics(self) -> None:
        wanted = topics_to_create(self._configuration.get(CREATE_TOPICS, ""))
        with Admin(self._configuration[BOOTSTRAP]) as admin:
            for name, partitions in wanted.items():
                admin.topics.create(name, partitions=partitions)

    def run(self) -> None:
        runner = self._runner
        if self._kill is not None and not self.was_killed:
            self.was_killed = run_and_kill(
                runner.project.spec,
                self._directories,
                self._configuration,
                runner.master,
                runner.conf,
                self._kill,
                runner.log,
            )
            runner.session.forget_tables()
        runner.session.run(runner.project, self._directories, self._configuration)


def failure_text(case: PipelineCase, error: Exception) -> str:
    """Why a case failed; for a case in Python with the line of the test."""
    if isinstance(error, UnexpectedRows | RunFailed | ProjectError):
        said = str(error)
    else:
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    for frame in reversed(extract_tb(error.__traceback__)):
        if Path(frame.filename) == case.file:
            return f"{case.file.name}, line {frame.lineno}: {frame.line}\n{said}"
    return said
