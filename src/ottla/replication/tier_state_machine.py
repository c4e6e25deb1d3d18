"""What a follower needs to know of the records that it does not fetch, as they are in remote storage only.

Kafka's `TierStateMachine`. The leader answers a fetch below the start of what is on its disk with
OFFSET_MOVED_TO_TIERED_STORAGE. The follower then finds the remote segment that has the last record before
that start, in the leader epoch that the leader's log has there. The leader epochs up to that record, and the
producers at the segment's end, are kept with the segment. The follower's log begins at that end, and its
start is the leader's.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.log.directory.checkpoints import CorruptCheckpoint, decode_entries
from ottla.log.producers.snapshot import CorruptSnapshotError, decode_snapshot
from ottla.log.unified_log import RemoteLogAuxState
from ottla.protocol.names import TopicIdPartition
from ottla.remote.log_reader import RemoteLogReader
from ottla.remote.segment_metadata import (
    RemoteLogSegmentMetadata,
    RemoteResourceNotFound,
    RemoteStorageError,
)
from ottla.remote.storage_manager import IndexType


class LeaderTier(NamedTuple):
    """Where the leader's log has its parts."""

    log_start_offset: int
    local_log_start_offset: int
    epoch_before: int
    """The leader epoch of the last record before the local start."""


class TieredStart(NamedTuple):
    """Where a follower's log begins on its disk, and what it knows of the records before."""

    offset: int
    log_start_offset: int
    auxiliary_state: RemoteLogAuxState


async def fetch_tiered_start(
    reader: RemoteLogReader, partition: TopicIdPartition, leader: LeaderTier
) -> TieredStart:
    """Find where to begin to fetch; RemoteStorageError where remote storage does not tell, or not yet."""
    last = leader.local_log_start_offset - 1
    segment = await reader.fetch_segment(partition, leader.epoch_before, last)
    if segment is None:
        raise RemoteResourceNotFound(
            f"There is no remote segment of partition {partition.partition} with offset {last} and leader "
            f"epoch {leader.epoch_before} yet, before which the leader's log is in remote storage only"
        )
    offset = segment.end_offset + 1
    epochs = tuple(each for each in await _leader_epochs(reader, segment) if each[1] < offset)
    # One that is not there was deleted with its segment since: without what producers have sent, what they
    # send again would be appended twice.
    snapshot = await reader.fetch_index(segment, IndexType.PRODUCER_SNAPSHOT)
    try:
        decode_snapshot(snapshot)
    except CorruptSnapshotError as error:
        raise RemoteStorageError(f"The producer snapshot of {segment.id} is damaged: {error}") from None
    return TieredStart(offset, leader.log_start_offset, RemoteLogAuxState(epochs, snapshot))


async def _leader_epochs(reader: RemoteLogReader, segment: RemoteLogSegmentMetadata) -> list[tuple[int, int]]:
    data = await reader.fetch_index(segment, IndexType.LEADER_EPOCH)
    name = f"the leader epochs of {segment.id}"
    epochs = []
    for entry in decode_entries(data, name):
        try:
            epoch, start_offset = entry
            epochs.append((int(epoch), int(start_offset)))
        except ValueError:
            raise CorruptCheckpoint(f"{name} have the entry {' '.join(entry)[:80]!r}") from None
    return epochs
