"""The periodic work of many logs: by what changed, and in turns."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable

import pytest

from ottla.log.directory import checkpoints
from ottla.log.producers.state_manager import ProducerStateManagerConfig
from ottla.log.retention import Deletion
from ottla.log.segment.segment import LogSegment
from ottla.log.unified_log import UnifiedLog
from ottla.protocol.names import TopicPartition
from ottla.records.builder import build_batch
from tests.log.test_log_manager import A, B, Node

MANY = 100
HIGH_WATERMARKS = f"{A}/{checkpoints.HIGH_WATERMARKS}"


async def node_with_many_logs(*dirs: str) -> Node:
    node = Node(*dirs)
    await node.start()
    for partition in range(MANY):
        node.log(partition=partition)
    return node


def high_watermarks(node: Node, path: str = HIGH_WATERMARKS) -> dict[int, int]:
    return {tp.partition: at for tp, at in checkpoints.read_offsets(node.disk, path).items()}


async def turns_of(work: Callable[[], object], node: Node) -> int:
    """How often other tasks had their turn while the checkpoints were written."""
    count = 0

    async def other() -> None:
        nonlocal count
        while True:
            count += 1
            work()
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    await node.manager.checkpoint_log_recovery_offsets()
    task.cancel()
    return count


class TestHighWatermarks:
    async def test_what_has_not_moved_is_not_written(self) -> None:
        node = await node_with_many_logs()
        await node.manager.checkpoint_high_watermarks()
        assert high_watermarks(node) == dict.fromkeys(range(MANY), 0)
        before = node.sim_disk.operations
        await node.manager.checkpoint_high_watermarks()
        assert node.sim_disk.operations == before

    async def test_what_has_moved_is_looked_at_and_no_other(self, monkeypatch: pytest.MonkeyPatch) -> None:
        node = await node_with_many_logs()
        await node.manager.checkpoint_high_watermarks()
        formatted: list[TopicPartition] = []
        line = checkpoints._offset_line

        def noted(tp: TopicPartition, offset: int) -> str:
            formatted.append(tp)
            return line(tp, offset)

        monkeypatch.setattr(checkpoints, "_offset_line", noted)
        node.fill(node.log(partition=7), 3)
        await node.manager.checkpoint_high_watermarks()
        assert formatted == [TopicPartition("orders", 7)]
        assert high_watermarks(node) == dict.fromkeys(range(MANY), 0) | {7: 3}

    async def test_many_that_have_moved_are_collected_in_turns(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("ottla.log.log_manager._HIGH_WATERMARKS_AT_ONCE", 10)
        node = await node_with_many_logs()
        for partition in range(MANY):
            node.fill(node.log(partition=partition), 1)
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                if turns == 5:
                    node.manager.delete_log(TopicPartition("orders", 0))  # collected in the first turn
                    node.fill(node.log(partition=1), 1)
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        await node.manager.checkpoint_high_watermarks()
        task.cancel()
        assert turns >= MANY // 10
        assert high_watermarks(node) == dict.fromkeys(range(1, MANY), 1) | {1: 2}

    async def test_one_that_falls_is_written(self) -> None:
        node = await node_with_many_logs()
        log = node.log()
        node.fill(log, 5)
        await node.manager.checkpoint_high_watermarks()
        log.truncate_to(2)
        await node.manager.checkpoint_high_watermarks()
        assert high_watermarks(node)[0] == 2
        log.truncate_fully_and_start_at(9)
        await node.manager.checkpoint_high_watermarks()
        assert high_watermarks(node)[0] == 9

    async def test_a_log_that_is_gone_leaves_no_entry(self) -> None:
        node = await node_with_many_logs()
        node.fill(node.log(partition=3), 5)
        await node.manager.checkpoint_high_watermarks()
        node.fill(node.log(partition=3), 1)
        node.manager.delete_log(TopicPartition("orders", 3))
        await node.manager.checkpoint_high_watermarks()
        assert 3 not in high_watermarks(node)
        node.log(partition=3)
        await node.manager.checkpoint_high_watermarks()
        assert high_watermarks(node)[3] == 0

    async def test_what_stands_still_after_a_start_stays_in_the_file(self) -> None:
        node = await node_with_many_logs()
        for partition in range(MANY):
            node.fill(node.log(partition=partition), 1)
            node.log(partition=partition).flush()
        await node.manager.checkpoint_high_watermarks()
        await node.kill()
        node.fill(node.log(partition=7), 1)
        await node.manager.checkpoint_high_watermarks()
        assert high_watermarks(node) == dict.fromkeys(range(MANY), 1) | {7: 2}

    async def test_a_write_that_fails_is_made_again(self) -> None:
        node = await node_with_many_logs()
        await node.manager.checkpoint_high_watermarks()
        node.fill(node.log(partition=7), 3)
        node.sim_disk.fail(errno.ENOSPC, prefix=HIGH_WATERMARKS)
        await node.manager.checkpoint_high_watermarks()
        assert high_watermarks(node)[7] == 0
        await node.manager.checkpoint_high_watermarks()
        assert high_watermarks(node)[7] == 3

    async def test_each_directory_has_its_own(self) -> None:
        node = await node_with_many_logs(A, B)
        await node.manager.checkpoint_high_watermarks()
        theirs = high_watermarks(node, f"{B}/{checkpoints.HIGH_WATERMARKS}")
        assert high_watermarks(node).keys() | theirs.keys() == set(range(MANY))
        assert not high_watermarks(node).keys() & theirs.keys()


class TestRecoveryPoints:
    async def test_they_are_collected_in_turns(self) -> None:
        node = await node_with_many_logs()
        assert await turns_of(lambda: None, node) >= MANY // 20

    async def test_a_log_that_is_truncated_between_two_turns_has_no_point_above_its_end(self) -> None:
        node = await node_with_many_logs()
        log = node.log(partition=0)
        node.fill(log, 10)
        log.flush()
        turns = 0

        def truncate() -> None:
            nonlocal turns
            turns += 1
            if turns == 3:
                assert log.truncate_to(4)

        await turns_of(truncate, node)
        points = checkpoints.read_offsets(node.disk, f"{A}/{checkpoints.RECOVERY_POINTS}")
        assert points.get(log.topic_partition, 0) <= 4
        assert len(points) == MANY  # it was collected again
        await node.crash()
        assert node.manager.failed == {}
        assert node.log(partition=0).log_end_offset == 4

    async def test_what_has_not_changed_is_not_written(self) -> None:
        node = await node_with_many_logs()
        await node.manager.checkpoint_log_recovery_offsets()
        await node.manager.checkpoint_log_start_offsets()
        before = node.sim_disk.operations
        await node.manager.checkpoint_log_recovery_offsets()
        await node.manager.checkpoint_log_start_offsets()
        assert node.sim_disk.operations == before


async def test_retention_passes_empty_logs_by(monkeypatch: pytest.MonkeyPatch) -> None:
    node = await node_with_many_logs()
    node.fill(node.log(partition=7), 3)
    seen: list[UnifiedLog] = []
    deletable = UnifiedLog.deletable_segments

    def noted(log: UnifiedLog, now_ms: int) -> list[Deletion[LogSegment]]:
        if log.directory.disk is node.disk:  # and not one of a node that other tests share
            seen.append(log)
        return deletable(log, now_ms)

    monkeypatch.setattr(UnifiedLog, "deletable_segments", noted)
    await node.manager.cleanup_logs(node.clock.wall_ms())
    assert seen == [node.log(partition=7)]


async def test_the_expiration_of_producers_may_change_while_the_node_runs() -> None:
    node = await node_with_many_logs()
    log = node.log()
    batch = build_batch(
        [(node.clock.wall_ms(), None, b"x")], producer_id=7, producer_epoch=0, base_sequence=0
    )
    log.append_as_leader(bytearray(batch), 0, now_ms=node.clock.wall_ms())
    later_ms = node.clock.wall_ms() + 1_000
    await node.manager.remove_expired_producers(later_ms)
    assert len(log.producer_state_manager.active_producers) == 1
    node.manager.update_producer_config(ProducerStateManagerConfig(producer_id_expiration_ms=1_000))
    await node.manager.remove_expired_producers(later_ms)
    assert not log.producer_state_manager.active_producers
