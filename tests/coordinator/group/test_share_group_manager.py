"""Share groups, as dialogues between members, their coordinator and the persister."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.coordinator.group.config import GroupSettings
from ottla.coordinator.group.requests import (
    AlterShareGroupOffsets,
    CompleteDeleteShareGroupOffsets,
    DeleteGroup,
    DescribeClassicGroup,
    DescribeShareGroup,
    InitializedSharePartitions,
    ListGroups,
    ShareStatesInitialized,
    ShareStatesToInitialize,
)
from ottla.coordinator.group.share.share_group import ShareGroup, ShareGroupState, SharePartitions
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
)
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.offset_delete import OffsetDeleteRequest
from ottla.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from ottla.protocol.names import TopicIdPartition
from tests.coordinator.group.group_harness import Answer, GroupHarness, durable, topic_id

GROUP = "workers"


class ShareHarness(GroupHarness):
    def share(self, group: str = GROUP) -> ShareGroup:
        found = self.shard.metadata.groups[group]
        assert isinstance(found, ShareGroup)
        return found

    def share_beat(
        self,
        member_id: str,
        epoch: int,
        topics: tuple[str, ...] | None = None,
        *,
        group: str = GROUP,
        rack: str | None = None,
        client: str = "client",
    ) -> Answer:
        if epoch == 0 and topics is None:
            topics = ("jobs",)
        body = ShareGroupHeartbeatRequest(
            group_id=group,
            member_id=member_id,
            member_epoch=epoch,
            rack_id=rack,
            subscribed_topic_names=None if topics is None else list(topics),
        )
        return self.send(body, 1, client)

    def initialize(self) -> None:
        """Do the work of the persister: all states are made."""
        work, self.sent = self.sent, []
        for each in work:
            assert isinstance(each, ShareStatesToInitialize)
            assert self.submit(ShareStatesInitialized(each.group_id, each.partitions)).ok() == ()

    def settle(self, *members: str, topics: tuple[str, ...] = ("jobs",)) -> None:
        """Have members join, and all reach their target."""
        for member in members:
            self.share_beat(member, 0, topics)
        for _ in range(3):
            self.initialize()
            self.advance(1_000)
            for member in members:
                self.share_beat(member, self.share().members[member].epoch)

    def assigned(self, member: str) -> dict[str, list[int]]:
        return {
            bytes(topic).rstrip(b"\x01").decode(): sorted(partitions)
            for topic, partitions in self.share().members[member].assigned.items()
        }


def lab_with(partitions: int = 4, **config: Any) -> ShareHarness:
    return ShareHarness({"jobs": partitions}, **config)


def answered(response: Any) -> dict[str, list[int]]:
    return {
        bytes(topic.topic_id).rstrip(b"\x01").decode(): topic.partitions
        for topic in response.assignment.topic_partitions
    }


def partitions(name: str, *indexes: int) -> tuple[TopicIdPartition, ...]:
    return tuple(TopicIdPartition(topic_id(name), index) for index in indexes)


# Joining and assignment


def test_partitions_are_assigned_once_the_persister_has_their_states() -> None:
    lab = lab_with()
    joined = lab.share_beat("a", 0).ok()
    assert (joined.member_id, joined.member_epoch, joined.heartbeat_interval_ms) == ("a", 2, 100)
    assert answered(joined) == {}
    assert lab.sent == [ShareStatesToInitialize(GROUP, 2, partitions("jobs", 0, 1, 2, 3))]
    assert lab.share_beat("a", 2).ok().assignment is None
    assert len(lab.sent) == 1  # the states are awaited
    lab.initialize()
    response = lab.share_beat("a", 2).ok()
    assert response.member_epoch == 3
    assert answered(response) == {"jobs": [0, 1, 2, 3]}
    quiet = lab.share_beat("a", 3).ok()
    assert (quiet.member_epoch, quiet.assignment) == (3, None)
    assert lab.sent == []


def test_a_heartbeat_with_nothing_to_do_writes_nothing_and_costs_no_draft(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lab = lab_with()
    lab.settle("a", "b")
    size = len(lab.log)

    def refuse(_self: ShareGroup) -> ShareGroup:
        raise AssertionError("a draft was made")

    monkeypatch.setattr(ShareGroup, "draft", refuse)
    for member in ("a", "b"):
        assert lab.share_beat(member, lab.share().members[member].epoch).ok().assignment is None
    assert len(lab.log) == size


def test_members_share_partitions_and_partitions_members() -> None:
    lab = lab_with(partitions=2)
    lab.settle("a", "b", "c", "d")
    held = sorted(str(lab.assigned(member)) for member in "abcd")
    assert held == ["{'jobs': [0]}", "{'jobs': [0]}", "{'jobs': [1]}", "{'jobs': [1]}"]


def test_members_keep_their_partitions_when_another_joins_and_leaves() -> None:
    lab = lab_with(partitions=6)
    lab.settle("a", "b")
    before = {member: lab.assigned(member)["jobs"] for member in "ab"}
    lab.settle("a", "b", "c")
    for member in "ab":
        assert set(lab.assigned(member)["jobs"]) < set(before[member])
    assert sum(len(lab.assigned(member)["jobs"]) for member in "abc") == 6
    lab.share_beat("c", -1).ok()
    lab.advance(1_000)
    lab.settle("a", "b")
    for member in "ab":
        assert len(lab.assigned(member)["jobs"]) == 3


def test_a_change_of_the_subscription_reassigns() -> None:
    lab = ShareHarness({"jobs": 2, "mails": 2})
    lab.settle("a")
    assert lab.assigned("a") == {"jobs": [0, 1]}
    epoch = lab.share().members["a"].epoch
    response = lab.share_beat("a", epoch, ("mails",)).ok()
    assert answered(response) == {}  # what it no longer subscribes to is gone at once
    assert lab.sent == [ShareStatesToInitialize(GROUP, epoch + 1, partitions("mails", 0, 1))]
    lab.initialize()
    lab.advance(1_000)
    lab.share_beat("a", lab.share().members["a"].epoch).ok()
    assert lab.assigned("a") == {"mails": [0, 1]}


def test_members_with_different_subscriptions_get_only_their_topics() -> None:
    lab = ShareHarness({"jobs": 2, "mails": 2})
    lab.share_beat("a", 0, ("jobs",))
    lab.share_beat("b", 0, ("jobs", "mails"))
    lab.initialize()
    for _ in range(3):
        lab.advance(1_000)
        for member in "ab":
            lab.share_beat(member, lab.share().members[member].epoch)
    assert lab.assigned("a") == {"jobs": [0]}
    assert lab.assigned("b") == {"jobs": [1], "mails": [0, 1]}


def test_new_partitions_and_new_topics_are_initialized_and_assigned() -> None:
    lab = lab_with(partitions=1)
    lab.settle("a", topics=("jobs", "mails"))
    lab.set_topic("jobs", 3)
    lab.set_topic("mails", 1)
    lab.share_beat("a", lab.share().members["a"].epoch).ok()
    (work,) = lab.sent
    assert work.partitions == (*partitions("jobs", 1, 2), *partitions("mails", 0))
    lab.initialize()
    lab.advance(1_000)
    lab.share_beat("a", lab.share().members["a"].epoch).ok()
    assert lab.assigned("a") == {"jobs": [0, 1, 2], "mails": [0]}


def test_a_target_waits_for_the_assignment_interval() -> None:
    lab = lab_with()
    lab.settle("a")
    lab.advance(5_000)
    lab.share_beat("b", 0)
    epoch = lab.share().members["b"].epoch
    assert lab.share().target_epoch == lab.share().epoch
    lab.share_beat("c", 0)
    assert lab.share().target_epoch < lab.share().epoch
    lab.advance(999)
    lab.share_beat("b", epoch)
    assert lab.share().target_epoch < lab.share().epoch
    lab.advance(1)
    lab.share_beat("b", epoch)
    assert lab.share().target_epoch == lab.share().epoch


# Epochs and errors


def test_epochs_that_are_neither_the_members_nor_its_last_are_fenced() -> None:
    lab = lab_with()
    lab.settle("a")
    epoch = lab.share().members["a"].epoch
    assert lab.share_beat("a", epoch + 1).error is ErrorCode.FENCED_MEMBER_EPOCH
    assert lab.share_beat("a", 1).error is ErrorCode.FENCED_MEMBER_EPOCH
    assert lab.share_beat("a", epoch - 1).ok().member_epoch == epoch  # the response was lost
    again = lab.share_beat("a", 0).ok()
    assert (again.member_epoch, answered(again)) == (epoch, {"jobs": [0, 1, 2, 3]})


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"member_id": "", "member_epoch": 0}, "MemberId can't be empty."),
        ({"member_id": "a", "member_epoch": 0}, "SubscribedTopicNames must be set in first request."),
        ({"member_id": "a", "member_epoch": 1, "rack_id": ""}, "RackId can't be empty."),
        ({"member_id": "a", "member_epoch": -2}, "MemberEpoch is invalid."),
    ],
)
def test_malformed_heartbeats_are_refused(fields: dict[str, Any], text: str) -> None:
    answer = lab_with().send(ShareGroupHeartbeatRequest(group_id=GROUP, **fields), 1)
    assert (answer.error, answer.value.message) == (ErrorCode.INVALID_REQUEST, text)


def test_unknown_groups_and_members_are_refused() -> None:
    lab = lab_with()
    assert lab.share_beat("a", 2).error is ErrorCode.GROUP_ID_NOT_FOUND
    assert lab.share_beat("a", -1).error is ErrorCode.GROUP_ID_NOT_FOUND
    lab.share_beat("a", 0)
    assert lab.share_beat("b", 2).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert lab.share_beat("b", -1).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_full_group_accepts_only_its_members() -> None:
    lab = lab_with(share_max_size=1)
    lab.share_beat("a", 0)
    assert lab.share_beat("b", 0).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert lab.share_beat("a", 0).ok()


def test_groups_of_other_kinds_are_no_share_groups() -> None:
    lab = lab_with()
    lab.beat("a", 0, topics=("jobs",), group=GROUP)
    answer = lab.share_beat("b", 0)
    assert answer.error is ErrorCode.GROUP_ID_NOT_FOUND
    assert answer.value.message == f"Group {GROUP} is not a share group."
    assert lab.submit(DescribeShareGroup(GROUP)).error is ErrorCode.GROUP_ID_NOT_FOUND


def test_a_share_group_is_no_group_of_another_kind() -> None:
    lab = lab_with()
    lab.share_beat("a", 0)
    for epoch in (0, 5):
        answer = lab.beat("b", epoch, topics=("jobs",), group=GROUP)
        assert answer.error is ErrorCode.GROUP_ID_NOT_FOUND
        assert answer.value.message == f"Group {GROUP} is not a consumer group."
    assert lab.join("", group=GROUP).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    beat = HeartbeatRequest(group_id=GROUP, generation_id=2, member_id="a")
    assert lab.send(beat, 4).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert lab.commit({("jobs", 0): 1}, group=GROUP).error is ErrorCode.GROUP_ID_NOT_FOUND
    assert lab.send(OffsetDeleteRequest(group_id=GROUP), 0).error is ErrorCode.GROUP_ID_NOT_FOUND
    assert lab.offsets(("jobs", 0), group=GROUP) == {("jobs", 0): -1}
    assert lab.submit(DescribeClassicGroup(GROUP)).error is ErrorCode.GROUP_ID_NOT_FOUND


# Sessions


def test_a_silent_member_is_fenced_after_its_session() -> None:
    lab = lab_with()
    lab.settle("a")
    lab.advance(44_999)
    assert "a" in lab.share().members
    lab.advance(1)
    assert lab.share().members == {}
    assert lab.share().state is ShareGroupState.EMPTY
    assert lab.share_beat("a", 3).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_session_that_ends_while_nothing_can_be_written_is_ended_later() -> None:
    lab = lab_with()
    lab.share_beat("a", 0)
    lab.fail_writes = True
    lab.advance(45_000)
    assert "a" in lab.share().members
    lab.fail_writes = False
    lab.advance(500)
    assert lab.share().members == {}


def test_the_settings_of_one_group_can_be_set() -> None:
    lab = lab_with()
    lab.shard.metadata.settings = GroupSettings(
        lab.settings.node,
        {GROUP: {"share.session.timeout.ms": "50000", "share.heartbeat.interval.ms": "7000"}},
    )
    lab.settle("a")
    lab.advance(40_000)
    epoch = lab.share().members["a"].epoch
    assert lab.share_beat("a", epoch).ok().heartbeat_interval_ms == 7_000
    lab.advance(49_999)
    assert "a" in lab.share().members
    lab.advance(1)
    assert "a" not in lab.share().members


def test_the_interval_is_short_while_the_group_changes_and_then_the_configured_one() -> None:
    lab = lab_with()
    lab.settle("a", "b")
    assert lab.share_beat("c", 0).ok().heartbeat_interval_ms == 100
    lab.settle("a", "b", "c")
    lab.advance(30_000)
    assert lab.share_beat("a", lab.share().members["a"].epoch).ok().heartbeat_interval_ms == 5_000


# The states of partitions


def test_states_that_could_not_be_made_are_requested_again_after_a_while() -> None:
    lab = lab_with(partitions=2)
    lab.share_beat("a", 0)
    (work,) = lab.sent
    lab.sent = []
    done, failed = work.partitions[:1], work.partitions[1:]
    lab.submit(ShareStatesInitialized(GROUP, done, failed)).ok()
    assert lab.share().states.initializing == {}
    response = lab.share_beat("a", 2).ok()
    assert answered(response) == {"jobs": [0]}  # the trouble of one partition stays there
    assert lab.sent == []
    lab.advance(1_000)
    lab.share_beat("a", 3).ok()
    assert lab.sent == [ShareStatesToInitialize(GROUP, 3, failed)]
    lab.initialize()
    lab.advance(1_000)
    assert answered(lab.share_beat("a", 3).ok()) == {"jobs": [0, 1]}


def test_states_whose_request_hangs_are_requested_again() -> None:
    lab = lab_with(partitions=1)
    lab.share_beat("a", 0)
    lab.sent = []
    lab.advance(29_999)
    lab.share_beat("a", 2).ok()
    assert lab.sent == []
    lab.advance(1)
    lab.share_beat("a", 2).ok()
    assert lab.sent == [ShareStatesToInitialize(GROUP, 2, partitions("jobs", 0))]


def test_another_coordinator_requests_the_awaited_states_again() -> None:
    lab = lab_with(partitions=1)
    lab.share_beat("a", 0)
    lab.sent = []
    lab.reload()
    lab.share_beat("a", 2).ok()
    assert lab.sent == [ShareStatesToInitialize(GROUP, 2, partitions("jobs", 0))]


def test_the_states_of_a_deleted_topic_are_forgotten_and_made_again_for_a_new_one() -> None:
    lab = lab_with(partitions=1)
    lab.settle("a")
    lab.delete_topic("jobs")
    assert lab.share().states.is_empty
    lab.share_beat("a", lab.share().members["a"].epoch).ok()
    lab.advance(1_000)
    lab.share_beat("a", lab.share().members["a"].epoch).ok()
    assert lab.assigned("a") == {}
    assert lab.submit(InitializedSharePartitions(GROUP)).ok() == ()
    lab.set_topic("jobs", 1)
    lab.share_beat("a", lab.share().members["a"].epoch).ok()
    assert len(lab.sent) == 1


def test_the_deletion_of_a_topic_is_noted_once_it_can_be_written() -> None:
    lab = lab_with(partitions=1)
    lab.settle("a")
    lab.fail_writes = True
    lab.delete_topic("jobs")
    assert not lab.share().states.is_empty
    lab.fail_writes = False
    lab.advance(500)
    assert lab.share().states.is_empty


def test_states_that_come_too_late_are_not_kept() -> None:
    lab = lab_with(partitions=1)
    lab.share_beat("a", 0)
    (work,) = lab.sent
    lab.delete_topic("jobs")
    assert lab.submit(ShareStatesInitialized(GROUP, work.partitions)).ok() == ()
    assert lab.share().states.is_empty
    lab.share_beat("a", -1)
    assert lab.submit(DeleteGroup(GROUP)).ok() == ()
    assert lab.submit(ShareStatesInitialized(GROUP, work.partitions)).ok() == work.partitions  # to be deleted


# Listing, describing, deleting


def test_share_groups_are_listed_and_described() -> None:
    lab = lab_with(partitions=1)
    lab.share_beat("a", 0, rack="r1")
    lab.settle("a")
    (listed,) = lab.submit(ListGroups(frozenset(), frozenset({"share"}))).ok()
    assert (listed.protocol_type, listed.group_state, listed.group_type) == ("share", "Stable", "share")
    assert lab.submit(ListGroups(frozenset(), frozenset({"consumer"}))).ok() == []
    described = lab.submit(DescribeShareGroup(GROUP)).ok()
    group = lab.share()
    assert (described.group_state, described.assignor_name) == ("Stable", "simple")
    assert (described.group_epoch, described.assignment_epoch) == (group.epoch, group.target_epoch)
    (member,) = described.members
    assert (member.member_id, member.rack_id, member.client_id) == ("a", "r1", "client")
    assert member.subscribed_topic_names == ["jobs"]
    (topic,) = member.assignment.topic_partitions
    assert (topic.topic_name, topic.partitions) == ("jobs", [0])
    missing = lab.submit(DescribeShareGroup("none"))
    assert (missing.error, missing.value.message) == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        "Group none not found.",
    )


def test_a_group_is_deleted_after_its_states() -> None:
    lab = lab_with(partitions=2)
    lab.settle("a")
    assert lab.submit(DeleteGroup(GROUP)).error is ErrorCode.NON_EMPTY_GROUP
    lab.share_beat("a", -1)
    assert lab.submit(DeleteGroup(GROUP)).ok() == partitions("jobs", 0, 1)
    assert lab.share().states.deleting == {topic_id("jobs"): "jobs"}
    assert lab.submit(DeleteGroup(GROUP)).ok() == partitions("jobs", 0, 1)  # the first attempt failed
    assert lab.submit(DeleteGroup(GROUP, states_deleted=True)).ok() == ()
    assert lab.shard.metadata.groups == {}
    assert lab.shard.metadata.share_groups == {}
    assert durable(lab.replayed()) == durable(lab.shard)


def test_an_empty_group_does_not_expire() -> None:
    lab = lab_with()
    lab.settle("a")
    lab.share_beat("a", -1)
    lab.advance(30 * 24 * 3600 * 1000)
    assert lab.share().is_empty


# Offsets


def alter(lab: ShareHarness, topics: dict[str, set[int]]) -> Answer:
    return lab.submit(AlterShareGroupOffsets(GROUP, {name: frozenset(each) for name, each in topics.items()}))


def test_offsets_of_a_new_group_can_be_altered_before_it_has_members() -> None:
    lab = lab_with(partitions=2)
    altered = alter(lab, {"jobs": {0, 5}, "none": {0}}).ok()
    assert altered.state_epoch == 1
    assert altered.topics == {topic_id("jobs"): SharePartitions("jobs", frozenset({0}))}
    lab.submit(ShareStatesInitialized(GROUP, partitions("jobs", 0))).ok()
    assert lab.submit(InitializedSharePartitions(GROUP)).ok() == partitions("jobs", 0)
    joined = lab.share_beat("a", 0).ok()
    assert (joined.member_epoch, answered(joined)) == (2, {"jobs": [0]})
    assert lab.sent == [ShareStatesToInitialize(GROUP, 2, partitions("jobs", 1))]  # not the altered one


def test_offsets_of_a_group_with_members_are_neither_altered_nor_deleted() -> None:
    lab = lab_with()
    lab.settle("a")
    assert alter(lab, {"jobs": {0}}).error is ErrorCode.NON_EMPTY_GROUP
    assert delete(lab, "jobs").error is ErrorCode.NON_EMPTY_GROUP


def delete(lab: ShareHarness, *topics: str) -> Answer:
    names = [DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in topics]
    return lab.send(DeleteShareGroupOffsetsRequest(group_id=GROUP, topics=names), 0)


def test_offsets_of_topics_are_deleted_in_two_steps() -> None:
    lab = ShareHarness({"jobs": 2, "mails": 1})
    assert delete(lab, "jobs").error is ErrorCode.GROUP_ID_NOT_FOUND
    lab.settle("a")
    lab.share_beat("a", -1)
    deleted = delete(lab, "jobs", "mails", "none").ok()
    assert deleted.partitions == partitions("jobs", 0, 1)
    assert [(each.topic_name, each.error_message) for each in deleted.refused] == [
        ("mails", "There is no offset information to delete."),
        ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.text),
    ]
    assert delete(lab, "jobs").ok().partitions == partitions("jobs", 0, 1)  # again, as it did not end
    lab.submit(CompleteDeleteShareGroupOffsets(GROUP, frozenset({topic_id("jobs")})))
    assert lab.share().states.is_empty
    joined = lab.share_beat("a", 0)
    assert joined.ok().member_epoch > 2
    (work,) = lab.sent
    assert work.partitions == partitions("jobs", 0, 1)


# The log


def test_the_log_alone_restores_the_groups() -> None:
    lab = ShareHarness({"jobs": 3, "mails": 2})
    lab.settle("a", "b", topics=("jobs", "mails"))
    lab.share_beat("b", -1)
    lab.share_beat("c", 0)
    assert durable(lab.replayed()) == durable(lab.shard)
    assert durable(lab.replayed(lab.compacted())) == durable(lab.shard)
    lab.reload()
    assert lab.share_beat("a", lab.share().members["a"].epoch).ok().member_id == "a"
    lab.advance(45_000)
    assert lab.share().members == {}


def test_a_write_that_fails_changes_nothing() -> None:
    lab = lab_with()
    lab.settle("a")
    before = durable(lab.shard)
    lab.fail_writes = True
    lab.sent = []
    assert lab.share_beat("b", 0).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (durable(lab.shard), lab.sent) == (before, [])
