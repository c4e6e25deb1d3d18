"""How a record says which schema it has, as Confluent's serializers do.

Before the value stands a zero byte and the id of the schema in four bytes. The newer form leaves the value as
it is, and has a header with a byte 1 and the schema's GUID. Protobuf adds the place of the message in its
file, in either.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple
from uuid import UUID

from ottla.schemas.registry import message_indexes

_HEADERS: Final = {False: "__value_schema_id", True: "__key_schema_id"}
_ID, _GUID = 0, 1


class SchemaFrame(NamedTuple):
    """What a record says: the id or GUID of its schema, the place of its message, and its data."""

    schema: int | str
    indexes: tuple[int, ...]
    data: bytes


def header_name(*, is_key: bool) -> str:
    return _HEADERS[is_key]


def read_frame(
    data: bytes, headers: Iterable[tuple[str, bytes | None]], *, is_key: bool, has_indexes: bool
) -> SchemaFrame:
    """Find the schema of a key or value. ValueError if it names none."""
    wanted = _HEADERS[is_key]
    named = next((value for name, value in headers if name == wanted), None)
    return frame_of(data, named, has_indexes=has_indexes)


def frame_of(data: bytes, header: bytes | None, *, has_indexes: bool) -> SchemaFrame:
    """The same, with the value of the header, if there is one."""
    if header is not None:
        schema, at = schema_at(header, "its header does")
        indexes = message_indexes(header, at)[0] if has_indexes else ()
        return SchemaFrame(schema, indexes, data)
    schema, at = schema_at(data, "it does")
    indexes = ()
    if has_indexes:
        indexes, at = message_indexes(data, at)
    return SchemaFrame(schema, indexes, data[at:])


def schema_at(data: bytes, what: str) -> tuple[int | str, int]:
    """The id or GUID that data begin with, and where it ends. ValueError if there is none."""
    if len(data) >= 5 and data[0] == _ID:
        return int.from_bytes(data[1:5], "big"), 5
    if len(data) >= 17 and data[0] == _GUID:
        return str(UUID(bytes=bytes(data[1:17]))), 17
    raise ValueError(f"{what} not begin with the id of a schema")


def id_prefix(schema_id: int, indexes: tuple[int, ...] | None) -> bytes:
    r"""
    >>> id_prefix(7, None)
    b'\x00\x00\x00\x00\x07'
    >>> id_prefix(7, (1, 0))[5:]
    b'\x04\x02\x00'
    """
    return bytes([_ID]) + schema_id.to_bytes(4, "big") + _encoded(indexes)


def guid_header(guid: str, indexes: tuple[int, ...] | None) -> bytes:
    return bytes([_GUID]) + UUID(guid).bytes + _encoded(indexes)


def _encoded(indexes: tuple[int, ...] | None) -> bytes:
    if indexes is None:
        return b""
    if indexes == (0,):
        return b"\x00"
    return b"".join(_zigzag(each) for each in (len(indexes), *indexes))


def _zigzag(value: int) -> bytes:
    left, out = value << 1, bytearray()
    while left > 0x7F:
        out.append((left & 0x7F) | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)
