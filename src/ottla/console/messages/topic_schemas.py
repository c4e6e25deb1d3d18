"""Which schema the keys and values of a topic have: from a file of settings, and from a registry.

    [registry]
    url = "http://localhost:8081"

    [[topic]]
    name = "orders*"
    value = { format = "avro", file = "orders.avsc" }
    key = { format = "protobuf", file = "keys.proto", message = "OrderKey" }

The first `[[topic]]` whose name matches is used; files are relative to the file of settings.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from ottla.schemas.errors import SchemaError
from ottla.schemas.schema import MAX_SCHEMA_BYTES, MessageSchema, make_schema

_PARTS: Final = ("key", "value")


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: str
    schemas: dict[str, MessageSchema]


@dataclass(frozen=True, slots=True)
class TopicSchemas:
    """`registry_url` is that of the file, if it has one."""

    rules: tuple[_Rule, ...] = ()
    registry_url: str | None = field(default=None, repr=False)

    def of(self, topic: str, part: str) -> MessageSchema | None:
        """The schema of the `key` or `value` of a topic, if one is given."""
        for rule in self.rules:
            if fnmatchcase(topic, rule.pattern):
                return rule.schemas.get(part)
        return None


def load_topic_schemas(path: Path) -> TopicSchemas:
    """Read a file of settings, and the schemas that it names. SchemaError says what is wrong with which."""
    document = _toml(path)
    unknown = set(document) - {"registry", "topic"}
    if unknown:
        raise SchemaError(f"{path}: there is no setting {sorted(unknown)[0]!r}; there are registry and topic")
    registry = document.get("registry") or {}
    url = registry.get("url") if isinstance(registry, dict) else None
    if url is not None and not isinstance(url, str):
        raise SchemaError(f"{path}: the url of the registry has to be text")
    topics = document.get("topic") or []
    if not isinstance(topics, list):
        raise SchemaError(f"{path}: write [[topic]], with two brackets")
    return TopicSchemas(tuple(_rule(path, each) for each in topics), url)


def _rule(path: Path, entry: Any) -> _Rule:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise SchemaError(f"{path}: each [[topic]] needs a name")
    schemas: dict[str, MessageSchema] = {}
    for part in _PARTS:
        given = entry.get(part)
        if given is None:
            continue
        if not isinstance(given, dict) or not isinstance(given.get("file"), str):
            raise SchemaError(f"{path}: {part} of {entry['name']} needs a format and a file")
        file = path.parent / given["file"]
        text = _read(file)
        schemas[part] = make_schema(
            file.name, str(given.get("format") or _format_of(file)), text, message=given.get("message")
        )
    return _Rule(entry["name"], schemas)


def _format_of(file: Path) -> str:
    return {".avsc": "avro", ".proto": "protobuf", ".json": "json-schema"}.get(file.suffix, file.suffix)


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_read(path))
    except tomllib.TOMLDecodeError as error:
        raise SchemaError(f"{path}: {error}") from None


def _read(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(MAX_SCHEMA_BYTES + 1)
    except OSError as error:
        raise SchemaError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SchemaError(f"{path}: not UTF-8") from None
