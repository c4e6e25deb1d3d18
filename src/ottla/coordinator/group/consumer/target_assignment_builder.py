"""The target assignment of a consumer group, and the assignors that compute it: `uniform` and `range`.

Both are sticky: a member keeps its partitions as far as its share allows. `UniformAssignor` shares all
partitions of all topics as evenly as the subscriptions allow; `ServerRangeAssignor` shares each topic by
itself in runs of partitions, the same members first for every topic, so that equally partitioned topics line
up.
Invariant: each partition of a subscribed topic goes to exactly one member that subscribes to it.

Everything is sorted before it is walked, so that the same group gives the same assignment on every broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush
from typing import Final, Protocol, TypeAlias

from ottla.coordinator.group.consumer.consumer_group import ConsumerGroup, Partitions
from ottla.coordinator.group.consumer.subscriptions import topic_ids
from ottla.metadata.image.image import MetadataImage

MemberAssignments: TypeAlias = dict[str, dict[bytes, set[int]]]
"""By member: the partitions of each topic."""
Subscriptions: TypeAlias = Mapping[str, frozenset[bytes]]
"""By member: the ids of the topics it subscribes to, all of which exist."""
Counts: TypeAlias = Mapping[bytes, int]
"""By topic: how many partitions it has."""
Previous: TypeAlias = Mapping[str, Mapping[bytes, frozenset[int]]]
"""By member: its previous target."""


class PartitionAssignor(Protocol):
    name: str

    def assign(
        self, subscriptions: Subscriptions, counts: Counts, previous: Previous
    ) -> MemberAssignments: ...


class ServerRangeAssignor:
    name = "range"

    def assign(self, subscriptions: Subscriptions, counts: Counts, previous: Previous) -> MemberAssignments:
        result: MemberAssignments = {member: {} for member in subscriptions}
        by_topic: dict[bytes, list[str]] = {}
        for member in sorted(subscriptions):
            for topic in sorted(subscriptions[member]):
                by_topic.setdefault(topic, []).append(member)
        for topic in sorted(by_topic):
            members = by_topic[topic]
            quota, extras = divmod(counts[topic], len(members))
            taken: set[int] = set()
            unfilled: list[tuple[str, int]] = []
            for member in members:
                had = sorted(
                    partition
                    for partition in previous.get(member, {}).get(topic, frozenset())
                    if partition < counts[topic] and partition not in taken
                )
                kept = had[:quota]
                if len(had) > quota and extras:
                    kept = had[: quota + 1]
                    extras -= 1
                else:
                    unfilled.append((member, quota - len(kept)))
                taken.update(kept)
                if kept:
                    result[member][topic] = set(kept)
            free = iter([partition for partition in range(counts[topic]) if partition not in taken])
            for member, missing in unfilled:
                if extras:
                    missing += 1
                    extras -= 1
                for _ in range(missing):
                    result[member].setdefault(topic, set()).add(next(free))
        return result


class UniformAssignor:
    name = "uniform"

    def assign(self, subscriptions: Subscriptions, counts: Counts, previous: Previous) -> MemberAssignments:
        if not subscriptions:
            return {}
        if len(set(subscriptions.values())) == 1:
            return _assign_same(subscriptions, counts, previous)
        return _assign_different(subscriptions, counts, previous)


def _assign_same(subscriptions: Subscriptions, counts: Counts, previous: Previous) -> MemberAssignments:
    """Assign where all members subscribe to the same topics: each gets its share, or one more."""
    topics = next(iter(subscriptions.values()))
    quota, extras = divmod(sum(counts[topic] for topic in topics), len(subscriptions))
    result: MemberAssignments = {}
    taken: set[tuple[bytes, int]] = set()
    unfilled: list[tuple[str, int]] = []
    # The members with most partitions come first, so that the extra partitions stay where they are.
    members = sorted(subscriptions, key=lambda member: (-_size(previous.get(member, {})), member))
    for member in members:
        share = quota + (1 if extras > 0 else 0)
        extras -= 1
        mine: dict[bytes, set[int]] = {}
        for topic, partitions in sorted(previous.get(member, {}).items()):
            if topic not in topics:
                continue
            for partition in sorted(partitions):
                if share and partition < counts[topic] and (topic, partition) not in taken:
                    mine.setdefault(topic, set()).add(partition)
                    taken.add((topic, partition))
                    share -= 1
        result[member] = mine
        if share:
            unfilled.append((member, share))
    free = iter(
        [
            (topic, partition)
            for topic in sorted(topics)
            for partition in range(counts[topic])
            if (topic, partition) not in taken
        ]
    )
    for member, share in unfilled:
        for _ in range(share):
            topic, partition = next(free)
            result[member].setdefault(topic, set()).add(partition)
    return result


def _assign_different(subscriptions: Subscriptions, counts: Counts, previous: Previous) -> MemberAssignments:
    """Assign where members subscribe to different topics: keep, fill up those with least, then even out.

    Evening out moves one partition at a time from a member to one that has at least two fewer, so the sum of
    squares falls with every move and it ends.
    """
    result: MemberAssignments = {member: {} for member in sorted(subscriptions)}
    sizes = dict.fromkeys(result, 0)
    by_topic: dict[bytes, list[str]] = {}
    for member in result:
        for topic in sorted(subscriptions[member]):
            by_topic.setdefault(topic, []).append(member)
    least_of = _Least(by_topic, sizes)
    owner: dict[tuple[bytes, int], str] = {}
    for member in result:
        for topic, partitions in sorted(previous.get(member, {}).items()):
            if topic in subscriptions[member]:
                for partition in sorted(partitions):
                    if partition < counts[topic] and (topic, partition) not in owner:
                        owner[topic, partition] = member
                        least_of.change(member, 1)
    # Topics with fewest subscribers first: they leave least choice.
    for topic in sorted(by_topic, key=lambda topic: (len(by_topic[topic]), topic)):
        for partition in range(counts[topic]):
            if (topic, partition) not in owner:
                least = least_of(topic)
                owner[topic, partition] = least
                least_of.change(least, 1)
    moved = True
    while moved:
        moved = False
        for (topic, partition), member in sorted(owner.items()):
            least = least_of(topic)
            if sizes[member] - sizes[least] >= 2:
                owner[topic, partition] = least
                least_of.change(member, -1)
                least_of.change(least, 1)
                moved = True
    for (topic, partition), member in owner.items():
        result[member].setdefault(topic, set()).add(partition)
    return result


class _Least:
    """The member with fewest partitions of those that subscribe to a topic, by name where several have as
    few.

    Topics with the same subscribers share a heap. It has an entry for each size that a member had since it
    was last the least; those that are not its size any more are passed.
    """

    def __init__(self, by_topic: Mapping[bytes, list[str]], sizes: dict[str, int]) -> None:
        self._sizes: Final = sizes
        heaps: dict[tuple[str, ...], list[tuple[int, str]]] = {}
        self._of_topic: Final = {
            topic: heaps.setdefault(tuple(members), []) for topic, members in by_topic.items()
        }
        self._of_member: Final[dict[str, list[list[tuple[int, str]]]]] = {member: [] for member in sizes}
        for members, heap in heaps.items():
            # Sorted, so it is a heap.
            heap += sorted((sizes[member], member) for member in members)
            for member in members:
                self._of_member[member].append(heap)

    def __call__(self, topic: bytes) -> str:
        heap = self._of_topic[topic]
        while self._sizes[heap[0][1]] != heap[0][0]:
            heappop(heap)
        return heap[0][1]

    def change(self, member: str, by: int) -> None:
        self._sizes[member] += by
        entry = self._sizes[member], member
        for heap in self._of_member[member]:
            heappush(heap, entry)


def _size(partitions: Mapping[bytes, frozenset[int]]) -> int:
    return sum(len(ids) for ids in partitions.values())


ASSIGNORS: Final[Mapping[str, PartitionAssignor]] = {
    assignor.name: assignor for assignor in (UniformAssignor(), ServerRangeAssignor())
}


def build_target_assignment(
    group: ConsumerGroup, assignor: str, image: MetadataImage
) -> Mapping[str, Partitions]:
    """The target assignment of every member (Kafka's `TargetAssignmentBuilder`)."""
    subscriptions = {
        member_id: topic_ids(group.topics_of(member), image) for member_id, member in group.members.items()
    }
    counts = {
        topic_id: len(image.topics.by_id[topic_id].partitions)
        for topics in dict.fromkeys(subscriptions.values())
        for topic_id in sorted(topics)
    }
    assigned = ASSIGNORS[assignor].assign(subscriptions, counts, group.target)
    return {
        member_id: {
            topic_id: frozenset(partitions)
            for topic_id, partitions in assigned.get(member_id, {}).items()
            if partitions
        }
        for member_id in group.members
    }
