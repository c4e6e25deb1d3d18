"""A run of a whole cluster, from one seed: nodes, clients and faults, and at the end a check of all
guarantees.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from ottla.client.admin import Admin
from ottla.client.admin.configs import ResourceType
from ottla.log.segment.walk import CorruptBatch
from ottla.metadata.features import SHARE_VERSION
from ottla.node.config.definitions.topic import DEAD_LETTER_ENABLE
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from ottla.runtime.runtime import Runtime
from ottla.sim.cluster.admins import admin_settings
from ottla.sim.cluster.checker import ClusterChecker
from ottla.sim.cluster.clients import make_clients
from ottla.sim.cluster.environment import COPIES, EVENTS, EXPIRING, LATEST, MANY, ORDERS, ClusterEnvironment
from ottla.sim.cluster.faults import ClusterFaultInjector
from ottla.sim.cluster.journal import PartitionKey
from ottla.sim.cluster.members import BROKER_PORT, DIRECTORIES, make_members
from ottla.sim.cluster.quiescence import reason_healthy_replicas_lag, reason_not_quiescent, reason_rotten
from ottla.sim.cluster.readers import GroupReader, StandaloneReader
from ottla.sim.cluster.scenario import ClusterScenario
from ottla.sim.cluster.security import AccessView, login_settings
from ottla.sim.cluster.share_checker import DEAD_LETTERS, SHARE_GROUP, ShareGroupTerms
from ottla.sim.cluster.share_workers import ShareWorker, share_partitions
from ottla.sim.cluster.streams_groups import StreamsWorker
from ottla.sim.cluster.tier_checker import TierChecker, TierTerms
from ottla.sim.cluster.topic_auditor import TopicAuditor
from ottla.sim.cluster.verdict import verdict
from ottla.sim.object_store import SimObjectStore
from ottla.sim.world import World
from ottla.sim.zookeeper import SimZooKeeper, connector

# How long a new cluster may take to be ready, and how long everything may take to recover at the end.
_START_S = 60.0
_RECOVERY_S = 120.0
# How long it may take until remote storage has no more than it should: brokers look for the segments of
# deleted topics a minute later.
_CLEANING_S = 240.0
# How long what fails in the store takes at most until it is tried again.
_RETRY_S = 20.0
_CHECK_EVERY_S = 0.25
# Settings of compacted topics, those of coordinators too: their segments are small, and cleaned soon.
_COMPACTED = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "6000",
    "min.cleanable.dirty.ratio": "0.01",
}
_PARTITIONS = 2
_FAILURES = {
    "found no room": (errno.ENOSPC,),
    "input or output failed": (errno.EIO,),
    "found no handle": (errno.EMFILE,),
    "was not allowed": (errno.EACCES, errno.EROFS),
}


@dataclass(slots=True)
class ClusterOutcome:
    seed: int | str
    violations: list[str]
    coverage: Counter[str]
    fingerprint: str
    scenario: ClusterScenario
    boots: int
    elections: int
    acknowledged: int
    committed: int
    read: int
    virtual_s: float
    recovery_s: float
    steps: int
    # How many faults were drawn: they are numbered from 1.
    faults: int
    # The last lines of the trace.
    lines: list[str] = field(default_factory=list)

    @property
    def tail(self) -> list[str]:
        return self.lines[-80:]

    @property
    def command(self) -> str:
        """The command that replays this run, with its trace."""
        return f"python -m ottla.sim cluster --seed {self.seed} --trace"

    def __str__(self) -> str:
        state = "VIOLATION" if self.violations else "ok"
        return (
            f"seed {self.seed}: {state}; {self.scenario.nodes} nodes, {self.virtual_s:.0f} s "
            f"({self.recovery_s:.1f} s to recover), {self.boots} boots, {self.elections} leaders, "
            f"{self.acknowledged} acknowledged, {self.committed} committed, {self.read} read, "
            f"{self.steps} steps"
        )


class ClusterRun:
    """One run; `run` executes it and returns its outcome."""

    def __init__(
        self, seed: int | str, *, seconds: float = 20.0, scenario: ClusterScenario | None = None
    ) -> None:
        self.world = World(seed)
        self._seconds = seconds
        self.scenario = scenario = (scenario or ClusterScenario()).draw(self.world.random, seed)
        assert scenario.nodes is not None
        assert scenario.nemesis is not None
        self.checker = ClusterChecker(self.world, min_insync=scenario.min_insync or 1)
        if scenario.has("share-groups"):
            # Drawn apart, so that the same seed without a share group has the same draws.
            self.checker.share.terms = ShareGroupTerms.draw(random.Random(f"{seed}/share"))
        brokers = tuple(range(1, scenario.nodes + 1))
        servers = ",".join(f"node{id}:{BROKER_PORT}" for id in brokers)
        topics = dict.fromkeys((EVENTS, ORDERS, COPIES), _PARTITIONS)
        if scenario.partitions:
            topics[MANY] = scenario.partitions
        if scenario.has("compaction"):
            topics[LATEST] = _PARTITIONS
        if scenario.has("tiered"):
            topics[EXPIRING] = _PARTITIONS
            self._make_store(seed, topics)
        self.environment = ClusterEnvironment(
            self.world,
            self.checker,
            login_settings(servers) if scenario.has("secured") else servers,
            brokers,
            topics,
            self._topic_settings(),
        )
        self.zookeeper = SimZooKeeper(self.world) if scenario.has("zookeeper") else None
        if scenario.has("zookeeper"):
            self.world.zookeeper = connector
        self.members = make_members(self.world, self.checker, scenario, brokers)
        self._faults = ClusterFaultInjector(
            self.world,
            scenario.nemesis,
            self.members,
            self.checker,
            synced=bool(scenario.synced),
            directories=DIRECTORIES[: scenario.directories],
            zookeeper=self.zookeeper,
            store=None if self.checker.tier is None else self.checker.tier.store,
        )
        self._clients = make_clients(self.environment, scenario, servers, AccessView(self.members))
        self._created = False
        self._committed: dict[str, dict[PartitionKey, int]] = {}
        self._offsets_read = False
        self._recovery_s = 0.0
        self.world.log_handler.is_explained = self._is_explained
        self.world.trace.add("world", str(scenario))
        if self.checker.tier is not None:
            self.world.trace.add("world", str(self.checker.tier.terms))
        if scenario.has("share-groups"):
            self.world.trace.add("world", str(self.checker.share.terms))

    def _make_store(self, seed: int | str, topics: dict[str, int]) -> None:
        # Drawn apart, so that the same seed without tiered topics has the same draws.
        terms = TierTerms.draw(random.Random(f"{seed}/tier"))
        store = SimObjectStore(self.world, part_bytes=terms.part_bytes, error_rate=terms.error_rate)
        self.world.object_store = store.open
        keeps_all = [topic for topic in topics if topic not in (EXPIRING, LATEST)]
        self.checker.tier = TierChecker(
            self.world, terms, store, keeps_all, self.checker.compare_remote_log_metadata
        )

    def _topic_settings(self, topic: str = "") -> dict[str, str]:
        if topic in DEAD_LETTERS:
            return {DEAD_LETTER_ENABLE: "true"}
        if topic == LATEST:
            return {**_COMPACTED, "internal.segment.bytes": "600"}
        if topic in (CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC):
            return _COMPACTED
        tier = self.checker.tier
        return {} if tier is None else tier.terms.topic_settings(expires=topic == EXPIRING)

    # The run

    def run(self) -> ClusterOutcome:
        world = self.world
        try:
            world.run(self._scenario())
        except AssertionError as error:
            world.violations.append(f"{type(error).__name__}: {error}")
        self._count_failures()
        return ClusterOutcome(
            world.seed,
            world.violations,
            world.coverage,
            world.fingerprint,
            self.scenario,
            sum(member.machine.boots for member in self.members),
            self.checker.elections,
            self.environment.journal.acknowledged,
            self.checker.committed,
            self.environment.journal.reads,
            world.loop.time(),
            self._recovery_s,
            world.loop.steps,
            self._faults.nemesis.drawn,
            world.trace.tail(20_000 if world.violations else 80),
        )

    async def _scenario(self) -> None:
        world, environment = self.world, self.environment
        if self.zookeeper is not None:
            self.zookeeper.boot()
        for member in self.members:
            member.machine.boot()
        checking = asyncio.ensure_future(self._check_all_the_time())
        world.machine("setup", self._create_topics).boot()
        if not await self._until(lambda: None if self._created else "no topic can be created", _START_S):
            return
        for name, client in self._clients.items():
            machine = world.machine(name, client.main)
            self._faults.clients.append(machine)
            machine.boot()
        await self._faults.run(self._seconds)
        began = world.loop.time()
        self._faults.stop()
        if not await self._until(
            lambda: reason_healthy_replicas_lag(self.members, self.checker), _RECOVERY_S
        ):
            return
        self._faults.let_operator_restart()
        environment.stopping = True
        readers = {
            name
            for name, client in self._clients.items()
            if isinstance(client, StandaloneReader | GroupReader | ShareWorker | StreamsWorker)
        }
        if not await self._until(lambda: self._busy(set(self._clients) - readers), _RECOVERY_S):
            return
        environment.draining = True
        if not await self._until(lambda: self._busy(set(self._clients)), _RECOVERY_S):
            return
        partitions = share_partitions(environment)
        if not await self._until(lambda: reason_not_quiescent(self.members, self.checker), _RECOVERY_S):
            return
        if self.scenario.has("rotten") and not await self._until(self._reason_rotten, _RECOVERY_S):
            return
        self._recovery_s = world.loop.time() - began
        world.machine("auditor", self._read_committed_offsets).boot()
        if not await self._until(
            lambda: None if self._offsets_read else "the committed offsets cannot be read", _RECOVERY_S
        ):
            return
        if self.checker.tier is not None and not await self._audit_tier(self.checker.tier):
            return
        if self.scenario.has("compaction") and not await self._audit_compacted_topic():
            return
        checking.cancel()
        broken = next(verdict(self.checker, environment.journal, self._committed), None)
        if broken is None and self.scenario.has("share-groups"):
            broken = next(self.checker.share.verdict(partitions), None)
        if broken is not None:
            world.report_violation(broken)
        self._check_logged_errors()

    def _reason_rotten(self) -> str | None:
        return reason_rotten(self.members) or reason_not_quiescent(self.members, self.checker)

    async def _audit_tier(self, tier: TierChecker) -> bool:
        """Wait until everything is copied, read it from its beginning, and wait until the store is clean."""
        if not await self._until(lambda: tier.reason_not_copied(self.members), _RECOVERY_S):
            return False
        unknown = tier.reason_epochs_unknown(self.members, self.checker.histories)
        if unknown is not None:
            self.world.report_violation(unknown)
            return False
        tier.count_tiered(self.members)
        topics = [topic for topic in self.environment.topics if topic != LATEST]
        auditor = TopicAuditor(self.environment, topics)
        self.world.machine("tier-auditor", auditor.main).boot()
        if not await self._until(auditor.reason_not_done, _RECOVERY_S):
            return False
        if not await self._until(tier.reason_store_not_clean, _RETRY_S):
            return False
        if not await self._until(lambda: tier.reason_store_not_clean(self.checker.newest), _CLEANING_S):
            return False
        missing = next(tier.missing_objects(self.checker.newest), None)
        broken = next(auditor.differences(self._log_starts()), None)
        if missing is not None:
            self.world.report_violation(f"{missing} is of a finished copy, and not in the store")
        elif broken is not None:
            self.world.report_violation(broken)
        return missing is None and broken is None

    async def _audit_compacted_topic(self) -> bool:
        """Read it from its beginning: the last record of each key is there."""
        auditor = TopicAuditor(self.environment, [LATEST])
        self.world.machine("compaction-auditor", auditor.main).boot()
        if not await self._until(auditor.reason_not_done, _RECOVERY_S):
            return False
        self.world.coverage["compaction: records gone"] += auditor.gone
        broken = next(auditor.missing_keys(), None)
        if broken is not None:
            self.world.report_violation(broken)
        return broken is None

    def _log_starts(self) -> dict[TopicPartition, int]:
        """The log start of each partition, at its leader."""
        return {
            partition.topic_partition: partition.log.log_start_offset
            for member in self.members
            if member.broker is not None
            for partition in member.broker.replicas
            if partition.is_leader
        }

    def _busy(self, names: set[str]) -> str | None:
        busy = sorted(names - self.environment.ended)
        if not busy:
            return None
        text = f"these clients have not finished: {', '.join(busy)}"
        if self.scenario.has("share-groups") and self.environment.draining:
            left = self.checker.share.reason_not_drained(share_partitions(self.environment))
            text += f"; {left}" if left is not None else ""
        return text

    async def _until(self, missing: Callable[[], str | None], limit_s: float) -> bool:
        """Wait until `missing` returns None; if that takes too long, a guarantee is broken."""
        deadline = self.world.loop.time() + limit_s
        while (text := missing()) is not None:
            if self.world.loop.time() >= deadline:
                self.world.report_violation(f"{limit_s:.0f} s without any fault, and {text}")
                return False
            await asyncio.sleep(0.25)
        return True

    async def _check_all_the_time(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_EVERY_S)
            for member in self.members:
                member.check()

    def _check_logged_errors(self) -> None:
        for who, text in self.world.log_handler.unexpected[:1]:
            self.world.report_violation(f"{who} logged an error that no fault explains: {text}")

    def _is_explained(self, who: str, error: Exception) -> bool:
        """Whether a disk fault of the node, or rot on its disk, explains an error that it logged."""
        found = next((member for member in self.members if member.machine.name == who), None)
        if found is not None and found.id == self.checker.rotting and isinstance(error, CorruptBatch):
            return True
        if found is None or not found.has_disk_fault:
            return False
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OSError | KafkaError):
            cause = cause.__cause__
        return cause is not None

    def _count_failures(self) -> None:
        for name, codes in _FAILURES.items():
            times = sum(member.machine.disk.failures[code] for member in self.members for code in codes)
            if times:
                self.world.coverage[name] += times

    # Setup and the final offsets

    async def _create_topics(self, runtime: Runtime) -> None:
        factor = min(len(self.environment.brokers), 3)
        while not self._created:
            try:
                async with Admin(self.environment.servers, runtime=runtime, **admin_settings()) as admin:
                    terms = self.checker.share.terms
                    if terms is not None:
                        # Before the topics: so each leader of them knows it.
                        settings = terms.group_settings()
                        await admin.configs.alter(ResourceType.GROUP, SHARE_GROUP, set=settings)
                        if terms.dead_letters:
                            await admin.cluster.update_features({SHARE_VERSION: 2})
                    internal = (CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC)
                    compacted = (
                        dict.fromkeys(internal, _PARTITIONS) if self.scenario.has("compaction") else {}
                    )
                    dead_letters = (
                        dict.fromkeys(DEAD_LETTERS, 1) if terms is not None and terms.dead_letters else {}
                    )
                    topics = {**compacted, **dead_letters, **self.environment.topics}
                    for topic, partitions in topics.items():
                        try:
                            await admin.topics.create(
                                topic,
                                partitions=partitions,
                                replication_factor=factor,
                                configs=self._topic_settings(topic),
                            )
                        except KafkaError as error:
                            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                                raise
                self._created = True
            except (KafkaError, OSError) as error:
                self.world.trace.add("setup", f"tries again: {error}")
                await asyncio.sleep(0.5)

    async def _read_committed_offsets(self, runtime: Runtime) -> None:
        while not self._offsets_read:
            try:
                async with Admin(self.environment.servers, runtime=runtime, **admin_settings()) as admin:
                    for group in self.environment.journal.groups:
                        found = await admin.groups.offsets(group)
                        self._committed[group] = {
                            (partition.topic, partition.partition): committed.offset
                            for partition, committed in found.items()
                        }
                self._offsets_read = True
            except (KafkaError, OSError) as error:
                self.world.trace.add("auditor", f"tries again: {error}")
                await asyncio.sleep(0.5)
