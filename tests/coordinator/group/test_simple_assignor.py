"""The simple assignor of share groups."""

from __future__ import annotations

from collections import Counter
from random import Random

from ottla.coordinator.group.share.simple_assignor import assign
from tests.support.rows import for_each

JOBS, MAILS, LOGS = b"j" * 16, b"m" * 16, b"l" * 16


def test_with_more_partitions_than_members_each_partition_has_one() -> None:
    assert assign({"a": frozenset({JOBS}), "b": frozenset({JOBS})}, {JOBS: range(5)}, {}) == {
        "a": {JOBS: frozenset({0, 2, 4})},
        "b": {JOBS: frozenset({1, 3})},
    }


def test_with_more_members_than_partitions_partitions_are_shared() -> None:
    members = {name: frozenset({JOBS}) for name in "abcde"}
    chosen = assign(members, {JOBS: range(2)}, {})
    shared = Counter(partition for each in chosen.values() for partition in each.get(JOBS, ()))
    assert set(shared) == {0, 1}
    assert all(chosen[name] for name in members)
    assert max(shared.values()) == 3


def test_members_that_subscribe_to_different_topics_are_balanced_by_topic() -> None:
    chosen = assign(
        {"a": frozenset({JOBS}), "b": frozenset({MAILS}), "c": frozenset({JOBS, MAILS})},
        {JOBS: range(4), MAILS: range(2)},
        {},
    )
    assert {name: {topic: len(ids) for topic, ids in each.items()} for name, each in chosen.items()} == {
        "a": {JOBS: 2},
        "b": {MAILS: 1},
        "c": {JOBS: 2, MAILS: 1},
    }


def test_partitions_that_may_not_be_assigned_are_not() -> None:
    assert assign({"a": frozenset({JOBS, MAILS})}, {JOBS: [1]}, {"a": {JOBS: frozenset({0, 1})}}) == {
        "a": {JOBS: frozenset({1})}
    }


def test_without_members_or_partitions_nothing_is_assigned() -> None:
    assert assign({}, {JOBS: range(2)}, {}) == {}
    assert assign({"a": frozenset({JOBS})}, {}, {}) == {"a": {}}


def test_a_thousand_members_share_one_partition() -> None:
    members = {f"m{index}": frozenset({JOBS}) for index in range(1_000)}
    chosen = assign(members, {JOBS: [0]}, {})
    assert all(each == {JOBS: frozenset({0})} for each in chosen.values())
    assert assign(members, {JOBS: [0]}, chosen) == chosen
    assert len({id(each) for each in chosen.values()}) == 1, "it is written for all, but made once"


@for_each("seed", range(200))
def test_what_holds_for_every_assignment(seed: int) -> None:
    chance = Random(seed)
    topics = [JOBS, MAILS, LOGS][: chance.randint(1, 3)]
    assignable = {topic: range(chance.randint(0, 7)) for topic in topics}
    same = frozenset(chance.sample(topics, chance.randint(1, len(topics))))
    previous: dict[str, dict[bytes, frozenset[int]]] = {}
    is_same = chance.random() < 0.5
    for _ in range(4):
        count = chance.randint(1, 9)
        members = {
            f"m{index}": same if is_same else frozenset(chance.sample(topics, chance.randint(1, len(topics))))
            for index in chance.sample(range(12), count)
        }
        chosen = assign(members, assignable, previous)
        assert chosen.keys() == members.keys()
        shared: Counter[tuple[bytes, int]] = Counter()
        for member, partitions in chosen.items():
            assert partitions.keys() <= members[member]
            for topic, ids in partitions.items():
                assert ids <= set(assignable[topic])
                shared.update((topic, index) for index in ids)
        subscribed = frozenset().union(*members.values())
        for topic in subscribed:
            for index in assignable[topic]:
                assert shared[topic, index] >= 1, "no partition is left without a member"
        assert assign(members, assignable, chosen) == chosen, "the same group keeps its assignment"
        previous = chosen
