"""Minimal members of share groups that fetch and acknowledge: connections, and no client library.

A client library spends far more on a record than the broker does, and a thousand of them do not fit beside
it. These members speak the protocol in one thread: they join, fetch, and accept with each fetch what they
got before.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Coroutine
from typing import Any, TypeVar

from bench.brokers import Broker
from bench.members import BEAT_S, NOT_YET, Member
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import share_acknowledge
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.protocol.messages.share_acknowledge import (
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
)
from ottla.protocol.messages.share_fetch import (
    AcknowledgementBatch,
    FetchPartition,
    FetchTopic,
    ShareFetchRequest,
    ShareFetchResponse,
)
from ottla.protocol.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

GROUP_RESOURCE = 32
ACCEPT = 1
MAX_WAIT_MS = 500
RUN_S = 300.0

T = TypeVar("T")

Ranges = list[tuple[int, int]]
"""Acquired offsets, first and last included."""


class ShareMember:
    """A member on a connection of its own; its heartbeats go over `coordinator`, which it may share."""

    def __init__(self, group: str, name: str, coordinator: Member, in_turn: asyncio.Lock) -> None:
        self._group = group
        self._name = name
        self._coordinator = coordinator
        self._in_turn = in_turn
        self._connection = Member()
        self._topic_id = b""
        self._session_epoch = 0
        self._member_epoch = 0
        self.interval_s = BEAT_S

    async def join(self, bootstrap: str, topic: str) -> None:
        """Join the group, and return once the first partition of the topic is assigned."""
        await self._connection.connect(bootstrap)
        topics: list[str] | None = [topic]
        while not self._topic_id:
            await self.beat(topics)
            topics = None if self._member_epoch else topics
            if not self._topic_id:
                await asyncio.sleep(self.interval_s)

    async def beat(self, topics: list[str] | None = None) -> None:
        beat = ShareGroupHeartbeatRequest(
            group_id=self._group,
            member_id=self._name,
            member_epoch=self._member_epoch,
            subscribed_topic_names=topics,
        )
        async with self._in_turn:
            answer = await self._coordinator.ask(beat, 1, ShareGroupHeartbeatResponse)
        if answer.error_code in NOT_YET:
            return
        assert answer.error_code == 0, ErrorCode(answer.error_code)
        self._member_epoch = answer.member_epoch
        self.interval_s = answer.heartbeat_interval_ms / 1000
        if answer.assignment is not None and answer.assignment.topic_partitions:
            self._topic_id = bytes(answer.assignment.topic_partitions[0].topic_id)

    async def keep_alive(self) -> None:
        while True:
            await asyncio.sleep(self.interval_s)
            await self.beat()

    async def fetch(self, records: int, accepted: Ranges) -> Ranges:
        """Accept what was acquired before, and acquire about so many records."""
        partition = FetchPartition(
            partition_index=0,
            acknowledgement_batches=[
                AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=[ACCEPT])
                for first, last in accepted
            ],
        )
        is_named = accepted or self._session_epoch == 0
        request = ShareFetchRequest(
            group_id=self._group,
            member_id=self._name,
            share_session_epoch=self._session_epoch,
            max_wait_ms=MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=1 << 20,
            max_records=records,
            batch_size=records,
            topics=[FetchTopic(topic_id=self._topic_id, partitions=[partition])] if is_named else [],
        )
        answer = await self._connection.ask(request, 1, ShareFetchResponse)
        assert answer.error_code == 0, ErrorCode(answer.error_code)
        self._session_epoch += 1
        acquired: Ranges = []
        for topic in answer.responses:
            for part in topic.partitions:
                assert part.acknowledge_error_code == 0, part.acknowledge_error_message
                if part.error_code not in NOT_YET:
                    assert part.error_code == 0, ErrorCode(part.error_code)
                acquired += [(each.first_offset, each.last_offset) for each in part.acquired_records]
        return acquired

    async def accept(self, ranges: Ranges) -> None:
        """Accept what was acquired, without more."""
        if not ranges:
            return
        partition = AcknowledgePartition(
            partition_index=0,
            acknowledgement_batches=[
                share_acknowledge.AcknowledgementBatch(
                    first_offset=first, last_offset=last, acknowledge_types=[ACCEPT]
                )
                for first, last in ranges
            ],
        )
        request = ShareAcknowledgeRequest(
            group_id=self._group,
            member_id=self._name,
            share_session_epoch=self._session_epoch,
            topics=[AcknowledgeTopic(topic_id=self._topic_id, partitions=[partition])],
        )
        answer = await self._connection.ask(request, 1, ShareAcknowledgeResponse)
        assert answer.error_code == 0, ErrorCode(answer.error_code)
        self._session_epoch += 1

    def close(self) -> None:
        self._connection.close()


class ShareCrowd:
    """Members of one new group of one broker, in an event loop that runs in a thread of its own."""

    def __init__(self, broker: Broker, group: str, topic: str, members: int) -> None:
        self._bootstrap = broker.bootstrap
        self._group = group
        self._topic = topic
        self._coordinator = Member()
        self._loop = asyncio.new_event_loop()
        in_turn = asyncio.Lock()
        self.members = [
            ShareMember(group, f"{group}-{number}", self._coordinator, in_turn) for number in range(members)
        ]
        self._beats: list[asyncio.Task[None]] = []
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._run(self._join())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(RUN_S)

    async def _join(self) -> None:
        """Have all members join a group that begins with the first record of the topic."""
        await self._coordinator.connect(self._bootstrap)
        await self._coordinator.find_coordinator(self._group)
        earliest = AlterableConfig(name="share.auto.offset.reset", config_operation=0, value="earliest")
        resource = AlterConfigsResource(
            resource_type=GROUP_RESOURCE, resource_name=self._group, configs=[earliest]
        )
        request = IncrementalAlterConfigsRequest(resources=[resource])
        altered = await self._coordinator.ask(request, 1, IncrementalAlterConfigsResponse)
        assert altered.responses[0].error_code == 0, altered
        await asyncio.gather(*(member.join(self._bootstrap, self._topic) for member in self.members))
        self._beats = [asyncio.create_task(member.keep_alive()) for member in self.members]

    def read(self, count: int, at_a_time: int) -> float:
        """Have all members read until there were `count` records, each a few at a time; records a second."""
        return self._run(self._read(count, at_a_time))

    async def _read(self, count: int, at_a_time: int) -> float:
        left = count
        begin = end = time.perf_counter()

        async def life(member: ShareMember) -> None:
            nonlocal left, end
            held: Ranges = []
            while left > 0:
                held = await member.fetch(at_a_time, held)
                if left > 0 >= left - _size(held):
                    end = time.perf_counter()
                left -= _size(held)
            await member.accept(held)

        await asyncio.gather(*(life(member) for member in self.members))
        return count / (end - begin)

    def hold(self, count: int, at_a_time: int, in_flight: int) -> float:
        """Have a member read records a few at a time, and accept them once it holds `in_flight` of them."""
        return self._run(self._hold(count, at_a_time, in_flight))

    async def _hold(self, count: int, at_a_time: int, in_flight: int) -> float:
        (member,) = self.members
        held: deque[tuple[int, int]] = deque()
        holds = read = 0
        begin: float | None = None
        while read < count:
            accepted = []
            while holds > in_flight - at_a_time:
                begin = begin or time.perf_counter()
                accepted.append(held.popleft())
                holds -= _size(accepted[-1:])
            more = await member.fetch(at_a_time, accepted)
            held += more
            holds += _size(more)
            read += _size(more) if begin is not None else 0
        assert begin is not None
        return read / (time.perf_counter() - begin)

    def close(self) -> None:
        async def end() -> None:
            for beat in self._beats:
                beat.cancel()
            await asyncio.gather(*self._beats, return_exceptions=True)
            self._coordinator.close()
            for member in self.members:
                member.close()

        self._run(end())
        self._loop.call_soon_threadsafe(self._loop.stop)


def _size(ranges: Ranges) -> int:
    return sum(last - first + 1 for first, last in ranges)
