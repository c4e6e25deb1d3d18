"""Behaviour of clients that needs several brokers, with fake brokers that only speak the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from ottla.client.admin import Admin
from ottla.client.consumer import Consumer, ConsumerRecord, TopicPartition
from ottla.client.consumer.fetcher import FETCHES_AHEAD
from ottla.client.errors import ConnectionFailed
from ottla.client.network_client import NetworkClient
from ottla.client.producer import Producer
from ottla.client.settings import ConnectionConfig
from ottla.protocol.api import API
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, PartitionData
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from ottla.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from ottla.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ottla.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from ottla.protocol.messages.produce import ProduceRequest, ProduceResponse
from ottla.protocol.schema import Response
from ottla.runtime.runtime import Runtime
from tests.support.fake_brokers import (
    TOPIC,
    TOPIC_ID,
    FakeCluster,
    FakePartition,
    batch,
    fetched,
    offsets_fetched,
    produced,
)
from tests.support.newer_apis import FIRST_OF_KAFKA_4_4

QUICK = {
    "retry_backoff_ms": 5,
    "retry_backoff_max_ms": 20,
    "reconnect_backoff_ms": 5,
    "reconnect_backoff_max_ms": 20,
    "fetch_max_wait_ms": 20,
}
PART = (TOPIC, 0)


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster() as cluster:
        yield cluster


async def read(consumer: Consumer[bytes, bytes], count: int) -> list[ConsumerRecord[bytes, bytes]]:
    records: list[ConsumerRecord[bytes, bytes]] = []
    async with asyncio.timeout(60):
        while len(records) < count:
            records += await consumer.poll(timeout_ms=50)
    return records


async def until_asked(cluster: FakeCluster, node_id: int, consumer: Consumer[bytes, bytes]) -> None:
    """Polls until a broker was asked for records once more."""
    before = len([n for n, _ in cluster.asked(FetchRequest) if n == node_id])
    async with asyncio.timeout(60):
        while len([n for n, _ in cluster.asked(FetchRequest) if n == node_id]) == before:
            await consumer.poll(timeout_ms=20)


class TestTheClosestReplica:
    """The leader names the replica in the consumer's rack, and the consumer reads there."""

    @pytest.fixture
    def lagging(self) -> set[int]:
        """Brokers whose copy of the log ends before what is asked for."""
        return set()

    @pytest.fixture(autouse=True)
    def racks(self, cluster: FakeCluster, lagging: set[int]) -> None:
        cluster.partitions = [FakePartition(leader=1, end=10)]

        def answer(node_id: int, request: FetchRequest) -> FetchResponse:
            def of(asked: FetchPartition) -> PartitionData:
                data = PartitionData(partition_index=0, high_watermark=10, last_stable_offset=10)
                if node_id in lagging:
                    data.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
                elif node_id == 1 and request.rack_id == "near-2" and not lagging and 2 in cluster.ports:
                    data.preferred_read_replica = 2
                elif asked.fetch_offset < 10:
                    data.records = batch(asked.fetch_offset, 5, epoch=0)
                return data

            return fetched(request, of)

        cluster.on(FetchRequest, answer)

    async def test_is_read_from(self, cluster: FakeCluster) -> None:
        async with Consumer(
            cluster.servers, client_rack="near-2", auto_offset_reset="earliest", **QUICK
        ) as c:
            c.assign([PART])
            assert [r.offset for r in await read(c, 10)] == list(range(10))
        where = offsets_fetched(cluster.asked(FetchRequest))
        assert where[0] == (1, 0), "the leader is asked first"
        assert {(2, 0), (2, 5)} <= set(where), "and names the one that is read from"
        assert [offset for node_id, offset in where if node_id == 1] == [0]

    async def test_gives_way_to_the_leader_where_it_lags(
        self, cluster: FakeCluster, lagging: set[int]
    ) -> None:
        async with Consumer(cluster.servers, client_rack="near-2", auto_offset_reset="none", **QUICK) as c:
            c.assign([PART])
            c.seek(PART, 0)
            await until_asked(cluster, 2, c)
            c.seek(PART, 5)
            lagging.add(2)
            assert [r.offset for r in await read(c, 5)] == [5, 6, 7, 8, 9], "no reset, nothing skipped"
        assert (1, 5) in offsets_fetched(cluster.asked(FetchRequest))

    async def test_gives_way_to_the_leader_when_it_is_gone(self, cluster: FakeCluster) -> None:
        async with Consumer(
            cluster.servers, client_rack="near-2", auto_offset_reset="earliest", **QUICK
        ) as c:
            c.assign([PART])
            assert len(await read(c, 10)) == 10
            cluster.stop(2)
            del cluster.ports[2]
            c.seek(PART, 5)
            assert [r.offset for r in await read(c, 5)] == [5, 6, 7, 8, 9]

    async def test_is_requested_again_when_its_time_is_over(self, cluster: FakeCluster) -> None:
        settings = {**QUICK, "metadata_max_age_ms": 50}
        async with Consumer(
            cluster.servers, client_rack="near-2", auto_offset_reset="earliest", **settings
        ) as c:
            c.assign([PART])
            assert len(await read(c, 10)) == 10
            await until_asked(cluster, 1, c)


class TestATruncatedLog:
    """Five of ten records are gone with their leader: the new one's history of epoch 1 ends at offset 5."""

    @pytest.fixture(autouse=True)
    def logs(self, cluster: FakeCluster) -> None:
        cluster.partitions = [FakePartition(leader=1, epoch=1, end=10)]

        def answer(node_id: int, request: FetchRequest) -> FetchResponse:
            def of(asked: FetchPartition) -> PartitionData:
                now = cluster.partitions[0]
                data = PartitionData(partition_index=0, high_watermark=10, last_stable_offset=10)
                if node_id != now.leader:
                    data.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                elif asked.current_leader_epoch != now.epoch:
                    data.error_code = ErrorCode.FENCED_LEADER_EPOCH
                elif asked.fetch_offset < 10:
                    data.records = batch(asked.fetch_offset, 10 - asked.fetch_offset, epoch=now.epoch)
                return data

            return fetched(request, of)

        def ends(node_id: int, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
            end = EpochEndOffset(partition=0, leader_epoch=1, end_offset=5)
            return OffsetForLeaderEpochResponse(
                topics=[OffsetForLeaderTopicResult(topic=TOPIC, partitions=[end])]
            )

        cluster.on(FetchRequest, answer)
        cluster.on(OffsetForLeaderEpochRequest, ends)

    async def test_takes_the_consumer_back_to_where_the_histories_part(self, cluster: FakeCluster) -> None:
        async with Consumer(cluster.servers, auto_offset_reset="earliest", **QUICK) as c:
            c.assign([PART])
            assert [r.offset for r in await read(c, 10)] == list(range(10))
            cluster.partitions[0].leader, cluster.partitions[0].epoch = 2, 2
            again = await read(c, 5)
        assert [(r.offset, r.leader_epoch) for r in again] == [(n, 2) for n in range(5, 10)]
        ((node_id, request),) = cluster.asked(OffsetForLeaderEpochRequest)
        asked = request.topics[0].partitions[0]
        assert (node_id, asked.leader_epoch, asked.current_leader_epoch) == (2, 1, 2)

    async def test_is_not_concluded_from_a_former_leader(self, cluster: FakeCluster) -> None:
        """A position was committed in an epoch that the leader by these metadata has not heard of."""

        def ends(node_id: int, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
            known = EpochEndOffset(partition=0, leader_epoch=2, end_offset=10)
            end = EpochEndOffset(partition=0, leader_epoch=-1, end_offset=-1) if node_id == 1 else known
            return OffsetForLeaderEpochResponse(
                topics=[OffsetForLeaderTopicResult(topic=TOPIC, partitions=[end])]
            )

        cluster.on(OffsetForLeaderEpochRequest, ends)
        async with Consumer(cluster.servers, auto_offset_reset="earliest", **QUICK) as c:
            c.assign([PART])
            c.seek(PART, 7, leader_epoch=2)
            reading = asyncio.ensure_future(read(c, 3))
            asked = len(cluster.asked(MetadataRequest))
            async with asyncio.timeout(60):
                while len(cluster.asked(MetadataRequest)) < asked + 3:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            cluster.partitions[0].leader, cluster.partitions[0].epoch = 2, 2
            assert [r.offset for r in await reading] == [7, 8, 9]

    async def test_is_an_error_where_no_reset_is_wanted(self, cluster: FakeCluster) -> None:
        async with Consumer(cluster.servers, auto_offset_reset="none", **QUICK) as c:
            c.assign([PART])
            c.seek(PART, 0)
            assert len(await read(c, 10)) == 10
            cluster.partitions[0].leader, cluster.partitions[0].epoch = 2, 2
            with pytest.raises(KafkaError, match=r"t-0: the log was truncated.*10.*parts at offset 5"):
                await read(c, 1)
            c.seek(PART, 5)
            assert [r.offset for r in await read(c, 5)] == list(range(5, 10))

    async def test_leaves_a_position_below_the_cut_where_it_is(self, cluster: FakeCluster) -> None:
        async with Consumer(cluster.servers, auto_offset_reset="none", max_poll_records=3, **QUICK) as c:
            c.assign([PART])
            c.seek(PART, 0)
            assert [r.offset for r in await c.poll()] == [0, 1, 2]
            cluster.partitions[0].leader, cluster.partitions[0].epoch = 2, 2
            c.seek(PART, 3, leader_epoch=1)
            assert [r.offset for r in await read(c, 7)] == list(range(3, 10))


async def test_partitions_with_news_do_not_wait_for_those_without(cluster: FakeCluster) -> None:
    """A request for idle partitions alone would be held by the broker, and hold back all others."""
    cluster.partitions = [FakePartition(end=0), FakePartition(end=1_000)]

    def answer(node_id: int, request: FetchRequest) -> FetchResponse:
        def of(asked: FetchPartition) -> PartitionData:
            end = cluster.partitions[asked.partition].end
            data = PartitionData(partition_index=asked.partition, high_watermark=end, last_stable_offset=end)
            if asked.fetch_offset < end:
                data.records = batch(asked.fetch_offset, 10, epoch=0)
            return data

        return fetched(request, of)

    cluster.on(FetchRequest, answer)
    settings = {**QUICK, "fetch_max_wait_ms": 5_000, "auto_offset_reset": "earliest"}
    async with Consumer(cluster.servers, **settings) as c:
        c.assign([(TOPIC, 0), (TOPIC, 1)])
        records = await c.poll(1, timeout_ms=60_000)
        async with asyncio.timeout(60):
            while (
                len(c._fetcher.fetches) < FETCHES_AHEAD
            ):  # partition 1 has all it may have, partition 0 nothing
                await c._fetcher.arrived.wait()
                c._fetcher.arrived.clear()
        records += await read(c, 999)
        assert [r.offset for r in records] == list(range(1_000))
        alone = [
            request
            for _, request in cluster.asked(FetchRequest)
            if [p.partition for topic in request.topics for p in topic.partitions] == [0]
        ]
        assert not alone


async def test_a_batch_may_begin_before_the_offset_that_was_asked_for(cluster: FakeCluster) -> None:
    cluster.partitions = [FakePartition(end=10)]

    def answer(node_id: int, request: FetchRequest) -> FetchResponse:
        def of(asked: FetchPartition) -> PartitionData:
            data = PartitionData(partition_index=0, high_watermark=10, last_stable_offset=10)
            if asked.fetch_offset < 10:
                data.records = batch(0, 10, epoch=0)
            return data

        return fetched(request, of)

    cluster.on(FetchRequest, answer)
    async with Consumer(cluster.servers, auto_offset_reset="none", **QUICK) as c:
        c.assign([PART])
        c.seek(PART, 7)
        assert [r.offset for r in await read(c, 3)] == [7, 8, 9]
        c.seek(PART, 4)
        table = await c.poll_arrow(timeout_ms=60_000)
        assert table["offset"].to_pylist() == [4, 5, 6, 7, 8, 9]
        assert await c.position(PART) == 10


class TestProducing:
    def answering(self, cluster: FakeCluster, code: int, by: int) -> None:
        """Broker `by` refuses with a code, the others take everything at offset 42."""

        def answer(node_id: int, request: ProduceRequest) -> ProduceResponse:
            if node_id != by:
                return produced(request)
            cluster.partitions[0].leader, cluster.partitions[0].epoch = 2, 1
            return produced(request, code=code)

        cluster.on(ProduceRequest, answer)

    @pytest.mark.parametrize(
        "code",
        [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.KAFKA_STORAGE_ERROR],
    )
    async def test_follows_the_leader(self, cluster: FakeCluster, code: ErrorCode) -> None:
        self.answering(cluster, code, by=1)
        settings = {name: value for name, value in QUICK.items() if not name.startswith("fetch")}
        async with Producer(cluster.servers, linger_ms=0, **settings) as producer:
            assert (await producer.send(TOPIC, b"x", partition=0)).offset == 42
        sent = [(node_id, r.topic_data[0].partition_data[0]) for node_id, r in cluster.asked(ProduceRequest)]
        assert (sent[0][0], sent[-1][0]) == (1, 2)
        assert len({bytes(data.records or b"") for _, data in sent}) == 1, "retries are the same batch"

    async def test_a_code_from_the_future_is_an_error_and_no_riddle(self, cluster: FakeCluster) -> None:
        self.answering(cluster, 999, by=1)
        async with Producer(cluster.servers, linger_ms=0) as producer:
            with pytest.raises(KafkaError, match="t-0") as failure:
                await producer.send(TOPIC, b"x", partition=0)
        assert failure.value.code is ErrorCode.UNKNOWN_SERVER_ERROR


class TestQuotas:
    """A broker that answers with a throttle time is left alone for that long."""

    async def test_a_producer_waits(self, cluster: FakeCluster) -> None:
        times: list[float] = []

        def answer(node_id: int, request: ProduceRequest) -> ProduceResponse:
            times.append(asyncio.get_running_loop().time())
            response = produced(request)
            response.throttle_time_ms = 300 if len(times) == 1 else 0
            return response

        cluster.on(ProduceRequest, answer)
        async with Producer(cluster.servers, linger_ms=0) as producer:
            for _ in range(2):
                await producer.send(TOPIC, b"x", partition=0)
        assert times[1] - times[0] >= 0.29

    async def test_a_consumer_waits(self, cluster: FakeCluster) -> None:
        times: list[float] = []

        def answer(node_id: int, request: FetchRequest) -> FetchResponse:
            times.append(asyncio.get_running_loop().time())
            end = 10
            response = fetched(
                request,
                lambda p: PartitionData(
                    partition_index=0,
                    high_watermark=end,
                    last_stable_offset=end,
                    records=batch(p.fetch_offset, 5, epoch=0) if p.fetch_offset < end else None,
                ),
            )
            response.throttle_time_ms = 300 if len(times) == 1 else 0
            return response

        cluster.on(FetchRequest, answer)
        async with Consumer(cluster.servers, auto_offset_reset="earliest", **QUICK) as c:
            c.assign([PART])
            assert len(await read(c, 10)) == 10
        assert times[1] - times[0] >= 0.29


async def test_a_code_from_the_future_does_not_stop_a_consumer(cluster: FakeCluster) -> None:
    """Its meaning is unknown: the client treats it as a passing failure, and retries the partition."""
    asked = 0

    def answer(node_id: int, request: FetchRequest) -> FetchResponse:
        nonlocal asked
        asked += 1
        data = PartitionData(partition_index=0, high_watermark=5, last_stable_offset=5)
        if asked < 3:
            data.error_code = 999
        elif asked == 3:
            data.records = batch(0, 5, epoch=0)
        return fetched(request, lambda p: data)

    cluster.on(FetchRequest, answer)
    async with Consumer(cluster.servers, auto_offset_reset="earliest", **QUICK) as c:
        c.assign([PART])
        assert len(await read(c, 5)) == 5


async def test_a_fetch_that_waits_for_news_holds_nothing_up(cluster: FakeCluster) -> None:
    """A broker answers a connection's requests one after the other."""
    cluster.on(FetchRequest, lambda _, request: fetched(request, lambda p: PartitionData(partition_index=0)))
    cluster.on(
        OffsetCommitRequest,
        lambda _, request: OffsetCommitResponse(
            topics=[
                OffsetCommitResponseTopic(
                    topic_id=topic.topic_id, partitions=[OffsetCommitResponsePartition(partition_index=0)]
                )
                for topic in request.topics
            ]
        ),
    )
    settings = {**QUICK, "fetch_max_wait_ms": 120_000, "group_id": "g", "enable_auto_commit": False}
    async with Consumer(cluster.servers, request_timeout_ms=150_000, **settings) as c, asyncio.timeout(60):
        c.assign([PART])
        c.seek(PART, 0)
        while not cluster.asked(FetchRequest):
            await c.poll(timeout_ms=20)
        await c.commit({PART: 5})
        assert await c.end_offsets([TopicPartition(*PART)]) == {PART: 0}


async def test_commits_follow_the_coordinator(cluster: FakeCluster) -> None:
    def answer(node_id: int, request: OffsetCommitRequest) -> OffsetCommitResponse:
        code = 0 if node_id == 2 else ErrorCode.NOT_COORDINATOR
        cluster.coordinator = 2
        return OffsetCommitResponse(
            topics=[
                OffsetCommitResponseTopic(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partitions=[
                        OffsetCommitResponsePartition(partition_index=p.partition_index, error_code=code)
                        for p in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    cluster.on(OffsetCommitRequest, answer)
    cluster.on(FetchRequest, lambda _, request: fetched(request, lambda p: PartitionData(partition_index=0)))
    async with Consumer(cluster.servers, group_id="g", enable_auto_commit=False, **QUICK) as c:
        c.assign([PART])
        await c.commit({PART: 5})
    nodes = [node_id for node_id, _ in cluster.asked(OffsetCommitRequest)]
    assert (nodes[0], nodes[-1]) == (1, 2)


@pytest.mark.parametrize("error", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS])
async def test_an_assignment_that_a_coordinator_wrote_before_it_moved_is_not_missed(
    cluster: FakeCluster, error: ErrorCode
) -> None:
    cluster.partitions = [FakePartition(leader=1, end=5)]
    refused: list[ConsumerGroupHeartbeatRequest] = []

    def heartbeat(node_id: int, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
        """As Kafka's coordinator: it repeats what it has assigned only for a member that sends all."""
        if request.member_epoch > 0 and not refused:
            refused.append(request)
            return ConsumerGroupHeartbeatResponse(error_code=int(error))
        partitions = [TopicPartitions(topic_id=TOPIC_ID, partitions=[0])] if refused else []
        is_full = (
            request.subscribed_topic_names is not None
            and request.topic_partitions is not None
            and request.rebalance_timeout_ms != -1
        )
        return ConsumerGroupHeartbeatResponse(
            member_id=request.member_id,
            member_epoch=2 if refused else 1,
            heartbeat_interval_ms=20,
            assignment=Assignment(topic_partitions=partitions) if is_full else None,
        )

    def fetch(_: int, request: FetchRequest) -> FetchResponse:
        return fetched(
            request,
            lambda p: PartitionData(
                partition_index=0,
                high_watermark=5,
                last_stable_offset=5,
                records=batch(p.fetch_offset, 5, epoch=0) if p.fetch_offset == 0 else None,
            ),
        )

    cluster.on(ConsumerGroupHeartbeatRequest, heartbeat)
    cluster.on(FetchRequest, fetch)
    settings = {**QUICK, "enable_auto_commit": False, "auto_offset_reset": "earliest"}
    async with Consumer(cluster.servers, group_id="g", group_protocol="consumer", **settings) as c:
        c.subscribe([TOPIC])
        assert len(await read(c, 5)) == 5


async def test_a_list_waits_for_coordinators_that_load(cluster: FakeCluster) -> None:
    loading = int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    asked: list[type] = []

    def groups(node_id: int, request: ListGroupsRequest) -> ListGroupsResponse:
        asked.append(ListGroupsRequest)
        if node_id == 2 and asked.count(ListGroupsRequest) < 4:
            return ListGroupsResponse(error_code=loading)
        return ListGroupsResponse(groups=[ListedGroup(group_id=f"of {node_id}")])

    def transactions(node_id: int, request: ListTransactionsRequest) -> ListTransactionsResponse:
        asked.append(ListTransactionsRequest)
        if node_id == 2 and asked.count(ListTransactionsRequest) < 4:
            return ListTransactionsResponse(error_code=loading)
        state = TransactionState(transactional_id=f"of {node_id}", transaction_state="Empty")
        return ListTransactionsResponse(transaction_states=[state])

    cluster.on(ListGroupsRequest, groups)
    cluster.on(ListTransactionsRequest, transactions)
    async with Admin(cluster.servers, retry_backoff_ms=5, retry_backoff_max_ms=20) as admin:
        assert [each.group_id for each in await admin.groups.list()] == ["of 1", "of 2"]
        assert [each.transactional_id for each in await admin.transactions.list()] == ["of 1", "of 2"]


async def test_a_member_whose_group_is_gone_joins_again(cluster: FakeCluster) -> None:
    """The others' sessions were over, as was its own: the group was deleted, or became a classic one."""
    epochs: list[int] = []

    def heartbeat(_: int, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
        epochs.append(request.member_epoch)
        if request.member_epoch > 0 and epochs.count(0) == 1:
            return ConsumerGroupHeartbeatResponse(error_code=int(ErrorCode.GROUP_ID_NOT_FOUND))
        return ConsumerGroupHeartbeatResponse(
            member_id=request.member_id, member_epoch=1, heartbeat_interval_ms=20
        )

    cluster.on(ConsumerGroupHeartbeatRequest, heartbeat)
    async with Consumer(cluster.servers, group_id="g", group_protocol="consumer", **QUICK) as consumer:
        consumer.subscribe([TOPIC])
        async with asyncio.timeout(60):
            while epochs.count(0) < 2:
                await consumer.poll(timeout_ms=20)


async def test_a_bug_of_the_client_is_raised_by_poll(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.on(FetchRequest, lambda _, r: fetched(r, lambda p: PartitionData(partition_index=0)))

    def broken(*_: object) -> None:
        raise ZeroDivisionError("a fault")

    async with Consumer(cluster.servers, auto_offset_reset="earliest", **QUICK) as c:
        monkeypatch.setattr(c._fetcher, "_add_completed_fetch", broken)
        c.assign([PART])
        with pytest.raises(KafkaError, match=r"t-0: the fetcher has failed: ZeroDivisionError"):
            await c.poll(timeout_ms=60_000)


class TestACoordinatorThatSaysNothing:
    """One that lost its power resets no connection, and joining may take minutes where all is well."""

    @pytest.fixture(autouse=True)
    def joins(self, cluster: FakeCluster) -> None:
        def join(node_id: int, request: JoinGroupRequest) -> Response | Awaitable[Response]:
            if not request.member_id:
                code = ErrorCode.MEMBER_ID_REQUIRED
                return JoinGroupResponse(error_code=code, member_id=f"member of {node_id}")
            return asyncio.get_running_loop().create_future()

        cluster.on(JoinGroupRequest, join)

    async def joined(self, cluster: FakeCluster, node_id: int, turn: Callable[[], Awaitable[Any]]) -> None:
        async with asyncio.timeout(60):
            while not any(n == node_id and each.member_id for n, each in cluster.asked(JoinGroupRequest)):
                await turn()

    @pytest.mark.slow
    async def test_is_left_once_another_one_has_taken_over(self, cluster: FakeCluster) -> None:
        settings = {**QUICK, "session_timeout_ms": 150, "heartbeat_interval_ms": 50}
        async with Consumer(cluster.servers, group_id="g", group_protocol="classic", **settings) as consumer:
            consumer.subscribe([TOPIC])
            cluster.coordinator = 2
            await self.joined(cluster, 2, lambda: consumer.poll(timeout_ms=20))
            cluster.coordinator = 1
            await self.joined(cluster, 1, lambda: consumer.poll(timeout_ms=20))

    @pytest.mark.slow
    async def test_is_sent_something_meanwhile_that_it_may_refuse(self, cluster: FakeCluster) -> None:
        settings = {**QUICK, "session_timeout_ms": 150, "heartbeat_interval_ms": 50}
        cluster.coordinator = 2
        async with Consumer(cluster.servers, group_id="g", group_protocol="classic", **settings) as consumer:
            consumer.subscribe([TOPIC])
            await self.joined(cluster, 2, lambda: consumer.poll(timeout_ms=20))
            before = len(cluster.asked(ApiVersionsRequest))
            async with asyncio.timeout(60):
                while len(cluster.asked(ApiVersionsRequest)) == before:
                    await consumer.poll(timeout_ms=20)
            assert cluster.asked(ApiVersionsRequest)[-1][0] == 2


class TestAnAddressOfAnotherNode:
    """What answers at the address of broker 2 is another one (KIP-1242)."""

    @pytest.fixture(autouse=True)
    def misrouted(self, cluster: FakeCluster) -> list[tuple[int, str | None, int]]:
        """Who was meant, by broker; broker 2 is itself once it has been asked twice."""
        meant: list[tuple[int, str | None, int]] = []
        cluster.partitions = [FakePartition(leader=2)]

        def answer(node_id: int, request: ApiVersionsRequest) -> Response:
            meant.append((node_id, request.cluster_id, request.node_id))
            if request.cluster_id is not None and [n for n, *_ in meant].count(2) in (1, 2) and node_id == 2:
                return ApiVersionsResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED)
            return cluster.api_versions(node_id, request)

        cluster.on(ApiVersionsRequest, answer)
        cluster.on(ProduceRequest, lambda _, request: produced(request))
        return meant

    async def test_is_not_used_and_the_bootstrap_servers_are_asked_again(
        self, cluster: FakeCluster, misrouted: list[tuple[int, str | None, int]]
    ) -> None:
        settings = {name: value for name, value in QUICK.items() if not name.startswith("fetch")}
        async with Producer(cluster.servers, enable_metrics_push=False, **settings) as producer:
            await producer.send(TOPIC, b"value")
            await producer.flush()
        assert misrouted[0] == (1, None, -1)  # a bootstrap server may be any broker
        assert [each for each in misrouted if each[0] == 2] == [(2, "fake", 2)] * 3
        assert [node_id for node_id, _ in cluster.asked(ProduceRequest)] == [2]
        assert len(cluster.asked(MetadataRequest)) >= 3

    async def test_is_used_by_a_client_that_does_not_check(
        self, cluster: FakeCluster, misrouted: list[tuple[int, str | None, int]]
    ) -> None:
        settings = {name: value for name, value in QUICK.items() if not name.startswith("fetch")}
        async with Producer(
            cluster.servers, enable_metrics_push=False, metadata_cluster_check_enable=False, **settings
        ) as producer:
            await producer.send(TOPIC, b"value")
            await producer.flush()
        assert misrouted == [(1, None, -1), (2, None, -1)]

    async def test_of_a_broker_that_cannot_tell_is_used(self, cluster: FakeCluster) -> None:
        cluster.on(ApiVersionsRequest, cluster.api_versions)
        cluster.versions = {
            api.key: (api.min_version, min(api.max_version, FIRST_OF_KAFKA_4_4.get(api.key, 99) - 1))
            for api in API.values()
            if api.is_of_kafka
        }
        async with Producer(cluster.servers, enable_metrics_push=False) as producer:
            await producer.send(TOPIC, b"value")
            await producer.flush()
        assert [node_id for node_id, _ in cluster.asked(ProduceRequest)] == [2]


async def test_a_broker_may_ask_to_start_again_from_the_bootstrap_servers(cluster: FakeCluster) -> None:
    answers = [ErrorCode.NONE, ErrorCode.REBOOTSTRAP_REQUIRED, ErrorCode.NONE]

    def metadata(node_id: int, request: MetadataRequest) -> Response:
        answer = cluster.metadata(node_id, request)
        answer.error_code = int(answers[min(len(cluster.asked(MetadataRequest)), len(answers)) - 1])
        if answer.error_code:
            answer.brokers = []
        return answer

    cluster.on(MetadataRequest, metadata)
    async with NetworkClient(Runtime.real(), ConnectionConfig(cluster.servers)) as client:
        with pytest.raises(ConnectionFailed, match="start again from the bootstrap servers"):
            await client.refresh()
        assert client.metadata.brokers == {}
        assert set((await client.refresh(topics=[TOPIC])).brokers) == {1, 2}
