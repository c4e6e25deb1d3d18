"""The state of share partitions in a cluster: any broker reads and writes it, whichever coordinates it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import pytest
from tests.support.loops import simulated
from tests.support.sim_nodes import SimNodes

from ottla.client.admin import Admin
from ottla.coordinator.share.persister import (
    InitialState,
    PersisterResult,
    PersisterStateBatch,
    ShareState,
    StateSummary,
    WriteState,
)
from ottla.node.api.share_state_requests import run_for_partitions
from ottla.node.share.persister import DefaultStatePersister
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.initialize_share_group_state import (
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
    InitializeStateData,
    PartitionData,
)
from ottla.protocol.messages.write_share_group_state import (
    PartitionData as WritePartitionData,
)
from ottla.protocol.messages.write_share_group_state import (
    StateBatch,
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
    WriteStateData,
)
from ottla.protocol.names import SHARE_GROUP_STATE_TOPIC, SharePartitionKey, TopicIdPartition
from ottla.protocol.schema import Request, Response
from ottla.rpc.channel import InterNodeClient
from ottla.runtime.address import Address
from ottla.runtime.clock import SystemClock
from ottla.runtime.runtime import Runtime
from ottla.runtime.turns import Turns

ROLES = {1: "broker,controller", 2: "broker", 3: "broker"}
GROUP = "workers"
SETTINGS = {
    "share.coordinator.state.topic.num.partitions": "5",
    "share.coordinator.snapshot.update.records.per.snapshot": "3",
    "share.coordinator.state.topic.prune.interval.ms": "2000",
    "share.coordinator.cold.partition.snapshot.interval.ms": "2000",
}
OK = PersisterResult()
UNAVAILABLE = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.REQUEST_TIMED_OUT,
)


def batch(first: int, last: int) -> PersisterStateBatch:
    return PersisterStateBatch(first, last, 2, 1)


class Cluster(SimNodes):
    def __init__(self, roles: dict[int, str] = ROLES, seed: int = 1, **settings: str) -> None:
        super().__init__(roles, seed=seed, settings=SETTINGS | settings)

    async def start(self, partitions: int = 12) -> list[TopicIdPartition]:
        """Boot all nodes and make a topic; return its partitions."""
        self.boot()
        await self.ready()
        await self.create("orders", through=1, partitions=partitions, replicas=1)
        await self.until(lambda: all("orders" in self.topics(id) for id in self.nodes))
        topic = self.nodes[1].image.topics.by_name["orders"]
        return [TopicIdPartition(topic.id, index) for index in range(partitions)]

    def persister(self, id: int) -> DefaultStatePersister:
        return self.broker(id).coordinators.persister

    async def ask(self, request: Request, version: int) -> Response:
        """The answer of node 1 to a request."""
        answers: list[Response] = []

        async def work(runtime: Runtime) -> None:
            channel = InterNodeClient(runtime.network, "test")
            answers.append(await channel.request(Address("node1", 9092), request, version, timeout_ms=20_000))
            channel.close()

        await self.as_client(work)
        return answers[0]

    def coordinator(self, tp: TopicIdPartition, by: int) -> int:
        index = self.broker(by).coordinators.share.partition_for(SharePartitionKey(GROUP, *tp))
        return self.partition(SHARE_GROUP_STATE_TOPIC, index, by=by).leader


@simulated(Cluster, booted=False)
async def test_every_broker_reads_what_another_has_written(nodes: Cluster) -> None:
    partitions = await nodes.start()
    one, two, three = map(nodes.persister, (1, 2, 3))
    initial = {tp: InitialState(1, tp.partition) for tp in partitions}
    assert await one.initialize_state(GROUP, initial) == dict.fromkeys(partitions, OK)
    assert len({nodes.coordinator(tp, 1) for tp in partitions}) == 3, "each coordinates some of them"
    writes = {tp: WriteState(1, 0, -1, 5, (batch(tp.partition, 50),)) for tp in partitions}
    assert await two.write_state(GROUP, writes) == dict.fromkeys(partitions, OK)
    assert await three.read_state(GROUP, dict.fromkeys(partitions, 0)) == {
        tp: ShareState(state_epoch=1, start_offset=tp.partition, batches=(batch(tp.partition, 50),))
        for tp in partitions
    }
    assert await one.read_summary(GROUP, dict.fromkeys(partitions, -1)) == {
        tp: StateSummary(state_epoch=1, start_offset=tp.partition, delivery_complete_count=5)
        for tp in partitions
    }
    assert await two.delete_state(GROUP, partitions) == dict.fromkeys(partitions, OK)
    read = await three.read_state(GROUP, dict.fromkeys(partitions, 0))
    assert {state.error for state in read.values()} == {ErrorCode.INVALID_REQUEST}


@simulated(Cluster, booted=False)
async def test_the_state_survives_its_coordinator(nodes: Cluster) -> None:
    partitions = await nodes.start()
    one = nodes.persister(1)
    await one.initialize_state(GROUP, {tp: InitialState(1, 0) for tp in partitions})
    for end in range(5):
        writes = {tp: WriteState(1, 0, -1, end, (batch(0, end),)) for tp in partitions}
        assert await one.write_state(GROUP, writes) == dict.fromkeys(partitions, OK)
    assert 3 in {nodes.coordinator(tp, 1) for tp in partitions}
    nodes.kill(3, silently=True)
    # Without waiting for the new coordinators: the persister does.
    state = ShareState(state_epoch=1, start_offset=0, batches=(batch(0, 4),))
    assert await one.read_state(GROUP, dict.fromkeys(partitions, 1)) == dict.fromkeys(partitions, state)
    fenced = await nodes.persister(2).write_state(
        GROUP, {tp: WriteState(1, 0, -1, 6, (batch(0, 6),)) for tp in partitions}
    )
    assert {result.error for result in fenced.values()} == {ErrorCode.FENCED_LEADER_EPOCH}


@simulated(Cluster, booted=False)
async def test_what_cannot_be_reached_in_time_is_an_error_of_its_partition(nodes: Cluster) -> None:
    (tp,) = await nodes.start(1)
    nodes.kill(2)
    nodes.kill(3)
    result = await nodes.persister(1).initialize_state(GROUP, {tp: InitialState(1, 0)})
    assert result[tp].error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    gone = TopicIdPartition(b"?" * 16, 0)
    assert (await nodes.persister(1).delete_state(GROUP, [gone]))[gone].error in (
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )


@simulated(Cluster, booted=False)
async def test_a_partition_that_does_not_exist_is_not_asked_for_again(nodes: Cluster) -> None:
    partitions = await nodes.start()
    persister = nodes.persister(1)
    await persister.initialize_state(GROUP, {tp: InitialState(1, 0) for tp in partitions})
    began = nodes.world.loop.time()
    gone = TopicIdPartition(b"?" * 16, 0)
    result = await persister.initialize_state(GROUP, {gone: InitialState(1, 0)})
    assert result[gone].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert nodes.world.loop.time() - began < 1


@simulated(lambda: Cluster(**{"share.coordinator.state.topic.num.partitions": "1"}), booted=False)
async def test_redundant_records_are_pruned_on_all_replicas_and_deleted_topics_leave_nothing(
    nodes: Cluster,
) -> None:
    partitions = await nodes.start(3)
    persister = nodes.persister(1)
    await persister.initialize_state(GROUP, {tp: InitialState(1, 0) for tp in partitions})
    for end in range(20):
        await persister.write_state(
            GROUP, {tp: WriteState(1, 0, -1, end, (batch(0, end),)) for tp in partitions}
        )
    logs = [
        next(
            partition.log
            for partition in nodes.broker(id).replicas
            if partition.topic_partition.topic == SHARE_GROUP_STATE_TOPIC
        )
        for id in nodes.nodes
    ]
    await nodes.until(lambda: all(log.log_start_offset > 50 for log in logs))
    leader = nodes.partition(SHARE_GROUP_STATE_TOPIC, by=1).leader
    shard = nodes.broker(leader).coordinators.share.runtime.shard(0)
    assert len(shard.partitions) == 3

    async def delete(runtime: Runtime) -> None:
        async with Admin("node1:9092", runtime=runtime) as admin:
            await admin.topics.delete("orders")

    await nodes.as_client(delete)
    await nodes.until(lambda: not shard.partitions)
    end = logs[0].log_end_offset
    await nodes.until(lambda: all(log.log_start_offset == end - 1 for log in logs))


@simulated(
    lambda: Cluster(
        {1: "broker,controller"},
        **{
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
        },
    ),
    booted=False,
)
async def test_the_apis_answer_each_partition_and_take_empty_requests_as_kafka_does(nodes: Cluster) -> None:
    (tp,) = await nodes.start(1)
    request = InitializeShareGroupStateRequest(
        group_id=GROUP,
        topics=[
            InitializeStateData(
                topic_id=tp.topic_id,
                partitions=[
                    PartitionData(partition=0, state_epoch=1, start_offset=0),
                    PartitionData(partition=7, state_epoch=1, start_offset=0),
                ],
            )
        ],
    )
    before = cast("InitializeShareGroupStateResponse", await nodes.ask(request, 0))
    codes = [part.error_code for part in before.results[0].partitions]
    assert codes == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 2, "the topic does not exist yet"
    await nodes.persister(1).read_summary(GROUP, {tp: 0})
    response = cast("InitializeShareGroupStateResponse", await nodes.ask(request, 0))
    results = response.results[0].partitions
    assert [(part.partition, part.error_code) for part in results] == [
        (0, 0),
        (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert results[0].error_message is None
    # Twice the same partition: both are written.
    part = WritePartitionData(partition=0, state_epoch=1, leader_epoch=0, start_offset=-1)
    part.state_batches = [StateBatch(first_offset=0, last_offset=0, delivery_state=2, delivery_count=1)]
    again = WritePartitionData(partition=0, state_epoch=1, leader_epoch=0, start_offset=-1)
    again.state_batches = [StateBatch(first_offset=1, last_offset=1, delivery_state=2, delivery_count=1)]
    write = WriteShareGroupStateRequest(
        group_id=GROUP, topics=[WriteStateData(topic_id=tp.topic_id, partitions=[part, again])]
    )
    written = cast("WriteShareGroupStateResponse", await nodes.ask(write, 1))
    assert [each.error_code for each in written.results[0].partitions] == [0, 0]
    assert (await nodes.persister(1).read_state(GROUP, {tp: 0}))[tp].batches == (batch(0, 1),)
    for empty in (
        WriteShareGroupStateRequest(group_id="", topics=write.topics),
        WriteShareGroupStateRequest(group_id=GROUP),
        WriteShareGroupStateRequest(group_id=GROUP, topics=[WriteStateData(topic_id=tp.topic_id)]),
    ):
        assert cast("WriteShareGroupStateResponse", await nodes.ask(empty, 1)).results == []


@simulated(lambda: Cluster(**{"share.coordinator.state.topic.num.partitions": "1"}), booted=False)
async def test_a_request_for_many_share_partitions_is_answered_for_each(nodes: Cluster) -> None:
    partitions = await nodes.start(120)
    initial = {tp: InitialState(1, tp.partition) for tp in partitions}
    assert await nodes.persister(2).initialize_state(GROUP, initial) == dict.fromkeys(partitions, OK)
    found = await nodes.persister(3).read_summary(GROUP, dict.fromkeys(partitions, 0))
    assert [summary.start_offset for summary in found.values()] == list(range(120))


def test_others_have_their_turns_while_many_share_partitions_are_gone_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = Cluster(**{"share.coordinator.state.topic.num.partitions": "3"})
    pauses = 0
    pause = Turns.pause

    async def counted(turns: Turns) -> None:
        nonlocal pauses
        pauses += 1
        await pause(turns)

    async def life() -> None:
        nonlocal pauses
        partitions = await nodes.start(600)
        initial = dict.fromkeys(partitions, InitialState(1, 7))
        monkeypatch.setattr(Turns, "pause", counted)
        for work in (
            nodes.persister(1).initialize_state(GROUP, initial),
            nodes.persister(2).read_summary(GROUP, dict.fromkeys(partitions, 0)),
            nodes.persister(3).delete_state(GROUP, partitions),
        ):
            pauses = 0
            results = await work
            assert list(results) == partitions
            assert all(result.error is ErrorCode.NONE for result in results.values())
            # They are gone through four times, those of each of three partitions of the state by themselves,
            # and under a clock that stands still a turn has sixteen items.
            assert pauses >= 4 * (600 // 16 - 3)

    nodes.run(life())


@simulated(lambda: Cluster(**{"share.coordinator.state.topic.num.partitions": "1"}), booted=False)
async def test_writes_that_come_together_are_one_batch_of_records(nodes: Cluster) -> None:
    partitions = await nodes.start(8)
    leader = nodes.persister(1)
    await leader.initialize_state(GROUP, {tp: InitialState(1, 0) for tp in partitions})
    index = nodes.partition(SHARE_GROUP_STATE_TOPIC, by=1).leader
    service = nodes.broker(index).coordinators.share
    before = service.runtime.shard(0).partitions[SharePartitionKey(GROUP, *partitions[0])].updates
    writes = [
        (tp, WriteState(1, 0, -1, offset, (batch(offset, offset),)))
        for offset in range(20)
        for tp in partitions
    ]
    results = await asyncio.gather(*(service.write_state(GROUP, {tp: write}) for tp, write in writes))
    assert all(list(result.values()) == [OK] for result in results)
    assert service.writes >= len(writes)
    updates = service.runtime.shard(0).partitions[SharePartitionKey(GROUP, *partitions[0])].updates
    assert updates - before <= 4, "160 writes are at most four batches"
    state = ShareState(state_epoch=1, start_offset=0, batches=(batch(0, 19),))
    assert await leader.read_state(GROUP, dict.fromkeys(partitions, 0)) == dict.fromkeys(partitions, state)


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(1, 6))]
)
def test_no_acknowledged_write_is_lost_while_brokers_fail(seed: int) -> None:
    """Writers acknowledge one record after the other while brokers are killed and come back. A write that was
    answered without an error is in the state that the next leader reads.
    """
    nodes = Cluster(seed=seed, **{"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "300"})
    rng = random.Random(seed)
    done: list[TopicIdPartition] = []

    async def lead(tp: TopicIdPartition) -> None:
        """Read and write a share partition, at a higher leader epoch now and then."""
        acknowledged = -1
        for epoch in range(1, 6):
            state = (await nodes.persister(1).read_state(GROUP, {tp: epoch}))[tp]
            if state.error is not ErrorCode.NONE:
                assert state.error in UNAVAILABLE
                continue
            found = state.batches[-1].last_offset if state.batches else -1
            assert len(state.batches) <= 1
            assert found >= acknowledged, f"{tp.partition}: acknowledged up to {acknowledged}, found {found}"
            for offset in range(found + 1, found + 8):
                write = WriteState(1, epoch, 0, offset + 1, (batch(offset, offset),))
                result = (await nodes.persister(1).write_state(GROUP, {tp: write}))[tp]
                if result.error is not ErrorCode.NONE:
                    assert result.error in UNAVAILABLE
                    break
                acknowledged = offset
                await asyncio.sleep(rng.random())
            old = WriteState(1, epoch - 1, 0, 0, (batch(1000, 1000),))
            fenced = (await nodes.persister(1).write_state(GROUP, {tp: old}))[tp]
            assert fenced.error in (*UNAVAILABLE, ErrorCode.FENCED_LEADER_EPOCH)
        assert acknowledged > 5
        done.append(tp)

    async def life() -> None:
        partitions = await nodes.start(4)
        initial = {tp: InitialState(1, 0) for tp in partitions}
        assert await nodes.persister(1).initialize_state(GROUP, initial) == dict.fromkeys(partitions, OK)
        leaders = [asyncio.get_running_loop().create_task(lead(tp)) for tp in partitions]
        while len(done) < len(partitions) and not any(task.done() and task.exception() for task in leaders):
            victim = rng.choice((2, 3))
            nodes.kill(victim, silently=rng.random() < 0.5)
            await asyncio.sleep(rng.random() * 6)
            nodes.boot(victim)
            await nodes.ready(victim)
            await asyncio.sleep(rng.random() * 3)
        for task in leaders:
            await task

    nodes.run(life())


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("workers", "it is not group:topic-id:partition"),
        (" :AAAAAAAAAAAAAAAAAAAAAQ:0", "the group id is empty"),
        ("workers:short:0", "is not an id"),
        ("workers:AAAAAAAAAAAAAAAAAAAAAQ:zero", "invalid literal"),
    ],
)
def test_a_key_that_is_no_share_partition_is_refused(key: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        SharePartitionKey.parse(key)


def test_a_group_id_may_contain_colons() -> None:
    key = SharePartitionKey("a:b:", bytes(15) + b"\x01", 4)
    assert SharePartitionKey.parse(key.coordinator_key) == key


@dataclass(slots=True)
class Named:
    topic_id: bytes
    partitions: list[PartitionData]


async def test_a_partition_that_a_request_names_ten_thousand_times_holds_nobody_up() -> None:
    """Each time is found at once, whatever was named before."""
    parts = [PartitionData(partition=number % 2, start_offset=number) for number in range(20_000)]
    rounds: list[dict[TopicIdPartition, int]] = []

    async def run(found: Mapping[TopicIdPartition, int]) -> dict[TopicIdPartition, PersisterResult]:
        rounds.append(dict(found))
        return dict.fromkeys(found, OK)

    topics = [Named(bytes(16), parts)]
    results = await run_for_partitions(SystemClock(), topics, lambda part: part.start_offset, run)
    assert len(results) == 2
    assert [list(each.values()) for each in rounds] == [[at, at + 1] for at in range(0, 20_000, 2)]
