"""Streams groups, as dialogues between members and their coordinator."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from ottla.coordinator.group.config import GroupSettings
from ottla.coordinator.group.requests import (
    DeleteGroup,
    DescribeStreamsGroup,
    ListGroups,
    StreamsGroupHeartbeat,
)
from ottla.coordinator.group.streams.internal_topic_manager import MAX_TASKS, StreamsStatus
from ottla.coordinator.group.streams.streams_group import (
    StreamsGroup,
    StreamsGroupState,
    StreamsMemberState,
)
from ottla.coordinator.runtime.effects import ProducerIdAndEpoch
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from ottla.protocol.messages.streams_group_heartbeat import (
    CopartitionGroup,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    TaskIds,
    TaskOffset,
)
from tests.coordinator.group.group_harness import GROUP, Answer, GroupHarness, durable
from tests.coordinator.group.streams_topologies import (
    STATEFUL,
    STATELESS,
    WORD_COUNT,
    subtopology,
    topic,
    topology,
)
from tests.support.rows import for_each

AT_ONCE = {"streams_assignment_interval_ms": 0, "streams_initial_rebalance_delay_ms": 0}


def lab_with(topics: dict[str, int] | None = None, **config: Any) -> GroupHarness:
    return GroupHarness({"lines": 4} if topics is None else topics, **{**AT_ONCE, **config})


def response(answer: Answer) -> StreamsGroupHeartbeatResponse:
    found = answer.ok().response
    assert isinstance(found, StreamsGroupHeartbeatResponse)
    assert found.error_code == 0
    return found


def active(answer: Answer) -> dict[str, list[int]]:
    """The active tasks in a response; fails if it has none at all."""
    tasks = response(answer).active_tasks
    assert tasks is not None
    return {each.subtopology_id: each.partitions for each in tasks}


def standby(answer: Answer) -> dict[str, list[int]]:
    tasks = response(answer).standby_tasks
    assert tasks is not None
    return {each.subtopology_id: each.partitions for each in tasks}


def statuses(answer: Answer) -> list[StreamsStatus]:
    found = response(answer).status
    assert found is not None
    return [StreamsStatus(each.status_code) for each in found]


# Joining


def test_the_first_member_gets_all_tasks() -> None:
    lab = lab_with()
    joined = lab.streams_beat("a", 0, topology=STATELESS)
    assert active(joined) == {"0": [0, 1, 2, 3]}
    assert (standby(joined), response(joined).warmup_tasks) == ({}, [])
    assert (response(joined).member_id, response(joined).member_epoch) == ("a", 2)
    assert response(joined).status == []
    assert lab.streams.state is StreamsGroupState.STABLE
    quiet = response(lab.streams_beat("a", 2))
    assert quiet.member_epoch == 2
    assert quiet.active_tasks is None  # nothing new
    assert quiet.status == []


def test_a_second_member_waits_until_the_first_has_given_up_its_share() -> None:
    lab = lab_with()
    lab.streams_beat("a", 0, topology=STATELESS)
    joined = lab.streams_beat("b", 0, topology=STATELESS)
    assert (response(joined).member_epoch, active(joined)) == (3, {})
    assert lab.streams.members["b"].state is StreamsMemberState.UNRELEASED_TASKS
    assert lab.streams.state is StreamsGroupState.RECONCILING
    revoking = lab.streams_beat("a", 2)
    assert (response(revoking).member_epoch, active(revoking)) == (2, {"0": [0, 1]})
    assert response(lab.streams_beat("a", 2, active={"0": [0, 1, 2, 3]})).active_tasks is None
    assert response(lab.streams_beat("b", 3)).active_tasks is None
    assert response(lab.streams_beat("a", 2, active={"0": [0, 1]})).member_epoch == 3
    assert active(lab.streams_beat("b", 3)) == {"0": [2, 3]}
    assert lab.streams.state is StreamsGroupState.STABLE


def test_the_first_assignment_of_a_group_waits_for_more_members() -> None:
    lab = lab_with(streams_initial_rebalance_delay_ms=3_000)
    first = lab.streams_beat("a", 0, topology=STATELESS)
    assert (active(first), statuses(first)) == ({}, [StreamsStatus.ASSIGNMENT_DELAYED])
    assert response(first).member_epoch == 1
    lab.advance(2_000)
    assert statuses(lab.streams_beat("b", 0, topology=STATELESS)) == [StreamsStatus.ASSIGNMENT_DELAYED]
    assert lab.streams.state is StreamsGroupState.ASSIGNING
    lab.advance(999)
    assert statuses(lab.streams_beat("a", 1)) == [StreamsStatus.ASSIGNMENT_DELAYED]
    lab.advance(1)
    both = [lab.streams_beat(member, 1) for member in "ab"]
    assert [active(each) for each in both] == [{"0": [0, 2]}, {"0": [1, 3]}]
    assert [statuses(each) for each in both] == [[], []]
    assert lab.streams.state is StreamsGroupState.STABLE


def test_a_coordinator_that_takes_over_does_not_wait_again() -> None:
    lab = lab_with(streams_initial_rebalance_delay_ms=3_000)
    lab.streams_beat("a", 0, topology=STATELESS)
    lab.reload()
    assert active(lab.streams_beat("a", 1)) == {"0": [0, 1, 2, 3]}


def test_assignments_follow_each_other_after_an_interval() -> None:
    lab = lab_with(streams_assignment_interval_ms=1_000)
    lab.streams_beat("a", 0, topology=STATELESS)
    lab.advance(500)
    joined = lab.streams_beat("b", 0, topology=STATELESS)
    assert statuses(joined) == [StreamsStatus.ASSIGNMENT_DELAYED]
    assert lab.streams.state is StreamsGroupState.ASSIGNING
    lab.advance(500)
    assert statuses(lab.streams_beat("b", 2)) == []
    assert lab.streams.target_epoch == 3


def test_the_first_tasks_do_not_wait_for_the_interval_after_a_target_without_tasks() -> None:
    lab = lab_with(streams_assignment_interval_ms=1_000)
    lab.streams_beat("a", 0, topology=WORD_COUNT)  # its internal topics are missing
    for name in ("words-repartition", "counts-changelog"):
        lab.set_topic(name, 4)
    lab.advance(100)
    assert active(lab.streams_beat("a", 2)) == {"0": [0, 1, 2, 3], "1": [0, 1, 2, 3]}


def test_members_come_back_when_an_assignment_is_due() -> None:
    lab = lab_with(streams_initial_rebalance_delay_ms=3_000, streams_assignment_interval_ms=1_000)
    assert response(lab.streams_beat("a", 0, topology=STATELESS)).heartbeat_interval_ms == 3_000
    lab.advance(2_500)
    assert response(lab.streams_beat("b", 0, topology=STATELESS)).heartbeat_interval_ms == 500
    lab.advance(490)
    assert response(lab.streams_beat("b", 1)).heartbeat_interval_ms == 100  # not sooner than others do
    lab.advance(10)
    for member in "ab":
        assert response(lab.streams_beat(member, 1)).member_epoch == 3
    lab.advance(300)
    assert response(lab.streams_beat("c", 0, topology=STATELESS)).heartbeat_interval_ms == 700


def test_members_come_back_soon_while_internal_topics_are_created_though_the_assignment_waits() -> None:
    lab = lab_with(streams_initial_rebalance_delay_ms=3_000)
    assert response(lab.streams_beat("a", 0, topology=WORD_COUNT)).heartbeat_interval_ms == 100
    for name in ("words-repartition", "counts-changelog"):
        lab.set_topic(name, 4)
    lab.advance(100)
    assert response(lab.streams_beat("a", 1)).heartbeat_interval_ms == 2_900
    lab.advance(2_900)
    assert active(lab.streams_beat("a", 1)) == {"0": [0, 1, 2, 3], "1": [0, 1, 2, 3]}


def test_members_come_back_soon_while_the_group_is_not_settled() -> None:
    lab = lab_with()
    first = response(lab.streams_beat("a", 0, topology=STATELESS))
    assert first.heartbeat_interval_ms == 100
    lab.advance(40_000)
    assert response(lab.streams_beat("a", 2)).heartbeat_interval_ms == 5_000


def test_a_member_that_changes_its_tags_raises_the_epoch() -> None:
    lab = lab_with()
    lab.streams_beat("a", 0, topology=STATELESS)
    assert response(lab.streams_beat("a", 2, tags={"zone": "x"})).member_epoch == 3
    assert lab.streams.members["a"].client_tags == {"zone": "x"}
    assert response(lab.streams_beat("a", 3, tags={"zone": "x"})).member_epoch == 3


def test_a_full_group_accepts_no_member() -> None:
    lab = lab_with(streams_max_size=1)
    lab.streams_beat("a", 0, topology=STATELESS)
    assert lab.streams_beat("b", 0, topology=STATELESS).error is ErrorCode.GROUP_MAX_SIZE_REACHED


# Requests that are refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"member_id": ""}, "MemberId can't be empty."),
        ({"instance_id": "x"}, "Static membership is not yet supported."),
        ({"rack_id": ""}, "RackId can't be empty."),
        ({"rebalance_timeout_ms": -1}, "RebalanceTimeoutMs must be provided in first request."),
        ({"active_tasks": None}, "ActiveTasks must be empty when (re-)joining."),
        ({"standby_tasks": [TaskIds()]}, "StandbyTasks must be empty when (re-)joining."),
        ({"warmup_tasks": [TaskIds()]}, "WarmupTasks are not supported yet."),
        ({"topology": None}, "Topology must be non-null when (re-)joining."),
        ({"task_offsets": [TaskOffset()]}, "TaskOffsets are not supported yet."),
        ({"task_end_offsets": [TaskOffset()]}, "TaskEndOffsets are not supported yet."),
        ({"member_epoch": -3}, "MemberEpoch is -3, but must be greater than or equal to -2."),
        ({"member_epoch": -2}, "InstanceId can't be null."),
        ({"member_epoch": 1}, "Topology can only be provided when (re-)joining."),
        (
            {"member_epoch": 1, "topology": None, "active_tasks": None},
            "If one task-type is non-null, all must be non-null.",
        ),
    ],
)
def test_malformed_heartbeats_are_refused(changes: dict[str, Any], message: str) -> None:
    lab = lab_with()
    body = StreamsGroupHeartbeatRequest(
        group_id=GROUP,
        member_id="a",
        rebalance_timeout_ms=1_000,
        topology=STATELESS,
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
        process_id="p",
    ).replace(**changes)
    answer = lab.submit(StreamsGroupHeartbeat(body, 0, "client", "/127.0.0.1"))
    assert (answer.error, answer.value.message) == (ErrorCode.INVALID_REQUEST, message)
    assert lab.log == []


def test_regular_expressions_of_source_topics_are_refused() -> None:
    lab = lab_with()
    matching = topology(subtopology("0").replace(source_topic_regex=["l.*"]))
    answer = lab.streams_beat("a", 0, topology=matching)
    assert answer.error is ErrorCode.INVALID_REQUEST


def test_a_changelog_topic_with_a_count_is_refused() -> None:
    lab = lab_with()
    counted = topology(subtopology("0", "lines", changelogs=(topic("store", 3),)))
    assert lab.streams_beat("a", 0, topology=counted).error is ErrorCode.STREAMS_INVALID_TOPOLOGY


def test_a_topology_with_too_many_tasks_is_refused() -> None:
    lab = lab_with()
    many = topology(*(subtopology(str(number), "lines") for number in range(MAX_TASKS // 4 + 1)))
    assert lab.streams_beat("a", 0, topology=many).error is ErrorCode.STREAMS_INVALID_TOPOLOGY


@pytest.mark.slow
def test_a_long_chain_of_subtopologies_takes_linear_time() -> None:
    """In the worst order: each waits for the count of the next one. With a look at all of them for each it
    would take minutes.
    """
    lab = lab_with()
    length = 20_000
    chain = topology(
        *(
            subtopology(
                f"{number:05}",
                *(("lines",) if number == length else ()),
                sinks=(f"t{number}",),
                repartition=() if number == length else (topic(f"t{number + 1}"),),
            )
            for number in range(length + 1)
        ),
        subtopology("last", repartition=(topic("t0"),)),
    )
    started = time.process_time()
    lab.streams_beat("a", 0, topology=chain)
    assert time.process_time() - started < 30


@pytest.mark.parametrize(
    "group", [{"source_topics": [1]}, {"source_topics": [-1]}, {"repartition_source_topics": [0]}]
)
def test_a_copartition_group_of_topics_that_the_subtopology_does_not_have_is_refused(
    group: dict[str, list[int]],
) -> None:
    lab = lab_with()
    broken = topology(subtopology("0", "lines"))
    broken.subtopologies[0].copartition_groups = [CopartitionGroup(**group)]
    refused = lab.streams_beat("a", 0, topology=broken)
    assert refused.error is ErrorCode.STREAMS_INVALID_TOPOLOGY


def test_a_group_that_does_not_exist_is_told() -> None:
    lab = lab_with()
    assert lab.streams_beat("a", 1).error is ErrorCode.GROUP_ID_NOT_FOUND
    assert lab.streams_beat("a", -1).error is ErrorCode.GROUP_ID_NOT_FOUND


def test_tasks_that_the_topology_does_not_have_are_refused() -> None:
    lab = lab_with()
    lab.streams_beat("a", 0, topology=STATELESS)
    for owned in ({"7": [0]}, {"0": [4]}, {"0": [-1]}):
        assert lab.streams_beat("a", 2, active=owned).error is ErrorCode.INVALID_REQUEST


# Epochs


def test_members_of_other_epochs_are_fenced() -> None:
    lab = lab_with()
    lab.streams_beat("a", 0, topology=STATELESS)
    assert lab.streams_beat("a", 3).error is ErrorCode.FENCED_MEMBER_EPOCH
    assert lab.streams_beat("a", 1).error is ErrorCode.FENCED_MEMBER_EPOCH
    assert lab.streams_beat("b", 2).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_did_not_get_its_new_epoch_may_repeat_the_old_one() -> None:
    lab = lab_with()
    lab.streams_beat("a", 0, topology=STATELESS)
    lab.streams_beat("a", 2, tags={"zone": "x"})
    assert lab.streams_beat("a", 2).error is ErrorCode.FENCED_MEMBER_EPOCH  # it does not say what it owns
    repeated = response(lab.streams_beat("a", 2, active={"0": [0, 1, 2, 3]}))
    assert repeated.member_epoch == 3
    assert lab.streams_beat("a", 2, active={"1": [0]}).error is ErrorCode.FENCED_MEMBER_EPOCH


def test_a_member_that_joins_again_keeps_its_tasks() -> None:
    lab = lab_with()
    lab.streams_beat("a", 0, topology=STATELESS)
    again = lab.streams_beat("a", 0, topology=STATELESS)
    assert (response(again).member_epoch, active(again)) == (2, {"0": [0, 1, 2, 3]})


# Leaving and time-outs


def test_the_tasks_of_a_member_that_leaves_go_to_the_others() -> None:
    lab = lab_with()
    lab.streams_beat("a", 0, topology=STATELESS)
    lab.streams_beat("b", 0, topology=STATELESS)
    left = response(lab.streams_beat("a", -1))
    assert (left.member_epoch, left.status) == (-1, [])
    assert active(lab.streams_beat("b", 3)) == {"0": [0, 1, 2, 3]}
    assert lab.streams.members.keys() == lab.streams.target.keys() == {"b"}


def test_a_silent_member_is_fenced_after_its_session() -> None:
    lab = lab_with()
    lab.streams_beat("a", 0, topology=STATELESS)
    lab.advance(44_999)
    assert "a" in lab.streams.members
    lab.advance(1)
    assert lab.streams.state is StreamsGroupState.EMPTY
    assert lab.streams_beat("a", 2).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_session_that_ends_while_nothing_can_be_written_is_ended_later() -> None:
    lab = lab_with()
    lab.streams_beat("a", 0, topology=STATELESS)
    lab.fail_writes = True
    lab.advance(50_000)
    assert "a" in lab.streams.members
    lab.fail_writes = False
    lab.advance(500)
    assert lab.streams.is_empty


def test_members_that_do_not_revoke_in_time_are_fenced() -> None:
    lab = lab_with()
    lab.streams_beat("a", 0, topology=STATELESS, rebalance_ms=20_000)
    lab.streams_beat("b", 0, topology=STATELESS)
    lab.streams_beat("a", 2)
    lab.advance(19_999)
    assert lab.streams.members["a"].state is StreamsMemberState.UNREVOKED_TASKS
    lab.advance(1)
    assert "a" not in lab.streams.members
    assert active(lab.streams_beat("b", 3)) == {"0": [0, 1, 2, 3]}


def test_time_outs_go_on_after_another_broker_has_taken_over() -> None:
    lab = lab_with()
    lab.streams_beat("a", 0, topology=STATELESS, rebalance_ms=20_000)
    lab.streams_beat("b", 0, topology=STATELESS)
    lab.streams_beat("a", 2)
    lab.reload()
    lab.advance(20_000)
    assert lab.streams.members.keys() == {"b"}
    lab.advance(25_000)
    assert lab.streams.is_empty


# Topologies and topics


def test_missing_source_topics_are_a_status_until_they_are_there() -> None:
    lab = lab_with({})
    joined = lab.streams_beat("a", 0, topology=STATELESS)
    assert (active(joined), statuses(joined)) == ({}, [StreamsStatus.MISSING_SOURCE_TOPICS])
    assert lab.streams.state is StreamsGroupState.NOT_READY
    # The application gives up after two intervals: they must not be short.
    assert response(joined).heartbeat_interval_ms == 5_000
    epoch = response(joined).member_epoch
    assert statuses(lab.streams_beat("a", epoch)) == [StreamsStatus.MISSING_SOURCE_TOPICS]
    lab.set_topic("lines", 2)
    assert active(lab.streams_beat("a", epoch)) == {"0": [0, 1]}
    assert lab.streams.state is StreamsGroupState.STABLE


def test_missing_internal_topics_are_to_be_created() -> None:
    lab = lab_with({"lines": 3})
    joined = lab.streams_beat("a", 0, topology=WORD_COUNT)
    assert statuses(joined) == [StreamsStatus.MISSING_INTERNAL_TOPICS]
    creatable = {each.name: each.num_partitions for each in joined.ok().creatable_topics}
    assert creatable == {"counts-changelog": 3, "words-repartition": 3}
    lab.set_topic("words-repartition", 3)
    again = lab.streams_beat("a", response(joined).member_epoch)
    assert [each.name for each in again.ok().creatable_topics] == ["counts-changelog"]
    lab.set_topic("counts-changelog", 3)
    ready = lab.streams_beat("a", response(again).member_epoch)
    assert ready.ok().creatable_topics == ()
    assert active(ready) == {"0": [0, 1, 2], "1": [0, 1, 2]}


def test_new_partitions_of_a_source_topic_are_new_tasks() -> None:
    lab = lab_with({"lines": 2})
    lab.streams_beat("a", 0, topology=STATELESS)
    lab.set_topic("lines", 3)
    assert active(lab.streams_beat("a", 2)) == {"0": [0, 1, 2]}


def test_topics_that_are_none_of_the_group_change_nothing() -> None:
    lab = lab_with()
    lab.streams_beat("a", 0, topology=STATELESS)
    before = len(lab.log)
    lab.set_topic("other", 3)
    assert response(lab.streams_beat("a", 2)).member_epoch == 2
    assert len(lab.log) == before


def test_a_deleted_source_topic_takes_the_tasks_away() -> None:
    lab = lab_with()
    lab.streams_beat("a", 0, topology=STATELESS)
    lab.delete_topic("lines")
    gone = lab.streams_beat("a", 2)
    assert (active(gone), statuses(gone)) == ({}, [StreamsStatus.MISSING_SOURCE_TOPICS])
    assert lab.streams.state is StreamsGroupState.NOT_READY


def test_a_member_with_an_older_topology_is_told() -> None:
    lab = lab_with()
    newer = STATELESS.replace(epoch=1)
    lab.streams_beat("a", 0, topology=newer)
    assert statuses(lab.streams_beat("b", 0, topology=STATELESS)) == [StreamsStatus.STALE_TOPOLOGY]


def test_another_topology_is_refused() -> None:
    lab = lab_with()
    lab.streams_beat("a", 0, topology=STATELESS)
    for other in (STATEFUL, STATELESS.replace(epoch=1)):
        answer = lab.streams_beat("b", 0, topology=other)
        assert (answer.error, answer.value.message) == (
            ErrorCode.INVALID_REQUEST,
            "Topology updates are not supported yet.",
        )


def test_a_shutdown_of_the_application_is_told_to_all_members() -> None:
    lab = lab_with()
    lab.streams_beat("a", 0, topology=STATELESS)
    lab.streams_beat("b", 0, topology=STATELESS)
    lab.streams_beat("a", -1, shutdown=True)
    told = response(lab.streams_beat("b", 3))
    assert told.status is not None
    assert [(each.status_code, each.status_detail) for each in told.status] == [
        (
            4,
            "Streams group member a encountered a fatal error and requested a shutdown for the entire "
            "application.",
        )
    ]
    lab.streams_beat("b", -1)
    assert statuses(lab.streams_beat("c", 0, topology=STATELESS)) == []


def test_a_member_may_ask_for_the_shutdown_and_stay() -> None:
    lab = lab_with()
    lab.streams_beat("a", 0, topology=STATELESS)
    assert statuses(lab.streams_beat("a", 2, shutdown=True)) == [StreamsStatus.SHUTDOWN_APPLICATION]
    assert statuses(lab.streams_beat("a", 2)) == [StreamsStatus.SHUTDOWN_APPLICATION]


# Standby tasks and processes


def test_standby_tasks_are_in_other_processes() -> None:
    lab = lab_with({"lines": 2, "counts-changelog": 2}, streams_num_standby_replicas=1)
    lab.streams_beat("a", 0, topology=STATEFUL)
    lab.streams_beat("b", 0, topology=STATEFUL)
    revoked = lab.streams_beat("a", 2)
    assert active(revoked) == {"0": [0]}
    assert response(lab.streams_beat("a", 2, active={"0": [0]})).member_epoch == 3
    # The process had the task itself until that heartbeat.
    assert standby(lab.streams_beat("a", 3)) == {"0": [1]}
    both = lab.streams_beat("b", 3)
    assert (active(both), standby(both)) == ({"0": [1]}, {"0": [0]})
    assert lab.streams.state is StreamsGroupState.STABLE


def test_a_task_is_not_given_to_a_process_that_still_has_it_in_another_role() -> None:
    lab = lab_with({"lines": 1, "counts-changelog": 1}, streams_num_standby_replicas=1)
    lab.streams_beat("a", 0, topology=STATEFUL, process="p")
    assert standby(lab.streams_beat("b", 0, topology=STATEFUL, process="q")) == {"0": [0]}
    # The active task's process ends; another thread of the standby's process joins at the same time.
    lab.streams_beat("c", 0, topology=STATEFUL, process="q")
    lab.streams_beat("a", -1)
    for _ in range(3):
        for member in "bc":
            held = lab.streams.members[member].assigned
            lab.streams_beat(
                member,
                lab.streams.members[member].epoch,
                active={id: list(ids) for id, ids in held.active.items()},
                standby={id: list(ids) for id, ids in held.standby.items()},
            )
    assert lab.streams.state is StreamsGroupState.STABLE
    assert lab.streams.active_processes == {("0", 0): "q"}
    assert lab.streams.other_processes == {}


def test_a_changed_number_of_standbys_raises_the_epoch() -> None:
    lab = lab_with({"lines": 1, "counts-changelog": 1})
    lab.streams_beat("a", 0, topology=STATEFUL)
    lab.settings = GroupSettings(lab.settings.node, {GROUP: {"streams.num.standby.replicas": "1"}})
    lab.shard.metadata.settings = lab.settings
    assert response(lab.streams_beat("a", 2)).member_epoch == 3
    assert lab.streams.assignment_configs == {"num.standby.replicas": "1"}


def test_groups_have_settings_of_their_own() -> None:
    lab = lab_with()
    lab.shard.metadata.settings = GroupSettings(
        lab.settings.node,
        {GROUP: {"streams.session.timeout.ms": "50000", "streams.heartbeat.interval.ms": "60"}},
    )
    joined = lab.streams_beat("a", 0, topology=STATELESS)
    assert response(joined).heartbeat_interval_ms == 60
    lab.advance(49_999)
    assert not lab.streams.is_empty
    lab.advance(1)
    assert lab.streams.is_empty


# Endpoints


def test_members_learn_the_endpoints_of_all_when_they_change() -> None:
    lab = lab_with({"lines": 2})
    lab.streams_beat("a", 0, topology=STATELESS, endpoint=("here", 1), endpoint_epoch=-1)
    joined = response(lab.streams_beat("b", 0, topology=STATELESS, endpoint=("there", 2), endpoint_epoch=-1))
    assert joined.endpoint_information_epoch == 1
    assert joined.partitions_by_user_endpoint is not None
    shown = {
        (each.user_endpoint.host, each.user_endpoint.port): {
            partitions.topic: partitions.partitions for partitions in each.active_partitions
        }
        for each in joined.partitions_by_user_endpoint
    }
    assert shown == {("here", 1): {"lines": [0, 1]}, ("there", 2): {}}
    assert response(lab.streams_beat("b", 3, endpoint_epoch=1)).partitions_by_user_endpoint is None
    lab.streams_beat("a", 2, endpoint_epoch=1)
    moved = response(lab.streams_beat("b", 3, endpoint_epoch=1))
    assert moved.endpoint_information_epoch == 2
    assert moved.partitions_by_user_endpoint is not None
    assert [
        partitions.partitions
        for each in moved.partitions_by_user_endpoint
        for partitions in each.active_partitions
    ] == [[0]]


# Offsets


def test_members_commit_in_their_epoch() -> None:
    lab = lab_with()
    lab.streams_beat("a", 0, topology=STATELESS)
    assert lab.commit_codes(lab.commit({("lines", 0): 5}, member_id="a", epoch=2)) == [ErrorCode.NONE]
    assert lab.commit({("lines", 0): 6}, member_id="a", epoch=3).error is ErrorCode.STALE_MEMBER_EPOCH
    assert lab.commit({("lines", 0): 6}, member_id="a", epoch=1).error is ErrorCode.STALE_MEMBER_EPOCH
    assert lab.commit({("lines", 0): 6}, member_id="b", epoch=2).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert lab.commit({("lines", 0): 6}).error is ErrorCode.UNKNOWN_MEMBER_ID
    old = lab.commit({("lines", 0): 6}, member_id="a", epoch=2, version=8)
    assert old.error is ErrorCode.UNSUPPORTED_VERSION
    assert lab.offsets(("lines", 0)) == {("lines", 0): 5}


def test_a_commit_of_an_older_epoch_counts_for_tasks_that_the_member_has_had_since() -> None:
    lab = lab_with()
    lab.streams_beat("a", 0, topology=STATELESS)
    lab.streams_beat("a", 2, tags={"zone": "x"})
    assert lab.streams.members["a"].epoch == 3
    assert lab.commit_codes(lab.commit({("lines", 1): 5}, member_id="a", epoch=2)) == [ErrorCode.NONE]
    assert lab.commit({("other", 0): 5}, member_id="a", epoch=2).error is ErrorCode.STALE_MEMBER_EPOCH
    assert lab.commit({("lines", 9): 5}, member_id="a", epoch=2).error is ErrorCode.STALE_MEMBER_EPOCH
    producer = ProducerIdAndEpoch(1, 0)
    ok = lab.txn_commit(producer, {("lines", 1): 7}, member_id="a", epoch=2)
    assert lab.commit_codes(ok) == [ErrorCode.NONE]


def test_transactions_of_another_epoch_are_refused() -> None:
    lab = lab_with()
    lab.streams_beat("a", 0, topology=STATELESS)
    producer = ProducerIdAndEpoch(1, 0)
    for epoch in (1, 3):
        stale = lab.txn_commit(producer, {("lines", 1): 7}, member_id="a", epoch=epoch)
        assert stale.error is ErrorCode.ILLEGAL_GENERATION
    unknown = lab.txn_commit(producer, {("lines", 1): 7}, member_id="b", epoch=2)
    assert unknown.error is ErrorCode.UNKNOWN_MEMBER_ID
    assert lab.commit_codes(lab.txn_commit(producer, {("lines", 1): 7})) == [ErrorCode.NONE]


def test_offsets_are_fetched_in_the_epoch_of_the_member() -> None:
    lab = lab_with()
    lab.streams_beat("a", 0, topology=STATELESS)
    lab.commit({("lines", 0): 5}, member_id="a", epoch=2)
    assert lab.offsets(("lines", 0), member_id="a", epoch=2) == {("lines", 0): 5}
    assert lab.fetch(("lines", 0), member_id="a", epoch=1).error is ErrorCode.STALE_MEMBER_EPOCH
    assert lab.fetch(("lines", 0), member_id="b", epoch=2).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_offsets_of_source_topics_are_not_deleted_while_there_are_members() -> None:
    lab = lab_with()
    lab.streams_beat("a", 0, topology=STATELESS)
    lab.commit({("lines", 0): 5}, member_id="a", epoch=2)
    request = OffsetDeleteRequest(
        group_id=GROUP,
        topics=[
            OffsetDeleteRequestTopic(
                name="lines", partitions=[OffsetDeleteRequestPartition(partition_index=0)]
            )
        ],
    )
    assert lab.commit_codes(lab.send(request)) == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC]
    lab.streams_beat("a", -1)
    assert lab.commit_codes(lab.send(request)) == [ErrorCode.NONE]
    assert lab.offsets(("lines", 0)) == {("lines", 0): -1}


# Listing, describing, deleting, other kinds of groups


def test_a_streams_group_is_listed_and_described() -> None:
    lab = lab_with({"lines": 1, "words-repartition": 1, "counts-changelog": 1})
    lab.streams_beat("a", 0, topology=WORD_COUNT, endpoint=("here", 1), tags={"zone": "x"})
    listed = lab.submit(ListGroups(frozenset({"stable"}), frozenset({"streams"}))).ok()
    assert [(each.group_id, each.protocol_type, each.group_state, each.group_type) for each in listed] == [
        (GROUP, "streams", "Stable", "streams")
    ]
    described = lab.submit(DescribeStreamsGroup(GROUP)).ok()
    assert (described.group_state, described.group_epoch, described.assignment_epoch) == ("Stable", 2, 2)
    assert [
        (
            each.subtopology_id,
            each.source_topics,
            each.repartition_sink_topics,
            [(info.name, info.partitions) for info in each.repartition_source_topics],
            [(info.name, info.partitions) for info in each.state_changelog_topics],
        )
        for each in described.topology.subtopologies
    ] == [
        ("0", ["lines"], ["words-repartition"], [], []),
        ("1", [], [], [("words-repartition", 1)], [("counts-changelog", 1)]),
    ]
    (member,) = described.members
    assert (member.member_id, member.member_epoch, member.topology_epoch) == ("a", 2, 0)
    assert (member.user_endpoint.host, member.user_endpoint.port) == ("here", 1)
    assert [(tag.key, tag.value) for tag in member.client_tags] == [("zone", "x")]
    for assignment in (member.assignment, member.target_assignment):
        assert [(each.subtopology_id, each.partitions) for each in assignment.active_tasks] == [
            ("0", [0]),
            ("1", [0]),
        ]
    lab.reload()
    assert lab.submit(DescribeStreamsGroup(GROUP)).ok() == described


def test_a_group_without_its_topics_is_described_as_its_members_sent_it() -> None:
    lab = lab_with({})
    lab.streams_beat("a", 0, topology=WORD_COUNT)
    described = lab.submit(DescribeStreamsGroup(GROUP)).ok()
    assert described.group_state == "NotReady"
    assert [info.partitions for info in described.topology.subtopologies[1].state_changelog_topics] == [0]


def test_groups_of_other_kinds_are_not_streams_groups() -> None:
    lab = lab_with({"lines": 1, "logs": 1})
    lab.beat("a", 0, topics=("lines",))
    for answer in (
        lab.streams_beat("b", 0, topology=STATELESS),
        lab.streams_beat("a", -1),
        lab.submit(DescribeStreamsGroup(GROUP)),
    ):
        assert (answer.error, answer.value.message) == (
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"Group {GROUP} is not a streams group.",
        )


def test_a_streams_group_serves_no_other_protocol_while_it_has_members() -> None:
    lab = lab_with({"lines": 1, "logs": 1})
    lab.streams_beat("a", 0, topology=STATELESS)
    assert lab.beat("b", 0, topics=("lines",)).error is ErrorCode.GROUP_ID_NOT_FOUND
    assert lab.join("").error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert lab.heartbeat("a", 2).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert lab.sync("a", 2).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_an_empty_streams_group_gives_way_to_a_classic_group() -> None:
    lab = lab_with({"lines": 1, "logs": 1})
    lab.streams_beat("a", 0, topology=STATELESS)
    lab.streams_beat("a", -1)
    lab.stable()
    assert lab.classic.members
    lab.reload()
    assert lab.classic.members


def test_an_empty_classic_group_becomes_a_streams_group_and_keeps_its_offsets() -> None:
    lab = lab_with()
    lab.commit({("lines", 0): 5})
    assert active(lab.streams_beat("a", 0, topology=STATELESS)) == {"0": [0, 1, 2, 3]}
    assert lab.offsets(("lines", 0)) == {("lines", 0): 5}
    lab.reload()
    assert lab.streams.members.keys() == {"a"}


def test_only_an_empty_group_is_deleted() -> None:
    lab = lab_with()
    lab.streams_beat("a", 0, topology=STATELESS)
    lab.commit({("lines", 0): 5}, member_id="a", epoch=2)
    assert lab.submit(DeleteGroup(GROUP)).error is ErrorCode.NON_EMPTY_GROUP
    lab.streams_beat("a", -1)
    assert lab.submit(DeleteGroup(GROUP)).ok() == ()
    assert GROUP not in lab.shard.metadata.groups
    assert GROUP not in lab.replayed().metadata.groups
    assert lab.submit(DescribeStreamsGroup(GROUP)).error is ErrorCode.GROUP_ID_NOT_FOUND


def test_a_write_that_fails_changes_nothing() -> None:
    lab = lab_with()
    lab.fail_writes = True
    failed = lab.streams_beat("a", 0, topology=STATELESS)
    assert failed.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert GROUP not in lab.shard.metadata.groups
    lab.fail_writes = False
    lab.streams_beat("a", 0, topology=STATELESS, endpoint=("here", 1))
    before = durable(lab.shard)
    state = (lab.streams.endpoint_epoch, lab.streams.shutdown_requested_by)
    lab.fail_writes = True
    lab.streams_beat("a", 2, tags={"zone": "x"}, shutdown=True)
    lab.streams_beat("b", 0, topology=STATELESS)
    assert durable(lab.shard) == before
    assert (lab.streams.endpoint_epoch, lab.streams.shutdown_requested_by) == state


# Random members


class _Threads:
    """Threads of Kafka Streams that follow their assignments, lose responses, die and come back."""

    def __init__(self, lab: GroupHarness, seed: int) -> None:
        self.lab = lab
        self.choose = random.Random(seed)
        self.epochs: dict[str, int] = {}
        self.owned: dict[str, dict[str, list[int]]] = {}
        self.standby: dict[str, dict[str, list[int]]] = {}
        self.joined = 0
        self.loses_responses = True

    def step(self) -> None:
        lab, choose = self.lab, self.choose
        dice = choose.random()
        if dice < 0.15 and len(self.epochs) < 6:
            self.joined += 1
            self._beat(f"m{self.joined}", 0)
        elif dice < 0.2 and self.epochs:
            self._forget(choose.choice(sorted(self.epochs)), leave=choose.random() < 0.5)
        elif dice < 0.25:
            lab.advance(choose.choice((500, 5_000, 20_000)))
        elif dice < 0.28:
            lab.reload()
        elif dice < 0.32:
            lab.fail_writes = not lab.fail_writes
        elif dice < 0.35:
            partitions = min(12, len(lab.image.topics.by_name["lines"].partitions) + 1)
            for name in ("lines", "store"):
                lab.set_topic(name, partitions)
        elif self.epochs:
            member = choose.choice(sorted(self.epochs))
            self._beat(member, self.epochs[member])

    def _forget(self, member: str, *, leave: bool) -> None:
        if leave:
            self.lab.streams_beat(member, -1)
        for known in (self.epochs, self.owned, self.standby):
            known.pop(member, None)

    def _beat(self, member: str, epoch: int) -> None:
        joins = epoch == 0
        if joins:
            self.owned[member], self.standby[member] = {}, {}
        answer = self.lab.streams_beat(
            member,
            epoch,
            topology=STATEFUL_OF_LINES if joins else None,
            process=f"p{int(member[1:]) % 3}" if joins else None,
            active=self.owned[member],
            standby=self.standby[member],
        )
        if answer.error in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self._forget(member, leave=False)
        elif answer.error is ErrorCode.NONE and not (self.loses_responses and self.choose.random() < 0.1):
            got = response(answer)
            self.epochs[member] = got.member_epoch
            if got.active_tasks is not None:
                assert got.standby_tasks is not None
                self.owned[member] = {each.subtopology_id: each.partitions for each in got.active_tasks}
                self.standby[member] = {each.subtopology_id: each.partitions for each in got.standby_tasks}
        elif joins:
            self._forget(member, leave=False)


STATEFUL_OF_LINES = topology(
    subtopology("0", "lines"), subtopology("1", "lines", changelogs=(topic("store"),))
)


def _check_invariants(group: StreamsGroup) -> None:
    held: dict[tuple[str, int], str] = {}
    in_process: dict[tuple[str, str, int], str] = {}
    for member in group.members.values():
        for tasks in (member.assigned, member.revoking):
            for id, partitions in tasks.active.items():
                for partition in partitions:
                    assert held.setdefault((id, partition), member.member_id) == member.member_id
            for role in (tasks.active, tasks.standby, tasks.warmup):
                for id, partitions in role.items():
                    for partition in partitions:
                        key = (member.process_id, id, partition)
                        assert in_process.setdefault(key, member.member_id) == member.member_id
    assert group.target_epoch <= group.epoch
    assert held.keys() == group.active_processes.keys()


@for_each("seed", range(40))
def test_random_threads_never_hold_a_task_twice(seed: int) -> None:
    lab = lab_with(
        {"lines": 4, "store": 4},
        streams_num_standby_replicas=1,
        streams_initial_rebalance_delay_ms=seed % 2 * 3_000,
    )
    threads = _Threads(lab, seed)
    for _ in range(150):
        threads.step()
        group = lab.shard.metadata.groups.get(GROUP)
        if isinstance(group, StreamsGroup):
            _check_invariants(group)
    assert durable(lab.replayed()) == durable(lab.shard)
    assert durable(lab.replayed(lab.compacted())) == durable(lab.shard)
    # Left alone, on a disk that works, new members settle once the others' sessions have ended.
    lab.fail_writes = threads.loses_responses = False
    lab.advance(60_000)
    threads.epochs.clear()
    for number in range(3):
        threads._beat(f"m{100 + number}", 0)
    for _ in range(8):
        lab.advance(3_000)
        for member in sorted(threads.epochs):
            threads._beat(member, threads.epochs[member])
    assert lab.streams.state is StreamsGroupState.STABLE
    assert len(lab.streams.members) == 3
    assert any(member.assigned.standby for member in lab.streams.members.values())
