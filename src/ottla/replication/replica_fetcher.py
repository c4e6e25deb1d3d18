"""Fetch from one leader: one request at a time for all partitions that this broker follows there.

The loop is Kafka's `AbstractFetcherThread` and `ReplicaFetcherThread` in one. It sends a fetch, processes the
response and fetches again. The leader delays its response while there is nothing new, so an idle partition
costs little. A partition that cannot go on at the moment pauses, up to `replica.fetch.backoff.ms`, while the
others go on; if the leader cannot be reached, all of them pause. Invariant: a response is processed only in
the leader epoch of its request.
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
# A fetch under way is not aborted more often than this, so that large responses get through in the end.
_DISCONNECT_EVERY_MS: Final = 1_000
_THROTTLED_MS: Final = 200
_NO_ROOM_MS: Final = 1_000
_SESSION_LOST: Final = frozenset(
    (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH)
)

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


@dataclass(frozen=True, slots=True)
class ReplicaFetcherContext:
    """The parts and settings that all fetchers of this broker share."""

    broker_id: int
    broker_epoch: Callable[[], int]
    clock: Clock
    config: ReplicaFetcherConfig
    quota: ReplicationQuotaManager
    # Called for a partition whose directory went offline; it is no longer fetched.
    on_failure: Callable[[TopicPartition, Exception], None]

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
        self._changed: Final = asyncio.Event()
        self._fetching = False
        self._disconnected = False
        self._disconnected_ms = -_DISCONNECT_EVERY_MS

    def __len__(self) -> int:
        return len(self._partitions)

    def add(self, state: PartitionFetchState) -> None:
        """Fetch a partition from now on. A fetch that waits at the leader for other partitions is aborted:
        after an election, a produce request with acks=all would have to wait for its end.
        """
        partition = state.partition
        self._partitions[partition.topic_id, partition.topic_partition.partition] = state
        self._changed.set()
        now_ms = self._context.now_ms()
        if (
            self._fetching
            and not self._disconnected
            and now_ms - self._disconnected_ms >= _DISCONNECT_EVERY_MS
        ):
            self._disconnected, self._disconnected_ms = True, now_ms
            self._leader.disconnect()

    def remove(self, topic_id: bytes, index: int) -> None:
        self._partitions.pop((topic_id, index), None)

    async def run(self) -> None:
        """Fetch until the task is cancelled. An error of this code ends it; it may be called again."""
        self._session.reset()
        while True:
            wanted = self._partitions_to_fetch()
            if not wanted:
                await self._wait_for_work()
                continue
            try:
                response = await self._fetch(wanted)
            except (OSError, KafkaError) as error:
                self._session.reset()
                if not self._disconnected:
                    _log.info("cannot fetch from broker %d: %s", self.leader_id, error)
                    self._pause_all(wanted)
                continue
            if not self._session.handle_response(response):
                if response.error_code not in _SESSION_LOST:
                    code = ErrorCode.of(response.error_code).name
                    _log.info("broker %d answers a fetch with %s", self.leader_id, code)
                    self._pause_all(wanted)
                continue
            for topic in response.responses:
                for answer in topic.partitions:
                    await self._process_partition_data(
                        (bytes(topic.topic_id), answer.partition_index), wanted, answer
                    )

    # Requests

    def _partitions_to_fetch(self) -> dict[Key, tuple[PartitionFetchState, FetchPartition]]:
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
                # A replica that caught up would join the ISR and then hold up the next record.
                state.paused_until_ms = now_ms + _NO_ROOM_MS
            else:
                try:
                    found[key] = (state, state.fetch_request(context.config.max_bytes))
                except Exception as error:
                    self._on_partition_error(key, state, "the log could not be read", error)
        return found

    async def _wait_for_work(self) -> None:
        """Wait until a partition is added, or a pause ends."""
        self._changed.clear()
        pause_ms = self._next_pause_end_ms()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if pause_ms is None else pause_ms / 1000):
                await self._changed.wait()

    def _next_pause_end_ms(self) -> int | None:
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
            max_wait_ms=min(config.wait_max_ms, self._next_pause_end_ms() or config.wait_max_ms),
            min_bytes=config.min_bytes,
            max_bytes=config.response_max_bytes,
        )
        self._session.build(request, {key: asked for key, (_, asked) in wanted.items()})
        self._fetching, self._disconnected = True, False
        try:
            return await self._send(request, FETCH_VERSION, FetchResponse, config.wait_max_ms)
        finally:
            self._fetching = False

    async def _send(self, request: Request, version: int, kind: type[R], wait_ms: int = 0) -> R:
        response = await self._leader.send_request(
            request, version, self._context.config.socket_timeout_ms + wait_ms
        )
        assert isinstance(response, kind)
        return response

    # Responses

    async def _process_partition_data(
        self, key: Key, wanted: dict[Key, tuple[PartitionFetchState, FetchPartition]], answer: PartitionData
    ) -> None:
        state, asked = wanted.get(key, (None, None))
        if state is None or asked is None or not self._is_assigned(key, state):
            self._session.reset()
            return
        context = self._context
        if answer.records and context.is_throttled(state.partition):
            context.quota.record(len(answer.records))
        try:
            then = state.process_partition_data(asked.fetch_offset, answer, context.clock.wall_ms())
            if then is AfterFetch.FETCH_OFFSETS:
                then = await self._fetch_offset_and_truncate(key, state)
        except Exception as error:
            self._on_partition_error(key, state, "the leader's response could not be processed", error)
            self._session.reset()
            return
        if then is AfterFetch.FETCH_IN_NEW_SESSION or (
            then is AfterFetch.PAUSE and answer.error_code == ErrorCode.NONE
        ):
            # Within a session the leader sends its high watermark only once, and it was not processed.
            self._session.reset()
        if then is AfterFetch.PAUSE:
            state.pause(context.now_ms(), context.config.backoff_ms)
        elif then is AfterFetch.STOP:
            self._partitions.pop(key, None)
        else:
            state.reset_backoff()

    def _on_partition_error(
        self, key: Key, state: PartitionFetchState, action: str, error: Exception
    ) -> None:
        """Pause one partition whose log raised an error, or give it up if its directory is offline."""
        context = self._context
        directory = state.partition.log.directory
        if isinstance(error, OSError):
            error = directory.io_error(f"replication of {state.partition.topic_partition}", error)
        if not directory.is_online:
            self._partitions.pop(key, None)
            context.on_failure(state.partition.topic_partition, error)
            return
        if state.note_error(error):
            unexpected = None if isinstance(error, KafkaError) else error
            _log.error("%s: %s: %s", state, action, error, exc_info=unexpected)
        state.pause(context.now_ms(), context.config.backoff_ms)

    def _is_assigned(self, key: Key, state: PartitionFetchState) -> bool:
        return self._partitions.get(key) is state and state.is_current

    async def _fetch_offset_and_truncate(self, key: Key, state: PartitionFetchState) -> AfterFetch:
        """Get the bounds of the leader's log, and move the log end into them."""
        try:
            end = await self._fetch_leader_offset(state, _LATEST)
            start = await self._fetch_leader_offset(state, _EARLIEST_LOCAL)
        except (OSError, KafkaError) as error:
            _log.info("broker %d did not answer with the bounds of its log: %s", self.leader_id, error)
            return AfterFetch.PAUSE
        if end is None or start is None:
            return AfterFetch.PAUSE
        if self._is_assigned(key, state):
            state.truncate_to_leader_bounds(start, end)
        return AfterFetch.FETCH

    async def _fetch_leader_offset(self, state: PartitionFetchState, timestamp: int) -> int | None:
        """An offset of the leader's log; None if the leader answers with an error."""
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
        response = await self._send(request, _LIST_OFFSETS_VERSION, ListOffsetsResponse)
        for topic in response.topics:
            for partition in topic.partitions:
                if partition.error_code == ErrorCode.NONE and partition.offset >= 0:
                    return partition.offset
        return None

    def _pause_all(self, wanted: dict[Key, tuple[PartitionFetchState, FetchPartition]]) -> None:
        context = self._context
        now_ms = context.now_ms()
        for state, _ in wanted.values():
            state.pause(now_ms, context.config.backoff_ms)
