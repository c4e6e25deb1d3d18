"""Whatever happens to a log, and wherever the power fails, what is left is right: see
`tests.support.log_workload`.

Two thousand random lives run with every test run. For more:

    OTTLA_CRASH_SEEDS=20000 python -m pytest tests/log/test_crash.py

and for one of them, with the log of what it did:

    OTTLA_CRASH_SEED=4711 python -m pytest tests/log/test_crash.py
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.log_manager_workload import run_log_manager_workload
from tests.support.log_workload import run_log_workload
from tests.support.remote_log_workload import run_remote_log_workload

pytestmark = pytest.mark.slow

SEEDS = int(os.environ.get("OTTLA_CRASH_SEEDS", "1000"))
ONE_SEED = os.environ.get("OTTLA_CRASH_SEED")
PER_TEST = max(100, SEEDS // 200)


def chunks() -> list[Any]:
    """The first is the witness."""
    if ONE_SEED is not None:
        return [range(int(ONE_SEED), int(ONE_SEED) + 1)]
    return [
        pytest.param(
            range(start, min(start + PER_TEST, SEEDS)),
            marks=[pytest.mark.exhaustive] if start > 0 else [],
        )
        for start in range(0, SEEDS, PER_TEST)
    ]


def run(live: Callable[[int], None], seeds: range) -> None:
    for seed in seeds:
        try:
            live(seed)
        except AssertionError as error:
            pytest.fail(
                f"replay with: OTTLA_CRASH_SEED={seed} python -m pytest tests/log/test_crash.py\n{error}"
            )


@pytest.mark.parametrize("seeds", chunks(), ids=str)
def test_a_log_survives_a_crash_at_any_point_of_its_life(seeds: range) -> None:
    run(run_log_workload, seeds)


@pytest.mark.parametrize("seeds", chunks()[:2], ids=str)
def test_a_log_with_a_part_in_remote_storage_survives_a_crash_at_any_point(seeds: range) -> None:
    run(run_remote_log_workload, seeds)


@pytest.mark.parametrize("seeds", chunks(), ids=str)
def test_the_logs_of_a_node_survive_a_crash_at_any_point_of_its_life(seeds: range) -> None:
    run(run_log_manager_workload, seeds)
