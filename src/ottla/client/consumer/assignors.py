"""Assign partitions to the members of a classic group, as its leader: Kafka's four assignors.

An assignor gets the subscriptions of the members and the partition counts of the topics, and returns the
partitions of each member. All assignors are deterministic: members and topics are processed in the order of
their names.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from ottla.protocol.names import TopicPartition

Plan = dict[str, list[TopicPartition]]
MAX_MOVES_PER_PARTITION = 4


class MemberView(NamedTuple):
    """A member as the leader of the group sees it; `owned` are its partitions in `generation`."""

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1
    instance_id: str | None = None


class Assignor(Protocol):
    name: str
    cooperative: bool

    def assign(self, members: Mapping[str, MemberView], partitions: Mapping[str, int]) -> Plan: ...


def _in_order(members: Mapping[str, MemberView]) -> list[str]:
    """Sort members, by instance id where there is one, so that a static member keeps its place over
    restarts.
    """
    return sorted(members, key=lambda m: (members[m].instance_id is None, members[m].instance_id or "", m))


def _subscribers_by_topic(
    members: Mapping[str, MemberView], partitions: Mapping[str, int]
) -> dict[str, list[str]]:
    order = _in_order(members)
    topics = sorted({t for member in members.values() for t in member.topics if partitions.get(t)})
    return {topic: [m for m in order if topic in members[m].topics] for topic in topics}


class RangeAssignor:
    """Assigns each topic separately: consecutive partitions to the same member, one more to the first
    members.
    """

    name = "range"
    cooperative = False

    def assign(self, members: Mapping[str, MemberView], partitions: Mapping[str, int]) -> Plan:
        plan: Plan = {member: [] for member in members}
        for topic, takers in _subscribers_by_topic(members, partitions).items():
            each, more = divmod(partitions[topic], len(takers))
            at = 0
            for position, member in enumerate(takers):
                count = each + (position < more)
                plan[member] += [TopicPartition(topic, p) for p in range(at, at + count)]
                at += count
        return plan


class RoundRobinAssignor:
    """Assigns all partitions in turn to the members that are subscribed to them."""

    name = "roundrobin"
    cooperative = False

    def assign(self, members: Mapping[str, MemberView], partitions: Mapping[str, int]) -> Plan:
        plan: Plan = {member: [] for member in members}
        order = _in_order(members)
        turn = 0
        for topic, takers in _subscribers_by_topic(members, partitions).items():
            wanted = set(takers)
            for index in range(partitions[topic]):
                while order[turn % len(order)] not in wanted:
                    turn += 1
                plan[order[turn % len(order)]].append(TopicPartition(topic, index))
                turn += 1
        return plan


class StickyAssignor:
    """Balances as well as possible, and moves few partitions."""

    name = "sticky"
    cooperative = False

    def assign(self, members: Mapping[str, MemberView], partitions: Mapping[str, int]) -> Plan:
        takers = _subscribers_by_topic(members, partitions)
        plan = self._retained_assignment(members, partitions)
        taken = {p for owned in plan.values() for p in owned}
        # Topics with few subscribers first: the others can still go to other members.
        for topic, candidates in sorted(takers.items(), key=lambda entry: len(entry[1])):
            for index in range(partitions[topic]):
                partition = TopicPartition(topic, index)
                if partition not in taken:
                    plan[min(candidates, key=lambda m: len(plan[m]))].append(partition)
        self._even_out(plan, takers)
        return {member: sorted(owned) for member, owned in plan.items()}

    def _retained_assignment(self, members: Mapping[str, MemberView], partitions: Mapping[str, int]) -> Plan:
        """Return the partitions that members own and may keep; of two members that claim the same one, the
        later generation wins.
        """
        owner: dict[TopicPartition, str] = {}
        for member in _in_order(members):
            view = members[member]
            for partition in view.owned:
                if partition.topic not in view.topics or partition.partition >= partitions.get(
                    partition.topic, 0
                ):
                    continue
                rival = owner.get(partition)
                if rival is None or members[rival].generation < view.generation:
                    owner[partition] = member
        plan: Plan = {member: [] for member in members}
        for partition, member in sorted(owner.items()):
            plan[member].append(partition)
        return plan

    def _even_out(self, plan: Plan, takers: Mapping[str, Sequence[str]]) -> None:
        """Move partitions from the members with most to those with fewest that may have them, while that
        improves the balance.
        """
        left = MAX_MOVES_PER_PARTITION * sum(len(owned) for owned in plan.values())
        moved = True
        while moved and left > 0:
            moved = False
            for member in sorted(plan, key=lambda m: -len(plan[m])):
                for partition in sorted(plan[member], reverse=True):
                    least = min(takers[partition.topic], key=lambda m: (len(plan[m]), m != member))
                    if len(plan[member]) - len(plan[least]) > 1:
                        plan[member].remove(partition)
                        plan[least].append(partition)
                        moved = True
                        left -= 1


class CooperativeStickyAssignor(StickyAssignor):
    """The sticky assignor in two steps: a partition that moves is revoked first, and assigned in the next
    rebalance.
    """

    name = "cooperative-sticky"
    cooperative = True

    def assign(self, members: Mapping[str, MemberView], partitions: Mapping[str, int]) -> Plan:
        plan = super().assign(members, partitions)
        owner = {
            p: member
            for member, owned in self._retained_assignment(members, partitions).items()
            for p in owned
        }
        return {
            member: [p for p in owned if owner.get(p, member) == member] for member, owned in plan.items()
        }


ASSIGNORS: dict[str, Assignor] = {
    assignor.name: assignor
    for assignor in (RangeAssignor(), RoundRobinAssignor(), StickyAssignor(), CooperativeStickyAssignor())
}


def user_data(assignor: Assignor, owned: Sequence[TopicPartition], generation: int) -> bytes | None:
    """Return the user data that Java's assignor of this name expects in a subscription."""
    if assignor.name == "cooperative-sticky":
        return struct.pack(">i", generation)
    if assignor.name != "sticky":
        return None
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(owned):
        topics.setdefault(topic, []).append(index)
    parts = [struct.pack(">i", len(topics))]
    for topic, indexes in topics.items():
        name = topic.encode()
        parts.append(struct.pack(f">h{len(name)}si{len(indexes)}i", len(name), name, len(indexes), *indexes))
    return b"".join([*parts, struct.pack(">i", generation)])
