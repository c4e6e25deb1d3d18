"""Messages of magic 0 and 1, as Apache Kafka wrote them, and the record batches that say the same."""

from __future__ import annotations

import base64
import itertools
import struct
import zlib

import cramjam
import pytest

from ottla.log.format_upgrade import old_segments, upgrade_segment
from ottla.protocol.errors import KafkaError
from ottla.records.batch import iter_batches, read_records
from ottla.records.builder import build_batch
from ottla.records.compression import compress
from ottla.records.legacy import can_follow, convert, read_message, unwrap
from ottla.records.types import Codec, TimestampType
from ottla.runtime.disk import write_file
from ottla.sim.disk import SimDisk
from ottla.sim.disk_faults import SimCrash

# Offset 0, key "k", value "v0".
PLAIN_0 = base64.b64decode("AAAAAAAAAAAAAAARFldksQAAAAAAAWsAAAACdjA=")
PLAIN_1 = base64.b64decode("AAAAAAAAAAAAAAAZ9nShxQEAAAABoemqnRoAAAABawAAAAJ2MA==")
# Offsets 20 to 39, values "v0" to "v19", with gzip.
GZIP_0 = base64.b64decode(
    "AAAAAAAAACcAAAEZVqOqfAAB/////wAAAQsfiwgAAAAAAAD/Y2AAAxEgFhQLT9kI5jFmAwmmMgOIHIMoSDIxIEQdWdIQKikGkvwRyToXWdII"
    "KikOkuyPM+VGljSGSkqAJAWtFqxAljSBSkqCJNNsJ9ghS5pCJaVAkv9NDrYgS5pBJaVBkh3GH4WQJc2hkjIgSYmeN83IkhZQSVmQZH73HVFk"
    "SUuopBwQC73kia1GSDKXGcKCSB4kO4879y2KLCyMFECy7Ew24SiysEBSBMkWsPIcRJGFhZISSPZd4swkFFlYMCmDZGemrfyCIgsLJxWQLEP+"
    "Dz8UWVhAqYJkyzNO3ECRhYWUGkj2+fWrniiysKACJQWhCRee3keRtQQAlc6xDU4CAAA="
)
GZIP_1 = base64.b64decode(
    "AAAAAAAAACcAAAEuNAv56wEBAAABoemqoGv/////AAABGB+LCAAAAAAAAP9jYIADSc5zD/kZgQzGhS9XLcgGMUAEU5kBVAFITrLu5MWZ2BQZ"
    "QhUxgRQ9P9CgjE2REVQRM0jRhOMbtmJTZAxVxAJSxLdYVQybIhOoIlaQosolog3YFJlCFbGBFD1Y62KFTZEZVBE7SNH0VSVrsCkyhyriACli"
    "F820xabIAqqIE6SoQChyNTZFllBFXEAsdfRUVCmmIuYyQ1iQc4NUbTqb9RirKliY84BUaR+xjsSqChbovCBVMYe5z2NVBQt1PpCqQ8vn5WBV"
    "BQt2fpCqrQvW/cKqChbuAiBVOiv/O2BVBQt4QZCq6HXnr2FVBQt5IZCq04KX3LGqggW9MEjVHrFHF7GqsgQAIyw3cu4CAAA="
)


def message(
    offset: int,
    value: bytes,
    *,
    magic: int = 1,
    attributes: int = 0,
    timestamp: int = 7,
    key: bytes | None = None,
) -> bytes:
    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", timestamp) if magic else b"")
    body += struct.pack(">i", -1) if key is None else struct.pack(">i", len(key)) + key
    body += struct.pack(">i", len(value)) + value
    body = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", offset, len(body)) + body


def records_of(data: bytes) -> list[tuple[int, int, bytes | None, bytes | None]]:
    return [
        (r.offset, r.timestamp, r.key and bytes(r.key), r.value and bytes(r.value))
        for position, _ in iter_batches(data)
        for r in read_records(data, position)
    ]


@pytest.mark.parametrize(("data", "timestamp"), [(PLAIN_0, -1), (PLAIN_1, 1794921635098)])
def test_a_message_becomes_a_batch(data: bytes, timestamp: int) -> None:
    found, end = read_message(memoryview(data))
    assert end == len(data)
    assert records_of(convert([found], Codec.NONE)) == [(0, timestamp, b"k", b"v0")]


@pytest.mark.parametrize(("data", "timestamp"), [(GZIP_0, -1), (GZIP_1, 1794921635947)])
def test_compressed_messages_keep_their_offsets_and_codec(data: bytes, timestamp: int) -> None:
    wrapper, _ = read_message(memoryview(data))
    batch = convert(unwrap(wrapper), wrapper.codec)
    ((_, header),) = iter_batches(batch)
    assert (header.codec, header.base_offset, header.last_offset) == (Codec.GZIP, 20, 39)
    found = records_of(batch)
    assert [offset for offset, *_ in found] == list(range(20, 40))
    assert [value for *_, value in found] == [b"v%d" % number for number in range(20)]
    assert found[-1][1] == timestamp


@pytest.mark.parametrize("codec", [Codec.SNAPPY, Codec.LZ4])
def test_a_compacted_wrapper_of_magic_1_counts_from_its_end(codec: Codec) -> None:
    inner = message(0, b"a") + message(2, b"c") + message(5, b"f")
    wrapper = message(105, bytes(compress(codec, inner)), attributes=int(codec))
    found = unwrap(read_message(memoryview(wrapper))[0])
    assert [each.offset for each in found] == [100, 102, 105]
    assert [offset for offset, *_ in records_of(convert(found, codec))] == [100, 102, 105]


def test_append_time_is_that_of_the_wrapper() -> None:
    inner = message(0, b"a", timestamp=1) + message(1, b"b", timestamp=2)
    wrapper = message(1, bytes(compress(Codec.GZIP, inner)), attributes=1 | 8, timestamp=99)
    found = unwrap(read_message(memoryview(wrapper))[0])
    batch = convert(found, Codec.GZIP)
    ((_, header),) = iter_batches(batch)
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert [timestamp for _, timestamp, *_ in records_of(batch)] == [99, 99]


def test_lz4_of_magic_0_has_a_wrong_checksum_of_its_header() -> None:
    frame = bytearray(compress(Codec.LZ4, message(3, b"a", magic=0) + message(4, b"b", magic=0)))
    frame[6] ^= 0xFF
    with pytest.raises(Exception, match=r"(?i)checksum|header|frame"):
        cramjam.lz4.decompress(bytes(frame))
    wrapper, _ = read_message(memoryview(message(4, bytes(frame), magic=0, attributes=3)))
    assert [each.offset for each in unwrap(wrapper)] == [3, 4]


def test_damage_is_an_error() -> None:
    damaged = bytearray(PLAIN_1)
    damaged[-1] ^= 1
    for data in (bytes(damaged), PLAIN_1[:-1], PLAIN_1[:10], message(0, b"x", attributes=7)):
        with pytest.raises(KafkaError):
            read_message(memoryview(data))


def test_what_cannot_be_in_one_batch_is_not() -> None:
    def read(data: bytes):
        return read_message(memoryview(data))[0]

    first = read(message(5, b"a"))
    assert can_follow([first], read(message(9, b"b", timestamp=8)))
    assert not can_follow([first], read(message(5, b"b")))
    assert not can_follow([first], read(message(9, b"b", attributes=8)))
    assert not can_follow([first], read(message(5 + (1 << 31), b"b")))
    append_time = read(message(5, b"a", attributes=8))
    assert not can_follow([append_time], read(message(6, b"b", attributes=8, timestamp=8)))


# A whole segment

SEGMENT = (
    PLAIN_1
    + b"".join(message(number, b"x" * 9000, timestamp=number) for number in range(1, 20))
    + GZIP_1
    + build_batch([(50, b"new", b"format")], base_offset=40)
)
PATH = "/data/orders-0/00000000000000000000.log"


def disk_with_segment(seed: int = 0) -> SimDisk:
    disk = SimDisk(seed=seed)
    disk.make_dirs("/data/orders-0")
    write_file(disk, PATH, SEGMENT)
    write_file(disk, PATH.replace(".log", ".index"), b"old")
    write_file(
        disk, "/data/orders-0/00000000000000000041.log", build_batch([(1, None, b"y")], base_offset=41)
    )
    disk.sync_all()
    return disk


def test_a_segment_is_rewritten_with_the_same_records() -> None:
    disk = disk_with_segment()
    assert old_segments(disk, "/data/orders-0") == [PATH]
    done = upgrade_segment(disk, PATH)
    data = disk.contents()[PATH]
    assert (done.records, done.size_before, done.size_after) == (40, len(SEGMENT), len(data))
    found = records_of(data)
    assert [offset for offset, *_ in found] == list(range(41))
    assert found[-1] == (40, 50, b"new", b"format")
    assert max(header.size for _, header in iter_batches(data)) < 80_000
    assert old_segments(disk, "/data/orders-0") == []
    assert not disk.exists(PATH.replace(".log", ".index"))


def test_a_damaged_segment_stays_as_it_is() -> None:
    disk = disk_with_segment()
    damaged = bytearray(SEGMENT)
    damaged[40_000] ^= 1
    write_file(disk, PATH, bytes(damaged))
    with pytest.raises(KafkaError, match=PATH):
        upgrade_segment(disk, PATH)
    assert disk.contents()[PATH] == bytes(damaged)
    assert disk.list_dir("/data/orders-0")[0] == "00000000000000000000.index"


def test_a_segment_that_ends_within_a_message_is_refused_unless_its_node_was_killed() -> None:
    """A length that is damaged looks like that as well, and what follows it must not be dropped."""
    for cut in (SEGMENT[:-7], SEGMENT[:-70], PLAIN_1 + b"\0" * 3):
        disk = disk_with_segment()
        write_file(disk, PATH, cut)
        with pytest.raises(KafkaError, match="bytes are no message"):
            upgrade_segment(disk, PATH)
        assert disk.contents()[PATH] == cut
        done = upgrade_segment(disk, PATH, may_be_torn=True)
        assert done.torn_size > 0
        found = records_of(disk.contents()[PATH])
        assert [offset for offset, *_ in found] == list(range(len(found)))


def test_an_old_format_in_the_middle_of_a_segment_is_found_by_a_thorough_look() -> None:
    disk = disk_with_segment()
    lowered = build_batch([(50, b"new", b"format")], base_offset=0) + message(1, b"old again")
    write_file(disk, PATH, lowered)
    assert old_segments(disk, "/data/orders-0") == []
    assert old_segments(disk, "/data/orders-0", thorough=True) == [PATH]
    upgrade_segment(disk, PATH)
    assert [value for *_, value in records_of(disk.contents()[PATH])] == [b"format", b"old again"]
    assert old_segments(disk, "/data/orders-0", thorough=True) == []


def test_a_crash_leaves_the_old_segment_or_the_new_one() -> None:
    whole = disk_with_segment()
    upgrade_segment(whole, PATH)
    new = whole.contents()[PATH]
    for operation in itertools.count():
        for seed in range(8):
            disk = disk_with_segment(seed)
            disk.crash_after(operation)
            try:
                upgrade_segment(disk, PATH)
                complete = True
            except SimCrash:
                complete = False
            disk = disk.after_crash(seed)
            assert disk.contents()[PATH] in (SEGMENT, new)
            if disk.contents()[PATH] == new:
                assert not disk.exists(PATH.replace(".log", ".index")), "the index is of the old segment"
        if complete:
            assert disk.contents()[PATH] == new
            return
