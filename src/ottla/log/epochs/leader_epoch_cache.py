"""The leader epochs of a partition: from which offset on each leader wrote.

A follower asks where an epoch ended in order to find the point up to which its log is its leader's. The cache
is a list of (epoch, start offset), both ascending; it is a digest of the epochs in the batches and is written
to `leader-epoch-checkpoint`.

Writing it with every new epoch would cost a sync for each partition of a failed leader. It is written instead
before the recovery point passes the start of an epoch that the file does not have; what a crash takes away,
the recovery finds again in the batches above the recovery point. Invariant: the file, corrected by those
batches, is the cache.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple

UNDEFINED_EPOCH = -1
UNDEFINED_EPOCH_OFFSET = -1


class EpochEntry(NamedTuple):
    epoch: int
    start_offset: int


class LeaderEpochCache:
    __slots__ = ("_entries", "dirty")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._entries: list[EpochEntry] = []
        for epoch, start_offset in entries:
            self.assign(epoch, start_offset)
        self.dirty = False
        """True while the file does not have what the cache has."""

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        return tuple(self._entries)

    @property
    def latest_epoch(self) -> int | None:
        return self._entries[-1].epoch if self._entries else None

    @property
    def earliest(self) -> EpochEntry | None:
        return self._entries[0] if self._entries else None

    def assign(self, epoch: int, start_offset: int) -> None:
        """Note that `epoch` writes from `start_offset` on. Entries that contradict it go."""
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"there is no epoch {epoch} that starts at offset {start_offset}")
        entries = self._entries
        if entries:
            last = entries[-1]
            if last.epoch == epoch and last.start_offset <= start_offset:
                return
            while entries and (entries[-1].epoch >= epoch or entries[-1].start_offset >= start_offset):
                entries.pop()
        entries.append(EpochEntry(epoch, start_offset))
        self.dirty = True

    def reconcile(self, epoch: int, base_offset: int) -> None:
        """Correct the cache by a batch that is in the log: at `base_offset` the epoch is `epoch`."""
        if epoch < 0:
            return
        entries = self._entries
        at = bisect_right(
            entries, base_offset, key=_start_offset
        )  # entries[:at] begin at or before the batch
        keep = at
        while keep and entries[keep - 1].epoch > epoch:
            keep -= 1
        if keep < at:
            del entries[keep:at]
            self.dirty = True
        if keep == 0 or entries[keep - 1].epoch < epoch:
            if keep and entries[keep - 1].start_offset == base_offset:
                keep -= 1
                del entries[keep]
            later = keep
            while later < len(entries) and entries[later].epoch <= epoch:
                later += 1
            entries[keep:later] = [EpochEntry(epoch, base_offset)]
            self.dirty = True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The greatest epoch up to `epoch` that wrote here, and where it ended: OffsetForLeaderEpoch's
        answer.

        (-1, -1) where the epoch is unknown because it is greater than all, or because there are none.
        """
        entries = self._entries
        if epoch == UNDEFINED_EPOCH or not entries:
            return UNDEFINED_EPOCH, UNDEFINED_EPOCH_OFFSET
        if entries[-1].epoch == epoch:
            return epoch, log_end_offset
        higher = bisect_right(entries, epoch, key=_epoch)
        if higher == len(entries):
            return UNDEFINED_EPOCH, UNDEFINED_EPOCH_OFFSET
        # Older than all that is left: the log of that epoch is gone, and the follower starts where we do.
        found = entries[higher - 1].epoch if higher else epoch
        return found, entries[higher].start_offset

    def epoch_for_offset(self, offset: int) -> int | None:
        at = bisect_right(self._entries, offset, key=_start_offset)
        return self._entries[at - 1].epoch if at else None

    def truncate_from_end(self, end_offset: int) -> None:
        """Forget the epochs that start at or above `end_offset`."""
        at = bisect_left(self._entries, end_offset, key=_start_offset)
        if at < len(self._entries):
            del self._entries[at:]
            self.dirty = True

    def truncate_from_start(self, start_offset: int) -> None:
        """Forget the epochs that ended at or below `start_offset`; the one it lies in starts there from now
        on.
        """
        at = bisect_right(self._entries, start_offset, key=_start_offset)
        if at and (at > 1 or self._entries[0].start_offset != start_offset):
            self._entries[:at] = [EpochEntry(self._entries[at - 1].epoch, start_offset)]
            self.dirty = True

    def fit(self, log_start_offset: int, log_end_offset: int) -> None:
        """Keep what lies in the log; of an empty log the epoch of its last records, which are gone."""
        self.truncate_from_end(max(log_end_offset, log_start_offset + 1))
        self.truncate_from_start(log_start_offset)

    def clear(self) -> None:
        if self._entries:
            self._entries.clear()
            self.dirty = True


def _epoch(entry: EpochEntry) -> int:
    return entry.epoch


def _start_offset(entry: EpochEntry) -> int:
    return entry.start_offset
