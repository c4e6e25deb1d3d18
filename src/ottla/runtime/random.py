"""Randomness: jitter, election timeouts, nonces, and the ids of topics and directories.

`SystemRandom` is the operating system's generator and safe for secrets; `SeededRandom` replays a run.
"""

from __future__ import annotations

import os
import random
from typing import Protocol


class Random(Protocol):
    def randrange(self, start: int, stop: int) -> int:
        """An integer in `start <= n < stop`; ValueError if there is none."""
        ...

    def random(self) -> float:
        """A number in `0.0 <= x < 1.0`."""
        ...

    def randbytes(self, n: int) -> bytes: ...

    def uuid(self) -> bytes:
        """16 bytes of a version 4 uuid whose base64url text does not begin with `-`.

        Kafka avoids the dash because its command-line tools would take such an id for an option. The
        version bits keep it clear of the reserved ids, which are all below 100.
        """
        ...


class SystemRandom:
    """The operating system's generator: unpredictable, safe to share between threads."""

    __slots__ = ("_source",)

    def __init__(self) -> None:
        self._source = random.SystemRandom()

    def randrange(self, start: int, stop: int) -> int:
        return self._source.randrange(start, stop)

    def random(self) -> float:
        return self._source.random()

    def randbytes(self, n: int) -> bytes:
        return os.urandom(n)

    def uuid(self) -> bytes:
        return _uuid4(self._source)


class SeededRandom:
    """The same numbers for the same seed, on every machine. Never for secrets."""

    __slots__ = ("_source",)

    def __init__(self, seed: int | str) -> None:
        self._source = random.Random(seed)

    def randrange(self, start: int, stop: int) -> int:
        return self._source.randrange(start, stop)

    def random(self) -> float:
        return self._source.random()

    def randbytes(self, n: int) -> bytes:
        return self._source.randbytes(n)

    def uuid(self) -> bytes:
        return _uuid4(self._source)


def _uuid4(source: random.Random) -> bytes:
    value = bytearray(source.getrandbits(128).to_bytes(16, "big"))
    # A first byte of 0xF8 to 0xFB is what base64url writes as "-": draw from the 252 others.
    first = source.randrange(252)
    value[0] = first if first < 0xF8 else first + 4
    value[6] = (value[6] & 0x0F) | 0x40
    value[8] = (value[8] & 0x3F) | 0x80
    return bytes(value)
