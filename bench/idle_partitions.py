"""Three nodes with many partitions that no client uses, beside three of Apache Kafka.

One cluster of each kind grows from no idle partitions of three replicas to 30,000, one kind after the other,
as both together would not find room on a small machine. At each size: the latency of one hot partition with
acks=all, one record after the other; CPU time and memory of a node at rest; a controlled shutdown; a kill -9
until all partitions are led again; a restart of all nodes until all are led and all replicas in sync. On the
way to 10,000, 9,000 partitions are created by one request (Apache Kafka refuses requests for more than some
10,000 metadata records), while another client writes to the hot partition.

Each step has a deadline. What does not end in time "did not settle", and the larger sizes of that cluster are
not measured. `python -m bench.idle_partitions --sizes 0,1000 --without-peer` measures a part of it.
"""

import argparse
import contextlib
import math
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import psutil
from tests.support.apache_kafka import SERVER_JVM, ApacheKafkaError

from bench.brokers import PEER
from bench.clusters import NODES, Cluster, KafkaCluster, OtherOttlaCluster, OttlaCluster, peer, running, until
from bench.harness import Row, fewer, markdown, quick
from bench.latency import at
from bench.versus import without_kafka
from ottla.protocol.api import API
from ottla.protocol.errors import MalformedMessage
from ottla.protocol.headers import read_response, request_parts
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.records.builder import build_batch
from ottla.testing.cluster_process import ClusterError
from ottla.testing.local_cluster import send_request

SIZES, QUICK_SIZES = (0, 1_000, 10_000, 30_000), (0, 1_000, 10_000)
HOT = "hot"
PARTITIONS_PER_TOPIC = 500
AT_ONCE = 9_000
# What Apache Kafka needs for 10,000 partitions and more; with the gigabyte of its scripts it runs out.
KAFKA_JVM = tuple({"-Xmx1G": "-Xmx3G"}.get(option, option) for option in SERVER_JVM)
SETTLE_S = 180.0
REQUEST_S = 120.0
LATENCY_S, LATENCY_RECORDS = 10.0, 1_000
IDLE_S = 10.0
REST_S = 20.0
# One kind of cluster; what is left then is not measured.
BUDGET_S = 12 * 60.0

FIGURES = (
    ("p50", "acks=all of one record, p50", "ms"),
    ("p99", "acks=all of one record, p99", "ms"),
    ("cpu", "idle CPU of a node", "% of a core"),
    ("memory", "memory of a node", "MB"),
    ("shutdown", "controlled shutdown of a node", "s"),
    ("killed", "kill -9 of a node, to all partitions led", "s"),
    ("start", "start of all nodes, to all in sync", "s"),
)
CREATION = (
    ("created", "to all led and in sync", "s", ""),
    ("stall", "the longest wait of another client", "ms", "≤ 50"),
    ("fenced", "brokers fenced meanwhile", "", "0"),
    ("elections", "elections of a controller meanwhile", "", "0"),
)
AIMS = {
    ("p50", 10_000): "≥ 10",
    ("cpu", 10_000): "≤ 3 %",
    ("start", 10_000): "≥ 4",
    ("start", 30_000): "settles",
}


class Unsettled(Exception):
    """A step did not end within its deadline, or a node failed on the way."""


@dataclass
class Life:
    """What was measured of one cluster: by figure and size, and of the large request."""

    figures: dict[tuple[str, int], float] = field(default_factory=dict)
    creation: dict[str, float] = field(default_factory=dict)


class HotClient:
    """Writes one record after the other to the hot partition; each counts from the first try to the
    acknowledgement.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._connection: socket.socket | None = None
        self._correlation_id = 0

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def write(self) -> float:
        """Milliseconds until a record was acknowledged."""
        begin = time.perf_counter()
        while True:
            try:
                if self._connection is None:
                    leader = self._cluster.leader(HOT)
                    self._connection = socket.create_connection(("127.0.0.1", self._cluster.port(leader)), 5)
                if not self._ask():
                    return (time.perf_counter() - begin) * 1000
            except (OSError, KeyError, MalformedMessage):
                pass
            self.close()
            if time.perf_counter() - begin > SETTLE_S:
                raise Unsettled("a record was not acknowledged in time")
            time.sleep(0.005)

    def _ask(self) -> int:
        assert self._connection is not None
        records = build_batch([(time.time_ns() // 1_000_000, None, b"x" * 100)])
        data = PartitionProduceData(index=0, records=records)
        request = ProduceRequest(
            acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name=HOT, partition_data=[data])]
        )
        self._correlation_id += 1
        self._connection.settimeout(30)
        self._connection.sendall(b"".join(request_parts(11, self._correlation_id, "bench", request)))
        (size,) = struct.unpack(">i", self._read(4))
        _, answer = read_response(API[request.API_KEY], 11, self._read(size))
        assert isinstance(answer, ProduceResponse)
        return answer.responses[0].partition_responses[0].error_code

    def _read(self, size: int) -> bytes:
        assert self._connection is not None
        found = b""
        while len(found) < size:
            some = self._connection.recv(size - len(found))
            if not some:
                raise ConnectionError("closed")
            found += some
        return found


class Watch:
    """What others see while a cluster is busy: the latency of the hot partition, and the brokers listed."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._over = threading.Event()
        self.longest_ms = 0.0
        self.fenced = 0
        self._threads = [threading.Thread(target=self._write), threading.Thread(target=self._list)]

    def __enter__(self) -> "Watch":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _write(self) -> None:
        client = HotClient(self._cluster)
        with contextlib.suppress(Unsettled):
            while not self._over.is_set():
                self.longest_ms = max(self.longest_ms, client.write())
                time.sleep(0.005)
        client.close()

    def _list(self) -> None:
        missing: dict[int, set[int]] = {node: set() for node in NODES}
        counted: set[int] = set()
        while not self._over.wait(0.2):
            for node in NODES:
                with contextlib.suppress(OSError, MalformedMessage):
                    listed = {broker.node_id for broker in self._cluster.metadata(node, []).brokers}
                    missing[node] = set(NODES) - listed
            # Others find that a broker is fenced at different times; one that is down finds nothing any more.
            now = set().union(*missing.values())
            self.fenced += len(now - counted)
            counted = now


def request_topics(cluster: Cluster, topics: dict[str, int]) -> None:
    """Create topics by one request. An error does not matter as long as they are there in the end."""
    wanted = [
        CreatableTopic(name=name, num_partitions=count, replication_factor=3)
        for name, count in topics.items()
    ]
    request = CreateTopicsRequest(topics=wanted, timeout_ms=int(REQUEST_S * 1000))
    try:
        answer = send_request(cluster.port(1), request, 7, CreateTopicsResponse, timeout_s=REQUEST_S + 30)
    except OSError as error:
        print(f"  {cluster.name}: no answer to CreateTopics: {error}", flush=True)
        return
    errors = {topic.error_code for topic in answer.topics if topic.error_code}
    if errors:
        print(f"  {cluster.name}: CreateTopics was answered with errors {errors}", flush=True)


def settle(
    cluster: Cluster,
    topics: dict[str, int],
    *,
    asked: int = 1,
    without: int | None = None,
    in_sync: bool = True,
) -> None:
    """Wait until all partitions are led, not by `without`, and with `in_sync` all replicas are in sync.

    One topic after the other is asked for: an answer with all would take the node longer than its work.
    """
    deadline = time.perf_counter() + SETTLE_S

    def is_settled(topic: str, count: int) -> bool:
        (described,) = cluster.metadata(asked, [topic]).topics
        return len(described.partitions) == count and all(
            each.leader_id in NODES
            and each.leader_id != without
            and (not in_sync or len(each.isr_nodes) == len(NODES))
            for each in described.partitions
        )

    for topic, count in topics.items():
        try:
            until(lambda: is_settled(topic, count), max(deadline - time.perf_counter(), 0.01))  # noqa: B023
        except AssertionError:
            raise Unsettled(f"{topic} is not led and in sync after {SETTLE_S:.0f} s") from None


def grow(cluster: Cluster, topics: dict[str, int], size: int, life: Life) -> None:
    """Create idle partitions until there are `size`."""
    idle = sum(topics.values()) - 1
    while idle < size:
        some = min(size - idle, AT_ONCE)
        fresh: dict[str, int] = {}
        while some > 0:
            count = min(some, PARTITIONS_PER_TOPIC)
            fresh[f"idle-{len(topics) + len(fresh)}"] = count
            some -= count
        added = sum(fresh.values())
        topics.update(fresh)
        idle += added
        _, epoch = cluster.quorum()
        begin = time.perf_counter()
        with Watch(cluster) as watch:
            try:
                request_topics(cluster, fresh)
                settle(cluster, fresh)
            finally:
                took = time.perf_counter() - begin
                print(
                    f"  {cluster.name}: {added:,} partitions created in {took:.1f} s; the longest wait of "
                    f"another client {watch.longest_ms:.0f} ms, {watch.fenced} brokers fenced",
                    flush=True,
                )
        if added == AT_ONCE and not life.creation:
            until(lambda: cluster.quorum()[1] >= epoch, REQUEST_S)  # noqa: B023
            life.creation.update(
                created=took,
                stall=watch.longest_ms,
                fenced=watch.fenced,
                elections=cluster.quorum()[1] - epoch,
            )


def latency(cluster: Cluster) -> list[float]:
    client = HotClient(cluster)
    for _ in range(20):
        client.write()
    end = time.perf_counter() + LATENCY_S
    times = []
    while len(times) < LATENCY_RECORDS and time.perf_counter() < end:
        times.append(client.write())
        time.sleep(0.002)
    client.close()
    return sorted(times)


def idle_cpu(cluster: Cluster) -> float:
    """Per cent of a core, the average of the nodes."""
    before, begin = cluster.cpu_seconds(), time.perf_counter()
    time.sleep(IDLE_S)
    return 100 * (cluster.cpu_seconds() - before) / (time.perf_counter() - begin) / len(NODES)


def busiest(cluster: Cluster, topics: dict[str, int]) -> int:
    """The node that leads the most partitions, and is not the active controller if another one leads any."""
    led = dict.fromkeys(NODES, 0)
    for topic in topics:
        (described,) = cluster.metadata(1, [topic]).topics
        for partition in described.partitions:
            led[partition.leader_id] += 1
    controller = cluster.controller()
    return max(NODES, key=lambda node: (led[node] > 0 and node != controller, led[node]))


def shut_down(cluster: Cluster, topics: dict[str, int]) -> float:
    node = busiest(cluster, topics)
    begin = time.perf_counter()
    cluster.stop_node(node)
    took = time.perf_counter() - begin
    cluster.start_node(node)
    settle(cluster, topics)
    return took


def kill(cluster: Cluster, topics: dict[str, int]) -> float:
    node = busiest(cluster, topics)
    asked = next(each for each in NODES if each != node)
    begin = time.perf_counter()
    cluster.kill_node(node)
    settle(cluster, topics, asked=asked, without=node, in_sync=False)
    took = time.perf_counter() - begin
    cluster.start_node(node)
    settle(cluster, topics)
    return took


def restart(cluster: Cluster, topics: dict[str, int]) -> float:
    cluster.stop_nodes()
    begin = time.perf_counter()
    cluster.start_nodes()
    settle(cluster, topics)
    return time.perf_counter() - begin


def measure(cluster: Cluster, size: int, topics: dict[str, int], life: Life) -> None:
    def note(figure: str, value: float) -> None:
        life.figures[figure, size] = value
        print(f"  {cluster.name}, {size:,} idle partitions: {figure} {value:,.3g}", flush=True)

    grow(cluster, topics, size, life)
    time.sleep(REST_S)
    note("cpu", idle_cpu(cluster))
    note("memory", cluster.resident_megabytes() / len(NODES))
    times = latency(cluster)
    note("p50", at(times, 0.5))
    note("p99", at(times, 0.99))
    note("shutdown", shut_down(cluster, topics))
    note("killed", kill(cluster, topics))
    note("start", restart(cluster, topics))


def lived(
    kind: type[OttlaCluster] | type[OtherOttlaCluster] | type[KafkaCluster], sizes: Sequence[int]
) -> Life:
    life = Life()
    deadline = time.monotonic() + BUDGET_S
    with running(kind, jvm=KAFKA_JVM) as cluster:
        topics = {HOT: 1}
        request_topics(cluster, topics)
        settle(cluster, topics)
        for size in sizes:
            if time.monotonic() > deadline:
                print(f"  {cluster.name}: no time is left for {size:,}", flush=True)
                break
            try:
                measure(cluster, size, topics, life)
            except (Unsettled, AssertionError, ClusterError, ApacheKafkaError, OSError, psutil.Error,
                    subprocess.TimeoutExpired) as error:  # fmt: skip
                reason = (str(error).splitlines() or [repr(error)])[0]
                print(f"  {cluster.name}, {size:,} idle partitions: {reason}\n{cluster.logs()}", flush=True)
                for figure, _, _ in FIGURES:
                    life.figures.setdefault((figure, size), math.inf)
                break
    return life


def rows(sizes: Sequence[int] | None = None, *, alone: bool = False) -> Iterator[Row]:
    sizes = sizes or (QUICK_SIZES if quick() else SIZES)
    mine = lived(OttlaCluster, sizes)
    missing = without_kafka()
    if missing is not None:
        print(missing, flush=True)
    theirs = Life() if alone or missing is not None else lived(peer(), sizes)
    for size in sizes:
        for figure, name, unit in FIGURES:
            ours = mine.figures.get((figure, size))
            if ours is not None:
                beside = f"{name}, {size:,} idle partitions"
                aim = AIMS.get((figure, size), "")
                yield fewer(beside, unit, max(ours, 0.001), theirs.figures.get((figure, size)), PEER, aim)
    none, many = mine.figures.get(("p50", 0)), mine.figures.get(("p50", 10_000))
    if none is not None and many is not None:
        peer_ratio = theirs.figures.get(("p50", 10_000), math.nan) / theirs.figures.get(("p50", 0), math.nan)
        yield Row(
            "p50 beside 10,000 idle partitions to p50 beside none", "times", many / none,
            None if math.isnan(peer_ratio) else peer_ratio, PEER, None, None, None, "≤ 1.3",
        )  # fmt: skip
    for figure, name, unit, aim in CREATION:
        if figure in mine.creation:
            yield Row(
                f"{AT_ONCE:,} partitions created by one request: {name}", unit, mine.creation[figure],
                theirs.creation.get(figure), PEER, None, None, None, aim,
            )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.idle_partitions", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "--sizes", default=",".join(map(str, SIZES)), help="comma separated (default: %(default)s)"
    )
    parser.add_argument("--without-peer", action="store_true", help="measure Ottla alone")
    given = parser.parse_args()
    sizes = [int(size) for size in given.sizes.split(",")]
    print(markdown(list(rows(sizes, alone=given.without_peer))))


if __name__ == "__main__":
    main()
