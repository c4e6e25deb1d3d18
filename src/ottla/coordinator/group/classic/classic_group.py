"""A classic group: its members, its generation, and its state in a rebalance.

Only the result of a generation is durable: one record with all members and their assignments, written when
the leader has assigned, when a static member is replaced, and when the group becomes empty. The rest, which
members have joined and which wait, is lost in a restart, and members join again.

Invariants: the generation never goes back, except that it wraps around after the highest number; `leader_id`
is a member or None; in EMPTY a group has no members and no selected protocol; a member waits for a join or
for a sync, never for both; `joined` and the counts of protocols are those of the members, so that no request
has to look at all members.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from ottla.coordinator.runtime.effects import ReplyTo
from ottla.protocol.consumer_offsets_records import GroupMetadataValue, MemberMetadata
from ottla.protocol.consumer_protocol import decode_subscription
from ottla.protocol.errors import ErrorCode, KafkaError, MalformedMessage
from ottla.protocol.messages.join_group import JoinGroupResponse
from ottla.protocol.messages.sync_group import SyncGroupResponse
from ottla.runtime import invariants

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
NO_GENERATION: Final = -1
_MAX_GENERATION: Final = 2**31 - 1
NO_TIMESTAMP: Final = -1


class ClassicGroupState(Enum):
    """The states by the names that clients see."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"


Protocols = tuple[tuple[str, bytes], ...]
"""Protocols by name with the member's metadata for each, the preferred first."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class ClassicGroupMember:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    assignment: bytes = b""
    is_new: bool = False
    """True until its first rebalance ends; a new member may be removed while it waits."""
    awaiting_join: ReplyTo[JoinGroupResponse] | None = None
    awaiting_sync: ReplyTo[SyncGroupResponse] | None = None

    @property
    def is_awaiting_join(self) -> bool:
        return self.awaiting_join is not None

    @property
    def is_awaiting_sync(self) -> bool:
        return self.awaiting_sync is not None

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    def metadata(self, protocol: str | None) -> bytes:
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""

    def vote(self, candidates: Iterable[str]) -> str:
        """The protocol that the member prefers among those that all members support."""
        return next(name for name, _ in self.protocols if name in candidates)


@dataclass(slots=True, eq=False)
class ClassicGroup:
    group_id: str
    state: ClassicGroupState = ClassicGroupState.EMPTY
    previous_state: ClassicGroupState = ClassicGroupState.EMPTY
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader_id: str | None = None
    state_timestamp_ms: int = NO_TIMESTAMP
    members: dict[str, ClassicGroupMember] = field(default_factory=dict)
    static: dict[str, str] = field(default_factory=dict)
    joined: set[str] = field(default_factory=set)
    """Members that wait for the join phase to end."""
    pending: dict[str, None] = field(default_factory=dict)
    """Ids given out with MEMBER_ID_REQUIRED that have not come back, the oldest first."""
    pending_sync: set[str] = field(default_factory=set)
    """Members that have not asked for the assignment of this generation."""
    new_member_added: bool = False
    """A member joined during the delay of the first rebalance, so that the delay may be extended."""
    subscribed_topics: frozenset[str] | None = None
    """The topics of all members, if the group's protocol type is consumer and all can be read."""
    _supporters: Counter[str] = field(default_factory=Counter)
    """By protocol: how many members support it."""

    @property
    def is_simple(self) -> bool:
        """Whether a commit from outside of any group created it; such a group has no record of its own."""
        return (
            self.state is ClassicGroupState.EMPTY
            and self.protocol_type is None
            and self.generation == 0
            and not self.pending
        )

    @property
    def is_empty(self) -> bool:
        return self.state is ClassicGroupState.EMPTY

    @property
    def all_joined(self) -> bool:
        return not self.pending and len(self.joined) == len(self.members)

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def speaks_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def transition_to(self, state: ClassicGroupState, wall_ms: int) -> None:
        self.previous_state = self.state
        self.state = state
        self.state_timestamp_ms = wall_ms

    # Members

    def add(self, member: ClassicGroupMember) -> None:
        if not self.members:
            self.protocol_type = member.protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        self._count_protocols(member, 1)
        if member.is_awaiting_join:
            self.joined.add(member.member_id)
        self.pending.pop(member.member_id, None)
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id

    def await_join(self, member: ClassicGroupMember, to: ReplyTo[JoinGroupResponse] | None) -> None:
        member.awaiting_join = to
        self.joined.add(member.member_id)

    def end_join(self, member: ClassicGroupMember) -> None:
        member.awaiting_join = None
        self.joined.discard(member.member_id)

    def change_protocols(self, member: ClassicGroupMember, protocols: Protocols) -> None:
        self._count_protocols(member, -1)
        member.protocols = protocols
        self._count_protocols(member, 1)

    def _count_protocols(self, member: ClassicGroupMember, step: int) -> None:
        for name in dict.fromkeys(name for name, _ in member.protocols):
            self._supporters[name] += step
            if not self._supporters[name]:
                del self._supporters[name]

    def remove(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count_protocols(member, -1)
            if member.instance_id is not None and self.static.get(member.instance_id) == member_id:
                del self.static[member.instance_id]
            if self.leader_id == member_id:
                self.leader_id = next(iter(self.members), None)
        self.joined.discard(member_id)
        self.pending.pop(member_id, None)
        self.pending_sync.discard(member_id)

    def replace_static_member(self, old_id: str, new_id: str) -> ClassicGroupMember:
        """Give a static member a new id, in the place of the old one, which no longer waits."""
        old = self.members[old_id]
        self.joined.discard(old_id)
        member = ClassicGroupMember(
            new_id,
            old.instance_id,
            old.client_id,
            old.client_host,
            old.rebalance_timeout_ms,
            old.session_timeout_ms,
            old.protocol_type,
            old.protocols,
            old.assignment,
        )
        self.members = {
            new_id if id == old_id else id: member if id == old_id else known
            for id, known in self.members.items()
        }
        assert old.instance_id is not None
        self.static[old.instance_id] = new_id
        if self.leader_id == old_id:
            self.leader_id = new_id
        return member

    def check_member(self, member_id: str, instance_id: str | None) -> None:
        """Raise unless this member is in the group, with this instance id if it names one."""
        if instance_id is not None:
            owner = self.static.get(instance_id)
            if owner is None:
                raise unknown_member(self.group_id, member_id, f" with instance id {instance_id}")
            if owner != member_id:
                raise KafkaError(
                    ErrorCode.FENCED_INSTANCE_ID,
                    f"Static member {member_id} with instance id {instance_id} was fenced by member {owner} "
                    f"of group {self.group_id}",
                )
        if member_id not in self.members:
            raise unknown_member(self.group_id, member_id)

    # Protocols

    def _common_protocols(self) -> set[str]:
        members = len(self.members)
        return {name for name, count in self._supporters.items() if count == members}

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Whether a member with these protocols can join."""
        if self.is_empty:
            return bool(protocol_type) and any(True for _ in names)
        members = len(self.members)
        return protocol_type == self.protocol_type and any(
            self._supporters[name] == members for name in names
        )

    def select_protocol(self) -> str:
        """Select by vote: each member votes for the protocol it prefers of those that all support; ties go to
        the one that the leader prefers.
        """
        candidates = self._common_protocols()
        votes = Counter(member.vote(candidates) for member in self.members.values())
        best = max(votes.values())
        leader = self.members.get(self.leader_id or "", next(iter(self.members.values())))
        return next(
            (name for name, _ in leader.protocols if votes.get(name) == best),
            min(name for name, count in votes.items() if count == best),
        )

    # Generations

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader has joined; False if no member has."""
        leader = self.members.get(self.leader_id or "")
        if leader is not None and leader.is_awaiting_join:
            return True
        joined = next((member for member in self.members.values() if member.is_awaiting_join), None)
        if joined is None:
            return False
        self.leader_id = joined.member_id
        return True

    def init_next_generation(self, wall_ms: int) -> None:
        self.generation = self.generation + 1 if self.generation < _MAX_GENERATION else 1
        self.pending_sync.clear()
        if self.members:
            self.protocol = self.select_protocol()
            self.transition_to(ClassicGroupState.COMPLETING_REBALANCE, wall_ms)
        else:
            self.protocol = None
            self.transition_to(ClassicGroupState.EMPTY, wall_ms)
        self.subscribed_topics = self._subscriptions()

    def _subscriptions(self) -> frozenset[str] | None:
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None
        if not self.members:
            return frozenset()
        if self.protocol is None:
            return None
        topics: set[str] = set()
        try:
            for member in self.members.values():
                topics.update(decode_subscription(member.metadata(self.protocol)).topics)
        except MalformedMessage:
            return None
        return frozenset(topics)

    # The record

    def to_value(self, assignments: dict[str, bytes] | None = None) -> GroupMetadataValue:
        """The group as a record, with these assignments in place of the current ones."""
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader_id,
            current_state_timestamp=self.state_timestamp_ms,
            members=[
                MemberMetadata(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout=member.rebalance_timeout_ms,
                    session_timeout=member.session_timeout_ms,
                    subscription=member.metadata(self.protocol),
                    assignment=member.assignment
                    if assignments is None
                    else assignments.get(member.member_id, b""),
                )
                for member in self.members.values()
            ],
        )

    def adopt(self, value: GroupMetadataValue) -> None:
        """Take the state of a record. Known members keep what no record holds."""
        if invariants.thorough:
            wrapped = self.generation == _MAX_GENERATION
            assert value.generation >= self.generation or wrapped, (self.generation, value.generation)
        known = self.members
        self.members = {}
        self._supporters.clear()
        self.static = {}
        self.generation = value.generation
        self.protocol_type = value.protocol_type or None
        self.protocol = value.protocol
        self.state_timestamp_ms = value.current_state_timestamp
        for stored in value.members:
            member = known.get(stored.member_id)
            if member is None:
                member = ClassicGroupMember(
                    member_id=stored.member_id,
                    instance_id=stored.group_instance_id,
                    client_id=stored.client_id,
                    client_host=stored.client_host,
                    rebalance_timeout_ms=stored.rebalance_timeout
                    if stored.rebalance_timeout >= 0
                    else stored.session_timeout,
                    session_timeout_ms=stored.session_timeout,
                    protocol_type=value.protocol_type,
                    protocols=((value.protocol or "", bytes(stored.subscription)),),
                )
            member.assignment = bytes(stored.assignment)
            self.members[member.member_id] = member
            self._count_protocols(member, 1)
            if member.instance_id is not None:
                self.static[member.instance_id] = member.member_id
        self.joined.intersection_update(self.members)
        self.leader_id = value.leader if value.leader in self.members else next(iter(self.members), None)
        self.previous_state = self.state
        self.state = ClassicGroupState.STABLE if self.members else ClassicGroupState.EMPTY
        self.subscribed_topics = self._subscriptions()


def unknown_member(group_id: str, member_id: str, more: str = "") -> KafkaError:
    return KafkaError(
        ErrorCode.UNKNOWN_MEMBER_ID,
        f"Member {member_id} is not a member of group {group_id}{more}; join again",
    )
