"""Partitions over real logs on a simulated disk."""

from __future__ import annotations

import asyncio

from ottla.log.config.log_config import LogConfig
from ottla.log.log_manager import LogManager
from ottla.log.unified_log import UnifiedLog
from ottla.metadata.image.entities import PartitionRegistration
from ottla.protocol.errors import ErrorCode
from ottla.protocol.names import TopicPartition
from ottla.records.builder import build_batch
from ottla.replication.partition import (
    FetchIsolation,
    FollowerFetch,
    LogReadInfo,
    Partition,
    PendingPartitionChange,
)
from ottla.runtime.pool import InlinePool
from ottla.runtime.random import SeededRandom
from ottla.sim.clock import SimClock
from ottla.sim.disk import SimDisk

TP = TopicPartition("orders", 0)
TOPIC_ID = b"orders-topic-id!"
DIRECTORY = b"directory-of-000"


def log_manager(disk: SimDisk | None = None, dirs: tuple[str, ...] = ("/data",)) -> LogManager:
    disk = disk or SimDisk(1)
    return LogManager(list(dirs), disk=disk, clock=disk.clock, random=SeededRandom(1), pool=InlinePool())


def registration(
    *,
    replicas: tuple[int, ...] = (0,),
    isr: tuple[int, ...] | None = None,
    leader: int = 0,
    leader_epoch: int = 0,
    partition_epoch: int = 0,
) -> PartitionRegistration:
    return PartitionRegistration(
        replicas=replicas,
        directories=(bytes(15) + b"\x01",) * len(replicas),
        isr=replicas if isr is None else isr,
        leader=leader,
        leader_epoch=leader_epoch,
        partition_epoch=partition_epoch,
    )


class PartitionHarness:
    """A partition led by broker 0, with a simulated clock; the test plays the followers."""

    def __init__(
        self,
        *,
        replicas: tuple[int, ...] = (0,),
        isr: tuple[int, ...] | None = None,
        config: LogConfig | None = None,
        lead: bool = True,
    ) -> None:
        self.clock = SimClock()
        self.manager = log_manager(SimDisk(1, clock=self.clock))
        self.log = asyncio.run(self._open(config or LogConfig()))
        self.progress = 0
        self.flushes_due = 0
        self.proposals: list[PendingPartitionChange] = []
        self.ineligible: set[int] = set()
        self.partition = Partition(TP, TOPIC_ID, self.log, 0, self, replica_lag_max_ms=30_000)
        if lead:
            self.partition.make_leader(registration(replicas=replicas, isr=isr), self.now_ms)

    async def _open(self, config: LogConfig) -> UnifiedLog:
        await self.manager.start(lambda topic: config)
        return self.manager.get_or_create_log(TP, config, topic_id=TOPIC_ID)

    @property
    def now_ms(self) -> int:
        return self.clock.wall_ms()

    # As the partition's listener

    def on_partition_progress(self, partition: Partition) -> None:
        self.progress += 1

    def on_flush_due(self, partition: Partition) -> None:
        self.flushes_due += 1

    def submit_alter_partition(self, partition: Partition, proposal: PendingPartitionChange) -> None:
        self.proposals.append(proposal)

    def is_replica_isr_eligible(self, broker: int, broker_epoch: int | None) -> bool:
        return broker not in self.ineligible

    # What happens to it

    def produce(self, count: int = 1, *, acks: int = -1) -> int:
        """Append records; returns the offset that acks=all waits for."""
        info = self.partition.append_records_to_leader(
            batch(count, self.now_ms), now_ms=self.now_ms, acks=acks
        )
        return info.last_offset + 1

    def follow(self, broker: int, offset: int, *, log_start: int = 0, epoch: int = -1) -> LogReadInfo:
        return self.partition.fetch_records(
            offset,
            1_000_000,
            isolation=FetchIsolation.LOG_END,
            now_ms=self.now_ms,
            current_leader_epoch=self.partition.leader_epoch,
            follower=FollowerFetch(broker, log_start, epoch),
        )

    def consume(
        self, offset: int = 0, isolation: FetchIsolation = FetchIsolation.HIGH_WATERMARK
    ) -> LogReadInfo:
        return self.partition.fetch_records(offset, 1_000_000, isolation=isolation, now_ms=self.now_ms)

    def confirm(self) -> None:
        """The controller agrees to the last proposal."""
        proposal = self.proposals[-1]
        self.partition.handle_alter_partition_update(
            proposal, proposal.isr, proposal.leader_epoch, proposal.partition_epoch + 1, self.now_ms
        )

    def refuse(self, error: ErrorCode) -> bool:
        return self.partition.handle_alter_partition_error(self.proposals[-1], error)

    @property
    def high_watermark(self) -> int:
        return self.log.high_watermark


def batch(count: int, now_ms: int, value: bytes = b"v") -> bytes:
    return build_batch([(now_ms, None, value) for _ in range(count)])
