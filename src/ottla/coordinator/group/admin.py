"""Listing, describing and deleting groups, and forgetting what nobody has used for long."""

from __future__ import annotations

from typing import Any

from ottla.coordinator.group import records
from ottla.coordinator.group.classic.group import ClassicGroup, ClassicState
from ottla.coordinator.group.consumer.group import ConsumerGroup, ConsumerMember, Partitions, partitions_of
from ottla.coordinator.group.migration import group_tombstones
from ottla.coordinator.group.offsets.store import OffsetStore
from ottla.coordinator.group.requests import ListGroups
from ottla.coordinator.group.state import Group, GroupState
from ottla.coordinator.runtime.effects import CoordinatorRecord, Effects, EventTime, ReplyTo
from ottla.protocol.consumer_offsets_records import OffsetCommitValue
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import consumer_group_describe as consumer_messages
from ottla.protocol.messages import describe_groups as classic_messages
from ottla.protocol.messages.list_groups import ListedGroup

_CONSUMER_MEMBER = 1
_CLASSIC_MEMBER = 0


def group_type(group: Group) -> str:
    return "classic" if isinstance(group, ClassicGroup) else "consumer"


class GroupAdmin:
    __slots__ = ("_state", "_store")

    def __init__(self, state: GroupState, store: OffsetStore) -> None:
        self._state = state
        self._store = store

    def list_groups(self, token: ReplyTo[Any] | None, request: ListGroups) -> Effects:
        listed = [
            ListedGroup(
                group_id=group.group_id,
                protocol_type=(group.protocol_type or "") if isinstance(group, ClassicGroup) else "consumer",
                group_state=group.state.value,
                group_type=group_type(group),
            )
            for group in self._state.groups.values()
            if (not request.states or group.state.value.lower() in request.states)
            and (not request.types or group_type(group) in request.types)
        ]
        return Effects().reply(token, listed)

    # Describing

    def describe_classic(self, token: ReplyTo[Any] | None, group_id: str) -> Effects:
        group = self._state.groups.get(group_id)
        if not isinstance(group, ClassicGroup):
            what = "is not a classic group" if group is not None else "does not exist"
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group_id} {what}")
        is_stable = group.state is ClassicState.STABLE
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
        return Effects().reply(token, described)

    def describe_consumer(self, token: ReplyTo[Any] | None, group_id: str) -> Effects:
        group = self._state.groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            what = "is not a consumer group" if group is not None else "does not exist"
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group_id} {what}")
        described = consumer_messages.DescribedGroup(
            group_id=group_id,
            group_state=group.state.value,
            group_epoch=group.epoch,
            assignment_epoch=group.target_epoch,
            assignor_name=group.preferred_assignor or self._state.settings.node.consumer_assignors[0],
            members=[self._described(group, member) for member in group.members.values()],
        )
        return Effects().reply(token, described)

    def _described(self, group: ConsumerGroup, member: ConsumerMember) -> consumer_messages.Member:
        return consumer_messages.Member(
            member_id=member.member_id,
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            member_epoch=member.epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=sorted(member.topics),
            subscribed_topic_regex=member.regex,
            assignment=self._assignment(_held(member)),
            target_assignment=self._assignment(group.target.get(member.member_id, {})),
            member_type=_CLASSIC_MEMBER if member.is_classic else _CONSUMER_MEMBER,
        )

    def _assignment(self, partitions: Partitions) -> consumer_messages.Assignment:
        by_id = self._state.image.topics.by_id
        return consumer_messages.Assignment(
            topic_partitions=[
                consumer_messages.TopicPartitions(
                    topic_id=topic_id, topic_name=by_id[topic_id].name, partitions=sorted(ids)
                )
                for topic_id, ids in sorted(partitions.items())
                if topic_id in by_id
            ]
        )

    # Deleting

    def delete(self, token: ReplyTo[Any] | None, group_id: str) -> Effects:
        group = self._state.group(group_id)
        if not group.is_empty:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"group {group_id} has members")
        effects = Effects(atomic=False)
        keys = {key for key, _ in self._store.of_group(group_id)} | self._store.pending_of_group(group_id)
        effects.records += [records.offset_commit(group_id, *key, None) for key in sorted(keys)]
        self._tombstones(group, effects.records)
        return effects.reply(token, ErrorCode.NONE)

    def _tombstones(self, group: Group, out: list[CoordinatorRecord]) -> None:
        if isinstance(group, ConsumerGroup):
            group_tombstones(group, out)
        else:
            out.append(records.group_metadata(group.group_id, None))

    def replaced(self, group: ConsumerGroup) -> list[CoordinatorRecord]:
        """What removes an empty consumer group, but not its offsets."""
        out: list[CoordinatorRecord] = []
        group_tombstones(group, out)
        return out

    def topics_deleted(self, topics: frozenset[str]) -> Effects:
        """Forget the offsets of topics that are gone, so that they do not count for topics to come."""
        return Effects(
            records=[
                records.offset_commit(group_id, topic, partition, None)
                for group_id, (topic, partition) in self._store.of_topics(topics)
            ],
            atomic=False,
        )

    # Expiry

    def expire(self, now: EventTime) -> Effects:
        """Forget offsets that are too old, and then groups that are empty and have none."""
        effects = Effects(atomic=False)
        for group_id, group in list(self._state.groups.items()):
            pending = self._store.pending_of_group(group_id)
            keeps_some = bool(pending)
            for (topic, partition), value in self._store.of_group(group_id):
                if (topic, partition) in pending or not self._is_expired(group, topic, value, now.wall_ms):
                    keeps_some = True
                else:
                    effects.records.append(records.offset_commit(group_id, topic, partition, None))
            if not keeps_some and group.is_empty and not (isinstance(group, ClassicGroup) and group.pending):
                self._tombstones(group, effects.records)
        return effects

    def _is_expired(self, group: Group, topic: str, value: OffsetCommitValue, wall_ms: int) -> bool:
        since_ms = value.commit_timestamp
        if isinstance(group, ConsumerGroup):
            if topic in group.subscribed_topics:
                return False
        elif group.protocol_type is not None:
            if group.state is ClassicState.EMPTY:
                if group.state_timestamp_ms >= 0:
                    since_ms = group.state_timestamp_ms
            elif (
                group.state is not ClassicState.STABLE
                or group.subscribed_topics is None
                or topic in group.subscribed_topics
            ):
                return False
        if value.expire_timestamp != -1:
            return wall_ms >= value.expire_timestamp
        return wall_ms - since_ms >= self._state.settings.node.offsets_retention_ms


def _held(member: ConsumerMember) -> Partitions:
    """What a member has, with what it has yet to give up."""
    held = partitions_of(member.assigned)
    for topic_id, partitions in member.revoking.items():
        held[topic_id] = held.get(topic_id, frozenset()) | frozenset(partitions)
    return held
