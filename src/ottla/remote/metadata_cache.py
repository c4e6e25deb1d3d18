"""The remote segments of one partition, by leader epoch and offset.

A plain object that events are applied to, in the order in which they stand in `__remote_log_metadata`; every
broker that reads the topic comes to the same state. A lookup names a leader epoch as well as an offset, as
two leaders may have uploaded different records for one offset, and only one of them is in the log's lineage.

Invariants: a segment is found by offset exactly while its state is COPY_SEGMENT_FINISHED and no later upload
covers it; a segment is listed from its first event until DELETE_SEGMENT_FINISHED.
"""

from __future__ import annotations

import logging
from bisect import bisect_right, insort
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

    __slots__ = ("_ids", "_offsets", "highest_offset", "unreferenced")

    def __init__(self) -> None:
        # The offsets at which finished segments begin in this epoch, ascending, and the segment of each with
        # its last offset in the epoch.
        self._offsets: list[int] = []
        self._ids: dict[int, tuple[RemoteLogSegmentId, int]] = {}
        # Segments that no lookup returns: being copied, covered by a later upload, or being deleted. As keys
        # of a dict, which has an order.
        self.unreferenced: dict[RemoteLogSegmentId, None] = {}
        # The last offset of the epoch that was ever copied; deletions do not lower it.
        self.highest_offset: int | None = None

    @property
    def is_empty(self) -> bool:
        return not self._offsets and not self.unreferenced

    def floor(self, offset: int) -> RemoteLogSegmentId | None:
        """The finished segment that begins at this offset or is the last to begin before it."""
        at = bisect_right(self._offsets, offset)
        return self._ids[self._offsets[at - 1]][0] if at else None

    def segment_ids(self) -> Iterator[RemoteLogSegmentId]:
        """All segments, those that lookups return first and in their order."""
        for offset in self._offsets:
            yield self._ids[offset][0]
        yield from self.unreferenced

    def on_copy_started(self, id: RemoteLogSegmentId) -> None:
        self.unreferenced[id] = None

    def on_copy_finished(self, start_offset: int, id: RemoteLogSegmentId, end_offset: int) -> None:
        """Put the segment in the place of those that it covers: a leader that lags behind in its uploads may
        be followed by one whose segments are cut differently. A segment that is covered itself, as the late
        upload of an earlier leader may be, changes no lookup.
        """
        offsets = self._offsets
        at = bisect_right(offsets, start_offset)
        if at:
            other, other_end = self._ids[offsets[at - 1]]
            if other != id and other_end >= end_offset:
                self.unreferenced[id] = None
                return
        while (
            offsets
            and offsets[-1] >= start_offset
            and (self.highest_offset is None or self.highest_offset <= end_offset)
        ):
            covered, _ = self._ids.pop(offsets.pop())
            self.unreferenced[covered] = None
        previous = self._ids.get(start_offset)
        if previous is None:
            insort(offsets, start_offset)
        else:
            self.unreferenced[previous[0]] = None
        self._ids[start_offset] = (id, end_offset)
        self.unreferenced.pop(id, None)
        if self.highest_offset is None or end_offset > self.highest_offset:
            self.highest_offset = end_offset

    def on_delete_started(self, start_offset: int, id: RemoteLogSegmentId) -> None:
        found = self._ids.get(start_offset)
        if found is not None and found[0] == id:
            del self._ids[start_offset]
            self._offsets.pop(bisect_right(self._offsets, start_offset) - 1)
        self.unreferenced[id] = None

    def on_delete_finished(self, id: RemoteLogSegmentId) -> None:
        self.unreferenced.pop(id, None)


class RemoteLogMetadataCache:
    """The remote segments of one partition."""

    __slots__ = ("_epochs", "_segments", "is_initialized")

    def __init__(self) -> None:
        self._segments: dict[RemoteLogSegmentId, RemoteLogSegmentMetadata] = {}
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

    def next_segment_with_txn_index(self, leader_epoch: int, offset: int) -> RemoteLogSegmentMetadata | None:
        """Return the first segment of the epoch from this offset on that has aborted transactions."""
        metadata = self.remote_log_segment_metadata(leader_epoch, offset)
        while metadata is not None and metadata.txn_index_empty:
            metadata = self.remote_log_segment_metadata(leader_epoch, metadata.end_offset + 1)
        return metadata

    def highest_offset_for_epoch(self, leader_epoch: int) -> int | None:
        """Return the last offset of the epoch that was copied, whether or not it was deleted since."""
        state = self._epochs.get(leader_epoch)
        return None if state is None else state.highest_offset

    def list_remote_log_segments(self, leader_epoch: int | None = None) -> list[RemoteLogSegmentMetadata]:
        """Return the segments of an epoch, or of all, by their start offsets; in every state."""
        if leader_epoch is None:
            found = list(self._segments.values())
        else:
            state = self._epochs.get(leader_epoch)
            found = [] if state is None else [self._segments[id] for id in state.segment_ids()]
        found.sort(key=lambda metadata: metadata.start_offset)
        return found

    def get(self, id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        return self._segments.get(id)

    def _floor(self, leader_epoch: int, offset: int) -> RemoteLogSegmentMetadata | None:
        state = self._epochs.get(leader_epoch)
        id = None if state is None else state.floor(offset)
        return None if id is None else self._segments[id]

    # Events

    def add_copy_in_progress_segment(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Add a segment whose copy begins."""
        if metadata.state is not RemoteLogSegmentState.COPY_SEGMENT_STARTED:
            raise ValueError(f"{metadata.id} is in state {metadata.state.name}, and its copy is to begin")
        known = self._segments.get(metadata.id)
        if not self._is_valid(None if known is None else known.state, metadata.state, metadata.id):
            return
        for epoch in metadata.leader_epochs:
            self._epoch(epoch).on_copy_started(metadata.id)
        self._segments[metadata.id] = metadata

    def update_remote_log_segment_metadata(self, update: RemoteLogSegmentMetadataUpdate) -> None:
        """Change the state of a segment. An event that its state does not allow is dropped and logged."""
        if update.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED:
            raise ValueError(f"{update.id}: an update cannot begin a copy")
        known = self._segments.get(update.id)
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
        if update.state is RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
            del self._segments[metadata.id]
        else:
            self._segments[metadata.id] = metadata

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
