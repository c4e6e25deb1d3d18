"""Follows one leader: one request at a time for all partitions that this broker has from it.

The loop asks, takes the answer apart and asks again; the leader lets a request wait when there is nothing
new, so it costs little when nothing happens and nothing is lost in between. A partition that cannot go on
at the moment pauses, up to `replica.fetch.backoff.ms`, while the others go on; a leader that cannot be
reached makes all of them pause. Invariant: an answer is taken only for the leader epoch that it was asked
for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

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
from ottla.runtime.clock import Clock

_log = logging.getLogger(__name__)

FETCH_VERSION: Final = 17
_LIST_OFFSETS_VERSION: Final = 8
_LATEST: Final = -1
_EARLIEST_LOCAL: Final = -4
# A fetch under way is not given up more often than this, so that large answers get through in the end.
_HANG_UP_EVERY_MS: Final = 1_000
_THROTTLED_MS: Final = 200
_NO_ROOM_MS: Final = 1_000
_SESSION_LOST: Final = frozenset(
    (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH)
)

R = TypeVar("R", bound=Response)


class LeaderEndPoint(Protocol):
    """The way to one broker: OSError if it cannot be reached or does not answer in time."""

    async def ask(self, request: Request, newest_version: int, timeout_ms: int) -> Response: ...

    def hang_up(self) -> None:
        """Have the question under way fail, as nobody waits for its answer any more."""


@dataclass(frozen=True, slots=True)
class ReplicaFetcherConfig:
    """The settings of the same names, as `replica.fetch.wait.max.ms`."""

    wait_max_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 1024 * 1024
    response_max_bytes: int = 10 * 1024 * 1024
    backoff_ms: int = 1000
    socket_timeout_ms: int = 30_000


@dataclass(frozen=True, slots=True)
class ReplicaFetcherContext:
    """The broker that follows, with what all of its fetchers share."""

    broker_id: int
    broker_epoch: Callable[[], int]
    clock: Clock
    config: ReplicaFetcherConfig
    quota: ReplicationQuotaManager
    # Told of partitions whose directory went offline; they are no longer followed.
    failed: Callable[[TopicPartition, KafkaError], None]

    def now_ms(self) -> int:
        """For pauses; it never goes back."""
        return self.clock.monotonic_ns() // 1_000_000

    def is_throttled(self, partition: Partition) -> bool:
        replicas = partition.log.config.follower_replication_throttled_replicas
        return is_throttled(replicas, partition.topic_partition.partition, self.broker_id)


class ReplicaFetcher:
    """Add and remove partitions; `run` is the loop, for a task of its own."""

    def __init__(self, leader_id: int, leader: LeaderEndPoint, context: ReplicaFetcherContext) -> None:
        self.leader_id: Final = leader_id
        self._leader: Final = leader
        self._context: Final = context
        self._partitions: dict[Key, PartitionFetchState] = {}
        self._session: Final = ReplicaFetchSession()
        self._changed: Final = asyncio.Event()
        self._asking = False
        self._hung_up = False
        self._hung_up_ms = -_HANG_UP_EVERY_MS

    def __len__(self) -> int:
        return len(self._partitions)

    def add(self, state: PartitionFetchState) -> None:
        """Follow a partition from now on. A fetch that waits at the leader for news of others is given up:
        after an election, whoever writes with acks=all would wait for it to end.
        """
        partition = state.partition
        self._partitions[partition.topic_id, partition.topic_partition.partition] = state
        self._changed.set()
        now_ms = self._context.now_ms()
        if self._asking and not self._hung_up and now_ms - self._hung_up_ms >= _HANG_UP_EVERY_MS:
            self._hung_up, self._hung_up_ms = True, now_ms
            self._leader.hang_up()

    def remove(self, topic_id: bytes, index: int) -> None:
        self._partitions.pop((topic_id, index), None)

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            wanted = self._ready()
            if not wanted:
                await self._wait_for_work()
                continue
            try:
                response = await self._fetch(wanted)
            except (OSError, KafkaError) as error:
                self._session.forget()
                if not self._hung_up:
                    _log.info("broker %d cannot be fetched from: %s", self.leader_id, error)
                    self._pause(wanted)
                continue
            if not self._session.answered(response):
                if response.error_code not in _SESSION_LOST:
                    code = ErrorCode.of(response.error_code).name
                    _log.info("broker %d refuses to be fetched from: %s", self.leader_id, code)
                    self._pause(wanted)
                continue
            for topic in response.responses:
                for answer in topic.partitions:
                    await self._take((bytes(topic.topic_id), answer.partition_index), wanted, answer)

    # What to ask

    def _ready(self) -> dict[Key, tuple[PartitionFetchState, FetchPartition]]:
        context = self._context
        now_ms = context.now_ms()
        held_back = context.quota.is_exceeded
        found = {}
        for key, state in list(self._partitions.items()):
            if not state.is_current:
                del self._partitions[key]
            elif state.paused_until_ms > now_ms:
                continue
            elif held_back and not state.has_caught_up and context.is_throttled(state.partition):
                state.paused_until_ms = now_ms + _THROTTLED_MS
            elif not state.partition.is_in_sync_follower and state.partition.log.directory.lacks_room:
                # It would be taken into the in-sync set where it has all, and hold up the next record.
                state.paused_until_ms = now_ms + _NO_ROOM_MS
            else:
                found[key] = (state, state.request(context.config.max_bytes))
        return found

    async def _wait_for_work(self) -> None:
        """Until a partition comes, or a pause is over."""
        self._changed.clear()
        pause_ms = self._until_a_pause_ends_ms()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if pause_ms is None else pause_ms / 1000):
                await self._changed.wait()

    def _until_a_pause_ends_ms(self) -> int | None:
        now_ms = self._context.now_ms()
        pauses = [
            state.paused_until_ms - now_ms
            for state in self._partitions.values()
            if state.paused_until_ms > now_ms
        ]
        return min(pauses, default=None)

    async def _fetch(self, wanted: dict[Key, tuple[PartitionFetchState, FetchPartition]]) -> FetchResponse:
        context = self._context
        config = context.config
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=context.broker_id, replica_epoch=context.broker_epoch()),
            max_wait_ms=min(config.wait_max_ms, self._until_a_pause_ends_ms() or config.wait_max_ms),
            min_bytes=config.min_bytes,
            max_bytes=config.response_max_bytes,
        )
        self._session.fill(request, {key: asked for key, (_, asked) in wanted.items()})
        self._asking, self._hung_up = True, False
        try:
            return await self._ask(request, FETCH_VERSION, FetchResponse, config.wait_max_ms)
        finally:
            self._asking = False

    async def _ask(self, request: Request, version: int, kind: type[R], wait_ms: int = 0) -> R:
        response = await self._leader.ask(request, version, self._context.config.socket_timeout_ms + wait_ms)
        assert isinstance(response, kind)
        return response

    # What to do with the answer

    async def _take(
        self, key: Key, wanted: dict[Key, tuple[PartitionFetchState, FetchPartition]], answer: PartitionData
    ) -> None:
        state, asked = wanted.get(key, (None, None))
        if state is None or asked is None or not self._is_followed(key, state):
            self._session.forget()
            return
        context = self._context
        if answer.records and context.is_throttled(state.partition):
            context.quota.record(len(answer.records))
        try:
            then = state.take(asked.fetch_offset, answer, context.clock.wall_ms())
            if then is AfterFetch.FETCH_OFFSETS:
                then = await self._find_start(key, state)
        except KafkaError as error:
            if not state.partition.log.directory.is_online:
                del self._partitions[key]
                context.failed(state.partition.topic_partition, error)
                return
            # Room or file handles ran out, of which the directory has told. There may be some again soon.
            _log.info("%s: its log could not take what came: %s", state, error.message)
            then = AfterFetch.PAUSE
        except Exception:
            _log.exception("%s: an answer of its leader could not be taken", state)
            then = AfterFetch.PAUSE
        if then is AfterFetch.FETCH_IN_NEW_SESSION or (
            then is AfterFetch.PAUSE and answer.error_code == ErrorCode.NONE
        ):
            # In this session the leader tells its high watermark only once, and nobody has heard it.
            self._session.forget()
        if then is AfterFetch.PAUSE:
            state.pause(context.now_ms(), context.config.backoff_ms)
        elif then is AfterFetch.STOP:
            self._partitions.pop(key, None)
        else:
            state.goes_on()

    def _is_followed(self, key: Key, state: PartitionFetchState) -> bool:
        return self._partitions.get(key) is state and state.is_current

    async def _find_start(self, key: Key, state: PartitionFetchState) -> AfterFetch:
        """Ask where the leader's log begins and ends, and begin again within it."""
        try:
            end = await self._offset(state, _LATEST)
            start = await self._offset(state, _EARLIEST_LOCAL)
        except (OSError, KafkaError) as error:
            _log.info("broker %d did not tell the bounds of its log: %s", self.leader_id, error)
            return AfterFetch.PAUSE
        if end is None or start is None:
            return AfterFetch.PAUSE
        if self._is_followed(key, state):
            state.start_within(start, end)
        return AfterFetch.FETCH

    async def _offset(self, state: PartitionFetchState, timestamp: int) -> int | None:
        """An offset of the leader's log; None if it refuses to tell."""
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
        response = await self._ask(request, _LIST_OFFSETS_VERSION, ListOffsetsResponse)
        for topic in response.topics:
            for partition in topic.partitions:
                if partition.error_code == ErrorCode.NONE and partition.offset >= 0:
                    return partition.offset
        return None

    def _pause(self, wanted: dict[Key, tuple[PartitionFetchState, FetchPartition]]) -> None:
        context = self._context
        now_ms = context.now_ms()
        for state, _ in wanted.values():
            state.pause(now_ms, context.config.backoff_ms)
