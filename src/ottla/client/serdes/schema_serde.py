"""What the serdes of all formats share: subjects, ids, what was asked of the registry, and records that do
not parse.

`prepare` and `load` ask the registry, and block: clients call them in their pool, once for a topic or for the
schema of an id. `serialize` and `deserialize` never do. A schema of an id never changes, so it is kept; what
a registry does not know is asked for again after a while.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final, Literal, TypeAlias

from ottla.client.serdes.framing import guid_header, header_name, id_prefix, read_frame
from ottla.client.serdes.objects import built
from ottla.client.serdes.registry_settings import RegistrySettings, registry_client
from ottla.client.serdes.schema_text import SchemaText, referenced_schemas, schema_of
from ottla.client.serialization import RecordSerde, SchemaNeeded
from ottla.runtime.clock import SystemClock
from ottla.runtime.http import HttpError
from ottla.schemas.errors import SchemaError, WrongData
from ottla.schemas.parsed import InvalidSchemaError, SchemaReference, SchemaType
from ottla.schemas.registry_client import RegistryRequestError, part

SubjectName: TypeAlias = Callable[[str, str | None, bool], str]
"""Makes a subject of a topic, the name of its record, and whether it is for keys."""

_MAX_SCHEMAS: Final = 1_000
_FAILURE_NS: Final = 30 * 1_000_000_000
# Statuses that a login, or time, changes: nothing is known of a schema then.
_TRANSIENT: Final = frozenset((401, 408, 429))
_REFUSED: Final = frozenset((401, 403))


def _topic_subject(topic: str, _: str | None, is_key: bool) -> str:
    return f"{topic}-{'key' if is_key else 'value'}"


def _record_subject(_: str, name: str | None, __: bool) -> str:
    if name is None:
        raise SerdeError("the schema has no name for its subject: a record, a message, or a title")
    return name


def _topic_record_subject(topic: str, name: str | None, is_key: bool) -> str:
    return f"{topic}-{_record_subject(topic, name, is_key)}"


_SUBJECTS: Final[dict[str, SubjectName]] = {
    "topic": _topic_subject,
    "record": _record_subject,
    "topic-record": _topic_record_subject,
}


class SerdeError(Exception):
    """The registry cannot be asked, or does not have what a serde needs. The text says what to do."""


@dataclass(frozen=True, slots=True)
class Undecoded:
    """A key or value that does not parse: its bytes as they are, the id or GUID of its schema if it names
    one, and what is wrong.
    """

    data: bytes
    error: str
    schema: int | str | None = None


@dataclass(frozen=True, slots=True)
class _Writing:
    """How values for a topic are written."""

    prefix: bytes
    header: tuple[str, bytes] | None
    encode: Callable[[Any], bytes]


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why data with a schema cannot be read, until a time."""

    reason: str
    until_ns: int


Decode: TypeAlias = Callable[[bytes, tuple[int, ...]], Any]


class SchemaSerde(RecordSerde):
    """`registry` is an address, several with commas, settings by the names of Confluent's clients, or a
    client. `schema` is the text that is written, or None for the latest of the subject. `type` is the class
    of what is read. `subject` is "topic", "record" or "topic-record", or a function of the topic, the
    record's name, and whether it is for keys.

    Schemas are only looked up, so that programs cannot change a topic's form by running; `auto_register` has
    them registered. `id_in` is where the id goes: before the "value", or in "headers". What does not parse is
    an `Undecoded` object, or with `on_error="raise"` an error.
    """

    FORMAT: ClassVar[SchemaType]
    HAS_INDEXES: ClassVar[bool] = False

    def __init__(
        self,
        registry: RegistrySettings,
        schema: str | None = None,
        *,
        type: Any = None,
        subject: Literal["topic", "record", "topic-record"] | SubjectName = "topic",
        references: Iterable[SchemaReference | tuple[str, str, int]] = (),
        auto_register: bool = False,
        normalize: bool = False,
        id_in: Literal["value", "headers"] = "value",
        on_error: Literal["value", "raise"] = "value",
    ) -> None:
        self._registry: Final = registry_client(registry)
        if isinstance(subject, str) and subject not in _SUBJECTS:
            raise ValueError(f"subject is one of {', '.join(_SUBJECTS)}, or a function; not {subject!r}")
        if id_in not in ("value", "headers"):
            raise ValueError(f"id_in is value or headers, not {id_in!r}")
        if on_error not in ("value", "raise"):
            raise ValueError(f"on_error is value or raise, not {on_error!r}")
        if schema is None and subject != "topic" and not callable(subject):
            raise ValueError(f"subject={subject!r} needs a schema, whose name it is made of")
        self._schema: Final = schema
        self._type: Final = type
        self._subject: Final[SubjectName] = _SUBJECTS[subject] if isinstance(subject, str) else subject
        self._references: Final = [
            each if isinstance(each, SchemaReference) else SchemaReference(*each) for each in references
        ]
        self._auto_register: Final = auto_register
        self._normalize: Final = normalize
        self._in_headers: Final = id_in == "headers"
        self._raises: Final = on_error == "raise"
        self._clock: Final = SystemClock()
        self._writing: Final[dict[tuple[str, bool], _Writing]] = {}
        self._reading: Final[OrderedDict[int | str, Decode | _Failure]] = OrderedDict()

    # For formats

    @abstractmethod
    def _encoder(self, schema: SchemaText) -> tuple[Callable[[Any], bytes], str | None]:
        """What writes values of a schema, and its name."""

    @abstractmethod
    def _decoder(self, schema: SchemaText) -> Decode:
        """What reads values of a schema."""

    def _indexes(self, schema: SchemaText) -> tuple[int, ...] | None:
        """The place of the message that is written, for formats that have one."""
        return None

    def _own_schema(self) -> tuple[str | None, Sequence[SchemaReference]]:
        """The text to write with, and what it refers to; None for the latest of the subject."""
        return self._schema, self._references

    def _built(self, value: Any) -> Any:
        return value if self._type is None else built(self._type, value)

    # Writes

    def is_prepared(self, topic: str, *, is_key: bool) -> bool:
        return (topic, is_key) in self._writing

    def prepare(self, topic: str, *, is_key: bool) -> None:
        if (topic, is_key) in self._writing:
            return
        try:
            self._prepare(topic, is_key)
        except HttpError as error:
            raise SerdeError(f"the schema registry does not answer: {error}") from None
        except (InvalidSchemaError, SchemaError, RegistryRequestError, RecursionError) as error:
            raise SerdeError(f"the schema for topic {topic!r} cannot be used: {error}") from None

    def _prepare(self, topic: str, is_key: bool) -> None:
        text, references = self._own_schema()
        if text is None:
            subject = self._subject(topic, None, is_key)
            path = f"/subjects/{part(subject)}/versions/latest"
            found = self._ask(f"subject {subject!r} has no schema", "GET", path)
            schema = schema_of(self._registry, found)
            encode, _ = self._encoder(schema)
        else:
            schema = SchemaText(text, referenced_schemas(self._registry, references))
            encode, name = self._encoder(schema)
            found = self._registered(self._subject(topic, name, is_key), text, references)
        indexes = self._indexes(schema)
        header = None
        if self._in_headers:
            header = (header_name(is_key=is_key), guid_header(str(found["guid"]), indexes))
        prefix = b"" if self._in_headers else id_prefix(int(found["id"]), indexes)
        self._writing[topic, is_key] = _Writing(prefix, header, encode)

    def _registered(self, subject: str, text: str, references: Sequence[SchemaReference]) -> dict[str, Any]:
        """The schema as the registry has it; registered, if that is wanted."""
        body: dict[str, Any] = {"schema": text, "schemaType": self.FORMAT.value}
        if references:
            body["references"] = [
                {"name": each.name, "subject": each.subject, "version": each.version} for each in references
            ]
        path = f"/subjects/{part(subject)}"
        if self._auto_register:
            found = self._ask(
                f"subject {subject!r} does not take the schema",
                "POST",
                f"{path}/versions",
                body,
                normalize=self._normalize,
            )
            if not self._in_headers or "guid" in found:
                return found
        return self._ask(
            f"subject {subject!r} does not have this schema: register it, as with `ottla schemas register`, "
            "or set auto_register",
            "POST",
            path,
            body,
            normalize=self._normalize,
        )

    def serialize(self, topic: str, value: Any, *, is_key: bool) -> tuple[bytes, tuple[str, bytes] | None]:
        writing = self._writing.get((topic, is_key))
        if writing is None:
            raise SerdeError(f"the schema for topic {topic!r} is not known yet: await ready({topic!r}) first")
        return writing.prefix + writing.encode(value), writing.header

    def encode(
        self, topic: str, value: Any, *, is_key: bool = False
    ) -> tuple[bytes, tuple[str, bytes] | None]:
        """The bytes of a key or value, and the header that goes with them; for other clients. Blocks while a
        registry is asked. WrongData says what does not fit.
        """
        self.prepare(topic, is_key=is_key)
        return self.serialize(topic, value, is_key=is_key)

    # Reads

    def deserialize(
        self, topic: str, data: bytes, headers: Sequence[tuple[str, bytes | None]], *, is_key: bool
    ) -> Any:
        try:
            frame = read_frame(data, headers, is_key=is_key, has_indexes=self.HAS_INDEXES)
        except ValueError as error:
            return self._undecoded(data, None, str(error))
        decode = self._reading.get(frame.schema)
        if decode is None or (isinstance(decode, _Failure) and self._clock.monotonic_ns() >= decode.until_ns):
            raise SchemaNeeded(partial(self._load, frame.schema, self._subject_of(topic, is_key)))
        if isinstance(decode, _Failure):
            return self._undecoded(data, frame.schema, decode.reason)
        try:
            return decode(frame.data, frame.indexes)
        except (WrongData, TypeError, ValueError, ArithmeticError, RecursionError) as error:
            return self._undecoded(data, frame.schema, str(error) or type(error).__name__)

    def decode(
        self,
        topic: str,
        data: bytes,
        headers: Sequence[tuple[str, bytes | None]] = (),
        *,
        is_key: bool = False,
    ) -> Any:
        """The value of bytes that another client has read. Blocks while a registry is asked."""
        try:
            return self.deserialize(topic, data, headers, is_key=is_key)
        except SchemaNeeded as needed:
            needed.load()
        return self.deserialize(topic, data, headers, is_key=is_key)

    def _subject_of(self, topic: str, is_key: bool) -> str | None:
        """The subject, for registries that keep ids by context; None where it takes the record's name."""
        return self._subject(topic, None, is_key) if self._subject is _topic_subject else None

    def _undecoded(self, data: bytes, schema: int | str | None, reason: str) -> Undecoded:
        if self._raises:
            raise WrongData(reason)
        return Undecoded(bytes(data), reason, schema)

    def _load(self, schema: int | str, subject: str | None) -> None:
        """Ask for a schema. SerdeError if that has to be tried again: nothing is known of it then."""
        found: Decode | _Failure
        try:
            if isinstance(schema, int):
                document = self._registry.call("GET", f"/schemas/ids/{schema}", subject=subject)
            else:
                document = self._registry.call("GET", f"/schemas/guids/{schema}")
            kind = document.get("schemaType") or "AVRO"
            if kind != self.FORMAT.value:
                raise SchemaError(f"the schema {schema} is one of {kind}, not {self.FORMAT.value}")
            found = self._decoder(schema_of(self._registry, document))
        except HttpError as error:
            raise SerdeError(f"the schema registry does not answer: {error}") from None
        except RegistryRequestError as error:
            if error.status in _TRANSIENT or error.status >= 500:
                raise SerdeError(f"the schema registry does not give schema {schema}: {error}") from None
            found = self._failure(f"the schema {schema} is not to be had: {error}")
        except (InvalidSchemaError, SchemaError, RecursionError) as error:
            found = self._failure(f"the schema {schema} cannot be used: {error}")
        self._reading[schema] = found
        while len(self._reading) > _MAX_SCHEMAS:
            self._reading.popitem(last=False)

    def _failure(self, reason: str) -> _Failure:
        return _Failure(reason, self._clock.monotonic_ns() + _FAILURE_NS)

    # The registry

    def _ask(
        self, problem: str, method: str, path: str, body: object = None, **query: object
    ) -> dict[str, Any]:
        try:
            found: dict[str, Any] = self._registry.call(method, path, body, **query)
        except RegistryRequestError as error:
            if error.status in _REFUSED:
                raise SerdeError(f"the schema registry refuses this client: {error}") from None
            raise SerdeError(f"{problem} ({error})") from None
        return found
