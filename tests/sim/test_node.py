"""Runs of a single node with clients of Ottla, in virtual time."""

from __future__ import annotations

import os

import pytest

from ottla.sim.node_run import NodeOutcome, NodeRun

SEEDS = int(os.environ.get("OTTLA_SIM_SEEDS", "10"))
SECONDS = float(os.environ.get("OTTLA_SIM_SECONDS", "6"))
FIRST_SEED = int(os.environ.get("OTTLA_SIM_FIRST_SEED", "1"))


def explain(outcome: NodeOutcome) -> str:
    tail = "\n".join(outcome.tail)
    return f"{tail}\n{outcome}\n{outcome.violations[0]}\nreplay: {outcome.command} --seconds {SECONDS:g}"


@pytest.mark.slow
@pytest.mark.timeout(0 if SEEDS > 1000 else 300)
def test_no_acknowledged_record_is_lost() -> None:
    acknowledged = 0
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
        outcome = NodeRun(seed, seconds=SECONDS).run()
        assert not outcome.violations, explain(outcome)
        acknowledged += outcome.acknowledged
    assert acknowledged


def test_names_of_a_killed_process_are_synced_before_they_are_relied_on() -> None:
    """A process created the directories of a topic and was killed; the next wrote to them, and lost its
    power.
    """
    outcome = NodeRun(258025642, seconds=6).run()
    assert not outcome.violations, explain(outcome)


def test_the_check_finds_records_that_a_power_loss_took() -> None:
    outcomes = (NodeRun(seed, seconds=6, synced=False).run() for seed in range(100))
    found = next(outcome for outcome in outcomes if outcome.violations)
    assert "lost" in found.violations[0]


def test_one_seed_is_one_run() -> None:
    assert NodeRun(3, seconds=3).run().fingerprint == NodeRun(3, seconds=3).run().fingerprint
