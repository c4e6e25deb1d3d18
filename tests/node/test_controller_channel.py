"""A request that is forwarded to the controller is sent once, however long its response takes."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.sim_nodes import SimNodes

from ottla.client.admin import Admin
from ottla.metadata.controller.quorum_controller import QuorumController
from ottla.runtime.runtime import Runtime


def test_a_creation_that_takes_long_is_not_asked_for_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = SimNodes({1: "controller", 2: "broker"})
    asked = 0
    decide = QuorumController._decide

    async def slow(self: QuorumController, *args: object) -> object:
        nonlocal asked
        decided = await decide(self, *args)  # type: ignore[arg-type]
        if "slow" in self.controller.image.topics.by_name and not asked:
            asked += 1
            await asyncio.sleep(15)
        return decided

    async def create(runtime: Runtime) -> None:
        async with Admin("node2:9092", runtime=runtime, request_timeout_ms=60_000) as admin:
            await admin.topics.create("slow", partitions=1, replication_factor=1)

    async def life() -> None:
        nodes.boot()
        await nodes.ready()
        monkeypatch.setattr(QuorumController, "_decide", slow)
        await nodes.as_client(create)
        assert asked == 1

    nodes.run(life())
