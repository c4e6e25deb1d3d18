"""What is copied of a closed segment: its records, its indexes, and what a reader has to know at its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ottla.log.directory.checkpoints import encode_entries
from ottla.log.leader_epoch_cache import EpochEntry
from ottla.log.scrub.examination import RottenFile, examine_transaction_index
from ottla.log.segment.file_names import INDEX, LOG, TIME_INDEX
from ottla.log.segment.segment import LogSegment
from ottla.log.segment.walk import CorruptBatch
from ottla.log.unified_log import UnifiedLog
from ottla.remote.log_lineage import epoch_entries_between
from ottla.remote.segment_metadata import RemoteStorageError
from ottla.remote.storage_manager import LogSegmentData
from ottla.runtime.disk import Disk, read_file
from ottla.runtime.object_store import FileContent
from ottla.runtime.pool import Pool

_OFFSET_ENTRY_BYTES: Final = 8
_TIME_ENTRY_BYTES: Final = 12


class SegmentToCopy(NamedTuple):
    """A closed segment, and the base offset of the one after it."""

    segment: LogSegment
    next_base_offset: int

    @property
    def end_offset(self) -> int:
        """Its last offset; also where the last records of the segment were compacted away."""
        return self.next_base_offset - 1


class UncopyableSegment(RemoteStorageError):
    """A segment has records without a leader epoch, as logs of Kafka before 0.11 do. A remote segment is
    found by the epochs of its records, so these would be lost when they leave the disk.
    """

    def __init__(self, log: UnifiedLog, found: SegmentToCopy) -> None:
        super().__init__(
            f"The segment of {found.segment.base_offset} to {found.end_offset} of {log.topic_partition} has "
            "records without a leader epoch, and cannot be copied to remote storage; what follows it cannot "
            f"either. Delete these records (kafka-delete-records, up to offset {found.next_base_offset}), or "
            "turn remote.storage.enable off for the topic, which stays on the disk then"
        )


def next_segment_to_copy(log: UnifiedLog, copied_offset: int) -> SegmentToCopy | None:
    """Return the first closed segment above the offset up to which all is copied, if its records are stable;
    None if there is none yet.
    """
    if log.is_truncating:
        return None
    from_offset = max(copied_offset + 1, log.log_start_offset)
    segments = log.local_log.segments_from(from_offset)
    if len(segments) < 2 or segments[1].base_offset > log.last_stable_offset:
        return None
    return SegmentToCopy(segments[0], segments[1].base_offset)


def uncopied_segments(log: UnifiedLog) -> Sequence[LogSegment]:
    """The closed segments that are not in remote storage."""
    return log.local_log.segments_from(log.highest_offset_in_remote_storage + 1)[:-1]


def local_only_bytes(log: UnifiedLog) -> int:
    """The size of what is on this disk and not in remote storage."""
    above = log.highest_offset_in_remote_storage
    return sum(segment.size for segment in log.segments if segment.base_offset > above)


def segment_leader_epochs(log: UnifiedLog, found: SegmentToCopy) -> tuple[EpochEntry, ...]:
    """The leader epochs of the records of a segment; `UncopyableSegment` if some have none."""
    base_offset = found.segment.base_offset
    epochs = epoch_entries_between(log.leader_epoch_cache, base_offset, found.next_base_offset)
    if not epochs or epochs[0].start_offset > max(base_offset, log.log_start_offset):
        raise UncopyableSegment(log, found)
    return epochs


async def read_segment_data(log: UnifiedLog, found: SegmentToCopy, pool: Pool) -> LogSegmentData:
    """Return the content of the segment; its records are read as they are asked for. CorruptBatch if some of
    them are damaged: the store gets no copy of what this broker would not serve.
    """
    segment, disk = found.segment, log.directory.disk
    size = segment.size
    # Entries of this log's history, also those before the segment.
    epochs = [each for each in log.leader_epoch_cache.entries if each.start_offset < found.next_base_offset]

    def read() -> LogSegmentData:
        for stretch in log.damage_of(segment):
            damage = CorruptBatch(segment.path(LOG), stretch.position, stretch.damage)
            log.directory.report_damage(log.dir, damage)
            raise damage
        # The copy has its own index, which outlives this one: a wrong one would show aborted records.
        if any(isinstance(each, RottenFile) for each in examine_transaction_index(disk, segment)):
            log.repair_transaction_index(segment)
        offsets, times, transactions = _read_indexes(segment, disk)
        return LogSegmentData(
            lambda: FileContent(segment.open_file, size, pool),
            size,
            offset_index=offsets,
            time_index=times,
            producer_snapshot=log.producer_snapshot_at(found.next_base_offset),
            leader_epochs=encode_entries(f"{epoch} {offset}" for epoch, offset in epochs),
            transaction_index=transactions or None,
        )

    return await pool.run(read)


def _read_indexes(segment: LogSegment, disk: Disk) -> tuple[bytes, bytes, bytes]:
    """The files of the indexes without what is allocated behind their entries."""
    indexes = segment.indexes
    segment.flush_indexes()
    offsets = read_file(disk, segment.path(INDEX))[: indexes.offsets.entries * _OFFSET_ENTRY_BYTES]
    times = read_file(disk, segment.path(TIME_INDEX))[: indexes.times.entries * _TIME_ENTRY_BYTES]
    return offsets, times, b"".join(txn.encode() for txn in segment.txn_index.entries)
