"""`metadata.max.idle.interval.ms`: the metadata log moves while nothing happens."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.sim_nodes import SimNodes

from ottla.client.admin import Admin
from ottla.node.api.response_cache import ResponseCache
from ottla.replication.partition import Partition
from ottla.replication.replica_manager import ReplicaManager
from ottla.runtime.runtime import Runtime

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("interval_ms", "least", "most"), [("500", 15, 21), ("0", 0, 0)])
def test_the_active_controller_writes_no_op_records(interval_ms: str, least: int, most: int) -> None:
    nodes = SimNodes({1: "broker,controller"}, settings={"metadata.max.idle.interval.ms": interval_ms})

    async def life() -> None:
        nodes.boot()
        await nodes.ready()
        await asyncio.sleep(2)
        metadata = nodes.quorum(1).metadata
        before, image = metadata.high_watermark, metadata.image
        await asyncio.sleep(10)
        assert least <= metadata.high_watermark - before <= most
        assert metadata.image == image

    nodes.run(life())


def test_no_op_records_cost_neither_clients_nor_probes_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """A response about all topics, and the walk over all partitions, are made again when these change."""
    nodes = SimNodes({1: "broker,controller"})
    made, walks = 0, 0
    put, partitions_of = ResponseCache.put, ReplicaManager.__iter__

    def count_responses(*args: Any) -> None:
        nonlocal made
        made += 1
        put(*args)

    def count_walks(self: ReplicaManager) -> Iterator[Partition]:
        nonlocal walks
        walks += 1
        return partitions_of(self)

    monkeypatch.setattr(ResponseCache, "put", count_responses)
    monkeypatch.setattr(ReplicaManager, "__iter__", count_walks)

    async def life() -> None:
        nodes.boot()
        await nodes.ready()
        await nodes.create("orders", 1, replicas=1)
        node = nodes.nodes[1]
        health = node.health()

        async def ask_for_five_seconds(runtime: Runtime) -> None:
            nonlocal made, walks
            async with Admin("node1:9092", runtime=runtime) as admin:
                await admin.topics.list()
                await health.ready_problems()
                before, made, walks = node.image, 0, 0
                for _ in range(50):
                    assert [topic.name for topic in await admin.topics.list()] == ["orders"]
                    await health.ready_problems()
                    await asyncio.sleep(0.1)
                assert node.image is not before
                assert (made, walks) == (0, 0)

        await nodes.as_client(ask_for_five_seconds)
        await nodes.create("payments", 1, replicas=1)

        async def ask_again(runtime: Runtime) -> None:
            async with Admin("node1:9092", runtime=runtime) as admin:
                assert len(await admin.topics.list()) == 2
            await health.ready_problems()
            assert made > 0
            assert walks == 1

        await nodes.as_client(ask_again)

    nodes.run(life())
