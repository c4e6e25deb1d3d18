"""The metrics of nodes in virtual time: replication as each broker sees it, a walk while things change."""

from __future__ import annotations

import asyncio

from tests.support.loops import simulated
from tests.support.sim_nodes import SimNodes

from ottla.node.node import Node
from ottla.protocol.names import TopicPartition
from ottla.records.builder import build_batch
from ottla.runtime.metrics_text import parse_metrics
from ottla.runtime.turns import Turns

ROLES = {1: "broker", 2: "broker", 3: "broker", 4: "controller"}
REPLICAS = "kafka_server_replicamanager_"


async def metrics(node: Node) -> dict[str, float]:
    """The samples of a node by name, those with labels summed up."""
    found: dict[str, float] = {}
    text = await node.shared.metrics.render(Turns(node.shared.runtime.clock))
    for sample in parse_metrics(text.decode()):
        found[sample.name] = found.get(sample.name, 0) + sample.value
    assert found["ottla_metrics_collector_errors_total"] == 0
    return found


@simulated(lambda: SimNodes(ROLES, settings={"replica.lag.time.max.ms": "5000"}), booted=False)
async def test_a_follower_that_is_cut_off_is_seen_by_its_leader(nodes: SimNodes) -> None:
    nodes.boot()
    # Also before anything is there a node has metrics.
    await nodes.until(lambda: 4 in nodes.nodes)
    assert "process_open_fds" in await metrics(nodes.nodes[4])
    await nodes.ready()
    await nodes.create("orders", 1)
    brokers = {id: node for id, node in nodes.nodes.items() if id != 4}
    await nodes.until(lambda: all(len(nodes.broker(id).replicas) for id in brokers))
    leader = nodes.partition("orders", by=4).leader
    follower = next(id for id in brokers if id != leader)
    node = brokers[leader]
    partition = nodes.broker(leader).replicas.partition(TopicPartition("orders", 0))

    def append() -> None:
        now_ms = node.shared.runtime.clock.wall_ms()
        batch = build_batch([(now_ms, None, b"record")])
        partition.append_records_to_leader(batch, now_ms=now_ms)

    append()
    await nodes.until(lambda: partition.log.high_watermark == 1)
    seen = await metrics(node)
    assert seen[f"{REPLICAS}leadercount"] == seen[f"{REPLICAS}partitioncount"] == 1
    assert seen[f"{REPLICAS}underreplicatedpartitions"] == 0
    assert seen["kafka_server_brokertopicmetrics_replicationbytesout_total"] > 0
    followed = await metrics(brokers[follower])
    assert followed[f"{REPLICAS}leadercount"] == 0
    assert followed["ottla_replica_fetcher_partitions"] == 1
    assert followed["kafka_server_brokertopicmetrics_replicationbytesin_total"] > 0
    assert followed["kafka_server_brokertopicmetrics_messagesin_total"] == 0
    controller = await metrics(nodes.nodes[4])
    assert controller["kafka_controller_kafkacontroller_activecontrollercount"] == 1
    assert controller["kafka_controller_kafkacontroller_activebrokercount"] == 3
    assert controller["kafka_controller_kafkacontroller_globalpartitioncount"] == 1

    nodes.kill(follower)
    append()
    await nodes.until(lambda: follower not in partition.isr)
    seen = await metrics(node)
    assert seen[f"{REPLICAS}underreplicatedpartitions"] == 1
    assert seen[f"{REPLICAS}isrshrinks_total"] == 1
    assert seen["ottla_follower_lag_records"] >= 1
    nodes.boot(follower)
    await nodes.until(lambda: follower in partition.isr)
    seen = await metrics(node)
    assert seen[f"{REPLICAS}underreplicatedpartitions"] == 0
    assert seen[f"{REPLICAS}isrexpands_total"] == 1


@simulated(lambda: SimNodes(ROLES, settings={"log.dirs": "/data/a,/data/b"}))
async def test_a_directory_that_fails_is_seen_with_its_replicas(nodes: SimNodes) -> None:
    await nodes.create("orders", 1, partitions=4, replicas=3)
    node, broker = nodes.nodes[1], nodes.broker(1)
    await nodes.until(lambda: len(broker.replicas) == 4)
    directory = broker.logs.directories[1]
    lost = sum(partition.log.directory is directory for partition in broker.replicas)
    assert lost
    directory.fail("on purpose")
    await nodes.until(lambda: len(broker.replicas) == 4 - lost)
    seen = await metrics(node)
    assert seen["kafka_log_logmanager_offlinelogdirectorycount"] == 1
    assert seen["kafka_log_logmanager_logdirectoryoffline"] == 1
    assert seen[f"{REPLICAS}offlinereplicacount"] == lost
    assert seen[f"{REPLICAS}partitioncount"] == 4 - lost


@simulated(lambda: SimNodes({1: "broker,controller"}))
async def test_a_scrape_gives_way_and_does_not_mind_what_changes_meanwhile(nodes: SimNodes) -> None:
    await nodes.create("many", 1, partitions=200, replicas=1)
    node = nodes.nodes[1]
    turns = Turns(node.shared.runtime.clock)
    scrape = asyncio.ensure_future(node.shared.metrics.render(turns))
    await nodes.create("more", 1, partitions=50, replicas=1)
    text = (await scrape).decode()
    assert turns.taken >= 200 // 16
    assert 'kafka_log_log_size{topic="many",partition="199"}' in text
    assert (await metrics(node))[f"{REPLICAS}partitioncount"] == 250
