"""The logs of a node, in one directory and in several."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from ottla.log.config.log_config import LogConfig
from ottla.log.directory import checkpoints
from ottla.log.directory.directory import LogDirectory
from ottla.log.directory.meta_properties import MetaProperties
from ottla.log.log_loader import load_part
from ottla.log.log_manager import MAX_SET_ASIDE, LogManager
from ottla.log.segment.file_names import segment_file_name
from ottla.log.unified_log import UnifiedLog
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition
from ottla.records.batch import set_offset_and_epoch
from ottla.records.builder import build_batch
from ottla.records.control import ControlType, EndTransactionMarker, build_end_transaction_marker
from ottla.runtime.disk import Disk, RealDisk, read_file, remove_tree, write_file
from ottla.runtime.pool import InlinePool, Pool, ThreadPool
from ottla.runtime.random import SeededRandom
from ottla.runtime.turns import Turns
from ottla.sim.clock import SimClock
from ottla.sim.disk import SimDisk
from ottla.sim.disk_faults import Op
from tests.support.log_harness import all_batches, check_log

T = TypeVar("T")

A, B = "/disks/a", "/disks/b"
CONFIG = LogConfig(segment_bytes=1000, file_delete_delay_ms=500)
IDS = {"orders": bytes([1]) * 16, "bills": bytes([2]) * 16}


class Node:
    """What a node is to its logs."""

    def __init__(self, *dirs: str, disk: Disk | None = None, pool: Pool | None = None) -> None:
        self.clock = SimClock()
        self.disk = disk if disk is not None else SimDisk(3, clock=self.clock)
        self.pool = pool if pool is not None else InlinePool()
        self.dirs = dirs or (A,)
        self.random = SeededRandom(5)
        self.recovery_threads = 2
        self.failures: list[LogDirectory] = []
        self.config = CONFIG
        self.manager: LogManager

    async def start(self, belongs: Callable[[UnifiedLog], bool] = lambda _: True) -> LogManager:
        self.manager = LogManager(
            self.dirs,
            disk=self.disk,
            clock=self.clock,
            random=self.random,
            pool=self.pool,
            on_directory_failure=self.failures.append,
            recovery_threads=self.recovery_threads,
        )
        await self.manager.start(lambda topic: self.config, belongs)
        return self.manager

    @property
    def sim_disk(self) -> SimDisk:
        assert isinstance(self.disk, SimDisk)
        return self.disk

    def log(self, topic: str = "orders", partition: int = 0, **how: object) -> UnifiedLog:
        return self.manager.get_or_create_log(
            TopicPartition(topic, partition),
            self.config,
            topic_id=IDS[topic],
            **how,  # type: ignore[arg-type]
        )

    def fill(self, log: UnifiedLog, count: int = 20) -> None:
        for _ in range(count):
            data = build_batch([(self.clock.wall_ms(), None, b"x" * 100)])
            log.append_as_leader(bytearray(data), 0, now_ms=self.clock.wall_ms())
        log.update_high_watermark(log.log_end_offset)

    async def kill(self) -> LogManager:
        """End the process, which leaves everything that was written, and start again."""
        self.sim_disk.sync_all()
        return await self.crash()

    async def crash(self) -> LogManager:
        self.sim_disk.crash()
        return await self.start()


async def test_what_is_not_stable_is_found_before_a_log_is_served() -> None:
    """The batches between the high watermark and the snapshot of the producers are read while logs are
    loaded, in the pool, and not by the first reader on the event loop.
    """
    node = Node()
    await node.start()
    log = node.log()
    now_ms = node.clock.wall_ms()
    for producer_id in (7, 8):
        batch = build_batch(
            [(now_ms, None, b"x")],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
        log.append_as_follower(batch_at(batch, log.log_end_offset), 0, now_ms=now_ms)
    log.update_high_watermark(1)
    await node.manager.checkpoint_high_watermarks()
    for producer_id in (7, 8):
        marker = build_end_transaction_marker(
            EndTransactionMarker(ControlType.COMMIT, 0),
            producer_id=producer_id,
            producer_epoch=0,
            timestamp=now_ms,
        )
        log.append_as_follower(batch_at(marker, log.log_end_offset), 0, now_ms=now_ms)
    await node.manager.shutdown(broker_epoch=9)
    await node.start()
    log = node.log()
    before = len(node.sim_disk.trace.entries())
    assert (log.high_watermark, log.last_stable_offset) == (1, 0)
    log.update_high_watermark(3)
    assert log.last_stable_offset == 1
    assert len(node.sim_disk.trace.entries()) == before


def batch_at(batch: bytes, offset: int) -> bytes:
    """A batch as a leader sends it to its followers."""
    placed = bytearray(batch)
    set_offset_and_epoch(placed, 0, offset, 0)
    return bytes(placed)


async def test_logs_come_back_after_a_clean_shutdown() -> None:
    node = Node(A, B)
    await node.start()
    for topic in IDS:
        for partition in range(3):
            node.fill(node.log(topic, partition), 5 + partition)
    content = {log.topic_partition: all_batches(log) for log in node.manager.logs()}
    await node.manager.shutdown(broker_epoch=9)
    manager = await node.start()
    assert manager.clean_shutdown_epoch == 9
    assert {log.topic_partition for log in manager.logs()} == content.keys()
    for log in manager.logs():
        assert [data for _, data in all_batches(log)] == [data for _, data in content[log.topic_partition]]
        assert log.high_watermark == log.log_end_offset
        assert log.topic_id == IDS[log.topic_partition.topic]
        check_log(log)


async def test_the_mark_of_a_clean_shutdown_serves_once() -> None:
    node = Node()
    await node.start()
    node.fill(node.log())
    await node.manager.shutdown()
    assert node.disk.exists(f"{A}/.kafka_cleanshutdown")
    await node.start()
    assert not node.disk.exists(f"{A}/.kafka_cleanshutdown")
    await node.crash()
    assert node.manager.clean_shutdown_epoch is None
    assert node.log().log_end_offset == 20


async def test_after_a_crash_logs_are_recovered_from_the_checkpoint_on() -> None:
    node = Node()
    await node.start()
    log = node.log()
    node.fill(log)
    await node.manager.flush_dirty_logs(node.clock.wall_ms())
    assert log.recovery_point == log.active_segment.base_offset > 0
    await node.manager.checkpoint_log_recovery_offsets()
    await node.manager.checkpoint_high_watermarks()
    await node.crash()
    again = node.log()
    assert again is not log
    assert again.log_end_offset >= log.recovery_point
    assert again.recovery_point == log.recovery_point
    check_log(again)


# Directories


async def test_a_new_log_goes_to_the_directory_with_the_fewest() -> None:
    node = Node(A, B)
    await node.start()
    paths = [node.log("orders", partition).directory.path for partition in range(6)]
    assert sorted(paths) == [A] * 3 + [B] * 3
    assert paths[0] != paths[1]


async def test_a_new_log_goes_where_the_controller_put_it() -> None:
    node = Node(A, B)
    await node.start()
    for number, directory in enumerate(node.manager.directories):
        directory.directory_id = bytes([number]) * 16
    for partition in range(4):
        assert node.log("orders", partition, directory_id=bytes([1]) * 16).directory.path == B
    assert node.manager.directory_by_id(bytes([9]) * 16) is None


async def test_a_directory_is_used_by_one_process_at_a_time() -> None:
    node = Node(A, B)
    await node.start()
    other = Node(B, disk=node.disk)
    with pytest.raises(KafkaError, match=r"lock in /disks/b\. A Kafka instance in another process"):
        await other.start()
    await node.manager.shutdown()
    await other.start()


async def test_a_directory_twice_is_refused() -> None:
    with pytest.raises(KafkaError, match=r"log\.dirs"):
        await Node(A, A).start()


async def test_a_directory_knows_its_id() -> None:
    node = Node()
    node.disk.make_dirs(A)
    write_file(node.disk, f"{A}/meta.properties", MetaProperties("c", 1, bytes(range(16))).encode())
    manager = await node.start()
    assert manager.directories[0].directory_id == bytes(range(16))
    assert manager.directory_by_id(bytes(range(16))) is manager.directories[0]


async def test_a_failing_directory_goes_offline_and_the_others_go_on() -> None:
    node = Node(A, B)
    await node.start()
    first, second = node.log("orders", 0), node.log("orders", 1)
    assert {first.directory.path, second.directory.path} == {A, B}
    broken, sound = (first, second) if first.directory.path == A else (second, first)
    node.sim_disk.fail(errno.EIO, prefix=A, ops=["write"], times=None)
    with pytest.raises(KafkaError) as refused:
        node.fill(broken)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert node.failures == [broken.directory]
    assert [each.path for each in node.manager.live_directories] == [B]
    node.fill(sound)
    with pytest.raises(KafkaError, match="/disks/a is offline"):
        node.manager.get_log(broken.topic_partition)
    # Periodic work leaves the broken one alone.
    now_ms = node.clock.wall_ms() + 10_000
    await node.manager.flush_dirty_logs(now_ms)
    await node.manager.checkpoint_log_recovery_offsets()
    await node.manager.checkpoint_log_start_offsets()
    await node.manager.checkpoint_high_watermarks()
    await node.manager.cleanup_logs(now_ms)
    await node.manager.remove_deleted_files(now_ms)
    # A partition that may be on the broken disk is not created again on the other.
    with pytest.raises(KafkaError, match="are offline: the partition may be there"):
        node.log("bills", 0, is_new=False)
    assert node.log("bills", 0).directory.path == B
    await node.manager.shutdown()
    assert node.disk.exists(f"{B}/.kafka_cleanshutdown")
    assert not node.disk.exists(f"{A}/.kafka_cleanshutdown")


async def test_a_directory_that_cannot_be_opened_is_offline() -> None:
    node = Node(A, B)
    node.sim_disk.fail(errno.EIO, prefix=A, times=None)
    manager = await node.start()
    assert [each.path for each in manager.live_directories] == [B]
    node.fill(node.log())


async def test_without_any_directory_the_node_does_not_start() -> None:
    node = Node(A, B)
    node.sim_disk.fail(errno.EIO, times=None)
    with pytest.raises(KafkaError, match=r"no log directory can be used: /disks/a: .*; /disks/b: "):
        await node.start()


async def test_what_is_no_partition_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    node = Node()
    for name in ("lost+found", "not-a-partition", "__cluster_metadata-0"):
        node.disk.make_dirs(f"{A}/{name}")
    manager = await node.start()
    assert manager.logs() == []
    assert "'not-a-partition' is not named topic-partition" in caplog.text
    assert node.disk.list_dir(A) == [".lock", "__cluster_metadata-0", "lost+found", "not-a-partition"]


# Refused logs


async def test_a_damaged_log_is_refused_and_the_others_are_served() -> None:
    node = Node()
    await node.start()
    bad, good = node.log("orders", 0), node.log("orders", 1)
    for log in (bad, good):
        node.fill(log)
        log.flush()
    await node.manager.checkpoint_log_recovery_offsets()
    path = bad.active_segment.path(".log")
    for _ in range(2):
        node.sim_disk.crash()
        file = node.disk.open(path)
        file.pwrite(b"\xff", 80)
        file.sync()
        await node.start()
        assert list(node.manager.failed) == [bad.topic_partition]
        with pytest.raises(KafkaError, match="is damaged") as refused:
            node.log("orders", 0)
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert node.log("orders", 1).log_end_offset == 20
        # Nothing that happens later makes the log count as sound.
        await node.manager.checkpoint_log_recovery_offsets()
        await node.manager.checkpoint_log_start_offsets()
        await node.manager.shutdown()
        # The mark is true of the other log; the report in its directory speaks for this one.
        assert node.disk.exists(f"{A}/.kafka_cleanshutdown")
        assert "is damaged at position" in (checkpoints.read_damage_report(node.disk, bad.dir) or "")
        await node.start()
        assert list(node.manager.failed) == [bad.topic_partition]


async def damaged(node: Node) -> UnifiedLog:
    """Start a node with a log that is damaged below its recovery point, and one that is not."""
    await node.crash()
    bad, good = node.log("orders", 0), node.log("orders", 1)
    for log in (bad, good):
        node.fill(log)
        log.flush()
    await node.manager.checkpoint_log_recovery_offsets()
    path = bad.active_segment.path(".log")
    node.sim_disk.crash()
    file = node.disk.open(path)
    file.pwrite(b"\xff", 80)
    file.sync()
    await node.start()
    assert list(node.manager.failed) == [bad.topic_partition]
    return bad


async def test_a_damaged_log_that_is_restored_is_served_again() -> None:
    node = Node()
    await node.start()
    log = node.log()
    node.fill(log)
    log.flush()
    await node.manager.checkpoint_log_recovery_offsets()
    path = log.active_segment.path(".log")
    file = node.disk.open(path)
    sound = file.pread(1, 80)
    file.pwrite(b"\xff", 80)
    await node.kill()
    assert list(node.manager.failed) == [log.topic_partition]
    await node.manager.shutdown()
    node.disk.open(path).pwrite(sound, 80)
    await node.start()
    assert node.manager.failed == {}
    assert node.log().log_end_offset == 20
    assert not node.disk.exists(f"{log.dir}/{checkpoints.DAMAGE_REPORT}")


async def test_the_topic_of_a_damaged_log_can_be_deleted_and_created_again() -> None:
    node = Node()
    bad = await damaged(node)
    assert node.manager.delete_logs([bad.topic_partition]) == {}
    assert node.manager.failed == {}
    again = node.log("orders", 0)
    assert again.log_end_offset == 0
    node.fill(again, 3)
    node.clock.advance_ms(120_000)
    assert await node.manager.remove_deleted_files(node.clock.wall_ms()) == 1
    assert not [name for name in node.disk.list_dir(A) if name.endswith("-delete")]
    await node.manager.shutdown()
    assert node.disk.exists(f"{A}/.kafka_cleanshutdown")
    await node.start()
    assert node.log("orders", 0).log_end_offset == 3


async def test_a_damaged_log_is_set_aside_and_created_again() -> None:
    node = Node()
    bad = await damaged(node)
    before = node.disk.list_dir(bad.dir)
    await node.manager.set_aside(bad.topic_partition)
    (aside,) = node.manager.directories_set_aside
    assert aside.startswith(f"{A}/orders-0.")
    assert aside.endswith("-damaged-stray")
    assert node.disk.list_dir(aside) == before
    assert node.log("orders", 0).log_end_offset == 0
    await node.crash()
    assert node.manager.directories_set_aside == (aside,)
    assert node.manager.failed == {}
    assert node.log("orders", 0).log_end_offset == 0


async def test_a_lack_of_handles_puts_the_setting_aside_of_a_damaged_log_off() -> None:
    """The files have their new names by then; that these are durable is what is tried again."""
    node = Node()
    bad = await damaged(node)
    node.sim_disk.fail(errno.EMFILE, ops=[Op.SYNC_DIR], times=2)
    for _ in range(2):
        with pytest.raises(KafkaError, match="ulimit"):
            await node.manager.set_aside(bad.topic_partition)
        assert node.manager.directories_set_aside == ()
        with pytest.raises(KafkaError):
            node.log("orders", 0)
    assert bad.directory.is_online
    await node.manager.set_aside(bad.topic_partition)
    (aside,) = node.manager.directories_set_aside
    assert node.manager.failed == {}
    assert node.log("orders", 0).log_end_offset == 0
    await node.crash()
    assert node.manager.directories_set_aside == (aside,)


async def test_a_damaged_log_that_is_half_set_aside_can_be_deleted() -> None:
    node = Node()
    bad = await damaged(node)
    node.sim_disk.fail(errno.EMFILE, ops=[Op.SYNC_DIR], times=1)
    with pytest.raises(KafkaError, match="ulimit"):
        await node.manager.set_aside(bad.topic_partition)
    assert not node.manager.delete_logs([bad.topic_partition])
    (aside,) = node.manager.directories_set_aside
    assert node.disk.is_dir(aside)
    assert node.log("orders", 0).log_end_offset == 0


async def test_a_disk_that_damages_a_partition_again_and_again_is_not_filled() -> None:
    node = Node()
    for _ in range(MAX_SET_ASIDE):
        bad = await damaged(node)
        await node.manager.set_aside(bad.topic_partition)
    bad = await damaged(node)
    with pytest.raises(KafkaError, match="the disk seems to fail"):
        await node.manager.set_aside(bad.topic_partition)
    assert list(node.manager.failed) == [bad.topic_partition]
    remove_tree(node.disk, node.manager.directories_set_aside[0])
    await node.manager.set_aside(bad.topic_partition)
    assert node.manager.failed == {}


async def test_damage_below_the_recovery_point_is_found_by_the_next_load() -> None:
    """Damage that a reader has met in an old segment, which a recovery would not read."""
    node = Node()
    await node.start()
    log = node.log()
    node.fill(log)
    log.flush()
    assert len(log.segments) > 2
    file = node.disk.open(log.segments[0].path(".log"))
    file.pwrite(b"\xff", 80)
    node.manager.fail_log(log.topic_partition, KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "a reader met it"))
    await node.manager.shutdown()
    await node.start()
    with pytest.raises(KafkaError, match=r"0\.log is damaged at position"):
        node.log()


async def test_a_damaged_copy_that_is_being_moved_is_set_aside() -> None:
    node = Node(A, B)
    for path, number in ((A, 1), (B, 2)):
        node.disk.make_dirs(path)
        properties = MetaProperties("cluster", 1, bytes([number]) * 16)
        write_file(node.disk, f"{path}/meta.properties", properties.encode())
    await node.start()
    current = node.log(directory_id=bytes([1]) * 16)
    future = node.log(future=True, directory_id=bytes([2]) * 16)
    for log in (current, future):
        node.fill(log)
        log.flush()
    await node.manager.checkpoint_log_recovery_offsets()
    node.disk.open(future.active_segment.path(".log")).pwrite(b"\xff", 80)
    await node.kill()
    assert node.manager.failed == {}
    assert node.log().log_end_offset == 20
    assert len(node.manager.directories_set_aside) == 1


# Creating and deleting


async def test_a_topic_of_the_same_name_but_another_id_is_refused() -> None:
    node = Node()
    await node.start()
    log = node.log()
    assert node.log() is log
    with pytest.raises(KafkaError) as refused:
        node.manager.get_or_create_log(log.topic_partition, CONFIG, topic_id=bytes([9]) * 16)
    assert refused.value.code is ErrorCode.INCONSISTENT_TOPIC_ID


async def test_a_deleted_log_is_renamed_at_once_and_removed_later() -> None:
    node = Node()
    manager = await node.start()
    log = node.log()
    node.fill(log)
    manager.delete_log(log.topic_partition)
    assert manager.get_log(log.topic_partition) is None
    (name,) = [each for each in node.disk.list_dir(A) if each.startswith("orders")]
    assert name.startswith("orders-0.")
    assert name.endswith("-delete")
    assert await manager.remove_deleted_files(node.clock.wall_ms()) == 0
    node.clock.advance_ms(500)
    assert await manager.remove_deleted_files(node.clock.wall_ms()) == 1
    assert [each for each in node.disk.list_dir(A) if each.startswith("orders")] == []
    with pytest.raises(KafkaError, match="is closed"):
        log.read(0, 100)


async def test_a_log_that_was_deleted_stays_deleted_after_a_crash() -> None:
    node = Node()
    await node.start()
    node.fill(node.log())
    node.manager.delete_log(TopicPartition("orders", 0))
    await node.crash()
    assert node.manager.logs() == []
    assert await node.manager.remove_deleted_files(node.clock.wall_ms()) == 1


async def test_a_new_log_inherits_nothing_from_one_of_the_same_name() -> None:
    node = Node()
    await node.start()
    log = node.log()
    node.fill(log)
    log.flush()
    log.maybe_increment_log_start_offset(15, "a test")
    await node.manager.checkpoint_log_recovery_offsets()
    await node.manager.checkpoint_log_start_offsets()
    node.manager.delete_log(log.topic_partition)
    node.fill(node.log(), 3)
    node.log().flush()
    await node.crash()
    assert (node.log().log_start_offset, node.log().log_end_offset) == (0, 3)


@pytest.mark.parametrize("restarts", [False, True], ids=["at once", "after a restart"])
async def test_what_nobody_else_has_is_not_committed_as_a_former_log_had_more(restarts: bool) -> None:
    node = Node()
    await node.start()
    log = node.log()
    node.fill(log)
    log.update_high_watermark(log.log_end_offset)
    await node.manager.checkpoint_high_watermarks()
    await node.manager.delete_logs_in_turns([log.topic_partition], Turns(node.clock))
    if restarts:
        await node.crash()
    node.fill(node.log(), 3)
    node.log().flush()
    await node.crash()
    assert (node.log().high_watermark, node.log().log_end_offset) == (0, 3)


async def test_a_former_log_that_went_with_a_crash_leaves_no_high_watermark() -> None:
    node = Node()
    await node.start()
    log = node.log()
    node.fill(log)
    log.update_high_watermark(log.log_end_offset)
    await node.manager.checkpoint_high_watermarks()
    node.disk.rename(log.dir, f"{log.dir}.00000000000000000000000000000000-delete")
    node.disk.sync_dir(node.manager.directories[0].path)
    await node.crash()
    node.fill(node.log(), 3)
    node.log().flush()
    await node.crash()
    assert (node.log().high_watermark, node.log().log_end_offset) == (0, 3)


async def test_a_stray_log_is_kept_but_not_served() -> None:
    node = Node()
    manager = await node.start()
    node.fill(node.log())
    manager.mark_stray(TopicPartition("orders", 0))
    assert manager.logs() == []
    (path,) = manager.strays
    assert path.endswith("-stray")
    await manager.shutdown()
    manager = await node.start()
    assert manager.strays == (path,)
    assert manager.logs() == []
    assert node.disk.exists(f"{path}/{segment_file_name(0, '.log')}")


async def test_a_log_moves_to_another_directory() -> None:
    node = Node(A, B)
    manager = await node.start()
    for number, directory in enumerate(manager.directories):
        directory.directory_id = bytes([number]) * 16
    current = node.log(directory_id=bytes([0]) * 16)
    node.fill(current)
    with pytest.raises(KafkaError) as refused:
        node.log(directory_id=bytes([0]) * 16, future=True)
    assert refused.value.code is ErrorCode.LOG_DIR_NOT_FOUND
    future = node.log(directory_id=bytes([1]) * 16, future=True)
    assert future.is_future
    future.append_as_follower(current.read(0, 1000).records, 0, now_ms=0)
    while future.log_end_offset < current.log_end_offset:
        future.append_as_follower(current.read(future.log_end_offset, 1000).records, 0, now_ms=0)
    assert manager.replace_current_with_future_log(current.topic_partition) is future
    assert node.log() is future
    assert future.dir == f"{B}/orders-0"
    assert future.high_watermark == 20
    node.fill(future, 2)
    await manager.shutdown()
    manager = await node.start()
    (log,) = manager.logs()
    assert (log.directory.path, log.log_end_offset) == (B, 22)
    check_log(log)


async def test_a_future_log_is_a_future_log_after_a_restart() -> None:
    node = Node(A, B)
    manager = await node.start()
    for number, directory in enumerate(manager.directories):
        directory.directory_id = bytes([number]) * 16
    node.log(directory_id=bytes([0]) * 16)
    node.log(directory_id=bytes([1]) * 16, future=True)
    await manager.shutdown()
    manager = await node.start()
    partition = TopicPartition("orders", 0)
    future = manager.get_log(partition, future=True)
    current = manager.get_log(partition)
    assert future is not None
    assert current is not None
    assert (current.directory.path, future.directory.path) == (A, B)


async def test_one_partition_in_two_directories_is_refused() -> None:
    node = Node(A, B)
    await node.start()
    node.fill(node.log(), 2)
    await node.manager.shutdown()
    name = segment_file_name(0, ".log")
    here, there = (A, B) if node.disk.exists(f"{A}/orders-0") else (B, A)
    node.disk.make_dirs(f"{there}/orders-0")
    write_file(node.disk, f"{there}/orders-0/{name}", read_file(node.disk, f"{here}/orders-0/{name}"))
    with pytest.raises(KafkaError, match="orders-0 is in both"):
        await node.start()


@pytest.mark.parametrize("records", [0, 2])
async def test_unless_one_of_them_never_had_a_record(records: int) -> None:
    # The creation failed in one directory, and the power was lost after it had succeeded in the other.
    node = Node(A, B)
    await node.start()
    log = node.log()
    node.fill(log, records)
    await node.manager.shutdown()
    for path in (A, B):
        node.disk.make_dirs(f"{path}/orders-0")
    manager = await node.start()
    kept = manager.get_log(TopicPartition("orders", 0))
    assert kept is not None
    assert kept.log_end_offset == log.log_end_offset
    assert len(manager.strays) == 1


async def test_a_creation_that_fails_leaves_nothing_behind() -> None:
    node = Node(A, B)
    await node.start()
    fault = node.sim_disk.fail(errno.EMFILE, ops=["create"], skip=2, times=None)
    with pytest.raises(KafkaError, match="creating"):
        node.log()
    assert not any(node.disk.exists(f"{path}/orders-0") for path in (A, B))
    node.sim_disk.heal(fault)
    node.fill(node.log(), 2)


async def test_unless_only_one_of_them_belongs_there() -> None:
    # A topic was deleted and created again while one of the disks had failed, which is online again.
    node = Node(A, B)
    await node.start()
    node.fill(node.log(), 2)
    await node.manager.shutdown()
    old = node.manager.directories[0 if node.disk.exists(f"{A}/orders-0") else 1].path
    new = B if old == A else A
    node.disk.make_dirs(f"{new}/orders-0")
    manager = await node.start(lambda log: log.directory.path == new)
    kept = manager.get_log(TopicPartition("orders", 0))
    assert kept is not None
    assert (kept.directory.path, kept.log_end_offset) == (new, 0)
    (stray,) = manager.strays
    assert stray.startswith(f"{old}/orders-0.")
    assert not node.disk.exists(f"{old}/orders-0")
    await manager.shutdown()
    await node.start()
    assert len(node.manager.strays) == 1


# From time to time


async def test_flush_ms_makes_logs_durable() -> None:
    node = Node()
    node.config = replace(CONFIG, flush_ms=1000)
    await node.start()
    log = node.log()
    node.fill(log, 3)
    start = node.clock.wall_ms()
    assert await node.manager.flush_dirty_logs(start + 999) == 0
    assert await node.manager.flush_dirty_logs(start + 1000) == 1
    assert log.recovery_point == 3
    assert await node.manager.flush_dirty_logs(start + 5000) == 0


async def test_closed_segments_are_flushed_soon() -> None:
    node = Node()
    await node.start()
    log = node.log()
    node.fill(log)
    assert await node.manager.flush_dirty_logs(node.clock.wall_ms()) == 1
    assert log.recovery_point == log.active_segment.base_offset


async def test_retention_writes_one_checkpoint_for_all_logs() -> None:
    node = Node()
    await node.start()
    logs = [node.log("orders", partition) for partition in range(5)]
    for log in logs:
        node.fill(log)
    await node.manager.flush_dirty_logs(0)
    node.config = replace(CONFIG, retention_bytes=1500)
    for log in logs:
        log.update_config(node.config)
    before = len(node.sim_disk.trace.entries())
    deleted = await node.manager.cleanup_logs(node.clock.wall_ms())
    assert deleted >= 5
    renames = [
        each.target
        for each in node.sim_disk.trace.entries()[before:]
        if each.op == "rename" and "checkpoint" in each.target
    ]
    assert renames == [f"{A}/log-start-offset-checkpoint"]
    starts = [log.log_start_offset for log in logs]
    assert all(start > 0 for start in starts)
    await node.crash()
    assert [node.log("orders", partition).log_start_offset for partition in range(5)] == starts


async def test_the_log_starts_that_follow_from_the_names_are_not_written() -> None:
    node = Node()
    await node.start()
    first, second = node.log("orders", 0), node.log("orders", 1)
    for log in (first, second):
        node.fill(log)
        log.flush()
    first.maybe_increment_log_start_offset(5, "a test")
    await node.manager.checkpoint_log_start_offsets()
    assert checkpoints.read_offsets(node.disk, f"{A}/log-start-offset-checkpoint") == {
        first.topic_partition: 5
    }


async def test_several_logs_are_cut_with_one_checkpoint() -> None:
    node = Node()
    await node.start()
    logs = [node.log("orders", partition) for partition in range(4)]
    for log in logs:
        node.fill(log)
        log.flush()
    await node.manager.checkpoint_log_recovery_offsets()
    before = len(node.sim_disk.trace.entries())
    node.manager.truncate_to({log.topic_partition: 7 for log in logs})
    assert [log.log_end_offset for log in logs] == [7] * 4
    written = [
        each
        for each in node.sim_disk.trace.entries()[before:]
        if each.op == "rename" and "recovery-point" in each.target
    ]
    assert len(written) == 1


async def test_a_full_disk_does_not_stop_the_periodic_work() -> None:
    node = Node()
    await node.start()
    log = node.log()
    node.fill(log)
    log.flush()
    node.sim_disk.fail(errno.ENOSPC, ops=["write"], prefix=f"{A}/re", times=None)
    await node.manager.checkpoint_log_recovery_offsets()
    await node.manager.checkpoint_high_watermarks()
    assert log.directory.is_online
    node.sim_disk.heal()
    await node.manager.checkpoint_log_recovery_offsets()
    assert checkpoints.read_offsets(node.disk, f"{A}/recovery-point-offset-checkpoint") == {
        log.topic_partition: 20
    }


async def test_expired_producers_are_forgotten() -> None:
    node = Node()
    await node.start()
    log = node.log()
    data = build_batch([(node.clock.wall_ms(), None, b"x")], producer_id=4, producer_epoch=0, base_sequence=0)
    log.append_as_leader(bytearray(data), 0, now_ms=node.clock.wall_ms())
    await node.manager.remove_expired_producers(node.clock.wall_ms() + 86_399_999)
    assert 4 in log.producer_state_manager.active_producers
    await node.manager.remove_expired_producers(node.clock.wall_ms() + 86_400_000)
    assert 4 not in log.producer_state_manager.active_producers


# Many of them


@pytest.mark.slow
async def test_many_logs_hold_few_files(tmp_path: Path) -> None:
    pool = ThreadPool(4)
    node = Node(str(tmp_path / "data"), disk=RealDisk(), pool=pool)
    node.config = LogConfig()
    try:
        manager = await node.start()
        manager.handles.capacity = manager.handles.unsynced_capacity = 100
        for partition in range(1000):
            node.fill(node.log("orders", partition), 1)
        assert len(manager.handles) <= 200
        await manager.shutdown()
        manager = await node.start()
        assert len(manager.logs()) == 1000
        assert len(manager.handles) == 0
        manager.handles.capacity = 50
        for log in manager.logs():
            assert log.read(0, 1000).records
        assert len(manager.handles) <= 50
        await manager.shutdown()
    finally:
        pool.close()


async def test_a_flush_in_the_pool_and_appends_go_side_by_side(tmp_path: Path) -> None:
    pool = ThreadPool(2)
    node = Node(str(tmp_path / "data"), disk=RealDisk(), pool=pool)
    try:
        manager = await node.start()
        log = node.log()
        for _ in range(20):
            node.fill(log, 5)
            flushing = asyncio.ensure_future(manager.flush(log))
            node.fill(log, 5)
            await flushing
        await manager.flush(log)
        assert log.recovery_point == log.log_end_offset == 200
        check_log(log)
        await manager.shutdown()
    finally:
        pool.close()


async def test_many_logs_are_deleted_with_one_sync_and_one_write_of_each_checkpoint() -> None:
    node = Node(A, B)
    manager = await node.start()
    partitions = [TopicPartition("orders", number) for number in range(20)]
    for each in partitions:
        log = node.log("orders", each.partition)
        node.fill(log, 1)
        log.flush()
    await manager.checkpoint_log_recovery_offsets()
    before = len(node.sim_disk.trace.entries())
    assert manager.delete_logs([*partitions, TopicPartition("bills", 0)]) == {}
    synced = [each for each in node.sim_disk.trace.entries()[before:] if each.op in ("sync", "sync_dir")]
    # Of each directory: the names, and a file and a name for the recovery points.
    assert len(synced) == 6
    assert manager.logs() == []
    manager = await node.crash()
    assert manager.logs() == []


async def test_a_log_that_cannot_be_deleted_does_not_keep_the_others() -> None:
    node = Node()
    manager = await node.start()
    partitions = [TopicPartition("orders", number) for number in range(3)]
    for each in partitions:
        node.log("orders", each.partition)
    node.sim_disk.fail(errno.ENOSPC, ops=["rename"], prefix=f"{A}/orders-1")
    errors = manager.delete_logs(partitions)
    assert list(errors) == [partitions[1]]
    assert [log.topic_partition for log in manager.logs()] == [partitions[1]]
    assert manager.delete_logs(partitions) == {}
    assert manager.logs() == []


async def test_files_that_could_not_be_removed_are_removed_the_next_time() -> None:
    node = Node()
    manager = await node.start()
    log = node.log()
    node.fill(log)
    log.truncate_to(1)
    directory = log.directory
    waiting = directory.deletions
    assert waiting > 4
    node.clock.advance_ms(CONFIG.file_delete_delay_ms)
    node.sim_disk.fail(errno.ENOSPC, ops=["unlink"], skip=2)
    assert await manager.remove_deleted_files(node.clock.wall_ms()) == 0
    assert directory.is_online
    assert directory.deletions == waiting
    await manager.remove_deleted_files(node.clock.wall_ms())
    assert directory.deletions == 0
    assert not [name for name in node.disk.list_dir(log.dir) if name.endswith(".deleted")]


@pytest.mark.parametrize("threads", [1, 3])
async def test_as_many_threads_load_a_directory_as_the_setting_says(threads: int) -> None:
    node = Node(A, B)
    await node.start()
    for number in range(60):
        node.log("orders", number)
    await node.manager.shutdown()
    pool = CountingPool()
    node.pool, node.recovery_threads = pool, threads
    await node.start()
    assert len(node.manager.logs()) == 60
    assert pool.most == 2 * threads
    await node.manager.shutdown()


class CountingPool:
    """Runs calls at once, each after a turn of the event loop, and counts how many wait at a time."""

    def __init__(self) -> None:
        self.waiting = self.most = 0

    async def run(self, fn: Callable[..., T], *args: object) -> T:
        self.waiting += 1
        if fn is load_part:
            self.most = max(self.most, self.waiting)
        await asyncio.sleep(0)
        self.waiting -= 1
        return fn(*args)

    def close(self) -> None:
        """There is nothing to close."""
