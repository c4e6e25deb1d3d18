"""The primitive types of the wire and their varints.

Fixed-size types are known by their `struct` code, so that neighbours can be packed by one call. Varints are
the unsigned ones of flexible versions (lengths and counts plus one, tags) and the zigzag ones of records.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from ottla.protocol.errors import MalformedMessage

FORMATS: Final = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}

MAX_STRING_BYTES: Final = 32767
MAX_INT32: Final = 2**31 - 1

# The varints of almost all lengths, counts and tags.
SHORT_UVARINTS: Final = [bytes([n]) for n in range(128)] + [
    bytes([n & 127 | 128, n >> 7]) for n in range(128, 4096)
]


# Arrays of fewer plain values than this are packed and unpacked by a prepared Struct.
SHORT_ARRAY: Final = 17


@cache
def short_array_packers(code: str, size_code: str) -> list[Callable[..., bytes]]:
    """Return, for each short length, the function that packs the size and the values."""
    return [struct.Struct(f">{size_code}{n}{code}").pack for n in range(SHORT_ARRAY)]


@cache
def short_array_unpackers(code: str) -> list[Callable[..., tuple[Any, ...]]]:
    """Return, for each short length, the function that unpacks the values."""
    return [struct.Struct(f">{n}{code}").unpack_from for n in range(SHORT_ARRAY)]


def fixed_size(kind: str) -> int:
    return struct.calcsize(">" + FORMATS[kind])


def read_uvarint_rest(data: bytes | bytearray | memoryview, position: int, first: int) -> tuple[int, int]:
    """Return the varint whose first byte was read and has its high bit set, and the position after it."""
    value = first & 127
    shift = 7
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
        if shift > 28:
            raise MalformedMessage("a varint is longer than 5 bytes")
    if value > MAX_INT32:
        raise MalformedMessage(f"a varint is {value}, beyond 32 bits")
    return value, position


def read_uvarint(data: bytes | bytearray | memoryview, position: int) -> tuple[int, int]:
    """Return the unsigned varint at this position, and the position after it; IndexError if the data ends
    early.
    """
    first = data[position]
    if first < 128:
        return first, position + 1
    return read_uvarint_rest(data, position + 1, first)


def uvarint(value: int) -> bytes:
    """Return the unsigned varint of a number of at most 31 bits."""
    if 0 <= value < len(SHORT_UVARINTS):
        return SHORT_UVARINTS[value]
    if not 0 <= value <= MAX_INT32:
        raise ValueError(f"{value} is not a length, count or tag of at most 31 bits")
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
