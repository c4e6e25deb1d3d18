"""What clients need of the kernel, in Python: for systems that no wheel with a compiled one fits.

Where the compiled kernel is there, Python takes that one, and never looks at this module. The bytes, the
errors and their texts are the same, as tests compare; a record takes about 4 microseconds each way, seventy
times as long. What walks records for a node, for columns or for tables is only in the compiled kernel: asking
for it raises an ImportError that says so.
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.types import HEADER_SIZE, LOG_OVERHEAD, Codec, TimestampType

warnings.warn(
    "This Ottla has no compiled kernel: clients work, but slowly, and nodes, Arrow and tables do not. "
    "Install a wheel that is made for this Python and system, or build one with a C compiler.",
    RuntimeWarning,
    stacklevel=2,
)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise ImportError(
        f"{name} is only in Ottla's compiled kernel, which this installation does not have. Install a wheel"
        " that is made for this Python and system, or build one with a C compiler.",
        name="ottla.records._kernel",
    )


_HEADER = struct.Struct(">qiibIhiqqqhii")
_MAX_INT32 = 2**31 - 1
_MIN_INT64, _MAX_INT64 = -(2**63), 2**63 - 1
_MIN_ENTRY_BYTES = 7
_CRC_START = 21
_INT_SHIFT, _LONG_SHIFT = 28, 63
_CODEC, _TIMESTAMP_TYPE, _TRANSACTIONAL, _CONTROL, _DELETE_HORIZON = 0x07, 0x08, 0x10, 0x20, 0x40

Buffer = Any
Headers = Any
Pairs = tuple[tuple[str | bytes, bytes | None], ...]


class Block(bytearray):
    """Memory that others fill: a buffer of `size` bytes, that may be cut."""

    def __init__(self, capacity: int = 0, size: int = 0, recycled: bool = False) -> None:
        super().__init__(size)

    def shrink(self, size: int) -> None:
        """Keep the first `size` bytes."""
        if not 0 <= size <= len(self):
            raise ValueError(f"size {size} is not within 0..{len(self)}")
        del self[size:]


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """The 61 bytes in front of a batch's records, as they are; the properties say what they mean."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int

    @staticmethod
    def parse(buf: Buffer, pos: int = 0) -> BatchHeader:
        """The header at `pos`. Magic and length are checked; that the records are there and sound is not."""
        size = memoryview(buf).nbytes
        if pos < 0 or size - pos < HEADER_SIZE:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                f"{max(size - pos, 0)} bytes at position {pos} are less than a batch's header"
                f" of {HEADER_SIZE}",
            )
        header = BatchHeader(*_HEADER.unpack_from(buf, pos))
        if header.magic != 2:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                f"the batch at position {pos} has magic {header.magic}; only record format 2 is supported",
            )
        if header.batch_length < HEADER_SIZE - LOG_OVERHEAD:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                f"the batch at position {pos} declares a length of {header.batch_length} bytes;"
                f" its header alone takes {HEADER_SIZE - LOG_OVERHEAD}",
            )
        return header

    @property
    def size(self) -> int:
        """Bytes of the whole batch, base offset and length included."""
        return LOG_OVERHEAD + self.batch_length

    @property
    def last_offset(self) -> int:
        return _int64(self.base_offset + self.last_offset_delta)

    @property
    def next_offset(self) -> int:
        return _int64(self.base_offset + self.last_offset_delta + 1)

    @property
    def codec(self) -> Codec:
        number = self.attributes & _CODEC
        if number >= len(Codec):
            raise KafkaError(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
                f"the batch at offset {self.base_offset} is compressed with codec {number}; there is none",
            )
        return Codec(number)

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType(bool(self.attributes & _TIMESTAMP_TYPE))

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & _CONTROL)

    @property
    def is_compressed(self) -> bool:
        return bool(self.attributes & _CODEC)

    @property
    def delete_horizon_ms(self) -> int | None:
        """When tombstones and markers of this batch may be removed."""
        return self.base_timestamp if self.attributes & _DELETE_HORIZON else None

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id > -1

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record; numbers wrap from 2^31-1 to 0."""
        return -1 if self.base_sequence < 0 else (self.base_sequence + self.last_offset_delta) & _MAX_INT32

    def __repr__(self) -> str:
        return (
            f"BatchHeader(base_offset={self.base_offset}, last_offset={self.last_offset}, size={self.size},"
            f" leader_epoch={self.leader_epoch}, attributes={self.attributes:#x}, count={self.count},"
            f" base_timestamp={self.base_timestamp}, max_timestamp={self.max_timestamp},"
            f" producer_id={self.producer_id}, producer_epoch={self.producer_epoch},"
            f" base_sequence={self.base_sequence})"
        )


@dataclass(frozen=True, slots=True)
class Record:
    """One record. `sequence` is -1 where its batch has no producer."""

    offset: int = 0
    timestamp: int = -1
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    sequence: int = -1

    __match_args__: ClassVar = ("offset", "timestamp", "key", "value", "headers")

    def __post_init__(self) -> None:
        object.__setattr__(self, "headers", tuple(self.headers))


@dataclass(frozen=True, slots=True)
class ConsumerRecord:
    """A record and where it was read. `timestamp_type` is 0 for the producer's time, 1 for the broker's."""

    topic: Any
    partition: int
    offset: int
    timestamp: int = field(default=-1, hash=False)
    key: Any = field(default=None, hash=False)
    value: Any = field(default=None, hash=False)
    headers: tuple[tuple[str, bytes | None], ...] = field(default=(), hash=False)
    timestamp_type: int = field(default=0, hash=False)
    leader_epoch: int = field(default=-1, hash=False)

    __match_args__: ClassVar = ("topic", "partition", "offset", "key", "value")

    def __post_init__(self) -> None:
        object.__setattr__(self, "headers", tuple(self.headers))

    @classmethod
    def __class_getitem__(cls, item: Any) -> type[ConsumerRecord]:
        return cls

    def __repr__(self) -> str:
        return (
            f"ConsumerRecord(topic={self.topic!r}, partition={self.partition}, offset={self.offset},"
            f" timestamp={self.timestamp}, key={self.key!r}, value={self.value!r}, headers={self.headers!r})"
        )


def deserialize(
    records: list[ConsumerRecord],
    key_deserializer: Callable[[bytes], Any] | None,
    value_deserializer: Callable[[bytes], Any] | None,
) -> tuple[int, Exception | None]:
    """Replaces keys and values by what the deserializers make of them; what is null stays None.

    Stops before a record that one of them refuses, which stays as it is: the result is (its index, the
    exception), with the number of records and None where all went well.
    """
    for index, record in enumerate(records):
        key, value = record.key, record.value
        try:
            if key_deserializer is not None and key is not None:
                key = key_deserializer(key)
            if value_deserializer is not None and value is not None:
                value = value_deserializer(value)
        except Exception as error:
            return index, error
        object.__setattr__(record, "key", key)
        object.__setattr__(record, "value", value)
    return len(records), None


# Bytes into records.


class _Fault(Exception):
    """What is wrong with the bytes of a record."""


@dataclass(slots=True)
class _Entry:
    """A record as it is encoded."""

    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    value: bytes | None
    header_count: int
    headers_at: int
    end: int


def _int64(number: int) -> int:
    """As Java adds: around the end."""
    return number if _MIN_INT64 <= number <= _MAX_INT64 else (number - _MIN_INT64) % 2**64 + _MIN_INT64


def _read_varint(data: memoryview, at: int, end: int, max_shift: int = _INT_SHIFT) -> tuple[int, int]:
    """A zigzag varint, and where it ends. Bits that its type cannot hold are lost, as in Java."""
    raw = shift = 0
    while True:
        if at >= end:
            raise _Fault("the payload ends inside of a length")
        byte = data[at]
        raw |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            raw &= 0xFFFF_FFFF if max_shift == _INT_SHIFT else 0xFFFF_FFFF_FFFF_FFFF
            return (raw >> 1) ^ -(raw & 1), at
        shift += 7
        if shift > max_shift:
            raise _Fault("a variable-length integer is longer than its type allows")


def _read_bytes(data: memoryview, at: int, end: int) -> tuple[bytes | None, int]:
    size, at = _read_varint(data, at, end)
    if size < 0:
        return None, at
    if size > end - at:
        raise _Fault("a field's length reaches beyond the end of its record")
    return bytes(data[at : at + size]), at + size


def _read_entry(data: memoryview, at: int, end: int) -> _Entry:
    """The record at `at`. Its headers are counted, not walked."""
    length, at = _read_varint(data, at, end)
    if length < 0 or length > end - at:
        raise _Fault("a record's length reaches beyond the end of the batch")
    end = at + length
    if length < _MIN_ENTRY_BYTES - 1:
        raise _Fault(_LENGTH_MISMATCH)
    timestamp_delta, at = _read_varint(data, at + 1, end, _LONG_SHIFT)
    offset_delta, at = _read_varint(data, at, end)
    key, at = _read_bytes(data, at, end)
    value, at = _read_bytes(data, at, end)
    count, at = _read_varint(data, at, end)
    if count < 0 or count > (end - at) >> 1:
        raise _Fault("the number of headers is negative or more than the record can hold")
    if count == 0 and at != end:
        raise _Fault(_LENGTH_MISMATCH)
    return _Entry(timestamp_delta, offset_delta, key, value, count, at, end)


_LENGTH_MISMATCH = "a record's fields do not add up to its length"


def _read_headers(data: memoryview, entry: _Entry) -> tuple[tuple[str, bytes | None], ...]:
    headers = []
    at = entry.headers_at
    for _ in range(entry.header_count):
        key, at = _read_bytes(data, at, entry.end)
        if key is None:
            raise _Fault("a header has no key")
        value, at = _read_bytes(data, at, entry.end)
        headers.append((key.decode(errors="replace"), value))
    if at != entry.end:
        raise _Fault(_LENGTH_MISMATCH)
    return tuple(headers)


def _corrupt(fault: str, index: int) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"record {index} of the batch: {fault}")


def _decode(
    data: memoryview, header: BatchHeader, start_offset: int, end_offset: int, source: ConsumerRecord | None
) -> list[Any]:
    """The records of a batch that lie in [start_offset, end_offset), as `Record` objects, or as those of a
    consumer whose topic and partition `source` names.
    """
    records: list[Any] = []
    at, end = 0, len(data)
    append_time = bool(header.attributes & _TIMESTAMP_TYPE)
    if header.count < 0 or header.count > end // _MIN_ENTRY_BYTES:
        raise _corrupt("the batch declares a number of records that its size cannot hold", 0)
    for index in range(header.count):
        if at == end:
            raise _corrupt("the batch ends before the number of records that it declares", index)
        try:
            entry = _read_entry(data, at, end)
            at = entry.end
            offset = _int64(header.base_offset + entry.offset_delta)
            if not start_offset <= offset < end_offset:
                continue
            headers = _read_headers(data, entry) if entry.header_count else ()
        except _Fault as fault:
            raise _corrupt(str(fault), index) from None
        stamp = header.max_timestamp if append_time else _int64(header.base_timestamp + entry.timestamp_delta)
        if source is None:
            base = header.base_sequence
            sequence = -1 if base < 0 else (base + entry.offset_delta) & _MAX_INT32
            records.append(Record(offset, stamp, entry.key, entry.value, headers, sequence))
        else:
            records.append(
                ConsumerRecord(
                    source.topic,
                    source.partition,
                    offset,
                    stamp,
                    entry.key,
                    entry.value,
                    headers,
                    int(append_time),
                    header.leader_epoch,
                )
            )
    if at != end:
        raise _corrupt("bytes remain after the last record of the batch", header.count)
    return records


def decode_records(payload: Buffer, header: BatchHeader) -> list[Record]:
    """All records of a batch; `payload` is what follows its header, decompressed."""
    with memoryview(payload).cast("B") as data:
        return _decode(data, header, _MIN_INT64, _MAX_INT64, None)


class BatchReader:
    """Reads one partition as a consumer does: in order, from an offset on, without control records.

    `set_aborted` takes the (producer id, first offset) pairs of the transactions that were rolled back;
    a producer's transactional batches are left out from such an offset to its abort marker. `next_offset`
    is where the next fetch begins.
    """

    def __init__(
        self,
        *,
        start_offset: int,
        end_offset: int,
        check_crc: bool,
        decompress: Callable[[Codec, memoryview, int], Buffer],
        crc32c: Callable[[memoryview], int],
        max_decompressed_bytes: int,
    ) -> None:
        self.next_offset = start_offset
        self._end_offset = end_offset
        self._check_crc = check_crc
        self._decompress = decompress
        self._crc32c = crc32c
        self._max_decompressed_bytes = max_decompressed_bytes
        self._aborted: list[tuple[int, int]] = []
        self._aborted_producers: set[int] = set()

    def set_aborted(self, aborted: Iterable[tuple[int, int]]) -> None:
        """The transactions aborted within the buffers that come next."""
        self._aborted = sorted((first_offset, producer_id) for producer_id, first_offset in aborted)
        self._aborted_producers.clear()

    def read(self, buf: Buffer) -> list[Record]:
        """Read the records of the complete batches in `buf` that a consumer sees, as objects."""
        return self._read(buf, None)

    def read_for_user(self, buf: Buffer, source: ConsumerRecord) -> list[ConsumerRecord]:
        """As `read`, but as a consumer's records of the topic and partition that `source` names."""
        return self._read(buf, source)

    def _read(self, buf: Buffer, source: ConsumerRecord | None) -> list[Any]:
        records: list[Any] = []
        begin, pos = self.next_offset, 0
        with memoryview(buf).cast("B") as data:
            try:
                while len(data) - pos >= HEADER_SIZE and self.next_offset < self._end_offset:
                    header = BatchHeader.parse(data, pos)
                    if header.size > len(data) - pos:
                        break
                    with data[pos : pos + header.size] as batch:
                        if header.last_offset >= self.next_offset:
                            records += self._take(batch, header, source)
                        else:
                            # Skipped, but a transaction may end here.
                            self._admits(batch, header)
                    pos += header.size
            except BaseException:
                # Nothing of this buffer was handed out, so nothing of it was read.
                self.next_offset = begin
                raise
        return records

    def _take(self, batch: memoryview, header: BatchHeader, source: ConsumerRecord | None) -> list[Any]:
        if header.base_offset >= self._end_offset:
            self.next_offset = self._end_offset
            return []
        if self._check_crc:
            self._verify(batch, header)
        records: list[Any] = []
        if self._admits(batch, header) and header.count:
            with memoryview(self._payload(batch, header)).cast("B") as data:
                records = _decode(data, header, self.next_offset, self._end_offset, source)
        after = header.next_offset
        self.next_offset = after if self.next_offset < after < self._end_offset else self._end_offset
        return records

    def _payload(self, batch: memoryview, header: BatchHeader) -> Buffer:
        payload = batch[HEADER_SIZE:]
        if not header.is_compressed:
            return payload
        return self._decompress(header.codec, payload, self._max_decompressed_bytes)

    def _verify(self, batch: memoryview, header: BatchHeader) -> None:
        computed = self._crc32c(batch[_CRC_START:])
        if computed != header.crc:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                f"the batch at offset {header.base_offset} is corrupt: stored crc = {header.crc},"
                f" computed crc = {computed}",
            )

    def _admits(self, batch: memoryview, header: BatchHeader) -> bool:
        """Whether the consumer sees the records of this batch. Keeps track of aborted transactions."""
        if header.producer_id >= 0 and (self._aborted_producers or self._aborted):
            while self._aborted and self._aborted[0][0] <= header.last_offset:
                self._aborted_producers.add(self._aborted.pop(0)[1])
            if header.is_control:
                if self._is_abort_marker(batch, header):
                    self._aborted_producers.discard(header.producer_id)
            elif header.is_transactional and header.producer_id in self._aborted_producers:
                return False
        return not header.is_control

    def _is_abort_marker(self, batch: memoryview, header: BatchHeader) -> bool:
        """Whether the first record of a control batch is an abort: its key is a version and a type, 0."""
        if header.count < 1:
            return False
        with memoryview(self._payload(batch, header)).cast("B") as data:
            try:
                key = _read_entry(data, 0, len(data)).key
            except _Fault as fault:
                raise _corrupt(str(fault), 0) from None
        if key is None or len(key) < 4:
            size = -1 if key is None else len(key)
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE, f"the key of a control record has {size} bytes, not 4"
            )
        return key[2:4] == b"\0\0"


# Records into bytes.


def _varint(number: int) -> bytes:
    raw = (number << 1) ^ (number >> 63)
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def _field(data: bytes | None) -> bytes:
    return b"\x01" if data is None else _varint(len(data)) + data


def _bytes_of(source: Buffer | None) -> bytes | None:
    return source if source is None or type(source) is bytes else bytes(memoryview(source))


def _pairs(headers: Headers) -> Pairs:
    made = []
    for key, value in headers.items() if isinstance(headers, Mapping) else headers:
        if not isinstance(key, (str, bytes)):
            raise TypeError(f"the key of a record header must be str, not {type(key).__name__}")
        if isinstance(value, (str, int)):
            raise TypeError(f"the value of header {key!r} must be bytes or None, not {type(value).__name__}")
        made.append((key, _bytes_of(value)))
    return tuple(made)


class Encoder:
    """Records of one batch, encoded one behind the other.

    The first record's timestamp becomes the base timestamp unless one was given. Offset deltas count up
    from 0 unless they are given.
    """

    def __init__(self, base_timestamp: int | None = None, capacity: int = 16384) -> None:
        self.payload = Block()
        self.count = 0
        self.last_offset_delta = -1
        self.max_timestamp = -1
        self.max_timestamp_delta = -1
        self.base_timestamp = -1 if base_timestamp is None else base_timestamp
        self._has_base_timestamp = base_timestamp is not None

    @property
    def size(self) -> int:
        """Bytes of the batch if it were closed now, without compression."""
        return HEADER_SIZE + len(self.payload)

    def append(
        self,
        timestamp: int,
        key: Buffer | None,
        value: Buffer | None,
        headers: Headers = (),
        offset_delta: int | None = None,
        limit: int = 0,
    ) -> int:
        """Add a record and return its bytes, length prefix included.

        With a limit, a record that would make the batch larger is not added, and 0 returned; the first one is
        taken whatever its size.
        """
        if not _MIN_INT64 <= timestamp <= _MAX_INT64:
            raise OverflowError(f"the timestamp {timestamp} does not fit into 64 bits")
        if offset_delta is None:
            if self.last_offset_delta == _MAX_INT32:
                raise ValueError("the batch is full: it spans 2^31 offsets")
            offset_delta = self.last_offset_delta + 1
        if not -(2**31) <= offset_delta < 2**31:
            raise OverflowError(f"the offset delta {offset_delta} does not fit into 32 bits")
        base = self.base_timestamp if self._has_base_timestamp else timestamp
        pairs = _pairs(headers) if headers else ()
        body = b"".join(
            (
                b"\0",
                _varint(_int64(timestamp - base)),
                _varint(offset_delta),
                _field(_bytes_of(key)),
                _field(_bytes_of(value)),
                _varint(len(pairs)),
                *(
                    _field(name.encode() if isinstance(name, str) else name) + _field(each)
                    for name, each in pairs
                ),
            )
        )
        if len(body) > _MAX_INT32 - 5:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a record of {len(body)} bytes is too large; a batch ends at 2 GiB",
            )
        length = _varint(len(body))
        total = len(length) + len(body)
        if limit and self.count and self.size + total > limit:
            return 0
        if self.size + total > _MAX_INT32:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a record of {total} bytes does not fit behind {len(self.payload)}; a batch ends at 2 GiB",
            )
        if offset_delta < 0 or offset_delta <= self.last_offset_delta:
            raise ValueError(
                f"offset delta {offset_delta} does not follow {self.last_offset_delta};"
                " offsets of a batch must rise and span less than 2^31"
            )
        self.payload += length + body
        self.base_timestamp = base
        self._has_base_timestamp = True
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
            self.max_timestamp_delta = offset_delta
        self.last_offset_delta = offset_delta
        self.count += 1
        return total

    def extend(self, records: Iterable[Any], base_offset: int) -> None:
        """Add `Record` objects at their offsets, or (timestamp, key, value[, headers]) at the next one."""
        for each in records:
            if isinstance(each, Record):
                self.append(each.timestamp, each.key, each.value, each.headers, each.offset - base_offset)
            else:
                self.append(*each)


# The hash by which Kafka's producers spread keys over partitions.


def murmur2(key: Buffer) -> int:
    """The 32-bit hash of a key, signed, as Kafka's Java producer computes it."""
    if key is None:
        raise TypeError("only a key has a hash; records without one go to any partition")
    data = _bytes_of(key)
    assert data is not None
    factor, mask = 0x5BD1E995, 0xFFFF_FFFF
    value = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        word = word * factor & mask
        word ^= word >> 24
        value = (value * factor & mask) ^ (word * factor & mask)
    if len(data) > whole:
        value = (value ^ int.from_bytes(data[whole:], "little")) * factor & mask
    value ^= value >> 13
    value = value * factor & mask
    value ^= value >> 15
    return value - 2**32 if value > _MAX_INT32 else value


def partition_for(key: Buffer, partitions: int) -> int:
    """The partition that Kafka's default partitioner gives to a key."""
    if partitions <= 0:
        raise ValueError(f"a topic has at least 1 partition, not {partitions}")
    return (murmur2(key) & _MAX_INT32) % partitions
