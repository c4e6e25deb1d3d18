"""The remote segments of one partition, by leader epoch and offset.

A plain object that events are applied to, in the order in which they stand in `__remote_log_metadata`; every
broker that reads the topic comes to the same state. A lookup names a leader epoch as well as an offset, as
two leaders may have uploaded different records for one offset, and only one of them is in the log's lineage.

Invariants: a segment is found by offset exactly while its state is COPY_SEGMENT_FINISHED and no later upload
covers it; a segment is listed from its first event until DELETE_SEGMENT_FINISHED.

A partition may have a hundred thousand segments. So they are kept in the order in which they are asked for,
and offsets are in arrays, which take a quarter of the memory of lists.
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from ottla.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemoteResourceNotFound,
    is_valid_transition,
)

_log = logging.getLogger(__name__)


class RemoteLogLeaderEpochState:
    """The remote segments that have records of one leader epoch."""

    __slots__ = ("_ends", "_ids", "_offsets", "highest_offset", "unreferenced")

    def __init__(self) -> None:
        # The offsets at which finished segments begin in this epoch, ascending; beside each its segment, and
        # the last offset of that in the epoch.
        self._offsets = array("q")
        self._ids: list[RemoteLogSegmentId] = []
        self._ends = array("q")
        # Segments that no lookup returns: being copied, covered by a later upload, or being deleted. As keys
        # of a dict, which has an order.
        self.unreferenced: dict[RemoteLogSegmentId, None] = {}
        # The last offset of the epoch that was ever copied; deletions do not lower it.
        self.highest_offset: int | None = None

    def floor(self, offset: int) -> RemoteLogSegmentId | None:
        """The finished segment that begins at this offset or is the last to begin before it."""
        at = bisect_right(self._offsets, offset)
        return self._ids[at - 1] if at else None

    @property
    def first(self) -> RemoteLogSegmentId | None:
        """The finished segment that begins first."""
        return self._ids[0] if self._ids else None

    def segment_ids(self) -> Iterator[RemoteLogSegmentId]:
        """All segments, those that lookups return first and in their order."""
        yield from self._ids
        yield from self.unreferenced

    def on_copy_started(self, id: RemoteLogSegmentId) -> None:
        self.unreferenced[id] = None

    def on_copy_finished(self, start_offset: int, id: RemoteLogSegmentId, end_offset: int) -> None:
        """Put the segment in the place of those that it covers: a leader that lags behind in its uploads may
        be followed by one whose segments are cut differently. A segment that is covered itself, as the late
        upload of an earlier leader may be, changes no lookup.
        """
        offsets, ids, ends = self._offsets, self._ids, self._ends
        at = bisect_right(offsets, start_offset)
        if at and ids[at - 1] != id and ends[at - 1] >= end_offset:
            self.unreferenced[id] = None
            return
        if self.highest_offset is None or self.highest_offset <= end_offset:
            at = bisect_left(offsets, start_offset)
            self.unreferenced.update(dict.fromkeys(ids[at:]))
            del offsets[at:], ids[at:], ends[at:]
        if at and offsets[at - 1] == start_offset:
            self.unreferenced[ids[at - 1]] = None
            ids[at - 1], ends[at - 1] = id, end_offset
        else:
            offsets.insert(at, start_offset)
            ids.insert(at, id)
            ends.insert(at, end_offset)
        self.unreferenced.pop(id, None)
        if self.highest_offset is None or end_offset > self.highest_offset:
            self.highest_offset = end_offset

    def on_delete_started(self, start_offset: int, id: RemoteLogSegmentId) -> None:
        at = bisect_left(self._offsets, start_offset)
        if at < len(self._ids) and self._ids[at] == id:
            del self._offsets[at], self._ids[at], self._ends[at]
        self.unreferenced[id] = None

    def on_delete_finished(self, id: RemoteLogSegmentId) -> None:
        self.unreferenced.pop(id, None)


class RemoteLogMetadataCache:
    """The remote segments of one partition."""

    __slots__ = ("_epochs", "_ordered", "_segments", "_starts", "_unfinished", "is_initialized")

    def __init__(self) -> None:
        # By their own ids: all are of one partition.
        self._segments: dict[bytes, RemoteLogSegmentMetadata] = {}
        # All of them by their start offsets, which are beside.
        self._ordered: list[RemoteLogSegmentMetadata] = []
        self._starts = array("q")
        # Those whose copy was started, and neither finished nor given up.
        self._unfinished: dict[bytes, None] = {}
        self._epochs: dict[int, RemoteLogLeaderEpochState] = {}
        # False until the topic has been read to where it ended when the partition was assigned. Before, an
        # update without its segment is one whose segment was removed by retention of the topic.
        self.is_initialized = False

    def __len__(self) -> int:
        return len(self._segments)

    # Lookups

    def remote_log_segment_metadata(self, leader_epoch: int, offset: int) -> RemoteLogSegmentMetadata | None:
        """Return the finished segment that has this offset in this epoch."""
        metadata = self._floor(leader_epoch, offset)
        if metadata is None or offset > metadata.epoch_end_offset(leader_epoch):
            return None
        return metadata

    def newest_epoch_of(self, offset: int) -> int | None:
        """Return the newest leader epoch in which a finished segment has this offset."""
        newest_first = sorted(self._epochs, reverse=True)
        return next((each for each in newest_first if self.remote_log_segment_metadata(each, offset)), None)

    def highest_offset_for_epoch(self, leader_epoch: int) -> int | None:
        """Return the last offset of the epoch that was copied, whether or not it was deleted since."""
        state = self._epochs.get(leader_epoch)
        return None if state is None else state.highest_offset

    def list_remote_log_segments(self, leader_epoch: int | None = None) -> list[RemoteLogSegmentMetadata]:
        """Return the segments of an epoch, or of all, by their start offsets; in every state."""
        if leader_epoch is None:
            return self._ordered.copy()
        state = self._epochs.get(leader_epoch)
        found = [] if state is None else [self._segments[id.id] for id in state.segment_ids()]
        found.sort(key=lambda metadata: metadata.start_offset)
        return found

    def first_start_offset(self, leader_epoch: int) -> int | None:
        """Return where the first segment of the epoch begins that is not being deleted; None if it has
        none.
        """
        state = self._epochs.get(leader_epoch)
        if state is None:
            return None
        ids = state.unreferenced if state.first is None else (state.first, *state.unreferenced)
        segments = (self._segments[id.id] for id in ids)
        deleting = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
        return min((each.start_offset for each in segments if each.state is not deleting), default=None)

    def first_offset_from(self, offset: int) -> int | None:
        """Return the first offset from this one on that a segment of any epoch has, unless it is being
        deleted; None if there is none.
        """
        for metadata in self._ordered:
            is_going = metadata.state is RemoteLogSegmentState.DELETE_SEGMENT_STARTED
            if metadata.end_offset >= offset and not is_going:
                return max(offset, metadata.start_offset)
        return None

    def unfinished_copies(self) -> list[RemoteLogSegmentMetadata]:
        """Return the segments whose copy was started, and neither finished nor given up."""
        return [self._segments[id] for id in self._unfinished]

    def get(self, id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        return self._segments.get(id.id)

    def _floor(self, leader_epoch: int, offset: int) -> RemoteLogSegmentMetadata | None:
        state = self._epochs.get(leader_epoch)
        id = None if state is None else state.floor(offset)
        return None if id is None else self._segments[id.id]

    # Events

    def add_copy_in_progress_segment(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Add a segment whose copy begins."""
        if metadata.state is not RemoteLogSegmentState.COPY_SEGMENT_STARTED:
            raise ValueError(f"{metadata.id} is in state {metadata.state.name}, and its copy is to begin")
        known = self._segments.get(metadata.id.id)
        if not self._is_valid(None if known is None else known.state, metadata.state, metadata.id):
            return
        for epoch in metadata.leader_epochs:
            self._epoch(epoch).on_copy_started(metadata.id)
        if known is not None:
            self._remove_ordered(known)
        at = bisect_right(self._starts, metadata.start_offset)
        self._starts.insert(at, metadata.start_offset)
        self._ordered.insert(at, metadata)
        self._segments[metadata.id.id] = metadata
        self._unfinished[metadata.id.id] = None

    def update_remote_log_segment_metadata(self, update: RemoteLogSegmentMetadataUpdate) -> None:
        """Change the state of a segment. An event that its state does not allow is dropped and logged."""
        if update.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED:
            raise ValueError(f"{update.id}: an update cannot begin a copy")
        known = self._segments.get(update.id.id)
        if known is None:
            if not self.is_initialized:
                return
            raise RemoteResourceNotFound(f"No remote log segment metadata found for {update.id}")
        if not self._is_valid(known.state, update.state, update.id):
            return
        metadata = known.with_update(update)
        for epoch in metadata.leader_epochs:
            state = self._epoch(epoch)
            start = metadata.segment_leader_epochs[epoch]
            match update.state:
                case RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
                    state.on_copy_finished(start, metadata.id, metadata.epoch_end_offset(epoch))
                case RemoteLogSegmentState.DELETE_SEGMENT_STARTED:
                    state.on_delete_started(start, metadata.id)
                case RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
                    state.on_delete_finished(metadata.id)
        self._unfinished.pop(metadata.id.id, None)
        if update.state is RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
            self._remove_ordered(known)
            del self._segments[metadata.id.id]
        else:
            self._ordered[self._place_of(known)] = metadata
            self._segments[metadata.id.id] = metadata

    def _place_of(self, metadata: RemoteLogSegmentMetadata) -> int:
        at = bisect_left(self._starts, metadata.start_offset)
        while self._ordered[at] is not metadata:
            at += 1
        return at

    def _remove_ordered(self, metadata: RemoteLogSegmentMetadata) -> None:
        at = self._place_of(metadata)
        del self._ordered[at], self._starts[at]

    def _epoch(self, epoch: int) -> RemoteLogLeaderEpochState:
        state = self._epochs.get(epoch)
        if state is None:
            state = self._epochs[epoch] = RemoteLogLeaderEpochState()
        return state

    @staticmethod
    def _is_valid(
        source: RemoteLogSegmentState | None, target: RemoteLogSegmentState, id: RemoteLogSegmentId
    ) -> bool:
        valid = is_valid_transition(source, target)
        if not valid:
            _log.error(
                "%s cannot go from state %s to %s; the event is dropped",
                id,
                None if source is None else source.name,
                target.name,
            )
        return valid
