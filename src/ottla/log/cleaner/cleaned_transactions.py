"""Transactions as compaction meets them, batch by batch from the start of the log.

A batch of an aborted transaction is dropped. A marker may go only when no batch of its transaction is left:
until then a reader needs it to tell what became of them. Since the batches lie in front of their marker, it
is enough to remember, while walking through the log, which producers have had a batch since their last
marker.

An abort marker that stays gets its entry in the transaction index of the segment it is copied to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ottla.log.segment.txn_index import AbortedTxn
from ottla.records.batch import BatchHeader
from ottla.records.control import ControlType, read_control_records
from ottla.runtime.disk import Buffer

__all__ = ["CleanedTransactions"]


class CleanedTransactions:
    """The transactions around the batch that is looked at; `aborted` are all that touch the walk, which
    begins at `start_offset`.
    """

    __slots__ = ("_aborted", "_committed_ongoing", "_next", "_observed", "_ongoing", "on_retained_abort")

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        self._aborted = sorted(aborted, key=lambda txn: txn.first_offset)
        # How many of `_aborted` have begun.
        self._next = 0
        # Producer id -> its aborted transaction that has begun and whose marker was not met.
        self._ongoing: dict[int, AbortedTxn] = {}
        # Producers of `_ongoing` of which a batch was met.
        self._observed: set[int] = set()
        # Producers of which a batch of a committed (or undecided) transaction was met since their last
        # marker.
        self._committed_ongoing: set[int] = set()
        self.on_retained_abort: Callable[[AbortedTxn], None] | None = None

    def is_aborted(self, header: BatchHeader) -> bool:
        """Take in a data batch; True if its transaction was aborted, so that its records go."""
        if not header.is_transactional:
            return False
        self._begin_up_to(header.last_offset)
        txn = self._ongoing.get(header.producer_id)
        if txn is not None and header.base_offset < txn.last_offset:
            self._observed.add(header.producer_id)
            return True
        self._committed_ongoing.add(header.producer_id)
        return False

    def may_discard(self, buf: Buffer, pos: int, header: BatchHeader) -> bool:
        """Take in a control batch; True if nothing is left in the log that needs it."""
        self._begin_up_to(header.last_offset)
        if header.count == 0:
            return True
        kind = read_control_records(buf, pos)[0].type
        if kind is ControlType.ABORT:
            txn = self._ongoing.pop(header.producer_id, None)
            if txn is None or header.producer_id not in self._observed:
                return True
            self._observed.remove(header.producer_id)
            if self.on_retained_abort is not None:
                self.on_retained_abort(txn)
            return False
        if kind is ControlType.COMMIT:
            if header.producer_id not in self._committed_ongoing:
                return True
            self._committed_ongoing.remove(header.producer_id)
        return False

    def _begin_up_to(self, offset: int) -> None:
        while self._next < len(self._aborted) and self._aborted[self._next].first_offset <= offset:
            txn = self._aborted[self._next]
            self._ongoing[txn.producer_id] = txn
            self._next += 1
