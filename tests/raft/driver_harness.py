"""A replica on real files and real connections, for tests."""

from __future__ import annotations

from collections.abc import Awaitable
from pathlib import Path

from ottla.node.network.connection import (
    ClientConnection,
    ClientFaultLog,
    ConnectionLimits,
    Parts,
    PendingRequest,
)
from ottla.node.network.memory_budget import MemoryBudget
from ottla.raft.config import QuorumConfig
from ottla.raft.driver.kafka_raft_client import KafkaRaftClient
from ottla.raft.driver.kafka_raft_log import KafkaRaftLog
from ottla.raft.driver.quorum_state_store import read_election_state
from ottla.raft.snapshot import SnapshotId
from ottla.raft.voters import ReplicaKey, Voter, VoterSet
from ottla.records.batch import iter_batches, read_records
from ottla.records.builder import build_batch
from ottla.runtime.network import NetworkListener
from ottla.runtime.runtime import Runtime
from ottla.sim.quorum.member import QuorumService

CONFIG = QuorumConfig(election_timeout_ms=500, fetch_timeout_ms=3000, request_timeout_ms=3000)
DEADLINE_S = 60


class Replica:
    def __init__(
        self, id: int, dir: Path, *, cluster_id: str = "real", config: QuorumConfig = CONFIG
    ) -> None:
        self.id = id
        self.cluster_id = cluster_id
        self.config = config
        self.dir = dir
        self.runtime = Runtime.real(pool_workers=2)
        self.port = 0
        self.high_watermark = 0
        self.failure: BaseException | None = None
        self.client: KafkaRaftClient
        self._listener: NetworkListener
        self._connections: set[ClientConnection] = set()
        self._service: QuorumService | None = None

    async def listen(self) -> None:
        limits, memory, receive = ConnectionLimits(), MemoryBudget(), memoryview(bytearray(65536))

        def opened(connection: ClientConnection) -> bool:
            self._connections.add(connection)
            return self._service is not None

        def connect() -> ClientConnection:
            return ClientConnection(
                self, limits, memory, receive, opened, self._connections.discard, ClientFaultLog()
            )

        self._listener = await self.runtime.network.listen(connect, "127.0.0.1", self.port)
        self.port = self._listener.port

    lane = None

    def start(self, pending: PendingRequest, frame: memoryview) -> Parts | Awaitable[Parts | None] | None:
        assert self._service is not None
        return self._service.start(pending, frame)

    async def boot(self, voters: VoterSet) -> None:
        runtime = self.runtime
        self.dir.mkdir(exist_ok=True)
        log = await runtime.pool.run(
            KafkaRaftLog.open, runtime.disk, runtime.clock, runtime.random, str(self.dir)
        )
        voter_history, _ = await runtime.pool.run(log.load, voters)
        self.client = KafkaRaftClient(
            runtime,
            log,
            voter_history,
            Voter(ReplicaKey(self.id, bytes([self.id]) * 16), voters.voters[self.id].endpoints),
            self,
            cluster_id=self.cluster_id,
            election=read_election_state(runtime.disk, log.dir),
            config=self.config,
        )
        self._service = QuorumService(self.client, lambda: None)
        self.client.start()

    def on_commit(self, high_watermark: int) -> None:
        self.high_watermark = high_watermark

    def on_load_snapshot(self, id: SnapshotId) -> None:
        raise AssertionError("no replica writes snapshots here")

    def on_leader_change(self, leader_id: int | None, epoch: int) -> None:
        pass

    def on_failure(self, error: BaseException) -> None:
        self.failure = error

    @property
    def leads(self) -> bool:
        return self.client.is_leader

    def append(self, value: bytes) -> int:
        log = self.client.log
        batch = build_batch([(0, None, value)], base_offset=log.end.offset, leader_epoch=self.client.epoch)
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
