"""What retries that wait cost: a share group that has them beside one that has not, and a million records
that wait.

Both groups are of one node, and accept all that they get: with retries enabled and not used throughput should
be 0.95 of that without. Then a million records wait for an hour, in a hundred partitions, as each has 10,000
in delivery at most: what they cost a running node, and what they take of memory by themselves, once released
in batches of ten and once one by one, each with a time of its own. Run it by `python -m bench share-retries`.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
import tracemalloc
from collections.abc import Iterator

from confluent_kafka import Producer

from bench import loads
from bench.brokers import Broker, ottla
from bench.harness import Row, fewer, scaled
from bench.share_members import ShareCrowd
from bench.versus import TICK_S
from ottla.blocking import Admin, ShareConsumer
from ottla.client.admin.configs import ResourceType
from ottla.node.share.share_partition import LogBatch, ShareGroupSettings, SharePartition
from ottla.protocol.names import TopicPartition
from ottla.protocol.share import AcknowledgeType, ShareAcquireMode

WITHOUT = "without retries"
# The most that a share partition may have in delivery.
AT_ONCE = 10_000
SETTINGS = {
    "group_share_max_partition_max_record_locks": str(AT_ONCE),
    "group_share_partition_max_record_locks": str(AT_ONCE),
}
WAITING = 1_000_000
MEMBERS = 4
AT_A_TIME = 10
ROUNDS = scaled(9, 5)
IDLE_S = scaled(30, 10)
_HOUR_MS = 3_600_000
_BATCH = 1_000
_RUNS = itertools.count()


def rows() -> Iterator[Row]:
    with ottla(**SETTINGS) as node:
        yield from _throughput(node)
    with ottla(**SETTINGS) as node:
        yield from _waiting(node)
    yield _memory("in batches of ten", AT_A_TIME, "≤ 150")
    yield _memory("one by one", 1, "≤ 250")


def _crowd(node: Broker, topic: str, members: int, backoff_ms: int) -> ShareCrowd:
    group = f"group-{next(_RUNS)}"
    with Admin(node.bootstrap) as admin:
        admin.configs.alter(ResourceType.GROUP, group, set={"share.retry.backoff.ms": str(backoff_ms)})
    return ShareCrowd(node, group, topic, members)


def _throughput(node: Broker) -> Iterator[Row]:
    count = scaled(100_000, 30_000)
    loads.create(node, "jobs")
    total = count + MEMBERS * AT_A_TIME
    loads.producing(node, "jobs", 100, total, batch_num_messages=AT_A_TIME)()
    speeds: dict[int, list[float]] = {0: [], 2_000: []}
    costs: dict[int, list[float]] = {0: [], 2_000: []}
    for turn in range(ROUNDS + 1):
        for backoff_ms in sorted(speeds, reverse=bool(turn % 2)):
            with contextlib.closing(_crowd(node, "jobs", MEMBERS, backoff_ms)) as crowd:
                before = node.cpu_seconds()
                speed = crowd.read(count, AT_A_TIME)
                spent = max(node.cpu_seconds() - before, TICK_S) / count * 1e6
            if turn:  # the first one warms up
                speeds[backoff_ms].append(speed)
                costs[backoff_ms].append(spent)
    for name, unit, values, is_cost in (
        ("share group with retries", "records/s", speeds, False),
        ("share group with retries: broker CPU", "s per million", costs, True),
    ):
        pairs = zip(values[2_000], values[0], strict=True)
        ratios = sorted(b / a if is_cost else a / b for a, b in pairs)
        ours, theirs = statistics.median(values[2_000]), statistics.median(values[0])
        yield Row(
            name, unit, ours, theirs, WITHOUT, statistics.median(ratios), ratios[0], ratios[-1], "≥ 0.95"
        )


def _waiting(node: Broker) -> Iterator[Row]:
    """A million records that wait on a running node, whose one member takes them all, releases them as it got
    them, and asks for no more.
    """
    partitions = WAITING // AT_ONCE
    loads.create(node, "late", partitions=partitions)
    producer = Producer({"bootstrap.servers": node.bootstrap, "queue.buffering.max.messages": 2 * AT_ONCE})
    for partition in range(partitions):
        messages = [
            {"value": value} for value in itertools.islice(itertools.cycle(loads.values(100)), AT_ONCE)
        ]
        assert producer.produce_batch("late", messages, partition=partition) == AT_ONCE
        producer.flush()
    with Admin(node.bootstrap) as admin:
        settings = {"share.retry.backoff.ms": str(_HOUR_MS), "share.auto.offset.reset": "earliest"}
        admin.configs.alter(ResourceType.GROUP, "late", set=settings)
    with ShareConsumer(
        node.bootstrap,
        group_id="late",
        share_acknowledgement_mode="explicit",
        max_poll_records=AT_ONCE,
        max_poll_interval_ms=_HOUR_MS,
    ) as consumer:
        consumer.subscribe("late")
        released = 0
        first = consumer.poll(timeout_ms=60_000)
        idle_before, memory_before = _idle_percent(node), node.resident_megabytes()
        for records in itertools.chain([first], iter(lambda: consumer.poll(timeout_ms=60_000), [])):
            for record in records:
                consumer.acknowledge(record, AcknowledgeType.RELEASE)
            consumer.commit()
            released += len(records)
            if released >= WAITING:
                break
        with Admin(node.bootstrap) as admin:
            places = {TopicPartition("late", partition): 0 for partition in range(partitions)}
            assert (
                sum(admin.groups.share_records("late", places, at_most=0).waiting.values())
                == released
                == WAITING
            )
        idle, memory = _idle_percent(node), node.resident_megabytes() - memory_before
    what = f"{WAITING:,} records wait"
    yield fewer(f"CPU while {what}", "% of a core", idle, idle_before, "before they waited", "as before")
    yield fewer(f"resident memory of a node, {what}", "MB", memory, None, "–", "≤ 250")


def _idle_percent(node: Broker) -> float:
    before = node.cpu_seconds()
    time.sleep(IDLE_S)
    return (node.cpu_seconds() - before) / IDLE_S * 100


def _memory(how: str, at_a_time: int, aim: str) -> Row:
    settings = ShareGroupSettings(partition_max_record_locks=AT_ONCE, retry_backoff_ms=_HOUR_MS)
    tracemalloc.start()
    shares = []
    for _ in range(WAITING // AT_ONCE):
        share = SharePartition(0, 0, settings)
        for base in range(0, AT_ONCE, _BATCH):
            batch = [LogBatch(base, base + _BATCH - 1)]
            share.acquire("m", ShareAcquireMode.BATCH_OPTIMIZED, _BATCH, _BATCH, base, batch, 0)
            for offset in range(base, base + _BATCH, at_a_time):
                released = [_Released(offset, offset + at_a_time - 1)]
                share.complete(share.acknowledge("m", released, offset), persisted=True)
        assert share.waiting_records == AT_ONCE
        shares.append(share)
    megabytes = tracemalloc.get_traced_memory()[0] / 1e6
    tracemalloc.stop()
    return fewer(f"memory of {WAITING:,} records that wait, released {how}", "MB", megabytes, None, "–", aim)


class _Released:
    acknowledge_types = (int(AcknowledgeType.RELEASE),)

    def __init__(self, first_offset: int, last_offset: int) -> None:
        self.first_offset = first_offset
        self.last_offset = last_offset
