"""Which remote segments of a partition are to be deleted, and why: Kafka's rules, as a function.

Segments of the log's lineage go from the oldest on: what lies wholly below the log start, what is older than
`retention.ms`, and as many as the whole log, remote and local, is larger than `retention.bytes`. The first
that stays ends it, so that the log gets no hole. Then the log starts behind the last one that goes, and that
is known before the first object is deleted. Deletions that were begun are always finished. Segments outside
of the lineage go when their epochs are older than all of the log's, if that knows its epochs from its start
on.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ottla.log.leader_epoch_cache import EpochEntry
from ottla.remote.log_lineage import LogLineage
from ottla.remote.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata, RemoteLogSegmentState
from ottla.runtime.steps import Steps


@dataclass(frozen=True, slots=True)
class RemoteExpiration:
    """The segments to delete, in this order, and the offset where the log is to start before, if it moves."""

    segments: tuple[RemoteLogSegmentMetadata, ...]
    new_log_start_offset: int | None = None
    next_check_ms: int | None = None
    """When the oldest segment that stays is too old; None if time will not change anything."""


def plan_expiration(
    segments: Sequence[RemoteLogSegmentMetadata],
    *,
    epochs: Sequence[EpochEntry],
    log_start_offset: int,
    log_end_offset: int,
    local_only_bytes: int,
    retention_ms: int,
    retention_bytes: int,
    now_ms: int,
    being_copied: Collection[RemoteLogSegmentId] = (),
) -> Steps[RemoteExpiration]:
    """Return what is to be deleted of `segments`, which are all of the partition, by their start offsets.
    `local_only_bytes` is the size of what is not in remote storage; a negative limit is no limit.
    """
    lineage = LogLineage(epochs, log_end_offset)
    if not lineage.entries:
        return RemoteExpiration(())
    first_epoch = lineage.entries[0]
    excess = 0
    if retention_bytes >= 0:
        remote_bytes = 0
        for metadata in segments:
            if metadata.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED and lineage.has(metadata):
                remote_bytes += metadata.segment_size_in_bytes
            yield
        excess = max(0, local_only_bytes + remote_bytes - retention_bytes)
    knows_first_epoch = first_epoch.start_offset <= log_start_offset
    expired: list[RemoteLogSegmentMetadata] = []
    new_start: int | None = None
    next_check_ms: int | None = None
    is_open = True
    for metadata in segments:
        yield
        if metadata.id in being_copied:
            continue
        if metadata.state is RemoteLogSegmentState.DELETE_SEGMENT_STARTED or (
            knows_first_epoch and _is_of_older_epochs(metadata, first_epoch)
        ):
            expired.append(metadata)
            continue
        if metadata.end_offset < log_start_offset and metadata.leader_epochs[-1] <= first_epoch.epoch:
            expired.append(metadata)
            excess = max(0, excess - metadata.segment_size_in_bytes)
            continue
        if metadata.state is not RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
            continue
        if not is_open or not lineage.has(metadata):
            continue
        if 0 <= retention_ms < now_ms - metadata.max_timestamp_ms + 1:
            excess = max(0, excess - metadata.segment_size_in_bytes)
        elif 0 < metadata.segment_size_in_bytes <= excess:
            excess -= metadata.segment_size_in_bytes
        else:
            is_open = False
            if retention_ms >= 0:
                next_check_ms = metadata.max_timestamp_ms + retention_ms
            continue
        expired.append(metadata)
        new_start = max(new_start or 0, metadata.end_offset + 1)
    if new_start is not None and new_start <= log_start_offset:
        new_start = None
    return RemoteExpiration(tuple(expired), new_start, next_check_ms)


def _is_of_older_epochs(metadata: RemoteLogSegmentMetadata, first: EpochEntry) -> bool:
    return metadata.leader_epochs[-1] < first.epoch
