"""Follows one leader: one request at a time for all partitions that this broker has from it.

The loop asks, takes the answer apart and asks again; the leader lets a request wait when there is nothing
new, so it costs little when nothing happens and nothing is lost in between. A partition that cannot go on
at the moment pauses for `replica.fetch.backoff.ms` while the others go on; a leader that cannot be reached
makes all of them pause. Invariant: an answer is taken only for the leader epoch that it was asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from ottla.log.files import TopicPartition
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
from ottla.protocol.schema import Request, Response
from ottla.replication.fetch_session import FollowersSession, Key
from ottla.replication.following import Following, Next
from ottla.runtime.clock import Clock

_log = logging.getLogger(__name__)

FETCH_VERSION: Final = 17
_LIST_OFFSETS_VERSION: Final = 8
_LATEST: Final = -1
_EARLIEST_LOCAL: Final = -4

R = TypeVar("R", bound=Response)


class Leader(Protocol):
    """The way to one broker: OSError if it cannot be reached or does not answer in time."""

    async def ask(self, request: Request, newest_version: int, timeout_ms: int) -> Response: ...


@dataclass(frozen=True, slots=True)
class FetcherConfig:
    """The settings of the same names, as `replica.fetch.wait.max.ms`."""

    wait_max_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 1024 * 1024
    response_max_bytes: int = 10 * 1024 * 1024
    backoff_ms: int = 1000
    socket_timeout_ms: int = 30_000


class Fetcher:
    """Add and remove partitions; `run` is the loop, for a task of its own."""

    def __init__(
        self,
        leader_id: int,
        leader: Leader,
        broker_id: int,
        broker_epoch: Callable[[], int],
        clock: Clock,
        config: FetcherConfig,
        *,
        failed: Callable[[TopicPartition, KafkaError], None],
    ) -> None:
        """``failed`` is told of partitions whose log cannot be written; they are no longer followed."""
        self.leader_id: Final = leader_id
        self._leader: Final = leader
        self._broker_id: Final = broker_id
        self._broker_epoch: Final = broker_epoch
        self._clock: Final = clock
        self._config: Final = config
        self._failed: Final = failed
        self._followed: dict[Key, Following] = {}
        self._session: Final = FollowersSession()
        self._changed: Final = asyncio.Event()

    def __len__(self) -> int:
        return len(self._followed)

    def add(self, following: Following) -> None:
        partition = following.partition
        self._followed[partition.topic_id, partition.topic_partition.partition] = following
        self._changed.set()

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
            except OSError as error:
                _log.info("broker %d cannot be fetched from: %s", self.leader_id, error)
                self._session.forget()
                self._pause(wanted)
                continue
            if not self._session.answered(response):
                code = ErrorCode(response.error_code) if response.error_code else None
                if code not in (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH):
                    self._pause(wanted)
                continue
            for topic in response.responses:
                for answer in topic.partitions:
                    await self._take((bytes(topic.topic_id), answer.partition_index), wanted, answer)

    # What to ask

    def _ready(self) -> dict[Key, tuple[Following, FetchPartition]]:
        now = self._clock.wall_ms()
        found = {}
        for key, following in list(self._followed.items()):
            if not following.is_current:
                del self._followed[key]
            elif not now < following.paused_until_ms <= now + self._config.backoff_ms:
                found[key] = (following, following.request(self._config.max_bytes))
        return found

    async def _wait_for_work(self) -> None:
        """Until a partition comes, or a pause is over."""
        self._changed.clear()
        pause = self._config.backoff_ms / 1000 if self._followed else None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._changed.wait()

    async def _fetch(self, wanted: dict[Key, tuple[Following, FetchPartition]]) -> FetchResponse:
        config = self._config
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=self._broker_id, replica_epoch=self._broker_epoch()),
            max_wait_ms=config.wait_max_ms,
            min_bytes=config.min_bytes,
            max_bytes=config.response_max_bytes,
        )
        self._session.fill(request, {key: asked for key, (_, asked) in wanted.items()})
        return await self._ask(request, FETCH_VERSION, FetchResponse, config.wait_max_ms)

    async def _ask(self, request: Request, version: int, kind: type[R], wait_ms: int = 0) -> R:
        response = await self._leader.ask(request, version, self._config.socket_timeout_ms + wait_ms)
        assert isinstance(response, kind)
        return response

    # What to do with the answer

    async def _take(
        self, key: Key, wanted: dict[Key, tuple[Following, FetchPartition]], answer: PartitionData
    ) -> None:
        following, asked = wanted.get(key, (None, None))
        if following is None or asked is None or not self._is_followed(key, following):
            return
        try:
            then = following.take(asked.fetch_offset, answer, self._clock.wall_ms())
            if then is Next.FIND_START:
                then = await self._find_start(key, following)
        except KafkaError as error:
            del self._followed[key]
            self._failed(following.partition.topic_partition, error)
            return
        if then is Next.PAUSE:
            following.paused_until_ms = self._clock.wall_ms() + self._config.backoff_ms
        elif then is Next.STOP:
            self._followed.pop(key, None)

    def _is_followed(self, key: Key, following: Following) -> bool:
        return self._followed.get(key) is following and following.is_current

    async def _find_start(self, key: Key, following: Following) -> Next:
        """Ask where the leader's log begins and ends, and begin again within it."""
        try:
            end = await self._offset(following, _LATEST)
            start = await self._offset(following, _EARLIEST_LOCAL)
        except OSError as error:
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
            replica_id=self._broker_id,
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
        until = self._clock.wall_ms() + self._config.backoff_ms
        for following, _ in wanted.values():
            following.paused_until_ms = until
