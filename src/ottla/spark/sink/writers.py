"""The writers that Spark calls: pickled to tasks, and created again for each commit of a micro-batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from ottla.spark.sink.lineage import LineageSource
from ottla.spark.sink.options import DeliveryGuarantee, SinkOptions, sink_options
from ottla.spark.sink.written_columns import check_schema, columns_to_write
from ottla.spark.typed.encoding import (
    ColumnEncoding,
    RegistryRefusal,
    column_encodings,
    encoded_batches,
)
from ottla.spark.worker.garbage_collection import begin_task

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from ottla.spark.sink.commit_messages import TaskCommitMessage
    from ottla.spark.sink.listener import SinkListener


BATCH_WRITE_ID = 0


def batch_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool, listener: SinkListener
) -> BatchWriter:
    """Create a writer. Raises ValueError if the options or the columns cannot be written."""
    if overwrite:
        raise ValueError('a topic cannot be overwritten; write with mode("append")')
    parsed = sink_options(options)
    _check_schema(parsed, schema)
    return BatchWriter(parsed, columns_to_write(schema), listener, _encodings(parsed, schema))


def stream_writer(options: Mapping[str, str], schema: StructType, listener: SinkListener) -> StreamWriter:
    """Create a writer. Raises ValueError if the options or the columns cannot be written.

    In complete mode the whole result is appended, as Spark's own sink does.
    """
    parsed = sink_options(options)
    if parsed.write_id is not None:
        raise ValueError(
            "txnAppId and txnVersion are for batch writes, as in foreachBatch; a stream is recognised by its "
            "checkpoint: omit them"
        )
    _check_schema(parsed, schema)
    encodings: tuple[ColumnEncoding, ...] | RegistryRefusal
    try:
        encodings = _encodings(parsed, schema)
    except RegistryRefusal as error:
        # For tasks: Spark creates a writer also to commit, which needs no registry.
        encodings = error
    return StreamWriter(parsed, columns_to_write(schema), listener, LineageSource.of(options), encodings)


def _check_schema(options: SinkOptions, schema: StructType) -> None:
    check_schema(schema, options.topic, [each.column for each in options.formats])


def _encodings(options: SinkOptions, schema: StructType) -> tuple[ColumnEncoding, ...]:
    if not options.formats:
        return ()
    return column_encodings(options.formats, schema, options.topic, register=options.register)


class BatchWriter(DataSourceArrowWriter):
    """Writes all rows of a data frame, or none. Spark uses one writer for the tasks, commit and abort.

    A write with a `WriteId` is a batch of a query, as in a stream: the application is the query, the version
    the batch, and each attempt at the write a run. So one that is repeated writes nothing.
    """

    def __init__(
        self,
        options: SinkOptions,
        columns: tuple[str, ...],
        listener: SinkListener,
        encodings: tuple[ColumnEncoding, ...] = (),
    ) -> None:
        self._options = options
        self._columns = columns
        self._listener = listener
        self._encodings = encodings
        self._run = str(uuid4())

    @property
    def _scope(self) -> str:
        known = self._options.write_id
        return f"{self._options.prefix}-{self._run if known is None else known.query}"

    @property
    def _batch(self) -> int | None:
        known = self._options.write_id
        return None if known is None else known.version

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from ottla.spark.sink.task_writer import TaskIdentity, write_at_least_once, write_transaction

        begin_task()
        context = _task_context()
        iterator = encoded_batches(iterator, self._encodings)
        if self._options.delivery is DeliveryGuarantee.AT_LEAST_ONCE:
            return write_at_least_once(self._options, self._columns, context.partitionId(), iterator)
        identity = TaskIdentity(
            self._scope, self._run, context.partitionId(), context.attemptNumber(), self._batch
        )
        return write_transaction(self._options, self._columns, identity, iterator, self._listener)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        batch = self._batch
        streaming = batch is not None
        _commit(self._options, self._listener, messages, batch or BATCH_WRITE_ID, streaming=streaming)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        batch = self._batch
        write = (self._scope, self._run) if batch is None else None
        _abort(self._options, self._listener, messages, batch or BATCH_WRITE_ID, write=write)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes each micro-batch exactly once, whatever process dies and however often Spark repeats it."""

    def __init__(
        self,
        options: SinkOptions,
        columns: tuple[str, ...],
        listener: SinkListener,
        lineage: LineageSource | None = None,
        encodings: tuple[ColumnEncoding, ...] | RegistryRefusal = (),
    ) -> None:
        self._encodings = encodings
        self._options = options
        self._columns = columns
        self._listener = listener
        self._lineage = lineage
        self._fallback_run = str(uuid4())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from ottla.spark.sink.task_writer import TaskIdentity, write_at_least_once, write_transaction

        begin_task()
        if isinstance(self._encodings, RegistryRefusal):
            raise self._encodings
        context = _task_context()
        iterator = encoded_batches(iterator, self._encodings)
        if self._options.delivery is DeliveryGuarantee.AT_LEAST_ONCE:
            return write_at_least_once(self._options, self._columns, context.partitionId(), iterator)
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise RuntimeError(
                "Spark does not give this task the ids of its query and batch, without which a repeated "
                "batch cannot be recognised; write with delivery=at-least-once"
            )
        identity = TaskIdentity(
            f"{self._options.prefix}-{query}",
            context.getLocalProperty("spark.jobGroup.id") or self._fallback_run,
            context.partitionId(),
            context.attemptNumber(),
            int(batch),
        )
        return write_transaction(self._options, self._columns, identity, iterator, self._listener)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        _commit(self._options, self._listener, messages, batchId, streaming=True, lineage=self._lineage)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        _abort(self._options, self._listener, messages, batchId)


def _task_context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("a writer's write() runs in a task of Spark")
    return context


def _commit(
    options: SinkOptions,
    listener: SinkListener,
    messages: Sequence[WriterCommitMessage | None],
    batch: int,
    *,
    streaming: bool,
    lineage: LineageSource | None = None,
) -> None:
    if not _has_prepared(messages):
        return
    from ottla.spark.sink.client import sink_client
    from ottla.spark.sink.commit_coordinator import CommitCoordinator

    client = sink_client(options)
    coordinator = CommitCoordinator(client, listener, lineage)
    client.call(coordinator.commit(messages, batch, streaming=streaming))


def _abort(
    options: SinkOptions,
    listener: SinkListener,
    messages: Sequence[WriterCommitMessage | None],
    batch: int,
    *,
    write: tuple[str, str] | None = None,
) -> None:
    """Abort the batch. `write` is the scope and run of a batch write, which is cleaned up also if no task has
    sent a message, as when their workers have died.
    """
    if options.delivery is DeliveryGuarantee.AT_LEAST_ONCE:
        return
    from ottla.spark.sink.client import sink_client
    from ottla.spark.sink.commit_coordinator import CommitCoordinator

    if _has_prepared(messages):
        client = sink_client(options)
        client.call(CommitCoordinator(client, listener).abort(messages, batch))
    elif write is not None:
        client = sink_client(options)
        client.call(CommitCoordinator(client, listener).abort_batch_write(*write))


def _has_prepared(messages: Sequence[WriterCommitMessage | TaskCommitMessage | None]) -> bool:
    from ottla.spark.sink.commit_messages import PreparedCommitMessage

    return any(isinstance(message, PreparedCommitMessage) for message in messages)
