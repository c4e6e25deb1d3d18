"""How soon members are asked to come back, and how soon a new group is settled by that."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.coordinator.group.consumer.consumer_group import ConsumerGroupState
from ottla.coordinator.group.heartbeat_interval import MOST_PER_SECOND, heartbeat_interval_ms
from tests.coordinator.group.group_harness import GroupHarness, assigned


def test_a_group_that_has_just_changed_has_short_intervals_that_grow() -> None:
    def interval(since_ms: int) -> int:
        return heartbeat_interval_ms(5_000, members=2, is_settled=True, since_change_ms=since_ms)

    assert [interval(since) for since in (0, 400, 1_000, 8_000, 20_000, 10**9)] == [
        100,
        100,
        250,
        2_000,
        5_000,
        5_000,
    ]


def test_a_group_that_is_not_settled_keeps_short_intervals_for_longer() -> None:
    def interval(since_ms: int) -> int:
        return heartbeat_interval_ms(5_000, members=2, is_settled=False, since_change_ms=since_ms)

    assert [interval(since) for since in (0, 1_600, 16_000, 300_000)] == [100, 100, 1_000, 5_000]


def test_a_group_from_before_the_coordinator_loaded_it_has_the_configured_interval() -> None:
    assert heartbeat_interval_ms(5_000, members=2, is_settled=True, since_change_ms=None) == 5_000


@pytest.mark.parametrize("members", [1, 10, 100, 1_000, 100_000])
def test_large_groups_send_no_more_heartbeats_than_small_ones(members: int) -> None:
    interval_ms = heartbeat_interval_ms(5_000, members=members, is_settled=False, since_change_ms=0)
    assert interval_ms <= 5_000
    assert members * 1000 / interval_ms <= MOST_PER_SECOND or interval_ms == 5_000


def test_the_configured_interval_is_never_exceeded() -> None:
    assert heartbeat_interval_ms(50, members=1, is_settled=False, since_change_ms=0) == 50


class _Member:
    """A client as unchanged ones are: it comes back after the interval of the response, and at once after it
    has taken over another assignment.
    """

    def __init__(self, name: str, joins_ms: int) -> None:
        self.name = name
        self.next_ms = joins_ms
        self.epoch = 0
        self.owned: dict[str, list[int]] = {}
        self.acknowledges = False

    def beat(self, lab: GroupHarness) -> None:
        sends_owned = self.epoch == 0 or self.acknowledges
        answer = lab.beat(self.name, self.epoch, owned=self.owned if sends_owned else None)
        response: Any = answer.ok()
        self.acknowledges = False
        self.epoch = response.member_epoch
        self.next_ms = lab.now.tick_ms + response.heartbeat_interval_ms
        if response.assignment is not None and assigned(response) != self.owned:
            self.owned = assigned(response)
            self.acknowledges = True
            self.next_ms = lab.now.tick_ms + 20  # a poll of the application is between


@pytest.mark.parametrize("count", [2, 3, 10])
@pytest.mark.parametrize("apart_ms", [0, 7, 300, 1_100])
def test_a_fresh_group_is_settled_within_a_second_and_a_half(count: int, apart_ms: int) -> None:
    lab = GroupHarness({"logs": 24})
    start = lab.now.tick_ms
    members = [_Member(f"m{index}", start + index * apart_ms) for index in range(count)]
    last_join = members[-1].next_ms
    while not (
        lab.now.tick_ms > last_join
        and len(lab.consumers.members) == count
        and lab.consumers.state is ConsumerGroupState.STABLE
        and sum(len(member.owned.get("logs", ())) for member in members) == 24
    ):
        member = min(members, key=lambda each: each.next_ms)
        lab.advance(member.next_ms - lab.now.tick_ms)
        member.beat(lab)
        assert lab.now.tick_ms - last_join <= 1_500


def test_a_stable_group_is_back_at_the_configured_interval_after_twenty_seconds() -> None:
    lab = GroupHarness({"logs": 4})
    member = _Member("a", lab.now.tick_ms)
    beats = 0
    start = lab.now.tick_ms
    while lab.now.tick_ms - start < 120_000:
        lab.advance(member.next_ms - lab.now.tick_ms)
        member.beat(lab)
        beats += 1
    assert beats <= 120 / 5 + 30
    assert lab.beat("a", 2).ok().heartbeat_interval_ms == 5_000


def test_other_members_come_back_soon_after_one_has_left() -> None:
    lab = GroupHarness({"logs": 4})
    lab.beat("a", 0)
    lab.beat("b", 0)
    lab.advance(40_000)
    for member in lab.consumers.members.values():
        assert lab.beat(member.member_id, member.epoch, owned={}).ok()
    lab.beat("b", -1)
    assert lab.beat("a", lab.consumers.members["a"].epoch).ok().heartbeat_interval_ms == 100


def test_a_loaded_group_that_is_settled_keeps_the_configured_interval() -> None:
    lab = GroupHarness({"logs": 4})
    lab.beat("a", 0)
    lab.reload()
    assert lab.beat("a", 2).ok().heartbeat_interval_ms == 5_000


def test_a_loaded_group_that_is_not_settled_has_short_intervals() -> None:
    lab = GroupHarness({"logs": 4}, consumer_assignment_interval_ms=0)
    lab.beat("a", 0)
    lab.beat("b", 0)
    lab.reload()
    assert lab.beat("b", 3).ok().heartbeat_interval_ms == 100


def test_a_static_member_that_is_away_does_not_hurry_the_others() -> None:
    lab = GroupHarness({"logs": 4}, consumer_assignment_interval_ms=0)
    lab.beat("a", 0, instance="one")
    lab.beat("a", -2, instance="one")
    assert lab.consumers.state is ConsumerGroupState.RECONCILING
    assert lab.consumers.is_settled
