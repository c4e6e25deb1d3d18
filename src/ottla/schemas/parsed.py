"""What all kinds of schema definitions share: their type, their references, and their canonical text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Final

# A larger schema does not fit into a record of a topic with default settings.
MAX_SCHEMA_CHARACTERS: Final = 1024 * 1024


class SchemaType(Enum):
    """The kinds of schemas, by the names that registries give them."""

    AVRO = "AVRO"
    PROTOBUF = "PROTOBUF"
    JSON = "JSON"


@dataclass(frozen=True, slots=True)
class SchemaReference:
    """A version of a subject, under the name by which a schema refers to it."""

    name: str
    subject: str
    version: int


class InvalidSchemaError(ValueError):
    """The text defines no schema; the error's text names what is wrong."""


class ParsedSchema(ABC):
    """A schema that was checked. It does not change."""

    __slots__ = ("canonical_text",)
    schema_type: ClassVar[SchemaType]
    canonical_text: str
    """The text that a registry stores and compares: without what has no meaning, as white space."""

    def __init__(self, canonical_text: str) -> None:
        self.canonical_text = canonical_text

    @abstractmethod
    def normalized_text(self) -> str:
        """Return the text in which also the order of what has none is always the same."""

    @abstractmethod
    def top_level_fields(self) -> frozenset[str]:
        """Return the names of the fields that a record has, or a message of the file."""

    def formatted_text(self, name: str) -> str:
        """Return the text in a format that a client names; where this kind of schema has none of that name,
        the canonical text, as from Confluent's registry.
        """
        return self.canonical_text

    def __repr__(self) -> str:
        return f"<{self.schema_type.value} {self.canonical_text[:80]}>"


def check_size(text: str) -> None:
    """Refuse a text that is too large to be looked at."""
    if len(text) > MAX_SCHEMA_CHARACTERS:
        raise InvalidSchemaError(f"the schema has {len(text)} characters, more than {MAX_SCHEMA_CHARACTERS}")
