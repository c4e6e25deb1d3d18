"""A clean shutdown: what it costs, and what is durable when it says so."""

from __future__ import annotations

import errno
from collections import Counter
from pathlib import Path

import pytest

from ottla.log.config.log_config import LogConfig
from ottla.log.directory import checkpoints
from ottla.log.log_manager import LogManager
from ottla.protocol.names import TopicPartition
from ottla.records.builder import build_batch
from ottla.runtime.disk import Disk, RealDisk
from ottla.runtime.pool import InlinePool, Pool, ThreadPool
from ottla.runtime.random import SeededRandom
from ottla.sim.clock import SimClock
from ottla.sim.disk import SimDisk
from ottla.sim.disk_faults import DiskOperation, Op

TOPIC_ID = bytes(range(16))


async def started(disk: Disk, path: str, pool: Pool | None = None) -> LogManager:
    manager = LogManager(
        [path], disk=disk, clock=SimClock(), random=SeededRandom(5), pool=pool or InlinePool()
    )
    await manager.start(lambda topic: LogConfig())
    return manager


def create(manager: LogManager, count: int) -> None:
    for number in range(count):
        manager.get_or_create_log(TopicPartition("many", number), LogConfig(), topic_id=TOPIC_ID)


def write(manager: LogManager) -> None:
    for log in manager.logs():
        batch = build_batch([(0, None, b"of %d" % log.topic_partition.partition)])
        log.append_as_leader(bytearray(batch), 0, now_ms=0)


async def syncs_of_shutdown(disk: SimDisk, manager: LogManager) -> Counter[str]:
    synced: Counter[str] = Counter()

    def note(operation: DiskOperation) -> None:
        if operation.op in (Op.SYNC, Op.SYNC_DIR):
            synced[operation.path] += 1

    disk.hook = note
    await manager.shutdown()
    disk.hook = None
    return synced


async def test_new_logs_are_closed_with_two_syncs_each() -> None:
    disk = SimDisk()
    manager = await started(disk, "/data")
    create(manager, 40)
    synced = await syncs_of_shutdown(disk, manager)
    of_logs = {path: count for path, count in synced.items() if path.startswith("/data/many")}
    # Its topic id, and the names of its files.
    assert sum(of_logs.values()) == 80
    assert synced["/data"] <= 5
    assert disk.contents() == disk.durable_contents()


async def touched_by_shutdown(disk: SimDisk, manager: LogManager) -> list[DiskOperation]:
    """The operations of a shutdown in the directories of logs."""
    touched: list[DiskOperation] = []

    def note(operation: DiskOperation) -> None:
        if operation.path.startswith("/data/many"):
            touched.append(operation)

    disk.hook = note
    await manager.shutdown()
    disk.hook = None
    return touched


async def test_idle_logs_that_got_another_leader_are_closed_without_a_touch() -> None:
    disk = SimDisk()
    manager = await started(disk, "/data")
    create(manager, 20)
    for log in manager.logs()[::2]:
        batch = build_batch([(0, None, b"a record")])
        log.append_as_leader(bytearray(batch), 0, now_ms=0)
    await manager.shutdown()
    for epoch in (1, 2):
        manager = await started(disk, "/data")
        for log in manager.logs():
            log.assign_epoch_start_offset(epoch, log.log_end_offset)
        assert not await touched_by_shutdown(disk, manager)
    disk.crash()
    manager = await started(disk, "/data")
    assert manager.clean_shutdown_epoch == -1
    for log in manager.logs():
        log.assign_epoch_start_offset(3, log.log_end_offset)
        entries = [(0, 0), (3, 1)] if log.log_end_offset else [(3, 0)]
        assert list(log.leader_epoch_cache.entries) == entries


async def test_empty_logs_are_closed_after_a_crash_without_a_write() -> None:
    disk = SimDisk()
    manager = await started(disk, "/data")
    create(manager, 20)
    await manager.shutdown()
    disk.unlink(f"/data/{checkpoints.CLEAN_SHUTDOWN}")
    manager = await started(disk, "/data")
    for log in manager.logs():
        log.assign_epoch_start_offset(1, 0)
    touched = await touched_by_shutdown(disk, manager)
    # What the process that ended has left unsynced is unknown. The indexes are not even opened.
    assert not [each for each in touched if not each.path.endswith((".log", ".txnindex"))]
    assert {each.op for each in touched} <= {Op.OPEN, Op.SYNC}


async def test_the_names_of_logs_are_synced_once_for_all() -> None:
    disk = SimDisk()
    manager = await started(disk, "/data")
    create(manager, 40)
    write(manager)
    synced = await syncs_of_shutdown(disk, manager)
    assert synced["/data"] <= 5
    assert all(count == 1 for path, count in synced.items() if path.startswith("/data/many"))
    assert disk.contents() == disk.durable_contents()
    disk.crash()
    manager = await started(disk, "/data")
    assert manager.clean_shutdown_epoch == -1
    assert [log.log_end_offset for log in manager.logs()] == [1] * 40


async def test_logs_are_closed_side_by_side_and_all_come_back(tmp_path: Path) -> None:
    pool = ThreadPool(8)
    manager = await started(RealDisk(), str(tmp_path), pool)
    create(manager, 100)
    write(manager)
    for log in manager.logs()[::3]:
        # A log start to note, and a leader epoch that begins with it.
        log.update_high_watermark(1)
        log.maybe_increment_log_start_offset(1, "a test")
    await manager.shutdown()
    manager = await started(RealDisk(), str(tmp_path), pool)
    assert manager.clean_shutdown_epoch == -1
    starts = {log.topic_partition.partition: log.log_start_offset for log in manager.logs()}
    assert starts == {number: int(number % 3 == 0) for number in range(100)}
    for log in manager.logs():
        if not log.log_start_offset:
            assert b"of %d" % log.topic_partition.partition in log.read(0, 1000).records
    await manager.shutdown()
    pool.close()


@pytest.mark.parametrize("prefix", ["/data/many-7", "/data/log-start", "/data/recovery-point", "/data"])
@pytest.mark.parametrize("op", ["sync", "sync_dir", "rename"])
async def test_there_is_no_mark_where_anything_failed(prefix: str, op: str) -> None:
    disk = SimDisk()
    manager = await started(disk, "/data")
    create(manager, 20)
    write(manager)
    for log in manager.logs():
        log.update_high_watermark(1)
        log.maybe_increment_log_start_offset(1, "a test")
    fault = disk.fail(errno.EIO, ops=[op], prefix=prefix)
    await manager.shutdown()
    struck = not fault.times
    marked = disk.exists(f"/data/{checkpoints.CLEAN_SHUTDOWN}")
    assert marked is not struck
    assert struck or op == "sync_dir"
