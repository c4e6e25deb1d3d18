"""One seed is one run: in any process, with any seed of hashes, wherever its objects are in memory.

Each process lives the same seeds after it has put other garbage into its memory, with another seed of hashes
and another allocator, so whatever walks a set or sorts by address takes another order. The fingerprint covers
the trace, every step of the loop, every byte that was sent and every byte that was written to a disk.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# What is run, with which seeds.
RUNS = {
    "cluster": "ClusterRun(seed, seconds=5, scenario=SCENARIO).run()",
    "partitions and disks": "ClusterRun(seed, seconds=3, scenario=MANY_PARTITIONS).run()",
    "logins and ACLs": "ClusterRun(seed, seconds=3, scenario=having('secured')).run()",
    "share groups": "ClusterRun(seed, seconds=4, scenario=having('share-groups')).run()",
    "tiered storage": "ClusterRun(seed, seconds=2, scenario=having('tiered')).run()",
    "drawn features": "ClusterRun(seed, seconds=2).run()",
    "most features": "ClusterRun(seed, seconds=2, scenario=having(*MOST)).run()",
    "quorum": "QuorumRun(seed, seconds=4).run()",
    "node": "NodeRun(seed, seconds=3).run()",
}
SEEDS = {
    "cluster": (104, 113),
    "partitions and disks": (4,),
    "logins and ACLs": (3,),
    "share groups": (2, 6),
    "tiered storage": (1,),
    "drawn features": (4,),
    "most features": (9,),
    "quorum": (5,),
    "node": (5,),
}
WITNESSES = ("drawn features", "quorum", "node")
# (seed of hashes, allocator, seed of the garbage): with `malloc` objects are where the C library puts them.
LAYOUTS = (("0", "pymalloc", 1), ("7", "malloc", 2), ("1234", "pymalloc", 3))

CODE = """
CLIENTS = "classic-group consumer-group copy-classic idempotent rivals transactional".split()

import random
source = random.Random({garbage})
junk = [bytearray(source.randrange(1, 5_000)) for _ in range(source.randrange(1, 20_000))]
holes = [[object() for _ in range(source.randrange(1, 50))] for _ in range(2_000)]
source.shuffle(junk), source.shuffle(holes)
del junk[::2], holes[::3]

from dataclasses import replace

from ottla.sim.cluster.run import ClusterRun
from ottla.sim.cluster.scenario import MANY_PARTITIONS, ClusterScenario
from ottla.sim.node_run import NodeRun
from ottla.sim.quorum.run import QuorumRun

SCENARIO = ClusterScenario(nodes=3, timeout_scale=0.1, clients=tuple(CLIENTS), features=())

# As many as there can be beside each other.
MOST = (
    "voter-changes secured tiered share-groups streams-groups transactions two-phase quotas compaction "
    "deleted-topics reassignments"
).split()

def having(*features):
    return replace(SCENARIO, features=features)

for seed in {seeds}:
    outcome = {run}
    print(seed, outcome.fingerprint, outcome.steps, len(outcome.violations), flush=True)
"""


def lived(kind: str, hash_seed: str, allocator: str, garbage: int) -> subprocess.Popen[str]:
    code = CODE.format(garbage=garbage, seeds=SEEDS[kind], run=RUNS[kind])
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONMALLOC": allocator},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.timeout(900)  # three processes, each with whole runs: much for a machine that is busy
@pytest.mark.parametrize(
    "kind",
    [kind if kind in WITNESSES else pytest.param(kind, marks=pytest.mark.exhaustive) for kind in RUNS],
)
def test_a_seed_is_the_same_run_in_any_process(kind: str) -> None:
    outputs = []
    for layout in LAYOUTS:
        with lived(kind, *layout) as process:
            try:
                out, err = process.communicate(timeout=280)
            finally:
                # Leaving `with` waits for the process, also for one that is too slow: the whole run of tests
                # would be ended for it, with nothing said.
                process.kill()
            assert process.returncode == 0, err
            outputs.append(out.splitlines())
    assert len(outputs[0]) == len(SEEDS[kind])
    for other in outputs[1:]:
        assert other == outputs[0]
