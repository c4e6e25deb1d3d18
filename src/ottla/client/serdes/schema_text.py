"""The texts of schemas, with those that they refer to, as a registry gives them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from ottla.schemas.errors import SchemaError
from ottla.schemas.parsed import SchemaReference
from ottla.schemas.registry_client import RegistryClient, part

_MAX_REFERENCES: Final = 100


@dataclass(frozen=True, slots=True)
class SchemaText:
    """A schema with those that it refers to, by its names for them."""

    text: str
    references: tuple[tuple[str, SchemaText], ...] = ()

    def before(self) -> list[tuple[str, SchemaText]]:
        """All that it needs, directly or not, once, each after what it needs itself."""
        found: list[tuple[str, SchemaText]] = []
        seen: set[int] = set()

        def add(schema: SchemaText) -> None:
            for name, each in schema.references:
                if id(each) not in seen:
                    seen.add(id(each))
                    add(each)
                    found.append((name, each))

        add(self)
        return found


_Known: TypeAlias = dict[tuple[str, int], SchemaText | None]


def schema_of(registry: RegistryClient, document: dict[str, Any]) -> SchemaText:
    """The schema of a registry's answer. The registry is asked for those that it refers to."""
    return _schema_of(registry, document, {})


def referenced_schemas(
    registry: RegistryClient, references: Sequence[SchemaReference]
) -> tuple[tuple[str, SchemaText], ...]:
    return _referenced(registry, references, {})


def _schema_of(registry: RegistryClient, document: dict[str, Any], known: _Known) -> SchemaText:
    references = [
        SchemaReference(str(each["name"]), str(each["subject"]), int(each["version"]))
        for each in document.get("references") or []
    ]
    return SchemaText(str(document["schema"]), _referenced(registry, references, known))


def _referenced(
    registry: RegistryClient, references: Sequence[SchemaReference], known: _Known
) -> tuple[tuple[str, SchemaText], ...]:
    found: list[tuple[str, SchemaText]] = []
    for each in references:
        key = (each.subject, each.version)
        if key not in known:
            known[key] = None  # until it is there: one that needs itself is none
            if len(known) > _MAX_REFERENCES:
                raise SchemaError("it refers to too many others")
            path = f"/subjects/{part(each.subject)}/versions/{each.version}"
            known[key] = _schema_of(registry, registry.call("GET", path, deleted=True), known)
        schema = known[key]
        if schema is None:
            raise SchemaError(f"the reference {each.name!r} needs itself")
        found.append((each.name, schema))
    return tuple(found)
