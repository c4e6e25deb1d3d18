"""Whether a schema may follow others in a subject, by the seven levels of Confluent's registry."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final

from ottla.schemas.avro_compatibility import avro_differences
from ottla.schemas.avro_definition import AvroDefinition
from ottla.schemas.json_compatibility import json_differences
from ottla.schemas.json_definition import JsonDefinition
from ottla.schemas.parsed import ParsedSchema
from ottla.schemas.protobuf_compatibility import protobuf_differences
from ottla.schemas.protobuf_definition import ProtobufDefinition

_MAX_SHOWN: Final = 10 * 1024


class CompatibilityLevel(Enum):
    """BACKWARD: the new schema reads data of the latest. FORWARD: the latest reads data of the new one.

    FULL: both. Those that are transitive compare with all earlier schemas.
    """

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def is_transitive(self) -> bool:
        return self.value.endswith("_TRANSITIVE")

    @property
    def is_backward(self) -> bool:
        return self.value.startswith(("BACKWARD", "FULL"))

    @property
    def is_forward(self) -> bool:
        return self.value.startswith(("FORWARD", "FULL"))


def check_compatibility(
    level: CompatibilityLevel,
    new: ParsedSchema,
    earlier: Sequence[ParsedSchema],
    versions: Sequence[int] = (),
    *,
    lenient: bool = False,
) -> list[str]:
    """Say why a schema is not compatible with earlier ones, which are given oldest first; empty if it is.

    `versions` are those of the earlier schemas, for the messages. Only the first that is not compatible, from
    the latest on, is reported. `lenient` is Confluent's policy of that name, for JSON Schema.
    """
    if level is CompatibilityLevel.NONE or not earlier:
        return []
    places = range(len(earlier) - 1, -1, -1) if level.is_transitive else (len(earlier) - 1,)
    for place in places:
        found = _differences(level, new, earlier[place], lenient)
        if found:
            if new.schema_type is earlier[place].schema_type:
                if versions:
                    found.append(f"{{oldSchemaVersion: {versions[place]}}}")
                found.append(_shown(earlier[place]))
            return found
    return []


def _differences(level: CompatibilityLevel, new: ParsedSchema, old: ParsedSchema, lenient: bool) -> list[str]:
    if new.schema_type is not old.schema_type:
        return ["Incompatible because of different schema type"]
    found: list[str] = []
    if level.is_forward:
        found += _unreadable(old, new, "old", "new", lenient)
    if level.is_backward:
        found += _unreadable(new, old, "new", "old", lenient)
    return found


def _unreadable(
    reader: ParsedSchema, writer: ParsedSchema, reader_name: str, writer_name: str, lenient: bool
) -> list[str]:
    """Say why one schema cannot read what was written with another."""
    if isinstance(reader, AvroDefinition) and isinstance(writer, AvroDefinition):
        return avro_differences(reader.root, writer.root, reader_name, writer_name)
    if isinstance(reader, ProtobufDefinition) and isinstance(writer, ProtobufDefinition):
        return protobuf_differences(reader, writer, reader_name, writer_name)
    assert isinstance(reader, JsonDefinition)
    assert isinstance(writer, JsonDefinition)
    return json_differences(reader, writer, reader_name, writer_name, lenient=lenient)


def _shown(schema: ParsedSchema) -> str:
    text = schema.canonical_text
    if len(text) <= _MAX_SHOWN:
        return f"{{oldSchema: '{text}'}}"
    return f"{{oldSchema: <truncated> '{text[:_MAX_SHOWN]}...'}}"
