"""The record batch format spelled out in plain Python: slow, short, independent of the code under test."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from hypothesis import strategies as st

HEADER = struct.Struct(">qiibIhiqqqhii")


def _crc_table() -> list[int]:
    table = []
    for index in range(256):
        crc = index
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def varint(number: int) -> bytes:
    """Zigzag, seven bits a byte, least significant first."""
    raw = (number << 1) ^ (number >> 63)
    raw &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    raw = shift = 0
    while True:
        byte = data[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), at
        shift += 7


def _bytes(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def _read_bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = read_varint(data, at)
    return (None, at) if size < 0 else (data[at : at + size], at + size)


@dataclass(frozen=True)
class ModelRecord:
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True)
class ModelBatch:
    """A batch without compression; `attributes` may set any bit but those of the codec."""

    records: tuple[ModelRecord, ...]
    base_offset: int = 0
    leader_epoch: int = -1
    attributes: int = 0
    last_offset_delta: int = 0
    base_timestamp: int = -1
    max_timestamp: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1


def encode_record(record: ModelRecord, base_offset: int, base_timestamp: int) -> bytes:
    body = b"\x00" + varint(record.timestamp - base_timestamp) + varint(record.offset - base_offset)
    body += _bytes(record.key) + _bytes(record.value) + varint(len(record.headers))
    for key, value in record.headers:
        body += _bytes(key.encode()) + _bytes(value)
    return varint(len(body)) + body


def encode(batch: ModelBatch) -> bytes:
    payload = b"".join(encode_record(r, batch.base_offset, batch.base_timestamp) for r in batch.records)
    fields = (
        batch.attributes,
        batch.last_offset_delta,
        batch.base_timestamp,
        batch.max_timestamp,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        len(batch.records),
    )
    covered = struct.pack(">hiqqqhii", *fields) + payload
    length = 4 + 1 + 4 + len(covered)
    return struct.pack(">qiibI", batch.base_offset, length, batch.leader_epoch, 2, crc32c(covered)) + covered


def decode(data: bytes) -> ModelBatch:
    (
        base_offset,
        length,
        leader_epoch,
        magic,
        crc,
        attributes,
        last,
        base_ts,
        max_ts,
        pid,
        epoch,
        seq,
        count,
    ) = HEADER.unpack_from(data)
    assert magic == 2
    assert len(data) == 12 + length
    assert crc == crc32c(data[21:])
    at = HEADER.size
    records = []
    for _ in range(count):
        size, at = read_varint(data, at)
        end = at + size
        assert data[at] == 0
        ts_delta, at = read_varint(data, at + 1)
        offset_delta, at = read_varint(data, at)
        key, at = _read_bytes(data, at)
        value, at = _read_bytes(data, at)
        header_count, at = read_varint(data, at)
        headers = []
        for _ in range(header_count):
            name, at = _read_bytes(data, at)
            content, at = _read_bytes(data, at)
            assert name is not None
            headers.append((name.decode(), content))
        assert at == end
        records.append(
            ModelRecord(base_offset + offset_delta, base_ts + ts_delta, key, value, tuple(headers))
        )
    assert at == len(data)
    return ModelBatch(
        tuple(records), base_offset, leader_epoch, attributes, last, base_ts, max_ts, pid, epoch, seq
    )


set_timestamps = st.integers(min_value=0, max_value=2**50)
timestamps = set_timestamps | st.just(-1)
contents = st.none() | st.binary(max_size=40) | st.binary(min_size=120, max_size=300)
header_lists = st.lists(
    st.tuples(st.text(st.characters(codec="utf-8"), max_size=8), st.none() | st.binary(max_size=12)),
    max_size=3,
).map(tuple)


@st.composite
def record_runs(
    draw: st.DrawFn,
    *,
    min_size: int = 1,
    max_size: int = 12,
    gaps: bool = False,
    base: int | None = None,
    stamps: st.SearchStrategy[int] = timestamps,
) -> list[ModelRecord]:
    """Records in order of offset, one behind the other or with gaps as compaction leaves them."""
    offset = draw(st.integers(0, 2**40)) if base is None else base
    records = []
    for _ in range(draw(st.integers(min_size, max_size))):
        if gaps:
            offset += draw(st.integers(0, 300))
        records.append(ModelRecord(offset, draw(stamps), draw(contents), draw(contents), draw(header_lists)))
        offset += 1
    return records
