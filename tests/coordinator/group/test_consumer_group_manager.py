"""Consumer groups, as dialogues between members and their coordinator."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.coordinator.group.config import GroupSettings
from ottla.coordinator.group.consumer.consumer_group import ConsumerGroupState, MemberState
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tests.coordinator.group.group_harness import GROUP, GroupHarness, assigned, durable


def lab_with(partitions: int = 4, **config: Any) -> GroupHarness:
    return GroupHarness({"logs": partitions}, **{"consumer_assignment_interval_ms": 0, **config})


def test_the_first_member_gets_everything_at_once() -> None:
    lab = lab_with()
    response = lab.beat("a", 0).ok()
    assert (response.member_id, response.member_epoch, response.heartbeat_interval_ms) == ("a", 2, 100)
    assert assigned(response) == {"logs": [0, 1, 2, 3]}
    assert lab.consumers.state is ConsumerGroupState.STABLE
    quiet = lab.beat("a", 2).ok()
    assert quiet.member_epoch == 2
    assert quiet.assignment is None  # nothing new


def test_a_second_member_waits_until_the_first_has_given_up_its_share() -> None:
    lab = lab_with()
    lab.beat("a", 0)
    joined = lab.beat("b", 0).ok()
    assert joined.member_epoch == 3
    assert assigned(joined) == {}
    assert lab.consumers.members["b"].state is MemberState.UNRELEASED_PARTITIONS
    assert lab.consumers.state is ConsumerGroupState.RECONCILING
    response = lab.beat("a", 2).ok()
    assert response.member_epoch == 2  # it stays in its epoch until it has revoked
    assert assigned(response) == {"logs": [0, 1]}
    still = lab.beat("a", 2, owned={"logs": [0, 1, 2, 3]}).ok()
    assert (still.member_epoch, still.assignment) == (2, None)
    assert lab.beat("b", 3).ok().assignment is None
    done = lab.beat("a", 2, owned={"logs": [0, 1]}).ok()
    assert done.member_epoch == 3
    assert assigned(lab.beat("b", 3).ok()) == {"logs": [2, 3]}
    assert lab.consumers.state is ConsumerGroupState.STABLE


def test_an_assignment_that_is_not_reported_is_told_again() -> None:
    """The response was lost, and the client repeats its heartbeat without asking for the assignment."""
    lab = lab_with()
    lab.beat("a", 0)
    lab.beat("a", 2, owned={"logs": [0, 1, 2, 3]})
    lab.beat("b", 0)
    assert assigned(lab.beat("a", 2).ok()) == {"logs": [0, 1]}
    lab.advance(4_999)
    assert lab.beat("a", 2).ok().assignment is None
    lab.advance(1)
    assert assigned(lab.beat("a", 2).ok()) == {"logs": [0, 1]}
    assert lab.beat("a", 2).ok().assignment is None  # and not with each heartbeat
    lab.advance(5_000)
    assert assigned(lab.beat("a", 2, owned={"logs": [0, 1, 2, 3]}).ok()) == {"logs": [0, 1]}
    assert lab.beat("a", 2, owned={"logs": [0, 1]}).ok().member_epoch == 3
    lab.advance(5_000)
    # Of b, whose response with what has become free was lost, nothing else would be heard.
    assert assigned(lab.beat("b", 3).ok()) == {"logs": [2, 3]}
    lab.advance(5_000)
    assert lab.beat("a", 3).ok().assignment is None
    assert assigned(lab.beat("b", 3).ok()) == {"logs": [2, 3]}
    lab.beat("b", 3, owned={"logs": [2, 3]})
    lab.advance(5_000)
    assert lab.beat("b", 3).ok().assignment is None
    assert lab.consumers.unreported == {}


def test_members_that_do_not_revoke_in_time_are_fenced() -> None:
    lab = lab_with()
    lab.beat("a", 0, rebalance_ms=20_000)
    lab.beat("b", 0)
    lab.beat("a", 2)
    for _ in range(4):
        lab.advance(5_000)
        lab.beat("b", lab.consumers.members["b"].epoch)
        if "a" in lab.consumers.members:
            lab.beat("a", 2)
    assert "a" not in lab.consumers.members
    assert lab.beat("a", 2).error is ErrorCode.UNKNOWN_MEMBER_ID
    lab.beat("b", 3)
    assert assigned(lab.beat("b", 0).ok()) == {"logs": [0, 1, 2, 3]}


def test_a_member_whose_revocation_could_not_be_written_is_still_fenced_in_time() -> None:
    lab = lab_with()
    lab.beat("a", 0, rebalance_ms=20_000)
    lab.beat("b", 0)
    lab.beat("a", 2)
    lab.advance(10_000)
    lab.fail_writes = True
    assert lab.beat("a", 2, owned={"logs": [0, 1]}).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    lab.fail_writes = False
    lab.beat("a", 2)
    lab.advance(9_999)
    assert lab.consumers.members["a"].state is MemberState.UNREVOKED_PARTITIONS
    lab.advance(1)
    assert "a" not in lab.consumers.members


def test_the_time_to_revoke_begins_when_the_member_is_told() -> None:
    lab = lab_with()
    lab.beat("a", 0, rebalance_ms=20_000)
    lab.beat("b", 0)
    lab.fail_writes = True
    assert lab.beat("a", 2).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    lab.advance(10_000)
    lab.fail_writes = False
    assert assigned(lab.beat("a", 2).ok()) == {"logs": [0, 1]}
    lab.advance(19_999)
    assert "a" in lab.consumers.members
    lab.advance(1)
    assert "a" not in lab.consumers.members


def test_a_member_that_revokes_and_is_asked_for_more_has_its_time_again() -> None:
    lab = lab_with(partitions=6)
    lab.beat("a", 0, rebalance_ms=20_000)
    lab.beat("b", 0)
    assert assigned(lab.beat("a", 2).ok()) == {"logs": [0, 1, 2]}
    lab.beat("c", 0)
    lab.advance(15_000)
    assert assigned(lab.beat("a", 2, owned={"logs": [0, 1, 2]}).ok()) == {"logs": [0, 1]}
    lab.advance(19_999)
    assert lab.consumers.members["a"].state is MemberState.UNREVOKED_PARTITIONS
    lab.advance(1)
    assert "a" not in lab.consumers.members


def test_a_silent_member_is_fenced_after_its_session() -> None:
    lab = lab_with()
    lab.beat("a", 0)
    lab.advance(44_999)
    assert "a" in lab.consumers.members
    lab.advance(1)
    assert lab.consumers.members == {}
    assert lab.consumers.state is ConsumerGroupState.EMPTY
    assert lab.beat("a", 2).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_session_timeout_of_one_group_can_be_set() -> None:
    lab = lab_with()
    lab.shard.metadata.settings = GroupSettings(
        lab.settings.node,
        {GROUP: {"consumer.session.timeout.ms": "50000", "consumer.heartbeat.interval.ms": "7000"}},
    )
    lab.beat("a", 0)
    lab.advance(30_000)
    assert lab.beat("a", 2).ok().heartbeat_interval_ms == 7_000
    lab.advance(49_999)
    assert "a" in lab.consumers.members


def test_a_member_that_leaves_gives_its_partitions_to_the_others() -> None:
    lab = lab_with()
    lab.beat("a", 0)
    left = lab.beat("a", -1).ok()
    assert left.member_epoch == -1
    assert lab.consumers.members == {}
    assert lab.beat("a", -1).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert assigned(lab.beat("b", 0).ok()) == {"logs": [0, 1, 2, 3]}


@pytest.mark.parametrize("epoch", [3, 6])
def test_an_epoch_from_the_future_is_fenced(epoch: int) -> None:
    lab = lab_with()
    lab.beat("a", 0)
    assert lab.beat("a", epoch).error is ErrorCode.FENCED_MEMBER_EPOCH


def test_the_epoch_before_is_taken_if_the_answer_may_have_been_lost() -> None:
    lab = lab_with()
    lab.beat("a", 0)
    lab.set_topic("more", 2)
    lab.beat("a", 2, topics=("logs", "more"), rebalance_ms=1_000, owned={"logs": [0, 1, 2, 3]})
    assert lab.consumers.members["a"].epoch == 3
    again = lab.beat("a", 2, owned={"logs": [0, 1, 2, 3]})
    assert again.ok().member_epoch == 3
    assert lab.beat("a", 2, owned={"logs": [7]}).error is ErrorCode.FENCED_MEMBER_EPOCH
    assert lab.beat("a", 2).error is ErrorCode.FENCED_MEMBER_EPOCH


def test_a_fenced_member_joins_again_with_epoch_zero() -> None:
    lab = lab_with()
    lab.beat("a", 0)
    response = lab.beat("a", 0).ok()
    assert assigned(response) == {"logs": [0, 1, 2, 3]}


def test_requests_for_what_does_not_exist() -> None:
    lab = lab_with()
    assert lab.beat("a", 2).error is ErrorCode.GROUP_ID_NOT_FOUND
    assert lab.beat("a", -1).error is ErrorCode.GROUP_ID_NOT_FOUND
    lab.beat("a", 0)
    assert lab.beat("z", 2).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert lab.beat("z", -1).error is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    "wrong",
    [
        {"member_id": ""},
        {"rebalance_timeout_ms": -1},
        {"topic_partitions": None},
        {"subscribed_topic_names": None},
        {"instance_id": ""},
        {"rack_id": ""},
        {"member_epoch": -3},
        {"member_epoch": -2},
    ],
)
def test_malformed_joins_are_invalid(wrong: dict[str, Any]) -> None:
    lab = lab_with()
    fields: dict[str, Any] = {
        "group_id": GROUP,
        "member_id": "a",
        "member_epoch": 0,
        "rebalance_timeout_ms": 1_000,
        "subscribed_topic_names": ["logs"],
        "topic_partitions": [],
    }
    assert (
        lab.send(ConsumerGroupHeartbeatRequest(**{**fields, **wrong}), 1).error is ErrorCode.INVALID_REQUEST
    )
    assert lab.log == []


def test_only_version_zero_gets_its_member_id_from_the_coordinator() -> None:
    lab = lab_with()
    assert lab.beat("", 0, version=0).ok().member_id == "id1"
    assert lab.beat("", 0, version=1).error is ErrorCode.INVALID_REQUEST


def test_an_assignor_that_is_not_there_is_unsupported() -> None:
    lab = lab_with()
    assert lab.beat("a", 0, assignor="mine").error is ErrorCode.UNSUPPORTED_ASSIGNOR
    assert lab.beat("a", 0, assignor="range").ok()


def test_a_full_group_takes_no_more_members() -> None:
    lab = lab_with(consumer_max_size=1)
    lab.beat("a", 0)
    assert lab.beat("b", 0).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert lab.beat("a", 2).ok()


def test_topics_that_grow_are_assigned_anew() -> None:
    lab = lab_with(2)
    lab.beat("a", 0)
    lab.set_topic("logs", 3)
    grown = lab.beat("a", 2).ok()
    assert grown.member_epoch == 3
    assert assigned(grown) == {"logs": [0, 1, 2]}
    assert lab.beat("a", 3).ok().assignment is None


def test_topics_that_come_later_are_assigned_when_they_come() -> None:
    lab = lab_with()
    assert assigned(lab.beat("a", 0, topics=("later",)).ok()) == {}
    lab.set_topic("unrelated", 9)
    assert lab.beat("a", 2).ok().member_epoch == 2
    lab.set_topic("later", 1)
    assert assigned(lab.beat("a", 2).ok()) == {"later": [0]}


def test_topics_that_are_deleted_are_given_up() -> None:
    lab = lab_with()
    lab.set_topic("gone", 1)
    lab.beat("a", 0, topics=("gone", "logs"))
    lab.delete_topic("gone")
    response = lab.beat("a", 2).ok()
    assert assigned(response) == {"logs": [0, 1, 2, 3]}
    done = lab.beat("a", 2, owned={"logs": [0, 1, 2, 3]}).ok()
    assert done.member_epoch == 3


def test_a_subscription_that_shrinks_is_given_up_without_waiting() -> None:
    lab = lab_with()
    lab.set_topic("other", 1)
    lab.beat("a", 0, topics=("logs", "other"))
    response = lab.beat("a", 2, topics=("other",)).ok()
    assert assigned(response) == {"other": [0]}
    assert lab.consumers.members["a"].state is MemberState.UNREVOKED_PARTITIONS


class TestRegularExpressions:
    def test_they_match_whole_names_and_follow_the_topics(self) -> None:
        lab = lab_with(1)
        lab.set_topic("logs-eu", 1)
        assert assigned(lab.beat("a", 0, regex="logs-.*").ok()) == {"logs-eu": [0]}
        lab.set_topic("logs-us", 1)
        assert assigned(lab.beat("a", 2).ok()) == {"logs-eu": [0], "logs-us": [0]}
        lab.set_topic("unlogs-x", 1)
        assert lab.beat("a", 3).ok().member_epoch == 3

    def test_they_are_those_of_re2(self) -> None:
        lab = lab_with()
        assert lab.beat("a", 0, regex="(?=x)y").error is ErrorCode.INVALID_REGULAR_EXPRESSION
        assert lab.beat("a", 0, regex="[").error is ErrorCode.INVALID_REGULAR_EXPRESSION
        assert GROUP not in lab.shard.metadata.groups

    def test_only_topics_that_the_member_may_see_count(self) -> None:
        lab = lab_with(1)
        lab.set_topic("secret", 1)
        response = lab.beat("a", 0, regex=".*", sees_topic=lambda name: name != "secret").ok()
        assert assigned(response) == {"logs": [0]}

    def test_names_and_expressions_add_up(self) -> None:
        lab = lab_with(1)
        lab.set_topic("x1", 1)
        response = lab.beat("a", 0, regex="x.*", topics=("logs",)).ok()
        assert assigned(response) == {"logs": [0], "x1": [0]}

    def test_an_expression_that_nobody_uses_is_forgotten(self) -> None:
        lab = lab_with(1)
        lab.beat("a", 0, regex="l.*")
        assert set(lab.consumers.regexes) == {"l.*"}
        lab.beat("a", 2, regex="")
        assert lab.consumers.regexes == {}
        lab.beat("a", lab.consumers.members["a"].epoch, regex="lo.*", owned={})
        lab.beat("a", -1)
        assert lab.consumers.regexes == {}

    def test_they_are_known_after_a_restart(self) -> None:
        lab = lab_with(1)
        lab.beat("a", 0, regex="l.*")
        lab.reload()
        assert lab.beat("a", 2).ok().member_epoch == 2


class TestStaticMembers:
    def test_a_member_that_says_it_will_return_keeps_its_partitions(self) -> None:
        lab = lab_with()
        lab.beat("a", 0, instance="one")
        assert lab.beat("a", -2, instance="one").ok().member_epoch == -2
        assert lab.consumers.members["a"].has_left
        back = lab.beat("b", 0, instance="one").ok()
        assert back.member_epoch == 2  # no rebalance
        assert assigned(back) == {"logs": [0, 1, 2, 3]}
        assert set(lab.consumers.members) == {"b"}
        assert lab.beat("a", 2, instance="one").error is ErrorCode.FENCED_INSTANCE_ID
        assert lab.beat("a", 2).error is ErrorCode.UNKNOWN_MEMBER_ID

    def test_an_instance_that_is_in_use_is_not_released(self) -> None:
        lab = lab_with()
        lab.beat("a", 0, instance="one")
        assert lab.beat("b", 0, instance="one").error is ErrorCode.UNRELEASED_INSTANCE_ID

    def test_who_does_not_return_within_the_session_is_out(self) -> None:
        lab = lab_with()
        lab.beat("a", 0, instance="one")
        lab.beat("a", -2, instance="one")
        lab.advance(45_000)
        assert lab.consumers.members == {}

    def test_leaving_for_good_is_leaving(self) -> None:
        lab = lab_with()
        lab.beat("a", 0, instance="one")
        lab.beat("a", -1, instance="one")
        assert lab.consumers.members == {}

    def test_others_do_not_speak_for_an_instance(self) -> None:
        lab = lab_with()
        lab.beat("a", 0, instance="one")
        assert lab.beat("x", 2, instance="one").error is ErrorCode.FENCED_INSTANCE_ID
        assert lab.beat("x", -1, instance="one").error is ErrorCode.FENCED_INSTANCE_ID
        assert lab.beat("x", 2, instance="two").error is ErrorCode.UNKNOWN_MEMBER_ID


def test_assignments_are_computed_at_most_once_an_interval() -> None:
    lab = GroupHarness({"logs": 4}, consumer_assignment_interval_ms=1_000)
    lab.beat("a", 0)
    lab.advance(100)
    joined = lab.beat("b", 0).ok()
    assert joined.member_epoch == 2  # the target is still the one before
    assert lab.consumers.state is ConsumerGroupState.ASSIGNING
    lab.beat("c", 0)
    assert lab.consumers.target_epoch == 2
    lab.advance(900)
    assert lab.consumers.target_epoch == 4  # two joins, one assignment
    assert {len(target.get(next(iter(target), b""), ())) for target in lab.consumers.target.values()} == {
        1,
        2,
    }


def test_a_write_that_fails_changes_nothing() -> None:
    lab = lab_with()
    lab.beat("a", 0)
    before = durable(lab.shard)
    lab.fail_writes = True
    assert lab.beat("b", 0).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert lab.beat("a", 2, topics=("x",)).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert lab.beat("a", -1).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert durable(lab.shard) == before


def test_members_whose_removal_could_not_be_written_are_removed_when_it_can() -> None:
    lab = lab_with()
    lab.beat("leaves", 0)
    lab.beat("dies", 0)
    lab.fail_writes = True
    assert lab.beat("leaves", -1).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    lab.advance(60_000)
    assert lab.consumers.members.keys() == {"leaves", "dies"}
    lab.fail_writes = False
    lab.advance(1_000)
    assert lab.consumers.members == {}


def test_after_a_restart_members_go_on_in_their_epochs() -> None:
    lab = lab_with()
    lab.beat("a", 0)
    lab.beat("b", 0)
    lab.beat("a", 2)
    before = durable(lab.shard)
    lab.reload()
    assert durable(lab.shard) == before
    lab.beat("a", 2, owned={"logs": [0, 1]})
    assert assigned(lab.beat("b", 3).ok()) == {"logs": [2, 3]}
    lab.advance(45_000)
    assert lab.consumers.members == {}


def test_after_a_restart_a_revocation_still_has_a_deadline() -> None:
    lab = lab_with()
    lab.beat("a", 0, rebalance_ms=10_000)
    lab.beat("b", 0)
    lab.beat("a", 2)
    lab.reload()
    lab.advance(9_999)
    assert "a" in lab.consumers.members
    lab.advance(1)
    assert "a" not in lab.consumers.members


class TestMigration:
    def test_a_classic_group_is_upgraded_by_the_first_member_with_the_new_protocol(self) -> None:
        lab = lab_with()
        (old,) = lab.stable()
        # The lab's assignment is no real one; the members get a real one by rejoining.
        classic_assignment(lab, old, {"logs": [0, 1, 2, 3]})
        generation = lab.classic.generation
        joined = lab.beat("new", 0).ok()
        assert joined.member_epoch == generation + 1
        assert assigned(joined) == {}
        assert lab.consumers.members[old].is_classic
        assert lab.heartbeat(old, generation).error is ErrorCode.REBALANCE_IN_PROGRESS
        rejoin = lab.join(old, owned={"logs": [0, 1, 2, 3]}).ok()
        assert rejoin.generation_id == generation  # it has to revoke first
        assert decoded(lab.sync(old, generation).ok().assignment) == {"logs": [0, 1]}
        assert lab.heartbeat(old, generation).error is ErrorCode.REBALANCE_IN_PROGRESS
        again = lab.join(old, owned={"logs": [0, 1]}).ok()
        assert again.generation_id == generation + 1
        assert decoded(lab.sync(old, generation + 1).ok().assignment) == {"logs": [0, 1]}
        assert assigned(lab.beat("new", generation + 1).ok()) == {"logs": [2, 3]}
        assert lab.heartbeat(old, generation + 1).ok()
        assert lab.commit({("logs", 0): 5}, member_id=old, epoch=generation + 1, version=8).ok()
        assert lab.commit({("logs", 0): 5}, member_id=old, epoch=1, version=8).error is (
            ErrorCode.ILLEGAL_GENERATION
        )

    def test_members_that_wait_in_a_rebalance_are_told_to_join_again(self) -> None:
        lab = lab_with()
        one, _ = lab.stable(2)
        waiting = lab.join(one, topics=("logs", "more"))
        classic_assignment_bytes(lab)
        lab.beat("new", 0).ok()
        assert waiting.error is ErrorCode.REBALANCE_IN_PROGRESS

    def test_the_group_is_classic_again_when_the_last_new_member_leaves(self) -> None:
        lab = lab_with()
        (old,) = lab.stable()
        classic_assignment(lab, old, {"logs": [0, 1, 2, 3]})
        lab.beat("new", 0)
        lab.beat("new", -1)
        assert set(lab.classic.members) == {old}
        rejoin = lab.join(old).ok()
        assert rejoin.leader == old
        lab.reload()
        assert set(lab.classic.members) == {old}

    def test_a_static_member_may_go_back_to_the_classic_protocol(self) -> None:
        lab = lab_with()
        joined = lab.beat("a", 0, instance="one").ok()
        lab.beat("a", -2, instance="one")
        back = lab.join(instance="one").ok()
        assert back.generation_id == joined.member_epoch
        assert set(lab.classic.members) == {back.member_id}
        assert decoded(lab.sync(back.member_id, back.generation_id, instance="one").ok().assignment) == {
            "logs": [0, 1, 2, 3]
        }
        before = set(lab.classic.members)
        lab.reload()
        assert set(lab.classic.members) == before

    @pytest.mark.parametrize("policy", ["disabled", "downgrade"])
    def test_the_policy_may_forbid_the_upgrade(self, policy: str) -> None:
        from ottla.coordinator.group.config import MigrationPolicy

        lab = lab_with(consumer_migration_policy=MigrationPolicy(policy))
        lab.stable()
        assert lab.beat("new", 0).error is ErrorCode.GROUP_ID_NOT_FOUND

    def test_the_policy_may_forbid_the_downgrade(self) -> None:
        from ottla.coordinator.group.config import MigrationPolicy

        lab = lab_with(consumer_migration_policy=MigrationPolicy.UPGRADE)
        (old,) = lab.stable()
        classic_assignment(lab, old, {"logs": [0]})
        lab.beat("new", 0)
        lab.beat("new", -1)
        assert set(lab.consumers.members) == {old}

    def test_groups_of_other_protocols_are_not_upgraded(self) -> None:
        lab = lab_with()
        lab.stable(protocol_type="connect")
        assert lab.beat("new", 0).error is ErrorCode.GROUP_ID_NOT_FOUND

    def test_an_empty_group_changes_its_protocol_either_way_and_keeps_its_offsets(self) -> None:
        lab = lab_with()
        (old,) = lab.stable()
        lab.commit({("logs", 0): 7}, member_id=old, epoch=1)
        lab.leave(old)
        lab.beat("new", 0)
        assert lab.offsets(("logs", 0)) == {("logs", 0): 7}
        lab.beat("new", -1)
        lab.reload()
        again = lab.join(lab.member_id())
        lab.advance(3_000)
        assert again.ok().generation_id == 1
        assert lab.offsets(("logs", 0)) == {("logs", 0): 7}

    def test_a_classic_member_that_does_not_rejoin_in_time_is_out(self) -> None:
        lab = lab_with()
        (old,) = lab.stable(rebalance_ms=20_000, session_ms=60_000)
        classic_assignment(lab, old, {"logs": [0, 1, 2, 3]}, rebalance_ms=20_000, session_ms=60_000)
        lab.beat("new", 0)
        generation = lab.consumers.members[old].epoch
        assert lab.heartbeat(old, generation).error is ErrorCode.REBALANCE_IN_PROGRESS
        lab.advance(20_000)
        assert old not in lab.consumers.members

    def test_new_classic_members_join_a_consumer_group(self) -> None:
        lab = lab_with()
        lab.beat("new", 0)
        member = lab.member_id()
        joined = lab.join(member).ok()
        assert (joined.generation_id, joined.leader, joined.protocol_name) == (3, "", "range")
        assert decoded(lab.sync(member, 3).ok().assignment) == {}
        response = lab.beat("new", 2).ok()
        lab.beat("new", 2, owned={"logs": assigned(response)["logs"]})
        assert lab.heartbeat(member, 3).error is ErrorCode.REBALANCE_IN_PROGRESS
        assert lab.join(member).ok().generation_id == 3
        assert decoded(lab.sync(member, 3).ok().assignment) == {"logs": [2, 3]}
        assert lab.leave(member, "new", "unknown") == [
            ErrorCode.NONE,
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.UNKNOWN_MEMBER_ID,
        ]

    def test_classic_members_must_have_a_protocol_in_common(self) -> None:
        lab = lab_with()
        lab.beat("new", 0)
        lab.join(lab.member_id(protocols=("range",)), protocols=("range",))
        assert lab.join(protocols=("sticky",)).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert lab.join(protocol_type="connect").error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def decoded(data: bytes) -> dict[str, list[int]]:
    from ottla.protocol.consumer_protocol import decode_assignment

    return {topic.topic: topic.partitions for topic in decode_assignment(data).assigned_partitions}


def encoded(assignment: dict[str, list[int]]) -> bytes:
    from ottla.protocol.consumer_protocol import (
        ConsumerProtocolAssignment,
        ConsumerProtocolTopicPartition,
        encode_assignment,
    )

    return encode_assignment(
        ConsumerProtocolAssignment(
            assigned_partitions=[
                ConsumerProtocolTopicPartition(topic=topic, partitions=partitions)
                for topic, partitions in assignment.items()
            ]
        )
    )


def classic_assignment(
    lab: GroupHarness, leader: str, assignment: dict[str, list[int]], **options: Any
) -> None:
    """Have the only member assign something real to itself."""
    generation = lab.join(leader, **options).ok().generation_id
    lab.sync(leader, generation, {leader: encoded(assignment)}).ok()


def classic_assignment_bytes(lab: GroupHarness) -> None:
    for member in lab.classic.members.values():
        member.assignment = encoded({})
