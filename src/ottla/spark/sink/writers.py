"""The writers as Spark sees them: pickled to tasks, made anew for each commit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from ottla.spark.sink.options import Delivery, SinkOptions
from ottla.spark.workers import begin_task

if TYPE_CHECKING:
    import pyarrow as pa

    from ottla.spark.sink.messages import TaskMessage

__all__ = ["BatchWriter", "StreamWriter"]

BATCH = 0


class BatchWriter(DataSourceArrowWriter):
    """All rows of the data frame, or none. Spark uses one writer for the tasks, the commit and the abort."""

    def __init__(self, options: SinkOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._run = str(uuid4())

    @property
    def _scope(self) -> str:
        return f"{self._options.prefix}-{self._run}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from ottla.spark.sink.task import TaskPlace, write_at_least_once, write_prepared

        begin_task()
        context = _context()
        if self._options.delivery is Delivery.AT_LEAST_ONCE:
            return write_at_least_once(self._options, self._columns, context.partitionId(), iterator)
        place = TaskPlace(self._scope, self._run, context.partitionId(), context.attemptNumber())
        return write_prepared(self._options, self._columns, place, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _commit(self._options, messages, BATCH, streaming=False)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _abort(self._options, messages, BATCH, write=(self._scope, self._run))


class StreamWriter(DataSourceStreamArrowWriter):
    """Each micro-batch once, whoever dies and however often Spark repeats it."""

    def __init__(self, options: SinkOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._planned = str(uuid4())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from ottla.spark.sink.task import TaskPlace, write_at_least_once, write_prepared

        begin_task()
        context = _context()
        if self._options.delivery is Delivery.AT_LEAST_ONCE:
            return write_at_least_once(self._options, self._columns, context.partitionId(), iterator)
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise RuntimeError(
                "Spark does not tell the query and the batch of this task, without which a repeated batch "
                "cannot be recognised; write with delivery=at-least-once"
            )
        place = TaskPlace(
            f"{self._options.prefix}-{query}",
            context.getLocalProperty("spark.jobGroup.id") or self._planned,
            context.partitionId(),
            context.attemptNumber(),
            int(batch),
        )
        return write_prepared(self._options, self._columns, place, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        _commit(self._options, messages, batchId, streaming=True)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        _abort(self._options, messages, batchId)


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("a writer's write() runs in a task of Spark")
    return context


def _commit(
    options: SinkOptions, messages: Sequence[WriterCommitMessage | None], batch: int, *, streaming: bool
) -> None:
    if not _has_prepared(messages):
        return
    from ottla.spark.sink.driver import commit
    from ottla.spark.sink.process import client_of

    client = client_of(options)
    client.call(commit(client, messages, batch, streaming=streaming))


def _abort(
    options: SinkOptions,
    messages: Sequence[WriterCommitMessage | None],
    batch: int,
    *,
    write: tuple[str, str] | None = None,
) -> None:
    """A batch write knows its scope and run also if no task has told them: their workers may have died."""
    if options.delivery is Delivery.AT_LEAST_ONCE:
        return
    from ottla.spark.sink.driver import abort, abort_write
    from ottla.spark.sink.process import client_of

    if _has_prepared(messages):
        client = client_of(options)
        client.call(abort(client, messages, batch))
    elif write is not None:
        client = client_of(options)
        client.call(abort_write(client, *write))


def _has_prepared(messages: Sequence[WriterCommitMessage | TaskMessage | None]) -> bool:
    from ottla.spark.sink.messages import Prepared

    return any(isinstance(message, Prepared) for message in messages)
