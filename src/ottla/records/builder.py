"""Building record batches.

Records are encoded behind 61 bytes that are kept free for the header. Without compression the buffer in
which they were encoded is the batch; with it, header and compressed records are joined. Either way the
header is packed last, when everything that it says is known, and the checksum is taken over what is
written.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from crc32c import crc32c

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records._kernel import Encoder, Record
from ottla.records.batch import CRC_POSITION, CRC_START
from ottla.records.compression import compress
from ottla.records.types import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    Codec,
    TimestampType,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import TypeAlias

    from typing_extensions import Buffer

    Headers: TypeAlias = Iterable[tuple[str | bytes, Buffer | None]] | Mapping[str, Buffer | None]
    RecordTuple: TypeAlias = (
        tuple[int, Buffer | None, Buffer | None] | tuple[int, Buffer | None, Buffer | None, Headers]
    )

_HEADER = struct.Struct(">qiibIhiqqqhii")
_CRC = struct.Struct(">I")
_MAX_LENGTH = 2**31 - 1


def attributes_of(
    codec: Codec,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    *,
    transactional: bool = False,
    control: bool = False,
    delete_horizon: bool = False,
) -> int:
    """The attribute bits of a batch."""
    return (
        int(codec)
        | timestamp_type << 3
        | bool(transactional) << 4
        | bool(control) << 5
        | bool(delete_horizon) << 6
    )


def write_header(
    batch: bytearray | memoryview,
    *,
    base_offset: int,
    leader_epoch: int,
    attributes: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    count: int,
) -> None:
    """Fill the first 61 bytes of `batch`, whose records are in place behind them, checksum included."""
    length = len(batch) - LOG_OVERHEAD
    if length > _MAX_LENGTH:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE, f"a batch of {len(batch)} bytes is over the format's 2 GiB"
        )
    _HEADER.pack_into(
        batch,
        0,
        base_offset,
        length,
        leader_epoch,
        MAGIC,
        0,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    _CRC.pack_into(batch, CRC_POSITION, crc32c(memoryview(batch)[CRC_START:]))


def build_batch(
    records: Iterable[Record | RecordTuple],
    *,
    base_offset: int = 0,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    append_time_ms: int = NO_TIMESTAMP,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    leader_epoch: int = NO_LEADER_EPOCH,
    delete_horizon_ms: int | None = None,
    last_offset: int | None = None,
) -> bytes:
    """One batch of `records`: `Record` objects at their own offsets, or (timestamp, key, value[, headers])
    tuples.

    With LOG_APPEND_TIME, `append_time_ms` is the timestamp of all records. `last_offset` keeps the end of a
    batch whose last records are gone.
    """
    encoder = Encoder(delete_horizon_ms)
    encoder.extend(records, base_offset)
    return seal(
        encoder,
        base_offset=base_offset,
        codec=codec,
        level=level,
        timestamp_type=timestamp_type,
        append_time_ms=append_time_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
        control=control,
        leader_epoch=leader_epoch,
        delete_horizon_ms=delete_horizon_ms,
        last_offset=last_offset,
    )


def seal(
    encoder: Encoder,
    *,
    base_offset: int = 0,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    append_time_ms: int = NO_TIMESTAMP,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    leader_epoch: int = NO_LEADER_EPOCH,
    delete_horizon_ms: int | None = None,
    last_offset: int | None = None,
) -> bytes:
    """The batch of all records that `encoder` was given."""
    encoded = memoryview(encoder.buffer)
    if codec is Codec.NONE:
        batch = bytearray(encoded)
    else:
        payload = compress(codec, encoded[HEADER_SIZE:], level)
        batch = bytearray(HEADER_SIZE)
        batch += payload
    append_time = timestamp_type is TimestampType.LOG_APPEND_TIME
    write_header(
        batch,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=attributes_of(
            codec,
            timestamp_type,
            transactional=transactional,
            control=control,
            delete_horizon=delete_horizon_ms is not None,
        ),
        last_offset_delta=encoder.last_offset_delta if last_offset is None else last_offset - base_offset,
        base_timestamp=encoder.base_timestamp,
        max_timestamp=append_time_ms if append_time else encoder.max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        count=encoder.count,
    )
    return bytes(batch)
