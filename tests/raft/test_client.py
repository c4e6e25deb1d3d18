"""Three replicas on real files and real connections: one is elected, writes are replicated, and it may go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from ottla.node.connection import Connection, Exchange, Parts
from ottla.node.limits import Complaints, Limits, RequestMemory
from ottla.raft.client import RaftClient, read_election
from ottla.raft.config import QuorumConfig
from ottla.raft.disk_log import DiskLog
from ottla.raft.snapshot import SnapshotId
from ottla.raft.voters import Address, ReplicaKey, Voter, VoterSet
from ottla.records.batch import iter_batches, read_records
from ottla.records.builder import build_batch
from ottla.runtime.network import Listener
from ottla.runtime.runtime import Runtime
from ottla.sim.quorum_member import QuorumService

CONFIG = QuorumConfig(election_timeout_ms=500, fetch_timeout_ms=3000, request_timeout_ms=3000)
DEADLINE_S = 60


class Replica:
    def __init__(self, id: int, dir: Path) -> None:
        self.id = id
        self.dir = dir
        self.runtime = Runtime.real(pool_workers=2)
        self.port = 0
        self.high_watermark = 0
        self.failure: BaseException | None = None
        self.client: RaftClient
        self._listener: Listener
        self._connections: set[Connection] = set()
        self._service: QuorumService | None = None

    async def listen(self) -> None:
        limits, memory, receive = Limits(), RequestMemory(), memoryview(bytearray(65536))

        def opened(connection: Connection) -> bool:
            self._connections.add(connection)
            return self._service is not None

        def connect() -> Connection:
            return Connection(self, limits, memory, receive, opened, self._connections.discard, Complaints())

        self._listener = await self.runtime.network.listen(connect, "127.0.0.1", self.port)
        self.port = self._listener.port

    def start(self, exchange: Exchange, frame: memoryview) -> Parts | Awaitable[Parts | None] | None:
        assert self._service is not None
        return self._service.start(exchange, frame)

    async def boot(self, voters: VoterSet) -> None:
        runtime = self.runtime
        self.dir.mkdir(exist_ok=True)
        log = await runtime.pool.run(DiskLog.open, runtime.disk, runtime.clock, runtime.random, str(self.dir))
        membership, _ = await runtime.pool.run(log.load, voters)
        self.client = RaftClient(
            runtime,
            log,
            membership,
            Voter(ReplicaKey(self.id, bytes([self.id]) * 16), voters.voters[self.id].endpoints),
            self,
            cluster_id="real",
            election=read_election(runtime.disk, log.dir),
            config=CONFIG,
        )
        self._service = QuorumService(self.client, lambda: None)
        self.client.start()

    def committed(self, high_watermark: int) -> None:
        self.high_watermark = high_watermark

    def snapshot_loaded(self, id: SnapshotId) -> None:
        raise AssertionError("nobody writes snapshots here")

    def leader_changed(self, leader_id: int | None, epoch: int) -> None:
        pass

    def failed(self, error: BaseException) -> None:
        self.failure = error

    @property
    def leads(self) -> bool:
        return self.client.raft.core.is_leader

    def append(self, value: bytes) -> int:
        log = self.client.log
        batch = build_batch(
            [(0, None, value)], base_offset=log.end.offset, leader_epoch=self.client.raft.core.epoch
        )
        return self.client.append(batch)

    def values(self) -> list[bytes]:
        return [
            record.value or b""
            for data in self.client.log.batches(0, self.high_watermark)
            for position, header in iter_batches(data)
            if not header.is_control
            for record in read_records(data, position)
        ]

    async def stop(self) -> None:
        await self._listener.close()
        await self.client.close()
        for connection in list(self._connections):
            connection.transport.abort()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - of three replicas, none of which knows the others
            await asyncio.sleep(0.01)


@pytest.fixture
async def replicas(tmp_path: Path) -> AsyncIterator[list[Replica]]:
    replicas = [Replica(id, tmp_path / str(id)) for id in (1, 2, 3)]
    for replica in replicas:
        await replica.listen()
    voters = VoterSet.of(
        *(Voter(ReplicaKey(each.id), {"CONTROLLER": Address("127.0.0.1", each.port)}) for each in replicas)
    )
    for replica in replicas:
        await replica.boot(voters)
    yield replicas
    for replica in replicas:
        if not replica.client.is_closed:
            await replica.stop()
        replica.runtime.close()


async def write(replicas: list[Replica], value: bytes) -> Replica:
    """Append a value by whoever leads, again if leadership moves meanwhile; who led in the end."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            await until(lambda: any(replica.leads for replica in replicas))
            leader = next(replica for replica in replicas if replica.leads)
            if await _write_by(leader, replicas, value):
                return leader


async def _write_by(leader: Replica, replicas: list[Replica], value: bytes) -> bool:
    leader.append(value)
    await until(lambda: not leader.leads or all(value in replica.values() for replica in replicas))
    return leader.leads


async def test_writes_survive_the_leader(replicas: list[Replica]) -> None:
    leader = await write(replicas, b"first")
    await leader.stop()
    rest = [replica for replica in replicas if replica is not leader]
    await write(rest, b"second")
    for replica in rest:
        values = replica.values()
        assert values.index(b"first") < values.index(b"second")
    assert rest[0].values() == rest[1].values()
    assert all(replica.failure is None for replica in replicas)


async def test_a_leader_that_resigns_hands_over(replicas: list[Replica]) -> None:
    leader = await write(replicas, b"first")
    await leader.client.resign(5_000)
    await until(lambda: any(replica.leads for replica in replicas if replica is not leader))
    description = next(replica for replica in replicas if replica.leads).client.describe()
    assert description is not None
    assert [info.key.id for info in description.voters] == [1, 2, 3]
    assert description.epoch > 1
