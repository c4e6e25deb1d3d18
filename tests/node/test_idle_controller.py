"""`metadata.max.idle.interval.ms`: the metadata log moves while nothing happens."""

from __future__ import annotations

import asyncio

import pytest

from ottla.sim.cluster.sim_nodes import SimNodes


@pytest.mark.parametrize(("interval_ms", "least", "most"), [("500", 15, 21), ("0", 0, 0)])
def test_the_active_controller_writes_no_op_records(interval_ms: str, least: int, most: int) -> None:
    nodes = SimNodes({1: "broker,controller"}, settings={"metadata.max.idle.interval.ms": interval_ms})

    async def life() -> None:
        nodes.boot()
        await nodes.ready()
        await asyncio.sleep(2)
        metadata = nodes.nodes[1].quorum.metadata
        before, image = metadata.high_watermark, metadata.image
        await asyncio.sleep(10)
        assert least <= metadata.high_watermark - before <= most
        assert metadata.image == image

    nodes.run(life())
