"""A broker reports a failed directory to the controller, or ends: others have to take over."""

from __future__ import annotations

import asyncio

import pytest

from ottla.sim.cluster.sim_nodes import SimNodes

APART = {1: "controller", 2: "broker"}
TWO = {"log.dirs": "/data/a,/data/b", "log.dir.failure.timeout.ms": "20000"}


@pytest.mark.parametrize("has_controller", [True, False])
def test_a_broker_ends_if_it_cannot_report_a_failed_directory_in_time(has_controller: bool) -> None:
    nodes = SimNodes(APART, settings=TWO)

    async def life() -> None:
        nodes.boot()
        await nodes.ready()
        broker = nodes.nodes[2]
        await nodes.until(lambda: bool(broker.image.cluster.brokers))
        if not has_controller:
            nodes.kill(1)
        failed = broker.logs.directories[1]
        began = nodes.world.loop.time()
        failed.fail("on purpose")
        if has_controller:
            await nodes.until(lambda: len(broker.image.cluster.brokers[2].directories) == 1)
            await asyncio.sleep(30)
            assert not broker._failure.done()
        else:
            await nodes.until(broker._failure.done)
            assert 20 <= nodes.world.loop.time() - began < 30
            assert "unable to communicate log dir failures" in broker._failure.result()

    nodes.run(life())
