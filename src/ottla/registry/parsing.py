"""Schemas parsed and compared in threads: both are work whose cost a client chooses.

What goes to a thread is complete: the text with all that it refers to. Nothing of the registry's state is
read there, which the event loop goes on changing.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final

from ottla.registry.errors import RegistryError
from ottla.registry.state import RegistryState
from ottla.registry.stored import StoredSchema
from ottla.registry.subjects import QualifiedSubject
from ottla.runtime.heavy_work import HeavyWork
from ottla.schemas.compatibility import CompatibilityLevel, check_compatibility
from ottla.schemas.definitions import (
    InvalidSchemaError,
    ParsedSchema,
    SchemaReference,
    SchemaType,
    parse_schema,
)

# What a schema may bring with it: references, those of these, and so on.
_MAX_SOURCES: Final = 1000
_MAX_CHARACTERS: Final = 4 * 1024 * 1024
_MAX_DEPTH: Final = 100
# Parsed schemas that are kept for the next check, by the size of their texts.
_KEPT_CHARACTERS: Final = 4 * 1024 * 1024
# Microseconds of a slow core for each character, and for each schema.
_US_PER_CHARACTER: Final = 4
_US_PER_SCHEMA: Final = 300

# By the keys of their sources.
_Parsed = dict[bytes, ParsedSchema]


@dataclass(frozen=True, slots=True, eq=False)
class SchemaSource:
    """A schema's text with what it refers to, by the names that it has for them.

    Two are the same if their keys are: comparing what they refer to, again and again, would take very long
    where each refers twice to the next.
    """

    schema_type: SchemaType
    text: str
    references: tuple[tuple[str, SchemaSource], ...]
    # Whether it is checked as a new one: what a registry has stored is taken as it is.
    is_new: bool
    key: bytes

    @classmethod
    def of(
        cls,
        schema_type: SchemaType,
        text: str,
        references: tuple[tuple[str, SchemaSource], ...] = (),
        *,
        is_new: bool = False,
    ) -> SchemaSource:
        digest = hashlib.sha256(f"{schema_type.value} {is_new} {len(text)} ".encode())
        digest.update(text.encode("utf-8", "surrogatepass"))
        for name, each in references:
            digest.update(f" {len(name)} {name}".encode("utf-8", "surrogatepass") + each.key)
        return cls(schema_type, text, references, is_new, digest.digest())


class _Budget:
    """What the sources of one schema may come to."""

    def __init__(self) -> None:
        self.sources = _MAX_SOURCES
        self.characters = _MAX_CHARACTERS

    def take(self, text: str) -> None:
        self.sources -= 1
        self.characters -= len(text)
        if self.sources < 0 or self.characters < 0:
            raise RegistryError.invalid_schema("The schema refers to too many others.")


def source_of(state: RegistryState, schema: StoredSchema) -> SchemaSource:
    """What a stored schema is parsed from. RegistryError if something that it refers to is gone."""
    return _source(state, schema, _Budget(), {}, _MAX_DEPTH, deleted=True)


def referenced_sources(
    state: RegistryState, subject: str, references: Sequence[SchemaReference], *, deleted: bool
) -> tuple[tuple[str, SchemaSource], ...]:
    """What a schema of a subject refers to, perhaps to soft-deleted versions, too. RegistryError if there is
    no such version.
    """
    return _references(state, subject, references, _Budget(), {}, _MAX_DEPTH, deleted)


def _references(
    state: RegistryState,
    subject: str,
    references: Sequence[SchemaReference],
    budget: _Budget,
    known: dict[tuple[str, int], SchemaSource],
    depth: int,
    deleted: bool,
) -> tuple[tuple[str, SchemaSource], ...]:
    parent, found = QualifiedSubject.parse(subject), []
    for each in references:
        name = str(parent.child(each.subject))
        schema = state.version(name, each.version, deleted=deleted)
        if schema is None:
            raise RegistryError.invalid_schema(
                f'No schema reference found for subject "{name}" and version {each.version}'
            )
        found.append((each.name, _source(state, schema, budget, known, depth - 1, deleted)))
    return tuple(found)


def _source(
    state: RegistryState,
    schema: StoredSchema,
    budget: _Budget,
    known: dict[tuple[str, int], SchemaSource],
    depth: int,
    deleted: bool,
) -> SchemaSource:
    key = (schema.subject, schema.version)
    if key in known:
        return known[key]
    if depth <= 0:
        raise RegistryError.invalid_schema("The references of the schema are nested too deeply.")
    budget.take(schema.text)
    references = _references(state, schema.subject, schema.references, budget, known, depth, deleted)
    known[key] = SchemaSource.of(SchemaType(schema.schema_type), schema.text, references)
    return known[key]


class SchemaParser:
    """Belongs to one event loop. `client`, for which it works, shares the threads fairly with others."""

    def __init__(self, work: HeavyWork) -> None:
        self._work: Final = work
        self._kept: OrderedDict[bytes, ParsedSchema] = OrderedDict()
        self._kept_characters = 0

    async def canonical_text(self, client: Hashable, source: SchemaSource, *, normalize: bool) -> str:
        """The text as the registry keeps it. RegistryError 42201 if it is no schema."""
        text, parsed = await self._work.run(
            client, _cost_us([source]), _canonical_text, source, normalize, self._known([source])
        )
        self._keep(parsed)
        return text

    async def formatted_text(self, client: Hashable, source: SchemaSource, name: str) -> str:
        """The text in a format that a client names, such as a descriptor of Protobuf in base64."""
        text, parsed = await self._work.run(
            client, _cost_us([source]), _formatted_text, source, name, self._known([source])
        )
        self._keep(parsed)
        return text

    async def top_level_fields(self, client: Hashable, source: SchemaSource) -> frozenset[str]:
        names, parsed = await self._work.run(
            client, _cost_us([source]), _top_level_fields, source, self._known([source])
        )
        self._keep(parsed)
        return names

    async def differences(
        self,
        client: Hashable,
        level: CompatibilityLevel,
        new: SchemaSource,
        earlier: Sequence[SchemaSource],
        versions: Sequence[int],
        *,
        lenient: bool,
    ) -> list[str]:
        """Why a schema is not compatible with earlier ones, the oldest first; empty if it is."""
        if level is CompatibilityLevel.NONE or not earlier:
            return []
        if not level.value.endswith("_TRANSITIVE"):
            earlier, versions = earlier[-1:], versions[-1:]
        sources = [new, *earlier]
        messages, parsed = await self._work.run(
            client,
            2 * _cost_us(sources),
            _compare,
            level,
            lenient,
            sources,
            tuple(versions),
            self._known(sources),
        )
        self._keep(parsed)
        return messages

    def _known(self, sources: Sequence[SchemaSource]) -> _Parsed:
        return {each.key: self._kept[each.key] for each in sources if each.key in self._kept}

    def _keep(self, parsed: _Parsed) -> None:
        for key, schema in parsed.items():
            if key not in self._kept:
                self._kept_characters += len(schema.canonical_text)
            self._kept[key] = schema
            self._kept.move_to_end(key)
        while self._kept_characters > _KEPT_CHARACTERS:
            _, schema = self._kept.popitem(last=False)
            self._kept_characters -= len(schema.canonical_text)


def _cost_us(sources: Sequence[SchemaSource]) -> int:
    seen: set[int] = set()
    cost = 0
    waiting = list(sources)
    while waiting:
        source = waiting.pop()
        if id(source) not in seen:
            seen.add(id(source))
            cost += _US_PER_SCHEMA + _US_PER_CHARACTER * len(source.text)
            waiting += [each for _, each in source.references]
    return cost


def _canonical_text(source: SchemaSource, normalize: bool, known: _Parsed) -> tuple[str, _Parsed]:
    parsed = dict(known)
    schema = _parse(source, parsed)
    return schema.normalized_text() if normalize else schema.canonical_text, {source.key: schema}


def _formatted_text(source: SchemaSource, name: str, known: _Parsed) -> tuple[str, _Parsed]:
    parsed = dict(known)
    schema = _parse(source, parsed)
    try:
        return schema.formatted_text(name), {source.key: schema}
    except (InvalidSchemaError, RecursionError) as error:
        raise RegistryError.invalid_schema(str(error) or "The schema is nested too deeply.") from None


def _top_level_fields(source: SchemaSource, known: _Parsed) -> tuple[frozenset[str], _Parsed]:
    schema = _parse(source, dict(known))
    return schema.top_level_fields(), {source.key: schema}


def _parse(source: SchemaSource, parsed: _Parsed) -> ParsedSchema:
    if source.key not in parsed:
        references = {name: _parse(each, parsed) for name, each in source.references}
        try:
            parsed[source.key] = parse_schema(
                source.schema_type, source.text, references, is_new=source.is_new
            )
        except (InvalidSchemaError, RecursionError) as error:
            raise RegistryError.invalid_schema(
                f"Invalid schema of type {source.schema_type.value}, details: "
                f"{str(error) or 'it is nested too deeply'}"
            ) from None
    return parsed[source.key]


def _compare(
    level: CompatibilityLevel,
    lenient: bool,
    sources: Sequence[SchemaSource],
    versions: Sequence[int],
    known: _Parsed,
) -> tuple[list[str], _Parsed]:
    parsed = dict(known)
    new = _parse(sources[0], parsed)
    earlier = [_parse(source, parsed) for source in sources[1:]]
    messages = check_compatibility(level, new, earlier, versions, lenient=lenient)
    return messages, {source.key: parsed[source.key] for source in sources}
