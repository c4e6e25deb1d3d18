"""A member of a simulated quorum: a replica of the log, its listener, and a small state machine on top.

The state machine is a list of values; a snapshot is that list. The member serves the requests of the quorum
over the same connections as a node, and appends values of the workload while it is leader.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from ottla.node.network.connection import (
    ClientConnection,
    ClientFaultLog,
    ConnectionLimits,
    Parts,
    PendingRequest,
    ProtocolViolation,
)
from ottla.node.network.memory_budget import MemoryBudget
from ottla.protocol.api import API_VERSIONS
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.headers import read_request_header, response_parts
from ottla.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsResponse,
    SupportedFeatureKey,
)
from ottla.protocol.messages.vote import VoteResponse
from ottla.protocol.names import METADATA_PARTITION_DIR
from ottla.protocol.schema import Response
from ottla.raft.config import QuorumConfig
from ottla.raft.driver import wire
from ottla.raft.driver.kafka_raft_client import KafkaRaftClient
from ottla.raft.driver.kafka_raft_log import KafkaRaftLog, KafkaRaftLogConfig
from ottla.raft.driver.quorum_state_store import read_election_state
from ottla.raft.snapshot import BOOTSTRAP_SNAPSHOT, SnapshotId, encode_snapshot
from ottla.raft.voters import ReplicaKey, Voter, VoterSet
from ottla.records.batch import iter_batches, read_records
from ottla.records.builder import build_batch
from ottla.runtime.address import Address
from ottla.runtime.disk import write_file
from ottla.runtime.runtime import Runtime
from ottla.sim.quorum.checker import QuorumChecker
from ottla.sim.world import SimMachine, World

CLUSTER_ID = "simulated-cluster-id00"
DIR = "/data"
PORT = 9093
LISTENER = "CONTROLLER"


def address_of(id: int) -> Address:
    return Address(f"node{id}", PORT)


def directory_of(id: int) -> bytes:
    return f"directory-of-{id:03}".encode()


@dataclass(frozen=True, slots=True)
class SimQuorumMemberConfig:
    quorum: QuorumConfig
    static_voters: VoterSet | None
    bootstrap: tuple[Address, ...]
    snapshot_every: int  # values
    log: KafkaRaftLogConfig


def format_member(machine: SimMachine, voters: VoterSet | None) -> None:
    """Format the directory of a member; with dynamic voters the bootstrap snapshot names them."""
    disk = machine.disk
    partition = posixpath.join(DIR, METADATA_PARTITION_DIR)
    disk.make_dirs(partition)
    if voters is not None:
        now_ms = machine.clock.wall_ms()
        batches = encode_snapshot(
            (), epoch=0, timestamp=now_ms, last_contained_log_timestamp=now_ms, kraft_version=1, voters=voters
        )
        write_file(disk, posixpath.join(partition, BOOTSTRAP_SNAPSHOT.file_name), b"".join(batches))
    disk.sync_all()


class SimQuorumMember:
    """A member and its machine, which runs `main` whenever it boots."""

    def __init__(self, world: World, checker: QuorumChecker, id: int, config: SimQuorumMemberConfig) -> None:
        self._world = world
        self._checker = checker
        self.id = id
        self.config = config
        self.machine = world.machine(address_of(id).host, self.main)
        self.client: KafkaRaftClient | None = None
        self._boot = 0  # the boot in which the client was created
        self._runtime: Runtime
        self.values: list[bytes] = []
        self._applied = 0  # the offset below which everything is applied
        self._led_epoch = -1
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._snapshot_values = 0
        self._writing_snapshot = False

    @property
    def local(self) -> Voter:
        return Voter(ReplicaKey(self.id, directory_of(self.id)), {LISTENER: address_of(self.id)})

    @property
    def is_up(self) -> bool:
        """Whether the process of its machine is ready."""
        return self.machine.is_up and self.client is not None and self._boot == self.machine.boots

    async def main(self, runtime: Runtime) -> None:
        self.client = None
        self._runtime = runtime
        self._waiters = []
        self._writing_snapshot = False
        self._led_epoch = -1
        log = await runtime.pool.run(
            KafkaRaftLog.open, runtime.disk, runtime.clock, runtime.random, DIR, self.config.log
        )
        voter_history, snapshot = await runtime.pool.run(log.load, self.config.static_voters)
        election = await runtime.pool.run(read_election_state, runtime.disk, log.dir)
        self.values = [] if snapshot is None else list(snapshot.content.values)
        self._applied = 0 if snapshot is None else snapshot.id.offset
        self._snapshot_values = len(self.values)
        self._checker.on_applied(self.id, 0, self.values)
        client = KafkaRaftClient(
            runtime,
            log,
            voter_history,
            self.local,
            self,
            cluster_id=CLUSTER_ID,
            election=election,
            config=self.config.quorum,
            bootstrap=self.config.bootstrap,
        )
        limits, memory, receive = ConnectionLimits(), MemoryBudget(), memoryview(bytearray(65536))
        service = QuorumService(client, lambda: self._world.event("voted", self.machine))
        await runtime.network.listen(
            lambda: ClientConnection(
                service, limits, memory, receive, lambda _: True, lambda _: None, ClientFaultLog()
            ),
            "",
            PORT,
        )
        self.client = client
        self._boot = self.machine.boots
        client.start()

    # Callbacks of the quorum

    def on_commit(self, high_watermark: int) -> None:
        client = self.client
        assert client is not None
        epoch = client.epoch
        self._checker.on_committed(self.id, client.log, self._applied, high_watermark, epoch)
        start = len(self.values)
        for data in client.log.batches(self._applied, high_watermark):
            for position, header in iter_batches(data):
                if not header.is_control:
                    self.values += [record.value or b"" for record in read_records(data, position)]
        self._applied = high_watermark
        self._checker.on_applied(self.id, start, self.values[start:])
        done = [each for each in self._waiters if each[0] <= high_watermark]
        self._waiters = [each for each in self._waiters if each[0] > high_watermark]
        for _, future in done:
            if not future.done():
                future.set_result(None)
        if (
            len(self.values) - self._snapshot_values >= self.config.snapshot_every
            and not self._writing_snapshot
        ):
            self._writing_snapshot = True
            asyncio.get_running_loop().create_task(self._write_snapshot(client), name="snapshot")

    def on_load_snapshot(self, id: SnapshotId) -> None:
        client = self.client
        assert client is not None
        self.values = list(client.log.snapshots.read(id).values)
        self._snapshot_values = len(self.values)
        self._applied = id.offset
        self._world.coverage["snapshot fetched"] += 1
        self._checker.on_applied(self.id, 0, self.values)

    def on_leader_change(self, leader_id: int | None, epoch: int) -> None:
        client = self.client
        assert client is not None
        if leader_id is not None:
            self._checker.on_leader_named(epoch, leader_id, self.id)
        if leader_id == self.id and client.is_leader and client.epoch == epoch:
            self._led_epoch = epoch
            self._world.event("elected", self.machine)
            self._checker.on_elected(self.id, epoch, client.log)
        elif leader_id != self.id:
            waiters, self._waiters = self._waiters, []
            for _, future in waiters:
                if not future.done():
                    future.set_exception(KafkaError(ErrorCode.NOT_CONTROLLER, "no longer the leader"))

    def on_failure(self, error: BaseException) -> None:
        if isinstance(error, Exception):  # and not a `SimCrash`
            self._world.report_failure(f"node {self.id}", error)

    # Snapshots

    async def _write_snapshot(self, client: KafkaRaftClient) -> None:
        log = client.log
        values, offset = list(self.values), self._applied
        epoch = log.end_offset_for_epoch(2**31 - 1).epoch
        for data in log.batches(max(offset - 1, log.start_offset), offset):
            for _, header in iter_batches(data):
                epoch = header.leader_epoch
        id = SnapshotId(offset, epoch)
        version, voters = client.voter_history.at(offset)
        now_ms = self._runtime.clock.wall_ms()
        batches = list(
            encode_snapshot(
                values,
                epoch=epoch,
                timestamp=now_ms,
                last_contained_log_timestamp=now_ms,
                kraft_version=version,
                voters=voters,
            )
        )
        try:
            if offset > log.start_offset and id not in log.snapshots.ids:
                await self._runtime.pool.run(log.snapshots.write, id, batches)
                newest = log.snapshots.newest
                if newest is None or newest < id:
                    log.on_snapshot_written(id)
                    client.voter_history.truncate_before(log.start_offset)
                    self._snapshot_values = len(values)
                    self._world.coverage["snapshot written"] += 1
        finally:
            self._writing_snapshot = False

    # The workload

    @property
    def is_leader(self) -> bool:
        return self.is_up and self.client is not None and self.client.is_leader

    async def submit(self, values: Sequence[bytes]) -> None:
        """Append values and acknowledge them once they are committed; runs in the member's own process."""
        client = self.client
        assert client is not None
        batch = build_batch(
            [(self._runtime.clock.wall_ms(), None, value) for value in values],
            base_offset=client.log.end.offset,
            leader_epoch=client.epoch,
        )
        try:
            end = client.append(batch)
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append((end, future))
            await future
        except KafkaError:
            return  # whether it will be committed is unknown
        for value in values:
            self._checker.on_acknowledged(value, end)
        self._world.event("acknowledged", self.machine)


class QuorumService:
    """The requests of the controller listener that a quorum needs."""

    def __init__(self, client: KafkaRaftClient, on_vote: Callable[[], None]) -> None:
        self._client = client
        self._on_vote = on_vote

    @property
    def lane(self) -> None:
        """There are no logs here."""

    def start(self, pending: PendingRequest, frame: memoryview) -> Parts | Awaitable[Parts | None] | None:
        return self._answer(bytes(frame))

    async def _answer(self, frame: bytes) -> Parts:
        head = read_request_header(frame)
        if head.api.key == API_VERSIONS:
            return response_parts(head.api, head.version, head.correlation_id, self._versions())
        request, _ = head.api.request_class.decode_from(frame, head.position, head.version)
        try:
            response: Response = await self._client.handle(request)
        except KafkaError as error:
            raise ProtocolViolation(str(error)) from error
        if isinstance(response, VoteResponse) and response.topics[0].partitions[0].vote_granted:
            self._on_vote()
        return response_parts(head.api, head.version, head.correlation_id, response)

    def _versions(self) -> ApiVersionsResponse:
        local = self._client.local
        return ApiVersionsResponse(
            api_keys=[
                ApiVersion(api_key=key, min_version=0 if key != 1 else 4, max_version=newest)
                for key, newest in {**wire.VERSIONS, API_VERSIONS: 4}.items()
            ],
            supported_features=[
                SupportedFeatureKey(
                    name=wire.KRAFT_VERSION,
                    min_version=local.min_kraft_version,
                    max_version=local.max_kraft_version,
                )
            ],
        )
