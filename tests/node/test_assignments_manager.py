"""The controller knows where a replica is about to be before it is there, and what is lost to it."""

from __future__ import annotations

import asyncio
import errno

import pytest
from tests.support.loops import simulated
from tests.support.sim_nodes import SimNodes

from ottla.client.admin import Admin
from ottla.client.admin.configs import ResourceType
from ottla.client.producer import Producer
from ottla.metadata.image.entities import DIRECTORY_DAMAGED
from ottla.node.cluster.assignments_manager import DamagedReplica
from ottla.node.cluster.controller_channel import ControllerChannel
from ottla.node.server.broker_server import BrokerServer
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.assign_replicas_to_dirs import AssignReplicasToDirsRequest
from ottla.protocol.names import TopicPartition
from ottla.protocol.schema import Request, Response
from ottla.replication.partition import Partition
from ottla.runtime.runtime import Runtime

pytestmark = pytest.mark.slow

A, B = "/data/a", "/data/b"
TWO = {"log.dirs": f"{A},{B}", "metadata.log.dir": B}
APART = {1: "controller", 2: "broker"}
MOVED = TopicPartition("moved", 0)


class World:
    """A broker with two directories, whose controller is elsewhere, and a partition that can be moved."""

    def __init__(self) -> None:
        self.nodes = SimNodes(APART, settings=TWO)

    @property
    def broker(self) -> BrokerServer:
        return self.nodes.broker(2)

    @property
    def partition(self) -> Partition:
        return self.broker.replicas.partition(MOVED)

    def directory_id(self, path: str) -> bytes:
        (found,) = (each for each in self.broker.logs.directories if each.path == path)
        assert found.directory_id is not None
        return found.directory_id

    def known(self) -> bytes:
        """Where the active controller takes the replica to be."""
        return self.nodes.partition("moved", by=1).directory(2)

    async def begin(self, records: int = 100, size: int = 10) -> None:
        self.nodes.boot()
        await self.nodes.ready()
        await self.nodes.create("moved", 2, replicas=1)
        await self.produce(records, size)
        await self.in_place(A)

    async def begin_half_way(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """On the way from one directory to the other: the controller knows, the promotion is held back."""
        await self.begin()
        hold_back_the_promotion(self.broker, monkeypatch)
        self.broker.alter_log_dirs.begin(self.partition, B)
        await self.nodes.until(lambda: self.known() == self.directory_id(B))

    async def produce(self, records: int, size: int = 10) -> None:
        async def work(runtime: Runtime) -> None:
            async with Producer("node2:9092", runtime=runtime) as producer:
                for number in range(records):
                    await producer.send("moved", b"%d" % number * size)

        await self.nodes.as_client(work)

    async def in_place(self, path: str) -> None:
        """Have the replica in this directory, and the controller know."""
        self.broker.alter_log_dirs.begin(self.partition, path)
        await self.nodes.until(lambda: self.partition.log.directory.path == path)
        await self.nodes.until(lambda: self.known() == self.directory_id(path))

    async def has_copied(self) -> None:
        """The copy has all, and waits only for the controller."""

        def complete() -> bool:
            copy = self.broker.logs.get_log(MOVED, future=True)
            return copy is not None and copy.recovery_point == self.partition.log.log_end_offset

        await self.nodes.until(complete)


def test_a_replica_moves_only_once_the_controller_has_written_down_where_to() -> None:
    world = World()
    nodes = world.nodes

    async def life() -> None:
        await world.begin()
        nodes.kill(1)
        world.broker.alter_log_dirs.begin(world.partition, B)
        await world.has_copied()
        await asyncio.sleep(5)
        assert world.partition.log.directory.path == A
        nodes.boot(1)
        await nodes.ready(1)
        await nodes.until(lambda: world.partition.log.directory.path == B)
        assert world.known() == world.directory_id(B)
        assert world.partition.log.log_end_offset == 100

    nodes.run(life())


def test_after_a_move_that_was_called_off_the_controller_knows_that_the_replica_stayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    nodes = world.nodes

    async def life() -> None:
        await world.begin_half_way(monkeypatch)
        world.broker.alter_log_dirs.begin(world.partition, A)
        await nodes.until(lambda: world.known() == world.directory_id(A))
        assert world.partition.log.directory.path == A
        assert world.broker.logs.get_log(MOVED, future=True) is None

    nodes.run(life())


def test_a_copy_that_the_controller_counts_on_is_taken_when_the_other_directory_has_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    nodes = world.nodes

    async def life() -> None:
        await world.begin_half_way(monkeypatch)
        nodes.kill(2)
        nodes.machines[2].disk.fail(errno.EIO, prefix=f"{A}/moved-0", times=None)
        nodes.boot(2)
        await nodes.ready(2)
        assert world.partition.log.directory.path == B
        assert world.partition.log.log_end_offset == 100
        await nodes.until(lambda: world.partition.is_leader)

    nodes.run(life())


def test_a_move_goes_on_after_a_crash_while_both_directories_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    nodes = world.nodes

    async def life() -> None:
        await world.begin_half_way(monkeypatch)
        nodes.kill(2)
        nodes.boot(2)
        await nodes.ready(2)
        await nodes.until(lambda: world.partition.log.directory.path == B)
        await nodes.until(lambda: world.known() == world.directory_id(B))
        await asyncio.sleep(5)
        assert world.known() == world.directory_id(B)
        assert world.partition.log.log_end_offset == 100

    nodes.run(life())


def test_a_node_that_stops_finishes_a_move_that_the_controller_knows_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A copy that lacked records would be taken for in sync: the shutdown was clean."""
    world = World()
    nodes = world.nodes

    async def life() -> None:
        await world.begin_half_way(monkeypatch)
        await world.produce(10)
        await nodes.stop(2)
        nodes.machines[2].disk.fail(errno.EIO, prefix=f"{A}/moved-0", times=None)
        nodes.boot(2)
        await nodes.ready(2)
        assert world.partition.log.directory.path == B
        assert world.partition.log.log_end_offset == 110

    nodes.run(life())


def test_the_copy_of_a_partition_goes_with_its_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    nodes = world.nodes

    async def life() -> None:
        await world.begin()
        hold_back_the_promotion(world.broker, monkeypatch)
        world.broker.alter_log_dirs.begin(world.partition, B)
        await world.has_copied()

        async def delete(runtime: Runtime) -> None:
            async with Admin("node2:9092", runtime=runtime) as admin:
                await admin.topics.delete("moved")

        await nodes.as_client(delete)
        await nodes.until(lambda: "moved" not in nodes.topics(2))
        await nodes.until(lambda: world.broker.logs.get_log(MOVED, future=True) is None)
        await nodes.create("moved", 2, replicas=1)
        # The broker knows of a topic before it has its logs.
        await nodes.until(lambda: world.broker.replicas.find(MOVED) is not None)
        assert world.partition.log.log_end_offset == 0

    nodes.run(life())


def test_the_wait_for_a_report_ends_when_the_replica_is_gone_before_the_controller_took_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker that starts with a damaged replica asks to be unfenced only after this wait."""
    world = World()
    nodes = world.nodes

    async def life() -> None:
        await world.begin()
        partition, assignments = world.partition, world.broker.replication.assignments
        make_unreachable_for_reports(monkeypatch)
        damaged = DamagedReplica(partition.topic_id, MOVED, 2)
        report = asyncio.ensure_future(assignments.announce_damaged(damaged))
        await asyncio.sleep(5)
        assert not report.done()

        async def delete(runtime: Runtime) -> None:
            async with Admin("node2:9092", runtime=runtime) as admin:
                await admin.topics.delete("moved")

        await nodes.as_client(delete)
        await nodes.until(report.done)
        with pytest.raises(KafkaError, match="broker 2 has no replica of moved-0 any more"):
            await report

    nodes.run(life())


def test_all_that_announce_the_same_wait_until_the_controller_has_written_it() -> None:
    """A broker announces damaged replicas before it asks to be unfenced, and again to repair them."""
    world = World()
    nodes = world.nodes

    async def life() -> None:
        await world.begin()
        damaged = DamagedReplica(world.partition.topic_id, MOVED, 2)
        announce = world.broker.replication.assignments.announce_damaged
        first, second, given_up = (asyncio.ensure_future(announce(damaged)) for _ in range(3))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.gather(first, second)
        await nodes.until(lambda: nodes.partition("moved", by=2).directory(2) == DIRECTORY_DAMAGED)

    nodes.run(life())


@simulated(lambda: SimNodes(settings=TWO))
async def test_the_controller_is_told_of_a_directory_that_fails_while_the_broker_starts(
    nodes: SimNodes,
) -> None:
    await nodes.create("wide", 1)
    wide = TopicPartition("wide", 0)
    await nodes.until(lambda: all("wide" in nodes.topics(id) for id in nodes.nodes))
    leader = nodes.partition("wide", by=1).leader
    other = next(id for id in nodes.nodes if id != leader)
    # The broker knows of a topic before it has its logs.
    await nodes.until(lambda: nodes.broker(leader).replicas.find(wide) is not None)
    path = nodes.broker(leader).replicas.partition(wide).log.directory.path
    await nodes.stop(leader)
    nodes.machines[leader].disk.fail(errno.EIO, prefix=f"{path}/wide-0", times=None)
    nodes.boot(leader)
    await nodes.ready(leader)
    await nodes.until(lambda: len(nodes.nodes[other].image.cluster.brokers[leader].directories) == 1)
    partition = nodes.partition("wide", by=other)
    assert partition.leader not in (-1, leader)
    assert leader not in partition.isr


def test_a_throttle_holds_the_copying_back() -> None:
    world = World()
    nodes = world.nodes
    settings = {"replica.alter.log.dirs.io.max.bytes.per.second": "1000000"}

    async def life() -> None:
        await world.begin(records=20, size=200_000)

        async def limit(runtime: Runtime) -> None:
            async with Admin("node2:9092", runtime=runtime) as admin:
                await admin.configs.alter(ResourceType.BROKER, "2", set=settings)

        await nodes.as_client(limit)
        await nodes.until(lambda: world.broker.replication.move_quota.limit == 1_000_000)
        world.broker.alter_log_dirs.begin(world.partition, B)
        took = await nodes.until(lambda: world.partition.log.directory.path == B)
        # What was copied before the limit was reached counts too, and a step is one MiB.
        assert 2 < took < 10

    nodes.run(life())


def make_unreachable_for_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no report of directories reach the controller; everything else does."""
    request = ControllerChannel.request

    async def refuse_reports(
        self: ControllerChannel, body: Request, version: int, *, timeout_ms: int | None = None
    ) -> Response:
        if isinstance(body, AssignReplicasToDirsRequest):
            raise ConnectionError("the controller does not answer")
        return await request(self, body, version, timeout_ms=timeout_ms)

    monkeypatch.setattr(ControllerChannel, "request", refuse_reports)


def hold_back_the_promotion(broker: BrokerServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let moves come as far as the controller, and no further."""
    assignments = broker.replication.assignments
    announce = assignments.announce

    async def announce_and_wait(partition: Partition, directory: bytes) -> None:
        await announce(partition, directory)
        await asyncio.Event().wait()

    monkeypatch.setattr(assignments, "announce", announce_and_wait)
