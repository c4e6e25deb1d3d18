"""Several nodes as one cluster: they elect an active controller, register with it, and survive its end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from functools import partial

import pytest
from tests.support.loops import simulated
from tests.support.sim_nodes import CLUSTER_ID, SimNodes

from ottla.client.admin import Admin
from ottla.client.admin.configs import ResourceType
from ottla.metadata.image.entities import ConfigResource, ConfigResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse, Listener
from ottla.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from ottla.protocol.schema import Request
from ottla.runtime.runtime import Runtime

pytestmark = pytest.mark.slow

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
            assert not any(nodes.is_fenced(other, id) for other in nodes.roles)
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
        await nodes.until(lambda: all(nodes.is_fenced(first, id) for id in others))
        await nodes.create("meanwhile", others[0], replicas=2)
        nodes.boot(first)
        await nodes.ready()
        await nodes.until(lambda: all(nodes.topics(id) == {"before", "meanwhile"} for id in nodes.roles))
        await nodes.until(lambda: not any(nodes.is_fenced(first, id) for id in nodes.roles))

    nodes.run(life())


@pytest.mark.parametrize("seed", SEEDS)
def test_changes_that_are_asked_for_while_the_controller_dies_are_made(seed: int) -> None:
    nodes = SimNodes(seed=seed)
    wanted = {f"t{n}" for n in range(40)}

    async def life() -> None:
        nodes.boot()
        await nodes.ready()
        first = nodes.active
        assert first is not None
        others = [id for id in nodes.roles if id != first]

        async def create(runtime: Runtime) -> None:
            async with Admin(f"node{others[0]}:9092", runtime=runtime) as admin:

                async def one(name: str) -> None:
                    try:
                        await admin.topics.create(name, partitions=1, replication_factor=2)
                    except KafkaError as error:
                        # It may have been created although no response said so.
                        if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                            raise

                await asyncio.gather(*map(one, sorted(wanted)))

        creating = asyncio.create_task(nodes.as_client(create))
        await nodes.until(lambda: len(nodes.topics(first)) > 0)
        nodes.kill(first)
        await creating
        await nodes.until(lambda: all(nodes.topics(id) == wanted for id in others))

    nodes.run(life())


@simulated()
async def test_a_change_for_which_the_controller_has_no_room_is_made_by_the_next_one(nodes: SimNodes) -> None:
    first = nodes.active
    assert first is not None
    through = next(id for id in nodes.roles if id != first)
    nodes.machines[first].disk.fail(
        errno.ENOSPC, prefix="/data/__cluster_metadata-0", ops=["write", "create"], times=None
    )
    await nodes.create("orders", through)
    assert nodes.quorum(first).metadata.failure is None
    assert nodes.quorum(through).metadata.leader_id not in (None, first)
    nodes.machines[first].disk.heal()
    await nodes.until(lambda: nodes.topics(first) == {"orders"})


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_controllers_whose_disks_are_full_wait_and_continue_by_themselves(seed: int) -> None:
    nodes = SimNodes(seed=seed)

    async def life() -> None:
        nodes.boot()
        await nodes.ready()
        first = nodes.active
        assert first is not None
        followers = [id for id in nodes.roles if id != first]
        metadata = {id: nodes.quorum(id).metadata for id in nodes.roles}
        await nodes.create("before", first)

        # One follower: the quorum continues without it, and its leader still hears from it.
        full = nodes.machines[followers[0]].disk
        fault = full.fail(errno.ENOSPC, ops=["write", "create"], times=None)
        epoch = metadata[first].epoch
        await nodes.create("meanwhile", first, replicas=1)
        await nodes.until(lambda: full.failures[errno.ENOSPC] > 3)
        await asyncio.sleep(10)
        assert metadata[first].epoch == epoch
        assert metadata[followers[0]].leader_id == first
        assert "meanwhile" not in nodes.topics(followers[0])
        full.heal(fault)
        await nodes.until(lambda: nodes.topics(followers[0]) == {"before", "meanwhile"})

        # All of them: nothing can be decided, none of them ends, and no acknowledged record is lost.
        for machine in nodes.machines.values():
            machine.disk.fail(errno.ENOSPC, ops=["write", "create"], times=None)
        wanted = asyncio.create_task(nodes.create("wanted", followers[1]))
        await asyncio.sleep(30)
        assert all(log.failure is None for log in metadata.values())
        for machine in nodes.machines.values():
            machine.disk.heal()
        with contextlib.suppress(KafkaError):
            await wanted
        await nodes.create("after", followers[0])
        await nodes.until(
            lambda: all(nodes.topics(id) >= {"before", "meanwhile", "after"} for id in nodes.roles)
        )
        assert all(log.failure is None for log in metadata.values())

    nodes.run(life())


@simulated()
async def test_a_broker_whose_process_ended_is_fenced_at_once(nodes: SimNodes) -> None:
    active, other = active_and_other(nodes)
    nodes.kill(other)
    assert await nodes.until(lambda: nodes.is_fenced(other, active)) < 1
    nodes.boot(other)
    await nodes.ready(other)


@simulated()
async def test_a_broker_that_falls_silent_is_fenced_before_its_session_ends(nodes: SimNodes) -> None:
    active, other = active_and_other(nodes)
    isolate(nodes, other)
    took = await nodes.until(lambda: nodes.is_fenced(other, active))
    assert 2 < took < 6.5
    nodes.world.fabric.heal()
    await nodes.until(lambda: not nodes.is_fenced(other, active))


@simulated()
async def test_a_broker_whose_machine_takes_connections_has_its_whole_session(nodes: SimNodes) -> None:
    active, other = active_and_other(nodes)
    nodes.machines[other].pause()
    took = await nodes.until(lambda: nodes.is_fenced(other, active))
    assert 8.5 < took < 12
    nodes.machines[other].resume()
    await nodes.until(lambda: not nodes.is_fenced(other, active))


def active_and_other(nodes: SimNodes) -> tuple[int, int]:
    """The node with the active controller, and one without."""
    active = nodes.active
    assert active is not None
    return active, next(id for id in nodes.roles if id != active)


def isolate(nodes: SimNodes, lonely: int) -> None:
    """Cut a node off from all others, as when its machine has lost its power."""
    for other in nodes.roles:
        if other != lonely:
            nodes.world.fabric.cut(f"node{lonely}", f"node{other}")
            nodes.world.fabric.cut(f"node{other}", f"node{lonely}")


@simulated()
async def test_an_active_controller_that_falls_silent_is_replaced_and_nobody_waits_for_it(
    nodes: SimNodes,
) -> None:
    silent = nodes.active
    assert silent is not None
    others = [id for id in nodes.roles if id != silent]
    isolate(nodes, silent)
    # This request goes to the silent node, as no node knows yet that it is.
    began = nodes.world.loop.time()
    await nodes.create("meanwhile", others[0], replicas=2)
    assert nodes.world.loop.time() - began < 5
    await nodes.until(lambda: all(nodes.is_fenced(silent, id) for id in others))
    assert nodes.world.loop.time() - began < 7
    nodes.world.fabric.heal()
    await nodes.until(
        lambda: nodes.topics(silent) == {"meanwhile"} and not nodes.is_fenced(silent, others[0])
    )
    assert nodes.active in others


@simulated(lambda: SimNodes(settings={"controller.quorum.fetch.timeout.ms": "6000"}))
async def test_a_controller_that_is_cut_off_fences_no_broker_by_its_silence(nodes: SimNodes) -> None:
    """To a controller without a majority all brokers are silent. What it decides then may be committed much
    later, when the broker that it fenced is the one with everything.
    """
    active = nodes.active
    assert active is not None
    controller = nodes.quorum(active).active_controller.require()
    for other in nodes.roles:
        if other != active:
            nodes.world.fabric.cut(f"node{active}", f"node{other}")
            nodes.world.fabric.cut(f"node{other}", f"node{active}")
    await asyncio.sleep(6.5)
    assert nodes.quorum(active).active_controller.current is controller
    assert not any(broker.fenced for broker in controller.decided_image.cluster.brokers.values())
    nodes.world.fabric.heal()
    await nodes.until(lambda: nodes.active is not None)


def test_of_two_brokers_that_fall_silent_none_is_fenced_before_its_session_ends() -> None:
    """One of them may be stopped and have everything, the other dead: silence does not tell which."""
    roles = {1: "controller", **dict.fromkeys((2, 3, 4, 5), "broker")}
    nodes = SimNodes(roles)

    async def life() -> None:
        nodes.boot()
        await nodes.ready()
        nodes.machines[2].pause()
        nodes.kill(3, silently=True)
        took = await nodes.until(lambda: nodes.is_fenced(2, 1) or nodes.is_fenced(3, 1))
        assert took > 6.5
        await nodes.until(lambda: nodes.is_fenced(2, 1) and nodes.is_fenced(3, 1))
        assert not nodes.is_fenced(4, 1)
        assert not nodes.is_fenced(5, 1)

    nodes.run(life())


def test_a_broker_is_not_fenced_early_while_another_may_have_lost_its_power_since_its_heartbeat() -> None:
    """Its last heartbeat is from before the first one was probed, and is not old enough to probe it too."""
    nodes = SimNodes({1: "controller", **dict.fromkeys((2, 3, 4, 5), "broker")})

    async def heartbeat(broker: int) -> None:
        active = nodes.quorum(1).active_controller.require()
        await nodes.until(lambda: any(id == broker for id, _ in active.silent_brokers(50)))
        nodes.broker(broker).lifecycle.heartbeat_now()
        await nodes.until(lambda: all(id != broker for id, _ in active.silent_brokers(50)))

    async def life() -> None:
        nodes.boot()
        await nodes.ready()
        await heartbeat(2)
        nodes.machines[2].pause()
        await asyncio.sleep(2.5)
        await heartbeat(3)
        nodes.kill(3, silently=True)
        took = await nodes.until(lambda: nodes.is_fenced(2, 1) or nodes.is_fenced(3, 1))
        assert took > 4
        await nodes.until(lambda: nodes.is_fenced(2, 1) and nodes.is_fenced(3, 1))
        assert not nodes.is_fenced(4, 1)
        assert not nodes.is_fenced(5, 1)

    nodes.run(life())


class WithOtherAddresses(SimNodes):
    """Nodes that advertise an address which refuses connections from the nodes themselves."""

    def settings(self, id: int) -> dict[str, str]:
        settings = super().settings(id)
        return {
            **settings,
            "listeners": f"{settings['listeners']},ABROAD://node{id}:9094",
            "advertised.listeners": f"ABROAD://node1:9999,PLAINTEXT://node{id}:9092",
            "listener.security.protocol.map": "ABROAD:PLAINTEXT,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
        }


def test_an_address_that_leads_elsewhere_does_not_make_a_broker_dead() -> None:
    nodes = WithOtherAddresses()
    fenced: list[int] = []

    async def life() -> None:
        nodes.boot()
        await nodes.ready()
        first = nodes.active
        assert first is not None
        others = [id for id in nodes.roles if id != first]
        for by in others:
            nodes.quorum(by).metadata.subscribe(
                lambda delta, image: fenced.extend(
                    id for id in delta.changed_brokers if id in others and image.cluster.brokers[id].fenced
                )
            )
        await nodes.stop(first)
        await nodes.until(lambda: nodes.active is not None)
        nodes.boot(first)
        await nodes.ready()
        assert fenced == []

    nodes.run(life())


@simulated()
async def test_a_whole_cluster_that_lost_power_comes_back_with_its_topics(nodes: SimNodes) -> None:
    await nodes.create("kept", 2)
    for id in nodes.roles:
        nodes.kill(id, silently=True)
    nodes.boot()
    await nodes.ready()
    assert all(nodes.topics(id) == {"kept"} for id in nodes.roles)


@simulated()
async def test_a_node_that_stops_hands_over_what_it_leads_and_the_quorum(nodes: SimNodes) -> None:
    await nodes.create("orders", 1, partitions=6)
    leaving = nodes.active
    assert leaving is not None
    rest = [id for id in nodes.roles if id != leaving]
    await nodes.until(lambda: all("orders" in nodes.topics(id) for id in nodes.roles))
    epochs = [nodes.partition("orders", index, by=leaving).leader_epoch for index in range(6)]
    assert await nodes.stop(leaving) < 5
    await nodes.until(lambda: nodes.active is not None)
    for index in range(6):
        partition = nodes.partition("orders", index, by=rest[0])
        assert partition.leader in rest
        assert leaving not in partition.isr
        # One election at most: no node was without a leader in between.
        assert partition.leader_epoch <= epochs[index] + 1
    assert nodes.is_fenced(leaving, rest[0])
    nodes.boot(leaving)
    await nodes.ready()
    await nodes.until(lambda: len(nodes.partition("orders", 5, by=rest[0]).isr) == 3)


@simulated()
async def test_a_broker_that_was_forgotten_registers_again(nodes: SimNodes) -> None:
    active, other = active_and_other(nodes)
    epoch = nodes.broker(other).lifecycle.epoch
    await nodes.quorum(active).control(lambda controller: controller.unregister_broker(other))
    await nodes.until(lambda: nodes.broker(other).lifecycle.epoch > epoch)
    await nodes.until(lambda: not nodes.is_fenced(other, active))


@simulated()
async def test_settings_are_changed_through_any_broker(nodes: SimNodes) -> None:
    await nodes.create("orders", 1)
    topic = ConfigResource(ConfigResourceType.TOPIC, "orders")

    async def alter(id: int, runtime: Runtime) -> None:
        async with Admin(f"node{id}:9092", runtime=runtime) as admin:
            of_topic = {"retention.ms": str(id * 1000)}
            await admin.configs.alter(ResourceType.TOPIC, "orders", set=of_topic)
            await admin.configs.alter(ResourceType.BROKER, str(id), set={"log.cleaner.threads": "2"})

    def are_told(id: int) -> bool:
        told = {"retention.ms": str(id * 1000)}
        heard = all(node.image.config(topic) == told for node in nodes.nodes.values())
        return heard and nodes.nodes[id].config.number("log.cleaner.threads") == 2

    for id in nodes.roles:
        await nodes.as_client(partial(alter, id))
        await nodes.until(partial(are_told, id))


@simulated()
async def test_a_node_stops_cleanly_while_the_metadata_goes_on(nodes: SimNodes) -> None:
    active = nodes.active
    assert active is not None
    leaving = next(id for id in nodes.roles if id != active)
    for n in range(30):
        await nodes.create(f"t{n}", leaving, partitions=2)

    async def delete(runtime: Runtime) -> None:
        """As soon as the broker may go, everything that it had changes."""
        async with Admin(f"node{active}:9092", runtime=runtime) as admin:
            while not nodes.is_fenced(leaving, by=active):  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.001)
            for n in range(30):
                await admin.topics.delete(f"t{n}")

    deleting = asyncio.create_task(nodes.as_client(delete))
    await nodes.stop(leaving)
    await deleting


@simulated()
async def test_nodes_that_stop_all_at_once_do_not_wait_for_each_other(nodes: SimNodes) -> None:
    await nodes.create("orders", 1, partitions=6)
    took = await asyncio.gather(*(nodes.stop(id) for id in nodes.roles))
    assert max(took) < 15
    nodes.boot()
    await nodes.ready()
    assert nodes.partition("orders", by=1).leader in nodes.roles


def test_a_node_that_was_away_for_long_gets_a_snapshot_and_follows_the_difference() -> None:
    settings = {
        "metadata.log.max.record.bytes.between.snapshots": "500",
        "metadata.max.retention.bytes": "1000",
        "internal.metadata.log.segment.bytes": "2000",
    }
    nodes = SimNodes(settings=settings)

    async def life() -> None:
        nodes.boot()
        await nodes.ready()
        for n in range(3):
            await nodes.create(f"early-{n}", 1)
        active = nodes.active
        assert active is not None
        away, here = (id for id in nodes.roles if id != active)
        nodes.kill(away)
        left_at = nodes.quorum(here).metadata.next_offset

        async def churn(runtime: Runtime) -> None:
            async with Admin(f"node{here}:9092", runtime=runtime) as admin:
                await admin.topics.delete("early-1")
                for n in range(12):
                    await admin.topics.create(f"late-{n}", partitions=4, replication_factor=2)
                    await asyncio.sleep(1.5)

        await nodes.as_client(churn)
        assert nodes.quorum(active).metadata.start_offset > left_at
        # At first there is no room to keep it: it is fetched again.
        disk = nodes.machines[away].disk
        disk.fail(errno.ENOSPC, prefix="/data/__cluster_metadata-0/0", ops=["rename"], times=2)
        nodes.boot(away)
        await nodes.ready()
        assert disk.failures[errno.ENOSPC] == 2
        await nodes.until(lambda: nodes.nodes[away].image == nodes.nodes[active].image)
        assert "early-1" not in nodes.topics(away)

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
        assert not any(nodes.is_fenced(id, 1) for id in (1, 2))

    nodes.run(life())


def test_controllers_are_added_to_a_quorum_and_removed_from_it() -> None:
    roles = {1: "broker", 11: "controller", 12: "controller", 13: "controller"}
    nodes = SimNodes(roles, static=False)

    def voters(id: int) -> tuple[int, ...]:
        return nodes.quorum(id).metadata.voters.ids

    async def change(request: Request) -> None:
        """Ask any controller, by way of the broker's own link."""
        response = await nodes.quorum(1).controllers.request(request, 0)
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


@simulated()
async def test_a_static_quorum_becomes_a_dynamic_one(nodes: SimNodes) -> None:
    async def upgrade(runtime: Runtime) -> None:
        async with Admin("node2:9092", runtime=runtime) as admin:
            with pytest.raises(KafkaError, match="has not sent its directory id"):
                await admin.cluster.update_features({"kraft.version": 1})
            await asyncio.sleep(10)
            await admin.cluster.update_features({"kraft.version": 1})

    await nodes.as_client(upgrade)
    await nodes.until(lambda: all(n.quorum.metadata.kraft_version == 1 for n in nodes.nodes.values()))
    directories = [voter.key.directory_id for voter in nodes.quorum(1).metadata.voters.voters.values()]
    assert bytes(16) not in directories
    for id in nodes.roles:
        nodes.kill(id, silently=True)
    nodes.boot()
    await nodes.ready()
    await nodes.create("orders", 3)


def test_controllers_join_a_quorum_by_themselves_if_they_are_told_to() -> None:
    roles = {1: "broker", 11: "controller", 12: "controller", 13: "controller"}
    nodes = SimNodes(roles, static=False, settings={"controller.quorum.auto.join.enable": "true"})

    async def life() -> None:
        nodes.format(11)
        nodes.boot()
        await nodes.ready()
        await nodes.until(
            lambda: all(node.quorum.metadata.voters.ids == (11, 12, 13) for node in nodes.nodes.values())
        )
        nodes.kill(11)
        await nodes.until(lambda: nodes.active is not None)
        await nodes.create("orders", 1, replicas=1)

    nodes.run(life())


@pytest.mark.parametrize("writes", range(3))
def test_a_node_whose_metadata_log_fails_while_it_starts_does_not_wait_for_ever(writes: int) -> None:
    nodes = SimNodes()
    written = "/data/__cluster_metadata-0/00000000000000000000.log"
    nodes.machines[1].disk.fail(errno.EIO, prefix=written, ops=["write"], skip=writes, times=None)

    async def life() -> None:
        nodes.boot(2, 3)
        await nodes.ready(2, 3)
        nodes.boot(1)
        await nodes.until(lambda: bool(nodes.world.violations))

    nodes.world.run(life())
    assert "NodeFailed: the metadata log failed" in nodes.world.violations[0]
