"""Attacks that are drawn, all at once, on one node: it lives, stays small, and has no fault of its own.

How long others wait is measured by `python -m bench.attack --minutes 60`.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import SystemRandom

import pytest
from bench import attack

SEED = int(os.environ.get("ATTACK_SEED", "0"))
# The budget of connections (connections.memory.max.bytes), and 100 MB.
MAX_GROWTH_MB = 612
MOMENT_S = 3.0


@pytest.mark.slow
@pytest.mark.timeout(900 + 3 * float(os.environ.get("FUZZ_SECONDS", "60")))
@pytest.mark.parametrize(
    "seconds",
    [MOMENT_S, pytest.param(float(os.environ.get("FUZZ_SECONDS", "60")), marks=pytest.mark.exhaustive)],
    ids=["a moment", "long"],
)
def test_a_node_outlives_whatever_is_drawn(tmp_path: Path, seconds: float) -> None:
    # A moment draws the same in each run of the tests; the long run looks for more.
    seed = SEED or (1 if seconds <= MOMENT_S else SystemRandom().randrange(1, 1 << 32))
    print(f"repeat with ATTACK_SEED={seed}")
    outcome = attack.run(tmp_path, seconds, seed)
    assert not outcome.errors, outcome.errors[0][:2_000]
    assert outcome.most_mb - outcome.before_mb < MAX_GROWTH_MB, outcome
