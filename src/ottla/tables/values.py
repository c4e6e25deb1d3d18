"""The values of records as typed columns: by the schema of the topic, or by the ids of a registry."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ottla.runtime.clock import SystemClock
from ottla.runtime.pool import InlinePool
from ottla.schemas.errors import SchemaError, WrongData
from ottla.schemas.registry import WIRE_HEAD, NoSuchSchema, SchemaRegistry, message_indexes, parse_wire_format
from ottla.schemas.schema import MessageSchema, SchemaFormat, make_schema
from ottla.tables.columns import ERROR, TypedColumns
from ottla.tables.errors import TableError
from ottla.tables.settings import TableSettings

if TYPE_CHECKING:
    import pyarrow as pa


Decoder = Callable[[bytes], dict[str, Any]]
# Ids without a schema that are looked up for one write. A producer of another format makes a new one with
# each record, and each costs a request.
_MAX_MISSING: Final = 32
# Such ids that are remembered, and for how long.
_MAX_REMEMBERED: Final = 10_000
_REMEMBERED_NS: Final = 300 * 1_000_000_000
# Gives the typed columns the columns of the table, before rows are written.
Evolve = Callable[[TypedColumns], None]


class ValueColumns:
    """`evolve` is called with each schema before the first value of it is written."""

    def __init__(self, settings: TableSettings, evolve: Evolve) -> None:
        self._evolve: Final = evolve
        self._fixed: TypedColumns | None = None
        self._registry: SchemaRegistry | None = None
        # By the id of the schema: how its values are decoded, and their columns.
        self._by_id: dict[int, tuple[Decoder, TypedColumns]] = {}
        # Those without a schema: why, and until when that holds.
        self._missing: dict[int, tuple[str, int]] = {}
        self._clock: Final = SystemClock()
        self._missing_left = _MAX_MISSING
        kind = settings.schema_type
        if kind in ("json", "avro", "protobuf"):
            try:
                self._fixed = TypedColumns(make_schema("table.schema", kind, settings.schema))
            except SchemaError as error:
                raise TableError(f"invalid table.schema: {error}") from None
            evolve(self._fixed)
        elif kind == "registry":
            if settings.registry_url is None:
                raise TableError("table.schema.type=registry needs the setting table.schema.registry.url")
            self._registry = SchemaRegistry(settings.registry_url, InlinePool(), SystemClock())

    def append_to(self, table: pa.Table) -> pa.Table:
        """The rows with their typed columns."""
        if self._fixed is not None:
            decode = self._fixed.decoder()
            return _with_columns(table, [decode] * table.num_rows, [self._fixed])
        if self._registry is not None:
            self._missing_left = _MAX_MISSING
            decoders, used = self._decoders(table.column("value").to_pylist())
            return _with_columns(table, decoders, used)
        return table

    def _decoders(self, values: list[bytes | None]) -> tuple[list[Decoder], list[TypedColumns]]:
        used: dict[int, TypedColumns] = {}
        found: list[Decoder] = []
        for value in values:
            if value is None:
                found.append(_no_row)
                continue
            try:
                decode, typed = self._decoder(value)
            except WrongData as error:
                found.append(_raising(error))
                continue
            used[id(typed)] = typed
            found.append(decode)
        return found, list(used.values())

    def _decoder(self, value: bytes) -> tuple[Decoder, TypedColumns]:
        wire = parse_wire_format(value)
        if wire is None:
            raise WrongData("the value does not begin with the id of a schema")
        found = self._by_id.get(wire.schema_id)
        if found is None:
            assert self._registry is not None
            now_ns = self._clock.monotonic_ns()
            missing = self._missing.get(wire.schema_id)
            if missing is not None and now_ns < missing[1]:
                raise WrongData(missing[0])
            if self._missing_left <= 0:
                raise WrongData(
                    f"the schema {wire.schema_id} was not looked up: the registry did not have "
                    f"{_MAX_MISSING} others of this commit"
                )
            schema = asyncio.run(self._registry.schema(wire.schema_id))
            if isinstance(schema, NoSuchSchema):
                self._missing_left -= 1
                self._missing.pop(wire.schema_id, None)
                self._missing[wire.schema_id] = schema, now_ns + _REMEMBERED_NS
                while len(self._missing) > _MAX_REMEMBERED:
                    del self._missing[next(iter(self._missing))]
                raise WrongData(schema)
            if not isinstance(schema, MessageSchema):
                # The failure of a registry must not make its records ones that do not parse.
                raise TableError(schema)
            try:
                typed = TypedColumns(schema)
            except SchemaError as error:
                raise WrongData(str(error)) from None
            self._evolve(typed)
            found = self._by_id[wire.schema_id] = _wire_decoder(typed), typed
        return found


def _wire_decoder(typed: TypedColumns) -> Decoder:
    """Decode what follows the id of the schema."""
    decode = typed.decoder()
    is_protobuf = typed.schema.format is SchemaFormat.PROTOBUF

    def decode_data(data: bytes) -> dict[str, Any]:
        at = WIRE_HEAD
        if is_protobuf:
            try:
                place, at = message_indexes(data, at)
            except ValueError as error:
                raise WrongData(str(error)) from None
            if place != (0,):
                raise WrongData(f"the value is the message {list(place)} of its schema, not the first")
        return decode(data[at:])

    return decode_data


def _no_row(_: bytes) -> dict[str, Any]:
    return {}


def _raising(error: WrongData) -> Decoder:
    def decode(_: bytes) -> dict[str, Any]:
        raise error

    return decode


def _with_columns(table: pa.Table, decoders: list[Decoder], used: list[TypedColumns]) -> pa.Table:
    import pyarrow as pa

    rows: list[dict[str, Any]] = []
    for value, decode in zip(table.column("value").to_pylist(), decoders, strict=True):
        if value is None:
            rows.append({})  # a tombstone
            continue
        try:
            rows.append(decode(value))
        except WrongData as error:
            rows.append({ERROR: str(error)[:500]})
    fields: dict[str, pa.Field] = {}
    for typed in used:
        for field in typed.arrow_schema():
            if field.name not in typed.unfit:
                fields.setdefault(field.name, field)
    # Last, as the others may add to it.
    fields.pop(ERROR, None)
    fields[ERROR] = pa.field(ERROR, pa.string())
    for name, field in fields.items():
        values = [row.get(name) for row in rows]
        table = table.append_column(field, _array(values, field.type, rows))
    return table


def _array(values: list[Any], kind: pa.DataType, rows: list[dict[str, Any]]) -> pa.Array:
    """A column; values that Arrow cannot have in it, such as a decimal of too many digits, are left out."""
    import pyarrow as pa

    try:
        return pa.array(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        fitting = []
        for value, row in zip(values, rows, strict=True):
            try:
                pa.scalar(value, kind)
                fitting.append(value)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                fitting.append(None)
                row[ERROR] = f"{row.get(ERROR) or ''} {error}".strip()[:500]
        return pa.array(fitting, kind)
