"""A streams group changes hands with its data directory, between Ottla and Apache Kafka.

The next coordinator describes the same members with the same tasks and topology, accepts their heartbeats and
commits, fences old epochs, and goes on: members join and leave in each life.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.offset_commit import OffsetCommitResponse
from ottla.protocol.messages.offset_fetch import OffsetFetchResponse
from ottla.protocol.messages.streams_group_describe import (
    DescribedGroup,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)
from ottla.protocol.messages.streams_group_heartbeat import (
    Endpoint,
    KeyValue,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    TaskIds,
    Topology,
)
from tests.acceptance.changing_hands import Lives, every_exchange, life
from tests.kafka.scripts.groups import commit, fetch
from tests.kafka.scripts.streams_groups import beat, internal
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.exhaustive]

GROUP = "moving-app"
PARTITIONS = 6
STREAMS_SETTINGS = {
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.assignment.interval.ms": "0",
    "group.streams.num.standby.replicas": "1",
}
COUNTING = Topology(
    subtopologies=[
        Subtopology(subtopology_id="0", source_topics=["lines"], repartition_sink_topics=["app-words"]),
        Subtopology(
            subtopology_id="1",
            repartition_source_topics=[internal("app-words", **{"cleanup.policy": "delete"})],
            state_changelog_topics=[internal("app-counts", **{"cleanup.policy": "compact"})],
        ),
    ]
)


@dataclass
class Member:
    name: str
    epoch: int = 0
    # The tasks of each role, as they come in responses and go into the next request.
    tasks: dict[str, list[TaskIds]] = field(default_factory=dict)

    def beat(self, wire: WireClient, **fields: Any) -> bool:
        """Send a heartbeat; whether the response has tasks, which the member then confirms."""
        request = beat(GROUP, self.name, self.epoch, **fields)
        response = wire.get(request, 0, StreamsGroupHeartbeatResponse)
        assert response.error_code == 0, response
        self.epoch = response.member_epoch
        if response.active_tasks is None:
            return False
        self.tasks = {
            "active_tasks": response.active_tasks,
            "standby_tasks": response.standby_tasks or [],
            "warmup_tasks": response.warmup_tasks or [],
        }
        return True


@dataclass
class Application:
    topic_id: bytes = b""
    members: list[Member] = field(default_factory=list)
    started: int = 0

    def set_up(self, wire: WireClient) -> None:
        topic = CreatableTopic(name="lines", num_partitions=PARTITIONS, replication_factor=1)
        made = wire.get(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7, CreateTopicsResponse)
        assert made.topics[0].error_code == 0
        self.topic_id = made.topics[0].topic_id

    def find(self, wire: WireClient) -> None:
        def found() -> bool:
            find = FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP])
            if wire.get(find, 6, FindCoordinatorResponse).coordinators[0].error_code:
                return False
            return self.describe(wire).error_code in (0, ErrorCode.GROUP_ID_NOT_FOUND)

        wait_until(found, "the group has no coordinator")

    def describe(self, wire: WireClient) -> DescribedGroup:
        request = StreamsGroupDescribeRequest(group_ids=[GROUP])
        (group,) = wire.get(request, 0, StreamsGroupDescribeResponse).groups
        group.members.sort(key=lambda member: member.member_id)
        for member in group.members:
            for assignment in (member.assignment, member.target_assignment):
                for tasks in (assignment.active_tasks, assignment.standby_tasks, assignment.warmup_tasks):
                    tasks.sort(key=lambda each: each.subtopology_id)
                    for each in tasks:
                        each.partitions.sort()
        return group

    def settle(self, wire: WireClient) -> None:
        """Send heartbeats until no member gets other tasks and the group is stable."""

        def settled() -> bool:
            for member in self.members:
                if member.beat(wire):
                    member.beat(wire, **member.tasks)
            return self.describe(wire).group_state == "Stable"

        wait_until(settled, "the group is not stable")

    def work(self, wire: WireClient) -> None:
        """One life's work: two members join, the oldest leaves, and another commits."""
        for _ in range(2):
            self.started += 1
            member = Member(f"m{self.started}")
            endpoint = Endpoint(host="here", port=self.started)
            tags = [KeyValue(key="zone", value=f"z{self.started % 2}")]
            member.beat(wire, topology=COUNTING, user_endpoint=endpoint, client_tags=tags)
            self.members.append(member)
            self.settle(wire)
        if len(self.members) > 3:
            gone = self.members.pop(0)
            wire.get(beat(GROUP, gone.name, -1), 0, StreamsGroupHeartbeatResponse)
            self.settle(wire)
        last = self.members[-1]
        fields = {"member_id": last.name, "generation_id_or_member_epoch": last.epoch}
        done = wire.get(commit(GROUP, "lines", self.topic_id, **fields), 9, OffsetCommitResponse)
        assert done.topics[0].partitions[0].error_code == 0, done

    def see(self, wire: WireClient) -> tuple[DescribedGroup, object]:
        """All that any coordinator must show of the group, which it has from the log, but its topology: Kafka
        completes that with the first heartbeat.
        """
        self.find(wire)
        last = self.members[-1]
        asked = fetch(GROUP, 9, "lines", self.topic_id, member_id=last.name, member_epoch=last.epoch)
        group = self.describe(wire)
        group.topology = None
        return group, wire.get(asked, 9, OffsetFetchResponse)

    def go_on(self, wire: WireClient) -> object:
        """The members' first heartbeats at a coordinator; the topology. All active tasks stay: the epoch is
        raised once, as the two hash topics in different ways, and a standby task may move in a tie.
        """

        def active() -> dict[str, object]:
            return {each.member_id: each.assignment.active_tasks for each in self.describe(wire).members}

        before, epoch = active(), self.members[0].epoch
        self.settle(wire)
        assert active() == before
        assert {member.epoch for member in self.members} <= {epoch, epoch + 1}
        return self.describe(wire).topology

    def check_fencing(self, wire: WireClient) -> None:
        last = self.members[-1]
        stale = beat(GROUP, last.name, last.epoch - 2, active_tasks=[], standby_tasks=[], warmup_tasks=[])
        response = wire.get(stale, 0, StreamsGroupHeartbeatResponse)
        assert response.error_code == ErrorCode.FENCED_MEMBER_EPOCH, response
        fields = {"member_id": last.name, "generation_id_or_member_epoch": last.epoch + 1}
        done = wire.get(commit(GROUP, "lines", self.topic_id, **fields), 9, OffsetCommitResponse)
        assert done.topics[0].partitions[0].error_code == ErrorCode.STALE_MEMBER_EPOCH, done


@every_exchange
def test_streams_groups_change_hands(tmp_path: Path, lives: Lives) -> None:
    application = Application()
    before: tuple[DescribedGroup, object] | None = None
    topology: object = None
    for number, (who, end) in enumerate(lives):
        with (
            life(tmp_path / "data", who, end, STREAMS_SETTINGS) as broker,
            WireClient(broker.bootstrap) as wire,
        ):
            if before is None:
                application.set_up(wire)
                application.find(wire)
            else:
                assert application.see(wire) == before, f"life {number}"
                assert application.go_on(wire) == topology
                application.check_fencing(wire)
            application.work(wire)
            before, topology = application.see(wire), application.describe(wire).topology
