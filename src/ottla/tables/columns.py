"""The columns of a table: those of every record, and one for each field of its value's schema.

A field whose name a column of records has already (engines ignore case) becomes `field_NAME`. A value that
does not have the schema, or that a column of an older schema cannot take, leaves its typed columns null and
says why in `_error`; the record itself is there either way.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ottla.records.arrow import repeated
from ottla.schemas.columns import ColumnType, Converter, converter
from ottla.schemas.errors import WrongData
from ottla.schemas.json_schema import JsonSchemaDocument
from ottla.schemas.schema import MessageSchema

if TYPE_CHECKING:
    import pyarrow as pa


ERROR: Final = "_error"
# The header that says what of a record the table has not.
LEFT_OUT: Final = "ottla.left-out"
RECORD_COLUMNS: Final = ("partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers")
_RESERVED: Final = frozenset((*RECORD_COLUMNS, ERROR))
# What a column of timestamps, in microseconds, and the engines that read it can have: the years 1 to 9999.
_FIRST_MS: Final = -62_135_596_800_000
_LAST_MS: Final = 253_402_300_799_999


def record_schema() -> pa.Schema:
    """The columns of every table."""
    import pyarrow as pa

    header = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
    return pa.schema(
        [
            pa.field("partition", pa.int32(), nullable=False),
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
            pa.field("timestamp_type", pa.int32(), nullable=False),
            pa.field("key", pa.binary()),
            pa.field("value", pa.binary()),
            pa.field("headers", pa.list_(header)),
        ]
    )


def error_field() -> pa.Field:
    """The column that says why a value has no typed columns."""
    import pyarrow as pa

    return pa.field(ERROR, pa.string())


def record_table(partition: int, batch: pa.RecordBatch) -> pa.Table:
    """The decoded records of one partition as rows of a table."""
    import pyarrow as pa
    import pyarrow.compute as pc

    millis = batch.column("timestamp").cast(pa.int64())
    millis = pc.max_element_wise(pc.min_element_wise(millis, _LAST_MS), _FIRST_MS)
    columns = [
        repeated(partition, pa.int32(), batch.num_rows),
        batch.column("offset"),
        millis.cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC")),
        batch.column("timestampType"),
        batch.column("key"),
        batch.column("value"),
        batch.column("headers"),
    ]
    return pa.Table.from_arrays(columns, schema=record_schema())


def without_large(rows: pa.Table, most: int) -> pa.Table:
    """The rows with an empty key, value or list of headers in place of what has more than `most` bytes, and a
    header that says so. A few kilobytes inflate to hundreds of megabytes, and writing a file takes several
    times as much memory. The record is in the topic as it was; a key that is left out is known by its hash.
    """
    if rows.nbytes <= most:
        return rows
    import pyarrow.compute as pc

    lengths = {name: pc.fill_null(pc.binary_length(rows.column(name)), 0) for name in ("key", "value")}
    headers = rows.column("headers")
    has_large = headers.nbytes > most
    if not has_large and all((pc.max(each).as_py() or 0) <= most for each in lengths.values()):
        return rows
    sizes = {name: each.to_pylist() for name, each in lengths.items()}
    sizes["headers"] = [headers.slice(n, 1).nbytes if has_large else 0 for n in range(rows.num_rows)]
    pieces, at = [], 0
    for n in range(rows.num_rows):
        large = [name for name in sizes if sizes[name][n] > most]
        if large:
            pieces += [rows.slice(at, n - at), _cut(rows.slice(n, 1), large, sizes, n)]
            at = n + 1
    pieces.append(rows.slice(at))
    import pyarrow as pa

    # A slice holds the memory of the whole: copy the rows that stay.
    return pa.concat_tables([each for each in pieces if each.num_rows]).combine_chunks()


def _cut(row: pa.Table, large: list[str], sizes: dict[str, list[int]], n: int) -> pa.Table:
    """One row without its large columns."""
    import pyarrow as pa

    said = [{"key": LEFT_OUT, "value": f"the {name} of {sizes[name][n]} bytes".encode()} for name in large]
    for name in large:
        replacement: Any = b""
        if name == "key":
            replacement = hashlib.sha256(row.column("key")[0].as_buffer()).digest()
        if name != "headers":
            row = row.set_column(row.schema.get_field_index(name), row.schema.field(name), [[replacement]])
    kept = [] if "headers" in large else row.column("headers").to_pylist()[0] or []
    headers = row.schema.field("headers")
    return row.set_column(
        row.schema.get_field_index("headers"), headers, pa.chunked_array([[[*kept, *said]]], headers.type)
    )


def arrow_type(column: ColumnType) -> pa.DataType:
    import pyarrow as pa

    if column.kind == "struct":
        return pa.struct([pa.field(name, arrow_type(each)) for name, each in column.fields])
    if column.kind == "list":
        assert column.item is not None
        return pa.list_(arrow_type(column.item))
    if column.kind == "map":
        assert column.item is not None
        return pa.map_(pa.string(), arrow_type(column.item))
    if column.kind == "decimal":
        return pa.decimal128(38, column.scale)
    return {
        "boolean": pa.bool_(),
        "long": pa.int64(),
        "double": pa.float64(),
        "hex": pa.binary(),
        "base64": pa.binary(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "local-timestamp": pa.timestamp("us"),
    }.get(column.kind, pa.string())


@dataclass(frozen=True, slots=True)
class _Column:
    field: str
    type: ColumnType
    convert: Converter


class TypedColumns:
    """The typed columns of the values of one schema."""

    def __init__(self, schema: MessageSchema) -> None:
        self.schema: Final = schema
        self.columns: Final[dict[str, _Column]] = {}
        taken = set(_RESERVED)
        for field, kind in schema.columns():
            name = f"field_{field}" if field.lower() in taken else field
            if name.lower() not in taken:
                taken.add(name.lower())
                self.columns[name] = _Column(field, kind, converter(kind, f"field {field!r}"))
        # Columns that the table has with another type.
        self.unfit: set[str] = set()

    def arrow_schema(self) -> pa.Schema:
        import pyarrow as pa

        fields = [pa.field(name, arrow_type(each.type)) for name, each in self.columns.items()]
        return pa.schema([*fields, error_field()])

    def decoder(self) -> Callable[[bytes], dict[str, Any]]:
        """Make the function that decodes a value to its columns; WrongData if it has another form."""
        columns = [(name, each.field, each.convert) for name, each in self.columns.items()]
        columns = [each for each in columns if each[0] not in self.unfit]
        unfit = sorted(self.unfit)
        schema = self.schema

        def decode(data: bytes) -> dict[str, Any]:
            if isinstance(schema.schema, JsonSchemaDocument):
                try:
                    value = json.loads(data)
                except (ValueError, RecursionError) as error:
                    raise WrongData(f"no JSON: {error}") from None
            else:
                value, _ = schema.decode(data)
            if not isinstance(value, dict):
                raise WrongData(f"the value is no object: {str(value)[:60]!r}")
            row = {name: convert(value.get(field)) for name, field, convert in columns}
            if unfit:
                row[ERROR] = f"the table has another type for {', '.join(unfit)}"
            return row

        return decode
