"""Two independent implementations read what we write and write what we read, with every codec."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

from ottla.records._kernel import murmur2, partition_for
from ottla.records.batch import BatchHeader, Codec, Record, read_records, verify_crc
from ottla.records.builder import build_batch
from tests.records.model import ModelRecord, record_runs, set_timestamps

READERS = [AioBatch, KafkaPythonBatch]
BUILDERS = [AioBuilder, KafkaPythonBuilder]
CODECS = list(Codec)


def shown(record: Any) -> tuple[Any, ...]:
    headers = tuple((key, None if value is None else bytes(value)) for key, value in record.headers)
    key = None if record.key is None else bytes(record.key)
    value = None if record.value is None else bytes(record.value)
    return record.offset, record.timestamp, key, value, headers


def expected(record: ModelRecord) -> tuple[Any, ...]:
    return record.offset, record.timestamp, record.key, record.value, record.headers


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("reader", READERS)
@given(records=record_runs(gaps=True, max_size=30), sequence=st.integers(0, 2**31 - 1))
@settings(max_examples=40)
def test_others_read_what_we_write(
    reader: Any, codec: Codec, records: list[ModelRecord], sequence: int
) -> None:
    built = build_batch(
        [Record(r.offset, r.timestamp, r.key, r.value, r.headers) for r in records],
        base_offset=records[0].offset,
        codec=codec,
        leader_epoch=4,
        producer_id=77,
        producer_epoch=3,
        base_sequence=sequence,
        transactional=True,
    )
    batch = reader(built)
    assert batch.validate_crc()
    assert batch.is_transactional
    assert not batch.is_control_batch
    assert (batch.producer_id, batch.base_offset) == (77, records[0].offset)
    assert [shown(record) for record in batch] == [expected(record) for record in records]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("builder", BUILDERS)
@given(
    records=record_runs(base=0, max_size=30, stamps=set_timestamps)
)  # aiokafka takes -1 for "not known yet"
@settings(max_examples=40)
def test_we_read_what_others_write(builder: Any, codec: Codec, records: list[ModelRecord]) -> None:
    made = builder(2, int(codec), 1, 55, 2, 17, 1 << 20)
    for record in records:
        made.append(record.offset, record.timestamp, record.key, record.value, list(record.headers))
    data = bytes(made.build())
    header = BatchHeader.parse(data)
    verify_crc(data, 0, header)
    # Both write small batches without compression where that is shorter.
    assert header.codec in (codec, Codec.NONE)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (55, 2, 17)
    assert header.is_transactional
    assert [shown(record) for record in read_records(data)] == [expected(record) for record in records]


@given(key=st.binary(max_size=64), partitions=st.integers(1, 1000))
def test_keys_go_to_the_same_partition(key: bytes, partitions: int) -> None:
    from aiokafka.partitioner import murmur2 as theirs

    assert murmur2(key) & 0xFFFFFFFF == theirs(key)
    assert partition_for(key, partitions) == (theirs(key) & 0x7FFFFFFF) % partitions


@pytest.mark.parametrize(
    ("key", "expected_hash"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"abc", 479470107),
    ],
)
def test_hashes_are_those_of_the_java_client(key: bytes, expected_hash: int) -> None:
    assert murmur2(key) == expected_hash
