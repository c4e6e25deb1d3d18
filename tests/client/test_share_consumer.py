"""Share consumers against Ottla, and against Apache Kafka where the machine has it."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

import pytest

from ottla import blocking
from ottla.client.admin import Admin
from ottla.client.admin.configs import ResourceType
from ottla.client.producer import Producer
from ottla.client.share import AcknowledgeType, RecordDeserializationFailed, ShareConsumer, ShareRecord
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition
from tests.support.waiting import until, wait_until

DEADLINE_S = 60.0
Shared = ShareRecord[bytes, bytes]


@pytest.fixture
async def group(admin: Admin, fresh_name: str) -> str:
    """A group that begins with the first record."""
    await set_group(admin, fresh_name, {"share.auto.offset.reset": "earliest"})
    return fresh_name


@pytest.fixture
async def queue(admin: Admin, fresh_name: str) -> str:
    """A topic with one partition, which all members have. With more partitions than members each partition
    has one member, and in Apache Kafka random ids decide which one.
    """
    name = f"queue-{fresh_name}"
    await admin.topics.create(name, partitions=1, configs={"retention.ms": "-1"})
    return name


async def set_group(admin: Admin, group: str, settings: dict[str, str]) -> None:
    await admin.configs.alter(ResourceType.GROUP, group, set=settings)


async def produce(servers: str, topic: str, values: list[bytes], *, partition: int = 0) -> None:
    async with Producer(servers, linger_ms=0) as producer:
        for value in values:
            await producer.send(topic, value, partition=partition)


async def take(consumer: ShareConsumer[Any, Any], count: int) -> list[ShareRecord[Any, Any]]:
    """Poll until there are so many records."""
    found: list[ShareRecord[Any, Any]] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(found) < count:
            found += await consumer.poll()
    return found


async def lag(admin: Admin, group: str, topic: str) -> int | None:
    found = (await admin.groups.share_offsets(group))[TopicPartition(topic, 0)]
    assert not isinstance(found, KafkaError), found
    return found.lag


def values(records: list[ShareRecord[Any, Any]]) -> list[Any]:
    return sorted(record.value for record in records)


async def test_the_next_poll_accepts_what_the_last_one_has_returned(
    servers: str, topic: str, group: str, admin: Admin
) -> None:
    await produce(servers, topic, [b"a", b"b", b"c"])
    results: list[tuple[TopicPartition, list[int], KafkaError | None]] = []
    consumer = ShareConsumer[bytes, bytes](
        servers,
        group_id=group,
        acknowledgement_commit_callback=lambda *result: results.append(result),
    )
    async with consumer:
        consumer.subscribe(topic)
        found = await take(consumer, 3)
        assert values(found) == [b"a", b"b", b"c"]
        assert {record.delivery_count for record in found} == {1}
        assert consumer.acquisition_lock_timeout_ms == 30_000
        assert consumer.assignment() == [TopicPartition(topic, index) for index in range(3)]
        assert await consumer.poll(timeout_ms=1) == []
        await until(lambda: sum(len(offsets) for _, offsets, _ in results) == 3)
        assert all(error is None for _, _, error in results)
        assert {partition for partition, _, _ in results} == {TopicPartition(topic, 0)}
    assert await lag(admin, group, topic) == 0


async def test_a_commit_accepts_and_says_so_by_partition(servers: str, topic: str, group: str) -> None:
    await produce(servers, topic, [b"a"])
    await produce(servers, topic, [b"b"], partition=1)
    async with ShareConsumer[bytes, bytes](servers, group_id=group) as consumer:
        consumer.subscribe(topic)
        await take(consumer, 2)
        assert await consumer.commit() in (
            {TopicPartition(topic, 0): None, TopicPartition(topic, 1): None},
            # The first was accepted by the poll that has brought the second.
            {TopicPartition(topic, 0): None},
            {TopicPartition(topic, 1): None},
        )
        assert await consumer.commit() == {}


async def test_closing_releases_what_was_not_accepted(servers: str, topic: str, group: str) -> None:
    await produce(servers, topic, [b"a"])
    for deliveries in (1, 2):
        async with ShareConsumer[bytes, bytes](servers, group_id=group) as consumer:
            consumer.subscribe(topic)
            (record,) = await take(consumer, 1)
            assert record.delivery_count == deliveries


async def test_two_members_share_the_records_of_a_partition(servers: str, queue: str, group: str) -> None:
    settings: dict[str, Any] = {
        "group_id": group,
        "share_acquire_mode": "record_limit",
        "max_poll_records": 5,
    }
    async with (
        ShareConsumer[bytes, bytes](servers, **settings) as one,
        ShareConsumer[bytes, bytes](servers, **settings) as two,
    ):
        for each in (one, two):
            each.subscribe(queue)
        async with asyncio.timeout(DEADLINE_S):
            while not (one.assignment() and two.assignment()):
                assert await asyncio.gather(one.poll(timeout_ms=100), two.poll(timeout_ms=100)) == [[], []]
        sent: list[bytes] = []
        found: dict[int, list[Shared]] = {0: [], 1: []}

        async def write() -> None:
            # More of them until each had some: one of the two may be quick enough to get all there are.
            while not (len(sent) >= 100 and found[0] and found[1]):
                more = [b"%06d" % (len(sent) + number) for number in range(20)]
                sent.extend(more)
                await produce(servers, queue, more)

        async def work(number: int, consumer: ShareConsumer[bytes, bytes]) -> None:
            while not writing.done() or len(found[0]) + len(found[1]) < len(sent):
                records = await consumer.poll(timeout_ms=200)
                assert len(records) <= 5
                found[number] += records

        async with asyncio.timeout(DEADLINE_S):
            writing = asyncio.create_task(write())
            await asyncio.gather(writing, work(0, one), work(1, two))
        assert values(found[0] + found[1]) == sent


@pytest.mark.witness
async def test_records_are_acknowledged_one_by_one(servers: str, topic: str, group: str) -> None:
    await produce(servers, topic, [b"accept", b"release", b"reject", b"forget"])
    consumer = ShareConsumer[bytes, bytes](servers, group_id=group, share_acknowledgement_mode="explicit")
    async with consumer:
        consumer.subscribe(topic)
        accepted, released, rejected, _ = await take(consumer, 4)
        consumer.acknowledge(accepted)
        consumer.reject(released)
        consumer.release(released)  # until it is sent
        consumer.reject(rejected)
        assert await consumer.commit() == {TopicPartition(topic, 0): None}
        (again,) = await take(consumer, 1)
        assert (again.value, again.delivery_count) == (b"release", 2)
        with pytest.raises(KafkaError, match="does not hold the record at offset 0") as caught:
            consumer.accept(accepted)
        assert caught.value.code is ErrorCode.INVALID_RECORD_STATE
        consumer.accept(again)
    async with ShareConsumer[bytes, bytes](servers, group_id=group) as other:
        other.subscribe(topic)
        (record,) = await take(other, 1)
        assert (record.value, record.delivery_count) == (b"forget", 2)


async def test_the_implicit_mode_has_no_acknowledgements(servers: str, topic: str, group: str) -> None:
    await produce(servers, topic, [b"a"])
    async with ShareConsumer[bytes, bytes](servers, group_id=group) as consumer:
        consumer.subscribe(topic)
        (record,) = await take(consumer, 1)
        with pytest.raises(RuntimeError, match="explicit"):
            consumer.accept(record)
        with pytest.raises(RuntimeError, match="explicit"):
            await consumer.run_workers(print)


@pytest.mark.slow
@pytest.mark.witness
async def test_a_lock_that_expires_gives_the_record_to_another(
    servers: str, queue: str, group: str, admin: Admin
) -> None:
    await produce(servers, queue, [b"a"])
    await set_group(admin, group, {"share.record.lock.duration.ms": "1000"})
    settings: dict[str, Any] = {"group_id": group, "share_acknowledgement_mode": "explicit"}
    async with (
        ShareConsumer[bytes, bytes](servers, **settings) as slow,
        ShareConsumer[bytes, bytes](servers, **settings) as quick,
    ):
        slow.subscribe(queue)
        (held,) = await take(slow, 1)
        assert slow.acquisition_lock_timeout_ms == 1000
        # The lock of the other one is not to end too.
        await set_group(admin, group, {"share.record.lock.duration.ms": "60000"})
        quick.subscribe(queue)
        (record,) = await take(quick, 1)
        assert record.delivery_count > held.delivery_count
        slow.accept(held)
        (error,) = (await slow.commit()).values()
        assert error is not None
        assert error.code is ErrorCode.INVALID_RECORD_STATE
        assert "renew" in error.message
        quick.accept(record)
        assert await quick.commit() == {TopicPartition(queue, 0): None}


async def test_a_record_that_is_renewed_stays_with_its_consumer(
    servers: str, topic: str, group: str, admin: Admin
) -> None:
    """What this does to locks is in test_share_locks.py, where time is virtual."""
    await produce(servers, topic, [b"a"])
    consumer = ShareConsumer[bytes, bytes](servers, group_id=group, share_acknowledgement_mode="explicit")
    async with consumer:
        consumer.subscribe(topic)
        (held,) = await take(consumer, 1)
        for type in (AcknowledgeType.RENEW, AcknowledgeType.RENEW, AcknowledgeType.ACCEPT):
            consumer.acknowledge(held, type)
            assert await consumer.commit() == {TopicPartition(topic, 0): None}
    assert await lag(admin, group, topic) == 0


async def test_iterating_accepts_each_record_with_the_next(servers: str, topic: str, group: str) -> None:
    await produce(servers, topic, [b"a", b"b", b"c", b"d"])
    seen: list[bytes | None] = []
    async with ShareConsumer[bytes, bytes](servers, group_id=group) as consumer:
        consumer.subscribe(topic)
        async for record in consumer:
            seen.append(record.value)
            if len(seen) == 3:
                break
        await consumer.commit()
    async with ShareConsumer[bytes, bytes](servers, group_id=group) as consumer:
        consumer.subscribe(topic)
        (record,) = await take(consumer, 1)
        assert seen == [b"a", b"b", b"c"]
        assert record.value == b"d"


async def test_a_poll_returns_what_iterating_has_not(servers: str, topic: str, group: str) -> None:
    async with Producer(servers) as producer:
        for value in (b"a", b"b", b"c"):
            await producer.ready(topic)
            producer.send_nowait(topic, value, partition=0)
        await producer.flush()
    async with ShareConsumer[bytes, bytes](servers, group_id=group) as consumer:
        consumer.subscribe(topic)
        async for record in consumer:
            assert record.value == b"a"
            break
        assert [record.value for record in await take(consumer, 2)] == [b"b", b"c"]
        await consumer.commit()


async def test_columns_have_the_deliveries_and_are_acknowledged(servers: str, topic: str, group: str) -> None:
    pa = pytest.importorskip("pyarrow")
    await produce(servers, topic, [b"a", b"b", b"c"])
    consumer = ShareConsumer[bytes, bytes](servers, group_id=group, share_acknowledgement_mode="explicit")
    async with consumer:
        consumer.subscribe(topic)
        tables = []
        async with asyncio.timeout(DEADLINE_S):
            while sum(table.num_rows for table in tables) < 3:
                tables.append(await consumer.poll_arrow())
        table = pa.concat_tables(tables)
        assert table.column("value").to_pylist() == [b"a", b"b", b"c"]
        assert table.column("deliveryCount").to_pylist() == [1, 1, 1]
        assert table.column("topic").to_pylist() == [topic] * 3
        consumer.acknowledge_arrow(table.slice(0, 2))
        consumer.acknowledge_arrow(table.slice(2), AcknowledgeType.RELEASE)
        assert await consumer.commit() == {TopicPartition(topic, 0): None}
        async with asyncio.timeout(DEADLINE_S):
            while not (again := await consumer.poll_arrow(columns=("value", "deliveryCount"))).num_rows:
                pass
        assert again.to_pylist() == [{"value": b"c", "deliveryCount": 2}]


async def test_columns_are_accepted_by_the_next_poll(
    servers: str, topic: str, group: str, admin: Admin
) -> None:
    pytest.importorskip("pyarrow")
    await produce(servers, topic, [b"a", b"b"])
    async with ShareConsumer[bytes, bytes](servers, group_id=group) as consumer:
        consumer.subscribe(topic)
        rows = 0
        async with asyncio.timeout(DEADLINE_S):
            while rows < 2:
                rows += (await consumer.poll_arrow()).num_rows
        await consumer.commit()
    assert await lag(admin, group, topic) == 0


@pytest.mark.slow
async def test_a_record_that_cannot_be_deserialized_can_be_rejected(
    servers: str, topic: str, group: str
) -> None:
    await produce(servers, topic, [b"1", b"two", b"3"])
    consumer = ShareConsumer[bytes, int](
        servers, group_id=group, value_deserializer=int, share_acknowledgement_mode="explicit"
    )
    async with consumer:
        consumer.subscribe(topic)
        found: list[ShareRecord[bytes, int]] = []
        failed: list[RecordDeserializationFailed] = []
        async with asyncio.timeout(DEADLINE_S):
            while len(found) < 2 or not failed:
                try:
                    records = await consumer.poll()
                except RecordDeserializationFailed as error:
                    failed.append(error)
                    consumer.reject(error.record)
                else:
                    found += records
                    consumer.accept(*records)
        assert [record.value for record in found] == [1, 3]
        assert [error.record.value for error in failed] == [b"two"]
        await consumer.commit()
        assert await consumer.poll(timeout_ms=1000) == []


async def test_transactions_leave_gaps_that_are_not_seen(
    servers: str, topic: str, group: str, admin: Admin
) -> None:
    await set_group(admin, group, {"share.isolation.level": "read_committed"})
    async with Producer(servers, transactional_id=f"tx-{group}") as producer:
        async with producer.transaction():
            await producer.send(topic, b"kept", partition=0)
        producer.transactions.begin()
        await producer.send(topic, b"aborted", partition=0)
        await producer.transactions.abort()
        async with producer.transaction():
            await producer.send(topic, b"last", partition=0)
    async with ShareConsumer[bytes, bytes](servers, group_id=group) as consumer:
        consumer.subscribe(topic)
        assert values(await take(consumer, 2)) == [b"kept", b"last"]
        await consumer.commit()
        # The markers are acknowledged too.
        async with asyncio.timeout(DEADLINE_S):
            while await lag(admin, group, topic) != 0:
                assert await consumer.poll(timeout_ms=100) == []
                await consumer.commit()


async def test_unsubscribing_leaves_the_group_and_its_records(
    servers: str, topic: str, group: str, admin: Admin
) -> None:
    await produce(servers, topic, [b"a"])
    async with ShareConsumer[bytes, bytes](servers, group_id=group) as consumer:
        consumer.subscribe(topic)
        await take(consumer, 1)
        await consumer.unsubscribe()
        assert (await admin.groups.describe(group)).members == ()
        with pytest.raises(RuntimeError, match="not subscribed"):
            await consumer.poll()
        consumer.subscribe(topic)
        (record,) = await take(consumer, 1)
        assert record.delivery_count == 2


# Workers


async def test_polls_at_the_same_time_are_one_member_and_none_is_forgotten(
    servers: str, topic: str, group: str, admin: Admin
) -> None:
    consumer = ShareConsumer[bytes, bytes](servers, group_id=group, share_acknowledgement_mode="explicit")
    async with asyncio.timeout(DEADLINE_S), consumer:
        consumer.subscribe(topic)
        unlimited = asyncio.create_task(consumer.poll(timeout_ms=None))
        await asyncio.gather(*(consumer.poll(timeout_ms=10) for _ in range(3)))
        await until(lambda: bool(consumer.assignment()))
        assert len((await admin.groups.describe(group)).members) == 1
        await consumer.poll(timeout_ms=10)
        # The polls that have ended do not end the requests of the one that goes on.
        await produce(servers, topic, [b"a"])
        assert values(await unlimited) == [b"a"]
    assert not (await admin.groups.describe(group)).members


async def test_a_poll_that_waits_ends_with_its_consumer(servers: str, topic: str, group: str) -> None:
    async def iterate(consumer: ShareConsumer[bytes, bytes]) -> None:
        async for _ in consumer:
            pass

    consumer = ShareConsumer[bytes, bytes](servers, group_id=group)
    async with asyncio.timeout(DEADLINE_S):
        await consumer.start()
        consumer.subscribe(topic)
        waits = asyncio.create_task(consumer.poll(timeout_ms=None))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="one share consumer for each thread"):
            await consumer.poll()
        await consumer.unsubscribe()
        with pytest.raises(RuntimeError, match="not subscribed"):
            await waits
        consumer.subscribe(topic)
        iterates = asyncio.create_task(iterate(consumer))
        await asyncio.sleep(0)
        await consumer.close()
        await iterates


async def test_workers_accept_retry_and_reject(servers: str, topic: str, group: str) -> None:
    await produce(servers, topic, [b"good", b"flaky", b"bad", b"poison"] + [b"good"] * 20)
    calls: list[tuple[bytes | None, int]] = []
    dead: list[tuple[bytes | None, str]] = []
    most = running = 0

    async def handle(record: Shared) -> None:
        nonlocal most, running
        running += 1
        most = max(most, running)
        try:
            await asyncio.sleep(0.01)
            calls.append((record.value, record.delivery_count))
            if record.value == b"poison":
                raise ValueError("never")
            if record.value == b"bad" or (record.value == b"flaky" and record.delivery_count < 2):
                raise OSError("try again")
        finally:
            running -= 1

    async def on_reject(record: Shared, error: Exception) -> None:
        dead.append((record.value, type(error).__name__))

    consumer = ShareConsumer[bytes, bytes](servers, group_id=group, share_acknowledgement_mode="explicit")
    async with consumer:
        consumer.subscribe(topic)
        work = asyncio.create_task(
            consumer.run_workers(
                handle,
                concurrency=4,
                max_deliveries=3,
                reject_on=(ValueError,),
                on_reject=on_reject,
                retry_backoff_ms=10,
            )
        )
        await until(lambda: len(dead) == 2 and len(calls) >= 27)
        consumer.stop_workers()
        results = await work
    assert sorted(dead) == [(b"bad", "OSError"), (b"poison", "ValueError")]
    assert sorted(count for value, count in calls if value == b"bad") == [1, 2, 3]
    assert sorted(count for value, count in calls if value == b"flaky") == [1, 2]
    assert sum(value == b"good" for value, _ in calls) == 21
    assert most <= 4
    assert (results.accepted, results.rejected, results.failed) == (22, 2, 0)


@pytest.mark.slow
async def test_a_record_that_cannot_be_handed_over_is_not_lost(servers: str, topic: str, group: str) -> None:
    await produce(servers, topic, [b"a"])
    tried: list[int] = []

    def handle(record: Shared) -> None:
        raise ValueError("no")

    def on_reject(record: Shared, error: Exception) -> None:
        tried.append(record.delivery_count)
        if len(tried) < 3:
            raise OSError("the dead-letter topic cannot be reached")

    consumer = ShareConsumer[bytes, bytes](servers, group_id=group, share_acknowledgement_mode="explicit")
    async with consumer:
        consumer.subscribe(topic)
        work = asyncio.create_task(consumer.run_workers(handle, reject_on=(ValueError,), on_reject=on_reject))
        await until(lambda: len(tried) == 3)
        consumer.stop_workers()
        results = await work
    # It was delivered once: with each delivery it would come closer to the limit, and be archived there.
    assert tried == [1, 1, 1]
    assert (results.released, results.rejected) == (0, 1)


@pytest.mark.slow
async def test_a_record_that_was_not_handed_over_is_released_at_the_end(
    servers: str, topic: str, group: str
) -> None:
    await produce(servers, topic, [b"not a number"])
    tried: list[object] = []

    async def on_reject(record: ShareRecord[Any, Any], error: Exception) -> None:
        tried.append(record.value)
        raise OSError("the dead-letter topic cannot be reached")

    consumer = ShareConsumer[bytes, int](
        servers, group_id=group, value_deserializer=int, share_acknowledgement_mode="explicit"
    )
    async with consumer:
        consumer.subscribe(topic)
        work = asyncio.create_task(consumer.run_workers(print, max_deliveries=1, on_reject=on_reject))
        await until(lambda: len(tried) > 0)
        consumer.stop_workers()
        results = await work
    assert set(tried) == {b"not a number"}
    assert (results.released, results.rejected, results.failed) == (1, 0, 0)


async def test_workers_that_are_cancelled_release_their_records(servers: str, topic: str, group: str) -> None:
    await produce(servers, topic, [b"a"])
    begun = asyncio.Event()

    async def handle(record: Shared) -> None:
        begun.set()
        await asyncio.Event().wait()

    consumer = ShareConsumer[bytes, bytes](servers, group_id=group, share_acknowledgement_mode="explicit")
    async with consumer:
        consumer.subscribe(topic)
        work = asyncio.create_task(consumer.run_workers(handle))
        async with asyncio.timeout(DEADLINE_S):
            await begun.wait()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        (record,) = await take(consumer, 1)
        assert record.delivery_count == 2


async def test_plain_functions_work_in_threads_of_a_blocking_consumer(
    servers: str, topic: str, group: str
) -> None:
    await produce(servers, topic, [b"%d" % number for number in range(20)])
    done: list[bytes | None] = []
    threads: set[str] = set()
    both = threading.Barrier(2, timeout=DEADLINE_S)

    def handle(record: Shared) -> None:
        both.wait()  # two at a time
        threads.add(threading.current_thread().name)
        done.append(record.value)
        if len(done) == 20:
            consumer.stop_workers()

    def run() -> None:
        with consumer:
            consumer.subscribe(topic)
            results = consumer.run_workers(handle, concurrency=2)
            assert results.accepted == 20

    consumer = blocking.ShareConsumer[bytes, bytes](
        servers, group_id=group, share_acknowledgement_mode="explicit"
    )
    await asyncio.to_thread(run)
    assert len(set(done)) == 20
    assert len(threads) == 2


@pytest.mark.slow
@pytest.mark.parametrize("is_async", [False, True])
def test_a_handler_that_exits_fails_and_the_others_go_on(servers: str, is_async: bool) -> None:
    topic = group = f"exits-{is_async}"
    done: list[bytes | None] = []
    settings: dict[str, Any] = {"group_id": group, "share_acknowledgement_mode": "explicit"}

    def handle(record: Shared) -> None:
        if record.value == b"exit" and record.delivery_count == 1:
            sys.exit(3)
        done.append(record.value)

    async def handle_on_the_loop(record: Shared) -> None:
        handle(record)

    with blocking.Admin(servers) as admin, blocking.Producer(servers) as producer:
        admin.topics.create(topic, partitions=1)
        admin.configs.alter(ResourceType.GROUP, group, set={"share.auto.offset.reset": "earliest"})
        for value in (b"exit", b"a", b"b"):
            producer.send(topic, value)
        with blocking.ShareConsumer[bytes, bytes](servers, **settings) as consumer:
            consumer.subscribe(topic)
            handler = handle_on_the_loop if is_async else handle
            workers = threading.Thread(target=consumer.run_workers, args=(handler,), daemon=True)
            workers.start()
            wait_until(lambda: len(done) == 3, "not all records are done")
            consumer.stop_workers()
            workers.join(DEADLINE_S)
            assert not workers.is_alive()
    assert sorted(map(bytes, filter(None, done))) == [b"a", b"b", b"exit"]


def test_a_blocking_share_consumer_polls_and_commits(servers: str) -> None:
    with blocking.Admin(servers) as admin, blocking.Producer(servers) as producer:
        topic, group = "blocking-share", "blocking-share-group"
        admin.topics.create(topic, partitions=1)
        admin.configs.alter(ResourceType.GROUP, group, set={"share.auto.offset.reset": "earliest"})
        producer.send(topic, b"a")
        settings: dict[str, Any] = {"group_id": group, "share_acknowledgement_mode": "explicit"}
        with blocking.ShareConsumer[bytes, bytes](servers, **settings) as consumer:
            consumer.subscribe([topic])
            for record in consumer:
                assert record.value == b"a"
                consumer.accept(record)
                break
            assert consumer.commit() == {TopicPartition(topic, 0): None}
            assert consumer.subscription() == [topic]
