"""Reading remote segments: in chunks that are read once, in the lineage of the log, within every bound."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ottla.log.config.log_config import LogConfig
from ottla.log.producers.snapshot import decode_snapshot
from ottla.log.segment.file_names import INDEX, LOG, TIME_INDEX
from ottla.log.segment.txn_index import AbortedTxn
from ottla.log.unified_log import RemoteLogAuxState
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicIdPartition
from ottla.records.batch import iter_batches
from ottla.records.builder import build_batch
from ottla.remote.log_reader import RemoteLogReader
from ottla.remote.metadata_cache import RemoteLogMetadataCache
from ottla.remote.object_storage import ObjectStorageManager
from ottla.remote.segment_cache import (
    DiskPartCache,
    RemoteSegmentCache,
    SegmentCacheLimits,
    TooManyRemoteReads,
)
from ottla.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemoteResourceNotFound,
    RemoteStorageError,
)
from ottla.remote.storage_manager import IndexType, LogSegmentData
from ottla.runtime.disk import read_file
from ottla.runtime.object_store import MemoryStore
from ottla.runtime.pool import InlinePool
from tests.support.log_harness import PARTITION, TOPIC_ID, LogHarness
from tests.support.remote_metadata import InMemoryRemoteLogMetadataManager

ID = TopicIdPartition(TOPIC_ID, PARTITION.partition)
REMOTE = LogConfig(
    segment_bytes=3000,
    index_interval_bytes=300,
    remote_storage_enable=True,
    local_retention_bytes=0,
    local_retention_ms=-1,
    retention_ms=-1,
)


class CountingStorage(ObjectStorageManager):
    """Counts what is fetched, and waits or fails where a test says so."""

    __slots__ = ("failure", "fetches", "gate", "rotten_at")

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.fetches: list[tuple[int, int]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.failure: Exception | None = None
        # The position at which a bit of each segment has rotted.
        self.rotten_at: int | None = None

    async def fetch_log_segment(self, metadata: RemoteLogSegmentMetadata, start: int, end: int) -> bytes:
        self.fetches.append((start, end))
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        data = bytearray(await super().fetch_log_segment(metadata, start, end))
        if self.rotten_at is not None and start <= self.rotten_at < start + len(data):
            data[self.rotten_at - start] ^= 1
        return bytes(data)


class Tier:
    """A log, a store with its closed segments, and a reader."""

    def __init__(self, limits: SegmentCacheLimits | None = None, *, on_disk: bool = False) -> None:
        self.lab = LogHarness(REMOTE)
        self.storage = CountingStorage()
        self.metadata = InMemoryRemoteLogMetadataManager()
        self.metadata.assign_partitions([ID])
        pool = InlinePool()
        self.limits = limits or SegmentCacheLimits(chunk_bytes=1000)
        disk = DiskPartCache(self.lab.disk, pool, "/data/cache", 20_000) if on_disk else None
        self.disk_cache = disk
        self.cache = RemoteSegmentCache(self.storage, self.limits, disk)
        self.reader = RemoteLogReader(self.metadata, self.cache, pool)
        self.copies = 0

    async def copy(self, epoch: int | None = None) -> None:
        """Copy the closed segments, and remove them from the disk. With `epoch`, their records are said to be
        of that one.
        """
        log = self.lab.log
        log.update_high_watermark(log.log_end_offset)
        for segment in log.segments[:-1]:
            end = min(each.base_offset for each in log.segments if each.base_offset > segment.base_offset) - 1
            self.copies += 1
            id = RemoteLogSegmentId(TOPIC_ID, PARTITION, self.copies.to_bytes(16, "big"))
            base = segment.base_offset
            of_segment = {
                entry.epoch: max(entry.start_offset, base)
                for entry in log.leader_epoch_cache.entries
                if entry.start_offset <= end and log.end_offset_for_epoch(entry.epoch)[1] > base
            }
            if epoch is not None:
                of_segment = {epoch: base}
            metadata = RemoteLogSegmentMetadata(
                id, segment.base_offset, end, segment.largest_timestamp, 1, 0, segment.size, of_segment
            )
            segment.flush_indexes()
            records = read_file(self.lab.disk, segment.path(LOG))

            async def pieces(data: bytes = records) -> AsyncIterator[bytes]:
                yield data

            await self.metadata.add_remote_log_segment_metadata(metadata)
            data = LogSegmentData(
                pieces,
                segment.size,
                read_file(self.lab.disk, segment.path(INDEX)),
                read_file(self.lab.disk, segment.path(TIME_INDEX)),
                log.producer_snapshot_at(end + 1),
                b"",
            )
            await self.storage.copy_log_segment_data(metadata, data)
            await self.metadata.update_remote_log_segment_metadata(
                RemoteLogSegmentMetadataUpdate(id, 0, RemoteLogSegmentState.COPY_SEGMENT_FINISHED, 1)
            )
            log.update_highest_offset_in_remote_storage(end)
        log.delete_old_segments(self.lab.now_ms)

    async def offsets(self, offset: int, max_bytes: int, upper: int = 1 << 60, **how: bool) -> list[int]:
        """The base offsets of the whole batches that a read returns."""
        found = await self.reader.read(ID, self.lab.log, offset, max_bytes, upper, **how)
        return [header.base_offset for _, header in iter_batches(found.records)]


async def filled(limits: SegmentCacheLimits | None = None, *, on_disk: bool = False) -> Tier:
    tier = Tier(limits, on_disk=on_disk)
    tier.lab.fill(100)
    await tier.copy()
    assert tier.lab.log.local_log_start_offset > 50
    return tier


async def test_a_read_begins_with_the_batch_of_its_offset_and_stays_in_its_limits() -> None:
    tier = await filled()
    local = tier.lab.log.local_log_start_offset
    for offset in range(local):
        found = await tier.offsets(offset, 700)
        assert found[0] == offset
        assert found == list(range(offset, offset + len(found)))
    assert await tier.offsets(5, 1) == [5]
    assert await tier.offsets(5, 1, min_one_batch=False) == []
    assert await tier.offsets(5, 10_000, upper=8) == [5, 6, 7]


async def test_what_has_rotted_in_the_store_is_not_served() -> None:
    tier = await filled()
    before = await tier.offsets(0, 700)
    tier = await filled()
    records = tier.lab.log.local_log_start_offset
    assert records > 5
    tier.storage.rotten_at = 400
    found = await tier.offsets(0, 700)
    assert found
    assert found == before[: len(found)] != before
    with pytest.raises(KafkaError, match="is damaged at position") as refused:
        await tier.offsets(len(found), 700)
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE


def first(tier: Tier) -> RemoteLogSegmentMetadata:
    return tier.metadata.list_remote_log_segments(ID)[0]


async def test_each_chunk_is_fetched_once_and_the_next_one_ahead() -> None:
    tier = await filled(SegmentCacheLimits(chunk_bytes=500))
    await asyncio.gather(*(tier.cache.read(first(tier), 0, 300) for _ in range(5)))
    await asyncio.sleep(0)
    assert tier.storage.fetches == [(0, 500), (500, 1000)]
    await tier.cache.read(first(tier), 0, first(tier).segment_size_in_bytes)
    assert len(tier.storage.fetches) == len(set(tier.storage.fetches))
    await tier.reader.close()


async def test_a_segment_that_is_being_deleted_is_not_one_without_aborted_transactions() -> None:
    tier = await filled()
    await tier.offsets(0, 500)  # its records are in memory
    following = first(tier).end_offset + 1
    await tier.storage.delete_log_segment_data(first(tier))
    with pytest.raises(RemoteResourceNotFound):
        await tier.offsets(0, 500, with_aborted=True)
    assert (await tier.offsets(following, 500, with_aborted=True))[0] == following
    await tier.reader.close()


async def test_transactions_are_found_in_segments_that_leave_the_disk_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tier = await filled()
    log, fetch_index = tier.lab.log, tier.storage.fetch_index
    before = log.local_log_start_offset
    tier.lab.fill(100)
    found = AbortedTxn(7, 0, before + 1, before + 2)

    async def with_aborted(segment: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        if index_type is IndexType.TRANSACTION:
            return found.encode() if segment.start_offset <= before + 1 <= segment.end_offset else b""
        return await fetch_index(segment, index_type)

    class SlowPool(InlinePool):
        async def run(self, *work: Any) -> Any:
            if log.local_log_start_offset == before:
                await tier.copy()
            return await super().run(*work)

    monkeypatch.setattr(CountingStorage, "fetch_index", lambda _, *what: with_aborted(*what))
    tier.reader = RemoteLogReader(tier.metadata, tier.cache, SlowPool())
    records = await tier.reader.read(ID, log, 0, 500, 1 << 60, with_aborted=True)
    assert log.local_log_start_offset > before + 1
    assert records.aborted == (found,)
    await tier.reader.close()


async def test_memory_stays_within_its_limit() -> None:
    tier = await filled(SegmentCacheLimits(chunk_bytes=500, memory_bytes=2000))
    for offset in range(tier.lab.log.local_log_start_offset):
        await tier.offsets(offset, 500)
        assert tier.cache.memory_bytes <= 2000
    await tier.reader.close()


async def test_what_left_memory_is_read_from_the_disk_cache_within_its_limit() -> None:
    tier = await filled(SegmentCacheLimits(chunk_bytes=500, memory_bytes=600), on_disk=True)
    assert tier.disk_cache is not None
    for _ in range(2):
        for start in range(0, 2500, 100):
            await tier.cache.read(first(tier), start, start + 100)
    assert len(tier.storage.fetches) == len(set(tier.storage.fetches)), "a chunk was fetched twice"
    assert 0 < tier.disk_cache.size <= 20_000
    await tier.reader.close()


async def test_a_reader_that_stops_waiting_leaves_the_load_to_others() -> None:
    tier = await filled()
    tier.storage.gate.clear()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await tier.offsets(0, 500)
    tier.storage.gate.set()
    assert (await tier.offsets(0, 500))[0] == 0
    assert tier.storage.fetches.count((0, 1000)) == 1
    await tier.reader.close()


async def test_reads_that_wait_are_bounded() -> None:
    tier = await filled(SegmentCacheLimits(chunk_bytes=1000, loads_at_once=1, max_pending_loads=1))
    for segment in tier.metadata.list_remote_log_segments(ID):
        await tier.cache.index(segment, IndexType.OFFSET)
    starts = [segment.start_offset for segment in tier.metadata.list_remote_log_segments(ID)]
    tier.storage.gate.clear()
    reads = [asyncio.ensure_future(tier.offsets(start, 100)) for start in starts[:2]]
    while tier.cache.loads < 2:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    with pytest.raises(TooManyRemoteReads):
        await tier.offsets(starts[2], 100)
    assert len(tier.storage.fetches) == 1
    tier.cache.resize(2)
    await asyncio.sleep(0)
    assert len(tier.storage.fetches) == 2
    tier.storage.gate.set()
    await asyncio.gather(*reads)
    await tier.reader.close()


async def test_a_failed_load_is_not_remembered() -> None:
    tier = await filled()
    tier.storage.failure = RemoteStorageError("the store is away")
    with pytest.raises(RemoteStorageError):
        await tier.offsets(0, 500)
    tier.storage.failure = None
    assert (await tier.offsets(0, 500))[0] == 0
    await tier.reader.close()


async def test_an_offset_that_no_segment_has_is_out_of_range() -> None:
    tier = await filled()
    await tier.metadata.update_remote_log_segment_metadata(
        RemoteLogSegmentMetadataUpdate(first(tier).id, 0, RemoteLogSegmentState.DELETE_SEGMENT_STARTED, 1)
    )
    with pytest.raises(KafkaError) as refused:
        await tier.offsets(0, 500)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


async def test_a_read_ends_where_the_lineage_of_the_segment_parts_from_that_of_the_log() -> None:
    tier = Tier()
    tier.lab.fill(10, epoch=0)
    tier.lab.fill(90, epoch=1)
    # An old leader, which had epoch 0 up to offset 20, uploaded its own records from there on.
    await tier.copy(epoch=0)
    assert await tier.offsets(5, 100_000) == [5, 6, 7, 8, 9]
    with pytest.raises(KafkaError) as refused:
        await tier.offsets(10, 100_000)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


async def test_without_leader_epochs_the_newest_upload_is_read() -> None:
    tier = await filled()
    tier.lab.log.leader_epoch_cache.clear()
    assert (await tier.offsets(5, 300))[0] == 5


async def test_without_leader_epochs_no_read_walks_all_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be a hundred thousand, and each read of a consumer asks."""
    tier = await filled()
    tier.lab.log.leader_epoch_cache.clear()

    def walk(*_: object) -> None:
        raise AssertionError("all segments are listed")

    monkeypatch.setattr(RemoteLogMetadataCache, "list_remote_log_segments", walk)
    assert (await tier.offsets(5, 300))[0] == 5


async def test_the_producers_where_the_disk_begins_come_from_the_snapshots_and_the_records() -> None:
    """A follower's segments may begin at other offsets than those that its leader has copied."""
    tier = Tier()
    for number in range(60):
        batch = build_batch(
            [(0, None, b"x" * 100)],
            producer_id=number % 3,
            producer_epoch=0,
            base_sequence=number // 3,
            transactional=number % 3 == 0,
        )
        tier.lab.log.append_as_leader(bytearray(batch), 0, now_ms=tier.lab.now_ms)
    states = {at: tier.lab.log.producer_snapshot_at(at) for at in range(1, 61)}
    await tier.copy()
    log = tier.lab.log
    remote = {each.end_offset + 1 for each in tier.metadata.list_remote_log_segments(ID)}
    first = log.segments[0].base_offset
    assert first in remote
    assert _producers(await tier.reader.fetch_producers(ID, log)) == _producers(states[first])
    # As if the disk began in the middle of what the leader has copied as one segment.
    for at in range(first - 1, first - 12, -1):
        log.truncate_fully_and_start_at(at, 0, RemoteLogAuxState(((0, 0),), None))
        assert log.lacks_producers
        assert _producers(await tier.reader.fetch_producers(ID, log)) == _producers(states[at])
    await tier.reader.close()


def _producers(snapshot: bytes) -> list[tuple[int, int, int | None]]:
    return [
        (each.producer_id, each.last_sequence, each.current_txn_first_offset)
        for each in sorted(decode_snapshot(snapshot), key=lambda each: each.producer_id)
    ]


async def test_times_are_found_record_by_record() -> None:
    tier = Tier()
    for number in range(100):
        tier.lab.put(b"x" * 100, b"y" * 10, timestamp=1000 + 10 * number)
    await tier.copy()
    log = tier.lab.log
    for timestamp in range(990, 1900, 7):
        found = await tier.reader.fetch_offset_by_timestamp(ID, log, timestamp)
        wanted = max(0, -(-(timestamp - 1000) // 10)) * 2
        if wanted < log.local_log_start_offset:
            assert found is not None
            assert (found.offset, found.leader_epoch) == (wanted, 0)
        else:
            assert found is None
    log.maybe_increment_log_start_offset(7, "a test")
    found = await tier.reader.fetch_offset_by_timestamp(ID, log, 0)
    assert found is not None
    assert found.offset == 7


async def test_the_greatest_timestamp_is_found_also_where_it_is_not_the_last() -> None:
    tier = Tier()
    for number in range(100):
        tier.lab.put(b"x" * 100, timestamp=5000 if number == 17 else 1000 + number)
    await tier.copy()
    found = await tier.reader.fetch_offset_of_max_timestamp(ID, tier.lab.log)
    assert found is not None
    assert (found.offset, found.timestamp) == (17, 5000)


async def test_reads_wait_for_their_quota() -> None:
    class Quota:
        def __init__(self) -> None:
            self.pauses = [1, 1]
            self.recorded = 0

        def throttle_ms(self) -> int:
            return self.pauses.pop() if self.pauses else 0

        def record(self, size: int) -> None:
            self.recorded += size

    tier = await filled()
    quota = Quota()
    cache = RemoteSegmentCache(tier.storage, tier.limits, throttle=quota)
    assert len(await cache.read(first(tier), 0, 100)) == 100
    assert not quota.pauses
    assert quota.recorded >= 1000
    await cache.close()
