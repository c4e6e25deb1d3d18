"""Two simulated brokers with two disks each, of which one file of one disk fails.

Broker 1 is the controller, too. Each partition has a replica on both, so that broker 2 leads some and follows
others on either disk. `FaultCase` says what fails on the first disk of broker 2: a kind of file, a kind of
operation and an error. The workload makes a node use every file that it has, and stops and starts the broker
if the fault did not strike while it ran.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ottla.client.admin import Admin
from ottla.client.consumer import Consumer
from ottla.client.producer import Producer
from ottla.metadata.log.bootstrap_metadata import format_directory
from ottla.node.config.errors import NodeFailed
from ottla.node.config.node_config import NodeConfig
from ottla.node.node import Node
from ottla.protocol.errors import KafkaError
from ottla.protocol.names import TopicPartition
from ottla.replication.partition import Partition
from ottla.runtime.random import SeededRandom
from ottla.runtime.runtime import Runtime
from ottla.sim.disk import DiskOperation, Op
from ottla.sim.world import SimMachine, World

FAILING, SOUND, METADATA = "/data/a", "/data/b", "/meta"
SERVERS = "node1:9092,node2:9092"
_DEADLINE_S = 120.0
_RUNNING_S = 5.0

# Kind of file -> what its name matches, below the failing directory.
FILES = {
    "log": re.compile(r"/\d+\.log$"),
    "index": re.compile(r"/\d+\.index$"),
    "timeindex": re.compile(r"/\d+\.timeindex$"),
    "txnindex": re.compile(r"/\d+\.txnindex$"),
    "snapshot": re.compile(r"/\d+\.snapshot(\.tmp)?$"),
    "leader epochs": re.compile(r"/leader-epoch-checkpoint"),
    "partition.metadata": re.compile(r"/partition\.metadata"),
    "recovery points": re.compile(r"/recovery-point-offset-checkpoint"),
    "high watermarks": re.compile(r"/replication-offset-checkpoint"),
    "log starts": re.compile(r"/log-start-offset-checkpoint"),
    "cleaner": re.compile(r"/cleaner-offset-checkpoint"),
    "cleaned segment": re.compile(r"\.(cleaned|swap|deleted)$"),
    "meta.properties": re.compile(r"/meta\.properties"),
    "clean shutdown": re.compile(r"/\.kafka_cleanshutdown"),
    "directories": re.compile(r"/data/a(/[^./]+-\d+)?$"),
}
OPERATIONS = {
    "open": frozenset((Op.OPEN, Op.CREATE, Op.LIST_DIR)),
    "read": frozenset((Op.READ, Op.STAT)),
    "write": frozenset((Op.WRITE, Op.TRUNCATE)),
    "sync": frozenset((Op.SYNC, Op.SYNC_DIR)),
    "rename": frozenset((Op.RENAME, Op.UNLINK, Op.REMOVE_DIR, Op.MAKE_DIR)),
}
PASSING = frozenset((errno.EMFILE, errno.ENOSPC))


class FaultCase(NamedTuple):
    file: str
    operation: str
    error: int

    def __str__(self) -> str:
        return f"{self.file}-{self.operation}-{errno.errorcode[self.error]}"


class Broker:
    def __init__(self, world: World, id: int) -> None:
        self.id = id
        self._world = world
        self.machine: SimMachine = world.machine(f"node{id}", self._main)
        self.node: Node | None = None
        # Why its node ended by itself.
        self.ended: str | None = None
        self.settings = _settings(id)
        for number, path in enumerate((METADATA, FAILING, SOUND)):
            format_directory(
                self.machine.disk,
                SeededRandom(f"format/{id}"),
                self.machine.clock,
                path,
                cluster_id="simulated-cluster-id00",
                node_id=id,
                directory_id=f"directory{number}-{id:05}".encode(),
            )
        self.machine.disk.sync_all()

    async def _main(self, runtime: Runtime) -> None:
        node = self.node = Node(runtime, NodeConfig(self.settings))
        try:
            await node.start()
            self.ended = await node.wait_until_failed()
        except NodeFailed as error:
            self.ended = str(error)

    @property
    def is_ready(self) -> bool:
        return self.node is not None and self.node.shared.state.ready.is_set()

    def offline(self) -> list[str]:
        assert self.node is not None
        assert self.node.broker is not None
        return [each.path for each in self.node.broker.logs.directories if not each.is_online]

    async def stop(self) -> None:
        """Stop it as an operator does."""
        node, process = self.node, self.machine.process
        assert node is not None
        assert process is not None
        stopped = asyncio.get_running_loop().create_future()

        async def stop() -> None:
            await node.stop()
            stopped.set_result(None)

        self._world.loop.spawn(process, stop(), "stop")
        await asyncio.wait_for(stopped, _DEADLINE_S)
        self.node = None
        self.machine.kill(power_loss=False)


class DiskFaultLab:
    """One run; `check` raises AssertionError where an error went further than it may."""

    def __init__(self, case: FaultCase) -> None:
        self.case = case
        self.world = World(str(case))
        self.brokers = [Broker(self.world, id) for id in (1, 2)]
        self.faulty = self.brokers[1]
        # How often the fault has struck, in all and since the broker last started.
        self.struck = 0
        self._struck_since_start = 0
        self._acting = False
        self._runtime: Runtime
        self.notes: list[str] = []

    def run(self) -> None:
        self.world.machine("client", self._client)
        self.world.run(self._scenario())
        assert not self.world.violations, self.world.violations[0]

    # The fault

    def _hook(self, operation: DiskOperation) -> None:
        if not self._acting or operation.op not in OPERATIONS[self.case.operation]:
            return
        pattern = FILES[self.case.file]
        for path in (operation.path, operation.target):
            if path.startswith(FAILING) and pattern.search(path):
                self.struck += 1
                self._struck_since_start += 1
                raise OSError(self.case.error, os.strerror(self.case.error), path)

    # The run

    async def _scenario(self) -> None:
        for broker in self.brokers:
            broker.machine.boot()
        await self._until(
            lambda: all(broker.is_ready for broker in self.brokers), "the brokers are not ready"
        )
        finished = asyncio.Event()
        self._finished = finished
        self.world.machines["client"].boot()
        await asyncio.wait_for(finished.wait(), 3_600)

    async def _client(self, runtime: Runtime) -> None:
        self._runtime = runtime
        try:
            await self._create_topics()
            await self._use_all("before")
            await self._until(lambda: self._lagging() == [], "not all replicas are in sync at first")
            self.faulty.machine.disk.hook = self._hook
            self._acting = True
            await self._use_all("during", may_fail=True)
            await asyncio.sleep(_RUNNING_S)
            await self._use_all("during again", may_fail=True)
            if not self.struck:
                await self.faulty.stop()
                self._struck_since_start = 0
                self.faulty.machine.boot()
                await self._until(
                    lambda: self.faulty.is_ready or self.faulty.ended is not None, "it does not start again"
                )
                if self.faulty.ended is None:
                    await self._use_all("after a start", may_fail=True)
                    await asyncio.sleep(_RUNNING_S)
            if self.case.error in PASSING:
                self._acting = False
            await self._check()
        finally:
            self._finished.set()

    async def _create_topics(self) -> None:
        quick = {
            "segment.ms": "1000",
            "file.delete.delay.ms": "1000",
            "flush.ms": "500",
            "index.interval.bytes": "1",
        }
        await self._create("plain", quick, 6)
        compacted = quick | {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
        await self._create("compacted", compacted, 4)

    async def _create(self, name: str, configs: dict[str, str], partitions: int = 4) -> None:
        async with Admin(SERVERS, runtime=self._runtime, default_api_timeout_ms=8_000) as admin:
            await admin.topics.create(name, partitions=partitions, replication_factor=2, configs=configs)

    async def _use_all(self, what: str, *, may_fail: bool = False) -> None:
        """Write, read, abort and delete in every partition; some may fail while there is a fault."""
        steps: list[Callable[[], object]] = [
            lambda: self._produce(what),
            self._abort,
            self._delete_records,
            lambda: self._produce(what),
            self._read,
        ]
        if may_fail:
            steps.insert(0, lambda: self._create(what.replace(" ", "-"), {}))
        for step in steps:
            try:
                await step()  # type: ignore[misc]
            except (KafkaError, OSError, TimeoutError) as error:
                self.notes.append(f"{what}: {type(error).__name__} {error}")
                if not may_fail:
                    raise

    async def _produce(self, what: str, partitions: Iterable[TopicPartition] | None = None) -> None:
        chosen = list(partitions or ALL)
        failed: list[Exception] = []
        async with Producer(
            SERVERS, runtime=self._runtime, acks="all", request_timeout_ms=2_000, delivery_timeout_ms=6_000
        ) as producer:
            for topic in ("plain", "compacted"):
                await producer.ready(topic)
            for number in range(3):
                sent = [
                    producer.send_nowait(
                        tp.topic, f"{what} {number}".encode(), key=b"k", partition=tp.partition
                    )
                    for tp in chosen
                ]
                for tp, each in zip(chosen, sent, strict=True):
                    try:
                        await each
                    except KafkaError as error:
                        failed.append(KafkaError(error.code, f"{tp}: {error.message}"))
                await asyncio.sleep(0.6)
        if failed:
            raise failed[0]

    async def _abort(self) -> None:
        async with Producer(
            SERVERS,
            runtime=self._runtime,
            transactional_id="aborts",
            request_timeout_ms=2_000,
            delivery_timeout_ms=4_000,
            max_block_ms=6_000,
        ) as producer:
            producer.transactions.begin()
            await producer.ready("plain")
            for partition in range(6):
                producer.send_nowait("plain", b"aborted", partition=partition)
            await producer.flush()
            await producer.transactions.abort()

    async def _delete_records(self) -> None:
        async with Admin(SERVERS, runtime=self._runtime, default_api_timeout_ms=4_000) as admin:
            starts = await admin.offsets.beginning("plain")
            ends = await admin.offsets.end("plain")
            before = {TopicPartition("plain", index): min(starts[index] + 2, ends[index]) for index in starts}
            await admin.offsets.delete_records(before)

    async def _read(self) -> None:
        """Read each partition from its start, in both ways."""
        for isolation in ("read_uncommitted", "read_committed"):
            reader: Consumer[bytes, bytes] = Consumer(
                SERVERS,
                runtime=self._runtime,
                auto_offset_reset="earliest",
                isolation_level=isolation,
                request_timeout_ms=2_000,
                default_api_timeout_ms=4_000,
            )
            async with reader as consumer:
                consumer.assign(ALL)
                for _ in range(5):
                    await consumer.poll(timeout_ms=300)

    # What must hold

    def _partitions(self) -> list[Partition]:
        """The partitions of both topics as their leaders have them."""
        found = {
            partition.topic_partition: partition
            for broker in self.brokers
            if broker.node is not None and broker.node.broker is not None
            for partition in broker.node.broker.replicas
            if partition.is_leader
        }
        return [found[tp] for tp in ALL if tp in found]

    def _lagging(self) -> list[TopicPartition]:
        leaders = {partition.topic_partition: partition for partition in self._partitions()}
        return [tp for tp in ALL if tp not in leaders or leaders[tp].isr != {1, 2}]

    def _lost(self) -> set[TopicPartition]:
        """The partitions whose replica was on the failing disk."""
        assert self.faulty.node is not None
        return {
            tp
            for tp in ALL
            if (registration := self.faulty.node.image.topics.by_name[tp.topic].partitions[tp.partition])
            and registration.directory(2) == f"directory1-{2:05}".encode()
        }

    async def _check(self) -> None:
        case, faulty = self.case, self.faulty
        assert faulty.ended is None, f"the node ended: {faulty.ended}"
        assert self.brokers[0].ended is None
        assert faulty.node is not None
        offline = faulty.offline()
        if self._struck_since_start and case.error not in PASSING:
            assert offline == [FAILING], f"offline: {offline}; {self.notes[-3:]}"
        else:
            assert offline in ([], [FAILING]), offline
        if not self._struck_since_start:
            assert not offline
        expected = self._lost() if offline else set()
        await self._until(
            lambda: set(self._lagging()) == expected,
            lambda: f"out of sync: {self._lagging()}; expected {sorted(expected)}; {self.notes[-3:]}",
        )
        leaders = {partition.topic_partition: partition.broker_id for partition in self._partitions()}
        assert leaders.keys() == set(ALL), f"without a leader: {set(ALL) - leaders.keys()}"
        assert all(leaders[tp] == 1 for tp in expected)
        assert await self._described_offline() == offline
        await self._produce("after")
        failed = [task for task in faulty.node.shared.tasks.statuses() if task.restarts]
        assert not failed, failed

    async def _described_offline(self) -> list[str]:
        """The directories that an operator sees offline."""
        async with Admin(SERVERS, runtime=self._runtime) as admin:
            return [each.path for each in await admin.log_dirs.describe(brokers=[2]) if each.error]

    async def _until(self, condition: Callable[[], bool], otherwise: str | Callable[[], str]) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _DEADLINE_S
        while not condition():
            text = otherwise if isinstance(otherwise, str) else otherwise()
            assert loop.time() < deadline, text
            await asyncio.sleep(0.1)


ALL = [
    *(TopicPartition("plain", index) for index in range(6)),
    *(TopicPartition("compacted", index) for index in range(4)),
]


def _settings(id: int) -> dict[str, str]:
    listeners = f"PLAINTEXT://node{id}:9092"
    if id == 1:
        listeners += ",CONTROLLER://node1:9093"
    return {
        "process.roles": "broker,controller" if id == 1 else "broker",
        "node.id": str(id),
        "listeners": listeners,
        "advertised.listeners": f"PLAINTEXT://node{id}:9092",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "controller.quorum.voters": "1@node1:9093",
        "metadata.log.dir": METADATA,
        "log.dirs": f"{FAILING},{SOUND}",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "2",
        "transaction.state.log.num.partitions": "2",
        "transaction.state.log.replication.factor": "2",
        "transaction.state.log.min.isr": "1",
        "log.initial.task.delay.ms": "100",
        "log.flush.scheduler.interval.ms": "500",
        "log.flush.offset.checkpoint.interval.ms": "1000",
        "log.flush.start.offset.checkpoint.interval.ms": "1000",
        "replica.high.watermark.checkpoint.interval.ms": "1000",
        "log.cleaner.backoff.ms": "1000",
        "log.retention.check.interval.ms": "2000",
        "log.retention.ms": "-1",
        "log.message.timestamp.after.max.ms": "9223372036854775807",
        "replica.lag.time.max.ms": "4000",
    }
