"""The registry: what each request reads of the state, and which records it has written.

A request that changes something is a function of the state: it returns records and an answer, or raises.
The store has the records written only if nothing else was written since the state that they were decided
on; otherwise the request decides again. What that takes of parsing and comparing is remembered while the
request lasts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice
from typing import Any, Final, Generic, Protocol, TypeVar

from ottla.registry.errors import RegistryError
from ottla.registry.parsing import SchemaParser, SchemaSource, referenced_sources, source_of
from ottla.registry.state import Record, RegistryState
from ottla.registry.stored import (
    CONFLUENT_VERSION,
    JsonObject,
    StoredSchema,
    merge_metadata,
    merge_rule_sets,
    parse_metadata,
    parse_references,
    parse_rule_set,
    with_confluent_version,
)
from ottla.registry.subjects import DEFAULT_CONTEXT, GLOBAL_CONTEXT, WILDCARD, QualifiedSubject
from ottla.schemas.compatibility import CompatibilityLevel
from ottla.schemas.definitions import SchemaReference, SchemaType

T = TypeVar("T")

LATEST: Final = -1
_RESERVED: Final = "confluent:reserved"
_MAX_VERSION: Final = 2**31 - 1
# Schemas with their texts in one answer, as Confluent's has it.
_MAX_LISTED_SCHEMAS: Final = 1000
# And so many characters of their texts.
_MAX_LISTED_TEXT: Final = 16 * 1024 * 1024
_MODES: Final = frozenset(("READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT", "FORWARD"))
_IMPORTING: Final = frozenset(("IMPORT", "FORWARD"))
_READ_ONLY: Final = frozenset(("READONLY", "READONLY_OVERRIDE"))
_POLICIES: Final = ("STRICT", "LENIENT", "LOGICAL")
_CONFIG_TEXTS: Final = ("alias", "aliasForDeks", "compatibilityGroup")
_CONFIG_FLAGS: Final = ("normalize", "validateFields", "validateNewSchemas", "validateRules")
_CONFIG_METADATA: Final = ("defaultMetadata", "overrideMetadata")
_CONFIG_RULES: Final = ("defaultRuleSet", "overrideRuleSet")


@dataclass(frozen=True, slots=True)
class Changes(Generic[T]):
    """What a request has decided: records to be written together, and the answer once they are."""

    answer: T
    records: Sequence[Record] = ()


class RegistryStore(Protocol):
    """Where the records are, and the state that they make."""

    @property
    def state(self) -> RegistryState:
        """What this node has read. It may lag behind; another object after the topic was created again."""
        ...

    async def open(self) -> None:
        """Wait until everything was read once."""
        ...

    async def refresh(self) -> None:
        """Read everything that was written before now. RegistryError if that cannot be known."""
        ...

    async def write(self, decide: Callable[[RegistryState], Awaitable[Changes[T]]]) -> T:
        """Let a request decide on a state that misses nothing, have its records written, and return its
        answer when the state has them. It may have to decide more than once.
        """
        ...


@dataclass(frozen=True, slots=True)
class Page:
    """Which part of a list is asked for; a limit of 0 or less is none."""

    offset: int = 0
    limit: int = -1

    def of(self, items: Any, most: int | None = None) -> list[Any]:
        limit = self.limit if self.limit > 0 and (most is None or self.limit <= most) else most
        start = max(self.offset, 0)
        return list(islice(items, start, None if limit is None else start + limit))


@dataclass(frozen=True, slots=True)
class SchemaRequest:
    """A schema in the body of a request."""

    schema_type: SchemaType = SchemaType.AVRO
    text: str = ""
    references: tuple[SchemaReference, ...] = ()
    metadata: JsonObject | None = None
    rule_set: JsonObject | None = None
    version: int = 0
    id: int = -1

    @classmethod
    def parse(cls, body: object) -> SchemaRequest:
        if not isinstance(body, dict):
            raise RegistryError(422, "The body has to be an object with a schema.")
        kind, text = body.get("schemaType"), body.get("schema")
        try:
            schema_type = SchemaType(kind or "AVRO")
        except ValueError:
            raise RegistryError.invalid_schema(f"Invalid schema type {kind}") from None
        if text is not None and not isinstance(text, str):
            raise RegistryError(422, "schema has to be a text.")
        return cls(
            schema_type,
            text or "",
            parse_references(body.get("references")),
            parse_metadata(body.get("metadata")),
            parse_rule_set(body.get("ruleSet")),
            _number(body, "version", 0),
            _number(body, "id", -1),
        )


def _number(body: Mapping[str, Any], name: str, default: int) -> int:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > _MAX_VERSION:
        raise RegistryError(422, f"{name} has to be a number.")
    return value


def parse_version(text: str) -> int:
    """The number of a version in a path; -1 is the latest."""
    if text.strip().lower() == "latest":
        return LATEST
    try:
        version = int(text.strip()) if text.isascii() else 0
    except ValueError:
        version = 0
    if not (0 < version <= _MAX_VERSION or version == LATEST):
        raise RegistryError.invalid_version(text)
    return version


@dataclass(slots=True)
class _Work:
    """What a request has parsed and compared, for when it has to decide again."""

    client: Hashable
    parser: SchemaParser
    texts: dict[tuple[bytes, bool], str] = field(default_factory=dict)
    differences: dict[tuple[bytes, ...], list[str]] = field(default_factory=dict)

    async def canonical_text(self, source: SchemaSource, *, normalize: bool) -> str:
        key = (source.key, normalize)
        if key not in self.texts:
            self.texts[key] = await self.parser.canonical_text(self.client, source, normalize=normalize)
        return self.texts[key]

    async def compare(
        self,
        scope: JsonObject,
        new: SchemaSource,
        earlier: Sequence[SchemaSource],
        versions: Sequence[int],
    ) -> list[str]:
        """Compare by the settings of a subject."""
        level, lenient = scope["compatibilityLevel"], scope.get("compatibilityPolicy") == "LENIENT"
        key = (f"{level} {lenient}".encode(), new.key, *(each.key for each in earlier))
        if key not in self.differences:
            self.differences[key] = await self.parser.differences(
                self.client, CompatibilityLevel(level), new, earlier, versions, lenient=lenient
            )
        return self.differences[key]


class Registry:
    """`client` in its methods is the one that a request's costly work is counted for."""

    def __init__(self, store: RegistryStore, parser: SchemaParser) -> None:
        self._store: Final = store
        self._parser: Final = parser

    async def read(self, query: Callable[[RegistryState], T]) -> T:
        """Answer from memory. What seems to be missing is looked for again in what all nodes have written."""
        await self._store.open()
        try:
            return query(self._store.state)
        except RegistryError as error:
            if not error.is_missing:
                raise
        await self._store.refresh()
        return query(self._store.state)

    # Schemas

    async def register(
        self, client: Hashable, subject: str, request: SchemaRequest, *, normalize: bool, force: bool = False
    ) -> JsonObject:
        """Register a schema under a subject, with `force` also an incompatible one; the answer has its id.
        One that is there comes from memory.
        """
        if not QualifiedSubject.parse(subject).is_valid():
            raise RegistryError.invalid_subject(subject)
        work = _Work(client, self._parser)

        async def decide(state: RegistryState) -> Changes[JsonObject]:
            return await _register(state, work, subject, request, normalize=normalize, force=force)

        await self._store.open()
        try:
            decided = await decide(self._store.state)
        except RegistryError:
            pass  # by a state that may lag
        else:
            if not decided.records:
                return decided.answer
        return await self._store.write(decide)

    async def formatted_text(self, client: Hashable, schema: StoredSchema, name: str) -> str:
        """The text of a schema in a format that a client names; the one that is stored if it names none."""
        if not name.strip() or name.lower() == "default":
            return schema.text
        return await self._parser.formatted_text(client, source_of(self._store.state, schema), name.lower())

    async def look_up(
        self, client: Hashable, subject: str, request: SchemaRequest, *, normalize: bool, deleted: bool
    ) -> StoredSchema:
        """Find the version of a subject that has this schema."""
        work = _Work(client, self._parser)
        await self._store.open()
        try:
            return await _look_up(self._store.state, work, subject, request, normalize, deleted)
        except RegistryError:
            await self._store.refresh()
        return await _look_up(self._store.state, work, subject, request, normalize, deleted)

    async def check(
        self,
        client: Hashable,
        subject: str,
        version: int | None,
        request: SchemaRequest,
        *,
        normalize: bool,
        verbose: bool,
    ) -> JsonObject:
        """Whether a schema could follow a version, or, where that is None, be registered."""
        work = _Work(client, self._parser)
        await self._store.open()
        if version is not None and self._store.state.version(subject, version) is None:
            await self._store.refresh()
        state = self._store.state
        earlier = state.active(subject)
        if version is not None:
            one = state.version(subject, version)
            if one is None and version != LATEST:
                raise RegistryError.version_not_found(version)
            earlier = [] if one is None else [one]
        try:
            if not request.text.strip():
                raise RegistryError.invalid_schema("Empty schema")
            source, request = await _canonical(
                state, work, subject, request, normalize=normalize, is_new=True
            )
            messages = await _differences(state, work, subject, source, request.metadata, earlier)
        except RegistryError as error:
            if not verbose or error.code != 42201:
                raise
            messages = [error.message]
        return {"is_compatible": not messages} | ({"messages": messages} if verbose else {})

    async def delete_version(self, subject: str, version: int, *, permanent: bool) -> int:
        async def decide(state: RegistryState) -> Changes[int]:
            return _delete_version(state, subject, version, permanent=permanent)

        return await self._store.write(decide)

    async def delete_subject(self, subject: str, *, permanent: bool) -> list[int]:
        async def decide(state: RegistryState) -> Changes[list[int]]:
            return _delete_subject(state, subject, permanent=permanent)

        return await self._store.write(decide)

    async def delete_context(self, context: str) -> None:
        async def decide(state: RegistryState) -> Changes[None]:
            if state.has(context, deleted=True):
                raise RegistryError.context_not_empty(context)
            name = QualifiedSubject.parse(context).context
            if name not in state.contexts:
                return Changes(None)
            return Changes(None, state.records_of("CONTEXT", name, 0, None))

        await self._store.write(decide)

    # Settings

    async def update_config(self, subject: str | None, body: object) -> JsonObject:
        """Change what the body names, and return all that is set then."""
        if subject is not None and not QualifiedSubject.parse(subject).is_valid(for_settings=True):
            raise RegistryError.invalid_subject(subject)
        update = _config_update(body)

        async def decide(state: RegistryState) -> Changes[JsonObject]:
            _check_writable(state, subject)
            stored = {**state.stored_config(subject), **update}
            stored = {name: value for name, value in stored.items() if value not in (None, "", {}, [])}
            answer = {
                ("compatibility" if name == "compatibilityLevel" else name): value
                for name, value in stored.items()
            }
            value = {**_subject_field(subject), **stored}
            return Changes(answer, state.records_of("CONFIG", subject, 0, value))

        return await self._store.write(decide)

    async def delete_config(self, subject: str | None) -> JsonObject:
        """Remove a configuration, and return what it was."""

        async def decide(state: RegistryState) -> Changes[JsonObject]:
            _check_writable(state, subject)
            found = state.config(subject)
            if found is None:
                raise RegistryError.subject_not_found(subject)
            if not state.has_config(subject):
                return Changes(found)
            return Changes(found, state.records_of("CONFIG", subject, 0, None))

        return await self._store.write(decide)

    async def set_mode(self, subject: str | None, mode: str | None, *, force: bool) -> None:
        if subject is not None and not QualifiedSubject.parse(subject).is_valid(for_settings=True):
            raise RegistryError.invalid_subject(subject)
        if mode is not None and mode not in _MODES:
            raise RegistryError.invalid_mode()
        if mode == "FORWARD" and subject != f":{GLOBAL_CONTEXT}:":
            raise RegistryError.invalid_mode("Forward mode only supported on global level")

        async def decide(state: RegistryState) -> Changes[None]:
            return Changes(None, _mode_records(state, subject, mode, force=force))

        await self._store.write(decide)

    async def delete_mode(self, subject: str | None, *, recursive: bool) -> str | None:
        """Remove a mode, and return what it was; `recursive` also those of the subjects of a context."""

        async def decide(state: RegistryState) -> Changes[str | None]:
            found = state.mode(subject)
            if found is None and not recursive:
                raise RegistryError.subject_not_found(subject)
            names: list[str | None] = [subject] if state.has_mode(subject) else []
            if recursive and (subject is None or QualifiedSubject.parse(subject).is_context):
                below = state.modes_below(subject or "")
                names += [each for each in below if each != subject and (subject or not each.startswith(":"))]
            return Changes(
                found, [record for name in names for record in state.records_of("MODE", name, 0, None)]
            )

        return await self._store.write(decide)


# Queries, for `Registry.read`


def subjects(state: RegistryState, prefix: str, *, deleted: bool, deleted_only: bool) -> list[str]:
    def is_shown(name: str) -> bool:
        is_deleted = not state.has(name, deleted=False)
        return is_deleted if deleted_only else deleted or not is_deleted

    return [name for name in state.names(prefix) if is_shown(name)]


def versions(
    state: RegistryState, subject: str, *, deleted: bool, deleted_only: bool, as_negative: bool
) -> list[int]:
    if not state.has(subject, deleted=deleted or deleted_only):
        raise RegistryError.subject_not_found(subject)
    if as_negative:
        return [-each.version if each.is_deleted else each.version for each in state.versions(subject)]
    return [
        each.version
        for each in state.versions(subject)
        if (each.is_deleted if deleted_only else deleted or not each.is_deleted)
    ]


def version(state: RegistryState, subject: str, number: int, *, deleted: bool) -> StoredSchema:
    found = state.version_in_contexts(subject, number, deleted=deleted)
    if found is None:
        if not state.has(subject, deleted=deleted):
            raise RegistryError.subject_not_found(subject)
        raise RegistryError.version_not_found(number)
    return found


def referenced_by(state: RegistryState, subject: str, number: int, *, deleted: bool) -> list[int]:
    found = version(state, subject, number, deleted=True)
    return sorted({each.id for each in state.referrers(found.subject, found.version, deleted=deleted)})


def by_id(state: RegistryState, schema_id: int, subject: str) -> StoredSchema:
    found = state.by_id(schema_id, subject)
    if found is None:
        raise RegistryError.schema_not_found(schema_id)
    return found


def with_id(state: RegistryState, schema_id: int, subject: str, *, deleted: bool) -> list[StoredSchema]:
    found = state.by_id(schema_id, subject)
    if found is None:
        raise RegistryError.schema_not_found()
    context = QualifiedSubject.parse(found.subject).context
    return [each for each in state.with_id(context, schema_id) if deleted or not each.is_deleted]


def by_guid(state: RegistryState, guid: str) -> list[tuple[str, StoredSchema]]:
    """The schemas of a content, one for each context that has it."""
    found = []
    for context in state.contexts:
        schema_id = state.id_of_content(context, guid)
        if schema_id is not None:
            schema = state.by_id(schema_id, str(QualifiedSubject(context, "")))
            if schema is not None:
                found.append((context, schema))
    if not found:
        raise RegistryError.schema_not_found(guid)
    return found


def listed(
    state: RegistryState,
    prefix: str,
    page: Page,
    *,
    deleted: bool,
    latest_only: bool,
    rule_type: str,
    more: Iterable[str] = (),
) -> list[StoredSchema]:
    """Schemas of the subjects that begin with a text, and of `more` subjects."""
    names: Iterable[str] = state.names(prefix)
    if more:
        names = sorted({*names, *more})

    def all_of() -> Any:
        for name in names:
            found = state.versions(name) if deleted else state.active(name)
            yield from found[-1:] if latest_only else found

    found = all_of()
    if rule_type:
        found = (each for each in found if _has_rule(each.rule_set, rule_type))
    return answerable(page.of(found, _MAX_LISTED_SCHEMAS))


def answerable(found: Sequence[StoredSchema]) -> list[StoredSchema]:
    """The first schemas, as many as one answer may have the texts of, and at least one; a client that pages
    by what it got misses none.
    """
    ends = accumulate(len(each.text) for each in found)
    return [
        each
        for at, (each, end) in enumerate(zip(found, ends, strict=True))
        if not at or end <= _MAX_LISTED_TEXT
    ]


def _has_rule(rule_set: JsonObject | None, rule_type: str) -> bool:
    phases = [] if rule_set is None else [each for each in rule_set.values() if isinstance(each, list)]
    return any(rule["type"] == rule_type for rules in phases for rule in rules)


def with_metadata(
    state: RegistryState, subject: str, wanted: Mapping[str, str], *, deleted: bool
) -> StoredSchema:
    """The latest version that has these properties."""
    for each in reversed(state.versions(subject)):
        properties = (each.metadata or {}).get("properties", {})
        if (deleted or not each.is_deleted) and properties and wanted.items() <= properties.items():
            return each
    if not state.has(subject, deleted=deleted):
        raise RegistryError.subject_not_found(subject)
    raise RegistryError.schema_not_found()


def without_alias(state: RegistryState, subject: str) -> str:
    """The subject that a name stands for, if it is an alias of one."""
    alias = state.stored_config(subject).get("alias")
    return subject if not alias else str(QualifiedSubject.parse(subject).child(alias))


def aliases(state: RegistryState, prefix: str) -> dict[str, list[str]]:
    """The aliases that begin with a text, by the subjects that they stand for."""
    found: dict[str, list[str]] = {}
    for name in state.configured(prefix):
        if (subject := without_alias(state, name)) != name:
            found.setdefault(subject, []).append(name)
    return found


def config(state: RegistryState, subject: str | None, *, in_scope: bool) -> JsonObject:
    found = state.config_in_scope(subject) if in_scope else state.config(subject)
    if found is None:
        assert subject is not None
        raise RegistryError.no_subject_config(subject)
    return found


def mode(state: RegistryState, subject: str | None, *, in_scope: bool) -> str:
    found = state.mode_in_scope(subject) if in_scope else state.mode(subject)
    if found is None:
        assert subject is not None
        raise RegistryError.no_subject_mode(subject)
    return found


ALL_CONTEXTS: Final = WILDCARD


# Decisions


def _in_context(subject: str | None) -> str:
    return "" if subject is None else QualifiedSubject.parse(subject).prefix


def _check_writable(state: RegistryState, subject: str | None) -> None:
    if state.mode_in_scope(subject) in _READ_ONLY:
        shown = "null" if subject is None else subject
        raise RegistryError.not_permitted(
            f"Subject {shown} in context {_in_context(subject)} is in read-only mode"
        )


def _check_mode(state: RegistryState, subject: str, request: SchemaRequest) -> None:
    _check_writable(state, subject)
    found = state.mode_in_scope(subject)
    needed = "import" if request.id >= 0 else "read-write"
    if (found not in _IMPORTING) if request.id >= 0 else (found != "READWRITE"):
        raise RegistryError.not_permitted(
            f"Subject {subject} in context {_in_context(subject)} is not in {needed} mode"
        )


def _with_latest_references(state: RegistryState, subject: str, request: SchemaRequest) -> SchemaRequest:
    """The request, with the numbers of versions for references to the latest."""
    parent = QualifiedSubject.parse(subject)

    def resolved(reference: SchemaReference) -> SchemaReference:
        if reference.version != LATEST:
            return reference
        latest = state.latest(str(parent.child(reference.subject)))
        return reference if latest is None else replace(reference, version=latest.version)

    return replace(request, references=tuple(resolved(each) for each in request.references))


async def _canonical(
    state: RegistryState, work: _Work, subject: str, request: SchemaRequest, *, normalize: bool, is_new: bool
) -> tuple[SchemaSource, SchemaRequest]:
    """The schema of a request in the form that is kept. RegistryError 42201 if it is none; one that `is_new`
    is checked for more, and refers only to what is not deleted.
    """
    scope = state.config_in_scope(subject)
    # What comes from another registry stays as it is there.
    is_import = state.mode_in_scope(subject) in _IMPORTING
    is_new = is_new and not is_import and scope.get("validateNewSchemas") is not False
    normalize = (normalize or scope.get("normalize") is True) and not is_import
    request = _with_latest_references(state, subject, request)
    if normalize:
        unique = dict.fromkeys(request.references)
        in_order = sorted(unique, key=lambda each: (each.subject, each.version))
        request = replace(request, references=tuple(in_order))
    references = referenced_sources(state, subject, request.references, deleted=not is_new)
    source = SchemaSource.of(request.schema_type, request.text, references, is_new=is_new)
    text = await work.canonical_text(source, normalize=normalize)
    return SchemaSource.of(request.schema_type, text, references, is_new=is_new), request


async def _differences(
    state: RegistryState,
    work: _Work,
    subject: str,
    source: SchemaSource,
    metadata: JsonObject | None,
    earlier: Sequence[StoredSchema],
) -> list[str]:
    scope = state.config_in_scope(subject)
    level, validates = scope["compatibilityLevel"], scope.get("validateFields") is True
    found = await _reserved_fields(work, source, metadata, earlier) if validates else []
    group = scope.get("compatibilityGroup")
    if group is not None:
        wanted = (metadata or {}).get("properties", {}).get(group)
        earlier = [
            each for each in earlier if (each.metadata or {}).get("properties", {}).get(group) == wanted
        ]
    if level != "NONE":
        earlier = earlier if level.endswith("_TRANSITIVE") else earlier[-1:]
        sources = [source_of(state, each) for each in earlier]
        found += await work.compare(scope, source, sources, [each.version for each in earlier])
    if found:
        found.append(f"{{validateFields: '{str(validates).lower()}', compatibility: '{level}'}}")
    return found


async def _reserved_fields(
    work: _Work, source: SchemaSource, metadata: JsonObject | None, earlier: Sequence[StoredSchema]
) -> list[str]:
    """What a schema does to the fields that metadata reserve for later."""
    reserved = _reserved(metadata)
    gone = (_reserved(earlier[-1].metadata) if earlier else set()) - reserved
    found = [
        f"The new schema has reserved field {name} removed from its metadata which is present in the old "
        "schema's metadata."
        for name in sorted(gone)
    ]
    taken = reserved & await work.parser.top_level_fields(work.client, source) if reserved else set()
    return found + [
        f"The new schema has field that conflicts with the reserved field {name}." for name in sorted(taken)
    ]


def _reserved(metadata: JsonObject | None) -> set[str]:
    names = (metadata or {}).get("properties", {}).get(_RESERVED, "")
    return {name.strip() for name in names.split(",") if name.strip()}


def _has_same_facts(new: StoredSchema, old: StoredSchema) -> bool:
    """Whether type, metadata and rules are the same. A version that metadata have may be in one of them only,
    if it is that of the old schema.
    """
    if new.schema_type != old.schema_type or new.rule_set != old.rule_set:
        return False
    named, of_old = _confluent_version(new.metadata), _confluent_version(old.metadata)
    if (named is None) == (of_old is None):
        return new.metadata == old.metadata
    if named is not None and named != str(old.version):
        return False
    return _without_version(new.metadata) == _without_version(old.metadata)


def _confluent_version(metadata: JsonObject | None) -> str | None:
    found: str | None = (metadata or {}).get("properties", {}).get(CONFLUENT_VERSION)
    return found


def _without_version(metadata: JsonObject | None) -> JsonObject:
    found = dict(metadata or {})
    properties = {
        name: each for name, each in found.pop("properties", {}).items() if name != CONFLUENT_VERSION
    }
    return found | ({"properties": properties} if properties else {})


async def _find(
    state: RegistryState, work: _Work, new: StoredSchema, *, deleted: bool, latest_only: bool = False
) -> StoredSchema | None:
    """The version of its subject that is this schema: the latest that is exactly this one, or the latest that
    differs in how it is written only.
    """
    candidates = state.versions(new.subject) if deleted else state.active(new.subject)
    candidates = candidates[-1:] if latest_only else candidates[::-1]
    exact = (each for each in candidates if each.schema_type == new.schema_type and each.guid == new.guid)
    found = next(exact, None)
    if found is not None:
        return found
    for each in candidates:
        if not _has_same_facts(new, each):
            continue
        if new.references == each.references:
            if new.text == each.text:
                return each
        elif not new.references and new.text == await _resolved_text(state, work, each):
            return each
    return None


async def _resolved_text(state: RegistryState, work: _Work, schema: StoredSchema) -> str | None:
    """A schema of Avro with all that it refers to inside of it, as some serializers send it."""
    if schema.schema_type != SchemaType.AVRO.value:
        return None
    try:
        return await work.parser.formatted_text(work.client, source_of(state, schema), "resolved")
    except RegistryError:
        return None


def _stored(subject: str, request: SchemaRequest, source: SchemaSource) -> StoredSchema:
    return StoredSchema(
        subject,
        max(request.version, 0),
        request.id,
        source.schema_type.value,
        source.text,
        request.references,
        request.metadata,
        request.rule_set,
    )


def _completed(new: StoredSchema, scope: JsonObject, previous: StoredSchema | None) -> StoredSchema:
    """The schema with the metadata and rules that its subject's settings and the version before give it."""
    metadata, rule_set = new.metadata, new.rule_set
    if previous is not None:
        metadata = previous.metadata if metadata is None else metadata
        rule_set = previous.rule_set if rule_set is None else rule_set
    metadata = merge_metadata(
        merge_metadata(scope.get("defaultMetadata"), metadata), scope.get("overrideMetadata")
    )
    rule_set = merge_rule_sets(
        merge_rule_sets(scope.get("defaultRuleSet"), rule_set), scope.get("overrideRuleSet")
    )
    return replace(new, metadata=metadata, rule_set=rule_set)


async def _look_up(
    state: RegistryState,
    work: _Work,
    subject: str,
    request: SchemaRequest,
    normalize: bool,
    deleted: bool,
) -> StoredSchema:
    names = [subject]
    if QualifiedSubject.parse(subject).context == DEFAULT_CONTEXT:
        names += [f":{context}:{subject}" for context in state.contexts if context != DEFAULT_CONTEXT]
    for name in names:
        if name != subject and not state.has(name, deleted=True):
            continue
        if not request.text.strip():
            break
        try:
            source, wanted = await _canonical(state, work, name, request, normalize=normalize, is_new=False)
        except RegistryError:
            if name == subject:
                raise
            continue
        new = _stored(name, wanted, source)
        found = await _find(state, work, new, deleted=deleted)
        if found is None:
            completed = _completed(new, state.config_in_scope(name), state.latest(name))
            found = await _find(state, work, completed, deleted=deleted)
        if found is not None:
            return found
    if not state.has(subject, deleted=deleted):
        raise RegistryError.subject_not_found(subject)
    raise RegistryError.schema_not_found()


async def _register(
    state: RegistryState,
    work: _Work,
    subject: str,
    request: SchemaRequest,
    *,
    normalize: bool,
    force: bool,
) -> Changes[JsonObject]:
    scope = state.config_in_scope(subject)
    given = request
    is_forced = any(name in scope for name in (*_CONFIG_METADATA, *_CONFIG_RULES))
    if request.text.strip() and not is_forced:
        # One that is there already needs no right to write, as in a subject that is read-only.
        source, wanted = await _canonical(state, work, subject, request, normalize=normalize, is_new=False)
        known = await _find(
            state,
            work,
            _stored(subject, wanted, source),
            deleted=False,
            latest_only=request.version == LATEST,
        )
        if known is not None and _is_asked_for(known, request):
            return Changes(_registered(known, given))
    _check_mode(state, subject, request)
    is_import = state.mode_in_scope(subject) in _IMPORTING
    all_versions = state.versions(subject)
    active = [each for each in all_versions if not each.is_deleted]
    new_version = max((each.version for each in all_versions), default=0) + 1
    previous = active[-1] if active else None
    if not request.text.strip():
        if previous is None or is_import:
            raise RegistryError.invalid_schema("Empty schema")
        request = replace(
            request,
            text=previous.text,
            schema_type=SchemaType(previous.schema_type),
            references=previous.references,
        )
    source, request = await _canonical(
        state, work, subject, request, normalize=normalize, is_new=request.id < 0
    )
    new = _stored(subject, request, source)
    if not is_import:
        new = _completed(new, scope, previous)
        has_version = CONFLUENT_VERSION in (new.metadata or {}).get("properties", {})
        if request.version != 0 or has_version:
            new = replace(new, metadata=with_confluent_version(new.metadata, new_version))
    context = QualifiedSubject.parse(subject).context
    if request.version == 0:
        known = await _find(state, work, new, deleted=False)
        if known is not None and request.id in (-1, known.id):
            return Changes(_registered(known, given))
    if not is_import and not force:
        messages = await _differences(state, work, subject, source, new.metadata, active)
        if messages:
            raise RegistryError.incompatible(subject, messages)
    if request.version <= 0:
        new = replace(new, version=new_version)
    elif request.version != new_version and not is_import:
        raise RegistryError.invalid_schema("Version is not one more than previous version")
    new = replace(new, id=_id_for(state, context, new))
    return Changes(_registered(new, given), _registration_records(state, context, new, all_versions))


def _registered(found: StoredSchema, given: SchemaRequest) -> JsonObject:
    """The answer to a registration. Clients take a schema in it for the one that they have sent: it is there
    only if the registry has added something, and in the text that was given.
    """
    has_text = bool(given.text.strip())
    if has_text and (found.metadata, found.rule_set) == (given.metadata, given.rule_set):
        return {"id": found.id, "version": found.version, "guid": found.guid}
    answer = found.to_response(is_stored=False)
    del answer["subject"]
    return answer | ({"schema": given.text} if has_text else {})


def _is_asked_for(known: StoredSchema, request: SchemaRequest) -> bool:
    if request.version in (0, LATEST):
        return request.id in (-1, known.id)
    return (known.version, known.id) == (request.version, request.id)


def _id_for(state: RegistryState, context: str, new: StoredSchema) -> int:
    """The id of the content if it has one, the one that was asked for, or the next."""
    known = state.id_of_content(context, new.guid)
    if known is not None and new.id in (-1, known):
        return known
    if new.id < 0:
        if state.max_id(context) >= _MAX_VERSION:
            raise RegistryError.store("There are no more ids.")
        return state.max_id(context) + 1
    owners = state.with_id(context, new.id)
    if owners and owners[0].content() != new.content():
        raise RegistryError.not_permitted(
            f"Overwrite new schema with id {new.id} in context {_in_context(new.subject)} is not permitted."
        )
    return new.id


def _registration_records(
    state: RegistryState, context: str, new: StoredSchema, all_versions: Sequence[StoredSchema]
) -> list[Record]:
    records: list[Record] = []
    if context not in state.contexts:
        records += state.records_of("CONTEXT", context, 0, {"tenant": "default", "context": context})
    for each in all_versions:
        # A version that comes back takes the place of the deleted one.
        is_replaced = each.is_deleted and each.id == new.id and each.version < new.version
        if is_replaced and not state.referrers(each.subject, each.version, deleted=True):
            records += state.records_of("SCHEMA", each.subject, each.version, None)
    return [*records, *state.records_of("SCHEMA", new.subject, new.version, new.to_value())]


def _delete_version(state: RegistryState, subject: str, number: int, *, permanent: bool) -> Changes[int]:
    found = state.version(subject, number, deleted=True)
    if found is None:
        if not state.has(subject, deleted=True):
            raise RegistryError.subject_not_found(subject)
        raise RegistryError.version_not_found(number)
    if found.is_deleted and not permanent:
        raise RegistryError.version_soft_deleted(subject, number)
    _check_writable(state, subject)
    if state.referrers(subject, found.version, deleted=permanent):
        raise RegistryError.referenced(subject, found.version)
    if not permanent:
        return Changes(
            found.version, state.records_of("SCHEMA", subject, found.version, found.deleted().to_value())
        )
    if not found.is_deleted:
        raise RegistryError.version_not_soft_deleted(subject, found.version)
    records = [state.max_ids_record(), *state.records_of("SCHEMA", subject, found.version, None)]
    if len(state.versions(subject)) == 1:
        records += _without_settings(state, subject)
    return Changes(found.version, records)


def _without_settings(state: RegistryState, subject: str) -> list[Record]:
    records: list[Record] = []
    if state.has_mode(subject):
        records += state.records_of("MODE", subject, 0, None)
    if state.has_config(subject):
        records += state.records_of("CONFIG", subject, 0, None)
    return records


def _delete_subject(state: RegistryState, subject: str, *, permanent: bool) -> Changes[list[int]]:
    if not state.has(subject, deleted=True):
        raise RegistryError.subject_not_found(subject)
    if not permanent and not state.has(subject, deleted=False):
        raise RegistryError.subject_soft_deleted(subject)
    _check_writable(state, subject)
    going = state.versions(subject) if permanent else state.active(subject)
    for each in going:
        referrers = state.referrers(subject, each.version, deleted=permanent)
        if any(referrer.subject != subject for referrer in referrers):
            raise RegistryError.referenced(subject, each.version)
        if permanent and not each.is_deleted:
            raise RegistryError.subject_not_soft_deleted(subject)
    numbers = [each.version for each in going]
    if not permanent:
        value = {"subject": subject, "version": numbers[-1]}
        return Changes(numbers, state.records_of("DELETE_SUBJECT", subject, 0, value))
    records = [state.max_ids_record()]
    for number in reversed(numbers):
        records += state.records_of("SCHEMA", subject, number, None)
    return Changes(numbers, [*records, *_without_settings(state, subject)])


def _mode_records(
    state: RegistryState, subject: str | None, mode: str | None, *, force: bool
) -> list[Record]:
    records: list[Record] = []
    if mode == "IMPORT" and state.mode_in_scope(subject) != "IMPORT" and not force:
        if state.has(subject, deleted=False):
            raise RegistryError.not_permitted("Cannot import since found existing subjects")
        for name in state.subjects_in(subject):
            for each in state.versions(name):
                if state.referrers(name, each.version, deleted=True):
                    raise RegistryError.referenced(name, each.version)
                records += state.records_of("SCHEMA", name, each.version, None)
        if records:
            records.insert(0, state.max_ids_record())
        records += state.records_of("CLEAR_SUBJECT", subject, 0, _subject_field(subject))
    value = None if mode is None else {**_subject_field(subject), "mode": mode}
    return [*records, *state.records_of("MODE", subject, 0, value)]


def _subject_field(subject: str | None) -> JsonObject:
    return {} if subject is None else {"subject": subject}


def _config_update(body: object) -> JsonObject:
    """The settings that a request names, checked; None for those that it takes away."""
    if not isinstance(body, dict):
        raise RegistryError(422, "The body has to be an object with settings.")
    found: JsonObject = {}
    if "compatibility" in body:
        level = body["compatibility"]
        if level is not None:
            level = level.upper() if isinstance(level, str) else ""
            if level not in CompatibilityLevel.__members__:
                raise RegistryError.invalid_level()
        found["compatibilityLevel"] = level
    for names, is_right in ((_CONFIG_TEXTS, str), (_CONFIG_FLAGS, bool)):
        for name in names:
            if name in body:
                if body[name] is not None and not isinstance(body[name], is_right):
                    raise RegistryError(422, f"{name} has a value of another type.")
                found[name] = body[name]
    if "compatibilityPolicy" in body:
        if body["compatibilityPolicy"] not in (None, *_POLICIES):
            raise RegistryError(422, f"compatibilityPolicy is one of {', '.join(_POLICIES)}.")
        found["compatibilityPolicy"] = body["compatibilityPolicy"]
    found |= {name: parse_metadata(body[name]) for name in _CONFIG_METADATA if name in body}
    return found | {name: parse_rule_set(body[name]) for name in _CONFIG_RULES if name in body}
