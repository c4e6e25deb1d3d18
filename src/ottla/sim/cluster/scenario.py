"""The scenario of a run: the shape of the cluster, its features, its clients and the faults.

The shape is drawn from the random numbers of the run, and each feature from numbers of its own. So the same
seed has the same shape whatever features are forced, forbidden or listed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from random import Random

from ottla.metadata.features import (
    DEFAULT_METADATA_VERSION,
    LATEST_METADATA_VERSION,
    TRANSACTION_VERSION,
    bootstrap_levels,
)
from ottla.sim.nemesis import FAULTS, NemesisConfig

# The kinds of clients of which the shape has some, by the name under which a scenario lists them. Features
# have others.
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
_ZOOKEEPER_FAULTS: Mapping[str, int] = {
    "kill ZooKeeper": 4,
    "pause ZooKeeper": 4,
    "cut off from ZooKeeper": 10,
    "expire a session": 10,
    "delete /controller": 8,
}
_STORE_FAULTS: Mapping[str, int] = {
    "store is away": 5,
    "store is slow": 5,
    "store throttles": 5,
    "store fails": 5,
    "cut off from the store": 8,
    "stale lists": 1,
}
_DISK_FAULTS: Mapping[str, int] = {
    "full disk": 4,
    "failing directory": 3,
    "disk error": 3,
    "failing file": 3,
    "read-only directory": 2,
    "no handles": 2,
}
CLUSTER_FAULTS: Mapping[str, int] = {
    **FAULTS,
    "clock drift": 1,
    "stop and start": 3,
    "stop at any moment": 2,
    "rolling restart": 1,
    "kill a client": 3,
    "pause a client": 2,
    **_DISK_FAULTS,
}

# How likely a node is to be killed right after it became leader of a partition, or committed records.
_AMBUSHES: tuple[Mapping[str, float], ...] = (
    {},
    {},
    {"leads": 0.05, "writes a dead letter": 0.1},
    {"leads": 0.02, "commits": 0.005},
    {"commits": 0.02, "writes a dead letter": 0.3},
)


@dataclass(frozen=True, slots=True)
class ScenarioFeature:
    """Something that a cluster may have beside everything else.

    This is its only description: the drawing, the switches of `ottla sim` and the coverage follow from it.
    """

    name: str
    # What a scenario with it has, as the help of its switch.
    what: str
    # How likely it is drawn; None: it is part of the shape, which has it or not by itself.
    chance: float | None
    # Features that cannot be beside it, and those that it cannot be without.
    excludes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    # The fields of a scenario that has it, and of one of which it was taken away.
    fields: Mapping[str, object] = field(default_factory=dict)
    without: Mapping[str, object] = field(default_factory=dict)
    clients: tuple[str, ...] = ()
    faults: Mapping[str, int] = field(default_factory=dict)
    # Settings of all nodes.
    settings: Mapping[str, str] = field(default_factory=dict)
    # The least number of brokers.
    nodes: int = 1

    def is_in(self, scenario: ClusterScenario) -> bool:
        """Whether a shape has it by itself."""
        return (
            all(getattr(scenario, name) == value for name, value in self.fields.items())
            and (not self.clients or any(name in (scenario.clients or ()) for name in self.clients))
            and (not self.faults or any(scenario.weights.get(name) for name in self.faults))
        )

    def add_to(self, scenario: ClusterScenario) -> ClusterScenario:
        weights = scenario.weights
        missing = {name: weight for name, weight in self.faults.items() if not weights.get(name)}
        clients = (*(scenario.clients or ()), *self.clients)
        scenario = replace(scenario, **self.fields, clients=tuple(sorted(dict.fromkeys(clients))))  # type: ignore[arg-type]
        return scenario.with_weights({**missing, **weights, **missing})

    def remove_from(self, scenario: ClusterScenario) -> ClusterScenario:
        clients = tuple(name for name in scenario.clients or () if name not in self.clients)
        scenario = replace(scenario, **self.without, clients=clients)  # type: ignore[arg-type]
        return scenario.with_weights({**scenario.weights, **dict.fromkeys(self.faults, 0)})


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
    # How many log directories a node has.
    directories: int | None = None
    nemesis: NemesisConfig | None = None
    # The names of its features. Given: these, and no others but what the shape has by itself.
    features: tuple[str, ...] | None = None
    # Features that it has beside those that are drawn, and those that it does not have.
    forced: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()
    # To make a story shorter: features and clients that are taken away after the drawing, and the only faults
    # that are injected. All the rest stays as it was drawn.
    dropped: tuple[str, ...] = ()
    faults: tuple[int, ...] | None = None

    def last_levels(self) -> dict[str, int]:
        """The feature levels that the cluster has at the end: those that new clusters begin with, or the last
        ones where an administrator raises them.
        """
        raised = self.has("feature-levels")
        levels = bootstrap_levels(LATEST_METADATA_VERSION if raised else DEFAULT_METADATA_VERSION)
        if self.has("transactions-v1"):
            levels[TRANSACTION_VERSION] = 1
        return levels

    def has(self, feature: str) -> bool:
        assert self.features is not None, "the scenario is not drawn"
        return feature in self.features

    def draw(self, random: Random, seed: int | str) -> ClusterScenario:
        """A copy with all fields set. Takes the same draws for every scenario, so runs can be compared."""
        drawn = _draw(random, self.nodes)
        given = {name: getattr(self, name) for name in self.__slots__ if getattr(self, name) is not None}
        drawn = replace(drawn, **given)
        chosen = self._choose(Random(f"{seed}/features"), drawn)
        for feature in chosen:
            for excluded in features_named(feature.excludes):
                drawn = excluded.remove_from(drawn)
            for each in (*features_named(feature.needs), feature):
                drawn = each.add_to(drawn)
        for feature in features_named(self.forbidden):
            drawn = feature.remove_from(drawn)
        if not drawn.synced:
            # Whether this disk may lose data is not known before the write, nor when a node ends by itself.
            drawn = drawn.with_weights({**drawn.weights, **dict.fromkeys(_OF_SYNCED_DISKS, 0)})
        names = {each.name for each in chosen}
        names.update(each.name for each in FEATURES if each.chance is None and each.is_in(drawn))
        in_order = tuple(each.name for each in FEATURES if each.name in names)
        drawn = replace(drawn, features=in_order, forced=(), forbidden=())
        return drawn._drop(self.dropped)._only(self.faults)

    def _drop(self, names: Collection[str]) -> ClusterScenario:
        """Take features and clients away. Clients and faults that came with a feature stay: a fault of it has
        nothing to happen to, and those after it stay what they were.
        """
        scenario = self
        for feature in FEATURES:
            if feature.name in names:
                scenario = replace(scenario, **feature.without)  # type: ignore[arg-type]
        return replace(
            scenario,
            features=tuple(name for name in self.features or () if name not in names),
            clients=tuple(name for name in self.clients or () if name not in names),
        )

    def _only(self, faults: tuple[int, ...] | None) -> ClusterScenario:
        return self if self.nemesis is None else replace(self, nemesis=replace(self.nemesis, only=faults))

    def _choose(self, random: Random, shape: ClusterScenario) -> list[ScenarioFeature]:
        """What is listed or forced, and what is drawn beside it: an earlier one excludes a later one."""
        asked = features_named((*(self.features or ()), *self.forced))
        drawn = [each for each in FEATURES if random.random() < (each.chance or 0.0)]
        chosen: list[ScenarioFeature] = []
        for feature in asked + [each for each in drawn if self.features is None and each not in asked]:
            reason = self._reason_impossible(feature, chosen, shape)
            if reason is None:
                chosen.append(feature)
            elif feature in asked:
                raise ValueError(f"{feature.name} is not possible {reason}")
        return chosen

    def _reason_impossible(
        self, feature: ScenarioFeature, chosen: Collection[ScenarioFeature], shape: ClusterScenario
    ) -> str | None:
        for other in chosen:
            if not are_compatible(feature, other):
                return f"beside {other.name}"
        missing = {feature.name, *feature.needs} & set(self.forbidden)
        if missing:
            return f"without {', '.join(sorted(missing))}"
        if (shape.nodes or 1) < feature.nodes:
            return f"with less than {feature.nodes} brokers"
        return None

    @property
    def weights(self) -> Mapping[str, int]:
        """The faults, and how often each is drawn."""
        return {} if self.nemesis is None else self.nemesis.weights

    def with_weights(self, weights: Mapping[str, int]) -> ClusterScenario:
        return self if self.nemesis is None else replace(self, nemesis=replace(self.nemesis, weights=weights))

    @property
    def controllers(self) -> int:
        assert self.nodes is not None
        return min(self.nodes, 3)


_OF_SYNCED_DISKS = ("power loss inside a write", *_DISK_FAULTS)

# In the order in which they are drawn: where two exclude each other, the first one wins.
FEATURES: tuple[ScenarioFeature, ...] = (
    ScenarioFeature(
        "zookeeper",
        "Legacy: keep the metadata in ZooKeeper, and inject its faults.",
        chance=0.1,
        # Kafka's znodes have no place for eligible leader replicas, without which a disk that loses data may
        # lose records, nor for several directories, nor for the settings of groups.
        excludes=("dynamic-voters", "bad-disks", "directories", "share-groups"),
        needs=("synced",),
        faults=_ZOOKEEPER_FAULTS,
    ),
    ScenarioFeature(
        "separate-controllers",
        "Have controllers that are no brokers.",
        chance=None,
        fields={"separate": True},
        without={"separate": False},
        nodes=2,
    ),
    ScenarioFeature(
        "dynamic-voters",
        "Keep the voters of the quorum in the metadata log.",
        chance=None,
        fields={"dynamic": True},
        without={"dynamic": False},
    ),
    ScenarioFeature(
        "voter-changes",
        "Remove voters of the quorum, and add them again.",
        chance=0.2,
        needs=("dynamic-voters",),
        clients=("voters",),
        nodes=2,
    ),
    ScenarioFeature(
        "synced",
        "Have replicas sync what they acknowledge (`log.durability=disk`).",
        chance=None,
        fields={"synced": True},
        without={"synced": False},
    ),
    ScenarioFeature(
        "bad-disks",
        "Have disks that fail.",
        chance=None,
        needs=("synced",),
        faults=_DISK_FAULTS,
    ),
    ScenarioFeature(
        "one-directory", "Have one log directory in each node.", chance=0.3, excludes=("directories",)
    ),
    ScenarioFeature(
        "directories",
        "Have several log directories in each node.",
        chance=None,
        fields={"directories": 2},
        without={"directories": 1},
    ),
    ScenarioFeature("secured", "Ask all clients for a login, and change ACLs meanwhile.", chance=0.25),
    ScenarioFeature(
        "tiered",
        "Have topics whose segments go to an object store.",
        chance=0.35,
        clients=("committed-follower", "follower", "topics"),
        faults=_STORE_FAULTS,
    ),
    ScenarioFeature("share-groups", "Have a share group whose members lose locks.", chance=0.3),
    ScenarioFeature(
        "streams-groups",
        "Have a streams group whose members come and go.",
        chance=0.25,
        excludes=("zookeeper",),
        clients=("streams",),
        settings={
            "group.streams.session.timeout.ms": "3000",
            "group.streams.min.session.timeout.ms": "1000",
            "group.streams.heartbeat.interval.ms": "500",
            "group.streams.min.heartbeat.interval.ms": "100",
            "group.streams.initial.rebalance.delay.ms": "300",
        },
    ),
    ScenarioFeature(
        "transactions",
        "Have transactions over several topics, and producers that fence each other.",
        chance=0.3,
        clients=("committed-follower", "rivals", "transactional"),
    ),
    ScenarioFeature(
        "copies",
        "Have groups that copy what they read in transactions.",
        chance=None,
        clients=("copy-classic", "copy-consumer"),
    ),
    ScenarioFeature(
        "groups",
        "Have consumer groups of both protocols.",
        chance=None,
        clients=("classic-group", "consumer-group"),
    ),
    ScenarioFeature(
        "transactions-v1",
        "Keep transactions at version 1, in which producers announce their partitions.",
        chance=0.25,
        excludes=("zookeeper", "two-phase"),
        clients=("committed-follower", "transactional"),
    ),
    ScenarioFeature(
        "two-phase",
        "Have producers that prepare transactions and end them after a decision elsewhere.",
        chance=0.25,
        clients=("committed-follower", "prepared"),
        settings={
            "transaction.two.phase.commit.enable": "true",
            "unstable.api.versions.enable": "true",
        },
    ),
    ScenarioFeature(
        "quotas",
        "Limit clients, with quotas that change.",
        chance=0.25,
        excludes=("zookeeper",),
        clients=("quotas",),
    ),
    ScenarioFeature(
        "compaction",
        "Have a compacted topic, and compact those of coordinators.",
        chance=0.3,
        settings={
            "log.cleaner.backoff.ms": "200",
            "log.cleaner.dedupe.buffer.size": "4194304",
        },
    ),
    ScenarioFeature(
        "feature-levels",
        "Begin with the feature levels of an older version, and raise them.",
        chance=0.15,
        # As with ZooKeeper: there are no eligible leader replicas at first.
        excludes=("zookeeper", "bad-disks"),
        needs=("synced",),
        clients=("levels",),
    ),
    ScenarioFeature(
        "deleted-topics", "Delete topics and create them again.", chance=None, clients=("topics",)
    ),
    ScenarioFeature(
        "reassignments", "Move replicas from broker to broker.", chance=None, clients=("moves",), nodes=2
    ),
    ScenarioFeature(
        "rotten",
        "Have a disk whose bits rot at rest, and scrubbers.",
        chance=0.2,
        excludes=("zookeeper", "bad-disks"),
        needs=("synced",),
        # Where one replica alone has a record, rot on its disk may lose it.
        fields={"min_insync": 2},
        faults={"bits rot": 40},
        # Segments that are closed soon have indexes and snapshots at rest.
        settings={
            "log.scrub.initial.delay.ms": "500",
            "log.scrub.interval.ms": "1000",
            "log.segment.bytes": "1048576",
            "log.roll.ms": "1500",
            "log.index.interval.bytes": "200",
        },
        nodes=3,
    ),
    ScenarioFeature(
        "outages",
        "Have all machines lose their power at once.",
        chance=0.25,
        needs=("synced",),
        faults={"power loss everywhere": 4},
    ),
)


def are_compatible(one: ScenarioFeature, other: ScenarioFeature) -> bool:
    """Whether a cluster may have both."""
    ones, others = {one.name, *one.needs}, {other.name, *other.needs}
    return not ones & set(other.excludes) and not others & set(one.excludes)


def features_named(names: Collection[str]) -> list[ScenarioFeature]:
    """The features with these names, in order; ValueError if one does not exist."""
    known = {feature.name for feature in FEATURES}
    for name in names:
        if name not in known:
            raise ValueError(f"there is no feature {name}: there are {', '.join(sorted(known))}")
    return [feature for feature in FEATURES if feature.name in names]


def check_clients(names: Collection[str]) -> None:
    """ValueError if there are no clients of such a name."""
    known = {
        *CLIENTS,
        *(MANY_PARTITIONS.clients or ()),
        *(name for feature in FEATURES for name in feature.clients),
    }
    for name in names:
        if name not in known:
            raise ValueError(f"there are no clients {name}: there are {', '.join(sorted(known))}")


def _draw(random: Random, asked: int | None) -> ClusterScenario:
    nodes = random.choice((1, 3, 3, 3, 3, 4))
    count = nodes if asked is None else asked
    synced = random.random() < 0.4
    weights = dict(CLUSTER_FAULTS)
    if random.random() < 0.2:
        weights.update(dict.fromkeys(_DISK_FAULTS, 0))
    chosen = random.sample(CLIENTS, random.choice((2, 3, 3, 4, 4, 5, 5, 6, 7, len(CLIENTS))))
    if not {"idempotent", "transactional", "acks-all"} & set(chosen):
        chosen.append("idempotent")
    return ClusterScenario(
        nodes=nodes,
        separate=random.random() < 0.2 and count > 1,
        dynamic=random.random() < 0.5,
        synced=synced,
        min_insync=min(random.choice((1, 2, 2)), count),
        timeout_scale=random.choice((0.1, 0.3, 0.3, 1.0)),
        clients=tuple(sorted(chosen)),
        partitions=0,
        directories=2,
        nemesis=NemesisConfig(
            interval_s=random.choice((0.3, 0.5, 1.0, 2.0)),
            longest_s=random.choice((0.5, 2.0, 5.0)),
            max_down=random.choice((1, 1, None)),
            ambush=random.choice(_AMBUSHES),
            weights=weights,
            new=0.75,
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
    features=(),
    nemesis=NemesisConfig(
        interval_s=0.4,
        longest_s=2.0,
        max_down=1,
        weights={
            **dict.fromkeys(_DISK_FAULTS, 4),
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
