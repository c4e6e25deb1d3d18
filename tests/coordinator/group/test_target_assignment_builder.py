"""The assignors: every partition once, only to subscribers, evenly, and with few moves."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.coordinator.group.consumer.target_assignment_builder import (
    ASSIGNORS,
    MemberAssignments,
    Previous,
    ServerRangeAssignor,
    UniformAssignor,
)
from tests.support.rows import for_each

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16


@st.composite
def groups(
    draw: st.DrawFn,
) -> tuple[dict[str, frozenset[bytes]], dict[bytes, int], dict[str, dict[bytes, frozenset[int]]]]:
    counts = {topic: draw(st.integers(1, 8)) for topic in (A, B, C)}
    members = [f"m{index}" for index in range(draw(st.integers(1, 6)))]
    subscriptions = {
        member: frozenset(draw(st.sets(st.sampled_from([A, B, C]), max_size=3))) for member in members
    }
    previous: dict[str, dict[bytes, frozenset[int]]] = {}
    if draw(st.booleans()):
        owners = {}
        for topic, count in counts.items():
            for partition in range(count + 1):  # the topic may have been larger, or another
                owner = draw(st.sampled_from([*members, "gone", None]))
                if owner is not None:
                    owners.setdefault(owner, {}).setdefault(topic, set()).add(partition)
        previous = {
            member: {topic: frozenset(ids) for topic, ids in topics.items()}
            for member, topics in owners.items()
        }
    return subscriptions, counts, previous


def flat(assignment: MemberAssignments) -> list[tuple[bytes, int]]:
    return sorted(
        (topic, partition)
        for topics in assignment.values()
        for topic, partitions in topics.items()
        for partition in partitions
    )


def size(topics: dict[bytes, set[int]]) -> int:
    return sum(len(partitions) for partitions in topics.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["uniform", "range"])
@given(group=groups())
@settings(max_examples=200, deadline=None)
def test_every_partition_goes_to_one_subscriber(name: str, group: tuple) -> None:  # type: ignore[type-arg]
    subscriptions, counts, previous = group
    result = ASSIGNORS[name].assign(subscriptions, counts, previous)
    wanted = {topic for topics in subscriptions.values() for topic in topics}
    assert flat(result) == sorted(
        (topic, partition) for topic in wanted for partition in range(counts[topic])
    )
    for member, topics in result.items():
        assert topics.keys() <= subscriptions[member]
    again = {
        member: {topic: frozenset(ids) for topic, ids in topics.items()} for member, topics in result.items()
    }
    assert ASSIGNORS[name].assign(subscriptions, counts, again) == result  # it rests where it is


@given(group=groups())
@settings(max_examples=200, deadline=None)
def test_uniform_is_even(group: tuple) -> None:  # type: ignore[type-arg]
    subscriptions, counts, previous = group
    result = UniformAssignor().assign(subscriptions, counts, previous)
    for topics in result.values():
        for taker in result:
            if size(topics) - size(result[taker]) >= 2:
                assert not any(
                    partitions and topic in subscriptions[taker] for topic, partitions in topics.items()
                )


@pytest.mark.slow
@given(group=groups())
@settings(max_examples=200, deadline=None)
def test_range_is_even_by_topic(group: tuple) -> None:  # type: ignore[type-arg]
    subscriptions, counts, previous = group
    result = ServerRangeAssignor().assign(subscriptions, counts, previous)
    for topic in counts:
        sizes = [len(result[member].get(topic, ())) for member in result if topic in subscriptions[member]]
        assert not sizes or max(sizes) - min(sizes) <= 1


def test_range_lines_topics_up() -> None:
    members = {name: frozenset({A, B}) for name in ("x", "y")}
    result = ServerRangeAssignor().assign(members, {A: 4, B: 4}, {})
    assert result == {"x": {A: {0, 1}, B: {0, 1}}, "y": {A: {2, 3}, B: {2, 3}}}


def test_uniform_moves_no_more_than_a_newcomer_needs() -> None:
    members = {name: frozenset({A}) for name in ("x", "y", "z")}
    previous = {"x": {A: frozenset({0, 1, 2})}, "y": {A: frozenset({3, 4, 5})}}
    result = UniformAssignor().assign(members, {A: 6}, previous)
    assert result["x"][A] < {0, 1, 2}
    assert result["y"][A] < {3, 4, 5}
    assert len(result["z"][A]) == 2


def test_the_extra_partition_stays_where_it_is() -> None:
    members = {name: frozenset({A}) for name in ("x", "y")}
    previous = {"x": {A: frozenset({0})}, "y": {A: frozenset({1, 2})}}
    assert UniformAssignor().assign(members, {A: 3}, previous) == {"x": {A: {0}}, "y": {A: {1, 2}}}


def test_a_large_group_is_assigned_in_reasonable_time() -> None:
    members = {f"m{index}": frozenset({A, B} if index % 2 else {B, C}) for index in range(100)}
    result = UniformAssignor().assign(members, {A: 300, B: 300, C: 300}, {})
    assert {size(topics) for topics in result.values()} == {9}


def least_by_looking_at_all(
    subscriptions: Mapping[str, frozenset[bytes]], counts: Mapping[bytes, int], previous: Previous
) -> dict[str, dict[bytes, set[int]]]:
    """What the assignor does where members subscribe to different topics, as it is defined."""
    sizes = dict.fromkeys(sorted(subscriptions), 0)
    by_topic: dict[bytes, list[str]] = {}
    for member in sizes:
        for topic in sorted(subscriptions[member]):
            by_topic.setdefault(topic, []).append(member)
    owner: dict[tuple[bytes, int], str] = {}
    for member in sizes:
        for topic, partitions in sorted(previous.get(member, {}).items()):
            for partition in sorted(partitions):
                is_valid = topic in subscriptions[member] and partition < counts[topic]
                if is_valid and owner.setdefault((topic, partition), member) == member:
                    sizes[member] += 1
    for topic in sorted(by_topic, key=lambda topic: (len(by_topic[topic]), topic)):
        for partition in range(counts[topic]):
            if (topic, partition) not in owner:
                least = min(by_topic[topic], key=lambda member: (sizes[member], member))
                owner[topic, partition] = least
                sizes[least] += 1
    moved = True
    while moved:
        moved = False
        for (topic, partition), member in sorted(owner.items()):
            least = min(by_topic[topic], key=lambda other: (sizes[other], other))
            if sizes[member] - sizes[least] >= 2:
                owner[topic, partition] = least
                sizes[member] -= 1
                sizes[least] += 1
                moved = True
    result: dict[str, dict[bytes, set[int]]] = {member: {} for member in sizes}
    for (topic, partition), member in owner.items():
        result[member].setdefault(topic, set()).add(partition)
    return result


@for_each("seed", range(20))
def test_members_of_different_topics_are_assigned_as_if_each_choice_looked_at_all_members(seed: int) -> None:
    random = Random(seed)
    topics = [bytes((index,)) * 16 for index in range(1, 6)]
    counts = {topic: random.randrange(1, 30) for topic in topics}
    subscriptions = {
        f"m{index}": frozenset(random.sample(topics, random.randrange(1, 5)))
        for index in range(random.randrange(2, 20))
    }
    subscriptions["first"], subscriptions["second"] = frozenset(topics[:1]), frozenset(topics)
    previous: Previous = {}
    for _ in range(3):
        assigned = UniformAssignor().assign(subscriptions, counts, previous)
        assert assigned == least_by_looking_at_all(subscriptions, counts, previous)
        previous = {
            member: {topic: frozenset(ids) for topic, ids in mine.items()}
            for member, mine in assigned.items()
        }
        subscriptions[f"n{random.random()}"] = frozenset(random.sample(topics, 2))


def test_a_choice_does_not_look_at_all_members() -> None:
    """As many names are compared as there are partitions, with a factor that does not grow with the
    members.
    """
    compared = 0

    class Name(str):
        def __lt__(self, other: str) -> bool:
            nonlocal compared
            compared += 1
            return str.__lt__(self, other)

    def comparisons(members: int) -> int:
        nonlocal compared
        subscriptions = {Name(f"m{index:04}"): frozenset((A,)) for index in range(members)}
        subscriptions[Name("other")] = frozenset((A, B))
        compared = 0
        UniformAssignor().assign(subscriptions, {A: 2_000, B: 1}, {})
        return compared

    assert comparisons(400) < 3 * comparisons(50)
