"""Assignors: which member gets which partitions, and how few move when members join and leave."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.client.consumer.assignors import ASSIGNORS, MemberView, user_data
from ottla.client.consumer.consumer_coordinator import assignors_of
from ottla.protocol.names import TopicPartition

Plan = dict[str, list[TopicPartition]]
# With equal subscriptions it is two; those who want different topics may need a few more.
ROUNDS = 6


def plain(plan: Plan) -> dict[str, list[str]]:
    return {member: [str(partition) for partition in partitions] for member, partitions in plan.items()}


def views(**topics: str) -> dict[str, MemberView]:
    return {member: MemberView(tuple(names.split())) for member, names in topics.items()}


def test_range_takes_each_topic_for_itself() -> None:
    plan = ASSIGNORS["range"].assign(views(a="t u", b="t u"), {"t": 3, "u": 3})
    assert plain(plan) == {"a": ["t-0", "t-1", "u-0", "u-1"], "b": ["t-2", "u-2"]}


def test_roundrobin_deals_all_partitions_in_a_row() -> None:
    plan = ASSIGNORS["roundrobin"].assign(views(a="t u", b="t u"), {"t": 3, "u": 3})
    assert plain(plan) == {"a": ["t-0", "t-2", "u-1"], "b": ["t-1", "u-0", "u-2"]}
    plan = ASSIGNORS["roundrobin"].assign(views(a="t", b="t u", c="u"), {"t": 2, "u": 2})
    assert plain(plan) == {"a": ["t-0"], "b": ["t-1", "u-1"], "c": ["u-0"]}


def test_sticky_moves_only_what_evens_out() -> None:
    owned = tuple(TopicPartition("t", p) for p in range(4))
    members = {"a": MemberView(("t",), owned, 1), "b": MemberView(("t",))}
    plan = ASSIGNORS["sticky"].assign(members, {"t": 4})
    assert plain(plan) == {"a": ["t-0", "t-1"], "b": ["t-2", "t-3"]}


def test_cooperative_gives_up_first_and_gives_on_later() -> None:
    owned = tuple(TopicPartition("t", p) for p in range(4))
    members = {"a": MemberView(("t",), owned, 1), "b": MemberView(("t",))}
    first = ASSIGNORS["cooperative-sticky"].assign(members, {"t": 4})
    assert plain(first) == {"a": ["t-0", "t-1"], "b": []}
    members = {"a": MemberView(("t",), tuple(first["a"]), 2), "b": MemberView(("t",), (), 2)}
    assert plain(ASSIGNORS["cooperative-sticky"].assign(members, {"t": 4})) == {
        "a": ["t-0", "t-1"],
        "b": ["t-2", "t-3"],
    }


def test_of_two_who_claim_a_partition_the_later_generation_has_it() -> None:
    claim = (TopicPartition("t", 0),)
    members = {"a": MemberView(("t",), claim, 1), "b": MemberView(("t",), claim, 2)}
    assert plain(ASSIGNORS["sticky"].assign(members, {"t": 1})) == {"a": [], "b": ["t-0"]}


def test_static_members_keep_their_place_whatever_their_member_id() -> None:
    before = {"x1": MemberView(("t",), instance_id="i1"), "a2": MemberView(("t",), instance_id="i2")}
    after = {"b9": MemberView(("t",), instance_id="i1"), "a2": MemberView(("t",), instance_id="i2")}
    assert plain(ASSIGNORS["range"].assign(before, {"t": 3}))["x1"] == ["t-0", "t-1"]
    assert plain(ASSIGNORS["range"].assign(after, {"t": 3}))["b9"] == ["t-0", "t-1"]


topics = st.dictionaries(st.sampled_from("tuvw"), st.integers(0, 8), min_size=1)


@st.composite
def groups(draw: st.DrawFn) -> tuple[dict[str, MemberView], dict[str, int]]:
    partitions = draw(topics)
    everything = [TopicPartition(t, p) for t, n in partitions.items() for p in range(n + 1)]
    members = {}
    for name in draw(st.sets(st.sampled_from("abcdef"), min_size=1)):
        wanted = tuple(draw(st.sets(st.sampled_from("tuvwx"), min_size=1)))
        owned = tuple(draw(st.sets(st.sampled_from(everything))) if everything else ())
        members[name] = MemberView(wanted, owned, draw(st.integers(-1, 3)))
    return members, partitions


@pytest.mark.parametrize("name", ["range", "roundrobin", "sticky"])
@given(group=groups())
@settings(max_examples=60, deadline=None)
def test_every_wanted_partition_goes_to_one_who_wants_it(
    name: str, group: tuple[dict[str, MemberView], dict[str, int]]
) -> None:
    members, partitions = group
    plan = ASSIGNORS[name].assign(members, partitions)
    given_out = [partition for owned in plan.values() for partition in owned]
    wanted = {t for member in members.values() for t in member.topics}
    assert sorted(given_out) == sorted(
        TopicPartition(t, p) for t, n in partitions.items() if t in wanted for p in range(n)
    )
    assert all(p.topic in members[member].topics for member, owned in plan.items() for p in owned)


@pytest.mark.slow
@given(group=groups())
@settings(max_examples=60, deadline=None)
def test_sticky_is_even_among_those_who_want_the_same(
    group: tuple[dict[str, MemberView], dict[str, int]],
) -> None:
    members, partitions = group
    same = {name: view._replace(topics=("t", "u")) for name, view in members.items()}
    sizes = [len(owned) for owned in ASSIGNORS["sticky"].assign(same, partitions).values()]
    assert max(sizes) - min(sizes) <= 1


@given(group=groups())
@settings(max_examples=60, deadline=None)
def test_cooperative_never_gives_what_another_still_has_and_settles_soon(
    group: tuple[dict[str, MemberView], dict[str, int]],
) -> None:
    members, partitions = group
    assignor = ASSIGNORS["cooperative-sticky"]
    # No two own the same, as in a group that works.
    seen: set[TopicPartition] = set()
    clean = {}
    for name, view in members.items():
        owned = tuple(p for p in view.owned if p not in seen)
        seen |= set(owned)
        clean[name] = view._replace(owned=owned, generation=1)
    plan = assignor.assign(clean, partitions)
    for member, owned in plan.items():
        for other, view in clean.items():
            if other != member:
                wanted_by_owner = {
                    p
                    for p in view.owned
                    if p.topic in view.topics and p.partition < partitions.get(p.topic, 0)
                }
                assert not wanted_by_owner & set(owned)
    wanted = {t for view in members.values() for t in view.topics}
    everything = sum(n for t, n in partitions.items() if t in wanted)
    for generation in range(2, 2 + ROUNDS):
        if sum(map(len, plan.values())) == everything:
            break
        clean = {m: v._replace(owned=tuple(plan[m]), generation=generation) for m, v in clean.items()}
        plan = assignor.assign(clean, partitions)
    assert sum(map(len, plan.values())) == everything


def test_names_of_the_java_classes_are_understood() -> None:
    java = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor, RangeAssignor"
    assert [assignor.name for assignor in assignors_of(java)] == ["cooperative-sticky", "range"]
    with pytest.raises(ValueError, match="'best'; allowed are range, roundrobin"):
        assignors_of(["best"])


def test_user_data_is_what_javas_assignors_read() -> None:
    owned = [TopicPartition("t", 1), TopicPartition("t", 0)]
    assert user_data(ASSIGNORS["range"], owned, 7) is None
    assert user_data(ASSIGNORS["cooperative-sticky"], owned, 7) == struct.pack(">i", 7)
    expected = struct.pack(">ih1siiii", 1, 1, b"t", 2, 0, 1, 7)
    assert user_data(ASSIGNORS["sticky"], owned, 7) == expected
