"""Records in Avro."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from ottla.client.serdes.schema_serde import Decode, SchemaSerde
from ottla.client.serdes.schema_text import SchemaText, referenced_schemas
from ottla.schemas.avro_definition import AvroDefinition, parse_avro
from ottla.schemas.avro_values import AvroDecoder, AvroEncoder
from ottla.schemas.parsed import SchemaType


class Avro(SchemaSerde):
    """Values are what Avro's types are in Python: dicts, lists, `Decimal`, `datetime`, `UUID`. With a schema,
    what other versions have written is read as values of this one, by Avro's rules.

        Avro("http://127.0.0.1:9644/schema-registry", Path("order.avsc").read_text(), type=Order)
    """

    FORMAT: ClassVar[SchemaType] = SchemaType.AVRO
    _reader: AvroDefinition | None = None

    def _encoder(self, schema: SchemaText) -> tuple[Callable[[Any], bytes], str | None]:
        definition = avro_definition(schema)
        name = definition.root.full_name if definition.root.name else None
        return AvroEncoder(definition).encode, name

    def _decoder(self, schema: SchemaText) -> Decode:
        if self._schema is not None and self._reader is None:
            self._reader = avro_definition(
                SchemaText(self._schema, referenced_schemas(self._registry, self._references))
            )
        return partial(self._decoded, AvroDecoder(avro_definition(schema), self._reader))

    def _decoded(self, decoder: AvroDecoder, data: bytes, _: tuple[int, ...]) -> Any:
        return self._built(decoder.decode(data))


def avro_definition(schema: SchemaText) -> AvroDefinition:
    """Parse a schema, after those that it refers to."""
    known: dict[int, AvroDefinition] = {}
    for _, each in schema.before():
        known[id(each)] = parse_avro(
            each.text, [known[id(needed)] for _, needed in each.references], is_new=False
        )
    return parse_avro(schema.text, [known[id(each)] for _, each in schema.references], is_new=False)
