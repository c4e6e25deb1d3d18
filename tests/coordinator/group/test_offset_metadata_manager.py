"""Committed offsets: fencing of commits, reads, pending offsets of transactions, deletion and expiry."""

from __future__ import annotations

import pytest

from ottla.coordinator.group.requests import (
    DeleteGroup,
    DescribeClassicGroup,
    DescribeConsumerGroup,
    ListGroups,
)
from ottla.coordinator.runtime.effects import ProducerIdAndEpoch
from ottla.protocol.consumer_offsets_records import RECORDS, OffsetCommitValue
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tests.coordinator.group.group_harness import GROUP, GroupHarness, topic_id

P = ProducerIdAndEpoch(9, 0)
LOGS = ("logs", 0)
DAY_MS = 24 * 3600 * 1000


def lab_with(**config: object) -> GroupHarness:
    return GroupHarness({"logs": 4, "other": 1}, **{"consumer_assignment_interval_ms": 0, **config})


def test_what_was_never_committed_is_minus_one_without_an_error() -> None:
    lab = lab_with()
    assert lab.offsets(LOGS) == {LOGS: -1}
    (topic,) = lab.fetch(LOGS).ok().topics
    assert (topic.partitions[0].metadata, topic.partitions[0].committed_leader_epoch) == ("", -1)


def test_anybody_may_commit_for_a_group_without_members() -> None:
    lab = lab_with()
    answer = lab.commit({LOGS: 5, ("other", 0): 6}, metadata="m")
    assert lab.commit_codes(answer) == [ErrorCode.NONE, ErrorCode.NONE]
    assert lab.offsets() == {LOGS: 5, ("other", 0): 6}
    lab.reload()
    assert lab.offsets() == {LOGS: 5, ("other", 0): 6}


def test_the_record_is_kafkas_to_the_byte() -> None:
    lab = lab_with()
    lab.commit({LOGS: 5}, metadata="m")
    (entry,) = lab.log
    assert entry.key == b"\x00\x01\x00\x07readers\x00\x04logs\x00\x00\x00\x00"
    assert entry.value == (
        b"\x00\x04"
        + (5).to_bytes(8, "big")
        + b"\xff\xff\xff\xff"
        + b"\x02m"
        + lab.now.wall_ms.to_bytes(8, "big")
        + b"\x01\x00\x10"
        + topic_id("logs")
    )


def test_a_retention_of_its_own_is_written_in_version_one() -> None:
    lab = lab_with()
    lab.commit({LOGS: 5}, retention_ms=1_000, version=4)
    _, value = RECORDS.decode(lab.log[0].key, lab.log[0].value)
    assert isinstance(value, OffsetCommitValue)
    assert lab.log[0].value is not None
    assert lab.log[0].value[:2] == b"\x00\x01"
    assert value.expire_timestamp == lab.now.wall_ms + 1_000


def test_only_a_member_of_the_generation_may_commit_for_a_group_with_members() -> None:
    lab = lab_with()
    (one,) = lab.stable()
    assert lab.commit({LOGS: 1}, member_id=one, epoch=1).ok()
    assert lab.commit({LOGS: 1}).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert lab.commit({LOGS: 1}, member_id="x", epoch=1).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert lab.commit({LOGS: 1}, member_id=one, epoch=0).error is ErrorCode.ILLEGAL_GENERATION
    assert lab.commit({LOGS: 1}, member_id=one, epoch=2).error is ErrorCode.ILLEGAL_GENERATION
    lab.join(lab.member_id())
    assert lab.commit({LOGS: 2}, member_id=one, epoch=1).ok()  # a rebalance lets members commit
    lab.join(one)
    assert lab.commit({LOGS: 3}, member_id=one, epoch=2).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert lab.offsets(LOGS) == {LOGS: 2}


@pytest.mark.parametrize(("version", "code"), [(9, "GROUP_ID_NOT_FOUND"), (8, "ILLEGAL_GENERATION")])
def test_a_member_of_a_group_that_is_gone(version: int, code: str) -> None:
    lab = lab_with()
    assert lab.commit({LOGS: 1}, member_id="m", epoch=1, version=version).error is ErrorCode[code]


def test_a_commit_is_a_sign_of_life() -> None:
    lab = lab_with()
    (one,) = lab.stable(session_ms=10_000)
    for _ in range(3):
        lab.advance(9_000)
        lab.commit({LOGS: 1}, member_id=one, epoch=1).ok()
    assert one in lab.classic.members


def test_metadata_has_a_limit() -> None:
    lab = lab_with(offset_metadata_max_bytes=3)
    answer = lab.commit({LOGS: 1}, metadata="four")
    assert lab.commit_codes(answer) == [ErrorCode.OFFSET_METADATA_TOO_LARGE]
    assert lab.log == []
    assert lab.commit_codes(lab.commit({LOGS: 1}, metadata="333")) == [ErrorCode.NONE]


class TestConsumerGroups:
    def test_the_epoch_of_the_member_is_checked(self) -> None:
        lab = lab_with()
        lab.beat("a", 0)
        assert lab.commit({LOGS: 1}, member_id="a", epoch=2).ok()
        assert lab.commit({LOGS: 1}, member_id="a", epoch=3).error is ErrorCode.STALE_MEMBER_EPOCH
        assert lab.commit({LOGS: 1}, member_id="z", epoch=2).error is ErrorCode.UNKNOWN_MEMBER_ID
        assert lab.commit({LOGS: 1}).error is ErrorCode.UNKNOWN_MEMBER_ID
        assert lab.commit({LOGS: 1}, member_id="a", epoch=2, version=8).error is ErrorCode.UNSUPPORTED_VERSION
        lab.beat("a", -1)
        assert lab.commit({LOGS: 2}).ok()

    def test_an_older_epoch_is_fine_for_partitions_that_it_has_had_since(self) -> None:
        lab = lab_with()
        lab.beat("a", 0)
        lab.beat("a", 2, topics=("logs", "other"))
        assert lab.consumers.members["a"].epoch == 3
        assert lab.commit({LOGS: 1}, member_id="a", epoch=2).ok()
        stale = lab.commit({("other", 0): 1}, member_id="a", epoch=2)
        assert stale.error is ErrorCode.STALE_MEMBER_EPOCH

    def test_a_partition_that_is_being_revoked_may_still_be_committed(self) -> None:
        lab = lab_with()
        lab.beat("a", 0)
        lab.beat("b", 0)
        lab.beat("a", 2)
        assert lab.commit({("logs", 3): 1}, member_id="a", epoch=2).ok()

    def test_a_fetch_may_name_its_member_and_epoch(self) -> None:
        lab = lab_with()
        lab.beat("a", 0)
        assert lab.fetch(LOGS, member_id="a", epoch=2).ok()
        assert lab.fetch(LOGS, member_id="a", epoch=0).error is ErrorCode.STALE_MEMBER_EPOCH
        assert lab.fetch(LOGS, member_id="z", epoch=2).error is ErrorCode.UNKNOWN_MEMBER_ID
        assert lab.fetch(LOGS).ok()


class TestTransactions:
    def test_offsets_count_when_the_transaction_is_committed(self) -> None:
        lab = lab_with()
        lab.commit({LOGS: 1})
        lab.txn_commit(P, {LOGS: 5}).ok()
        assert lab.offsets(LOGS) == {LOGS: 1}
        (topic,) = lab.fetch(LOGS, ("other", 0), stable=True).ok().topics[:1]
        assert topic.partitions[0].error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
        assert topic.partitions[0].committed_offset == -1
        lab.end_transaction(P, True)
        assert lab.offsets(LOGS, stable=True) == {LOGS: 5}

    def test_offsets_of_an_aborted_transaction_never_count(self) -> None:
        lab = lab_with()
        lab.commit({LOGS: 1})
        lab.txn_commit(P, {LOGS: 5})
        lab.end_transaction(P, False)
        assert lab.offsets(LOGS, stable=True) == {LOGS: 1}

    def test_what_was_committed_later_is_not_taken_back(self) -> None:
        lab = lab_with()
        lab.txn_commit(P, {LOGS: 5})
        lab.commit({LOGS: 9})
        lab.end_transaction(P, True)
        assert lab.offsets(LOGS) == {LOGS: 9}

    @pytest.mark.parametrize("commit", [True, False])
    def test_a_restart_in_between_changes_nothing(self, commit: bool) -> None:
        lab = lab_with()
        lab.txn_commit(P, {LOGS: 5})
        lab.reload()
        (topic,) = lab.fetch(LOGS, stable=True).ok().topics
        assert topic.partitions[0].error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
        lab.end_transaction(P, commit)
        lab.reload()
        assert lab.offsets(LOGS, stable=True) == {LOGS: 5 if commit else -1}

    def test_the_member_is_checked_where_one_is_named(self) -> None:
        lab = lab_with()
        assert lab.txn_commit(P, {LOGS: 1}, member_id="m", epoch=1).error is ErrorCode.ILLEGAL_GENERATION
        (one,) = lab.stable()
        assert lab.txn_commit(P, {LOGS: 1}, member_id=one, epoch=1).ok()
        assert lab.txn_commit(P, {LOGS: 1}).ok()
        assert lab.txn_commit(P, {LOGS: 1}, member_id=one, epoch=0).error is ErrorCode.ILLEGAL_GENERATION
        assert lab.txn_commit(P, {LOGS: 1}, member_id="x", epoch=1).error is ErrorCode.UNKNOWN_MEMBER_ID
        static = lab.txn_commit(P, {LOGS: 1}, member_id=one, epoch=1, instance="i")
        assert static.error is ErrorCode.UNKNOWN_MEMBER_ID

    def test_the_epoch_is_checked_in_consumer_groups(self) -> None:
        lab = lab_with()
        lab.beat("a", 0)
        assert lab.txn_commit(P, {LOGS: 1}, member_id="a", epoch=2).ok()
        for epoch in (0, 3):
            stale = lab.txn_commit(P, {LOGS: 1}, member_id="a", epoch=epoch)
            assert stale.error is ErrorCode.ILLEGAL_GENERATION

    def test_a_rebalance_that_leaves_a_partition_where_it_is_does_not_fence_its_transaction(self) -> None:
        lab = lab_with()
        lab.beat("a", 0)
        lab.beat("b", 0)
        lab.beat("a", 2)
        lab.beat("a", 2, owned={"logs": [0, 1]})
        assert lab.consumers.members["a"].epoch == 3
        ok = lab.txn_commit(P, {("logs", 0): 1}, member_id="a", epoch=2)
        assert lab.commit_codes(ok) == [ErrorCode.NONE]
        lost = lab.txn_commit(P, {("logs", 3): 1}, member_id="a", epoch=2)
        assert lost.error is ErrorCode.ILLEGAL_GENERATION

    def test_deleting_an_offset_reaches_open_transactions(self) -> None:
        lab = lab_with()
        lab.txn_commit(P, {LOGS: 5})
        assert delete(lab, LOGS) == [ErrorCode.NONE]
        lab.end_transaction(P, True)
        assert lab.offsets(LOGS) == {LOGS: -1}


def delete(lab: GroupHarness, *where: tuple[str, int]) -> list[ErrorCode]:
    answer = lab.send(
        OffsetDeleteRequest(
            group_id=GROUP,
            topics=[
                OffsetDeleteRequestTopic(
                    name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=partition)]
                )
                for topic, partition in where
            ],
        ),
        0,
    )
    if answer.error is not ErrorCode.NONE:
        return [answer.error]
    return [
        ErrorCode.of(partition.error_code) for topic in answer.value.topics for partition in topic.partitions
    ]


class TestDeleting:
    def test_offsets_of_topics_that_the_group_does_not_read(self) -> None:
        lab = lab_with()
        assert delete(lab, LOGS) == [ErrorCode.GROUP_ID_NOT_FOUND]
        (one,) = lab.stable(topics=("logs",))
        lab.commit({LOGS: 1, ("other", 0): 2}, member_id=one, epoch=1)
        assert delete(lab, LOGS, ("other", 0)) == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE]
        assert lab.offsets() == {LOGS: 1}
        lab.leave(one)
        assert delete(lab, LOGS) == [ErrorCode.NONE]
        assert lab.offsets() == {}

    def test_groups_of_other_protocols_must_be_empty(self) -> None:
        lab = lab_with()
        lab.stable(protocol_type="connect")
        assert delete(lab, LOGS) == [ErrorCode.NON_EMPTY_GROUP]

    def test_consumer_groups_keep_what_they_subscribe_to(self) -> None:
        lab = lab_with()
        lab.beat("a", 0)
        lab.commit({LOGS: 1}, member_id="a", epoch=2)
        assert delete(lab, LOGS) == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC]

    def test_a_whole_group_once_it_is_empty(self) -> None:
        lab = lab_with()
        assert lab.submit(DeleteGroup(GROUP)).error is ErrorCode.GROUP_ID_NOT_FOUND
        (one,) = lab.stable()
        lab.commit({LOGS: 1}, member_id=one, epoch=1)
        assert lab.submit(DeleteGroup(GROUP)).error is ErrorCode.NON_EMPTY_GROUP
        lab.leave(one)
        lab.txn_commit(P, {("other", 0): 1})
        assert lab.submit(DeleteGroup(GROUP)).ok() == ()
        lab.end_transaction(P, True)
        assert GROUP not in lab.replayed().metadata.groups
        assert lab.offsets() == {}

    def test_a_consumer_group_once_it_is_empty(self) -> None:
        lab = lab_with()
        lab.beat("a", 0)
        assert lab.submit(DeleteGroup(GROUP)).error is ErrorCode.NON_EMPTY_GROUP
        lab.beat("a", -1)
        assert lab.submit(DeleteGroup(GROUP)).ok() == ()
        assert GROUP not in lab.replayed().metadata.groups
        assert GROUP not in lab.replayed(lab.compacted()).metadata.groups

    def test_offsets_of_a_topic_that_is_deleted(self) -> None:
        lab = lab_with()
        lab.commit({LOGS: 1, ("other", 0): 2})
        lab.delete_topic("logs")
        assert lab.offsets() == {("other", 0): 2}
        lab.reload()
        assert lab.offsets() == {("other", 0): 2}

    def test_offsets_of_a_deleted_topic_in_an_open_transaction(self) -> None:
        lab = lab_with()
        lab.txn_commit(P, {LOGS: 5, ("other", 0): 2})
        lab.delete_topic("logs")
        lab.end_transaction(P, True)
        assert lab.offsets() == {("other", 0): 2}
        lab.reload()
        assert lab.offsets() == {("other", 0): 2}

    def test_offsets_of_an_earlier_topic_of_the_same_name_are_not_shown_by_id(self) -> None:
        lab = lab_with()
        lab.commit({LOGS: 1}, by_id=True, version=10)
        assert lab.offsets(LOGS, by_id=topic_id("logs")) == {LOGS: 1}
        assert lab.offsets(LOGS, by_id=b"another topic id") == {LOGS: -1}


class TestExpiry:
    def test_offsets_and_their_group_go_when_nobody_has_used_them_for_long(self) -> None:
        lab = lab_with()
        lab.commit({LOGS: 1})
        lab.advance(6 * DAY_MS)
        lab.commit({("other", 0): 1})
        lab.advance(DAY_MS + 600_000)
        assert lab.offsets() == {("other", 0): 1}
        lab.advance(6 * DAY_MS)
        assert GROUP not in lab.shard.metadata.groups
        assert GROUP not in lab.replayed().metadata.groups

    def test_a_group_that_had_members_expires_from_when_the_last_one_left(self) -> None:
        lab = lab_with()
        (one,) = lab.stable(session_ms=3 * DAY_MS)
        lab.commit({LOGS: 1}, member_id=one, epoch=1)
        lab.advance(2 * DAY_MS)
        lab.leave(one)
        lab.advance(6 * DAY_MS)
        assert lab.offsets() == {LOGS: 1}
        lab.advance(DAY_MS + 600_000)
        assert lab.offsets() == {}
        assert GROUP not in lab.shard.metadata.groups

    def test_topics_that_are_subscribed_to_do_not_expire(self) -> None:
        lab = lab_with()
        (one,) = lab.stable(topics=("logs",), session_ms=20 * DAY_MS)
        lab.commit({LOGS: 1, ("other", 0): 1}, member_id=one, epoch=1)
        lab.advance(8 * DAY_MS)
        assert lab.offsets() == {LOGS: 1}

    def test_consumer_groups_lose_what_they_no_longer_subscribe_to(self) -> None:
        lab = lab_with(consumer_session_timeout_ms=100 * DAY_MS)
        lab.beat("a", 0, topics=("logs",))
        lab.commit({LOGS: 1, ("other", 0): 1}, member_id="a", epoch=2)
        lab.advance(8 * DAY_MS)
        assert lab.offsets() == {LOGS: 1}

    def test_a_retention_given_with_the_commit_counts(self) -> None:
        lab = lab_with()
        lab.commit({LOGS: 1}, retention_ms=60_000, version=4)
        lab.advance(600_000)
        assert lab.offsets() == {}

    def test_a_retention_beyond_all_time_is_for_ever(self) -> None:
        lab = lab_with()
        lab.commit({LOGS: 1}, retention_ms=2**63 - 1, version=4).ok()
        lab.advance(600_000)
        assert lab.offsets() == {LOGS: 1}

    def test_an_open_transaction_keeps_its_partition(self) -> None:
        lab = lab_with()
        lab.commit({LOGS: 1})
        lab.txn_commit(P, {LOGS: 2})
        lab.advance(8 * DAY_MS)
        assert lab.offsets() == {LOGS: 1}


class TestLooking:
    def test_groups_are_listed_by_state_and_type(self) -> None:
        lab = lab_with()
        lab.commit({LOGS: 1}, group="simple")
        lab.stable()
        lab.beat("a", 0, group="modern")

        def listed(states: tuple[str, ...] = (), types: tuple[str, ...] = ()) -> dict[str, tuple[str, ...]]:
            answer = lab.submit(ListGroups(frozenset(states), frozenset(types)))
            return {
                group.group_id: (group.group_state, group.group_type, group.protocol_type)
                for group in answer.value
            }

        assert listed() == {
            "simple": ("Empty", "classic", ""),
            GROUP: ("Stable", "classic", "consumer"),
            "modern": ("Stable", "consumer", "consumer"),
        }
        assert set(listed(("empty",))) == {"simple"}
        assert set(listed(types=("consumer",))) == {"modern"}
        assert listed(("stable",), ("share",)) == {}

    def test_a_classic_group_shows_its_members_and_what_they_have_when_stable(self) -> None:
        lab = lab_with()
        assert lab.submit(DescribeClassicGroup(GROUP)).error is ErrorCode.GROUP_ID_NOT_FOUND
        one, two = lab.stable(2)
        described = lab.submit(DescribeClassicGroup(GROUP)).ok()
        assert (described.group_state, described.protocol_data) == ("Stable", "range")
        assert [member.member_assignment for member in described.members if member.member_id == one] == [
            f"of {one}".encode()
        ]
        lab.leave(two)
        described = lab.submit(DescribeClassicGroup(GROUP)).ok()
        assert (described.group_state, described.protocol_data) == ("PreparingRebalance", "")
        assert described.members[0].member_metadata == b""
        assert described.members[0].member_assignment == f"of {one}".encode()
        lab.beat("a", 0, group="modern")
        assert lab.submit(DescribeClassicGroup("modern")).error is ErrorCode.GROUP_ID_NOT_FOUND

    def test_a_consumer_group_shows_what_members_have_and_shall_have(self) -> None:
        lab = lab_with()
        assert lab.submit(DescribeConsumerGroup(GROUP)).error is ErrorCode.GROUP_ID_NOT_FOUND
        lab.beat("a", 0)
        lab.beat("b", 0)
        described = lab.submit(DescribeConsumerGroup(GROUP)).ok()
        assert (described.group_state, described.group_epoch, described.assignment_epoch) == (
            "Reconciling",
            3,
            3,
        )
        assert described.assignor_name == "uniform"
        member = next(member for member in described.members if member.member_id == "b")
        assert member.assignment.topic_partitions == []
        assert member.target_assignment.topic_partitions[0].topic_name == "logs"
        assert member.member_type == 1
        # What a member is asked to give up it has until it says that it has not.
        lab.beat("a", 2)
        described = lab.submit(DescribeConsumerGroup(GROUP)).ok()
        member = next(member for member in described.members if member.member_id == "a")
        held, target = (each.topic_partitions[0] for each in (member.assignment, member.target_assignment))
        assert set(target.partitions) < set(held.partitions)
