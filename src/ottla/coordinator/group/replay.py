"""From the records of `__consumer_offsets` to groups and offsets.

Records of one group may come in any order that compaction leaves, so what is missing is made and what is
gone may be deleted again. The last one standing decides what kind of group it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ottla.coordinator.group.classic.group import ClassicGroup
from ottla.coordinator.group.consumer.group import ConsumerGroup, ConsumerMember, MemberState, ResolvedRegex
from ottla.coordinator.group.offsets.store import OffsetStore
from ottla.coordinator.group.state import GroupState
from ottla.coordinator.runtime.effects import ProducerIdAndEpoch, ReplayedRecord
from ottla.protocol.consumer_offsets_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
    LegacyOffsetCommitKey,
    LegacyOffsetCommitValue,
    OffsetCommitKey,
    OffsetCommitValue,
)


class GroupReplay:
    __slots__ = ("_replays", "_state", "_store")

    def __init__(self, state: GroupState, store: OffsetStore) -> None:
        self._state = state
        self._store = store
        self._replays: dict[type, Callable[[Any, Any], None]] = {
            GroupMetadataKey: self._group_metadata,
            ConsumerGroupMetadataKey: self._group_epoch,
            ConsumerGroupMemberMetadataKey: self._subscription,
            ConsumerGroupTargetAssignmentMetadataKey: self._target_epoch,
            ConsumerGroupTargetAssignmentMemberKey: self._target,
            ConsumerGroupCurrentMemberAssignmentKey: self._current,
            ConsumerGroupRegularExpressionKey: self._regex,
        }

    def replay(self, record: ReplayedRecord) -> None:
        key, value = record.key, record.value
        if isinstance(key, OffsetCommitKey):
            assert value is None or isinstance(value, OffsetCommitValue)
            self._offset(key, value, record)
        elif isinstance(key, LegacyOffsetCommitKey):
            assert value is None or isinstance(value, LegacyOffsetCommitValue)
            self._offset(_modern_key(key), None if value is None else _modern_value(value), record)
        else:
            # Records of share and streams groups are left alone: nothing here speaks for such groups.
            handler = self._replays.get(type(key))
            if handler is not None:
                handler(key, value)

    def end_transaction(self, producer: ProducerIdAndEpoch, commit: bool) -> None:
        for group_id in self._store.end_transaction(producer.id, commit):
            if commit:
                self._state.groups.setdefault(group_id, ClassicGroup(group_id))

    def _offset(self, key: OffsetCommitKey, value: OffsetCommitValue | None, record: ReplayedRecord) -> None:
        self._store.replay(key, value, record.offset, record.producer)
        if value is not None and key.group not in self._state.groups:
            self._state.groups[key.group] = ClassicGroup(key.group)

    # Classic groups

    def _group_metadata(self, key: GroupMetadataKey, value: GroupMetadataValue | None) -> None:
        group = self._state.groups.get(key.group)
        if value is None:
            if isinstance(group, ClassicGroup):
                self._state.drop(key.group)
            return
        if not isinstance(group, ClassicGroup):
            group = self._state.groups[key.group] = ClassicGroup(key.group)
        group.adopt(value)

    # Consumer groups

    def _consumer_group(self, group_id: str) -> ConsumerGroup:
        group = self._state.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return group
        group = self._state.groups[group_id] = ConsumerGroup(group_id)
        return group

    def _known(self, group_id: str) -> ConsumerGroup | None:
        group = self._state.groups.get(group_id)
        return group if isinstance(group, ConsumerGroup) else None

    def _group_epoch(self, key: ConsumerGroupMetadataKey, value: ConsumerGroupMetadataValue | None) -> None:
        if value is not None:
            group = self._consumer_group(key.group_id)
            group.epoch = value.epoch
            group.metadata_hash = value.metadata_hash
        elif self._known(key.group_id) is not None:
            self._state.drop(key.group_id)

    def _subscription(
        self, key: ConsumerGroupMemberMetadataKey, value: ConsumerGroupMemberMetadataValue | None
    ) -> None:
        if value is not None:
            group = self._consumer_group(key.group_id)
            member = group.members.get(key.member_id) or ConsumerMember(key.member_id)
            group.update(member.with_subscription(value))
            return
        known = self._known(key.group_id)
        if known is not None:
            known.remove(key.member_id)

    def _target_epoch(
        self,
        key: ConsumerGroupTargetAssignmentMetadataKey,
        value: ConsumerGroupTargetAssignmentMetadataValue | None,
    ) -> None:
        if value is not None:
            group = self._consumer_group(key.group_id)
            group.target_epoch = value.assignment_epoch
            group.target_timestamp_ms = value.assignment_timestamp or -1
            return
        known = self._known(key.group_id)
        if known is not None:
            known.target_epoch = 0

    def _target(
        self,
        key: ConsumerGroupTargetAssignmentMemberKey,
        value: ConsumerGroupTargetAssignmentMemberValue | None,
    ) -> None:
        if value is not None:
            self._consumer_group(key.group_id).target[key.member_id] = {
                topic.topic_id: frozenset(topic.partitions) for topic in value.topic_partitions
            }
            return
        known = self._known(key.group_id)
        if known is not None:
            known.target.pop(key.member_id, None)

    def _current(
        self,
        key: ConsumerGroupCurrentMemberAssignmentKey,
        value: ConsumerGroupCurrentMemberAssignmentValue | None,
    ) -> None:
        if value is not None:
            group = self._consumer_group(key.group_id)
            member = group.members.get(key.member_id) or ConsumerMember(key.member_id)
            group.update(member.with_assignment(value))
            return
        known = self._known(key.group_id)
        member_left = known.members.get(key.member_id) if known is not None else None
        if known is not None and member_left is not None:
            # What is left is a member that has nothing; mostly its other records go next.
            known.update(
                replace(
                    member_left,
                    epoch=-1,
                    previous_epoch=-1,
                    state=MemberState.STABLE,
                    assigned={},
                    revoking={},
                )
            )

    def _regex(
        self, key: ConsumerGroupRegularExpressionKey, value: ConsumerGroupRegularExpressionValue | None
    ) -> None:
        if value is not None:
            self._consumer_group(key.group_id).regexes[key.regular_expression] = ResolvedRegex(
                frozenset(value.topics), value.version, value.timestamp
            )
            return
        known = self._known(key.group_id)
        if known is not None:
            known.regexes.pop(key.regular_expression, None)


def _modern_key(key: LegacyOffsetCommitKey) -> OffsetCommitKey:
    return OffsetCommitKey(group=key.group, topic=key.topic, partition=key.partition)


def _modern_value(value: LegacyOffsetCommitValue) -> OffsetCommitValue:
    return OffsetCommitValue(
        offset=value.offset, metadata=value.metadata, commit_timestamp=value.commit_timestamp
    )
