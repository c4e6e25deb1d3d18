"""The groups of one partition of `__consumer_offsets`: their table, their replay, their listing.

The managers of classic, consumer and streams groups and of offsets work on it: it holds the groups, the
deadlines, the settings and the metadata image.

Records of one group may come in any order that compaction leaves, so replay creates what is missing and
accepts tombstones for what is gone. The last record decides what kind of group it is; what a record changes
stands with each kind (`adopt_member` and its like).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from ottla.coordinator.group import records
from ottla.coordinator.group.classic.classic_group import ClassicGroup, ClassicGroupState
from ottla.coordinator.group.config import GroupSettings
from ottla.coordinator.group.consumer.consumer_group import (
    ConsumerGroup,
    ConsumerGroupMember,
    Partitions,
    partitions_of,
)
from ottla.coordinator.group.requests import ListGroups
from ottla.coordinator.group.share import share_records
from ottla.coordinator.group.share.share_group import ShareGroup
from ottla.coordinator.group.streams import streams_records
from ottla.coordinator.group.streams.streams_group import StreamsGroup
from ottla.coordinator.runtime.effects import CoordinatorRecord, Effects, EventTime, ReplyTo
from ottla.coordinator.runtime.timers import CoordinatorTimer
from ottla.metadata.image.image import MetadataImage
from ottla.protocol.consumer_offsets_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMetadataKey,
    GroupMetadataKey,
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupMemberMetadataKey,
    ShareGroupMetadataKey,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMetadataKey,
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMetadataKey,
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTopologyKey,
)
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import consumer_group_describe as consumer_messages
from ottla.protocol.messages import describe_groups as classic_messages
from ottla.protocol.messages.list_groups import ListedGroup
from ottla.protocol.schema import Message

Group: TypeAlias = ClassicGroup | ConsumerGroup | ShareGroup | StreamsGroup
Action: TypeAlias = Callable[[EventTime], Effects]

_CONSUMER_MEMBER = 1
_CLASSIC_MEMBER = 0


class GroupMetadataManager:
    __slots__ = ("groups", "image", "new_id", "settings", "share_groups", "timer")

    def __init__(self, settings: GroupSettings, image: MetadataImage, new_id: Callable[[], str]) -> None:
        self.groups: dict[str, Group] = {}
        self.share_groups: dict[str, ShareGroup] = {}  # those of `groups`
        self.timer: CoordinatorTimer[Action] = CoordinatorTimer()  # keys begin with the group id
        self.settings = settings
        self.image = image
        self.new_id = new_id  # makes ids for members, never the same one twice

    def group(self, group_id: str) -> Group:
        group = self.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        return group

    def remove_group(self, group_id: str) -> None:
        """Forget the group and its deadlines."""
        self.groups.pop(group_id, None)
        self.share_groups.pop(group_id, None)
        self.timer.cancel_if(lambda key: isinstance(key, tuple) and key[0] == group_id)

    # Listing and describing

    def list_groups(self, to: ReplyTo[list[ListedGroup]] | None, request: ListGroups) -> Effects:
        listed = [
            ListedGroup(
                group_id=group.group_id,
                protocol_type=(group.protocol_type or "")
                if isinstance(group, ClassicGroup)
                else group_type(group),
                group_state=group.state.value,
                group_type=group_type(group),
            )
            for group in self.groups.values()
            if (not request.states or group.state.value.lower() in request.states)
            and (not request.types or group_type(group) in request.types)
        ]
        return Effects().reply(to, listed)

    def describe_classic_group(
        self, to: ReplyTo[classic_messages.DescribedGroup] | None, group_id: str
    ) -> Effects:
        group = self.groups.get(group_id)
        if not isinstance(group, ClassicGroup):
            what = "is not a classic group" if group is not None else "not found"
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {what}.")
        is_stable = group.state is ClassicGroupState.STABLE
        described = classic_messages.DescribedGroup(
            group_id=group_id,
            group_state=group.state.value,
            protocol_type=group.protocol_type or "",
            protocol_data=(group.protocol or "") if is_stable else "",
            members=[
                classic_messages.DescribedGroupMember(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    member_metadata=member.metadata(group.protocol) if is_stable else b"",
                    # In a rebalance: what it had before.
                    member_assignment=member.assignment,
                )
                for member in group.members.values()
            ],
        )
        return Effects().reply(to, described)

    def describe_consumer_group(
        self, to: ReplyTo[consumer_messages.DescribedGroup] | None, group_id: str
    ) -> Effects:
        group = self.groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            what = "is not a consumer group" if group is not None else "not found"
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {what}.")
        described = consumer_messages.DescribedGroup(
            group_id=group_id,
            group_state=group.state.value,
            group_epoch=group.epoch,
            assignment_epoch=group.target_epoch,
            assignor_name=group.preferred_assignor or self.settings.node.consumer_assignors[0],
            members=[self._described_member(group, member) for member in group.members.values()],
        )
        return Effects().reply(to, described)

    def _described_member(
        self, group: ConsumerGroup, member: ConsumerGroupMember
    ) -> consumer_messages.Member:
        return consumer_messages.Member(
            member_id=member.member_id,
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            member_epoch=member.epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=sorted(member.topics),
            subscribed_topic_regex=member.regex,
            assignment=self._assignment(_owned_partitions(member)),
            target_assignment=self._assignment(group.target.get(member.member_id, {})),
            member_type=_CLASSIC_MEMBER if member.is_classic else _CONSUMER_MEMBER,
        )

    def _assignment(self, partitions: Partitions) -> consumer_messages.Assignment:
        by_id = self.image.topics.by_id
        return consumer_messages.Assignment(
            topic_partitions=[
                consumer_messages.TopicPartitions(
                    topic_id=topic_id, topic_name=by_id[topic_id].name, partitions=sorted(ids)
                )
                for topic_id, ids in sorted(partitions.items())
                if topic_id in by_id
            ]
        )

    # Replay

    def replay(self, key: Message, value: Message | None) -> None:
        """Have a group adopt one of its records."""
        replay = _REPLAYS.get(type(key))
        if replay is None:
            return
        kind, adopt = replay
        group_id: str = getattr(key, "group" if kind is ClassicGroup else "group_id")
        group = self.groups.get(group_id)
        if not isinstance(group, kind):
            if value is None:
                return
            group = self._add_group(kind(group_id))
        if isinstance(group, ShareGroup):
            group.updates += 1
        if value is None and isinstance(key, _METADATA_KEYS):
            self.remove_group(group_id)
        else:
            adopt(group, key, value)

    def _add_group(self, group: Group) -> Group:
        """Add a group, in place of one of another kind."""
        self.groups[group.group_id] = group
        self.share_groups.pop(group.group_id, None)
        if isinstance(group, ShareGroup):
            self.share_groups[group.group_id] = group
        return group


_METADATA_KEYS: Final = (
    GroupMetadataKey,
    ConsumerGroupMetadataKey,
    ShareGroupMetadataKey,
    StreamsGroupMetadataKey,
)
"""Keys of records that end with their group."""
_REPLAYS: Final[Mapping[type[Message], tuple[type[Group], Callable[[Any, Any, Any], None]]]] = {
    GroupMetadataKey: (ClassicGroup, lambda group, _, value: group.adopt(value)),
    ConsumerGroupMetadataKey: (ConsumerGroup, ConsumerGroup.adopt_metadata),
    ConsumerGroupMemberMetadataKey: (ConsumerGroup, ConsumerGroup.adopt_member),
    ConsumerGroupTargetAssignmentMetadataKey: (ConsumerGroup, ConsumerGroup.adopt_target_epoch),
    ConsumerGroupTargetAssignmentMemberKey: (ConsumerGroup, ConsumerGroup.adopt_target),
    ConsumerGroupCurrentMemberAssignmentKey: (ConsumerGroup, ConsumerGroup.adopt_assignment),
    ConsumerGroupRegularExpressionKey: (ConsumerGroup, ConsumerGroup.adopt_regular_expression),
    ShareGroupMetadataKey: (ShareGroup, ShareGroup.adopt_metadata),
    ShareGroupMemberMetadataKey: (ShareGroup, ShareGroup.adopt_member),
    ShareGroupTargetAssignmentMetadataKey: (ShareGroup, ShareGroup.adopt_target_epoch),
    ShareGroupTargetAssignmentMemberKey: (ShareGroup, ShareGroup.adopt_target),
    ShareGroupCurrentMemberAssignmentKey: (ShareGroup, ShareGroup.adopt_assignment),
    ShareGroupStatePartitionMetadataKey: (ShareGroup, ShareGroup.adopt_states),
    StreamsGroupMetadataKey: (StreamsGroup, StreamsGroup.adopt_metadata),
    StreamsGroupMemberMetadataKey: (StreamsGroup, StreamsGroup.adopt_member),
    StreamsGroupTopologyKey: (StreamsGroup, StreamsGroup.adopt_topology),
    StreamsGroupTargetAssignmentMetadataKey: (StreamsGroup, StreamsGroup.adopt_target_epoch),
    StreamsGroupTargetAssignmentMemberKey: (StreamsGroup, StreamsGroup.adopt_target),
    StreamsGroupCurrentMemberAssignmentKey: (StreamsGroup, StreamsGroup.adopt_assignment),
}
"""The kind of group that each record makes, and how it adopts it; the value of a tombstone is None."""


def group_tombstones(group: Group, out: list[CoordinatorRecord]) -> None:
    """Write tombstones for all records of a group, but not of its offsets; a consumer group's epoch last."""
    if isinstance(group, ClassicGroup):
        out.append(records.group_metadata(group.group_id, None))
        return
    if isinstance(group, StreamsGroup):
        out += streams_records.group_tombstones(group)
        return
    if isinstance(group, ShareGroup):
        share_records.group_tombstones(group, out)
        return
    group_id = group.group_id
    targets = sorted(group.target.keys() | group.members.keys())
    out += [records.current_assignment_tombstone(group_id, member_id) for member_id in group.members]
    out += [records.target_assignment_tombstone(group_id, member_id) for member_id in targets]
    out.append(records.target_epoch_tombstone(group_id))
    out += [records.member_subscription_tombstone(group_id, member_id) for member_id in group.members]
    out += [records.regular_expression_tombstone(group_id, regex) for regex in group.regexes]
    out.append(records.group_epoch_tombstone(group_id))


def group_type(group: Group) -> str:
    """The protocol of a group, as ListGroups has it."""
    if isinstance(group, ShareGroup):
        return "share"
    if isinstance(group, StreamsGroup):
        return "streams"
    return "classic" if isinstance(group, ClassicGroup) else "consumer"


def _owned_partitions(member: ConsumerGroupMember) -> Partitions:
    """The partitions of a member, with those that it has yet to give up."""
    held = partitions_of(member.assigned)
    for topic_id, partitions in member.revoking.items():
        held[topic_id] = held.get(topic_id, frozenset()) | frozenset(partitions)
    return held
