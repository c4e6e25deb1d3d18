"""Requests that wait for the progress of partitions."""

from __future__ import annotations

import asyncio

import pytest

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.replication.purgatory import DelayedOperationPurgatory

LONG_MS = 60_000


async def settle() -> None:
    """Let everything that is ready to run, run."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_who_need_not_wait_does_not() -> None:
    purgatory = DelayedOperationPurgatory()
    assert await purgatory.try_complete_else_watch(["a"], lambda: True, LONG_MS)
    assert len(purgatory) == 0


async def test_a_waiter_leaves_when_its_condition_holds() -> None:
    purgatory = DelayedOperationPurgatory()
    bytes_there = 0
    waiting = asyncio.ensure_future(
        purgatory.try_complete_else_watch(["a", "b"], lambda: bytes_there >= 10, LONG_MS)
    )
    await settle()
    assert len(purgatory) == 1
    bytes_there = 5
    purgatory.check_and_complete("a")
    await settle()
    assert not waiting.done()
    bytes_there = 10
    purgatory.check_and_complete("b")
    assert await waiting
    assert len(purgatory) == 0


async def test_a_condition_is_looked_at_once_a_turn_however_often_things_moved() -> None:
    purgatory = DelayedOperationPurgatory()
    looks = 0

    def condition() -> bool:
        nonlocal looks
        looks += 1
        return False

    waiting = asyncio.ensure_future(purgatory.try_complete_else_watch(["a", "b"], condition, LONG_MS))
    await settle()
    looks = 0
    for _ in range(100):
        purgatory.check_and_complete("a")
        purgatory.check_and_complete("b")
    await settle()
    assert looks == 1
    waiting.cancel()
    await settle()
    assert len(purgatory) == 0


async def test_time_runs_out() -> None:
    purgatory = DelayedOperationPurgatory()
    assert not await purgatory.try_complete_else_watch(["a"], lambda: False, 1)
    assert not await purgatory.try_complete_else_watch(["a"], lambda: False, 0)
    assert len(purgatory) == 0


async def test_what_a_condition_raises_reaches_the_waiter() -> None:
    purgatory = DelayedOperationPurgatory()
    failed = False

    def condition() -> bool:
        if failed:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "moved away")
        return False

    waiting = asyncio.ensure_future(purgatory.try_complete_else_watch(["a"], condition, LONG_MS))
    await settle()
    failed = True
    purgatory.check_and_complete("a")
    with pytest.raises(KafkaError, match="moved away"):
        await waiting
    assert len(purgatory) == 0


async def test_more_than_the_allowed_number_does_not_wait() -> None:
    purgatory = DelayedOperationPurgatory(max_operations=2)
    waiting = [
        asyncio.ensure_future(purgatory.try_complete_else_watch(["a"], lambda: False, LONG_MS))
        for _ in range(2)
    ]
    await settle()
    assert not await purgatory.try_complete_else_watch(["a"], lambda: False, LONG_MS)
    for each in waiting:
        each.cancel()
    await settle()
    assert len(purgatory) == 0


async def test_a_partition_that_nobody_watches_costs_nothing() -> None:
    purgatory = DelayedOperationPurgatory()
    purgatory.check_and_complete("unwatched")
    assert len(purgatory) == 0
