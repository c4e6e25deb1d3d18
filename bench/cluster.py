"""Three nodes beside three of Apache Kafka: replicated throughput, latency, memory, and the cost of failures.

Default settings on both sides, three replicas of which two must have a record. "To the next write" is the
time from the signal until another node accepts a write with acks=all; "to the next change", until a topic can
be created again.
"""

import contextlib
import itertools
import statistics
from collections.abc import Callable, Iterator

from bench import loads
from bench.brokers import PEER, READY_S, Broker
from bench.clusters import Cluster, OttlaCluster, peer, running, until
from bench.harness import Row, fewer, scaled, show
from bench.latency import at
from bench.versus import Pair, without_kafka

SIZE = 100
RATE = 300
_NAMES = itertools.count()


def killed_leader(cluster: Cluster) -> float:
    leader = cluster.leader("death")
    cluster.kill_node(leader)
    took = until(lambda: cluster.write("death", leader), READY_S)
    cluster.start_node(leader)
    return took


def silent_leader(cluster: Cluster) -> float:
    leader = cluster.leader("death")
    cluster.pause_node(leader)
    took = until(lambda: cluster.write("death", leader), READY_S)
    cluster.resume_node(leader)
    return took


def killed_controller(cluster: Cluster) -> float:
    controller = cluster.controller()
    name = f"change-{next(_NAMES)}"
    cluster.kill_node(controller)
    took = until(lambda: cluster.change(name, controller), READY_S)
    cluster.start_node(controller)
    return took


FAULTS: tuple[tuple[str, Callable[[Cluster], float], str], ...] = (
    ("kill -9 of a leader, to the next write", killed_leader, "≥ 5"),
    ("SIGSTOP of a leader, to the next write", silent_leader, "≥ 1.4"),
    ("kill -9 of the active controller, to the next change", killed_controller, "≥ 1.4"),
)


def rows() -> Iterator[Row]:
    missing = without_kafka()
    with contextlib.ExitStack() as stack:
        mine = stack.enter_context(running(OttlaCluster))
        theirs = None if missing is not None else stack.enter_context(running(peer()))
        if missing is not None:
            print(missing, flush=True)
        clusters: list[Cluster] = [mine] if theirs is None else [mine, theirs]
        yield of_both("start of three nodes", "s", clusters, lambda cluster: cluster.ready_s, "≥ 4")
        yield of_both("memory of three nodes at rest", "MB", clusters, Cluster.resident_megabytes, "≥ 6")
        yield from throughput(Pair(mine, theirs))
        yield from latency(clusters)
        yield of_both(
            "memory of three nodes after the load", "MB", clusters, Cluster.resident_megabytes, "≥ 6"
        )
        yield from faults(clusters)


def of_both(
    name: str, unit: str, clusters: list[Cluster], figure: Callable[[Cluster], float], aim: str
) -> Row:
    mine, *others = map(figure, clusters)
    return fewer(name, unit, mine, others[0] if others else None, PEER, aim)


def throughput(pair: Pair) -> Iterator[Row]:
    count, rounds = scaled(1_000_000, 200_000), scaled(5, 3)
    for partitions in (1, 6):
        topic = f"replicated-{partitions}"
        pair.each(lambda broker: loads.create(broker, topic, partitions, replicas=3))  # noqa: B023

        def produce(broker: Broker) -> loads.Load:
            return loads.producing(broker, topic, SIZE, count)  # noqa: B023

        name = f"produce {SIZE} B to 3 replicas of {partitions} partition{'s' if partitions > 1 else ''}"
        yield from pair.rows(name, produce, count, rounds, aim="≥ 1", cost_aim="")


def latency(clusters: list[Cluster]) -> Iterator[Row]:
    taken: dict[str, list[float]] = {cluster.name: [] for cluster in clusters}
    for cluster in clusters:
        loads.create(cluster, "latency", replicas=3)
    for _ in range(scaled(5, 2)):
        for cluster in clusters:
            taken[cluster.name] += loads.latencies(cluster, "latency", scaled(3_000, 1_000), RATE)
    ordered = [sorted(times) for times in taken.values()]
    for quantile, name, aim in ((0.5, "p50", ""), (0.99, "p99", "≥ 1.4")):
        mine, *others = (at(times, quantile) for times in ordered)
        peer = others[0] if others else None
        yield fewer(f"end to end with 3 replicas at {RATE}/s, {name}", "ms", mine, peer, PEER, aim)


def faults(clusters: list[Cluster]) -> Iterator[Row]:
    for cluster in clusters:
        loads.create(cluster, "death", replicas=3)
    for name, fault, aim in FAULTS:
        took: list[list[float]] = [[] for _ in clusters]
        for _ in range(scaled(5, 2)):
            for cluster, times in zip(clusters, took, strict=True):
                times.append(fault(cluster))
                cluster.wait_ready()
                cluster.wait_in_sync()
        mine, *others = map(statistics.median, took)
        yield fewer(name, "s", mine, others[0] if others else None, PEER, aim)


if __name__ == "__main__":
    show(rows())
