"""A checkpoint takes a while to write. What happens to its logs meanwhile must not be undone by it.

A recovery point above the end of a log says after a crash that synced records are gone, and the log is
refused; so an offset that is no longer true must never reach the file.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from ottla.protocol.names import TopicPartition
from ottla.runtime.pool import InlinePool
from tests.log.test_log_manager import Node
from tests.support.log_harness import LogHarness

T = TypeVar("T")
ORDERS = TopicPartition("orders", 0)


class InterruptedPool(InlinePool):
    """Does something else between the first call and what follows it."""

    __slots__ = ("meanwhile",)

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], object] | None = None

    async def run(self, fn: Callable[..., T], *args: Any) -> T:
        result = await super().run(fn, *args)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return result


async def node_with_synced_records() -> tuple[Node, InterruptedPool]:
    pool = InterruptedPool()
    node = Node(pool=pool)
    await node.start()
    log = node.log()
    node.fill(log, 10)
    log.flush()
    return node, pool


async def test_a_log_that_is_cut_meanwhile_is_not_taken_for_damaged() -> None:
    node, pool = await node_with_synced_records()
    pool.meanwhile = lambda: node.log().truncate_to(5)
    await node.manager.checkpoint_log_recovery_offsets()
    await node.crash()
    assert node.manager.failed == {}
    assert node.log().log_end_offset == 5


async def test_a_log_that_is_deleted_meanwhile_leaves_nothing_to_its_successor() -> None:
    node, pool = await node_with_synced_records()

    def replace() -> None:
        node.manager.delete_log(ORDERS)
        node.log().flush()

    pool.meanwhile = replace
    await node.manager.checkpoint_log_recovery_offsets()
    await node.crash()
    assert node.manager.failed == {}
    assert node.log().log_end_offset == 0


async def test_a_log_start_that_is_taken_back_meanwhile_stays_there() -> None:
    node, pool = await node_with_synced_records()
    log = node.log()
    log.maybe_increment_log_start_offset(4, "a test")
    await node.manager.checkpoint_log_start_offsets()
    log.maybe_increment_log_start_offset(8, "a test")
    pool.meanwhile = lambda: log.truncate_to(4)
    await node.manager.checkpoint_log_start_offsets()
    node.fill(log, 2)
    log.flush()
    await node.crash()
    assert (node.log().log_start_offset, node.log().log_end_offset) == (4, 6)


def test_a_checkpoint_that_may_have_been_written_counts_as_both() -> None:
    """Its sync failed for lack of room; the new content may be there."""
    lab = LogHarness()
    lab.fill(10)
    lab.log.flush()
    lab.sim_disk.fail(errno.ENOSPC, ops=["sync_dir"], prefix="/data")
    with pytest.raises(OSError, match="No space"):
        lab.checkpoint()
    lab.log.truncate_to(5)
    lab.sim_disk.sync_all()
    lab.crash()
    assert lab.log.log_end_offset == 5
