"""The columns that are written, with the names, types and errors of Spark's own Kafka sink.

`value` is required; `key`, `headers`, `partition` and `timestamp` are optional; `topic` is optional if the
option of that name is set, which then applies to all rows. Other columns are ignored, as in Spark, except
those of dead letters (`ottla.spark.expectations`): such a letter is written in place of its row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


DEAD_LETTER = "_dead_letter"
"""The beginning of the names of columns with dead letters: structs of a topic and the fields of a record,
null in rows that are written themselves.
"""
_LETTER_COLUMNS = ["key", "value", "headers"]
_RECORD_COLUMNS = ("key", "value", "headers", "partition", "timestamp")
_TEXT_OR_BYTES = ("string", "binary")
_TRACEPARENT = "traceparent"
_HEADERS = "array<struct<key:string,value:binary>>"
_TYPES = {
    "topic": ("string",),
    "key": _TEXT_OR_BYTES,
    "value": _TEXT_OR_BYTES,
    "headers": (_HEADERS,),
    "partition": ("int",),
    "timestamp": ("timestamp", "timestamp_ntz"),
}


def check_schema(schema: StructType, topic: str | None, typed: Collection[str] = ()) -> None:
    """Raise the error of Spark's own sink if these columns cannot be written. `typed` are encoded before."""
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    if topic is None and "topic" not in types:
        raise ValueError(
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a "
            "topic."
        )
    if "value" not in types:
        raise ValueError("Required attribute 'value' not found")
    for name, allowed in _TYPES.items():
        if name not in types or name in typed or (name == "topic" and topic is not None):
            continue
        found = types[name]
        if found.startswith("string collate"):
            found = "string"
        if found not in allowed:
            raise ValueError(
                f"{name} attribute unsupported type {types[name]}. {name} must be a(n) {' or '.join(allowed)}"
            )


def columns_to_write(schema: StructType) -> tuple[str, ...]:
    names = {field.name for field in schema.fields}
    return tuple(name for name in _RECORD_COLUMNS if name in names)


def largest_field(records: pa.RecordBatch) -> int:
    """The size in bytes of the largest key or value."""
    import pyarrow.compute as pc

    names = [name for name in ("key", "value") if name in records.schema.names]
    return max((pc.max(pc.binary_length(records.column(name))).as_py() or 0 for name in names), default=0)


def check_timestamps(records: pa.RecordBatch) -> None:
    """Raise ValueError for a time before 1970, which no record of Kafka has."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if "timestamp" in records.schema.names:
        earliest = pc.min(records.column("timestamp")).cast(pa.int64()).as_py()
        if earliest is not None and earliest < 0:
            first = pc.min(records.column("timestamp")).as_py()
            raise ValueError(
                f"the column timestamp has {first}: a record has no time before 1970. Leave null there for "
                "the time of the write"
            )


def rows_by_topic(
    batch: pa.RecordBatch, columns: tuple[str, ...], topic: str | None, traceparent: str | None = None
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield (topic, its rows with the columns of a record); rows of one topic keep their order. With
    `traceparent` each row has the header of that name, its own or this one.
    """
    for found, rows in _rows_by_topic(batch, columns, topic):
        yield found, rows if traceparent is None else _with_traceparent(rows, traceparent)


def _rows_by_topic(
    batch: pa.RecordBatch, columns: tuple[str, ...], topic: str | None
) -> Iterator[tuple[str, pa.RecordBatch]]:
    for name in batch.schema.names:
        if name.startswith(DEAD_LETTER):
            batch, letters = _take_letters(batch, name)
            yield from letters
    if batch.num_rows:
        yield from _plain_rows_by_topic(batch, columns, topic)


def _with_traceparent(rows: pa.RecordBatch, traceparent: str) -> pa.RecordBatch:
    import pyarrow as pa

    header = {"key": _TRACEPARENT, "value": traceparent.encode()}
    names = rows.schema.names
    present = rows.column("headers").to_pylist() if "headers" in names else [None] * rows.num_rows
    headers = [
        each if any(one["key"] == _TRACEPARENT for one in each or ()) else [*(each or ()), header]
        for each in present
    ]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    columns = {name: rows.column(name) for name in names}
    columns["headers"] = pa.array(headers, kind)
    return pa.RecordBatch.from_pydict(columns)


def _take_letters(
    batch: pa.RecordBatch, name: str
) -> tuple[pa.RecordBatch, list[tuple[str, pa.RecordBatch]]]:
    """Take the rows with a letter out of the batch; the rows that are left, and the letters by topic."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = batch.column(name)
    if found.null_count == len(found):
        return batch, []
    letters = found.drop_null()
    topics = pc.struct_field(letters, "topic")
    fields = [pc.struct_field(letters, each) for each in _LETTER_COLUMNS]
    records = pa.RecordBatch.from_arrays(fields, names=_LETTER_COLUMNS)
    by_topic = [(each.as_py(), records.filter(pc.equal(topics, each))) for each in pc.unique(topics)]
    return batch.filter(pc.is_null(found)), by_topic


def _plain_rows_by_topic(
    batch: pa.RecordBatch, columns: tuple[str, ...], topic: str | None
) -> Iterator[tuple[str, pa.RecordBatch]]:
    import pyarrow.compute as pc

    records = batch.select(list(columns))
    if topic is not None:
        yield topic, records
        return
    topics = batch.column("topic")
    if topics.null_count:
        raise ValueError(
            "null topic present in the data. Use the topic option for setting a topic for all rows, or leave "
            "such rows out."
        )
    names = pc.unique(topics)
    if len(names) == 1:
        yield names[0].as_py(), records
        return
    for name in names:
        yield name.as_py(), records.filter(pc.equal(topics, name))
