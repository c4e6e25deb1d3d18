"""One life of a quorum, from one seed: members that crash and come back, voters that change, values that are
appended all the while, and at the end the question whether it still works.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.raft import wire
from ottla.raft.channel import Channel
from ottla.raft.config import QuorumConfig
from ottla.raft.disk_log import DiskLogConfig
from ottla.raft.messages import AddVoter, RemoveVoter, VoterChangeReply
from ottla.raft.voters import ReplicaKey, Voter, VoterSet
from ottla.runtime.runtime import Runtime
from ottla.sim.nemesis import Nemesis, NemesisConfig
from ottla.sim.quorum_check import QuorumChecker
from ottla.sim.quorum_member import (
    CLUSTER_ID,
    LISTENER,
    Member,
    MemberConfig,
    address_of,
    directory_of,
    format_member,
)
from ottla.sim.world import Machine, World

__all__ = ["QuorumLife", "QuorumOutcome"]

# How long everything may take to work again once no more harm is done.
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
        """What replays this life, with its trace."""
        return f"python -m ottla.sim quorum --seed {self.seed} --trace"

    def __str__(self) -> str:
        state = "VIOLATION" if self.violations else "ok"
        return (
            f"seed {self.seed}: {state}; {self.virtual_s:.0f} s, {self.elections} elections, "
            f"{self.committed} values committed, {self.acknowledged} acknowledged, {self.steps} steps"
        )


class QuorumLife:
    def __init__(
        self, seed: int | str, *, seconds: float = 30.0, nemesis: NemesisConfig | None = None
    ) -> None:
        self.world = World(seed)
        self._seconds = seconds
        random = self.world.random
        self._checker = QuorumChecker(self.world)
        self._dynamic = random.random() < 0.5
        voters = random.choice((1, 2, 3, 3, 3, 3, 4, 5))
        spares = random.choice((0, 1, 2)) if self._dynamic else random.choice((0, 0, 1))
        factor = random.choice((0.3, 0.5, 1.0))
        ids = range(1, voters + 1)
        self._voters = VoterSet.of(
            *(
                Voter(
                    ReplicaKey(id, directory_of(id) if self._dynamic else bytes(16)),
                    {LISTENER: address_of(id)},
                )
                for id in ids
            )
        )
        config = MemberConfig(
            quorum=_timeouts(factor),
            static_voters=None if self._dynamic else self._voters,
            bootstrap=tuple(address_of(id) for id in ids),
            snapshot_every=random.choice((5, 20, 1_000_000)),
            log=DiskLogConfig(segment_bytes=random.choice((2_000, 1 << 20)), max_retention_bytes=0),
        )
        self.members = [Member(self.world, self._checker, id, config) for id in range(1, voters + spares + 1)]
        for member in self.members:
            in_set = self._dynamic and member.id <= voters
            format_member(member.machine, self._voters if in_set else None)
        self.world.machine("admin", self._admin)
        self._admin_channel: Channel | None = None
        self._nemesis = Nemesis(
            self.world, nemesis or NemesisConfig(interval_s=random.choice((0.3, 1.0, 3.0))), self._machines
        )
        self.world.trace.add(
            "world",
            f"{voters} voters, {'dynamic' if self._dynamic else 'static'}, {spares} observers, "
            f"timeouts x{factor}, snapshot every {config.snapshot_every}",
        )

    def _machines(self) -> list[Machine]:
        return [member.machine for member in self.members]

    async def _admin(self, runtime: Runtime) -> None:
        self._admin_channel = Channel(runtime.network)

    def run(self) -> QuorumOutcome:
        world = self.world
        try:
            world.run(self._live())
        except AssertionError as error:
            world.violations.append(f"{type(error).__name__}: {error}")
        return QuorumOutcome(
            world.seed,
            world.violations,
            world.coverage,
            world.trace.fingerprint,
            self._checker.elections,
            self._checker.values,
            len(self._checker.acknowledged),
            world.loop.time(),
            world.loop.steps,
            world.trace.tail(60),
        )

    async def _live(self) -> None:
        for machine in self.world.machines.values():
            machine.boot()
        workers = [asyncio.ensure_future(self._append_values())]
        if self._dynamic:
            workers.append(asyncio.ensure_future(self._change_voters()))
        await self._nemesis.run(self._seconds)
        for worker in workers:
            worker.cancel()
        await asyncio.wait(workers)
        self._nemesis.stop()
        await self._recover()

    # The workload

    async def _append_values(self) -> None:
        """Give values to whoever believes to lead, be it right or not."""
        random, number = self.world.random, 0
        while True:
            await asyncio.sleep(random.expovariate(1.0 / 0.05))
            for member in self.members:
                if member.is_leader and random.random() < 0.9:
                    values = [f"v{number + n}".encode() for n in range(random.randrange(1, 4))]
                    number += len(values)
                    self._submit(member, values)

    def _submit(self, member: Member, values: list[bytes]) -> None:
        process = member.machine.process
        if process is not None:
            self.world.loop.spawn(process, member.submit(values), "submit")

    async def _change_voters(self) -> None:
        """Add and remove voters, one after the other, without asking whether it is a good moment."""
        random = self.world.random
        while True:
            await asyncio.sleep(random.expovariate(1.0 / 2.0))
            leader = next((member for member in self.members if member.is_leader), None)
            if leader is None or leader.client is None:
                continue
            voters = leader.client.raft.core.membership.voters
            if voters is None:
                continue
            target = random.choice(self.members)
            key = ReplicaKey(target.id, directory_of(target.id))
            change: AddVoter | RemoveVoter = (
                RemoveVoter(key)
                if key.id in voters.voters
                else AddVoter(key, {LISTENER: address_of(target.id)}, 2_000)
            )
            await self._ask_admin(leader.id, change)

    async def _ask_admin(self, leader_id: int, change: AddVoter | RemoveVoter) -> None:
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
                    response = await channel.ask(address, message, newest, timeout_ms=5_000)
                    reply = wire.decode_reply(response)
                    assert isinstance(reply, VoterChangeReply)
                    self._tell(f"{kind} {change.voter.id}: {reply.error.name} {reply.message or ''}")
                    if reply.error is ErrorCode.NONE:
                        self.world.coverage[kind] += 1
            except (OSError, KafkaError) as error:
                self._tell(f"{kind} {change.voter.id}: {error!r}")
            finally:
                if not done.done():
                    done.set_result(None)

        self.world.loop.spawn(process, ask(), "change voters")
        await done

    def _tell(self, text: str) -> None:
        self.world.trace.add("admin", text)

    # The end

    async def _recover(self) -> None:
        """Everything is whole again: a leader must be found, a value be committed, and all catch up."""
        loop = self.world.loop
        deadline = loop.time() + _RECOVERY_S
        number = 0
        while not self._is_caught_up(b"last"):
            if loop.time() >= deadline:
                self.world.violated(
                    f"nothing works {_RECOVERY_S:.0f} s after the last fault: {self._states()}"
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
            self._checker.finished(member.id, member.values)

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
                core = client.raft.core
                voters = core.membership.voters
                ids = () if voters is None else voters.ids
                states.append(
                    f"node {member.id} {core.role.value} {core.epoch} leader {core.leader_id} "
                    f"end {core.log.end} hw {core.high_watermark} voters {ids} values {len(member.values)}"
                )
        return "; ".join(states)


def _timeouts(factor: float) -> QuorumConfig:
    return QuorumConfig(
        election_timeout_ms=int(1000 * factor),
        election_backoff_max_ms=int(1000 * factor),
        fetch_timeout_ms=int(2000 * factor),
        request_timeout_ms=int(2000 * factor),
    )
