"""Read a partition, wherever its records are: for fetches, share groups, tables and ListOffsets.

A read returns one of four things: what was found (`LogReadInfo`, `ListedOffset`); what has to be loaded from
the disk first (`NotInMemory`); what has to be read from remote storage first (`RemoteRead`,
`RemoteOffsetSearch`); or the error that the client gets (`KafkaError`). A search in a batch that takes longer
than a turn of the event loop is work to be done first as well (`TimestampSearch`).

The caller has such work done (`load`) and reads again: everything, so that the response is made in one turn
of the loop, of what is true then, or only what was missing. Each round may find the next thing missing (an
index, then the batch that it points to), and memory may be short, so the rounds are limited (`rounds`), and
the last read waits for the disk.

What remote storage gives for a request is kept until the request ends. A read that does not succeed within
`remote.fetch.max.wait.ms` brings nothing, and the client asks again; what it waited for is loaded meanwhile.
Where remote storage fails, the response waits for that time too, so that clients do not ask again and again
at once; then it is KAFKA_STORAGE_ERROR, which they repeat.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar

from ottla.log.segment.timestamp_search import STEP_US, SearchTooLong, TimestampSearch, TimestampSearches
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.records.batch import LOG_OVERHEAD
from ottla.replication.list_offsets import (
    ListedOffset,
    fetch_offset_for_timestamp,
    is_search_in_remote_storage,
)
from ottla.replication.partition import NO_EPOCH, FetchIsolation, FollowerFetch, LogReadInfo, Partition
from ottla.runtime.disk import NotInMemory

if TYPE_CHECKING:
    from ottla.log.segment.timestamp_search import TimestampAndOffset
    from ottla.log.segment.txn_index import AbortedTxn
    from ottla.node.cluster.replication import BrokerReplication
    from ottla.node.config.node_config import NodeConfig
    from ottla.remote.log_reader import RemoteLogReader, RemoteRecords
    from ottla.runtime.clock import Clock
    from ottla.runtime.pool import Pool
    from ottla.runtime.runtime import Runtime

_log = logging.getLogger(__name__)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_ROUNDS: Final = 8


class ReadServices(Protocol):
    """The parts of a broker that a read of a partition uses."""

    @property
    def config(self) -> NodeConfig: ...
    @property
    def replication(self) -> BrokerReplication: ...
    @property
    def runtime(self) -> Runtime: ...


class PartitionReader:
    """The reads for one request, all with one isolation level. What is done for one read, another one with
    the same arguments finds.
    """

    __slots__ = ("_broker", "_isolation", "_max_wait_ms", "_only_leader", "_remote", "_remote_offsets")

    def __init__(
        self,
        broker: ReadServices,
        isolation: FetchIsolation,
        *,
        only_leader: bool = True,
        max_wait_ms: int | None = None,
    ) -> None:
        """`max_wait_ms` is for how long remote storage is waited for; None: as long as the broker's settings
        say.
        """
        self._broker: Final = broker
        self._isolation: Final = isolation
        self._only_leader: Final = only_leader
        self._max_wait_ms: Final = max_wait_ms
        self._remote: dict[Partition, RemoteRead] | None = None  # None if there was none
        self._remote_offsets: dict[Partition, RemoteOffsetSearch] | None = None

    # Records

    def read(
        self,
        partition: Partition,
        offset: int,
        max_bytes: int,
        *,
        now_ms: int = 0,
        current_leader_epoch: int = NO_EPOCH,
        last_fetched_epoch: int = NO_EPOCH,
        follower: FollowerFetch | None = None,
        min_one_batch: bool = True,
        min_one_remote_batch: bool = True,
        may_wait: bool = False,
    ) -> LogReadInfo | NotInMemory | RemoteRead | KafkaError:
        """Read whole batches from `offset` on; see `Partition.fetch_records`. With `may_wait` the read waits
        for the disk, and brings nothing where it would have to wait for remote storage.

        `min_one_remote_batch` is what `min_one_batch` is for records that are in remote storage only.
        """
        try:
            found = partition.fetch_records(
                offset,
                max_bytes,
                isolation=self._isolation,
                now_ms=now_ms,
                current_leader_epoch=current_leader_epoch,
                last_fetched_epoch=last_fetched_epoch,
                follower=follower,
                only_leader=self._only_leader,
                min_one_batch=min_one_batch,
                may_wait=may_wait,
            )
        except NotInMemory as cold:
            return cold.with_traceback(None)
        except KafkaError as error:
            # A follower takes the error: it builds the state of a log that begins where this disk's does.
            if error.code is not ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE or follower is not None:
                return error.with_traceback(None)
            return self._read_remote(
                partition, offset, max_bytes, min_one_batch, min_one_remote_batch, may_wait=may_wait
            )
        # What is shorter ends with a batch.
        if not min_one_batch and len(found.records) == max_bytes > 0 and _is_incomplete(found.records):
            return found._replace(records=b"", aborted=None)
        return found

    def _read_remote(
        self,
        partition: Partition,
        offset: int,
        max_bytes: int,
        min_one_batch: bool,
        min_one_remote_batch: bool,
        *,
        may_wait: bool,
    ) -> LogReadInfo | NotInMemory | RemoteRead | KafkaError:
        """Return the records that are in remote storage only, once they were read, or what is to be done
        before.
        """
        known = self._remote
        if known is None:
            known = self._remote = {}
        read = known.get(partition)
        if read is None or read.offset != offset:
            if may_wait or not (min_one_remote_batch or max_bytes > 0):
                return self._found_remote(partition)
            reader = self._broker.replication.remote_log_reader
            if reader is None:
                return _not_used(partition, offset)
            read = known[partition] = RemoteRead(
                reader,
                self._broker.runtime.clock,
                partition,
                offset,
                max_bytes,
                self._isolation,
                min_one_batch=min_one_remote_batch,
                max_wait_ms=self._wait_ms("remote.fetch.max.wait.ms"),
            )
            return read
        result = read.result
        if result is None:
            return self._found_remote(partition)
        if isinstance(result, KafkaError):
            return result
        if result.next_local_offset is None:
            is_cut = not min_one_batch and _is_incomplete(result.records)
            return self._found_remote(partition, b"" if is_cut else result.records, result.aborted)
        # Compaction, long ago, has left nothing there.
        try:
            found = partition.fetch_records(
                result.next_local_offset,
                max_bytes,
                isolation=self._isolation,
                now_ms=0,
                only_leader=self._only_leader,
                min_one_batch=min_one_batch,
                may_wait=may_wait,
            )
        except NotInMemory as cold:
            return cold.with_traceback(None)
        except KafkaError as error:  # as of a leader that has moved meanwhile
            if error.code is ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE:
                return self._found_remote(partition)
            return error.with_traceback(None)
        return found._replace(is_remote=True)

    def _found_remote(
        self, partition: Partition, records: bytes = b"", aborted: tuple[AbortedTxn, ...] | None = None
    ) -> LogReadInfo:
        log = partition.log
        if aborted is None and self._isolation is FetchIsolation.TXN_COMMITTED:
            aborted = ()
        return LogReadInfo(
            records,
            log.high_watermark,
            log.last_stable_offset,
            log.log_start_offset,
            log.log_end_offset,
            aborted=aborted,
            is_remote=True,
        )

    def _wait_ms(self, setting: str) -> int:
        return self._broker.config.number(setting) if self._max_wait_ms is None else self._max_wait_ms

    # Offsets

    def find_offset(
        self,
        partition: Partition,
        timestamp: int,
        *,
        current_leader_epoch: int = NO_EPOCH,
        searches: TimestampSearches | None = None,
        may_wait: bool = False,
    ) -> ListedOffset | NotInMemory | RemoteOffsetSearch | TimestampSearch | KafkaError | None:
        """Find the offset of a timestamp, or of one of the special values; None if there is no such record.
        See `fetch_offset_for_timestamp`. With `may_wait` the search waits for the disk, and is
        OFFSET_NOT_AVAILABLE where something else is to be done first: the client asks again. `searches`
        bounds what is searched at once.
        """
        in_remote_storage = None
        try:
            if is_search_in_remote_storage(partition, timestamp):
                partition.check_replica(current_leader_epoch, only_leader=self._only_leader)
                search = self._search_remote(partition, timestamp)
                if isinstance(search, KafkaError):
                    return search
                if not search.is_done:
                    return _not_available(partition, timestamp) if may_wait else search
                if isinstance(search.result, KafkaError):
                    return search.result
                in_remote_storage = search.result
            return fetch_offset_for_timestamp(
                partition,
                timestamp,
                isolation=self._isolation,
                current_leader_epoch=current_leader_epoch,
                only_leader=self._only_leader,
                may_wait=may_wait,
                in_remote_storage=in_remote_storage,
                searches=searches,
            )
        except NotInMemory as cold:
            return cold.with_traceback(None)
        except SearchTooLong as long:
            return _not_available(partition, timestamp) if may_wait else long.search
        except KafkaError as error:
            return error.with_traceback(None)

    def _search_remote(self, partition: Partition, timestamp: int) -> RemoteOffsetSearch | KafkaError:
        known = self._remote_offsets
        if known is None:
            known = self._remote_offsets = {}
        search = known.get(partition)
        if search is None or search.timestamp != timestamp:
            reader = self._broker.replication.remote_log_reader
            if reader is None:
                return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
            timeout_ms = self._wait_ms("remote.list.offsets.request.timeout.ms")
            search = known[partition] = RemoteOffsetSearch(reader, partition, timestamp, timeout_ms)
        return search


def _is_incomplete(records: bytes) -> bool:
    """Whether not even the first batch is complete."""
    if len(records) < LOG_OVERHEAD:
        return True
    return len(records) < LOG_OVERHEAD + int.from_bytes(records[8:12], "big")


def _not_used(partition: Partition, offset: int) -> KafkaError:
    return KafkaError(
        ErrorCode.KAFKA_STORAGE_ERROR,
        f"{partition.topic_partition}: offset {offset} is in remote storage, which this broker does "
        "not use (remote.log.storage.system.enable)",
    )


def _not_available(partition: Partition, timestamp: int) -> KafkaError:
    """What is searched has changed meanwhile: the next request finds it."""
    return KafkaError(
        ErrorCode.OFFSET_NOT_AVAILABLE,
        f"{partition.topic_partition}: the time {timestamp} is still being searched; ask again",
    )


class RemoteRead:
    """The records from an offset on, which are in remote storage only. With TXN_COMMITTED they end at the
    last stable offset, and the aborted transactions are named.
    """

    __slots__ = (
        "_clock",
        "_isolation",
        "_max_bytes",
        "_max_wait_ms",
        "_min_one_batch",
        "_reader",
        "_upper_offset",
        "offset",
        "partition",
        "result",
    )

    def __init__(
        self,
        reader: RemoteLogReader,
        clock: Clock,
        partition: Partition,
        offset: int,
        max_bytes: int,
        isolation: FetchIsolation,
        *,
        min_one_batch: bool,
        max_wait_ms: int,
    ) -> None:
        log = partition.log
        self._reader: Final = reader
        self._clock: Final = clock
        self.partition: Final = partition
        self.offset: Final = offset
        self._max_bytes: Final = max_bytes
        self._isolation: Final = isolation
        self._upper_offset: Final = (
            log.last_stable_offset if isolation is FetchIsolation.TXN_COMMITTED else log.high_watermark
        )
        self._min_one_batch: Final = min_one_batch
        self._max_wait_ms: Final = max_wait_ms
        # None before it was run, and if the time was over first.
        self.result: RemoteRecords | KafkaError | None = None

    async def run(self) -> None:
        """Read, and set the result. Raises nothing."""
        deadline_ns = self._clock.monotonic_ns() + self._max_wait_ms * 1_000_000
        try:
            async with asyncio.timeout(self._max_wait_ms / 1000):
                self.result = await self._read()
        except TimeoutError:
            return
        failed = isinstance(self.result, KafkaError) and self.result.code is ErrorCode.KAFKA_STORAGE_ERROR
        if failed or self.result is None:
            left_ns = deadline_ns - self._clock.monotonic_ns()
            if left_ns > 0:
                await asyncio.sleep(left_ns / 1e9)

    async def _read(self) -> RemoteRecords | KafkaError | None:
        """None if the read cannot begin yet: too many wait, or the metadata are still being read."""
        from ottla.remote.segment_cache import TooManyRemoteReads
        from ottla.remote.segment_metadata import RemoteStorageError, RemoteStorageNotReady

        partition = self.partition
        try:
            return await self._reader.read(
                partition.topic_id_partition,
                partition.log,
                self.offset,
                self._max_bytes,
                self._upper_offset,
                min_one_batch=self._min_one_batch,
                with_aborted=self._isolation is FetchIsolation.TXN_COMMITTED,
            )
        except (TooManyRemoteReads, RemoteStorageNotReady):
            return None
        except RemoteStorageError as error:
            if self._reader.on_read_failed(partition.topic_id_partition):
                _log.warning(
                    "%s: a read from remote storage failed; clients try again: %s",
                    partition.topic_partition,
                    error.message,
                )
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, error.message)
        except KafkaError as error:
            is_first = error.code is ErrorCode.CORRUPT_MESSAGE and self._reader.on_read_failed(
                partition.topic_id_partition
            )
            if is_first:
                _log.error("%s: %s", partition.topic_partition, error.message)
            return error


class RemoteOffsetSearch:
    """The first record in remote storage that is not older than a timestamp, or, if that is negative, with
    the greatest.
    """

    __slots__ = ("_partition", "_reader", "_timeout_ms", "is_done", "result", "timestamp")

    def __init__(
        self, reader: RemoteLogReader, partition: Partition, timestamp: int, timeout_ms: int
    ) -> None:
        self._reader: Final = reader
        self._partition: Final = partition
        self.timestamp: Final = timestamp
        self._timeout_ms: Final = timeout_ms
        self.is_done = False
        self.result: TimestampAndOffset | KafkaError | None = None

    async def run(self) -> None:
        """Search, and set the result. Raises nothing."""
        partition = self._partition
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                id, log = partition.topic_id_partition, partition.log
                if self.timestamp < 0:
                    self.result = await self._reader.fetch_offset_of_max_timestamp(id, log)
                else:
                    self.result = await self._reader.fetch_offset_by_timestamp(id, log, self.timestamp)
        except TimeoutError:
            self.result = KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"{partition.topic_partition}: no offset was found in remote storage within "
                f"{self._timeout_ms} ms",
            )
        except KafkaError as error:
            _log.warning(
                "%s: a search in remote storage failed: %s", partition.topic_partition, error.message
            )
            self.result = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, error.message)
        self.is_done = True


# Work that is to be done before a read

MissingRead: TypeAlias = NotInMemory | RemoteRead | RemoteOffsetSearch | TimestampSearch
_MISSING: Final = (NotInMemory, RemoteRead, RemoteOffsetSearch, TimestampSearch)


class ReadAttempt(Protocol[T_co]):
    """A read that is repeated."""

    def __call__(self, *, may_wait: bool) -> T_co | MissingRead: ...


class RunHeavy(Protocol):
    """Does heavy work for a client (`ottla.runtime.heavy_work`)."""

    def __call__(self, cost_us: int, fn: Callable[[], None], *, memory_bytes: int) -> Awaitable[None]: ...


def rounds() -> Iterator[bool]:
    """Return for each attempt whether it may find something missing, so that it has to be repeated."""
    return chain(repeat(True, _ROUNDS), (False,))


async def load(pool: Pool, missing: Iterable[MissingRead], run_heavy: RunHeavy | None = None) -> None:
    """Do what reads have found missing. `run_heavy` is needed where timestamps are searched."""
    cold: list[NotInMemory] = []
    remote: list[RemoteRead | RemoteOffsetSearch] = []
    searches: list[TimestampSearch] = []
    for each in missing:
        if isinstance(each, NotInMemory):
            cold.append(each)
        elif isinstance(each, TimestampSearch):
            searches.append(each)
        else:
            remote.append(each)
    if remote:
        await asyncio.gather(*(each.run() for each in remote))
    if cold:
        await pool.run(_load, cold)
    for search in searches:
        assert run_heavy is not None
        # To the end, step by step: others have their turn in between.
        while not search.is_done:
            cost_us = max(search.cost_us, STEP_US)
            await run_heavy(cost_us, partial(search.step, cost_us), memory_bytes=search.memory_bytes)


def _load(cold: list[NotInMemory]) -> None:
    for each in cold:
        with contextlib.suppress(OSError):  # the next read meets the error again
            each.load()


async def complete(pool: Pool, read: ReadAttempt[T], run_heavy: RunHeavy | None = None) -> T:
    """Read again and again, until nothing is missing."""
    for may_miss in rounds():
        found = read(may_wait=not may_miss)
        if not isinstance(found, _MISSING):
            return found
        await load(pool, (found,), run_heavy)
    raise AssertionError("a read that waits has missed something")
