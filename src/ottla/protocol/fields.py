"""Field declarations, with which the classes of `ottla.protocol.schema` are written.

A field has the versions in which it exists, those in which it may be null, a tag if it is a tagged field, and
a default. The functions of this module return Any, so that the annotation beside a declaration is the type
that users see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from ottla.protocol.schema import Struct

Versions: TypeAlias = tuple[int, int]

MAX_VERSION: Final = 32767
NO_VERSIONS: Final[Versions] = (0, -1)
ZERO_UUID: Final = bytes(16)

Kind: TypeAlias = Literal[
    "bool",
    "int8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "float64",
    "uuid",
    "string",
    "bytes",
    "records",
    "struct",
    "array",
]


def parse_versions(text: str) -> Versions:
    """Parse an inclusive range written as "3", "3-5", "3+" or "none"."""
    if text == "none":
        return NO_VERSIONS
    if text.endswith("+"):
        return int(text[:-1]), MAX_VERSION
    first, _, last = text.partition("-")
    return int(first), int(last or first)


class Field:
    """The declaration of one field; `name` is set when its class is made."""

    __slots__ = (
        "default",
        "flexible",
        "ignorable",
        "item",
        "kind",
        "map_key",
        "name",
        "nullable",
        "struct",
        "tag",
        "versions",
        "zero_copy",
    )

    def __init__(
        self,
        kind: Kind,
        default: object,
        *,
        versions: str = "0+",
        nullable: bool | str = False,
        tag: int | None = None,
        ignorable: bool = False,
        map_key: bool = False,
        flexible: bool = True,
        item: Kind | None = None,
        struct: type[Struct] | None = None,
        zero_copy: bool = False,
    ) -> None:
        self.name = ""
        self.kind = kind
        self.default = default
        self.versions = parse_versions(versions)
        # The versions in which null may be sent; `True` means wherever the field exists.
        if isinstance(nullable, str):
            self.nullable = parse_versions(nullable)
        else:
            self.nullable = self.versions if nullable else NO_VERSIONS
        # A field with a tag is tagged in every version that has it.
        self.tag = tag
        # Whether a value other than the default may be dropped in a version that lacks the field.
        self.ignorable = ignorable
        self.map_key = map_key
        # False only for the client id of the request header, which stays an old string in flexible versions.
        self.flexible = flexible
        self.item: Kind | None = item
        self.struct = struct
        self.zero_copy = zero_copy

    def in_version(self, version: int) -> bool:
        return self.versions[0] <= version <= self.versions[1]

    def nullable_in(self, version: int) -> bool:
        return self.nullable[0] <= version <= self.nullable[1]


def boolean(*, default: bool = False, **options: Any) -> Any:
    return Field("bool", default, **options)


def int8(*, default: int = 0, **options: Any) -> Any:
    return Field("int8", default, **options)


def int16(*, default: int = 0, **options: Any) -> Any:
    return Field("int16", default, **options)


def uint16(*, default: int = 0, **options: Any) -> Any:
    return Field("uint16", default, **options)


def int32(*, default: int = 0, **options: Any) -> Any:
    return Field("int32", default, **options)


def uint32(*, default: int = 0, **options: Any) -> Any:
    return Field("uint32", default, **options)


def int64(*, default: int = 0, **options: Any) -> Any:
    return Field("int64", default, **options)


def float64(*, default: float = 0.0, **options: Any) -> Any:
    return Field("float64", default, **options)


def uuid(**options: Any) -> Any:
    return Field("uuid", ZERO_UUID, **options)


def string(*, default: str | None = "", **options: Any) -> Any:
    return Field("string", default, **options)


def binary(*, default: bytes | None = b"", **options: Any) -> Any:
    """Bytes; with `zero_copy` a decoded value is a view of its message."""
    return Field("bytes", default, **options)


def records(*, nullable: bool | str = False, **options: Any) -> Any:
    """Record batches: always a view of their message."""
    return Field("records", None if nullable else b"", nullable=nullable, zero_copy=True, **options)


def nested(cls: type[Struct], *, default: Literal["new"] | None = "new", **options: Any) -> Any:
    return Field("struct", default, struct=cls, **options)


def array(item: type[Struct] | Kind, *, default: Literal["empty"] | None = "empty", **options: Any) -> Any:
    """A list of structs, or of plain values given by their kind."""
    if isinstance(item, str):
        return Field("array", default, item=item, **options)
    return Field("array", default, item="struct", struct=item, **options)
