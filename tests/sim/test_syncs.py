"""The event loops of a simulated cluster never wait for a sync: every one is made in the pool.

Replicas sync before they acknowledge (`log.flush.interval.messages=1`), so every append of a leader, a
follower or a coordinator, and every marker of a transaction, needs one.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from ottla.sim.cluster.run import ClusterRun
from ottla.sim.cluster.scenario import ClusterScenario
from ottla.sim.disk_faults import DiskOperation, Op
from ottla.sim.nemesis import NemesisConfig
from ottla.sim.world import SimPool

T = TypeVar("T")
SYNCS = frozenset((Op.SYNC, Op.SYNC_DIR))
# A coordinator does not wait for the creation of its log before its first record, once in a cluster's life:
# it would be unavailable for as long as the disk takes for all partitions of its topic.
COORDINATORS = "/__"
QUIET = NemesisConfig(interval_s=1.0, weights={"stop and start": 1, "sever connections": 1})
SCENARIO = ClusterScenario(
    nodes=3,
    separate=False,
    dynamic=False,
    synced=True,
    min_insync=2,
    timeout_scale=1.0,
    clients=("acks-1", "acks-all", "consumer-group", "copy-consumer", "idempotent", "transactional"),
    partitions=0,
    nemesis=QUIET,
)


class Syncs:
    """The syncs of all machines, by where they are made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.in_pool = 0
        self.on_the_loop: Counter[str] = Counter()
        self._depth = 0
        run = SimPool.run

        async def noted(pool: SimPool, fn: Callable[..., T], *args: Any) -> T:
            def inside(*args: Any) -> T:
                self._depth += 1
                try:
                    return fn(*args)
                finally:
                    self._depth -= 1

            return await run(pool, inside, *args)

        monkeypatch.setattr(SimPool, "run", noted)

    def note(self, operation: DiskOperation) -> None:
        if operation.op not in SYNCS:
            return
        if self._depth:
            self.in_pool += 1
            return
        calls: list[str] = []
        frame = sys._getframe(1)
        while frame is not None and len(calls) < 16:
            calls.append(frame.f_code.co_name)
            frame = frame.f_back  # type: ignore[assignment]
        if COORDINATORS not in operation.path or "complete_creation" not in calls:
            self.on_the_loop[f"{operation.path}: {' < '.join(calls)}"] += 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_cluster_that_syncs_before_it_acknowledges_does_so_in_the_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    syncs = Syncs(monkeypatch)
    run = ClusterRun("syncs", seconds=4.0, scenario=SCENARIO)
    for member in run.members:
        member.machine.disk.hook = syncs.note
    outcome = run.run()
    assert not outcome.violations, outcome.violations[0]
    assert outcome.acknowledged > 100
    assert syncs.in_pool > outcome.acknowledged
    assert not syncs.on_the_loop, "\n".join(map(str, syncs.on_the_loop.most_common(10)))
