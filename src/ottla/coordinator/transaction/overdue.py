"""Which open transactions are past their timeout.

That goes by the wall clock, since the start of a transaction outlives the coordinator that noted it. The
clock of the next coordinator may be behind: a transaction that began in its future counts from when it was
first seen there, by ticks, so that nothing stays open for as long as two clocks differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ottla.coordinator.runtime.effects import Now
from ottla.coordinator.transaction.transaction import Transaction


class Overdue:
    __slots__ = ("_seen",)

    def __init__(self) -> None:
        # Of transactions that began in the future: when that was, and the tick at which it was noticed.
        self._seen: Final[dict[str, tuple[int, int]]] = {}

    def look(self, ongoing: Sequence[Transaction], now: Now) -> list[Transaction]:
        """Those past their timeout, of all that are open."""
        future = {each.transactional_id: each.start_ms for each in ongoing if each.start_ms > now.wall_ms}
        for transactional_id, (start_ms, _) in list(self._seen.items()):
            if future.get(transactional_id) != start_ms:
                del self._seen[transactional_id]
        for transactional_id, start_ms in future.items():
            self._seen.setdefault(transactional_id, (start_ms, now.tick_ms))
        return [each for each in ongoing if self.includes(each, now)]

    def includes(self, transaction: Transaction, now: Now) -> bool:
        start_ms, tick_ms = self._seen.get(transaction.transactional_id, (None, 0))
        if start_ms == transaction.start_ms and start_ms > now.wall_ms:
            # As if it had begun by this clock at that tick.
            return transaction.is_timed_out(start_ms + now.tick_ms - tick_ms)
        return transaction.is_timed_out(now.wall_ms)
