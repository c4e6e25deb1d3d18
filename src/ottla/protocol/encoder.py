"""Compiles a declaration into one encoding function for each version.

The function appends parts to a list: packed runs of neighbouring fixed-size fields, strings, and record
buffers as they are, so that whoever sends the parts never copies records. The rules are Kafka's: a field that
the version lacks may be lost only if it is ignorable or has its default, a tagged field is written only if it
differs from its default, and null is refused where the version has no null.
"""

from __future__ import annotations

import struct
from typing import Any, NoReturn

from ottla.protocol.errors import UnsupportedVersion
from ottla.protocol.primitives import FORMATS, MAX_STRING_BYTES, SHORT_UVARINTS, uvarint
from ottla.protocol.schema import Encoder, Field, Message, Struct


def compile_encoder(cls: type[Message], version: int) -> Encoder:
    """The function (message, append) that appends the parts of the message's body in this version."""
    compiler = _Compiler(cls, version)
    names = compiler.names
    exec(compile(compiler.source(), f"<{cls.__name__}.encode v{version}>", "exec"), names)
    encoder: Encoder = names["encode"]
    return encoder


class _Compiler:
    """Writes the source of one encoder; `pending` are fixed-size values that wait to be packed together."""

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
        raise UnsupportedVersion(
            f"{self.cls.__name__} v{self.version} has no {field}, which is set to {value!r}"
        )

    def source(self) -> str:
        self.write_struct(self.cls, "o0", 0)
        self.flush()
        return "\n".join(["def encode(o0, w):", *self.lines, "    return None"])

    def emit(self, *lines: str) -> None:
        self.flush()
        self.lines += ["    " * self.indent + line for line in lines]

    def bind(self, prefix: str, value: object) -> str:
        """A global name of the function for this object."""
        name = f"{prefix}{len(self.names)}"
        self.names[name] = value
        return name

    def fixed(self, code: str, value: str) -> None:
        self.pending.append((code, value))

    def packed(self, pending: list[tuple[str, str]], end: str = "") -> str:
        """The expression that packs these values, with `end` after the last of the codes."""
        codes = "".join(code for code, _ in pending) + end
        if codes == "x":
            return "b'\\0'"
        function = "pack_" + codes.replace("?", "t")
        self.names.setdefault(function, struct.Struct(">" + codes).pack)
        return f"{function}({', '.join(value for _, value in pending)})"

    def flush(self) -> None:
        """Write the pending fixed-size values as one part."""
        if self.pending:
            pending, self.pending = self.pending, []
            self.emit(f"{self.writer}({self.packed(pending)})")

    def write_struct(self, cls: type[Struct], source: str, depth: int) -> None:
        tagged = []
        for field in cls.FIELDS:
            value = f"{source}.{field.name}"
            if not field.in_version(self.version):
                if not field.ignorable:
                    self.emit(f"if {self.differs(field, value)}: absent({field.name!r}, {value})")
            elif field.tag is not None:
                tagged.append(field)
            else:
                self.write_field(field, value, depth)
        if self.flexible:
            self.write_tags(tagged, source, depth)

    def differs(self, field: Field, value: str) -> str:
        """The condition under which a value is not its field's default."""
        nullable = field.nullable[0] <= field.nullable[1]
        if field.default is None:
            return f"{value} is not None"
        if field.kind == "array":
            return f"{value} is None or {value}" if nullable else value
        if field.kind == "struct":
            default = self.bind("D", field.default_value())
            return f"{value} is not {default} and {value} != {default}"
        if field.kind in ("uuid", "bytes", "float64"):
            return f"{value} != {self.bind('D', field.default)}"
        return f"{value} != {field.default!r}"

    def write_field(self, field: Field, value: str, depth: int) -> None:
        if field.kind in FORMATS:
            self.fixed(FORMATS[field.kind], value)
            return
        nullable = field.nullable_in(self.version)
        if field.kind == "struct":
            self.write_nested(field, value, nullable, depth)
            return
        compact = self.flexible and field.flexible
        name = f"v{depth}"
        self.emit(f"{name} = {value}", f"if {name} is None:")
        self.indent += 1
        if not nullable:
            self.emit(f"null({field.name!r})")
        elif compact:
            self.emit(f"{self.writer}(b'\\0')")
        else:
            self.fixed("h" if field.kind == "string" else "i", "-1")
            self.flush()
        self.indent -= 1
        if nullable:
            self.emit("else:")
            self.indent += 1
        if field.kind == "array":
            self.write_array(field, name, compact, depth)
        else:
            self.write_sized(field, name, compact)
        if nullable:
            self.indent -= 1

    def size(self, name: str, code: str, compact: bool) -> None:
        if compact:
            self.emit(
                f"n = len({name}) + 1",
                f"{self.writer}(short_uvarint[n] if n < {len(SHORT_UVARINTS)} else uvarint(n))",
            )
        else:
            self.fixed(code, f"len({name})")
            self.flush()

    def write_sized(self, field: Field, name: str, compact: bool) -> None:
        if field.kind == "string":
            self.emit(
                f"{name} = {name}.encode()",
                f"if len({name}) > {MAX_STRING_BYTES}: long_string({field.name!r}, len({name}))",
            )
        self.size(name, "h" if field.kind == "string" else "i", compact)
        self.emit(f"{self.writer}({name})")

    def write_array(self, field: Field, name: str, compact: bool, depth: int) -> None:
        self.size(name, "i", compact)
        assert field.item is not None
        if field.item == "uuid":
            self.emit(f"for i{depth} in {name}: {self.writer}({self.packed([('16s', f'i{depth}')])})")
        elif field.item in FORMATS:
            self.emit(f"{self.writer}(pack(f'>{{len({name})}}{FORMATS[field.item]}', *{name}))")
        else:
            item = f"o{depth + 1}"
            self.emit(f"for {item} in {name}:")
            self.indent += 1
            if field.struct is not None:
                self.write_struct(field.struct, item, depth + 1)
            else:
                element = Field(field.item, None)
                element.name = field.name
                self.write_field(element, item, depth + 1)
            self.flush()
            self.indent -= 1

    def write_nested(self, field: Field, value: str, nullable: bool, depth: int) -> None:
        assert field.struct is not None
        item = f"o{depth + 1}"
        self.emit(f"{item} = {value}", f"if {item} is None:")
        self.indent += 1
        if nullable:
            # A tagged struct has a varint before it, others a signed byte: 0 and -1 are their nulls.
            self.fixed("b", "-1" if field.tag is None else "0")
            self.flush()
        else:
            self.emit(f"null({field.name!r})")
        self.indent -= 1
        if nullable:
            self.emit("else:")
            self.indent += 1
            self.fixed("b", "1")
        self.write_struct(field.struct, item, depth + 1)
        if nullable:
            self.flush()
            self.indent -= 1

    def write_tags(self, tagged: list[Field], source: str, depth: int) -> None:
        unknown = f"{source}.unknown_tags"
        if not tagged:
            pending, self.pending = self.pending, []
            self.emit(f"if not {unknown}: {self.writer}({self.packed(pending, 'x')})", "else:")
            self.indent += 1
            self.pending = pending
            self.emit(f"write_tags({self.writer}, {unknown})")
            self.indent -= 1
            return
        tags, parts = f"t{depth}", f"p{depth}"
        self.emit(f"{tags} = dict({unknown}) if {unknown} else {{}}")
        outer = self.writer
        for field in tagged:
            value = f"{source}.{field.name}"
            self.emit(f"if {self.differs(field, value)}:")
            self.indent += 1
            self.emit(f"{parts} = []")
            self.writer = f"{parts}.append"
            self.write_field(field, value, depth)
            self.emit(f"{tags}[{field.tag}] = join({parts})")
            self.writer = outer
            self.indent -= 1
        self.emit(f"if {tags}: write_tags({self.writer}, {tags})", f"else: {self.writer}(b'\\0')")


def _write_tags(write: Any, tags: dict[int, bytes]) -> None:
    write(uvarint(len(tags)))
    for tag in sorted(tags):
        write(uvarint(tag))
        write(uvarint(len(tags[tag])))
        write(tags[tag])


def _long_string(field: str, size: int) -> NoReturn:
    raise ValueError(f"{field} is a string of {size} bytes; {MAX_STRING_BYTES} are allowed")
