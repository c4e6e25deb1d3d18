"""A broker reports a failed directory to the controller, or ends: others have to take over."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.loops import simulated
from tests.support.sim_nodes import SimNodes

from ottla.replication.partition import Partition
from ottla.replication.replica_manager import ReplicaManager

pytestmark = pytest.mark.slow

APART = {1: "controller", 2: "broker"}
TWO = {"log.dirs": "/data/a,/data/b", "log.dir.failure.timeout.ms": "20000"}


@pytest.mark.parametrize("has_controller", [True, False])
@simulated(lambda: SimNodes(APART, settings=TWO))
async def test_a_broker_ends_if_it_cannot_report_a_failed_directory_in_time(
    nodes: SimNodes, has_controller: bool
) -> None:
    node, broker = nodes.nodes[2], nodes.broker(2)
    await nodes.until(lambda: bool(node.image.cluster.brokers))
    if not has_controller:
        nodes.kill(1)
    failed = broker.logs.directories[1]
    began = nodes.world.loop.time()
    failed.fail("on purpose")
    if has_controller:
        await nodes.until(lambda: len(node.image.cluster.brokers[2].directories) == 1)
        await asyncio.sleep(30)
        assert node.shared.state.failure is None
    else:
        await nodes.until(lambda: node.shared.state.failure is not None)
        assert 20 <= nodes.world.loop.time() - began < 30
        assert "unable to communicate log dir failures" in str(node.shared.state.failure)


def test_the_partitions_of_a_failed_directory_are_given_up_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = SimNodes({1: "broker,controller"}, settings=TWO)
    turns = [0]
    resign = Partition.resign

    def resigned(partition: Partition) -> None:
        if turns[-1] == 0:
            asyncio.get_running_loop().call_soon(turns.append, 0)
        turns[-1] += 1
        resign(partition)

    async def life() -> None:
        nodes.boot()
        await nodes.ready()
        await nodes.create("many", 1, partitions=2_200, replicas=1)
        node, broker = nodes.nodes[1], nodes.broker(1)
        failed = broker.logs.directories[1]
        count = sum(partition.log.directory is failed for partition in broker.replicas)
        assert count > 1_000
        monkeypatch.setattr(Partition, "resign", resigned)
        failed.fail("on purpose")
        await nodes.until(lambda: len(broker.replicas.offline) == count)
        assert node.shared.state.failure is None

    nodes.run(life())
    assert sum(turns) > 1_000
    assert max(turns) <= 1_024


def test_a_node_that_cannot_give_up_the_partitions_of_a_failed_directory_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = SimNodes({1: "broker,controller"}, settings=TWO)

    def fail(*_: object) -> None:
        raise RuntimeError("a defect")

    async def life() -> None:
        nodes.boot()
        await nodes.ready()
        await nodes.create("orders", 1, partitions=4, replicas=1)
        node, broker = nodes.nodes[1], nodes.broker(1)
        monkeypatch.setattr(ReplicaManager, "handle_log_dir_failure", fail)
        broker.logs.directories[1].fail("on purpose")
        await nodes.until(lambda: node.shared.state.failure is not None)
        assert "could not be handled: a defect" in str(node.shared.state.failure)

    nodes.run(life())
