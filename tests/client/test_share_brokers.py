"""A share consumer and brokers that a test plays: sessions, leaders that move, answers that do not come."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from ottla.client.share import ShareConsumer, ShareRecord
from ottla.client.share.share_membership_manager import ShareHeartbeatRequestManager
from ottla.protocol.api import API, ListenerType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import share_acknowledge, share_fetch
from ottla.protocol.messages.share_acknowledge import ShareAcknowledgeRequest, ShareAcknowledgeResponse
from ottla.protocol.messages.share_fetch import AcquiredRecords, ShareFetchRequest, ShareFetchResponse
from ottla.protocol.messages.share_group_heartbeat import (
    Assignment,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    TopicPartitions,
)
from ottla.protocol.names import TopicPartition
from tests.support.fake_brokers import (
    TOPIC,
    TOPIC_ID,
    FakeCluster,
    FakePartition,
    batch,
)
from tests.support.waiting import until

PART = TopicPartition(TOPIC, 0)
QUICK: dict[str, Any] = {"retry_backoff_ms": 5, "reconnect_backoff_ms": 5, "fetch_max_wait_ms": 50}
Acks = list[tuple[int, int, int]]


class ShareBrokers:
    """Brokers with share sessions. `ready` are ranges of offsets that the leader of a partition delivers;
    `refuse` may have an error for a request, or for the acknowledgements in it. A broker in `held` answers
    fetches once its event is set.
    """

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.lock_ms = 30_000
        self.ready: dict[int, list[tuple[int, int]]] = {0: []}
        self.acknowledged: list[tuple[int, Acks]] = []
        self.refuse: Callable[[int, Any], ErrorCode] = lambda *_: ErrorCode.NONE
        self.refuse_acks: Callable[[int, Any], ErrorCode] = lambda *_: ErrorCode.NONE
        self.held: dict[int, asyncio.Event] = {}
        self._epochs: dict[int, int] = {}
        cluster.on(ShareGroupHeartbeatRequest, self._heartbeat)
        cluster.on(ShareFetchRequest, self._fetch)
        cluster.on(ShareAcknowledgeRequest, self._acknowledge)

    def _heartbeat(self, node_id: int, request: ShareGroupHeartbeatRequest) -> ShareGroupHeartbeatResponse:
        error = self.refuse(node_id, request)
        if error:
            return ShareGroupHeartbeatResponse(error_code=int(error))
        partitions = list(range(len(self.cluster.partitions)))
        assignment = Assignment(topic_partitions=[TopicPartitions(topic_id=TOPIC_ID, partitions=partitions)])
        return ShareGroupHeartbeatResponse(
            member_id=request.member_id,
            member_epoch=max(request.member_epoch, 1),
            heartbeat_interval_ms=100,
            assignment=assignment if request.member_epoch == 0 else None,
        )

    def _session_error(self, node_id: int, request: Any) -> ErrorCode:
        error = self.refuse(node_id, request)
        epoch = request.share_session_epoch
        if error:
            self._epochs.pop(node_id, None)
            return error
        if epoch == 0:
            self._epochs[node_id] = 0
        elif epoch > 0:
            if node_id not in self._epochs:
                return ErrorCode.SHARE_SESSION_NOT_FOUND
            if epoch != self._epochs[node_id]:
                return ErrorCode.INVALID_SHARE_SESSION_EPOCH
        self._epochs[node_id] = self._epochs.get(node_id, 0) + 1
        return ErrorCode.NONE

    def forget_sessions(self) -> None:
        self._epochs.clear()

    async def _fetch(self, node_id: int, request: ShareFetchRequest) -> ShareFetchResponse:
        if held := self.held.get(node_id):
            await held.wait()
        error = self._session_error(node_id, request)
        if error:
            return ShareFetchResponse(error_code=int(error))
        response = ShareFetchResponse(acquisition_lock_timeout_ms=self.lock_ms)
        topic = share_fetch.ShareFetchableTopicResponse(topic_id=TOPIC_ID)
        acknowledged = {each.partition_index: each for asked in request.topics for each in asked.partitions}
        for index, partition in enumerate(self.cluster.partitions):
            data = share_fetch.PartitionData(partition_index=index, records=b"")
            sent = acknowledged.get(index)
            if sent is not None and sent.acknowledgement_batches:
                data.acknowledge_error_code = int(self._take(node_id, request, sent.acknowledgement_batches))
            if partition.leader != node_id:
                if sent is not None and not sent.acknowledgement_batches:
                    data.error_code = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            elif request.max_records and self.ready.get(index):
                first, last = self.ready[index].pop(0)
                data.records = batch(first, last - first + 1, epoch=0)
                data.acquired_records = [
                    AcquiredRecords(first_offset=first, last_offset=last, delivery_count=1)
                ]
            if data.records or data.error_code or sent is not None:
                topic.partitions.append(data)
        if topic.partitions:
            response.responses.append(topic)
        if not any(data.records or data.error_code for data in topic.partitions):
            await asyncio.sleep(request.max_wait_ms / 1000)
        return response

    def _take(self, node_id: int, request: Any, batches: Any) -> ErrorCode:
        error = self.refuse_acks(node_id, request)
        if not error:
            acks = [(each.first_offset, each.last_offset, each.acknowledge_types[0]) for each in batches]
            self.acknowledged.append((node_id, acks))
        return error

    def _acknowledge(self, node_id: int, request: ShareAcknowledgeRequest) -> ShareAcknowledgeResponse:
        error = self._session_error(node_id, request)
        if error:
            return ShareAcknowledgeResponse(error_code=int(error))
        return ShareAcknowledgeResponse(
            acquisition_lock_timeout_ms=self.lock_ms,
            responses=[
                share_acknowledge.ShareAcknowledgeTopicResponse(
                    topic_id=topic.topic_id,
                    partitions=[
                        share_acknowledge.PartitionData(
                            partition_index=each.partition_index,
                            error_code=int(self._take(node_id, request, each.acknowledgement_batches)),
                        )
                        for each in topic.partitions
                    ],
                )
                for topic in request.topics
            ],
        )


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster() as cluster:
        yield cluster


@pytest.fixture
def brokers(cluster: FakeCluster) -> ShareBrokers:
    return ShareBrokers(cluster)


def explicit(cluster: FakeCluster, **settings: Any) -> ShareConsumer[bytes, bytes]:
    return ShareConsumer(
        cluster.servers, group_id="g", share_acknowledgement_mode="explicit", **{**QUICK, **settings}
    )


async def take(
    consumer: ShareConsumer[bytes, bytes], count: int, *, timeout_ms: float = 100
) -> list[ShareRecord[bytes, bytes]]:
    found: list[ShareRecord[bytes, bytes]] = []
    async with asyncio.timeout(60):
        while len(found) < count:
            found += await consumer.poll(timeout_ms=timeout_ms)
    return found


async def test_acknowledgements_go_with_the_next_fetch(cluster: FakeCluster, brokers: ShareBrokers) -> None:
    brokers.ready[0] = [(0, 4), (5, 9)]
    async with ShareConsumer[bytes, bytes](cluster.servers, group_id="g", **QUICK) as consumer:
        consumer.subscribe(TOPIC)
        # A poll that ended before an answer came would send what is acknowledged without fetching.
        for offsets in ([0, 1, 2, 3, 4], [5, 6, 7, 8, 9]):
            assert [record.offset for record in await take(consumer, 5, timeout_ms=60_000)] == offsets
        assert brokers.acknowledged == [(1, [(0, 4, 1)])]
        assert not cluster.asked(ShareAcknowledgeRequest)
        fetches = [request for _, request in cluster.asked(ShareFetchRequest)]
        assert [request.share_session_epoch for request in fetches] == list(range(len(fetches)))
        assert fetches[0].topics
        assert {request.max_records for request in fetches} == {500}
    (_, end) = cluster.asked(ShareAcknowledgeRequest)[-1]
    assert end.share_session_epoch == -1


async def test_nothing_is_fetched_before_a_poll_waits_for_it(
    cluster: FakeCluster, brokers: ShareBrokers
) -> None:
    async with ShareConsumer[bytes, bytes](cluster.servers, group_id="g", **QUICK) as consumer:
        consumer.subscribe(TOPIC)
        async with asyncio.timeout(60):
            while not cluster.asked(ShareFetchRequest):
                await consumer.poll(timeout_ms=20)
        # One may be in flight; the session sends none after it.
        await until(lambda: all(broker.task is None for broker in consumer._requests._brokers.values()))
        brokers.ready[0] = [(0, 0)]
        consumer._requests.wake()
        before = len(cluster.asked(ShareFetchRequest))
        assert await consumer.commit() == {}
        await consumer._cluster.refresh()
        assert len(cluster.asked(ShareFetchRequest)) == before


async def test_a_leader_that_has_moved_has_the_record_delivered_again(
    cluster: FakeCluster, brokers: ShareBrokers
) -> None:
    brokers.ready[0] = [(0, 0)]
    async with explicit(cluster) as consumer:
        consumer.subscribe(TOPIC)
        (record,) = await take(consumer, 1)
        cluster.partitions[0] = FakePartition(leader=2, epoch=1)
        brokers.refuse_acks = lambda node_id, _: (
            ErrorCode.NOT_LEADER_OR_FOLLOWER if node_id == 1 else ErrorCode.NONE
        )
        consumer.accept(record)
        results = await consumer.commit()
        error = results[PART]
        assert error is not None
        assert error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert "delivers the records again" in error.message
        brokers.ready[0] = [(0, 0)]
        (record,) = await take(consumer, 1)
        consumer.accept(record)
        assert await consumer.commit() == {PART: None}
        assert brokers.acknowledged == [(2, [(0, 0, 1)])]


async def test_a_session_that_is_gone_begins_again_and_the_acknowledgement_is_repeated(
    cluster: FakeCluster, brokers: ShareBrokers
) -> None:
    brokers.ready[0] = [(0, 2)]
    async with explicit(cluster) as consumer:
        consumer.subscribe(TOPIC)
        records = await take(consumer, 3)
        brokers.forget_sessions()
        consumer.accept(*records)
        assert await consumer.commit() == {PART: None}
        assert brokers.acknowledged == [(1, [(0, 2, 1)])]


async def test_an_acknowledgement_that_cannot_be_persisted_is_repeated(
    cluster: FakeCluster, brokers: ShareBrokers
) -> None:
    brokers.ready[0] = [(0, 0)]
    failures = iter([ErrorCode.COORDINATOR_NOT_AVAILABLE] * 3)
    brokers.refuse_acks = lambda *_: next(failures, ErrorCode.NONE)
    async with explicit(cluster) as consumer:
        consumer.subscribe(TOPIC)
        (record,) = await take(consumer, 1)
        consumer.release(record)
        assert await consumer.commit() == {PART: None}
        assert brokers.acknowledged == [(1, [(0, 0, 2)])]


async def test_a_connection_that_ends_leaves_an_acknowledgement_in_doubt(
    cluster: FakeCluster, brokers: ShareBrokers
) -> None:
    brokers.ready[0] = [(0, 0)]
    results: list[tuple[TopicPartition, list[int], KafkaError | None]] = []
    async with explicit(cluster, acknowledgement_commit_callback=lambda *r: results.append(r)) as consumer:
        consumer.subscribe(TOPIC)
        (record,) = await take(consumer, 1)

        async def never(_: int, __: ShareAcknowledgeRequest) -> ShareAcknowledgeResponse:
            await asyncio.Event().wait()
            raise AssertionError

        cluster.on(ShareAcknowledgeRequest, never)
        consumer.accept(record)
        commit = consumer.commit_nowait()
        await until(lambda: bool(cluster.asked(ShareAcknowledgeRequest)))
        cluster.stop(1)
        error = (await commit)[PART]
        assert error is not None
        assert error.retriable
        assert "may be lost" in error.message
        assert [(partition, offsets) for partition, offsets, _ in results] == [(PART, [0])]
        ShareBrokers(cluster)
        brokers.forget_sessions()
        await cluster.start(1)


async def test_a_broker_that_is_gone_does_not_hold_up_a_commit(
    cluster: FakeCluster, brokers: ShareBrokers
) -> None:
    cluster.partitions = [FakePartition(leader=1), FakePartition(leader=2)]
    brokers.ready = {0: [(0, 0)], 1: [(7, 7)]}
    async with explicit(cluster) as consumer:
        consumer.subscribe(TOPIC)
        records = await take(consumer, 2)
        cluster.stop(2)
        consumer.accept(*records)
        async with asyncio.timeout(30):  # half of default.api.timeout.ms
            results = await consumer.commit()
        assert results[PART] is None
        error = results[TopicPartition(TOPIC, 1)]
        assert error is not None
        assert "delivered again" in error.message


async def test_a_session_follows_the_leaders(cluster: FakeCluster, brokers: ShareBrokers) -> None:
    cluster.partitions = [FakePartition(leader=1), FakePartition(leader=1)]
    async with ShareConsumer[bytes, bytes](
        cluster.servers, group_id="g", metadata_max_age_ms=20, **QUICK
    ) as consumer:
        consumer.subscribe(TOPIC)
        async with asyncio.timeout(60):
            while not cluster.asked(ShareFetchRequest):
                await consumer.poll(timeout_ms=20)
        cluster.partitions[1] = FakePartition(leader=2, epoch=1)

        def forgotten() -> list[list[int]]:
            return [
                topic.partitions
                for node_id, request in cluster.asked(ShareFetchRequest)
                if node_id == 1
                for topic in request.forgotten_topics_data
            ]

        async with asyncio.timeout(60):
            while not (forgotten() and any(n == 2 for n, _ in cluster.asked(ShareFetchRequest))):
                await consumer.poll(timeout_ms=20)
        assert forgotten() == [[1]]


async def test_records_whose_locks_expired_before_a_poll_are_not_returned(
    cluster: FakeCluster, brokers: ShareBrokers
) -> None:
    cluster.partitions = [FakePartition(leader=1), FakePartition(leader=2)]
    brokers.ready = {0: [(0, 0)], 1: [(7, 7)]}
    brokers.held[2] = asyncio.Event()
    async with explicit(cluster) as consumer:
        consumer.subscribe(TOPIC)
        (first,) = await take(consumer, 1)
        assert first.partition == 0
        # The answer of the other comes between two polls.
        brokers.lock_ms = 100
        brokers.held[2].set()
        fetches, now = consumer._requests.fetches, asyncio.get_running_loop().time
        await until(lambda: bool(fetches))
        await until(lambda: all(fetch.deadline < now() for fetch in fetches))
        assert await consumer.poll(timeout_ms=100) == []


async def test_a_renewal_is_said_to_be_one(cluster: FakeCluster, brokers: ShareBrokers) -> None:
    brokers.ready[0] = [(0, 1)]
    async with explicit(cluster) as consumer:
        consumer.subscribe(TOPIC)
        one, two = await take(consumer, 2)
        consumer.renew(one)
        consumer.accept(two)
        assert await consumer.commit() == {PART: None}
        (_, request) = cluster.asked(ShareAcknowledgeRequest)[-1]
        assert request.is_renew_ack
        assert brokers.acknowledged == [(1, [(0, 0, 4), (1, 1, 1)])]
        consumer.renew(one)
        consumer.accept(one)  # for good, in place of the renewal
        assert await consumer.commit() == {PART: None}
        (_, request) = cluster.asked(ShareAcknowledgeRequest)[-1]
        assert not request.is_renew_ack
        assert brokers.acknowledged[-1] == (1, [(0, 0, 1)])


async def test_a_renewal_that_is_refused_does_not_undo_what_is_done(
    cluster: FakeCluster, brokers: ShareBrokers
) -> None:
    brokers.ready[0] = [(0, 1)]
    brokers.refuse_acks = lambda _, request: (
        ErrorCode.INVALID_RECORD_STATE if getattr(request, "is_renew_ack", False) else ErrorCode.NONE
    )
    results: list[tuple[list[int], bool]] = []
    async with explicit(
        cluster,
        acknowledgement_commit_callback=lambda _, offsets, error: results.append((offsets, error is None)),
    ) as consumer:
        consumer.subscribe(TOPIC)
        one, two = await take(consumer, 2)
        consumer.renew(one)
        consumer.accept(two)
        error = (await consumer.commit())[PART]
        assert error is not None
        assert error.code is ErrorCode.INVALID_RECORD_STATE
        assert brokers.acknowledged == [(1, [(1, 1, 1)])]
        assert results == [([0], False), ([1], True)]


async def test_an_older_broker_cannot_renew(cluster: FakeCluster, brokers: ShareBrokers) -> None:
    cluster.versions = {
        api.key: api.announced_versions(ListenerType.BROKER)
        for api in API.values()
        if ListenerType.BROKER in api.listeners
    } | {78: (1, 1), 79: (1, 1)}
    brokers.ready[0] = [(0, 0)]
    async with explicit(cluster) as consumer:
        consumer.subscribe(TOPIC)
        (record,) = await take(consumer, 1)
        consumer.renew(record)
        error = (await consumer.commit())[PART]
        assert error is not None
        assert "Kafka 4.2" in error.message
        consumer.accept(record)
        assert await consumer.commit() == {PART: None}


async def test_a_cluster_without_share_groups_says_so(cluster: FakeCluster, brokers: ShareBrokers) -> None:
    versions = {
        api.key: api.announced_versions(ListenerType.BROKER)
        for api in API.values()
        if ListenerType.BROKER in api.listeners
    }
    cluster.versions = {key: found for key, found in versions.items() if key not in (76, 77, 78, 79)}
    async with explicit(cluster) as consumer:
        consumer.subscribe(TOPIC)
        with pytest.raises(KafkaError, match=r"share\.version"):
            await take(consumer, 1)


async def test_a_member_that_may_not_join_says_why_and_tries_again(
    cluster: FakeCluster, brokers: ShareBrokers
) -> None:
    brokers.refuse = lambda *_: ErrorCode.GROUP_AUTHORIZATION_FAILED
    brokers.ready[0] = [(0, 0)]
    async with explicit(cluster) as consumer:
        consumer.subscribe(TOPIC)
        with pytest.raises(KafkaError, match="group 'g'") as caught:
            await take(consumer, 1)
        assert caught.value.code is ErrorCode.GROUP_AUTHORIZATION_FAILED
        brokers.refuse = lambda *_: ErrorCode.NONE
        found: list[ShareRecord[bytes, bytes]] = []
        async with asyncio.timeout(60):
            while not found:
                with contextlib.suppress(KafkaError):  # a heartbeat from before
                    found = await consumer.poll(timeout_ms=100)
        assert [record.offset for record in found] == [0]


async def test_a_fenced_member_joins_again_and_keeps_its_records(
    cluster: FakeCluster, brokers: ShareBrokers
) -> None:
    brokers.ready[0] = [(0, 0)]
    fenced = iter([True])
    async with explicit(cluster) as consumer:
        consumer.subscribe(TOPIC)
        (record,) = await take(consumer, 1)
        brokers.refuse = lambda _, request: (
            ErrorCode.FENCED_MEMBER_EPOCH
            if isinstance(request, ShareGroupHeartbeatRequest)
            and request.member_epoch > 0
            and next(fenced, False)
            else ErrorCode.NONE
        )
        joins = lambda: len([r for _, r in cluster.asked(ShareGroupHeartbeatRequest) if r.member_epoch == 0])  # noqa: E731
        async with asyncio.timeout(60):
            while joins() < 2:
                await consumer.poll(timeout_ms=20)
        consumer.accept(record)
        assert await consumer.commit() == {PART: None}


async def test_heartbeats_that_end_by_a_bug_are_the_error_of_a_poll(
    cluster: FakeCluster, brokers: ShareBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers.ready[0] = [(0, 0)]
    send = ShareHeartbeatRequestManager.send_heartbeat
    bugs = iter([ZeroDivisionError("a bug")])

    async def broken(sender: ShareHeartbeatRequestManager) -> bool:
        for bug in bugs:
            raise bug
        return await send(sender)

    monkeypatch.setattr(ShareHeartbeatRequestManager, "send_heartbeat", broken)
    async with explicit(cluster) as consumer:
        consumer.subscribe(TOPIC)
        with pytest.raises(KafkaError, match=r"heartbeats have failed: ZeroDivisionError"):
            await take(consumer, 1)
        assert len(await take(consumer, 1)) == 1


@pytest.mark.parametrize("error", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS])
async def test_an_assignment_that_a_coordinator_wrote_before_it_moved_is_not_missed(
    cluster: FakeCluster, brokers: ShareBrokers, error: ErrorCode
) -> None:
    brokers.ready[0] = [(0, 0)]
    refused: list[ShareGroupHeartbeatRequest] = []

    def heartbeat(node_id: int, request: ShareGroupHeartbeatRequest) -> ShareGroupHeartbeatResponse:
        """As Kafka's coordinator: what it has assigned it repeats only for a member that sends its topics."""
        if request.member_epoch > 0 and not refused:
            refused.append(request)
            return ShareGroupHeartbeatResponse(error_code=int(error))
        partitions = [TopicPartitions(topic_id=TOPIC_ID, partitions=[0])] if refused else []
        is_full = request.subscribed_topic_names is not None
        return ShareGroupHeartbeatResponse(
            member_id=request.member_id,
            member_epoch=2 if refused else 1,
            heartbeat_interval_ms=20,
            assignment=Assignment(topic_partitions=partitions) if is_full else None,
        )

    cluster.on(ShareGroupHeartbeatRequest, heartbeat)
    async with explicit(cluster) as consumer:
        consumer.subscribe(TOPIC)
        (record,) = await take(consumer, 1)
        assert record.offset == 0


@pytest.mark.slow
async def test_what_was_held_too_long_is_forgotten(
    cluster: FakeCluster, brokers: ShareBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.client.share.share_consumer._GRACE_S", 0.01)
    brokers.ready[0] = [(0, 99)]
    async with explicit(cluster) as consumer:
        consumer.subscribe(TOPIC)
        records = await take(consumer, 100)
        # As if that time had passed since.
        monkeypatch.setattr("ottla.client.share.share_consumer._GRACE_S", -3_600)
        async with asyncio.timeout(60):
            while consumer._held:
                await consumer.poll(timeout_ms=20)
        with pytest.raises(KafkaError, match="does not hold the record"):
            consumer.accept(records[0])
