"""What the records of the registry's topic say: subjects with their versions, ids, configurations, modes,
contexts.

The state is a function of the records in the order of the log. Keys and values are those of Confluent's
registry, in its JSON, so that either can read what the other has written. One key has a second meaning
here: the value of NOOP, which Confluent's readers do not look at, keeps the highest id of each context, as
compaction forgets ids that were deleted for good, and an id is never given twice.

Invariants: every id below or at `max_id` of its context may have been given; a version that another refers
to is in `_referrers` as long as that one is there.
"""

from __future__ import annotations

import json
import logging
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from ottla.registry.stored import JsonObject, StoredSchema
from ottla.registry.subjects import (
    CONTEXT_PREFIX,
    DEFAULT_CONTEXT,
    GLOBAL_CONTEXT,
    WILDCARD,
    QualifiedSubject,
)

_log = logging.getLogger(__name__)

Record: TypeAlias = "tuple[bytes, bytes | None]"
Version: TypeAlias = "tuple[str, int]"
# The kind of a key, its subject (for contexts: the context) and, for schemas, its version.
LogicalKey: TypeAlias = "tuple[str, str | None, int]"

DEFAULT_LEVEL: Final = "BACKWARD"
READ_WRITE: Final = "READWRITE"
_TENANT: Final = "default"
_MAGIC: Final = {"SCHEMA": 1}
_GLOBAL_SETTINGS: Final = f":{GLOBAL_CONTEXT}:"
# Kinds of keys whose subject stands for settings.
_SETTINGS: Final = frozenset(("CONFIG", "MODE"))


def encode_key(kind: str, subject: str | None = None, version: int = 0) -> bytes:
    """
    >>> encode_key("SCHEMA", "orders-value", 1)
    b'{"keytype":"SCHEMA","subject":"orders-value","version":1,"magic":1}'
    """
    document: JsonObject = {"keytype": kind}
    if kind == "CONTEXT":
        document |= {"tenant": _TENANT, "context": subject}
    elif subject is not None:
        document["subject"] = subject
    if kind == "SCHEMA":
        document["version"] = version
    return encode_value(document | {"magic": _MAGIC.get(kind, 0)})


def encode_value(document: Mapping[str, Any]) -> bytes:
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass")


def _logical(document: Mapping[str, Any]) -> LogicalKey:
    kind = str(document["keytype"])
    subject = document.get("context" if kind == "CONTEXT" else "subject")
    # An empty text is the global configuration, as some write it.
    found = None if subject is None or (kind in _SETTINGS and not subject) else str(subject)
    return kind, found, int(document["version"]) if kind == "SCHEMA" else 0


class _Ids:
    """The schemas of a context by id and by content."""

    __slots__ = ("by_guid", "by_id", "max_id")

    def __init__(self) -> None:
        self.max_id = 0
        self.by_id: dict[int, dict[Version, None]] = {}
        self.by_guid: dict[str, int] = {}


class RegistryState:
    def __init__(self) -> None:
        self._subjects: dict[str, dict[int, StoredSchema]] = {}
        self._configs: dict[str | None, JsonObject] = {}
        self._modes: dict[str | None, str] = {}
        self._contexts: set[str] = set()
        self._ids: dict[str, _Ids] = {}
        self._referrers: dict[Version, dict[Version, None]] = {}
        # Keys of other writers that mean the same as one of ours and are written in another way.
        self._other_keys: dict[LogicalKey, set[bytes]] = {}
        self.version_count = 0
        # The names of subjects in order, until one comes or goes.
        self._sorted: list[str] | None = None

    # Records

    def apply(self, key: bytes, value: bytes | None, timestamp_ms: int) -> None:
        """Take over a record. What is none of the registry's is left out, with a line in the log."""
        try:
            document = json.loads(key)
            logical = _logical(document)
            if logical[0] == "SCHEMA" and document.get("magic") not in (0, 1):
                raise ValueError(f"magic {document.get('magic')}")
            content = None if value is None else json.loads(value)
            if content is not None and not isinstance(content, dict):
                raise ValueError("the value is no object")
            self._apply(logical, content, timestamp_ms)
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            _log.warning("a record of the schema registry is left out: %s: %s", _shown(key), error)
            return
        if key != encode_key(*logical):
            self._other_keys.setdefault(logical, set()).add(key)

    def _apply(self, key: LogicalKey, value: JsonObject | None, timestamp_ms: int) -> None:
        kind, subject, version = key
        if kind == "SCHEMA":
            if subject is None:
                raise ValueError("no subject")
            self._put_schema((subject, version), value, timestamp_ms)
        elif kind == "CONFIG":
            if value is None:
                self._configs.pop(subject, None)
            else:
                self._configs[subject] = {name: each for name, each in value.items() if name != "subject"}
        elif kind == "MODE":
            if value is None:
                self._modes.pop(subject, None)
            else:
                self._modes[subject] = str(value["mode"])
        elif kind == "CONTEXT" and subject is not None:
            if value is None:
                self._contexts.discard(subject)
            else:
                self._contexts.add(subject)
        elif kind == "DELETE_SUBJECT" and value is not None:
            self._delete_up_to(str(value["subject"]), int(value["version"]))
        elif kind == "CLEAR_SUBJECT" and value is not None:
            self._clear(value.get("subject"))
        elif kind == "NOOP" and value is not None:
            for context, highest in value.get("maxIds", {}).items():
                ids = self._ids_of(context)
                ids.max_id = max(ids.max_id, int(highest))

    def _put_schema(self, key: Version, value: JsonObject | None, timestamp_ms: int) -> None:
        subject, version = key
        if value is None:
            self._remove(key)
            return
        schema = StoredSchema.from_value(value, timestamp_ms)
        ids = self._ids_of(QualifiedSubject.parse(subject).context)
        ids.max_id = max(ids.max_id, schema.id)
        known = next(iter(ids.by_id.get(schema.id, ())), None)
        if known is not None and known != key:
            text = self._subjects[known[0]][known[1]].text
            if text != schema.text:
                raise ValueError(f"the id {schema.id} is that of another schema")
        self._remove(key)
        versions = self._subjects.get(subject)
        if versions is None:
            versions = self._subjects[subject] = {}
            self._sorted = None
        versions[version] = schema
        self.version_count += 1
        ids.by_id.setdefault(schema.id, {})[key] = None
        ids.by_guid[schema.guid] = schema.id
        for referred in self._referred(schema):
            self._referrers.setdefault(referred, {})[key] = None

    def _remove(self, key: Version) -> None:
        subject, version = key
        versions = self._subjects.get(subject, {})
        schema = versions.pop(version, None)
        if schema is None:
            return
        self.version_count -= 1
        if not versions:
            del self._subjects[subject]
            self._sorted = None
        ids = self._ids_of(QualifiedSubject.parse(subject).context)
        owners = ids.by_id[schema.id]
        del owners[key]
        if not owners:
            del ids.by_id[schema.id]
            ids.by_guid.pop(schema.guid, None)
        for referred in self._referred(schema):
            referrers = self._referrers[referred]
            referrers.pop(key, None)
            if not referrers:
                del self._referrers[referred]

    @staticmethod
    def _referred(schema: StoredSchema) -> set[Version]:
        parent = QualifiedSubject.parse(schema.subject)
        return {(str(parent.child(each.subject)), each.version) for each in schema.references}

    def _delete_up_to(self, subject: str, version: int) -> None:
        versions = self._subjects.get(subject, {})
        for each, schema in versions.items():
            if each <= version and not schema.is_deleted:
                versions[each] = schema.deleted()

    def _clear(self, subject: str | None) -> None:
        for each in list(self.subjects_in(subject)):
            for schema in list(self._subjects[each].values()):
                if schema.is_deleted:
                    self._remove((each, schema.version))

    def _ids_of(self, context: str) -> _Ids:
        found = self._ids.get(context)
        if found is None:
            found = self._ids[context] = _Ids()
        return found

    def records_of(self, kind: str, subject: str | None, version: int, value: object) -> list[Record]:
        """The records that set a key, or with None remove it, also as another writer has written it."""
        others = self._other_keys.get((kind, subject, version), ())
        own = None if value is None else encode_value(_checked(value))
        return [*((key, None) for key in sorted(others)), (encode_key(kind, subject, version), own)]

    def max_ids_record(self) -> Record:
        """The record that keeps the highest ids when schemas are gone."""
        highest = {context: ids.max_id for context, ids in sorted(self._ids.items())}
        return encode_key("NOOP"), encode_value({"maxIds": highest})

    # Subjects and versions

    @property
    def subject_count(self) -> int:
        """Subjects with a version, soft-deleted ones too."""
        return len(self._subjects)

    @property
    def _names(self) -> list[str]:
        if self._sorted is None:
            self._sorted = sorted(self._subjects)
        return self._sorted

    def names(self, prefix: str) -> Iterator[str]:
        """The subjects that begin with a text, in order: of the default context, unless the text names
        another one; `:*:` before it are all.
        """
        if not prefix.startswith(WILDCARD):
            names = self._names
            at = bisect_left(names, prefix)
            while at < len(names) and names[at].startswith(prefix):
                if _begins(names[at], prefix):
                    yield names[at]
                at += 1
            return
        for name in self._names:
            if _begins(name, prefix):
                yield name

    def subjects_in(self, subject: str | None) -> Iterator[str]:
        """The subject itself, or those of a context; None are all."""
        if subject is None:
            yield from self._names
            return
        scope = QualifiedSubject.parse(subject)
        if scope.is_context:
            yield from (name for name in self._names if scope.covers(name))
        elif subject in self._subjects:
            yield subject

    def has(self, subject: str | None, *, deleted: bool) -> bool:
        """Whether there is a version of the subject, or of one in this context, deleted or not."""
        return any(
            deleted or not schema.is_deleted
            for name in self.subjects_in(subject)
            for schema in self._subjects[name].values()
        )

    def versions(self, subject: str) -> list[StoredSchema]:
        """All versions, soft-deleted ones too, the oldest first."""
        versions = self._subjects.get(subject, {})
        return [versions[each] for each in sorted(versions)]

    def active(self, subject: str) -> list[StoredSchema]:
        return [each for each in self.versions(subject) if not each.is_deleted]

    def latest(self, subject: str) -> StoredSchema | None:
        active = self.active(subject)
        return active[-1] if active else None

    def version(self, subject: str, version: int, *, deleted: bool = False) -> StoredSchema | None:
        """A version by its number; -1 is the latest that is not deleted."""
        if version == -1:
            return self.latest(subject)
        found = self._subjects.get(subject, {}).get(version)
        return None if found is None or (found.is_deleted and not deleted) else found

    def version_in_contexts(self, subject: str, version: int, *, deleted: bool) -> StoredSchema | None:
        """The same, also in other contexts where the name is of the default one."""
        for name in self._in_contexts(subject):
            if (found := self.version(name, version, deleted=deleted)) is not None:
                return found
        return None

    def _in_contexts(self, subject: str) -> Iterator[str]:
        yield subject
        parsed = QualifiedSubject.parse(subject)
        if parsed.context == DEFAULT_CONTEXT:
            for context in sorted(self._contexts):
                yield str(QualifiedSubject(context, parsed.subject))

    def referrers(self, subject: str, version: int, *, deleted: bool) -> list[StoredSchema]:
        """The schemas that refer to a version."""
        found = [self._subjects[name][each] for name, each in self._referrers.get((subject, version), ())]
        return [each for each in found if deleted or not each.is_deleted]

    # Ids

    def by_id(self, schema_id: int, subject: str = "") -> StoredSchema | None:
        """The schema of an id: as the subject has it, where one is named; else of its context."""
        scope = QualifiedSubject.parse(subject)
        if not scope.is_context:
            for name in self._in_contexts(subject):
                of = QualifiedSubject.parse(name)
                owners = self._owners(of.context, schema_id)
                versions = [version for owner, version in owners if owner == name]
                if versions:
                    return self._subjects[name][max(versions)]
            if scope.context != DEFAULT_CONTEXT:
                return None
        owner = next(iter(self._owners(scope.context, schema_id)), None)
        return None if owner is None else self._subjects[owner[0]][owner[1]]

    def _owners(self, context: str, schema_id: int) -> Iterable[Version]:
        ids = self._ids.get(context)
        return () if ids is None else ids.by_id.get(schema_id, ())

    def with_id(self, context: str, schema_id: int) -> list[StoredSchema]:
        """Every version that has the id."""
        return [self._subjects[name][version] for name, version in sorted(self._owners(context, schema_id))]

    def id_of_content(self, context: str, guid: str) -> int | None:
        ids = self._ids.get(context)
        return None if ids is None else ids.by_guid.get(guid)

    def max_id(self, context: str) -> int:
        ids = self._ids.get(context)
        return 0 if ids is None else ids.max_id

    @property
    def contexts(self) -> list[str]:
        return [DEFAULT_CONTEXT, *sorted(self._contexts - {DEFAULT_CONTEXT})]

    # Settings

    def config(self, subject: str | None) -> JsonObject | None:
        """The configuration of a subject or context; the default where None, which is global, has none."""
        found = self._configs.get(subject)
        if found is None and (subject is None or subject == _GLOBAL_SETTINGS):
            return {"compatibilityLevel": DEFAULT_LEVEL}
        return None if found is None else {"compatibilityLevel": DEFAULT_LEVEL, **found}

    def stored_config(self, subject: str | None) -> JsonObject:
        return self._configs.get(subject, {})

    def configured(self, prefix: str) -> list[str]:
        """The subjects that have a configuration and begin with a text, as with `names`."""
        return sorted(name for name in self._configs if name is not None and _begins(name, prefix))

    def config_in_scope(self, subject: str | None) -> JsonObject:
        """The configuration that holds for a subject."""
        own = None if subject is None else self._configs.get(subject)
        if own is not None:
            return {"compatibilityLevel": DEFAULT_LEVEL, **self._configs.get(None, {}), **own}
        for scope in self._wider(subject):
            if scope in self._configs:
                return {"compatibilityLevel": DEFAULT_LEVEL, **self._configs[scope]}
        return {"compatibilityLevel": DEFAULT_LEVEL}

    def mode(self, subject: str | None) -> str | None:
        found = self._modes.get(subject)
        return READ_WRITE if found is None and (subject is None or subject == _GLOBAL_SETTINGS) else found

    def mode_in_scope(self, subject: str | None) -> str:
        for scope in (subject, *self._wider(subject)):
            if scope in self._modes:
                return self._modes[scope]
        return READ_WRITE

    def has_mode(self, subject: str | None) -> bool:
        return subject in self._modes

    def has_config(self, subject: str | None) -> bool:
        return subject in self._configs

    def modes_below(self, prefix: str) -> list[str]:
        """The subjects of a context that have a mode of their own."""
        return sorted(name for name in self._modes if name is not None and name.startswith(prefix))

    @staticmethod
    def _wider(subject: str | None) -> tuple[str | None, ...]:
        """Where the settings of a subject are looked for if it has none: its context, and then all."""
        context = None if subject is None else QualifiedSubject.parse(subject).prefix or None
        return context, _GLOBAL_SETTINGS


def _begins(name: str, prefix: str) -> bool:
    if prefix.startswith(WILDCARD):
        return QualifiedSubject.parse(name).subject.startswith(prefix[len(WILDCARD) :])
    in_default = not prefix.startswith(CONTEXT_PREFIX)
    return name.startswith(prefix) and not (in_default and name.startswith(CONTEXT_PREFIX))


def _checked(value: object) -> Mapping[str, Any]:
    assert isinstance(value, dict), value
    return value


def _shown(key: bytes) -> str:
    return repr(key[:200])
