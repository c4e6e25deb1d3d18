"""`python -m bench.metadata_stores`: the same story with a quorum and with ZooKeeper, measured.

Three nodes; a topic is created, a broker dies, the controller dies, and a broker that leads many partitions
dies. Prints the rows of the table in docs/zookeeper-and-kraft.md. Needs Java, for ZooKeeper.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ottla import blocking
from ottla.client.admin.topics import NewTopic
from ottla.testing.cluster_plan import free_ports
from ottla.testing.local_cluster import LocalCluster
from ottla.testing.zookeeper_server import ZooKeeperServer

SESSION_MS = 6_000
SETTINGS = {
    "broker.session.timeout.ms": SESSION_MS,
    "broker.heartbeat.interval.ms": 1_000,
    "auto.leader.rebalance.enable": False,
}
PARTITIONS_PER_TOPIC = 1_000
LIMIT_S = 600.0


@contextmanager
def cluster_of(store: str, directory: Path) -> Iterator[LocalCluster]:
    if store == "quorum":
        with LocalCluster(nodes=3, settings=SETTINGS) as cluster:
            yield cluster
        return
    server = ZooKeeperServer(directory / "zookeeper", free_ports(1)[0])
    server.start()
    try:
        settings = {**SETTINGS, "zookeeper.session.timeout.ms": SESSION_MS}
        with LocalCluster(nodes=3, settings=settings, zookeeper=server.connect) as cluster:
            yield cluster
    finally:
        server.stop()


def timed(condition: Callable[[], bool]) -> float:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + LIMIT_S, "the condition did not become true"
        time.sleep(0.01)
    return time.monotonic() - began


def leads(admin: blocking.Admin, names: list[str], broker: int) -> bool:
    """Whether a broker still leads a partition of these topics."""
    return any(
        partition.leader in (broker, -1)
        for name in names
        for partition in admin.topics.describe(name).partitions
    )


def measure(store: str, partitions: int, directory: Path) -> dict[str, float]:
    found: dict[str, float] = {}
    with cluster_of(store, directory) as cluster, blocking.Admin(cluster.bootstrap_servers) as admin:
        admin.topics.create("first", partitions=3, replication_factor=3)
        times = []
        for number in range(20):
            began = time.monotonic()
            admin.topics.create(f"small-{number}", partitions=3, replication_factor=3)
            times.append(time.monotonic() - began)
        found["a topic of 3 partitions is created (median of 20)"] = sorted(times)[10]

        others = [node.id for node in cluster.nodes if node.id != cluster.controller()]
        began = time.monotonic()
        cluster.kill(others[0])
        timed(lambda: not leads(admin, ["first"], others[0]))
        found["a broker is killed: others lead its partitions"] = time.monotonic() - began
        cluster.start(others[0])
        cluster.wait_in_sync()

        controller = cluster.controller()
        began = time.monotonic()
        cluster.kill(controller)
        timed(lambda: cluster.find_controller() not in (None, controller))
        found["the controller is killed: there is another one"] = time.monotonic() - began
        timed(lambda: not leads(admin, ["first"], controller))
        found["the controller is killed: others lead its partitions"] = time.monotonic() - began
        cluster.start(controller)
        cluster.wait_in_sync()

        names = [f"many-{number}" for number in range(partitions // PARTITIONS_PER_TOPIC)]
        began = time.monotonic()
        for name in names:
            result = admin.topics.create_many([NewTopic(name, PARTITIONS_PER_TOPIC, 2)])
            assert result[name] is None, result
        found[f"{partitions} partitions are created, {PARTITIONS_PER_TOPIC} with each request"] = (
            time.monotonic() - began
        )
        cluster.wait_in_sync(timeout_s=LIMIT_S)

        controller = cluster.controller()
        began = time.monotonic()
        cluster.kill(controller)
        timed(lambda: cluster.find_controller() not in (None, controller))
        found[f"the controller is killed with {partitions} partitions: there is another one"] = (
            time.monotonic() - began
        )
        timed(lambda: not leads(admin, names, controller))
        found[f"the same: others lead its part of the {partitions} partitions"] = time.monotonic() - began
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--store", choices=("quorum", "zookeeper"))
    arguments = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    for store in (arguments.store,) if arguments.store else ("quorum", "zookeeper"):
        with tempfile.TemporaryDirectory(prefix="ottla-bench-") as directory:
            results[store] = measure(store, arguments.partitions, Path(directory))
    names = next(iter(results.values()))
    print("| | " + " | ".join(results) + " |")
    print("|---|" + "---|" * len(results))
    for name in names:
        print(f"| {name} | " + " | ".join(f"{each[name]:.2f} s" for each in results.values()) + " |")


if __name__ == "__main__":
    main()
