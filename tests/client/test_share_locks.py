"""Locks of share consumers, in virtual time: those that end, and those that are renewed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ottla.client.admin import Admin
from ottla.client.admin.configs import ResourceType
from ottla.client.producer import Producer
from ottla.client.share import ShareConsumer, ShareRecord
from ottla.protocol.errors import ErrorCode
from ottla.protocol.names import TopicPartition
from ottla.runtime.runtime import Runtime
from tests.support.sim_nodes import SimNodes

LOCK_S = 3.0
SERVERS = "node1:9092"
SETTINGS = {
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.record.lock.duration.ms": f"{LOCK_S * 1000:.0f}",
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
}
Consumer = ShareConsumer[bytes, bytes]
Test = Callable[[Consumer, Consumer], Awaitable[None]]


def with_two_members(test: Test) -> None:
    """Run `test` with two members of a group, for which there is one record."""
    nodes = SimNodes({1: "broker,controller"}, settings=SETTINGS)

    async def prepare(runtime: Runtime) -> None:
        async with Admin(SERVERS, runtime=runtime) as admin, Producer(SERVERS, runtime=runtime) as producer:
            await admin.topics.create("queue", partitions=1)
            await admin.configs.alter(
                ResourceType.GROUP, "workers", set={"share.auto.offset.reset": "earliest"}
            )
            await producer.send("queue", b"a")

    async def members(runtime: Runtime) -> None:
        settings: dict[str, Any] = {"group_id": "workers", "share_acknowledgement_mode": "explicit"}
        async with (
            Consumer(SERVERS, runtime=runtime, **settings) as one,
            Consumer(SERVERS, runtime=runtime, **settings) as two,
        ):
            for each in (one, two):
                each.subscribe("queue")
            await test(one, two)

    async def life() -> None:
        nodes.boot()
        await nodes.ready()
        await nodes.as_client(prepare)
        await nodes.as_client(members)

    nodes.run(life())


async def take(consumer: Consumer) -> ShareRecord[bytes, bytes]:
    """Poll until there is a record."""
    while not (found := await consumer.poll()):
        pass
    (record,) = found
    return record


def test_a_lock_that_expires_gives_the_record_to_another() -> None:
    async def test(slow: Consumer, quick: Consumer) -> None:
        clock = asyncio.get_running_loop().time
        asked = clock()
        held = await take(slow)
        taken = clock()
        record = await take(quick)
        assert asked + LOCK_S <= clock() <= taken + LOCK_S + 1
        assert (held.delivery_count, record.delivery_count) == (1, 2)
        slow.accept(held)
        (error,) = (await slow.commit()).values()
        assert error is not None
        assert error.code is ErrorCode.INVALID_RECORD_STATE
        quick.accept(record)
        assert await quick.commit() == {TopicPartition("queue", 0): None}

    with_two_members(test)


def test_a_renewed_lock_keeps_the_record() -> None:
    async def test(slow: Consumer, other: Consumer) -> None:
        held = await take(slow)
        for _ in range(10):
            assert await other.poll(timeout_ms=LOCK_S * 900) == []
            slow.renew(held)
            assert await slow.commit() == {TopicPartition("queue", 0): None}
        assert other.assignment()
        slow.accept(held)
        assert await slow.commit() == {TopicPartition("queue", 0): None}
        assert await other.poll(timeout_ms=2 * LOCK_S * 1000) == []

    with_two_members(test)


def test_workers_keep_the_lock_while_a_job_runs() -> None:
    async def test(one: Consumer, two: Consumer) -> None:
        begun: list[int] = []

        async def handle(record: ShareRecord[Any, Any]) -> None:
            begun.append(record.delivery_count)
            await asyncio.sleep(10 * LOCK_S)
            assert one.assignment()
            assert two.assignment()
            one.stop_workers()
            two.stop_workers()

        results = await asyncio.gather(one.run_workers(handle), two.run_workers(handle))
        assert begun == [1]
        assert sum(each.accepted for each in results) == 1
        assert sum(each.renewed for each in results) >= 10
        assert sum(each.failed for each in results) == 0

    with_two_members(test)
