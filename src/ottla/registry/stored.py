"""A registered version of a schema, with its metadata and rules, as the topic and the API have it.

Metadata and rule sets are kept as plain JSON objects in one normal form: known fields in Confluent's order,
no empty ones, maps and sets sorted. So equal ones have equal texts, and equal digests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

from ottla.registry.errors import RegistryError
from ottla.schemas.definitions import SchemaReference

JsonObject = dict[str, Any]

CONFLUENT_VERSION: Final = "confluent:version"
MAX_REFERENCES: Final = 1000
_MIGRATION_MODES: Final = frozenset(("UPGRADE", "DOWNGRADE", "UPDOWN"))
_DOMAIN_MODES: Final = frozenset(("WRITE", "READ", "WRITEREAD"))
_KINDS: Final = frozenset(("TRANSFORM", "CONDITION"))
_MAX_RULE_NAME: Final = 64
_RULE_TEXTS: Final = ("expr", "onSuccess", "onFailure")
_PHASES: Final = ("migrationRules", "domainRules", "encodingRules")


@dataclass(frozen=True, slots=True)
class StoredSchema:
    subject: str
    version: int
    id: int
    schema_type: str
    text: str
    references: tuple[SchemaReference, ...] = ()
    metadata: JsonObject | None = None
    rule_set: JsonObject | None = None
    is_deleted: bool = False
    timestamp_ms: int = 0

    @property
    def guid(self) -> str:
        """What Confluent's clients know the content by, whatever its id: its MD5, written as a UUID."""
        digest = hashlib.md5(self.text.encode("utf-8", "surrogatepass"), usedforsecurity=False)
        for reference in self.references:
            digest.update(reference.name.encode())
            digest.update(reference.subject.encode())
            digest.update(reference.version.to_bytes(4, "big", signed=True))
        for document in (self.metadata, self.rule_set):
            if document is not None:
                digest.update(b"\x01")
                for text in _texts_of(document):
                    digest.update(text.encode())
        return str(UUID(bytes=digest.digest()))

    def content(self) -> JsonObject:
        """What of it does not depend on where it is registered."""
        found: JsonObject = {"schemaType": self.schema_type}
        if self.references:
            found["references"] = [
                {"name": each.name, "subject": each.subject, "version": each.version}
                for each in self.references
            ]
        if self.metadata is not None:
            found["metadata"] = self.metadata
        if self.rule_set is not None:
            found["ruleSet"] = self.rule_set
        found["schema"] = self.text
        return found

    def to_value(self) -> JsonObject:
        """The value of its record."""
        return {
            "subject": self.subject,
            "version": self.version,
            "id": self.id,
            **self.content(),
            "deleted": self.is_deleted,
        }

    def to_response(self, *, is_stored: bool = True) -> JsonObject:
        """The answer that shows it; of one that is just being registered there is no time yet."""
        found = {
            "subject": self.subject,
            "version": self.version,
            "id": self.id,
            "guid": self.guid,
            **self.content(),
        }
        return found | {"ts": self.timestamp_ms, "deleted": self.is_deleted} if is_stored else found

    @classmethod
    def from_value(cls, value: Mapping[str, Any], timestamp_ms: int) -> StoredSchema:
        """Read the value of a record. ValueError if it is none."""
        try:
            return cls(
                str(value["subject"]),
                int(value["version"]),
                int(value["id"]),
                str(value.get("schemaType") or "AVRO"),
                str(value["schema"]),
                tuple(
                    SchemaReference(str(each["name"]), str(each["subject"]), int(each["version"]))
                    for each in value.get("references") or ()
                ),
                parse_metadata(value.get("metadata")),
                parse_rule_set(value.get("ruleSet")),
                value.get("deleted") is True,
                timestamp_ms,
            )
        except (AttributeError, KeyError, TypeError, RegistryError) as error:
            raise ValueError(f"no value of a schema: {error}") from None

    def deleted(self) -> StoredSchema:
        return replace(self, is_deleted=True)


def _texts_of(document: JsonObject) -> Iterable[str]:
    """The texts that count for the digest of metadata or a rule set."""
    if any(phase in document for phase in (*_PHASES, "enableAt")):
        for phase in _PHASES:
            for rule in document.get(phase, ()):
                for name in ("name", "doc", "kind", "mode", "type"):
                    yield rule.get(name, "")
                yield from rule.get("tags", ())
                for key, value in rule.get("params", {}).items():
                    yield from (key, value)
                for name in _RULE_TEXTS:
                    yield rule.get(name, "")
                if rule["disabled"]:
                    yield "\x01"
        yield document.get("enableAt", "")
        return
    for tag, values in document.get("tags", {}).items():
        yield tag
        yield from values
    for key, value in document.get("properties", {}).items():
        yield from (key, value)
    yield from document.get("sensitive", ())


# From requests and records


def parse_references(given: object) -> tuple[SchemaReference, ...]:
    found = []
    for each in _list(given, "references"):
        reference = _object(each, "references")
        name, subject, version = reference.get("name"), reference.get("subject"), reference.get("version")
        if not isinstance(name, str) or not isinstance(subject, str) or not _is_number(version):
            raise RegistryError(422, "A reference has a name, a subject and a version.")
        assert isinstance(version, int)
        found.append(SchemaReference(name, subject, version))
    if len(found) > MAX_REFERENCES:
        raise RegistryError.invalid_schema(f"a schema has at most {MAX_REFERENCES} references")
    return tuple(found)


def parse_metadata(given: object) -> JsonObject | None:
    if given is None:
        return None
    document = _object(given, "metadata")
    tags = {
        tag: sorted({_text(value, "metadata.tags") for value in _list(values, "metadata.tags")})
        for tag, values in sorted(_object(document.get("tags") or {}, "metadata.tags").items())
    }
    properties = _text_map(document.get("properties"), "metadata.properties")
    sensitive = sorted(
        {_text(each, "metadata.sensitive") for each in _list(document.get("sensitive"), "metadata.sensitive")}
    )
    found = {"tags": tags, "properties": properties, "sensitive": sensitive}
    return {name: value for name, value in found.items() if value}


def parse_rule_set(given: object) -> JsonObject | None:
    if given is None:
        return None
    document = _object(given, "ruleSet")
    found: JsonObject = {}
    for phase in _PHASES:
        rules = [_rule(_object(each, phase), phase) for each in _list(document.get(phase), phase)]
        names = [rule["name"] for rule in rules]
        repeated = next((name for at, name in enumerate(names) if name in names[:at]), None)
        if repeated is not None:
            raise RegistryError.invalid_rules(f"Found rule with duplicate name '{repeated}'")
        if rules:
            found[phase] = rules
    if document.get("enableAt") is not None:
        found["enableAt"] = _text(document["enableAt"], "enableAt")
    return found


def _rule(given: Mapping[str, Any], phase: str) -> JsonObject:
    name = given.get("name")
    if name is None:
        raise RegistryError.invalid_rules("Missing rule name")
    name = _text(name, "name")
    if not name:
        raise RegistryError.invalid_rules("Empty rule name")
    if len(name) > _MAX_RULE_NAME:
        raise RegistryError.invalid_rules("Rule name too long")
    if not (name[0].isalpha() or name[0] == "_"):
        raise RegistryError.invalid_rules(f"Illegal initial character in rule name: {name}")
    if not all(char.isalnum() or char in "_-" for char in name):
        raise RegistryError.invalid_rules(f"Illegal character in rule name: {name}")
    if given.get("type") is None:
        raise RegistryError.invalid_rules("Missing rule type")
    kind, mode = given.get("kind") or "TRANSFORM", given.get("mode") or "WRITEREAD"
    is_migration = phase == "migrationRules"
    if kind not in _KINDS or mode not in (_MIGRATION_MODES if is_migration else _DOMAIN_MODES):
        raise RegistryError.invalid_rules(
            "Migration rules can only be UPGRADE, DOWNGRADE, UPDOWN"
            if is_migration
            else f"{phase[0].upper()}{phase[1:-5]} rules can only be WRITE, READ, WRITEREAD"
        )
    found: JsonObject = {
        "name": name,
        "doc": _text(given.get("doc") or "", "doc"),
        "kind": kind,
        "mode": mode,
        "type": _text(given["type"], "type"),
        "tags": sorted({_text(each, "tags") for each in _list(given.get("tags"), "tags")}),
        "params": _text_map(given.get("params"), "params"),
        **{each: _text(given.get(each) or "", each) for each in _RULE_TEXTS},
    }
    for action in ("onSuccess", "onFailure"):
        if "," in found[action] and mode not in ("WRITEREAD", "UPDOWN"):
            raise RegistryError.invalid_rules("Multiple actions only valid with WRITEREAD and UPDOWN")
    return {name: value for name, value in found.items() if value} | {
        "disabled": given.get("disabled") is True
    }


# Merged


def merge_metadata(old: JsonObject | None, new: JsonObject | None) -> JsonObject | None:
    """What is in either; of properties and tags that both have, those of the new one."""
    if old is None or new is None:
        return new if old is None else old
    return parse_metadata(
        {
            "tags": {**old.get("tags", {}), **new.get("tags", {})},
            "properties": {**old.get("properties", {}), **new.get("properties", {})},
            "sensitive": [*old.get("sensitive", ()), *new.get("sensitive", ())],
        }
    )


def merge_rule_sets(old: JsonObject | None, new: JsonObject | None) -> JsonObject | None:
    """The rules of both; of two with one name, the new one."""
    if old is None or new is None:
        return new if old is None else old
    found: JsonObject = {}
    for phase in _PHASES:
        names = {rule["name"] for rule in new.get(phase, ())}
        found[phase] = [rule for rule in old.get(phase, ()) if rule["name"] not in names]
        found[phase] += new.get(phase, ())
    return parse_rule_set(found | {"enableAt": new.get("enableAt", old.get("enableAt"))})


def with_confluent_version(metadata: JsonObject | None, version: int) -> JsonObject | None:
    return merge_metadata(metadata, {"properties": {CONFLUENT_VERSION: str(version)}})


# Types


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**31) <= value < 2**31


def _wrong(name: str) -> RegistryError:
    return RegistryError(422, f"{name} has a value of another type.")


def _object(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(name)
    return value


def _list(value: object, name: str) -> list[Any]:
    if value is not None and not isinstance(value, list):
        raise _wrong(name)
    return value or []


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise _wrong(name)
    return value


def _text_map(value: object, name: str) -> dict[str, str]:
    return {key: _text(text, name) for key, text in sorted(_object(value or {}, name).items())}
