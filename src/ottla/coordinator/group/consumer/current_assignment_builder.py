"""The next step of one member towards its target assignment.

A member first gives up the partitions that are no longer its own, and stays in its epoch until it confirms
that. Then it moves to the target's epoch and takes the free partitions; those that other members still own it
gets when they have given them up. So a partition is never owned by two members at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ottla.coordinator.group.consumer.consumer_group import (
    ConsumerGroupMember,
    MemberState,
    Owned,
    Partitions,
)
from ottla.protocol.errors import ErrorCode, KafkaError

_NONE: Owned = {}


@dataclass(frozen=True, slots=True)
class CurrentAssignmentBuilder:
    member: ConsumerGroupMember
    target_epoch: int
    target: Partitions
    owner_of: Callable[[bytes, int], str | None]
    owned: Partitions | None
    """The partitions that the member says it owns; None if it does not say."""
    subscribed: frozenset[bytes]
    """The ids of the topics that the member subscribes to."""

    def build(self, *, subscription_changed: bool) -> ConsumerGroupMember:
        """The member after its next step."""
        member = self.member
        if member.state is MemberState.STABLE:
            if member.epoch != self.target_epoch:
                return self._compute_next_assignment(member.epoch)
            return self._revoke_unsubscribed() if subscription_changed else member
        if member.state is MemberState.UNREVOKED_PARTITIONS:
            if self._may_own(member.revoking):
                return self._revoke_unsubscribed() if subscription_changed else member
        elif member.state is MemberState.UNKNOWN:
            if self.owned is None or self.owned:
                raise KafkaError(
                    ErrorCode.FENCED_MEMBER_EPOCH,
                    f"member {member.member_id} is in a state that this broker does not know; give up all "
                    "partitions and join again with epoch 0",
                )
            return self._compute_next_assignment(self.target_epoch)
        return self._compute_next_assignment(member.epoch)

    def _may_own(self, revoking: Mapping[bytes, Owned]) -> bool:
        """Whether the member may still own any of these."""
        if self.owned is None:
            return True
        return any(
            not partitions.isdisjoint(revoking.get(topic_id, _NONE))
            for topic_id, partitions in self.owned.items()
        )

    def _revoke_unsubscribed(self) -> ConsumerGroupMember:
        """Revoke topics that the member no longer subscribes to, without waiting for the next target."""
        member, subscribed = self.member, self.subscribed
        if all(topic_id in subscribed for topic_id in member.assigned):
            return member
        assigned = {id: partitions for id, partitions in member.assigned.items() if id in subscribed}
        revoking = dict(member.revoking)
        for topic_id, partitions in member.assigned.items():
            if topic_id not in subscribed:
                revoking[topic_id] = {**revoking.get(topic_id, _NONE), **partitions}
        if self._may_own(revoking):
            return self._with(MemberState.UNREVOKED_PARTITIONS, member.epoch, assigned, revoking)
        return replace(member, assigned=assigned)

    def _compute_next_assignment(self, epoch: int) -> ConsumerGroupMember:
        """Revoke first, in `epoch`; if nothing is left to revoke, move on to the target."""
        member, target = self.member, self.target
        assigned: dict[bytes, dict[int, int]] = {}
        revoking: dict[bytes, Owned] = {}
        free: dict[bytes, list[int]] = {}
        unreleased = False
        for topic_id in sorted(target.keys() | member.assigned.keys()):
            wanted = target.get(topic_id, frozenset()) if topic_id in self.subscribed else frozenset()
            current = member.assigned.get(topic_id, _NONE)
            kept = {partition: since for partition, since in current.items() if partition in wanted}
            given_up = {partition: since for partition, since in current.items() if partition not in wanted}
            for partition in sorted(wanted):
                if partition not in kept:
                    owner = self.owner_of(topic_id, partition)
                    if owner is None or owner == member.member_id:
                        free.setdefault(topic_id, []).append(partition)
                    else:
                        unreleased = True
            if kept:
                assigned[topic_id] = kept
            if given_up:
                revoking[topic_id] = given_up
        if revoking and self._may_own(revoking):
            return self._with(MemberState.UNREVOKED_PARTITIONS, epoch, assigned, revoking)
        for topic_id, partitions in free.items():
            assigned.setdefault(topic_id, {}).update(dict.fromkeys(partitions, self.target_epoch))
        state = MemberState.UNRELEASED_PARTITIONS if unreleased else MemberState.STABLE
        return self._with(state, self.target_epoch, assigned, {})

    def _with(
        self,
        state: MemberState,
        epoch: int,
        assigned: Mapping[bytes, Owned],
        revoking: Mapping[bytes, Owned],
    ) -> ConsumerGroupMember:
        member = self.member
        previous = member.epoch if epoch != member.epoch else member.previous_epoch
        return replace(
            member, state=state, epoch=epoch, previous_epoch=previous, assigned=assigned, revoking=revoking
        )
