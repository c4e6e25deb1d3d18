"""A broker that answers ShareFetch and ShareAcknowledge over partitions on a simulated disk; the test plays
the members, and the coordinator that keeps the state of share groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from tests.node.fetch_harness import LISTENER, TOPIC_ID, FetchHarness

from ottla.coordinator.share.persister import (
    InitialState,
    PersisterResult,
    PersisterStateBatch,
    ShareState,
    StateSummary,
    WriteState,
)
from ottla.metadata.features import SHARE_VERSION
from ottla.node.api.context import RequestContext
from ottla.node.api.handlers import share_acknowledge, share_fetch
from ottla.node.network.memory_budget import MemoryPool
from ottla.node.share.share_partition_manager import SharePartitionManager
from ottla.protocol.api import API
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import share_acknowledge as acknowledge_messages
from ottla.protocol.messages import share_fetch as fetch_messages
from ottla.protocol.metadata_records import FeatureLevelRecord
from ottla.protocol.names import TopicIdPartition
from ottla.runtime.clock import Clock, SystemClock
from ottla.runtime.pool import InlinePool

GROUP = "workers"
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4


class MemoryPersister:
    """The state of share partitions, as a coordinator keeps it."""

    def __init__(self) -> None:
        self.states: dict[TopicIdPartition, dict[int, tuple[int, int]]] = {}
        self.starts: dict[TopicIdPartition, int] = {}
        self.error = ErrorCode.NONE
        self.reads = 0
        self.writes: list[WriteState] = []
        # Writes wait while it is cleared.
        self.opened = asyncio.Event()
        self.opened.set()

    async def read_state(
        self, group_id: str, partitions: Mapping[TopicIdPartition, int], /
    ) -> dict[TopicIdPartition, ShareState]:
        self.reads += 1
        await asyncio.sleep(0)
        return {each: self._state(each) for each in partitions}

    def _state(self, partition: TopicIdPartition) -> ShareState:
        if self.error:
            return ShareState(self.error, "as the test wants")
        start = self.starts.get(partition, -1)
        return ShareState(
            start_offset=start,
            batches=tuple(
                PersisterStateBatch(offset, offset, *state)
                for offset, state in sorted(self.states.get(partition, {}).items())
                if offset >= start
            ),
        )

    async def write_state(
        self, group_id: str, partitions: Mapping[TopicIdPartition, WriteState], /
    ) -> dict[TopicIdPartition, PersisterResult]:
        await self.opened.wait()
        if self.error:
            return {each: PersisterResult(self.error, "as the test wants") for each in partitions}
        for partition, write in partitions.items():
            self.writes.append(write)
            self.starts[partition] = max(self.starts.get(partition, -1), write.start_offset)
            for first, last, state, count in write.batches:
                for offset in range(first, last + 1):
                    self.states.setdefault(partition, {})[offset] = (state, count)
        return {each: PersisterResult() for each in partitions}

    async def initialize_state(
        self, group_id: str, partitions: Mapping[TopicIdPartition, InitialState], /
    ) -> dict[TopicIdPartition, PersisterResult]:
        raise NotImplementedError

    async def delete_state(
        self, group_id: str, partitions: Iterable[TopicIdPartition], /
    ) -> dict[TopicIdPartition, PersisterResult]:
        raise NotImplementedError

    async def read_summary(
        self, group_id: str, partitions: Mapping[TopicIdPartition, int], /
    ) -> dict[TopicIdPartition, StateSummary]:
        raise NotImplementedError


class ShareHarness(FetchHarness):
    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        partitions: int = 1,
        *,
        clock: Clock | None = None,
        **options: Any,
    ) -> None:
        super().__init__(monkeypatch, partitions, **options)
        self.runtime = SimpleNamespace(clock=clock or SystemClock(), pool=InlinePool())
        self.numbers = {
            "group.share.max.share.sessions": 2000,
            "group.share.record.lock.duration.ms": 30_000,
            "group.share.delivery.count.limit": 5,
            "group.share.partition.max.record.locks": 2000,
            "fetch.max.bytes": 50_000_000,
        }
        self.persister = MemoryPersister()
        self.memory = MemoryPool()
        self.dead_letter_topics: Any = None
        broker: Any = self
        self.share_partitions = SharePartitionManager(
            broker, lambda: self.persister, self.memory, lambda: self.dead_letter_topics
        )
        self.settings({})

    def settings(self, changes: Mapping[str, int]) -> None:
        self.numbers.update(changes)
        self.config = SimpleNamespace(number=self.numbers.__getitem__, node_id=0)

    async def start(self) -> None:
        await super().start()
        self.write(FeatureLevelRecord(name=SHARE_VERSION, feature_level=1))
        self.persister.starts = {TopicIdPartition(TOPIC_ID, index): 0 for index in range(self._partitions)}

    def member(self, name: str = "member") -> Member:
        return Member(self, name)

    def share(self, index: int = 0) -> Any:
        leader = self.share_partitions.find(GROUP, TopicIdPartition(TOPIC_ID, index))
        assert leader is not None
        return leader.share


class Member:
    """A member of the group with a session on the broker, and a connection of its own."""

    def __init__(self, broker: ShareHarness, name: str) -> None:
        self.broker = broker
        self.name = name
        self.epoch = 0
        self.version = 2
        self.meter: Any = None
        self.connection = SimpleNamespace(
            kept_share_sessions=None,
            mark_inter_broker=lambda: None,
            principal=broker.connection.principal,
            peer=("127.0.0.1", 1),
        )

    def _context(self, key: int) -> RequestContext:
        services: Any = SimpleNamespace(broker=self.broker, node=self.broker)
        listener: Any = SimpleNamespace(name=LISTENER)
        pending: Any = SimpleNamespace(
            is_turn=True, response_bytes=50_000_000, hold=lambda size: None, connection=self.connection
        )
        return RequestContext(services, listener, API[key], self.version, 1, None, pending, self.meter)

    def request(
        self,
        *indexes: int,
        forget: tuple[int, ...] = (),
        acknowledge: Mapping[int, list[tuple[int, int, int]]] | None = None,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        max_records: int = 500,
        mode: int = 0,
        renew: bool = False,
    ) -> fetch_messages.ShareFetchRequest:
        """The next request of the session. The first one names partitions."""
        named = {index: [] for index in indexes} | dict(acknowledge or {})
        request = fetch_messages.ShareFetchRequest(
            group_id=GROUP,
            member_id=self.name,
            share_session_epoch=self.epoch,
            max_wait_ms=0 if renew else max_wait_ms,
            min_bytes=0 if renew else min_bytes,
            max_bytes=0 if renew else 50_000_000,
            max_records=0 if renew else max_records,
            batch_size=0 if renew else max_records,
            share_acquire_mode=mode,
            is_renew_ack=renew,
        )
        if named:
            request.topics = [
                fetch_messages.FetchTopic(
                    topic_id=TOPIC_ID,
                    partitions=[
                        fetch_messages.FetchPartition(
                            partition_index=index,
                            acknowledgement_batches=[
                                fetch_messages.AcknowledgementBatch(
                                    first_offset=first, last_offset=last, acknowledge_types=[type]
                                )
                                for first, last, type in ranges
                            ],
                        )
                        for index, ranges in named.items()
                    ],
                )
            ]
        if forget:
            request.forgotten_topics_data = [
                fetch_messages.ForgottenTopic(topic_id=TOPIC_ID, partitions=list(forget))
            ]
        self.epoch += 1
        return request

    async def fetch(self, *indexes: int, **options: Any) -> dict[int, fetch_messages.PartitionData]:
        """Fetch; return the partitions of the response."""
        return await self.send(self.request(*indexes, **options))

    async def send(
        self, request: fetch_messages.ShareFetchRequest
    ) -> dict[int, fetch_messages.PartitionData]:
        response = await share_fetch.handle(self._context(78), request)
        if response.error_code:
            raise KafkaError(ErrorCode(response.error_code))
        return {each.partition_index: each for topic in response.responses for each in topic.partitions}

    async def take(self, *indexes: int, **options: Any) -> list[tuple[int, int, int]]:
        """Fetch; return the ranges that were acquired of partition 0."""
        data = (await self.fetch(*indexes, **options)).get(0)
        return [] if data is None else ranges_of(data)

    async def acknowledge(
        self, first: int, last: int, *types: int, index: int = 0, renew: bool = False
    ) -> ErrorCode:
        request = acknowledge_messages.ShareAcknowledgeRequest(
            group_id=GROUP,
            member_id=self.name,
            share_session_epoch=self.epoch,
            is_renew_ack=renew,
            topics=[
                acknowledge_messages.AcknowledgeTopic(
                    topic_id=TOPIC_ID,
                    partitions=[
                        acknowledge_messages.AcknowledgePartition(
                            partition_index=index,
                            acknowledgement_batches=[
                                acknowledge_messages.AcknowledgementBatch(
                                    first_offset=first, last_offset=last, acknowledge_types=list(types)
                                )
                            ],
                        )
                    ],
                )
            ],
        )
        if self.epoch >= 0:
            self.epoch += 1
        response = await share_acknowledge.handle(self._context(79), request)
        if response.error_code:
            raise KafkaError(ErrorCode(response.error_code))
        return ErrorCode(response.responses[0].partitions[0].error_code)

    def disconnect(self) -> None:
        kept = self.connection.kept_share_sessions
        if kept is not None:
            kept.close()


def ranges_of(data: fetch_messages.PartitionData) -> list[tuple[int, int, int]]:
    return [(each.first_offset, each.last_offset, each.delivery_count) for each in data.acquired_records]
