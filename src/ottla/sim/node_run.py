"""A run of a single node with clients of Ottla, from one seed: produce and consume through power losses.

The node syncs before it acknowledges (`log.durability=disk`), so an acknowledged record must
survive any crash. Checked at the end: no acknowledged record is lost, none is duplicated (the producers are
idempotent), and the records of each producer are in their order.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from functools import partial

from ottla.client.admin import Admin
from ottla.client.consumer import Consumer
from ottla.client.producer import Producer
from ottla.node.config.node_config import NodeConfig
from ottla.node.node import Node
from ottla.protocol.errors import KafkaError
from ottla.runtime.runtime import Runtime
from ottla.sim.nemesis import Nemesis, NemesisConfig
from ottla.sim.world import World

NODE = "node1"
ADDRESS = f"{NODE}:9092"
TOPIC = "orders"
PARTITIONS = 2
_PRODUCERS = 2
# How long clients may take to finish after the last fault.
_RECOVERY_S = 300.0
_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listeners": f"PLAINTEXT://{ADDRESS}",
    "advertised.listeners": f"PLAINTEXT://{ADDRESS}",
    "log.dirs": "/data",
    "log.durability": "disk",
}


@dataclass(slots=True)
class NodeOutcome:
    seed: int | str
    violations: list[str]
    coverage: Counter[str]
    fingerprint: str
    boots: int
    acknowledged: int
    read: int
    virtual_s: float
    steps: int
    tail: list[str] = field(default_factory=list)

    @property
    def command(self) -> str:
        """The command that replays this run, with its trace."""
        return f"python -m ottla.sim node --seed {self.seed} --trace"

    def __str__(self) -> str:
        state = "VIOLATION" if self.violations else "ok"
        return (
            f"seed {self.seed}: {state}; {self.virtual_s:.0f} s, {self.boots} boots of the node, "
            f"{self.acknowledged} records acknowledged, {self.read} read, {self.steps} steps"
        )


class NodeRun:
    """A run. With `synced=False` the node acknowledges records that only its page cache has, as Kafka does:
    then a power loss may lose them, and the check must notice.
    """

    def __init__(self, seed: int | str, *, seconds: float = 20.0, synced: bool = True) -> None:
        self.world = World(seed)
        self._settings = _SETTINGS if synced else {**_SETTINGS, "log.durability": "replicas"}
        self._seconds = seconds
        random = self.world.random
        self._acknowledged: list[bytes] = []
        self._read: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self._node = self.world.machine(NODE, self._serve)
        for number in range(_PRODUCERS):
            self.world.machine(f"producer{number}", partial(self._produce, number))
        self._created = False
        self._stopping = False
        self._finished = 0
        config = NemesisConfig(
            interval_s=random.choice((0.5, 1.0, 3.0)), longest_s=random.choice((0.5, 2.0, 6.0))
        )
        self._nemesis = Nemesis(self.world, config, lambda: [self._node])

    async def _serve(self, runtime: Runtime) -> None:
        await Node(runtime, NodeConfig(self._settings)).start()

    # The workload

    async def _create_topic(self, runtime: Runtime) -> None:
        """Create the topic, in some runs with short segments, so that the log rolls during the faults."""
        segment_ms = self.world.random.choice(("604800000", "300"))
        async with Admin(ADDRESS, runtime=runtime) as admin:
            configs = {"segment.ms": segment_ms}
            await admin.topics.create(TOPIC, partitions=PARTITIONS, configs=configs)
        self._created = True

    async def _produce(self, number: int, runtime: Runtime) -> None:
        """Send until the run stops; a producer that gives up is replaced by another one."""
        generation = 0
        while not self._stopping:
            generation += 1
            try:
                async with Producer(
                    ADDRESS, runtime=runtime, acks="all", request_timeout_ms=3_000
                ) as producer:
                    await self._send(producer, f"{number}.{generation}", runtime)
            except (KafkaError, OSError) as error:
                self.world.trace.add(f"producer{number}", f"gives up: {error}")
                await asyncio.sleep(0.5)
        self._finished += 1

    async def _send(self, producer: Producer, name: str, runtime: Runtime) -> None:
        sequence = 0
        while not self._stopping:
            wave = []
            for _ in range(runtime.random.randrange(1, 5)):
                sequence += 1
                value = f"{name}.{sequence}".encode()
                await producer.ready(TOPIC)
                wave.append((value, producer.send_nowait(TOPIC, value, partition=sequence % PARTITIONS)))
            for value, sent in wave:
                await sent
                self._acknowledged.append(value)
            await asyncio.sleep(runtime.random.random() * 0.2)

    async def _consume(self, runtime: Runtime) -> None:
        """Read all records from the beginning to the current end."""
        partitions = [(TOPIC, partition) for partition in range(PARTITIONS)]
        reader: Consumer[bytes, bytes] = Consumer(ADDRESS, runtime=runtime, auto_offset_reset="earliest")
        async with reader as consumer:
            consumer.assign(partitions)
            ends = {
                tp.partition: end for tp, end in (await consumer.end_offsets(consumer.assignment())).items()
            }
            positions = dict.fromkeys(ends, 0)
            while any(positions[partition] < end for partition, end in ends.items()):
                for record in await consumer.poll(timeout_ms=1_000):
                    self._read[record.partition].append(bytes(record.value or b""))
                    positions[record.partition] = record.offset + 1
        self._finished += 1

    # The run

    def run(self) -> NodeOutcome:
        world = self.world
        try:
            world.run(self._scenario())
        except AssertionError as error:
            world.violations.append(f"{type(error).__name__}: {error}")
        return NodeOutcome(
            world.seed,
            world.violations,
            world.coverage,
            world.fingerprint,
            self._node.boots,
            len(self._acknowledged),
            sum(map(len, self._read)),
            world.loop.time(),
            world.loop.steps,
            world.trace.tail(60),
        )

    async def _scenario(self) -> None:
        self._node.boot()
        await asyncio.sleep(1)
        producers = [self.world.machines[f"producer{number}"] for number in range(_PRODUCERS)]
        self.world.machine("admin", self._create_topic).boot()
        while not self._created:  # noqa: ASYNC110 - in another process, which has no event to share
            await asyncio.sleep(0.1)
        for machine in producers:
            machine.boot()
        await self._nemesis.run(self._seconds)
        self._stopping = True
        self._nemesis.stop()
        if not await self._until(_PRODUCERS, "the producers"):
            return
        self._finished = 0
        self.world.machine("reader", self._consume).boot()
        if await self._until(1, "the reader"):
            self._check()

    async def _until(self, count: int, who: str) -> bool:
        deadline = self.world.loop.time() + _RECOVERY_S
        while self._finished < count:
            if self.world.loop.time() >= deadline:
                self.world.report_violation(
                    f"{who} did not finish within {_RECOVERY_S:.0f} s after the last fault"
                )
                return False
            await asyncio.sleep(0.5)
        return True

    def _check(self) -> None:
        found = Counter(value for values in self._read for value in values)
        lost = [value for value in self._acknowledged if value not in found]
        if lost:
            self.world.report_violation(f"{len(lost)} acknowledged records are lost, among them {lost[:5]}")
        twice = [value for value, count in found.items() if count > 1]
        if twice:
            self.world.report_violation(f"{len(twice)} records are duplicated, among them {twice[:5]}")
        for partition, values in enumerate(self._read):
            last: dict[bytes, int] = {}
            for value in values:
                name, _, sequence = value.rpartition(b".")
                if int(sequence) <= last.get(name, 0):
                    self.world.report_violation(
                        f"{value!r} of partition {partition} comes after {last[name]}"
                    )
                    return
                last[name] = int(sequence)
