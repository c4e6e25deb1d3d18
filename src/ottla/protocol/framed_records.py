"""The frame of a typed record: frame version, record type, version, body.

The three numbers are unsigned varints, and the frame version is always 1. The metadata log and the topic of
tiered storage use this frame for their values.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.protocol.errors import MalformedMessage, UnsupportedVersion
from ottla.protocol.primitives import read_uvarint, uvarint
from ottla.protocol.schema import Buffer, Message

FRAME_VERSION = 1


def encode_framed(record: Message, version: int) -> bytes:
    body = record.encode(version)
    return uvarint(FRAME_VERSION) + uvarint(record.API_KEY) + uvarint(version) + body


class RecordTypes:
    """The records of a topic, by their type."""

    __slots__ = ("_classes",)

    def __init__(self, classes: Iterable[type[Message]]) -> None:
        self._classes = {cls.API_KEY: cls for cls in classes}

    def decode(self, value: Buffer) -> tuple[Message, int]:
        """Return the record in this value, and its version; UnsupportedVersion if either is not known."""
        try:
            frame_version, position = read_uvarint(value, 0)
            record_type, position = read_uvarint(value, position)
            version, position = read_uvarint(value, position)
        except IndexError:
            raise MalformedMessage(
                f"a record of {len(value)} bytes ends in the middle of its frame"
            ) from None
        if frame_version != FRAME_VERSION:
            raise MalformedMessage(f"frame version {frame_version} of a record is not {FRAME_VERSION}")
        cls = self._classes.get(record_type)
        if cls is None:
            raise UnsupportedVersion(f"record type {record_type} is not known")
        record, end = cls.decode_from(value, position, version)
        if end != len(value):
            raise MalformedMessage(f"{cls.__name__} v{version}: {len(value) - end} bytes left over")
        return record, version
