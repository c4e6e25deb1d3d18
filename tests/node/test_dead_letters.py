"""Dead letters of share groups (KIP-1191) on a running node: what is in the topic, and what holds it back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ottla.client.admin import Admin
from ottla.client.admin.configs import ResourceType
from ottla.client.consumer import Consumer
from ottla.client.producer import Producer
from ottla.client.share.share_completed_fetch import ShareRecord
from ottla.client.share.share_consumer import ShareConsumer
from ottla.protocol.names import TopicPartition
from ottla.protocol.share import AcknowledgeType
from ottla.records.batch import iter_batches
from ottla.testing.local_node import LocalNode

pytestmark = pytest.mark.slow

DEADLINE_S = 60.0
SETTINGS = {
    "group.share.min.record.lock.duration.ms": 1000,
    "group.share.min.heartbeat.interval.ms": 200,
    "group.share.heartbeat.interval.ms": 200,
}
Letter = tuple[int, bytes | None, bytes | None, dict[str, bytes | None]]
Choose = Callable[[ShareRecord[bytes, bytes]], AcknowledgeType]


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    with LocalNode(SETTINGS) as running:
        asyncio.run(set_share_version(running, 2))
        yield running


async def set_share_version(node: LocalNode, level: int) -> None:
    async with Admin(node.bootstrap_servers) as admin:
        await admin.cluster.update_features({"share.version": level})


async def set_up(node: LocalNode, name: str, *, dead_letters: bool = True, **settings: str) -> str:
    """Make a topic, a group and a dead-letter topic of a name; return the name of the last."""
    letters = f"dlq.{name}"
    async with Admin(node.bootstrap_servers) as admin:
        await admin.topics.create(name, partitions=1, replication_factor=1)
        if dead_letters:
            configs = {"errors.deadletterqueue.group.enable": "true"}
            await admin.topics.create(letters, partitions=1, replication_factor=1, configs=configs)
        group = {
            "share.auto.offset.reset": "earliest",
            "errors.deadletterqueue.topic.name": letters,
            **{key.replace("_", "."): value for key, value in settings.items()},
        }
        await admin.configs.alter(ResourceType.GROUP, name, set=group)
    return letters


async def produce(node: LocalNode, topic: str, *values: bytes) -> None:
    async with Producer(node.bootstrap_servers) as producer:
        for value in values:
            await producer.send(topic, value, key=b"key", headers=[("trace", b"1")])


@asynccontextmanager
async def worker(node: LocalNode, name: str) -> AsyncIterator[ShareConsumer[bytes, bytes]]:
    async with ShareConsumer[bytes, bytes](
        node.bootstrap_servers, group_id=name, share_acknowledgement_mode="explicit"
    ) as consumer:
        consumer.subscribe(name)
        yield consumer


async def work(node: LocalNode, name: str, deliveries: int, choose: Choose) -> None:
    """Acknowledge so many deliveries, each as it is chosen."""
    async with worker(node, name) as consumer, asyncio.timeout(DEADLINE_S):
        left = deliveries
        while left > 0:
            for record in await consumer.poll(timeout_ms=500):
                consumer.acknowledge(record, choose(record))
                left -= 1
            await consumer.commit()


def by_value(record: ShareRecord[bytes, bytes]) -> AcknowledgeType:
    assert record.value is not None
    return AcknowledgeType[record.value.decode().upper()]


async def letters_of(node: LocalNode, topic: str, count: int) -> list[Letter]:
    """Read so many dead letters."""
    found: list[Letter] = []
    async with Consumer[bytes, bytes](node.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        async with asyncio.timeout(DEADLINE_S):
            while len(found) < count:
                found += [
                    (each.offset, each.key, each.value, dict(each.headers))
                    for each in await consumer.poll(timeout_ms=500)
                ]
    return found


async def all_letters(node: LocalNode, topic: str) -> list[Letter]:
    async with Producer(node.bootstrap_servers) as producer:
        await producer.send(topic, b"the end")
    found: list[Letter] = []
    while not found or found[-1][2] != b"the end":
        found = await letters_of(node, topic, len(found) + 1)
    return found[:-1]


async def test_rejected_and_used_up_records_are_in_the_topic_once(node: LocalNode) -> None:
    topic = await set_up(
        node, "once", errors_deadletterqueue_copy_record_enable="true", share_delivery_count_limit="2"
    )
    await produce(node, "once", b"accept", b"reject", b"release", b"accept")
    await work(node, "once", 5, by_value)
    letters = await letters_of(node, topic, 2)
    assert sorted((value, headers["__dlq.errors.offset"]) for _, _, value, headers in letters) == [
        (b"reject", b"1"),
        (b"release", b"2"),
    ]
    rejected = next(each for each in letters if each[2] == b"reject")
    assert rejected[1] == b"key"
    assert rejected[3] == {
        "trace": b"1",
        "__dlq.errors.topic": b"once",
        "__dlq.errors.partition": b"0",
        "__dlq.errors.offset": b"1",
        "__dlq.errors.group": b"once",
        "__dlq.errors.delivery.count": b"1",
        "__dlq.errors.message": b"Rejected by a consumer.",
    }
    used_up = next(each for each in letters if each[2] == b"release")
    assert used_up[3]["__dlq.errors.delivery.count"] == b"2"
    assert used_up[3]["__dlq.errors.message"] == b"The record was delivered as often as the group allows."
    # Those that come later are behind these, so there is nothing in between.
    await produce(node, "once", b"reject")
    await work(node, "once", 1, by_value)
    assert len(await letters_of(node, topic, 3)) == 3


@pytest.mark.exhaustive
async def test_without_a_copy_the_headers_say_which_record_it_is(node: LocalNode) -> None:
    topic = await set_up(node, "pointers")
    await produce(node, "pointers", b"reject")
    await work(node, "pointers", 1, by_value)
    ((_, key, value, headers),) = await letters_of(node, topic, 1)
    assert (key, value) == (None, None)
    assert "trace" not in headers
    assert headers["__dlq.errors.offset"] == b"0"


async def test_dead_letters_wait_for_a_topic_that_may_have_them(node: LocalNode) -> None:
    topic = await set_up(node, "late", dead_letters=False)
    await produce(node, "late", b"reject", b"accept")
    await work(node, "late", 2, by_value)
    async with Admin(node.bootstrap_servers) as admin:
        await admin.topics.create(topic, partitions=1, replication_factor=1)
        # It is there, and may not have them yet.
        await admin.configs.alter(
            ResourceType.TOPIC, topic, set={"errors.deadletterqueue.group.enable": "true"}
        )
    ((_, _, _, headers),) = await letters_of(node, topic, 1)
    assert headers["__dlq.errors.offset"] == b"0"


async def test_the_topic_is_created_where_the_brokers_may(tmp_path: Path) -> None:
    settings = {**SETTINGS, "errors.deadletterqueue.auto.create.topics.enable": "true"}
    with LocalNode(settings, data_dir=str(tmp_path)) as node:
        await set_share_version(node, 2)
        topic = await set_up(node, "created", dead_letters=False)
        await produce(node, "created", b"reject")
        await work(node, "created", 1, by_value)
        assert len(await letters_of(node, topic, 1)) == 1
    # What is in the topic is not written again by the next life of the broker.
    with LocalNode(settings, data_dir=str(tmp_path)) as node:
        await produce(node, "created", b"reject")
        await work(node, "created", 1, by_value)
        letters = await letters_of(node, topic, 2)
        assert [headers["__dlq.errors.offset"] for *_, headers in letters] == [b"0", b"1"]


async def test_a_record_that_is_too_large_for_the_topic_is_not_copied(node: LocalNode) -> None:
    topic = await set_up(node, "large", errors_deadletterqueue_copy_record_enable="true")
    async with Admin(node.bootstrap_servers) as admin:
        await admin.configs.alter(ResourceType.TOPIC, topic, set={"max.message.bytes": "2000"})
    await produce(node, "large", json.dumps("x" * 5000).encode(), b"small")
    await work(node, "large", 2, lambda record: AcknowledgeType.REJECT)
    large, small = await letters_of(node, topic, 2)
    assert (large[2], small[2]) == (None, b"small")
    assert large[3]["__dlq.errors.message"] is not None
    assert b"larger than this topic allows" in large[3]["__dlq.errors.message"]


@pytest.mark.exhaustive
async def test_many_small_batches_of_dead_letters_have_all_records(node: LocalNode) -> None:
    topic = await set_up(node, "many", errors_deadletterqueue_copy_record_enable="true")
    async with Admin(node.bootstrap_servers) as admin:
        await admin.configs.alter(ResourceType.TOPIC, topic, set={"max.message.bytes": "3000"})
    await produce(node, "many", *(b"%d" % number for number in range(300)))
    await work(node, "many", 300, lambda record: AcknowledgeType.REJECT)
    letters = await letters_of(node, topic, 300)
    assert sorted(int(value or b"") for _, _, value, _ in letters) == list(range(300))


@pytest.mark.exhaustive
async def test_the_dead_letter_topic_may_be_read_by_its_own_group(node: LocalNode) -> None:
    """What is rejected there stays there: it is not written to its end again and again."""
    name = "dlq.itself"
    async with Admin(node.bootstrap_servers) as admin:
        configs = {"errors.deadletterqueue.group.enable": "true"}
        await admin.topics.create(name, partitions=1, replication_factor=1, configs=configs)
        group = {"share.auto.offset.reset": "earliest", "errors.deadletterqueue.topic.name": name}
        await admin.configs.alter(ResourceType.GROUP, name, set=group)
    await produce(node, name, b"reject", b"accept")
    await work(node, name, 2, by_value)
    assert [value for _, _, value, _ in await all_letters(node, name)] == [b"reject", b"accept"]


async def test_below_share_version_2_there_are_no_dead_letters() -> None:
    with LocalNode(SETTINGS) as node:
        topic = await set_up(node, "before", share_delivery_count_limit="2")
        await produce(node, "before", b"reject", b"accept")
        await work(node, "before", 2, by_value)
        await set_share_version(node, 2)
        await produce(node, "before", b"reject")
        await work(node, "before", 1, by_value)
        ((_, _, _, headers),) = await letters_of(node, topic, 1)
        assert headers["__dlq.errors.offset"] == b"2"


@pytest.mark.exhaustive
async def test_a_group_without_the_topic_any_longer_archives_what_waits(node: LocalNode) -> None:
    await set_up(node, "given-up", dead_letters=False)
    await produce(node, "given-up", b"reject", b"accept")
    await work(node, "given-up", 2, by_value)
    async with Admin(node.bootstrap_servers) as admin:
        await admin.configs.alter(
            ResourceType.GROUP, "given-up", set={"errors.deadletterqueue.topic.name": ""}
        )
        # The lag is that of the committed state.
        async with asyncio.timeout(DEADLINE_S):
            while [each.lag for each in (await admin.groups.share_offsets("given-up")).values()] != [0]:
                pass


def lose_the_last_write_of_the_state(data_dir: Path) -> None:
    """As if the power had failed before the last batch of `__share_group_state` was on the disk."""
    for log in data_dir.glob("__share_group_state-*/*.log"):
        records = log.read_bytes()
        positions = [position for position, _ in iter_batches(records)]
        if positions:
            log.write_bytes(records[: positions[-1]])
            for other in log.parent.glob("0*"):
                if other.suffix != ".log":
                    other.unlink()
    (data_dir / ".kafka_cleanshutdown").unlink()
    (data_dir / "recovery-point-offset-checkpoint").unlink()


async def has_archiving(admin: Admin, at: TopicPartition) -> bool:
    """Whether the share coordinator has dead letters that may not be written yet."""
    found = await admin.groups.share_deliveries(at.topic, at)
    assert isinstance(found, tuple), found
    return any(each.state == "archiving" for each in found)


@pytest.mark.parametrize("how", ["renamed", pytest.param("grown", marks=pytest.mark.exhaustive)])
async def test_a_dead_letter_is_found_where_it_went_before(tmp_path: Path, how: str) -> None:
    """The group names another topic, or its topic has more partitions: the next leader still looks there."""
    directory = str(tmp_path / "data")
    at = TopicPartition("moved", 1)
    with LocalNode(SETTINGS, data_dir=directory) as node:
        await set_share_version(node, 2)
        await set_up(node, "moved")
        async with Admin(node.bootstrap_servers) as admin:
            await admin.topics.add_partitions("moved", 2)
            configs = {"errors.deadletterqueue.group.enable": "true"}
            await admin.topics.create("dlq.other", partitions=1, replication_factor=1, configs=configs)
        async with Producer(node.bootstrap_servers) as producer:
            await producer.send("moved", b"reject", partition=1)
        await work(node, "moved", 1, by_value)
        assert len(await letters_of(node, "dlq.moved", 1)) == 1
        async with Admin(node.bootstrap_servers) as admin, asyncio.timeout(DEADLINE_S):
            while await has_archiving(admin, at):
                pass
    lose_the_last_write_of_the_state(Path(directory))
    with LocalNode(SETTINGS, data_dir=directory) as node:
        async with Admin(node.bootstrap_servers) as admin:
            assert await has_archiving(admin, at)
            if how == "grown":
                await admin.topics.add_partitions("dlq.moved", 2)
            else:
                other = {"errors.deadletterqueue.topic.name": "dlq.other"}
                await admin.configs.alter(ResourceType.GROUP, "moved", set=other)
        async with Producer(node.bootstrap_servers) as producer:
            await producer.send("moved", b"reject", partition=1)
        await work(node, "moved", 1, by_value)
        async with Admin(node.bootstrap_servers) as admin, asyncio.timeout(DEADLINE_S):
            while await has_archiving(admin, at):
                pass
        async with Consumer[bytes, bytes](node.bootstrap_servers, auto_offset_reset="earliest") as consumer:
            places = [TopicPartition("dlq.moved", index) for index in range(2 if how == "grown" else 1)]
            places.append(TopicPartition("dlq.other", 0))
            ends = await consumer.end_offsets(places)
            consumer.assign(places)
            letters = []
            async with asyncio.timeout(DEADLINE_S):
                while any([await consumer.position(each) < ends[each] for each in places]):
                    letters += await consumer.poll(timeout_ms=100)
    found = sorted(
        (dict(each.headers)["__dlq.errors.offset"], each.topic, each.partition) for each in letters
    )
    new = ("dlq.moved", 1) if how == "grown" else ("dlq.other", 0)
    assert found == [(b"0", "dlq.moved", 0), (b"1", *new)]
