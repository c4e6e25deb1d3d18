"""Read what tiered storage has from the segments in its store, and leave the rest to the brokers.

The driver learns from `__remote_log_metadata` which segments have a finished copy, and from the leaders which
leader epochs their logs have, so a segment of another lineage is never taken. A range of offsets is divided
once: what segments hold, without a gap from its start on, is read from the store; the rest from the brokers.
What is copied, expires or is deleted afterwards changes nothing: a task whose segment is gone goes on at the
broker, at the offset it has reached, and only what the broker has neither is a loss.

A task reads a segment as a consumer would read the answers of a broker, with the same decoder. Transactions
that were aborted come from the transaction indexes in the store; those that are still open where the segments
end, from a fetch of the last record before that end.
"""

from __future__ import annotations

import asyncio
import logging
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ottla.client.cluster_metadata import PartitionInfo
from ottla.protocol.errors import ErrorCode, KafkaError, MalformedMessage, UnsupportedVersion
from ottla.protocol.messages.fetch import AbortedTransaction, PartitionData
from ottla.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.protocol.names import TopicIdPartition, TopicPartition
from ottla.records.types import HEADER_SIZE, LOG_OVERHEAD
from ottla.remote.coverage import (
    AbortedRange,
    EpochEntry,
    SegmentPart,
    aborted_in,
    find_segments,
    position_before,
    position_behind,
)
from ottla.remote.metadata_cache import RemoteLogMetadataCache
from ottla.remote.metadata_manager import RemotePartitionMetadataStore, metadata_partition
from ottla.remote.object_storage import ObjectStorageManager
from ottla.remote.segment_metadata import (
    RemoteLogSegmentMetadata,
    RemoteResourceNotFound,
    RemoteStorageError,
    decode_event,
)
from ottla.remote.storage_manager import IndexType
from ottla.remote.store_settings import (
    InvalidStoreSetting,
    PrefixedSettings,
    RemoteStorageSettings,
    store_settings,
)
from ottla.runtime.object_store import ObjectStoreError, open_object_store
from ottla.runtime.runtime import Runtime
from ottla.spark.source.client import SourceClient, source_client
from ottla.spark.source.offset_ranges import OffsetRange, split
from ottla.spark.source.offsets import EARLIEST, LATEST
from ottla.spark.source.options import ReadFrom, SourceOptions
from ottla.spark.source.range_reader import Fetched, RangeReader, TopicReplaced, read_range

if TYPE_CHECKING:
    import pyarrow as pa

    from ottla.spark.source.offset_reader import OffsetReader


log = logging.getLogger(__name__)

METADATA_TOPIC: Final = "__remote_log_metadata"
_PREFIX: Final = "rsm.config."
# A leader epoch is asked for in a round of requests; a log with more of them is read from the brokers.
MAX_EPOCHS: Final = 1_000
INDEXES_AT_ONCE: Final = 16
STORE_THREADS: Final = 4
MAX_STORES: Final = 8
_OPEN_END: Final = 2**63 - 1
_FRONT: Final = struct.Struct(">qi")
_LAST_DELTA: Final = struct.Struct(">i")
_LAST_DELTA_AT: Final = 23


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """Offsets that one task reads, the segments that hold them in their order, and the transactions among
    them that were aborted.
    """

    offsets: OffsetRange
    parts: tuple[SegmentPart, ...]
    aborted: tuple[AbortedRange, ...]
    storage: RemoteStorageSettings


@dataclass(frozen=True, slots=True)
class _Covered:
    """What segments hold of a range, from its start on."""

    offsets: OffsetRange
    parts: tuple[SegmentPart, ...]


# The driver.


def find_segment_ranges(
    options: SourceOptions, offset_reader: OffsetReader, ranges: Sequence[OffsetRange]
) -> tuple[list[SegmentRange], list[OffsetRange]]:
    """Divide ranges between the store and the brokers. With readFrom=tier, a store that cannot be read is an
    error; with auto, brokers then read all of them.
    """
    must = options.read_from is ReadFrom.TIER
    if not options.store:
        if must:
            raise ValueError(
                f"readFrom=tier: set the option {_PREFIX}storage.url, and the other settings of the store as "
                "the brokers have them; they do not show theirs"
            )
        return [], list(ranges)
    try:
        storage = store_settings(PrefixedSettings(dict(options.store), _PREFIX))
    except InvalidStoreSetting as error:
        raise ValueError(f"readFrom={options.read_from.value}: {error}") from None
    if not ranges:
        return [], []
    client = source_client(options.connection)
    covered: list[_Covered] = []
    try:
        covered = _find_covered(client, options, offset_reader, ranges)
        covered, aborted = client.call(_find_aborted(client, options, storage, covered))
    except (KafkaError, ObjectStoreError) as error:
        what = error.message if isinstance(error, KafkaError) else str(error)
        if must:
            raise ValueError(f"readFrom=tier: {what}") from error
        log.warning("segments in the store are not used, and all records come from brokers: %s", what)
        return [], list(ranges)
    return _tasks(options, storage, ranges, covered, aborted), _rest(ranges, covered)


def _find_covered(
    client: SourceClient, options: SourceOptions, offset_reader: OffsetReader, ranges: Sequence[OffsetRange]
) -> list[_Covered]:
    segments = _read_metadata(client, options, offset_reader, ranges)
    tiered = [each for each in ranges if len(segments.get(each.partition, ()))]
    if not tiered:
        return []
    newest = {
        each.partition: [
            epoch
            for segment in segments[each.partition].list_remote_log_segments()
            for epoch in segment.leader_epochs
        ]
        for each in tiered
    }
    epochs = client.call(
        client.retrying(
            lambda: _leader_epochs(client, {each.partition: each.start for each in tiered}, newest),
            "leader epochs of partitions with remote storage",
            timeout_ms=options.api_timeout_ms,
        )
    )
    found = []
    for each in tiered:
        parts = find_segments(segments[each.partition], epochs[each.partition], each.start, each.end)
        if parts:
            found.append(_Covered(replace(each, end=parts[-1].end), tuple(parts)))
    return found


def _read_metadata(
    client: SourceClient, options: SourceOptions, offset_reader: OffsetReader, ranges: Sequence[OffsetRange]
) -> dict[TopicPartition, RemoteLogMetadataCache]:
    """The remote segments of the partitions, from the events in `__remote_log_metadata`."""
    view = client.call(client.cluster.refresh(topics=[METADATA_TOPIC]))
    topic = view.topics.get(METADATA_TOPIC)
    if topic is None or topic.error or not topic.partitions:
        if options.read_from is ReadFrom.TIER:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"no topic has remote storage: there is no {METADATA_TOPIC}, or the brokers do not show it",
            )
        return {}
    store = RemotePartitionMetadataStore()
    found: dict[TopicPartition, RemoteLogMetadataCache] = {}
    wanted: dict[TopicPartition, None] = {}
    for each in ranges:
        if each.topic_id is not None:
            id = TopicIdPartition(each.topic_id, each.partition.partition)
            found[each.partition] = store.assign(id)
            wanted[TopicPartition(METADATA_TOPIC, metadata_partition(id, len(topic.partitions)))] = None
    begins = offset_reader.offsets(dict.fromkeys(wanted, EARLIEST))
    ends = offset_reader.offsets(dict.fromkeys(wanted, LATEST))
    plain = replace(options, columns=("value",), read_committed=False)
    for partition in wanted:
        events = OffsetRange(partition, topic.topic_id, begins[partition], ends[partition])
        for batch in read_range(client, plain, events) if events.size > 0 else ():
            for value in batch.column(0).to_pylist():
                try:
                    event = decode_event(value or b"")
                except (MalformedMessage, UnsupportedVersion) as error:
                    # Without it a segment is read from the brokers, or found to be gone.
                    log.warning("%s has an event that cannot be read: %s", partition, error.message)
                    continue
                if event is not None:
                    store.apply(event)
    return found


async def _leader_epochs(
    client: SourceClient, starts: Mapping[TopicPartition, int], epochs: Mapping[TopicPartition, list[int]]
) -> dict[TopicPartition, list[EpochEntry]]:
    """The leader epochs of the leaders' logs, from the newest back to the one of the start offset.

    A leader answers for an epoch where it ends, which is where the next one begins. So each round asks for
    the epoch before the one that was found last. A partition whose epochs are not known gets none.
    """
    view = await client.cluster.refresh(topics={partition.topic for partition in starts})
    found: dict[TopicPartition, list[EpochEntry]] = {partition: [] for partition in starts}
    # Epochs that may be the newest of a log; the leader's own has no entry before its first record.
    candidates: dict[TopicPartition, list[int]] = {}
    leaders: dict[TopicPartition, PartitionInfo] = {}
    for partition in starts:
        leader = view.leader(partition)
        if leader is None:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{partition} has no leader at the moment")
        leaders[partition] = leader
        candidates[partition] = sorted({leader.leader_epoch, *epochs[partition]})
    asked = {partition: known.pop() for partition, known in candidates.items()}
    current: dict[TopicPartition, int] = {}
    for _ in range(MAX_EPOCHS):
        answers = await _ask_epochs(client, asked, leaders)
        asked = {}
        for partition, answer in answers.items():
            newest = current.get(partition)
            if newest is None:
                if answer.leader_epoch >= 0:
                    current[partition] = answer.leader_epoch
                    asked[partition] = answer.leader_epoch - 1
                elif candidates[partition]:
                    asked[partition] = candidates[partition].pop()
                continue
            # The epoch before `newest` ends here, so `newest` begins here.
            begins = max(answer.end_offset, 0)
            found[partition].insert(0, EpochEntry(newest, begins))
            is_first = answer.leader_epoch < 0 or answer.leader_epoch >= newest
            if begins > starts[partition] and not is_first:
                current[partition] = answer.leader_epoch
                asked[partition] = answer.leader_epoch - 1
        for partition, epoch in list(asked.items()):
            if partition in current and epoch < 0:  # epoch 0 is the first
                del asked[partition]
                found[partition].insert(0, EpochEntry(current[partition], 0))
        if not asked:
            return found
    for partition in asked:
        log.info("%s has more than %d leader epochs, and is read from brokers", partition, MAX_EPOCHS)
        found[partition] = []
    return found


async def _ask_epochs(
    client: SourceClient,
    wanted: Mapping[TopicPartition, int],
    leaders: Mapping[TopicPartition, PartitionInfo],
) -> dict[TopicPartition, EpochEndOffset]:
    """Where epochs end. An error if a partition has another leader by now: of two logs, each may have records
    that the other has not.
    """
    by_leader: dict[int, dict[str, list[OffsetForLeaderPartition]]] = {}
    for partition, epoch in wanted.items():
        leader = leaders[partition]
        topics = by_leader.setdefault(leader.leader, {})
        topics.setdefault(partition.topic, []).append(
            OffsetForLeaderPartition(
                partition=partition.partition, current_leader_epoch=leader.leader_epoch, leader_epoch=epoch
            )
        )
    answers = await asyncio.gather(
        *(
            client.cluster.request(
                node,
                OffsetForLeaderEpochRequest(
                    replica_id=-1,
                    topics=[
                        OffsetForLeaderTopic(topic=topic, partitions=partitions)
                        for topic, partitions in topics.items()
                    ],
                ),
                OffsetForLeaderEpochResponse,
            )
            for node, topics in by_leader.items()
        )
    )
    found = {}
    for answer in answers:
        for topic in answer.topics:
            for each in topic.partitions:
                partition = TopicPartition(topic.topic, each.partition)
                if each.error_code:
                    code = ErrorCode.of(each.error_code)
                    raise KafkaError(code, f"{partition}: its leader epochs: {code.text}")
                found[partition] = each
    return found


async def _find_aborted(
    client: SourceClient,
    options: SourceOptions,
    settings: RemoteStorageSettings,
    covered: Sequence[_Covered],
) -> tuple[list[_Covered], dict[TopicPartition, list[AbortedRange]]]:
    """The aborted transactions with records in what segments hold, and what of that is left: where it is not
    known which transactions were aborted, as segments are being deleted, brokers have to say so. And a check
    that the store has them.
    """
    if not covered:
        return [], {}
    storage = _storage(settings)
    newest = covered[0].parts[-1].segment
    try:
        await storage.fetch_log_segment(newest, 0, 1)
    except RemoteResourceNotFound as error:
        raise RemoteStorageError(
            f"the store does not have {newest.id}, which {METADATA_TOPIC} names: {error.message}; is "
            f"{_PREFIX}storage.url (and {_PREFIX}key.prefix) that of the brokers?"
        ) from error
    if not options.read_committed:
        return list(covered), {}
    turns = asyncio.Semaphore(INDEXES_AT_ONCE)

    async def within(part: SegmentPart) -> list[AbortedRange] | None:
        if part.segment.txn_index_empty:
            return []
        async with turns:
            try:
                index = await storage.fetch_index(part.segment, IndexType.TRANSACTION)
            except RemoteResourceNotFound:
                try:
                    await storage.fetch_index(part.segment, IndexType.OFFSET)
                except RemoteResourceNotFound:
                    return None
                return []  # who wrote it does not say beforehand whether it has one
        return aborted_in(part, index)

    async def across(each: _Covered) -> list[AbortedRange] | None:
        last = replace(each.offsets, start=each.offsets.end - 1)
        try:
            async with turns:
                fetched = await RangeReader(client, replace(options, fetch_bytes=1), last).fetch(last.start)
        except TopicReplaced:
            return None
        if fetched.data is None:
            return None  # the log begins behind it by now, or ends before it
        return [
            AbortedRange(txn.producer_id, txn.first_offset, _OPEN_END)
            for txn in fetched.data.aborted_transactions or ()
            if txn.first_offset < each.offsets.end
        ]

    async def all_of(each: _Covered) -> tuple[_Covered, list[AbortedRange]] | None:
        lists = await asyncio.gather(*map(within, each.parts))
        count = next((at for at, found in enumerate(lists) if found is None), len(lists))
        if not count:
            return None
        parts = each.parts[:count]
        each = _Covered(replace(each.offsets, end=parts[-1].end), parts)
        open_there = await across(each)
        if open_there is None:
            return None
        known = {
            (txn.producer_id, txn.first_offset): txn
            for found in (open_there, *lists[:count])
            for txn in found or ()
        }
        return each, sorted(known.values(), key=lambda txn: txn.first_offset)

    kept = [each for each in await asyncio.gather(*map(all_of, covered)) if each is not None]
    return [each for each, _ in kept], {each.offsets.partition: aborted for each, aborted in kept}


def _tasks(
    options: SourceOptions,
    storage: RemoteStorageSettings,
    ranges: Sequence[OffsetRange],
    covered: Sequence[_Covered],
    aborted: Mapping[TopicPartition, list[AbortedRange]],
) -> list[SegmentRange]:
    total = sum(each.size for each in ranges)
    share = sum(each.offsets.size for each in covered) / total if total else 0.0
    wanted = options.min_partitions
    by_partition = {each.offsets.partition: each for each in covered}
    found = []
    for task in split(
        [each.offsets for each in covered],
        min_partitions=None if wanted is None else max(1, round(wanted * share)),
        max_records=options.max_records_per_partition,
        max_bytes=options.max_bytes_per_partition,
        bytes_per_offset={each.offsets.partition: _bytes_per_offset(each) for each in covered},
    ):
        parts = [
            SegmentPart(part.segment, max(part.start, task.start), min(part.end, task.end))
            for part in by_partition[task.partition].parts
            if part.start < task.end and part.end > task.start
        ]
        transactions = [
            txn
            for txn in aborted.get(task.partition, ())
            if txn.first_offset < task.end and txn.last_offset >= task.start
        ]
        found.append(SegmentRange(task, tuple(parts), tuple(transactions), storage))
    return found


def _bytes_per_offset(each: _Covered) -> float:
    size = offsets = 0
    for part in each.parts:
        size += part.segment.segment_size_in_bytes
        offsets += part.segment.end_offset + 1 - part.segment.start_offset
    return size / offsets if offsets else 0.0


def _rest(ranges: Sequence[OffsetRange], covered: Sequence[_Covered]) -> list[OffsetRange]:
    ends = {each.offsets.partition: each.offsets.end for each in covered}
    rest = [replace(each, start=ends.get(each.partition, each.start)) for each in ranges]
    return [each for each in rest if each.size > 0]


# The tasks.


def read_segments(
    client: SourceClient, options: SourceOptions, what: SegmentRange
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `what` in order, in batches that fit Spark's schema."""
    return _SegmentReader(client, options, what).read()


class _SegmentReader(RangeReader):
    """Reads a range from segments in the store; from the broker where a segment is gone."""

    def __init__(self, client: SourceClient, options: SourceOptions, what: SegmentRange) -> None:
        super().__init__(client, options, what.offsets)
        self._what = what
        self._storage = _storage(what.storage)
        self._chunk_bytes = max(options.fetch_bytes, HEADER_SIZE)
        # The offset that comes next, and where its batch begins in which segment.
        self._next = -1, b"", 0
        self._index = b"", b""
        self._gone: set[bytes] = set()

    async def fetch(self, offset: int) -> Fetched:
        part = next((each for each in self._what.parts if each.start <= offset < each.end), None)
        if part is not None and part.segment.id.id not in self._gone:
            try:
                found = await self._fetch_from_store(part, offset)
                if found is not None:
                    return found
            except RemoteResourceNotFound as error:
                log.warning(
                    "%s is no longer in the store, and is read from brokers from offset %d on: %s",
                    part.segment.id,
                    offset,
                    error.message,
                )
            self._gone.add(part.segment.id.id)
        return await super().fetch(offset)

    async def _fetch_from_store(self, part: SegmentPart, offset: int) -> Fetched | None:
        """Whole batches from the one that holds `offset` on; None if the segment has none there."""
        segment = part.segment
        position, stop = await self._positions(part, offset)
        wanted = self._chunk_bytes
        while position < stop:
            end = min(position + wanted, stop)
            chunk = await self._storage.fetch_log_segment(segment, position, end)
            if len(chunk) != end - position:
                raise RemoteStorageError(
                    f"{segment.id} has {len(chunk)} of the bytes from {position} to {end}; its object was "
                    "changed"
                )
            begin, whole, next_offset, missing = _whole_batches(chunk, offset, part.end)
            if whole > begin:
                self._next = next_offset, segment.id.id, position + whole
                return Fetched(offset, self._data(memoryview(chunk)[begin:whole], offset))
            if not missing:
                return None
            if whole:
                position += whole
            elif end == segment.segment_size_in_bytes or missing <= wanted:
                raise RemoteStorageError(f"{segment.id} is damaged at position {position}: no whole batch")
            else:
                stop, wanted = max(stop, min(position + missing, segment.segment_size_in_bytes)), missing
        return None

    async def _positions(self, part: SegmentPart, offset: int) -> tuple[int, int]:
        """Where to read from, and where to stop at the latest."""
        segment, end = part.segment, part.segment.segment_size_in_bytes
        next_offset, id, position = self._next
        is_known = id == segment.id.id and next_offset == offset
        if is_known and part.end > segment.end_offset:
            return position, end
        if offset == segment.start_offset and part.end > segment.end_offset:
            return 0, end
        index = await self._offset_index(segment)
        begin = position if is_known else position_before(segment, index, offset)
        return begin, end if part.end > segment.end_offset else position_behind(segment, index, part.end)

    async def _offset_index(self, segment: RemoteLogSegmentMetadata) -> bytes:
        """The index of the segment that is being read; it is fetched once."""
        if self._index[0] != segment.id.id:
            self._index = segment.id.id, await self._storage.fetch_index(segment, IndexType.OFFSET)
        return self._index[1]

    def _data(self, records: memoryview, offset: int) -> PartitionData:
        aborted = [
            AbortedTransaction(producer_id=txn.producer_id, first_offset=txn.first_offset)
            for txn in self._what.aborted
            if txn.last_offset >= offset
        ]
        return PartitionData(
            partition_index=self._what.offsets.partition.partition,
            records=records,
            aborted_transactions=aborted,
        )


def _whole_batches(chunk: bytes, offset: int, end: int) -> tuple[int, int, int, int]:
    """Where the first batch that ends at or above `offset` begins, and where the last whole batch ends that
    begins below `end`; the offset behind that; and the size of the batch that is cut off, as far as it is
    known, or 0 if one at `end` or above follows: behind the end of the lineage there are other records.
    """
    size = len(chunk)
    begin = -1
    at = next_offset = 0
    missing = HEADER_SIZE
    while size - at >= HEADER_SIZE:
        base_offset, length = _FRONT.unpack_from(chunk, at)
        if base_offset >= end:
            missing = 0
            break
        missing = LOG_OVERHEAD + max(length, HEADER_SIZE - LOG_OVERHEAD)
        if at + missing > size:
            break
        next_offset = base_offset + _LAST_DELTA.unpack_from(chunk, at + _LAST_DELTA_AT)[0] + 1
        if begin < 0 and next_offset > offset:
            begin = at
        at += missing
    return (at if begin < 0 else begin), at, next_offset, missing


# Stores, kept by a process from task to task as connections to brokers are.

_storages: dict[str, tuple[ObjectStorageManager, Runtime]] = {}
_owner = 0


def _storage(settings: RemoteStorageSettings) -> ObjectStorageManager:
    global _owner
    if _owner != os.getpid():
        _storages.clear()
        _owner = os.getpid()
    key = f"{settings!r} {sorted(settings.store.credentials.items())}"
    known = _storages.get(key)
    if known is None:
        while len(_storages) >= MAX_STORES:
            _storages.pop(next(iter(_storages)))[1].close()
        runtime = Runtime.real(pool_workers=STORE_THREADS, guest=True)
        store = open_object_store(settings.store, runtime.disk, runtime.pool)
        known = ObjectStorageManager(store, prefix=settings.prefix, chunk_size=settings.chunk_size), runtime
        _storages[key] = known
    return known[0]
