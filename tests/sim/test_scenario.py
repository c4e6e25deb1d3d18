"""How the scenario of a cluster is drawn: its shape, its features, and what excludes what."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

from ottla.sim.cluster.coverage import PairCoverage
from ottla.sim.cluster.planted_bugs import CLUSTER_BUGS, cluster_bug_scenario
from ottla.sim.cluster.scenario import (
    CLUSTER_FAULTS,
    FEATURES,
    ClusterScenario,
    ScenarioFeature,
    are_compatible,
    features_named,
)
from tests.support.rows import for_each

SEEDS = 400


def draw(seed: int, scenario: ClusterScenario | None = None) -> ClusterScenario:
    return (scenario or ClusterScenario()).draw(Random(f"{seed}/world"), seed)


def test_every_feature_is_drawn_and_left_out() -> None:
    drawn = Counter(name for seed in range(SEEDS) for name in draw(seed).features or ())
    for feature in FEATURES:
        assert SEEDS * 0.03 < drawn[feature.name] < SEEDS * 0.97, feature.name


def test_features_that_exclude_each_other_are_never_drawn_together() -> None:
    for seed in range(SEEDS):
        features = features_named(draw(seed, ClusterScenario(nodes=3)).features or ())
        for one in features:
            assert all(are_compatible(one, other) for other in features), (seed, one.name)
            assert set(one.needs) <= {each.name for each in features}, (seed, one.name)


@for_each("feature", FEATURES, ids=lambda feature: feature.name)
def test_a_switch_forces_a_feature_and_a_switch_forbids_it(feature: ScenarioFeature) -> None:
    name = feature.name
    for seed in range(20):
        assert draw(seed, ClusterScenario(nodes=3, forced=(name,))).has(name), seed
        assert not draw(seed, ClusterScenario(nodes=3, forbidden=(name,))).has(name), seed


def test_a_scenario_with_listed_features_has_no_others_but_those_of_its_shape() -> None:
    of_shape = {feature.name for feature in FEATURES if feature.chance is None}
    for seed in range(50):
        drawn = draw(seed, ClusterScenario(nodes=3, features=("tiered",)))
        assert drawn.has("tiered")
        assert set(drawn.features or ()) <= {"tiered", *of_shape}


def test_the_documentation_has_every_feature() -> None:
    text = (Path(__file__).parents[2] / "docs" / "simulation.md").read_text()
    for feature in FEATURES:
        share = "by the shape" if feature.chance is None else f"{feature.chance:.0%}"
        assert f"| `{feature.name}` | {share} | {feature.what} |" in text


def test_features_do_not_change_the_shape() -> None:
    """So that a seed that failed can be run without a feature."""
    for seed in range(50):
        plain = draw(seed, ClusterScenario(nodes=3, features=()))
        more = draw(seed, ClusterScenario(nodes=3, features=("secured", "share-groups")))
        for name in (
            "nodes",
            "separate",
            "dynamic",
            "synced",
            "min_insync",
            "timeout_scale",
            "clients",
            "nemesis",
        ):
            assert getattr(plain, name) == getattr(more, name), (seed, name)


def test_disks_fail_only_where_replicas_sync() -> None:
    for seed in range(100):
        drawn = draw(seed)
        assert drawn.synced or not any(
            drawn.weights[fault] for fault in features_named(["bad-disks"])[0].faults
        )


def test_the_pairs_that_three_hundred_scenarios_can_have_are_nearly_all() -> None:
    """Of faults those count that the nemesis may draw: whether it does takes a run."""
    pairs = PairCoverage()
    for seed in range(300):
        drawn = draw(seed, ClusterScenario(nodes=3))
        pairs.add(drawn, Counter({fault: weight for fault, weight in drawn.weights.items() if weight}))
    assert pairs.share > 0.99, pairs.holes()
    assert {fault for _, fault in pairs.faults} >= set(CLUSTER_FAULTS)


def test_a_bug_can_be_looked_for_in_any_drawn_scenario() -> None:
    for bug in CLUSTER_BUGS:
        assert draw(1, cluster_bug_scenario(bug)).features is not None, bug
