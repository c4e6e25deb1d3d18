"""Record batches: decoding, building and validating 100-byte records, beside aiokafka's compiled code.

The peer of decoding reads the same fields as the columns, as a program that uses the data does; one line also
shows the peer when its fields are not read. Each call works on about 10 MB, a fetch of
one batch of 1 MB from each of ten partitions.
"""

import zlib
from functools import partial

from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from crc32c import crc32c
from tests.support.visible_records import decode_to_arrow, read_visible

from bench.harness import Row, alone, compare, markdown
from ottla.records.batch import BatchHeader, Codec
from ottla.records.builder import BatchBuilder, build_batch
from ottla.records.compaction import OffsetMap, filter_batch, map_batch
from ottla.records.validation import validate_and_assign_offsets

NOW = 1_700_000_000_000
RECORDS = 9_000
PARTITIONS = 10
PEER = "aiokafka (compiled)"
ROWS = [(NOW + i, b"key-%06d" % i, b"v" * 90) for i in range(RECORDS)]
PLAIN = build_batch(ROWS)
MIXED = build_batch([(stamp, key, b"%d " % zlib.crc32(key) * 9) for stamp, key, _ in ROWS], codec=Codec.LZ4)
TOTAL = RECORDS * PARTITIONS


def aiokafka_rows(data: bytes) -> None:
    for _ in range(PARTITIONS):
        batch = DefaultRecordBatch(data)
        batch.validate_crc()
        fields = [(r.key, r.value, r.headers, r.offset, r.timestamp, r.timestamp_type) for r in batch]
        assert len(fields) == RECORDS


def aiokafka_objects() -> None:
    for _ in range(PARTITIONS):
        batch = DefaultRecordBatch(PLAIN)
        batch.validate_crc()
        assert len(list(batch)) == RECORDS


def arrow(data: bytes) -> None:
    for _ in range(PARTITIONS):
        assert decode_to_arrow([data]).num_rows == RECORDS


def objects() -> None:
    for _ in range(PARTITIONS):
        assert len(read_visible(PLAIN)) == RECORDS


def build() -> None:
    for _ in range(PARTITIONS):
        builder = BatchBuilder(limit_bytes=1 << 21)
        append = builder.append
        for stamp, key, value in ROWS:
            append(stamp, key, value)
        builder.build()


def aiokafka_build() -> None:
    for _ in range(PARTITIONS):
        builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 21)
        append = builder.append
        for offset, (stamp, key, value) in enumerate(ROWS):
            append(offset, stamp, key, value, [])
        builder.build()


def validate(batches: list[bytearray]) -> None:
    for batch in batches:
        batch[:8] = bytes(8)
        validate_and_assign_offsets(batch, first_offset=5, leader_epoch=1, now_ms=NOW, after_max_ms=3_600_000)


def checksum(batches: list[bytearray]) -> None:
    for batch in batches:
        crc32c(batch)


def compact() -> None:
    header = BatchHeader.parse(PLAIN)
    offset_map = OffsetMap(64 << 20)
    for _ in range(PARTITIONS):
        map_batch(PLAIN, 0, header, offset_map)
        filter_batch(PLAIN, 0, header, offset_map, now_ms=NOW, delete_retention_ms=1)


def rows() -> list[Row]:
    megabytes = len(PLAIN) * PARTITIONS / 1e6
    batches = [bytearray(PLAIN) for _ in range(PARTITIONS)]
    return [
        compare(
            "decode to Arrow",
            TOTAL,
            "records/s",
            partial(arrow, PLAIN),
            partial(aiokafka_rows, PLAIN),
            peer_name=PEER,
            target="≥ 10",
        ),
        compare(
            "decode lz4 to Arrow",
            TOTAL,
            "records/s",
            partial(arrow, MIXED),
            partial(aiokafka_rows, MIXED),
            peer_name=PEER,
        ),
        compare(
            "decode to Arrow, peer's fields not read",
            TOTAL,
            "records/s",
            partial(arrow, PLAIN),
            aiokafka_objects,
            peer_name=PEER,
        ),
        compare(
            "decode to objects", TOTAL, "records/s", objects, aiokafka_objects, peer_name=PEER, target="≥ 1"
        ),
        compare("build", TOTAL, "records/s", build, aiokafka_build, peer_name=PEER, target="≥ 1"),
        compare(
            "validate and assign offsets",
            megabytes,
            "MB/s",
            partial(validate, batches),
            partial(checksum, batches),
            peer_name="bare CRC32C",
        ),
        alone("map and filter for compaction", megabytes, "MB/s", compact),
    ]


if __name__ == "__main__":
    print(markdown(rows()))
