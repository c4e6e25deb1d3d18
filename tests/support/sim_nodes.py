"""Whole nodes on simulated machines with virtual time, for tests of what they do when others of them end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from ottla.client.admin import Admin
from ottla.metadata.image.entities import PartitionRegistration
from ottla.metadata.log.bootstrap_metadata import format_directory
from ottla.node.cluster.quorum_member import QuorumMember
from ottla.node.config.node_config import NodeConfig
from ottla.node.node import Node
from ottla.node.server.broker_server import BrokerServer
from ottla.raft.voters import ReplicaKey, Voter, VoterSet
from ottla.runtime.address import Address
from ottla.runtime.random import SeededRandom
from ottla.runtime.runtime import Runtime
from ottla.sim.world import World

CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qk"
DEADLINE_S = 60.0


class SimNodes:
    """Nodes with these `roles`, which listen on ports 9092 (clients) and 9093 (the quorum)."""

    def __init__(
        self,
        roles: Mapping[int, str] | None = None,
        *,
        seed: int | str = 1,
        settings: Mapping[str, str] | None = None,
        static: bool = True,
    ) -> None:
        self.world = World(seed)
        self.roles = dict(roles or dict.fromkeys((1, 2, 3), "broker,controller"))
        self._settings = dict(settings or {})
        self._static = static
        self.nodes: dict[int, Node] = {}
        self._stopping: set[int] = set()
        self.machines = {id: self.world.machine(f"node{id}", partial(self._serve, id)) for id in self.roles}

    def settings(self, id: int) -> dict[str, str]:
        role = self.roles[id]
        listeners = []
        if "broker" in role:
            listeners.append(f"PLAINTEXT://node{id}:9092")
        if "controller" in role:
            listeners.append(f"CONTROLLER://node{id}:9093")
        controllers = [id for id, role in self.roles.items() if "controller" in role]
        voters = {"controller.quorum.voters": ",".join(f"{id}@node{id}:9093" for id in controllers)}
        servers = {"controller.quorum.bootstrap.servers": ",".join(f"node{id}:9093" for id in controllers)}
        return {
            "process.roles": role,
            "node.id": str(id),
            "listeners": ",".join(listeners),
            "log.dirs": "/data",
            "cluster.id": CLUSTER_ID,
            "offsets.topic.num.partitions": "1",
            # The clocks of machines are up to two hours apart.
            "log.message.timestamp.after.max.ms": str(1 << 62),
            **(voters if self._static else servers),
            **self._settings,
        }

    async def _serve(self, id: int, runtime: Runtime) -> None:
        node = self.nodes[id] = Node(runtime, NodeConfig(self.settings(id)))
        await node.start()
        while id not in self._stopping:  # noqa: ASYNC110 - set by another process
            await asyncio.sleep(0.01)
        await node.stop()
        self._stopping.remove(id)

    # Boot, kill, stop

    def boot(self, *ids: int) -> None:
        for id in ids or self.roles:
            self.machines[id].boot()

    def kill(self, id: int, *, silently: bool = False) -> None:
        self.machines[id].kill(power_loss=silently)
        del self.nodes[id]

    async def stop(self, id: int) -> float:
        """Stop a node cleanly and end its process; return the seconds that it took."""
        self._stopping.add(id)
        took = await self.until(lambda: id not in self._stopping)
        assert self.quorum(id).metadata.failure is None
        self.kill(id)
        return took

    async def ready(self, *ids: int) -> None:
        wanted = ids or tuple(self.roles)
        await self.until(
            lambda: all(id in self.nodes and self.nodes[id].shared.state.ready.is_set() for id in wanted)
        )

    async def until(self, condition: Callable[[], bool]) -> float:
        """Wait for a condition in virtual time; return the seconds that it took."""
        began = self.world.loop.time()
        while not condition():
            assert self.world.loop.time() < began + DEADLINE_S, "the condition did not become true"
            await asyncio.sleep(0.005)
        return self.world.loop.time() - began

    def run(self, scenario: Coroutine[Any, Any, None]) -> None:
        self.world.run(scenario)
        assert not self.world.violations, "\n".join([*self.world.violations, *self.world.trace.tail(80)])

    async def as_client(self, work: Callable[[Runtime], Awaitable[None]]) -> None:
        """Run a client on a machine of its own, and wait for its end."""
        done = []

        async def main(runtime: Runtime) -> None:
            await work(runtime)
            done.append(True)

        name = f"client{len(self.world.machines)}"
        self.world.machine(name, main).boot()
        await self.until(lambda: bool(done) or bool(self.world.violations))

    async def create(self, topic: str, through: int, *, partitions: int = 1, replicas: int = 3) -> None:
        async def ask(runtime: Runtime) -> None:
            async with Admin(f"node{through}:9092", runtime=runtime) as admin:
                await admin.topics.create(topic, partitions=partitions, replication_factor=replicas)

        await self.as_client(ask)

    # Inspection

    def quorum(self, id: int) -> QuorumMember:
        quorum = self.nodes[id].quorum
        assert quorum is not None, f"node {id} has not joined the quorum yet"
        return quorum

    def broker(self, id: int) -> BrokerServer:
        broker = self.nodes[id].broker
        assert broker is not None, f"node {id} has no broker yet"
        return broker

    def partition(self, topic: str, index: int = 0, *, by: int) -> PartitionRegistration:
        """The registration of a partition in the image of one of the nodes."""
        return self.nodes[by].image.topics.by_name[topic].partitions[index]

    @property
    def active(self) -> int | None:
        """The node with the active controller, if there is exactly one."""
        found = [
            id
            for id, node in self.nodes.items()
            if node.quorum is not None and node.quorum.active_controller.current
        ]
        return found[0] if len(found) == 1 else None

    def topics(self, id: int) -> set[str]:
        return set(self.nodes[id].image.topics.by_name)

    def is_fenced(self, id: int, by: int) -> bool:
        """Whether a broker is fenced in the image of another node."""
        broker = self.nodes[by].image.cluster.brokers.get(id)
        return broker is None or broker.fenced

    # Dynamic voters

    def directory_id(self, id: int) -> bytes:
        return bytes([id]) * 16

    def voter(self, id: int) -> Voter:
        return Voter(ReplicaKey(id, self.directory_id(id)), {"CONTROLLER": Address(f"node{id}", 9093)})

    def format(self, *voters: int) -> None:
        """Format every node for a quorum that begins with these voters."""
        initial = VoterSet.of(*map(self.voter, voters))
        for id, machine in self.machines.items():
            format_directory(
                machine.disk,
                SeededRandom(id),
                machine.clock,
                "/data",
                cluster_id=CLUSTER_ID,
                node_id=id,
                directory_id=self.directory_id(id),
                dynamic_voters=initial if id in voters else None,
            )
