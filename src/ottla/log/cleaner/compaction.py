"""Compaction of one log: the newest record of each key stays, and every record that stays keeps its offset.

First the keys of the dirty part go into an offset map (key hash -> newest offset) of bounded size; if the map
fills up, this cleaning ends there. Then the segments from the start of the log up to that offset are copied,
each group of segments into one new segment. Left out are

- records whose key has a newer record in the map, and records without a key;
- tombstones whose delete horizon has passed (the first cleaning that meets one sets the horizon, KIP-534);
- records of aborted transactions, and markers of transactions of which nothing else is left, by the same
  horizon.

A batch that loses all its records is kept as an empty batch in two cases: if it is the last batch of an
active producer (its last data or, where there is none, its last marker), since it holds the producer's epoch
and sequence number; and if it is the last batch of the cleanable range, since it holds the end of the range.

`Compaction` only writes `.cleaned` files and syncs them; nothing refers to these before the event loop swaps
them in (`UnifiedLog.begin_replacement`, with the order of its steps), and recovery removes those that a crash
leaves behind. It works in slices, off the event loop: the cleaner decides between two slices whether it may
go on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.log.cleaner.selection import group_segments
from ottla.log.config.log_config import LogConfig
from ottla.log.producers.state_entry import LastRecord
from ottla.log.segment.file_names import CLEANED, LOG, SEGMENT_KINDS
from ottla.log.segment.handles import FileHandles
from ottla.log.segment.segment import LogSegment
from ottla.log.segment.txn_index import AbortedTxn
from ottla.log.segment.walk import CorruptBatch
from ottla.protocol.errors import KafkaError
from ottla.records.batch import HEADER_SIZE, BatchHeader, verify_crc
from ottla.records.compaction import OffsetMap, empty_batch, filter_batch, map_batch
from ottla.records.control import ControlType, read_control_records
from ottla.runtime.disk import Buffer

_MAX_SEGMENT_BYTES = 0x7FFF_FFFF


class SegmentTooLarge(Exception):
    """A group of segments grew beyond the maximum size of a segment: new delete horizons lengthen the
    timestamps.
    """

    def __init__(self, path: str, segments: int) -> None:
        super().__init__(f"{path}: {segments} segments make more than {_MAX_SEGMENT_BYTES} bytes")
        self.segments = segments


class MeasuredSegment(NamedTuple):
    """A closed segment and its sizes, by which segments are grouped."""

    segment: LogSegment
    size: int
    index_bytes: int
    time_index_bytes: int

    @property
    def base_offset(self) -> int:
        return self.segment.base_offset


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """The segments to clean and their state, noted on the event loop. The segments are closed and end at
    `first_uncleanable_offset`.
    """

    dir: str
    config: LogConfig
    segments: tuple[MeasuredSegment, ...]
    first_dirty_offset: int
    first_uncleanable_offset: int
    first_dirty_position: int
    """A batch in the segment of the first dirty offset, at or before it."""
    aborted: Sequence[AbortedTxn]
    last_records: dict[int, LastRecord]
    now_ms: int
    max_group_bytes: int


@dataclass(slots=True)
class CleanerStats:
    map_bytes_read: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_written: int = 0
    map_utilization: float = 0.0


class CleanedGroup(NamedTuple):
    """A complete and durable segment under `.cleaned`, and those that it is to replace."""

    new: LogSegment
    old: tuple[LogSegment, ...]


class CompactionProgress(NamedTuple):
    """The result of one slice: bytes read and written, a group that is ready, and whether all is done."""

    moved_bytes: int
    cleaned: CleanedGroup | None
    is_done: bool


@dataclass(slots=True)
class _Chunk:
    """Whole batches as they lie in a file."""

    segment: LogSegment
    position: int
    buffer: bytes
    headers: list[BatchHeader] = field(default_factory=list)


class CleanedTransactionMetadata:
    """The transactions around the batch that is being read, batch by batch from the start of the log.

    A batch of an aborted transaction is dropped. A marker may be dropped only when no batch of its
    transaction is left: until then a reader needs it to decide about them. Since the batches lie in front of
    their marker, it is enough to remember, while walking through the log, which producers have had a batch
    since their last marker. An abort marker that stays gets its entry in the transaction index of the segment
    that it is copied to (`on_retained_abort`). `aborted` are all aborted transactions that touch the walk.
    """

    __slots__ = ("_aborted", "_committed_ongoing", "_next", "_observed", "_ongoing", "on_retained_abort")

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        self._aborted = sorted(aborted, key=lambda txn: txn.first_offset)
        # How many of `_aborted` have begun.
        self._next = 0
        # Producer id -> its aborted transaction that has begun and whose marker was not met.
        self._ongoing: dict[int, AbortedTxn] = {}
        # Producers of `_ongoing` of which a batch was met.
        self._observed: set[int] = set()
        # Producers of which a batch of a committed (or undecided) transaction was met since their last
        # marker.
        self._committed_ongoing: set[int] = set()
        self.on_retained_abort: Callable[[AbortedTxn], None] | None = None

    def on_batch_read(self, header: BatchHeader) -> bool:
        """Take in a data batch; True if its transaction was aborted, so that its records are dropped."""
        if not header.is_transactional:
            return False
        self._begin_up_to(header.last_offset)
        txn = self._ongoing.get(header.producer_id)
        if txn is not None and header.base_offset < txn.last_offset:
            self._observed.add(header.producer_id)
            return True
        self._committed_ongoing.add(header.producer_id)
        return False

    def on_control_batch_read(self, buf: Buffer, pos: int, header: BatchHeader) -> bool:
        """Take in a control batch; True if no batch is left in the log that needs it."""
        self._begin_up_to(header.last_offset)
        if header.count == 0:
            return True
        kind = read_control_records(buf, pos)[0].type
        if kind is ControlType.ABORT:
            txn = self._ongoing.pop(header.producer_id, None)
            if txn is None or header.producer_id not in self._observed:
                return True
            self._observed.remove(header.producer_id)
            if self.on_retained_abort is not None:
                self.on_retained_abort(txn)
            return False
        if kind is ControlType.COMMIT:
            if header.producer_id not in self._committed_ongoing:
                return True
            self._committed_ongoing.remove(header.producer_id)
        return False

    def _begin_up_to(self, offset: int) -> None:
        while self._next < len(self._aborted) and self._aborted[self._next].first_offset <= offset:
            txn = self._aborted[self._next]
            self._ongoing[txn.producer_id] = txn
            self._next += 1


class Compaction:
    """One cleaning of one log. The caller calls `advance` until that is done, and `discard` in any case."""

    def __init__(
        self, plan: CompactionPlan, handles: FileHandles, offset_map: OffsetMap, *, io_buffer_bytes: int
    ) -> None:
        self.plan = plan
        self.stats = CleanerStats()
        # Up to here the log is clean once all groups have been swapped in.
        self.end_offset = plan.first_dirty_offset
        self._handles = handles
        self._map = offset_map
        self._io_buffer_bytes = max(io_buffer_bytes, HEADER_SIZE)
        self._moved_bytes = 0
        # The segments that are still to be read or replaced.
        self.remaining = [measured.segment for measured in plan.segments]
        # A segment under `.cleaned` that is not part of the log.
        self._unfinished: CleanedGroup | None = None
        self._work = self._run()

    def advance(self, budget_bytes: int) -> CompactionProgress:
        """Work until `budget_bytes` were moved, a group is ready or all is done."""
        self._moved_bytes = 0
        for cleaned in self._work:
            if cleaned is not None or self._moved_bytes >= budget_bytes:
                return CompactionProgress(self._moved_bytes, cleaned, is_done=False)
        return CompactionProgress(self._moved_bytes, None, is_done=True)

    def on_swapped(self) -> None:
        """Note that the group that `advance` returned last is part of the log now."""
        assert self._unfinished is not None
        replaced = set(self._unfinished.old)
        self.remaining = [segment for segment in self.remaining if segment not in replaced]
        self._unfinished = None

    def discard(self) -> None:
        """Remove the files that have not become part of the log. Not to be called while `advance` runs."""
        self._work.close()
        unfinished, self._unfinished = self._unfinished, None
        if unfinished is None or unfinished.new.suffix != CLEANED:
            return
        unfinished.new.close_handlers()
        for kind in SEGMENT_KINDS:
            path = unfinished.new.path(kind)
            if self._handles.disk.exists(path):
                self._handles.disk.unlink(path)

    def _run(self) -> Generator[CleanedGroup | None, None, None]:
        plan = self.plan
        yield from self._fill_map()
        self.end_offset = self._map.latest_offset + 1
        transactions = CleanedTransactionMetadata(plan.aborted)
        groups = group_segments(
            [segment for segment in plan.segments if segment.base_offset < self.end_offset],
            max_bytes=plan.max_group_bytes,
            max_index_bytes=plan.config.segment_index_bytes,
            end_offset=plan.first_uncleanable_offset,
        )
        for group in groups:
            yield from self._clean(tuple(measured.segment for measured in group), transactions)

    def _fill_map(self) -> Iterator[None]:
        """Enter the keys of the dirty part as far as the map has room: Kafka's `buildOffsetMap`."""
        plan = self.plan
        start = plan.first_dirty_offset
        offset_map = self._map
        transactions = CleanedTransactionMetadata(plan.aborted)
        bases = [measured.base_offset for measured in plan.segments[1:]]
        for measured, end in zip(plan.segments, [*bases, plan.first_uncleanable_offset], strict=True):
            if end <= start:
                continue
            position = plan.first_dirty_position if measured.base_offset <= start else 0
            for chunk in self._read(measured.segment, position):
                at = 0
                for header in chunk.headers:
                    if header.is_control:
                        transactions.on_control_batch_read(chunk.buffer, at, header)
                    elif not transactions.on_batch_read(header) and not self._map_batch(chunk, at, header):
                        offset_map.latest_offset = max(offset_map.latest_offset, start - 1)
                        self.stats.map_utilization = offset_map.used / offset_map.capacity
                        return
                    offset_map.latest_offset = max(offset_map.latest_offset, header.last_offset)
                    at += header.size
                self.stats.map_bytes_read += at
                yield None
            # The segment may end with a gap.
            offset_map.latest_offset = max(offset_map.latest_offset, end - 1)
        self.stats.map_utilization = offset_map.used / offset_map.capacity

    def _map_batch(self, chunk: _Chunk, at: int, header: BatchHeader) -> bool:
        try:
            return map_batch(chunk.buffer, at, header, self._map, start_offset=self.plan.first_dirty_offset)
        except KafkaError as error:
            raise _corrupt(chunk, at, error) from error

    def _clean(
        self, old: tuple[LogSegment, ...], transactions: CleanedTransactionMetadata
    ) -> Iterator[CleanedGroup | None]:
        """Copy the retained batches of a group into a new segment: Kafka's `cleanSegments`."""
        plan = self.plan
        new = LogSegment.create(
            self._handles, plan.dir, old[0].base_offset, plan.config, suffix=CLEANED, created_ms=plan.now_ms
        )
        cleaned = self._unfinished = CleanedGroup(new, old)
        transactions.on_retained_abort = new.txn_index.append
        for segment in old:
            for chunk in self._read(segment, 0):
                data, headers = self._filter(chunk, transactions)
                if headers:
                    if new.size + len(data) > _MAX_SEGMENT_BYTES:
                        raise SegmentTooLarge(new.path(LOG), len(old))
                    new.append(data, headers)
                    self._moved_bytes += len(data)
                    self.stats.bytes_written += len(data)
                yield None
        new.on_become_inactive()
        new.set_mtime_ms(old[-1].mtime_ms)
        new.sync()
        # The names too, so that recovery recognises an interrupted swap by the names that were not changed.
        self._handles.disk.sync_dir(plan.dir)
        yield cleaned

    def _filter(
        self, chunk: _Chunk, transactions: CleanedTransactionMetadata
    ) -> tuple[bytes | memoryview, list[BatchHeader]]:
        """Return the bytes of a chunk that are retained, and their headers. Adjacent batches that are
        retained unchanged are copied as one.
        """
        parts: list[Buffer] = []
        headers: list[BatchHeader] = []
        stats = self.stats
        view = memoryview(chunk.buffer)
        run_start = at = 0
        for header in chunk.headers:
            end = at + header.size
            stats.records_read += header.count
            kept = self._filter_batch(chunk, at, header, transactions)
            if kept is None or len(kept) != header.size or memoryview(kept).obj is not chunk.buffer:
                if at > run_start:
                    parts.append(view[run_start:at])
                if kept is not None:
                    parts.append(kept)
                    headers.append(BatchHeader.parse(kept))
                    stats.records_written += headers[-1].count
                run_start = end
            else:
                headers.append(header)
                stats.records_written += header.count
            at = end
        stats.bytes_read += at
        if at > run_start:
            parts.append(view[run_start:at])
        return (memoryview(parts[0]) if len(parts) == 1 else b"".join(parts)), headers

    def _filter_batch(
        self, chunk: _Chunk, at: int, header: BatchHeader, transactions: CleanedTransactionMetadata
    ) -> Buffer | None:
        """Return a batch with the records that are retained: its own bytes, new ones, or None for nothing."""
        plan = self.plan
        ends_empty_transaction = False
        try:
            verify_crc(chunk.buffer, at, header)
            if header.is_control:
                horizon = header.delete_horizon_ms
                ends_empty_transaction = transactions.on_control_batch_read(chunk.buffer, at, header)
                is_discarded = ends_empty_transaction and horizon is not None and horizon <= plan.now_ms
            else:
                is_discarded = transactions.on_batch_read(header)
            if not is_discarded and header.count:
                kept = filter_batch(
                    chunk.buffer,
                    at,
                    header,
                    self._map,
                    now_ms=plan.now_ms,
                    delete_retention_ms=plan.config.delete_retention_ms,
                    marker_of_empty_transaction=ends_empty_transaction,
                )
                if kept is not None:
                    return kept
        except KafkaError as error:
            raise _corrupt(chunk, at, error) from error
        if header.next_offset == plan.first_uncleanable_offset or self._is_last_of_producer(header):
            return empty_batch(header)
        return None

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        last = self.plan.last_records.get(header.producer_id)
        if last is None:
            return False
        if last.last_data_offset is not None:
            return header.last_offset == last.last_data_offset
        return header.is_control and header.producer_epoch == last.producer_epoch

    def _read(self, segment: LogSegment, position: int) -> Iterator[_Chunk]:
        """Yield the batches of a segment from a position on, as many at a time as the buffer holds."""
        size = segment.size
        while position < size:
            buffer = segment.read(position, self._io_buffer_bytes)
            chunk = _Chunk(segment, position, buffer)
            at = 0
            while len(buffer) - at >= HEADER_SIZE:
                try:
                    header = BatchHeader.parse(buffer, at)
                except KafkaError as error:
                    raise _corrupt(chunk, at, error) from error
                if header.size > len(buffer) - at:
                    if at or header.size > size - position:
                        break
                    # One batch larger than the buffer: it comes alone.
                    buffer = chunk.buffer = segment.read(position, header.size)
                    if len(buffer) < header.size:
                        break
                chunk.headers.append(header)
                at += header.size
            if not chunk.headers:
                raise CorruptBatch(
                    segment.path(LOG), position, f"{size - position} bytes that are not a whole batch"
                )
            self._moved_bytes += len(buffer)
            yield chunk
            position += at


def _corrupt(chunk: _Chunk, at: int, error: KafkaError) -> CorruptBatch:
    return CorruptBatch(chunk.segment.path(LOG), chunk.position + at, error.message)
