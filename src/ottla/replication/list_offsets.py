"""Offsets by time: the beginning, the end, the newest record, or the first one not older than a timestamp.

A client never gets an offset that it could not read: records at or above the high watermark (or the last
stable offset) do not count. After an election the high watermark may be behind what the former leader had
committed; until it has reached the start of the epoch, the log end is OFFSET_NOT_AVAILABLE, so that it never
goes back for clients.
"""

from __future__ import annotations

from typing import Final, NamedTuple

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
) -> ListedOffset | None:
    """The offset for a timestamp or one of the special values; None if there is no such record.

    The isolation LOG_END is for replicas and debugging consumers, which may read everything. Unless
    `may_wait`, raise NotInMemory instead of waiting for the disk.
    """
    partition.check_replica(current_leader_epoch, only_leader=only_leader)
    log = partition.log
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        start = log.log_start_offset
        earliest = log.leader_epoch_cache.earliest
        epoch = earliest.epoch if earliest is not None and earliest.start_offset <= start else NO_EPOCH
        return ListedOffset(NO_TIMESTAMP, start, epoch)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return ListedOffset(NO_TIMESTAMP, -1, NO_EPOCH)  # nothing of this log is in remote storage
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
    with waiting(may_wait):
        found = (
            log.fetch_offset_of_max_timestamp()
            if timestamp == MAX_TIMESTAMP
            else log.fetch_offset_by_timestamp(timestamp)
        )
    if found is None:
        return None
    if found.offset >= last_fetchable:
        if lagging is not None:
            raise lagging
        return None
    return ListedOffset(
        found.timestamp, found.offset, NO_EPOCH if found.leader_epoch is None else found.leader_epoch
    )


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
