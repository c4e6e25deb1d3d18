"""What has met what: how many runs had each pair of features, and each feature with each fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations

from ottla.sim.cluster.scenario import CLUSTER_FAULTS, FEATURES, ClusterScenario, are_compatible

Pair = tuple[str, str]


class PairCoverage:
    """Counts the runs that had a pair: two features, or a feature and a fault that was injected."""

    def __init__(self) -> None:
        self.features: Counter[Pair] = Counter()
        self.faults: Counter[Pair] = Counter()

    def add(self, scenario: ClusterScenario, injected: Counter[str]) -> None:
        """Add a run: its drawn scenario, and how often each fault was injected."""
        names = scenario.features or ()
        self.features.update(combinations(names, 2))
        self.faults.update((name, fault) for name in names for fault in _faults() if injected[fault])

    def counts(self) -> dict[Pair, int]:
        """All pairs that are possible, and how many runs had each."""
        features = {pair: self.features[pair] for pair in _possible_features()}
        return features | {pair: self.faults[pair] for pair in _possible_faults()}

    def holes(self) -> list[Pair]:
        """The possible pairs that no run had."""
        return [pair for pair, runs in self.counts().items() if not runs]

    @property
    def share(self) -> float:
        """How many of the possible pairs a run had, from 0 to 1."""
        counts = self.counts()
        return sum(runs > 0 for runs in counts.values()) / len(counts)


def _faults() -> dict[str, int]:
    return {**CLUSTER_FAULTS, **{fault: weight for each in FEATURES for fault, weight in each.faults.items()}}


def _possible_features() -> Iterator[Pair]:
    for one, other in combinations(FEATURES, 2):
        if are_compatible(one, other):
            yield one.name, other.name


def _possible_faults() -> Iterator[Pair]:
    owners = {fault: each for each in FEATURES for fault in each.faults}
    for feature in FEATURES:
        for fault in _faults():
            owner = owners.get(fault)
            if owner is None or owner is feature or are_compatible(feature, owner):
                yield feature.name, fault
