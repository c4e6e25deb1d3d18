"""The schema that a stream reads by: asked for once, when a query is made, and kept in its plan.

Spark makes a data source again for nearly every call, in other processes. What the registry calls latest may
change in between, so the text is kept where Spark keeps the type that was made of it: in the metadata of the
column.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ottla.client.serdes.schema_text import SchemaText, schema_of
from ottla.runtime.http import HttpError
from ottla.schemas.errors import SchemaError
from ottla.schemas.parsed import InvalidSchemaError, SchemaType
from ottla.schemas.registry_client import RegistryClient, RegistryRequestError, part
from ottla.spark.typed.options import FormatOptions, RecordFormat, RegistryOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from ottla.schemas.protobuf import ProtobufSchema


METADATA: Final = "ottla.schema"
SCHEMA_TYPES: Final = {
    RecordFormat.AVRO: SchemaType.AVRO,
    RecordFormat.PROTOBUF: SchemaType.PROTOBUF,
    RecordFormat.JSON_SCHEMA: SchemaType.JSON,
}


@dataclass(frozen=True, slots=True)
class ReaderSchema:
    """The schema by which the keys or values of a query are read. It is pickled to tasks."""

    column: str
    format: RecordFormat
    schema: SchemaText
    message: str | None
    registry: RegistryOptions | None
    """Where the schemas of records are, by the ids in them; without, records have none."""

    def metadata(self) -> str:
        """The schema as text; those that it refers to come once, each after what it needs itself."""
        listed = [each for _, each in self.schema.before()] + [self.schema]
        places = {id(each): place for place, each in enumerate(listed)}
        parts = [[each.text, [[name, places[id(one)]] for name, one in each.references]] for each in listed]
        return json.dumps({"format": self.format, "message": self.message, "schemas": parts})

    @classmethod
    def of(cls, options: FormatOptions, metadata: str) -> ReaderSchema:
        """The schema of a column, from its metadata."""
        found = json.loads(metadata)
        schemas: list[SchemaText] = []
        for text, references in found["schemas"]:
            schemas.append(SchemaText(text, tuple((name, schemas[place]) for name, place in references)))
        return cls(
            options.column, RecordFormat(found["format"]), schemas[-1], found["message"], options.registry
        )

    def arrow_type(self) -> pa.DataType:
        """The type of the column. SchemaError if there is none."""
        if self.format is RecordFormat.AVRO:
            from ottla.client.serdes.avro import avro_definition
            from ottla.schemas.avro_arrow import arrow_type

            return arrow_type(avro_definition(self.schema))
        if self.format is RecordFormat.JSON:
            from ottla.spark.typed.ddl import parse_ddl

            return parse_ddl(self.schema.text)
        import pyarrow as pa

        from ottla.tables.columns import arrow_type as column_type

        return pa.struct([pa.field(name, column_type(each)) for name, each in self.columns()])

    def columns(self) -> Any:
        """The fields of a schema of Protobuf or JSON."""
        if self.format is RecordFormat.PROTOBUF:
            return self.protobuf().columns(maps=True)
        from ottla.client.serdes.json_schema import json_checker

        return json_checker(self.schema).columns(maps=True)

    def protobuf(self) -> ProtobufSchema:
        from ottla.client.serdes.protobuf import protobuf_schema

        return protobuf_schema(self.schema, self.message)


def reader_schema(options: FormatOptions, topic: str | None) -> ReaderSchema:
    """Find the schema that options name. ValueError says why there is none."""
    schema = SchemaText(options.text) if options.text is not None else _registered(options, topic)
    return ReaderSchema(options.column, options.format, schema, options.message, options.registry)


def _registered(options: FormatOptions, topic: str | None) -> SchemaText:
    assert options.registry is not None
    subject = options.subject_of(topic)
    client = registry_client(options.registry)
    try:
        found = client.call("GET", f"/subjects/{part(subject)}/versions/{options.version}")
        kind = found.get("schemaType") or "AVRO"
        if kind != SCHEMA_TYPES[options.format].value:
            raise ValueError(f"{options.column}Format={options.format}: the schema of {subject!r} is {kind}")
        return schema_of(client, found)
    except (HttpError, RegistryRequestError, SchemaError) as error:
        raise ValueError(
            f"{options.column}Format={options.format}: the registry at {shown(options.registry)} does not "
            f"give version {options.version} of subject {subject!r}: {error}"
        ) from None


def column_type(schema: ReaderSchema) -> pa.DataType:
    """The type of a schema's column. ValueError if it cannot be one."""
    try:
        return schema.arrow_type()
    except (SchemaError, InvalidSchemaError, RecursionError, ValueError) as error:
        why = str(error) or "it is nested too deeply"
        raise ValueError(
            f"the schema of {schema.column}Format={schema.format} is no columns: {why}"
        ) from None


def shown(registry: RegistryOptions) -> str:
    """A registry's addresses without logins."""
    return ", ".join(each.rpartition("@")[2] for each in registry.url.split(","))


@lru_cache(maxsize=16)
def registry_client(registry: RegistryOptions) -> RegistryClient:
    file = registry.token_file
    if file is None:
        return RegistryClient.of(registry.url)

    def headers() -> Mapping[str, str]:
        return {"Authorization": f"Bearer {Path(file).read_text(encoding='utf-8').strip()}"}

    return RegistryClient.of(registry.url, headers=headers)
