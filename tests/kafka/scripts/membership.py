"""Groups of more than one member and static ones, and what their offsets carry."""

from __future__ import annotations

from typing import Any

from ottla.protocol.api import API
from ottla.protocol.errors import ErrorCode
from ottla.protocol.headers import read_response
from ottla.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from ottla.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest
from ottla.protocol.messages.describe_groups import DescribeGroupsRequest
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from ottla.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from ottla.protocol.schema import Request
from tests.kafka.scripts.groups import MADE_UP, beat, commit, fetch, find, join, of, sync
from tests.kafka.scripts.kit import configure_group, make_topic, script
from tests.support.differential import Session
from tests.support.wire import CLOSED, Answer


@script
def two_members_of_a_classic_group(session: Session) -> None:
    """A rebalance as each side sees it, and what is refused on the way."""
    group = "classic-pair"
    topic_id = make_topic(session, "classic-pair", partitions=2)
    find(session, group)
    first = session.get(join(group, ""), JoinGroupResponse).member_id
    session.ask("a joins", join(group, first), 9, hide=(*MADE_UP, "members"))
    session.ask("a assigns", sync(group, first, 1), 5)

    def say(label: str, member: str, generation: int) -> None:
        session.ask(f"heartbeat {label}", beat(group, member, generation), 4)
        request = commit(group, "classic-pair", topic_id, **of(member, generation))
        session.ask(f"commit {label}", request, 9)

    def describe(label: str) -> None:
        def by_name(answer: Any) -> None:
            answer.groups[0].members.sort(key=lambda each: each.member_id != first)

        session.ask(label, DescribeGroupsRequest(groups=[group]), 6, hide=MADE_UP, edit=by_name)

    with session.another() as other:
        second = other.get(join(group, ""), JoinGroupResponse).member_id
        other.client.send(join(group, second), 9)
        _await_code(session, beat(group, first, 1), ErrorCode.REBALANCE_IN_PROGRESS)
        say("of a in the rebalance", first, 1)
        say("of b in the rebalance", second, 1)
        session.ask("a syncs in the rebalance", sync(group, first, 1), 5)
        describe("describe preparing")
        joined = session.ask("a joins again", join(group, first), 9, hide=(*MADE_UP, "members"))
        assert joined.leader == first
        session.note("b has joined", 9, _received(other, join(group, second), 9), hide=MADE_UP)
        say("of a before the assignment", first, 2)
        say("of a in the old generation", first, 1)
        other.client.send(sync(group, second, 2), 5)
        describe("describe completing")
        assignments = [
            SyncGroupRequestAssignment(member_id=first, assignment=b"of a"),
            SyncGroupRequestAssignment(member_id=second, assignment=b"of b"),
        ]
        session.ask("a assigns to both", sync(group, first, 2).replace(assignments=assignments), 5)
        session.note("b has its share", 5, _received(other, sync(group, second, 2), 5))
        describe("describe stable")
        say("of both", first, 2)
        # A follower that joins again as it was is given what it has; a leader that does asks for a rebalance.
        joining = join(group, second)
        session.note("b joins once more", 9, other.client.ask(joining, 9), hide=MADE_UP)
        leaving = [MemberIdentity(member_id=first), MemberIdentity(member_id="x")]
        request = LeaveGroupRequest(group_id=group, members=leaving)
        session.ask("a leaves", request, 5, hide=MADE_UP)
        say("of a who has left", first, 2)
        session.note("b learns of it", 4, other.client.ask(beat(group, second, 2), 4))
        session.note("b joins alone", 9, other.client.ask(joining, 9), hide=(*MADE_UP, "members"))
        session.note("b assigns", 5, other.client.ask(sync(group, second, 3), 5))
        request = LeaveGroupRequest(group_id=group, members=[MemberIdentity(member_id=second)])
        session.ask("b leaves", request, 5, hide=MADE_UP)
    session.ask("delete", DeleteGroupsRequest(groups_names=[group]), 2)


def _await_code(session: Session, request: HeartbeatRequest, code: ErrorCode) -> None:
    session.until(request, HeartbeatResponse, lambda answer: answer.error_code == code)


def _received(session: Session, request: Request, version: int) -> Answer:
    """The answer to a request that was sent before."""
    frame = session.client.receive_frame()
    return CLOSED if frame is None else read_response(API[request.API_KEY], version, frame)[1]


@script
def static_members_of_a_classic_group(session: Session) -> None:
    """Joining, returning under a new id, being fenced, and being removed by an operator."""
    group = "static-classic"
    topic_id = make_topic(session, "group-life-static", partitions=2)
    find(session, group)

    def enter(label: str, member: str, version: int = 9, instance: str = "one") -> Any:
        request: JoinGroupRequest = join(group, member)
        request.group_instance_id = instance
        return session.ask(label, request, version, hide=(*MADE_UP, "members"))

    def synced(label: str, member: str, generation: int, instance: str | None = "one") -> None:
        request: SyncGroupRequest = sync(group, member, generation)
        request.group_instance_id = instance
        session.ask(label, request, 5)

    def say(label: str, member: str, generation: int, instance: str | None = "one") -> None:
        session.ask(
            f"heartbeat {label}", beat(group, member, generation).replace(group_instance_id=instance), 4
        )
        request = commit(group, "group-life-static", topic_id, **of(member, generation))
        request.group_instance_id = instance
        session.ask(f"commit {label}", request, 9)

    first = enter("join", "").member_id
    synced("sync", first, 1)
    say("as itself", first, 1)
    say("without the instance", first, 1, None)
    say("as another member", "stranger", 1)
    say("as another instance", first, 1, "two")
    enter("join as another member", "stranger")
    session.ask("describe", DescribeGroupsRequest(groups=[group]), 6, hide=MADE_UP)
    second = enter("return", "").member_id
    say("of the replaced", first, 1)
    say("of the replaced without the instance", first, 1, None)
    synced("sync of the replaced", first, 1)
    synced("sync of the returned", second, 1)
    say("of the returned", second, 1)
    third = enter("return in version 5", "", 5).member_id
    enter("join again as itself", third)
    synced("sync of the third", third, 2)
    say("of the third", third, 2)

    def leave(label: str, member: str, instance: str | None, version: int = 5) -> None:
        identity = MemberIdentity(member_id=member, group_instance_id=instance)
        request = LeaveGroupRequest(group_id=group, members=[identity])
        session.ask(label, request, version, hide=MADE_UP)

    leave("leave as the replaced", second, "one")
    leave("leave as another instance", third, "two")
    leave("remove an unknown instance", "", "two", 3)
    leave("remove", "", "one", 4)
    leave("remove again", "", "one")
    session.ask("describe empty", DescribeGroupsRequest(groups=[group]), 6, hide=MADE_UP)
    session.ask("delete", DeleteGroupsRequest(groups_names=[group]), 2)


@script
def static_members_of_a_consumer_group(session: Session) -> None:
    group = "static-consumer"
    make_topic(session, "static-consumer", partitions=2)
    find(session, group)
    whole: dict[str, Any] = {
        "rebalance_timeout_ms": 30_000,
        "subscribed_topic_names": ["static-consumer"],
        "topic_partitions": [],
    }

    def say(label: str, member: str, epoch: int, instance: str | None = "one", **fields: Any) -> Any:
        request = ConsumerGroupHeartbeatRequest(
            group_id=group, member_id=member, member_epoch=epoch, instance_id=instance, **fields
        )
        return session.ask(label, request, 1)

    epoch = say("join", "first", 0, **whole).member_epoch
    say("beat", "first", epoch)
    say("beat without the instance", "first", epoch, None)
    say("beat of another instance", "first", epoch, "two")
    say("beat of another member", "other", epoch)
    say("join as another member", "other", 0, **whole)
    say("leave for a while as another", "other", -2)
    say("leave for a while without an instance", "first", -2, None)
    say("leave for a while", "first", -2)
    session.ask("describe away", ConsumerGroupDescribeRequest(group_ids=[group]), 1, hide=MADE_UP)
    say("beat while away", "first", epoch)
    epoch = say("return", "second", 0, **whole).member_epoch
    say("beat of the replaced", "first", epoch)
    say("beat of the returned", "second", epoch)
    session.ask("describe", ConsumerGroupDescribeRequest(group_ids=[group]), 1, hide=MADE_UP)
    say("leave as the replaced", "first", -1)
    say("leave", "second", -1)
    say("leave again", "second", -1)
    session.ask("delete", DeleteGroupsRequest(groups_names=[group]), 2)


@script
def two_members_of_a_consumer_group(session: Session) -> None:
    """One gives up half of what it has; what each may commit on the way."""
    group = "consumer-pair"
    topic_id = make_topic(session, "consumer-pair", partitions=4)
    _assign_at_once(session, group)
    find(session, group)
    whole: dict[str, Any] = {
        "rebalance_timeout_ms": 30_000,
        "subscribed_topic_names": ["consumer-pair"],
        "topic_partitions": [],
    }

    def request(member: str, epoch: int, **fields: Any) -> ConsumerGroupHeartbeatRequest:
        return ConsumerGroupHeartbeatRequest(group_id=group, member_id=member, member_epoch=epoch, **fields)

    def owning(*partitions: int) -> dict[str, Any]:
        return {"topic_partitions": [TopicPartitions(topic_id=topic_id, partitions=list(partitions))]}

    session.ask("a joins", request("a", 0, **whole), 1)
    session.ask("b joins", request("b", 0, **whole), 1)
    # b gets its epoch and waits; a learns by a heartbeat that it has to give up two.
    asked = session.until(
        request("a", 2), ConsumerGroupHeartbeatResponse, lambda answer: answer.assignment is not None
    )
    assert asked.assignment is not None
    kept = asked.assignment.topic_partitions[0].partitions
    session.note("a gives up", 1, asked)
    _describe(session, "describe revoking", group)
    for epoch in (1, 2, 3):
        session.ask(f"a commits {epoch}", _commit(group, "consumer-pair", "a", epoch, 0), 9)
        session.ask(f"b commits {epoch}", _commit(group, "consumer-pair", "b", epoch, 3), 9)
    session.ask("a still has all", request("a", 2, **owning(0, 1, 2, 3)), 1)
    session.ask("a has given up", request("a", 2, **owning(*kept)), 1)
    session.ask("a once more in its old epoch", request("a", 2, **owning(*kept)), 1)
    session.ask("b gets its share", request("b", 3, topic_partitions=[]), 1)
    _describe(session, "describe shared", group)
    for epoch in (2, 3, 4):
        session.ask(f"a commits {epoch} then", _commit(group, "consumer-pair", "a", epoch, *kept), 9)
    session.ask("b leaves", request("b", -1), 1)
    session.ask("a gets all", request("a", 3), 1)
    session.ask("a leaves", request("a", -1), 1)
    session.ask("delete", DeleteGroupsRequest(groups_names=[group]), 2)


@script
def regular_expressions_of_a_consumer_group(session: Session) -> None:
    group = "consumer-regex"
    for name in ("regex-a", "regex-b", "not-regex-a"):
        make_topic(session, name)
    _assign_at_once(session, group)
    find(session, group)

    def say(label: str, member: str, epoch: int, regex: str | None, **fields: Any) -> Any:
        request = ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=member,
            member_epoch=epoch,
            rebalance_timeout_ms=30_000,
            subscribed_topic_regex=regex,
            topic_partitions=[],
            **fields,
        )
        return session.ask(label, request, 1, hide=("assignment", "member_epoch"))

    for regex in ("(", "a{1001}", r"(?=a)", r"\1", "*"):
        say(f"joins with {regex}", "bad", 0, regex)
    say("joins with none", "bad", 0, "")
    say("joins", "good", 0, "regex-[ab]")
    everything = session.until(
        ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id="good",
            member_epoch=0,
            rebalance_timeout_ms=30_000,
            subscribed_topic_regex="regex-[ab]",
            topic_partitions=[],
        ),
        ConsumerGroupHeartbeatResponse,
        lambda answer: answer.assignment is not None and len(answer.assignment.topic_partitions) == 2,
    )
    assert everything.error_code == 0
    _describe(session, "describe", group, "member_epoch", "group_epoch", "assignment_epoch")
    session.ask("leave", ConsumerGroupHeartbeatRequest(group_id=group, member_id="good", member_epoch=-1), 1)


@script
def what_offsets_carry(session: Session) -> None:
    """Leader epochs, texts up to their limit, and retention of the old versions."""
    topic_id = make_topic(session, "offsets-carry", partitions=2)
    for version in session.versions(OffsetCommitRequest):
        group = f"carry-{version}"
        find(session, group)
        for label, text in {"null": None, "empty": "", "longest": "x" * 4096, "too long": "x" * 4097}.items():
            part = OffsetCommitRequestPartition(
                partition_index=0,
                committed_offset=7,
                committed_leader_epoch=3 if version >= 6 else -1,
                committed_metadata=text,
            )
            topic = OffsetCommitRequestTopic(name="offsets-carry", topic_id=topic_id, partitions=[part])
            request = OffsetCommitRequest(group_id=group, topics=[topic])
            if 2 <= version <= 4:
                request.retention_time_ms = 3_600_000
            session.ask(f"{label} text", request, version)
        for offset in (-1, -2, 0, 2**63 - 1):
            part = OffsetCommitRequestPartition(partition_index=1, committed_offset=offset)
            topic = OffsetCommitRequestTopic(name="offsets-carry", topic_id=topic_id, partitions=[part])
            session.ask(f"offset {offset}", OffsetCommitRequest(group_id=group, topics=[topic]), version)
        part = OffsetCommitRequestPartition(partition_index=9, committed_offset=1)
        topic = OffsetCommitRequestTopic(name="offsets-carry", topic_id=topic_id, partitions=[part])
        session.ask("unknown partition", OffsetCommitRequest(group_id=group, topics=[topic]), version)
    for version in session.versions(OffsetFetchRequest):
        session.ask("then", fetch("carry-9", version, "offsets-carry", topic_id), version)
        session.ask("of version 2 then", fetch("carry-2", version, "offsets-carry", topic_id), version)


def _describe(session: Session, label: str, group: str, *hidden: str) -> None:
    """The group with its members in the order of their ids, which they have chosen."""

    def by_id(answer: Any) -> None:
        answer.groups[0].members.sort(key=lambda each: each.member_id)

    request = ConsumerGroupDescribeRequest(group_ids=[group])
    session.ask(label, request, 1, hide=("client_host", *hidden), edit=by_id)


def _assign_at_once(session: Session, group: str) -> None:
    """Without the pause between two assignments, which no two runs would share."""
    configure_group(session, group, {"consumer.assignment.interval.ms": "0"})


def _commit(group: str, topic: str, member: str, epoch: int, *partitions: int) -> OffsetCommitRequest:
    parts = [OffsetCommitRequestPartition(partition_index=each, committed_offset=5) for each in partitions]
    return OffsetCommitRequest(
        group_id=group,
        topics=[OffsetCommitRequestTopic(name=topic, partitions=parts)],
        **of(member, epoch),
    )
