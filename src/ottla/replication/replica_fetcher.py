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
from ottla.replication.fetch_session import FollowersSession, Key
from ottla.replication.follower_partition import Following, Next
from ottla.replication.partition import Partition
from ottla.replication.replication_quota import ReplicationQuota, is_throttled
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


class Leader(Protocol):
    """The way to one broker: OSError if it cannot be reached or does not answer in time."""

    async def ask(self, request: Request, newest_version: int, timeout_ms: int) -> Response: ...

    def hang_up(self) -> None:
        """Have the question under way fail, as nobody waits for its answer any more."""


@dataclass(frozen=True, slots=True)
class FetcherConfig:
    """The settings of the same names, as `replica.fetch.wait.max.ms`."""

    wait_max_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 1024 * 1024
    response_max_bytes: int = 10 * 1024 * 1024
    backoff_ms: int = 1000
    socket_timeout_ms: int = 30_000


@dataclass(frozen=True, slots=True)
class Follower:
    """The broker that follows, with what all of its fetchers share."""

    broker_id: int
    broker_epoch: Callable[[], int]
    clock: Clock
    config: FetcherConfig
    quota: ReplicationQuota
    # Told of partitions whose directory went offline; they are no longer followed.
    failed: Callable[[TopicPartition, KafkaError], None]

    def now_ms(self) -> int:
        """For pauses; it never goes back."""
        return self.clock.monotonic_ns() // 1_000_000

    def is_throttled(self, partition: Partition) -> bool:
        replicas = partition.log.config.follower_replication_throttled_replicas
        return is_throttled(replicas, partition.topic_partition.partition, self.broker_id)


class Fetcher:
    """Add and remove partitions; `run` is the loop, for a task of its own."""

    def __init__(self, leader_id: int, leader: Leader, follower: Follower) -> None:
        self.leader_id: Final = leader_id
        self._leader: Final = leader
        self._follower: Final = follower
        self._followed: dict[Key, Following] = {}
        self._session: Final = FollowersSession()
        self._changed: Final = asyncio.Event()
        self._asking = False
        self._hung_up = False
        self._hung_up_ms = -_HANG_UP_EVERY_MS

    def __len__(self) -> int:
        return len(self._followed)

    def add(self, following: Following) -> None:
        """Follow a partition from now on. A fetch that waits at the leader for news of others is given up:
        after an election, whoever writes with acks=all would wait for it to end.
        """
        partition = following.partition
        self._followed[partition.topic_id, partition.topic_partition.partition] = following
        self._changed.set()
        now_ms = self._follower.now_ms()
        if self._asking and not self._hung_up and now_ms - self._hung_up_ms >= _HANG_UP_EVERY_MS:
            self._hung_up, self._hung_up_ms = True, now_ms
            self._leader.hang_up()

    def remove(self, topic_id: bytes, index: int) -> None:
        self._followed.pop((topic_id, index), None)

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

    def _ready(self) -> dict[Key, tuple[Following, FetchPartition]]:
        follower = self._follower
        now_ms = follower.now_ms()
        held_back = follower.quota.is_exceeded
        found = {}
        for key, following in list(self._followed.items()):
            if not following.is_current:
                del self._followed[key]
            elif following.paused_until_ms > now_ms:
                continue
            elif held_back and not following.has_caught_up and follower.is_throttled(following.partition):
                following.paused_until_ms = now_ms + _THROTTLED_MS
            elif not following.partition.follows_in_sync and following.partition.log.directory.lacks_room:
                # It would be taken into the in-sync set where it has all, and hold up the next record.
                following.paused_until_ms = now_ms + _NO_ROOM_MS
            else:
                found[key] = (following, following.request(follower.config.max_bytes))
        return found

    async def _wait_for_work(self) -> None:
        """Until a partition comes, or a pause is over."""
        self._changed.clear()
        pause_ms = self._until_a_pause_ends_ms()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if pause_ms is None else pause_ms / 1000):
                await self._changed.wait()

    def _until_a_pause_ends_ms(self) -> int | None:
        now_ms = self._follower.now_ms()
        pauses = [
            following.paused_until_ms - now_ms
            for following in self._followed.values()
            if following.paused_until_ms > now_ms
        ]
        return min(pauses, default=None)

    async def _fetch(self, wanted: dict[Key, tuple[Following, FetchPartition]]) -> FetchResponse:
        follower = self._follower
        config = follower.config
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=follower.broker_id, replica_epoch=follower.broker_epoch()),
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
        response = await self._leader.ask(request, version, self._follower.config.socket_timeout_ms + wait_ms)
        assert isinstance(response, kind)
        return response

    # What to do with the answer

    async def _take(
        self, key: Key, wanted: dict[Key, tuple[Following, FetchPartition]], answer: PartitionData
    ) -> None:
        following, asked = wanted.get(key, (None, None))
        if following is None or asked is None or not self._is_followed(key, following):
            self._session.forget()
            return
        follower = self._follower
        if answer.records and follower.is_throttled(following.partition):
            follower.quota.record(len(answer.records))
        try:
            then = following.take(asked.fetch_offset, answer, follower.clock.wall_ms())
            if then is Next.FIND_START:
                then = await self._find_start(key, following)
        except KafkaError as error:
            if not following.partition.log.directory.is_online:
                del self._followed[key]
                follower.failed(following.partition.topic_partition, error)
                return
            # Room or file handles ran out, of which the directory has told. There may be some again soon.
            _log.info("%s: its log could not take what came: %s", following, error.message)
            then = Next.PAUSE
        except Exception:
            _log.exception("%s: an answer of its leader could not be taken", following)
            then = Next.PAUSE
        if then is Next.FETCH_ANEW or (then is Next.PAUSE and answer.error_code == ErrorCode.NONE):
            # In this session the leader tells its high watermark only once, and nobody has heard it.
            self._session.forget()
        if then is Next.PAUSE:
            following.pause(follower.now_ms(), follower.config.backoff_ms)
        elif then is Next.STOP:
            self._followed.pop(key, None)
        else:
            following.goes_on()

    def _is_followed(self, key: Key, following: Following) -> bool:
        return self._followed.get(key) is following and following.is_current

    async def _find_start(self, key: Key, following: Following) -> Next:
        """Ask where the leader's log begins and ends, and begin again within it."""
        try:
            end = await self._offset(following, _LATEST)
            start = await self._offset(following, _EARLIEST_LOCAL)
        except (OSError, KafkaError) as error:
            _log.info("broker %d did not tell the bounds of its log: %s", self.leader_id, error)
            return Next.PAUSE
        if end is None or start is None:
            return Next.PAUSE
        if self._is_followed(key, following):
            following.start_within(start, end)
        return Next.FETCH

    async def _offset(self, following: Following, timestamp: int) -> int | None:
        """An offset of the leader's log; None if it refuses to tell."""
        tp = following.partition.topic_partition
        request = ListOffsetsRequest(
            replica_id=self._follower.broker_id,
            topics=[
                ListOffsetsTopic(
                    name=tp.topic,
                    partitions=[
                        ListOffsetsPartition(
                            partition_index=tp.partition,
                            current_leader_epoch=following.leader_epoch,
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

    def _pause(self, wanted: dict[Key, tuple[Following, FetchPartition]]) -> None:
        follower = self._follower
        now_ms = follower.now_ms()
        for following, _ in wanted.values():
            following.pause(now_ms, follower.config.backoff_ms)
