"""How a story of a broken guarantee becomes short, with runs that only look at their scenario."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from ottla.sim.cluster.scenario import ClusterScenario
from ottla.sim.cluster.shrink import Story, kind_of, shorten, timeline
from ottla.sim.nemesis import FAULTS, Nemesis, NemesisConfig
from ottla.sim.world import World

LOST = "3 acknowledged records of orders-1 are lost, among them b'idem-0.1.7', written with acks=-1 at 40"
FAULTS_DRAWN = 30


@dataclass
class FakeOutcome:
    scenario: ClusterScenario
    violations: list[str] = field(default_factory=list)
    faults: int = FAULTS_DRAWN
    lines: list[str] = field(default_factory=list)


Cause = Callable[[ClusterScenario, float], bool]


def run(asked: ClusterScenario, seconds: float, cause: Cause, violation: str = LOST) -> FakeOutcome:
    drawn = asked.draw(Random("1/world"), 1)
    return FakeOutcome(drawn, [violation] if cause(drawn, seconds) else [])


def short_story(cause: Cause, runs: int = 1_000) -> Story:
    asked = ClusterScenario(
        nodes=3, forced=("tiered", "share-groups", "secured"), clients=("idempotent", "rivals")
    )
    left = iter(range(runs))
    first = run(asked, 60.0, cause)
    assert first.violations, "the story breaks nothing"
    return shorten(
        Story(asked, 60.0, first),
        lambda scenario, seconds: run(scenario, seconds, cause),
        lambda: next(left, None) is not None,
    )


def injected(scenario: ClusterScenario) -> set[int]:
    assert scenario.nemesis is not None
    only = scenario.nemesis.only
    return set(range(FAULTS_DRAWN + 1)) if only is None else set(only)


def test_what_the_violation_does_not_need_is_left_out() -> None:
    story = short_story(
        lambda drawn, seconds: (
            drawn.has("tiered")
            and "rivals" in (drawn.clients or ())
            and {7, 19} <= injected(drawn)
            and seconds >= 10
        )
    )
    drawn = story.outcome.scenario
    assert drawn.has("tiered")
    assert not drawn.has("share-groups")
    assert not drawn.has("secured")
    assert drawn.clients == ("rivals",)
    assert injected(drawn) == {7, 19}
    assert story.seconds == 15
    assert drawn.nodes == 1


def test_a_story_that_needs_everything_stays_as_it_is() -> None:
    asked = ClusterScenario(
        nodes=3, forced=("tiered", "share-groups", "secured"), clients=("idempotent", "rivals")
    )
    whole = asked.draw(Random("1/world"), 1)
    story = short_story(lambda drawn, seconds: drawn == whole and seconds == 60)
    assert story.scenario == asked


def test_the_best_story_so_far_is_told_when_the_time_is_up() -> None:
    story = short_story(lambda drawn, _: drawn.has("tiered"), runs=3)
    assert story.runs <= 3
    assert story.seconds < 60


def test_another_violation_is_another_story() -> None:
    asked = ClusterScenario(nodes=3)
    first = run(asked, 60.0, lambda *_: True)
    shorter = shorten(
        Story(asked, 60.0, first),
        lambda scenario, seconds: run(scenario, seconds, lambda *_: True, "node 1 gave up"),
        lambda: True,
    )
    assert shorter.scenario == asked
    assert shorter.seconds == 60


@pytest.mark.parametrize(
    "other",
    [
        "1 acknowledged records of orders-0 are lost, among them b'acks-all.2.0', written with acks=-1 at 3",
        LOST,
    ],
)
def test_numbers_and_names_do_not_make_another_kind(other: str) -> None:
    assert kind_of(other) == kind_of(LOST)
    assert kind_of(LOST) != kind_of("2 records of orders-1 are duplicated, among them [b'idem-0.1.7']")


def test_a_timeline_has_the_faults_the_lives_of_nodes_and_the_records_concerned() -> None:
    lines = [
        "    0.0000  idem-0     boots, number 1",
        "    1.0000  node1      copied the segment of 0 to 9 to remote storage, 400 bytes",
        "    1.5000  idem-0.1   b'idem-0.1.6' is acknowledged at orders-0 12",
        "    2.0000  idem-0.1   b'idem-0.1.7' is acknowledged at orders-1 40",
        "    2.5000  nemesis    power loss node1",
        "    2.5000  node1      loses power",
        "    3.0000  checker    node 2 leads orders-1 in epoch 4",
        "    4.0000  checker    VIOLATION: lost",
    ]
    assert timeline(FakeOutcome(ClusterScenario(), [LOST], lines=lines)) == lines[3:]


def test_a_timeline_has_the_records_of_the_transaction_concerned() -> None:
    lines = [
        "    1.5000  txn.1.6    sends b'txn.1.6.0' to orders-1",
        "    2.0000  txn.1.7    sends b'txn.1.7.0' to orders-1",
        "    4.0000  checker    VIOLATION: torn",
    ]
    torn = "txn.1.7 is torn: 1 of its records are visible, 2 are not"
    assert timeline(FakeOutcome(ClusterScenario(), [torn], lines=lines)) == lines[1:]


def test_a_fault_does_the_same_whether_those_before_were_injected_or_not() -> None:
    def lived(only: tuple[int, ...] | None) -> list[str]:
        world = World(3)
        done: list[str] = []
        machine = world.machine("node1", lambda _: _forever())
        config = NemesisConfig(interval_s=0.5, weights=dict.fromkeys(FAULTS, 0) | {"noted": 1}, only=only)
        nemesis = Nemesis(
            world,
            config,
            lambda: [machine],
            more={"noted": lambda _: done.append(f"{world.loop.time():.6f} {nemesis.random.random()}")},
        )
        machine.boot()
        world.run(nemesis.run(10))
        return done

    every = lived(None)
    assert len(every) > 8
    assert lived((2, 5)) == [every[1], every[4]]


async def _forever() -> None:
    return


def test_what_is_dropped_leaves_the_rest_as_it_was_drawn() -> None:
    asked = ClusterScenario(nodes=3, forced=("tiered", "secured"))
    whole = asked.draw(Random("1/world"), 1)
    less = replace(asked, dropped=("tiered", "follower")).draw(Random("1/world"), 1)
    assert set(whole.features or ()) - set(less.features or ()) == {"tiered"}
    assert set(whole.clients or ()) - set(less.clients or ()) == {"follower"}
    assert less.nemesis == whole.nemesis, "the faults are the same ones"
