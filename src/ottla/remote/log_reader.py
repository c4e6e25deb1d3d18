"""Read records, aborted transactions and offsets by time from the remote segments of a partition.

A segment is found by an offset and the leader epoch that wrote it in this log's lineage, as a leader that was
elected uncleanly may have uploaded other records for the same offsets. A read ends where the epochs of the
segment and those of the log part. The position comes from the segment's offset index, the records from its
chunks (`segment_cache`). Which transactions were aborted is in the transaction indexes from there on: of
remote segments and, behind them, of the log on this disk.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final, NamedTuple

from ottla.log.producers.snapshot import decode_snapshot
from ottla.log.producers.state_manager import ProducerStateManager, end_txn_marker
from ottla.log.segment.soundness import AnyEpoch, sound_end
from ottla.log.segment.timestamp_search import TimestampAndOffset
from ottla.log.segment.txn_index import AbortedTxn, CorruptTxnIndexError, decode_entries
from ottla.log.unified_log import UnifiedLog
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicIdPartition
from ottla.records.batch import HEADER_SIZE, LOG_OVERHEAD, BatchHeader, find_timestamp, iter_batches
from ottla.remote.log_lineage import end_of_lineage
from ottla.remote.metadata_manager import RemoteLogMetadataManager
from ottla.remote.segment_cache import RemoteSegmentCache
from ottla.remote.segment_metadata import (
    RemoteLogSegmentMetadata,
    RemoteStorageError,
    RemoteStorageNotReady,
)
from ottla.remote.storage_manager import IndexType
from ottla.runtime.pool import Pool

_OFFSET_ENTRY: Final = Struct(">ii")
_TIME_ENTRY: Final = Struct(">qi")
# What is read to find a batch behind an entry of the offset index: entries are `index.interval.bytes` apart.
_FIND_BYTES: Final = 64 * 1024
_SCAN_BYTES: Final = 1024 * 1024
# Segments that are looked at in one turn of the event loop.
_SEGMENTS_AT_ONCE: Final = 256
_OFFSETS: Final = Struct(">qi11xi")


class RemoteRecords(NamedTuple):
    """The records of a remote read."""

    records: bytes
    """Batches, as `UnifiedLog.read` returns them."""
    aborted: tuple[AbortedTxn, ...] | None
    """None unless they were asked for."""
    next_local_offset: int | None = None
    """Where to read on this disk instead, if remote storage has no record from the offset on."""


class RemoteLogReader:
    """The remote parts of the logs of a broker."""

    __slots__ = ("_cache", "_failing", "_metadata", "_pool", "is_settled")

    def __init__(self, metadata: RemoteLogMetadataManager, cache: RemoteSegmentCache, pool: Pool) -> None:
        self._metadata: Final = metadata
        self._cache: Final = cache
        self._pool: Final = pool
        # Partitions whose last read failed, so that a store that is away is not reported for each read.
        self._failing: dict[TopicIdPartition, None] = {}
        # Whether the metadata of a partition are all that there will be: while a leader still looks for
        # segments in the store, what is not found is not known to be gone.
        self.is_settled: Callable[[TopicIdPartition], bool] = _always

    def on_read_failed(self, partition: TopicIdPartition) -> bool:
        """Note that a read failed; True if the one before had not, so that it is to be logged."""
        is_first = partition not in self._failing
        self._failing[partition] = None
        return is_first

    # Records

    async def read(
        self,
        partition: TopicIdPartition,
        log: UnifiedLog,
        offset: int,
        max_bytes: int,
        upper_offset: int,
        *,
        min_one_batch: bool = True,
        with_aborted: bool = False,
    ) -> RemoteRecords:
        """Batches from the one that holds `offset` on, of one segment, up to `max_bytes` and below
        `upper_offset`; the first batch in any case if `min_one_batch`.

        OFFSET_OUT_OF_RANGE if no remote segment of this log has the offset.
        """
        await self._metadata.wait_until_ready(partition)
        wanted = offset
        while True:
            if wanted >= log.local_log_start_offset:
                return RemoteRecords(b"", () if with_aborted else None, wanted)
            epoch, segment = self._find(partition, log, wanted)
            upper = min(upper_offset, _end_of_lineage(log, segment, epoch))
            start = await self._position_of(segment, wanted)
            if start is not None:
                break
            wanted = segment.end_offset + 1  # compaction has left nothing there
        position, size = start
        end = await self._end_position(segment, upper, position)
        wanted_bytes = max(max_bytes, size) if min_one_batch else max_bytes
        records = await self._cache.read(segment, position, min(position + wanted_bytes, end))
        sound, _, reason = sound_end(records, segment.start_offset, AnyEpoch())
        if reason is not None:
            if not sound:
                raise _damaged(segment, position, reason)
            records = records[:sound]
        if position + len(records) >= segment.segment_size_in_bytes:
            following = self._next_segment(partition, log, segment.end_offset + 1)
            if following is not None:
                self._cache.load_ahead(following, 0)
        self._failing.pop(partition, None)
        aborted = None
        if with_aborted:
            until = min(upper, segment.end_offset + 1)
            aborted = tuple(await self._aborted(partition, log, segment, epoch, offset, until))
        return RemoteRecords(records, aborted)

    def _find(
        self, partition: TopicIdPartition, log: UnifiedLog, offset: int
    ) -> tuple[int, RemoteLogSegmentMetadata]:
        epoch = log.leader_epoch_cache.epoch_for_offset(offset)
        if epoch is None:
            # The file of the leader epochs was damaged; those of the disk say nothing of what is not there.
            epoch = self._metadata.newest_epoch_of(partition, offset)
        segment = (
            None if epoch is None else self._metadata.remote_log_segment_metadata(partition, epoch, offset)
        )
        if epoch is None or segment is None:
            self._check_settled(partition)
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Received request for offset {offset} for leader epoch {epoch} and partition "
                f"{log.topic_partition} which does not exist in remote tier.",
            )
        return epoch, segment

    def _check_settled(self, partition: TopicIdPartition) -> None:
        if not self.is_settled(partition):
            raise RemoteStorageNotReady(
                f"The remote segments of partition {partition.partition} are still being looked for"
            )

    def _next_segment(
        self, partition: TopicIdPartition, log: UnifiedLog, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """The remote segment that a reader wants next, unless it goes on with what is on this disk."""
        if offset >= log.local_log_start_offset:
            return None
        epoch = log.leader_epoch_cache.epoch_for_offset(offset)
        return None if epoch is None else self._metadata.remote_log_segment_metadata(partition, epoch, offset)

    async def _position_of(self, segment: RemoteLogSegmentMetadata, offset: int) -> tuple[int, int] | None:
        """The position and size of the first batch that ends at or above `offset`; None if all end below."""
        position = await self._indexed_position(segment, offset)
        size = segment.segment_size_in_bytes
        while position < size:
            chunk = await self._cache.read(segment, position, position + _FIND_BYTES)
            at = 0
            while len(chunk) - at >= HEADER_SIZE:
                base_offset, length, delta = _OFFSETS.unpack_from(chunk, at)
                batch_bytes = length + LOG_OVERHEAD
                if batch_bytes < HEADER_SIZE or position + at + batch_bytes > size:
                    raise _damaged(segment, position + at)
                if base_offset + delta >= offset:
                    return position + at, batch_bytes
                at += batch_bytes
            if at == 0:
                raise _damaged(segment, position)
            position += at
        return None

    async def _end_position(self, segment: RemoteLogSegmentMetadata, upper: int, position: int) -> int:
        """The position at which the batches below `upper` end."""
        if upper > segment.end_offset:
            return segment.segment_size_in_bytes
        found = await self._position_of(segment, upper)
        return segment.segment_size_in_bytes if found is None else max(found[0], position)

    async def _indexed_position(self, segment: RemoteLogSegmentMetadata, offset: int) -> int:
        """The position of a batch that is not behind the one that holds `offset`."""
        index = await self._cache.index(segment, IndexType.OFFSET)
        relative = offset - segment.start_offset
        count = bisect_right(
            range(len(index) // _OFFSET_ENTRY.size),
            relative,
            key=lambda n: _OFFSET_ENTRY.unpack_from(index, n * _OFFSET_ENTRY.size)[0],
        )
        if not count:
            return 0
        position: int = _OFFSET_ENTRY.unpack_from(index, (count - 1) * _OFFSET_ENTRY.size)[1]
        return position

    # Aborted transactions

    async def _aborted(
        self,
        partition: TopicIdPartition,
        log: UnifiedLog,
        segment: RemoteLogSegmentMetadata,
        epoch: int,
        start: int,
        upper: int,
    ) -> list[AbortedTxn]:
        """The aborted transactions with records in [`start`, `upper`) of the segment: their markers may be in
        it or behind it.
        """
        aborted: dict[tuple[int, int], AbortedTxn] = {}
        looked_at = 0
        offset = segment.start_offset
        while True:
            for each in self._segments_from(partition, log, offset):
                looked_at += 1
                if looked_at % _SEGMENTS_AT_ONCE == 0:
                    await asyncio.sleep(0)
                if each.txn_index_empty:
                    continue
                try:
                    entries = decode_entries(await self._cache.index(each, IndexType.TRANSACTION))
                except CorruptTxnIndexError as error:
                    raise RemoteStorageError(
                        f"The transaction index of {each.id} is damaged: {error}"
                    ) from error
                for txn in entries:
                    if txn.last_offset >= start and txn.first_offset < upper:
                        aborted[txn.producer_id, txn.first_offset] = txn
                    if txn.last_stable_offset >= upper:
                        return list(aborted.values())
            offset = log.local_log_start_offset
            found = await self._pool.run(log.collect_aborted_transactions, offset, upper)
            aborted |= {(txn.producer_id, txn.first_offset): txn for txn in found}
            if log.local_log_start_offset == offset:
                return list(aborted.values())
            # Segments have left the disk meanwhile, perhaps before they were looked at there.

    def _segments_from(
        self, partition: TopicIdPartition, log: UnifiedLog, offset: int
    ) -> Iterator[RemoteLogSegmentMetadata]:
        """The remote segments of the log's lineage from the one that has `offset` on, up to the log on this
        disk, or to a gap. A segment that begins below the log start counts too.
        """
        epochs = log.leader_epoch_cache
        offset = max(offset, log.log_start_offset)
        while offset < log.local_log_start_offset:
            epoch = epochs.epoch_for_offset(offset)
            segment = (
                None
                if epoch is None
                else self._metadata.remote_log_segment_metadata(partition, epoch, offset)
            )
            if epoch is None or segment is None:
                self._check_settled(partition)
                return
            yield segment
            # The next segment may be one of another upload, where the lineage parts from this one.
            offset = max(min(segment.end_offset + 1, _end_of_lineage(log, segment, epoch)), offset + 1)

    # Offsets by time

    async def fetch_offset_by_timestamp(
        self, partition: TopicIdPartition, log: UnifiedLog, timestamp: int
    ) -> TimestampAndOffset | None:
        """The first record in remote storage, from the log start on, that is not older than `timestamp`; None
        if remote storage has none that is not also on this disk.
        """
        await self._metadata.wait_until_ready(partition)
        for looked_at, segment in enumerate(self._segments_from(partition, log, log.log_start_offset), 1):
            if looked_at % _SEGMENTS_AT_ONCE == 0:
                await asyncio.sleep(0)
            if segment.max_timestamp_ms >= timestamp:
                found = await self._find_timestamp(log, segment, timestamp)
                if found is not None:
                    return found
        return None

    async def fetch_offset_of_max_timestamp(
        self, partition: TopicIdPartition, log: UnifiedLog
    ) -> TimestampAndOffset | None:
        """The first record in remote storage, from the log start on, that has the greatest timestamp there;
        None if remote storage has none that is not also on this disk.
        """
        await self._metadata.wait_until_ready(partition)
        segments = []
        for looked_at, segment in enumerate(self._segments_from(partition, log, log.log_start_offset), 1):
            segments.append(segment)
            if looked_at % _SEGMENTS_AT_ONCE == 0:
                await asyncio.sleep(0)
        # The oldest of those with the greatest; its record may be one that was deleted.
        for segment in sorted(segments, key=lambda each: (-each.max_timestamp_ms, each.start_offset)):
            found = await self._find_timestamp(log, segment, segment.max_timestamp_ms)
            if found is not None:
                return found
        return None

    async def _find_timestamp(
        self, log: UnifiedLog, segment: RemoteLogSegmentMetadata, timestamp: int
    ) -> TimestampAndOffset | None:
        start = log.log_start_offset
        epoch = log.leader_epoch_cache.epoch_for_offset(max(start, segment.start_offset))
        upper = segment.end_offset + 1 if epoch is None else _end_of_lineage(log, segment, epoch)
        index = await self._cache.index(segment, IndexType.TIMESTAMP)
        count = bisect_right(
            range(len(index) // _TIME_ENTRY.size),
            timestamp,
            key=lambda n: _TIME_ENTRY.unpack_from(index, n * _TIME_ENTRY.size)[0],
        )
        begin = segment.start_offset
        if count:
            begin += _TIME_ENTRY.unpack_from(index, (count - 1) * _TIME_ENTRY.size)[1]
        position = await self._indexed_position(segment, max(begin, start))
        size = segment.segment_size_in_bytes
        wanted = _SCAN_BYTES
        while position < size:
            chunk = await self._cache.read(segment, position, position + wanted)
            found, done = await self._pool.run(_search, chunk, timestamp, start, upper)
            if found is not None:
                return found
            if done == 0:
                if wanted >= size:
                    raise _damaged(segment, position)
                wanted *= 2  # a batch that is larger
            position += done
        return None

    # For replicas

    async def fetch_segment(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """The remote segment that has this offset in this epoch."""
        await self._metadata.wait_until_ready(partition)
        return self._metadata.remote_log_segment_metadata(partition, epoch, offset)

    async def fetch_producers(self, partition: TopicIdPartition, log: UnifiedLog) -> bytes:
        """The producers at the offset where the log begins on this disk, as a snapshot: those behind a remote
        segment, and what the records from there on have changed.
        """
        await self._metadata.wait_until_ready(partition)
        first, start = log.segments[0].base_offset, log.log_start_offset
        producers = ProducerStateManager(str(log.topic_partition))
        before = first - 1
        while True:
            if before < start:
                at = start
                break
            epoch, segment = self._find(partition, log, before)
            at = segment.end_offset + 1
            if at <= min(first, _end_of_lineage(log, segment, epoch)):
                snapshot = await self.fetch_index(segment, IndexType.PRODUCER_SNAPSHOT)
                producers.load(await self._pool.run(decode_snapshot, snapshot), now_ms=0)
                break
            before = segment.start_offset - 1
        while at < first:
            found = await self.read(partition, log, at, _SCAN_BYTES, first)
            if found.next_local_offset is not None:
                break
            end = await self._pool.run(_replay, producers, found.records, at, first)
            if end == at:
                raise RemoteStorageError(f"{log.topic_partition} has no record at offset {at} there")
            at = end
        return producers.snapshot()

    async def fetch_index(self, segment: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        return await self._cache.index(segment, index_type)

    async def close(self) -> None:
        await self._cache.close()


def _replay(producers: ProducerStateManager, records: bytes, start: int, end: int) -> int:
    """Replay the whole batches from `start` to `end`; return the offset after them."""
    for at, header in iter_batches(records):
        if header.base_offset < end and start <= header.last_offset:
            producers.replay([(header, end_txn_marker(records, at, header))])
            start = header.next_offset
    return start


def _search(chunk: bytes, timestamp: int, start: int, upper: int) -> tuple[TimestampAndOffset | None, int]:
    """The first record of the whole batches that is not older, and the size of these batches."""
    done = 0
    for at, header in iter_batches(chunk):
        done = at + header.size
        if header.base_offset >= upper:
            return None, len(chunk)
        if header.max_timestamp < timestamp or header.last_offset < start:
            continue
        found = find_timestamp(chunk, at, header, timestamp, start_offset=start)
        if found is not None:
            return TimestampAndOffset(found[1], found[0], _epoch(header)), done
    return None, done


def _epoch(header: BatchHeader) -> int | None:
    return header.leader_epoch if header.leader_epoch >= 0 else None


def _end_of_lineage(log: UnifiedLog, segment: RemoteLogSegmentMetadata, epoch: int) -> int:
    return end_of_lineage(log.leader_epoch_cache.entries, segment, epoch)


def _damaged(
    segment: RemoteLogSegmentMetadata, position: int, reason: str = "there is no whole batch"
) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{segment.id} is damaged at position {position}: {reason}")


def _always(_: TopicIdPartition) -> bool:
    return True
