"""A new log is made durable in the background, and in any case before its first record."""

from __future__ import annotations

import asyncio
import errno
import random

import pytest

from ottla.log.config.log_config import LogConfig
from ottla.log.log_manager import LogManager
from ottla.log.unified_log import UnifiedLog
from ottla.protocol.errors import KafkaError
from ottla.protocol.names import TopicPartition
from ottla.records.batch import read_records
from ottla.records.builder import build_batch
from ottla.runtime.pool import InlinePool
from ottla.runtime.random import SeededRandom
from ottla.sim.clock import SimClock
from ottla.sim.disk import SimDisk
from ottla.sim.disk_faults import DiskOperation, Op, SimCrash

PARTITION = TopicPartition("orders", 0)
METADATA = "/data/orders-0/partition.metadata"
IDS = [bytes([number]) * 16 for number in range(1, 5)]


def manager(disk: SimDisk) -> LogManager:
    return LogManager(["/data"], disk=disk, clock=SimClock(), random=SeededRandom(1), pool=InlinePool())


async def started(disk: SimDisk) -> LogManager:
    logs = manager(disk)
    await logs.start(lambda topic: LogConfig())
    return logs


def put(log: UnifiedLog, value: bytes) -> None:
    log.append_as_leader(bytearray(build_batch([(0, None, value)])), 0, now_ms=0)


async def test_creating_logs_syncs_nothing_until_their_creation_is_completed() -> None:
    disk = SimDisk()
    logs = await started(disk)
    synced: list[str] = []

    def note(operation: DiskOperation) -> None:
        if operation.op in (Op.SYNC, Op.SYNC_DIR):
            synced.append(operation.path)

    disk.hook = note
    for number in range(10):
        logs.get_or_create_log(TopicPartition("many", number), LogConfig(), topic_id=IDS[0])
    assert synced == []
    logs.complete_log_creations()
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(synced) == 20
    assert all(disk.exists(f"/data/many-{number}/partition.metadata") for number in range(10))


async def test_the_first_record_completes_the_creation_of_a_log() -> None:
    disk = SimDisk()
    logs = await started(disk)
    log = logs.get_or_create_log(PARTITION, LogConfig(), topic_id=IDS[0])
    assert log.topic_id == IDS[0]
    assert not disk.exists(METADATA)
    put(log, b"first")
    assert disk.exists(METADATA)


async def test_without_room_for_the_topic_id_there_is_none_for_the_record() -> None:
    disk = SimDisk()
    logs = await started(disk)
    log = logs.get_or_create_log(PARTITION, LogConfig(), topic_id=IDS[0])
    fault = disk.fail(28, prefix="/data/orders-0", times=None)
    with pytest.raises(KafkaError, match="making a new log durable"):
        put(log, b"first")
    assert log.log_end_offset == 0
    disk.heal(fault)
    put(log, b"first")
    assert log.log_end_offset == 1


async def test_a_shutdown_completes_the_creation_of_unused_logs() -> None:
    disk = SimDisk()
    logs = await started(disk)
    logs.get_or_create_log(PARTITION, LogConfig(), topic_id=IDS[0])
    await logs.shutdown()
    again = await started(disk)
    (log,) = again.logs()
    assert log.topic_id == IDS[0]


@pytest.mark.parametrize("seed", range(150))
async def test_records_are_never_found_under_another_topic(seed: int) -> None:
    """Topics of one name come and go, and the power fails at any point."""
    chance = random.Random(seed)
    disk = SimDisk(seed)
    logs = await started(disk)
    disk.crash_after(chance.randint(0, 60))
    try:
        for topic_id in IDS:
            log = logs.get_or_create_log(PARTITION, LogConfig(), topic_id=topic_id)
            for _ in range(chance.randint(0, 4)):
                match chance.randrange(4):
                    case 0:
                        logs.complete_log_creations()
                    case 1:
                        await asyncio.sleep(0)
                    case 2:
                        put(log, topic_id)
                    case 3:
                        await logs.flush(log)
            logs.delete_log(PARTITION)
    except (SimCrash, KafkaError):
        pass
    disk.crash()
    for log in (await started(disk)).logs():
        if log.log_end_offset > 0:
            data = log.read(0, 1000).records
            assert log.topic_id == read_records(data)[0].value


async def test_an_error_while_logs_are_made_durable_is_the_one_of_their_directory() -> None:
    disk = SimDisk()
    dirs = ["/a", "/b"]
    logs = LogManager(dirs, disk=disk, clock=SimClock(), random=SeededRandom(1), pool=InlinePool())
    await logs.start(lambda topic: LogConfig())
    made = [
        logs.get_or_create_log(TopicPartition("many", number), LogConfig(), topic_id=IDS[0])
        for number in range(10)
    ]
    disk.fail(errno.EIO, prefix="/a/many", ops=["write"])
    logs.complete_log_creations()
    for _ in range(20):
        await asyncio.sleep(0)
    assert [directory.path for directory in logs.live_directories] == ["/b"]
    sound = [log.dir for log in made if log.directory.path == "/b"]
    assert sound
    assert all(disk.exists(f"{dir}/partition.metadata") for dir in sound)
