"""The commit messages that tasks send to the driver: all that the driver knows of a task."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from ottla.spark.sink.decision_state import TaskTransaction


@dataclass(frozen=True)
class TaskCommitMessage(WriterCommitMessage):
    """The message of a task without a transaction: it had no rows, or wrote them at least once."""

    partition: int
    rows: int = 0


@dataclass(frozen=True)
class PreparedCommitMessage(TaskCommitMessage):
    """The message of a task that has prepared a transaction, or has found its batch decided, or of one of a
    streaming query that had no rows.

    `decision_offset` is the offset of a record that holds the decision, if there is one. `run` owns the scope
    by its claim at `claim_offset`, as far as the task knows.
    """

    scope: str = ""
    run: str = ""
    claim_offset: int = -1
    generation: int = 0
    former_runs: tuple[str, ...] = ()
    claimed: bool = False
    """Whether this task claimed the scope: then this is the first batch of the run."""
    attempt: int = 0
    transaction: TaskTransaction | None = None
    decision_offset: int | None = None
    log_partition: int = -1
    """The partition of the decision log that the task has read; -1 if it has not."""
