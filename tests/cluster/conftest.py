"""A cluster that tests share, and what they need of it.

A test that takes nodes down brings them up again: `cluster` sees to it that the next one finds three nodes
with all their replicas in sync.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

from ottla import blocking
from ottla.testing.local_cluster import LocalCluster, ProcessState

# A node that falls silent is missed after three seconds, so that no test waits for nine.
SETTINGS = {
    "broker.session.timeout.ms": 3_000,
    "broker.heartbeat.interval.ms": 500,
    "replica.lag.time.max.ms": 3_000,
    "controlled.shutdown.enable": True,
    # Leaders move when a test has them moved, and not when five minutes are over.
    "auto.leader.rebalance.enable": False,
}
MakeTopic = Callable[..., str]


@pytest.fixture(scope="package")
def shared_cluster() -> Iterator[LocalCluster]:
    with LocalCluster(nodes=3, settings=SETTINGS) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: LocalCluster) -> Iterator[LocalCluster]:
    """Three nodes, all of them well."""
    yield shared_cluster
    for node in shared_cluster.nodes:
        if node.state is ProcessState.PAUSED:
            shared_cluster.resume(node)
        elif node.state is ProcessState.DOWN:
            shared_cluster.start(node)
    shared_cluster.wait_ready()
    shared_cluster.wait_in_sync()


@pytest.fixture
def make_topic(cluster: LocalCluster) -> MakeTopic:
    """Creates a topic of three replicas, two of which must have a record, and waits for its leaders."""

    def make(partitions: int = 1, **configs: str) -> str:
        name = f"t-{uuid4().hex[:12]}"
        with blocking.Admin(cluster.bootstrap_servers) as admin:
            admin.topics.create(
                name,
                partitions=partitions,
                replication_factor=3,
                configs={key.replace("_", "."): value for key, value in configs.items()},
            )
        for partition in range(partitions):
            cluster.partition(name, partition)
        return name

    return make
