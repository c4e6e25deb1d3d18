"""Transactions: all or nothing, with a consumer's offsets, for one producer of an id at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pyarrow as pa
import pytest

from ottla.client.admin import Admin
from ottla.client.consumer import Consumer, TopicPartition
from ottla.client.errors import TransactionAborted
from ottla.client.group_offsets import CommittedOffset
from ottla.client.producer import PreparedTransaction, Producer
from ottla.client.producer.transaction_manager import TransactionManager
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.testing.local_node import LocalNode


class Failure(Exception):
    """What a user's code may raise within a transaction."""


@pytest.fixture(params=[2, 1], ids=["version 2", "version 1"])
def old_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transactions as brokers before Kafka 4 have them; newer ones know them still."""
    if request.param == 1:
        init = TransactionManager.init

        async def init_as_of_old(manager: TransactionManager, *, keep_prepared: bool = False) -> None:
            await init(manager, keep_prepared=keep_prepared)
            manager._version_2 = False

        monkeypatch.setattr(TransactionManager, "init", init_as_of_old)


async def visible(servers: str, topic: str, *, isolation_level: str = "read_committed") -> list[bytes]:
    """What a reader sees up to the end of each partition."""
    async with Consumer(servers, auto_offset_reset="earliest", isolation_level=isolation_level) as consumer:
        partitions = await consumer.partitions_for(topic)
        ends = await consumer.end_offsets(partitions)
        consumer.assign(partitions)
        values: list[bytes] = []
        async with asyncio.timeout(60):
            while any([await consumer.position(p) < ends[p] for p in partitions]):
                values += [record.value for record in await consumer.poll(timeout_ms=50)]
    return sorted(values)


async def wait_visible(servers: str, topic: str, enough: Callable[[list[bytes]], bool]) -> list[bytes]:
    """A commit is answered once it is decided; the markers that make it visible follow."""
    async with asyncio.timeout(60):
        while not enough(seen := await visible(servers, topic)):
            pass
    return seen


async def expect_visible(servers: str, topic: str, expected: list[bytes]) -> None:
    assert await wait_visible(servers, topic, lambda seen: len(seen) >= len(expected)) == expected


@pytest.mark.usefixtures("old_ways")
async def test_a_block_that_ends_commits(servers: str, topic: str, fresh_name: str) -> None:
    async with Producer(servers, transactional_id=fresh_name) as producer:
        await producer.ready(topic)
        for turn in range(3):
            async with producer.transaction():
                for n in range(5):
                    producer.send_nowait(topic, b"%d-%d" % (turn, n), partition=n % 3)
    await expect_visible(servers, topic, [b"%d-%d" % (t, n) for t in range(3) for n in range(5)])


@pytest.mark.usefixtures("old_ways")
async def test_a_block_that_raises_aborts(servers: str, topic: str, fresh_name: str) -> None:
    async with Producer(servers, transactional_id=fresh_name) as producer:
        await producer.ready(topic)

        async def fail() -> None:
            async with producer.transaction():
                await producer.send(topic, b"written and aborted")
                producer.send_nowait(topic, b"perhaps never sent")
                raise Failure

        for _ in range(3):
            with pytest.raises(Failure):
                await fail()
            async with producer.transaction():
                await producer.send(topic, b"good")
        async with producer.transaction():
            pass
    await expect_visible(servers, topic, [b"good"] * 3)
    assert b"written and aborted" in await visible(servers, topic, isolation_level="read_uncommitted")


@pytest.mark.witness
async def test_what_is_open_is_not_visible(servers: str, topic: str, fresh_name: str) -> None:
    async with Producer(servers, transactional_id=fresh_name) as producer:
        await producer.ready(topic)
        async with producer.transaction():
            sent = await producer.send(topic, b"open", partition=0)
            assert sent.offset == 0
            assert await visible(servers, topic) == []
            assert await visible(servers, topic, isolation_level="read_uncommitted") == [b"open"]
    await expect_visible(servers, topic, [b"open"])


def firsts(values: list[bytes]) -> list[bytes]:
    """What was copied once, not a copy of a copy."""
    return [value for value in values if value.startswith(b"copy of ") and value.count(b"copy") == 1]


@pytest.mark.usefixtures("old_ways")
async def test_a_consumers_offsets_are_part_of_it(servers: str, topic: str, fresh_name: str) -> None:
    async with Producer(servers) as producer:
        await producer.ready(topic)
        for n in range(10):
            producer.send_nowait(topic, b"%d" % n, partition=0)
    settings = {"group_id": fresh_name, "auto_offset_reset": "earliest", "enable_auto_commit": False}
    async with (
        Producer(servers, transactional_id=fresh_name) as producer,
        Consumer(servers, max_poll_records=4, **settings) as consumer,
    ):
        await producer.ready(topic)
        consumer.subscribe([topic])
        wanted = {b"%d" % n for n in range(10)}
        copied: set[bytes] = set()
        failed = False
        async with asyncio.timeout(120):
            while not wanted <= copied:
                records = await consumer.poll(timeout_ms=500)
                if not records:
                    continue
                try:
                    async with producer.transaction() as transaction:
                        for record in records:
                            producer.send_nowait(topic, b"copy of " + record.value, partition=1)
                        await transaction.send_offsets(consumer)
                        if copied and not failed:
                            failed = True
                            raise Failure
                except Failure:
                    continue  # the consumer goes back by itself and reads the same again
                copied |= {record.value for record in records}
        assert failed
        committed = await consumer.committed([(topic, 0)])
    assert committed[TopicPartition(topic, 0)] is not None
    seen = await wait_visible(servers, topic, lambda values: len(firsts(values)) >= 10)
    assert firsts(seen) == [b"copy of %d" % n for n in range(10)]


@pytest.mark.usefixtures("old_ways")
async def test_the_newer_producer_of_an_id_fences_the_older(
    servers: str, topic: str, fresh_name: str
) -> None:
    async with Producer(servers, transactional_id=fresh_name) as old:
        await old.ready(topic)
        old.transactions.begin()
        await old.send(topic, b"of the old one", partition=0)
        async with Producer(servers, transactional_id=fresh_name) as new:
            await new.ready(topic)
            async with new.transaction():
                await new.send(topic, b"of the new one", partition=0)
            with pytest.raises(KafkaError) as caught:
                await old.transactions.commit()
            assert caught.value.code is ErrorCode.PRODUCER_FENCED
            with pytest.raises(KafkaError) as again:
                old.transactions.begin()
            assert again.value.code is ErrorCode.PRODUCER_FENCED
    await expect_visible(servers, topic, [b"of the new one"])


@pytest.mark.usefixtures("old_ways")
async def test_an_older_producer_that_goes_on_sending_hears_that_it_is_fenced(
    servers: str, topic: str, fresh_name: str
) -> None:
    async with Producer(servers, transactional_id=fresh_name) as old:
        await old.ready(topic)

        async def write() -> None:
            async with old.transaction():
                await old.send(topic, b"of the old one", partition=0)
                async with Producer(servers, transactional_id=fresh_name) as new:
                    await new.ready(topic)
                    async with new.transaction():
                        await new.send(topic, b"of the new one", partition=0)
                await old.send(topic, b"too late", partition=0)

        with pytest.raises(KafkaError) as caught:
            await write()
        assert caught.value.code is ErrorCode.PRODUCER_FENCED
        assert isinstance(caught.value.__context__, KafkaError)
        assert caught.value.__context__.code is ErrorCode.INVALID_PRODUCER_EPOCH
    await expect_visible(servers, topic, [b"of the new one"])


@pytest.mark.usefixtures("old_ways")
async def test_an_older_producer_that_commits_offsets_hears_that_it_is_fenced(
    servers: str, topic: str, fresh_name: str
) -> None:
    async with Producer(servers, transactional_id=fresh_name) as old:
        await old.ready(topic)
        old.transactions.begin()
        await old.send(topic, b"of the old one", partition=0)
        await old.transactions.send_offsets({TopicPartition(topic, 0): CommittedOffset(1)}, fresh_name)
        async with Producer(servers, transactional_id=fresh_name) as new:
            await new.ready(topic)
            async with new.transaction():
                await new.send(topic, b"of the new one", partition=0)
        with pytest.raises(KafkaError) as caught:
            await old.transactions.send_offsets({TopicPartition(topic, 0): CommittedOffset(2)}, fresh_name)
        assert caught.value.code is ErrorCode.PRODUCER_FENCED


async def test_a_record_that_fails_dooms_its_transaction(servers: str, topic: str, fresh_name: str) -> None:
    async with Producer(servers, transactional_id=fresh_name, max_request_size=5_000_000) as producer:
        await producer.ready(topic)

        async def fail() -> None:
            async with producer.transaction():
                producer.send_nowait(topic, b"good", partition=0)
                producer.send_nowait(topic, b"x" * 3_000_000, partition=1)

        with pytest.raises(TransactionAborted, match=r"has failed: MESSAGE_TOO_LARGE|has failed: RECORD"):
            await fail()
        async with producer.transaction():
            await producer.send(topic, b"after", partition=0)
    await expect_visible(servers, topic, [b"after"])


async def test_records_need_a_transaction_and_transactions_an_id(
    servers: str, topic: str, fresh_name: str
) -> None:
    async with Producer(servers, transactional_id=fresh_name) as producer:
        with pytest.raises(KafkaError, match="no transaction open"):
            await producer.send(topic, b"x")
        producer.transactions.begin()
        with pytest.raises(KafkaError, match="a transaction is open"):
            producer.transactions.begin()
        await producer.transactions.abort()
    async with Producer(servers) as producer:
        with pytest.raises(ValueError, match=r"transactional\.id"):
            producer.transaction()


@pytest.mark.witness
async def test_arrow_tables_go_with_the_transaction(servers: str, topic: str, fresh_name: str) -> None:
    async with Producer(servers, transactional_id=fresh_name) as producer:
        await producer.ready(topic)
        async with producer.transaction():
            await producer.send_arrow(topic, pa.table({"value": [b"a", b"b"]}))

        async def fail() -> None:
            async with producer.transaction():
                await producer.send_arrow(topic, pa.table({"value": [b"c"]}))
                raise Failure

        with pytest.raises(Failure):
            await fail()
    await expect_visible(servers, topic, [b"a", b"b"])


def test_a_prepared_transaction_survives_as_text() -> None:
    assert PreparedTransaction.parse(str(PreparedTransaction(7, 3))) == PreparedTransaction(7, 3)


async def test_a_topic_that_was_created_again_takes_no_offsets_of_the_former() -> None:
    # Kafka 4.3 takes them: its transactions know topics by name.
    offsets = {TopicPartition("read", 0): CommittedOffset(1)}
    with LocalNode() as node:
        servers = node.bootstrap_servers
        async with Producer(servers, transactional_id="t") as producer, Admin(servers) as admin:
            transactions = producer.transactions
            await admin.topics.create("read")
            await producer.ready("read")
            transactions.begin()
            await transactions.send_offsets(offsets, "group")
            await transactions.commit()
            await admin.topics.delete("read")
            await admin.topics.create("read")
            transactions.begin()
            with pytest.raises(KafkaError) as caught:
                await transactions.send_offsets(offsets, "group")
            assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_ID
            await transactions.abort()
            transactions.begin()
            await transactions.send_offsets(offsets, "group")
            await transactions.commit()
