"""Replicas of a quorum without disk and network, with a clock that the test advances.

Messages stay in a queue until a test delivers them, so that a test reads as the transcript of what happened.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.raft.config import QuorumConfig
from ottla.raft.effects import Answer, Committed, Flush, InstallSnapshot, Persist, Send
from ottla.raft.log import NoRoom
from ottla.raft.machine import KafkaRaftMachine
from ottla.raft.messages import OffsetAndEpoch, Reply, Request
from ottla.raft.quorum_state import QuorumState
from ottla.raft.snapshot import SnapshotContent, SnapshotId, decode_snapshot
from ottla.raft.states import ElectionState, Role
from ottla.raft.voters import ReplicaKey, Voter, VoterSet, VoterSetHistory
from ottla.records.batch import BatchHeader, iter_batches, read_records
from ottla.records.builder import build_batch
from ottla.records.control import QuorumRecord, build_quorum_batch
from ottla.runtime.address import Address
from ottla.runtime.random import SeededRandom

WALL_MS = 1_700_000_000_000


def address(id: int) -> Address:
    return Address(f"node{id}", 9093)


def key(id: int) -> ReplicaKey:
    return ReplicaKey(id, f"directory-of-{id:03}".encode()[:16].ljust(16, b"."))


def voter(id: int, *, host: str | None = None) -> Voter:
    at = address(id) if host is None else Address(host, 9093)
    return Voter(key(id), {"CONTROLLER": at})


def static_voters(*ids: int) -> VoterSet:
    return VoterSet.of(*(Voter(ReplicaKey(id), {"CONTROLLER": address(id)}) for id in ids))


def dynamic_voters(*ids: int) -> VoterSet:
    return VoterSet.of(*(voter(id) for id in ids))


class MemoryLog:
    """A `RaftLog` of batches in a list."""

    def __init__(self) -> None:
        self.batches: list[tuple[BatchHeader, bytes]] = []
        self.start_offset = 0
        self.high_watermark = 0
        self.snapshots: dict[SnapshotId, bytes] = {}
        self.download: tuple[SnapshotId, bytearray] | None = None
        self.refuse = False  # whether records from a leader arrive damaged
        self.is_full = False

    @property
    def end(self) -> OffsetAndEpoch:
        if self.batches:
            header = self.batches[-1][0]
            return OffsetAndEpoch(header.next_offset, header.leader_epoch)
        latest = self.latest_snapshot
        if latest is not None and latest.offset == self.start_offset:
            return OffsetAndEpoch(*latest)
        return OffsetAndEpoch(self.start_offset, 0)

    def update_high_watermark(self, offset: int) -> None:
        assert offset >= self.high_watermark, "the high watermark goes back"
        self.high_watermark = offset

    def end_offset_for_epoch(self, epoch: int) -> OffsetAndEpoch:
        earliest = self.earliest_snapshot
        floor = OffsetAndEpoch(self.start_offset, 0)
        if earliest is not None and earliest.offset == self.start_offset:
            floor = OffsetAndEpoch(*earliest)
        found = [header for header, _ in self.batches if header.leader_epoch <= epoch]
        return OffsetAndEpoch(found[-1].next_offset, found[-1].leader_epoch) if found else floor

    def append_as_leader(self, batch: bytes, epoch: int) -> None:
        self._append(batch)

    def append_control_as_leader(self, records: Sequence[QuorumRecord], epoch: int) -> None:
        self._append(
            build_quorum_batch(records, timestamp=WALL_MS, leader_epoch=epoch, base_offset=self.end.offset)
        )

    def append_as_follower(self, records: bytes, epoch: int) -> None:
        self._check_room()
        if self.refuse:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "a damaged batch")
        self._append(records)

    def _check_room(self) -> None:
        if self.is_full:
            raise NoRoom("no room")

    def _append(self, data: bytes) -> None:
        for position, header in iter_batches(data):
            assert header.base_offset == self.end.offset, "a gap in the log"
            self.batches.append((header, data[position : position + header.size]))

    def read(self, offset: int, max_bytes: int) -> bytes:
        at = bisect_right([header.last_offset for header, _ in self.batches], offset - 1)
        out = b""
        for _, data in self.batches[at:]:
            if out and len(out) + len(data) > max_bytes:
                break
            out += data
        return out

    def truncate_to(self, offset: int) -> None:
        self.batches = [each for each in self.batches if each[0].next_offset <= offset]

    @property
    def earliest_snapshot(self) -> SnapshotId | None:
        return min(self.snapshots, default=None)

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        return max(self.snapshots, default=None)

    def snapshot_size(self, id: SnapshotId) -> int | None:
        return len(self.snapshots[id]) if id in self.snapshots else None

    def read_snapshot(self, id: SnapshotId, position: int, max_bytes: int) -> bytes:
        return self.snapshots[id][position : position + max_bytes]

    def begin_snapshot(self, id: SnapshotId) -> None:
        self.download = (id, bytearray())

    def write_snapshot(self, id: SnapshotId, position: int, data: bytes) -> None:
        assert self.download is not None
        assert (self.download[0], len(self.download[1])) == (id, position)
        self._check_room()
        self.download[1].extend(data)

    def abandon_snapshot(self) -> None:
        self.download = None

    def start_after_snapshot(self, id: SnapshotId) -> SnapshotContent:
        assert self.download is not None
        self.snapshots = {id: bytes(self.download[1])}
        self.download = None
        self.batches, self.start_offset = [], id.offset
        return decode_snapshot(self.snapshots[id])

    def start_after(self, id: SnapshotId, snapshot: bytes) -> None:
        """Replace everything below a snapshot by the snapshot."""
        self.snapshots[id] = snapshot
        self.batches = [each for each in self.batches if each[0].base_offset >= id.offset]
        self.start_offset = id.offset

    def values(self) -> list[bytes]:
        return [
            record.value or b""
            for header, data in self.batches
            if not header.is_control
            for record in read_records(data)
        ]

    def epochs(self) -> list[int]:
        return [header.leader_epoch for header, _ in self.batches]


class Replica:
    """One replica with what survives a restart: the log and the election state."""

    def __init__(
        self, lab: RaftHarness, id: int, *, static: VoterSet | None = None, dynamic: VoterSet | None = None
    ) -> None:
        self.lab = lab
        self.id = id
        self.static = static
        self.dynamic = dynamic  # the voters that the directory was formatted with
        self.log = MemoryLog()
        self.election: ElectionState | None = None
        self.bootstrap: list[Address] = []
        self.config = lab.config
        self.local = voter(id)
        self.auto_flush = True
        self.committed = 0
        self.asleep = False
        self.refuses: set[int] = set()  # nodes whose port is closed

    def start(self) -> None:
        history = VoterSetHistory(self.static)
        if self.dynamic is not None:
            history.load_snapshot(0, 1, self.dynamic)
        for _, data in self.log.batches:
            history.replay_batches(data, self.log.end.offset)
        quorum = QuorumState(
            self.local,
            self.log,
            history,
            election=self.election,
            config=self.config,
            random=SeededRandom(self.id),
            now_ms=self.lab.now_ms,
            bootstrap=self.bootstrap,
        )
        self.machine = KafkaRaftMachine(quorum)
        self.machine.start(self.lab.now_ms)
        self.lab.carry_out(self)

    @property
    def quorum(self) -> QuorumState:
        return self.machine.quorum

    @property
    def role(self) -> Role:
        return self.quorum.role

    @property
    def epoch(self) -> int:
        return self.quorum.epoch

    def append(self, *values: bytes) -> int:
        batch = build_batch(
            [(WALL_MS, None, value) for value in values],
            base_offset=self.log.end.offset,
            leader_epoch=self.epoch,
        )
        end = self.machine.append(batch, self.lab.now_ms)
        self.lab.carry_out(self)
        return end

    def flush(self) -> None:
        self.machine.on_log_flushed(self.log.end.offset, self.lab.now_ms)
        self.lab.carry_out(self)

    def ask(self, request: Request) -> list[Reply]:
        """Send the replica a request; the list gets the reply once there is one."""
        token: list[Reply] = []
        self.machine.handle_request(token, request, self.lab.now_ms)
        self.lab.carry_out(self)
        return token


class RaftHarness:
    def __init__(self, *, config: QuorumConfig | None = None) -> None:
        self.config = config or QuorumConfig()
        self.now_ms = 0
        self.replicas: dict[int, Replica] = {}
        # (from, to, deliver): the messages in flight.
        self.mail: list[tuple[int, int, Callable[[], None]]] = []
        # Pairs (from, to) between which messages are lost.
        self.cut: set[tuple[int, int]] = set()

    def add(
        self,
        id: int,
        *,
        static: VoterSet | None = None,
        dynamic: VoterSet | None = None,
        bootstrap: Sequence[int] = (),
        config: QuorumConfig | None = None,
    ) -> Replica:
        replica = self.replicas[id] = Replica(self, id, static=static, dynamic=dynamic)
        replica.bootstrap = [address(other) for other in bootstrap]
        replica.config = config or self.config
        replica.start()
        return replica

    def carry_out(self, replica: Replica) -> None:
        for effect in replica.machine.take_effects():
            match effect:
                case Persist():
                    replica.election = effect.election
                case Send():
                    self._post(replica, effect)
                case Answer():
                    if isinstance(effect.token, list):
                        effect.token.append(effect.reply)
                    elif callable(effect.token):
                        effect.token(effect.reply)
                case Flush():
                    if replica.auto_flush:
                        replica.machine.on_log_flushed(replica.log.end.offset, self.now_ms)
                        self.carry_out(replica)
                case InstallSnapshot():
                    replica.machine.on_snapshot_ready(effect.id, self.now_ms)
                    self.carry_out(replica)
                case Committed():
                    replica.committed = effect.high_watermark
                case _:
                    pass

    def _post(self, sender: Replica, effect: Send) -> None:
        target = next((each for each in self.replicas.values() if address(each.id) == effect.address), None)
        machine = sender.machine

        refused = target is not None and target.id in sender.refuses

        def fail() -> None:
            if sender.machine is machine:
                machine.handle_failure(effect.correlation_id, self.now_ms, refused=refused)
                self.carry_out(sender)

        if target is None or refused:
            self.mail.append((sender.id, sender.id, fail))
            return

        def answer(reply: Reply) -> None:
            def deliver() -> None:
                if sender.machine is machine:
                    machine.handle_response(effect.correlation_id, reply, self.now_ms)
                    self.carry_out(sender)

            assert target is not None
            self.mail.append((target.id, sender.id, deliver))

        def deliver() -> None:
            assert target is not None
            target.machine.handle_request(answer, effect.request, self.now_ms)
            self.carry_out(target)

        self.mail.append((sender.id, target.id, deliver))

    def deliver(self, rounds: int = 100) -> None:
        """Deliver messages until none is left, or for `rounds` rounds."""
        for _ in range(rounds):
            mail, self.mail = self.mail, []
            if not mail:
                return
            for source, target, deliver in mail:
                if (source, target) in self.cut or self._asleep(target):
                    continue
                deliver()

    def _asleep(self, id: int) -> bool:
        return id in self.replicas and self.replicas[id].asleep

    def pass_time(self, ms: int, *, step_ms: int = 10) -> None:
        """Let time pass, with messages delivered as they come."""
        for _ in range(max(ms // step_ms, 1)):
            self.tick(step_ms)
            self.deliver(20)

    def tick(self, ms: int = 10) -> None:
        """Let time pass without delivering messages."""
        self.now_ms += ms
        for replica in list(self.replicas.values()):
            if not replica.asleep:
                replica.machine.poll(self.now_ms)
                self.carry_out(replica)

    def until(self, condition: Callable[[], bool], *, limit_ms: int = 20_000) -> None:
        waited = 0
        while not condition():
            assert waited < limit_ms, f"did not happen within {limit_ms} ms: {self}"
            self.pass_time(10)
            waited += 10

    def isolate(self, id: int) -> None:
        for other in self.replicas:
            if other != id:
                self.cut |= {(id, other), (other, id)}

    def kill(self, id: int) -> None:
        """End the process of a replica: its connections break, and its port is closed."""
        self.replicas[id].asleep = True
        for other in self.replicas.values():
            if other.id != id:
                other.refuses.add(id)
                for inflight in other.quorum.requests.inflight_to(id):
                    other.machine.handle_failure(inflight.correlation_id, self.now_ms)
                    self.carry_out(other)

    def heal(self) -> None:
        self.cut.clear()

    @property
    def leaders(self) -> list[Replica]:
        return [replica for replica in self.replicas.values() if replica.role is Role.LEADER]

    def elect(self) -> Replica:
        """Wait until one replica leads and all others follow it."""
        self.until(lambda: len(self.leaders) >= 1 and self._agreed())
        return max(self.leaders, key=lambda replica: replica.epoch)

    def _agreed(self) -> bool:
        leader = max(self.leaders, key=lambda replica: replica.epoch)
        awake = [replica for replica in self.replicas.values() if not replica.asleep]
        reachable = [r for r in awake if (leader.id, r.id) not in self.cut]
        return all(r.quorum.leader_id == leader.id and r.epoch == leader.epoch for r in reachable)

    def __str__(self) -> str:
        return "; ".join(f"{r.id}: {r.quorum.state}" for r in self.replicas.values())


def quorum(*ids: int, config: QuorumConfig | None = None) -> RaftHarness:
    """A quorum of static voters."""
    lab = RaftHarness(config=config)
    for id in ids:
        lab.add(id, static=static_voters(*ids))
    return lab


def log_of(*epochs: int) -> list[tuple[BatchHeader, bytes]]:
    """A log with one record of each of these epochs."""
    batches = []
    for offset, epoch in enumerate(epochs):
        data = build_batch([(0, None, b"x")], base_offset=offset, leader_epoch=epoch)
        batches.append((BatchHeader.parse(data), data))
    return batches
