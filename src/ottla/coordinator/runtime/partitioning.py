"""Find the partition of a coordinator's topic in which a group or a transactional id lives.

It follows from the hash of the key as Java hashes strings, so that every broker and client finds the same
one.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

_REMEMBERED_KEYS: Final = 4096
_LONGEST_REMEMBERED: Final = 256


def java_hash(text: str) -> int:
    """`String.hashCode`: over UTF-16 code units, in 32 bits."""
    data = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(data), 2):
        value = (31 * value + (data[at] << 8 | data[at + 1])) & 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value


_remembered_hash = lru_cache(_REMEMBERED_KEYS)(java_hash)


def partition_for(key: str, partitions: int) -> int:
    """The partition of a coordinator's topic in which a key lives."""
    value = _remembered_hash(key) if len(key) <= _LONGEST_REMEMBERED else java_hash(key)
    return (0 if value == -(2**31) else abs(value)) % partitions
