"""Record batches to Arrow and back, column by column.

Decoding writes keys, values, headers, offsets and timestamps straight into memory of Arrow's layout, which
Arrow then only wraps: no Python object is made per record, and columns that the caller does not request are
not filled. Encoding reads Arrow's memory the same way.

The columns have the names and meanings of Spark's Kafka source. pyarrow is imported when a function of this
module is called, so that a broker without it never notices.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ottla.records._kernel import COLUMNS, BinaryColumn, BinaryInput, Block, Columns, Encoder, Rows
from ottla.records.reader import MAX_OFFSET, open_reader
from ottla.records.types import (
    MAX_DECOMPRESSED_BYTES,
    NO_TIMESTAMP,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from typing_extensions import Buffer

ALL_COLUMNS: tuple[str, ...] = tuple(COLUMNS)
"""key, value, headers, offset, timestamp, timestampType."""
DEFAULT_BATCH_BYTES = 1024 * 1024
SHARED_ROWS = 10_000
SHARED_TEXT = 64
_MAX_SEQUENCE = 2**31


def arrow_schema(columns: Sequence[str] = ALL_COLUMNS) -> pa.Schema:
    """The schema that decoding to these columns gives."""
    return _schema_of(tuple(columns))


@lru_cache(maxsize=64)
def _schema_of(columns: tuple[str, ...]) -> pa.Schema:
    import pyarrow as pa

    types = {
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": pa.list_(
            pa.struct([pa.field("key", pa.string(), nullable=False), ("value", pa.binary())])
        ),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("ms", tz="UTC"),
        "timestampType": pa.int32(),
    }
    nullable = {"key", "value", "headers"}
    return pa.schema([pa.field(name, types[name], nullable=name in nullable) for name in columns])


class ArrowDecoder:
    """Collects the records that a consumer of one partition sees into Arrow record batches.

    `headers` is null for a record without headers, as in Spark, unless `empty_headers` asks for an empty
    list. After an error in the bytes the rows that were collected are void; make a new decoder.
    """

    def __init__(
        self,
        *,
        columns: Sequence[str] = ALL_COLUMNS,
        start_offset: int = 0,
        end_offset: int = MAX_OFFSET,
        empty_headers: bool = False,
        check_crc: bool = True,
        max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
        expected_bytes: int = 0,
    ) -> None:
        unknown = [name for name in columns if name not in COLUMNS]
        if unknown:
            raise ValueError(f"unknown columns {unknown}; there are {', '.join(ALL_COLUMNS)}")
        self._schema = arrow_schema(columns)
        wanted = sum({COLUMNS[name] for name in columns})
        self._empty_headers = empty_headers
        self._columns = Columns(wanted, value_bytes=expected_bytes)
        self._reader = open_reader(
            start_offset=start_offset,
            end_offset=end_offset,
            check_crc=check_crc,
            max_decompressed_bytes=max_decompressed_bytes,
        )

    @property
    def rows(self) -> int:
        """Rows collected since the last `finish`."""
        return self._columns.rows

    @property
    def nbytes(self) -> int:
        """Bytes of keys, values and headers collected since the last `finish`."""
        return self._columns.nbytes

    @property
    def next_offset(self) -> int:
        """Where the next fetch begins."""
        return self._reader.next_offset

    def set_aborted(self, aborted: Iterable[tuple[int, int]]) -> None:
        """The (producer id, first offset) pairs of the transactions aborted within the bytes that come
        next.
        """
        self._reader.set_aborted(aborted)

    def feed(self, buf: Buffer) -> None:
        """Collect the records of the complete batches in `buf` that a consumer sees."""
        self._reader.read_columns(buf, self._columns)

    def finish(self) -> pa.RecordBatch:
        """Return the collected rows, which now belong to the caller, and start with empty columns again."""
        import pyarrow as pa

        columns, self._columns = self._columns, self._columns.renewed()
        schema = self._schema
        arrays = [self._array(columns, field) for field in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _array(self, columns: Columns, field: pa.Field) -> pa.Array:
        import pyarrow as pa

        rows = columns.rows
        match field.name:
            case "key" | "value":
                column = columns.key if field.name == "key" else columns.value
                if column.null_count == rows:
                    return repeated(None, field.type, rows)
                return _binary_array(column, field.type)
            case "offset":
                return pa.Array.from_buffers(field.type, rows, [None, _to_buffer(columns.offset)])
            case "timestamp":
                return pa.Array.from_buffers(field.type, rows, [None, _to_buffer(columns.timestamp)])
            case "timestampType":
                return pa.Array.from_buffers(field.type, rows, [None, _to_buffer(columns.timestamp_type)])
        if not columns.rows_with_headers and not self._empty_headers:
            return repeated(None, field.type, rows)
        entries = field.type.value_type
        pairs = pa.Array.from_buffers(
            entries,
            columns.header_key.rows,
            [None],
            children=[
                _binary_array(columns.header_key, entries.field(0).type),
                _binary_array(columns.header_value, entries.field(1).type),
            ],
        )
        with_nulls = columns.rows_with_headers < rows and not self._empty_headers
        return pa.Array.from_buffers(
            field.type,
            rows,
            [_to_buffer(columns.header_valid) if with_nulls else None, _to_buffer(columns.header_offsets)],
            children=[pairs],
        )


def encode_rows(
    data: pa.RecordBatch,
    *,
    default_timestamp: int = NO_TIMESTAMP,
    max_batch_bytes: int = DEFAULT_BATCH_BYTES,
) -> Iterator[Encoder]:
    """The same rows, one `Encoder` for each batch, for callers that close the batches later."""
    rows = _rows_of(data, default_timestamp)
    at = 0
    while at < rows.count:
        encoder = Encoder(capacity=max_batch_bytes)
        at = rows.encode(encoder, at, max_batch_bytes)
        yield encoder


def partitions_of(keys: pa.Array, partitions: int) -> pa.Array:
    """The partition of each key as Kafka's default partitioner places it, null where there is no key."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = Rows(len(keys), key=_binary_input(keys)).partitions(partitions)
    numbers = pa.Array.from_buffers(pa.int32(), len(keys), [None, pa.py_buffer(found)])
    return pc.if_else(pc.less(numbers, 0), pa.scalar(None, pa.int32()), numbers)


def repeated(value: object, kind: pa.DataType, rows: int) -> pa.Array:
    """A column with one value throughout; short ones share their memory with all others of that value."""
    if rows > SHARED_ROWS or (isinstance(value, str) and len(value) > SHARED_TEXT):
        import pyarrow as pa

        return pa.repeat(pa.scalar(value, kind), rows)
    return _shared_column(value, kind).slice(0, rows)


@lru_cache(maxsize=64)
def _shared_column(value: object, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    return pa.repeat(pa.scalar(value, kind), SHARED_ROWS)


def _to_buffer(block: Block) -> pa.Buffer:
    import pyarrow as pa

    block.shrink(len(block))
    return pa.py_buffer(block)


def _binary_array(column: BinaryColumn, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    valid, offsets, data = column.buffers()
    return pa.Array.from_buffers(
        kind,
        column.rows,
        [_to_buffer(valid) if valid is not None else None, _to_buffer(offsets), _to_buffer(data)],
        null_count=column.null_count,
    )


def _rows_of(data: pa.RecordBatch, default_timestamp: int) -> Rows:
    import pyarrow as pa
    import pyarrow.compute as pc

    columns: dict[str, Any] = {name: data.column(name) for name in data.schema.names}
    inputs: dict[str, Any] = {"default_timestamp": default_timestamp}
    for name in ("key", "value"):
        if columns.get(name) is not None:
            inputs[name] = _binary_input(columns[name])
    if (stamps := columns.get("timestamp")) is not None:
        if pa.types.is_timestamp(stamps.type):
            stamps = stamps.cast(pa.timestamp("ms", tz=stamps.type.tz), safe=False)
        numbers = pc.fill_null(stamps.cast(pa.int64()), default_timestamp)
        inputs["timestamps"] = numbers.buffers()[1].slice(numbers.offset * 8)
    if (headers := columns.get("headers")) is not None and not pa.types.is_null(headers.type):
        if not pa.types.is_list(headers.type):
            headers = headers.cast(pa.list_(headers.type.value_type))
        pairs = headers.values
        if pairs.null_count:
            raise ValueError("a header is null; leave it out of its list instead")
        valid, offsets = headers.buffers()[:2]
        inputs["lists"] = BinaryInput(valid, offsets, None, first=headers.offset, rows=len(headers))
        inputs["header_key"] = _binary_input(pairs.field(0))
        inputs["header_value"] = _binary_input(pairs.field(1))
    return Rows(data.num_rows, **inputs)


def _binary_input(array: pa.Array) -> BinaryInput | None:
    """The memory of a column of bytes or text; None if all of it is null."""
    import pyarrow as pa

    kind = array.type
    if pa.types.is_null(kind):
        return None
    wide = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)
    if not (wide or pa.types.is_binary(kind) or pa.types.is_string(kind)):
        array = array.cast(pa.binary())
    valid, offsets, data = array.buffers()
    return BinaryInput(valid, offsets, data, first=array.offset, rows=len(array), wide=wide)
