"""Compiles a declaration into one decoding function for each version.

The function is straight-line Python made as source: nested structs are inlined, neighbouring fixed-size
fields (the length prefixes of strings and arrays, and the first byte of a varint, among them) are read by one
`struct.Struct`, and values go straight into the slots of their object. For a field that a version lacks the
default is stored.

Nothing is allocated by an unchecked length: a length must fit into the remaining bytes, and so must a count
times the smallest size of an element. As an element of a few bytes becomes an object of hundreds, the number
of elements in a request is limited, over all its arrays; a response, which comes from a broker that this node
chose, may have as many as fit. Input that breaks a rule raises MalformedMessage, IndexError or struct.error,
which `Message.decode_from` turns into MalformedMessage.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from ottla.protocol.errors import MalformedMessage, TooManyElements
from ottla.protocol.primitives import (
    FORMATS,
    MAX_STRING_BYTES,
    SHORT_ARRAY,
    fixed_size,
    read_uvarint,
    read_uvarint_rest,
    short_array_unpackers,
)
from ottla.protocol.schema import (
    Buffer,
    Decoder,
    Field,
    Message,
    Request,
    Struct,
    is_shareable,
    shared_default,
)

MAX_ELEMENTS: Final = 100_000
"""Elements of all arrays of one request, and unknown tagged fields: tens of megabytes at the most."""
MAX_TAGS: Final = 127
"""Tagged fields of one struct: what the first byte of their count can say."""


def compile_decoder(cls: type[Message], version: int) -> Decoder:
    """Return the function (data, position) -> (message, position after it) for this version."""
    compiler = _Compiler(cls, version)
    names = compiler.names
    exec(compile(compiler.source(), f"<{cls.__name__}.decode v{version}>", "exec"), names)
    decoder: Decoder = names["decode"]
    return decoder


class _Compiler:
    """Writes the source of one decoder; `pending` are fixed-size reads that are to be made together."""

    def __init__(self, cls: type[Message], version: int) -> None:
        self.cls = cls
        self.version = version
        self.flexible = cls.is_flexible(version)
        self.lines: list[str] = []
        self.indent = 1
        self.pending: list[tuple[str, str]] = []
        self.needs_view = False
        self.bounded = issubclass(cls, Request)
        self.names: dict[str, Any] = {
            "new": object.__new__,
            "unpack_array": struct.unpack_from,
            "uvarint_rest": read_uvarint_rest,
            "short": _short,
            "null": _null,
            "long_string": _long_string,
            "large_count": _large_count,
            "too_many": _too_many,
            "too_many_tags": _too_many_tags,
            "wrong_tag_size": _wrong_tag_size,
            "tag_head": _tag_head,
            "unknown_tags": _unknown_tags,
        }

    def source(self) -> str:
        self.read_struct(self.cls, "o0", 0)
        self.flush()
        head = ["def decode(data, p, room=None):", "    end = len(data)"]
        if self.needs_view:
            head.append("    whole = data if type(data) is memoryview else memoryview(data)")
        if self.bounded:
            head += ["    is_first = room is not None", f"    if not is_first: room = {MAX_ELEMENTS}"]
        return "\n".join([*head, *self.lines, "    return o0, p"])

    def emit(self, *lines: str) -> None:
        self.flush()
        self.lines += ["    " * self.indent + line for line in lines]

    def bind(self, prefix: str, value: object) -> str:
        """Return a global name of the function for this object."""
        for name, known in self.names.items():
            if known is value and name.startswith(prefix):
                return name
        name = f"{prefix}{len(self.names)}"
        self.names[name] = value
        return name

    def fixed(self, code: str, target: str) -> None:
        self.pending.append((code, target))

    def flush(self) -> None:
        """Write the pending fixed-size reads as one call."""
        if not self.pending:
            return
        pending, self.pending = self.pending, []
        codes = "".join(code for code, _ in pending)
        targets = ", ".join(target for _, target in pending)
        if codes == "B":
            self.emit(f"{targets} = data[p]", "p += 1")
            return
        function = "read_" + codes.replace("?", "t")
        self.names.setdefault(function, struct.Struct(">" + codes).unpack_from)
        comma = "," if len(pending) == 1 else ""
        self.emit(f"{targets}{comma} = {function}(data, p)", f"p += {struct.calcsize('>' + codes)}")

    def emit_count_check(self, count: str, name: str) -> None:
        if self.bounded:
            self.emit(f"room -= {count}", f"if room < 0: too_many({name!r}, is_first)")

    def uvarint(self, name: str) -> None:
        self.fixed("B", name)
        self.emit(f"if {name} > 127: {name}, p = uvarint_rest(data, p, {name})")

    def read_struct(self, cls: type[Struct], target: str, depth: int) -> None:
        self.lines_after_pending(f"{target} = new({self.bind('C', cls)})")
        tagged = []
        for field in cls.FIELDS:
            place = f"{target}.{field.name}"
            if not field.in_version(self.version):
                self.store_default(field, place)
            elif field.tag is not None:
                self.store_default(field, place)
                tagged.append(field)
            else:
                self.read_field(field, place, depth)
        self.lines_after_pending(f"{target}.unknown_tags = None")
        if self.flexible:
            self.read_tags(tagged, target, depth)

    def lines_after_pending(self, line: str) -> None:
        """Write a line that neither reads nor depends on the pending reads, without splitting them."""
        self.lines.append("    " * self.indent + line)

    def store_default(self, field: Field, place: str) -> None:
        if field.default is None or field.kind in (
            "bool",
            "int8",
            "int16",
            "uint16",
            "int32",
            "int64",
            "string",
        ):
            self.lines_after_pending(f"{place} = {field.default!r}")
        elif field.kind == "array":
            self.lines_after_pending(f"{place} = []")
        elif field.struct is not None and not is_shareable(field.struct):
            self.lines_after_pending(f"{place} = {self.bind('C', field.struct)}()")
        else:
            value = shared_default(field.struct) if field.struct is not None else field.default
            self.lines_after_pending(f"{place} = {self.bind('D', value)}")

    def read_field(self, field: Field, place: str, depth: int) -> None:
        nullable = field.nullable_in(self.version)
        if field.kind in FORMATS:
            self.fixed(FORMATS[field.kind], place)
        elif field.kind == "struct":
            self.read_nested(field, place, nullable, depth)
        else:
            compact = self.flexible and field.flexible
            size = f"n{depth}"
            if compact:
                self.uvarint(size)
            else:
                self.fixed("h" if field.kind == "string" else "i", size)
                self.flush()
            shift = " - 1" if compact else ""
            if nullable:
                self.emit(f"if {size} {'== 0' if compact else '< 0'}: {place} = None", "else:")
                self.indent += 1
            else:
                self.emit(f"if {size} {'== 0' if compact else '< 0'}: null({field.name!r})")
            if field.kind == "array":
                self.read_array(field, place, size, shift, depth)
            else:
                self.read_sized(field, place, size, shift)
            if nullable:
                self.flush()
                self.indent -= 1

    def read_sized(self, field: Field, place: str, size: str, shift: str) -> None:
        self.emit(f"e = p + {size}{shift}", f"if e > end: short({field.name!r}, {size}{shift}, end - p)")
        if field.kind == "string":
            if shift:
                self.emit(f"if {size} > {MAX_STRING_BYTES + 1}: long_string({field.name!r}, {size} - 1)")
            value = "str(data[p:e], 'utf-8', 'replace')"
        elif field.zero_copy:
            self.needs_view = True
            value = "whole[p:e]"
        else:
            value = "bytes(data[p:e])"
        self.emit(f"{place} = {value}", "p = e")

    def read_array(self, field: Field, place: str, size: str, shift: str, depth: int) -> None:
        count = f"c{depth}"
        self.emit(f"{count} = {size}{shift}")
        self.emit_count_check(count, field.name)
        assert field.item is not None
        if field.item == "uuid":
            self.emit(
                f"if {count} * 16 > end - p: large_count({field.name!r}, {count}, end - p)",
                f"{place} = [bytes(data[i:i + 16]) for i in range(p, p + {count} * 16, 16)]",
                f"p += {count} * 16",
            )
            return
        if field.item in FORMATS:
            width, code = fixed_size(field.item), FORMATS[field.item]
            self.names.setdefault(f"read_array_{code}", short_array_unpackers(code))
            self.emit(
                f"if {count} < {SHORT_ARRAY}: {place} = list(read_array_{code}[{count}](data, p))",
                "else:",
                f"    if {count} * {width} > end - p: large_count({field.name!r}, {count}, end - p)",
                f"    {place} = list(unpack_array(f'>{{{count}}}{code}', data, p))",
                f"p += {count} * {width}",
            )
            return
        items, item = f"l{depth}", f"o{depth + 1}"
        least = max(1, self.least_size(field.item, field.struct))
        self.emit(
            f"if {count} * {least} > end - p: large_count({field.name!r}, {count}, end - p)",
            f"{place} = {items} = []",
            f"for _ in range({count}):",
        )
        self.indent += 1
        if field.struct is not None:
            self.read_struct(field.struct, item, depth + 1)
        else:
            element = Field(field.item, None)
            element.name = field.name
            self.read_field(element, item, depth + 1)
        self.emit(f"{items}.append({item})")
        self.indent -= 1

    def read_nested(self, field: Field, place: str, nullable: bool, depth: int) -> None:
        assert field.struct is not None
        item = f"o{depth + 1}"
        if nullable:
            # A tagged struct has a varint before it, others a signed byte: 0 and -1 are their nulls.
            if field.tag is None:
                self.fixed("b", "b")
            else:
                self.uvarint("b")
            self.emit(f"if b {'< 0' if field.tag is None else '== 0'}: {place} = None", "else:")
            self.indent += 1
        self.read_struct(field.struct, item, depth + 1)
        self.emit(f"{place} = {item}")
        if nullable:
            self.indent -= 1

    def read_tags(self, tagged: list[Field], target: str, depth: int) -> None:
        count, tag, stop = f"t{depth}", f"g{depth}", f"z{depth}"
        self.fixed("B", count)
        self.emit(f"if {count}:")
        self.indent += 1
        self.emit(f"if {count} > {MAX_TAGS}: too_many_tags()")
        self.emit_count_check(count, "tagged fields")
        if not tagged:
            self.emit(f"{target}.unknown_tags, p = unknown_tags(data, p, {count})")
            self.indent -= 1
            return
        self.emit(f"for _ in range({count}):")
        self.indent += 1
        self.emit(f"{tag}, {stop}, p = tag_head(data, p)")
        branch = "if"
        for field in tagged:
            self.emit(f"{branch} {tag} == {field.tag}:")
            branch = "elif"
            self.indent += 1
            self.read_field(field, f"{target}.{field.name}", depth)
            self.emit(f"if p != {stop}: wrong_tag_size({field.name!r})")
            self.indent -= 1
        self.emit(
            "else:",
            f"    if {target}.unknown_tags is None: {target}.unknown_tags = {{}}",
            f"    {target}.unknown_tags[{tag}] = bytes(data[p:{stop}])",
            f"    p = {stop}",
        )
        self.indent -= 2

    def least_size(self, kind: str, cls: type[Struct] | None) -> int:
        """Return the smallest size of an element in this version."""
        if kind in FORMATS:
            return fixed_size(kind)
        if kind != "struct":
            return 1 if self.flexible else (2 if kind == "string" else 4)
        assert cls is not None
        size = 1 if self.flexible else 0
        for field in cls.FIELDS:
            if field.in_version(self.version) and field.tag is None:
                size += (
                    1
                    if field.nullable_in(self.version) and field.kind == "struct"
                    else (self.least_size(field.kind, field.struct))
                )
        return size


def _tag_head(data: Buffer, position: int) -> tuple[int, int, int]:
    """The tag of the tagged field that begins here, where it ends, and where its value begins."""
    tag, position = read_uvarint(data, position)
    size, position = read_uvarint(data, position)
    if size > len(data) - position:
        _short(f"tagged field {tag}", size, len(data) - position)
    return tag, position + size, position


def _unknown_tags(data: Buffer, position: int, count: int) -> tuple[dict[int, bytes], int]:
    """All tagged fields of a struct that knows none."""
    tags = {}
    for _ in range(count):
        tag, stop, position = _tag_head(data, position)
        tags[tag] = bytes(data[position:stop])
        position = stop
    return tags, position


def _short(field: str, size: int, left: int) -> None:
    raise MalformedMessage(f"{field} claims {size} bytes, {left} are left")


def _null(field: str) -> None:
    raise MalformedMessage(f"{field} is null, which it must not be")


def _long_string(field: str, size: int) -> None:
    raise MalformedMessage(f"{field} is a string of {size} bytes; {MAX_STRING_BYTES} are allowed")


def _large_count(field: str, count: int, left: int) -> None:
    raise MalformedMessage(f"{field} claims {count} elements, only {left} bytes are left")


def _too_many(field: str, is_first: bool) -> None:
    if is_first:
        raise TooManyElements
    raise MalformedMessage(f"it has more than {MAX_ELEMENTS} elements, the last of them {field}")


def _too_many_tags() -> None:
    raise MalformedMessage(f"a struct has more than {MAX_TAGS} tagged fields")


def _wrong_tag_size(field: str) -> None:
    raise MalformedMessage(f"tagged field {field} is not as long as it claims")
