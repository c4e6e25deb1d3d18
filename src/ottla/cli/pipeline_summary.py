"""How a run of a pipeline ended, for the program that has started it: a scheduler, or a job of cron.

The summary is one JSON document on stdout. Its outcome says whether to try again: `failed` and `busy` may go
better the next time, `refused` waits for a person.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Final

from ottla.cli.errors import BUSY, REFUSED, UNREACHABLE, USAGE, CliError
from ottla.cli.output import print_json

if TYPE_CHECKING:
    from ottla.spark.pipelines.progress import PipelineProgress

_OUTCOMES: Final = {USAGE: "refused", REFUSED: "refused", BUSY: "busy", UNREACHABLE: "unreachable"}


@dataclass(slots=True)
class RunSummary:
    """What is known of a run so far."""

    pipeline: str | None = None
    environment: str | None = None
    _ended: PipelineProgress | None = None
    _current: PipelineProgress | None = None

    def begin(self, progress: PipelineProgress) -> None:
        """A run begins, or the queries of a continuous one; what came before counts as well."""
        self._ended = self.progress
        self._current = progress

    @property
    def progress(self) -> PipelineProgress | None:
        """That of all runs of the command together."""
        if self._ended is None or self._current is None:
            return self._current
        return self._current.after(self._ended)


@contextmanager
def summarized_run(*, as_json: bool) -> Iterator[RunSummary]:
    """Print how the run in the block has ended, if that is wanted. What it raises goes on."""
    summary = RunSummary()
    began = monotonic()
    outcome, problem = "stopped", None
    try:
        yield summary
        outcome = "completed"
    except CliError as error:
        outcome, problem = _OUTCOMES.get(error.status, "failed"), str(error)
        raise
    finally:
        if as_json:
            _print(summary, outcome, problem, monotonic() - began)


def _print(summary: RunSummary, outcome: str, problem: str | None, seconds: float) -> None:
    from ottla.spark.pipelines.run_record import flow_documents

    progress = summary.progress
    print_json(
        {
            "pipeline": summary.pipeline,
            "environment": summary.environment,
            "outcome": outcome,
            "error": problem,
            "seconds": round(seconds, 1),
            "rows": 0 if progress is None else progress.rows,
            "flows": [] if progress is None else flow_documents(progress),
        }
    )
