"""Several nodes as one cluster: they elect an active controller, register with it, and survive its end."""

from __future__ import annotations

import pytest
from tests.support.sim_nodes import CLUSTER_ID, SimNodes

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse, Listener
from ottla.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from ottla.protocol.schema import Request

SEEDS = range(4)


@pytest.mark.parametrize("seed", SEEDS)
def test_three_nodes_become_a_cluster_and_any_of_them_creates_topics(seed: int) -> None:
    nodes = SimNodes(seed=seed)

    async def life() -> None:
        nodes.boot()
        await nodes.ready()
        assert nodes.active is not None
        for id in nodes.roles:
            await nodes.create(f"through-{id}", id)
        wanted = {f"through-{id}" for id in nodes.roles}
        await nodes.until(lambda: all(nodes.topics(id) == wanted for id in nodes.roles))
        for id in nodes.roles:
            assert not any(nodes.fenced(other, id) for other in nodes.roles)
            assert set(nodes.nodes[id].image.cluster.controllers) == {1, 2, 3}

    nodes.run(life())


@pytest.mark.parametrize("seed", SEEDS)
def test_when_the_active_controller_dies_another_one_takes_over_and_fences_its_broker(seed: int) -> None:
    nodes = SimNodes(seed=seed)

    async def life() -> None:
        nodes.boot()
        await nodes.ready()
        await nodes.create("before", 1)
        first = nodes.active
        assert first is not None
        nodes.kill(first)
        others = list(nodes.nodes)
        took = await nodes.until(lambda: nodes.active is not None)
        assert took < 1.5
        await nodes.until(lambda: all(nodes.fenced(first, id) for id in others))
        await nodes.create("meanwhile", others[0], replicas=2)
        nodes.boot(first)
        await nodes.ready()
        await nodes.until(lambda: all(nodes.topics(id) == {"before", "meanwhile"} for id in nodes.roles))
        await nodes.until(lambda: not any(nodes.fenced(first, id) for id in nodes.roles))

    nodes.run(life())


def test_a_broker_whose_process_ended_is_fenced_at_once() -> None:
    nodes = SimNodes()

    async def life() -> None:
        nodes.boot()
        await nodes.ready()
        active = nodes.active
        assert active is not None
        other = next(id for id in nodes.roles if id != active)
        nodes.kill(other)
        assert await nodes.until(lambda: nodes.fenced(other, active)) < 1
        nodes.boot(other)
        await nodes.ready(other)

    nodes.run(life())


def test_a_broker_that_falls_silent_is_fenced_before_its_session_ends() -> None:
    nodes = SimNodes()

    async def life() -> None:
        nodes.boot()
        await nodes.ready()
        active = nodes.active
        assert active is not None
        other = next(id for id in nodes.roles if id != active)
        nodes.machines[other].pause()
        took = await nodes.until(lambda: nodes.fenced(other, active))
        assert 3 < took < 8
        nodes.machines[other].resume()
        await nodes.until(lambda: not nodes.fenced(other, active))

    nodes.run(life())


def test_a_whole_cluster_that_lost_power_comes_back_with_its_topics() -> None:
    nodes = SimNodes()

    async def life() -> None:
        nodes.boot()
        await nodes.ready()
        await nodes.create("kept", 2)
        for id in nodes.roles:
            nodes.kill(id, silently=True)
        nodes.boot()
        await nodes.ready()
        assert all(nodes.topics(id) == {"kept"} for id in nodes.roles)

    nodes.run(life())


def test_a_quorum_of_controllers_serves_brokers_that_only_follow_it() -> None:
    roles = {1: "broker", 2: "broker", 11: "controller", 12: "controller", 13: "controller"}
    nodes = SimNodes(roles)

    async def life() -> None:
        nodes.boot()
        await nodes.ready()
        assert nodes.active in (11, 12, 13)
        await nodes.create("orders", 2, replicas=2)
        await nodes.until(lambda: all("orders" in nodes.topics(id) for id in nodes.roles))
        assert set(nodes.nodes[1].image.cluster.brokers) == {1, 2}
        first = nodes.active
        nodes.kill(first)
        await nodes.until(lambda: nodes.active is not None)
        await nodes.create("more", 1, replicas=2)
        assert not any(nodes.fenced(id, 1) for id in (1, 2))

    nodes.run(life())


def test_controllers_are_added_to_a_quorum_and_removed_from_it() -> None:
    roles = {1: "broker", 11: "controller", 12: "controller", 13: "controller"}
    nodes = SimNodes(roles, static=False)

    def voters(id: int) -> tuple[int, ...]:
        return nodes.nodes[id].metadata.voters.ids

    async def change(request: Request) -> None:
        """Ask any controller, by way of the broker's own link."""
        response = await nodes.nodes[1].controllers.ask(request, 0)
        assert isinstance(response, AddRaftVoterResponse | RemoveRaftVoterResponse)
        assert (response.error_code, response.error_message) == (ErrorCode.NONE, None)

    async def life() -> None:
        nodes.format(11)
        nodes.boot()
        await nodes.ready()
        assert nodes.active == 11
        for id in (12, 13):
            await change(
                AddRaftVoterRequest(
                    cluster_id=CLUSTER_ID,
                    timeout_ms=5_000,
                    voter_id=id,
                    voter_directory_id=nodes.directory_id(id),
                    listeners=[Listener(name="CONTROLLER", host=f"node{id}", port=9093)],
                )
            )
        await nodes.until(lambda: all(voters(id) == (11, 12, 13) for id in roles))
        nodes.kill(11)
        await nodes.until(lambda: nodes.active is not None)
        await nodes.create("orders", 1, replicas=1)
        await change(
            RemoveRaftVoterRequest(
                cluster_id=CLUSTER_ID, voter_id=11, voter_directory_id=nodes.directory_id(11)
            )
        )
        await nodes.until(lambda: all(voters(id) == (12, 13) for id in (1, 12, 13)))
        nodes.boot(11)
        await nodes.ready(11)
        await nodes.until(lambda: voters(11) == (12, 13) and nodes.topics(11) == {"orders"})

    nodes.run(life())
