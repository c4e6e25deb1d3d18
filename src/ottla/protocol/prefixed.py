"""A message with its version, as int16, before it: the format of messages outside of requests.

Keys and values of the coordinators' topics, transaction markers, the subscriptions of classic consumers and
the principal of a forwarded request have this format.
"""

from __future__ import annotations

import struct
from typing import Final, TypeVar

from ottla.protocol.errors import MalformedMessage
from ottla.protocol.schema import Buffer, Message

M = TypeVar("M", bound=Message)

PREFIX: Final = struct.Struct(">h")


def encode_prefixed(message: Message, version: int) -> bytes:
    return PREFIX.pack(version) + message.encode(version)


def read_prefix(data: Buffer) -> int:
    if len(data) < PREFIX.size:
        raise MalformedMessage(f"{len(data)} bytes are too few for a version")
    version: int = PREFIX.unpack_from(data)[0]
    return version


def decode_prefixed(cls: type[M], data: Buffer) -> tuple[M, int]:
    """Return the message and its version; UnsupportedVersion if this version is not known."""
    version = read_prefix(data)
    message, end = cls.decode_from(data, PREFIX.size, version)
    if end != len(data):
        raise MalformedMessage(f"{cls.__name__} v{version}: {len(data) - end} bytes left over")
    return message, version
