"""Typed columns encoded in tasks, by schemas that the driver has found or registered.

Only the driver asks the registry, before a write begins, and tasks are given the id: one that is repeated,
runs twice, or belongs to a batch that is recovered registers nothing. Registering what is there already
changes nothing in a registry, either, so a driver that died may do it again.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from ottla.client.serdes.framing import id_prefix
from ottla.client.serdes.schema_text import SchemaText, schema_of
from ottla.runtime.http import HttpError
from ottla.schemas.avro_definition import AvroType
from ottla.schemas.errors import SchemaError, WrongData
from ottla.schemas.parsed import InvalidSchemaError
from ottla.schemas.registry_client import RegistryRequestError, part
from ottla.spark.typed.derived import avro_schema, json_schema
from ottla.spark.typed.options import FormatOptions, RecordFormat
from ottla.spark.typed.schemas import SCHEMA_TYPES, ReaderSchema, registry_client, shown

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

    from ottla.schemas.avro_arrow_encoder import AvroArrowEncoder


class RegistryRefusal(ValueError):
    """The registry does not answer, or does not have or take a schema."""


class RegistryUnreachable(RegistryRefusal):
    """The registry does not answer: nothing is known of the schema."""


_Encode = Callable[[Any], bytes]


@dataclass(frozen=True, slots=True)
class ColumnEncoding:
    """How the values of a column are written. It is pickled to tasks."""

    schema: ReaderSchema
    prefix: bytes
    """The id of the schema, and the place of a message of Protobuf; empty without a registry."""


def column_encodings(
    formats: tuple[FormatOptions, ...], schema: StructType, topic: str | None, *, register: bool
) -> tuple[ColumnEncoding, ...]:
    """Find the schemas by which the columns are written; register them, if that is wanted. ValueError says
    why one cannot be used.
    """
    types = {each.name: each.dataType for each in schema.fields}
    return tuple(
        _encoding(each, types[each.column], topic, register) for each in formats if each.column in types
    )


def check_encodings(
    formats: tuple[FormatOptions, ...], schema: StructType, topic: str | None, *, register: bool
) -> None:
    """Raise the ValueError of `column_encodings`, if there is one now, and register nothing."""
    types = {each.name: each.dataType for each in schema.fields}
    for each in formats:
        if each.column in types:
            _encoding(each, types[each.column], topic, register, only_checks=True)


def _encoding(
    options: FormatOptions, kind: DataType, topic: str | None, register: bool, *, only_checks: bool = False
) -> ColumnEncoding:
    text = options.text
    if text is None and (register or options.format is RecordFormat.JSON):
        text = _derived(options, kind)
    try:
        schema = None if text is None else SchemaText(text)
        schema_id: int | None = None
        if options.registry is not None:
            subject = options.subject_of(topic)
            schema, schema_id = _registered(options, text, subject, register, only_checks)
        assert schema is not None
        found = ReaderSchema(options.column, options.format, schema, options.message, options.registry)
        indexes = None
        if options.format is RecordFormat.PROTOBUF:
            messages = found.protobuf()
            indexes = messages.indexes_of(messages.message)
        elif options.format is RecordFormat.AVRO:
            from ottla.client.serdes.avro import avro_definition

            _check_columns(avro_definition(schema).root, kind, options.column)
    except (SchemaError, InvalidSchemaError, RecursionError) as error:
        why = str(error) or "it is nested too deeply"
        raise ValueError(
            f"{options.column}Format={options.format}: the schema cannot be used: {why}"
        ) from None
    return ColumnEncoding(found, b"" if schema_id is None else id_prefix(schema_id, indexes))


def _derived(options: FormatOptions, kind: DataType) -> str:
    if options.format is RecordFormat.AVRO:
        return json.dumps(avro_schema(kind, options.column))
    if options.format is RecordFormat.PROTOBUF:
        raise ValueError(f"{options.column}Format=protobuf needs a schema, which is not made of columns")
    return json.dumps(json_schema(kind)) if options.format is RecordFormat.JSON_SCHEMA else ""


def _registered(
    options: FormatOptions, text: str | None, subject: str, register: bool, only_checks: bool
) -> tuple[SchemaText, int]:
    """The schema as the registry has it, and its id; none if it was only checked whether it can be had."""
    assert options.registry is not None
    client = registry_client(options.registry)
    path = f"/subjects/{part(subject)}"
    body = {"schema": text, "schemaType": SCHEMA_TYPES[options.format].value}
    try:
        if text is None:
            found = client.call("GET", f"{path}/versions/{options.version}")
            return schema_of(client, found), int(found["id"])
        if register and only_checks:
            found = client.call("POST", f"/compatibility{path}/versions", body, verbose=True)
            if not found["is_compatible"]:
                raise RegistryRefusal(
                    f"{options.column}Format={options.format}: subject {subject!r} does not take the schema "
                    f"of the columns: {'; '.join(found.get('messages') or ())}"
                )
            return SchemaText(text), 0
        if register:
            found = client.call("POST", f"{path}/versions", body)
        else:
            found = client.call("POST", path, body)
        return SchemaText(text), int(found["id"])
    except HttpError as error:
        raise RegistryUnreachable(
            f"{options.column}Format={options.format}: the registry at {shown(options.registry)} does not "
            f"answer: {error}"
        ) from None
    except RegistryRequestError as error:
        hint = "" if register else "; with autoRegister=true the sink registers it"
        raise RegistryRefusal(
            f"{options.column}Format={options.format}: the registry at {shown(options.registry)} has no "
            f"schema for subject {subject!r}: {error}{hint}"
        ) from None


def _check_columns(kind: AvroType, spark: DataType, where: str) -> None:
    """Refuse columns that the schema does not have, and ones that it has and that are not there."""
    from pyspark.sql.types import ArrayType, StructType

    others = [each for each in kind.branches if each.kind != "null"] if kind.kind == "union" else [kind]
    if len(others) != 1:
        return
    [one] = others
    if one.kind == "array" and isinstance(spark, ArrayType) and one.item is not None:
        _check_columns(one.item, spark.elementType, where)
    if one.kind != "record":
        return
    if not isinstance(spark, StructType):
        raise SchemaError(f"{where} is {spark.simpleString()}, and the schema has a record there")
    fields = {each.name: each for each in one.fields}
    unknown = [name for name in spark.names if name not in fields]
    missing = [name for name, each in fields.items() if name not in spark.names and not each.has_default]
    if unknown or missing:
        raise SchemaError(
            f"{where} has {', '.join(unknown) or 'nothing'} that the record {one.full_name} does not have, "
            f"and lacks {', '.join(missing) or 'nothing'} of it"
        )
    for each in spark.fields:
        _check_columns(fields[each.name].type, each.dataType, f"{where}.{each.name}")


# In tasks


def encoded_batches(
    batches: Iterator[pa.RecordBatch], encodings: tuple[ColumnEncoding, ...]
) -> Iterator[pa.RecordBatch]:
    """The batches with bytes in place of typed columns. WrongData says which value does not fit."""
    if not encodings:
        yield from batches
        return
    encoders = [(each, _column_encoder(each.schema), _encoder(each.schema)) for each in encodings]
    for batch in batches:
        for each, columns, encode in encoders:
            place = batch.schema.get_field_index(each.schema.column)
            values = batch.column(place)
            found = None if columns is None else columns.encode(values, each.prefix)
            if found is None:
                found = _encoded(values, each.schema.column, each.prefix, encode)
            batch = batch.set_column(place, each.schema.column, found)
        yield batch


def _column_encoder(schema: ReaderSchema) -> AvroArrowEncoder | None:
    if schema.format is not RecordFormat.AVRO:
        return None
    from ottla.client.serdes.avro import avro_definition
    from ottla.schemas.avro_arrow_encoder import AvroArrowEncoder

    return AvroArrowEncoder(avro_definition(schema.schema))


def _encoded(values: pa.Array, column: str, prefix: bytes, encode: _Encode) -> pa.Array:
    """The values encoded one by one."""
    import pyarrow as pa

    data: list[bytes | None] = []
    for value in values.to_pylist(maps_as_pydicts="lossy"):
        try:
            data.append(None if value is None else prefix + encode(value))
        except (WrongData, SchemaError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
            raise WrongData(f"a value of the column {column} cannot be written: {error}") from None
    return pa.array(data, pa.binary())


def _encoder(schema: ReaderSchema) -> _Encode:
    if schema.format is RecordFormat.AVRO:
        from ottla.client.serdes.avro import avro_definition
        from ottla.schemas.avro_values import AvroEncoder

        definition = avro_definition(schema.schema)
        encoder, prepare = AvroEncoder(definition), _Preparation().of(definition.root)
        return lambda value: encoder.encode(prepare(value))
    if schema.format is RecordFormat.PROTOBUF:
        messages = schema.protobuf()
        return lambda value: messages.encode(json_form(value))
    if schema.format is RecordFormat.JSON:
        return lambda value: _json_bytes(json_form(value))
    from ottla.client.serdes.json_schema import json_checker

    checker = json_checker(schema.schema)

    def encode(value: Any) -> bytes:
        found = json_form(value)
        if problems := checker.problems(found):
            raise WrongData("; ".join(problems))
        return _json_bytes(found)

    return encode


def _json_bytes(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


class _Preparation:
    """Makes of Arrow's values in Python those that Avro's encoder takes. A type inside of itself is made
    once.
    """

    def __init__(self) -> None:
        self._made: Final[dict[int, list[Callable[[Any], Any]]]] = {}

    def of(self, kind: AvroType) -> Callable[[Any], Any]:
        cell = self._made.get(id(kind))
        if cell is None:
            cell = self._made[id(kind)] = []
            cell.append(self._of(kind))
        elif not cell:
            return lambda value: cell[0](value)
        return cell[0]

    def _of(self, kind: AvroType) -> Callable[[Any], Any]:
        match kind.kind:
            case "record":
                parts = {each.name: self.of(each.type) for each in kind.fields}
                return lambda value: {name: parts[name](each) for name, each in value.items()}
            case "array":
                assert kind.item is not None
                item = self.of(kind.item)
                return lambda value: [item(each) for each in value]
            case "map":
                assert kind.item is not None
                inner = self.of(kind.item)
                return lambda value: {name: inner(each) for name, each in value.items()}
            case "union":
                return self._union(kind)
        return lambda value: value

    def _union(self, kind: AvroType) -> Callable[[Any], Any]:
        others = [each for each in kind.branches if each.kind != "null"]
        parts = [self.of(each) for each in others]
        if len(others) == 1:
            return lambda value: None if value is None else parts[0](value)
        members = {f"member{place}": place for place in range(len(others))}

        def choose(value: Any) -> Any:
            if not isinstance(value, dict) or value.keys() != members.keys():
                return value
            for name, each in value.items():
                if each is not None:
                    place = members[name]
                    return others[place].full_name, parts[place](each)
            return None

        return choose


def json_form(value: Any) -> Any:
    """A value of Arrow in Python as what JSON has: what is null in structs and maps is left out, bytes are
    base64.
    """
    match value:
        case dict():
            return {name: json_form(each) for name, each in value.items() if each is not None}
        case list():
            return [json_form(each) for each in value]
        case bytes():
            return base64.b64encode(value).decode()
        case Decimal():
            if value == value.to_integral_value():
                return int(value)
            return float(value) if Decimal(repr(float(value))) == value else str(value)
        case datetime():
            if value.tzinfo is None:
                return value.isoformat()
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case date():
            return value.isoformat()
    return value
