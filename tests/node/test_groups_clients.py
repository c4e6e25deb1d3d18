"""Groups as real clients live them: librdkafka with its assignors and both protocols, aiokafka,
kafka-python.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from tests.support.consumer_processes import ConsumerProcesses

from kafka import KafkaConsumer
from ottla.testing.local_node import LocalNode

DEADLINE_S = 120.0
SETTLE_S = 600  # a hundred clients on a machine that is busy
QUICK = {
    "group.consumer.min.heartbeat.interval.ms": 50,
    "group.consumer.heartbeat.interval.ms": 100,
    "group.consumer.assignment.interval.ms": 0,
}


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    with LocalNode(QUICK) as running:
        yield running


class World:
    """Topics and librdkafka consumers of one test, closed with it."""

    def __init__(self, node: LocalNode, name: str) -> None:
        self.servers = node.bootstrap_servers
        self.name = name
        self.admin = AdminClient({"bootstrap.servers": self.servers})
        self.consumers: list[Consumer] = []

    def topic(self, partitions: int, suffix: str = "") -> str:
        name = self.name + suffix
        for done in self.admin.create_topics([NewTopic(name, partitions, 1)]).values():
            done.result(DEADLINE_S)
        return name

    def produce(self, topic: str, count: int, partitions: int) -> None:
        producer = Producer({"bootstrap.servers": self.servers})
        for number in range(count):
            producer.produce(topic, str(number), partition=number % partitions)
        assert producer.flush(DEADLINE_S) == 0

    def consumer(self, *topics: str, **settings: str | int | bool) -> Consumer:
        # Of a rebalance a classic member hears when it gives its next sign of life; the node says when
        # members of the new protocol do.
        classic = settings.get("group_protocol") != "consumer"
        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": self.name,
                "auto.offset.reset": "earliest",
                "topic.metadata.refresh.interval.ms": 200,
                **({"heartbeat.interval.ms": 100} if classic else {}),
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )
        self.consumers.append(consumer)
        consumer.subscribe(list(topics))
        return consumer

    def poll_until(self, condition: Callable[[], bool], what: str, read: list[str] | None = None) -> None:
        """Poll all consumers until the condition holds; what they read goes to `read`."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, f"not within {DEADLINE_S:.0f} s: {what}"
            for consumer in self.consumers:
                message = consumer.poll(0.02)
                if read is not None and message is not None and message.error() is None:
                    read.append(message.value().decode())

    def close(self, consumer: Consumer) -> None:
        """Close it once its group is stable: before, it may never return (see `ConsumerProcesses`)."""
        self.poll_until(self._is_at_rest, "the group is at rest")
        self.consumers.remove(consumer)
        consumer.close()

    def _is_at_rest(self) -> bool:
        described = self.admin.describe_consumer_groups([self.name])[self.name].result(DEADLINE_S)
        return bool(described.state.name == "STABLE")


@pytest.fixture
def world(node: LocalNode, request: pytest.FixtureRequest) -> Iterator[World]:
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    world = World(node, name)
    yield world
    for consumer in list(world.consumers):
        world.close(consumer)


def parts(consumer: Consumer) -> set[tuple[str, int]]:
    return {(place.topic, place.partition) for place in consumer.assignment()}


PROTOCOLS = [
    {"partition_assignment_strategy": "range"},
    {"partition_assignment_strategy": "roundrobin"},
    {"partition_assignment_strategy": "cooperative-sticky"},
    {"group_protocol": "consumer"},
    {"group_protocol": "consumer", "group_remote_assignor": "range"},
]


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: "-".join(protocol.values()))
def test_members_share_a_topic_and_take_over_from_each_other(world: World, protocol: dict[str, str]) -> None:
    topic = world.topic(4)
    # Nothing commits by itself: a consumer that is asked to commit afterwards reports that it has no offsets.
    one = world.consumer(topic, enable_auto_commit=False, **protocol)
    two = world.consumer(topic, enable_auto_commit=False, **protocol)
    world.poll_until(
        lambda: len(parts(one)) == len(parts(two)) == 2 and parts(one).isdisjoint(parts(two)), "an even share"
    )
    world.produce(topic, 40, 4)
    read: list[str] = []
    world.poll_until(lambda: len(read) == 40, "all records, once", read)
    assert set(read) == {str(number) for number in range(40)}
    mine = parts(two)
    two.commit(asynchronous=False)
    world.close(two)
    world.poll_until(lambda: len(parts(one)) == 4, "the whole topic for the one who is left")
    committed = one.committed([TopicPartition(*place) for place in mine], timeout=DEADLINE_S)
    assert [place.offset for place in committed] == [10, 10]


def test_both_protocols_in_one_group(world: World) -> None:
    topic = world.topic(4)
    old = world.consumer(topic, partition_assignment_strategy="range")
    world.poll_until(lambda: len(parts(old)) == 4, "everything for the classic member")
    new = world.consumer(topic, group_protocol="consumer")
    world.poll_until(
        lambda: len(parts(old)) == len(parts(new)) == 2 and parts(old).isdisjoint(parts(new)),
        "an even share between the protocols",
    )
    world.close(new)
    world.poll_until(lambda: len(parts(old)) == 4, "everything for the classic member again")


def test_a_static_member_returns_without_a_rebalance(world: World) -> None:
    topic = world.topic(2)
    rebalances: list[str] = []
    one = world.consumer(topic, group_instance_id="one", session_timeout_ms=30_000)
    two = world.consumer(topic, group_instance_id="two", session_timeout_ms=30_000)
    one.subscribe([topic], on_assign=lambda _, places: rebalances.append("assigned"))
    world.poll_until(lambda: len(parts(one)) == len(parts(two)) == 1, "a partition each")
    before = parts(two)
    count = len(rebalances)
    world.close(two)
    two = world.consumer(topic, group_instance_id="two", session_timeout_ms=30_000)
    world.poll_until(lambda: parts(two) == before, "the same partition after the return")
    assert len(rebalances) == count


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_pattern_takes_up_new_topics_and_partitions(world: World, protocol: str) -> None:
    first = world.topic(1, "-a")
    consumer = world.consumer(f"^{world.name}-.*", group_protocol=protocol)
    world.poll_until(lambda: parts(consumer) == {(first, 0)}, "the topic that is there")
    second = world.topic(2, "-b")
    expected = {(first, 0), (second, 0), (second, 1)}
    world.poll_until(lambda: parts(consumer) == expected, "the topic that came")
    for done in world.admin.create_partitions([NewPartitions(first, 2)]).values():
        done.result(DEADLINE_S)
    world.poll_until(lambda: parts(consumer) == {*expected, (first, 1)}, "the partition that came")


def test_an_operator_lists_describes_resets_and_deletes(world: World) -> None:
    topic = world.topic(1)
    consumer = world.consumer(topic)
    world.poll_until(lambda: len(parts(consumer)) == 1, "an assignment")
    admin, group = world.admin, world.name
    listed = {entry.group_id: entry for entry in admin.list_consumer_groups().result(DEADLINE_S).valid}
    assert listed[group].state.name == "STABLE"
    described = admin.describe_consumer_groups([group])[group].result(DEADLINE_S)
    assert [member.assignment.topic_partitions[0].topic for member in described.members] == [topic]
    reset = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 7)])
    refused = admin.alter_consumer_group_offsets([reset])[group].result(DEADLINE_S)
    assert [place.error.name() for place in refused.topic_partitions] == ["UNKNOWN_MEMBER_ID"]
    with pytest.raises(Exception, match="NON_EMPTY_GROUP"):
        admin.delete_consumer_groups([group])[group].result(DEADLINE_S)
    world.close(consumer)
    admin.alter_consumer_group_offsets([reset])[group].result(DEADLINE_S)
    asked = ConsumerGroupTopicPartitions(group)
    found = admin.list_consumer_group_offsets([asked])[group].result(DEADLINE_S)
    assert [place.offset for place in found.topic_partitions] == [7]
    admin.delete_consumer_groups([group])[group].result(DEADLINE_S)
    with pytest.raises(Exception, match="GROUP_ID_NOT_FOUND"):
        admin.delete_consumer_groups([group])[group].result(DEADLINE_S)


def test_kafka_python_reads_on_where_it_committed(world: World) -> None:
    topic = world.topic(2)
    world.produce(topic, 20, 2)
    read: list[bytes] = []
    for _ in range(2):
        consumer = KafkaConsumer(
            topic,
            bootstrap_servers=world.servers,
            group_id=world.name,
            auto_offset_reset="earliest",
            consumer_timeout_ms=60_000,
            max_poll_records=10,
        )
        read += [record.value for record in islice(consumer, 10)]
        consumer.close()
    assert sorted(read) == sorted(str(number).encode() for number in range(20))


async def test_aiokafka_members_share_and_commit(world: World) -> None:
    import asyncio

    topic = world.topic(2)
    world.produce(topic, 20, 2)
    consumers = [
        AIOKafkaConsumer(
            topic,
            bootstrap_servers=world.servers,
            group_id=world.name,
            auto_offset_reset="earliest",
            session_timeout_ms=60_000,  # and not ten seconds: a commit would fail after a pause
        )
        for _ in range(2)
    ]
    await asyncio.gather(*(consumer.start() for consumer in consumers))
    read = set()

    async def consume(consumer: AIOKafkaConsumer) -> None:
        while len(read) < 20:
            for records in (await consumer.getmany(timeout_ms=100)).values():
                read.update(record.value for record in records)

    try:
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(*(consume(consumer) for consumer in consumers))
            await asyncio.gather(*(consumer.commit() for consumer in consumers))
    finally:
        await asyncio.gather(*(consumer.stop() for consumer in consumers))
    assert read == {str(number).encode() for number in range(20)}


def test_groups_and_offsets_are_there_after_a_restart(tmp_path: object) -> None:
    with LocalNode(QUICK, data_dir=str(tmp_path)) as node:
        world = World(node, "restarted")
        topic = world.topic(1)
        consumer = world.consumer(topic)
        world.poll_until(lambda: len(parts(consumer)) == 1, "an assignment")
        consumer.commit(offsets=[TopicPartition(topic, 0, 5, metadata="five")], asynchronous=False)
        world.close(consumer)
    with LocalNode(QUICK, data_dir=str(tmp_path)) as node:
        world = World(node, "restarted")
        again = world.consumer(topic)
        (committed,) = again.committed([TopicPartition(topic, 0)], timeout=DEADLINE_S)
        assert (committed.offset, committed.metadata) == (5, "five")
        world.close(again)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_hundred_members_over_three_hundred_partitions_settle(protocol: str, tmp_path: Path) -> None:
    # At a pace that suits a hundred clients on one machine: what they ask for must leave room for the rest.
    calm = {"fetch.wait.max.ms": 5_000, "topic.metadata.refresh.interval.ms": 60_000}
    # librdkafka gives up a heartbeat after a second, and does not ask again for the assignment that was in
    # its response: such a member gives partitions back when the coordinator fences it, after this time.
    calm["max.poll.interval.ms"] = 45_000
    if protocol == "classic":
        calm["heartbeat.interval.ms"] = 1_000
    with LocalNode({**QUICK, "group.consumer.heartbeat.interval.ms": 1_000}) as node:
        world = World(node, "crowd")
        topic = world.topic(300)
        settings = {
            "bootstrap.servers": world.servers,
            "group.id": world.name,
            "auto.offset.reset": "earliest",
            "group.protocol": protocol,
            **calm,
        }
        with (
            (tmp_path / "crowd.log").open("wb") as log,
            ConsumerProcesses(topic, settings, members=100, processes=4, log=log) as crowd,
        ):
            deadline = time.monotonic() + SETTLE_S
            # What the processes last said may be of two assignments; so both are waited for, together.
            shares: list[list[int]] = []
            while sorted(map(len, shares)) != [3] * 100 or len({p for share in shares for p in share}) != 300:
                assert time.monotonic() < deadline, f"not settled in time: {sorted(map(len, shares))}"
                time.sleep(0.05)
                shares = crowd.shares()
