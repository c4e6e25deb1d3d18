"""Groups of both protocols and their offsets: one member's life, and every error that needs no second one."""

from __future__ import annotations

from typing import Any

from ottla.protocol.consumer_protocol import ConsumerProtocolSubscription, encode_subscription
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from ottla.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from ottla.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from ottla.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from ottla.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.kafka.scripts.kit import UNKNOWN_ID, await_applied, make_topic, script
from tests.support.differential import Session

# What each broker makes up for itself.
MADE_UP = ("member_id", "leader", "host", "port", "client_host")


def find(session: Session, group: str) -> None:
    """Wait until the group has a coordinator that is loaded and has the topics that were created before."""
    session.until(
        FindCoordinatorRequest(key_type=0, coordinator_keys=[group]),
        FindCoordinatorResponse,
        lambda answer: answer.coordinators[0].error_code == 0,
    )
    settled = {int(ErrorCode.NONE), int(ErrorCode.GROUP_ID_NOT_FOUND)}
    session.until(
        DescribeGroupsRequest(groups=[group, f"{group}-none", ""]),
        DescribeGroupsResponse,
        lambda answer: settled.issuperset(each.error_code for each in answer.groups),
    )
    session.until(ListGroupsRequest(), ListGroupsResponse, lambda answer: answer.error_code == 0)
    await_applied(session)


def commit(group: str, topic: str, topic_id: bytes, **fields: Any) -> OffsetCommitRequest:
    partitions = [
        OffsetCommitRequestPartition(
            partition_index=index, committed_offset=index + 5, committed_metadata="m"
        )
        for index in (0, 1)
    ]
    return OffsetCommitRequest(
        group_id=group,
        topics=[OffsetCommitRequestTopic(name=topic, topic_id=topic_id, partitions=partitions)],
        **fields,
    )


def fetch(group: str, version: int, topic: str | None, topic_id: bytes, **fields: Any) -> OffsetFetchRequest:
    if version < 8:
        topics = None if topic is None else [OffsetFetchRequestTopic(name=topic, partition_indexes=[0, 1, 9])]
        return OffsetFetchRequest(group_id=group, topics=topics)
    batched = (
        None
        if topic is None
        else [OffsetFetchRequestTopics(name=topic, topic_id=topic_id, partition_indexes=[0, 1, 9])]
    )
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=batched, **fields)])


@script
def offsets_of_groups(session: Session) -> None:
    topic_id = make_topic(session, "group-offsets", partitions=2)
    for version in session.versions(OffsetCommitRequest):
        group = f"offsets-{version}"
        find(session, group)
        session.ask("without a member", commit(group, "group-offsets", topic_id), version)
        stranger = {"member_id": "x", "generation_id_or_member_epoch": 3}
        session.ask("by a stranger", commit(group, "group-offsets", topic_id, **stranger), version)
        session.ask("of no group", commit(group + "-none", "group-offsets", topic_id, **stranger), version)
        session.ask("empty group", commit("", "group-offsets", topic_id), version)
        session.ask("unknown topic", commit(group, "group-offsets-none", UNKNOWN_ID), version)
        session.ask("no topics", OffsetCommitRequest(group_id=group), version)
        if version >= 7:
            static = {**stranger, "group_instance_id": "i"}
            session.ask("by an instance", commit(group, "group-offsets", topic_id, **static), version)
    for version in session.versions(OffsetFetchRequest):
        for group in ("offsets-9", "offsets-none"):
            session.ask(f"of {group}", fetch(group, version, "group-offsets", topic_id), version)
            session.ask(f"unknown topic of {group}", fetch(group, version, "nothing", UNKNOWN_ID), version)
            if version >= 2:
                session.ask(f"all of {group}", fetch(group, version, None, topic_id), version)
        if version >= 9:
            member = {"member_id": "x", "member_epoch": 1}
            session.ask(
                "as a member", fetch("offsets-9", version, "group-offsets", topic_id, **member), version
            )
    for group in ("offsets-9", "offsets-none", ""):
        for topic in ("group-offsets", "nothing"):
            part = [OffsetDeleteRequestPartition(partition_index=index) for index in (0, 7)]
            request = OffsetDeleteRequest(
                group_id=group, topics=[OffsetDeleteRequestTopic(name=topic, partitions=part)]
            )
            session.ask(f"delete {topic} of {group!r}", request, 0)
    session.ask("after deleting", fetch("offsets-9", 9, None, topic_id), 9)


@script
def groups_that_do_not_exist(session: Session) -> None:
    find(session, "missing")
    # Offsets may be committed without a group's name; the group that this makes is gone afterwards.
    session.get(DeleteGroupsRequest(groups_names=[""]), DeleteGroupsResponse)
    for group in ("missing", ""):
        for version in session.versions(HeartbeatRequest):
            session.ask(
                f"heartbeat {group!r}",
                HeartbeatRequest(group_id=group, generation_id=1, member_id="x"),
                version,
            )
        for version in session.versions(SyncGroupRequest):
            request = SyncGroupRequest(group_id=group, generation_id=1, member_id="x")
            session.ask(f"sync {group!r}", request, version)
            if version >= 5:
                request = SyncGroupRequest(
                    group_id=group,
                    generation_id=1,
                    member_id="x",
                    protocol_type="consumer",
                    protocol_name="range",
                )
                session.ask(f"sync with a protocol {group!r}", request, version)
        for version in session.versions(LeaveGroupRequest):
            if version < 3:
                leave = LeaveGroupRequest(group_id=group, member_id="x")
            else:
                leave = LeaveGroupRequest(group_id=group, members=[MemberIdentity(member_id="x")])
            session.ask(f"leave {group!r}", leave, version)
        for version in session.versions(DescribeGroupsRequest):
            session.ask(f"describe {group!r}", DescribeGroupsRequest(groups=[group]), version)
        for version in session.versions(DeleteGroupsRequest):
            session.ask(f"delete {group!r}", DeleteGroupsRequest(groups_names=[group, group]), version)
        for version in session.versions(ConsumerGroupDescribeRequest):
            session.ask(f"describe {group!r}", ConsumerGroupDescribeRequest(group_ids=[group]), version)
        for version in session.versions(JoinGroupRequest):
            for timeout_ms in (1, 10_000):
                request_join = join(group, "x", session_timeout_ms=timeout_ms)
                session.ask(f"join {group!r} {timeout_ms}", request_join, version)
        for version in session.versions(ConsumerGroupHeartbeatRequest):
            for epoch in (-3, -2, -1, 1):
                request_beat = ConsumerGroupHeartbeatRequest(
                    group_id=group, member_id="x", member_epoch=epoch
                )
                session.ask(f"epoch {epoch} {group!r}", request_beat, version)


def join(
    group: str, member_id: str, *, session_timeout_ms: int = 60_000, protocol: str = "range"
) -> JoinGroupRequest:
    metadata = encode_subscription(ConsumerProtocolSubscription(topics=["group-life"]))
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=60_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name=protocol, metadata=metadata)],
    )


@script
def the_life_of_a_classic_group(session: Session) -> None:
    group = "classic-life"
    topic_id = make_topic(session, "group-life", partitions=2)
    find(session, group)
    member = session.get(join(group, ""), JoinGroupResponse).member_id
    session.ask("the id that was given", join(group, member), 9, hide=(*MADE_UP, "members"))
    session.ask("heartbeat before sync", beat(group, member, 1), 4)
    session.ask("commit before sync", commit(group, "group-life", topic_id, **of(member, 1)), 9)
    session.ask("describe completing", DescribeGroupsRequest(groups=[group]), 6, hide=MADE_UP)
    session.ask("sync of another protocol", sync(group, member, 1, "sticky"), 5)
    session.ask("sync of another generation", sync(group, member, 2), 5)
    session.ask("sync", sync(group, member, 1), 5)
    session.ask("describe stable", DescribeGroupsRequest(groups=[group]), 6, hide=MADE_UP)
    for generation in (0, 1, 2):
        session.ask(f"heartbeat {generation}", beat(group, member, generation), 4)
        commit_of = commit(group, "group-life", topic_id, **of(member, generation))
        session.ask(f"commit {generation}", commit_of, 9)
    session.ask("commit without a member", commit(group, "group-life", topic_id), 9)
    session.ask("join with another protocol", join(group, "", protocol="other"), 9, hide=MADE_UP)
    session.ask("delete", DeleteGroupsRequest(groups_names=[group]), 2)
    part = [OffsetDeleteRequestPartition(partition_index=0)]
    request = OffsetDeleteRequest(
        group_id=group, topics=[OffsetDeleteRequestTopic(name="group-life", partitions=part)]
    )
    session.ask("delete offsets", request, 0)
    session.ask("describe as a consumer group", ConsumerGroupDescribeRequest(group_ids=[group]), 1)
    for version in session.versions(ListGroupsRequest):
        session.ask("list", ListGroupsRequest(), version, edit=lambda answer: only(answer, group))
        if version >= 4:
            for state in ("stable", "Stable", "Empty"):
                request_list = ListGroupsRequest(states_filter=[state])
                session.ask(f"list {state}", request_list, version, edit=lambda answer: only(answer, group))
        if version >= 5:
            for kind in ("classic", "Consumer"):
                request_list = ListGroupsRequest(types_filter=[kind])
                session.ask(f"list {kind}", request_list, version, edit=lambda answer: only(answer, group))
    session.ask(
        "leave",
        LeaveGroupRequest(group_id=group, members=[MemberIdentity(member_id=member)]),
        5,
        hide=MADE_UP,
    )
    session.ask("heartbeat after leaving", beat(group, member, 1), 4)
    session.ask("describe empty", DescribeGroupsRequest(groups=[group]), 6, hide=MADE_UP)
    session.ask("delete empty", DeleteGroupsRequest(groups_names=[group]), 2)


@script
def the_life_of_a_consumer_group(session: Session) -> None:
    group = "consumer-life"
    topic_id = make_topic(session, "consumer-life", partitions=2)
    find(session, group)

    def say(label: str, epoch: int, **fields: Any) -> None:
        request = ConsumerGroupHeartbeatRequest(
            group_id=group, member_id="member", member_epoch=epoch, **fields
        )
        session.ask(label, request, 1)

    whole = {
        "rebalance_timeout_ms": 30_000,
        "subscribed_topic_names": ["consumer-life"],
        "topic_partitions": [],
    }
    say("join without a timeout", 0, **{**whole, "rebalance_timeout_ms": -1})
    say("join without a subscription", 0, **{**whole, "subscribed_topic_names": None})
    say("join with an unknown assignor", 0, **whole, server_assignor="mine")
    say("join with a bad expression", 0, **whole, subscribed_topic_regex="[")
    say("join", 0, **whole)
    say("quiet", 2)
    say("an epoch too far", 3)
    say("an epoch too old", 1)
    say("join again", 0, **whole)
    owned = [TopicPartitions(topic_id=topic_id, partitions=[0, 1])]
    say("everything again", 2, **{**whole, "topic_partitions": owned})
    session.ask("describe", ConsumerGroupDescribeRequest(group_ids=[group]), 1, hide=MADE_UP)
    session.ask("describe as a classic group", DescribeGroupsRequest(groups=[group]), 6)
    for epoch in (-1, 1, 2, 3):
        commit_of = commit(group, "consumer-life", topic_id, **of("member", epoch))
        session.ask(f"commit {epoch}", commit_of, 9)
        asked = fetch(group, 9, "consumer-life", topic_id, member_id="member", member_epoch=epoch)
        session.ask(f"fetch {epoch}", asked, 9)
    session.ask("an old commit", commit(group, "consumer-life", topic_id, **of("member", 2)), 8)
    session.ask("a classic heartbeat", beat(group, "member", 2), 4)
    session.ask("delete", DeleteGroupsRequest(groups_names=[group]), 2)
    say("leave", -1)
    say("leave again", -1)
    session.ask("describe empty", ConsumerGroupDescribeRequest(group_ids=[group]), 1)
    session.ask("delete empty", DeleteGroupsRequest(groups_names=[group]), 2)


def of(member: str, generation: int) -> dict[str, Any]:
    return {"member_id": member, "generation_id_or_member_epoch": generation}


def beat(group: str, member: str, generation: int) -> HeartbeatRequest:
    return HeartbeatRequest(group_id=group, member_id=member, generation_id=generation)


def sync(group: str, member: str, generation: int, protocol: str = "range") -> SyncGroupRequest:
    return SyncGroupRequest(
        group_id=group,
        member_id=member,
        generation_id=generation,
        protocol_type="consumer",
        protocol_name=protocol,
        assignments=[SyncGroupRequestAssignment(member_id=member, assignment=b"mine")],
    )


def only(answer: Any, group: str) -> None:
    answer.groups = [entry for entry in answer.groups if entry.group_id == group]
