"""A `.proto` file as its parts, and the text that Confluent's registry prints of them.

`protobuf` reads what describes data; this keeps everything that belongs to the text of a schema: labels,
options, reserved numbers, extensions, services. Comments and white space have no meaning and are left out.
The order of parts in the printed text is that of the registry, so that texts can be compared with those that
it stored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from ottla.schemas.parsed import InvalidSchemaError, check_size

MAX_DEPTH: Final = 64
MAX_NUMBER: Final = 2**29 - 1
_MAX_TOKENS: Final = 300_000
_MAX_NAME: Final = 1_000
_TOKEN: Final = re.compile(
    r"""(?:\s+|//[^\n]*|/\*.*?\*/)*+(?:(?P<string>"(?:[^"\\\n]|\\.)*+"|'(?:[^'\\\n]|\\.)*+')
      |(?P<word>[A-Za-z0-9_.](?:[\w.]|(?<=\d[eE])[+-])*+)|(?P<sign>[{}\[\]()<>;=,:+\-/])|\Z)""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_NUMBERS: Final = ("int32", "int64", "uint32", "uint64", "sint32", "sint64", "float", "double")
SCALARS: Final = frozenset(
    (*_NUMBERS, "fixed32", "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes")
)
_ESCAPE: Final = re.compile(r"\\(?:[xX]([0-9a-fA-F]{1,2})|([0-7]{1,3})|(.))", re.DOTALL)
_ESCAPED: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_PRINTED: Final = str.maketrans(
    {**{value: f"\\{name}" for name, value in _ESCAPED.items()}, "\\": "\\\\", "'": "\\'", '"': '\\"'}
)
_NAME: Final = re.compile(r"\.?[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", re.ASCII)


@dataclass(frozen=True, slots=True)
class OptionText:
    """A simple value of an option; `is_string` if it stands in quotes."""

    text: str
    is_string: bool = False


@dataclass(frozen=True, slots=True)
class OptionElement:
    """An option; that of a field of an option has another one as its value."""

    name: str
    value: OptionValue
    is_extension: bool = False


OptionValue = OptionText | OptionElement | dict[str, "OptionValue"] | list["OptionValue"]
Range = str | int | tuple[int, int]
"""A reserved name, a number, or the first and the last of several."""


@dataclass(slots=True)
class FieldElement:
    label: str | None
    type: str
    """As the file has it; that of a map is `map<key, value>`."""
    name: str
    number: int
    options: list[OptionElement] = field(default_factory=list)
    default: str | None = None
    json_name: str | None = None


@dataclass(slots=True)
class OneOfElement:
    name: str
    fields: list[FieldElement] = field(default_factory=list)
    groups: list[GroupElement] = field(default_factory=list)
    options: list[OptionElement] = field(default_factory=list)


@dataclass(slots=True)
class GroupElement:
    label: str | None
    name: str
    number: int
    fields: list[FieldElement] = field(default_factory=list)


@dataclass(slots=True)
class EnumElement:
    name: str
    constants: list[tuple[str, int, list[OptionElement]]] = field(default_factory=list)
    options: list[OptionElement] = field(default_factory=list)
    reserved: list[list[Range]] = field(default_factory=list)


@dataclass(slots=True)
class ExtendElement:
    name: str
    fields: list[FieldElement] = field(default_factory=list)


@dataclass(slots=True)
class MessageElement:
    name: str
    fields: list[FieldElement] = field(default_factory=list)
    oneofs: list[OneOfElement] = field(default_factory=list)
    groups: list[GroupElement] = field(default_factory=list)
    types: list[MessageElement | EnumElement] = field(default_factory=list)
    options: list[OptionElement] = field(default_factory=list)
    reserved: list[list[Range]] = field(default_factory=list)
    extensions: list[tuple[list[Range], list[OptionElement]]] = field(default_factory=list)
    extends: list[ExtendElement] = field(default_factory=list)

    @property
    def is_map_entry(self) -> bool:
        """Whether a compiler made the message for a field that is a map."""
        return any(each.name == "map_entry" and each.value == OptionText("true") for each in self.options)

    def field_type(self, name: str) -> str | None:
        """Return the type of a field."""
        return next((each.type for each in self.fields if each.name == name), None)


@dataclass(slots=True)
class RpcElement:
    name: str
    request: str
    response: str
    request_streams: bool = False
    response_streams: bool = False
    options: list[OptionElement] = field(default_factory=list)


@dataclass(slots=True)
class ServiceElement:
    name: str
    rpcs: list[RpcElement] = field(default_factory=list)
    options: list[OptionElement] = field(default_factory=list)


@dataclass(slots=True)
class FileElement:
    syntax: str | None = None
    package: str | None = None
    imports: list[str] = field(default_factory=list)
    public_imports: list[str] = field(default_factory=list)
    options: list[OptionElement] = field(default_factory=list)
    types: list[MessageElement | EnumElement] = field(default_factory=list)
    extends: list[ExtendElement] = field(default_factory=list)
    services: list[ServiceElement] = field(default_factory=list)


def map_types(kind: str) -> tuple[str, str] | None:
    """Return the types of keys and values of a map; None if the type is another."""
    if not kind.startswith("map<"):
        return None
    key, _, value = kind[4:-1].partition(", ")
    return key, value


def parse_file(text: str) -> FileElement:
    """Parse a text. InvalidSchemaError if it is no `.proto` file."""
    check_size(text)
    return _FileParser(text).parse()


def _error(reason: str) -> InvalidSchemaError:
    return InvalidSchemaError(f"Could not parse Protobuf - {reason}")


class _FileParser:
    def __init__(self, text: str) -> None:
        # A string stands with its quote.
        self._tokens: Final = _tokens(text)
        self._at = 0
        self._file: Final = FileElement()

    def parse(self) -> FileElement:
        found = self._file
        is_first = True
        while self._at < len(self._tokens):
            word = self._next()
            if word == "syntax":
                if not is_first:
                    raise _error("'syntax' element must be the first declaration in a file")
                self._expect("=")
                found.syntax = self._string()
                if found.syntax not in ("proto2", "proto3"):
                    raise _error(f"unexpected syntax: {found.syntax[:40]!r}")
                self._expect(";")
            elif word == "package":
                found.package = self._name()
                self._expect(";")
            elif word == "import":
                kind = self._next() if self._peek() in ("public", "weak") else ""
                name = self._string()
                if kind != "weak":
                    (found.public_imports if kind else found.imports).append(name)
                self._expect(";")
            elif word == "option":
                found.options.append(self._option_statement())
            elif word == "message":
                found.types.append(self._message(0))
            elif word == "enum":
                found.types.append(self._enum())
            elif word == "extend":
                found.extends.append(self._extend())
            elif word == "service":
                found.services.append(self._service())
            elif word == "edition":
                raise _error("editions are not supported")
            elif word != ";":
                raise _error(f"unexpected label: {word[:40]}")
            is_first = False
        return found

    def _next(self) -> str:
        if self._at >= len(self._tokens):
            raise _error("unexpected end of file")
        self._at += 1
        return self._tokens[self._at - 1]

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self, wanted: str) -> bool:
        if self._peek() != wanted:
            return False
        self._at += 1
        return True

    def _expect(self, wanted: str) -> None:
        found = self._next()
        if found != wanted:
            raise _error(f"expected {wanted!r} but was {found[:40]!r}")

    def _name(self) -> str:
        """Read the name of something that is defined, or a type's."""
        name = self._next()
        if len(name) > _MAX_NAME or not _NAME.fullmatch(name):
            raise _error(f"expected a name but was {name[:40]!r}")
        return name

    def _string(self) -> str:
        """Read a text in quotes; several that follow each other are one."""
        parts: list[str] = []
        while self._peek()[:1] in ('"', "'") and self._peek():
            parts.append(_ESCAPE.sub(_unescaped, self._next()[1:-1]))
        if not parts:
            raise _error(f"expected a quoted string but was {self._peek()[:40]!r}")
        return "".join(parts)

    def _int(self) -> int:
        sign = -1 if self._take("-") else 1
        word = self._next()
        try:
            return sign * int(word, 0 if word[:2] in ("0x", "0X") else 10)
        except ValueError:
            raise _error(f"expected an integer but was {word[:40]!r}") from None

    def _number(self) -> int:
        number = self._int()
        if not 1 <= number <= MAX_NUMBER:
            raise _error(f"the field number {number} is not between 1 and {MAX_NUMBER}")
        return number

    def _type(self, word: str) -> str:
        if word == "map" and self._take("<"):
            key = self._name()
            self._expect(",")
            value = self._name()
            self._expect(">")
            return f"map<{key}, {value}>"
        if len(word) > _MAX_NAME or not _NAME.fullmatch(word):
            raise _error(f"expected a type but was {word[:40]!r}")
        return word

    def _message(self, depth: int) -> MessageElement:
        if depth > MAX_DEPTH:
            raise _error("messages are nested too deeply")
        found = MessageElement(self._name())
        self._expect("{")
        while (word := self._next()) != "}":
            if word == "option" and self._peek() not in ("=",):
                found.options.append(self._option_statement())
            elif word == "reserved":
                found.reserved.append(self._ranges()[0])
            elif word == "message":
                found.types.append(self._message(depth + 1))
            elif word == "enum":
                found.types.append(self._enum())
            elif word == "extend":
                found.extends.append(self._extend())
            elif word == "oneof":
                found.oneofs.append(self._oneof())
            elif word == "extensions":
                found.extensions.append(self._ranges())
            elif word != ";":
                self._add_field(word, found.fields, found.groups)
        return found

    def _add_field(self, word: str, fields: list[FieldElement], groups: list[GroupElement] | None) -> None:
        label: str | None = None
        if word in ("required", "optional", "repeated"):
            if word == "required" and self._file.syntax == "proto3":
                raise _error("'required' label forbidden in proto3 field declarations")
            label, word = word, self._next()
        elif self._file.syntax != "proto3" and not (word == "map" and self._peek() == "<"):
            raise _error(f"unexpected label: {word[:40]}")
        kind = self._type(word)
        if kind == "group" and groups is not None:
            groups.append(self._group(label))
            return
        if kind.startswith("map<") and label is not None:
            raise _error("'map' type cannot have label")
        fields.append(self._field(label, kind))

    def _field(self, label: str | None, kind: str) -> FieldElement:
        name = self._name()
        self._expect("=")
        found = FieldElement(label, kind, name, self._number())
        for option in self._options():
            if option.name in ("default", "json_name") and isinstance(option.value, OptionText):
                if option.name == "default":
                    found.default = option.value.text
                else:
                    found.json_name = option.value.text
            else:
                found.options.append(option)
        self._expect(";")
        return found

    def _group(self, label: str | None) -> GroupElement:
        name = self._name()
        self._expect("=")
        found = GroupElement(label, name, self._number())
        self._expect("{")
        while (word := self._next()) != "}":
            self._add_field(word, found.fields, None)
        return found

    def _oneof(self) -> OneOfElement:
        found = OneOfElement(self._name())
        self._expect("{")
        while (word := self._next()) != "}":
            if word == "option":
                found.options.append(self._option_statement())
            elif word == "group":
                found.groups.append(self._group(None))
            elif word != ";":
                found.fields.append(self._field(None, self._type(word)))
        return found

    def _extend(self) -> ExtendElement:
        found = ExtendElement(self._name())
        self._expect("{")
        while (word := self._next()) != "}":
            if word != ";":
                self._add_field(word, found.fields, None)
        return found

    def _enum(self) -> EnumElement:
        found = EnumElement(self._name())
        self._expect("{")
        while (word := self._next()) != "}":
            if word == "option" and self._peek() != "=":
                found.options.append(self._option_statement())
            elif word == "reserved" and self._peek() != "=":
                found.reserved.append(self._ranges()[0])
            elif word != ";":
                if not _NAME.fullmatch(word):
                    raise _error(f"expected a constant but was {word[:40]!r}")
                self._expect("=")
                number = self._int()
                if not -(2**31) <= number < 2**31:
                    raise _error(f"the number {number} of {word[:40]} has more than 32 bits")
                found.constants.append((word, number, self._options()))
                self._expect(";")
        return found

    def _ranges(self) -> tuple[list[Range], list[OptionElement]]:
        found: list[Range] = []
        while True:
            if self._peek()[:1] in ('"', "'"):
                found.append(self._string())
            else:
                first = self._int()
                if self._take("to"):
                    found.append((first, MAX_NUMBER if self._take("max") else self._int()))
                else:
                    found.append(first)
            if self._peek() == "[":
                options = self._options()
                self._expect(";")
                return found, options
            if self._take(";"):
                return found, []
            self._expect(",")

    def _service(self) -> ServiceElement:
        found = ServiceElement(self._name())
        self._expect("{")
        while (word := self._next()) != "}":
            if word == "option":
                found.options.append(self._option_statement())
            elif word == "rpc":
                found.rpcs.append(self._rpc())
            elif word != ";":
                raise _error(f"unexpected label: {word[:40]}")
        return found

    def _rpc(self) -> RpcElement:
        name = self._name()
        request_streams, request = self._rpc_type()
        self._expect("returns")
        response_streams, response = self._rpc_type()
        found = RpcElement(name, request, response, request_streams, response_streams)
        if self._take("{"):
            while (word := self._next()) != "}":
                if word == "option":
                    found.options.append(self._option_statement())
                elif word != ";":
                    raise _error(f"unexpected label: {word[:40]}")
        else:
            self._expect(";")
        return found

    def _rpc_type(self) -> tuple[bool, str]:
        self._expect("(")
        name = self._name()
        streams = name == "stream" and self._peek() != ")"
        if streams:
            name = self._name()
        self._expect(")")
        return streams, name

    def _option_statement(self) -> OptionElement:
        found = self._option("=", 0)
        self._expect(";")
        return found

    def _options(self) -> list[OptionElement]:
        found: list[OptionElement] = []
        if self._take("["):
            while True:
                found.append(self._option("=", 0))
                if self._take("]"):
                    break
                self._expect(",")
        return found

    def _option(self, separator: str, depth: int) -> OptionElement:
        """Read a name and a value. `(a.b).c.d = 1` is an option inside of options."""
        path = [self._option_name()]
        while True:
            if self._take("."):
                path.append(self._option_name())
            elif self._peek().startswith(".") and self._peek() != ".":
                path += [(each, False) for each in self._next()[1:].split(".")]
            else:
                break
        if not (separator == ":" and self._peek() == "{"):
            self._expect(separator)
        value = self._value(depth)
        for name, is_extension in reversed(path[1:]):
            value = OptionElement(name, value, is_extension)
        return OptionElement(path[0][0], value, path[0][1])

    def _option_name(self) -> tuple[str, bool]:
        if self._take("("):
            name = self._name()
            self._expect(")")
            return name, True
        if self._take("["):
            name = self._name()
            if self._take("/"):
                name = f"{name}/{self._name()}"
            self._expect("]")
            return f"[{name}]", False
        return self._name(), False

    def _value(self, depth: int) -> OptionValue:
        if depth > MAX_DEPTH:
            raise _error("options are nested too deeply")
        if self._take("{"):
            return self._map(depth)
        if self._take("["):
            found: list[OptionValue] = []
            while not self._take("]"):
                found.append(self._value(depth + 1))
                if not self._take(",") and self._peek() != "]":
                    raise _error("expected ',' or ']'")
            return found
        if self._peek()[:1] in ('"', "'"):
            return OptionText(self._string(), is_string=True)
        sign = "-" if self._take("-") else ""
        word = self._next()
        if not word[0].isalnum() and word[0] not in "_.":
            raise _error(f"expected a value but was {word[:40]!r}")
        return OptionText(sign + word)

    def _map(self, depth: int) -> dict[str, OptionValue]:
        found: dict[str, OptionValue] = {}
        while not self._take("}"):
            option = self._option(":", depth + 1)
            if isinstance(option.value, OptionElement):
                inner = found.setdefault(option.name, {})
                if isinstance(inner, dict):
                    inner[option.value.name] = option.value.value
            elif option.name not in found:
                found[option.name] = option.value
            else:
                # A name that comes several times has all of its values.
                before = found[option.name]
                values: list[OptionValue] = list(before) if isinstance(before, list) else [before]
                values += option.value if isinstance(option.value, list) else [option.value]
                found[option.name] = values
            if not self._take(","):
                self._take(";")
        return found


def _tokens(text: str) -> list[str]:
    found: list[str] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _error(f"{text[at : at + 20]!r} is no part of a file")
        at = match.end()
        if match.lastgroup is not None:
            found.append(match[match.lastgroup])
        if len(found) > _MAX_TOKENS:
            raise _error("the file is too large")
    return found


def _unescaped(match: re.Match[str]) -> str:
    if match[1]:
        return chr(int(match[1], 16))
    if match[2]:
        return chr(int(match[2], 8))
    return _ESCAPED.get(match[3], match[3])


def print_file(file: FileElement) -> str:
    """Print the parts of a file as Confluent's registry does."""
    lines: list[str] = []
    if file.syntax is not None:
        lines.append(f'syntax = "{file.syntax}";')
    if file.package is not None:
        lines.append(f"package {file.package};")
    messages = [each for each in file.types if isinstance(each, MessageElement)]
    enums = [each for each in file.types if isinstance(each, EnumElement)]
    for section in (
        [
            *(f'import "{name}";' for name in file.imports),
            *(f'import public "{name}";' for name in file.public_imports),
        ],
        _statements(file.options),
        [line for each in messages for line in _message(each)]
        + [line for each in enums for line in _enum(each)],
        [line for each in file.extends for line in _extend(each)],
        [line for each in file.services for line in _service(each)],
    ):
        if section:
            lines += ["", *section]
    return "".join(f"{line}\n" for line in lines)


def _block(head: str, sections: Iterable[list[str]], *, apart: bool = True) -> list[str]:
    """A block of sections, with lines between them that only have the indentation of where they stand."""
    lines: list[str] = []
    for section in sections:
        if section:
            if lines and apart:
                lines.append("")
            lines += (f"  {line}" for line in section)
    return [f"{head} {{", *lines, "}"] if lines else [f"{head} {{}}"]


def _message(message: MessageElement) -> list[str]:
    messages = [each for each in message.types if isinstance(each, MessageElement)]
    enums = [each for each in message.types if isinstance(each, EnumElement)]
    return _block(
        f"message {message.name}",
        (
            [_reserved("reserved", each) for each in message.reserved],
            _statements(message.options),
            [line for each in message.fields for line in _field(each)],
            [line for each in message.oneofs for line in _oneof(each)],
            [line for each in message.groups for line in _group(each)],
            [line for each in message.extensions for line in _extensions(*each)],
            [line for each in message.extends for line in _extend(each)],
            [line for each in messages for line in _message(each)]
            + [line for each in enums for line in _enum(each)],
        ),
    )


def _enum(enum: EnumElement) -> list[str]:
    constants = [
        line
        for name, number, options in enum.constants
        for line in _with_options(f"{name} = {number}", options)
    ]
    sections = ([_reserved("reserved", each) for each in enum.reserved], _statements(enum.options), constants)
    return _block(f"enum {enum.name}", sections, apart=False)


def _oneof(oneof: OneOfElement) -> list[str]:
    return _block(
        f"oneof {oneof.name}",
        (
            _statements(oneof.options),
            [line for each in oneof.fields for line in _field(each)],
            [line for each in oneof.groups for line in _group(each)],
        ),
    )


def _group(group: GroupElement) -> list[str]:
    label = f"{group.label} " if group.label else ""
    fields = [line for each in group.fields for line in _field(each)]
    return _block(f"{label}group {group.name} = {group.number}", (fields,))


def _extend(extend: ExtendElement) -> list[str]:
    return _block(f"extend {extend.name}", ([line for each in extend.fields for line in _field(each)],))


def _service(service: ServiceElement) -> list[str]:
    rpcs = [line for each in service.rpcs for line in _rpc(each)]
    return _block(f"service {service.name}", (_statements(service.options), rpcs))


def _rpc(rpc: RpcElement) -> list[str]:
    request = f"{'stream ' if rpc.request_streams else ''}{rpc.request}"
    response = f"{'stream ' if rpc.response_streams else ''}{rpc.response}"
    head = f"rpc {rpc.name} ({request}) returns ({response})"
    if not rpc.options:
        return [f"{head};"]
    return [f"{head} {{", *(f"  {line}" for line in _statements(rpc.options)), "};"]


def _field(one: FieldElement) -> list[str]:
    options = list(one.options)
    if one.default is not None:
        options.append(OptionElement("default", OptionText(one.default, one.type == "string")))
    if one.json_name is not None:
        options.append(OptionElement("json_name", OptionText(one.json_name, is_string=True)))
    label = f"{one.label} " if one.label else ""
    return _with_options(f"{label}{one.type} {one.name} = {one.number}", options)


def _reserved(word: str, ranges: list[Range]) -> str:
    shown: list[str] = []
    for each in ranges:
        if isinstance(each, str):
            shown.append(f'"{each}"')
        elif isinstance(each, int):
            shown.append(str(each))
        else:
            shown.append(f"{each[0]} to {each[1] if each[1] < MAX_NUMBER else 'max'}")
    return f"{word} {', '.join(shown)};"


def _extensions(ranges: list[Range], options: list[OptionElement]) -> list[str]:
    return _with_options(_reserved("extensions", ranges)[:-1], options)


def _with_options(head: str, options: list[OptionElement]) -> list[str]:
    if not options:
        return [f"{head};"]
    lines = _list([_option(each) for each in options], is_inline=True)
    return (
        [f"{head} {lines[0]}", *lines[1:-1], f"{lines[-1]};"] if len(lines) > 1 else [f"{head} {lines[0]};"]
    )


def _statements(options: list[OptionElement]) -> list[str]:
    lines: list[str] = []
    for option in options:
        shown = _option(option)
        lines += [f"option {shown[0]}", *shown[1:]]
        lines[-1] += ";"
    return lines


def _option(option: OptionElement) -> list[str]:
    name = f"({option.name})" if option.is_extension else option.name
    if isinstance(option.value, OptionElement):
        lines = _option(option.value)
        return [f"{name}.{lines[0]}", *lines[1:]]
    lines = _value(option.value, is_inline=True)
    return [f"{name} = {lines[0]}", *lines[1:]]


def _value(value: OptionValue, *, is_inline: bool = False) -> list[str]:
    if isinstance(value, OptionText):
        return [f'"{value.text.translate(_PRINTED)}"' if value.is_string else value.text]
    if isinstance(value, OptionElement):
        return _option(value)
    if isinstance(value, dict):
        entries: list[list[str]] = []
        for name, each in value.items():
            lines = _value(each)
            entries.append([f"{name}: {lines[0]}", *lines[1:]])
        return ["{", *_separated(entries), "}"]
    return _list([_value(each) for each in value], is_inline=is_inline)


def _list(items: list[list[str]], *, is_inline: bool) -> list[str]:
    if is_inline and len(items) == 1:
        lines = list(items[0])
        lines[0] = f"[{lines[0]}"
        lines[-1] += "]"
        return lines
    return ["[", *_separated(items), "]"]


def _separated(items: list[list[str]]) -> list[str]:
    lines: list[str] = []
    for index, item in enumerate(items):
        lines += (f"  {line}" for line in item)
        if index < len(items) - 1:
            lines[-1] += ","
    return lines
