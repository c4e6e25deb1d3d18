"""Replicas of several brokers in virtual time: who is in sync, who takes over, where replicas lie."""

from __future__ import annotations

import errno

import pytest
from tests.support.loops import simulated
from tests.support.sim_nodes import CLUSTER_ID, SimNodes

from ottla.metadata.log.bootstrap_metadata import format_directory
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition
from ottla.records.builder import build_batch
from ottla.replication.partition import Partition
from ottla.replication.partition_fetch_state import PartitionFetchState
from ottla.replication.replica_fetcher import ReplicaFetcher
from ottla.runtime.disk import remove_tree
from ottla.runtime.random import SeededRandom
from ottla.sim.disk_faults import Op

ORDERS = TopicPartition("orders", 0)
ROLES = {1: "broker", 2: "broker", 3: "broker", 4: "controller"}


def cluster(seed: int, **settings: str) -> SimNodes:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return SimNodes(ROLES, seed=seed, settings={"min.insync.replicas": "2", **named})


def replica(nodes: SimNodes, broker: int) -> Partition:
    return nodes.broker(broker).replicas.partition(ORDERS)


def leader(nodes: SimNodes) -> int:
    (found,) = {nodes.partition("orders", by=id).leader for id in nodes.nodes if id in (1, 2, 3)} or {-1}
    return found


def isr(nodes: SimNodes, by: int = 4) -> set[int]:
    return set(nodes.partition("orders", by=by).isr)


def append(nodes: SimNodes, broker: int) -> int:
    """One record to the leader; the offset that acks=all waits for."""
    now_ms = nodes.nodes[broker].shared.runtime.clock.wall_ms()
    batch = build_batch([(now_ms, None, b"record")])
    return replica(nodes, broker).append_records_to_leader(batch, now_ms=now_ms).last_offset + 1


async def made(nodes: SimNodes) -> int:
    """Boot, and create the topic; its leader."""
    nodes.boot()
    await nodes.ready()
    await nodes.create("orders", 1)
    await nodes.until(lambda: all("orders" in nodes.topics(id) for id in ROLES))
    brokers = [nodes.broker(id) for id in nodes.nodes if id != 4]
    await nodes.until(lambda: all(len(broker.replicas) for broker in brokers))  # their logs are created
    return nodes.partition("orders", by=4).leader


def agree(nodes: SimNodes) -> bool:
    """Whether all replicas have the same end, and know that everything is committed."""
    logs = [replica(nodes, id).log for id in nodes.nodes if id != 4]
    ends = {log.log_end_offset for log in logs}
    return len(ends) == 1 and {log.high_watermark for log in logs} == ends


@pytest.mark.parametrize("seed", range(3))
def test_a_follower_that_is_cut_off_leaves_the_in_sync_set_and_comes_back(seed: int) -> None:
    nodes = cluster(seed, replica_lag_time_max_ms="5000")

    async def life() -> None:
        first = await made(nodes)
        append(nodes, first)
        await nodes.until(lambda: agree(nodes))
        lost = next(id for id in (1, 2, 3) if id != first)
        nodes.world.fabric.cut(f"node{first}", f"node{lost}")
        nodes.world.fabric.cut(f"node{lost}", f"node{first}")
        end = append(nodes, first)
        took = await nodes.until(lambda: isr(nodes) == {1, 2, 3} - {lost})
        assert 4 < took < 10
        await nodes.until(lambda: replica(nodes, first).log.high_watermark == end)
        nodes.world.fabric.heal()
        await nodes.until(lambda: isr(nodes) == {1, 2, 3} and agree(nodes))

    nodes.run(life())


@pytest.mark.parametrize("seed", range(3))
def test_records_are_committed_again_soon_after_the_leader_has_died(seed: int) -> None:
    nodes = cluster(seed)

    async def life() -> None:
        first = await made(nodes)
        append(nodes, first)
        await nodes.until(lambda: agree(nodes))
        nodes.kill(first)
        others = [id for id in (1, 2, 3) if id != first]
        took = await nodes.until(lambda: any(replica(nodes, id).is_leader for id in others))
        second = next(id for id in others if replica(nodes, id).is_leader)
        end = append(nodes, second)
        took += await nodes.until(lambda: replica(nodes, second).log.high_watermark == end)
        assert took < 1.0
        nodes.boot(first)
        await nodes.ready()
        await nodes.until(lambda: isr(nodes) == {1, 2, 3} and agree(nodes))

    nodes.run(life())


def test_the_controller_learns_in_which_directory_each_replica_lies_and_where_it_moves() -> None:
    nodes = cluster(1, log_dirs="/data,/more")

    def known(id: int) -> bool:
        log = replica(nodes, id).log
        return nodes.partition("orders", by=4).directory(id) == log.directory.directory_id

    async def life() -> None:
        await made(nodes)
        await nodes.until(lambda: all(known(id) for id in (1, 2, 3)))
        moved = replica(nodes, 1)
        target = "/more" if moved.log.directory.path == "/data" else "/data"
        nodes.broker(1).alter_log_dirs.begin(moved, target)
        await nodes.until(lambda: moved.log.directory.path == target and known(1))

    nodes.run(life())


@simulated(lambda: cluster(1), booted=False)
async def test_a_broker_whose_disk_was_replaced_copies_what_it_is_to_have_and_leads_again(
    nodes: SimNodes,
) -> None:
    first = await made(nodes)
    end = append(nodes, first)
    await nodes.until(lambda: agree(nodes))
    nodes.kill(first)
    await nodes.until(lambda: nodes.partition("orders", by=4).leader not in (first, -1))
    disk = nodes.machines[first].disk
    remove_tree(disk, "/data")
    format_directory(disk, SeededRandom(7), disk.clock, "/data", cluster_id=CLUSTER_ID, node_id=first)
    nodes.boot(first)
    await nodes.ready(first)
    await nodes.until(lambda: isr(nodes) == {1, 2, 3} and agree(nodes))
    assert replica(nodes, first).log.log_end_offset == end
    for other in {1, 2, 3} - {first}:
        nodes.kill(other)
    await nodes.until(lambda: nodes.partition("orders", by=4).leader == first)


@simulated(lambda: cluster(1, log_dirs="/data,/more"), booted=False)
async def test_when_a_directory_fails_others_lead_what_was_in_it(nodes: SimNodes) -> None:
    first = await made(nodes)
    append(nodes, first)
    await nodes.until(lambda: agree(nodes))
    directory = replica(nodes, first).log.directory
    known = nodes.partition("orders", by=4)
    assert known.directory(first) == directory.directory_id
    directory.fail("its disk is gone")
    await nodes.until(lambda: nodes.partition("orders", by=4).leader not in (first, -1))
    assert first not in isr(nodes)
    assert not nodes.is_fenced(first, 4), "the broker goes on with what it has left"


def test_a_replica_that_had_no_room_is_made_and_catches_up_when_there_is_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = cluster(1)

    def no_room(tp: TopicPartition, *args: object, **kwargs: object) -> None:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"there is no room for {tp}")

    async def life() -> None:
        nodes.boot()
        await nodes.ready()
        with monkeypatch.context() as full:
            full.setattr(nodes.broker(2).logs, "get_or_create_log", no_room)
            await nodes.create("orders", 1)
            await nodes.until(lambda: ORDERS in nodes.broker(2).replicas.offline)
        await nodes.until(lambda: not nodes.broker(2).replicas.offline)
        append(nodes, leader(nodes))
        await nodes.until(lambda: isr(nodes) == {1, 2, 3} and agree(nodes))

    nodes.run(life())


def test_a_leader_without_room_lets_others_lead_and_is_in_sync_again_when_there_is_some() -> None:
    nodes = cluster(1)

    def try_to_append(broker: int) -> ErrorCode:
        try:
            append(nodes, broker)
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE

    async def life() -> None:
        first = await made(nodes)
        append(nodes, first)
        await nodes.until(lambda: agree(nodes))
        full = nodes.machines[first].disk.fail(
            errno.ENOSPC, prefix="/data/orders-0", ops=[Op.WRITE], times=None
        )
        assert try_to_append(first) is ErrorCode.KAFKA_STORAGE_ERROR
        took = await nodes.until(lambda: nodes.partition("orders", by=4).leader not in (first, -1))
        assert 4 < took < 10
        assert first not in isr(nodes)
        second = nodes.partition("orders", by=4).leader
        await nodes.until(lambda: replica(nodes, second).is_leader)
        end = append(nodes, second)
        await nodes.until(lambda: replica(nodes, second).log.high_watermark == end)
        assert replica(nodes, first).log.log_end_offset < end
        assert nodes.is_fenced(first, 4)
        nodes.machines[first].disk.heal(full)
        await nodes.until(lambda: isr(nodes) == {1, 2, 3} and agree(nodes))

    nodes.run(life())


@simulated(lambda: cluster(1), booted=False)
async def test_a_follower_without_room_holds_up_writes_for_a_moment_only(nodes: SimNodes) -> None:
    first = await made(nodes)
    append(nodes, first)
    await nodes.until(lambda: agree(nodes))
    other = next(id for id in (1, 2, 3) if id != first)
    disk = nodes.machines[other].disk
    full = disk.fail(errno.ENOSPC, prefix="/data/orders-0", ops=[Op.WRITE], times=None)
    end = append(nodes, first)
    took = await nodes.until(lambda: replica(nodes, first).log.high_watermark == end)
    assert 4 < took < 10
    end = append(nodes, first)
    took = await nodes.until(lambda: replica(nodes, first).log.high_watermark == end)
    assert took < 1
    disk.heal(full)
    await nodes.until(lambda: isr(nodes) == {1, 2, 3} and agree(nodes))


@simulated(lambda: cluster(1, min_insync_replicas="1"), booted=False)
async def test_a_leader_without_room_stays_where_nobody_else_is_in_sync(nodes: SimNodes) -> None:
    first = await made(nodes)
    for other in {1, 2, 3} - {first}:
        nodes.kill(other)
    await nodes.until(lambda: isr(nodes) == {first} and replica(nodes, first).isr == {first})
    nodes.machines[first].disk.fail(errno.ENOSPC, prefix="/data/orders-0", ops=[Op.WRITE], times=None)
    with pytest.raises(KafkaError, match="no room"):
        append(nodes, first)
    began = nodes.world.loop.time()
    await nodes.until(lambda: nodes.world.loop.time() > began + 15)
    assert nodes.partition("orders", by=4).leader == first
    assert not nodes.is_fenced(first, 4)


def test_a_partition_that_gets_no_fetcher_leaves_those_of_others_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = cluster(11)
    add = ReplicaFetcher.add

    def fail_for_the_first(fetcher: ReplicaFetcher, state: PartitionFetchState) -> None:
        if state.partition.topic_partition == TopicPartition("wide", 0):
            raise RuntimeError("a defect")
        add(fetcher, state)

    monkeypatch.setattr(ReplicaFetcher, "add", fail_for_the_first)

    def fetched(broker: int) -> set[int]:
        fetchers = nodes.broker(broker).replication.fetchers
        states = [] if fetchers is None else list(fetchers.states())
        return {state.partition.topic_partition.partition for state in states}

    def followed(broker: int) -> set[int]:
        partitions = nodes.nodes[4].image.topics.by_name["wide"].partitions
        return {index for index, registration in partitions.items() if registration.leader != broker}

    async def life() -> None:
        nodes.boot()
        await nodes.ready()
        await nodes.create("wide", 1, partitions=9)
        await nodes.until(lambda: all(len(nodes.broker(id).replicas) == 9 for id in (1, 2, 3)))
        await nodes.until(lambda: all(fetched(id) == followed(id) - {0} for id in (1, 2, 3)))
        assert any(0 in followed(id) for id in (1, 2, 3))

    nodes.run(life())
