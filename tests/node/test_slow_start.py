"""A start that takes long says what it waits for."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.sim_nodes import SimNodes

from ottla.node.cluster.broker_lifecycle import BrokerLifecycleManager

SAYS = "the node is not ready after "
ALL_LINES = 20_000


def warnings(nodes: SimNodes) -> list[str]:
    return [line.partition(SAYS)[2] for line in nodes.world.trace.tail(ALL_LINES) if SAYS in line]


@pytest.mark.parametrize(
    ("pauses_at", "waits"),
    [
        (
            "registering with the controller",
            "registering with the controller (no answer of the controller, node 1)",
        ),
        (
            "loading its logs",
            "waiting for the controller to let it serve (the controller, node 1, does not answer its "
            "heartbeats)",
        ),
    ],
)
def test_a_start_without_an_answer_of_the_controller_says_so(pauses_at: str, waits: str) -> None:
    nodes = SimNodes({1: "controller", 2: "broker"})

    async def life() -> None:
        nodes.boot(1)
        await nodes.ready(1)
        nodes.boot(2)
        while 2 not in nodes.nodes or nodes.nodes[2].shared.state.phase != pauses_at:  # noqa: ASYNC110 (virtual time)
            await asyncio.sleep(0.0001)
        nodes.machines[1].pause()
        await asyncio.sleep(55)

    nodes.run(life())
    assert warnings(nodes) == [f"20 s: it is still {waits}"]


@pytest.mark.slow
def test_it_says_so_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the reason: what the start waits for here never comes."""
    nodes = SimNodes({1: "controller", 2: "broker"})

    async def for_ever(self: BrokerLifecycleManager) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(BrokerLifecycleManager, "wait_until_caught_up", for_ever)

    async def life() -> None:
        nodes.boot()
        await asyncio.sleep(190)

    nodes.run(life())
    assert [line.partition(":")[0] for line in warnings(nodes)] == ["20 s", "80 s", "140 s"]


@pytest.mark.slow
def test_a_node_that_is_ready_says_nothing() -> None:
    nodes = SimNodes()

    async def life() -> None:
        nodes.boot()
        await nodes.ready()
        await asyncio.sleep(100)

    nodes.run(life())
    assert warnings(nodes) == []
