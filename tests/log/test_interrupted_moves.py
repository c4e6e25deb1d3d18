"""A partition on its way from one directory to another, or out, and a node that stops in the middle."""

from __future__ import annotations

import errno

import pytest

from ottla.log.unified_log import UnifiedLog
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition
from ottla.sim.disk import SimCrash, SimDisk
from tests.log.test_log_manager import A, B, Node
from tests.support.log_harness import all_batches, check_log

ORDERS = TopicPartition("orders", 0)
FIRST, SECOND = bytes([1]) * 16, bytes([2]) * 16


async def moving(seed: int = 3) -> tuple[Node, UnifiedLog, UnifiedLog]:
    """A log in A, synced, and a future log in B that has caught up."""
    node = Node(A, B)
    node.disk = SimDisk(seed, clock=node.clock)
    await node.start()
    for directory, id in zip(node.manager.directories, (FIRST, SECOND), strict=True):
        directory.directory_id = id
    current = node.log(directory_id=FIRST)
    node.fill(current, 10)
    current.flush()
    future = node.log(directory_id=SECOND, future=True)
    while future.log_end_offset < current.log_end_offset:
        data = current.read(future.log_end_offset, 10_000).records
        future.append_as_follower(data, 0, now_ms=node.clock.wall_ms())
    future.update_high_watermark(current.high_watermark)
    return node, current, future


async def test_a_move_that_is_cut_short_anywhere_loses_nothing() -> None:
    moved_before = False
    for operation in range(1000):
        node, current, _ = await moving(seed=operation)
        content = [data for _, data in all_batches(current)]
        node.sim_disk.crash_after(operation)
        done = False
        try:
            node.manager.replace_current_with_future_log(ORDERS)
            done = True
        except SimCrash:
            pass
        await node.crash()
        assert node.manager.failed == {}
        log = node.manager.get_log(ORDERS)
        assert log is not None, f"crashed at {operation}"
        assert [data for _, data in all_batches(log)] == content, f"crashed at {operation}"
        check_log(log)
        if log.directory.path == B:
            assert node.manager.get_log(ORDERS, future=True) is None
        moved_before |= log.directory.path == B and not done
        if done:
            break
    assert done
    assert moved_before, "no crash fell between the two renames"


async def test_a_future_log_waits_for_a_current_one_whose_directory_is_offline() -> None:
    node, _, future = await moving()
    await node.manager.shutdown()
    node.sim_disk.fail(errno.EIO, prefix=f"{A}/orders-0", times=None)
    manager = await node.start()
    assert [each.path for each in manager.live_directories] == [B]
    assert manager.get_log(ORDERS) is None
    again = manager.get_log(ORDERS, future=True)
    assert again is not None
    assert again.dir == future.dir
    with pytest.raises(KafkaError, match="are offline: the partition may be there") as refused:
        node.log(is_new=False)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("way", ["delete", "stray"])
async def test_a_log_that_could_not_be_renamed_is_still_the_log(way: str) -> None:
    node = Node()
    manager = await node.start()
    log = node.log()
    node.fill(log, 5)
    node.sim_disk.fail(errno.ENOSPC, ops=["rename"], prefix=A)
    act = manager.delete_log if way == "delete" else manager.mark_stray
    with pytest.raises(KafkaError, match="no room"):
        act(ORDERS)
    assert node.log() is log
    assert log.read(0, 100).records
    act(ORDERS)
    assert manager.get_log(ORDERS) is None
