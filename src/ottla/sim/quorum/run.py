"""A run of a quorum, from one seed: members crash and come back, voters change, values are appended, and at
the end the quorum must recover.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.raft.config import QuorumConfig
from ottla.raft.driver import wire
from ottla.raft.driver.kafka_raft_log import KafkaRaftLogConfig
from ottla.raft.messages import AddVoter, RemoveVoter, VoterChangeReply
from ottla.raft.voters import ReplicaKey, Voter, VoterSet
from ottla.rpc.channel import InterNodeClient
from ottla.runtime.runtime import Runtime
from ottla.sim.nemesis import Nemesis, NemesisConfig
from ottla.sim.quorum.checker import QuorumChecker
from ottla.sim.quorum.member import (
    CLUSTER_ID,
    LISTENER,
    SimQuorumMember,
    SimQuorumMemberConfig,
    address_of,
    directory_of,
    format_member,
)
from ottla.sim.world import SimMachine, World

T = TypeVar("T")

_AMBUSHES: tuple[Mapping[str, float], ...] = (
    {},
    {},
    {"voted": 0.3, "elected": 0.3, "acknowledged": 0.01},
    {"elected": 0.6},
)
# How long the quorum may take to recover after the last fault.
_RECOVERY_S = 60.0


@dataclass(slots=True)
class QuorumOutcome:
    seed: int | str
    violations: list[str]
    coverage: Counter[str]
    fingerprint: str
    elections: int
    committed: int
    acknowledged: int
    virtual_s: float
    steps: int
    tail: list[str] = field(default_factory=list)

    @property
    def command(self) -> str:
        """The command that replays this run, with its trace."""
        return f"python -m ottla.sim quorum --seed {self.seed} --trace"

    def __str__(self) -> str:
        state = "VIOLATION" if self.violations else "ok"
        return (
            f"seed {self.seed}: {state}; {self.virtual_s:.0f} s, {self.elections} elections, "
            f"{self.committed} values committed, {self.acknowledged} acknowledged, {self.steps} steps"
        )


@dataclass(frozen=True, slots=True)
class QuorumScenario:
    """The scenario of a run; fields that are None are drawn from the seed."""

    voters: int | None = None
    observers: int | None = None
    dynamic: bool | None = None
    # All timeouts, as a fraction of Kafka's. With short ones several voters are candidates at once.
    timeout_scale: float | None = None
    append_every_s: float | None = None
    change_every_s: float | None = None
    fetch_max_bytes: int | None = None
    nemesis: NemesisConfig | None = None

    def draw(self, random: Random) -> QuorumScenario:
        """A copy with all fields set. Takes the same draws for every scenario, so runs can be compared."""
        dynamic = _or(self.dynamic, random.random() < 0.5)
        observers = random.choice((0, 1, 2)) if dynamic else random.choice((0, 0, 1))
        return QuorumScenario(
            voters=_or(self.voters, random.choice((1, 2, 3, 3, 3, 3, 4, 5))),
            observers=_or(self.observers, observers),
            dynamic=dynamic,
            timeout_scale=_or(self.timeout_scale, random.choice((0.05, 0.1, 0.1, 0.2, 0.3, 1.0))),
            append_every_s=_or(self.append_every_s, random.choice((0.05, 0.2, 0.5))),
            change_every_s=_or(self.change_every_s, random.choice((0.5, 3.0))),
            fetch_max_bytes=_or(self.fetch_max_bytes, random.choice((1, 500, 1 << 20))),
            nemesis=_or(
                self.nemesis,
                NemesisConfig(
                    interval_s=random.choice((0.3, 0.6, 1.0, 3.0)),
                    longest_s=random.choice((0.3, 1.0, 2.0, 6.0)),
                    ambush=random.choice(_AMBUSHES),
                ),
            ),
        )


def _or(given: T | None, drawn: T) -> T:
    return drawn if given is None else given


class QuorumRun:
    """One run; `run` executes it and returns its outcome."""

    def __init__(
        self, seed: int | str, *, seconds: float = 20.0, scenario: QuorumScenario | None = None
    ) -> None:
        self.world = World(seed)
        self._seconds = seconds
        random = self.world.random
        self._checker = QuorumChecker(self.world)
        scenario = self.scenario = (scenario or QuorumScenario()).draw(random)
        assert scenario.voters is not None
        assert scenario.observers is not None
        assert scenario.nemesis is not None
        self._dynamic = bool(scenario.dynamic)
        ids = range(1, scenario.voters + 1)
        self._voters = VoterSet.of(*(self._voter(id) for id in ids))
        config = SimQuorumMemberConfig(
            quorum=_timeouts(scenario.timeout_scale or 1.0, scenario.fetch_max_bytes or 1),
            static_voters=None if self._dynamic else self._voters,
            bootstrap=tuple(address_of(id) for id in ids),
            snapshot_every=random.choice((5, 20, 1_000_000)),
            log=KafkaRaftLogConfig(segment_bytes=random.choice((2_000, 1 << 20)), max_retention_bytes=0),
        )
        self.members = [
            SimQuorumMember(self.world, self._checker, id, config)
            for id in range(1, scenario.voters + scenario.observers + 1)
        ]
        for member in self.members:
            in_set = self._dynamic and member.id <= scenario.voters
            format_member(member.machine, self._voters if in_set else None)
        self.world.machine("admin", self._admin)
        self._admin_channel: InterNodeClient | None = None
        self._nemesis = Nemesis(self.world, scenario.nemesis, self._machines)
        self.world.trace.add(
            "world",
            f"{scenario.voters} voters, {'dynamic' if self._dynamic else 'static'}, "
            f"{scenario.observers} observers, timeouts x{scenario.timeout_scale}, "
            f"fetches of {scenario.fetch_max_bytes} bytes, snapshot every {config.snapshot_every}",
        )

    def _voter(self, id: int) -> Voter:
        directory = directory_of(id) if self._dynamic else bytes(16)
        return Voter(ReplicaKey(id, directory), {LISTENER: address_of(id)})

    def _machines(self) -> list[SimMachine]:
        return [member.machine for member in self.members]

    async def _admin(self, runtime: Runtime) -> None:
        self._admin_channel = InterNodeClient(runtime.network)

    def run(self) -> QuorumOutcome:
        world = self.world
        try:
            world.run(self._scenario())
        except AssertionError as error:
            world.violations.append(f"{type(error).__name__}: {error}")
        return QuorumOutcome(
            world.seed,
            world.violations,
            world.coverage,
            world.fingerprint,
            self._checker.elections,
            self._checker.values,
            len(self._checker.acknowledged),
            world.loop.time(),
            world.loop.steps,
            world.trace.tail(60),
        )

    async def _scenario(self) -> None:
        for machine in self.world.machines.values():
            machine.boot()
        workers = [asyncio.ensure_future(self._append_values()), asyncio.ensure_future(self._watch_leaders())]
        if self._dynamic:
            workers += [asyncio.ensure_future(self._change_voters()) for _ in range(3)]
        await self._nemesis.run(self._seconds)
        for worker in workers:
            worker.cancel()
        await asyncio.wait(workers)
        self._nemesis.stop()
        await self._recover()

    # The workload

    async def _append_values(self) -> None:
        """Append values at every node that believes it is leader."""
        random, number = self.world.random, 0
        while True:
            await asyncio.sleep(random.expovariate(1.0 / (self.scenario.append_every_s or 0.1)))
            for member in self.members:
                if member.is_leader and random.random() < 0.9:
                    values = [f"v{number + n}".encode() for n in range(random.randrange(1, 4))]
                    number += len(values)
                    self._submit(member, values)

    def _submit(self, member: SimQuorumMember, values: list[bytes]) -> None:
        process = member.machine.process
        if process is not None:
            self.world.loop.spawn(process, member.submit(values), "submit")

    async def _change_voters(self) -> None:
        """Add and remove voters, one after the other, at any moment."""
        random = self.world.random
        while True:
            await asyncio.sleep(random.expovariate(1.0 / (self.scenario.change_every_s or 1.0)))
            leaders = [member for member in self.members if member.is_leader]
            if not leaders:
                continue
            leader = random.choice(leaders)
            assert leader.client is not None
            voters = leader.client.voter_history.voters
            if voters is None:
                continue
            missing = [member for member in self.members if member.id not in voters.voters]
            # Large voter sets give more competing elections.
            target = random.choice(missing if missing and random.random() < 0.6 else self.members)
            key = ReplicaKey(target.id, directory_of(target.id))
            change: AddVoter | RemoveVoter = (
                RemoveVoter(key)
                if key.id in voters.voters
                else AddVoter(key, {LISTENER: address_of(target.id)}, 2_000)
            )
            await self._request_change(leader.id, change)

    async def _request_change(self, leader_id: int, change: AddVoter | RemoveVoter) -> None:
        process = self.world.machines["admin"].process
        assert process is not None
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def ask() -> None:
            channel = self._admin_channel
            kind = type(change).__name__
            try:
                if channel is not None:
                    message = wire.encode_request(change, CLUSTER_ID)
                    address = address_of(leader_id)
                    newest = wire.VERSIONS[message.API_KEY]
                    timeout_ms = self.members[0].config.quorum.request_timeout_ms * 5 // 4
                    response = await channel.request(address, message, newest, timeout_ms=timeout_ms)
                    reply = wire.decode_reply(response, LISTENER)
                    assert isinstance(reply, VoterChangeReply)
                    self._trace(f"{kind} {change.voter.id}: {reply.error.name} {reply.message or ''}")
                    if reply.error is ErrorCode.NONE:
                        self.world.coverage[kind] += 1
            except (OSError, KafkaError) as error:
                self._trace(f"{kind} {change.voter.id}: {error!r}")
            finally:
                if not done.done():
                    done.set_result(None)

        self.world.loop.spawn(process, ask(), "change voters")
        await done

    def _trace(self, text: str) -> None:
        self.world.trace.add("admin", text)

    async def _watch_leaders(self) -> None:
        """Check that a leader that reaches no majority steps down."""
        loop, alone_since = self.world.loop, dict[int, float]()
        while True:
            await asyncio.sleep(0.1)
            for member in self.members:
                if not member.is_leader or self._reaches_majority(member):
                    alone_since.pop(member.id, None)
                    continue
                patience_s = 2 * member.config.quorum.check_quorum_timeout_ms / 1000
                if loop.time() - alone_since.setdefault(member.id, loop.time()) > patience_s:
                    self.world.report_violation(
                        f"node {member.id} is still leader although it reaches no majority"
                    )

    def _reaches_majority(self, member: SimQuorumMember) -> bool:
        client, process = member.client, member.machine.process
        if client is None or process is None or process.paused:
            return True  # it cannot act
        voters = client.voter_history.voters
        assert voters is not None
        reached = 0
        for id in voters.ids:
            other = self.members[id - 1].machine
            if id == member.id:
                reached += 1
            elif other.process is not None and not other.process.paused:
                cut = self.world.fabric.is_cut
                both = not cut(other.name, member.machine.name) and not cut(member.machine.name, other.name)
                reached += both
        return reached >= voters.majority

    # Recovery

    async def _recover(self) -> None:
        """Check that without faults a leader is elected, a value is committed, and all members catch up."""
        loop = self.world.loop
        deadline = loop.time() + _RECOVERY_S
        number = 0
        while not self._is_caught_up(b"last"):
            if loop.time() >= deadline:
                self.world.report_violation(
                    f"no recovery within {_RECOVERY_S:.0f} s after the last fault: {self._states()}"
                )
                return
            leader = next((member for member in self.members if member.is_leader), None)
            if leader is not None and not any(
                value.startswith(b"last") for value in self._checker.acknowledged
            ):
                number += 1
                self._submit(leader, [b"last%d" % number])
            await asyncio.sleep(0.5)
        for member in self.members:
            self._checker.check_final(member.id, member.values)

    def _is_caught_up(self, prefix: bytes) -> bool:
        if not any(value.startswith(prefix) for value in self._checker.acknowledged):
            return False
        return all(member.is_up and len(member.values) >= self._checker.values for member in self.members)

    def _states(self) -> str:
        states = []
        for member in self.members:
            client = member.client
            if client is None:
                states.append(f"node {member.id} is not up")
            else:
                status = client.status
                voters = status.voters
                ids = () if voters is None else voters.ids
                states.append(
                    f"node {member.id} {status.role.value} {status.epoch} leader {status.leader_id} "
                    f"end {status.log_end} hw {status.high_watermark} voters {ids} "
                    f"values {len(member.values)}"
                )
        return "; ".join(states)


def _timeouts(timeout_scale: float, fetch_max_bytes: int) -> QuorumConfig:
    return QuorumConfig(
        election_timeout_ms=int(1000 * timeout_scale),
        election_backoff_max_ms=int(1000 * timeout_scale),
        fetch_timeout_ms=int(2000 * timeout_scale),
        request_timeout_ms=int(2000 * timeout_scale),
        fetch_max_wait_ms=int(500 * min(timeout_scale * 2, 1)),
        fetch_max_bytes=fetch_max_bytes,
        fetch_snapshot_max_bytes=max(fetch_max_bytes, 100),
    )
