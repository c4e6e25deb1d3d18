"""The writer of a flow into a table that merges: tasks stage their rows in files, the driver merges them.

The table has the batch in the summary of its snapshot, so a batch that Spark repeats after a kill is not
merged again. Staged files that a kill leaves behind are removed with the other orphans of the table.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from ottla.spark.merge.options import MergeOptions
from ottla.tables.keyed_table import DELETED, END_AT, PRESENT, SEQUENCE, SPECIAL, START_AT, BatchId

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

_UPKEEP_BATCHES: Final = 50
_NOT_ORDERED: Final = ("struct", "array", "map", "binary", "variant", "interval")


@dataclass(frozen=True)
class StagedRows(WriterCommitMessage):
    """What a task has staged, for which query; no file without rows."""

    query: str
    file: str | None = None


class MergeWriter(DataSourceStreamArrowWriter):
    """Merges each micro-batch exactly once. `generation` is the number of the checkpoint, or `PRESENT`."""

    def __init__(self, options: MergeOptions, columns: Sequence[str], generation: int) -> None:
        self._options = options
        self._columns = (*columns, *SPECIAL)
        self._generation = generation

    @property
    def _staging(self) -> str:
        return f"file://{self._options.warehouse}/{self._options.table}/data"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        import pyarrow as pa
        from pyiceberg.io.pyarrow import PyArrowFileIO

        context = TaskContext.get()
        assert context is not None, "a writer's write() runs in a task of Spark"
        query = context.getLocalProperty("sql.streaming.queryId")
        if query is None:
            raise RuntimeError("Spark does not give this task the id of its query; a repeated batch could "
                               "not be recognised")  # fmt: skip
        file = f"{self._staging}/staged-{uuid4().hex}.arrow"
        batches = (each.select(list(self._columns)) for each in iterator if each.num_rows)
        first = next(batches, None)
        if first is None:
            return StagedRows(query)
        with (
            PyArrowFileIO().new_output(file).create(overwrite=False) as raw,
            pa.ipc.new_stream(raw, first.schema) as stream,
        ):
            stream.write_batch(first)
            for batch in batches:
                stream.write_batch(batch)
        return StagedRows(query, file)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        import pyarrow as pa
        from pyiceberg.io.pyarrow import PyArrowFileIO

        staged = [each for each in messages if isinstance(each, StagedRows) and each.file is not None]
        if not staged:
            return
        io = PyArrowFileIO()
        parts = []
        for each in staged:
            assert each.file is not None
            try:
                with io.new_input(each.file).open() as raw:
                    parts.append(pa.ipc.open_stream(raw.read()).read_all())
            except FileNotFoundError:
                raise RuntimeError(
                    f"{each.file}, which a task has written, is not here: a table that merges needs a "
                    "directory that the driver and all workers share"
                ) from None
        changes = _in_utc(pa.concat_tables(parts))
        table = self._options.open()
        identity = BatchId(staged[0].query, self._generation, batchId)
        if not table.apply(identity, changes):
            log.info("%s: batch %d is merged already", self._options.table, batchId)
        self._remove(staged)
        if batchId % _UPKEEP_BATCHES == _UPKEEP_BATCHES - 1:
            try:
                table.maintain(int(time.time() * 1000))
            except Exception as error:  # the rows are there; the next upkeep tries again
                log.warning("%s: upkeep failed: %s", self._options.table, error)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self._remove([each for each in messages if isinstance(each, StagedRows)])

    def _remove(self, staged: Sequence[StagedRows]) -> None:
        from pyiceberg.io.pyarrow import PyArrowFileIO

        io = PyArrowFileIO()
        for each in staged:
            if each.file is not None:
                try:
                    io.delete(each.file)
                except OSError as error:
                    log.info("%s stays for a day: %s", each.file, error)


def merge_writer(options: Any, schema: StructType) -> MergeWriter:
    """Create a writer. Raises ValueError if the columns cannot be merged."""
    given = MergeOptions.from_spark(options)
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    columns = [name for name in types if name not in SPECIAL and given.selects(name)]
    missing = [key for key in given.keys if key.lower() not in map(str.lower, columns)]
    if missing:
        raise ValueError(f"table {given.table}: there is no column {', '.join(missing)}, which is a key")
    if types[SEQUENCE].startswith(_NOT_ORDERED):
        raise ValueError(
            f"table {given.table}: sequence_by is {types[SEQUENCE]}, by which changes cannot be ordered: use "
            "a number, a time or text"
        )
    if types[DELETED] != "boolean":
        raise ValueError(f"table {given.table}: apply_as_deletes is {types[DELETED]}, and not true or false")
    reserved = (START_AT, END_AT) if given.history is not None else ()
    if strange := [name for name in columns if name.upper() in reserved]:
        raise ValueError(f"table {given.table}: {', '.join(strange)} is a column of the history itself")
    if given.history is not None:
        tracked = (*given.history.tracked, *given.history.untracked)
        if missing := [name for name in tracked if name.lower() not in map(str.lower, columns)]:
            raise ValueError(f"table {given.table}: there is no column {', '.join(missing)} to be tracked")
    number = PurePath(str(options.get("checkpointlocation", ""))).name
    generation = int(number) if number.isdecimal() else 0
    return MergeWriter(given, columns, PRESENT if given.is_again else generation)


def _in_utc(rows: pa.Table) -> pa.Table:
    """The rows with their times in UTC, as Iceberg has them."""
    import pyarrow as pa

    fields = [
        field.with_type(pa.timestamp("us", "UTC")) if _has_zone(field.type) else field
        for field in rows.schema
    ]
    return rows.cast(pa.schema(fields))


def _has_zone(kind: Any) -> bool:
    return str(kind).startswith("timestamp[") and kind.tz is not None
