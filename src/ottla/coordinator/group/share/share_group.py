"""A share group: its members' subscriptions, their assignments, and the partitions whose share state exists.

As in a consumer group, everything here is durable and changes only by replay, and three epochs drive the
protocol. A partition may be assigned to several members, so nothing has to be given up before another member
gets it: a member reaches its target in one step.

A share partition has a state with the share coordinator before it is assigned. `StatePartitionMetadata` keeps
which partitions have one, for which it is being made, and of which topics it is being deleted.

Invariants: a partition is assigned only if its state was initialized; a topic that is being deleted is
neither initializing nor initialized.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from ottla.protocol.consumer_offsets_records import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
    ShareGroupTopicPartitionsInfo,
)
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.runtime import invariants

Partitions = Mapping[bytes, frozenset[int]]
"""Partitions by topic id."""

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
_STABLE: Final = 0


class ShareGroupState(Enum):
    """The states of the group by the names that clients see."""

    EMPTY = "Empty"
    STABLE = "Stable"


@dataclass(frozen=True, slots=True)
class ShareGroupMember:
    member_id: str
    epoch: int = 0
    previous_epoch: int = -1
    state: int = _STABLE
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    assigned: Partitions = field(default_factory=dict)

    def is_reconciled_to(self, target_epoch: int) -> bool:
        return self.state == _STABLE and self.epoch == target_epoch

    def with_subscription(self, value: ShareGroupMemberMetadataValue) -> ShareGroupMember:
        return replace(
            self,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            topics=frozenset(value.subscribed_topic_names),
        )

    def with_assignment(self, value: ShareGroupCurrentMemberAssignmentValue) -> ShareGroupMember:
        return replace(
            self,
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=value.state,
            assigned={topic.topic_id: frozenset(topic.partitions) for topic in value.assigned_partitions},
        )

    def without_assignment(self) -> ShareGroupMember:
        return replace(self, epoch=LEAVE_EPOCH, previous_epoch=LEAVE_EPOCH, state=_STABLE, assigned={})


@dataclass(frozen=True, slots=True)
class SharePartitions:
    """Partitions of one topic, with the name that the topic had when they were written."""

    name: str
    partitions: frozenset[int]


@dataclass(frozen=True, slots=True)
class StatePartitionMetadata:
    """The share states of a group's partitions (Kafka's `ShareGroupStatePartitionMetadataInfo`), by topic."""

    initializing: Mapping[bytes, SharePartitions] = field(default_factory=dict)
    """A state was requested from the share coordinator."""
    initialized: Mapping[bytes, SharePartitions] = field(default_factory=dict)
    deleting: Mapping[bytes, str] = field(default_factory=dict)
    """Topics, with their names, whose states are being deleted."""

    @classmethod
    def of(cls, value: ShareGroupStatePartitionMetadataValue) -> StatePartitionMetadata:
        return cls(
            _read(value.initializing_topics),
            _read(value.initialized_topics),
            {topic.topic_id: topic.topic_name for topic in value.deleting_topics},
        )

    @property
    def is_empty(self) -> bool:
        return not (self.initializing or self.initialized or self.deleting)

    def has_any_of(self, topic_ids: frozenset[bytes]) -> bool:
        return any(
            topic_id in topic_ids
            for topics in (self.initializing, self.initialized, self.deleting)
            for topic_id in topics
        )


def _read(topics: list[ShareGroupTopicPartitionsInfo]) -> dict[bytes, SharePartitions]:
    return {
        topic.topic_id: SharePartitions(topic.topic_name, frozenset(topic.partitions)) for topic in topics
    }


def add_partitions(
    known: Mapping[bytes, SharePartitions], more: Mapping[bytes, SharePartitions]
) -> dict[bytes, SharePartitions]:
    """Both together; the name is that of `more`."""
    merged = dict(known)
    for topic_id, added in more.items():
        before = known.get(topic_id)
        partitions = added.partitions if before is None else before.partitions | added.partitions
        merged[topic_id] = SharePartitions(added.name, partitions)
    return merged


def remove_partitions(
    known: Mapping[bytes, SharePartitions], less: Mapping[bytes, frozenset[int]]
) -> dict[bytes, SharePartitions]:
    """The first without the second; topics of which nothing is left are left out."""
    rest = {}
    for topic_id, before in known.items():
        partitions = before.partitions - less.get(topic_id, frozenset())
        if partitions:
            rest[topic_id] = SharePartitions(before.name, partitions)
    return rest


@dataclass(slots=True, eq=False)
class ShareGroup:
    group_id: str
    epoch: int = 1
    """Kafka 4.3 begins with 1, as does the epoch of the target; the first member raises both to 2."""
    metadata_hash: int = 0
    target_epoch: int = 1
    target_timestamp_ms: int = -1
    members: dict[str, ShareGroupMember] = field(default_factory=dict)
    target: dict[str, Partitions] = field(default_factory=dict)
    states: StatePartitionMetadata = field(default_factory=StatePartitionMetadata)
    seen_topics: object = None
    """The topics of the image for which the metadata hash was last compared; not durable."""
    changed_ms: int | None = None
    """The tick of the last change of an epoch or assignment that this coordinator wrote; not durable."""
    initializing_since_ms: int | None = None
    """The tick at which this coordinator last requested states; None if it did not, so that it may; not
    durable."""
    initialize_after_ms: int | None = None
    """The tick before which no states are requested, after a request failed; not durable."""
    updates: int = 0
    """How often a record of the group was replayed."""
    quiet: tuple[int, object] | None = None
    """The updates, and the topics of the image, for which a heartbeat found nothing to do; not durable."""
    not_pending: tuple[int, StatePartitionMetadata, object] | None = None
    """The target's epoch, the states, and the topics of the image for which the target had all that can be
    assigned; not durable."""

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def state(self) -> ShareGroupState:
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    def is_settled(self, known_topics: Container[bytes]) -> bool:
        """Whether the target is that of the group's epoch, all members have reached it, and no state of a
        known topic is awaited.
        """
        return (
            self.epoch == self.target_epoch
            and not any(topic_id in known_topics for topic_id in self.states.initializing)
            and all(member.is_reconciled_to(self.target_epoch) for member in self.members.values())
        )

    @property
    def subscriptions(self) -> Mapping[frozenset[str], None]:
        """What members subscribe to, each once: of many members most subscribe to the same topics."""
        return dict.fromkeys([member.topics for member in self.members.values()])

    @property
    def subscribed_topics(self) -> frozenset[str]:
        return frozenset().union(*self.subscriptions)

    @property
    def has_target(self) -> bool:
        """Whether anything is assigned to any member."""
        return any(partitions for target in self.target.values() for partitions in target.values())

    def draft(self) -> ShareGroup:
        """A copy on which changes are made before they are written."""
        return ShareGroup(
            self.group_id,
            self.epoch,
            self.metadata_hash,
            self.target_epoch,
            self.target_timestamp_ms,
            dict(self.members),
            dict(self.target),
            self.states,
            self.seen_topics,
            self.changed_ms,
            self.initializing_since_ms,
            self.initialize_after_ms,
            self.updates,
            not_pending=self.not_pending,
        )

    # Records

    def adopt_metadata(self, _: ShareGroupMetadataKey, value: ShareGroupMetadataValue) -> None:
        if invariants.thorough:
            assert value.epoch >= self.epoch, (self.group_id, value.epoch, self.epoch)
        self.epoch = value.epoch
        self.metadata_hash = value.metadata_hash

    def adopt_member(
        self, key: ShareGroupMemberMetadataKey, value: ShareGroupMemberMetadataValue | None
    ) -> None:
        if value is None:
            self.members.pop(key.member_id, None)
        else:
            member = self.members.get(key.member_id) or ShareGroupMember(key.member_id)
            self.members[key.member_id] = member.with_subscription(value)

    def adopt_target_epoch(
        self,
        _: ShareGroupTargetAssignmentMetadataKey,
        value: ShareGroupTargetAssignmentMetadataValue | None,
    ) -> None:
        if value is None:
            self.target_epoch = 0
        else:
            self.target_epoch = value.assignment_epoch
            self.target_timestamp_ms = value.assignment_timestamp or -1

    def adopt_target(
        self, key: ShareGroupTargetAssignmentMemberKey, value: ShareGroupTargetAssignmentMemberValue | None
    ) -> None:
        if value is None:
            self.target.pop(key.member_id, None)
        else:
            self.target[key.member_id] = {
                topic.topic_id: frozenset(topic.partitions) for topic in value.topic_partitions
            }

    def adopt_assignment(
        self,
        key: ShareGroupCurrentMemberAssignmentKey,
        value: ShareGroupCurrentMemberAssignmentValue | None,
    ) -> None:
        member = self.members.get(key.member_id)
        if value is not None:
            member = member or ShareGroupMember(key.member_id)
            self.members[key.member_id] = member.with_assignment(value)
        elif member is not None:
            # A member without an assignment remains; mostly the tombstones of its other records follow.
            self.members[key.member_id] = member.without_assignment()

    def adopt_states(
        self, _: ShareGroupStatePartitionMetadataKey, value: ShareGroupStatePartitionMetadataValue | None
    ) -> None:
        self.states = StatePartitionMetadata() if value is None else StatePartitionMetadata.of(value)

    # Members

    def member(self, member_id: str) -> ShareGroupMember:
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"Member {member_id} is not a member of group {self.group_id}.",
            )
        return member

    def is_assignment_pending(self, assignable: Partitions) -> bool:
        """Whether the target has not exactly the partitions that can be assigned, of topics that members
        subscribe to.
        """
        if not self.members or not assignable:
            return False
        subscribed = self.subscribed_topics
        assigned: dict[bytes, set[int]] = {}
        for target in self.target.values():
            for topic_id, partitions in target.items():
                assigned.setdefault(topic_id, set()).update(partitions)
        return any(
            assigned.get(topic_id, frozenset()) != partitions
            for topic_id, partitions in assignable.items()
            if self.states.initialized[topic_id].name in subscribed
        )
