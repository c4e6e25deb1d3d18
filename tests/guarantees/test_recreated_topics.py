"""A topic that is deleted and made again under a group: old offsets never count for the new topic."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from ottla.testing.local_node import LocalNode
from tests.guarantees.raw_producer import GROUP_KEY, RawProducer, committed_offset, until
from tests.support.wire import WireClient

NONE = ErrorCode.NONE


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    with LocalNode() as running:
        yield running


class World:
    """One topic and one group, both under the test's name."""

    def __init__(self, node: LocalNode, name: str) -> None:
        self.servers = node.bootstrap_servers
        self.wire = WireClient(self.servers)
        self.name = name
        self.producer = RawProducer(self.servers, name)
        self.producer.find(GROUP_KEY, name)

    def create(self) -> bytes:
        topic = CreatableTopic(name=self.name, num_partitions=1, replication_factor=1)
        request = CreateTopicsRequest(topics=[topic], timeout_ms=60_000)
        (made,) = self.wire.get(request, 7, CreateTopicsResponse).topics
        assert made.error_code == 0, made
        return made.topic_id

    def delete(self) -> None:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=self.name)], timeout_ms=60_000)
        (gone,) = self.wire.get(request, 6, DeleteTopicsResponse).responses
        assert gone.error_code == 0, gone

    def commit(self, offset: int, topic_id: bytes) -> ErrorCode:
        """By the topic's id, as clients of today do."""
        place = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        request = OffsetCommitRequest(
            group_id=self.name,
            generation_id_or_member_epoch=-1,
            topics=[OffsetCommitRequestTopic(topic_id=topic_id, partitions=[place])],
        )
        answer = until(
            "a loaded coordinator",
            lambda: self.wire.get(request, 10, OffsetCommitResponse).topics[0].partitions[0],
            lambda each: (
                each.error_code not in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)
            ),
        )
        return ErrorCode(answer.error_code)

    def by_id(self, topic_id: bytes) -> tuple[ErrorCode, int]:
        topics = [OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[0])]
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=self.name, topics=topics)])
        answer = self.wire.get(request, 10, OffsetFetchResponse)
        (found,) = answer.groups[0].topics[0].partitions
        return ErrorCode(found.error_code), found.committed_offset

    def by_name(self, *, stable: bool = False) -> tuple[ErrorCode, int]:
        return committed_offset(self.wire, self.name, self.name, require_stable=stable)

    def close(self) -> None:
        self.wire.close()
        self.producer.close()


@pytest.fixture
def world(node: LocalNode, request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(node, request.node.name)
    yield world
    world.close()


def test_offsets_go_with_their_topic(world: World) -> None:
    old = world.create()
    assert world.commit(7, old) is NONE
    assert world.by_id(old) == (NONE, 7)
    world.delete()
    new = world.create()
    assert world.by_name() == (NONE, -1)
    assert world.by_id(new) == (NONE, -1)
    assert world.by_id(old) == (ErrorCode.UNKNOWN_TOPIC_ID, -1)


def test_a_late_commit_for_the_old_topic_does_not_land_on_the_new_one(world: World) -> None:
    old = world.create()
    world.delete()
    new = world.create()
    assert world.commit(7, old) is ErrorCode.UNKNOWN_TOPIC_ID
    assert world.by_name() == (NONE, -1)
    assert world.commit(3, new) is NONE
    assert world.commit(8, old) is ErrorCode.UNKNOWN_TOPIC_ID
    assert world.by_id(new) == (NONE, 3)


def test_offsets_in_a_transaction_that_outlives_their_topic_do_not_count_for_the_new_one(
    world: World,
) -> None:
    world.create()
    world.producer.init()
    assert world.producer.send_offset(world.name, world.name, 9) is NONE
    world.delete()
    new = world.create()
    assert world.producer.end(commit=True) is NONE
    until(
        "the end of the transaction",
        lambda: world.by_name(stable=True),
        lambda each: each[0] is not ErrorCode.UNSTABLE_OFFSET_COMMIT,
    )
    assert world.by_name() == (NONE, -1)
    assert world.by_id(new) == (NONE, -1)


def test_a_group_reads_the_new_topic_from_its_beginning(world: World) -> None:
    def read(count: int) -> list[str]:
        consumer = Consumer(
            {
                "bootstrap.servers": world.servers,
                "group.id": world.name,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe([world.name])
        values: list[str] = []
        until(
            f"{count} records",
            lambda: values.extend(
                message.value().decode() for message in consumer.consume(count, 0.1) if not message.error()
            ),
            lambda _: len(values) >= count,
        )
        consumer.commit(asynchronous=False)
        consumer.close()
        return values

    def write(*values: str) -> None:
        producer = Producer({"bootstrap.servers": world.servers})
        for value in values:
            producer.produce(world.name, value)
        assert producer.flush(60) == 0

    world.create()
    write("a", "b", "c")
    assert read(3) == ["a", "b", "c"]
    world.delete()
    world.create()
    write("x", "y", "z", "w")
    assert read(4) == ["x", "y", "z", "w"]
