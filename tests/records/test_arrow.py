"""Batches into Arrow columns and back: the same records as the reader's, no more than asked for."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.protocol.errors import KafkaError
from ottla.records._kernel import partition_for
from ottla.records.arrow import (
    ALL_COLUMNS,
    ArrowDecoder,
    arrow_schema,
    partitions_of,
)
from ottla.records.batch import BatchHeader, Codec, Record, TimestampType, read_records, verify_crc
from ottla.records.builder import build_batch
from tests.records.model import ModelRecord, record_runs
from tests.records.test_reader import History, histories
from tests.support.visible_records import build_batches_from_arrow, decode_to_arrow, read_visible


def rows_of(records: list[Record], timestamp_type: int = 0) -> list[dict[str, Any]]:
    return [
        {
            "key": r.key,
            "value": r.value,
            "headers": [{"key": key, "value": value} for key, value in r.headers] or None,
            "offset": r.offset,
            "timestamp": r.timestamp,
            "timestampType": timestamp_type,
        }
        for r in records
    ]


def with_plain_timestamps(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    batch.validate(full=True)
    at = batch.schema.get_field_index("timestamp")
    return batch.set_column(at, "timestamp", batch.column(at).cast(pa.int64())).to_pylist()


@pytest.mark.slow
@given(
    runs=st.lists(record_runs(gaps=True, max_size=20), min_size=1, max_size=3),
    codec=st.sampled_from(list(Codec)),
)
def test_columns_hold_what_the_records_hold(runs: list[list[ModelRecord]], codec: Codec) -> None:
    buffers = []
    for number, run in enumerate(runs):
        shift = number * 2**41
        records = [Record(r.offset + shift, r.timestamp, r.key, r.value, r.headers) for r in run]
        buffers.append(build_batch(records, base_offset=records[0].offset, codec=codec))
    decoded = decode_to_arrow(buffers)
    assert decoded.schema == arrow_schema()
    assert with_plain_timestamps(decoded) == rows_of([r for data in buffers for r in read_records(data)])


@given(history=histories(), data=st.data())
def test_columns_hold_what_a_consumer_sees(history: History, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, history.next_offset))
    end = data.draw(st.integers(start, history.next_offset))
    wanted = {"start_offset": start, "end_offset": end, "aborted": history.aborted}
    decoded = decode_to_arrow([history.data], **wanted)
    assert with_plain_timestamps(decoded) == rows_of(read_visible(history.data, **wanted))


@given(run=record_runs(), columns=st.lists(st.sampled_from(ALL_COLUMNS), unique=True))
def test_only_the_columns_asked_for_are_filled(run: list[ModelRecord], columns: list[str]) -> None:
    data = build_batch(
        [Record(r.offset, r.timestamp, r.key, r.value, r.headers) for r in run], base_offset=run[0].offset
    )
    decoded = decode_to_arrow([data], columns=columns)
    everything = decode_to_arrow([data])
    assert decoded.schema.names == columns
    for name in columns:
        assert decoded.column(name).equals(everything.column(name))


def test_log_append_time_is_shown_in_both_of_its_columns() -> None:
    data = build_batch(
        [(5, None, b"x"), (6, None, b"y")], timestamp_type=TimestampType.LOG_APPEND_TIME, append_time_ms=1000
    )
    decoded = decode_to_arrow([data])
    assert decoded.column("timestampType").to_pylist() == [1, 1]
    assert decoded.column("timestamp").cast(pa.int64()).to_pylist() == [1000, 1000]


def test_records_without_headers_are_null_or_empty_as_asked() -> None:
    data = build_batch([(0, None, b"x"), (0, None, b"y", [("h", b"1")])])
    pair = [{"key": "h", "value": b"1"}]
    assert decode_to_arrow([data]).column("headers").to_pylist() == [None, pair]
    assert decode_to_arrow([data], empty_headers=True).column("headers").to_pylist() == [[], pair]


def test_header_names_that_are_not_text_become_text() -> None:
    data = build_batch([(0, None, b"x", [(b"\xff" * 50, b"1"), ("ü", None), (b"\xe2\x82", b"")])])
    decoded = decode_to_arrow([data])
    decoded.validate(full=True)
    assert decoded.column("headers").to_pylist() == [
        [
            {"key": "\ufffd" * 50, "value": b"1"},
            {"key": "ü", "value": None},
            {"key": "\ufffd", "value": b""},
        ]
    ]


def test_nothing_decodes_to_no_rows() -> None:
    decoded = decode_to_arrow([])
    decoded.validate(full=True)
    assert (decoded.num_rows, decoded.schema) == (0, arrow_schema())
    assert decode_to_arrow([build_batch([(0, None, b"x")])], columns=()).num_columns == 0


def test_a_decoder_can_be_finished_in_between() -> None:
    decoder = ArrowDecoder()
    kept = []
    for i in range(30):
        decoder.feed(build_batch([(i, b"%d" % i, b"v" * i)] * 40, base_offset=i * 40))
        assert decoder.next_offset == (i + 1) * 40
        if i % 7 == 6:
            assert decoder.rows == 7 * 40
            assert decoder.nbytes > 0
            kept.append(decoder.finish())
            assert decoder.rows == 0
    kept.append(decoder.finish())
    # Earlier results stay as they are while their memory's successors are filled.
    table = pa.Table.from_batches(kept)
    table.validate(full=True)
    assert table.column("offset").to_pylist() == list(range(30 * 40))
    assert table.column("value").to_pylist() == [b"v" * i for i in range(30) for _ in range(40)]


def test_memory_of_results_that_are_gone_is_used_again_without_harm() -> None:
    for i in range(50):
        value = b"%d" % i * 20_000
        decoded = decode_to_arrow([build_batch([(i, b"k", value)] * 20)])
        assert decoded.column("value").to_pylist() == [value] * 20
        assert decoded.column("offset").to_pylist() == list(range(20))


def test_unknown_columns_are_named() -> None:
    with pytest.raises(ValueError, match="nonsense"):
        ArrowDecoder(columns=("key", "nonsense"))


def test_damage_is_an_error() -> None:
    data = bytearray(build_batch([(0, None, b"x", [("h", b"1")])]))
    data[-1] ^= 1
    with pytest.raises(KafkaError):
        decode_to_arrow([data])


@pytest.mark.slow
@given(
    run=record_runs(base=0, max_size=40),
    codec=st.sampled_from(list(Codec)),
    limit=st.integers(70, 2000),
    skip=st.integers(0, 5),
    sequence=st.sampled_from([0, 100, 2**31 - 3]),
)
def test_columns_are_built_into_batches(
    run: list[ModelRecord], codec: Codec, limit: int, skip: int, sequence: int
) -> None:
    records = [Record(r.offset, r.timestamp, r.key, r.value, r.headers) for r in run]
    data = decode_to_arrow([build_batch(records)]).slice(skip)
    built = list(
        build_batches_from_arrow(
            data,
            max_batch_bytes=limit,
            codec=codec,
            producer_id=4,
            producer_epoch=1,
            base_sequence=sequence,
            transactional=True,
        )
    )
    back = []
    for count, batch in built:
        header = BatchHeader.parse(batch)
        verify_crc(batch, 0, header)
        assert header.count == count
        assert header.codec is codec
        assert header.base_sequence == (sequence + len(back)) % 2**31
        assert (header.producer_id, header.producer_epoch, header.is_transactional) == (4, 1, True)
        assert header.base_offset == 0
        if codec is Codec.NONE:
            assert count == 1 or header.size <= limit
        back += read_records(batch)
    assert [(r.timestamp, r.key, r.value, r.headers) for r in back] == [
        (r.timestamp, r.key, r.value, r.headers) for r in records[skip:]
    ]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.large_binary(), pa.binary_view()])
def test_text_and_wide_columns_are_written_too(kind: pa.DataType) -> None:
    values = ["a", None, "ü", "", "longer " * 50]
    column = (
        pa.array(values).cast(kind)
        if pa.types.is_string(kind)
        else pa.array(values).cast(pa.binary()).cast(kind)
    )
    data = pa.record_batch({"value": column.slice(1)})
    ((count, batch),) = build_batches_from_arrow(data, default_timestamp=99)
    assert count == 4
    assert [(r.timestamp, r.key, r.value) for r in read_records(batch)] == [
        (99, None, None if text is None else text.encode()) for text in values[1:]
    ]


def test_timestamps_may_have_other_units_or_be_missing() -> None:
    for kind, stamps in [
        (pa.timestamp("us"), [1_500_000, None]),
        (pa.timestamp("ns", tz="UTC"), [1_500_000_000, None]),
        (pa.int64(), [1500, None]),
    ]:
        data = pa.record_batch({"value": pa.array([b"a", b"b"]), "timestamp": pa.array(stamps, kind)})
        ((_, batch),) = build_batches_from_arrow(data, default_timestamp=7)
        assert [r.timestamp for r in read_records(batch)] == [1500, 7]


def test_null_columns_and_null_headers() -> None:
    headers = pa.array(
        [[{"key": "a", "value": b"1"}], None, []],
        pa.large_list(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    )
    data = pa.record_batch({"key": pa.nulls(3), "value": pa.array([b"x", b"y", b"z"]), "headers": headers})
    ((_, batch),) = build_batches_from_arrow(data)
    assert [(r.key, r.headers) for r in read_records(batch)] == [
        (None, (("a", b"1"),)),
        (None, ()),
        (None, ()),
    ]


@pytest.mark.parametrize("pair", [None, {"key": None, "value": b"1"}])
def test_headers_need_keys(pair: dict[str, Any] | None) -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    data = pa.record_batch({"value": pa.array([b"x"]), "headers": pa.array([[pair]], kind)})
    with pytest.raises(ValueError, match="header"):
        list(build_batches_from_arrow(data))


@given(keys=st.lists(st.none() | st.binary(max_size=20), max_size=30), partitions=st.integers(1, 50))
@settings(max_examples=50)
def test_keys_are_placed_as_one_by_one(keys: list[bytes | None], partitions: int) -> None:
    column = pa.array([b"skipped", *keys], pa.binary()).slice(1)
    assert partitions_of(column, partitions).to_pylist() == [
        None if key is None else partition_for(key, partitions) for key in keys
    ]


@pytest.mark.slow
def test_pyarrow_is_not_imported_before_it_is_needed() -> None:
    program = (
        "import sys, ottla.records.batch, ottla.records.builder, ottla.records.validation,"
        " ottla.records.arrow, ottla.records.compaction, ottla.records.reader, ottla.records.control;"
        "print([name for name in ('pyarrow', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
