"""The assignor of share groups, `simple`: every partition goes to about as many members as any other.

A partition may have several members and a member several partitions. With more members than partitions, each
partition is shared by `ceil(members / partitions)` members; otherwise each has one. Members keep what they
had as far as that allows. Where all members subscribe to the same topics, all partitions are balanced
together, otherwise topic by topic (Kafka's `SimpleHomogeneousAssignmentBuilder` and
`SimpleHeterogeneousAssignmentBuilder`).

Kafka walks hash tables; members and partitions are sorted here, so that the same group gives the same
assignment on every broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

SharePartition: TypeAlias = tuple[bytes, int]
Subscriptions: TypeAlias = Mapping[str, frozenset[bytes]]
"""By member: the ids of the topics it subscribes to, all of which exist."""
Assignable: TypeAlias = Mapping[bytes, Iterable[int]]
"""By topic: the partitions that may be assigned."""
Previous: TypeAlias = Mapping[str, Mapping[bytes, frozenset[int]]]
"""By member: its previous target."""

SIMPLE_ASSIGNOR: Final = "simple"


def assign(
    subscriptions: Subscriptions, assignable: Assignable, previous: Previous
) -> dict[str, dict[bytes, frozenset[int]]]:
    """The partitions of each member; members with the same partitions share one mapping."""
    members = sorted(subscriptions)
    topics = sorted(frozenset().union(*subscriptions.values()))
    chosen: dict[str, list[SharePartition]] = {member: [] for member in members}
    if len(frozenset(subscriptions.values())) <= 1:
        parts = [(members, topics)]
    else:
        parts = [
            ([member for member in members if topic in subscriptions[member]], [topic]) for topic in topics
        ]
    for subscribed, of_topics in parts:
        partitions = [
            (topic, partition) for topic in of_topics for partition in sorted(assignable.get(topic, ()))
        ]
        for member, assigned in _balance(subscribed, partitions, previous).items():
            chosen[member] += assigned
    by_topic: dict[tuple[SharePartition, ...], dict[bytes, frozenset[int]]] = {}
    result = {}
    for member, assigned in chosen.items():
        key = tuple(assigned)
        known = by_topic.get(key)
        result[member] = by_topic.setdefault(key, _by_topic(key)) if known is None else known
    return result


def _balance(
    members: list[str], partitions: list[SharePartition], previous: Previous
) -> dict[str, list[SharePartition]]:
    """Share partitions among members that subscribe to all of them."""
    if not members or not partitions:
        return {}
    sharing = -(-len(members) // len(partitions))  # members of each partition, rounded up
    quotas = _quotas(members, sharing * len(partitions))
    holders: dict[SharePartition, dict[str, None]] = {partition: {} for partition in partitions}
    kept: dict[str, dict[SharePartition, None]] = {}
    for member in members:
        before = previous.get(member)
        if not before:
            kept[member] = {}
            continue
        had = [
            (topic, partition)
            for topic, of_topic in sorted(before.items())
            for partition in sorted(of_topic)
            if (topic, partition) in holders
        ]
        # Of the partitions of a member that has too many, Kafka revokes the first ones that it meets.
        kept[member] = dict.fromkeys(had[max(0, len(had) - quotas[member]) :])
        for each in kept[member]:
            holders[each][member] = None
    for each, sharers in holders.items():
        for member in list(sharers)[: max(0, len(sharers) - sharing)]:
            del sharers[member]
            del kept[member][each]
    unfilled = [member for member in members if len(kept[member]) < quotas[member]]
    _fill(unfilled, holders, kept, quotas, sharing)
    return {member: list(assigned) for member, assigned in kept.items()}


def _quotas(members: list[str], assignments: int) -> dict[str, int]:
    """How many partitions each member should have: even, with the larger shares spread over the members."""
    count = len(members)
    ends = [-(-assignments * (index + 1) // count) for index in range(count)]
    return {
        member: end - (ends[index - 1] if index else 0)
        for index, (member, end) in enumerate(zip(members, ends, strict=True))
    }


def _fill(
    unfilled: list[str],
    holders: dict[SharePartition, dict[str, None]],
    kept: dict[str, dict[SharePartition, None]],
    quotas: dict[str, int],
    sharing: int,
) -> None:
    """Give partitions that have too few members to members that have too few partitions, in turn.

    Where none of these members can take a partition, as they all have it, it is left with fewer, as in Kafka.
    """
    position = 0
    for partition, sharers in holders.items():
        refused = 0
        while len(sharers) < sharing and refused < len(unfilled):
            position %= len(unfilled)
            member = unfilled[position]
            if member in sharers:
                position += 1
                refused += 1
                continue
            sharers[member] = None
            kept[member][partition] = None
            refused = 0
            if len(kept[member]) >= quotas[member]:
                del unfilled[position]
            else:
                position += 1


def _by_topic(assigned: Iterable[SharePartition]) -> dict[bytes, frozenset[int]]:
    topics: dict[bytes, set[int]] = {}
    for topic, partition in assigned:
        topics.setdefault(topic, set()).add(partition)
    return {topic: frozenset(partitions) for topic, partitions in topics.items()}
