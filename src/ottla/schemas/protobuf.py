"""Protobuf's binary encoding, by the text of a `.proto` file: values for people, and back.

The parser knows what describes data: messages, enums, fields, `oneof`, `map`, groups of names by packages.
Services, options and extensions are read over. Values have the form of Protobuf's JSON mapping with the names
of the file. Fields that the schema does not have are shown under their numbers, so that nothing is hidden.
Bounded like `avro`.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import Any, Final

from ottla.schemas.columns import BOOLEAN, DOUBLE, JSON, LONG, TEXT, ColumnType, Expansion, Fields
from ottla.schemas.errors import SchemaError, WrongData

MAX_DEPTH: Final = 64
MAX_VALUES: Final = 200_000
_MAX_TOKENS: Final = 200_000
# Of a name with the names of all that it is in.
_MAX_NAME: Final = 1_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TOKEN: Final = re.compile(
    r"""\s+ | //[^\n]* | /\*.*?\*/
      | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<word>[A-Za-z_.][\w.]*|[-+]?\d[\w.+-]*)
      | (?P<sign>[{}\[\]()<>;=,:+\-/])""",
    re.VERBOSE | re.DOTALL,
)
_VARINT, _FIXED64, _LENGTH, _START_GROUP, _END_GROUP, _FIXED32 = range(6)
_INTEGERS: Final = {"int32": 32, "int64": 64, "uint32": 32, "uint64": 64, "sint32": 32, "sint64": 64}
_FIXED: Final = {
    "fixed64": (_FIXED64, struct.Struct("<Q")),
    "sfixed64": (_FIXED64, struct.Struct("<q")),
    "double": (_FIXED64, struct.Struct("<d")),
    "fixed32": (_FIXED32, struct.Struct("<I")),
    "sfixed32": (_FIXED32, struct.Struct("<i")),
    "float": (_FIXED32, struct.Struct("<f")),
}
_SCALARS: Final = frozenset((*_INTEGERS, *_FIXED, "bool", "string", "bytes"))
_WELL_KNOWN: Final = """
message Timestamp { int64 seconds = 1; int32 nanos = 2; }
message Duration { int64 seconds = 1; int32 nanos = 2; }
message Empty {}
message Any { string type_url = 1; bytes value = 2; }
message DoubleValue { double value = 1; }
message FloatValue { float value = 1; }
message Int64Value { int64 value = 1; }
message UInt64Value { uint64 value = 1; }
message Int32Value { int32 value = 1; }
message UInt32Value { uint32 value = 1; }
message BoolValue { bool value = 1; }
message StringValue { string value = 1; }
message BytesValue { bytes value = 1; }
message FieldMask { repeated string paths = 1; }
message Struct { map<string, Value> fields = 1; }
message ListValue { repeated Value values = 1; }
message Value {
  oneof kind {
    NullValue null_value = 1; double number_value = 2; string string_value = 3; bool bool_value = 4;
    Struct struct_value = 5; ListValue list_value = 6;
  }
}
enum NullValue { NULL_VALUE = 0; }
"""


# Unsigned numbers of 64 bits may not fit into a column of longs.
_COLUMNS: Final = {
    **dict.fromkeys(
        ("int32", "int64", "uint32", "sint32", "sint64", "fixed32", "sfixed32", "sfixed64"), LONG
    ),
    **dict.fromkeys(("uint64", "fixed64"), ColumnType("decimal")),
    **dict.fromkeys(("float", "double", "google.protobuf.FloatValue", "google.protobuf.DoubleValue"), DOUBLE),
    **dict.fromkeys(("google.protobuf.Int32Value", "google.protobuf.Int64Value"), LONG),
    "bool": BOOLEAN,
    "google.protobuf.BoolValue": BOOLEAN,
    "string": TEXT,
    "google.protobuf.StringValue": TEXT,
    "google.protobuf.Duration": TEXT,
    "bytes": ColumnType("base64"),
    "google.protobuf.Timestamp": ColumnType("timestamp"),
}


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    number: int
    type: str
    """A scalar, or the full name of a message or enum."""
    repeated: bool = False
    map_value: str | None = None
    """The type of the values of a map, whose keys are of `type`."""


@dataclass(slots=True)
class _Message:
    name: str
    by_number: dict[int, _Field] = field(default_factory=dict)
    by_name: dict[str, _Field] = field(default_factory=dict)
    # Messages inside of it, in the order of the file: wire formats name messages by their place.
    children: list[str] = field(default_factory=list)
    # Whether it is what a compiler makes of a map.
    is_map_entry: bool = False


@dataclass(slots=True)
class _Enumeration:
    name: str
    by_number: dict[int, str] = field(default_factory=dict)


class ProtobufSchema:
    """The messages of a `.proto` file. `message` names the one that values have; else it is the first."""

    def __init__(self, text: str, message: str | None = None, references: tuple[str, ...] = ()) -> None:
        self._messages: dict[str, _Message] = {}
        self._enums: dict[str, _Enumeration] = {}
        _Parser(_WELL_KNOWN, self._messages, self._enums, package="google.protobuf").parse()
        for each in references:
            _Parser(each, self._messages, self._enums).parse()
        self._top = _Parser(text, self._messages, self._enums).parse()
        if not self._top:
            raise SchemaError("the Protobuf schema has no message")
        self._resolve_names()
        self._root = self._named(message) if message else self._top[0]

    def _named(self, message: str) -> str:
        found = [name for name in self._messages if name == message or name.endswith(f".{message}")]
        if not found:
            raise SchemaError(f"the Protobuf schema has no message {message!r}")
        return found[0]

    def _resolve_names(self) -> None:
        """Replace the names of types by full names, as they are seen from their message."""
        for message in list(self._messages.values()):
            full_name = cache(partial(self._full_name, scope=message.name))
            for each in list(message.by_number.values()):
                resolved = _Field(
                    each.name,
                    each.number,
                    full_name(each.type),
                    each.repeated,
                    None if each.map_value is None else full_name(each.map_value),
                )
                message.by_number[each.number] = message.by_name[each.name] = resolved
        for message in self._messages.values():
            for each in list(message.by_number.values()):
                entry = self._messages.get(each.type) if each.repeated else None
                if entry is not None and entry.is_map_entry and {1, 2} <= entry.by_number.keys():
                    key, value = entry.by_number[1].type, entry.by_number[2].type
                    as_map = _Field(each.name, each.number, key, map_value=value)
                    message.by_number[each.number] = message.by_name[each.name] = as_map

    def _full_name(self, name: str, scope: str) -> str:
        if name in _SCALARS:
            return name
        if name.startswith("."):
            candidates = [name[1:]]
        else:
            parts = scope.split(".")
            candidates = [".".join((*parts[:n], name)) for n in range(len(parts), -1, -1)]
        for each in candidates:
            if each in self._messages or each in self._enums:
                return each
        raise SchemaError(f"the Protobuf schema names the type {name!r}, which it does not define")

    def message_at(self, indexes: tuple[int, ...]) -> str:
        """The message that a path of places names, as in Confluent's wire format. WrongData if there is
        none.
        """
        names = self._top
        found = ""
        for index in indexes:
            if not 0 <= index < len(names):
                raise WrongData(f"the schema has no message at {list(indexes)}")
            found = names[index]
            names = self._messages[found].children
        return found

    @property
    def message(self) -> str:
        """The full name of the message that values are."""
        return self._root

    def indexes_of(self, message: str) -> tuple[int, ...]:
        """The path of places of a message in its file; `message_at` is the way back. SchemaError if it is in
        another file.
        """
        waiting: list[tuple[str, tuple[int, ...]]] = [
            (name, (place,)) for place, name in enumerate(self._top)
        ]
        while waiting:
            name, places = waiting.pop()
            if name == message:
                return places
            children = self._messages[name].children
            waiting += [(each, (*places, place)) for place, each in enumerate(children)]
        raise SchemaError(f"the message {message!r} is not in this file of the Protobuf schema")

    def field_types(self, message: str) -> dict[str, str]:
        """The types of a message's fields, by their names."""
        return {name: each.type for name, each in self._messages[message].by_name.items()}

    def columns(self, *, maps: bool = False) -> Fields:
        """The fields of the message that values are, as columns. SchemaError if it has none."""
        fields = self._fields(self._root, 1, Expansion(maps=maps))
        if not fields:
            raise SchemaError(f"the message {self._root!r} has no fields, so it has no columns")
        return fields

    def _fields(self, message: str, depth: int, expansion: Expansion) -> Fields:
        with expansion.inside(message):
            fields = self._messages[message].by_name.values()
            return tuple((each.name, self._column(each, depth, expansion)) for each in fields)

    def _column(self, known: _Field, depth: int, expansion: Expansion) -> ColumnType:
        expansion.add_column()
        if known.map_value is not None:
            if not expansion.maps:
                return JSON
            return ColumnType("map", item=self._type_column(known.map_value, depth, expansion))
        found = self._type_column(known.type, depth, expansion)
        return ColumnType("list", item=found) if known.repeated else found

    def _type_column(self, kind: str, depth: int, expansion: Expansion) -> ColumnType:
        if kind in _COLUMNS:
            return _COLUMNS[kind]
        if kind in self._enums:
            return TEXT
        if kind.startswith("google.protobuf.") or not expansion.may_enter(kind, depth):
            return JSON
        fields = self._fields(kind, depth + 1, expansion)
        return ColumnType("struct", fields) if fields else JSON

    def decode(self, data: bytes, message: str | None = None) -> Any:
        """Return the value of a message as what JSON can have. WrongData if it is none of this schema."""
        return _Reader(self._messages, self._enums).message(data, message or self._root, 0)

    def encode(self, value: Any) -> bytes:
        """Return the message of a value, which has the form that `decode` returns. WrongData says what does
        not fit.
        """
        return _Writer(self._messages, self._enums).message(value, self._root, 0)


class _Parser:
    """Collects the messages and enums of a file."""

    def __init__(
        self,
        text: str,
        messages: dict[str, _Message],
        enums: dict[str, _Enumeration],
        package: str = "",
    ) -> None:
        self._tokens = _tokens(text)
        self._at = 0
        self._messages = messages
        self._enums = enums
        self._package = package

    def parse(self) -> list[str]:
        """Return the names of the messages at the top, in their order."""
        top: list[str] = []
        while self._at < len(self._tokens):
            word = self._next()
            if word == "package":
                self._package = self._next()
                self._expect(";")
            elif word == "message":
                top.append(self._message(self._package, 0))
            elif word == "enum":
                self._enum(self._package)
            elif word in ("service", "extend"):
                self._next()
                self._skip_block()
            elif word in ("syntax", "edition", "import", "option"):
                self._skip_statement()
            elif word != ";":
                raise SchemaError(f"the Protobuf schema has {word!r} where none is expected")
        return top

    def _next(self) -> str:
        if self._at >= len(self._tokens):
            raise SchemaError("the Protobuf schema ends in the middle")
        self._at += 1
        return self._tokens[self._at - 1]

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _expect(self, wanted: str) -> None:
        found = self._next()
        if found != wanted:
            raise SchemaError(f"the Protobuf schema has {found!r} where {wanted!r} is expected")

    def _skip_statement(self) -> None:
        depth = 0
        while True:
            word = self._next()
            depth += (word in "{[") - (word in "}]")
            if word == ";" and depth <= 0:
                return

    def _skip_block(self) -> None:
        while self._next() != "{":
            pass
        depth = 1
        while depth:
            word = self._next()
            depth += (word == "{") - (word == "}")

    def _message(self, scope: str, depth: int) -> str:
        name = _scoped(scope, self._next())
        message = self._messages[name] = _Message(name)
        self._expect("{")
        self._body(message, depth)
        return name

    def _body(self, message: _Message, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise SchemaError("the Protobuf schema is nested too deeply")
        while (word := self._next()) != "}":
            if word == "message":
                message.children.append(self._message(message.name, depth + 1))
            elif word == "enum":
                self._enum(message.name)
            elif word == "oneof":
                self._next()
                self._expect("{")
                self._body(message, depth + 1)
            elif word in ("option", "reserved", "extensions"):
                message.is_map_entry |= word == "option" and self._peek() == "map_entry"
                self._skip_statement()
            elif word == "extend":
                self._next()
                self._skip_block()
            elif word == "map" and self._peek() == "<":
                self._map(message)
            elif word != ";":
                self._field(message, word, depth)

    def _map(self, message: _Message) -> None:
        self._expect("<")
        key = self._next()
        self._expect(",")
        value = self._next()
        self._expect(">")
        name, number = self._name_and_number()
        self._add(message, _Field(name, number, key, map_value=value))

    def _field(self, message: _Message, word: str, depth: int) -> None:
        repeated = word == "repeated"
        if word in ("repeated", "optional", "required"):
            word = self._next()
        if word == "group":
            name = self._next()
            self._expect("=")
            self._add(message, _Field(name.lower(), self._number(), name, repeated))
            message.children.append(self._group(message.name, name, depth))
            return
        name, number = self._name_and_number()
        self._add(message, _Field(name, number, word, repeated))

    def _group(self, scope: str, name: str, depth: int) -> str:
        full = _scoped(scope, name)
        message = self._messages[full] = _Message(full)
        while self._next() != "{":
            pass
        self._body(message, depth + 1)
        return full

    def _name_and_number(self) -> tuple[str, int]:
        name = self._next()
        self._expect("=")
        number = self._number()
        self._skip_statement()
        return name, number

    def _number(self) -> int:
        text = self._next()
        try:
            return int(text, 0)
        except ValueError:
            raise SchemaError(f"the Protobuf schema has {text!r} where a number is expected") from None

    def _add(self, message: _Message, found: _Field) -> None:
        message.by_number[found.number] = message.by_name[found.name] = found

    def _enum(self, scope: str) -> None:
        name = _scoped(scope, self._next())
        enum = self._enums[name] = _Enumeration(name)
        self._expect("{")
        while (word := self._next()) != "}":
            if word in ("option", "reserved"):
                self._skip_statement()
            elif word != ";":
                self._expect("=")
                enum.by_number.setdefault(self._number(), word)
                self._skip_statement()


def _scoped(scope: str, name: str) -> str:
    full = f"{scope}.{name}".lstrip(".")
    if len(full) > _MAX_NAME:
        raise SchemaError(f"the Protobuf schema has a name of more than {_MAX_NAME} characters")
    return full


def _tokens(text: str) -> list[str]:
    found: list[str] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise SchemaError(f"the Protobuf schema has {text[at : at + 20]!r}, which is no part of one")
        at = match.end()
        if match.lastgroup is not None:
            found.append(match[0])
        if len(found) > _MAX_TOKENS:
            raise SchemaError("the Protobuf schema is too large")
    return found


class _Reader:
    def __init__(self, messages: Mapping[str, _Message], enums: Mapping[str, _Enumeration]) -> None:
        self._messages = messages
        self._enums = enums
        self._left = MAX_VALUES

    def message(self, data: bytes, name: str, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise WrongData("the value is nested too deeply")
        message = self._messages[name]
        found: dict[str, Any] = {}
        at = 0
        while at < len(data):
            self._left -= 1
            if self._left < 0:
                raise WrongData("the value has too many fields")
            tag, at = _varint(data, at, name)
            number, wire = tag >> 3, tag & 7
            if not number:
                raise WrongData(f"a message of {name} has a field with the number 0")
            raw, at = _raw(data, at, wire, number, name)
            known = message.by_number.get(number)
            if known is None:
                found.setdefault(str(number), _unknown(wire, raw))
            elif known.map_value is not None:
                entry = self._map_entry(_bytes(raw, known), known, depth)
                found.setdefault(known.name, {}).update(entry)
            elif known.repeated:
                found.setdefault(known.name, []).extend(self._repeated(known, wire, raw, depth))
            else:
                found[known.name] = self._value(known.type, known.name, wire, raw, depth)
        return _well_known(name, found)

    def _map_entry(self, data: bytes, known: _Field, depth: int) -> dict[str, Any]:
        assert known.map_value is not None
        key: Any = "" if known.type == "string" else 0
        value: Any = None
        at = 0
        while at < len(data):
            tag, at = _varint(data, at, known.name)
            raw, at = _raw(data, at, tag & 7, tag >> 3, known.name)
            if tag >> 3 == 1:
                key = self._value(known.type, known.name, tag & 7, raw, depth)
            elif tag >> 3 == 2:
                value = self._value(known.map_value, known.name, tag & 7, raw, depth)
        return {str(key).lower() if isinstance(key, bool) else str(key): value}

    def _repeated(self, known: _Field, wire: int, raw: int | bytes, depth: int) -> list[Any]:
        packed = wire == _LENGTH and (
            known.type in _INTEGERS
            or known.type in _FIXED
            or known.type == "bool"
            or known.type in self._enums
        )
        if not packed:
            return [self._value(known.type, known.name, wire, raw, depth)]
        assert isinstance(raw, bytes)
        inner = _FIXED[known.type][0] if known.type in _FIXED else _VARINT
        values: list[Any] = []
        at = 0
        while at < len(raw):
            self._left -= 1
            if self._left < 0:
                raise WrongData("the value has too many fields")
            each, at = _raw(raw, at, inner, known.number, known.name)
            values.append(self._value(known.type, known.name, inner, each, depth))
        return values

    def _value(self, kind: str, name: str, wire: int, raw: int | bytes, depth: int) -> Any:
        if kind in self._messages:
            return self.message(_bytes_of(raw, name), kind, depth + 1)
        if kind == "string":
            try:
                return _bytes_of(raw, name).decode()
            except UnicodeDecodeError:
                raise WrongData(f"field {name!r} is no text of UTF-8") from None
        if kind == "bytes":
            return base64.b64encode(_bytes_of(raw, name)).decode()
        if kind in _FIXED:
            expected, layout = _FIXED[kind]
            if wire != expected or not isinstance(raw, bytes):
                raise WrongData(f"field {name!r} is no {kind}")
            number = layout.unpack(raw)[0]
            return str(number) if isinstance(number, float) and number - number != 0 else number
        if not isinstance(raw, int):
            raise WrongData(f"field {name!r} is no {kind}")
        if kind == "bool":
            return bool(raw)
        if kind in self._enums:
            number = _signed(raw, 32)
            return self._enums[kind].by_number.get(number, number)
        if kind.startswith("s"):
            return (raw >> 1) ^ -(raw & 1)
        bits: int = _INTEGERS[kind]
        return raw & ((1 << bits) - 1) if kind.startswith("u") else _signed(raw, bits)


def _signed(raw: int, bits: int) -> int:
    low = raw & ((1 << bits) - 1)
    return low - (1 << bits) if low >> (bits - 1) else low


def _bytes(raw: int | bytes, known: _Field) -> bytes:
    return _bytes_of(raw, known.name)


def _bytes_of(raw: int | bytes, name: str) -> bytes:
    if not isinstance(raw, bytes):
        raise WrongData(f"field {name!r} has another type in the data than in the schema")
    return raw


def _varint(data: bytes, at: int, where: str) -> tuple[int, int]:
    found = shift = 0
    while True:
        if at >= len(data):
            raise WrongData(f"the value ends inside of {where!r}")
        byte = data[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return found & (2**64 - 1), at
        shift += 7
        if shift > 63:
            raise WrongData(f"{where!r} has a number with more than 64 bits")


def _raw(data: bytes, at: int, wire: int, number: int, where: str) -> tuple[int | bytes, int]:
    """The bytes or the number of a field, and what follows it."""
    if wire == _VARINT:
        return _varint(data, at, where)
    if wire == _START_GROUP:
        end, after = _group_end(data, at, number, where)
        return data[at:end], after
    size = 8 if wire == _FIXED64 else 4
    if wire == _LENGTH:
        size, at = _varint(data, at, where)
    elif wire not in (_FIXED64, _FIXED32):
        raise WrongData(f"{where!r} has a field of the unknown wire type {wire}")
    if size > len(data) - at:
        raise WrongData(f"the value ends inside of {where!r}")
    return data[at : at + size], at + size


def _group_end(data: bytes, at: int, number: int, where: str) -> tuple[int, int]:
    """Where a group ends, and what follows its last tag."""
    open_groups = [number]
    while True:
        before = at
        tag, at = _varint(data, at, where)
        if tag & 7 == _START_GROUP:
            open_groups.append(tag >> 3)
            if len(open_groups) > MAX_DEPTH:
                raise WrongData("the value is nested too deeply")
        elif tag & 7 == _END_GROUP:
            if open_groups.pop() != tag >> 3:
                raise WrongData(f"{where!r} has a group that does not end")
            if not open_groups:
                return before, at
        else:
            _, at = _raw(data, at, tag & 7, tag >> 3, where)


def _unknown(wire: int, raw: int | bytes) -> Any:
    if isinstance(raw, int):
        return raw
    if wire == _LENGTH:
        try:
            text = raw.decode()
            if text.isprintable():
                return text
        except UnicodeDecodeError:
            pass
    return raw.hex()


def _well_known(name: str, found: dict[str, Any]) -> Any:
    """Some of Google's own messages as Protobuf's JSON mapping writes them."""
    if not name.startswith("google.protobuf."):
        return found
    short = name.removeprefix("google.protobuf.")
    try:
        if short == "Timestamp":
            seconds, nanos = found.get("seconds", 0), found.get("nanos", 0)
            text = (_EPOCH + timedelta(seconds=seconds)).isoformat().removesuffix("+00:00")
            return f"{text}.{nanos:09d}Z" if nanos else f"{text}Z"
        if short == "Duration":
            seconds, nanos = found.get("seconds", 0), found.get("nanos", 0)
            return f"{seconds}.{abs(nanos):09d}s" if nanos else f"{seconds}s"
    except (OverflowError, ValueError):
        return found
    if short.endswith("Value") and short not in ("ListValue", "Value", "NullValue"):
        return found.get("value")
    if short == "Struct":
        return found.get("fields", {})
    if short == "ListValue":
        return found.get("values", [])
    if short == "Value":
        return None if "null_value" in found else next(iter(found.values()), None)
    return found


class _Writer:
    def __init__(self, messages: Mapping[str, _Message], enums: Mapping[str, _Enumeration]) -> None:
        self._messages = messages
        self._enums = enums

    def message(self, value: Any, name: str, depth: int) -> bytes:
        message = self._messages[name]
        if depth > MAX_DEPTH:
            raise WrongData("the value is nested too deeply")
        if name.startswith("google.protobuf.") and not isinstance(value, dict):
            raise WrongData(f"values of {name} cannot be written here; give its fields")
        if not isinstance(value, dict):
            raise WrongData(f"a {name} has to be an object")
        out = bytearray()
        for key, each in value.items():
            known = message.by_name.get(key)
            if known is None:
                raise WrongData(f"{name} has no field {key!r}")
            if each is None:
                continue
            if known.map_value is not None:
                self._map(out, known, each, depth)
            elif known.repeated:
                if not isinstance(each, list):
                    raise WrongData(f"field {key!r} has to be an array")
                for item in each:
                    self._value(out, known.number, known.type, key, item, depth)
            else:
                self._value(out, known.number, known.type, key, each, depth)
        return bytes(out)

    def _map(self, out: bytearray, known: _Field, value: Any, depth: int) -> None:
        assert known.map_value is not None
        if not isinstance(value, dict):
            raise WrongData(f"field {known.name!r} has to be an object")
        for key, each in value.items():
            entry = bytearray()
            typed: Any = key
            if known.type == "bool":
                typed = key == "true"
            elif known.type != "string":
                try:
                    typed = int(key)
                except ValueError:
                    raise WrongData(f"field {known.name!r} has the key {key!r}, no number") from None
            self._value(entry, 1, known.type, known.name, typed, depth)
            self._value(entry, 2, known.map_value, known.name, each, depth)
            out += _tag(known.number, _LENGTH) + _encoded_varint(len(entry)) + entry

    def _value(self, out: bytearray, number: int, kind: str, name: str, value: Any, depth: int) -> None:
        if kind in self._messages or kind in ("string", "bytes"):
            data = self._sized(kind, name, value, depth)
            out += _tag(number, _LENGTH) + _encoded_varint(len(data)) + data
        elif kind in _FIXED:
            wire, layout = _FIXED[kind]
            try:
                is_float = kind in ("float", "double")
                out += _tag(number, wire) + layout.pack(float(value) if is_float else value)
            except (struct.error, TypeError, ValueError, OverflowError):
                raise WrongData(f"field {name!r} has to be a {kind}") from None
        else:
            out += _tag(number, _VARINT) + _encoded_varint(self._varint_of(kind, name, value))

    def _sized(self, kind: str, name: str, value: Any, depth: int) -> bytes:
        if kind in self._messages:
            return self.message(value, kind, depth + 1)
        if not isinstance(value, str):
            raise WrongData(f"field {name!r} has to be text")
        if kind == "string":
            return value.encode()
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            raise WrongData(f"field {name!r} has to be base64") from None

    def _varint_of(self, kind: str, name: str, value: Any) -> int:
        if kind == "bool":
            if not isinstance(value, bool):
                raise WrongData(f"field {name!r} has to be true or false")
            return int(value)
        if kind in self._enums:
            by_name = {text: found for found, text in self._enums[kind].by_number.items()}
            if isinstance(value, str):
                if value not in by_name:
                    raise WrongData(f"field {name!r} has to be one of {', '.join(list(by_name)[:20])}")
                value = by_name[value]
        if isinstance(value, bool) or not isinstance(value, int):
            raise WrongData(f"field {name!r} has to be a whole number")
        bits = _INTEGERS.get(kind, 32)
        low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        if kind in ("uint32", "uint64"):
            low, high = 0, 2**bits - 1
        if not low <= value <= high:
            raise WrongData(f"field {name!r} is out of range: {value}")
        if kind in ("sint32", "sint64"):
            return (value << 1) ^ (value >> 63)
        return value & (2**64 - 1)


def _tag(number: int, wire: int) -> bytes:
    return _encoded_varint(number << 3 | wire)


def _encoded_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
