"""Replicas of a topic with remote storage: they begin behind what is there, and can lead."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from ottla import blocking
from ottla.client.admin.offsets import OffsetSpec
from ottla.protocol.names import TopicPartition as OttlaTopicPartition
from ottla.testing.local_cluster import ClusterNode, LocalCluster
from tests.support.tiered import (
    History,
    create_tiered_topic,
    found_offset,
    offset_of,
    tiered_settings,
    wait_until_tiered,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow
MIB = 1024 * 1024


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    settings = tiered_settings(tmp_path / "store")
    settings["rlmm.config.remote.log.metadata.topic.replication.factor"] = "3"
    with LocalCluster(nodes=3, settings=settings) as running:
        yield running


def partition_dir(node: ClusterNode, name: str) -> Path:
    found = list(Path(node.data_dir).rglob(name))
    assert len(found) == 1, found
    return found[0]


def first_segment(node: ClusterNode, name: str) -> int:
    return min(int(each.name.removesuffix(".log")) for each in partition_dir(node, name).glob("*.log"))


def read_all(bootstrap: str, topic: str, count: int) -> list[tuple[int, bytes | None, bytes | None]]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[tuple[int, bytes | None, bytes | None]] = []
    try:
        while len(found) < count:
            message = consumer.poll(60)
            assert message is not None, f"nothing more after {len(found)} records"
            if message.error() is None:
                found.append((message.offset(), message.key(), message.value()))
            else:
                assert message.error().retriable(), message.error()
    finally:
        consumer.close()
    return found


@pytest.mark.exhaustive
def test_a_replica_that_lost_its_log_begins_behind_remote_storage_and_can_lead(cluster: LocalCluster) -> None:
    bootstrap = cluster.bootstrap_servers
    create_tiered_topic(bootstrap, "orders", replicas=2, min_insync_replicas=1)
    history = History(bootstrap, "orders")
    writer = history.producer(enable_idempotence=True)
    history.send(writer, 100)
    history.write_plain(4 * MIB)
    wait_until_tiered(bootstrap, "orders")
    partition = cluster.partition("orders")
    leader = partition.leader_id
    (follower,) = (each for each in partition.replica_nodes if each != leader)
    cluster.kill(follower)
    shutil.rmtree(partition_dir(cluster.node(follower), "orders-0"))
    cluster.start(follower)
    wait_until(
        lambda: set(cluster.partition("orders").isr_nodes) == {leader, follower}, "the replica is not in sync"
    )
    local = offset_of(bootstrap, "orders", OffsetSpec.EARLIEST_LOCAL)
    assert 0 < first_segment(cluster.node(follower), "orders-0") <= local

    cluster.kill(leader)
    wait_until(lambda: cluster.partition("orders").leader_id == follower, "the follower does not lead")
    # It knows the producer, the log start and the epochs of what it has never fetched.
    history.send(writer, 100)
    assert offset_of(bootstrap, "orders", OffsetSpec.EARLIEST) == 0
    wanted = [(offset, key, value) for offset, (key, value, _) in history.all.items()]
    assert read_all(bootstrap, "orders", len(wanted)) == wanted
    middle = history.all[1000]
    assert found_offset(bootstrap, "orders", middle[2]).offset == 1000

    cluster.start(leader)
    wait_until(
        lambda: set(cluster.partition("orders").isr_nodes) == {leader, follower}, "the old leader is not back"
    )
    history.write_plain(2 * MIB)
    wait_until_tiered(bootstrap, "orders")
    wanted = [(offset, key, value) for offset, (key, value, _) in history.all.items()]
    assert read_all(bootstrap, "orders", len(wanted)) == wanted

    # A broker that never had the partition takes it over alone.
    (third,) = (each.id for each in cluster.nodes if each.id not in (leader, follower))
    with blocking.Admin(bootstrap) as admin:
        moved = OttlaTopicPartition("orders", 0)
        assert admin.partitions.reassign({moved: [third]}) == {moved: None}
    wait_until(
        lambda: (
            cluster.partition("orders").leader_id == third
            and list(cluster.partition("orders").replica_nodes) == [third]
        ),
        "the partition does not move",
    )
    local = offset_of(bootstrap, "orders", OffsetSpec.EARLIEST_LOCAL)
    assert 0 < first_segment(cluster.node(third), "orders-0") <= local
    history.send(writer, 10)
    wanted = [(offset, key, value) for offset, (key, value, _) in history.all.items()]
    assert read_all(bootstrap, "orders", len(wanted)) == wanted
