"""Tables of the latest value by key: which rows a round replaces, and what that takes in files.

A row is known by the partition of its record and its key, as the log cleaner knows records. The table is
partitioned by the partition of the topic, so a file has rows of one, and only its leader changes them. A
round rewrites the files that have one of its keys (pyiceberg writes neither equality nor position deletes):
what is left of them and the new rows become files that are sorted by key, so that the bounds of a file tell
the next round whether to look into it. One old file and the rows of one new file are in memory at a time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from ottla.tables.columns import ERROR

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask, Table


NO_KEY: Final = "the record has no key, so it is the latest of none"
# Rows that become one file.
_FILE_BYTES: Final = 64 * 1024 * 1024


def latest_by_key(rows: pa.Table) -> pa.Table:
    """The last row of each partition and key, in the order that they have; and all rows without a key."""
    import pyarrow as pa
    import pyarrow.compute as pc

    index = pa.array(range(rows.num_rows), pa.int64())
    places = pa.table({"partition": rows.column("partition"), "key": rows.column("key"), "at": index})
    with_key = pc.is_valid(places.column("key"))
    groups = places.filter(with_key).group_by(["partition", "key"], use_threads=False)
    last = groups.aggregate([("at", "max")]).column("at_max")
    chunks = [*last.chunks, *places.filter(pc.invert(with_key)).column("at").chunks]
    kept = pa.chunked_array(chunks, pa.int64()).combine_chunks()
    return rows.take(kept.take(pc.sort_indices(kept)))


def without_tombstones(rows: pa.Table) -> pa.Table:
    """The rows that stay: those with a value, and those whose key no other row can have."""
    import pyarrow.compute as pc

    return rows.filter(pc.or_(pc.is_valid(rows.column("value")), pc.is_null(rows.column("key"))))


def with_errors(rows: pa.Table) -> pa.Table:
    """The rows with a word on those that have no key."""
    import pyarrow as pa
    import pyarrow.compute as pc

    errors = pa.nulls(rows.num_rows, pa.string())
    if ERROR in rows.column_names:
        errors = rows.column(ERROR)
        rows = rows.drop_columns([ERROR])
    found = pc.if_else(pc.is_null(rows.column("key")), NO_KEY, errors)
    return rows.append_column(pa.field(ERROR, pa.string()), found)


def has_gap(expected: int, batches: Iterable[tuple[int, int, int]]) -> bool:
    """Whether offsets from `expected` on are missing in batches of (base offset, last offset, records): the
    cleaner has been there.

    >>> has_gap(5, [(3, 6, 4), (7, 7, 1)])
    False
    >>> has_gap(5, [(3, 6, 3), (7, 7, 1)])
    True
    """
    for base, last, count in batches:
        if base > expected or count <= last - base:
            return True
        expected = last + 1
    return False


def files_of(table: Table, partition: int) -> list[FileScanTask]:
    """The files with rows of a partition of the topic."""
    return list(table.scan(row_filter=f"partition = {partition}").plan_files())


def rewrite_partition(
    table: Table, partition: int, changed: pa.Array, rows: pa.Table, *, is_rebuilt: bool = False
) -> tuple[list[DataFile], list[DataFile]]:
    """Write what the partition has instead of the files with a changed key, or of all if it is rebuilt.
    Return the files that go and those that come; no snapshot has these yet.
    """
    import pyarrow as pa
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    schema = schema_to_pyarrow(table.schema(), include_field_ids=False)
    replaced: list[DataFile] = []
    files: list[DataFile] = []
    held = [_with_schema(rows, schema)]
    size = held[0].nbytes
    keys: Sequence[bytes] = sorted(changed.to_pylist())
    key_id = table.schema().find_field("key").field_id
    for task in files_of(table, partition):
        if is_rebuilt:
            replaced.append(task.file)
            continue
        if not _may_have(task.file, key_id, keys) or not _has(table, task, changed):
            continue
        replaced.append(task.file)
        for left in _without(table, task, changed):
            held.append(_with_schema(left, schema))
            size += held[-1].nbytes
            if size >= _FILE_BYTES:
                files += _write(table, pa.concat_tables(held))
                held, size = [], 0
    if held:
        files += _write(table, pa.concat_tables(held))
    return replaced, files


def _may_have(file: DataFile, key_id: int, keys: Sequence[bytes]) -> bool:
    """Whether the bounds of a file leave room for one of the keys, which are sorted."""
    lower, upper = (file.lower_bounds or {}).get(key_id), (file.upper_bounds or {}).get(key_id)
    first = 0 if lower is None else bisect_left(keys, bytes(lower))
    return first < len(keys) and (upper is None or keys[first] <= bytes(upper))


def _batches(table: Table, task: FileScanTask, columns: Any) -> Iterator[pa.RecordBatch]:
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    return ArrowScan(table.metadata, table.io, columns, AlwaysTrue()).to_record_batches([task])


def _has(table: Table, task: FileScanTask, changed: pa.Array) -> bool:
    """Whether a file has one of the keys; only their column is read."""
    import pyarrow.compute as pc

    for batch in _batches(table, task, table.schema().select("key")):
        found = batch.column("key")
        if pc.any(pc.is_in(found, value_set=changed.cast(found.type), skip_nulls=True)).as_py():
            return True
    return False


def _without(table: Table, task: FileScanTask, changed: pa.Array) -> Iterator[pa.Table]:
    """The rows of a file whose keys have not changed."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for batch in _batches(table, task, table.schema()):
        found = batch.column("key")
        has_changed = pc.is_in(found, value_set=changed.cast(found.type), skip_nulls=True)
        left = batch.filter(pc.invert(has_changed))
        if left.num_rows:
            yield pa.Table.from_batches([left])


def _with_schema(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with all columns of the table, in its order and of its types."""
    import pyarrow as pa

    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _write(table: Table, rows: pa.Table) -> list[DataFile]:
    from pyiceberg.io.pyarrow import _dataframe_to_data_files

    if not rows.num_rows:
        return []
    rows = rows.sort_by([("key", "ascending"), ("offset", "ascending")])
    return list(_dataframe_to_data_files(table_metadata=table.metadata, df=rows, io=table.io))
