"""Many new partitions at once: they are created in turns, and a node that ends meanwhile has them later."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.sim_nodes import SimNodes

from ottla.client.admin import Admin
from ottla.protocol.names import TopicPartition
from ottla.replication.replica_manager import ReplicaManager
from ottla.runtime.runtime import Runtime

pytestmark = pytest.mark.slow

MANY = 100
AT_ONCE = 16


def alone() -> SimNodes:
    return SimNodes({1: "broker,controller"})


def hosted(nodes: SimNodes) -> int:
    """How many partitions the broker leads."""
    partitions = nodes.broker(1).replicas
    return sum(partition.is_leader and partition.topic_partition.topic == "many" for partition in partitions)


def on_new_partition(monkeypatch: pytest.MonkeyPatch, made: Callable[[], None]) -> None:
    apply = ReplicaManager._apply_registration

    def applied(self: ReplicaManager, tp: TopicPartition, *args: Any, **options: Any) -> None:
        if tp.topic == "many" and tp not in self._partitions:
            made()
        apply(self, tp, *args, **options)

    monkeypatch.setattr(ReplicaManager, "_apply_registration", applied)


def test_partitions_are_created_a_few_at_a_time_and_the_answer_comes_once_all_exist(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = alone()
    turns = [0]

    def made() -> None:
        if turns[-1] == 0:
            asyncio.get_running_loop().call_soon(turns.append, 0)
        turns[-1] += 1

    async def life() -> None:
        nodes.boot()
        await nodes.ready()
        on_new_partition(monkeypatch, made)
        await nodes.create("many", 1, partitions=MANY, replicas=1)
        assert hosted(nodes) == MANY

    nodes.run(life())
    assert sum(turns) == MANY
    assert max(turns) <= AT_ONCE


@pytest.mark.parametrize("power_loss", [False, True])
def test_a_node_that_dies_while_it_creates_partitions_has_all_of_them_afterwards(
    monkeypatch: pytest.MonkeyPatch, power_loss: bool
) -> None:
    nodes = alone()
    made = 0

    def one_more() -> None:
        nonlocal made
        made += 1
        if made == MANY // 2:
            nodes.machines[1].pause()

    async def ask(runtime: Runtime) -> None:
        with contextlib.suppress(Exception):
            async with Admin("node1:9092", runtime=runtime) as admin:
                await admin.topics.create("many", partitions=MANY, replication_factor=1)

    async def life() -> None:
        nodes.boot()
        await nodes.ready()
        on_new_partition(monkeypatch, one_more)
        asking = asyncio.create_task(nodes.as_client(ask))
        await nodes.until(lambda: made >= MANY // 2)
        assert made < MANY
        nodes.kill(1, silently=power_loss)
        nodes.boot()
        await nodes.ready()
        assert hosted(nodes) == MANY
        await asking

    nodes.run(life())


def test_a_node_that_is_stopped_meanwhile_creates_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = alone()
    made = []

    def stop_following() -> None:
        if len(made) == AT_ONCE:
            asyncio.get_running_loop().create_task(nodes.broker(1)._publisher.stop())
        made.append(None)

    async def life() -> None:
        nodes.boot()
        await nodes.ready()
        on_new_partition(monkeypatch, stop_following)
        await nodes.create("many", 1, partitions=MANY, replicas=1)
        assert AT_ONCE < len(made) <= 2 * AT_ONCE
        await nodes.stop(1)
        nodes.boot()
        await nodes.ready()
        assert hosted(nodes) == MANY

    nodes.run(life())
