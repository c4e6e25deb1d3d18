"""Runs of a whole cluster, from one seed each: a few by default, thousands by `OTTLA_SIM_SEEDS`."""

from __future__ import annotations

import os
import secrets
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from ottla.client.coordinator_client import CoordinatorClient
from ottla.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatResponse
from ottla.rpc.errors import ConnectionLost
from ottla.sim.cluster.coverage import PairCoverage
from ottla.sim.cluster.planted_bugs import CLUSTER_BUGS, cluster_bug_scenario, plant_cluster_bug
from ottla.sim.cluster.run import ClusterOutcome, ClusterRun
from ottla.sim.cluster.scenario import MANY_PARTITIONS, ClusterScenario
from ottla.sim.nemesis import NemesisConfig

ASKED = "OTTLA_SIM_SEEDS" in os.environ
SEEDS = int(os.environ.get("OTTLA_SIM_SEEDS", "6"))
SECONDS = float(os.environ.get("OTTLA_SIM_SECONDS", "5"))
# The same seeds in each run of the tests: what breaks a promise fails where it was changed. Fresh ones are
# drawn where `OTTLA_SIM_SEEDS` asks for many.
FIRST_SEED = int(os.environ.get("OTTLA_SIM_FIRST_SEED", "0")) or (secrets.randbelow(1 << 30) if ASKED else 1)
# Without `OTTLA_SIM_SEEDS` no run begins after so many, if those before had the faults that are wanted.
ENOUGH_RUNS = 2
# In how many runs a planted bug must be found. For a rare bug, the seed that is tried first: after the next
# change of the program it is a seed like others.
PLANTED_RUNS = 120
# So many runs have nearly all pairs of features, and of features and faults.
MANY_RUNS = 1_000
FIRST_SEEDS = {
    "aborted-offsets-kept": 1,
    "aborted-records-supersede": 12,
    "controller-not-checked-by-writes": 14,
    "coordinator-answers-too-soon": 24,
    "dead-letters-not-looked-for": 18,
    "deleted-topics-forgotten": 5,
    "followers-without-auxiliary-state": 3,
    "local-start-without-a-snapshot": 2,
    "marker-dropped": 6,
    "operators-answered-too-soon": 1,
    "prepared-not-kept": 6,
    "renewals-forgotten": 7,
    "rot-served": 5,
    "share-leaders-not-fenced": 12,
    "streams-tasks-given-too-soon": 35,
    "unclean-stop-taken-for-clean": 3,
    "unsynced-counts": 15,
    "waiters-left-at-a-close": 4,
}


def explain(outcome: ClusterOutcome) -> str:
    tail = "\n".join(outcome.tail)
    return f"{tail}\n{outcome}\n{outcome.violations[0]}\nreplay: {outcome.command} --seconds {SECONDS:g}"


# What is drawn, its option of `ottla sim`, and faults of which one at least must have been injected.
# Bugs that take many seeds to show.
FOUND_LATE = {
    "deleted-topics-forgotten",
    "aborted-records-supersede",
    "damaged-leader-begins-again",
    "dead-letters-not-looked-for",
    "followers-forget-producers",
    "followers-without-auxiliary-state",
    "local-start-without-a-snapshot",
    "generations-not-checked",
    "leader-from-outside-the-in-sync-set",
    "locks-never-expire",
    "markers-not-driven-again",
    "mended-from-a-bad-copy",
    "never-joins-again",
    "only-manifests-deleted",
    "share-leaders-not-fenced",
    "streams-tasks-given-too-soon",
    "unclean-stop-taken-for-clean",
    "unsynced-counts",
    "waiters-left-at-a-close",
}
# Nodes are asked to stop in each phase of their lives, with all optional parts, while others are missing.
STOPS = replace(
    cluster_bug_scenario("waiters-left-at-a-close"),
    features=("share-groups", "tiered"),
    clients=("idempotent", "moves", "transactional", "consumer-group", "topics"),
)
SCENARIOS: dict[str, tuple[ClusterScenario | None, str, tuple[str, ...]]] = {
    "drawn": (None, "", ()),
    "many-partitions-on-bad-disks": (
        MANY_PARTITIONS,
        "--many-partitions",
        ("failing file", "failing directory", "no handles"),
    ),
    "without-features": (ClusterScenario(features=()), "--features ''", ()),
    "logins-and-changing-acls": (ClusterScenario(features=("secured",)), "--features secured", ()),
    "metadata-in-zookeeper": (
        ClusterScenario(features=("zookeeper",)),
        "--features zookeeper",
        ("cut off from ZooKeeper", "expire a session"),
    ),
    "stops": (STOPS, "", ("stop at any moment",)),
    "share-groups": (ClusterScenario(features=("share-groups",)), "--features share-groups", ()),
    "tiered-storage": (
        ClusterScenario(features=("tiered",)),
        "--features tiered",
        ("tier: offsets in the store only",),
    ),
}


@pytest.mark.slow
@pytest.mark.timeout(0 if ASKED else 300)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.exhaustive) if name in ("stops", "without-features") else name
        for name in SCENARIOS
    ],
)
def test_seeds_keep_every_guarantee(name: str) -> None:
    scenario, option, faults = SCENARIOS[name]
    coverage: Counter[str] = Counter()
    pairs = PairCoverage()
    runs = 0
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
        outcome = ClusterRun(seed, seconds=SECONDS, scenario=scenario).run()
        runs += 1
        coverage.update(outcome.coverage)
        pairs.add(outcome.scenario, outcome.coverage)
        assert not outcome.violations, f"{explain(outcome)} {option}"
        is_covered = not faults or any(coverage[fault] for fault in faults)
        if not ASKED and is_covered and runs >= ENOUGH_RUNS:
            break
    assert coverage, "no fault was injected"
    assert not faults or sum(coverage[fault] for fault in faults) > 0
    print(f"{name}: {runs} runs from seed {FIRST_SEED}: {dict(sorted(coverage.items()))}")
    print(f"{name}: {pairs.share:.1%} of the pairs of features, and of features and faults")
    assert name != "drawn" or runs < MANY_RUNS or pairs.share >= 0.95, pairs.holes()


@pytest.mark.slow
def test_members_of_a_share_group_acknowledge_in_every_way() -> None:
    outcome = ClusterRun(0, seconds=6, scenario=cluster_bug_scenario("locks-expire-early")).run()
    assert not outcome.violations, explain(outcome)
    for event in ("accept NONE", "release NONE", "reject NONE", "renew NONE", "a lock has expired"):
        assert outcome.coverage[f"share: {event}"] > 0, event


@pytest.mark.slow
def test_members_of_a_share_group_learn_an_assignment_whose_response_was_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The coordinator has committed it by then, and does not repeat it by itself."""
    once, lost = CoordinatorClient.once, Counter[str]()

    async def lose_assignments(self: CoordinatorClient, request: Any, *args: Any, **options: Any) -> Any:
        response = await once(self, request, *args, **options)
        is_of_share_group = isinstance(response, ShareGroupHeartbeatResponse)
        if is_of_share_group and response.assignment and request.subscribed_topic_names is None:
            lost[request.member_id] += 1
            raise ConnectionLost("the response is lost")
        return response

    monkeypatch.setattr(CoordinatorClient, "once", lose_assignments)
    calm = NemesisConfig(weights={"slow link": 1})
    scenario = replace(cluster_bug_scenario("locks-expire-early"), nemesis=calm)
    outcome = ClusterRun(0, seconds=2, scenario=scenario).run()
    assert lost, "no assignment came without being asked for"
    assert not outcome.violations, explain(outcome)


@pytest.mark.slow
def test_records_cross_the_border_to_the_store_and_come_back() -> None:
    outcome = ClusterRun(1, seconds=8, scenario=cluster_bug_scenario("local-retention-before-the-copy")).run()
    assert not outcome.violations, f"{explain(outcome)} --tiered"
    for event in ("copies", "deletions of finished copies", "offsets in the store only"):
        assert outcome.coverage[f"tier: {event}"] > 0, event


@pytest.mark.slow
def test_answers_to_a_client_are_compared_with_the_acls_that_nodes_have_applied() -> None:
    outcome = ClusterRun(0, seconds=6, scenario=cluster_bug_scenario("allowed-stays-allowed")).run()
    assert not outcome.violations, explain(outcome)
    assert outcome.coverage["access: allowed as it should be"] > 0
    assert outcome.coverage["access: denied as it should be"] > 0


@pytest.mark.slow
def test_a_failing_run_names_the_command_that_replays_it() -> None:
    outcome = find("read-above-the-high-watermark")
    assert outcome.command == f"python -m ottla.sim cluster --seed {outcome.seed} --trace"
    assert any("VIOLATION" in line for line in outcome.tail)


def find(bug: str) -> ClusterOutcome:
    first = FIRST_SEEDS.get(bug, 0)
    for seed in (first, *(seed for seed in range(PLANTED_RUNS) if seed != first)):
        with plant_cluster_bug(bug):
            outcome = ClusterRun(seed, seconds=8, scenario=cluster_bug_scenario(bug)).run()
        if outcome.violations:
            return outcome
    pytest.fail(f"{PLANTED_RUNS} runs with the bug {bug!r}, and no violation")


@pytest.mark.slow
@pytest.mark.parametrize(
    "bug",
    [
        pytest.param(bug, marks=pytest.mark.exhaustive) if bug in FOUND_LATE else bug
        for bug in sorted(CLUSTER_BUGS)
    ],
)
def test_a_planted_bug_is_found(bug: str) -> None:
    assert find(bug).violations


@pytest.mark.exhaustive
def test_the_scenarios_of_bugs_have_no_violation_without_the_bug() -> None:
    scenarios = {id(cluster_bug_scenario(bug)): cluster_bug_scenario(bug) for bug in CLUSTER_BUGS}
    for scenario in scenarios.values():
        outcome = ClusterRun(1, seconds=1.5, scenario=scenario).run()
        assert not outcome.violations, explain(outcome)
