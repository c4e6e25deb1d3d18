"""The scenario of a run: the shape of the cluster, its settings, its clients and the faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random

from ottla.sim.nemesis import FAULTS, NemesisConfig

__all__ = [
    "CLIENTS",
    "CLUSTER_FAULTS",
    "MANY_PARTITIONS",
    "STORE_FAULTS",
    "ZOOKEEPER_FAULTS",
    "ClusterScenario",
]

# The kinds of clients, by the name under which a scenario lists them.
CLIENTS = (
    "acks-0",
    "acks-1",
    "acks-all",
    "idempotent",
    "transactional",
    "rivals",
    "classic-group",
    "consumer-group",
    "copy-classic",
    "copy-consumer",
    "follower",
    "committed-follower",
    "topics",
    "settings",
    "moves",
)
ZOOKEEPER_FAULTS: Mapping[str, int] = {
    "kill ZooKeeper": 4,
    "pause ZooKeeper": 4,
    "cut off from ZooKeeper": 10,
    "expire a session": 10,
    "delete /controller": 8,
}
STORE_FAULTS: Mapping[str, int] = {
    "store is away": 5,
    "store is slow": 5,
    "store throttles": 5,
    "store fails": 5,
    "cut off from the store": 8,
    "stale lists": 1,
}
# The clients that every run with tiered topics has, beside those that are drawn.
_TIER_CLIENTS = ("committed-follower", "follower", "topics")

CLUSTER_FAULTS: Mapping[str, int] = {
    **FAULTS,
    "clock drift": 1,
    "stop and start": 3,
    "rolling restart": 1,
    "kill a client": 3,
    "pause a client": 2,
    "full disk": 4,
    "failing directory": 3,
    "disk error": 3,
    "failing file": 3,
    "read-only directory": 2,
    "no handles": 2,
}
DISK_FAULTS = (
    "full disk",
    "failing directory",
    "disk error",
    "failing file",
    "read-only directory",
    "no handles",
)


# How likely a node is to be killed right after it became leader of a partition, or committed records.
_AMBUSHES: tuple[Mapping[str, float], ...] = (
    {},
    {},
    {"leads": 0.05},
    {"leads": 0.02, "commits": 0.005},
    {"commits": 0.02},
)


@dataclass(frozen=True, slots=True)
class ClusterScenario:
    """Fields that are None are drawn from the seed."""

    nodes: int | None = None
    # Whether every node is broker and controller, or there are controllers besides the brokers.
    separate: bool | None = None
    dynamic: bool | None = None
    # Whether replicas sync before they acknowledge. If not, a disk may only lose what other replicas have.
    synced: bool | None = None
    min_insync: int | None = None
    # All timeouts, as a fraction of Kafka's.
    timeout_scale: float | None = None
    clients: tuple[str, ...] | None = None
    # Of the topic that has many; 0 if there is none.
    partitions: int | None = None
    nemesis: NemesisConfig | None = None
    # Whether all listeners ask for a login, and there are ACLs, which change; it is not drawn.
    secured: bool = False
    # Whether there is a share group, with members that lose locks; it is not drawn.
    share_groups: bool = False
    # Whether the metadata are in ZooKeeper, the legacy mode, and not in a quorum; it is not drawn.
    zookeeper: bool = False
    # Whether topics have remote storage, in a simulated object store; it is not drawn.
    tiered: bool = False

    def draw(self, random: Random) -> ClusterScenario:
        """A copy with all fields set. Takes the same draws for every scenario, so runs can be compared."""
        drawn = _draw(random, self.nodes)
        given = {name: getattr(self, name) for name in self.__slots__ if getattr(self, name) is not None}
        drawn = replace(drawn, **given)
        if drawn.tiered:
            assert drawn.nemesis is not None
            weights = {**STORE_FAULTS, **drawn.nemesis.weights}
            drawn = replace(
                drawn,
                clients=tuple(sorted({*(drawn.clients or ()), *_TIER_CLIENTS})),
                nemesis=replace(drawn.nemesis, weights=weights),
            )
        if not drawn.zookeeper:
            return drawn
        # Kafka's znodes have no place for eligible leader replicas, without which a disk that loses data may
        # lose records, nor for several directories.
        assert drawn.nemesis is not None
        weights = {**ZOOKEEPER_FAULTS, **drawn.nemesis.weights}
        weights.update(dict.fromkeys(DISK_FAULTS, 0))
        return replace(drawn, dynamic=False, synced=True, nemesis=replace(drawn.nemesis, weights=weights))

    @property
    def controllers(self) -> int:
        assert self.nodes is not None
        return min(self.nodes, 3)


def _draw(random: Random, asked: int | None) -> ClusterScenario:
    nodes = random.choice((1, 3, 3, 3, 3, 4))
    count = nodes if asked is None else asked
    synced = random.random() < 0.4
    weights = dict(CLUSTER_FAULTS)
    if not synced:
        # Whether this disk may lose data is not known ahead of the write, nor when a node will end by itself.
        weights["power loss inside a write"] = 0
    if random.random() < 0.2 or not synced:
        weights.update(dict.fromkeys(DISK_FAULTS, 0))
    chosen = random.sample(CLIENTS, random.choice((2, 3, 3, 4, 4, 5, 5, 6, 7, len(CLIENTS))))
    if not {"idempotent", "transactional", "acks-all"} & set(chosen):
        chosen.append("idempotent")
    return ClusterScenario(
        nodes=nodes,
        separate=random.random() < 0.2 and count > 1,
        dynamic=random.random() < 0.5,
        synced=synced,
        min_insync=random.choice((1, 2, 2)) if count > 1 else 1,
        timeout_scale=random.choice((0.1, 0.3, 0.3, 1.0)),
        clients=tuple(sorted(chosen)),
        partitions=0,
        nemesis=NemesisConfig(
            interval_s=random.choice((0.3, 0.5, 1.0, 2.0)),
            longest_s=random.choice((0.5, 2.0, 5.0)),
            max_down=random.choice((1, 1, None)),
            ambush=random.choice(_AMBUSHES),
            weights=weights,
        ),
    )


# Many partitions and bad disks: single files, directories and disks that fail in every way, on nodes that are
# also killed and cut off.
MANY_PARTITIONS = ClusterScenario(
    nodes=3,
    separate=False,
    synced=True,
    min_insync=2,
    clients=("acks-all", "consumer-group", "follower", "idempotent", "spread"),
    partitions=120,
    nemesis=NemesisConfig(
        interval_s=0.4,
        longest_s=2.0,
        max_down=1,
        weights={
            **dict.fromkeys(DISK_FAULTS, 4),
            "failing file": 12,
            "kill a process": 2,
            "kill it after some steps": 2,
            "power loss": 1,
            "pause a process": 2,
            "cut one link": 2,
            "isolate a machine": 2,
            "sever connections": 1,
            "stop and start": 2,
            "slow disk": 1,
        },
    ),
)
