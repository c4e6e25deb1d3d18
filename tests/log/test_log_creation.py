"""A new log is made durable in the background, and in any case before its first record."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from ottla.log.config.log_config import LogConfig
from ottla.log.directory.checkpoints import read_topic_id
from ottla.log.log_manager import LogManager, NewLog
from ottla.log.unified_log import UnifiedLog
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition
from ottla.records.batch import read_records
from ottla.records.builder import build_batch
from ottla.runtime.pool import InlinePool, Pool
from ottla.runtime.random import SeededRandom
from ottla.sim.clock import SimClock
from ottla.sim.disk import SimDisk
from ottla.sim.disk_faults import DiskOperation, Op, SimCrash
from tests.support.rows import for_each

PARTITION = TopicPartition("orders", 0)
METADATA = "/data/orders-0/partition.metadata"
IDS = [bytes([number]) * 16 for number in range(1, 5)]


T = TypeVar("T")


class WatchedPool(InlinePool):
    """Knows whether one of its calls is running."""

    def __init__(self) -> None:
        super().__init__()
        self.is_running = False

    async def run(self, fn: Callable[..., T], *args: Any) -> T:
        self.is_running = True
        try:
            return await super().run(fn, *args)
        finally:
            self.is_running = False


async def started(disk: SimDisk, dirs: tuple[str, ...] = ("/data",), pool: Pool | None = None) -> LogManager:
    logs = LogManager(
        dirs, disk=disk, clock=SimClock(), random=SeededRandom(1), pool=pool if pool else InlinePool()
    )
    await logs.start(lambda topic: LogConfig())
    return logs


def new_logs(count: int, *, topic: str = "many") -> list[NewLog]:
    return [NewLog(TopicPartition(topic, n), LogConfig(), IDS[0], is_new=True) for n in range(count)]


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


@for_each("seed", range(150))
async def test_records_are_never_found_under_another_topic(seed: int) -> None:
    """Topics of one name come and go, and the power fails at any point."""
    chance = random.Random(seed)
    disk = SimDisk(seed)
    logs = await started(disk)
    disk.crash_after(chance.randint(0, 60))
    try:
        for topic_id in IDS:
            if chance.random() < 0.5:
                await logs.create_logs([NewLog(PARTITION, LogConfig(), topic_id, is_new=True)])
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
    logs = await started(disk, ("/a", "/b"))
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


async def test_logs_become_durable_without_a_change_of_the_disk_on_the_event_loop() -> None:
    disk, pool = SimDisk(), WatchedPool()
    logs = await started(disk, pool=pool)
    made = [
        logs.get_or_create_log(TopicPartition("many", number), LogConfig(), topic_id=IDS[0])
        for number in range(10)
    ]
    outside: list[DiskOperation] = []

    def note(operation: DiskOperation) -> None:
        if not pool.is_running:
            outside.append(operation)

    disk.hook = note
    logs.complete_log_creations()
    for _ in range(10):
        await asyncio.sleep(0)
    assert outside == []
    assert all(disk.exists(f"{log.dir}/partition.metadata") for log in made)


async def test_the_number_of_new_logs_is_that_of_those_that_are_not_durable_yet() -> None:
    logs = await started(SimDisk())
    first = logs.get_or_create_log(PARTITION, LogConfig(), topic_id=IDS[0])
    assert (logs.new_logs, first.is_new) == (1, True)
    await logs.complete_creation(first)
    assert not first.is_new
    logs.complete_log_creations()
    for _ in range(10):
        await asyncio.sleep(0)
    assert logs.new_logs == 0


@pytest.mark.parametrize("written", [False, True])
async def test_a_log_that_is_deleted_while_it_becomes_durable_leaves_the_next_one_alone(
    written: bool,
) -> None:
    disk = SimDisk()
    logs = await started(disk)
    old = logs.get_or_create_log(PARTITION, LogConfig(), topic_id=IDS[0])
    creation = old.begin_creation()
    assert creation is not None
    if written:
        creation.write()
    logs.delete_log(PARTITION)
    new = logs.get_or_create_log(PARTITION, LogConfig(), topic_id=IDS[1])
    put(new, b"first")
    if not written:
        creation.write()
    creation.install()
    creation.sync()
    old.on_creation_ended(creation)
    assert read_topic_id(disk, METADATA) == IDS[1]


@pytest.mark.parametrize("written", [False, True])
async def test_a_creation_that_failed_elsewhere_leaves_the_next_log_alone(written: bool) -> None:
    """One thread makes the creations of many logs durable and fails at another log, while a second thread is
    at this one for its first records.
    """
    disk = SimDisk()
    logs = await started(disk)
    old = logs.get_or_create_log(PARTITION, LogConfig(), topic_id=IDS[0])
    creation = old.begin_creation()
    assert creation is not None
    if written:
        creation.write()
    old.on_creation_ended(creation)  # by the first thread
    logs.delete_log(PARTITION)
    new = logs.get_or_create_log(PARTITION, LogConfig(), topic_id=IDS[1])
    put(new, b"first")
    creation.complete()  # by the second one
    old.on_creation_ended(creation)
    assert read_topic_id(disk, METADATA) == IDS[1]


# Logs that are created in the pool


async def test_the_event_loop_changes_nothing_on_the_disk_for_logs_that_the_pool_creates() -> None:
    disk, pool = SimDisk(), WatchedPool()
    logs = await started(disk, pool=pool)
    outside: list[DiskOperation] = []

    def note(operation: DiskOperation) -> None:
        if not pool.is_running:
            outside.append(operation)

    disk.hook = note
    await logs.create_logs(new_logs(10))
    assert outside == []
    assert len(logs.logs()) == 10
    for new in new_logs(10):
        assert logs.get_or_create_log(new.partition, new.config, topic_id=new.topic_id).topic_id == IDS[0]
    assert outside == []
    assert all(disk.exists(f"/data/many-{number}/00000000000000000000.log") for number in range(10))


async def test_logs_that_are_there_already_are_not_created_by_the_pool() -> None:
    disk = SimDisk()
    logs = await started(disk)
    log = logs.get_or_create_log(TopicPartition("many", 1), LogConfig(), topic_id=IDS[0])
    put(log, b"first")
    await logs.create_logs(new_logs(3))
    assert logs.get_log(TopicPartition("many", 1)) is log
    assert log.log_end_offset == 1
    assert len(logs.logs()) == 3


async def test_logs_that_the_pool_creates_are_spread_over_the_directories() -> None:
    logs = await started(SimDisk(), ("/a", "/b", "/c"))
    logs.get_or_create_log(PARTITION, LogConfig(), topic_id=IDS[0])
    await logs.create_logs(new_logs(8))
    assert [len(logs.logs_in(directory)) for directory in logs.directories] == [3, 3, 3]


@pytest.mark.parametrize("op", ["make_dir", "create"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EMFILE])
async def test_an_error_while_the_pool_creates_logs_is_the_one_of_their_directory(
    op: str, error: int
) -> None:
    disk = SimDisk()
    logs = await started(disk, ("/a", "/b"))
    disk.fail(error, prefix="/a/many", ops=[op], times=None)
    await logs.create_logs(new_logs(10))
    assert logs.logs()
    assert {log.directory.path for log in logs.logs()} == {"/b"}
    is_failure = error == errno.EIO
    assert [directory.path for directory in logs.live_directories] == (["/b"] if is_failure else ["/a", "/b"])
    # The others come next.
    for new in new_logs(10):
        log = logs.get_or_create_log(new.partition, new.config, topic_id=new.topic_id)
        assert log.directory.path == "/b"
    assert disk.list_dir("/a") == (await started(SimDisk(), ("/a",)))._disk.list_dir("/a")


async def test_a_log_whose_directory_fails_before_it_is_taken_over_is_created_in_another_one() -> None:
    disk = SimDisk()

    class FailingLater(InlinePool):
        async def run(self, fn: Callable[..., T], *args: Any) -> T:
            made = await super().run(fn, *args)
            if isinstance(made, list):
                logs.directories[0].fail("meanwhile")
            return made

    pool = FailingLater()
    logs = await started(disk, ("/a", "/b"), pool)
    await logs.create_logs(new_logs(2))
    assert [log.directory.path for log in logs.logs()] == ["/b"]
    for new in new_logs(2):
        logs.get_or_create_log(new.partition, new.config, topic_id=new.topic_id)
    assert [log.directory.path for log in logs.logs()] == ["/b", "/b"]


async def test_no_thread_creates_logs_after_the_shutdown() -> None:
    disk = SimDisk()

    class LatePool(InlinePool):
        """Has begun none of its calls when the caller is cancelled."""

        def __init__(self) -> None:
            super().__init__()
            self.is_late = False
            self.accepted: list[Callable[[], object]] = []

        async def run(self, fn: Callable[..., T], *args: Any) -> T:
            if self.is_late:
                self.is_late = False
                self.accepted.append(fn)
                await asyncio.get_running_loop().create_future()
            return await super().run(fn, *args)

    pool = LatePool()
    logs = await started(disk, pool=pool)
    pool.is_late = True
    creating = asyncio.create_task(logs.create_logs(new_logs(5)))
    await asyncio.sleep(0)
    creating.cancel()
    await asyncio.gather(creating, return_exceptions=True)
    await logs.shutdown()
    operations = disk.operations
    (late,) = pool.accepted
    late()
    assert disk.operations == operations
    again = await started(disk)
    await again.create_logs(new_logs(5))
    assert len(again.logs()) == 5


async def test_a_log_in_place_of_one_that_was_set_aside_is_forgotten_and_created_in_the_pool() -> None:
    disk, pool = SimDisk(), WatchedPool()
    logs = await started(disk, pool=pool)
    log = logs.get_or_create_log(PARTITION, LogConfig(), topic_id=IDS[0])
    put(log, b"first")
    await logs.flush(log)
    await logs.checkpoint_log_recovery_offsets()
    logs.fail_log(PARTITION, KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "damaged"))
    await logs.set_aside(PARTITION)
    waits: list[DiskOperation] = []

    def note(operation: DiskOperation) -> None:
        if not pool.is_running and operation.op in (Op.SYNC, Op.SYNC_DIR, Op.CREATE, Op.MAKE_DIR):
            waits.append(operation)

    disk.hook = note
    await logs.create_logs([NewLog(PARTITION, LogConfig(), IDS[0], is_new=False)])
    assert waits == []
    new = logs.get_log(PARTITION)
    assert new is not None
    assert new.log_end_offset == 0
    assert logs.directories[0].recovery_point(PARTITION) is None
