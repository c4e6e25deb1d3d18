"""The clusters that are measured: three processes of each kind on loopback, with default settings.

Leadership and writes are checked node by node without a client in between: the retries of a client would be
the same for both, and are not measured.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
from tests.support.apache_kafka import SERVER_JVM, ApacheKafka

from bench.brokers import AGAINST, DEFAULTS, READY_S, Broker, other_checkout
from ottla.protocol.errors import MalformedMessage
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from ottla.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    DescribeQuorumResponse,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.records.builder import build_batch
from ottla.testing.cluster_plan import ClusterPlan, free_ports
from ottla.testing.local_cluster import LocalCluster, ProcessState, send_request

NODES = (1, 2, 3)
POLL_S = 0.005
STOP_S = 30.0
ASK_S = 5.0
LOG_BYTES = 16_000
REPLICATED = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "group.initial.rebalance.delay.ms": "0",
    # Both have Kafka's defaults, also after a crash.
    "broker.session.timeout.ms": "9000",
    "broker.heartbeat.interval.ms": "2000",
}


class Cluster(Broker):
    """Three nodes; the costs of the `Broker` are their sum."""

    @abstractmethod
    def port(self, node: int) -> int: ...

    @abstractmethod
    def node_pid(self, node: int) -> int: ...

    @abstractmethod
    def kill_node(self, node: int) -> None: ...

    @abstractmethod
    def start_node(self, node: int) -> None: ...

    @abstractmethod
    def stop_node(self, node: int) -> None:
        """Stop a node cleanly, and return once it has ended."""

    @abstractmethod
    def stop_nodes(self) -> None:
        """Ask all nodes to stop, at once, and kill those that have not ended after `STOP_S`."""

    @abstractmethod
    def start_nodes(self) -> None:
        """Start all nodes again, at once, and return when they serve."""

    def logs(self) -> str:
        """The state of each node and the end of its log, to read after a failure; empty if none is kept."""
        return ""

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{self.port(node)}" for node in NODES)

    @property
    def pid(self) -> int:
        raise TypeError("a cluster is several processes")

    def cpu_seconds(self) -> float:
        times = [psutil.Process(self.node_pid(node)).cpu_times() for node in NODES]
        return sum(each.user + each.system for each in times)

    def resident_megabytes(self) -> float:
        return sum(psutil.Process(self.node_pid(node)).memory_info().rss for node in NODES) / 1e6

    def pause_node(self, node: int) -> None:
        os.kill(self.node_pid(node), signal.SIGSTOP)

    def resume_node(self, node: int) -> None:
        os.kill(self.node_pid(node), signal.SIGCONT)

    def metadata(self, node: int, topics: list[str] | None = None) -> MetadataResponse:
        wanted = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        return send_request(self.port(node), request, 12, MetadataResponse, timeout_s=ASK_S)

    def leader(self, topic: str) -> int:
        (described,) = self.metadata(1, [topic]).topics
        return described.partitions[0].leader_id

    def controller(self) -> int:
        return self.quorum()[0]

    def quorum(self) -> tuple[int, int]:
        """The active controller and its epoch."""
        topic = DescribeQuorumRequestTopicData(
            topic_name="__cluster_metadata",
            partitions=[DescribeQuorumRequestPartitionData(partition_index=0)],
        )
        request = DescribeQuorumRequest(topics=[topic])
        answer = send_request(self.port(1), request, 1, DescribeQuorumResponse, timeout_s=ASK_S)
        found = answer.topics[0].partitions[0]
        return found.leader_id, found.leader_epoch

    def wait_ready(self) -> None:
        """Wait until every node lists all of them."""
        until(
            lambda: all(
                {broker.node_id for broker in self.metadata(node, []).brokers} == set(NODES) for node in NODES
            ),
            READY_S,
        )

    def wait_in_sync(self) -> None:
        until(
            lambda: all(
                partition.leader_id >= 0 and len(partition.isr_nodes) == len(partition.replica_nodes)
                for topic in self.metadata(1).topics
                for partition in topic.partitions
            ),
            READY_S,
        )

    def write(self, topic: str, others_than: int) -> bool:
        """Whether another node accepts a write with acks=all, at the first try."""
        for node in NODES:
            if node == others_than:
                continue
            (described,) = self.metadata(node, [topic]).topics
            leader = described.partitions[0].leader_id if described.partitions else -1
            if leader in NODES and leader != others_than:
                data = PartitionProduceData(
                    index=0, records=build_batch([(time.time_ns() // 1_000_000, None, b"x")])
                )
                request = ProduceRequest(
                    acks=-1,
                    timeout_ms=int(ASK_S * 1000),
                    topic_data=[TopicProduceData(name=topic, partition_data=[data])],
                )
                answer = send_request(self.port(leader), request, 11, ProduceResponse, timeout_s=ASK_S)
                if not answer.responses[0].partition_responses[0].error_code:
                    return True
        return False

    def change(self, topic: str, others_than: int) -> bool:
        """Whether another node creates a topic, at the first try."""
        node = next(each for each in NODES if each != others_than)
        described = CreatableTopic(name=topic, num_partitions=1, replication_factor=2)
        request = CreateTopicsRequest(topics=[described], timeout_ms=int(ASK_S * 1000))
        answer = send_request(self.port(node), request, 7, CreateTopicsResponse, timeout_s=ASK_S)
        return answer.topics[0].error_code in (0, 36)  # it is there, since now or since the try before


def until(condition: Callable[[], bool], seconds: float) -> float:
    """Seconds until the condition holds; a node that does not answer does not meet it."""
    begin = time.perf_counter()
    while True:
        with contextlib.suppress(OSError, MalformedMessage):
            if condition():
                return time.perf_counter() - begin
        assert time.perf_counter() - begin < seconds, f"not within {seconds} s"
        time.sleep(POLL_S)


class OttlaCluster(Cluster):
    name = "Ottla"

    def __init__(self, directory: Path, settings: dict[str, str]) -> None:
        super().__init__()
        wanted = {**REPLICATED, **DEFAULTS, **settings}
        ClusterPlan.make(directory / "cluster", brokers=3, settings=wanted).write()
        self._cluster = LocalCluster(data_dir=str(directory / "cluster"))

    def port(self, node: int) -> int:
        return self._cluster.node(node).port

    def node_pid(self, node: int) -> int:
        pid = self._cluster.node(node).pid
        assert pid is not None
        return pid

    def start(self) -> None:
        begin = time.perf_counter()
        self._cluster.start()
        self.wait_ready()
        self.ready_s = time.perf_counter() - begin

    def stop(self) -> None:
        self._cluster.stop()

    def kill(self) -> None:
        self._cluster.stop()

    def kill_node(self, node: int) -> None:
        self._cluster.kill(node)

    def start_node(self, node: int) -> None:
        self._cluster.start(node)

    def stop_node(self, node: int) -> None:
        self._cluster.stop(node)

    def stop_nodes(self) -> None:
        for node in NODES:
            self._cluster.kill(node, signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        for node in NODES:
            while self._cluster.node(node).state is not ProcessState.DOWN:
                if time.monotonic() > deadline:
                    self._cluster.kill(node)
                time.sleep(POLL_S)

    def start_nodes(self) -> None:
        self._cluster.start_all()

    def logs(self) -> str:
        return self._cluster.logs(LOG_BYTES)


class OtherOttlaCluster(OttlaCluster):
    name = "Ottla of another checkout"

    def start_nodes(self) -> None:
        with other_checkout():
            super().start_nodes()

    def start(self) -> None:
        with other_checkout():
            super().start()

    def start_node(self, node: int) -> None:
        with other_checkout():
            super().start_node(node)


class KafkaCluster(Cluster):
    name = "Apache Kafka"

    def __init__(self, directory: Path, settings: dict[str, str], jvm: Sequence[str] = SERVER_JVM) -> None:
        super().__init__()
        ports = free_ports(6)
        voters = ",".join(f"{node}@127.0.0.1:{ports[node + 2]}" for node in NODES)
        self._nodes: dict[int, ApacheKafka] = {}
        for node in NODES:
            kafka = ApacheKafka(
                directory / f"kafka-{node}",
                node_id=node,
                cluster_id=self._nodes[1].cluster_id if self._nodes else None,
                properties={**REPLICATED, **DEFAULTS, "controller.quorum.voters": voters, **settings},
                jvm=jvm,
            )
            kafka.port, kafka.controller_port = ports[node - 1], ports[node + 2]
            kafka.directory.mkdir(parents=True)
            # A separate step in Apache Kafka, so it is not part of the measured start.
            kafka._write_configuration()
            kafka._format()
            self._nodes[node] = kafka

    def port(self, node: int) -> int:
        return self._nodes[node].port

    def node_pid(self, node: int) -> int:
        process = self._nodes[node]._process
        assert process is not None
        return process.pid

    def start(self) -> None:
        begin = time.perf_counter()
        # Each is ready only with the others, and ends with the thread that started it.
        for kafka in self._nodes.values():
            kafka._launch()
        for kafka in self._nodes.values():
            kafka._await_ready(READY_S)
        self.wait_ready()
        self.ready_s = time.perf_counter() - begin

    def stop(self) -> None:
        self.kill()  # the last ones would wait for a controller that is gone

    def kill(self) -> None:
        for kafka in self._nodes.values():
            kafka.kill()

    def kill_node(self, node: int) -> None:
        self._nodes[node].kill()

    def start_node(self, node: int) -> None:
        self._nodes[node].start(timeout_s=READY_S)

    def stop_node(self, node: int) -> None:
        self._nodes[node].stop()

    def stop_nodes(self) -> None:
        processes = [kafka._process for kafka in self._nodes.values() if kafka._process is not None]
        for process in processes:
            process.terminate()
        deadline = time.monotonic() + STOP_S
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(deadline - time.monotonic(), 0.1))
        self.kill()

    def start_nodes(self) -> None:
        self.start()


@contextlib.contextmanager
def running(
    kind: type[OttlaCluster] | type[OtherOttlaCluster] | type[KafkaCluster],
    *,
    jvm: Sequence[str] = SERVER_JVM,
    **settings: str,
) -> Iterator[Cluster]:
    """A cluster from its start to its end; `jvm` are the options of Apache Kafka's."""
    directory = Path(tempfile.mkdtemp(prefix="ottla-bench-"))
    given = {name.replace("_", "."): value for name, value in settings.items()}
    cluster: Cluster
    if issubclass(kind, KafkaCluster):
        cluster = kind(directory, given, jvm)
    else:
        cluster = kind(directory, given)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()
        shutil.rmtree(directory, ignore_errors=True)


def peer() -> type[OtherOttlaCluster] | type[KafkaCluster]:
    """The kind of cluster to measure beside ours."""
    return KafkaCluster if AGAINST is None else OtherOttlaCluster
