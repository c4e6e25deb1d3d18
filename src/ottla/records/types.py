"""The small vocabulary of record batches: codecs and timestamp types by their numbers on the wire.

The numbers are those of the attribute bits of a batch (codec in bits 0-2, timestamp type in bit 3), so a
value is never translated between the wire and the code.
"""

from __future__ import annotations

from enum import IntEnum

HEADER_SIZE = 61
"""Bytes of a batch before its first record."""
LOG_OVERHEAD = 12
"""Bytes of base offset and length, which `batch_length` does not count."""
MAGIC = 2
"""The one record format of Kafka 4."""
NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
FIRST_BROKER_PRODUCER_ID = 1 << 62
"""Producer ids from here on are those of brokers, for dead letters; clients get ids that count from 0."""
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1
MAX_DECOMPRESSED_BYTES = 256 * 1024 * 1024
"""The size to which one batch may decompress unless the caller gives another limit; beyond it the batch is
refused as a bomb.
"""


class Codec(IntEnum):
    """How the records of a batch are compressed."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class TimestampType(IntEnum):
    """Whether the producer set the timestamps of a batch, or the broker that appended it."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1
