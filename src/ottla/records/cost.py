"""What it takes to check and to rewrite batches, known from their headers before any of it is done.

All costs are in microseconds, as `ottla.runtime.heavy_work` counts them, on a core of ordinary speed and for
data that does not compress well. What a batch decompresses to is not in its header: an estimate assumes the
ratio that is ordinary (`EXPECTED_RATIO`), and the caller bounds the output by `likely_bytes`.
"""

from __future__ import annotations

from typing import Final

from ottla.records.batch import BatchHeader
from ottla.records.compression import DEFAULT_LEVELS, EXPECTED_RATIO, SLACK_BYTES
from ottla.records.types import MAX_DECOMPRESSED_BYTES, Codec

# Bytes in a microsecond: of records that are checked or searched, of output of the decoders, of input of the
# encoders at their ordinary levels.
_WALK: Final = 500
_DECOMPRESS: Final = {Codec.GZIP: 250, Codec.SNAPPY: 800, Codec.LZ4: 800, Codec.ZSTD: 500}
_COMPRESS: Final = {Codec.NONE: 10_000, Codec.GZIP: 20, Codec.SNAPPY: 250, Codec.LZ4: 250, Codec.ZSTD: 100}
# By the codec's bits in the attributes of a batch, what a byte without compression takes; codecs that do not
# exist are refused before anything is done.
_CODEC_BITS: Final = 0x07
_WALK_US: Final = tuple(
    1 / _WALK + (1 / _DECOMPRESS[Codec(bits)] if Codec.NONE < bits <= Codec.ZSTD else 0) for bits in range(8)
)
_ORDINARY_RATIO: Final = 3
# By level, where a codec has thorough ones: that of the last entry that is not above the level.
_THOROUGH: Final = {
    Codec.GZIP: ((7, 8.0),),
    Codec.LZ4: ((1, 25.0),),
    Codec.ZSTD: ((4, 40.0), (8, 15.0), (13, 4.0), (17, 1.5), (20, 0.8)),
}


def likely_bytes(header: BatchHeader) -> int:
    """What the records of a batch take without compression, unless they compress exceptionally well."""
    if not header.is_compressed:
        return header.size
    return min(EXPECTED_RATIO * header.size + SLACK_BYTES, MAX_DECOMPRESSED_BYTES)


def ordinary_bytes(header: BatchHeader) -> int:
    """What the records of a batch take without compression, if they are ordinary ones."""
    return _ORDINARY_RATIO * header.size if header.attributes & _CODEC_BITS else header.size


def affordable_bytes(header: BatchHeader, cost_us: int) -> int:
    """How many bytes of a batch can be decompressed and walked at this cost."""
    return min(int(cost_us / _WALK_US[header.attributes & _CODEC_BITS]), MAX_DECOMPRESSED_BYTES)


def walk_cost(header: BatchHeader, plain_bytes: int) -> int:
    """The cost to decompress the records of a batch and to walk them."""
    return int(plain_bytes * _WALK_US[header.attributes & _CODEC_BITS])


def check_cost(header: BatchHeader, plain_bytes: int, target: Codec | None, level: int | None) -> int:
    """The cost to validate a batch, and to compress it again where the topic asks for another codec than the
    producer has used (`target`; None for that of the producer).
    """
    cost = walk_cost(header, plain_bytes)
    if target is not None and target != header.attributes & _CODEC_BITS:
        cost += compression_cost(plain_bytes, target, level)
    return cost


def compression_cost(plain_bytes: int, codec: Codec, level: int | None) -> int:
    """The cost to compress so many bytes."""
    return int(plain_bytes / _compress_speed(codec, level))


def _compress_speed(codec: Codec, level: int | None) -> float:
    speed: float = _COMPRESS[codec]
    if level is None or level == DEFAULT_LEVELS.get(codec):
        return speed
    for least, thorough in _THOROUGH.get(codec, ()):
        if level >= least:
            speed = thorough
    return speed
