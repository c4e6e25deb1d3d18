"""The future log of a partition that is moved, while the log itself is truncated and grows again."""

from __future__ import annotations

import random

import pytest
from tests.replication.partition_harness import PartitionHarness

from ottla.log.unified_log import UnifiedLog
from ottla.node.cluster.alter_replica_log_dirs import _begin_due_truncation
from ottla.records.builder import build_batch


def grow(log: UnifiedLog, epoch: int, count: int, value: bytes) -> None:
    """As a follower, by records of a leader of this epoch."""
    for _ in range(count):
        batch = build_batch([(0, None, value)], base_offset=log.log_end_offset, leader_epoch=epoch)
        log.append_as_follower(batch, epoch, now_ms=0)


def copy(current: UnifiedLog, future: UnifiedLog) -> None:
    while (truncation := _begin_due_truncation(future, current)) is not None:
        truncation.finish()
    while future.log_end_offset < current.log_end_offset:
        data = current.read(future.log_end_offset, 200).records
        future.append_as_follower(data, current.latest_epoch or 0, now_ms=0)


def content(log: UnifiedLog) -> bytes:
    data = b""
    at = log.log_start_offset
    while at < log.log_end_offset:
        part = log.read(at, 1 << 20).records
        data += part
        at = log.log_end_offset
    return data


def test_what_was_cut_off_and_written_otherwise_is_not_kept_in_the_copy() -> None:
    current, future = PartitionHarness(lead=False).log, PartitionHarness(lead=False).log
    grow(current, 0, 5, b"a")
    copy(current, future)
    current.truncate_to(3)
    grow(current, 1, 4, b"b")
    copy(current, future)
    assert content(future) == content(current)


@pytest.mark.parametrize("seed", range(20))
def test_a_copy_becomes_equal_whatever_happens_to_its_log(seed: int) -> None:
    chance = random.Random(seed)
    current, future = PartitionHarness(lead=False).log, PartitionHarness(lead=False).log
    epoch = 0
    for step in range(40):
        match chance.randrange(3):
            case 0:
                grow(current, epoch, chance.randrange(1, 5), b"%d" % step)
            case 1:
                current.truncate_to(chance.randrange(current.log_end_offset + 1))
                epoch += 1
            case _:
                copy(current, future)
    copy(current, future)
    assert content(future) == content(current)
