"""What a task tells the driver: all that the driver will know of it."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from ottla.spark.sink.ledger import Transaction

__all__ = ["Prepared", "TaskMessage"]


@dataclass(frozen=True)
class TaskMessage(WriterCommitMessage):
    """A task that has nothing to be committed: it had no rows, or its rows are there already."""

    partition: int
    rows: int = 0


@dataclass(frozen=True)
class Prepared(TaskMessage):
    """A task whose rows wait in a transaction, or whose batch it found decided (`decided_at`, the offset of
    a record that says so).

    `run` owns the scope by its claim at the offset `began`, as far as the task knows.
    """

    scope: str = ""
    run: str = ""
    began: int = -1
    lane: int = 0
    former: tuple[str, ...] = ()
    claimed: bool = False
    """Whether this task had to claim the scope: then it is the first batch of the run."""
    attempt: int = 0
    transaction: Transaction | None = None
    decided_at: int | None = None
