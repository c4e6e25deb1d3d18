"""Streams groups on nodes: internal topics that the broker creates, and what members see of them."""

from __future__ import annotations

from typing import cast

from tests.coordinator.group.streams_topologies import WORD_COUNT, subtopology, topic, topology
from tests.support.loops import simulated
from tests.support.sim_nodes import SimNodes

from ottla.coordinator.group.streams.internal_topic_manager import StreamsStatus
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.streams_group_describe import (
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)
from ottla.protocol.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Topology,
)
from ottla.protocol.schema import Request, Response
from ottla.rpc.channel import InterNodeClient
from ottla.runtime.address import Address
from ottla.runtime.runtime import Runtime

ROLES = {1: "broker,controller", 2: "broker"}
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "default.replication.factor": "1",
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.assignment.interval.ms": "0",
}
GROUP = "words"
LOADING = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


class _Member:
    def __init__(self, nodes: SimNodes, name: str, sent: Topology) -> None:
        self.nodes = nodes
        self.name = name
        self.topology = sent
        self.epoch = 0
        self.coordinator = 1
        self.tasks: dict[str, list[int]] = {}

    async def ask(self, id: int, request: Request, version: int = 0) -> Response:
        answers: list[Response] = []

        async def work(runtime: Runtime) -> None:
            channel = InterNodeClient(runtime.network, "test")
            answers.append(
                await channel.request(Address(f"node{id}", 9092), request, version, timeout_ms=20_000)
            )
            channel.close()

        await self.nodes.as_client(work)
        return answers[0]

    async def find(self) -> None:
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP])
        while True:
            (found,) = cast("FindCoordinatorResponse", await self.ask(1, request, 6)).coordinators
            if found.error_code == 0:
                self.coordinator = found.node_id
                return

    async def beat_until_assigned(self) -> None:
        while not self.tasks:
            response = await self.beat()
            assert response.error_code in (0, *LOADING), response

    async def beat(self) -> StreamsGroupHeartbeatResponse:
        joins = self.epoch == 0
        request = StreamsGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self.name,
            member_epoch=self.epoch,
            rebalance_timeout_ms=30_000 if joins else -1,
            topology=self.topology if joins else None,
            active_tasks=[] if joins else None,
            standby_tasks=[] if joins else None,
            warmup_tasks=[] if joins else None,
            process_id=self.name if joins else None,
        )
        response = cast("StreamsGroupHeartbeatResponse", await self.ask(self.coordinator, request))
        if response.error_code == 0:
            self.epoch = response.member_epoch
            if response.active_tasks is not None:
                self.tasks = {each.subtopology_id: each.partitions for each in response.active_tasks}
        return response


def status(response: StreamsGroupHeartbeatResponse) -> list[tuple[int, str]]:
    return [(each.status_code, each.status_detail) for each in response.status or ()]


@simulated(lambda: SimNodes(ROLES, settings=SETTINGS))
async def test_a_group_gets_its_internal_topics_and_its_tasks_whichever_broker_coordinates_it(
    nodes: SimNodes,
) -> None:
    await nodes.create("lines", through=1, partitions=3, replicas=1)
    member = _Member(nodes, "a", WORD_COUNT)
    await member.find()
    first = await member.beat()
    assert status(first) == [
        (
            StreamsStatus.MISSING_INTERNAL_TOPICS,
            "Internal topics are missing: counts-changelog, words-repartition",
        )
    ]
    await nodes.until(lambda: "words-repartition" in nodes.topics(member.coordinator))
    await member.beat_until_assigned()
    assert member.tasks == {"0": [0, 1, 2], "1": [0, 1, 2]}
    request = StreamsGroupDescribeRequest(group_ids=[GROUP, "none"])
    described = cast("StreamsGroupDescribeResponse", await member.ask(member.coordinator, request))
    group, missing = described.groups
    assert (group.group_id, group.group_state, group.error_code) == (GROUP, "Stable", 0)
    assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_members_keep_their_tasks_and_epochs_when_another_broker_takes_over_the_group() -> None:
    roles = {1: "broker,controller", 2: "broker", 3: "broker"}
    nodes = SimNodes(roles, settings={**SETTINGS, "offsets.topic.replication.factor": "3"})

    async def life() -> None:
        nodes.boot()
        await nodes.ready()
        await nodes.create("lines", through=1, partitions=4, replicas=1)
        await nodes.until(lambda: all("lines" in nodes.topics(id) for id in roles))
        member = _Member(nodes, "a", topology(subtopology("0", "lines")))
        await member.find()
        await member.beat_until_assigned()
        first, epoch, tasks = member.coordinator, member.epoch, dict(member.tasks)
        # Node 1 is the quorum: it moves the group if that is on another node, and is restarted if not.
        nodes.kill(first)
        if first == 1:
            nodes.boot(1)
            await nodes.ready(1)
        else:
            await nodes.until(lambda: nodes.partition("__consumer_offsets", by=1).leader not in (first, -1))
        await member.find()
        while (response := await member.beat()).error_code in LOADING:
            await member.find()
        assert response.error_code == 0
        # Its address may be another one, which raises the epoch; the tasks stay.
        assert member.epoch >= epoch
        assert member.tasks == tasks

    nodes.run(life())


def test_internal_topics_that_cannot_be_created_are_told_with_the_reason() -> None:
    nodes = SimNodes(ROLES, settings=SETTINGS)
    hopeless = topology(subtopology("0", "lines", changelogs=(topic("store", replicas=7),)))

    async def life() -> None:
        nodes.boot()
        await nodes.ready()
        await nodes.create("lines", through=1, partitions=1, replicas=1)
        member = _Member(nodes, "a", hopeless)
        await member.find()
        for _ in range(2):
            ((code, detail),) = status(await member.beat())
            assert code == StreamsStatus.MISSING_INTERNAL_TOPICS
            assert detail.startswith("Internal topics are missing: store; Creation failed: store (")
        assert "store" not in nodes.topics(member.coordinator)

    nodes.run(life())


@simulated(lambda: SimNodes(ROLES, settings=SETTINGS))
async def test_topologies_may_not_use_the_topics_of_coordinators(nodes: SimNodes) -> None:
    for name, text in (
        ("__consumer_offsets", "Use of Kafka internal topics __consumer_offsets in a Kafka Streams"),
        ("a/b", "Topic names a/b are not valid topic names."),
    ):
        member = _Member(nodes, "a", topology(subtopology("0", name)))
        response = await member.beat()
        assert response.error_code == ErrorCode.STREAMS_INVALID_TOPOLOGY
        assert (response.error_message or "").startswith(text)


@simulated(
    lambda: SimNodes(
        {1: "broker,controller"},
        settings={**SETTINGS, "group.coordinator.rebalance.protocols": "classic,consumer"},
    )
)
async def test_streams_groups_are_served_only_if_the_settings_say_so(nodes: SimNodes) -> None:
    response = await _Member(nodes, "a", WORD_COUNT).beat()
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
