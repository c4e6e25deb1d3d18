"""Flushes that run beside each other, beside a deletion, and beside other logs that cannot be flushed."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from ottla.log.config.log_config import LogConfig
from ottla.log.leader_epoch_cache import read_epochs
from ottla.log.unified_log import UnifiedLog
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition
from ottla.records.builder import build_batch
from ottla.records.control import ControlType, EndTransactionMarker, build_end_transaction_marker
from ottla.records.validation import AppendOrigin
from ottla.runtime.disk import RealDisk
from ottla.runtime.pool import InlinePool, ThreadPool
from ottla.sim.disk import SimDisk
from tests.log.test_log_manager import CONFIG, A, B, Node
from tests.support.log_harness import LogHarness, check_log

T = TypeVar("T")

EPOCHS = "/data/orders-3/leader-epoch-checkpoint"


async def test_flushes_of_one_log_come_one_after_another(tmp_path: Path) -> None:
    """As many producers ask for them with `flush.messages=1`, right after an election."""
    pool = ThreadPool(4)
    node = Node(str(tmp_path / "a"), disk=RealDisk(), pool=pool)
    await node.start()
    log = node.log()

    async def produce(epoch: int) -> int:
        data = build_batch([(0, None, b"x" * 100)])
        info = log.append_as_leader(bytearray(data), epoch, now_ms=0)
        await node.manager.flush(log)
        return info.last_offset

    for epoch in range(30):
        for offset in await asyncio.gather(*(produce(epoch) for _ in range(4))):
            assert log.recovery_point > offset
    assert log.directory.is_online
    path = f"{log.dir}/leader-epoch-checkpoint"
    assert tuple(read_epochs(node.disk, path)) == log.leader_epoch_cache.entries
    await node.manager.shutdown()
    pool.close()


def test_a_flush_that_was_overtaken_does_not_bring_old_epochs_back() -> None:
    for seed in range(10):
        lab = LogHarness(LogConfig(segment_bytes=300), seed=seed)
        lab.fill(2, epoch=1)
        slow = lab.log.prepare_flush()
        assert slow is not None
        lab.fill(8, epoch=2)
        lab.log.flush()
        lab.log.run_flush(slow)
        lab.log.complete_flush(slow)
        lab.log.flush()
        entries = lab.log.leader_epoch_cache.entries
        assert entries == ((1, 0), (2, 2))
        assert tuple(read_epochs(lab.disk, EPOCHS)) == entries
        assert not [name for name in lab.disk.list_dir(lab.log.dir) if name.endswith(".tmp")]
        lab.checkpoint()
        lab.crash()
        assert lab.log.leader_epoch_cache.entries == entries
        check_log(lab.log)


def test_an_overtaken_flush_does_not_vouch_for_one_that_failed() -> None:
    lab = LogHarness(LogConfig(segment_bytes=300))
    lab.fill(2, epoch=1)
    slow = lab.log.prepare_flush()
    assert slow is not None
    lab.fill(8, epoch=2)
    lab.sim_disk.fail(errno.ENOSPC, ops=["create"], prefix=EPOCHS)
    with pytest.raises(KafkaError, match="no room"):
        lab.log.flush()
    lab.log.run_flush(slow)
    lab.log.complete_flush(slow)
    assert lab.log.recovery_point == 0
    lab.log.flush()
    assert lab.log.recovery_point == 10
    assert read_epochs(lab.disk, EPOCHS) == [(1, 0), (2, 2)]


def abort_transaction(log: UnifiedLog, now_ms: int) -> None:
    """Append a record of a transaction and the marker that aborts it."""
    batch = build_batch(
        [(now_ms, None, b"x")], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True
    )
    guard = log.producer_state_manager.maybe_start_verification(
        7, 0, 0, supports_epoch_bump=False, now_ms=now_ms
    )
    log.append_as_leader(bytearray(batch), 0, now_ms=now_ms, guard=guard)
    marker = build_end_transaction_marker(
        EndTransactionMarker(ControlType.ABORT, 0), producer_id=7, producer_epoch=0, timestamp=now_ms
    )
    log.append_as_leader(
        bytearray(marker), 0, now_ms=now_ms, origin=AppendOrigin.COORDINATOR, transaction_version=1
    )
    log.update_high_watermark(log.log_end_offset)


@pytest.mark.parametrize("rolls_before_the_sync", [True, False])
def test_a_segment_that_is_closed_while_it_is_flushed_keeps_its_indexes(rolls_before_the_sync: bool) -> None:
    """Its batches alone were to be synced, and no later flush comes back to it below the recovery point."""
    for seed in range(20):
        lab = LogHarness(LogConfig(index_interval_bytes=0), seed=seed)
        abort_transaction(lab.log, lab.now_ms)
        plan = lab.log.prepare_flush()
        assert plan is not None
        if rolls_before_the_sync:
            lab.log.roll(lab.now_ms)
        lab.log.run_flush(plan)
        if not rolls_before_the_sync:
            lab.log.roll(lab.now_ms)
        lab.log.complete_flush(plan)
        lab.put(b"y")
        lab.log.flush()
        assert lab.log.recovery_point == 3
        aborted = lab.log.collect_aborted_transactions(0, 3)
        assert [txn[:3] for txn in aborted] == [(7, 0, 1)]
        closed = lab.log.segments[0]
        for kind in (".index", ".timeindex", ".txnindex"):
            path = closed.path(kind)
            assert lab.sim_disk.durable_contents().get(path) == lab.sim_disk.contents().get(path), kind
        lab.checkpoint()
        lab.crash()
        assert lab.log.collect_aborted_transactions(0, 3) == aborted
        check_log(lab.log)


def test_a_flush_that_was_overtaken_after_a_roll_asks_for_no_other() -> None:
    lab = LogHarness()
    lab.fill(2)
    slow = lab.log.prepare_flush()
    assert slow is not None
    lab.log.roll(lab.now_ms)
    lab.fill(1)
    lab.log.flush()
    lab.log.run_flush(slow)
    assert not lab.log.complete_flush(slow)
    assert lab.log.recovery_point == 3


class RollingPool(InlinePool):
    """A pool in which the first `rolls` calls find the active segment closed when they are done."""

    log: UnifiedLog
    rolls = 0

    async def run(self, fn: Callable[..., T], *args: Any) -> T:
        result = await super().run(fn, *args)
        if self.rolls:
            self.rolls -= 1
            self.log.roll(0)
        return result


async def test_a_flush_is_over_once_the_segment_that_was_closed_meanwhile_is_durable() -> None:
    """A producer with `flush.messages=1`, and a follower before its next fetch, wait for that."""
    pool = RollingPool()
    node = Node(pool=pool)
    manager = await node.start()
    log = pool.log = node.log()
    abort_transaction(log, node.clock.wall_ms())
    pool.rolls = 1
    await manager.flush(log)
    assert log.recovery_point == log.log_end_offset == log.active_segment.base_offset == 2
    path = log.segments[0].path(".txnindex")
    assert node.sim_disk.durable_contents()[path] == node.sim_disk.contents()[path] != b""


@pytest.mark.parametrize("closed_segments", [False, True])
async def test_a_log_that_is_deleted_while_it_is_flushed_does_no_harm(closed_segments: bool) -> None:
    node = Node()
    manager = await node.start()
    log = node.log()
    node.fill(log, 20 if closed_segments else 3)
    plan = log.prepare_flush()
    assert plan is not None
    manager.delete_log(TopicPartition("orders", 0))
    log.run_flush(plan)
    log.complete_flush(plan)
    assert log.directory.is_online
    assert node.log().log_end_offset == 0


@pytest.mark.parametrize("kind", ["log", "index", "timeindex"])
def test_a_segment_that_is_deleted_while_it_is_flushed_does_no_harm(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush in another thread opens a file between its rename and the news of it."""
    lab = LogHarness(LogConfig(segment_bytes=300, retention_bytes=300, index_interval_bytes=0))
    lab.fill(20)
    plan = lab.log.prepare_flush()
    assert plan is not None
    oldest = plan.whole[0]
    oldest._log.release()
    oldest.close_indexes()
    assert oldest._indexes is not None
    rename, flushed = SimDisk.rename, []

    def renamed(disk: SimDisk, src: str, dst: str) -> None:
        rename(disk, src, dst)
        if src.endswith(f"/{oldest.base_offset:020}.{kind}") and not flushed:
            flushed.append(src)
            lab.log.run_flush(plan)

    monkeypatch.setattr(SimDisk, "rename", renamed)
    lab.log.update_high_watermark(lab.log.log_end_offset)
    assert lab.log.delete_old_segments(lab.now_ms) > 0
    assert flushed
    assert lab.log.directory.is_online
    lab.log.complete_flush(plan)
    assert lab.log.recovery_point == 20


async def test_a_reader_of_a_log_that_is_deleted_meanwhile_does_no_harm() -> None:
    node = Node()
    await node.start()
    log = node.log()
    node.fill(log, 20)
    for segment in log.segments:
        segment.close_handlers()
    # What a reader in another thread meets between the rename and the news of it.
    node.disk.rename(log.dir, f"{A}/gone")
    with pytest.raises(KafkaError, match="deleted or moved") as refused:
        log.read(0, 100)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.directory.is_online


async def test_a_log_without_room_does_not_keep_others_from_being_flushed() -> None:
    node = Node(A, B)
    node.config = replace(CONFIG, flush_ms=0)
    manager = await node.start()
    for number, directory in enumerate(manager.directories):
        directory.directory_id = bytes([number]) * 16
    logs = [node.log("orders", number, directory_id=bytes([number]) * 16) for number in range(2)]
    for log in logs:
        node.fill(log, 3)
    node.sim_disk.fail(errno.ENOSPC, prefix=A, ops=["create"], times=None)
    assert await manager.flush_dirty_logs(node.clock.wall_ms() + 10) == 1
    assert [log.recovery_point for log in logs] == [0, 3]
    node.sim_disk.heal()
    assert await manager.flush_dirty_logs(node.clock.wall_ms() + 10) == 1
    assert [log.recovery_point for log in logs] == [3, 3]


def test_without_room_for_rebuilt_indexes_a_flush_waits_for_some() -> None:
    lab = LogHarness(LogConfig(segment_bytes=600, index_interval_bytes=0))
    lab.fill(20)
    lab.sim_disk.sync_all()
    lab.sim_disk.crash()
    fault = lab.sim_disk.fail(errno.ENOSPC, ops=["write"], prefix="/data/orders-3", times=None)
    lab.reload()
    with pytest.raises(KafkaError, match="no room"):
        lab.log.flush()
    assert lab.directory.is_online
    assert lab.log.recovery_point == 0
    lab.sim_disk.heal(fault)
    lab.log.flush()
    assert lab.log.recovery_point == 20
    check_log(lab.log)


def test_a_flush_that_found_no_room_has_not_forgotten_the_producer_snapshots() -> None:
    lab = LogHarness(LogConfig(segment_bytes=500))
    batch = build_batch([(0, None, b"x")], producer_id=7, producer_epoch=0, base_sequence=0)
    lab.log.append_as_leader(bytearray(batch), 0, now_ms=lab.now_ms)
    lab.fill(10)
    lab.sim_disk.fail(errno.ENOSPC, ops=["create"], prefix=EPOCHS)
    with pytest.raises(KafkaError, match="no room"):
        lab.log.flush()
    lab.log.flush()
    durable = lab.sim_disk.durable_contents()
    snapshots = [name for name in lab.disk.list_dir(lab.log.dir) if name.endswith(".snapshot")]
    assert snapshots
    for name in snapshots:
        path = f"{lab.log.dir}/{name}"
        assert durable[path] == lab.sim_disk.contents()[path] != b""
