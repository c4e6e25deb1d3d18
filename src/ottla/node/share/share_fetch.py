"""Acquire records for a ShareFetch, or wait for some (Kafka's `DelayedShareFetch` and `ShareFetchUtils`).

An attempt looks at the dirty partitions of the session, in their order, and takes from those that have
something to acquire, each from the offset that is to be fetched next, as many as the response can have. It
reads some, and acquires what it found in the same turn of the event loop: between a read and its acquisition
no other fetch comes. What is not in memory is loaded by the pool first, and then that part is looked at
again. Records are acquired only when the response can go out, and as many bytes are read as are likely to be
acquired: a member that wants a few records does not have megabytes read. Where there are many partitions, an
attempt takes several turns.

Without `min_bytes` of records the fetch waits; after `max_wait_ms` it takes what there is. The response has
the batches of the log between the first and the last record that were acquired, as they are.

Invariant: a fetch waits only if it has looked at all partitions of its session that were dirty, and none has
become dirty since.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.node.fetch.partition_reader import MissingRead, PartitionReader, load, rounds
from ottla.node.share.share_partition import AcquiredRange, LogBatch, SharePartition
from ottla.node.share.share_partition_manager import SharePartitionLeader, SharePartitionManager
from ottla.node.share.share_session import (
    CachedSharePartition,
    ShareFetchWaiter,
    ShareResults,
    ShareSession,
    ShareSource,
)
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.share_fetch import AcquiredRecords, PartitionData
from ottla.protocol.names import TopicIdPartition
from ottla.protocol.share import ShareAcquireMode
from ottla.records.batch import BatchHeader, iter_batches, iter_offsets
from ottla.replication.partition import FetchIsolation, LogReadInfo
from ottla.runtime.turns import Turns

if TYPE_CHECKING:
    from ottla.log.segment.txn_index import AbortedTxn
    from ottla.node.network.connection import PendingRequest

# A read takes at least these many bytes, if that many may be sent.
_LEAST_READ_BYTES: Final = 16 * 1024
_READ_RESERVE: Final = 1.25
# Partitions that are read before what was found is acquired.
_READS_AT_ONCE: Final = 32
_NO_OFFSET: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class ShareFetchTerms:
    """What a ShareFetch asks for, besides its partitions."""

    mode: ShareAcquireMode
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    max_records: int
    batch_size: int
    # On what depends which partitions the client may read.
    permissions: object = None


class _Read(NamedTuple):
    """What a read of a share partition has found."""

    cached: CachedSharePartition
    leader: SharePartitionLeader
    share: SharePartition
    fetch_offset: int
    records: bytes
    log_batches: list[LogBatch]
    # Where each batch begins, and where the last one ends.
    positions: list[int]
    aborted: list[LogBatch]
    # How many records it is likely to give.
    expected: int


class ShareFetch:
    """One ShareFetch of the partitions of a session. `find_problem` says why its client cannot read one."""

    __slots__ = (
        "_acquired",
        "_failed",
        "_find_problem",
        "_is_first_attempt",
        "_left",
        "_limit",
        "_manager",
        "_pending",
        "_reader",
        "_results",
        "_session",
        "_settings",
        "_size",
        "_terms",
        "_to_serve",
        "_turns",
        "_version",
    )

    def __init__(
        self,
        manager: SharePartitionManager,
        terms: ShareFetchTerms,
        session: ShareSession,
        find_problem: Callable[[TopicIdPartition], ErrorCode | None],
        pending: PendingRequest,
    ) -> None:
        self._manager: Final = manager
        self._terms: Final = terms
        self._session: Final = session
        self._find_problem: Final = find_problem
        self._pending: Final = pending
        self._turns: Final = Turns(manager.clock, check_every=4)
        self._results: ShareResults = {}
        # Those that this broker cannot serve; the results have their errors.
        self._failed: dict[CachedSharePartition, None] = {}
        self._acquired: list[tuple[SharePartition, SharePartitionLeader, list[AcquiredRange]]] = []
        # The records that may still be acquired, and the bytes of those that were.
        self._left = terms.max_records
        self._size = 0
        self._limit = 0
        # Share partitions that may have something for others: this fetch was woken by them, or has not taken
        # all of it.
        self._to_serve: dict[ShareSource, None] = {}
        # For what is read before something is acquired.
        self._reader: PartitionReader
        # The version of the session as of which it looks at everything.
        self._version = -1
        self._is_first_attempt = True
        self._settings = manager.settings(session.key.group_id)

    async def fetch_messages(self) -> ShareResults:
        """Acquire records; the data of each partition that has something to say, an error included."""
        session = self._session
        session.readers += 1
        try:
            await self._begin()
            if self._terms.max_records <= 0 or self._terms.max_bytes <= 0:
                await self._look_for_problems()
            elif session.partitions:
                await self._fetch()
            return self._results
        except BaseException:
            self.release_undelivered()
            raise
        finally:
            self._serve_others()
            session.readers -= 1
            self._manager.sessions.close_if_unused(session)

    async def _fetch(self) -> None:
        terms, manager, pending = self._terms, self._manager, self._pending
        deadline_ms = manager.now_ms() + terms.max_wait_ms
        is_last = False
        while True:
            if not pending.is_turn:
                self._serve_others()
                await pending.wait_for_turn()
            if not manager.admission.is_open():
                self._serve_others()
                await manager.admission.wait()
            if await self._attempt(is_last=is_last) or is_last:
                return
            self._serve_others()
            left_ms = deadline_ms - manager.now_ms()
            if left_ms <= 0 or not await self._wait(left_ms):
                is_last = True

    def release_undelivered(self) -> None:
        """Take back what was acquired: the response goes out without it."""
        for share, leader, acquired in self._acquired:
            share.release_undelivered(self._session.key.member_id, acquired)
            if self._manager.listener is not None:
                self._manager.listener.on_undelivered(leader, acquired)
            leader.notify()
        self._acquired.clear()
        self._pending.hold(0)

    # The partitions of the session

    async def _begin(self) -> None:
        """Look at all partitions if what may be read, or what may be acquired, depends on something else than
        at the last fetch.
        """
        session = self._session
        terms = (self._settings, self._terms.permissions)
        if session.terms != terms:
            is_first, session.terms = session.terms is None, terms
            if not is_first:
                self._turns.begin()
                for cached in list(session.partitions.values()):
                    if session.partitions.get(cached.partition) is cached:
                        cached.leave_source()
                        session.mark_dirty(cached)
                    if self._turns.is_due():
                        await self._turns.pause()

    async def _look_for_problems(self) -> None:
        self._turns.begin()
        for cached in list(self._session.dirty):
            if cached.source is None and (problem := self._find_problem(cached.partition)) is not None:
                self._fail(cached, KafkaError(problem), None)
            if self._turns.is_due():
                await self._turns.pause()

    def _is_acquirable(self, cached: CachedSharePartition) -> bool:
        """Look at a dirty partition: whether there may be something to acquire. It is clean if not."""
        leader = cached.source
        if leader is not None:
            assert isinstance(leader, SharePartitionLeader), leader
            if leader.error is not None and not self._is_first_attempt:
                self._fail(cached, leader.error, leader.error.message)
                return False
            if leader.error is not None or not self._manager.still_leads(leader):
                leader = None
        if leader is None:
            if cached in self._failed:
                return False
            leader = self._find_leader(cached)
            if leader is None:
                return False
        leader.on_look(cached)
        if leader.share is not None:
            leader.share.settings = self._settings
            if leader.has_acquirable():
                self._to_serve[leader] = None
                return True
        del self._session.dirty[cached]
        return False

    def _find_leader(self, cached: CachedSharePartition) -> SharePartitionLeader | None:
        cached.leave_source()
        problem = self._find_problem(cached.partition)
        if problem is not None:
            self._fail(cached, KafkaError(problem), None)
            return None
        try:
            leader = self._manager.get_or_load(self._session.key.group_id, cached.partition)
        except KafkaError as error:
            self._fail(cached, error, error.message)
            return None
        cached.source = leader
        return leader

    def _fail(self, cached: CachedSharePartition, error: KafkaError, message: str | None) -> None:
        """Have the response say why a partition cannot be served; the next fetch looks at it again."""
        cached.leave_source()
        self._failed[cached] = None
        self._results[cached.partition] = PartitionData(
            partition_index=cached.partition.partition,
            error_code=int(error.code),
            error_message=message,
            records=b"",
        )

    # Attempts

    async def _attempt(self, *, is_last: bool) -> bool:
        """Acquire what there is; whether the response is to go out."""
        session, turns = self._session, self._turns
        turns.begin()
        self._version = session.version
        self._settings = self._manager.settings(session.key.group_id)
        self._limit = min(self._terms.max_bytes, self._pending.response_bytes)
        # Nothing is acquired before this many bytes were found.
        needed = 0 if is_last else self._terms.min_bytes
        found = 0
        to_look_at = iter(list(session.dirty))
        while self._left > 0 and (acquirable := await self._next_acquirable(to_look_at)):
            to_read = deque(acquirable)
            most = max(1, self._limit // len(acquirable))
            while to_read and self._left > 0:
                reads = await self._read(to_read, most, needed - found)
                size = sum(len(read.records) for read in reads)
                if found + size >= needed:
                    if found:
                        # What was found before is not in memory any longer.
                        return await self._attempt(is_last=True)
                    self._acquire(reads, to_read)
                else:
                    found += size
                if turns.is_due():
                    await turns.pause()
        self._is_first_attempt = False
        return bool(self._acquired) or len(self._failed) >= len(session.partitions)

    async def _next_acquirable(
        self, to_look_at: Iterator[CachedSharePartition]
    ) -> list[CachedSharePartition]:
        """Look for partitions with something to acquire: as many as may give a record each."""
        found: list[CachedSharePartition] = []
        for cached in to_look_at:
            if cached in self._session.dirty and self._is_acquirable(cached):
                found.append(cached)
                if len(found) >= self._left:
                    break
            if self._turns.is_due():
                await self._turns.pause()
        return found

    async def _read(self, to_read: deque[CachedSharePartition], most: int, needed: int) -> list[_Read]:
        """Read the first partitions, with all that is not in memory loaded."""
        self._reader = self._manager.reader(
            FetchIsolation.TXN_COMMITTED if self._settings.read_committed else FetchIsolation.HIGH_WATERMARK
        )
        for may_miss in rounds():
            missing: list[MissingRead] | None = [] if may_miss else None
            count, reads = self._read_now(to_read, most, needed, missing)
            if not missing:
                break
            await load(self._manager.pool, missing)
            self._turns.begin()
        for _ in range(count):
            to_read.popleft()
        return reads

    def _read_now(
        self,
        to_read: Iterable[CachedSharePartition],
        most: int,
        needed: int,
        missing: list[MissingRead] | None,
    ) -> tuple[int, list[_Read]]:
        """Read partitions until they are likely to give enough; return how many were looked at."""
        reads: list[_Read] = []
        count = expected = size = 0
        for cached in to_read:
            if count >= _READS_AT_ONCE or (expected >= self._left and size >= needed):
                break
            count += 1
            # There may have been a pause since it was looked at.
            if cached not in self._session.dirty or not self._is_acquirable(cached):
                continue
            leader = cached.source
            assert isinstance(leader, SharePartitionLeader), leader
            left = max(1, min(most, self._limit - self._size - size))
            read = self._read_one(
                cached, leader, left, is_first=self._size + size == 0, may_wait=missing is None
            )
            if isinstance(read, _Read):
                reads.append(read)
                size += len(read.records)
                expected += read.expected
            elif isinstance(read, KafkaError):
                if read.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                    self._manager.drop(leader)
                self._fail(cached, read, read.message)
            elif read is not None:
                assert missing is not None, read
                missing.append(read)
        return count, reads

    def _read_one(
        self,
        cached: CachedSharePartition,
        leader: SharePartitionLeader,
        most: int,
        *,
        is_first: bool,
        may_wait: bool,
    ) -> _Read | MissingRead | KafkaError | None:
        share, partition = leader.share, leader.partition
        assert share is not None, leader.key
        likely = int(leader.record_bytes * self._left * _READ_RESERVE)
        if partition.is_leader and share.next_fetch_offset() < partition.log.log_start_offset:
            share.update_log_start_offset(partition.log.log_start_offset)
            if not leader.has_acquirable():
                del self._session.dirty[cached]
                return None
        offset = share.next_fetch_offset()
        max_bytes = min(most, max(_LEAST_READ_BYTES, self._terms.min_bytes, likely))
        fetched = self._reader.read(
            partition,
            offset,
            max_bytes,
            min_one_batch=is_first,
            min_one_remote_batch=is_first,
            may_wait=may_wait,
        )
        if not isinstance(fetched, LogReadInfo):
            return fetched
        records = fetched.records
        # Of records that are new to the group, no more than are acquired have to be looked at.
        enough = _NO_OFFSET
        if not fetched.aborted and (offset > share.end_offset or share.in_flight_batches == 0):
            enough = offset + self._left - 1
        log_batches, positions = [], []
        end = 0
        for position, size, base_offset, last_offset in iter_offsets(records):
            log_batches.append(LogBatch(base_offset, last_offset))
            positions.append(position)
            end = position + size
            if last_offset >= enough:
                break
        if not log_batches:
            return None
        positions.append(end)
        span = log_batches[-1].last_offset - log_batches[0].base_offset + 1
        leader.record_bytes = end / span
        aborted = []
        if fetched.aborted:
            aborted = _aborted_batches((header for _, header in iter_batches(records)), fetched.aborted)
        expected = 1
        if enough != _NO_OFFSET:
            room = share.settings.partition_max_record_locks - share.in_flight_records
            expected = max(1, min(log_batches[-1].last_offset - offset + 1, room))
        return _Read(cached, leader, share, offset, records, log_batches, positions, aborted, expected)

    def _acquire(self, reads: list[_Read], to_read: deque[CachedSharePartition]) -> None:
        """Acquire what was read; what has to be read further on is added to the rest."""
        session, terms, now_ms = self._session, self._terms, self._manager.now_ms()
        member_id = session.key.member_id
        for read in reads:
            cached, share, leader = read.cached, read.share, read.leader
            if self._left <= 0:
                break  # it is for others, or for the next request
            acquired = share.acquire(
                member_id,
                terms.mode,
                terms.batch_size,
                self._left,
                read.fetch_offset,
                read.log_batches,
                now_ms,
                read.aborted,
            )
            partition = cached.partition
            data = PartitionData(partition_index=partition.partition, records=b"")
            if acquired:
                count = sum(last - first + 1 for first, last, _ in acquired)
                self._left -= count
                self._manager.acquired += count
                data.records = _slice(read, acquired[0].first_offset, acquired[-1].last_offset)
                data.acquired_records = [
                    AcquiredRecords(first_offset=first, last_offset=last, delivery_count=deliveries)
                    for first, last, deliveries in acquired
                ]
                self._size += len(data.records)
                statistics = leader.partition.statistics
                statistics.fetches += 1
                statistics.bytes_out += len(data.records)
                self._acquired.append((share, leader, acquired))
                leader.set_timer()
                session.note_acquired(leader)
                # The next response begins with others.
                session.dirty.pop(cached, None)
                session.dirty[cached] = None
                if self._manager.listener is not None:
                    self._manager.listener.on_acquired(leader, member_id, acquired)
            elif share.next_fetch_offset() != read.fetch_offset:
                # All of it was archived, or is held by others.
                to_read.append(cached)
            self._results[partition] = data
        self._pending.hold(self._size)

    # Waiting

    async def _wait(self, timeout_ms: int) -> bool:
        """Wait until something may be acquired; False if the time is over."""
        session = self._session
        if session.version != self._version:
            return True
        loop = asyncio.get_running_loop()
        waiter = ShareFetchWaiter(loop.create_future())
        session.waiters[waiter] = None
        timer = loop.call_later(timeout_ms / 1000, _time_out, waiter.future)
        try:
            return await waiter.future
        finally:
            timer.cancel()
            session.waiters.pop(waiter, None)
            if waiter.woken_by is not None:
                self._to_serve[waiter.woken_by] = None

    def _serve_others(self) -> None:
        """Have others look at what this fetch was woken for, or has not taken."""
        for source in self._to_serve:
            source.serve_next()
        self._to_serve.clear()


def _time_out(future: asyncio.Future[bool]) -> None:
    if not future.done():
        future.set_result(False)


def _slice(read: _Read, first: int, last: int) -> memoryview:
    """The batches of what was read that have the offsets from `first` to `last`."""
    batches = read.log_batches
    begin = 0
    while batches[begin].last_offset < first:
        begin += 1
    end = begin
    while end < len(batches) and batches[end].base_offset <= last:
        end += 1
    return memoryview(read.records)[read.positions[begin] : read.positions[end]]


def _aborted_batches(headers: Iterable[BatchHeader], aborted: Iterable[AbortedTxn]) -> list[LogBatch]:
    """The batches that belong to aborted transactions."""
    left = sorted(aborted, key=lambda each: each.first_offset, reverse=True)
    producers: set[int] = set()
    found = []
    for header in headers:
        if not header.has_producer_id:
            continue
        while left and left[-1].first_offset <= header.last_offset:
            producers.add(left.pop().producer_id)
        if header.is_control:
            producers.discard(header.producer_id)  # the marker at the end of the transaction
        elif header.is_transactional and header.producer_id in producers:
            found.append(LogBatch(header.base_offset, header.last_offset))
    return found
