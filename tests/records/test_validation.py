"""What a leader refuses, with which error, and what it changes of the batches that it takes."""

from __future__ import annotations

import pickle
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.batch import (
    BatchHeader,
    Codec,
    Record,
    TimestampType,
    compute_crc,
    read_records,
    verify_crc,
)
from ottla.records.builder import build_batch
from ottla.records.compression import compress
from ottla.records.control import ControlType, EndTransactionMarker, build_end_transaction_marker
from ottla.records.validation import (
    MAX_RECORD_ERRORS,
    AppendOrigin,
    RecordErrors,
    ValidationResult,
    check_produce_records,
    validate_and_assign_offsets,
)
from tests.records import model
from tests.records.model import ModelBatch, ModelRecord, record_runs
from tests.support.rows import for_each

NOW = 1_700_000_000_000


def validate(data: Any, **rules: Any) -> ValidationResult:
    return validate_and_assign_offsets(
        data, **{"first_offset": 100, "leader_epoch": 5, "now_ms": NOW, **rules}
    )


def refused(data: Any, **rules: Any) -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        validate(data, **rules)
    return caught.value


def with_field(data: bytes, position: int, layout: str, value: int) -> bytes:
    """The batch with one header field changed and the checksum made right again."""
    changed = bytearray(data)
    struct.pack_into(layout, changed, position, value)
    struct.pack_into(">I", changed, 17, compute_crc(changed, 0, len(changed)))
    return bytes(changed)


def three(**options: Any) -> bytes:
    return build_batch(
        [(NOW, b"a", b"the first"), (NOW + 9, b"b", b"the second"), (NOW + 3, b"c", None)], **options
    )


@pytest.mark.parametrize("codec", list(Codec))
def test_a_sound_batch_is_patched_in_place(codec: Codec) -> None:
    data = bytearray(three(codec=codec))
    result = validate(data)
    assert result.buffer.obj is data
    header = BatchHeader.parse(data)
    verify_crc(data, 0, header)
    assert (header.base_offset, header.leader_epoch) == (100, 5)
    assert [record.offset for record in read_records(data)] == [100, 101, 102]
    assert result.batches == [header]
    assert (result.first_offset, result.last_offset) == (100, 102)
    assert (result.max_timestamp, result.offset_of_max_timestamp) == (NOW + 9, 102)


def test_a_buffer_that_may_not_be_written_is_copied() -> None:
    data = three()
    result = validate(data)
    assert BatchHeader.parse(data).base_offset == 0
    assert BatchHeader.parse(result.buffer).base_offset == 100


def test_an_incomplete_batch_at_the_end_is_cut_off() -> None:
    data = three()
    assert len(validate(data + data[:30]).buffer) == len(data)


@for_each("codec", list(Codec))
@for_each("target", list(Codec))
@given(records=record_runs(base=0))
@settings(max_examples=15)
def test_batches_take_the_compression_of_their_topic(
    codec: Codec, target: Codec, records: list[ModelRecord]
) -> None:
    data = build_batch(
        [Record(r.offset, r.timestamp, r.key, r.value, r.headers) for r in records],
        codec=codec,
        producer_id=9,
        producer_epoch=1,
        base_sequence=8,
        transactional=True,
    )
    result = validate(data, codec_target=target)
    (header,) = result.batches
    verify_crc(result.buffer, 0, header)
    assert header.codec is target
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 1, 8)
    assert header.is_transactional
    assert [
        (r.offset - 100, r.timestamp, r.key, r.value, r.headers) for r in read_records(result.buffer)
    ] == [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in records]


def test_the_level_of_the_topic_is_used() -> None:
    data = build_batch([(NOW, None, b"%d and so on " % i * 20) for i in range(200)])
    sizes = [len(validate(data, codec_target=Codec.GZIP, level=level).buffer) for level in (1, 9)]
    assert sizes[1] < sizes[0]


@pytest.mark.parametrize("target", [None, Codec.ZSTD])
def test_log_append_time_is_the_brokers(target: Codec | None) -> None:
    result = validate(
        three(codec=Codec.LZ4), timestamp_type=TimestampType.LOG_APPEND_TIME, codec_target=target
    )
    (header,) = result.batches
    verify_crc(result.buffer, 0, header)
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert result.max_timestamp == header.max_timestamp == NOW
    assert result.offset_of_max_timestamp == 102
    assert {record.timestamp for record in read_records(result.buffer)} == {NOW}


def test_a_wrong_maximum_timestamp_is_put_right() -> None:
    data = with_field(three(), 35, ">q", 12345)
    result = validate(data)
    assert result.batches[0].max_timestamp == NOW + 9
    verify_crc(result.buffer, 0, result.batches[0])


def test_records_without_timestamps_have_no_maximum() -> None:
    result = validate(build_batch([(-1, None, b"x"), (-1, None, b"y")]))
    assert (result.max_timestamp, result.offset_of_max_timestamp) == (-1, -1)


@pytest.mark.parametrize("compressed", [False, True])
def test_offset_deltas_that_do_not_count_up_are_renumbered(compressed: bool) -> None:
    records = tuple(ModelRecord(offset, NOW, b"k", b"%d" % offset) for offset in (0, 7, 7))
    data = model.encode(
        ModelBatch(records, last_offset_delta=2, base_timestamp=NOW, max_timestamp=NOW, attributes=0)
    )
    if compressed:
        payload = bytes(compress(Codec.LZ4, data[61:]))
        data = with_field(
            with_field(data[:61] + payload, 8, ">i", 49 + len(payload)), 21, ">h", int(Codec.LZ4)
        )
    result = validate(data)
    assert [(r.offset, r.value) for r in read_records(result.buffer)] == [
        (100, b"0"),
        (101, b"7"),
        (102, b"7"),
    ]
    verify_crc(result.buffer, 0, result.batches[0])


def test_compacted_topics_refuse_records_without_a_key_and_name_them() -> None:
    data = build_batch([(NOW, b"k", b"1"), (NOW, None, b"2"), (NOW, b"k", b"3"), (NOW, None, b"4")])
    error = refused(data, compacted=True)
    assert isinstance(error, RecordErrors)
    assert error.code is ErrorCode.INVALID_RECORD
    assert [each.index for each in error.errors] == [1, 3]
    assert "without key" in error.errors[0].message
    assert validate(data, compacted=False).last_offset == 103


@pytest.mark.parametrize(
    ("shift", "before", "after", "accepted"),
    [
        (-10, 10, 0, True),
        (-11, 10, 0, False),
        (10, 0, 10, True),
        (11, 0, 10, False),
        (0, 0, 0, True),
    ],
)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_timestamps_must_lie_around_now(
    shift: int, before: int, after: int, accepted: bool, codec: Codec
) -> None:
    data = build_batch([(NOW, None, b"fine"), (NOW + shift, None, b"?"), (-1, None, b"unset")], codec=codec)
    if accepted:
        validate(data, before_max_ms=before, after_max_ms=after)
        return
    error = refused(data, before_max_ms=before, after_max_ms=after)
    assert isinstance(error, RecordErrors)
    assert error.code is ErrorCode.INVALID_TIMESTAMP
    assert [each.index for each in error.errors] == [1]
    assert f"within [{NOW - before}, {NOW + after}]" in error.errors[0].message


def test_timestamps_do_not_matter_where_the_broker_sets_them() -> None:
    data = build_batch([(1, None, b"ancient")])
    validate(data, timestamp_type=TimestampType.LOG_APPEND_TIME, before_max_ms=0, after_max_ms=0)


def test_producers_may_not_claim_the_brokers_timestamp_type() -> None:
    data = three(timestamp_type=TimestampType.LOG_APPEND_TIME, append_time_ms=NOW)
    error = refused(data, timestamp_type=TimestampType.LOG_APPEND_TIME)
    assert error.code is ErrorCode.INVALID_TIMESTAMP
    # As in Kafka, a topic with create time takes the claim for create time and stores it as such.
    result = validate(data)
    assert result.batches[0].timestamp_type is TimestampType.CREATE_TIME


def test_errors_of_many_records_are_bounded() -> None:
    error = refused(build_batch([(NOW, None, b"")] * (MAX_RECORD_ERRORS + 500)), compacted=True)
    assert isinstance(error, RecordErrors)
    assert len(error.errors) == MAX_RECORD_ERRORS
    assert str(MAX_RECORD_ERRORS + 500) in error.message
    assert pickle.loads(pickle.dumps(error)).errors == error.errors


@pytest.mark.parametrize(
    ("position", "layout", "value", "words"),
    [
        (23, ">i", -1, "offset range"),
        (23, ">i", 1, "Inconsistent batch offset range"),
        (57, ">i", 0, "Invalid reported count for record batch: 0"),
        (57, ">i", -4, "Invalid reported count for record batch: -4"),
        (57, ">i", 2, "Inconsistent batch offset range"),
        (21, ">h", 0x20, "control records"),
    ],
)
def test_headers_that_contradict_themselves_are_refused(
    position: int, layout: str, value: int, words: str
) -> None:
    error = refused(with_field(three(), position, layout, value))
    assert error.code is ErrorCode.INVALID_RECORD
    assert words in error.message


@pytest.mark.parametrize(("declared", "words"), [(2, "remain"), (4, "ends before"), (1000, "cannot hold")])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_count_that_is_not_that_of_the_records_is_refused(declared: int, words: str, codec: Codec) -> None:
    data = with_field(with_field(three(codec=codec), 57, ">i", declared), 23, ">i", declared - 1)
    error = refused(data)
    assert error.code is ErrorCode.INVALID_RECORD
    assert words in error.message


def test_a_producer_needs_a_sequence_number() -> None:
    error = refused(three(producer_id=7, producer_epoch=0))
    assert error.code is ErrorCode.INVALID_RECORD
    assert "producerId 7" in error.message
    validate(three(producer_id=7, producer_epoch=0, base_sequence=0))


def test_clients_send_one_batch_that_starts_at_offset_zero() -> None:
    assert refused(b"").code is ErrorCode.INVALID_RECORD
    assert refused(three() + three()).code is ErrorCode.INVALID_RECORD
    moved = bytearray(three())
    struct.pack_into(">q", moved, 0, 3)
    assert "should be 0" in refused(moved).message


def test_a_wrong_checksum_is_corruption() -> None:
    data = bytearray(three())
    data[-1] ^= 1
    assert refused(data).code is ErrorCode.CORRUPT_MESSAGE


def test_batches_above_the_limit_are_too_large_before_and_after_rewriting() -> None:
    data = build_batch([(NOW, None, bytes(5000))], codec=Codec.GZIP)
    assert refused(data, max_message_bytes=len(data) - 1).code is ErrorCode.MESSAGE_TOO_LARGE
    validate(data, max_message_bytes=len(data))
    error = refused(data, max_message_bytes=len(data), codec_target=Codec.NONE)
    assert error.code is ErrorCode.MESSAGE_TOO_LARGE
    assert str(len(data)) in error.message


def test_what_does_not_decompress_is_an_invalid_record() -> None:
    data = three(codec=Codec.GZIP)
    broken = with_field(data, len(data) - 20, ">q", 0x0123456789)
    assert refused(broken).code is ErrorCode.INVALID_RECORD
    bomb = build_batch([(NOW, None, bytes(10_000_000))], codec=Codec.ZSTD)
    assert refused(bomb, max_decompressed_bytes=1_000_000).code is ErrorCode.INVALID_RECORD


def test_codecs_that_do_not_exist_are_unsupported() -> None:
    assert refused(with_field(three(), 21, ">h", 5)).code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_the_coordinator_writes_markers_that_keep_their_form() -> None:
    marker = build_end_transaction_marker(
        EndTransactionMarker(ControlType.COMMIT, 3), producer_id=4, producer_epoch=1, timestamp=NOW
    )
    assert refused(marker).code is ErrorCode.INVALID_RECORD
    result = validate(marker, origin=AppendOrigin.COORDINATOR, codec_target=Codec.LZ4)
    (header,) = result.batches
    assert (header.codec, header.is_control, header.base_offset) == (Codec.NONE, True, 100)


def test_other_origins_may_append_several_batches() -> None:
    result = validate(
        three() + three(codec=Codec.GZIP), origin=AppendOrigin.COORDINATOR, codec_target=Codec.LZ4
    )
    assert [header.base_offset for header in result.batches] == [100, 103]
    assert {header.codec for header in result.batches} == {Codec.LZ4}
    assert (result.last_offset, result.offset_of_max_timestamp) == (105, 102)


def test_produce_requests_carry_exactly_one_batch() -> None:
    assert check_produce_records(three(), 9).count == 3
    for data in (None, b"", three()[:-1], three() + three()):
        with pytest.raises(KafkaError) as caught:
            check_produce_records(data, 9)
        assert caught.value.code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize(
    ("magic", "code"), [(0, "INVALID_RECORD"), (1, "INVALID_RECORD"), (3, "CORRUPT_MESSAGE")]
)
def test_other_record_formats_are_not_produced(magic: int, code: str) -> None:
    data = bytearray(three())
    data[16] = magic
    with pytest.raises(KafkaError) as caught:
        check_produce_records(data, 9)
    assert caught.value.code.name == code


def test_zstd_needs_produce_version_7() -> None:
    zstd = three(codec=Codec.ZSTD)
    assert check_produce_records(zstd, 7).codec is Codec.ZSTD
    with pytest.raises(KafkaError) as caught:
        check_produce_records(zstd, 6)
    assert caught.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@given(
    records=record_runs(base=0, max_size=20),
    compacted=st.booleans(),
    before=st.integers(0, 2**51),
    after=st.integers(0, 2**51),
    now=st.integers(0, 2**50),
)
def test_records_are_judged_as_the_rules_say(
    records: list[ModelRecord], compacted: bool, before: int, after: int, now: int
) -> None:
    bad = {
        index
        for index, record in enumerate(records)
        if (compacted and record.key is None)
        or (record.timestamp != -1 and not now - before <= record.timestamp <= now + after)
    }
    data = build_batch([Record(r.offset, r.timestamp, r.key, r.value, r.headers) for r in records])
    rules = {"compacted": compacted, "before_max_ms": before, "after_max_ms": after, "now_ms": now}
    if not bad:
        assert validate(data, **rules).max_timestamp == max(record.timestamp for record in records)
        return
    error = refused(data, **rules)
    assert isinstance(error, RecordErrors)
    assert {each.index for each in error.errors} == bad


def outcome(data: Any, rules: dict[str, Any]) -> Any:
    try:
        found = validate(data, **rules)
    except KafkaError as error:
        return error.code, error.message
    return bytes(found.buffer), *found[1:]


@pytest.mark.slow
@given(
    records=record_runs(base=0),
    producer=st.sampled_from([(-1, -1, -1), (7, 0, 0), (7, 1, -1)]),
    codec=st.sampled_from([Codec.NONE, Codec.NONE, Codec.LZ4]),
    damage=st.none() | st.tuples(st.integers(0, 200), st.integers(0, 255), st.booleans()),
    more=st.binary(max_size=3),
    rules=st.fixed_dictionaries(
        {},
        optional={
            "compacted": st.booleans(),
            "before_max_ms": st.integers(0, 2**51),
            "now_ms": st.integers(0, 2**50),
            "max_message_bytes": st.integers(60, 300),
            "timestamp_type": st.sampled_from(TimestampType),
            "codec_target": st.sampled_from([None, Codec.NONE, Codec.LZ4]),
            "origin": st.sampled_from([AppendOrigin.CLIENT, AppendOrigin.COORDINATOR]),
        },
    ),
)
@settings(max_examples=400)
def test_the_kernel_takes_by_itself_only_what_the_rules_take(
    records: list[ModelRecord],
    producer: tuple[int, int, int],
    codec: Codec,
    damage: tuple[int, int, bool] | None,
    more: bytes,
    rules: dict[str, Any],
) -> None:
    """It leaves alone what it may not write, so that is judged by the rules in Python."""
    producer_id, epoch, sequence = producer
    data = bytearray(
        build_batch(
            [Record(r.offset, r.timestamp, r.key, r.value, r.headers) for r in records],
            codec=codec,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
    )
    if damage is not None:
        position, value, hidden = damage
        data[position % len(data)] = value
        if hidden:
            struct.pack_into(">I", data, 17, compute_crc(data, 0, len(data)))
    data += more
    before = bytes(data)
    by_rules = outcome(before, rules)
    assert outcome(data, rules) == by_rules
    assert isinstance(by_rules[0], bytes) or data == before
