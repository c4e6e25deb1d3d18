"""Keys and values decoded in tasks, a column at a time, by the schema of the query.

What a record was written with is found by the id before its data, or the GUID in a header, at the registry,
once for each process. A
registry that does not answer fails the task, which Spark repeats; a record that does not parse fails nothing:
its column is null, and `_error` says why.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import lru_cache
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, Protocol

from ottla.client.serdes.framing import frame_of, header_name
from ottla.client.serdes.schema_text import SchemaText, schema_of
from ottla.runtime.clock import SystemClock
from ottla.schemas.columns import ColumnType, converter
from ottla.schemas.errors import SchemaError, WrongData
from ottla.schemas.parsed import InvalidSchemaError
from ottla.schemas.registry import WIRE_HEAD
from ottla.schemas.registry_client import RegistryRequestError
from ottla.spark.typed.options import RecordFormat, RegistryOptions
from ottla.spark.typed.schemas import ReaderSchema, registry_client

if TYPE_CHECKING:
    import pyarrow as pa

    from ottla.schemas.avro_arrow import AvroArrowDecoder, RowErrors


MAX_ERROR: Final = 500
_MAX_SCHEMAS: Final = 1_000
# Stands behind a header that names a schema, so that it is none of the first bytes of a value.
_OF_HEADER: Final = b"\0"
_MAX_DECODERS: Final = 32
# Rows of a batch with several schemas that are put together at once.
_MIXED_ROWS: Final = 1_000
# Of ids without a schema, those that are asked for in one batch: a producer of another format makes a new one
# with each record.
_MAX_UNKNOWN: Final = 32
_FAILURE_NS: Final = 30 * 1_000_000_000
# Statuses of a registry that a login, or time, changes: nothing is known of a schema then.
_TRANSIENT: Final = frozenset((401, 403, 408, 429))


class ColumnDecoder(Protocol):
    """Decodes the keys or values of a query."""

    def decode(
        self, values: pa.Array, headers: pa.Array | None = None
    ) -> Iterator[tuple[pa.Array, RowErrors]]:
        """Yield the column, in parts, with the rows of each part that do not parse, which are null. `headers`
        are those that name schemas, null in rows that have none.
        """


def schema_headers(headers: pa.Array, column: str) -> pa.Array | None:
    """The headers of records that name the schemas of a column; None if there are none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    each = headers.flatten()
    if not len(each):
        return None
    is_one = pc.equal(pc.struct_field(each, "key"), header_name(is_key=column == "key"))
    rows = pc.list_parent_indices(headers).filter(is_one)
    if not len(rows):
        return None
    # Of several in one record the first.
    places = pc.index_in(pa.array(range(len(headers)), rows.type), rows)
    return pc.struct_field(each, "value").filter(is_one).take(places)


# Those of this process, for its next tasks. Not by the schema itself: one that refers to others in many ways
# takes long to compare.
_decoders: Final[dict[tuple[str, str, RegistryOptions | None], ColumnDecoder]] = {}


def column_decoder(schema: ReaderSchema, target: pa.DataType) -> ColumnDecoder:
    """The decoder of a schema."""
    key = (schema.column, schema.metadata(), schema.registry)
    found = _decoders.get(key)
    if found is None:
        while len(_decoders) >= _MAX_DECODERS:
            del _decoders[next(iter(_decoders))]
        found = _decoders[key] = (
            _AvroDecoder(schema)
            if schema.format is RecordFormat.AVRO
            else _ValueDecoder(_decode_value(schema, target), target)
        )
    return found


class _AvroDecoder:
    def __init__(self, schema: ReaderSchema) -> None:
        from ottla.client.serdes.avro import avro_definition
        from ottla.schemas.avro_arrow import arrow_type

        self._reader: Final = avro_definition(schema.schema)
        self._type: Final = arrow_type(self._reader)
        self._registry: Final = schema.registry
        # By the first bytes of a value: what decodes it, or why nothing does.
        self._known: Final[dict[bytes, AvroArrowDecoder | str]] = {}

    def decode(
        self, values: pa.Array, headers: pa.Array | None = None
    ) -> Iterator[tuple[pa.Array, RowErrors]]:
        import pyarrow as pa
        import pyarrow.compute as pc

        if self._registry is None:
            yield from self._made(b"", None).decode(values)
            return
        heads = pc.binary_slice(values, 0, WIRE_HEAD)
        if headers is not None:
            marked = pc.binary_join_element_wise(headers, pa.scalar(_OF_HEADER, headers.type), b"")
            heads = pc.if_else(pc.is_valid(values), pc.coalesce(marked, heads), None)
        heads = heads.dictionary_encode()
        kinds = heads.dictionary.to_pylist()
        self._find(kinds)
        only = self._known.get(kinds[0]) if len(kinds) == 1 else None
        if only is not None and not isinstance(only, str):
            yield from only.decode(values, _data_begin(kinds[0]))
            return
        for at in range(0, len(values), _MIXED_ROWS):
            yield self._mixed(values.slice(at, _MIXED_ROWS), heads.slice(at, _MIXED_ROWS).indices, kinds)

    def _mixed(self, values: pa.Array, places: pa.Array, kinds: list[bytes]) -> tuple[pa.Array, RowErrors]:
        """Values of several schemas: decode each schema's, and put them in their order again."""
        import pyarrow as pa
        import pyarrow.compute as pc

        parts: list[pa.Array] = []
        rows_of_parts: list[pa.Array] = []
        errors: RowErrors = []
        for place in pc.unique(places).to_pylist():
            mask = pc.is_null(places) if place is None else pc.equal(places, place)
            rows = pc.indices_nonzero(mask)
            decoder = None if place is None else self._known[kinds[place]]
            if decoder is None or isinstance(decoder, str):
                parts.append(pa.nulls(len(rows), self._type))
                if decoder is not None:
                    errors += [(row, decoder) for row in rows.to_pylist()]
            else:
                at = 0
                begin = _data_begin(kinds[place])
                for part, faults in decoder.decode(values.take(rows), begin):
                    parts.append(part)
                    errors += [(rows[at + row].as_py(), why) for row, why in faults]
                    at += len(part)
            rows_of_parts.append(rows)
        if not parts:
            return pa.nulls(0, self._type), []
        order = pc.sort_indices(pa.concat_arrays(rows_of_parts))
        return pa.concat_arrays(parts).take(order), errors

    def _find(self, kinds: list[bytes]) -> None:
        """Find the decoders of these first bytes of values."""
        unknown = 0
        for head in kinds:
            known = self._known.get(head)
            if known is not None and not isinstance(known, str):
                continue
            self._known.pop(head, None)
            header = head.removesuffix(_OF_HEADER) if _data_begin(head) == 0 else None
            try:
                schema = frame_of(head, header, has_indexes=False).schema
            except ValueError as error:
                self._known[head] = str(error)
                continue
            if unknown >= _MAX_UNKNOWN:
                self._known[head] = f"the registry did not have {_MAX_UNKNOWN} others of this batch"
                continue
            assert self._registry is not None
            try:
                self._made(head, written_schema(self._registry, schema, RecordFormat.AVRO))
            except (SchemaError, InvalidSchemaError, RecursionError) as error:
                unknown += 1
                self._known[head] = str(error) or "its schema is nested too deeply"
        while len(self._known) > max(_MAX_SCHEMAS, len(kinds)):
            del self._known[next(iter(self._known))]

    def _made(self, head: bytes, written: SchemaText | None) -> AvroArrowDecoder:
        from ottla.client.serdes.avro import avro_definition
        from ottla.schemas.avro_arrow import AvroArrowDecoder

        found = self._known.get(head)
        if found is None or isinstance(found, str):
            writer = self._reader if written is None else avro_definition(written)
            found = self._known[head] = AvroArrowDecoder(writer, self._reader)
        return found


def _data_begin(head: bytes) -> int:
    """Where the data begin of values that a head is of: after it, unless it is that of a header."""
    return 0 if len(head) > WIRE_HEAD else WIRE_HEAD


class RegistryUnavailable(Exception):
    """The registry does not say what a record was written with."""


@lru_cache(maxsize=_MAX_SCHEMAS)
def written_schema(registry: RegistryOptions, schema_id: int | str, format: RecordFormat) -> SchemaText:
    """The schema of an id or GUID, which never changes. SchemaError if the registry has none that fits."""
    from ottla.runtime.http import HttpError

    client = registry_client(registry)
    try:
        kind_of_id = "ids" if isinstance(schema_id, int) else "guids"
        document = client.call("GET", f"/schemas/{kind_of_id}/{schema_id}")
        kind = str(document.get("schemaType") or "AVRO").lower().replace("json", "json-schema")
        if kind != format:
            raise SchemaError(f"the schema {schema_id} of the registry is one of {kind}, not {format}")
        return schema_of(client, document)
    except HttpError as error:
        raise RegistryUnavailable(f"the schema registry does not answer: {error}") from None
    except RegistryRequestError as error:
        if error.status in _TRANSIENT or error.status >= 500:
            raise RegistryUnavailable(f"the registry does not give schema {schema_id}: {error}") from None
        raise SchemaError(f"the registry has no schema {schema_id}: {error}") from None


# Value by value


_Decode = Callable[[bytes, bytes | None], Any]
"""Reads a value by its data and the header that names its schema."""


class _ValueDecoder:
    def __init__(self, decode: _Decode, target: pa.DataType) -> None:
        self._decode: Final = decode
        self._type: Final = target

    def decode(
        self, values: pa.Array, headers: pa.Array | None = None
    ) -> Iterator[tuple[pa.Array, RowErrors]]:
        from ottla.schemas.avro_arrow import fitting_array

        found: list[Any] = []
        errors: RowErrors = []
        named = repeat(None) if headers is None else headers.to_pylist()
        for row, (value, header) in enumerate(zip(values.to_pylist(), named, strict=False)):
            try:
                found.append(None if value is None else self._decode(value, header))
            except (WrongData, SchemaError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
                found.append(None)
                errors.append((row, str(error) or type(error).__name__))
        yield fitting_array(found, self._type, errors), errors


def _decode_value(schema: ReaderSchema, target: pa.DataType) -> _Decode:
    if schema.format is RecordFormat.PROTOBUF:
        return _protobuf(schema)
    columns = (
        _json_columns(target)
        if schema.format is RecordFormat.JSON
        else ColumnType("struct", schema.columns())
    )
    convert = converter(columns, schema.column)
    framed = schema.registry is not None

    def decode(data: bytes, header: bytes | None) -> Any:
        if framed:
            data = frame_of(data, header, has_indexes=False).data
        try:
            value = json.loads(data, parse_float=Decimal if schema.format is RecordFormat.JSON else None)
        except (ValueError, RecursionError) as error:
            raise WrongData(f"no JSON: {error}") from None
        if not isinstance(value, dict):
            raise WrongData(f"no object of JSON: {str(value)[:60]!r}")
        return convert(value)

    return decode


def _protobuf(schema: ReaderSchema) -> _Decode:
    messages = schema.protobuf()
    convert = converter(ColumnType("struct", schema.columns()), schema.column)
    place = messages.indexes_of(messages.message)
    registry = schema.registry

    clock = SystemClock()
    # Ids that the registry did not have: why, and until when that holds.
    missing: dict[int | str, tuple[str, int]] = {}

    @lru_cache(maxsize=_MAX_SCHEMAS)
    def known_name_of(schema_id: int | str, indexes: tuple[int, ...]) -> str:
        from ottla.client.serdes.protobuf import protobuf_schema

        assert registry is not None
        written = written_schema(registry, schema_id, RecordFormat.PROTOBUF)
        return protobuf_schema(written, None).message_at(indexes)

    def name_of(schema_id: int | str, indexes: tuple[int, ...]) -> str:
        why, until_ns = missing.get(schema_id, ("", 0))
        if clock.monotonic_ns() < until_ns:
            raise WrongData(why)
        try:
            return known_name_of(schema_id, indexes)
        except (SchemaError, InvalidSchemaError) as error:
            while len(missing) > _MAX_SCHEMAS:
                del missing[next(iter(missing))]
            missing[schema_id] = str(error), clock.monotonic_ns() + _FAILURE_NS
            raise WrongData(str(error)) from None

    def decode(data: bytes, header: bytes | None) -> Any:
        if registry is not None:
            schema_id, indexes, data = frame_of(data, header, has_indexes=True)
            if indexes != place and (name := name_of(schema_id, indexes)) != messages.message:
                raise WrongData(f"the message is a {name}, not a {messages.message}")
        return convert(messages.decode(data))

    return decode


def _json_columns(kind: pa.DataType) -> ColumnType:
    """How values of JSON become those of a type."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return ColumnType("struct", tuple((each.name, _json_columns(each.type)) for each in kind))
    if pa.types.is_list(kind):
        return ColumnType("list", item=_json_columns(kind.value_type))
    if pa.types.is_map(kind):
        return ColumnType("map", item=_json_columns(kind.item_type))
    if pa.types.is_decimal(kind):
        return ColumnType("decimal", scale=kind.scale)
    if pa.types.is_integer(kind):
        return ColumnType("long")
    if pa.types.is_floating(kind):
        return ColumnType("double")
    if pa.types.is_timestamp(kind):
        return ColumnType("timestamp" if kind.tz else "local-timestamp")
    found = {"bool": "boolean", "binary": "base64", "date32[day]": "date"}.get(str(kind), "string")
    return ColumnType(found)
