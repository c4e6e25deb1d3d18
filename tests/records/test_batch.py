"""A batch's header, checksum and records, against the format in plain Python and against known bytes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.batch import (
    HEADER_SIZE,
    BatchHeader,
    Codec,
    Record,
    TimestampType,
    find_timestamp,
    iter_batches,
    iter_offsets,
    offset_of_max_timestamp,
    read_records,
    set_max_timestamp,
    set_offset_and_epoch,
    verify_crc,
)
from ottla.records.builder import build_batch
from tests.records import model
from tests.records.model import ModelBatch, ModelRecord, record_runs
from tests.support.rows import for_each

# The same two records as Apache Kafka 4.3.1 writes them with each codec.
GOLDEN = {
    Codec.NONE: (
        "000000000000000a"  # base offset 10
        "0000004c"  # length 76
        "00000007"  # leader epoch 7
        "02"  # magic
        "d397113c"  # crc32c of what follows
        "0010"  # attributes: transactional
        "00000001"  # last offset delta 1
        "0000018bcfe56800"  # base timestamp 1700000000000
        "0000018bcfe56bd0"  # max timestamp 1700000000976
        "0000000000000bb8"  # producer id 3000
        "0005"  # producer epoch 5
        "0000002a"  # base sequence 42
        "00000002"  # two records
        "24000000066b65790a76616c756502026802ff"  # 18 bytes: deltas 0 and 0, "key", "value", header "h"
        "0e00a00f02010000"  # 7 bytes: deltas 976 and 1, no key, an empty value, no headers
    ),
    Codec.GZIP: (
        "000000000000000a0000006000000007023cd7734a0011000000010000018bcfe568000000018bcfe56bd00000000000000bb8"
        "00050000002a000000021f8b08000000000000ff5361606060cb4eade42a4bcc294d6562ca60facfc7b0809f899181010014bcc5"
        "d21b000000"
    ),
    Codec.SNAPPY: (
        "000000000000000a00000062000000070268a501dd0012000000010000018bcfe568000000018bcfe56bd00000000000000bb8"
        "00050000002a0000000282534e415050590000000001000000010000001d1b6824000000066b65790a76616c756502026802ff"
        "0e00a00f02010000"
    ),
    Codec.LZ4: (
        "000000000000000a0000005b000000070268d3cd950013000000010000018bcfe568000000018bcfe56bd00000000000000bb8"
        "00050000002a0000000204224d186040821b00008024000000066b65790a76616c756502026802ff0e00a00f02010000000000"
        "00"
    ),
    Codec.ZSTD: (
        "000000000000000a000000580000000702107b42620014000000010000018bcfe568000000018bcfe56bd00000000000000bb8"
        "00050000002a0000000228b52ffd0058d8000024000000066b65790a76616c756502026802ff0e00a00f02010000010000"
    ),
}
GOLDEN_RECORDS = [
    Record(10, 1700000000000, b"key", b"value", [("h", b"\xff")], 42),
    Record(11, 1700000000976, None, b"", (), 43),
]


def as_model(record: Record) -> ModelRecord:
    return ModelRecord(record.offset, record.timestamp, record.key, record.value, record.headers)


def as_records(records: list[ModelRecord]) -> list[Record]:
    return [Record(r.offset, r.timestamp, r.key, r.value, r.headers) for r in records]


@given(
    records=record_runs(gaps=True),
    leader_epoch=st.integers(-1, 2**31 - 1),
    producer=st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1), st.integers(0, 2**31 - 1))
    | st.just((-1, -1, -1)),
    transactional=st.booleans(),
    control=st.booleans(),
)
def test_what_is_built_is_what_the_format_says(
    records: list[ModelRecord],
    leader_epoch: int,
    producer: tuple[int, int, int],
    transactional: bool,
    control: bool,
) -> None:
    base_offset = records[0].offset
    producer_id, producer_epoch, base_sequence = producer
    built = build_batch(
        as_records(records),
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
        control=control,
    )
    expected = ModelBatch(
        tuple(records),
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=transactional << 4 | control << 5,
        last_offset_delta=records[-1].offset - base_offset,
        base_timestamp=records[0].timestamp,
        max_timestamp=max(r.timestamp for r in records),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )
    assert built == model.encode(expected)
    assert model.decode(built) == expected


@given(records=record_runs(gaps=True), leading=st.integers(0, 300), attributes=st.integers(0, 15))
def test_what_the_format_says_is_what_is_read(
    records: list[ModelRecord], leading: int, attributes: int
) -> None:
    base_offset = max(0, records[0].offset - leading)
    batch = ModelBatch(
        tuple(records),
        base_offset=base_offset,
        leader_epoch=3,
        attributes=attributes << 4,
        last_offset_delta=records[-1].offset - base_offset,
        base_timestamp=records[0].timestamp,
        max_timestamp=max(r.timestamp for r in records),
    )
    data = model.encode(batch)
    ((pos, header),) = iter_batches(data)
    verify_crc(data, pos, header)
    assert [as_model(r) for r in read_records(data)] == records
    assert header.base_offset == base_offset
    assert header.last_offset == records[-1].offset
    assert header.next_offset == header.last_offset + 1
    assert header.size == len(data)
    assert header.count == len(records)
    assert header.is_transactional == bool(attributes & 1)
    assert header.is_control == bool(attributes & 2)
    assert header.delete_horizon_ms == (batch.base_timestamp if attributes & 4 else None)


@pytest.mark.parametrize("codec", list(Codec))
def test_known_bytes_are_read(codec: Codec) -> None:
    golden = bytes.fromhex(GOLDEN[codec])
    header = BatchHeader.parse(golden)
    verify_crc(golden, 0, header)
    assert header.codec is codec
    assert read_records(golden) == GOLDEN_RECORDS


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.SNAPPY, Codec.LZ4])
def test_known_bytes_are_built(codec: Codec) -> None:
    built = build_batch(
        GOLDEN_RECORDS,
        base_offset=10,
        codec=codec,
        leader_epoch=7,
        transactional=True,
        producer_id=3000,
        producer_epoch=5,
        base_sequence=42,
    )
    assert built.hex() == GOLDEN[codec]


def test_log_append_time_stands_for_the_timestamp_of_every_record() -> None:
    data = build_batch(
        [(5, b"a", b"1"), (7, b"b", b"2")],
        timestamp_type=TimestampType.LOG_APPEND_TIME,
        append_time_ms=99,
    )
    header = BatchHeader.parse(data)
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert header.max_timestamp == 99
    assert [record.timestamp for record in read_records(data)] == [99, 99]


def test_a_delete_horizon_takes_the_place_of_the_base_timestamp() -> None:
    data = build_batch([(500, b"a", None), (900, b"b", b"2")], delete_horizon_ms=700)
    header = BatchHeader.parse(data)
    assert header.delete_horizon_ms == 700
    assert header.max_timestamp == 900
    assert [record.timestamp for record in read_records(data)] == [500, 900]


def test_sequence_numbers_wrap_to_zero() -> None:
    data = build_batch([(0, None, b"x")] * 3, producer_id=1, producer_epoch=0, base_sequence=2**31 - 2)
    assert [record.sequence for record in read_records(data)] == [2**31 - 2, 2**31 - 1, 0]
    assert BatchHeader.parse(data).last_sequence == 0


def test_offset_and_epoch_are_assigned_without_touching_the_checksum() -> None:
    data = bytearray(build_batch([(0, None, b"x"), (0, None, b"y")]))
    set_offset_and_epoch(data, 0, 2**40, 12)
    header = BatchHeader.parse(data)
    verify_crc(data, 0, header)
    assert (header.base_offset, header.leader_epoch, header.last_offset) == (2**40, 12, 2**40 + 1)


def test_setting_the_append_time_renews_the_checksum_and_keeps_the_other_attributes() -> None:
    data = bytearray(build_batch([(4, None, b"x")], codec=Codec.GZIP, transactional=True))
    set_max_timestamp(data, 0, BatchHeader.parse(data), TimestampType.LOG_APPEND_TIME, 77)
    header = BatchHeader.parse(data)
    verify_crc(data, 0, header)
    assert (header.timestamp_type, header.max_timestamp) == (TimestampType.LOG_APPEND_TIME, 77)
    assert (header.codec, header.is_transactional, header.is_control) == (Codec.GZIP, True, False)


def test_batches_are_walked_up_to_an_incomplete_one() -> None:
    batches = [build_batch([(i, None, b"x" * i)], base_offset=i) for i in range(5)]
    data = b"".join(batches)
    starts = [sum(len(b) for b in batches[:i]) for i in range(5)]
    for cut in range(len(data) + 1):
        complete = [pos for pos, batch in zip(starts, batches) if pos + len(batch) <= cut]
        assert [pos for pos, _ in iter_batches(data[:cut])] == complete
        assert list(iter_offsets(data[:cut])) == [
            (pos, header.size, header.base_offset, header.last_offset)
            for pos, header in iter_batches(data[:cut])
        ]


@for_each("damaged", range(HEADER_SIZE - 40, HEADER_SIZE + 10))
def test_every_covered_byte_counts_for_the_checksum(damaged: int) -> None:
    data = bytearray(build_batch([(0, b"key", b"a value")]))
    data[damaged] ^= 1
    with pytest.raises(KafkaError) as caught:
        verify_crc(data, 0, BatchHeader.parse(data))
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("magic", [0, 1, 3, 127, 255])
def test_other_formats_are_refused(magic: int) -> None:
    data = bytearray(build_batch([(0, None, b"x")]))
    data[16] = magic
    with pytest.raises(KafkaError, match="only record format 2"):
        BatchHeader.parse(data)


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 48])
def test_a_length_that_cannot_hold_the_header_is_refused(length: int) -> None:
    data = bytearray(build_batch([(0, None, b"x")]))
    struct.pack_into(">i", data, 8, length)
    with pytest.raises(KafkaError, match=f"length of {length} bytes"):
        BatchHeader.parse(data)


@pytest.mark.parametrize("pos", [-1, 1, 2**40])
def test_a_position_outside_of_the_buffer_is_refused(pos: int) -> None:
    data = build_batch([])
    assert len(data) == HEADER_SIZE
    with pytest.raises(KafkaError):
        BatchHeader.parse(data, pos)


def test_codecs_that_do_not_exist_are_named() -> None:
    data = bytearray(build_batch([(0, None, b"x")]))
    data[22] = 6
    with pytest.raises(KafkaError) as caught:
        read_records(data)
    assert caught.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_header_names_that_are_not_text_are_replaced() -> None:
    data = build_batch([(0, None, None, [(b"\xff\xfe", b"x")])])
    assert read_records(data)[0].headers == (("\ufffd\ufffd", b"x"),)


def test_records_are_found_by_timestamp() -> None:
    data = build_batch(
        [(10, None, b"a"), (30, None, b"b"), (20, None, b"c"), (30, None, b"d")], base_offset=100
    )
    assert find_timestamp(data, 0, BatchHeader.parse(data), 15, start_offset=0) == (101, 30)
    assert find_timestamp(data, 0, BatchHeader.parse(data), 15, start_offset=102) == (102, 20)
    assert find_timestamp(data, 0, BatchHeader.parse(data), 31, start_offset=0) is None
    assert offset_of_max_timestamp(data, 0, BatchHeader.parse(data)) == 101


def test_records_and_headers_compare_and_match_by_content() -> None:
    record = Record(1, 2, b"k", b"v", [("h", None)])
    assert record == Record(1, 2, b"k", b"v", (("h", None),))
    assert record != Record(1, 2, b"k", b"v")
    assert hash(record) == hash(Record(1, 2, b"k", b"v", (("h", None),)))
    match record:
        case Record(offset, _, b"k"):
            assert offset == 1
        case _:
            pytest.fail("the pattern did not match")
    data = build_batch([record], base_offset=1)
    assert BatchHeader.parse(data) == BatchHeader.parse(bytearray(data))
    with pytest.raises(AttributeError):
        record.offset = 3  # type: ignore[misc]
