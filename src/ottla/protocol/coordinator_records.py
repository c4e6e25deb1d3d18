"""The format of keys and values in the topics of coordinators.

A key is its type as int16 and the body; all keys are of version 0, so that equal keys have equal bytes, on
which compaction relies. A value is its version as int16 and the body, and belongs to the type of its key. A
null value, a tombstone, removes the key.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from ottla.protocol.errors import MalformedMessage, UnsupportedVersion
from ottla.protocol.prefixed import PREFIX, decode_prefixed, encode_prefixed, read_prefix
from ottla.protocol.schema import Buffer, Message

M = TypeVar("M", bound=Message)

KEY_VERSION = 0


def encode_key(key: Message) -> bytes:
    return PREFIX.pack(key.API_KEY) + key.encode(KEY_VERSION)


def encode_value(value: Message, version: int) -> bytes:
    return encode_prefixed(value, version)


def decode_value(cls: type[M], value: Buffer) -> M:
    return decode_prefixed(cls, value)[0]


class CoordinatorRecords:
    """The keys and values that one topic may hold, by the type in the key."""

    __slots__ = ("_classes",)

    def __init__(self, classes: Iterable[tuple[type[Message], type[Message]]]) -> None:
        self._classes = {key_class.API_KEY: (key_class, value_class) for key_class, value_class in classes}

    def decode(self, key: Buffer, value: Buffer | None) -> tuple[Message, Message | None]:
        """Return key and value; UnsupportedVersion if the type or the value's version is not known."""
        decoded_key = self.decode_key(key)
        if value is None:
            return decoded_key, None
        return decoded_key, decode_value(self._classes[decoded_key.API_KEY][1], value)

    def decode_key(self, key: Buffer) -> Message:
        record_type = read_prefix(key)
        classes = self._classes.get(record_type)
        if classes is None:
            raise UnsupportedVersion(f"record type {record_type} is not known")
        decoded, end = classes[0].decode_from(key, PREFIX.size, KEY_VERSION)
        if end != len(key):
            raise MalformedMessage(f"{classes[0].__name__}: {len(key) - end} bytes left over")
        return decoded
