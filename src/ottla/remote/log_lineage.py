"""The remote segments of a log's own history: which of them hold its records, from where and how far.

Leaders that followed an unclean election, or that uploaded while they were no leaders any more, may have put
segments into remote storage whose records are not in the log. The leader epochs tell: a segment is of the
log's lineage if its epochs begin where those of the log do.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Final

from ottla.log.leader_epoch_cache import EpochEntry, LeaderEpochCache
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata, RemoteLogSegmentState
from ottla.runtime.steps import Steps

NO_REMOTE_OFFSET: Final = -1

FindSegment = Callable[[int, int], RemoteLogSegmentMetadata | None]
"""The finished segment that has an offset in an epoch."""


def find_highest_remote_offset(
    epochs: LeaderEpochCache, local_start_offset: int, log_end_offset: int, find: FindSegment
) -> int:
    """Return the offset up to which all of the log on this disk, from its first segment on, is in remote
    storage; -1 if nothing is. What was there once does not count: it may have been deleted since, as where
    remote storage was turned off and on again.
    """
    offset = local_start_offset
    while offset < log_end_offset:
        end = _remote_end(epochs, offset, find)
        if end is None:
            break
        offset = end + 1
    if offset == local_start_offset and (not offset or _remote_end(epochs, offset - 1, find) is None):
        return NO_REMOTE_OFFSET
    return min(offset, log_end_offset) - 1


def _remote_end(epochs: LeaderEpochCache, offset: int, find: FindSegment) -> int | None:
    """The last offset of the segment and of the epoch that have this offset; None if none has it."""
    epoch = epochs.epoch_for_offset(offset)
    found = None if epoch is None else find(epoch, offset)
    return None if found is None or epoch is None else _common_end(epochs, found, epoch)


def _common_end(epochs: LeaderEpochCache, metadata: RemoteLogSegmentMetadata, epoch: int) -> int:
    """The last offset of an epoch that both the segment and the log have: an unclean election may have taken
    records of the epoch from the log that were copied before.
    """
    end = metadata.epoch_end_offset(epoch)
    _, log_end = epochs.end_offset_for(epoch, end + 1)
    return min(end, log_end - 1)


def find_remote_log_start_offset(
    epochs: LeaderEpochCache, first_of_epoch: Callable[[int], int | None]
) -> int | None:
    """Return where the oldest remote segment of the log begins; None if there is none. `first_of_epoch` tells
    where the first segment of an epoch begins.
    """
    for entry in epochs.entries:
        first = first_of_epoch(entry.epoch)
        if first is not None:
            return first
    return None


def find_gap(
    epochs: LeaderEpochCache, log_start_offset: int, local_start_offset: int, find: FindSegment
) -> Steps[int | None]:
    """Return the first offset of the log that is neither on this disk nor in a remote segment; None if all
    are in one of them.
    """
    offset = log_start_offset
    while offset < local_start_offset:
        end = _remote_end(epochs, offset, find)
        if end is None:
            return offset
        offset = end + 1
        yield
    return None


def epoch_entries_between(epochs: LeaderEpochCache, start: int, end: int) -> tuple[EpochEntry, ...]:
    """The epochs of the records from `start` to before `end`; the first begins at `start` at the earliest.

    >>> epoch_entries_between(LeaderEpochCache([(0, 0), (3, 10), (4, 20)]), 12, 20)
    (EpochEntry(epoch=3, start_offset=12),)
    """
    entries = epochs.entries
    first = max(0, bisect_right(entries, start, key=_start_offset) - 1)
    last = bisect_left(entries, end, key=_start_offset)
    return tuple(EpochEntry(each.epoch, max(each.start_offset, start)) for each in entries[first:last])


def without_empty_epochs(entries: Sequence[EpochEntry]) -> tuple[EpochEntry, ...]:
    """Leave epochs out that have no record: the next one begins where they do."""
    return tuple(
        each
        for index, each in enumerate(entries)
        if index + 1 == len(entries) or entries[index + 1].start_offset > each.start_offset
    )


class LogLineage:
    """The leader epochs of a log that have records, prepared to judge many segments."""

    __slots__ = ("_at", "entries", "log_end_offset")

    def __init__(self, epochs: Sequence[EpochEntry], log_end_offset: int) -> None:
        self.entries: Final = without_empty_epochs(epochs)
        self.log_end_offset: Final = log_end_offset
        self._at: Final = {entry.epoch: index for index, entry in enumerate(self.entries)}

    def has(self, metadata: RemoteLogSegmentMetadata) -> bool:
        """Whether all records of the segment are in the log, or were before its start moved."""
        epochs = self.entries
        if not epochs or metadata.end_offset >= self.log_end_offset:
            return False
        of_segment = without_empty_epochs(
            [EpochEntry(epoch, metadata.segment_leader_epochs[epoch]) for epoch in metadata.leader_epochs]
        )
        # The log start may have moved past the first epochs of the segment.
        relevant = [entry for entry in of_segment if entry.epoch >= epochs[0].epoch]
        if not relevant:
            return False
        for index, entry in enumerate(relevant):
            at = self._at.get(entry.epoch)
            if at is None:
                return False
            if index == 0 and at > 0 and entry.start_offset < epochs[at].start_offset:
                return False
            if index > 0 and entry.start_offset != epochs[at].start_offset:
                return False
            following = epochs[at + 1] if at + 1 < len(epochs) else None
            if index + 1 == len(relevant):
                if following is not None and metadata.end_offset >= following.start_offset:
                    return False
            elif following != relevant[index + 1]:
                return False
        return True


def end_of_lineage(entries: Sequence[EpochEntry], segment: RemoteLogSegmentMetadata, epoch: int) -> int:
    """The offset behind the records of the segment that are also those of the log with these epochs, from
    `epoch` on, which both have: where their epochs begin at other offsets, they part.
    """
    at = bisect_right(entries, epoch, key=_epoch)
    end = segment.end_offset + 1
    theirs = [each for each in segment.leader_epochs if each > epoch]
    ours = entries[at:]
    for number, each in enumerate(theirs):
        start = segment.segment_leader_epochs[each]
        if number >= len(ours) or ours[number] != (each, start):
            return min(start, ours[number].start_offset) if number < len(ours) else start
    if len(ours) > len(theirs):
        return min(end, ours[len(theirs)].start_offset)
    return end


def is_covered_by_others(
    metadata: RemoteLogSegmentMetadata, find: FindSegment, epochs: LeaderEpochCache
) -> bool:
    """Whether other finished segments have every record of this one."""
    offset = metadata.start_offset
    while offset <= metadata.end_offset:
        epoch = epochs.epoch_for_offset(offset)
        other = None if epoch is None else find(epoch, offset)
        if other is None or epoch is None or other.id == metadata.id:
            return False
        assert other.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED, other
        offset = _common_end(epochs, other, epoch) + 1
    return True


def _start_offset(entry: EpochEntry) -> int:
    return entry.start_offset


def _epoch(entry: EpochEntry) -> int:
    return entry.epoch
