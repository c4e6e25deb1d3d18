"""A consumer group: its members' subscriptions, their target assignment, and their current assignment.

Everything here is durable and changes only by replay. Members are immutable; a heartbeat computes the next
member and writes its records. Three epochs drive the protocol: the group's epoch grows when the subscriptions
or the topics change, the target's epoch follows it when an assignment has been computed, and each member's
epoch follows the target's when the member has given up what it must.

Invariants: a partition is owned, assigned or still to be revoked, by one member at most; the epochs of the
group and of the target never go back, and the target's is never ahead of the group's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from ottla.protocol.consumer_offsets_records import (
    ClassicMemberMetadata,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentTopicPartitions,
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
)
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.runtime import invariants

Partitions = Mapping[bytes, frozenset[int]]
"""Partitions by topic id."""
Owned = Mapping[int, int]
"""Partitions of a topic, with the epoch in which each was assigned."""

FIRST_EPOCH: Final = 2
"""The epoch of a new group, as Kafka 4.3 begins."""
JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
STATIC_LEAVE_EPOCH: Final = -2


class MemberState(Enum):
    """The progress of a member towards its target, with the numbers of the records."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    """It has to give up partitions before it gets others."""
    UNRELEASED_PARTITIONS = 2
    """It waits for partitions that other members still own."""
    UNKNOWN = 127

    @classmethod
    def of(cls, number: int) -> MemberState:
        return _STATES.get(number, cls.UNKNOWN)


_STATES: Final = {state.value: state for state in MemberState}


class ConsumerGroupState(Enum):
    """The states of the group by the names that clients see."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


@dataclass(frozen=True, slots=True)
class ConsumerGroupMember:
    member_id: str
    epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    regex: str = ""
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic: ClassicMemberMetadata | None = None
    """The data of the JoinGroup of a member that uses the classic protocol."""
    assigned: Mapping[bytes, Owned] = field(default_factory=dict)
    revoking: Mapping[bytes, Owned] = field(default_factory=dict)

    @property
    def is_classic(self) -> bool:
        return self.classic is not None

    @property
    def has_left(self) -> bool:
        """Whether it is a static member that is away for a while; its partitions stay reserved for it."""
        return self.epoch == STATIC_LEAVE_EPOCH

    def is_reconciled_to(self, target_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    def with_subscription(self, value: ConsumerGroupMemberMetadataValue) -> ConsumerGroupMember:
        return replace(
            self,
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            topics=frozenset(value.subscribed_topic_names),
            regex=value.subscribed_topic_regex or "",
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            server_assignor=value.server_assignor,
            classic=value.classic_member_metadata,
        )

    def with_assignment(self, value: ConsumerGroupCurrentMemberAssignmentValue) -> ConsumerGroupMember:
        return replace(
            self,
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=MemberState.of(value.state),
            assigned=_read_owned_partitions(value.assigned_partitions, value.member_epoch),
            revoking=_read_owned_partitions(value.partitions_pending_revocation, value.member_epoch),
        )

    def without_assignment(self) -> ConsumerGroupMember:
        return replace(self, epoch=-1, previous_epoch=-1, state=MemberState.STABLE, assigned={}, revoking={})


def _read_owned_partitions(
    topics: list[ConsumerGroupCurrentMemberAssignmentTopicPartitions], member_epoch: int
) -> dict[bytes, dict[int, int]]:
    """Return the owned partitions of a record. Records from before Kafka 4.3 have no epoch for each
    partition; the member epoch is safe in its place.
    """
    owned = {}
    for topic in topics:
        epochs = topic.assignment_epochs
        if epochs is None or len(epochs) != len(topic.partitions):
            epochs = [member_epoch] * len(topic.partitions)
        owned[topic.topic_id] = dict(zip(topic.partitions, epochs, strict=True))
    return owned


def partitions_of(owned: Mapping[bytes, Owned]) -> dict[bytes, frozenset[int]]:
    return {topic_id: frozenset(partitions) for topic_id, partitions in owned.items()}


@dataclass(frozen=True, slots=True)
class ResolvedRegex:
    topics: frozenset[str]
    version: int
    timestamp_ms: int


@dataclass(slots=True, eq=False)
class ConsumerGroup:
    group_id: str
    epoch: int = 0
    metadata_hash: int = 0
    target_epoch: int = 0
    target_timestamp_ms: int = -1
    members: dict[str, ConsumerGroupMember] = field(default_factory=dict)
    static: dict[str, str] = field(default_factory=dict)
    target: dict[str, Partitions] = field(default_factory=dict)
    regexes: dict[str, ResolvedRegex] = field(default_factory=dict)
    owners: dict[tuple[bytes, int], str] = field(default_factory=dict)
    seen_topics: object = None
    """The topics of the image for which the metadata hash was last compared; not durable."""
    changed_ms: int | None = None
    """The tick of the last change of an epoch or assignment that this coordinator wrote; not durable."""
    unreported: dict[str, int] = field(default_factory=dict)
    """The ticks of responses with an assignment that the member has not reported to own since; not durable,
    and one with that of drafts.
    """
    _updates: int = 0
    """How often members were added, changed or removed."""
    _settled: tuple[int, int, int, bool] | None = None
    """The last result of `is_settled`, with the updates and the epochs that it holds for."""

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(member.is_reconciled_to(self.target_epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    @property
    def is_settled(self) -> bool:
        """Whether the target is that of the group's epoch, and all members that are there have reached it.

        Nearly all heartbeats ask this, and few change the group: the members are walked once for each change.
        """
        known = self._settled
        if known is not None and known[:3] == (self._updates, self.epoch, self.target_epoch):
            return known[3]
        settled = self.epoch == self.target_epoch and all(
            member.has_left or member.is_reconciled_to(self.target_epoch) for member in self.members.values()
        )
        self._settled = self._updates, self.epoch, self.target_epoch, settled
        return settled

    def draft(self) -> ConsumerGroup:
        """A copy on which changes are made before they are written."""
        return ConsumerGroup(
            self.group_id,
            self.epoch,
            self.metadata_hash,
            self.target_epoch,
            self.target_timestamp_ms,
            dict(self.members),
            dict(self.static),
            dict(self.target),
            dict(self.regexes),
            dict(self.owners),
            self.seen_topics,
            self.changed_ms,
            self.unreported,
        )

    # Records

    def adopt_metadata(self, _: ConsumerGroupMetadataKey, value: ConsumerGroupMetadataValue) -> None:
        if invariants.thorough:
            assert value.epoch >= self.epoch, (self.group_id, value.epoch, self.epoch)
        self.epoch = value.epoch
        self.metadata_hash = value.metadata_hash

    def adopt_member(
        self, key: ConsumerGroupMemberMetadataKey, value: ConsumerGroupMemberMetadataValue | None
    ) -> None:
        if value is None:
            self.remove(key.member_id)
        else:
            member = self.members.get(key.member_id) or ConsumerGroupMember(key.member_id)
            self.update(member.with_subscription(value))

    def adopt_target_epoch(
        self,
        _: ConsumerGroupTargetAssignmentMetadataKey,
        value: ConsumerGroupTargetAssignmentMetadataValue | None,
    ) -> None:
        if value is None:
            self.target_epoch = 0
        else:
            self.target_epoch = value.assignment_epoch
            self.target_timestamp_ms = value.assignment_timestamp or -1

    def adopt_target(
        self,
        key: ConsumerGroupTargetAssignmentMemberKey,
        value: ConsumerGroupTargetAssignmentMemberValue | None,
    ) -> None:
        if value is None:
            self.target.pop(key.member_id, None)
        else:
            self.target[key.member_id] = {
                topic.topic_id: frozenset(topic.partitions) for topic in value.topic_partitions
            }

    def adopt_assignment(
        self,
        key: ConsumerGroupCurrentMemberAssignmentKey,
        value: ConsumerGroupCurrentMemberAssignmentValue | None,
    ) -> None:
        member = self.members.get(key.member_id)
        if value is not None:
            self.update((member or ConsumerGroupMember(key.member_id)).with_assignment(value))
        elif member is not None:
            # A member without an assignment remains; mostly the tombstones of its other records follow.
            self.update(member.without_assignment())

    def adopt_regular_expression(
        self, key: ConsumerGroupRegularExpressionKey, value: ConsumerGroupRegularExpressionValue | None
    ) -> None:
        if value is None:
            self.regexes.pop(key.regular_expression, None)
        else:
            self.regexes[key.regular_expression] = ResolvedRegex(
                frozenset(value.topics), value.version, value.timestamp
            )

    # Members

    def member(self, member_id: str) -> ConsumerGroupMember:
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"Member {member_id} is not a member of group {self.group_id}; join with epoch 0",
            )
        return member

    def static_member(self, instance_id: str | None) -> ConsumerGroupMember | None:
        member_id = self.static.get(instance_id) if instance_id is not None else None
        return None if member_id is None else self.members.get(member_id)

    def update(self, member: ConsumerGroupMember) -> None:
        self._updates += 1
        old = self.members.get(member.member_id)
        if old is not None:
            self._disown(old)
            if old.instance_id is not None and old.instance_id != member.instance_id:
                self._forget_static(old)
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        for owned in (member.assigned, member.revoking):
            for topic_id, partitions in owned.items():
                for partition in partitions:
                    self.owners[topic_id, partition] = member.member_id

    def remove(self, member_id: str) -> None:
        self._updates += 1
        member = self.members.pop(member_id, None)
        if member is not None:
            self._disown(member)
            self._forget_static(member)

    def _forget_static(self, member: ConsumerGroupMember) -> None:
        if member.instance_id is not None and self.static.get(member.instance_id) == member.member_id:
            del self.static[member.instance_id]

    def _disown(self, member: ConsumerGroupMember) -> None:
        for owned in (member.assigned, member.revoking):
            for topic_id, partitions in owned.items():
                for partition in partitions:
                    if self.owners.get((topic_id, partition)) == member.member_id:
                        del self.owners[topic_id, partition]

    # Subscriptions

    def topics_of(self, member: ConsumerGroupMember) -> frozenset[str]:
        """The topics a member subscribes to, by name and by what its regular expression matched."""
        resolved = self.regexes.get(member.regex) if member.regex else None
        return member.topics if resolved is None else member.topics | resolved.topics

    @property
    def subscribed_topics(self) -> frozenset[str]:
        return frozenset().union(*(self.topics_of(member) for member in self.members.values()))

    @property
    def subscribed_regexes(self) -> Counter[str]:
        return Counter(member.regex for member in self.members.values() if member.regex)

    @property
    def preferred_assignor(self) -> str | None:
        """The assignor that most members ask for; ties go by name."""
        votes = Counter(
            member.server_assignor for member in self.members.values() if member.server_assignor is not None
        )
        return min(votes, key=lambda name: (-votes[name], name), default=None)

    # The classic protocol

    def is_classic_without(self, leaving: frozenset[str]) -> bool:
        """Whether members remain without these, and all of them use the classic protocol."""
        rest = [member for id, member in self.members.items() if id not in leaving]
        return bool(rest) and all(member.is_classic for member in rest)

    def supports_classic(self, protocol_type: str, names: set[str], besides: str) -> bool:
        """Whether a classic member with these protocols can join the other classic members."""
        if protocol_type != "consumer" or not names:
            return False
        common = names
        for member in self.members.values():
            if member.classic is not None and member.member_id != besides:
                common = common & {protocol.name for protocol in member.classic.supported_protocols}
        return bool(common)

    def waits_for_unreleased(self, member: ConsumerGroupMember) -> bool:
        """Whether other members still own partitions of the member's target."""
        return any(
            self.owners.get((topic_id, partition), member.member_id) != member.member_id
            for topic_id, partitions in self.target.get(member.member_id, {}).items()
            for partition in partitions
        )
