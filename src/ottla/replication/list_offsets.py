"""Offsets by time: the beginning, the end, the newest record, or the first one not older than a timestamp.

A client never gets an offset that it could not read: records at or above the high watermark (or the last
stable offset) do not count. After an election the high watermark may be behind what the former leader had
committed; until it has reached the start of the epoch, the log end is OFFSET_NOT_AVAILABLE, so that it never
goes back for clients.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ottla.log.segment.timestamp_search import TimestampAndOffset, TimestampSearches
from ottla.log.unified_log import UnifiedLog
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.replication.partition import NO_EPOCH, FetchIsolation, Partition
from ottla.runtime.disk import waiting

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6

NO_TIMESTAMP: Final = -1


class ListedOffset(NamedTuple):
    timestamp: int
    offset: int
    leader_epoch: int


def fetch_offset_for_timestamp(
    partition: Partition,
    timestamp: int,
    *,
    isolation: FetchIsolation = FetchIsolation.HIGH_WATERMARK,
    current_leader_epoch: int = NO_EPOCH,
    only_leader: bool = True,
    may_wait: bool = True,
    in_remote_storage: TimestampAndOffset | None = None,
    searches: TimestampSearches | None = None,
) -> ListedOffset | None:
    """The offset for a timestamp or one of the special values; None if there is no such record.

    The isolation LOG_END is for replicas and debugging consumers, which may read everything. Unless
    `may_wait`, raise NotInMemory instead of waiting for the disk. `in_remote_storage` is the record that a
    search by timestamp has found there; what is only there comes before what is on the disk. `searches`
    bounds what is done at once: SearchTooLong has the rest.
    """
    partition.check_replica(current_leader_epoch, only_leader=only_leader)
    log = partition.log
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return _listed(
            partition, log.log_start_offset if timestamp == EARLIEST else log.local_log_start_offset
        )
    if timestamp == LATEST_TIERED:
        return _listed(partition, log.highest_offset_in_remote_storage if log.config.is_remote else -1)
    if timestamp == EARLIEST_PENDING_UPLOAD:
        return _listed(partition, _earliest_pending_upload(log))
    lagging = None if isolation is FetchIsolation.LOG_END else _lag(partition)
    last_fetchable = {
        FetchIsolation.LOG_END: log.log_end_offset,
        FetchIsolation.HIGH_WATERMARK: log.high_watermark,
        FetchIsolation.TXN_COMMITTED: log.last_stable_offset,
    }[isolation]
    if timestamp == LATEST:
        if lagging is not None:
            raise lagging
        return ListedOffset(NO_TIMESTAMP, last_fetchable, partition.leader_epoch)
    if timestamp < EARLIEST_PENDING_UPLOAD:
        return None
    found = in_remote_storage
    if timestamp == MAX_TIMESTAMP:
        with waiting(may_wait):
            on_disk = log.fetch_offset_of_max_timestamp(searches)
        if found is None or (on_disk is not None and on_disk.timestamp > found.timestamp):
            found = on_disk
    elif found is None:
        with waiting(may_wait):
            found = log.fetch_offset_by_timestamp(timestamp, searches)
    if found is None:
        return None
    if found.offset >= last_fetchable:
        if lagging is not None:
            raise lagging
        return None
    return ListedOffset(
        found.timestamp, found.offset, NO_EPOCH if found.leader_epoch is None else found.leader_epoch
    )


def is_search_in_remote_storage(partition: Partition, timestamp: int) -> bool:
    """Whether a search by timestamp has to begin with what is in remote storage only."""
    log = partition.log
    is_search = timestamp >= 0 or timestamp == MAX_TIMESTAMP
    return is_search and log.log_start_offset < log.local_log_start_offset


def _listed(partition: Partition, offset: int) -> ListedOffset:
    epoch = None if offset < 0 else partition.log.leader_epoch_cache.epoch_for_offset(offset)
    return ListedOffset(NO_TIMESTAMP, offset, NO_EPOCH if epoch is None else epoch)


def _earliest_pending_upload(log: UnifiedLog) -> int:
    """The first offset that is not in remote storage; -1 where that is not used, or what it has is not known
    yet.
    """
    if not log.config.is_remote:
        return -1
    if log.highest_offset_in_remote_storage >= 0:
        return max(log.highest_offset_in_remote_storage + 1, log.log_start_offset)
    return log.log_start_offset if log.log_start_offset == log.local_log_start_offset else -1


def _lag(partition: Partition) -> KafkaError | None:
    start = partition.leader_epoch_start_offset
    high_watermark = partition.log.high_watermark
    if start is None or start <= high_watermark:
        return None
    return KafkaError(
        ErrorCode.OFFSET_NOT_AVAILABLE,
        f"{partition.topic_partition}: the high watermark {high_watermark} has not reached the start {start} "
        f"of leader epoch {partition.leader_epoch}",
    )
