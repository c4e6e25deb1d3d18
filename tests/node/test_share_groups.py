"""Share groups in a cluster: their coordinator, the share coordinators and the leaders on any broker."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support.loops import simulated
from tests.support.sim_nodes import SimNodes

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest
from ottla.protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
)
from ottla.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from ottla.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from ottla.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from ottla.protocol.schema import Request
from ottla.rpc.channel import InterNodeClient
from ottla.runtime.address import Address
from ottla.runtime.runtime import Runtime

ROLES = {1: "broker,controller", 2: "broker", 3: "broker"}
GROUP = "workers"
NOT_YET = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
)


class Cluster(SimNodes):
    def __init__(self, roles: dict[int, str] = ROLES, **settings: str) -> None:
        settings = {"share.coordinator.state.topic.num.partitions": "5", **settings}
        super().__init__(roles, seed=1, settings=settings)

    async def start(self, **topics: int) -> None:
        self.boot()
        await self.ready()
        for name, partitions in topics.items():
            await self.create(name, through=1, partitions=partitions, replicas=1)
        await self.until(lambda: all(set(topics) <= set(self.topics(id)) for id in self.nodes))

    async def ask(self, node: int, request: Request, version: int) -> Any:
        """The answer of a node to a request."""
        answers: list[Any] = []

        async def work(runtime: Runtime) -> None:
            channel = InterNodeClient(runtime.network, "test")
            address = Address(f"node{node}", 9092)
            answers.append(await channel.request(address, request, version, timeout_ms=30_000))
            channel.close()

        await self.as_client(work)
        return answers[0]

    async def coordinator(self, *, by: int = 1) -> int:
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP])
        while True:
            answer = await self.ask(by, request, 6)
            (found,) = answer.coordinators
            if found.error_code == 0:
                return int(found.node_id)
            await asyncio.sleep(0.1)

    async def group(self, request: Request, version: int, *, by: int = 1) -> Any:
        """The answer of the group's coordinator, once it is one."""
        while True:
            answer = await self.ask(await self.coordinator(by=by), request, version)
            if getattr(answer, "error_code", 0) not in NOT_YET:
                return answer
            await asyncio.sleep(0.1)


class Member:
    """A member as a client is one: it comes back after the interval of each response."""

    def __init__(self, cluster: Cluster, name: str, *topics: str) -> None:
        self.cluster = cluster
        self.name = name
        self.topics = topics
        self.epoch = 0
        self.assigned: dict[str, list[int]] = {}
        self.interval_ms = 0

    async def beat(self, *, by: int = 1) -> None:
        request = ShareGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self.name,
            member_epoch=self.epoch,
            subscribed_topic_names=list(self.topics) if self.epoch == 0 else None,
        )
        answer = await self.cluster.group(request, 1, by=by)
        assert answer.error_code == 0, answer
        self.epoch, self.interval_ms = answer.member_epoch, answer.heartbeat_interval_ms
        if answer.assignment is not None:
            by_id = self.cluster.nodes[by].image.topics.by_id
            self.assigned = {
                by_id[topic.topic_id].name: topic.partitions for topic in answer.assignment.topic_partitions
            }

    async def until_assigned(self, expected: dict[str, list[int]], *, by: int = 1) -> None:
        while self.assigned != expected:
            await self.beat(by=by)
            await asyncio.sleep(self.interval_ms / 1000)

    async def leave(self) -> None:
        self.epoch = -1
        await self.beat()


def offsets_of(*topics: tuple[str, list[int]], group: str = GROUP) -> DescribeShareGroupOffsetsRequest:
    wanted = [
        DescribeShareGroupOffsetsRequestTopic(topic_name=name, partitions=each) for name, each in topics
    ]
    return DescribeShareGroupOffsetsRequest(
        groups=[DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=wanted or None)]
    )


def starts(answer: Any) -> dict[str, dict[int, tuple[int, int]]]:
    """Start offset and lag of each partition."""
    (group,) = answer.groups
    assert group.error_code == 0, group
    return {
        topic.topic_name: {each.partition_index: (each.start_offset, each.lag) for each in topic.partitions}
        for topic in group.topics
    }


def alteration(**topics: dict[int, int]) -> AlterShareGroupOffsetsRequest:
    return AlterShareGroupOffsetsRequest(
        group_id=GROUP,
        topics=[
            AlterShareGroupOffsetsRequestTopic(
                topic_name=name,
                partitions=[
                    AlterShareGroupOffsetsRequestPartition(partition_index=index, start_offset=offset)
                    for index, offset in offsets.items()
                ],
            )
            for name, offsets in topics.items()
        ],
    )


@simulated(Cluster, booted=False)
async def test_a_new_group_has_its_partitions_within_a_second_and_a_half(nodes: Cluster) -> None:
    await nodes.start(jobs=4)
    await nodes.coordinator()  # makes the topic of groups
    member = Member(nodes, "a", "jobs")
    loop = asyncio.get_running_loop()
    await member.beat()
    begin = loop.time()
    await member.until_assigned({"jobs": [0, 1, 2, 3]})
    second = Member(nodes, "b", "jobs")
    while len(second.assigned.get("jobs", ())) != 2:
        await second.beat()
        await member.beat()
        await asyncio.sleep(0.1)
    assert loop.time() - begin <= 2.5, "one and a half, and the time to make __share_group_state"
    described = await nodes.group(ShareGroupDescribeRequest(group_ids=[GROUP]), 1)
    (group,) = described.groups
    assert (group.group_state, group.assignor_name, len(group.members)) == ("Stable", "simple", 2)
    listed = await nodes.group(ListGroupsRequest(types_filter=["share"]), 5)
    assert [(each.group_id, each.group_type) for each in listed.groups] == [(GROUP, "share")]


@simulated(Cluster, booted=False)
async def test_offsets_are_altered_described_and_deleted(nodes: Cluster) -> None:
    await nodes.start(jobs=2, mails=1)
    altered = await nodes.group(alteration(jobs={0: 3, 1: 0, 9: 1}, none={0: 1}), 0)
    codes = {
        (topic.topic_name, each.partition_index): ErrorCode.of(each.error_code)
        for topic in altered.responses
        for each in topic.partitions
    }
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes == {
        ("jobs", 0): ErrorCode.NONE,
        ("jobs", 1): ErrorCode.NONE,
        ("jobs", 9): unknown,
        ("none", 0): unknown,
    }
    assert starts(await nodes.group(offsets_of(), 1)) == {"jobs": {0: (3, -3), 1: (0, 0)}}
    await nodes.group(alteration(jobs={1: -(2**63)}), 0)
    assert starts(await nodes.group(offsets_of(), 1))["jobs"][1] == (-(2**63), 2**63 - 1)
    await nodes.group(alteration(jobs={1: 0}), 0)
    asked = offsets_of(("jobs", [0]), ("mails", [0]), ("none", [5]))
    assert starts(await nodes.group(asked, 1)) == {
        "jobs": {0: (3, -3)},
        "mails": {0: (-1, -1)},
        "none": {5: (-1, -1)},
    }
    topics = [DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in ("jobs", "mails", "none")]
    deleted = await nodes.group(DeleteShareGroupOffsetsRequest(group_id=GROUP, topics=topics), 0)
    assert {each.topic_name: ErrorCode.of(each.error_code) for each in deleted.responses} == {
        "jobs": ErrorCode.NONE,
        "mails": unknown,
        "none": unknown,
    }
    assert starts(await nodes.group(offsets_of(), 1)) == {}


@simulated(Cluster, booted=False)
async def test_negative_offsets_are_accepted_as_kafka_does(nodes: Cluster) -> None:
    await nodes.start(jobs=2)
    altered = await nodes.group(alteration(jobs={0: -5, 1: -1}), 0)
    assert [each.error_code for each in altered.responses[0].partitions] == [0, 0]
    assert starts(await nodes.group(offsets_of(), 1)) == {"jobs": {0: (-5, 5), 1: (-1, -1)}}


@simulated(Cluster, booted=False)
async def test_a_group_is_deleted_with_its_states(nodes: Cluster) -> None:
    await nodes.start(jobs=2)
    member = Member(nodes, "a", "jobs")
    await member.until_assigned({"jobs": [0, 1]})
    refused = await nodes.group(DeleteGroupsRequest(groups_names=[GROUP]), 2)
    assert refused.results[0].error_code == ErrorCode.NON_EMPTY_GROUP
    assert (await nodes.group(alteration(jobs={0: 1}), 0)).error_code == ErrorCode.NON_EMPTY_GROUP
    await member.leave()
    deleted = await nodes.group(DeleteGroupsRequest(groups_names=[GROUP]), 2)
    assert deleted.results[0].error_code == ErrorCode.NONE
    described = await nodes.group(ShareGroupDescribeRequest(group_ids=[GROUP]), 1)
    assert described.groups[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert starts(await nodes.group(offsets_of(("jobs", [0])), 1)) == {"jobs": {0: (-1, -1)}}


@simulated(
    lambda: Cluster(**{"offsets.topic.replication.factor": "3", "default.replication.factor": "3"}),
    booted=False,
)
async def test_members_go_on_with_the_next_coordinator(nodes: Cluster) -> None:
    await nodes.start(jobs=2)
    member = Member(nodes, "a", "jobs")
    await member.until_assigned({"jobs": [0, 1]})
    first = await nodes.coordinator()
    assert first != 1, "the only controller must live on"
    nodes.kill(first, silently=True)
    other = 5 - first
    await nodes.until(lambda: nodes.is_fenced(first, by=1) and nodes.is_fenced(first, by=other))
    epoch = member.epoch
    await member.beat(by=other)
    assert member.epoch >= epoch
    assert member.assigned == {"jobs": [0, 1]}


@simulated(Cluster, booted=False)
async def test_without_the_feature_share_groups_are_refused(nodes: Cluster) -> None:
    await nodes.start(jobs=1)
    await nodes.coordinator()
    off = FeatureUpdateKey(feature="share.version", max_version_level=0, upgrade_type=2)
    updated = await nodes.ask(1, UpdateFeaturesRequest(feature_updates=[off]), 2)
    assert updated.error_code == 0, updated
    await nodes.until(
        lambda: all(node.image.features.levels.get("share.version", 0) == 0 for node in nodes.nodes.values())
    )
    unsupported = ErrorCode.UNSUPPORTED_VERSION
    beat = ShareGroupHeartbeatRequest(
        group_id=GROUP, member_id="a", member_epoch=0, subscribed_topic_names=["jobs"]
    )
    assert (await nodes.group(beat, 1)).error_code == unsupported
    assert (await nodes.group(alteration(jobs={0: 1}), 0)).error_code == unsupported
    assert (await nodes.group(DeleteShareGroupOffsetsRequest(group_id=GROUP), 0)).error_code == unsupported
    assert (await nodes.group(offsets_of(), 1)).groups[0].error_code == unsupported
    described = await nodes.group(ShareGroupDescribeRequest(group_ids=[GROUP]), 1)
    assert described.groups[0].error_code == unsupported
