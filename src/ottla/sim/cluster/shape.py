"""The shape of a simulated cluster: its nodes, their roles and settings."""

from __future__ import annotations

from collections.abc import Mapping

from ottla.raft.voters import ReplicaKey, Voter, VoterSet
from ottla.runtime.address import Address
from ottla.sim.cluster.checker import ClusterChecker
from ottla.sim.cluster.member import ClusterMember
from ottla.sim.cluster.plan import ClusterPlan
from ottla.sim.world import World

__all__ = ["BROKER_PORT", "CONTROLLER_PORT", "DIRECTORIES", "make_members"]

BROKER_PORT, CONTROLLER_PORT = 9092, 9093
LISTENER = "CONTROLLER"
DIRECTORIES = ("/data/a", "/data/b")
_FIRST_CONTROLLER = 101


def make_members(
    world: World, checker: ClusterChecker, plan: ClusterPlan, brokers: tuple[int, ...]
) -> list[ClusterMember]:
    """The nodes with formatted directories, none of them booted."""
    if plan.separate:
        controllers = tuple(range(_FIRST_CONTROLLER, _FIRST_CONTROLLER + plan.controllers))
    else:
        controllers = brokers[: plan.controllers]
    voters = VoterSet.of(*(_voter(id, dynamic=bool(plan.dynamic)) for id in controllers))
    members = []
    for id in sorted({*brokers, *controllers}):
        member = ClusterMember(world, checker, id, _settings(plan, id, brokers, controllers))
        in_set = plan.dynamic and id in controllers
        directories = {path: _directory(id, number) for number, path in enumerate(DIRECTORIES)}
        member.format(directories, voters if in_set else None)
        members.append(member)
    return members


def _voter(id: int, *, dynamic: bool) -> Voter:
    directory = _directory(id, 0) if dynamic else bytes(16)
    return Voter(ReplicaKey(id, directory), {LISTENER: Address(f"node{id}", CONTROLLER_PORT)})


def _directory(id: int, number: int) -> bytes:
    return f"directory{number}-{id:05}".encode()


def _settings(
    plan: ClusterPlan, id: int, brokers: tuple[int, ...], controllers: tuple[int, ...]
) -> Mapping[str, str]:
    haste = plan.haste or 1.0
    factor = str(min(len(brokers), 3))
    roles = [role for role, ids in (("broker", brokers), ("controller", controllers)) if id in ids]
    listeners = {
        "broker": f"PLAINTEXT://node{id}:{BROKER_PORT}",
        "controller": f"{LISTENER}://node{id}:{CONTROLLER_PORT}",
    }
    if plan.dynamic:
        quorum = {
            "controller.quorum.bootstrap.servers": ",".join(f"node{c}:{CONTROLLER_PORT}" for c in controllers)
        }
    else:
        quorum = {"controller.quorum.voters": ",".join(f"{c}@node{c}:{CONTROLLER_PORT}" for c in controllers)}
    return {
        "process.roles": ",".join(roles),
        "node.id": str(id),
        "listeners": ",".join(listeners[role] for role in roles),
        "controller.listener.names": LISTENER,
        "listener.security.protocol.map": f"{LISTENER}:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        **quorum,
        "log.dirs": ",".join(DIRECTORIES),
        "auto.create.topics.enable": "false",
        "default.replication.factor": factor,
        "min.insync.replicas": str(plan.min_insync),
        "offsets.topic.num.partitions": "2",
        "offsets.topic.replication.factor": factor,
        "transaction.state.log.num.partitions": "2",
        "transaction.state.log.replication.factor": factor,
        "transaction.state.log.min.isr": str(plan.min_insync),
        "transaction.max.timeout.ms": "60000",
        "group.initial.rebalance.delay.ms": "300",
        "group.min.session.timeout.ms": "1000",
        "group.consumer.session.timeout.ms": "3000",
        "group.consumer.heartbeat.interval.ms": "500",
        "group.consumer.min.session.timeout.ms": "1000",
        "group.consumer.min.heartbeat.interval.ms": "100",
        "replica.lag.time.max.ms": str(int(10_000 * haste)),
        "replica.fetch.wait.max.ms": str(int(500 * min(haste * 2, 1))),
        "broker.session.timeout.ms": str(int(9_000 * haste)),
        "broker.heartbeat.interval.ms": str(int(2_000 * haste)),
        # A clock that jumps by days must not make anything expire.
        "log.retention.ms": "-1",
        "log.message.timestamp.after.max.ms": "9223372036854775807",
        "offsets.retention.minutes": "2147483647",
        "producer.id.expiration.ms": "2147483647",
        "transactional.id.expiration.ms": "2147483647",
        **({"log.flush.interval.messages": "1"} if plan.synced else {}),
    }
