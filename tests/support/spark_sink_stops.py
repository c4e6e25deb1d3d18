"""A sink whose tasks and driver stop at chosen points, so that a test can kill a process exactly there.

The directory named by the environment variable OTTLA_SINK_STOPS holds a file for each point that is armed.
The process that reaches such a point renames the file to `NAME.PID` (one process wins) and waits until that
file is gone. `register` adds the format to a session; the class is pickled by value, as the executors of a
standalone cluster cannot import the tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.spark.datasource import OttlaDataSource
from ottla.spark.sink.decision_state import TaskTransaction
from ottla.spark.sink.listener import SinkListener

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["FORMAT", "VARIABLE", "StopPoint", "register"]

FORMAT = "ottla_with_stops"
VARIABLE = "OTTLA_SINK_STOPS"
POLL_SECONDS = 0.02
# The first commit of a batch may fail: then the others continue without it.
FIRST_COMMIT_SECONDS = 60


class StopPoint(Enum):
    TRANSACTION_OPENED = "task-transaction-opened"
    ROWS_SENT = "task-rows-sent"
    TRANSACTION_PREPARED = "task-transaction-prepared"
    COMMIT_STARTED = "driver-commit-started"
    BATCH_DECIDED = "driver-batch-decided"
    BETWEEN_COMMITS = "driver-between-commits"
    BATCH_COMMITTED = "driver-batch-committed"


def stop_at(point: StopPoint) -> None:
    """Wait here if the point is armed. It blocks the whole process, as a process that hangs does."""
    directory = os.environ.get(VARIABLE)
    if directory is None:
        return
    taken = Path(directory) / f"{point.value}.{os.getpid()}"
    try:
        (Path(directory) / point.value).rename(taken)
    except FileNotFoundError:
        return
    while taken.exists():
        time.sleep(POLL_SECONDS)


class StoppingListener(SinkListener):
    """Stops at the armed points. Between commits means: one transaction is committed, the others are not."""

    def __init__(self) -> None:
        self._first: str | None = None
        self._others_waiting = 0
        self._first_committed: asyncio.Event | None = None

    def on_transaction_opened(self) -> None:
        stop_at(StopPoint.TRANSACTION_OPENED)

    def on_rows_sent(self) -> None:
        stop_at(StopPoint.ROWS_SENT)

    def on_transaction_prepared(self) -> None:
        stop_at(StopPoint.TRANSACTION_PREPARED)

    async def on_commit_started(self) -> None:
        stop_at(StopPoint.COMMIT_STARTED)

    async def on_batch_decided(self) -> None:
        stop_at(StopPoint.BATCH_DECIDED)

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
            stop_at(StopPoint.BETWEEN_COMMITS)
        self._first_committed.set()

    async def on_batch_committed(self) -> None:
        stop_at(StopPoint.BATCH_COMMITTED)


class StoppingDataSource(OttlaDataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def sink_listener(self) -> SinkListener:
        return StoppingListener()


def register(spark: SparkSession) -> None:
    """Make `format(FORMAT)` known to a session."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    spark.dataSource.register(StoppingDataSource)
