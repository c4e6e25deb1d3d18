"""Three brokers of Apache Kafka 3.9 on ZooKeeper, imported and opened by Ottla and by Apache Kafka 4.

A reassignment is under way, a topic is in deletion, and the brokers are killed while a producer writes: what
was acknowledged is there afterwards, the reassignment completes, the deleted topic does not come back.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla import blocking
from ottla.client.admin.configs import ResourceType
from ottla.protocol import errors, names
from ottla.runtime.zookeeper import KazooSession, ZooKeeperSettings
from ottla.testing.cluster_plan import free_ports
from ottla.zookeeper import znodes
from tests.support import java, kafka_libs
from tests.support.command_line import CommandLine
from tests.support.waiting import wait_until
from tests.support.zookeeper import ApacheZooKeeper, ZooKeeperKafka

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

PARTITIONS = 6
THREE = {
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
}


@dataclass
class ImportedCluster:
    directory: Path
    bootstrap: str
    acknowledged: set[bytes]
    report: list[dict]


def settings_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("broker-*/server-kraft.properties"))


def prepare(bootstrap: str) -> None:
    """Begin a reassignment that cannot complete yet."""
    rates = {"leader.replication.throttled.rate": "1", "follower.replication.throttled.rate": "1"}
    with blocking.Admin(bootstrap) as admin:

        def takes_rates(broker: str) -> bool:
            """A broker whose session at ZooKeeper is over fails until it has another."""
            try:
                admin.configs.alter(ResourceType.BROKER, broker, set=rates)
            except errors.KafkaError as error:
                if error.code is not errors.ErrorCode.UNKNOWN_SERVER_ERROR:
                    raise
                return False
            return True

        def is_throttled(broker: str) -> bool:
            described = admin.configs.describe(ResourceType.BROKER, broker)
            return rates.items() <= {name: each.value for name, each in described.items()}.items()

        throttle = {
            "leader.replication.throttled.replicas": "*",
            "follower.replication.throttled.replicas": "*",
        }
        admin.configs.alter(ResourceType.TOPIC, "moving", set=throttle)
        for broker in ("1", "2", "3"):
            wait_until(partial(takes_rates, broker), f"broker {broker} takes no rates", poll_s=0.5)
        for broker in ("1", "2", "3"):
            # Brokers read them when ZooKeeper tells them to, and those of the topic before.
            wait_until(partial(is_throttled, broker), f"broker {broker} does not know its rates")
        admin.partitions.reassign({names.TopicPartition("moving", 0): [2, 3]})
        assert [str(each) for each in admin.partitions.reassignments()] == ["moving-0"]


async def ask_for_deletion(connect: str) -> None:
    """As a controller that was killed at once would leave it."""
    session = await KazooSession.connect(ZooKeeperSettings(connect))
    await session.create(znodes.delete_topic_path("doomed"))
    await session.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImportedCluster]:
    root = tmp_path_factory.mktemp("zookeeper-cluster")
    ports = free_ports(6)
    with ApacheZooKeeper(root) as zookeeper, contextlib.ExitStack() as stack:
        brokers = [
            ZooKeeperKafka(
                root / f"broker-{id}", zookeeper.connect, broker_id=id, port=ports[id - 1], properties=THREE
            )
            for id in (1, 2, 3)
        ]
        for broker in brokers:
            stack.callback(broker.kill)
            broker.launch()
        for broker in brokers:
            broker.await_ready()
        bootstrap = ",".join(broker.bootstrap for broker in brokers)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        wait_until(lambda: len(admin.list_topics(timeout=30).brokers) == 3, "three brokers are not known")
        new = [
            NewTopic("orders", PARTITIONS, 3),
            NewTopic("moving", 1, replica_assignment=[[1, 2]]),
            NewTopic("doomed", 1, 1),
        ]
        for future in admin.create_topics(new).values():
            future.result()
        acknowledged: set[bytes] = set()

        def delivered(error: object, message: Any) -> None:
            if error is None:
                acknowledged.add(message.value())

        producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5})
        for number in range(200):
            producer.produce("moving", b"x" * 1000, b"%d" % number)
        for number in range(3000):
            producer.produce("orders", b"%d" % number, on_delivery=delivered)
        assert producer.flush(120) == 0
        prepare(bootstrap)
        for number in range(3000, 9000):
            producer.produce("orders", b"%d" % number, on_delivery=delivered)
            if number % 100 == 0:
                producer.poll(0)
        for broker in reversed(brokers):
            broker.kill()
        producer.purge()
        producer.flush(30)
        asyncio.run(ask_for_deletion(zookeeper.connect))
        controllers = ",".join(f"{id}@127.0.0.1:{ports[2 + id]}" for id in (1, 2, 3))
        ottla = CommandLine("127.0.0.1:1")
        # Each broker as if it were on a machine of its own.
        report = [
            ottla.ok("zookeeper", "import", str(broker.file), "--controllers", controllers, "--json").json
            for broker in brokers
        ]
        yield ImportedCluster(root, bootstrap, acknowledged, report)


def as_ottla(settings: Path) -> list[str]:
    return [sys.executable, "-m", "ottla", "start", str(settings), "--set", "http.listener="]


def as_apache_kafka(settings: Path) -> list[str]:
    return java.command("kafka.Kafka", [str(settings)], bundle=kafka_libs.BROKER)


@contextlib.contextmanager
def running(
    start: Callable[[Path], list[str]], imported: ImportedCluster, directory: Path
) -> Iterator[AdminClient]:
    """Run copies of all nodes until the end of the block."""
    processes = []
    try:
        for file in settings_files(imported.directory):
            own = directory / file.parent.name
            shutil.copytree(file.parent, own)
            (own / file.name).write_text(file.read_text().replace(str(file.parent), str(own)))
            with (directory / f"{own.name}.log").open("wb") as log:
                processes.append(
                    subprocess.Popen(
                        start(own / file.name),
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                        preexec_fn=java.die_with_parent(),
                    )
                )
        admin = AdminClient({"bootstrap.servers": imported.bootstrap})

        def ready() -> bool:
            logs = "\n".join(log.read_text()[-3000:] for log in sorted(directory.glob("*.log")))
            assert all(process.poll() is None for process in processes), logs
            try:
                found = admin.list_topics(timeout=10)
            except KafkaException:
                return False
            partitions = [each for topic in found.topics.values() for each in topic.partitions.values()]
            return len(found.brokers) == 3 and all(partition.leader >= 0 for partition in partitions)

        wait_until(ready, "the imported cluster is not ready", 240)
        yield admin
    finally:
        for process in processes:
            java.kill_process(process)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "start", [pytest.param(as_ottla, id="ottla"), pytest.param(as_apache_kafka, id="kafka")]
)
def test_a_cluster_goes_on_where_it_was_killed(
    cluster: ImportedCluster, start: Callable[[Path], list[str]], tmp_path: Path
) -> None:
    with running(start, cluster, tmp_path) as admin:
        topics = admin.list_topics(timeout=60).topics
        assert {name for name in topics if not name.startswith("__")} == {"orders", "moving"}
        assert len(cluster.acknowledged) >= 3000
        found = read_all(
            cluster.bootstrap, "orders", PARTITIONS, lambda found: cluster.acknowledged <= set(found)
        )
        assert cluster.acknowledged <= set(found), "an acknowledged record is lost"
        assert len(found) == len(set(found)), "a record is there twice"
        assert len(read_all(cluster.bootstrap, "moving", 1, lambda found: len(found) >= 200)) == 200
        let_it_complete(cluster.bootstrap)
        wait_until(
            lambda: (
                sorted(admin.list_topics("moving", timeout=60).topics["moving"].partitions[0].replicas)
                == [2, 3]
            ),
            "the reassignment does not complete",
        )
        assert len(read_all(cluster.bootstrap, "moving", 1, lambda found: len(found) >= 200)) == 200


def let_it_complete(bootstrap: str) -> None:
    with blocking.Admin(bootstrap) as admin:
        for broker in ("1", "2", "3"):
            names = ["leader.replication.throttled.rate", "follower.replication.throttled.rate"]
            admin.configs.alter(ResourceType.BROKER, broker, delete=names)


def read_all(
    bootstrap: str, topic: str, partitions: int, is_complete: Callable[[list[bytes]], bool]
) -> list[bytes]:
    """Read to the end, and on until all is there: a leader that starts together with its followers shows the
    last records when these have fetched.
    """
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    found: list[bytes] = []
    ends: set[int] = set()
    deadline = time.monotonic() + 120
    while True:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            found.append(message.value())
            continue
        if message is not None and message.error().code() == KafkaError._PARTITION_EOF:
            ends.add(message.partition())
        if time.monotonic() > deadline or (len(ends) == partitions and is_complete(found)):
            break
    consumer.close()
    assert len(ends) == partitions, f"{topic} cannot be read"
    return found


@pytest.mark.exhaustive
def test_each_machine_writes_the_same_metadata(cluster: ImportedCluster) -> None:
    snapshots = {
        path.read_bytes()
        for path in cluster.directory.glob("broker-*/data/__cluster_metadata-0/*.checkpoint")
    }
    assert len(snapshots) == 1
    assert len({report["metadata_digest"] for report in cluster.report}) == 1
    for report in cluster.report:
        assert report["counts"]["reassignments"] == 1
        assert report["left_behind"] == ["topics in deletion: doomed; brokers put their logs aside as -stray"]
        assert len(report["notes"]) == 2, "the other controllers, and a feature"
