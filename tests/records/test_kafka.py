"""Apache Kafka's own classes read, write, validate and compact batches, and come to the same result."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from ottla.protocol.errors import KafkaError
from ottla.records.batch import (
    BatchHeader,
    Codec,
    Record,
    TimestampType,
    compute_crc,
    offset_of_max_timestamp,
    read_records,
    verify_crc,
)
from ottla.records.builder import build_batch
from ottla.records.compaction import OffsetMap, empty_batch, filter_batch
from ottla.records.compression import LEVEL_RANGES
from ottla.records.control import build_end_transaction_marker, build_quorum_batch
from ottla.records.validation import AppendOrigin, RecordErrors, validate_and_assign_offsets
from tests.records.kafka_oracle import RecordsOracle, decoded, records_oracle
from tests.records.model import varint
from tests.records.test_control import MESSAGES, ControlType, EndTransactionMarker

pytestmark = pytest.mark.kafka

NOW = 1_700_000_000_000
TYPES = {TimestampType.CREATE_TIME: "CreateTime", TimestampType.LOG_APPEND_TIME: "LogAppendTime"}


@pytest.fixture(scope="module")
def oracle() -> Iterator[RecordsOracle]:
    with records_oracle() as started:
        yield started


def random_records(chance: random.Random, base: int = 0, *, gaps: bool = False) -> list[Record]:
    records = []
    offset = base
    for _ in range(chance.randint(1, 25)):
        offset += chance.randint(0, 5) if gaps else 0
        headers = [
            (chance.choice(["", "h", "schlüssel"]), chance.choice([None, b"", chance.randbytes(5)]))
            for _ in range(chance.choice([0, 0, 0, 1, 3]))
        ]
        records.append(
            Record(
                offset,
                NOW + chance.randint(-1000, 1000),
                chance.choice([None, b"", b"a", b"bb", b"key-%d" % chance.randint(0, 9)]),
                chance.choice([None, b"", b"text " * chance.randint(0, 100), chance.randbytes(200)]),
                headers,
            )
        )
        offset += 1
    return records


def described(records: list[Record]) -> list[dict[str, Any]]:
    return [
        {"offset": r.offset, "timestamp": r.timestamp, "key": r.key, "value": r.value, "headers": r.headers}
        for r in records
    ]


def read_by_kafka(oracle: RecordsOracle, data: bytes | bytearray | memoryview) -> dict[str, Any]:
    answer = oracle.ask("read", data=data)
    assert "error" not in answer, answer
    (batch,) = answer["batches"]
    return batch  # type: ignore[no-any-return]


def records_in(batch: dict[str, Any]) -> list[Record]:
    return [
        Record(
            each["offset"],
            each["timestamp"],
            decoded(each["key"]),
            decoded(each["value"]),
            [(key, decoded(value)) for key, value in each["headers"]],
            each["sequence"],
        )
        for each in batch["records"]
    ]


def assert_same_view(oracle: RecordsOracle, data: bytes | bytearray | memoryview) -> None:
    """Kafka reads from these bytes exactly what we do."""
    theirs = read_by_kafka(oracle, data)
    header = BatchHeader.parse(data)
    verify_crc(data, 0, header)
    assert records_in(theirs) == read_records(data)
    assert theirs["baseOffset"] == header.base_offset
    assert theirs["lastOffset"] == header.last_offset
    assert theirs["leaderEpoch"] == header.leader_epoch
    assert theirs["maxTimestamp"] == header.max_timestamp
    assert theirs["timestampType"] == TYPES[header.timestamp_type]
    assert theirs["producerId"] == header.producer_id
    assert theirs["producerEpoch"] == header.producer_epoch
    assert theirs["baseSequence"] == header.base_sequence
    assert theirs["lastSequence"] == header.last_sequence
    assert theirs["transactional"] == header.is_transactional
    assert theirs["control"] == header.is_control
    assert theirs["codec"] == header.codec
    assert theirs.get("deleteHorizon") == header.delete_horizon_ms
    if max((r.timestamp for r in read_records(data)), default=-1) == header.max_timestamp:
        assert theirs["offsetOfMaxTimestamp"] == offset_of_max_timestamp(data, 0, header)


@pytest.mark.parametrize(
    ("codec", "level"),
    [(codec, None) for codec in Codec]
    + [(codec, level) for codec, (low, high) in LEVEL_RANGES.items() for level in (low, 6, high)],
)
def test_kafka_reads_what_we_write(oracle: RecordsOracle, codec: Codec, level: int | None) -> None:
    chance = random.Random(f"{codec} {level}")
    for _ in range(10):
        base = chance.randrange(2**40)
        records = random_records(chance, base, gaps=True)
        append_time = chance.random() < 0.3
        data = build_batch(
            records,
            base_offset=base,
            codec=codec,
            level=level,
            leader_epoch=chance.randint(-1, 9),
            producer_id=12,
            producer_epoch=3,
            base_sequence=chance.choice([0, 2**31 - 5]),
            transactional=chance.random() < 0.5,
            delete_horizon_ms=chance.choice([None, NOW]),
            timestamp_type=TimestampType(append_time),
            append_time_ms=NOW + 5,
        )
        assert_same_view(oracle, data)
    # More than one block of every codec.
    big = [(NOW, b"%d" % i, b"%d " % (i * i) * 40) for i in range(2000)]
    assert_same_view(oracle, build_batch(big, codec=codec, level=level))


@pytest.mark.parametrize("codec", list(Codec))
def test_we_read_and_write_what_kafka_writes(oracle: RecordsOracle, codec: Codec) -> None:
    chance = random.Random(int(codec))
    for _ in range(20):
        base = chance.randrange(2**40)
        records = random_records(chance, base, gaps=True)
        timestamp_type = chance.choice(list(TimestampType))
        transactional = chance.random() < 0.5
        answer = oracle.ask(
            "build",
            codec=int(codec),
            timestampType=TYPES[timestamp_type],
            baseOffset=base,
            appendTime=NOW + 1,
            producerId=5,
            producerEpoch=6,
            baseSequence=7,
            transactional=transactional,
            leaderEpoch=8,
            records=described(records),
        )
        data = decoded(answer["data"])
        assert data is not None
        assert_same_view(oracle, data)
        if codec in (Codec.NONE, Codec.LZ4):
            ours = build_batch(
                records,
                base_offset=base,
                codec=codec,
                timestamp_type=timestamp_type,
                append_time_ms=NOW + 1,
                producer_id=5,
                producer_epoch=6,
                base_sequence=7,
                transactional=transactional,
                leader_epoch=8,
            )
            if codec is Codec.NONE:
                assert ours == data


def test_kafka_reads_our_control_records(oracle: RecordsOracle) -> None:
    for kind in (ControlType.ABORT, ControlType.COMMIT):
        marker = build_end_transaction_marker(
            EndTransactionMarker(kind, 3), producer_id=4, producer_epoch=5, timestamp=NOW, base_offset=6
        )
        assert_same_view(oracle, marker)
        assert read_by_kafka(oracle, marker)["records"][0]["controlType"] == kind.name
    for kind, message in MESSAGES:
        data = build_quorum_batch([message], timestamp=NOW, leader_epoch=2)
        assert_same_view(oracle, data)
        assert read_by_kafka(oracle, data)["records"][0]["controlType"] == kind.name


def verdict(data: bytes, rules: dict[str, Any]) -> tuple[str, Any]:
    try:
        return "ok", validate_and_assign_offsets(data, first_offset=1000, leader_epoch=9, now_ms=NOW, **rules)
    except RecordErrors as error:
        return error.code.name, [each.index for each in error.errors]
    except KafkaError as error:
        return error.code.name, error.message


def verdict_of_kafka(oracle: RecordsOracle, data: bytes, rules: dict[str, Any]) -> dict[str, Any]:
    target = rules["codec_target"]
    return oracle.ask(
        "validate",
        data=data,
        firstOffset=1000,
        leaderEpoch=9,
        now=NOW,
        timestampType=TYPES[rules["timestamp_type"]],
        before=rules["before_max_ms"],
        after=rules["after_max_ms"],
        compacted=rules["compacted"],
        codec=None if target is None else int(target),
        origin=rules["origin"].name,
    )


def random_rules(chance: random.Random) -> dict[str, Any]:
    return {
        "timestamp_type": chance.choice(list(TimestampType)),
        "before_max_ms": chance.choice([2**63 - 1, 900, 0]),
        "after_max_ms": chance.choice([2**63 - 1, 3_600_000, 900]),
        "compacted": chance.random() < 0.3,
        "codec_target": chance.choice([None, None, *Codec]),
        "origin": AppendOrigin.CLIENT,
    }


@pytest.mark.parametrize("seed", range(8))
def test_kafka_judges_sound_batches_as_we_do(oracle: RecordsOracle, seed: int) -> None:
    chance = random.Random(seed)
    accepted = 0
    for _ in range(40):
        producer_id = chance.choice([-1, 4])
        data = build_batch(
            random_records(chance),
            codec=chance.choice(list(Codec)),
            producer_id=producer_id,
            producer_epoch=1,
            base_sequence=chance.choice([-1, 0, 5]),
            transactional=producer_id >= 0 and chance.random() < 0.3,
            control=chance.random() < 0.1,
            timestamp_type=chance.choice([TimestampType.CREATE_TIME, *TimestampType]),
            append_time_ms=NOW,
        )
        rules = random_rules(chance)
        code, detail = verdict(data, rules)
        theirs = verdict_of_kafka(oracle, data, rules)
        assert theirs.get("error", "ok") == code, (theirs, detail, rules)
        if code != "ok":
            if isinstance(detail, list):
                assert theirs["indices"] == detail
            continue
        accepted += 1
        kept = decoded(theirs["data"])
        assert kept is not None
        assert theirs["maxTimestamp"] == detail.max_timestamp
        assert theirs["nextOffset"] == detail.last_offset + 1
        if detail.batches[0].codec is Codec.NONE or len(detail.buffer) == len(data):
            assert kept == bytes(detail.buffer)
        assert read_records(kept) == read_records(detail.buffer)
        assert_same_view(oracle, detail.buffer)
    assert accepted


def damaged(chance: random.Random) -> bytes:
    """A batch with arbitrary damage behind a checksum that holds."""
    data = bytearray(build_batch(random_records(chance), producer_id=4, producer_epoch=1, base_sequence=0))
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(21, len(data))
        match chance.randrange(4):
            case 0:
                data[at] = chance.randrange(256)
            case 1:
                del data[at : at + chance.randint(1, 4)]
            case 2:
                data[at:at] = varint(chance.choice([0, 1, -1, 5, -5, 63, 64, -64, 2**20]))
            case _:
                data[chance.randrange(21, 61)] ^= 1 << chance.randrange(8)
        if len(data) < 61:
            data += bytes(61 - len(data))
    data[:8] = bytes(8)
    data[22] &= 0xF8
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">I", data, 17, compute_crc(data, 0, len(data)))
    return bytes(data)


@pytest.mark.parametrize("seed", range(10))
def test_kafka_judges_damaged_batches_as_we_do(oracle: RecordsOracle, seed: int) -> None:
    chance = random.Random(100 + seed)
    for _ in range(80):
        data = damaged(chance)
        rules = random_rules(chance) | {"codec_target": None}
        code, detail = verdict(data, rules)
        theirs = verdict_of_kafka(oracle, data, rules)
        expected = theirs.get("error", "ok")
        if expected == "UNKNOWN_SERVER_ERROR":
            # Where Kafka's reader fails in a way that it has no code for, the record is invalid to us.
            expected = "INVALID_RECORD"
        assert code == expected, (theirs, detail, rules)
        if code == "ok":
            kept = decoded(theirs["data"])
            assert kept is not None
            assert theirs["maxTimestamp"] == detail.max_timestamp
            deltas = [record.offset - 1000 for record in read_records(kept)]
            if deltas == list(range(len(deltas))) and kept[61:] == bytes(detail.buffer)[61:]:
                assert kept == bytes(detail.buffer)
            # Kafka appends offset deltas that do not count up as they are; we renumber them.
            assert [record.offset for record in read_records(detail.buffer)] == list(
                range(1000, 1000 + len(deltas))
            )
            assert_same_view(oracle, detail.buffer)


@pytest.mark.parametrize("seed", range(6))
def test_kafka_compacts_as_we_do(oracle: RecordsOracle, seed: int) -> None:
    chance = random.Random(200 + seed)
    for _ in range(40):
        base = chance.randrange(100)
        records = random_records(chance, base, gaps=True)
        codec = chance.choice(list(Codec))
        data = build_batch(
            records,
            base_offset=base,
            last_offset=records[-1].offset + chance.randint(0, 3),
            codec=codec,
            leader_epoch=3,
            producer_id=6,
            producer_epoch=2,
            base_sequence=9,
            transactional=chance.random() < 0.5,
            delete_horizon_ms=chance.choice([None, NOW - 1, NOW + 1]),
            timestamp_type=chance.choice(list(TimestampType)),
            append_time_ms=NOW - 50,
        )
        newest = {
            r.key: r.offset + chance.choice([0, 0, 7])
            for r in records
            if r.key is not None and chance.random() < 0.7
        }
        latest = chance.choice([-1, records[len(records) // 2].offset, 10**6])
        marker = chance.random() < 0.2
        header = BatchHeader.parse(data)
        offset_map = OffsetMap(24 * 100)
        for key, offset in newest.items():
            offset_map.put(key, offset)
        offset_map.latest_offset = latest
        ours = filter_batch(
            data,
            0,
            header,
            offset_map,
            now_ms=NOW,
            delete_retention_ms=1000,
            marker_of_empty_transaction=marker,
        )
        answer = oracle.ask(
            "filter",
            data=data,
            map=[[key, offset] for key, offset in newest.items()],
            latestOffset=latest,
            now=NOW,
            deleteRetention=1000,
            marker=marker,
            retention="RETAIN_EMPTY",
        )
        assert "error" not in answer, answer
        theirs = decoded(answer["data"])
        assert theirs is not None
        if ours is None:
            assert theirs == empty_batch(header)
            continue
        if codec in (Codec.NONE, Codec.SNAPPY, Codec.LZ4) or bytes(ours) == data:
            assert bytes(ours)[:8] == theirs[:8]
        if codec is Codec.NONE or bytes(ours) == data:
            assert bytes(ours) == theirs
        assert read_records(ours) == read_records(theirs)
        assert_same_view(oracle, ours)
