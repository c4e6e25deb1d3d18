"""A move of a partition to another data directory, on a simulated disk: it outlives errors that pass, and
waits for the disk in the pool.
"""

from __future__ import annotations

import asyncio
import errno
import sys
from typing import Any, cast

import pytest
from tests.log.test_log_manager import IDS, A, B, Node
from tests.log.test_truncation_steps import SYNCS, StepPool
from tests.replication.partition_harness import registration
from tests.support.log_harness import all_batches, check_log

from ottla.node.cluster.alter_replica_log_dirs import AlterReplicaLogDirsManager
from ottla.node.cluster.assignments_manager import AssignmentsManager
from ottla.protocol.names import TopicPartition
from ottla.replication.partition import Partition, PartitionListener
from ottla.replication.replica_manager import ReplicaManager
from ottla.replication.replication_quota_manager import UNLIMITED, ReplicationQuotaManager
from ottla.sim.disk_faults import DiskOperation, Op

ORDERS = TopicPartition("orders", 0)
# The last step of a move, after which the copy is the log, and the first record of a log.
ALLOWED = frozenset(("_promote", "complete_creation"))


class Controller:
    """The controller, and the broker around the partition, as far as a move asks them."""

    async def announce(self, partition: Partition, directory_id: bytes) -> None:
        await asyncio.sleep(0)

    def on_move_ended(self, partition: Partition) -> None: ...

    def on_partition_progress(self, partition: Partition) -> None: ...

    def on_flush_due(self, partition: Partition) -> None: ...


class Lab:
    """A partition of the directory A, with records, and the moves of its broker."""

    def __init__(self) -> None:
        self.pool = StepPool()
        self.node = Node(A, B, pool=self.pool)
        self.partition: Partition
        self.moves: AlterReplicaLogDirsManager

    async def start(self) -> None:
        await self.node.start()
        for number, directory in enumerate(self.node.manager.live_directories):
            directory.directory_id = bytes([number]) * 16
        log = self.node.log("orders", 0, directory_id=bytes(16))
        assert log.directory.path == A
        self.node.fill(log)
        controller: Any = Controller()
        self.partition = Partition(ORDERS, IDS["orders"], log, 0, cast("PartitionListener", controller))
        self.partition.make_leader(registration(), self.node.clock.wall_ms())
        quota = ReplicationQuotaManager(self.node.clock, UNLIMITED)
        self.moves = AlterReplicaLogDirsManager(
            self.node.manager,
            cast("ReplicaManager", [self.partition]),
            cast("AssignmentsManager", controller),
            quota,
            self.node.clock,
            self.pool,
        )

    async def until_moved(self) -> None:
        async with asyncio.timeout(60):
            while self.partition.log.directory.path != B:  # noqa: ASYNC110 - a move tells only the log
                await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_a_lack_of_handles_puts_a_move_off_and_does_not_end_it() -> None:
    lab = Lab()
    await lab.start()
    before = [data for _, data in all_batches(lab.partition.log)]
    lab.node.sim_disk.fail(errno.EMFILE, prefix=B, ops=[Op.SYNC_DIR], times=2)
    lab.moves.begin(lab.partition, B)
    await lab.until_moved()
    check_log(lab.partition.log)
    assert [data for _, data in all_batches(lab.partition.log)] == before
    assert lab.node.failures == []
    assert not lab.moves._moves


async def test_a_move_whose_directory_fails_ends() -> None:
    lab = Lab()
    await lab.start()
    lab.node.sim_disk.fail(errno.EIO, prefix=B, ops=[Op.SYNC, Op.SYNC_DIR], times=None)
    lab.moves.begin(lab.partition, B)
    async with asyncio.timeout(60):
        while lab.moves._moves:  # noqa: ASYNC110 - a move tells only the log
            await asyncio.sleep(0.01)
    assert [directory.path for directory in lab.node.failures] == [B]
    assert lab.partition.log.directory.path == A
    assert lab.partition.log.directory.is_online


async def test_the_pool_waits_for_the_disk_while_a_copy_grows_and_is_truncated() -> None:
    lab = Lab()
    await lab.start()
    log = lab.partition.log
    log.maybe_increment_log_start_offset(7, "a test")
    on_the_loop: list[str] = []

    def note(operation: DiskOperation) -> None:
        if operation.op in SYNCS and not lab.pool.is_inside and operation.path.startswith(B):
            calls, frame = [], sys._getframe(1)
            while frame is not None:
                calls.append(frame.f_code.co_name)
                frame = frame.f_back  # type: ignore[assignment]
            if ALLOWED.isdisjoint(calls):
                on_the_loop.append(f"{operation.path}: {' < '.join(calls[:12])}")

    async def truncate() -> None:
        log.truncate_to(12)
        log.update_high_watermark(12)
        log.assign_epoch_start_offset(1, 12)

    lab.node.sim_disk.hook = note
    # The first calls of the pool are for the copy, which begins empty, and its flush.
    lab.pool.calls, lab.pool.at, lab.pool.meanwhile = 0, 6, truncate
    lab.moves.begin(lab.partition, B)
    await lab.until_moved()
    await lab.pool.end_other()
    assert on_the_loop == []
    assert (lab.partition.log.log_start_offset, lab.partition.log.log_end_offset) == (7, 12)
    check_log(lab.partition.log)
