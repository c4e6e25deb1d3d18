"""Kafka's codecs, with output that is bounded before it is produced.

What goes out is what Kafka's Java clients and brokers write: gzip members, snappy in the framing of
snappy-java, lz4 frames of independent 64 KiB blocks without checksums, zstd frames. What comes in may be
any of the dialects that they accept, raw snappy included.

The invariant: `decompress` never writes more than `max_bytes`. The codec writes into a buffer of that size
at most and fails at its end: a bomb is an error, never memory.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

import cramjam

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records._kernel import Block
from ottla.records.types import MAX_DECOMPRESSED_BYTES, Codec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Buffer

XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER = XERIAL_MAGIC + struct.pack(">ii", 1, 1)
XERIAL_BLOCK_BYTES = 32 * 1024
LZ4_HEADER = bytes.fromhex("04224d18604082")
"""Magic, flags (version 1, independent blocks), block size (64 KiB), checksum of those two."""
LZ4_BLOCK_BYTES = 64 * 1024
LZ4_STORED = 0x80000000
"""Set in the length of a block that is not compressed."""
LZ4_MAX_EFFORT = 12
"""The library's most thorough level; Kafka's levels go to 17, which its own library takes for the same."""
XERIAL_MIN_BLOCKS = 64
XERIAL_MIN_BLOCK_BYTES = 64
"""A stream of more blocks than 64 that are smaller than this on average is an attack on the CPU, not data."""
EXPECTED_RATIO = 8
SLACK_BYTES = 64 * 1024

DEFAULT_LEVELS = {Codec.GZIP: -1, Codec.LZ4: 9, Codec.ZSTD: 3}
LEVEL_RANGES = {Codec.GZIP: (1, 9), Codec.LZ4: (1, 17), Codec.ZSTD: (-131072, 22)}

_INT32 = struct.Struct(">i")
_UINT32_LE = struct.Struct("<I")


def check_level(codec: Codec, level: int | None) -> int:
    """The level to use: the given one if the codec takes it, or the codec's default."""
    if codec not in LEVEL_RANGES:
        return 0
    if level is None or level == DEFAULT_LEVELS[codec]:
        return DEFAULT_LEVELS[codec]
    low, high = LEVEL_RANGES[codec]
    if not low <= level <= high:
        raise ValueError(f"compression level {level} of {codec.name.lower()} is not within {low}..{high}")
    return level


def compress(codec: Codec, data: Buffer, level: int | None = None) -> Buffer:
    """`data` as Kafka writes it with this codec."""
    level = check_level(codec, level)
    match codec:
        case Codec.NONE:
            return data
        case Codec.GZIP:
            return zlib.compress(data, level, wbits=31)
        case Codec.SNAPPY:
            return _compress_snappy(memoryview(data))
        case Codec.LZ4:
            return _compress_lz4(memoryview(data), level)
        case Codec.ZSTD:
            compressed: Buffer = cramjam.zstd.compress(data, level)
            return compressed


# Blocks are copied as they are made: the codec gives each in a buffer for a block that does not compress, and
# all of them together would take as much as the data.


def _compress_snappy(data: memoryview) -> bytearray:
    out = bytearray(XERIAL_HEADER)
    for at in range(0, len(data), XERIAL_BLOCK_BYTES):
        block = memoryview(cramjam.snappy.compress_raw(data[at : at + XERIAL_BLOCK_BYTES]))
        out += _INT32.pack(len(block))
        out += block
    return out


def _compress_lz4(data: memoryview, level: int) -> Buffer:
    # As in Kafka, the default level stands for the fast compressor and every other one for the thorough one.
    if level != DEFAULT_LEVELS[Codec.LZ4]:
        thorough = cramjam.lz4.Compressor(
            min(level, LZ4_MAX_EFFORT), content_checksum=False, block_linked=False
        )
        thorough.compress(bytes(data))
        return bytes(thorough.finish())
    out = bytearray(LZ4_HEADER)
    for at in range(0, len(data), LZ4_BLOCK_BYTES):
        plain = data[at : at + LZ4_BLOCK_BYTES]
        block = memoryview(cramjam.lz4.compress_block(plain, store_size=False))
        if len(block) < len(plain):
            out += _UINT32_LE.pack(len(block))
            out += block
        else:
            out += _UINT32_LE.pack(len(plain) | LZ4_STORED)
            out += plain
    out += _UINT32_LE.pack(0)
    return out


def decompress(codec: Codec, data: Buffer, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> Buffer:
    """Decompress `data`; CORRUPT_MESSAGE if it is damaged or the result would exceed `max_bytes`."""
    if codec is Codec.NONE:
        return data
    view = memoryview(data).cast("B")
    try:
        match codec:
            case Codec.GZIP:
                return _inflate(cramjam.gzip.decompress_into, view, max_bytes)
            case Codec.SNAPPY:
                return _decompress_snappy(view, max_bytes)
            case Codec.LZ4:
                return _inflate(cramjam.lz4.decompress_into, view, max_bytes)
            case Codec.ZSTD:
                return _inflate(cramjam.zstd.decompress_into, view, max_bytes)
    except (cramjam.DecompressionError, _TooLargeError) as error:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"{len(view)} bytes of {codec.name.lower()} are damaged or decompress to more than the"
            f" {max_bytes} bytes allowed: {error}",
        ) from error


class _TooLargeError(Exception):
    """The framing itself says that the output would pass the limit, or makes no progress towards any."""


def _inflate(into: Callable[[memoryview, Block], int], view: memoryview, max_bytes: int) -> Block:
    """Decompress into a buffer of a likely size, and if that fails into all that is allowed.

    The second buffer is address space that only becomes memory as far as it is written.
    """
    likely = EXPECTED_RATIO * len(view) + SLACK_BYTES
    if likely < max_bytes:
        block = Block(likely, likely)
        try:
            block.shrink(into(view, block))
            return block
        except cramjam.DecompressionError:
            pass
    block = Block(max_bytes, max_bytes)
    block.shrink(into(view, block))
    return block


def _decompress_snappy(view: memoryview, max_bytes: int) -> Block:
    blocks = list(_xerial_blocks(view)) if view[: len(XERIAL_MAGIC)] == XERIAL_MAGIC else [view]
    sizes = [cramjam.snappy.decompress_raw_len(block) for block in blocks]
    total = sum(sizes)
    if total > max_bytes:
        raise _TooLargeError(f"the blocks declare {total} bytes")
    out = Block(total, total)
    target = memoryview(out)
    at = 0
    for block, size in zip(blocks, sizes, strict=True):
        if cramjam.snappy.decompress_raw_into(block, target[at : at + size]) != size:
            raise _TooLargeError("a block does not have the size it declares")
        at += size
    return out


def _xerial_blocks(view: memoryview) -> Iterator[memoryview]:
    """The raw blocks of snappy-java's framing: a header, then blocks behind their lengths; streams may
    follow each other.
    """
    at = 0
    budget = XERIAL_MIN_BLOCKS + len(view) // XERIAL_MIN_BLOCK_BYTES
    while at < len(view):
        if view[at : at + len(XERIAL_MAGIC)] == XERIAL_MAGIC:
            at += len(XERIAL_HEADER)
            continue
        size = _INT32.unpack_from(view, at)[0] if len(view) - at >= 4 else -1
        at += 4
        budget -= 1
        if size < 0 or size > len(view) - at:
            raise _TooLargeError(f"a block of {size} bytes does not fit the {len(view)} bytes given")
        if budget < 0:
            raise _TooLargeError("the stream is split into more blocks than any writer makes")
        yield view[at : at + size]
        at += size
