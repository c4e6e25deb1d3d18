"""Where replicas are, and from which of them one reads: reassignment, throttles, racks, data directories.

Four brokers: three in racks of their own with two data directories each, and one to move to.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Place

from ottla import blocking
from ottla.client.admin.configs import ResourceType
from ottla.protocol.messages.fetch import (
    FetchResponse,
    PartitionData,
)
from ottla.protocol.names import TopicPartition
from ottla.records.batch import iter_batches
from ottla.testing.local_cluster import ClusterNode, LocalCluster, ProcessState, send_request
from tests.cluster import plain
from tests.cluster.conftest import SETTINGS
from tests.support.acknowledged_workload import Load, read_all
from tests.support.waiting import wait_until
from tests.support.wire import fetch_request

pytestmark = pytest.mark.slow

CHUNK_BYTES = 65_536
RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("placement") / "kept"
    settings = {
        **SETTINGS,
        "replica.selector.class": RACK_AWARE,
        "replica.fetch.max.bytes": CHUNK_BYTES,
        "replica.fetch.response.max.bytes": CHUNK_BYTES,
    }
    with LocalCluster(nodes=4, settings=settings, data_dir=str(directory)) as cluster:
        for node in cluster.nodes:
            cluster.stop(node)
            properties = Path(node.data_dir).parent / "server.properties"
            lines = [line for line in properties.read_text().splitlines() if not line.startswith("log.dirs")]
            lines += [f"log.dirs={node.data_dir},{node.data_dir}-2", f"broker.rack=rack-{node.id}"]
            properties.write_text("\n".join(lines) + "\n")
            cluster.start(node)
        cluster.wait_ready()
        yield cluster


@pytest.fixture
def cluster(brokers: LocalCluster) -> Iterator[LocalCluster]:
    yield brokers
    for node in brokers.nodes:
        if node.state is ProcessState.DOWN:
            brokers.start(node)
    brokers.wait_ready()
    brokers.wait_in_sync()


def new_topic(cluster: LocalCluster, *replicas: int, **configs: str) -> str:
    topic = f"t-{uuid4().hex[:12]}"
    plain.create(cluster, topic, [list(replicas)], **configs)
    return topic


def where(admin: blocking.Admin, broker: int, topic: str) -> dict[str, int]:
    """The directories in which a broker has the topic's partition, with its size there."""
    return {
        directory.path: replica.size_bytes
        for directory in admin.log_dirs.describe(brokers=[broker], topics=[topic])
        for replica in directory.replicas.values()
    }


def fetch(node: ClusterNode, topic: str, offset: int, *, rack: str = "") -> PartitionData:
    request = fetch_request(topic, offset, max_wait_ms=500, min_bytes=1, rack_id=rack)
    answer = send_request(node.port, request, 12, FetchResponse, timeout_s=30)
    return answer.responses[0].partitions[0]


# Racks


@pytest.mark.exhaustive
def test_a_consumer_that_names_its_rack_is_sent_to_the_replica_there(cluster: LocalCluster) -> None:
    topic = new_topic(cluster, 1, 2, 3)
    leader, near = cluster.node(1), cluster.node(2)
    assert plain.produce(leader, topic, b"near")[1] == 0
    wait_until(
        lambda: fetch(leader, topic, 0, rack="rack-2").preferred_read_replica == 2,
        "none is sent to rack 2",
    )
    answer = fetch(leader, topic, 0, rack="rack-2")
    assert (answer.error_code, answer.records or b"") == (0, b"")
    for rack in ("rack-1", "rack-9", ""):
        answer = fetch(leader, topic, 0, rack=rack)
        assert answer.preferred_read_replica == -1
        assert answer.records
    # A replica learns of the high watermark as soon as it moves, so those who read from it wait no longer.
    wait_until(lambda: bool(fetch(near, topic, 0, rack="rack-2").records), "the near replica has no records")
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "none",
            "client.rack": "rack-3",
            "log_level": 0,
        }
    )
    consumer.assign([Place(topic, 0, 0)])
    message = consumer.poll(60)
    assert message is not None
    assert message.value() == b"near"
    consumer.close()


def test_nobody_is_sent_to_a_replica_that_is_not_there(cluster: LocalCluster) -> None:
    topic = new_topic(cluster, 1, 2, 3)
    assert plain.produce(cluster.node(1), topic, b"kept")[1] == 0
    cluster.kill(2)
    wait_until(
        lambda: fetch(cluster.node(1), topic, 0, rack="rack-2").preferred_read_replica == -1,
        "a consumer is sent to a broker that is dead",
    )
    assert fetch(cluster.node(1), topic, 0, rack="rack-2").records


# Reassignment


def test_a_partition_moves_to_other_brokers_under_load(cluster: LocalCluster) -> None:
    topic = new_topic(cluster, 1, 2)
    place = TopicPartition(topic, 0)
    with (
        blocking.Admin(cluster.bootstrap_servers) as admin,
        Load(cluster.bootstrap_servers, topic, 1, per_second=2000) as load,
    ):
        load.wait_for_more(500)
        assert admin.partitions.reassign({place: [3, 4]}) == {place: None}
        wait_until(lambda: not admin.partitions.reassignments([place]), "the move does not end")
        load.wait_for_more(500)
        load.finish()
        wait_until(
            lambda: sorted(cluster.partition(topic).replica_nodes) == [3, 4], "the brokers do not know of it"
        )
        assert sorted(cluster.partition(topic).isr_nodes) == [3, 4]
        wait_until(lambda: not where(admin, 1, topic) and not where(admin, 2, topic), "copies are left")
    load.check(cluster.bootstrap_servers)


@pytest.mark.exhaustive
def test_a_throttled_replica_catches_up_slowly_until_it_may_hurry(cluster: LocalCluster) -> None:
    throttled = {"leader_replication_throttled_replicas": "*", "follower_replication_throttled_replicas": "*"}
    topic = new_topic(cluster, 1, **throttled)
    place = TopicPartition(topic, 0)
    for _ in range(40):
        assert plain.produce(cluster.node(1), topic, bytes(30_000))[0] == 0
    rates = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
    with blocking.Admin(cluster.bootstrap_servers) as admin:
        admin.configs.alter(ResourceType.BROKER, "", set=dict.fromkeys(rates, "1"))
        assert admin.partitions.reassign({place: [1, 3]}) == {place: None}
        wait_until(lambda: sum(where(admin, 3, topic).values()) > 0, "nothing arrives at all")
        assert sum(where(admin, 3, topic).values()) < 600_000
        assert cluster.partition(topic).isr_nodes == [1]
        admin.configs.alter(ResourceType.BROKER, "", delete=rates)
        wait_until(lambda: not admin.partitions.reassignments([place]), "it does not hurry")
    wait_until(lambda: sorted(cluster.partition(topic).isr_nodes) == [1, 3], "the brokers do not know of it")


# Data directories


@pytest.mark.exhaustive
def test_a_replica_moves_to_another_directory_and_survives_the_restart(cluster: LocalCluster) -> None:
    topic = new_topic(cluster, 2, 3)
    node = cluster.node(3)
    with blocking.Admin(cluster.bootstrap_servers) as admin:
        for number in range(10):
            assert plain.produce(cluster.node(2), topic, b"%d" % number)[1] == number
        (before,) = where(admin, 3, topic)
        other = f"{node.data_dir}-2" if before == node.data_dir else node.data_dir
        admin.log_dirs.move(3, {TopicPartition(topic, 0): other})
        wait_until(lambda: list(where(admin, 3, topic)) == [other], "the replica does not move")
        cluster.restart(3)
        cluster.wait_ready()
        cluster.wait_in_sync()
        wait_until(lambda: list(where(admin, 3, topic)) == [other], "the replica is elsewhere")
    cluster.kill(2)
    wait_until(lambda: cluster.leader(topic) == 3, "the moved replica does not lead")
    assert len(read_all(cluster.bootstrap_servers, topic, 0)) == 10
    assert sum(header.count for _, header in iter_batches(fetch(node, topic, 0).records or b"")) == 10
