"""Classic groups, as dialogues between members and their coordinator."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ottla.coordinator.group.classic.classic_group import ClassicGroupState
from ottla.coordinator.group.config import GroupSettings
from ottla.coordinator.group.requests import GroupRequest
from ottla.protocol.consumer_offsets_records import RECORDS, GroupMetadataValue
from ottla.protocol.errors import ErrorCode
from tests.coordinator.group.group_harness import GROUP, GroupHarness

PREPARING = ClassicGroupState.PREPARING_REBALANCE
COMPLETING = ClassicGroupState.COMPLETING_REBALANCE
STABLE = ClassicGroupState.STABLE
EMPTY = ClassicGroupState.EMPTY


def test_the_first_member_waits_the_initial_delay_and_leads() -> None:
    lab = GroupHarness()
    member = lab.member_id(client="app")
    assert member.startswith("app-")
    join = lab.join(member)
    assert not join.done
    assert lab.classic.state is PREPARING
    lab.advance(2_999)
    assert not join.done
    lab.advance(1)
    response = join.ok()
    assert (response.generation_id, response.leader, response.member_id) == (1, member, member)
    assert (response.protocol_type, response.protocol_name) == ("consumer", "range")
    assert [entry.member_id for entry in response.members] == [member]
    assert lab.classic.state is COMPLETING
    sync = lab.sync(member, 1, {member: b"all"})
    assert sync.ok().assignment == b"all"
    assert lab.classic.state is STABLE


def test_a_new_group_is_written_before_its_first_member_has_an_id() -> None:
    lab = GroupHarness()
    lab.member_id()
    (entry,) = lab.log
    _, value = RECORDS.decode(entry.key, entry.value)
    assert isinstance(value, GroupMetadataValue)
    assert (value.generation, value.protocol_type, value.protocol, value.leader) == (0, "", None, None)
    assert entry.value is not None
    assert entry.value[:2] == b"\x00\x03"


def test_members_of_old_versions_join_without_coming_back() -> None:
    lab = GroupHarness()
    join = lab.join(version=3)
    lab.advance(3_000)
    assert join.ok().member_id.startswith("client-")


def test_the_first_rebalance_takes_longer_while_members_come_up_to_the_rebalance_timeout() -> None:
    lab = GroupHarness()
    first = lab.join(version=3, rebalance_ms=7_000)
    lab.advance(2_000)
    lab.join(version=3, rebalance_ms=7_000)
    lab.advance(1_000)
    assert not first.done  # 3 s are over, but another member came
    lab.advance(2_000)
    lab.join(version=3, rebalance_ms=7_000)
    lab.advance(1_000)
    assert not first.done
    lab.advance(1_000)
    assert first.ok().generation_id == 1  # 7 s in all
    assert len(lab.classic.members) == 3


def test_followers_get_no_roster_and_the_leader_gets_all_metadata() -> None:
    lab = GroupHarness()
    one = lab.join(version=3, topics=("a",))
    two = lab.join(version=3, topics=("b",))
    lab.advance(6_000)
    assert len(one.ok().members) == 2
    assert two.ok().members == []
    assert two.ok().leader == one.ok().member_id
    assert len({member.metadata for member in one.ok().members}) == 2


def test_the_protocol_that_most_prefer_among_the_common_ones_wins() -> None:
    lab = GroupHarness()
    joins = [
        lab.join(version=3, protocols=("range", "roundrobin")),
        lab.join(version=3, protocols=("roundrobin", "range")),
        lab.join(version=3, protocols=("sticky", "roundrobin", "range")),
    ]
    lab.advance(12_000)
    assert {join.ok().protocol_name for join in joins} == {"roundrobin"}


def test_a_tie_of_protocols_goes_to_what_the_leader_prefers() -> None:
    lab = GroupHarness()
    one = lab.join(version=3, protocols=("x", "a"))
    lab.join(version=3, protocols=("a", "x"))
    lab.advance(6_000)
    assert one.ok().protocol_name == "x"


def test_a_protocol_that_is_named_twice_counts_once() -> None:
    lab = GroupHarness()
    joins = [lab.join(version=3, protocols=names) for names in (("range", "range"), ("x", "range", "x"))]
    lab.advance(6_000)
    assert {join.ok().protocol_name for join in joins} == {"range"}
    lab.leave(joins[1].ok().member_id)
    assert lab.join(version=3, protocols=("x",)).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize(
    ("protocol_type", "protocols"), [("connect", ("range",)), ("consumer", ("other",)), ("consumer", ())]
)
def test_a_member_without_a_common_protocol_is_refused(
    protocol_type: str, protocols: tuple[str, ...]
) -> None:
    lab = GroupHarness()
    lab.stable()
    answer = lab.join(protocol_type=protocol_type, protocols=protocols)
    assert answer.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_an_empty_group_needs_a_protocol_type_and_protocols() -> None:
    lab = GroupHarness()
    assert lab.join(protocol_type="").error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert lab.join(protocols=()).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_second_member_makes_the_first_rejoin_into_the_next_generation() -> None:
    lab = GroupHarness()
    (one,) = lab.stable()
    two = lab.member_id()
    join_two = lab.join(two)
    assert lab.classic.state is PREPARING
    assert lab.heartbeat(one, 1).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert lab.sync(one, 1).error is ErrorCode.REBALANCE_IN_PROGRESS
    join_one = lab.join(one)
    assert join_one.ok().generation_id == 2
    assert join_two.ok().generation_id == 2
    assert join_two.ok().leader == one
    sync_two = lab.sync(two, 2)
    assert not sync_two.done
    sync_one = lab.sync(one, 2, {one: b"1"})
    assert sync_one.ok().assignment == b"1"
    assert sync_two.ok().assignment == b""  # the leader gave it nothing
    assert (sync_two.ok().protocol_type, sync_two.ok().protocol_name) == ("consumer", "range")


def test_who_does_not_rejoin_in_time_is_out() -> None:
    lab = GroupHarness()
    one, two = lab.stable(2, rebalance_ms=20_000, session_ms=60_000)
    join = lab.join(lab.member_id(), rebalance_ms=20_000)
    lab.join(one, rebalance_ms=20_000)
    lab.advance(19_999)
    assert not join.done
    lab.advance(1)
    assert join.ok().generation_id == 2
    assert set(lab.classic.members) == {one, join.ok().member_id}
    assert lab.heartbeat(two, 1).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_silent_member_is_out_after_its_session_and_the_others_rebalance() -> None:
    lab = GroupHarness()
    one, two = lab.stable(2)
    lab.advance(9_000)
    assert lab.heartbeat(one, 1).ok()
    lab.advance(1_000)
    assert lab.classic.state is PREPARING
    assert lab.heartbeat(one, 1).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert lab.join(one).ok().generation_id == 2
    assert set(lab.classic.members) == {one}
    assert lab.heartbeat(two, 1).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_wall_clock_that_jumps_expires_nobody() -> None:
    lab = GroupHarness()
    (one,) = lab.stable()
    lab.now = lab.now._replace(wall_ms=lab.now.wall_ms + 10**9)
    lab.advance(1)
    assert lab.heartbeat(one, 1).ok()


def test_a_member_that_waits_for_a_join_needs_no_heartbeats() -> None:
    lab = GroupHarness()
    one, two = lab.stable(2, session_ms=10_000)
    join = lab.join(one, topics=("other",))
    for _ in range(5):
        lab.advance(9_000)
        assert lab.heartbeat(two, 1).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert not join.done
    lab.join(two)
    assert join.ok().generation_id == 2


def test_a_pending_id_that_never_returns_is_forgotten() -> None:
    lab = GroupHarness()
    member = lab.member_id(session_ms=6_000)
    lab.advance(6_000)
    assert lab.join(member).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_of_too_many_pending_ids_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.coordinator.group.classic_group_manager.MOST_PENDING_IDS", 3)
    lab = GroupHarness()
    ids = [lab.member_id(session_ms=6_000) for _ in range(5)]
    assert list(lab.classic.pending) == ids[2:]
    assert lab.join(ids[0]).error is ErrorCode.UNKNOWN_MEMBER_ID
    lab.join(ids[2])
    assert ids[2] in lab.classic.members
    lab.advance(6_000)
    assert not lab.classic.pending


def test_a_rebalance_waits_for_ids_that_were_given_out() -> None:
    lab = GroupHarness()
    (one,) = lab.stable()
    lab.member_id(session_ms=6_000)
    join = lab.join(one, topics=("other",))
    assert not join.done
    lab.advance(6_000)
    assert join.ok().generation_id == 2


def test_the_leader_may_rejoin_to_rebalance_and_a_follower_gets_what_it_had() -> None:
    lab = GroupHarness()
    one, two = lab.stable(2)
    again = lab.join(two)
    assert again.ok().generation_id == 1
    assert again.ok().leader == one
    assert lab.classic.state is STABLE
    join = lab.join(one)
    assert lab.classic.state is PREPARING
    lab.join(two)
    assert join.ok().generation_id == 2


def test_a_repeated_join_in_completing_gets_the_same_answer() -> None:
    lab = GroupHarness()
    join = lab.join(version=3)
    lab.advance(3_000)
    member = join.ok().member_id
    again = lab.join(member)
    assert again.ok().generation_id == 1
    assert [entry.member_id for entry in again.ok().members] == [member]
    changed = lab.join(member, topics=("other",))
    assert changed.ok().generation_id == 2


def test_members_that_do_not_sync_are_out() -> None:
    lab = GroupHarness()
    one = lab.join(version=3, session_ms=90_000)
    two = lab.join(version=3, session_ms=90_000)
    lab.advance(6_000)
    one_id, two_id = one.ok().member_id, two.ok().member_id
    lab.sync(one_id, 1, {one_id: b"1"})
    assert lab.classic.state is STABLE
    lab.advance(60_000)
    assert lab.classic.state is PREPARING
    assert set(lab.classic.members) == {one_id}
    assert lab.sync(two_id, 1).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_join_during_completing_cancels_the_waiting_syncs() -> None:
    lab = GroupHarness()
    lab.join(version=3)
    two = lab.join(version=3)
    lab.advance(6_000)
    sync = lab.sync(two.ok().member_id, 1)
    assert not sync.done
    lab.join(version=3)
    assert sync.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert sync.value.protocol_type is None


@pytest.mark.parametrize(
    ("protocol_type", "protocol"), [("connect", None), (None, "sticky"), ("connect", "range")]
)
def test_a_sync_must_name_the_protocol_that_was_chosen(
    protocol_type: str | None, protocol: str | None
) -> None:
    lab = GroupHarness()
    (one,) = lab.stable()
    answer = lab.sync(one, 1, protocol_type=protocol_type, protocol=protocol)
    assert answer.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_every_request_of_the_wrong_member_or_generation_is_told_so() -> None:
    lab = GroupHarness()
    for answer in (lab.heartbeat("x", 1), lab.sync("x", 1), lab.join("x")):
        assert answer.error is ErrorCode.UNKNOWN_MEMBER_ID  # no such group
    (one,) = lab.stable()
    for answer in (lab.heartbeat("x", 1), lab.sync("x", 1), lab.join("x")):
        assert answer.error is ErrorCode.UNKNOWN_MEMBER_ID
    for generation in (0, 2):
        assert lab.heartbeat(one, generation).error is ErrorCode.ILLEGAL_GENERATION
        assert lab.sync(one, generation).error is ErrorCode.ILLEGAL_GENERATION


def test_the_last_to_leave_leaves_an_empty_group_of_the_next_generation() -> None:
    lab = GroupHarness()
    one, two = lab.stable(2)
    assert lab.leave(one) == [ErrorCode.NONE]
    assert lab.classic.state is PREPARING
    assert lab.leave(two) == [ErrorCode.NONE]
    assert lab.classic.state is EMPTY
    assert lab.classic.generation == 2
    _, value = RECORDS.decode(lab.log[-1].key, lab.log[-1].value)
    assert isinstance(value, GroupMetadataValue)
    assert (value.generation, value.members, value.leader, value.protocol) == (2, [], None, None)
    assert value.protocol_type == "consumer"
    assert lab.heartbeat(one, 1).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_several_leave_at_once_each_with_its_own_answer() -> None:
    lab = GroupHarness()
    one, two = lab.stable(2)
    pending = lab.member_id()
    assert lab.leave(one, "unknown", pending, ("", "no-instance"), ("", None)) == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert set(lab.classic.members) == {two}
    assert lab.leave("unknown") == [ErrorCode.UNKNOWN_MEMBER_ID]


def test_a_full_group_takes_no_more_members() -> None:
    lab = GroupHarness(group_max_size=2)
    lab.stable(2)
    answer = lab.join()
    assert answer.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert answer.value.member_id == ""


def test_a_group_that_is_loaded_over_its_size_lets_the_last_ones_go() -> None:
    lab = GroupHarness()
    members = lab.stable(3)
    lab.settings = GroupSettings(replace(lab.settings.node, group_max_size=2))
    lab.reload()
    assert lab.classic.state is PREPARING
    joins = [lab.join(member) for member in members]
    assert joins[2].error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert joins[0].ok().generation_id == 2


def test_after_a_restart_members_go_on_in_their_generation() -> None:
    lab = GroupHarness()
    one, two = lab.stable(2)
    lab.reload()
    assert lab.classic.state is STABLE
    assert lab.heartbeat(one, 1).ok()
    assert lab.sync(two, 1).ok().assignment == f"of {two}".encode()
    lab.advance(10_000)
    assert lab.classic.members == {}  # who is silent after the restart goes as well
    assert lab.classic.state is EMPTY


def test_an_assignment_that_cannot_be_written_is_not_given_out() -> None:
    lab = GroupHarness()
    one = lab.join(version=3)
    two = lab.join(version=3)
    lab.advance(6_000)
    one_id, two_id = one.ok().member_id, two.ok().member_id
    sync_two = lab.sync(two_id, 1)
    lab.fail_writes = True
    sync_one = lab.sync(one_id, 1, {one_id: b"1", two_id: b"2"})
    assert sync_one.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert sync_two.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert lab.classic.state is PREPARING
    lab.fail_writes = False
    lab.join(one_id)
    assert lab.join(two_id).ok().generation_id == 2


def test_a_group_that_cannot_be_written_is_not_made() -> None:
    lab = GroupHarness()
    lab.fail_writes = True
    assert lab.join().error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert GROUP not in lab.shard.metadata.groups


class TestStaticMembers:
    def stable(self, lab: GroupHarness, *instances: str) -> list[str]:
        joins = [lab.join(instance=instance, client="app") for instance in instances]
        lab.advance(3_000 * (len(instances) + 1))
        ids = [join.ok().member_id for join in joins]
        leader = joins[0].ok().leader
        for id, instance in zip(ids, instances, strict=True):
            lab.sync(id, 1, {id: id.encode() for id in ids} if id == leader else {}, instance=instance)
        assert lab.classic.state is STABLE
        return ids

    def test_they_need_no_second_round_and_are_named_after_their_instance(self) -> None:
        lab = GroupHarness()
        (one,) = self.stable(lab, "a")
        assert one.startswith("a-")

    def test_a_restarted_follower_gets_a_new_id_and_its_assignment_without_a_rebalance(self) -> None:
        lab = GroupHarness()
        one, two = self.stable(lab, "a", "b")
        back = lab.join(instance="b").ok()
        assert back.member_id != two
        assert (back.generation_id, back.leader, back.skip_assignment) == (1, one, False)
        assert lab.classic.state is STABLE
        assert lab.sync(back.member_id, 1, instance="b").ok().assignment == two.encode()
        assert lab.heartbeat(two, 1, instance="b").error is ErrorCode.FENCED_INSTANCE_ID
        assert lab.sync(two, 1, instance="b").error is ErrorCode.FENCED_INSTANCE_ID
        assert lab.join(two, instance="b").error is ErrorCode.FENCED_INSTANCE_ID
        assert lab.commit({("logs", 0): 1}, member_id=two, epoch=1, instance="b").error is (
            ErrorCode.FENCED_INSTANCE_ID
        )
        assert lab.leave((two, "b")) == [ErrorCode.FENCED_INSTANCE_ID]

    def test_a_restarted_leader_may_skip_the_assignment(self) -> None:
        lab = GroupHarness()
        self.stable(lab, "a", "b")
        back = lab.join(instance="a").ok()
        assert back.leader == back.member_id
        assert back.skip_assignment
        assert len(back.members) == 2

    def test_an_older_leader_is_told_that_its_old_self_leads(self) -> None:
        lab = GroupHarness()
        one, _ = self.stable(lab, "a", "b")
        back = lab.join(instance="a", version=8).ok()
        assert back.leader == one
        assert (back.skip_assignment, back.members) == (False, [])

    def test_its_new_id_outlives_a_restart_of_the_coordinator(self) -> None:
        lab = GroupHarness()
        self.stable(lab, "a", "b")
        back = lab.join(instance="b").ok()
        lab.reload()
        assert lab.heartbeat(back.member_id, 1, instance="b").ok()

    def test_a_return_that_cannot_be_written_leaves_the_old_member(self) -> None:
        lab = GroupHarness()
        _, two = self.stable(lab, "a", "b")
        lab.fail_writes = True
        assert lab.join(instance="b").error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        lab.fail_writes = False
        assert lab.heartbeat(two, 1, instance="b").ok()
        assert lab.classic.static["b"] == two

    def test_a_return_that_changes_the_protocol_rebalances(self) -> None:
        lab = GroupHarness()
        joins = [lab.join(instance=name, protocols=("x", "y")) for name in "ab"]
        lab.advance(6_000)
        ids = [join.ok().member_id for join in joins]
        for id, instance in zip(ids, "ab", strict=True):
            lab.sync(id, 1, {ids[0]: b"0"}, instance=instance)
        lab.join(instance="b", protocols=("y",))
        assert lab.classic.state is PREPARING

    def test_while_it_is_away_its_partitions_wait_until_the_session_ends(self) -> None:
        lab = GroupHarness()
        one, two = self.stable(lab, "a", "b")
        lab.advance(9_999)
        assert lab.heartbeat(one, 1, instance="a").ok()
        assert two in lab.classic.members
        lab.advance(1)
        assert two not in lab.classic.members
        assert lab.classic.state is PREPARING

    def test_a_rebalance_keeps_static_members_that_have_not_rejoined(self) -> None:
        lab = GroupHarness()
        joins = [lab.join(instance=name, session_ms=300_000, rebalance_ms=10_000) for name in "ab"]
        lab.advance(6_000)
        ids = [join.ok().member_id for join in joins]
        for id, instance in zip(ids, "ab", strict=True):
            lab.sync(id, 1, dict.fromkeys(ids, b""), instance=instance)
        join = lab.join(ids[0], instance="a", session_ms=300_000, rebalance_ms=10_000)
        lab.advance(10_000)
        assert {member.member_id for member in join.ok().members} == set(ids)

    def test_a_duplicate_that_waits_is_fenced_at_once(self) -> None:
        lab = GroupHarness()
        first = lab.join(instance="a")
        second = lab.join(instance="a")
        assert first.error is ErrorCode.FENCED_INSTANCE_ID
        lab.advance(3_000)
        assert second.ok().generation_id == 1

    def test_an_operator_removes_it_by_its_instance_id(self) -> None:
        lab = GroupHarness()
        self.stable(lab, "a", "b")
        assert lab.leave(("", "a")) == [ErrorCode.NONE]
        assert "a" not in lab.classic.static

    def test_an_unknown_instance_is_unknown(self) -> None:
        lab = GroupHarness()
        (one,) = self.stable(lab, "a")
        assert lab.heartbeat(one, 1, instance="z").error is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_machine_knows_every_request_it_may_get() -> None:
    lab = GroupHarness()
    with pytest.raises(KeyError):
        lab.shard.handle(None, GroupRequest(object(), 0), lab.now)


def test_large_metadata_of_members_are_bounded_over_all_groups() -> None:
    lab = GroupHarness(classic_metadata_bytes=100_000)
    large = bytes(40_000)
    joined = [lab.join(group=f"g{index}", version=3, metadata=large) for index in range(3)]
    assert [answer.done for answer in joined] == [False, False, True]
    assert joined[2].error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    # Ordinary members are not concerned.
    small = lab.join(group="g3", version=3)
    lab.advance(3_000)
    assert small.ok().generation_id == 1
    # One that has a place may join again with as much, and no more.
    member = joined[0].ok().member_id
    refused = lab.join(member, group="g0", version=3, metadata=bytes(70_000))
    assert refused.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert lab.join(member, group="g0", version=3, metadata=bytes(50_000)).ok().generation_id == 2


def test_the_metadata_of_members_that_are_gone_take_no_memory() -> None:
    lab = GroupHarness(classic_metadata_bytes=100_000)
    for _ in range(5):
        joined = [lab.join(group=f"g{index}", version=3, metadata=bytes(40_000)) for index in range(2)]
        lab.advance(3_000)
        assert [answer.ok().generation_id for answer in joined] == [1, 1]
        assert lab.settings.member_memory.held_bytes > 80_000
        lab.advance(60_000)  # their sessions end
        assert lab.settings.member_memory.held_bytes == 0
        lab.advance(10 * 60_000)
