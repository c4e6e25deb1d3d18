"""Message sets from before Kafka 0.11 (magic 0 and 1), and the record batches that say the same.

A message is an offset, a size, a checksum, attributes, from magic 1 on a timestamp, a key and a value. A
message with a codec wraps others: its value is a compressed message set, and its offset is that of the last
of them. The offsets inside are absolute in magic 0, and relative in magic 1. Nothing writes these formats any
more; logs of old clusters have them.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, NamedTuple

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records._kernel import Encoder
from ottla.records.builder import seal
from ottla.records.compression import decompress
from ottla.records.types import LOG_OVERHEAD, NO_TIMESTAMP, Codec, TimestampType

MAGIC_POSITION: Final = 16
# The offset, the size, the checksum, the magic number and the attributes of a message.
_START: Final = struct.Struct(">qiIbb")
_INT64: Final = struct.Struct(">q")
_INT32: Final = struct.Struct(">i")
_CRC_END: Final = 16
_CODEC_MASK: Final = 0x07
_APPEND_TIME_BIT: Final = 0x08
_MIN_SIZE: Final = 4 + 1 + 1 + 4 + 4
_LZ4_HEADER_BYTES: Final = 7
_MAX_OFFSET_DELTA: Final = (1 << 31) - 1


class LegacyMessage(NamedTuple):
    offset: int
    magic: int
    codec: Codec
    timestamp_type: TimestampType
    timestamp: int
    key: memoryview | None
    value: memoryview | None


def read_message(buf: memoryview, pos: int = 0) -> tuple[LegacyMessage, int]:
    """Read the message at `pos`, and where the next one begins; CORRUPT_MESSAGE if it is damaged."""
    if len(buf) - pos < _START.size:
        raise _corrupt(f"the message at position {pos} is not complete")
    offset, size, crc, magic, attributes = _START.unpack_from(buf, pos)
    end = pos + LOG_OVERHEAD + size
    if magic not in (0, 1) or size < _MIN_SIZE or end > len(buf):
        raise _corrupt(f"there is no message of magic 0 or 1 at position {pos}, or it is not complete")
    if zlib.crc32(buf[pos + _CRC_END : end]) != crc:
        raise _corrupt(f"the message at position {pos} has another checksum than it says")
    at = pos + _START.size
    timestamp, kind = NO_TIMESTAMP, TimestampType.CREATE_TIME
    if magic == 1:
        (timestamp,) = _INT64.unpack_from(buf, at)
        at += _INT64.size
        if attributes & _APPEND_TIME_BIT:
            kind = TimestampType.LOG_APPEND_TIME
    key, at = _read_bytes(buf, at, end)
    value, at = _read_bytes(buf, at, end)
    try:
        codec = Codec(attributes & _CODEC_MASK)
    except ValueError:
        raise _corrupt(f"the message at position {pos} has an unknown codec") from None
    return LegacyMessage(offset, magic, codec, kind, timestamp, key, value), end


def _read_bytes(buf: memoryview, at: int, end: int) -> tuple[memoryview | None, int]:
    if end - at < _INT32.size:
        raise _corrupt("a message ends before its key or value")
    (size,) = _INT32.unpack_from(buf, at)
    at += _INT32.size
    if size < 0:
        return None, at
    if size > end - at:
        raise _corrupt("a key or value is longer than its message")
    return buf[at : at + size], at + size


def unwrap(wrapper: LegacyMessage) -> list[LegacyMessage]:
    """The messages in a compressed one, at their own offsets; a message without a codec alone."""
    if wrapper.codec is Codec.NONE:
        return [wrapper]
    if wrapper.value is None:
        raise _corrupt(f"the compressed message at offset {wrapper.offset} has no value")
    data = wrapper.value
    if wrapper.codec is Codec.LZ4 and wrapper.magic == 0:
        data = _with_header_checksum(data)
    inner = memoryview(decompress(wrapper.codec, data)).cast("B")
    messages, pos = [], 0
    while pos < len(inner):
        message, pos = read_message(inner, pos)
        if message.codec is not Codec.NONE:
            raise _corrupt(f"the compressed message at offset {wrapper.offset} has another one inside")
        messages.append(message)
    if not messages:
        raise _corrupt(f"the compressed message at offset {wrapper.offset} has none inside")
    base = wrapper.offset - messages[-1].offset if wrapper.magic == 1 else 0
    append_time = wrapper.timestamp_type is TimestampType.LOG_APPEND_TIME
    return [
        message._replace(
            offset=base + message.offset,
            timestamp_type=wrapper.timestamp_type,
            timestamp=wrapper.timestamp if append_time else message.timestamp,
        )
        for message in messages
    ]


def convert(messages: list[LegacyMessage], codec: Codec) -> bytes:
    """Build the record batch of messages that have one type of timestamps, and one timestamp if it is the
    time of their append.
    """
    first = messages[0]
    encoder = Encoder()
    for message in messages:
        encoder.append(
            message.timestamp, message.key, message.value, offset_delta=message.offset - first.offset
        )
    return bytes(
        seal(
            encoder,
            base_offset=first.offset,
            codec=codec,
            timestamp_type=first.timestamp_type,
            append_time_ms=first.timestamp,
        )
    )


def can_follow(gathered: list[LegacyMessage], message: LegacyMessage) -> bool:
    """Whether a message without a codec may be in one batch with those before it."""
    first, last = gathered[0], gathered[-1]
    if message.codec is not Codec.NONE or message.timestamp_type is not first.timestamp_type:
        return False
    if not last.offset < message.offset <= first.offset + _MAX_OFFSET_DELTA:
        return False
    append_time = message.timestamp_type is TimestampType.LOG_APPEND_TIME
    return not append_time or message.timestamp == first.timestamp


def _with_header_checksum(data: memoryview) -> memoryview:
    """Correct the checksum of an lz4 frame's header, which clients took over the wrong bytes at that time."""
    if len(data) < _LZ4_HEADER_BYTES or data[4] & 0x08:
        return data
    fixed = bytearray(data)
    fixed[6] = _xxh32(bytes(data[4:6])) >> 8 & 0xFF
    return memoryview(fixed)


def _xxh32(data: bytes) -> int:
    """XXH32 of fewer than four bytes."""
    prime1, prime2, prime3, prime5, mask = 2654435761, 2246822519, 3266489917, 374761393, 0xFFFFFFFF
    value = prime5 + len(data) & mask
    for byte in data:
        value = value + byte * prime5 & mask
        value = (value << 11 | value >> 21) * prime1 & mask
    value = (value ^ value >> 15) * prime2 & mask
    value = (value ^ value >> 13) * prime3 & mask
    return value ^ value >> 16


def _corrupt(message: str) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, message)
