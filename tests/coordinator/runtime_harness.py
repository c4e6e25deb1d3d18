"""A runtime over a real partition on a simulated disk, with a very simple shard.

The shard keeps one number by name in offset records; `wait` requests are answered by later events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ottla.coordinator.runtime.coordinator_runtime import CoordinatorRuntime
from ottla.coordinator.runtime.effects import (
    CoordinatorRecord,
    Effects,
    EventTime,
    ProducerIdAndEpoch,
    ReplayedRecord,
)
from ottla.coordinator.runtime.timers import CoordinatorTimer
from ottla.log.config.log_config import LogConfig
from ottla.log.log_manager import LogManager
from ottla.log.producers.state_manager import ProducerStateManagerConfig
from ottla.metadata.image.entities import PartitionRegistration
from ottla.protocol.consumer_offsets_records import RECORDS, OffsetCommitKey, OffsetCommitValue
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition
from ottla.replication.partition import FetchIsolation, FollowerFetch, Partition, PendingPartitionChange
from ottla.runtime.pool import InlinePool
from ottla.runtime.random import SeededRandom
from ottla.sim.clock import SimClock
from ottla.sim.disk import SimDisk

TP = TopicPartition("__consumer_offsets", 0)


@dataclass(frozen=True)
class Put:
    """Set names to numbers; with a producer, in its transaction."""

    numbers: dict[str, int]
    producer: ProducerIdAndEpoch | None = None
    atomic: bool = True


@dataclass(frozen=True)
class Get:
    name: str


@dataclass(frozen=True)
class Wait:
    """Answered when `name` is next put, or when the time is up."""

    name: str
    timeout_ms: int = 1_000_000


@dataclass(frozen=True)
class Fail:
    error: Exception


class Numbers:
    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.pending: dict[int, dict[str, int]] = {}
        self.waiting: dict[str, Any] = {}
        self.timers: CoordinatorTimer[str] = CoordinatorTimer()
        self.events: list[str] = []
        self.poison: int | None = None

    def handle(self, token: Any, request: Any, now: EventTime) -> Effects:
        if isinstance(request, Fail):
            raise request.error
        if isinstance(request, Get):
            return Effects().reply(token, self.numbers.get(request.name))
        if isinstance(request, Wait):
            self.waiting[request.name] = token
            self.timers.schedule(request.name, now.tick_ms + request.timeout_ms, request.name)
            return Effects()
        assert isinstance(request, Put)
        effects = Effects(producer=request.producer, atomic=request.atomic, sends=[dict(request.numbers)])
        for name, number in request.numbers.items():
            key = OffsetCommitKey(group="numbers", topic=name, partition=0)
            value = OffsetCommitValue(offset=number, metadata="", commit_timestamp=now.wall_ms)
            effects.records.append(CoordinatorRecord(key, value, 3))
            effects.reply(self.waiting.pop(name, None), number)
        effects.on_applied = lambda _: self.events.append("applied")
        effects.on_failed = lambda error, _: self._failed(error)
        return effects.reply(token, "put")

    def _failed(self, error: KafkaError) -> Effects:
        self.events.append(f"failed {error.code.name}")
        return Effects()

    def on_timer(self, now: EventTime) -> Effects:
        due = self.timers.pop_due(now.tick_ms)
        assert due is not None
        return Effects().reply(self.waiting.pop(due[1], None), "time is up")

    def next_deadline_ms(self) -> int | None:
        return self.timers.next_deadline_ms()

    def replay(self, record: ReplayedRecord) -> None:
        key, value = record.key, record.value
        assert isinstance(key, OffsetCommitKey)
        assert isinstance(value, OffsetCommitValue)
        if value.offset == self.poison:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "poison")
        if record.producer is None:
            self.numbers[key.topic] = value.offset
        else:
            self.pending.setdefault(record.producer.id, {})[key.topic] = value.offset

    def replay_end_transaction(self, producer: ProducerIdAndEpoch, commit: bool) -> None:
        pending = self.pending.pop(producer.id, {})
        if commit:
            self.numbers |= pending

    def on_loaded(self, now: EventTime) -> Effects:
        self.events.append("loaded")
        return Effects()

    def on_unloaded(self) -> None:
        self.events.append("unloaded")


class RuntimeHarness:
    """Use `await RuntimeHarness.open()`; with `replicas=(0, 1)` nothing is committed before `replicate`."""

    def __init__(
        self, manager: LogManager, clock: SimClock, replicas: tuple[int, ...], **options: Any
    ) -> None:
        self.manager = manager
        self.clock = clock
        self.replicas = replicas
        self.epoch = 0
        self.sent: list[dict[str, int]] = []
        self.shards: list[Numbers] = []
        self.poison: int | None = None
        log = manager.get_or_create_log(
            TP, LogConfig(cleanup_policy=frozenset({"compact"})), topic_id=b"t" * 16
        )
        self.partition = Partition(TP, b"t" * 16, log, 0, self)
        self.partition.make_leader(self._registration(), clock.wall_ms())
        self.runtime: CoordinatorRuntime[Numbers] = CoordinatorRuntime(
            RECORDS,
            self._make_shard,
            clock,
            InlinePool(),
            on_sends=lambda _, sends: self.sent.extend(sends),
            **options,
        )

    @classmethod
    async def open(
        cls, *, replicas: tuple[int, ...] = (0,), load: bool = True, **options: Any
    ) -> RuntimeHarness:
        clock = SimClock()
        disk = SimDisk(1, clock=clock)
        manager = LogManager(
            ["/data"],
            disk=disk,
            clock=clock,
            random=SeededRandom(1),
            pool=InlinePool(),
            producer_config=ProducerStateManagerConfig(transaction_verification=False),
        )
        await manager.start(lambda _: LogConfig())
        lab = cls(manager, clock, replicas, **options)
        if load:
            await lab.load()
        return lab

    def _make_shard(self, index: int, epoch: int) -> Numbers:
        shard = Numbers()
        shard.poison = self.poison
        self.shards.append(shard)
        return shard

    def _registration(self, isr: tuple[int, ...] | None = None) -> PartitionRegistration:
        return PartitionRegistration(
            replicas=self.replicas,
            directories=(bytes(15) + b"\x01",) * len(self.replicas),
            isr=self.replicas if isr is None else isr,
            leader=0,
            leader_epoch=self.epoch,
            partition_epoch=10 * self.epoch + (isr is not None),
        )

    async def load(self) -> None:
        self.runtime.load(self.partition)
        await self.runtime.wait_until_loaded(0)

    async def reelect(self) -> None:
        self.epoch += 1
        self.partition.make_leader(self._registration(), self.clock.wall_ms())
        await self.load()

    def maybe_shrink_isr(self) -> None:
        """The controller says that only the leader is in sync."""
        self.partition.make_leader(self._registration(isr=(0,)), self.clock.wall_ms())

    @property
    def shard(self) -> Numbers:
        return self.runtime.shard(0)

    def put(self, **numbers: int) -> Any:
        return self.runtime.submit(0, Put(numbers))

    def replicate(self) -> None:
        """The follower catches up with the leader's log."""
        end = self.partition.log.log_end_offset
        self.partition.fetch_records(
            end,
            1,
            isolation=FetchIsolation.LOG_END,
            now_ms=self.clock.wall_ms(),
            current_leader_epoch=self.partition.leader_epoch,
            follower=FollowerFetch(1, 0, -1),
        )

    # As the partition's listener

    def on_partition_progress(self, partition: Partition) -> None:
        if hasattr(self, "runtime"):
            self.runtime.on_partition_progress(0)

    def submit_alter_partition(self, partition: Partition, proposal: PendingPartitionChange) -> None: ...

    def is_replica_isr_eligible(self, broker: int, broker_epoch: int | None) -> bool:
        return True
