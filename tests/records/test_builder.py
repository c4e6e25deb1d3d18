"""Filling a batch record by record, as a producer does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.records._kernel import Encoder
from ottla.records.batch import BatchHeader, Codec, Record, read_records
from ottla.records.builder import BatchBuilder, build_batch, record_size_bound
from tests.records.model import ModelRecord, record_runs


@given(records=record_runs(base=0), codec=st.sampled_from(list(Codec)))
def test_a_batch_filled_by_and_by_is_the_one_built_at_once(records: list[ModelRecord], codec: Codec) -> None:
    builder = BatchBuilder(limit_bytes=16384, codec=codec)
    sizes = [builder.append(r.timestamp, r.key, r.value, r.headers) for r in records]
    assert builder.count == len(records)
    assert builder.max_timestamp == max(r.timestamp for r in records)
    assert builder.uncompressed_size == 61 + sum(sizes)
    for record, size in zip(records, sizes):
        assert size <= record_size_bound(record.key, record.value, record.headers)
    options = {"producer_id": 5, "producer_epoch": 1, "base_sequence": 77, "transactional": True}
    built = builder.build(**options)  # type: ignore[arg-type]
    assert built == build_batch(
        [Record(r.offset, r.timestamp, r.key, r.value, r.headers) for r in records], codec=codec, **options
    )
    assert builder.compression_ratio == pytest.approx((len(built) - 61) / sum(sizes))
    assert builder.build(**options) == built  # type: ignore[arg-type]


def test_without_compression_the_limit_holds_to_the_byte() -> None:
    builder = BatchBuilder(limit_bytes=1000)
    while builder.try_append(0, b"key", b"value"):
        pass
    assert builder.count > 20
    assert builder.estimated_size == builder.uncompressed_size <= 1000


def test_the_first_record_has_room_whatever_its_size() -> None:
    builder = BatchBuilder(limit_bytes=100)
    assert builder.try_append(0, None, bytes(5000))
    assert not builder.try_append(0, None, b"")
    assert read_records(builder.build())[0].value == bytes(5000)


def test_with_compression_the_estimate_follows_the_ratio() -> None:
    plain, squeezed = (BatchBuilder(limit_bytes=2000, codec=Codec.GZIP, ratio=ratio) for ratio in (1.0, 0.25))
    for builder in (plain, squeezed):
        while builder.try_append(0, None, bytes(150)):
            pass
    assert squeezed.count > 3 * plain.count
    squeezed.build()
    assert squeezed.compression_ratio < 0.25


def test_bytes_come_from_any_buffer_and_headers_from_a_mapping() -> None:
    data = build_batch([(0, bytearray(b"k"), memoryview(b"value")[1:], {"a": b"1", "b": None})])
    (record,) = read_records(data)
    assert (record.key, record.value, record.headers) == (b"k", b"alue", (("a", b"1"), ("b", None)))


def test_offsets_must_rise() -> None:
    for offsets in ([5, 5], [5, 4], [-1], [0, 2**31]):
        with pytest.raises((ValueError, OverflowError)):
            build_batch([Record(offset, 0, None, b"") for offset in offsets])


@pytest.mark.parametrize(
    "record",
    [
        (0, "text", b""),
        (0, b"", "text"),
        (0, b"", b"", [("h", "text")]),
        (0, b"", b"", [(5, b"")]),
        (0, b"", b"", [("h",)]),
        ("when", b"", b""),
        (0, b""),
        (0, memoryview(b"abcd")[::2], b""),
    ],
)
def test_what_is_not_bytes_is_a_type_error_and_leaves_nothing_behind(record: tuple[object, ...]) -> None:
    encoder = Encoder()
    encoder.append(1, b"before", b"")
    with pytest.raises((TypeError, ValueError, BufferError)):
        encoder.append(*record)  # type: ignore[arg-type]
    assert encoder.count == 1
    encoder.append(2, b"after", b"")
    assert len(bytes(encoder.payload)) == encoder.size - 61


def test_an_encoder_does_not_grow_under_a_view_of_it() -> None:
    encoder = Encoder(capacity=64)
    with memoryview(encoder.payload), pytest.raises(BufferError):
        encoder.append(0, None, bytes(1000))
    encoder.append(0, None, bytes(1000))


def test_a_level_that_does_not_exist_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="level 99"):
        BatchBuilder(limit_bytes=100, codec=Codec.GZIP, level=99)


def test_an_empty_batch_is_a_header() -> None:
    header = BatchHeader.parse(build_batch([]))
    assert (header.count, header.last_offset_delta, header.base_timestamp, header.max_timestamp) == (
        0,
        -1,
        -1,
        -1,
    )
