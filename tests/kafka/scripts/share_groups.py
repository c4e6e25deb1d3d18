"""Share groups: members, their errors, other kinds of groups, and the offsets of a group."""

from __future__ import annotations

from typing import Any

from ottla.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from ottla.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from ottla.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest
from ottla.protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
)
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from ottla.protocol.messages.describe_groups import DescribeGroupsRequest
from ottla.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteRequestTopic
from ottla.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from ottla.protocol.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from tests.kafka.scripts.groups import MADE_UP, commit, fetch, find, join, sync
from tests.kafka.scripts.kit import make_topic, script
from tests.support.differential import Session

GROUP_CONFIG = 32
_DURATIONS = (
    *(
        f"by_duration:{each}"
        for each in ("PT1H", "pt1h", "P1D", "P-1D", "PT-1H", "P1DT", "PT1.5H", "PT0.5S", "P1W", "")
    ),
    "BY_DURATION:PT1H",
)


def beat(group: str, epoch: int, member: str = "member", **fields: Any) -> ShareGroupHeartbeatRequest:
    return ShareGroupHeartbeatRequest(group_id=group, member_id=member, member_epoch=epoch, **fields)


def settle(session: Session, group: str, topic: str, epoch: int, partitions: int) -> None:
    """Have the member join, and wait until it has all partitions in an epoch."""
    # A heartbeat with the topics is answered with the whole assignment.
    session.until(
        beat(group, 0, subscribed_topic_names=[topic]),
        ShareGroupHeartbeatResponse,
        lambda answer: (
            answer.member_epoch == epoch
            and answer.assignment is not None
            and sum(len(each.partitions) for each in answer.assignment.topic_partitions) == partitions
        ),
    )


@script
def share_group_errors(session: Session) -> None:
    group = "share-errors"
    make_topic(session, "share-errors")
    find(session, group)
    for epoch in (-3, -1, 0, 1):
        session.ask(f"no group, epoch {epoch}", beat("share-none", epoch), 1)
    session.ask("no member id", beat(group, 0, "", subscribed_topic_names=["share-errors"]), 1)
    session.ask("a long member id", beat(group, 0, "m" * 37, subscribed_topic_names=["share-errors"]), 1)
    session.ask("no group id", beat("", 0, subscribed_topic_names=["share-errors"]), 1)
    session.ask("no topics", beat(group, 0, subscribed_topic_names=[]), 1)
    session.ask("an empty rack", beat(group, 0, rack_id="", subscribed_topic_names=["share-errors"]), 1)
    request = ShareGroupDescribeRequest(group_ids=["share-none", "", "share-none"])
    session.ask("describe none", request, 1)
    for topics in (None, [DescribeShareGroupOffsetsRequestTopic(topic_name="share-errors", partitions=[0])]):
        group_of = DescribeShareGroupOffsetsRequestGroup(group_id="share-none", topics=topics)
        for version in session.versions(DescribeShareGroupOffsetsRequest):
            offsets = DescribeShareGroupOffsetsRequest(groups=[group_of])
            session.ask(f"offsets of none {topics is None}", offsets, version)
    session.ask("delete offsets of none", _deletion("share-none", "share-errors"), 0)
    session.ask("delete offsets of no id", _deletion("", "share-errors"), 0)
    session.ask("alter offsets of no id", _alteration("", "share-errors", {0: 1}), 0)


@script
def the_life_of_a_share_group(session: Session) -> None:
    group = topic = "share-life"
    topic_id = make_topic(session, topic, partitions=2)
    find(session, group)
    settle(session, group, topic, 3, 2)
    session.ask("quiet", beat(group, 3), 1)
    session.ask("the epoch before", beat(group, 2), 1)
    session.ask("an epoch too far", beat(group, 4), 1)
    session.ask("an epoch too old", beat(group, 1), 1)
    session.ask("the same topics", beat(group, 3, subscribed_topic_names=[topic]), 1)
    session.ask("join again", beat(group, 0, subscribed_topic_names=[topic]), 1)
    session.ask("an unknown member", beat(group, 3, "other"), 1)
    session.ask("an unknown member leaves", beat(group, -1, "other"), 1)
    session.ask("describe", ShareGroupDescribeRequest(group_ids=[group]), 1, hide=MADE_UP)
    listing = ListGroupsRequest(types_filter=["share"], states_filter=["stable"])
    session.ask("list", listing, 5, edit=_only(group))
    session.ask("describe as classic", DescribeGroupsRequest(groups=[group]), 6)
    session.ask("describe as consumer", ConsumerGroupDescribeRequest(group_ids=[group]), 1)
    # Other protocols
    for epoch in (0, 3):
        fields: dict[str, Any] = {
            "rebalance_timeout_ms": 30_000,
            "subscribed_topic_names": [topic],
            "topic_partitions": [],
        }
        request = ConsumerGroupHeartbeatRequest(
            group_id=group, member_id="other", member_epoch=epoch, **(fields if epoch == 0 else {})
        )
        session.ask(f"consumer protocol {epoch}", request, 1)
    session.ask("classic join", join(group, ""), 9, hide=MADE_UP)
    session.ask("classic sync", sync(group, "member", 3), 5)
    session.ask("classic heartbeat", HeartbeatRequest(group_id=group, generation_id=3, member_id="member"), 4)
    session.ask(
        "classic leave",
        LeaveGroupRequest(group_id=group, members=[MemberIdentity(member_id="member")]),
        5,
        hide=MADE_UP,
    )
    session.ask("commit", commit(group, topic, topic_id), 9)
    session.ask("fetch", fetch(group, 9, topic, topic_id), 9)
    deletion = OffsetDeleteRequest(group_id=group, topics=[OffsetDeleteRequestTopic(name=topic)])
    session.ask("delete committed offsets", deletion, 0)
    # What needs a group without members
    session.ask("alter offsets", _alteration(group, topic, {0: 1}), 0)
    session.ask("delete offsets", _deletion(group, topic), 0)
    session.ask("delete group", DeleteGroupsRequest(groups_names=[group]), 2)
    session.ask("leave", beat(group, -1), 1)
    session.ask("describe empty", ShareGroupDescribeRequest(group_ids=[group]), 1, hide=MADE_UP)
    session.ask("delete empty", DeleteGroupsRequest(groups_names=[group]), 2)
    session.ask("delete again", DeleteGroupsRequest(groups_names=[group]), 2)
    session.ask("describe deleted", ShareGroupDescribeRequest(group_ids=[group]), 1)


@script
def the_offsets_of_a_share_group(session: Session) -> None:
    group = topic = "share-offsets"
    make_topic(session, topic, partitions=2)
    find(session, group)
    session.ask("alter", _alteration(group, topic, {0: 4, 1: 0, 9: 1}), 0)
    session.ask("alter an unknown topic", _alteration(group, "share-offsets-none", {0: 4}), 0)
    session.ask("describe altered", ShareGroupDescribeRequest(group_ids=[group]), 1)
    for version in session.versions(DescribeShareGroupOffsetsRequest):
        for label, topics in (
            ("all", None),
            ("none", []),
            ("some", [(topic, [0, 1]), ("share-offsets-none", [0])]),
        ):
            asked = (
                None
                if topics is None
                else [
                    DescribeShareGroupOffsetsRequestTopic(topic_name=name, partitions=partitions)
                    for name, partitions in topics
                ]
            )
            request = DescribeShareGroupOffsetsRequest(
                groups=[DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=asked)]
            )
            session.ask(f"offsets {label}", request, version)
    session.ask("delete of topics", _deletion(group, topic, "share-offsets-none"), 0)
    session.ask("delete again", _deletion(group, topic), 0)
    request = DescribeShareGroupOffsetsRequest(
        groups=[DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=None)]
    )
    session.ask("offsets deleted", request, 1)
    session.ask("delete group", DeleteGroupsRequest(groups_names=[group]), 2)


def _alteration(group: str, topic: str, offsets: dict[int, int]) -> AlterShareGroupOffsetsRequest:
    partitions = [
        AlterShareGroupOffsetsRequestPartition(partition_index=index, start_offset=offset)
        for index, offset in offsets.items()
    ]
    return AlterShareGroupOffsetsRequest(
        group_id=group, topics=[AlterShareGroupOffsetsRequestTopic(topic_name=topic, partitions=partitions)]
    )


def _deletion(group: str, *topics: str) -> DeleteShareGroupOffsetsRequest:
    return DeleteShareGroupOffsetsRequest(
        group_id=group, topics=[DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in topics]
    )


def _only(group: str) -> Any:
    """Take the groups of other scripts out of a list."""

    def edit(answer: Any) -> None:
        answer.groups = [each for each in answer.groups if each.group_id == group]

    return edit


@script
def the_configs_of_a_share_group(session: Session) -> None:
    """What a group may set, within the bounds of the broker, and what it then has."""
    group = "share-configs"
    find(session, group)

    def describe(label: str) -> None:
        resource = DescribeConfigsResource(resource_type=GROUP_CONFIG, resource_name=group)
        request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
        session.ask(label, request, edit=_only_share_configs)

    describe("nothing set")
    for name, values in (
        ("share.heartbeat.interval.ms", ("5000", "100", "100000", "x")),
        ("share.session.timeout.ms", ("45000", "60000", "1", "1000000")),
        ("share.record.lock.duration.ms", ("15000", "999", "3600001", "-1", "")),
        ("share.delivery.count.limit", ("2", "1", "10", "11", "0")),
        ("share.partition.max.record.locks", ("100", "99", "10000", "10001")),
        (
            "share.auto.offset.reset",
            ("earliest", "latest", "none", "EARLIEST", *_DURATIONS),
        ),
        ("share.isolation.level", ("read_committed", "READ_UNCOMMITTED", "read_all")),
        ("share.renew.acknowledge.enable", ("false", "yes")),
        ("share.assignment.interval.ms", ("0", "1000", "-1")),
        ("share.no.such.config", ("1",)),
    ):
        for value in values:
            change = AlterableConfig(name=name, config_operation=0, value=value)
            resource = AlterConfigsResource(resource_type=GROUP_CONFIG, resource_name=group, configs=[change])
            request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=True)
            session.ask(f"{name}={value}", request)
    changes = {"share.auto.offset.reset": "earliest", "share.delivery.count.limit": "3"}
    resource = AlterConfigsResource(
        resource_type=GROUP_CONFIG,
        resource_name=group,
        configs=[
            AlterableConfig(name=name, config_operation=0, value=value) for name, value in changes.items()
        ],
    )
    session.ask("set", IncrementalAlterConfigsRequest(resources=[resource]))
    session.until(
        DescribeConfigsRequest(
            resources=[DescribeConfigsResource(resource_type=GROUP_CONFIG, resource_name=group)]
        ),
        DescribeConfigsResponse,
        lambda answer: (
            changes.items() <= {each.name: each.value for each in answer.results[0].configs}.items()
        ),
    )
    describe("set")


def _only_share_configs(answer: DescribeConfigsResponse) -> None:
    for result in answer.results:
        result.configs = [each for each in result.configs if each.name.startswith("share.")]
