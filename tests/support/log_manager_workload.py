"""Random operations on all logs of a node: create, append, flush, delete and create again, on two disks.

Each partition is a list of batches with unique values. After a crash every partition that was not being
created or deleted at that moment exists, with everything that was synced and nothing of an earlier partition
of the same name.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass, field

from ottla.log.config.log_config import LogConfig
from ottla.log.log_manager import LogManager, NewLog
from ottla.log.unified_log import UnifiedLog
from ottla.protocol.names import TopicPartition
from ottla.records.batch import read_records
from ottla.records.builder import build_batch
from ottla.runtime.pool import InlinePool
from ottla.runtime.random import SeededRandom
from ottla.sim.clock import SimClock
from ottla.sim.disk import SimCrash, SimDisk
from tests.support.log_harness import all_batches, check_log

DIRS = ("/disks/a", "/disks/b")
CONFIG = LogConfig(
    segment_bytes=500, index_interval_bytes=100, file_delete_delay_ms=10, retention_bytes=2000, flush_ms=20
)


@dataclass
class PartitionModel:
    """The content of one partition; `topic_id` distinguishes it from others of the same name."""

    topic_id: bytes
    values: list[bytes] = field(default_factory=list)
    synced: int = 0
    lowest_start: int = 0


class LogManagerWorkload:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = SimClock()
        self.disk = SimDisk(seed, clock=self.clock)
        self.pool = InlinePool()
        self.partitions: dict[TopicPartition, PartitionModel] = {}
        # Being deleted or created when the power failed: may exist or not.
        self.uncertain: dict[TopicPartition, PartitionModel] = {}
        self.count = 0
        self.doing = "starting"
        self.history: list[str] = []
        self.clean = False
        self.manager: LogManager

    async def start(self) -> None:
        self.manager = LogManager(
            DIRS,
            disk=self.disk,
            clock=self.clock,
            random=SeededRandom(self.random.getrandbits(64)),
            pool=self.pool,
        )
        await self.manager.start(lambda _: CONFIG)

    async def run(self, steps: int) -> None:
        actions = [
            (8, self.create),
            (30, self.append),
            (4, self.delete),
            (6, self.flush),
            (3, self.checkpoint),
            (3, self.retain),
            (3, self.pass_time),
            (1, self.restart),
        ]
        for _ in range(steps):
            (action,) = self.random.choices([each for _, each in actions], [weight for weight, _ in actions])
            self.doing = action.__name__
            await action()
            self.history.append(self.doing)
        self.doing = "idle"

    def _log(self, partition: TopicPartition) -> UnifiedLog:
        log = self.manager.get_log(partition)
        assert log is not None
        return log

    def _some(self) -> TopicPartition | None:
        return self.random.choice(sorted(self.partitions)) if self.partitions else None

    async def create(self) -> None:
        partition = TopicPartition(self.random.choice("ab"), self.random.randrange(3))
        if partition in self.partitions:
            return
        self.count += 1
        new = self.uncertain[partition] = PartitionModel(self.count.to_bytes(16, "big"))
        if self.random.random() < 0.5:
            await self.manager.create_logs([NewLog(partition, CONFIG, new.topic_id, is_new=True)])
        self.manager.get_or_create_log(partition, CONFIG, topic_id=new.topic_id)
        self.partitions[partition] = self.uncertain.pop(partition)

    async def append(self) -> None:
        partition = self._some()
        if partition is None:
            return
        log, known = self._log(partition), self.partitions[partition]
        self.count += 1
        value = b"%d" % self.count + b"x" * self.random.choice([1, 100])
        known.values.append(value)
        data = build_batch([(self.clock.wall_ms(), None, value)])
        log.append_as_leader(bytearray(data), 0, now_ms=self.clock.wall_ms())
        log.update_high_watermark(log.log_end_offset)

    async def delete(self) -> None:
        partition = self._some()
        if partition is not None:
            self.uncertain[partition] = self.partitions.pop(partition)
            self.manager.delete_log(partition)
            del self.uncertain[partition]

    async def flush(self) -> None:
        if self.random.random() < 0.5:
            await self.manager.flush_dirty_logs(self.clock.wall_ms())
        else:
            partition = self._some()
            if partition is not None:
                await self.manager.flush(self._log(partition))
        self._note_synced()

    def _note_synced(self) -> None:
        for partition, known in self.partitions.items():
            known.synced = max(known.synced, self._log(partition).recovery_point)

    async def checkpoint(self) -> None:
        await self.manager.checkpoint_log_recovery_offsets()
        await self.manager.checkpoint_log_start_offsets()
        await self.manager.checkpoint_high_watermarks()
        for partition, known in self.partitions.items():
            known.lowest_start = self._log(partition).log_start_offset

    async def retain(self) -> None:
        await self.manager.cleanup_logs(self.clock.wall_ms())
        await self.manager.remove_deleted_files(self.clock.wall_ms())

    async def pass_time(self) -> None:
        self.clock.advance_ms(self.random.choice([1, 15, 100]))

    async def restart(self) -> None:
        self.clean = True
        ends = {log.topic_partition: log.log_end_offset for log in self.manager.logs()}
        await self.manager.shutdown(7)
        await self.start()
        self.clean = False
        assert self.manager.clean_shutdown_epoch == 7
        assert {log.topic_partition: log.log_end_offset for log in self.manager.logs()} == ends
        for log in self.manager.logs():
            self.partitions[log.topic_partition].synced = log.log_end_offset
            check_log(log, producers_from=log.log_start_offset)

    async def crash(self) -> None:
        self.disk.crash()
        self.history.append(f"crash in {self.doing}")
        await self.start()
        assert not self.manager.failed
        there = {log.topic_partition: log for log in self.manager.logs()}
        for partition, known in list(self.partitions.items()):
            if partition not in there and not known.synced:
                # Its directory was never synced.
                del self.partitions[partition]
                continue
            self._check(there.pop(partition), known)
        for partition, log in there.items():
            known = self.uncertain[partition]
            self._check(log, known)
            self.partitions[partition] = known
        self.uncertain.clear()
        self.doing = "recovered"

    def _check(self, log: UnifiedLog, known: PartitionModel) -> None:
        assert log.topic_id in (known.topic_id, None)
        start, end = log.log_start_offset, log.log_end_offset
        assert known.lowest_start <= start
        assert known.synced <= end <= len(known.values)
        found = [
            record.value
            for _, data in all_batches(log)
            for record in read_records(data)
            if record.offset >= start
        ]
        assert found == known.values[start:end]
        check_log(log, producers_from=start)
        if log.topic_id is None:
            assert end == 0
            log.assign_topic_id(known.topic_id)
        del known.values[end:]
        log.update_high_watermark(end)
        known.lowest_start = min(known.lowest_start, start)


def run_log_manager_workload(seed: int, *, crashes: int = 3, steps: int = 40) -> None:
    """Run the workload on the logs of one node, with several crashes, each at some change of the disk."""
    workload = LogManagerWorkload(seed)
    try:
        asyncio.run(workload.start())
        for _ in range(crashes):
            workload.disk.crash_after(workload.random.randrange(steps * 6))
            with suppress(SimCrash):
                asyncio.run(workload.run(steps))
            asyncio.run(workload.crash())
    except Exception as error:
        trace = "\n".join(map(str, workload.disk.trace.entries()[-60:]))
        raise AssertionError(
            f"seed {seed}: {error}\nin: {workload.doing}\nafter: {workload.history[-40:]}\ndisk:\n{trace}"
        ) from error
