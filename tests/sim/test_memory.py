"""Runs of the simulator leave nothing behind: hours of them need the memory of one."""

from __future__ import annotations

import gc

import pytest

from ottla.sim.cluster.run import ClusterRun
from ottla.sim.world import World


@pytest.mark.slow
def test_nothing_of_a_run_is_kept() -> None:
    for seed in range(2):
        ClusterRun(seed, seconds=0.3).run()
    gc.collect()
    assert not [each for each in gc.get_objects() if isinstance(each, World)]
