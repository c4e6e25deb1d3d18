"""Records in Protobuf: of classes that its compiler has made, or dicts."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

from ottla.client.serdes.objects import plain
from ottla.client.serdes.schema_serde import Decode, SchemaSerde
from ottla.client.serdes.schema_text import SchemaText
from ottla.schemas.definitions import parse_schema
from ottla.schemas.errors import WrongData
from ottla.schemas.parsed import ParsedSchema, SchemaReference, SchemaType
from ottla.schemas.protobuf import ProtobufSchema
from ottla.schemas.registry_client import part

# Files that every registry knows: they are no references.
_KNOWN_FILES = ("google/protobuf/", "google/type/", "confluent/")


class Protobuf(SchemaSerde):
    """With a class of Protobuf's compiler as `type`, values are its messages, and the schema is its file.
    Without, they are dicts in the form of Protobuf's JSON mapping with the names of the file: bytes are
    base64, enums their names. `message` names one of the schema's messages; else it is the first.

        Protobuf("http://127.0.0.1:9644/schema-registry", type=orders_pb2.Order)
    """

    FORMAT: ClassVar[SchemaType] = SchemaType.PROTOBUF
    HAS_INDEXES: ClassVar[bool] = True

    def __init__(
        self, registry: Any, schema: str | None = None, *, message: str | None = None, **more: Any
    ) -> None:
        super().__init__(registry, schema, **more)
        self._message = message
        self._class = self._type if hasattr(self._type, "DESCRIPTOR") else None

    def _own_schema(self) -> tuple[str | None, Sequence[SchemaReference]]:
        if self._schema is None and self._class is not None:
            file = self._class.DESCRIPTOR.file
            return _text_of(file), self._imports(file)
        return self._schema, self._references

    def _imports(self, file: Any) -> list[SchemaReference]:
        """The versions of the files that a class's file imports, whose subjects have their names."""
        found = []
        for each in file.dependencies:
            if not each.name.startswith(_KNOWN_FILES):
                registered = self._registered(each.name, _text_of(each), self._imports(each))
                if "version" not in registered:
                    path = f"/subjects/{part(each.name)}/versions/latest"
                    registered = self._ask(f"{each.name} has no version", "GET", path)
                found.append(SchemaReference(each.name, each.name, int(registered["version"])))
        return found

    def _encoder(self, schema: SchemaText) -> tuple[Callable[[Any], bytes], str | None]:
        if self._class is not None:
            return partial(_serialized, self._class), self._class.DESCRIPTOR.full_name
        found = protobuf_schema(schema, self._message)
        return _encode_with(found), found.message

    def _indexes(self, schema: SchemaText) -> tuple[int, ...]:
        if self._class is None:
            found = protobuf_schema(schema, self._message)
            return found.indexes_of(found.message)
        return _place_of(self._class.DESCRIPTOR)

    def _decoder(self, schema: SchemaText) -> Decode:
        return partial(self._decoded, protobuf_schema(schema, None))

    def _decoded(self, schema: ProtobufSchema, data: bytes, indexes: tuple[int, ...]) -> Any:
        name = schema.message_at(indexes)
        if self._class is None:
            return self._built(schema.decode(data, name))
        expected = self._class.DESCRIPTOR.full_name
        if name != expected:
            raise WrongData(f"the message is a {name}, not a {expected}")
        try:
            return self._class.FromString(data)
        except Exception as error:  # Protobuf's own, which is not imported here
            raise WrongData(str(error)) from None


def _place_of(descriptor: Any) -> tuple[int, ...]:
    """The path of places of a message in its file, where the entries of maps count too."""
    around = descriptor.containing_type
    if around is None:
        names = list(descriptor.file.message_types_by_name)
        return (names.index(descriptor.name),)
    names = [each.name for each in around.nested_types]
    return (*_place_of(around), names.index(descriptor.name))


def _text_of(file: Any) -> str:
    return base64.b64encode(file.serialized_pb).decode()


def protobuf_schema(schema: SchemaText, message: str | None) -> ProtobufSchema:
    """A schema's messages. A descriptor in base64 is read as the text that a registry makes of it."""
    known: dict[int, ParsedSchema] = {}
    for _, each in schema.before():
        references = {name: known[id(needed)] for name, needed in each.references}
        known[id(each)] = parse_schema(SchemaType.PROTOBUF, each.text, references, is_new=False)
    references = {name: known[id(each)] for name, each in schema.references}
    parsed = parse_schema(SchemaType.PROTOBUF, schema.text, references, is_new=False)
    texts = tuple(known[id(each)].canonical_text for _, each in schema.before())
    return ProtobufSchema(parsed.canonical_text, message, texts)


def _encode_with(schema: ProtobufSchema) -> Callable[[Any], bytes]:
    return lambda value: schema.encode(plain(value))


def _serialized(expected: Any, value: Any) -> bytes:
    if not isinstance(value, expected):
        raise WrongData(f"a {type(value).__name__} is no {expected.DESCRIPTOR.full_name}")
    found: bytes = value.SerializeToString()
    return found
