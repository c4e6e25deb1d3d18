"""Requests that name a thing twice: whether it is answered twice, once, or not at all.

No client does so, but a few tools and proxies put requests together, and the number of answers is theirs to
count.
"""

from __future__ import annotations

from typing import Any

from ottla.protocol.messages import offset_for_leader_epoch as epochs
from ottla.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from ottla.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from ottla.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest
from ottla.protocol.messages.describe_groups import DescribeGroupsRequest
from ottla.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from ottla.protocol.messages.describe_transactions import DescribeTransactionsRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.join_group import JoinGroupResponse
from ottla.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
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
from tests.kafka.scripts.groups import MADE_UP, find, join
from tests.kafka.scripts.kit import UNKNOWN_ID, batch_of, fill, keep_topics, make_topic, new_producer, script
from tests.kafka.scripts.transactions import begin, find_coordinator
from tests.support.differential import Session


@script
def repeated_topics(session: Session) -> None:
    name = "repeated_topics"
    topic_id = make_topic(session, name, partitions=2)
    fill(session, name, batch_of(b"x", producer_id=new_producer(session), producer_epoch=0, base_sequence=0))
    for version in session.versions(MetadataRequest):
        named = [
            MetadataRequestTopic(name=each)
            for each in (name, "repeated-none", name, "repeated-none", "/", "/")
        ]
        request = MetadataRequest(topics=named, allow_auto_topic_creation=False)
        if version < 4:  # these versions would make what is missing
            request = MetadataRequest(topics=[MetadataRequestTopic(name=name)] * 2)
        session.ask("metadata by name", request, version, edit=keep_topics("repeated"))
        if version >= 12:
            ids = [MetadataRequestTopic(name=None, topic_id=each) for each in (topic_id, UNKNOWN_ID) * 2]
            session.ask("metadata by id", MetadataRequest(topics=ids), version)
    wanted = [
        TopicRequest(name=name, partition_indexes=[0, 1, 0, 9, 9]),
        TopicRequest(name="repeated-none", partition_indexes=[0, 0]),
        TopicRequest(name=name, partition_indexes=[0, 1]),
        TopicRequest(name="/", partition_indexes=[0, 0]),
    ]
    session.ask("producers", DescribeProducersRequest(topics=wanted))
    partitions = [epochs.OffsetForLeaderPartition(partition=each, leader_epoch=0) for each in (0, 0, 9, 9)]
    for version in session.versions(epochs.OffsetForLeaderEpochRequest):
        twice = [epochs.OffsetForLeaderTopic(topic=name, partitions=partitions)] * 2
        session.ask("epochs", epochs.OffsetForLeaderEpochRequest(topics=twice), version)


@script
def repeated_groups(session: Session) -> None:
    """Of both kinds, with members and without, and ones that do not exist."""
    name = "repeated_groups"
    topic_id = make_topic(session, name, partitions=2)
    classic, consumer, simple = f"{name}-classic", f"{name}-consumer", f"{name}-simple"
    for group in (classic, consumer, simple):
        find(session, group)
    find_coordinator(session, name)
    member = session.get(join(classic, ""), JoinGroupResponse).member_id
    session.get(join(classic, member), JoinGroupResponse)
    beat = ConsumerGroupHeartbeatRequest(
        group_id=consumer,
        member_id="member",
        member_epoch=0,
        rebalance_timeout_ms=30_000,
        subscribed_topic_names=[name],
        topic_partitions=[],
    )
    session.get(beat, ConsumerGroupHeartbeatResponse)

    def commit(*offsets: int) -> OffsetCommitRequest:
        partitions = [
            OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="m")
            for offset in offsets
        ]
        topic = OffsetCommitRequestTopic(name=name, topic_id=topic_id, partitions=partitions)
        return OffsetCommitRequest(group_id=simple, topics=[topic])

    for version in session.versions(OffsetCommitRequest):
        session.ask("one partition twice", commit(5, 3), version)
        twice = commit(4)
        twice.topics *= 2
        session.ask("one topic twice", twice, version)
    session.get(commit(7, 6), OffsetCommitResponse)

    groups = [each for each in (classic, consumer, simple, f"{name}-none", "") for _ in range(2)]
    for version in session.versions(FindCoordinatorRequest)[4:]:
        for key_type in (0, 1, 9):
            find_all = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[*groups, *groups])
            session.ask(f"find {key_type}", find_all, version, hide=("host", "port"))
    for version in session.versions(DescribeGroupsRequest):
        session.ask("describe", DescribeGroupsRequest(groups=groups[:-2] * 2), version, hide=MADE_UP)
    for version in session.versions(ConsumerGroupDescribeRequest):
        request = ConsumerGroupDescribeRequest(group_ids=groups * 2)
        session.ask("describe as consumers", request, version, hide=MADE_UP, edit=_by_group)
    _repeated_offset_fetches(session, simple, consumer, name, topic_id)

    leaving = [MemberIdentity(member_id=each) for each in (member, member, "x", "x")]
    for version in (3, 5):
        leave = LeaveGroupRequest(group_id=classic, members=leaving)
        session.ask("leave", leave, version, hide=MADE_UP)
    parts = [OffsetDeleteRequestPartition(partition_index=each) for each in (0, 0, 9, 9)]
    topics = [OffsetDeleteRequestTopic(name=each, partitions=parts) for each in (name, name, "repeated-none")]
    session.ask("delete offsets", OffsetDeleteRequest(group_id=simple, topics=topics), 0)
    find(session, f"{simple}-2")
    again = commit(1)
    again.group_id = f"{simple}-2"
    session.get(again, OffsetCommitResponse)
    deleted = [f"{simple}-2", f"{simple}-2", f"{name}-none", f"{name}-none", consumer, consumer]
    for version in session.versions(DeleteGroupsRequest):
        session.ask("delete", DeleteGroupsRequest(groups_names=deleted), version, edit=_in_order)


def _by_group(answer: Any) -> None:
    answer.groups.sort(key=lambda each: each.group_id)


def _in_order(answer: Any) -> None:
    answer.results.sort(key=lambda each: (each.group_id, each.error_code))


def _repeated_offset_fetches(session: Session, group: str, other: str, topic: str, topic_id: bytes) -> None:
    for version in session.versions(OffsetFetchRequest):
        if version < 8:
            twice = [OffsetFetchRequestTopic(name=topic, partition_indexes=[0, 0, 9, 9])] * 2
            session.ask("offsets", OffsetFetchRequest(group_id=group, topics=twice), version)
            continue
        some = [OffsetFetchRequestTopics(name=topic, topic_id=topic_id, partition_indexes=[0, 0, 9])] * 2
        every = OffsetFetchRequestGroup(group_id=group, topics=None)
        named = OffsetFetchRequestGroup(group_id=group, topics=some)
        empty = OffsetFetchRequestGroup(group_id=other, topics=None)
        request = OffsetFetchRequest(groups=[every, named, every, empty, named, empty])
        session.ask("offsets", request, version)


@script
def repeated_transactions(session: Session) -> None:
    name = "repeated_transactions"
    make_topic(session, name, partitions=2)
    producer = begin(session, name)
    twice = [AddPartitionsToTxnTopic(name=name, partitions=[0, 0])] * 2
    for version in range(4):
        add = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=producer.id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=twice,
        )
        session.ask("add", add, version)
    request = DescribeTransactionsRequest(transactional_ids=[name, "unknown", name, "unknown", "", ""])
    session.ask("describe", request, hide=("transaction_start_time_ms",))
