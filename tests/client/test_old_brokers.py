"""A broker of Kafka 2.1, the oldest that Apache Kafka's own clients of today still speak to.

Brokers that tests play announce exactly the versions that 2.1 had, and refuse every other; so whatever a
client says to them was understood in 2018.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ottla.client.admin import Admin
from ottla.client.consumer import CommittedOffset, Consumer, TopicPartition
from ottla.client.producer import Producer
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, PartitionData
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from ottla.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from ottla.records.batch import read_records
from tests.support.fake_brokers import TOPIC, FakeCluster, FakePartition, batch, fetched, produced

KAFKA_2_1 = {
    0: (0, 7), 1: (0, 10), 2: (0, 4), 3: (0, 7), 8: (0, 6), 9: (0, 5), 10: (0, 2), 11: (0, 3), 12: (0, 2),
    13: (0, 2), 14: (0, 2), 15: (0, 2), 16: (0, 2), 17: (0, 1), 18: (0, 2), 19: (0, 3), 20: (0, 3),
    21: (0, 1), 22: (0, 1), 23: (0, 2), 24: (0, 1), 25: (0, 1), 26: (0, 1), 28: (0, 2), 32: (0, 2),
    33: (0, 1), 37: (0, 1), 38: (0, 1),
}  # fmt: skip


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    partitions = [FakePartition(end=5), FakePartition(end=5)]
    async with FakeCluster(2, partitions, versions=KAFKA_2_1) as cluster:

        def fetch(node_id: int, request: FetchRequest) -> FetchResponse:
            def of(asked: FetchPartition) -> PartitionData:
                data = PartitionData(partition_index=asked.partition, high_watermark=5, last_stable_offset=5)
                if asked.fetch_offset < 5:
                    data.records = batch(asked.fetch_offset, 5 - asked.fetch_offset, epoch=0)
                return data

            return fetched(request, of)

        cluster.on(FetchRequest, fetch)
        cluster.on(ProduceRequest, lambda _, request: produced(request))
        yield cluster


async def test_a_producer_sends_by_name_and_idempotently(cluster: FakeCluster) -> None:
    async with Producer(cluster.servers, linger_ms=0) as producer:
        assert (await producer.send(TOPIC, b"x", key=b"k", headers=[("h", b"1")], partition=1)).offset == 42
    ((_, request),) = cluster.asked(ProduceRequest)
    assert request.topic_data[0].name == TOPIC
    (record,) = read_records(request.topic_data[0].partition_data[0].records or b"")
    assert (record.key, record.value, record.headers) == (b"k", b"x", (("h", b"1"),))


async def test_zstd_is_as_old_as_they_are(cluster: FakeCluster) -> None:
    async with Producer(cluster.servers, linger_ms=0, compression_type="zstd") as producer:
        assert (await producer.send(TOPIC, b"x" * 1000, partition=0)).offset == 42


async def test_a_consumer_reads_what_it_was_assigned(cluster: FakeCluster) -> None:
    async with Consumer(
        cluster.servers, auto_offset_reset="earliest", isolation_level="read_committed", fetch_max_wait_ms=10
    ) as consumer:
        consumer.assign([(TOPIC, 0), (TOPIC, 1)])
        offsets: list[int] = []
        async with asyncio.timeout(60):
            while len(offsets) < 10:
                offsets += [record.offset for record in await consumer.poll()]
    assert sorted(offsets) == sorted([*range(5)] * 2)


async def test_a_delegation_token_is_for_who_asks_as_they_know_no_owner(cluster: FakeCluster) -> None:
    cluster.on(
        CreateDelegationTokenRequest,
        lambda _, request: CreateDelegationTokenResponse(
            principal_type="User", principal_name="alice", token_id="id", hmac=b"secret"
        ),
    )
    async with Admin(cluster.servers) as admin:
        token = await admin.tokens.create(renewers=["User:bob"])
        assert (token.owner, token.requester) == ("User:alice", "User:alice")
        with pytest.raises(KafkaError, match="has no owner_principal_type"):
            await admin.tokens.create(owner="User:carol")


async def test_a_group_of_one_joins_and_commits(cluster: FakeCluster) -> None:
    committed: dict[int, int] = {0: 2}

    def join(node_id: int, request: JoinGroupRequest) -> JoinGroupResponse:
        member = JoinGroupResponseMember(member_id="m", metadata=request.protocols[0].metadata)
        return JoinGroupResponse(
            generation_id=1,
            protocol_name=request.protocols[0].name,
            leader="m",
            member_id="m",
            members=[member],
        )

    def sync(node_id: int, request: SyncGroupRequest) -> SyncGroupResponse:
        return SyncGroupResponse(assignment=request.assignments[0].assignment)

    def fetch_offsets(node_id: int, request: OffsetFetchRequest) -> OffsetFetchResponse:
        partitions = [
            OffsetFetchResponsePartition(
                partition_index=index, committed_offset=committed.get(index, -1), metadata=""
            )
            for index in (request.topics or [])[0].partition_indexes
        ]
        return OffsetFetchResponse(topics=[OffsetFetchResponseTopic(name=TOPIC, partitions=partitions)])

    def commit(node_id: int, request: OffsetCommitRequest) -> OffsetCommitResponse:
        assert (request.generation_id_or_member_epoch, request.member_id) == (1, "m")
        for p in request.topics[0].partitions:
            committed[p.partition_index] = p.committed_offset
        done = [OffsetCommitResponsePartition(partition_index=p) for p in committed]
        return OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name=TOPIC, partitions=done)])

    cluster.on(JoinGroupRequest, join)
    cluster.on(SyncGroupRequest, sync)
    cluster.on(HeartbeatRequest, lambda *_: HeartbeatResponse())
    cluster.on(LeaveGroupRequest, lambda *_: LeaveGroupResponse())
    cluster.on(OffsetFetchRequest, fetch_offsets)
    cluster.on(OffsetCommitRequest, commit)
    settings = {"auto_offset_reset": "earliest", "heartbeat_interval_ms": 10, "fetch_max_wait_ms": 10}
    async with Consumer(cluster.servers, group_id="g", **settings) as consumer:
        consumer.subscribe(TOPIC)
        found: set[tuple[int, int]] = set()
        async with asyncio.timeout(60):
            while len(found) < 8 or not cluster.asked(HeartbeatRequest):
                found |= {(record.partition, record.offset) for record in await consumer.poll(timeout_ms=20)}
        assert found == {(0, n) for n in range(2, 5)} | {(1, n) for n in range(5)}
        committed_now = await consumer.committed([TopicPartition(TOPIC, 0)])
        assert committed_now == {TopicPartition(TOPIC, 0): CommittedOffset(2)}
    assert committed == {0: 5, 1: 5}
    assert cluster.asked(LeaveGroupRequest)


async def poll_for_ever(consumer: Consumer[bytes, bytes]) -> None:
    async with asyncio.timeout(60):
        while True:
            await consumer.poll(timeout_ms=20)


async def test_what_came_later_is_refused_with_what_each_side_has(cluster: FakeCluster) -> None:
    async with Admin(cluster.servers) as admin:
        assert (await admin.offsets.end(TOPIC)) == {0: 5, 1: 5}
        with pytest.raises(KafkaError, match="DescribeCluster"):
            await admin.cluster.describe()
    async with Consumer(cluster.servers, group_id="g", group_protocol="consumer") as consumer:
        consumer.subscribe(TOPIC)
        with pytest.raises(KafkaError, match="ConsumerGroupHeartbeat"):
            await poll_for_ever(consumer)
