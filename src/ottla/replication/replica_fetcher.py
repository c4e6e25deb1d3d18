"""Fetch from one leader: one request at a time for all partitions that this broker follows there.

The loop is Kafka's `AbstractFetcherThread` and `ReplicaFetcherThread` in one. It sends a fetch, processes the
response and fetches again. The leader delays its response while there is nothing new. A partition that cannot
go on at the moment pauses, up to `replica.fetch.backoff.ms`, while the others go on; if the leader cannot be
reached, the fetcher pauses.

A round costs by what changed since the last one, not by the number of partitions: the fetch session knows the
others. A partition whose request changes is noted (`_changed`), and so is one that the session does not know
(`_unnamed`); each request names a bounded number of them, the changed ones first, and a leader that is asked
for few partitions at a time does not stall either. A session therefore grows over several requests, which do
not wait at the leader.

Where the topic asks for it (`durability=disk`, `flush.messages`), what a response has brought is synced in
the pool before the next request, which tells the leader that this replica has it.

Invariants: a response is processed only in the leader epoch of its request. Each partition is known to the
session as it would be asked for now, or is noted to be named or forgotten, or is paused or truncated and not
known.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from ottla.log.unified_log import UnifiedLog
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
    ReplicaState,
)
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.names import TopicPartition
from ottla.protocol.schema import Request, Response
from ottla.replication.partition import Partition
from ottla.replication.partition_fetch_state import AfterFetch, PartitionFetchState
from ottla.replication.replica_fetch_session import Key, ReplicaFetchSession
from ottla.replication.replication_quota_manager import ReplicationQuotaManager, is_throttled
from ottla.runtime import invariants
from ottla.runtime.clock import Clock
from ottla.runtime.pool import Pool
from ottla.runtime.turns import Turns

if TYPE_CHECKING:
    from ottla.protocol.messages.offset_for_leader_epoch import EpochEndOffset
    from ottla.remote.log_reader import RemoteLogReader
    from ottla.replication.tier_state_machine import LeaderTier

_log = logging.getLogger(__name__)

FETCH_VERSION: Final = 17
_LIST_OFFSETS_VERSION: Final = 8
_PENDING_UPLOAD_VERSION: Final = 11
_LATEST: Final = -1
_EARLIEST: Final = -2
_EARLIEST_LOCAL: Final = -4
_EARLIEST_PENDING_UPLOAD: Final = -6
_OFFSET_FOR_LEADER_EPOCH_VERSION: Final = 4
# A fetch under way is not aborted more often than this, so that large responses get through in the end.
_DISCONNECT_EVERY_MS: Final = 1_000
# Partitions that one request names: building, encoding and decoding it stay below 10 ms on both sides.
NAMED_AT_ONCE: Final = 500
_FIRST_PAUSE_MS: Final = 20
_THROTTLED_MS: Final = 200
_NO_ROOM_MS: Final = 1_000
_SESSION_LOST: Final = frozenset(
    (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH)
)

_TRUNCATIONS_AT_ONCE: Final = 4
_LOOKUPS_AT_ONCE: Final = 4
# How soon a fetcher looks again for the end of a truncation.
_TRUNCATING_MS: Final = 20

R = TypeVar("R", bound=Response)


class LeaderEndPoint(Protocol):
    """The connection to one leader. OSError: it cannot be reached or does not answer in time."""

    async def send_request(self, request: Request, newest_version: int, timeout_ms: int) -> Response: ...

    def disconnect(self) -> None:
        """Abort the request under way."""


@dataclass(frozen=True, slots=True)
class ReplicaFetcherConfig:
    """The settings of these names with `replica.fetch.` before them, and `replica.socket.timeout.ms`."""

    wait_max_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 1024 * 1024
    response_max_bytes: int = 10 * 1024 * 1024
    backoff_ms: int = 1000
    socket_timeout_ms: int = 30_000


class ReplicaTruncations:
    """The truncations of this broker's followers: a few at a time, so that they share the pool with all else
    that waits for the disk. One that has begun ends, also if its fetcher has gone meanwhile.
    """

    __slots__ = ("_is_closed", "_pool", "_slots", "_tasks")

    def __init__(self, pool: Pool) -> None:
        self._pool: Final = pool
        self._is_closed = False
        self._slots: Final = asyncio.Semaphore(_TRUNCATIONS_AT_ONCE)
        self._tasks: dict[asyncio.Task[None], None] = {}

    def start(self, work: Callable[[Pool], Awaitable[None]]) -> None:
        """Run one in the background, in its turn. `work` handles its errors itself."""
        task = asyncio.get_running_loop().create_task(self._run(work), name="truncation")
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _run(self, work: Callable[[Pool], Awaitable[None]]) -> None:
        async with self._slots:
            if not self._is_closed:
                await work(self._pool)

    async def close(self) -> None:
        """Return once those that have begun are done; the others are left for the next start."""
        self._is_closed = True
        await asyncio.gather(*self._tasks, return_exceptions=True)


class TierLookups:
    """The look-ups of this broker's followers in remote storage: a few at a time, apart from truncations, as
    a store may be slow. They change nothing, so each ends where it stands when they are closed.
    """

    __slots__ = ("_slots", "_tasks")

    def __init__(self) -> None:
        self._slots: Final = asyncio.Semaphore(_LOOKUPS_AT_ONCE)
        self._tasks: dict[asyncio.Task[None], None] = {}

    def start(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run one in the background, in its turn. `work` handles its errors itself."""
        task = asyncio.get_running_loop().create_task(self._run(work), name="look-up in remote storage")
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _run(self, work: Callable[[], Awaitable[None]]) -> None:
        async with self._slots:
            await work()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class ReplicaFetcherContext:
    """The parts and settings that all fetchers of this broker share."""

    broker_id: int
    broker_epoch: Callable[[], int]
    clock: Clock
    config: ReplicaFetcherConfig
    quota: ReplicationQuotaManager
    truncations: ReplicaTruncations
    # Makes durable what was appended to a log, off the event loop and together with other logs. What it
    # returns may be shared with others.
    commit: Callable[[UnifiedLog], asyncio.Future[None]]
    # Makes the creation of a log durable, off the event loop.
    complete_creation: Callable[[UnifiedLog], Awaitable[None]]
    # Called for a partition whose directory went offline; it is no longer fetched.
    on_failure: Callable[[TopicPartition, Exception], None]
    # The reader of remote storage; None where no topic has it.
    remote_log_reader: Callable[[], RemoteLogReader | None] = lambda: None
    tier_lookups: TierLookups = field(default_factory=TierLookups)
    # `follower.fetch.last.tiered.offset.enable`, as it is now.
    fetches_last_tiered_offset: Callable[[], bool] = lambda: False

    def now_ms(self) -> int:
        """The monotonic time, for pauses."""
        return self.clock.monotonic_ns() // 1_000_000

    def is_throttled(self, partition: Partition) -> bool:
        replicas = partition.log.config.follower_replication_throttled_replicas
        return is_throttled(replicas, partition.topic_partition.partition, self.broker_id)


class ReplicaFetcher:
    """Add and remove partitions at any time; `run` is the loop, for a task of its own."""

    def __init__(self, leader_id: int, leader: LeaderEndPoint, context: ReplicaFetcherContext) -> None:
        self.leader_id: Final = leader_id
        self._leader: Final = leader
        self._context: Final = context
        self._partitions: dict[Key, PartitionFetchState] = {}
        self._session: Final = ReplicaFetchSession()
        # Partitions to be named by the next requests, in order: known ones whose request may have changed and
        # others that are urgent, and those that the session does not know.
        self._changed: dict[Key, None] = {}
        self._unnamed: dict[Key, None] = {}
        # Known to the session, and to be forgotten with the next request. Only then they can be named again.
        self._forgotten: dict[Key, None] = {}
        # Taken off the noted ones for the request that is being built, until the session knows them.
        self._naming: dict[Key, FetchPartition] = {}
        # (end, number, partition, state), earliest end first; of a state that has another end by now, or is
        # gone, the entry is void.
        self._pauses: list[tuple[int, int, Key, PartitionFetchState]] = []
        self._pauses_made = 0
        # Known to the session, subject to the throttle, and behind.
        self._behind: dict[Key, None] = {}
        self._truncating: dict[Key, PartitionFetchState] = {}
        # To be flushed before the next request.
        self._unflushed: dict[Key, PartitionFetchState] = {}
        self._work: Final = asyncio.Event()
        self._turns: Final = Turns(context.clock)
        self._waits_at_leader = False
        self._disconnected = False
        self._disconnected_ms = -_DISCONNECT_EVERY_MS
        # Whether the leader had no place for a session at the last response.
        self._is_session_refused = False
        self._pause_ms = 0  # after the last failure to reach the leader

    def __len__(self) -> int:
        return len(self._partitions)

    def states(self) -> list[PartitionFetchState]:
        return list(self._partitions.values())

    def add(self, state: PartitionFetchState) -> None:
        """Fetch a partition from now on. A fetch that waits at the leader for other partitions is aborted,
        unless it would take many requests to name them all again: after an election, a produce request with
        acks=all would have to wait for its end.
        """
        key = state.key
        self.remove(*key)
        self._partitions[key] = state
        state.follow_log(lambda: self._on_request_changed(key))
        (self._changed if key in self._session.known else self._unnamed)[key] = None
        self._work.set()
        if self._waits_at_leader and not self._disconnected and len(self._session.known) <= NAMED_AT_ONCE:
            now_ms = self._context.now_ms()
            if now_ms - self._disconnected_ms >= _DISCONNECT_EVERY_MS:
                self._disconnected, self._disconnected_ms = True, now_ms
                self._leader.disconnect()

    def remove(self, topic_id: bytes, index: int) -> None:
        """Stop fetching a partition; the answer to a request that is under way is not processed."""
        key = topic_id, index
        state = self._partitions.pop(key, None)
        if state is not None:
            state.unfollow_log()
            self._truncating.pop(key, None)
            self._set_aside(key)

    def _set_aside(self, key: Key) -> None:
        """Stop fetching a partition, until it is noted to be named again."""
        self._changed.pop(key, None)
        self._unnamed.pop(key, None)
        self._behind.pop(key, None)
        if key in self._session.known:
            self._forgotten[key] = None

    def _on_request_changed(self, key: Key) -> None:
        """Note that the next request for a partition may be another one."""
        if key in self._naming or (key in self._session.known and key not in self._forgotten):
            self._changed[key] = None

    async def run(self) -> None:
        """Fetch until the task is cancelled. An error of this code ends it; it may be called again."""
        self._begin_session()
        while True:
            self._turns.begin()
            await self._flush_logs()
            named = await self._partitions_to_name()
            session = self._session
            if not named and len(session.known) == len(self._forgotten):
                self._begin_session()
                if not (self._changed or self._unnamed or self._unflushed):
                    await self._wait_for_work(self._next_pause_end_ms())
                continue
            try:
                response = await self._fetch(named)
            except (OSError, KafkaError) as error:
                self._begin_session()
                if not self._disconnected:
                    _log.info("cannot fetch from broker %d: %s", self.leader_id, error)
                    await self._pause_fetcher()
                continue
            if not session.handle_response(response):
                self._begin_session()
                if response.error_code not in _SESSION_LOST:
                    code = ErrorCode.of(response.error_code).name
                    _log.info("broker %d answers a fetch with %s", self.leader_id, code)
                    await self._pause_fetcher()
                continue
            self._pause_ms = 0
            await self._process_response(response)

    def _begin_session(self, *, in_turn: bool = False) -> None:
        """Name all partitions again, in a new session: those first that were named last or, `in_turn`, those
        that have waited. A run that an error ended may have left a request half built.
        """
        forgotten, self._forgotten = self._forgotten, {}
        naming, self._naming = self._naming, {}
        self._behind.clear()
        known = dict.fromkeys(key for key in self._session.reset() if key not in forgotten)
        known |= dict.fromkeys(key for key in naming if key in self._partitions)
        self._unnamed = self._unnamed | known if in_turn else known | self._unnamed
        for key in self._changed:
            self._unnamed.pop(key, None)

    async def _pause_fetcher(self) -> None:
        """Wait after a failure to reach the leader, or until a partition is added."""
        self._pause_ms = min(max(2 * self._pause_ms, _FIRST_PAUSE_MS), self._context.config.backoff_ms)
        await self._wait_for_work(self._pause_ms)

    async def _wait_for_work(self, pause_ms: int | None) -> None:
        """Wait until a partition is added, or a pause ends."""
        self._work.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if pause_ms is None else pause_ms / 1000):
                await self._work.wait()

    # Pauses

    def _pause(self, key: Key, state: PartitionFetchState, until_ms: int) -> None:
        """Do not fetch a partition before a time."""
        self._set_aside(key)
        state.paused_until_ms = until_ms
        self._pauses_made += 1
        heapq.heappush(self._pauses, (until_ms, self._pauses_made, key, state))

    def _pause_after_failure(self, key: Key, state: PartitionFetchState) -> None:
        context = self._context
        self._pause(key, state, state.next_attempt_ms(context.now_ms(), context.config.backoff_ms))

    def _end_pauses(self, now_ms: int) -> None:
        """Note the partitions whose pause is over, a bounded number of them."""
        pauses = self._pauses
        for _ in range(NAMED_AT_ONCE):
            if not pauses or pauses[0][0] > now_ms:
                return
            until_ms, _, key, state = heapq.heappop(pauses)
            if self._partitions.get(key) is state and state.paused_until_ms == until_ms:
                self._changed[key] = None

    def _next_pause_end_ms(self) -> int | None:
        """How long until a pause ends; None if there is none."""
        return max(self._pauses[0][0] - self._context.now_ms(), 0) if self._pauses else None

    # Requests

    async def _partitions_to_name(self) -> dict[Key, FetchPartition]:
        """Take partitions that the next request is to name, a bounded number, off the noted ones."""
        context, turns = self._context, self._turns
        now_ms = context.now_ms()
        self._end_pauses(now_ms)
        if self._behind and context.quota.is_exceeded:
            for key in list(self._behind):
                if key in self._behind:
                    self._pause(key, self._partitions[key], now_ms + _THROTTLED_MS)
                await turns.pause_if_due()
        # The leader must not read again what it has sent: where too many requests have changed, forget some.
        for key in list(islice(self._changed, NAMED_AT_ONCE, None)):
            if key in self._changed:
                self._set_aside(key)
                self._unnamed[key] = None
            await turns.pause_if_due()
        naming = self._naming = {}
        for noted in (self._changed, self._unnamed):
            for key in list(islice(noted, NAMED_AT_ONCE - len(naming))):
                if key in noted and key not in self._forgotten:
                    del noted[key]
                    asked = self._request_of(key, now_ms)
                    if asked is not None:
                        naming[key] = asked
                if turns.is_due():
                    await turns.pause()
        # While this work gave way a partition may have been removed, or noted once more.
        return {
            key: asked
            for key, asked in naming.items()
            if key in self._partitions and key not in self._changed and key not in self._unnamed
        }

    def _request_of(self, key: Key, now_ms: int) -> FetchPartition | None:
        """The request for a partition; None if it is not to be named now, or there was an error."""
        state = self._partitions[key]
        try:
            return self._next_request(key, state, now_ms)
        except Exception as error:
            self._on_partition_error(key, state, "the next fetch could not be prepared", error)
            return None

    def _next_request(self, key: Key, state: PartitionFetchState, now_ms: int) -> FetchPartition | None:
        context = self._context
        partition = state.partition
        if not state.is_current:
            self.remove(*key)
            return None
        if not state.has_caught_up and context.is_throttled(partition):
            if context.quota.is_exceeded:
                self._pause(key, state, now_ms + _THROTTLED_MS)
                return None
            self._behind[key] = None
        if partition.log.is_truncating:
            self._pause(key, state, now_ms + _TRUNCATING_MS)  # by the fetcher of another epoch
            return None
        if not partition.is_in_sync_follower and partition.log.directory.lacks_room:
            # A replica that caught up would join the ISR and then hold up the next record.
            self._pause(key, state, now_ms + _NO_ROOM_MS)
            return None
        if state.is_flush_due:
            self._set_aside(key)
            self._unflushed[key] = state
            return None
        if state.has_doubtful_end or (partition.log.config.is_remote and state.lacks_auxiliary_state):
            self._set_aside(key)
            self._truncating[key] = state
            context.truncations.start(partial(self._truncate, key, state))
            return None
        if partition.log.config.is_remote and partition.log.lacks_producers:
            self._begin_to_restore_producers(key, state)
            return None
        asked = state.fetch_request(context.config.max_bytes)
        return None if asked == self._session.known.get(key) else asked

    async def _fetch(self, named: dict[Key, FetchPartition]) -> FetchResponse:
        context = self._context
        config = context.config
        wait_ms = self._wait_ms(len(named))
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=context.broker_id, replica_epoch=context.broker_epoch()),
            max_wait_ms=wait_ms,
            min_bytes=config.min_bytes,
            max_bytes=config.response_max_bytes,
        )
        self._session.build(request, named, self._forgotten)
        self._forgotten.clear()
        self._naming = {}
        if invariants.thorough:
            self._check_session()
        self._waits_at_leader, self._disconnected = wait_ms > 0, False
        try:
            return await self._send(request, FETCH_VERSION, FetchResponse, config.wait_max_ms)
        finally:
            self._waits_at_leader = False

    def _wait_ms(self, named: int) -> int:
        """How long the leader may delay its response, if there is nothing new."""
        wait_max_ms = self._context.config.wait_max_ms
        if self._changed or self._unnamed or self._unflushed:
            if not self._is_session_refused:
                return 0
            # Without a session the partitions take turns.
            return max(wait_max_ms * named // len(self._partitions), 1)
        if self._truncating:
            wait_max_ms = min(wait_max_ms, _TRUNCATING_MS)
        pause_ms = self._next_pause_end_ms()
        return wait_max_ms if pause_ms is None else min(wait_max_ms, pause_ms)

    def _check_session(self) -> None:
        """Assert that the leader has the newest request of each partition that is not noted."""
        for key, asked in self._session.known.items():
            state = self._partitions[key]
            if key not in self._changed and state.is_current and state.partition.log.directory.is_online:
                now = state.fetch_request(self._context.config.max_bytes)
                assert now == asked, f"{state} is fetched with {asked}, but {now} is due"

    async def _send(self, request: Request, version: int, kind: type[R], wait_ms: int = 0) -> R:
        response = await self._leader.send_request(
            request, version, self._context.config.socket_timeout_ms + wait_ms
        )
        assert isinstance(response, kind)
        return response

    # Responses

    async def _process_response(self, response: FetchResponse) -> None:
        self._turns.begin()
        for topic in response.responses:
            topic_id = bytes(topic.topic_id)
            for answer in topic.partitions:
                await self._process_partition_data((topic_id, answer.partition_index), answer)
                if self._turns.is_due():
                    await self._turns.pause()
        self._is_session_refused = not self._session.is_incremental
        if self._is_session_refused:
            self._begin_session(in_turn=True)

    async def _process_partition_data(self, key: Key, answer: PartitionData) -> None:
        state, asked = self._partitions.get(key), self._session.known.get(key)
        if state is None or asked is None or key in self._forgotten:
            return
        context = self._context
        try:
            if not state.is_current:
                self.remove(*key)
                return
            if answer.records and state.partition.log.is_new:
                await context.complete_creation(state.partition.log)
                if not self._is_assigned(key, state):
                    return
            if answer.records and context.is_throttled(state.partition):
                context.quota.record(len(answer.records))
            then = state.process_partition_data(asked.fetch_offset, answer, context.clock.wall_ms())
            if then is AfterFetch.FETCH_OFFSETS:
                then = await self._fetch_leader_bounds(state)
            elif then is AfterFetch.BUILD_AUXILIARY_STATE:
                then = await self._begin_to_build_auxiliary_state(key, state)
        except Exception as error:
            self._on_partition_error(key, state, "the leader's response could not be processed", error)
            return
        if not self._is_assigned(key, state):
            return
        if then is AfterFetch.PAUSE:
            self._pause_after_failure(key, state)
        elif then is AfterFetch.STOP:
            self.remove(*key)
        elif then is AfterFetch.TRUNCATE:
            self._set_aside(key)
            self._truncating[key] = state
            context.truncations.start(partial(self._truncate, key, state))
        elif then is AfterFetch.BUILD_AUXILIARY_STATE:
            pass  # goes on in the background
        else:
            state.reset_backoff()
            if state.has_caught_up:
                self._behind.pop(key, None)
            if then is AfterFetch.NAME_AGAIN:
                self._name_again(key)
            elif answer.records:
                self._changed[key] = None
                if state.is_flush_due:
                    self._unflushed[key] = state

    async def _flush_logs(self) -> None:
        """Make logs durable whose flush is due, all at the same time."""
        if self._unflushed:
            due, self._unflushed = self._unflushed, {}
            commit = self._context.commit
            commits = [(key, state, commit(state.partition.log)) for key, state in due.items()]
            for each in commits:
                await self._wait_for_commit(*each)

    async def _wait_for_commit(
        self, key: Key, state: PartitionFetchState, commit: asyncio.Future[None]
    ) -> None:
        context, partition = self._context, state.partition
        try:
            await asyncio.shield(commit)
        except Exception as error:
            if isinstance(error, KafkaError):
                partition.note_refused_append(error, context.clock.wall_ms())
            self._on_partition_error(key, state, "the log could not be flushed", error)
            return
        if self._is_assigned(key, state):
            self._changed[key] = None
        else:
            partition.on_flush(context.clock.wall_ms())  # this broker may lead by now

    def _name_again(self, key: Key) -> None:
        """Have the leader answer for a partition as if it were new to the session: within a session it sends
        its high watermark only once, and that was not processed.
        """
        self._set_aside(key)
        self._changed[key] = None

    def _on_partition_error(
        self, key: Key, state: PartitionFetchState, action: str, error: Exception
    ) -> None:
        """Pause one partition that raised an error, or give it up if its directory is offline."""
        if invariants.thorough and isinstance(error, AssertionError):
            raise error
        if not self._is_assigned(key, state):
            return
        directory = state.partition.log.directory
        if isinstance(error, OSError):
            error = directory.io_error(f"replication of {state.partition.topic_partition}", error)
        if not directory.is_online:
            self.remove(*key)
            self._context.on_failure(state.partition.topic_partition, error)
            return
        if state.note_error(error):
            unexpected = None if isinstance(error, KafkaError) else error
            _log.error("%s: %s: %s", state, action, error, exc_info=unexpected)
        self._pause_after_failure(key, state)

    def _is_assigned(self, key: Key, state: PartitionFetchState) -> bool:
        return self._partitions.get(key) is state and state.is_current

    async def _truncate(self, key: Key, state: PartitionFetchState, pool: Pool) -> None:
        """Truncate the log of a partition, and fetch it again then."""
        if not self._is_assigned(key, state):
            return  # what its new epoch asks for is not known yet
        try:
            truncation = state.begin_truncation()
            if truncation is not None:
                await truncation.run(pool)
                state.partition.on_truncation()
        except Exception as error:
            self._on_partition_error(key, state, "the log could not be truncated", error)
        else:
            state.reset_backoff()
            if self._is_assigned(key, state):
                self._changed[key] = None
        if self._truncating.get(key) is state:
            del self._truncating[key]
        self._work.set()

    async def _fetch_leader_bounds(self, state: PartitionFetchState) -> AfterFetch:
        """Get the bounds of the leader's log, into which the log end is to move."""
        try:
            end = await self._fetch_leader_offset(state, _LATEST)
            # With remote storage, a fetch from the start of the log leads to what is on the leader's disk.
            is_remote = state.partition.log.config.is_remote
            start = await self._fetch_leader_offset(state, _EARLIEST if is_remote else _EARLIEST_LOCAL)
        except (OSError, KafkaError) as error:
            _log.info("broker %d did not answer with the bounds of its log: %s", self.leader_id, error)
            return AfterFetch.PAUSE
        if end is None or start is None:
            return AfterFetch.PAUSE
        return state.on_leader_bounds(start, end)

    async def _begin_to_build_auxiliary_state(self, key: Key, state: PartitionFetchState) -> AfterFetch:
        """Find in the background where to begin to fetch a partition of which the leader has a part in remote
        storage only.
        """
        reader = self._context.remote_log_reader()
        try:
            leader = None if reader is None else await self._fetch_leader_tier(state)
        except (OSError, KafkaError) as error:
            _log.info("broker %d did not answer with the parts of its log: %s", self.leader_id, error)
            return AfterFetch.PAUSE
        if reader is None or leader is None:
            return AfterFetch.PAUSE
        if self._is_assigned(key, state):
            self._set_aside(key)
            self._truncating[key] = state
            self._context.tier_lookups.start(partial(self._build_auxiliary_state, key, state, reader, leader))
        return AfterFetch.BUILD_AUXILIARY_STATE

    async def _build_auxiliary_state(
        self, key: Key, state: PartitionFetchState, reader: RemoteLogReader, leader: LeaderTier
    ) -> None:
        from ottla.replication.tier_state_machine import fetch_tiered_start

        if not self._is_assigned(key, state):
            return
        try:
            start = await fetch_tiered_start(reader, state.partition.topic_id_partition, leader)
        except Exception as error:
            if self._truncating.get(key) is state:
                del self._truncating[key]
            self._on_partition_error(key, state, "remote storage does not tell where to begin", error)
            self._work.set()
            return
        if self._is_assigned(key, state):
            state.on_tiered_start(start)
        self._context.truncations.start(partial(self._truncate, key, state))

    def _begin_to_restore_producers(self, key: Key, state: PartitionFetchState) -> None:
        """Get the producers of what is in remote storage only, which the log has lost, before it goes on."""
        reader = self._context.remote_log_reader()
        if reader is None:
            self._pause_after_failure(key, state)
            return
        self._set_aside(key)
        self._truncating[key] = state
        self._context.tier_lookups.start(partial(self._restore_producers, key, state, reader))

    async def _restore_producers(self, key: Key, state: PartitionFetchState, reader: RemoteLogReader) -> None:
        if not self._is_assigned(key, state):
            return
        partition = state.partition
        try:
            snapshot = await reader.fetch_producers(partition.topic_id_partition, partition.log)
        except Exception as error:
            if self._truncating.get(key) is state:
                del self._truncating[key]
            self._on_partition_error(key, state, "remote storage does not tell its producers", error)
            self._work.set()
            return
        if self._is_assigned(key, state):
            state.on_producers(snapshot)
        self._context.truncations.start(partial(self._truncate, key, state))

    async def _fetch_leader_tier(self, state: PartitionFetchState) -> LeaderTier | None:
        """Where the leader's log has its parts; None if the leader answers with an error."""
        from ottla.replication.tier_state_machine import LeaderTier

        start = await self._fetch_leader_offset(state, _EARLIEST)
        local = await self._fetch_listed_offset(state, _EARLIEST_LOCAL)
        if start is None or local is None or not start < local.offset:
            return None
        if self._context.fetches_last_tiered_offset() and state.partition.log.log_end_offset == 0:
            # What the leader has both on its disk and in remote storage need not be fetched (KIP-1023).
            pending = await self._fetch_listed_offset(
                state, _EARLIEST_PENDING_UPLOAD, _PENDING_UPLOAD_VERSION
            )
            local = local if pending is None else max(local, pending, key=lambda each: each.offset)
        epoch = local.leader_epoch
        if epoch > 0:
            # Whether the last record before is of an earlier epoch.
            before = await self._fetch_epoch_end(state, epoch - 1)
            if before is None:
                return None
            if before.leader_epoch >= 0 and before.end_offset >= local.offset:
                epoch = before.leader_epoch
        return LeaderTier(start, local.offset, epoch)

    async def _fetch_epoch_end(self, state: PartitionFetchState, epoch: int) -> EpochEndOffset | None:
        from ottla.protocol.messages.offset_for_leader_epoch import (
            OffsetForLeaderEpochRequest,
            OffsetForLeaderEpochResponse,
            OffsetForLeaderPartition,
            OffsetForLeaderTopic,
        )

        tp = state.partition.topic_partition
        request = OffsetForLeaderEpochRequest(
            replica_id=self._context.broker_id,
            topics=[
                OffsetForLeaderTopic(
                    topic=tp.topic,
                    partitions=[
                        OffsetForLeaderPartition(
                            partition=tp.partition,
                            current_leader_epoch=state.leader_epoch,
                            leader_epoch=epoch,
                        )
                    ],
                )
            ],
        )
        response = await self._send(request, _OFFSET_FOR_LEADER_EPOCH_VERSION, OffsetForLeaderEpochResponse)
        for topic in response.topics:
            for partition in topic.partitions:
                if partition.error_code == ErrorCode.NONE:
                    return partition
        return None

    async def _fetch_leader_offset(self, state: PartitionFetchState, timestamp: int) -> int | None:
        """An offset of the leader's log; None if the leader answers with an error."""
        found = await self._fetch_listed_offset(state, timestamp)
        return None if found is None else found.offset

    async def _fetch_listed_offset(
        self, state: PartitionFetchState, timestamp: int, version: int = _LIST_OFFSETS_VERSION
    ) -> ListOffsetsPartitionResponse | None:
        tp = state.partition.topic_partition
        request = ListOffsetsRequest(
            replica_id=self._context.broker_id,
            topics=[
                ListOffsetsTopic(
                    name=tp.topic,
                    partitions=[
                        ListOffsetsPartition(
                            partition_index=tp.partition,
                            current_leader_epoch=state.leader_epoch,
                            timestamp=timestamp,
                        )
                    ],
                )
            ],
        )
        response = await self._send(request, version, ListOffsetsResponse)
        for topic in response.topics:
            for partition in topic.partitions:
                if partition.error_code == ErrorCode.NONE and partition.offset >= 0:
                    return partition
        return None
