"""Bytes made to break a reader: every path that takes them either works or raises a KafkaError."""

from __future__ import annotations

import contextlib
import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.batch import (
    BatchHeader,
    Codec,
    compute_crc,
    find_timestamp,
    iter_batches,
    payload_of,
    read_records,
)
from ottla.records.builder import build_batch
from ottla.records.compaction import OffsetMap, filter_batch, map_batch
from ottla.records.compression import compress
from ottla.records.control import read_control_records
from ottla.records.validation import AppendOrigin, check_produce_records, validate_and_assign_offsets
from tests.records.model import varint
from tests.support.rows import for_each
from tests.support.visible_records import decode_to_arrow, read_visible

LIMIT = 1 << 20
SMALL = [0, 1, 2, 3, 5, 6, 7, 63, 64, 127, 128, 255, 2**14, 2**21, 2**28, 2**31 - 1, 2**31, 2**32 - 1]


def seeds() -> list[bytes]:
    rows = [(1000 + i, b"key%d" % (i % 5) if i % 4 else None, b"v" * i if i % 3 else None) for i in range(40)]
    headed = [(*row, [(f"h{i}", b"x" * i) for i in range(3)]) for row in rows[:10]]
    made = [build_batch(rows, codec=codec) for codec in Codec]
    made += [build_batch(headed, codec=codec) for codec in (Codec.NONE, Codec.LZ4)]
    made.append(
        build_batch(
            rows[:3], transactional=True, control=True, producer_id=3, producer_epoch=0, delete_horizon_ms=5
        )
    )
    return made


SEEDS = seeds()


def resealed(data: bytearray) -> bytearray:
    """With a length and a checksum that hold, so that the damage gets past them."""
    if len(data) >= 61:
        struct.pack_into(">i", data, 8, len(data) - 12)
        struct.pack_into(">I", data, 17, compute_crc(data, 0, len(data)))
    return data


def exercise(data: bytes) -> None:
    """All that may be done to bytes from outside; only a KafkaError may come of it."""
    tolerated = contextlib.suppress(KafkaError)
    with tolerated:
        check_produce_records(data, 9)
    with tolerated:
        read_visible(data, aborted=[(3, 0)], max_decompressed_bytes=LIMIT)
    with tolerated:
        decoded = decode_to_arrow([data], aborted=[(3, 0)], max_decompressed_bytes=LIMIT)
        decoded.validate(full=True)
    for origin in (AppendOrigin.CLIENT, AppendOrigin.COORDINATOR):
        for target in (None, Codec.LZ4):
            with tolerated:
                result = validate_and_assign_offsets(
                    data,
                    first_offset=5,
                    leader_epoch=1,
                    now_ms=0,
                    codec_target=target,
                    max_decompressed_bytes=LIMIT,
                    origin=origin,
                )
                # What was accepted can be read, at the offsets that were assigned.
                assert result.first_offset == 5
                offsets = [record.offset for record in read_records(result.buffer)]
                if origin is AppendOrigin.CLIENT:
                    assert offsets == list(range(5, result.last_offset + 1))
    with tolerated:
        for pos, header in iter_batches(data):
            exercise_batch(data, pos, header)


def exercise_batch(data: bytes, pos: int, header: BatchHeader) -> None:
    tolerated = contextlib.suppress(KafkaError)
    with tolerated:
        read_records(data, pos, max_decompressed_bytes=LIMIT)
    with tolerated:
        payload_of(data, pos, header, max_decompressed_bytes=LIMIT)
    with tolerated, contextlib.suppress(ValueError):
        read_control_records(data, pos)
    with tolerated:
        find_timestamp(data, pos, header, 1020)
    offset_map = OffsetMap(24 * 64)
    with tolerated:
        map_batch(data, pos, header, offset_map, max_decompressed_bytes=LIMIT)
    for latest in (-1, 20, 2**62):
        offset_map.latest_offset = latest
        with tolerated:
            left = filter_batch(
                data,
                pos,
                header,
                offset_map,
                now_ms=7,
                delete_retention_ms=3,
                marker_of_empty_transaction=True,
                max_decompressed_bytes=LIMIT,
            )
            if left is not None:
                read_records(left)


@pytest.mark.parametrize("data", SEEDS)
def test_the_seeds_themselves_are_sound(data: bytes) -> None:
    exercise(data)
    assert read_records(data)


@for_each("seed", range(60))
def test_mutations_of_sound_batches_never_break_anything(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(25):
        data = bytearray(chance.choice(SEEDS))
        for _ in range(chance.randint(1, 6)):
            at = chance.randrange(len(data))
            match chance.randrange(5):
                case 0:
                    data[at] = chance.randrange(256)
                case 1:
                    data[at] ^= 1 << chance.randrange(8)
                case 2:
                    del data[at : at + chance.randint(1, 12)]
                case 3:
                    data[at:at] = varint(chance.choice([-1, 1]) * chance.choice(SMALL))
                case _:
                    data[at:at] = data[at : at + chance.randint(1, 40)]
            if not data:
                data = bytearray(1)
        exercise(bytes(data))
        exercise(bytes(resealed(data)))


@pytest.mark.parametrize("codec", list(Codec))
@given(
    numbers=st.lists(
        st.sampled_from([-1, 1]).flatmap(lambda sign: st.sampled_from(SMALL).map(sign.__mul__)), max_size=14
    ),
    tail=st.binary(max_size=20),
    count=st.sampled_from(SMALL),
)
@settings(max_examples=60)
def test_records_made_of_arbitrary_lengths(codec: Codec, numbers: list[int], tail: bytes, count: int) -> None:
    payload = b"".join(varint(number) for number in numbers) + tail
    data = bytearray(build_batch([], codec=codec)[:61]) + bytes(compress(codec, payload))
    struct.pack_into(">i", data, 57, min(count, 2**31 - 1))
    struct.pack_into(">i", data, 23, min(count, 2**31 - 1) - 1)
    exercise(bytes(resealed(data)))


@given(data=st.binary(max_size=200))
def test_noise(data: bytes) -> None:
    exercise(data)
    exercise(bytes(resealed(bytearray(data))))


@pytest.mark.parametrize("count", [2**31 - 1, 2**30, -1, -(2**31)])
def test_a_claimed_count_allocates_nothing(count: int) -> None:
    data = bytearray(build_batch([(0, b"k", b"v")]))
    struct.pack_into(">i", data, 57, count)
    resealed(data)
    with pytest.raises(KafkaError) as caught:
        read_records(data)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    exercise(bytes(data))


def test_varints_that_are_too_long_are_refused() -> None:
    sound = varint(6) + b"\0" * 6
    for body in (b"\x80\x80\x80\x80\x80\x00" + sound, b"\x0e\x00" + b"\x80" * 10 + b"\x00" * 5, b"\xff" * 40):
        data = bytearray(build_batch([])) + body
        struct.pack_into(">i", data, 57, 1)
        resealed(data)
        with pytest.raises(KafkaError) as caught:
            read_records(data)
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
        exercise(bytes(data))


def test_lengths_below_minus_one_mean_null_as_in_java() -> None:
    body = b"\0" + varint(0) + varint(0) + varint(-7) + varint(-(2**31)) + varint(0)
    data = bytearray(build_batch([])) + varint(len(body)) + body
    struct.pack_into(">i", data, 57, 1)
    struct.pack_into(">i", data, 23, 0)
    (record,) = read_records(resealed(data))
    assert (record.key, record.value) == (None, None)
