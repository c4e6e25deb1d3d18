"""The nodes of a simulated cluster: each is what `ottla start` runs, on a machine of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from random import Random

from ottla.metadata.features import METADATA_VERSIONS, bootstrap_levels
from ottla.metadata.image.image import MetadataImage
from ottla.metadata.log.bootstrap_metadata import format_directory
from ottla.metadata.records import MetadataRecord
from ottla.node.api.broker_extension import BrokerExtension
from ottla.node.config.errors import NodeFailed
from ottla.node.config.node_config import NodeConfig
from ottla.node.node import Node
from ottla.node.server.broker_server import BrokerServer
from ottla.protocol.metadata_records import FeatureLevelRecord
from ottla.raft.voters import ReplicaKey, Voter, VoterSet
from ottla.runtime.address import Address
from ottla.runtime.random import SeededRandom
from ottla.runtime.runtime import Runtime
from ottla.sim.cluster.checker import ClusterChecker, NodeWatcher
from ottla.sim.cluster.scenario import ClusterScenario, features_named
from ottla.sim.cluster.security import first_users, server_settings
from ottla.sim.cluster.share_checker import ShareWatcher
from ottla.sim.loop import Process
from ottla.sim.world import World
from ottla.sim.zookeeper import HOST as ZOOKEEPER_HOST
from ottla.sim.zookeeper import PORT as ZOOKEEPER_PORT

CLUSTER_ID = "simulated-cluster-id00"
BROKER_PORT, CONTROLLER_PORT = 9092, 9093
LISTENER = "CONTROLLER"
DIRECTORIES = ("/data/a", "/data/b")
_FIRST_CONTROLLER = 101
# How long after its end a process is started again, as by a service manager.
_RESTART_S = 0.5


class ClusterMember:
    """A node and its machine, which boots again whenever the node ends by itself."""

    def __init__(self, world: World, checker: ClusterChecker, id: int, settings: Mapping[str, str]) -> None:
        self._world = world
        self._checker = checker
        self.id = id
        self.settings = dict(settings)
        self.is_secured = "authorizer.class.name" in settings
        self.machine = world.machine(f"node{id}", self.main)
        self.machine.on_end = self._ends
        checker.machines[id] = self.machine
        self._node: Node | None = None
        self._starting: asyncio.Future[None] | None = None
        self.watcher: NodeWatcher | None = None
        self._boot = 0
        # The faults of its disk now; and whether there was one since it booted.
        self.disk_faults: list[object] = []
        self._had_disk_fault = False

    def format(
        self, directories: Mapping[str, bytes], voters: VoterSet | None, levels: Mapping[str, int]
    ) -> None:
        """Format its directories, at these feature levels; with dynamic voters the bootstrap snapshot names
        them.
        """
        machine, config = self.machine, NodeConfig(self.settings)
        # All nodes are formatted with the same first users.
        records: list[MetadataRecord] = [
            FeatureLevelRecord(name=name, feature_level=level) for name, level in levels.items()
        ]
        if self.is_secured:
            records = [*records, *first_users(SeededRandom(f"{self._world.seed}/users"))]
        for path, directory_id in directories.items():
            format_directory(
                machine.disk,
                SeededRandom(f"{self._world.seed}/format/{self.id}"),
                machine.clock,
                path,
                cluster_id=CLUSTER_ID,
                node_id=self.id,
                bootstrap=records,
                directory_id=directory_id,
                dynamic_voters=voters if path == config.metadata_log_dir else None,
            )
        machine.disk.sync_all()

    @property
    def node(self) -> Node | None:
        """The node that its process runs; None while it is down."""
        return self._node if self.machine.is_up and self._boot == self.machine.boots else None

    @property
    def is_ready(self) -> bool:
        return self.node is not None and self.node.shared.state.ready.is_set()

    @property
    def is_stopping(self) -> bool:
        return self.node is not None and self.node.shared.state.phase == "stopping"

    @property
    def boot(self) -> int:
        """How often it was booted."""
        return self.machine.boots

    @property
    def ready_image(self) -> MetadataImage | None:
        """The metadata that it has applied; None if it is not ready."""
        return self.node.image if self.node is not None and self.is_ready else None

    @property
    def has_disk_fault(self) -> bool:
        """Whether its disk has failed or was full since it booted: then it may end, and log errors."""
        return self._had_disk_fault or bool(self.disk_faults)

    def begin_disk_fault(self) -> Callable[[], None]:
        """Note a fault of its disk, until the returned function is called."""
        token = object()
        self.disk_faults.append(token)
        self._had_disk_fault = True

        def ends() -> None:
            if token in self.disk_faults:
                self.disk_faults.remove(token)

        return ends

    @property
    def broker(self) -> BrokerServer | None:
        """The broker of that node, from the moment on at which it has parts."""
        return None if self.node is None else self.node.broker

    @property
    def needs_operator(self) -> bool:
        """Whether one of its directories is offline and the disk has no fault: it has to be restarted."""
        if self.disk_faults or self.broker is None:
            return False
        return any(not directory.is_online for directory in self.broker.logs.directories)

    @property
    def is_awake(self) -> bool:
        """Whether it runs and is not paused."""
        return self.node is not None and self._process is not None and not self._process.paused

    @property
    def _process(self) -> Process | None:
        return self.machine.process

    async def main(self, runtime: Runtime) -> None:
        process = self._process
        self.watcher = None
        self._boot = self.machine.boots
        self._had_disk_fault = bool(self.disk_faults)
        node = self._node = Node(runtime, NodeConfig(self.settings), extensions=(self._watch,))
        self._starting = starting = asyncio.ensure_future(node.start())
        await asyncio.wait([starting])
        if starting.cancelled():
            return  # it was asked to stop before it was ready
        try:
            starting.result()
            reason = await node.wait_until_failed()
        except NodeFailed as error:
            reason = str(error)
        if not self.has_disk_fault:
            self._world.report_violation(f"node {self.id} gave up, and its disk has no fault: {reason}")
        self._world.trace.add(self.machine.name, f"ends: {reason}")
        self._world.coverage["a node ends by itself"] += 1
        self._end(process)

    def _watch(self, broker: BrokerServer) -> BrokerExtension:
        """Observe the replicas of a broker, and its share partitions from the first one on."""
        self.watcher = NodeWatcher(self._world, self._checker, self.id, broker, self.machine.disk)
        broker.share.on_made(partial(ShareWatcher, self._checker.share))
        return BrokerExtension()

    def _ends(self) -> None:
        self.check_metadata()
        self._checker.watches.pop(self.id, None)

    def check(self) -> None:
        """Let the checker compare its replicas and its metadata image."""
        self.check_metadata()
        if self.node is not None and self.watcher is not None:
            self.watcher.check()
        if self._checker.tier is not None:
            self._checker.tier.check_replicas(self)

    def check_metadata(self) -> None:
        node = self.node
        if node is not None and node.quorum is not None:
            self._checker.on_image(node.image, f"node {self.id}")
            active = node.quorum.active_controller.current
            if active is not None:
                self._checker.on_decided(self.id, active.decided_image)

    def restart(self) -> None:
        """Stop it cleanly, as an operator does, and start it again."""
        process, node = self._process, self.node
        if process is None or node is None or process.paused:
            return

        async def leave() -> None:
            starting = self._starting
            if starting is not None and not starting.done():
                starting.cancel()
                await asyncio.wait([starting])
            await node.stop()
            self._world.coverage["stopped cleanly"] += 1
            self._end(process)

        self._world.trace.add(self.machine.name, "is asked to stop")
        self._world.loop.spawn(process, leave(), f"stop of {self.machine.name}")

    def _end(self, process: Process | None) -> None:
        loop = self._world.loop

        def exits() -> None:
            if self.machine.process is process:
                self.machine.kill(power_loss=False)
                loop.call_later(_RESTART_S, reboots, context=loop.world.context)

        def reboots() -> None:
            if not self.machine.is_up:
                self.machine.boot()

        loop.call_soon(exits, context=loop.world.context)


def make_members(
    world: World, checker: ClusterChecker, scenario: ClusterScenario, brokers: tuple[int, ...]
) -> list[ClusterMember]:
    """Create the nodes of a scenario, with formatted directories; none is booted yet."""
    controllers = _controllers(scenario, brokers)
    voters = VoterSet.of(*(_voter(id, dynamic=bool(scenario.dynamic)) for id in controllers))
    members = []
    terms = checker.share.terms
    for id in sorted({*brokers, *controllers}):
        settings = _settings(scenario, id, brokers, controllers)
        for feature in features_named(scenario.features or ()):
            settings |= feature.settings
        if terms is not None:
            settings |= terms.node_settings()
        if checker.tier is not None:
            settings |= checker.tier.terms.node_settings(min(len(brokers), 3), scenario.min_insync or 1)
        member = ClusterMember(world, checker, id, settings)
        in_set = scenario.dynamic and id in controllers
        paths = DIRECTORIES[: scenario.directories]
        directories = {path: _directory(id, number) for number, path in enumerate(paths)}
        member.format(directories, voters if in_set else None, _levels(scenario, world.seed))
        members.append(member)
    return members


def controller_addresses(
    scenario: ClusterScenario, brokers: tuple[int, ...]
) -> dict[int, dict[str, Address]]:
    """Where each controller listens for the others, by listener."""
    return {id: {LISTENER: Address(f"node{id}", CONTROLLER_PORT)} for id in _controllers(scenario, brokers)}


def _controllers(scenario: ClusterScenario, brokers: tuple[int, ...]) -> tuple[int, ...]:
    if scenario.separate:
        return tuple(range(_FIRST_CONTROLLER, _FIRST_CONTROLLER + scenario.controllers))
    return brokers[: scenario.controllers]


def _levels(scenario: ClusterScenario, seed: int | str) -> dict[str, int]:
    """The feature levels that a new cluster begins with."""
    if not scenario.has("feature-levels"):
        return scenario.last_levels()
    # From where the clients that are there can be served to the end.
    needs_last = scenario.has("share-groups") or scenario.has("streams-groups")
    older = (29,) if needs_last else (21, 25, 29)
    levels = bootstrap_levels(METADATA_VERSIONS[Random(f"{seed}/levels").choice(older)])
    return {
        name: min(level, levels[name]) for name, level in scenario.last_levels().items() if name in levels
    }


def _voter(id: int, *, dynamic: bool) -> Voter:
    directory = _directory(id, 0) if dynamic else bytes(16)
    return Voter(ReplicaKey(id, directory), {LISTENER: Address(f"node{id}", CONTROLLER_PORT)})


def _directory(id: int, number: int) -> bytes:
    return f"directory{number}-{id:05}".encode()


def _settings(
    scenario: ClusterScenario, id: int, brokers: tuple[int, ...], controllers: tuple[int, ...]
) -> dict[str, str]:
    timeout_scale, is_secured = scenario.timeout_scale or 1.0, scenario.has("secured")
    factor = str(min(len(brokers), 3))
    roles = [role for role, ids in (("broker", brokers), ("controller", controllers)) if id in ids]
    listeners = {
        "broker": f"{'SASL_PLAINTEXT' if is_secured else 'PLAINTEXT'}://node{id}:{BROKER_PORT}",
        "controller": f"{LISTENER}://node{id}:{CONTROLLER_PORT}",
    }
    if scenario.has("zookeeper"):
        quorum = {
            "metadata.store": "zookeeper",
            "zookeeper.connect": f"{ZOOKEEPER_HOST}:{ZOOKEEPER_PORT}",
            "zookeeper.session.timeout.ms": str(int(9_000 * timeout_scale)),
        }
    elif scenario.dynamic:
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
        "log.dirs": ",".join(DIRECTORIES[: scenario.directories]),
        "auto.create.topics.enable": "false",
        "default.replication.factor": factor,
        "min.insync.replicas": str(scenario.min_insync),
        "offsets.topic.num.partitions": "2",
        "offsets.topic.replication.factor": factor,
        "transaction.state.log.num.partitions": "2",
        "transaction.state.log.replication.factor": factor,
        "transaction.state.log.min.isr": str(scenario.min_insync),
        "share.coordinator.state.topic.num.partitions": "2",
        "share.coordinator.state.topic.replication.factor": factor,
        "share.coordinator.state.topic.min.isr": str(scenario.min_insync),
        "transaction.max.timeout.ms": "60000",
        "group.initial.rebalance.delay.ms": "300",
        "group.min.session.timeout.ms": "1000",
        "group.consumer.session.timeout.ms": "3000",
        "group.consumer.heartbeat.interval.ms": "500",
        "group.consumer.min.session.timeout.ms": "1000",
        "group.consumer.min.heartbeat.interval.ms": "100",
        "replica.lag.time.max.ms": str(int(10_000 * timeout_scale)),
        "replica.fetch.wait.max.ms": str(int(500 * min(timeout_scale * 2, 1))),
        "broker.session.timeout.ms": str(int(9_000 * timeout_scale)),
        "broker.heartbeat.interval.ms": str(int(2_000 * timeout_scale)),
        "controller.quorum.election.timeout.ms": str(int(1_000 * timeout_scale)),
        "controller.quorum.election.backoff.max.ms": str(int(1_000 * timeout_scale)),
        # In proportion to the session: a controller that is cut off resigns before sessions end.
        "controller.quorum.fetch.timeout.ms": str(int(2_000 * timeout_scale)),
        "controller.quorum.request.timeout.ms": str(int(2_000 * timeout_scale)),
        # A clock that jumps by days must not make anything expire.
        "log.retention.ms": "-1",
        "log.message.timestamp.after.max.ms": "9223372036854775807",
        "offsets.retention.minutes": "2147483647",
        "producer.id.expiration.ms": "2147483647",
        "transactional.id.expiration.ms": "2147483647",
        **({"log.durability": "disk"} if scenario.synced else {}),
        **(server_settings(LISTENER) if is_secured else {}),
    }
