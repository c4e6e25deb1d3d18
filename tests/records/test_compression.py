"""The codecs: Kafka's dialects out, all accepted dialects in, and never more output than allowed."""

from __future__ import annotations

import contextlib
import gzip
import struct
import subprocess
import sys
import tracemalloc

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.compression import (
    DEFAULT_LEVELS,
    LEVEL_RANGES,
    LZ4_HEADER,
    XERIAL_HEADER,
    check_level,
    compress,
    decompress,
)
from ottla.records.types import Codec
from tests.support.rows import for_each

COMPRESSING = [codec for codec in Codec if codec is not Codec.NONE]
MIXED = b"".join(b"%d some text that repeats, and some that does not: %d;" % (i, i * i) for i in range(2500))


@pytest.mark.parametrize("codec", list(Codec))
@given(data=st.binary(max_size=2000), repeat=st.integers(1, 200))
def test_what_was_compressed_comes_back(codec: Codec, data: bytes, repeat: int) -> None:
    plain = data * repeat
    assert bytes(decompress(codec, compress(codec, plain))) == plain


@pytest.mark.parametrize("codec", COMPRESSING)
def test_large_data_comes_back_and_is_smaller(codec: Codec) -> None:
    compressed = bytes(compress(codec, MIXED))
    assert len(compressed) < len(MIXED) / 2
    assert bytes(decompress(codec, compressed)) == MIXED


@for_each(
    ("codec", "level"),
    [(codec, level) for codec, (low, high) in LEVEL_RANGES.items() for level in (low, low + 1, 5, high)]
    + list(DEFAULT_LEVELS.items()),
)
def test_every_level_is_readable(codec: Codec, level: int) -> None:
    assert bytes(decompress(codec, compress(codec, MIXED, level))) == MIXED


def test_levels_trade_size_for_time() -> None:
    for codec, low, high in [(Codec.GZIP, 1, 9), (Codec.ZSTD, -50, 12), (Codec.LZ4, 9, 10)]:
        assert len(memoryview(compress(codec, MIXED, high))) < len(memoryview(compress(codec, MIXED, low)))


@pytest.mark.parametrize(
    ("codec", "level"),
    [
        (Codec.GZIP, 0),
        (Codec.GZIP, 10),
        (Codec.LZ4, 0),
        (Codec.LZ4, 18),
        (Codec.ZSTD, 23),
        (Codec.ZSTD, -131073),
    ],
)
def test_levels_outside_of_kafkas_range_are_refused(codec: Codec, level: int) -> None:
    with pytest.raises(ValueError, match=f"level {level} of {codec.name.lower()}"):
        check_level(codec, level)


def test_lz4_is_what_java_clients_can_read() -> None:
    """Java's reader wants independent blocks; a block that does not shrink is stored as it is."""
    frame = bytes(compress(Codec.LZ4, MIXED))
    assert frame.startswith(LZ4_HEADER)
    assert frame[4] & 0b0010_0000
    stored = bytes(compress(Codec.LZ4, bytes(range(256))))
    assert struct.unpack_from("<I", stored, len(LZ4_HEADER)) == (256 | 0x80000000,)
    assert stored.endswith(bytes(4))


@pytest.mark.parametrize("linked", [True, False])
@pytest.mark.parametrize("checksum", [True, False])
def test_lz4_frames_of_other_writers_are_read(linked: bool, checksum: bool) -> None:
    compressor = cramjam.lz4.Compressor(block_linked=linked, content_checksum=checksum)
    compressor.compress(MIXED)
    assert bytes(decompress(Codec.LZ4, bytes(compressor.finish()))) == MIXED


def test_snappy_has_the_framing_of_java_clients() -> None:
    framed = bytes(compress(Codec.SNAPPY, MIXED))
    assert framed.startswith(XERIAL_HEADER)
    (size,) = struct.unpack_from(">i", framed, len(XERIAL_HEADER))
    block = framed[len(XERIAL_HEADER) + 4 :][:size]
    assert bytes(cramjam.snappy.decompress_raw(block)) == MIXED[: 32 * 1024]


def test_raw_snappy_and_streams_behind_each_other_are_read() -> None:
    assert bytes(decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(MIXED)))) == MIXED
    twice = bytes(compress(Codec.SNAPPY, MIXED)) + bytes(compress(Codec.SNAPPY, b"more"))
    assert bytes(decompress(Codec.SNAPPY, twice)) == MIXED + b"more"


def test_gzip_members_behind_each_other_are_read() -> None:
    assert bytes(decompress(Codec.GZIP, gzip.compress(b"one ") + gzip.compress(b"two"))) == b"one two"


@pytest.mark.parametrize("codec", COMPRESSING)
def test_output_is_bounded_to_the_byte(codec: Codec) -> None:
    compressed = bytes(compress(codec, MIXED))
    assert bytes(decompress(codec, compressed, len(MIXED))) == MIXED
    with pytest.raises(KafkaError) as caught:
        decompress(codec, compressed, len(MIXED) - 1)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert str(len(MIXED) - 1) in str(caught.value)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_bomb_is_an_error_and_not_memory(codec: Codec) -> None:
    bomb = bytes(compress(codec, bytes(64 * 1024 * 1024)))
    tracemalloc.start()
    try:
        with pytest.raises(KafkaError) as caught:
            decompress(codec, bomb, 1024 * 1024)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert peak < 4 * 1024 * 1024


def test_a_snappy_length_that_lies_is_refused_before_anything_is_allocated() -> None:
    claim = b"\xff\xff\xff\xff\x0f" + b"\x00" * 10
    for data in (claim, XERIAL_HEADER + struct.pack(">i", len(claim)) + claim):
        with pytest.raises(KafkaError) as caught:
            decompress(Codec.SNAPPY, data)
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


def test_a_snappy_stream_of_countless_empty_blocks_is_refused() -> None:
    with pytest.raises(KafkaError, match="more blocks"):
        decompress(Codec.SNAPPY, XERIAL_HEADER + struct.pack(">i", 0) * 100_000)


@pytest.mark.parametrize("codec", COMPRESSING)
@given(data=st.data())
def test_damaged_data_is_an_error_or_wrong_bytes_but_nothing_worse(codec: Codec, data: st.DataObject) -> None:
    compressed = bytearray(compress(codec, MIXED[:3000]))
    for _ in range(data.draw(st.integers(1, 4))):
        compressed[data.draw(st.integers(0, len(compressed) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(compressed)))
    with contextlib.suppress(KafkaError):
        assert len(memoryview(decompress(codec, bytes(compressed[:cut]), 100_000))) <= 100_000


@pytest.mark.slow
@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.SNAPPY])
def test_data_that_compresses_well_takes_no_memory_beside_itself(codec: Codec) -> None:
    """By the peak of a process of its own, as the codec's buffers are none of Python's."""
    program = (
        "import resource\n"
        "from ottla.records.compression import compress\n"
        "from ottla.records.types import Codec\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        f"compress(Codec.{codec.name}, bytes(1 << 20)); before = peak()\n"
        f"compress(Codec.{codec.name}, bytes(64 << 20)); print((peak() - before) // 1024)\n"
    )
    printed = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert int(printed.stdout) < 15
