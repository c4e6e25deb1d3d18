"""What all connections of a server share: bounds on what they may hold, and the voice of the log about
them.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Final, Protocol

log = logging.getLogger(__name__)

# What all slow readers together may have unread, and what each may have in any case.
_UNREAD_BYTES: Final = 512 * 1024 * 1024
_MIN_SHARE_BYTES: Final = 256 * 1024
# Requests that all connections together may have in work before each may have only one.
_MANY_IN_WORK: Final = 20_000
# Mostly their clients are gone for good, so only so many are kept for those that still read.
_MOST_LEAVING: Final = 500
_COMPLAINTS_BURST: Final = 50
_COMPLAINTS_PER_SECOND: Final = 5


class MemoryWaiter(Protocol):
    def memory_available(self) -> None:
        """There may be memory again: try once more."""


class RequestMemoryPool:
    """How many bytes of requests may be held at once, over all connections (`queued.max.request.bytes`).

    A frame is admitted while less than the limit is in use, so that one is always let in, whatever its size.
    """

    __slots__ = ("_used", "_waiting", "limit")

    def __init__(self, limit: int = -1) -> None:
        self.limit = limit
        self._used = 0
        self._waiting: deque[MemoryWaiter] = deque()

    @property
    def used(self) -> int:
        return self._used

    def take(self, size: int, waiter: MemoryWaiter) -> bool:
        """Whether the bytes may be held now; otherwise the waiter is told when it may try again."""
        if self.limit > 0 and self._used >= self.limit:
            self._waiting.append(waiter)
            return False
        self._used += size
        return True

    def give_back(self, size: int) -> None:
        self._used -= size
        while self._waiting and (self.limit <= 0 or self._used < self.limit):
            self._waiting.popleft().memory_available()


class ConnectionLimits:
    """Bounds that all connections of a server share and that may change while it runs."""

    __slots__ = (
        "in_work",
        "leaving",
        "max_frame_bytes",
        "max_in_flight",
        "max_in_flight_bytes",
        "max_leaving",
        "slow_readers",
    )

    def __init__(
        self,
        max_frame_bytes: int = 100 * 1024 * 1024,
        max_in_flight: int = 500,
        max_in_flight_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        self.max_frame_bytes = max_frame_bytes
        self.max_in_flight = max_in_flight
        self.max_in_flight_bytes = max_in_flight_bytes
        # Connections whose clients have not read what they were sent.
        self.slow_readers = 0
        # Requests that have been started and not yet answered.
        self.in_work = 0
        # Connections whose clients send nothing more and have not got all their answers.
        self.leaving = 0
        self.max_leaving = _MOST_LEAVING

    def requests_at_once(self) -> int:
        """How many requests one connection may have in work. Never none: each goes on by its own answers."""
        return self.max_in_flight if self.in_work < _MANY_IN_WORK else 1

    def response_bytes(self) -> int:
        """How large a response should be at most, so that slow readers together do not hold too much."""
        return max(_MIN_SHARE_BYTES, _UNREAD_BYTES // (1 + self.slow_readers))


class ClientFaultLog:
    """Lines in the log about clients at fault: each gets one, but a flood of them does not flood the log."""

    __slots__ = ("_left", "_refilled", "_silenced")

    def __init__(self) -> None:
        self._left = float(_COMPLAINTS_BURST)
        self._refilled = 0.0
        self._silenced = 0

    def about(self, peer: tuple[str, int], reason: str, now: float) -> None:
        self._left = min(_COMPLAINTS_BURST, self._left + (now - self._refilled) * _COMPLAINTS_PER_SECOND)
        self._refilled = now
        if self._left < 1:
            self._silenced += 1
            return
        self._left -= 1
        if self._silenced:
            log.warning("closed %d more connections for faults of their clients", self._silenced)
            self._silenced = 0
        log.warning("closed the connection from %s:%d: %s", *peer, reason)
