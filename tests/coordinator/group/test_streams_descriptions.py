"""What Kafka 4.4 has added to streams groups: descriptions of applications, and offsets of tasks."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.coordinator.group.requests import DescribeStreamsGroup
from ottla.coordinator.group.streams.topology_description import (
    ASK_AGAIN_MS,
    MAX_BYTES,
    TopologyDescriptionStatus,
)
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.streams_group_describe import DescribedGroup
from ottla.protocol.messages.streams_group_heartbeat import StreamsGroupHeartbeatResponse, TaskOffset
from ottla.protocol.messages.streams_group_topology_description_update import (
    StreamsGroupTopologyDescriptionUpdateRequest,
    TopologyDescription,
    TopologyDescriptionGlobalStore,
    TopologyDescriptionNode,
    TopologyDescriptionSubtopology,
)
from tests.coordinator.group.group_harness import GROUP, Answer, GroupHarness
from tests.coordinator.group.streams_topologies import STATELESS

SOURCE = TopologyDescriptionNode(name="in", node_type=1, source_topics=["lines"], successors=["count"])
PROCESSOR = TopologyDescriptionNode(name="count", node_type=2, stores=["counts"], successors=["out"])
SINK = TopologyDescriptionNode(name="out", node_type=3, sink_topic="counts")
NODES = TopologyDescriptionSubtopology(subtopology_id="0", nodes=[SOURCE, PROCESSOR, SINK])
DESCRIPTION = TopologyDescription(
    subtopologies=[NODES],
    global_stores=[TopologyDescriptionGlobalStore(source=SOURCE, processor=PROCESSOR)],
)


@pytest.fixture
def lab() -> GroupHarness:
    return GroupHarness({"lines": 4}, streams_assignment_interval_ms=0, streams_initial_rebalance_delay_ms=0)


def beat(lab: GroupHarness, member: str, epoch: int, **changes: Any) -> StreamsGroupHeartbeatResponse:
    found = lab.streams_beat(member, epoch, **{"version": 1, **changes}).ok().response
    assert isinstance(found, StreamsGroupHeartbeatResponse)
    return found


def push(lab: GroupHarness, member: str = "a", epoch: int = 0, **changes: Any) -> Answer:
    request = StreamsGroupTopologyDescriptionUpdateRequest(
        group_id=GROUP, member_id=member, topology_epoch=epoch, topology_description=DESCRIPTION
    ).replace(**changes)
    return lab.send(request, 0)


def described(lab: GroupHarness) -> DescribedGroup:
    found = lab.submit(DescribeStreamsGroup(GROUP, include_topology_description=True)).ok()
    assert isinstance(found, DescribedGroup)
    return found


def test_one_member_at_a_time_is_asked_for_a_description_until_there_is_one(lab: GroupHarness) -> None:
    patient = {"topology": STATELESS, "rebalance_ms": 10**9}
    assert not beat(lab, "a", 0, **patient).topology_description_required  # the group is new
    assert beat(lab, "a", 2).topology_description_required
    assert not beat(lab, "a", 2).topology_description_required
    assert not beat(lab, "b", 0, **patient).topology_description_required

    def are_asked(members: str) -> bool:
        lab.advance(20_000)
        epochs = {id: lab.streams.members[id].epoch for id in members}
        asked = [beat(lab, id, epoch).topology_description_required for id, epoch in epochs.items()]
        return any(asked)

    rounds = ASK_AGAIN_MS // 20_000
    assert [are_asked("ab") for _ in range(rounds)] == [False] * (rounds - 1) + [True]
    push(lab, "b").ok()
    assert [are_asked("ab") for _ in range(rounds + 1)] == [False] * (rounds + 1)
    # The next coordinator has none.
    lab.reload()
    assert described(lab).topology_description_status == TopologyDescriptionStatus.NOT_STORED
    assert are_asked("ab")


def test_a_member_of_kafka_4_3_is_not_asked(lab: GroupHarness) -> None:
    beat(lab, "a", 0, topology=STATELESS, version=0)
    old = beat(lab, "a", 2, version=0)
    assert not old.topology_description_required
    assert (old.task_offset_interval_ms, old.acceptable_recovery_lag_legacy) == (0, 0)
    new = beat(lab, "a", 2)
    assert new.topology_description_required
    # No warm-up tasks are given, so there is no lag that one may have.
    assert (new.task_offset_interval_ms, new.acceptable_recovery_lag) == (60_000, -1)


def test_the_description_is_shown_to_those_who_ask_for_it(lab: GroupHarness) -> None:
    beat(lab, "a", 0, topology=STATELESS)
    assert described(lab).topology_description_status == TopologyDescriptionStatus.NOT_STORED
    push(lab).ok()
    found = described(lab)
    assert found.topology_description_status == TopologyDescriptionStatus.AVAILABLE
    assert found.topology_description == DESCRIPTION
    assert found.assignor_name == "sticky"
    without = lab.submit(DescribeStreamsGroup(GROUP)).ok()
    assert without.topology_description is None
    assert without.topology_description_status == TopologyDescriptionStatus.NOT_REQUESTED


def with_nodes(*nodes: TopologyDescriptionNode) -> TopologyDescription:
    return TopologyDescription(
        subtopologies=[TopologyDescriptionSubtopology(subtopology_id="0", nodes=list(nodes))]
    )


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"member_id": "z"}, ErrorCode.UNKNOWN_MEMBER_ID, "Member z is not a member"),
        ({"group_id": "none"}, ErrorCode.GROUP_ID_NOT_FOUND, "none"),
        ({"topology_epoch": 3}, ErrorCode.INVALID_REQUEST, "Topology epoch 3 does not match"),
        ({"topology_epoch": -1}, ErrorCode.INVALID_REQUEST, "Topology epoch -1 does not match"),
        (
            {"topology_description": with_nodes(SOURCE.replace(node_type=9))},
            ErrorCode.INVALID_REQUEST,
            "Unknown topology node type: 9",
        ),
        (
            {
                "topology_description": TopologyDescription(
                    global_stores=[TopologyDescriptionGlobalStore(source=SINK, processor=PROCESSOR)]
                )
            },
            ErrorCode.INVALID_REQUEST,
            "Global store must be composed of a source and a processor node.",
        ),
    ],
)
def test_a_description_that_does_not_fit_the_group_is_refused(
    lab: GroupHarness, changes: dict[str, Any], code: ErrorCode, message: str
) -> None:
    beat(lab, "a", 0, topology=STATELESS)
    refused = push(lab, **changes)
    assert refused.error is code
    assert message in refused.value.message
    assert described(lab).topology_description_status == TopologyDescriptionStatus.NOT_STORED
    assert beat(lab, "a", 2).topology_description_required


def test_a_description_that_is_too_large_is_not_kept_and_not_asked_for_again(lab: GroupHarness) -> None:
    beat(lab, "a", 0, topology=STATELESS)
    large = with_nodes(SOURCE.replace(successors=["n" * 100] * (MAX_BYTES // 100)))
    refused = push(lab, topology_description=large)
    assert refused.error is ErrorCode.STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED
    assert str(MAX_BYTES) in refused.value.message
    assert described(lab).topology_description is None
    assert not beat(lab, "a", 2).topology_description_required


def test_offsets_of_tasks_are_shown_as_the_member_told_them(lab: GroupHarness) -> None:
    def offset(subtopology: str, partition: int, at: int) -> TaskOffset:
        return TaskOffset(subtopology_id=subtopology, partition=partition, offset=at)

    def shown() -> list[tuple[str, int, int]]:
        (member,) = described(lab).members
        assert member.task_offsets == member.task_end_offsets
        return [(each.subtopology_id, each.partition, each.offset) for each in member.task_offsets]

    beat(lab, "a", 0, topology=STATELESS)
    assert shown() == []
    # What the topology does not have is not kept.
    sent = [
        offset("0", 3, 7),
        offset("0", 1, 2**62),
        offset("0", 4, 1),
        offset("0", -1, 1),
        offset("9", 0, 1),
    ]
    beat(lab, "a", 2, offsets=sent)
    assert shown() == [("0", 1, 2**62), ("0", 3, 7)]
    beat(lab, "a", 2)
    assert shown() == [("0", 1, 2**62), ("0", 3, 7)]
    beat(lab, "a", 2, offsets=[offset("0", 3, 8)])
    assert shown() == [("0", 3, 8)]
    assert lab.streams_beat("a", 2, offsets=[], version=0).error is ErrorCode.INVALID_REQUEST
    lab.streams_beat("a", -1, version=1)
    assert lab.streams.task_offsets == {}
