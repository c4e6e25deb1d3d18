"""A data source whose sink stops at a chosen point of its protocol, so that it can be killed exactly there.

The directory named by the environment variable OTTLA_SINK_STOPS holds a file for each point that is armed:
`POINT`, or `POINT@FLOW` for one query only. The process that reaches it renames the file to `NAME.PID` (one
process wins) and waits until that file is gone. `ottla pipeline test --kill` kills it there.

`format("ottla")` knows nothing of it: `stopping_environment` makes Spark find this source in its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Final

from ottla.spark.datasource import OttlaDataSource
from ottla.spark.sink.decision_state import TaskTransaction
from ottla.spark.sink.listener import SinkListener

VARIABLE: Final = "OTTLA_SINK_STOPS"
POLL_SECONDS: Final = 0.02
# The first commit of a batch may fail: then the others continue without it.
FIRST_COMMIT_SECONDS: Final = 60
# Spark takes the format from the module of this name that is first on the path.
_DISCOVERED: Final = "pyspark_ottla.py"


class StopPoint(Enum):
    """A point of the protocol, in the order in which a batch reaches them."""

    TRANSACTION_OPENED = "task-transaction-opened"
    ROWS_SENT = "task-rows-sent"
    TRANSACTION_PREPARED = "task-transaction-prepared"
    COMMIT_STARTED = "driver-commit-started"
    BATCH_DECIDED = "driver-batch-decided"
    BETWEEN_COMMITS = "driver-between-commits"
    BATCH_COMMITTED = "driver-batch-committed"


def armed_file(directory: Path, point: StopPoint, flow: str = "") -> Path:
    """The file that arms a point, of one flow or of any."""
    return directory / (f"{point.value}@{flow}" if flow else point.value)


def stopped_processes(directory: Path) -> list[int]:
    """The processes that wait at a point."""
    return [int(file.suffix[1:]) for file in directory.iterdir() if file.suffix[1:].isdecimal()]


def stop_at(point: StopPoint, flow: str = "") -> None:
    """Wait here if the point is armed. It blocks the whole process, as a process that hangs does."""
    directory = os.environ.get(VARIABLE)
    if directory is None:
        return
    for armed in {armed_file(Path(directory), point, flow), armed_file(Path(directory), point)}:
        taken = Path(f"{armed}.{os.getpid()}")
        with contextlib.suppress(FileNotFoundError):
            armed.rename(taken)
            while taken.exists():
                time.sleep(POLL_SECONDS)


class StoppingListener(SinkListener):
    """Stops at the armed points. Between commits means: one transaction is committed, the others are not."""

    def __init__(self, flow: str = "") -> None:
        self._flow = flow
        self._first: str | None = None
        self._others_waiting = 0
        self._first_committed: asyncio.Event | None = None

    def on_transaction_opened(self) -> None:
        self._stop_at(StopPoint.TRANSACTION_OPENED)

    def on_rows_sent(self) -> None:
        self._stop_at(StopPoint.ROWS_SENT)

    def on_transaction_prepared(self) -> None:
        self._stop_at(StopPoint.TRANSACTION_PREPARED)

    async def on_commit_started(self) -> None:
        self._stop_at(StopPoint.COMMIT_STARTED)

    async def on_batch_decided(self) -> None:
        self._stop_at(StopPoint.BATCH_DECIDED)

    async def on_transaction_committing(self, transaction: TaskTransaction) -> None:
        if self._first_committed is None:
            self._first, self._first_committed = transaction.id, asyncio.Event()
            return
        self._others_waiting += 1
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._first_committed.wait(), FIRST_COMMIT_SECONDS)

    async def on_transaction_committed(self, transaction: TaskTransaction) -> None:
        if transaction.id != self._first or self._first_committed is None:
            return
        if self._others_waiting:
            self._stop_at(StopPoint.BETWEEN_COMMITS)
        self._first_committed.set()

    async def on_batch_committed(self) -> None:
        self._stop_at(StopPoint.BATCH_COMMITTED)

    def _stop_at(self, point: StopPoint) -> None:
        stop_at(point, self._flow)


class StoppingDataSource(OttlaDataSource):
    """`format("ottla")` with a sink that stops at the armed points."""

    def sink_listener(self) -> SinkListener:
        return StoppingListener(self.options.get("queryname", "").rpartition(".")[2])


def stopping_environment(environment: Mapping[str, str], stops: Path, modules: Path) -> dict[str, str]:
    """The environment of a process whose Spark finds `StoppingDataSource` as `format("ottla")`, by a module
    that is written to the directory `modules`. The files in `stops` arm the points.
    """
    modules.mkdir(parents=True, exist_ok=True)
    (modules / _DISCOVERED).write_text(f"from {__name__} import StoppingDataSource as DefaultSource\n")
    path = os.pathsep.join(filter(None, (str(modules), environment.get("PYTHONPATH"))))
    return {**environment, "PYTHONPATH": path, VARIABLE: str(stops)}
