"""How a record says which schema it has, as Confluent's serializers do.

Before the value stands a zero byte and the id of the schema in four bytes. The newer form leaves the value as
it is, and has a header with a byte 1 and the schema's GUID. Protobuf adds the place of the message in its
file, in either.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from ottla.schemas.registry import message_indexes

_HEADERS: Final = {False: "__value_schema_id", True: "__key_schema_id"}
_ID, _GUID = 0, 1


@dataclass(frozen=True, slots=True)
class SchemaFrame:
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
    if named is not None:
        schema, at = _schema(named, f"the header {wanted}")
        indexes = message_indexes(named, at)[0] if has_indexes else ()
        return SchemaFrame(schema, indexes, data)
    schema, at = _schema(data, "the data")
    indexes = ()
    if has_indexes:
        indexes, at = message_indexes(data, at)
    return SchemaFrame(schema, indexes, data[at:])


def _schema(data: bytes, where: str) -> tuple[int | str, int]:
    if len(data) >= 5 and data[0] == _ID:
        return int.from_bytes(data[1:5], "big"), 5
    if len(data) >= 17 and data[0] == _GUID:
        return str(UUID(bytes=bytes(data[1:17]))), 17
    raise ValueError(f"{where} do not begin with the id of a schema")


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
