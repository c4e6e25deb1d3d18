"""Schemas as a registry keeps them: parsed, checked, and compared by a canonical text.

`parse_schema` is the way in for all kinds. It takes bounded time and memory, whatever the text and its
references are; a long text takes long enough to be parsed outside of the event loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ottla.schemas.avro_definition import AvroDefinition, parse_avro
from ottla.schemas.json_definition import JsonDefinition, parse_json_schema
from ottla.schemas.parsed import InvalidSchemaError, ParsedSchema, SchemaReference, SchemaType
from ottla.schemas.protobuf_definition import ProtobufDefinition, parse_protobuf

__all__ = [
    "InvalidSchemaError",
    "ParsedSchema",
    "SchemaReference",
    "SchemaType",
    "parse_schema",
]

_NONE: Mapping[str, ParsedSchema] = MappingProxyType({})


def parse_schema(
    schema_type: SchemaType,
    text: str,
    references: Mapping[str, ParsedSchema] = _NONE,
    *,
    is_new: bool = True,
) -> ParsedSchema:
    """Parse a schema. `references` are those that it refers to, by the names that it has for them.

    With `is_new` it is checked as strictly as one that is being registered; without, as one that some
    registry has stored already. InvalidSchemaError says what is wrong.
    """
    for name, each in references.items():
        if each.schema_type is not schema_type:
            raise InvalidSchemaError(
                f"the reference {name!r} is a schema of the type {each.schema_type.value}, "
                f"not {schema_type.value}"
            )
    if schema_type is SchemaType.AVRO:
        avro = [each for each in references.values() if isinstance(each, AvroDefinition)]
        return parse_avro(text, avro, is_new=is_new)
    if schema_type is SchemaType.PROTOBUF:
        files = {name: each for name, each in references.items() if isinstance(each, ProtobufDefinition)}
        return parse_protobuf(text, files, is_new=is_new)
    others = {name: each for name, each in references.items() if isinstance(each, JsonDefinition)}
    return parse_json_schema(text, others)
