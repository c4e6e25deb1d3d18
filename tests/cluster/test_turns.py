"""No turn of a node's event loop is long, also while thousands of partitions come, go and move.

Each node's own watchdog measures it (`runtime/loop_watchdog.py`). What counts here is the CPU time of the
loop's thread: on a busy machine a turn takes longer by the clock without doing more. An fsync takes none, and
lasts as long as the disk likes: the loop must make no such call at all.
"""

from __future__ import annotations

import pytest

from ottla import blocking
from ottla.testing.local_cluster import LocalCluster
from tests.support.process_status import process_status, waits_for_syncs, worst_turn

PARTITIONS = 2_000
# Five times what a turn may take: CPU time too depends on what else uses the caches of the machine.
MAX_CPU_MS = 50.0


def check_turns(cluster: LocalCluster, after: str) -> None:
    for node in cluster.nodes:
        status = process_status(node)
        assert status["loop"]["longest_cpu_ms"] < MAX_CPU_MS, f"node {node.id}, {after}: {worst_turn(status)}"
        assert not waits_for_syncs(status), f"node {node.id}, {after}: {worst_turn(status)}"


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_no_turn_is_long_while_partitions_come_and_go() -> None:
    with LocalCluster(nodes=3) as cluster, blocking.Admin(cluster.bootstrap_servers) as admin:
        admin.topics.create("many", partitions=PARTITIONS, replication_factor=3)
        cluster.wait_in_sync()
        check_turns(cluster, f"{PARTITIONS:,} partitions created")
        follower = next(node for node in cluster.nodes if node.id != cluster.controller())
        cluster.restart(follower)
        cluster.wait_in_sync()
        check_turns(cluster, "a node restarted")
        admin.topics.delete("many")
        check_turns(cluster, "all deleted")
