"""A broker that answers Fetch requests over partitions on a simulated disk; the test plays its clients."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.replication.partition_harness import batch, log_manager

from ottla.log.config.log_config import LogConfig
from ottla.metadata.image.delta import MetadataDelta
from ottla.metadata.image.image import MetadataImage
from ottla.metadata.records import MetadataRecord
from ottla.node.api.context import RequestContext
from ottla.node.api.handlers import fetch
from ottla.node.fetch.session import FetchSessionCache
from ottla.node.network.request_statistics import NetworkStatistics
from ottla.protocol.api import API
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from ottla.protocol.metadata_records import (
    BrokerEndpoint,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from ottla.protocol.names import TopicPartition
from ottla.replication.partition import LogReadInfo, Partition, PendingPartitionChange
from ottla.replication.replica_manager import ReplicaManager
from ottla.replication.replication_quota_manager import ReplicationQuotaManager
from ottla.runtime.heavy_work import HeavyWork
from ottla.runtime.pool import InlinePool
from ottla.runtime.random import SeededRandom
from ottla.runtime.turns import Turns
from ottla.security.principal import ANONYMOUS
from ottla.sim.clock import SimClock
from ottla.sim.disk import SimDisk

TOPIC = "orders"
TOPIC_ID = b"orders-topic-id!"
VERSION = 17
LISTENER = "PLAINTEXT"
MANY_BYTES = 50_000_000


class FetchHarness:
    """Broker 0, which leads all partitions of the topic; brokers 1 and 2 may follow."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, partitions: int = 3, *, replicas: tuple[int, ...] = (0,)
    ) -> None:
        self.clock = SimClock()
        self.disk = SimDisk(1, clock=self.clock)
        self.logs = log_manager(self.disk)
        self.changes: list[tuple[Partition, PendingPartitionChange]] = []
        self.replicas = ReplicaManager(
            0,
            self.logs,
            lambda topic: LogConfig(),
            submit_change=lambda partition, change: self.changes.append((partition, change)),
        )
        self.image = MetadataImage.EMPTY
        self.fetch_sessions = FetchSessionCache(100, SeededRandom(7), self.clock)
        self.authorizer: Any = None
        self.runtime = SimpleNamespace(clock=self.clock, pool=InlinePool())
        self.heavy_work = HeavyWork(InlinePool())
        self.config = SimpleNamespace(number=lambda name: MANY_BYTES, node_id=0)
        self.network_statistics = NetworkStatistics(None)
        self.endpoints = SimpleNamespace(advertises_nothing=lambda listener: False)
        self.replication = SimpleNamespace(
            selects_nearest=False,
            leader_quota=ReplicationQuotaManager(self.clock),
            is_throttled=lambda partition: False,
        )
        self.connection = SimpleNamespace(
            kept_fetch=None,
            mark_inter_broker=lambda: None,
            principal=ANONYMOUS,
            peer=("127.0.0.1", 1),
        )
        # What may be sent at once, and how often a partition was read.
        self.response_bytes = MANY_BYTES
        self.reads: list[int] = []
        # What requests were counted with, beyond their frames.
        self.decoded: list[int] = []
        self._partitions = partitions
        self._assigned = replicas
        self._count_reads(monkeypatch)

    def _count_reads(self, monkeypatch: pytest.MonkeyPatch) -> None:
        read = Partition.fetch_records

        def counted(partition: Partition, *args: Any, **options: Any) -> LogReadInfo:
            self.reads.append(partition.topic_partition.partition)
            return read(partition, *args, **options)

        monkeypatch.setattr(Partition, "fetch_records", counted)

    async def start(self) -> None:
        await self.logs.start(lambda topic: LogConfig())
        await self.replicas.start(self.image, self.clock.wall_ms, Turns(self.clock))
        self.write(
            *(self.broker_record(id) for id in (0, 1, 2)),
            TopicRecord(name=TOPIC, topic_id=TOPIC_ID),
            *(self.partition_record(index) for index in range(self._partitions)),
        )

    # Metadata

    def broker_record(self, id: int, *, epoch: int = 5) -> RegisterBrokerRecord:
        return RegisterBrokerRecord(
            broker_id=id,
            broker_epoch=epoch,
            end_points=[BrokerEndpoint(name=LISTENER, host="host", port=9092)],
            rack=f"rack-{id}",
            fenced=False,
        )

    def partition_record(self, index: int, topic_id: bytes = TOPIC_ID) -> PartitionRecord:
        replicas = list(self._assigned)
        return PartitionRecord(
            partition_id=index,
            topic_id=topic_id,
            replicas=replicas,
            isr=replicas,
            leader=0,
            leader_epoch=0,
            partition_epoch=0,
            directories=[bytes(15) + b"\x01"] * len(replicas),
        )

    def change(self, index: int, **fields: Any) -> None:
        self.write(PartitionChangeRecord(partition_id=index, topic_id=TOPIC_ID, **fields))

    def delete_topic(self) -> None:
        self.write(RemoveTopicRecord(topic_id=TOPIC_ID))

    def write(self, *records: MetadataRecord) -> None:
        delta = MetadataDelta(self.image)
        for record in records:
            delta.replay(record)
        self.image = delta.apply(self.image.provenance)
        # In one turn, and with a pool that does not wait.
        turns = Turns(self.clock, check_every=1_000_000)
        with pytest.raises(StopIteration):
            self.replicas.apply_delta(delta, self.image, self.clock.wall_ms, turns).send(None)

    # Partitions

    def partition(self, index: int) -> Partition:
        return self.replicas.partition(TopicPartition(TOPIC, index))

    def produce(self, index: int, count: int = 1, *, value: bytes = b"v") -> None:
        now_ms = self.clock.wall_ms()
        self.partition(index).append_records_to_leader(batch(count, now_ms, value), now_ms=now_ms, acks=1)

    def confirm_isr(self) -> None:
        """The controller agrees to the last change."""
        partition, change = self.changes.pop()
        partition.handle_alter_partition_update(
            change, change.isr, change.leader_epoch, change.partition_epoch + 1, self.clock.wall_ms()
        )

    async def shrink_isrs(self) -> None:
        await self.replicas.maybe_shrink_isrs(Turns(self.clock), self.clock.wall_ms())

    # Requests

    def handle(
        self, request: FetchRequest, version: int = VERSION
    ) -> FetchResponse | Awaitable[FetchResponse]:
        services: Any = SimpleNamespace(broker=self, node=self)
        listener: Any = SimpleNamespace(name=LISTENER)
        pending: Any = SimpleNamespace(
            is_turn=True,
            response_bytes=self.response_bytes,
            hold=lambda size: None,
            count_decoded=self.decoded.append,
            connection=self.connection,
        )

        async def turn() -> None:
            pass

        pending.wait_for_turn = turn
        context = RequestContext(services, listener, API[1], version, 1, None, pending)
        return fetch.handle(context, request)

    async def ask(self, request: FetchRequest, version: int = VERSION) -> FetchResponse:
        reply = self.handle(request, version)
        return reply if isinstance(reply, FetchResponse) else await reply


class SessionClient:
    """A fetcher with a session; it knows its epoch and the offsets that it has."""

    def __init__(self, broker: FetchHarness, replica_id: int = -1) -> None:
        self.broker = broker
        self.replica_id = replica_id
        self.broker_epoch = 5
        self.session_id = 0
        self.epoch = 0
        self.isolation_level = 0
        self.rack = ""

    def request(
        self,
        offsets: dict[int, int] | None = None,
        *,
        forget: tuple[int, ...] = (),
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = MANY_BYTES,
        partition_max_bytes: int = 1_000_000,
    ) -> FetchRequest:
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            isolation_level=self.isolation_level,
            session_id=self.session_id,
            session_epoch=self.epoch,
            rack_id=self.rack,
            replica_state=ReplicaState(replica_id=self.replica_id, replica_epoch=self.broker_epoch),
        )
        if offsets:
            request.topics = [
                FetchTopic(
                    topic_id=TOPIC_ID,
                    partitions=[
                        FetchPartition(
                            partition=index,
                            fetch_offset=offset,
                            log_start_offset=0,
                            partition_max_bytes=partition_max_bytes,
                        )
                        for index, offset in offsets.items()
                    ],
                )
            ]
        if forget:
            request.forgotten_topics_data = [ForgottenTopic(topic_id=TOPIC_ID, partitions=list(forget))]
        return request

    def begin(
        self, offsets: dict[int, int] | None = None, **options: Any
    ) -> asyncio.Task[dict[int, PartitionData]]:
        """Send a fetch and let it go on beside the test; the broker has had it when this returns."""
        reply = self.broker.handle(self.request(offsets, **options))
        self.epoch += 1

        async def result() -> dict[int, PartitionData]:
            return self.take(reply if isinstance(reply, FetchResponse) else await reply)

        return asyncio.ensure_future(result())

    async def fetch(self, offsets: dict[int, int] | None = None, **options: Any) -> dict[int, PartitionData]:
        """Fetch; returns the partitions in the response."""
        return await self.begin(offsets, **options)

    async def reads(self, offsets: dict[int, int] | None = None, **options: Any) -> list[int]:
        """Fetch; returns the partitions that the broker read for it."""
        self.broker.reads.clear()
        await self.fetch(offsets, **options)
        return list(self.broker.reads)

    def take(self, response: FetchResponse) -> dict[int, PartitionData]:
        assert response.error_code == 0
        self.session_id = response.session_id
        return {each.partition_index: each for topic in response.responses for each in topic.partitions}


async def settle() -> None:
    """Let everything that is ready to run, run."""
    for _ in range(20):
        await asyncio.sleep(0)
