"""Declarations of messages: one class for all versions, with version ranges on its fields.

    class FetchTopic(Struct):
        topic: str = string(versions="0-12", ignorable=True)
        topic_id: bytes = uuid(versions="13+", ignorable=True)
        partitions: list[FetchPartition] = array(FetchPartition)

    class FetchRequest(Request, api_key=1, versions="4-18", flexible="12+"):
        topics: list[FetchTopic] = array(FetchTopic)

A class is a plain slotted object with keyword construction, where every field has Kafka's default. Encoders
and decoders are compiled on first use for each version (`ottla.protocol.encoder`, `ottla.protocol.decoder`)
and kept with the class. Invariant: `Cls.decode(message.encode(v), v) == message` for every version `v`
that can express the message, and a version that cannot express it raises `UnsupportedVersion` instead of
dropping data.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, ClassVar, Final, Self, TypeAlias, cast, dataclass_transform

from ottla.protocol.errors import MalformedMessage, UnsupportedVersion
from ottla.protocol.fields import (
    MAX_VERSION,
    NO_VERSIONS,
    ZERO_UUID,
    Field,
    Kind,
    Versions,
    array,
    binary,
    boolean,
    float64,
    int8,
    int16,
    int32,
    int64,
    nested,
    parse_versions,
    records,
    string,
    uint16,
    uint32,
    uuid,
)

__all__ = [
    "MAX_VERSION",
    "NO_VERSIONS",
    "ZERO_UUID",
    "Buffer",
    "Decoder",
    "Encoder",
    "Field",
    "Kind",
    "Message",
    "Request",
    "Response",
    "Struct",
    "Versions",
    "array",
    "binary",
    "boolean",
    "default_of",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "is_shareable",
    "join_small_parts",
    "nested",
    "parse_versions",
    "records",
    "shared_default",
    "string",
    "uint16",
    "uint32",
    "uuid",
]

Buffer: TypeAlias = bytes | bytearray | memoryview

# Parts smaller than this are joined: one copy of a few kB costs less than one more buffer for the socket.
SMALL_PART_BYTES: Final = 4096


# What a client can log in with, or could be found out from: not part of any text.
_SECRET_FIELDS: Final = frozenset(("auth_bytes", "hmac", "salted_password", "server_key", "stored_key"))
# Their `value` is that of a setting, which may be a password.
_WITH_VALUE_OF_SETTING: Final = frozenset(("AlterableConfig", "ConfigRecord"))


class StructType(type):
    """Turns the declared fields of a class into slots and keeps their declarations in `FIELDS`."""

    def __new__(
        mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any
    ) -> StructType:
        if "FIELDS" not in namespace:
            fields = []
            for attribute, value in list(namespace.items()):
                if isinstance(value, Field):
                    value.name = attribute
                    fields.append(value)
                    del namespace[attribute]
            namespace["FIELDS"] = tuple(fields)
            namespace.setdefault("__slots__", tuple(field.name for field in fields))
        return super().__new__(mcs, name, bases, namespace, **options)


@dataclass_transform(kw_only_default=True)
class Struct(metaclass=StructType):
    """A part of a message, built from keywords; omitted fields have Kafka's default."""

    __slots__ = ("unknown_tags",)

    FIELDS: ClassVar[tuple[Field, ...]]

    # Unknown tagged fields, by tag; they are encoded again as they were received.
    unknown_tags: dict[int, bytes] | None

    def __init__(self, **values: Any) -> None:
        # The constructor is compiled when it is first needed, as most classes of a module never are.
        cls = type(self)
        init = _compile_init(cls)
        type.__setattr__(cls, "__init__", init)
        init(self, **values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Struct) or self.FIELDS is not other.FIELDS:
            return NotImplemented
        if (self.unknown_tags or None) != (other.unknown_tags or None):
            return False
        return all(getattr(self, f.name) == getattr(other, f.name) for f in self.FIELDS)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        values = [f"{f.name}={self._shown(f.name)}" for f in self.FIELDS]
        if self.unknown_tags:
            values.append(f"unknown_tags={self.unknown_tags!r}")
        return f"{type(self).__name__}({', '.join(values)})"

    def _shown(self, name: str) -> str:
        value = getattr(self, name)
        of_setting = name == "value" and type(self).__name__ in _WITH_VALUE_OF_SETTING
        is_secret = name in _SECRET_FIELDS or (of_setting and value is not None)
        return "[hidden]" if is_secret else repr(value)

    def replace(self, **changes: Any) -> Self:
        """Return a shallow copy with some fields changed."""
        copy = type(self)(**({f.name: getattr(self, f.name) for f in self.FIELDS} | changes))
        copy.unknown_tags = self.unknown_tags
        return copy

    def to_dict(self) -> dict[str, Any]:
        """Return fields by name, nested structs as dictionaries too: for printing, not for the wire."""
        return {f.name: _plain(getattr(self, f.name)) for f in self.FIELDS}


class Message(Struct):
    """A struct that is a whole message, on the wire or in a record, with its versions."""

    __slots__ = ()

    API_KEY: ClassVar[int]
    VERSIONS: ClassVar[Versions]
    FLEXIBLE: ClassVar[Versions]
    LATEST_UNSTABLE: ClassVar[bool]
    _encoders: ClassVar[dict[int, Encoder]]
    _decoders: ClassVar[dict[int, Decoder]]

    def __init_subclass__(
        cls,
        *,
        versions: str | None = None,
        flexible: str = "none",
        api_key: int = -1,
        latest_unstable: bool = False,
        **options: Any,
    ) -> None:
        super().__init_subclass__(**options)
        if versions is None:
            return
        cls.API_KEY = api_key
        cls.VERSIONS = parse_versions(versions)
        cls.FLEXIBLE = parse_versions(flexible)
        cls.LATEST_UNSTABLE = latest_unstable
        cls._encoders = {}
        cls._decoders = {}

    @classmethod
    def is_flexible(cls, version: int) -> bool:
        return cls.FLEXIBLE[0] <= version <= cls.FLEXIBLE[1]

    @classmethod
    def check_version(cls, version: int) -> None:
        first, last = cls.VERSIONS
        if not first <= version <= last:
            raise UnsupportedVersion(f"{cls.__name__} has versions {first} to {last}, not {version}")

    def encode(self, version: int) -> bytes:
        """Return the body in this version."""
        parts: list[Buffer] = []
        self.encode_onto(parts, version)
        return b"".join(parts)

    def encode_parts(self, version: int) -> list[Buffer]:
        """Return the body as buffers to be sent one after the other; large record buffers are not copied."""
        parts: list[Buffer] = []
        self.encode_onto(parts, version)
        return join_small_parts(parts)

    def encode_onto(self, parts: list[Buffer], version: int) -> None:
        """Append the body in small pieces; record buffers are pieces of their own."""
        encoder = self._encoders.get(version)
        if encoder is None:
            encoder = _compile_encoder(type(self), version)
        try:
            encoder(self, parts.append)
        except struct.error as error:
            raise ValueError(
                f"{type(self).__name__} v{version}: a value does not fit its field: {error}"
            ) from error

    @classmethod
    def prepare_encoder(cls, version: int) -> None:
        """Make what encodes a version, which takes the first message of it some milliseconds otherwise."""
        if version not in cls._encoders:
            _compile_encoder(cls, version)

    @classmethod
    def prepare_decoder(cls, version: int) -> None:
        """Make what decodes a version."""
        if version not in cls._decoders:
            _compile_decoder(cls, version)

    @classmethod
    def decode(cls, data: Buffer, version: int) -> Self:
        """Decode a message that takes all of the bytes; MalformedMessage if it does not."""
        message, position = cls.decode_from(data, 0, version)
        if position != len(data):
            raise MalformedMessage(f"{cls.__name__} v{version}: {len(data) - position} bytes left over")
        return message

    @classmethod
    def decode_from(
        cls, data: Buffer, position: int, version: int, max_elements: int | None = None
    ) -> tuple[Self, int]:
        """Decode the message at a position; return it and the position after it. TooManyElements if it is a
        request whose arrays have more than `max_elements` in all.
        """
        decoder = cls._decoders.get(version)
        if decoder is None:
            decoder = _compile_decoder(cls, version)
        try:
            return decoder(data, position, max_elements)
        except (IndexError, struct.error) as error:
            raise MalformedMessage(f"{cls.__name__} v{version}: ends in the middle of a field") from error
        except MalformedMessage as error:
            raise MalformedMessage(f"{cls.__name__} v{version}: {error.message}") from None


class Request(Message):
    """The body of a request."""

    __slots__ = ()


class Response(Message):
    """The body of a response."""

    __slots__ = ()


Encoder: TypeAlias = Callable[[Any, Callable[[Buffer], None]], None]
Decoder: TypeAlias = Callable[[Buffer, int, int | None], tuple[Any, int]]


def _compile_encoder(cls: type[Message], version: int) -> Encoder:
    from ottla.protocol.encoder import compile_encoder

    cls.check_version(version)
    cls._encoders[version] = encoder = compile_encoder(cls, version)
    return encoder


def _compile_decoder(cls: type[Message], version: int) -> Decoder:
    from ottla.protocol.decoder import compile_decoder

    cls.check_version(version)
    cls._decoders[version] = decoder = compile_decoder(cls, version)
    return decoder


def _compile_init(cls: type[Struct]) -> Callable[..., None]:
    """Compile a constructor: keywords with defaults, then one assignment for each field."""
    names: dict[str, Any] = {"_missing": (missing := object())}
    parameters, assignments = [], []
    for field in cls.FIELDS:
        name = field.name
        if field.default is not None and (
            field.kind == "array" or (field.struct is not None and not is_shareable(field.struct))
        ):
            names[f"_default_{name}"] = missing
            names[f"_make_{name}"] = list if field.kind == "array" else field.struct
            assignments.append(f"    self.{name} = _make_{name}() if {name} is _missing else {name}")
        else:
            names[f"_default_{name}"] = default_of(field)
            assignments.append(f"    self.{name} = {name}")
        parameters.append(f"{name}=_default_{name}")
    signature = ", ".join(["self", "*", *parameters] if parameters else ["self"])
    source = "\n".join([f"def __init__({signature}):", *assignments, "    self.unknown_tags = None"])
    exec(compile(source, f"<{cls.__name__}.__init__>", "exec"), names)
    init: Callable[..., None] = names["__init__"]
    return init


def is_shareable(cls: type[Struct]) -> bool:
    """Whether all fields have immutable values, so that one default instance can be shared."""
    return all(field.kind not in ("array", "struct") for field in cls.FIELDS)


def default_of(field: Field) -> Any:
    """Return the default value of a field; mutable ones are made for each call."""
    if field.default is None or field.kind not in ("array", "struct"):
        return field.default
    if field.struct is None or field.kind == "array":
        return []
    return shared_default(field.struct) if is_shareable(field.struct) else field.struct()


_shared_defaults: dict[type[Struct], Struct] = {}


def shared_default(cls: type[Struct]) -> Struct:
    """Return the one default instance of a struct of plain values; assigning to its fields is refused."""
    default = _shared_defaults.get(cls)
    if default is None:

        def refuse(*_: object) -> None:
            raise AttributeError(f"the default {cls.__name__} is shared: assign a new {cls.__name__} instead")

        namespace = {
            "__slots__": (),
            "__setattr__": refuse,
            "__reduce__": lambda _: (shared_default, (cls,)),
            "__module__": cls.__module__,
            "FIELDS": cls.FIELDS,
        }
        frozen = StructType(cls.__name__, (cls,), namespace)
        default = object.__new__(cast("type[Struct]", frozen))
        object.__setattr__(default, "unknown_tags", None)
        for field in cls.FIELDS:
            object.__setattr__(default, field.name, field.default)
        _shared_defaults[cls] = default
    return default


def _plain(value: Any) -> Any:
    if isinstance(value, Struct):
        return value.to_dict()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def join_small_parts(parts: list[Buffer]) -> list[Buffer]:
    """Return the same bytes in fewer parts: neighbours below SMALL_PART_BYTES become one."""
    if max(map(len, parts), default=0) < SMALL_PART_BYTES:
        return [b"".join(parts)]
    joined: list[Buffer] = []
    small: list[Buffer] = []
    for part in parts:
        if len(part) < SMALL_PART_BYTES:
            small.append(part)
        else:
            if small:
                joined.append(b"".join(small))
                small = []
            joined.append(part)
    if small:
        joined.append(b"".join(small))
    return joined


def drop_newer_fields(message: Struct, version: int) -> None:
    """Reset every field that the version does not have to its default, so that the message can be encoded."""
    for field in message.FIELDS:
        value = getattr(message, field.name)
        if not field.in_version(version):
            setattr(message, field.name, getattr(type(message)(), field.name))
        elif isinstance(value, Struct):
            drop_newer_fields(value, version)
        elif isinstance(value, list):
            for each in value:
                if isinstance(each, Struct):
                    drop_newer_fields(each, version)
