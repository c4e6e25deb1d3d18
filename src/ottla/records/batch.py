"""Read record batches: headers, checksums, records.

A batch is 61 bytes of header and then its records, compressed as one. The CRC covers everything from the
attributes on, so what the broker assigns (base offset, leader epoch) lies in front of it and can be set in
place without touching the checksum. Between the socket and the disk only headers are read; records are
decoded where a caller needs them.

`BatchHeader.parse` trusts nothing but the bytes it reads; `verify_crc` makes the rest trustworthy against
damage, and decoding checks every length against hostile senders.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records import _kernel
from ottla.records._kernel import BatchHeader, Record, decode_records
from ottla.records.checksum import crc32c
from ottla.records.compression import decompress
from ottla.records.types import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    MAX_DECOMPRESSED_BYTES,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    Codec,
    TimestampType,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer

__all__ = [
    "HEADER_SIZE",
    "LOG_OVERHEAD",
    "MAGIC",
    "NO_LEADER_EPOCH",
    "NO_PRODUCER_EPOCH",
    "NO_PRODUCER_ID",
    "NO_SEQUENCE",
    "NO_TIMESTAMP",
    "BatchHeader",
    "Codec",
    "Record",
    "TimestampType",
    "check_batches",
    "find_timestamp",
    "iter_batches",
    "iter_offsets",
    "offset_of_max_timestamp",
    "payload_of",
    "read_records",
    "set_max_timestamp",
    "set_offset_and_epoch",
    "verify_crc",
]

CRC_POSITION = 17
CRC_START = 21
"""The first byte that the checksum covers: the attributes."""
_OFFSET = struct.Struct(">q")
# The base offset, the length of what follows, and the last offset delta.
_OFFSETS = struct.Struct(">qi11xi")
_EPOCH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_EPOCH_POSITION = 12
_MAX_TIMESTAMP_POSITION = 35
_TIMESTAMP_TYPE_BIT = 0x08
_DEFINED_ATTRIBUTES = 0x7F


def iter_batches(buf: Buffer, pos: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each complete batch; an incomplete one at the end, as fetches have them, ends
    the walk.
    """
    end = memoryview(buf).nbytes
    while end - pos >= HEADER_SIZE:
        header = BatchHeader.parse(buf, pos)
        size = header.size
        if size > end - pos:
            return
        yield pos, header
        pos += size


def iter_offsets(buf: Buffer) -> Iterator[tuple[int, int, int, int]]:
    """Position, size, base offset and last offset of each complete batch, for callers that need no more."""
    end = memoryview(buf).nbytes
    pos = 0
    while end - pos >= HEADER_SIZE:
        base_offset, length, last_offset_delta = _OFFSETS.unpack_from(buf, pos)
        size = LOG_OVERHEAD + length
        if size > end - pos or size < HEADER_SIZE:
            return
        yield pos, size, base_offset, base_offset + last_offset_delta
        pos += size


def compute_crc(buf: Buffer, pos: int, size: int) -> int:
    """The CRC32C of the batch of `size` bytes at `pos`."""
    with memoryview(buf) as view:
        return crc32c(view[pos + CRC_START : pos + size])


def verify_crc(buf: Buffer, pos: int, header: BatchHeader) -> None:
    """Raise CORRUPT_MESSAGE unless the batch at `pos` is complete and has the checksum that it declares."""
    _check_complete(buf, pos, header)
    computed = compute_crc(buf, pos, header.size)
    if computed != header.crc:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"the batch at position {pos} (base offset {header.base_offset}) is corrupt:"
            f" stored crc = {header.crc}, computed crc = {computed}",
        )


def check_batches(
    buf: Buffer, least_offset: int, end_offset: int, least_epoch: int, greatest_epoch: int
) -> tuple[int, int, str | None]:
    """Check the whole batches that `buf` begins with, up to one at `end_offset` or above: checksums, rising
    offsets, leader epochs within these bounds that do not fall. Return where the sound ones end, the offset
    behind them, and what is wrong with what follows, if anything is; a batch that is cut by the end of `buf`
    is not.
    """
    return _kernel.check_batches(buf, crc32c, least_offset, end_offset, least_epoch, greatest_epoch)


def set_offset_and_epoch(buf: bytearray | memoryview, pos: int, base_offset: int, leader_epoch: int) -> None:
    """Set the base offset and the leader epoch, which the leader assigns; the checksum covers neither."""
    _OFFSET.pack_into(buf, pos, base_offset)
    _EPOCH.pack_into(buf, pos + _EPOCH_POSITION, leader_epoch)


def set_max_timestamp(
    buf: bytearray | memoryview,
    pos: int,
    header: BatchHeader,
    timestamp_type: TimestampType,
    max_timestamp: int,
) -> None:
    """Set the timestamp type and the maximum timestamp of the batch at `pos`; a change recomputes the
    checksum.
    """
    if header.timestamp_type is timestamp_type and header.max_timestamp == max_timestamp:
        return
    attributes = header.attributes & ~_TIMESTAMP_TYPE_BIT & _DEFINED_ATTRIBUTES | timestamp_type << 3
    _ATTRIBUTES.pack_into(buf, pos + CRC_START, attributes)
    _OFFSET.pack_into(buf, pos + _MAX_TIMESTAMP_POSITION, max_timestamp)
    _CRC.pack_into(buf, pos + CRC_POSITION, compute_crc(buf, pos, header.size))


def payload_of(
    buf: Buffer, pos: int, header: BatchHeader, *, max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES
) -> Buffer:
    """The encoded records of the batch at `pos`, decompressed if they are compressed."""
    _check_complete(buf, pos, header)
    payload = memoryview(buf)[pos + HEADER_SIZE : pos + header.size]
    if not header.is_compressed or not len(payload):
        return payload
    return decompress(header.codec, payload, max_decompressed_bytes)


def read_records(
    buf: Buffer, pos: int = 0, *, max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES
) -> list[Record]:
    """All records of the batch at `pos`, control records included; the checksum is the caller's to verify."""
    header = BatchHeader.parse(buf, pos)
    return decode_records(payload_of(buf, pos, header, max_decompressed_bytes=max_decompressed_bytes), header)


def find_timestamp(
    buf: Buffer,
    pos: int,
    header: BatchHeader,
    timestamp: int,
    *,
    start_offset: int = 0,
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record of the batch at `pos`, at or after `start_offset`, that is not
    older than `timestamp`.
    """
    payload = payload_of(buf, pos, header, max_decompressed_bytes=max_decompressed_bytes)
    return _kernel.find_timestamp(payload, header, timestamp, start_offset)


def find_greatest_timestamp(
    buf: Buffer,
    pos: int,
    header: BatchHeader,
    *,
    start_offset: int,
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record that has the greatest timestamp of the records of the batch at
    `pos` from `start_offset` on; None if none has one.
    """
    payload = payload_of(buf, pos, header, max_decompressed_bytes=max_decompressed_bytes)
    found = _kernel.find_timestamp(payload, header, 0, start_offset)
    least, most = 0, header.max_timestamp
    while found is not None and found[1] < most:
        # What is found halves what is left: a walk that finds nothing lowers the end, others raise the begin.
        least = found[1] + 1
        middle = (least + most + 1) // 2
        higher = _kernel.find_timestamp(payload, header, middle, start_offset)
        if higher is not None:
            found = higher
        elif middle == least:
            break
        else:
            most = middle - 1
    return found


def offset_of_max_timestamp(buf: Buffer, pos: int, header: BatchHeader) -> int | None:
    """The offset of the first record of the batch at `pos` that has its largest timestamp."""
    found = find_timestamp(buf, pos, header, header.max_timestamp, start_offset=header.base_offset)
    return None if found is None else found[0]


def _check_complete(buf: Buffer, pos: int, header: BatchHeader) -> None:
    available = memoryview(buf).nbytes - pos
    if header.size > available:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"the batch at position {pos} declares {header.size} bytes, but only {available} are there",
        )
