"""Eight workers of a queue, with retries and dead letters, while nodes are killed: nothing is lost, and each
dead letter is there once.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ottla.client.admin import Admin
from ottla.client.admin.configs import ResourceType
from ottla.client.consumer import Consumer
from ottla.client.producer import Producer
from ottla.client.share.share_consumer import ShareConsumer
from ottla.protocol.errors import KafkaError
from ottla.testing.local_cluster import LocalCluster
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive, pytest.mark.timeout(900)]

WORKERS, TASKS, KILLS = 8, 3_000, 5
DEADLINE_S = 600.0
LETTERS = "dlq.tasks"


def is_poison(value: bytes) -> bool:
    """One in ten is rejected, and one in ten is released until it was delivered too often."""
    return int(value) % 10 in (0, 1)


async def set_up(admin: Admin) -> None:
    await admin.cluster.update_features({"share.version": 2})
    safe = {"min.insync.replicas": "2"}
    await admin.topics.create("tasks", partitions=4, replication_factor=3, configs=safe)
    configs = {**safe, "errors.deadletterqueue.group.enable": "true"}
    await admin.topics.create(LETTERS, partitions=3, replication_factor=3, configs=configs)
    settings = {
        "share.auto.offset.reset": "earliest",
        "share.retry.backoff.ms": "200",
        "share.retry.backoff.max.ms": "1000",
        "errors.deadletterqueue.topic.name": LETTERS,
        "errors.deadletterqueue.copy.record.enable": "true",
    }
    await admin.configs.alter(ResourceType.GROUP, "workers", set=settings)


async def work(servers: str, accepted: set[bytes]) -> None:
    async with ShareConsumer[bytes, bytes](
        servers, group_id="workers", share_acknowledgement_mode="explicit"
    ) as consumer:
        consumer.subscribe("tasks")
        while True:
            for record in await consumer.poll(timeout_ms=500):
                assert record.value is not None
                if not is_poison(record.value):
                    consumer.accept(record)
                    accepted.add(record.value)
                elif int(record.value) % 10:
                    consumer.release(record)
                else:
                    consumer.reject(record)
            await consumer.commit()


async def letters_of(servers: str) -> list[tuple[bytes, bytes, bytes]]:
    """The dead letters: the partition and the offset of each record, and its value."""
    found = []
    async with Consumer[bytes, bytes](servers, auto_offset_reset="earliest") as consumer:
        where = await consumer.partitions_for(LETTERS)
        ends = await consumer.end_offsets(where)
        consumer.assign(where)
        while any([await consumer.position(each) < ends[each] for each in where]):
            for record in await consumer.poll(timeout_ms=200):
                headers = dict(record.headers)
                found.append(
                    (
                        headers["__dlq.errors.partition"] or b"",
                        headers["__dlq.errors.offset"] or b"",
                        record.value or b"",
                    )
                )
    return found


@asynccontextmanager
async def workers(servers: str, accepted: set[bytes]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(work(servers, accepted)) for _ in range(WORKERS)]
    try:
        yield
        assert not any(task.done() for task in tasks), tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_nothing_is_lost_and_dead_letters_are_written_once() -> None:
    chance = random.Random(35)
    accepted: set[bytes] = set()
    with LocalCluster(nodes=3) as cluster:
        servers = cluster.bootstrap_servers
        async with Admin(servers) as admin, asyncio.timeout(DEADLINE_S):
            await set_up(admin)
            async with workers(servers, accepted), Producer(servers) as producer:

                async def produce() -> None:
                    for number in range(TASKS):
                        await producer.send("tasks", str(number).encode(), partition=number % 4)

                producing = asyncio.create_task(produce())
                for _ in range(KILLS):
                    enough = min(len(accepted) + TASKS // (2 * KILLS), TASKS * 8 // 10)
                    await has_accepted(accepted, enough)
                    node = chance.choice(cluster.nodes)
                    await asyncio.to_thread(cluster.kill, node)
                    await asyncio.to_thread(cluster.start, node)
                    await asyncio.to_thread(cluster.wait_in_sync)
                await producing
                expected = {str(number).encode() for number in range(TASKS)}
                dead: list[tuple[bytes, bytes, bytes]] = []
                while accepted | {value for *_, value in dead} != expected or await lag(admin):
                    dead = await letters_of(servers)
            dead = await letters_of(servers)
    places = Counter((partition, offset) for partition, offset, _ in dead)
    assert [each for each, count in places.items() if count > 1] == []
    assert {value for *_, value in dead} >= {value for value in expected if is_poison(value)}
    assert accepted | {value for *_, value in dead} == expected


async def has_accepted(accepted: set[bytes], enough: int) -> None:
    await asyncio.to_thread(wait_until, lambda: len(accepted) >= enough, seconds=DEADLINE_S)


async def lag(admin: Admin) -> int:
    found = await admin.groups.share_offsets("workers")
    return sum(1 if isinstance(each, KafkaError) or each.lag is None else each.lag for each in found.values())
