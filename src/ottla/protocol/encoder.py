"""Compiles a declaration into one encoding function for each version.

The function appends parts to a list: packed runs of neighbouring fixed-size fields, strings, and record
buffers as they are, so that sending the parts never copies records. The rules are Kafka's: a field that the
version lacks may be lost only if it is ignorable or has its default, a tagged field is written only if it
differs from its default, and null is refused where the version has no null.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from ottla.protocol.errors import UnsupportedVersion
from ottla.protocol.primitives import (
    FORMATS,
    MAX_STRING_BYTES,
    SHORT_ARRAY,
    SHORT_UVARINTS,
    short_array_packers,
    uvarint,
)
from ottla.protocol.schema import Encoder, Field, Message, Struct, default_of


def compile_encoder(cls: type[Message], version: int) -> Encoder:
    """Return the function (message, append) that appends the parts of the message's body in this version."""
    compiler = _Compiler(cls, version)
    names = compiler.names
    exec(compile(compiler.source(), f"<{cls.__name__}.encode v{version}>", "exec"), names)
    encoder: Encoder = names["encode"]
    return encoder


class _Compiler:
    """Writes the source of one encoder; `pending` are fixed-size values that are to be packed together."""

    def __init__(self, cls: type[Message], version: int) -> None:
        self.cls = cls
        self.version = version
        self.flexible = cls.is_flexible(version)
        self.lines: list[str] = []
        self.indent = 1
        self.writer = "w"
        self.pending: list[tuple[str, str]] = []
        self.names: dict[str, Any] = {
            "pack": struct.pack,
            "uvarint": uvarint,
            "short_uvarint": SHORT_UVARINTS,
            "long_string": _long_string,
            "null": self.null,
            "absent": self.absent,
            "write_tags": _write_tags,
            "join": b"".join,
        }

    def null(self, field: str) -> NoReturn:
        raise UnsupportedVersion(f"{self.cls.__name__} v{self.version}: {field} must not be null")

    def absent(self, field: str, value: object) -> NoReturn:
        raise UnsupportedVersion(f"{self.cls.__name__} v{self.version} has no {field}, which is {value!r}")

    def source(self) -> str:
        self.write_struct(self.cls, "o0", 0)
        self.flush()
        return "\n".join(["def encode(o0, w):", *self.lines, "    return None"])

    def line(self, *lines: str) -> None:
        """Write lines that append no part, so that pending values may stay pending."""
        self.lines += ["    " * self.indent + line for line in lines]

    def part(self, expression: str) -> None:
        """Append a part, after the pending values."""
        self.flush()
        self.line(f"{self.writer}({expression})")

    def bind(self, prefix: str, value: object) -> str:
        """Return a global name of the function for this object."""
        name = f"{prefix}{len(self.names)}"
        self.names[name] = value
        return name

    def fixed(self, code: str, value: str) -> None:
        self.pending.append((code, value))

    def flush(self) -> None:
        """Write the pending fixed-size values as one part."""
        pending, self.pending = self.pending, []
        if pending:
            codes = "".join(code for code, _ in pending)
            values = ", ".join(value for _, value in pending if value)
            function = "pack_" + codes.replace("?", "t")
            self.names.setdefault(function, struct.Struct(">" + codes).pack)
            expression = f"{function}({values})" if values else repr(bytes(len(codes)))
            self.line(f"{self.writer}({expression})")

    def zero(self) -> None:
        """Write a zero byte."""
        self.fixed("x", "")

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Write lines under a condition or in a loop; values that are pending at the end of the block are
        written in it.
        """
        self.line(head)
        self.indent += 1
        yield
        self.flush()
        self.indent -= 1

    def write_struct(self, cls: type[Struct], source: str, depth: int) -> None:
        tagged = []
        for field in cls.FIELDS:
            value = f"{source}.{field.name}"
            if not field.in_version(self.version):
                if not field.ignorable:
                    self.line(f"if {self.differs(field, value)}: absent({field.name!r}, {value})")
            elif field.tag is not None:
                tagged.append(field)
            else:
                self.write_field(field, value, depth)
        if self.flexible:
            self.write_tags(tagged, source, depth)

    def differs(self, field: Field, value: str) -> str:
        """Return the condition under which a value is not its field's default."""
        nullable = field.nullable[0] <= field.nullable[1]
        if field.default is None:
            return f"{value} is not None"
        if field.kind == "array":
            return f"{value} is None or {value}" if nullable else value
        if field.kind == "struct":
            default = self.bind("D", default_of(field))
            return f"{value} is not {default} and {value} != {default}"
        if field.kind in ("uuid", "bytes", "float64"):
            return f"{value} != {self.bind('D', field.default)}"
        return f"{value} != {field.default!r}"

    def write_field(self, field: Field, value: str, depth: int) -> None:
        if field.kind in FORMATS:
            self.fixed(FORMATS[field.kind], value)
        elif field.kind == "struct":
            assert field.struct is not None
            item = f"o{depth + 1}"
            self.line(f"{item} = {value}")
            # A tagged struct has a varint before it, others a signed byte: 0 and -1 are their nulls.
            with self.unless_null(field, item, ("b", "-1") if field.tag is None else ("x", "")) as nullable:
                if nullable:
                    self.fixed("b", "1")
                self.write_struct(field.struct, item, depth + 1)
        else:
            compact = self.flexible and field.flexible
            name = f"v{depth}"
            self.line(f"{name} = {value}")
            code = "h" if field.kind == "string" else "i"
            with self.unless_null(field, name, ("x", "") if compact else (code, "-1")):
                if field.kind == "array":
                    self.write_array(field, name, compact, depth)
                else:
                    self.write_sized(field, name, code, compact)

    @contextmanager
    def unless_null(self, field: Field, name: str, null: tuple[str, str]) -> Iterator[bool]:
        """Write null as `null`, or an error if the version has none; in the block, any other value."""
        if not field.nullable_in(self.version):
            self.line(f"if {name} is None: null({field.name!r})")
            yield False
            return
        waiting = list(self.pending)
        with self.block(f"if {name} is None:"):
            self.fixed(*null)
        self.pending = waiting
        with self.block("else:"):
            yield True

    def write_size(self, name: str, code: str, compact: bool) -> None:
        if not compact:
            self.fixed(code, f"len({name})")
            return
        self.line(f"n = len({name}) + 1")
        if not self.pending:
            self.part(f"short_uvarint[n] if n < {len(SHORT_UVARINTS)} else uvarint(n)")
            return
        waiting = list(self.pending)
        with self.block("if n < 128:"):
            self.fixed("B", "n")
        self.pending = waiting
        with self.block("else:"):
            self.part("uvarint(n)")

    def write_sized(self, field: Field, name: str, code: str, compact: bool) -> None:
        if field.kind == "string":
            self.line(
                f"{name} = {name}.encode()",
                f"if len({name}) > {MAX_STRING_BYTES}: long_string({field.name!r}, len({name}))",
            )
        self.write_size(name, code, compact)
        self.part(name)

    def write_array(self, field: Field, name: str, compact: bool, depth: int) -> None:
        assert field.item is not None
        if field.item in FORMATS and field.item != "uuid":
            code = FORMATS[field.item]
            table = f"pack_{'B' if compact else 'i'}_{code}"
            self.names.setdefault(table, short_array_packers(code, "B" if compact else "i"))
            self.line(f"n = len({name})")
            shift = " + 1" if compact else ""
            size = "uvarint(n + 1)" if compact else "pack('>i', n)"
            short = f"{table}[n](n{shift}, *{name})"
            self.part(f"{short} if n < {SHORT_ARRAY} else {size} + pack(f'>{{n}}{code}', *{name})")
            return
        self.write_size(name, "i", compact)
        self.flush()
        item = f"o{depth + 1}"
        with self.block(f"for {item} in {name}:"):
            if field.struct is not None:
                self.write_struct(field.struct, item, depth + 1)
            else:
                element = Field(field.item, None)
                element.name = field.name
                self.write_field(element, item, depth + 1)

    def write_tags(self, tagged: list[Field], source: str, depth: int) -> None:
        tags, parts = f"t{depth}", f"p{depth}"
        self.line(f"{tags} = {source}.unknown_tags")
        waiting, self.pending = self.pending, []
        outer = self.writer
        for field in tagged:
            value = f"{source}.{field.name}"
            with self.block(f"if {self.differs(field, value)}:"):
                self.line(f"{parts} = []")
                self.writer = f"{parts}.append"
                self.write_field(field, value, depth)
                self.flush()
                self.line(f"{tags} = {{**({tags} or {{}}), {field.tag}: join({parts})}}")
                self.writer = outer
        self.pending = list(waiting)
        with self.block(f"if not {tags}:"):
            self.zero()
        self.pending = waiting
        with self.block("else:"):
            self.flush()
            self.line(f"write_tags({self.writer}, {tags})")


def _write_tags(write: Any, tags: dict[int, bytes]) -> None:
    write(uvarint(len(tags)))
    for tag in sorted(tags):
        write(uvarint(tag))
        write(uvarint(len(tags[tag])))
        write(tags[tag])


def _long_string(field: str, size: int) -> NoReturn:
    raise ValueError(f"{field} is a string of {size} bytes; {MAX_STRING_BYTES} are allowed")
