"""One schema of whatever kind, as a decoder of payloads."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from ottla.schemas.avro import AvroSchema
from ottla.schemas.columns import Fields
from ottla.schemas.errors import SchemaError, WrongData
from ottla.schemas.json_schema import JsonSchemaDocument
from ottla.schemas.protobuf import ProtobufSchema

MAX_SCHEMA_BYTES: Final = 1024 * 1024


class SchemaFormat(StrEnum):
    AVRO = "avro"
    PROTOBUF = "protobuf"
    JSON_SCHEMA = "json-schema"


# Registries write some of them in another way.
_FORMATS: Final = {
    "avro": SchemaFormat.AVRO,
    "protobuf": SchemaFormat.PROTOBUF,
    "json": SchemaFormat.JSON_SCHEMA,
    "json-schema": SchemaFormat.JSON_SCHEMA,
}


@dataclass(frozen=True, slots=True)
class MessageSchema:
    """A schema with the name that users know it by: its file, or its id in a registry."""

    name: str
    format: SchemaFormat
    schema: AvroSchema | ProtobufSchema | JsonSchemaDocument

    def decode(self, data: bytes, indexes: tuple[int, ...] | None = None) -> tuple[Any, str | None]:
        """Return the value, and what a JSON Schema finds wrong with it. WrongData if the data have another
        form. `indexes` name the message of a Protobuf schema.
        """
        if isinstance(self.schema, AvroSchema):
            return self.schema.decode(data), None
        if isinstance(self.schema, ProtobufSchema):
            message = self.schema.message_at(indexes) if indexes is not None else None
            return self.schema.decode(data, message), None
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise WrongData(f"no JSON: {error}") from None
        problems = self.schema.problems(value)
        return value, "; ".join(problems) or None

    def columns(self) -> Fields:
        """The fields of values as the columns of a table. SchemaError if values have no fields."""
        return self.schema.columns()

    def encode(self, value: Any) -> bytes:
        """Return the bytes of a value. WrongData says what does not fit."""
        if not isinstance(self.schema, JsonSchemaDocument):
            return self.schema.encode(value)
        problems = self.schema.problems(value)
        if problems:
            raise WrongData("; ".join(problems))
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def make_schema(
    name: str,
    format: str,
    text: str,
    *,
    message: str | None = None,
    references: tuple[str, ...] = (),
) -> MessageSchema:
    """Make a schema from its text. SchemaError, with its name, if that cannot be."""
    if len(text) + sum(map(len, references)) > MAX_SCHEMA_BYTES:
        raise SchemaError(
            f"{name}: a schema, with those that it refers to, has at most {MAX_SCHEMA_BYTES} characters"
        )
    kind = _FORMATS.get(format.lower())
    try:
        if kind is SchemaFormat.AVRO:
            return MessageSchema(name, kind, AvroSchema(text, references))
        if kind is SchemaFormat.PROTOBUF:
            return MessageSchema(name, kind, ProtobufSchema(text, message, references))
        if kind is SchemaFormat.JSON_SCHEMA:
            return MessageSchema(name, kind, JsonSchemaDocument(text))
    except (SchemaError, RecursionError) as error:
        raise SchemaError(f"{name}: {str(error) or 'it is nested too deeply'}") from None
    raise SchemaError(f"{name}: there is no format {format!r}; there are avro, protobuf and json-schema")
