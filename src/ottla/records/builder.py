"""Build record batches, at once or record by record.

Records are encoded first, one behind the other. The header is packed last, when everything that it says is
known, and the checksum is taken over what is written.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records._kernel import Encoder, Record
from ottla.records.batch import CRC_POSITION, CRC_START
from ottla.records.checksum import crc32c
from ottla.records.compression import check_level, compress
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
    from collections.abc import Callable, Iterable, Mapping
    from typing import TypeAlias

    from typing_extensions import Buffer

    Headers: TypeAlias = Iterable[tuple[str | bytes, Buffer | None]] | Mapping[str, Buffer | None]
    RecordTuple: TypeAlias = (
        tuple[int, Buffer | None, Buffer | None] | tuple[int, Buffer | None, Buffer | None, Headers]
    )

MAX_RECORD_OVERHEAD = 5 + 1 + 10 + 5 + 5 + 5 + 5
"""Length, attributes, both deltas, both lengths and the header count of a record at their longest."""
RATIO_SAFETY = 1.05
"""How much larger than estimated a compressed batch is taken to be, as in Kafka's producer."""

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


def join_batch(
    payload: Buffer,
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
) -> bytearray:
    """A batch of these records, which are encoded and compressed as `attributes` says."""
    batch = bytearray(HEADER_SIZE)
    batch += payload
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
    with memoryview(batch) as view:
        _CRC.pack_into(batch, CRC_POSITION, crc32c(view[CRC_START:]))
    return batch


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
) -> bytearray:
    """The batch of all records that `encoder` was given; see `build_batch`."""
    append_time = timestamp_type is TimestampType.LOG_APPEND_TIME
    return join_batch(
        compress(codec, encoder.payload, level),
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
    """One batch of `records`: `Record` objects at the offsets that they have, or tuples of timestamp, key,
    value and headers, if any, that get the next offset.

    With LOG_APPEND_TIME, `append_time_ms` is the timestamp of all records. A delete horizon takes the place
    of the base timestamp. `last_offset` keeps the end of a batch whose last records are gone.

    >>> batch = build_batch([(1700000000000, b"key", b"value"), (1700000000001, None, b"more")])
    >>> len(batch)
    87
    """
    encoder = Encoder(delete_horizon_ms)
    encoder.extend(records, base_offset)
    return bytes(
        seal(
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
    )


def record_size_bound(key: Buffer | None, value: Buffer | None, headers: Headers = ()) -> int:
    """Bytes that a record cannot exceed in any batch, before compression."""
    size = MAX_RECORD_OVERHEAD + _size(key) + _size(value)
    for name, content in headers.items() if hasattr(headers, "items") else headers:
        size += 10 + (len(name.encode()) if isinstance(name, str) else len(name)) + _size(content)
    return size


def _size(data: Buffer | None) -> int:
    if data is None:
        return 0
    return len(data) if isinstance(data, bytes) else memoryview(data).nbytes


class BatchBuilder:
    """One batch that a producer fills record by record, up to about `limit_bytes`.

    With compression the size is an estimate: what was encoded so far times `ratio`, the compressed share that
    the caller saw in earlier batches. After `build`, `compression_ratio` is the true one of this batch.
    """

    __slots__ = ("_encoder", "_limit", "codec", "compression_ratio", "level", "limit_bytes", "ratio")

    def __init__(
        self,
        *,
        limit_bytes: int,
        codec: Codec = Codec.NONE,
        level: int | None = None,
        ratio: float = 1.0,
        encoder: Encoder | None = None,
    ) -> None:
        """`encoder` brings records that are encoded already."""
        self.codec = codec
        self.level = check_level(codec, level)
        self.limit_bytes = limit_bytes
        self.ratio = ratio
        self.compression_ratio = 1.0
        self._encoder = encoder if encoder is not None else Encoder(capacity=min(limit_bytes, 1024 * 1024))
        # The limit before compression.
        expected = ratio * RATIO_SAFETY if codec is not Codec.NONE and ratio > 0 else 1.0
        self._limit = max(int(limit_bytes / expected), 1)

    @property
    def count(self) -> int:
        return self._encoder.count

    @property
    def max_timestamp(self) -> int:
        return self._encoder.max_timestamp

    @property
    def uncompressed_size(self) -> int:
        """Bytes of the batch if it were not compressed."""
        return self._encoder.size

    @property
    def estimated_size(self) -> int:
        """Bytes that the batch is expected to take on the wire."""
        if self.codec is Codec.NONE:
            return self._encoder.size
        return HEADER_SIZE + int((self._encoder.size - HEADER_SIZE) * self.ratio * RATIO_SAFETY)

    def append(self, timestamp: int, key: Buffer | None, value: Buffer | None, headers: Headers = ()) -> int:
        """Add a record; returns its bytes before compression."""
        return self._encoder.append(timestamp, key, value, headers)

    def try_append(
        self, timestamp: int, key: Buffer | None, value: Buffer | None, headers: Headers = ()
    ) -> int:
        """As `append` if there is room for the record; 0 otherwise. The first one always has room."""
        return self._encoder.append(timestamp, key, value, headers, None, self._limit)

    def fast_append(self) -> tuple[Callable[..., int], int]:
        """For callers that add very many records: the encoder's own `append`, and the limit it takes as its
        last argument.
        """
        return self._encoder.append, self._limit

    def build(
        self,
        *,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
        transactional: bool = False,
    ) -> bytearray:
        """The batch as a client sends it: base offset 0, no leader epoch. May be called again for a retry."""
        batch = seal(
            self._encoder,
            codec=self.codec,
            level=self.level,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            transactional=transactional,
        )
        if self._encoder.count:
            self.compression_ratio = (len(batch) - HEADER_SIZE) / (self._encoder.size - HEADER_SIZE)
        return batch
