"""Records with typed keys and values: their columns in Spark's plan, and the batches of a task.

The rest of the source reads bytes, from brokers, segments and tables alike; what it reads is decoded here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ottla.spark.source.columns import ERROR, arrow_schema, spark_schema
from ottla.spark.source.options import SourceOptions
from ottla.spark.typed.options import FormatOptions, format_options
from ottla.spark.typed.schemas import METADATA, ReaderSchema, column_type, reader_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructField, StructType


log = logging.getLogger(__name__)


def typed_schema(options: Mapping[str, str], columns: tuple[str, ...]) -> StructType:
    """Find the schemas that the options name, and make the columns of them."""
    given = {name.lower(): str(value) for name, value in options.items()}
    topics = [name.strip() for name in given.get("subscribe", "").split(",") if name.strip()]
    topic = topics[0] if len(topics) == 1 else None
    formats = format_options(given)
    typed = {each.column: _field(reader_schema(each, topic)) for each in formats if each.column in columns}
    return spark_schema(columns, typed)


def _field(schema: ReaderSchema) -> StructField:
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField

    return StructField(
        schema.column, from_arrow_type(column_type(schema)), metadata={METADATA: schema.metadata()}
    )


def with_schemas(options: SourceOptions, schema: StructType) -> SourceOptions | None:
    """The options with the schemas that are in Spark's plan; None if it is not a plan of these options."""
    fields = {each.name: each for each in schema.fields}
    typed = {each.column: fields.get(each.column) for each in options.formats if each.column in fields}
    if any(each is None or METADATA not in each.metadata for each in typed.values()):
        return None
    known = {name: each for name, each in typed.items() if each is not None}
    if schema != spark_schema(options.columns, known):
        return None
    return replace(
        options,
        schemas=tuple(_of(each, known[each.column]) for each in options.formats if each.column in known),
    )


def _of(options: FormatOptions, field: StructField) -> ReaderSchema:
    return ReaderSchema.of(options, field.metadata[METADATA])


def bytes_options(options: SourceOptions) -> SourceOptions:
    """The options by which the bytes are read."""
    wanted = [_source_of(name) for name in options.columns if name != ERROR]
    if ERROR in options.columns:
        wanted += [each.column for each in options.schemas]
    if any(each.registry is not None for each in options.schemas):
        wanted.append("headers")  # they may have the ids of schemas
    return replace(options, columns=tuple(dict.fromkeys(wanted)) or ("offset",), formats=(), schemas=())


def _source_of(name: str) -> str:
    return name.removesuffix("Bytes")


def typed_batches(options: SourceOptions, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Decode the keys and values of batches that were read by `bytes_options`."""
    failed = total = 0
    first = ""
    kinds = {each.column: _spark_form(column_type(each)) for each in options.schemas}
    schema = _arrow_schema(options.columns, kinds)
    for batch in batches:
        for part, errors in _decoded(options, kinds, batch):
            if errors:
                failed += len(errors)
                first = first or next(iter(errors.values()))
                if options.fail_fast:
                    raise ValueError(f"a record does not parse, and mode is FAILFAST: {first}")
            total += len(next(iter(part.values())))
            yield _shaped(part, errors, schema)
    if failed:
        log.warning("%d of %d records did not parse, the first as: %s", failed, total, first)


def _decoded(
    options: SourceOptions, kinds: Mapping[str, pa.DataType], batch: pa.RecordBatch
) -> Iterator[tuple[dict[str, pa.Array], dict[int, str]]]:
    """Yield columns by their names, and why rows have none, for a part of the batch at a time."""
    from ottla.spark.typed.decoding import column_decoder, schema_headers

    def headers_of(schema: ReaderSchema, rows: Mapping[str, pa.Array]) -> pa.Array | None:
        return None if schema.registry is None else schema_headers(rows["headers"], schema.column)

    given = {name: batch.column(name) for name in batch.schema.names}
    if not options.schemas:
        yield given | {f"{name}Bytes": given[name] for name in ("key", "value") if name in given}, {}
        return
    last = options.schemas[-1]
    begin = 0
    decoder = column_decoder(last, kinds[last.column])
    for part, faults in decoder.decode(given[last.column], headers_of(last, given)):
        rows = {name: each.slice(begin, len(part)) for name, each in given.items()}
        begin += len(part)
        found = rows | {f"{name}Bytes": rows[name] for name in ("key", "value") if name in rows}
        found[last.column] = part
        errors = _named(last.column, faults)
        for each in options.schemas[:-1]:
            others = column_decoder(each, kinds[each.column])
            parts = list(others.decode(rows[each.column], headers_of(each, rows)))
            at = 0
            for array, more in parts:
                for row, why in _named(each.column, [(row + at, why) for row, why in more]).items():
                    errors[row] = f"{why}; {errors[row]}" if row in errors else why
                at += len(array)
            found[each.column] = _joined([array for array, _ in parts], kinds[each.column])
        yield found, errors


def _joined(parts: list[pa.Array], kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    return pa.concat_arrays(parts) if parts else pa.nulls(0, kind)


def _named(column: str, faults: list[tuple[int, str]]) -> dict[int, str]:
    from ottla.spark.typed.decoding import MAX_ERROR

    return {row: f"{column}: {why}"[:MAX_ERROR] for row, why in faults}


def _arrow_schema(columns: tuple[str, ...], kinds: Mapping[str, pa.DataType]) -> pa.Schema:
    import pyarrow as pa

    own = {"keyBytes": pa.binary(), "valueBytes": pa.binary(), ERROR: pa.string(), **kinds}
    return pa.schema(
        [pa.field(name, own[name]) if name in own else arrow_schema((name,)).field(0) for name in columns]
    )


def _spark_form(kind: pa.DataType) -> pa.DataType:
    """The type as Spark writes it in Arrow."""
    from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
    from pyspark.sql.types import StructType

    return to_arrow_schema(StructType().add("it", from_arrow_type(kind)), timezone="UTC").field(0).type


def _shaped(columns: dict[str, pa.Array], errors: dict[int, str], schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    arrays = []
    for field in schema:
        if field.name == ERROR:
            rows = len(next(iter(columns.values())))
            if errors:
                arrays.append(pa.array([errors.get(row) for row in range(rows)], pa.string()))
            else:
                arrays.append(pa.nulls(rows, pa.string()))
            continue
        array = columns[field.name]
        arrays.append(array if array.type.equals(field.type) else array.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
