"""Segments of deleted topics are found, also those that a dead broker should have deleted."""

from __future__ import annotations

import asyncio

import pytest

from ottla.metadata.image.delta import MetadataDelta, TopicDelta
from ottla.metadata.image.entities import (
    BrokerRegistration,
    ConfigResource,
    ConfigResourceType,
    TopicImage,
)
from ottla.metadata.image.image import ClusterImage, MetadataImage
from ottla.node.remote.deleted_partitions import DeletedPartitions
from ottla.protocol.names import REMOTE_LOG_METADATA_TOPIC, TopicIdPartition, TopicPartition
from ottla.remote.metadata_manager import metadata_partition
from ottla.remote.segment_metadata import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    encode_event,
)
from ottla.replication.replica_manager import ReplicaChanges
from ottla.runtime.pool import InlinePool
from ottla.runtime.random import SeededRandom
from ottla.runtime.runtime import Runtime
from ottla.runtime.tasks import TaskSupervisor
from ottla.sim.clock import LoopClock
from ottla.sim.loop import SimLoop
from tests.remote.test_topic_metadata_manager import TOPIC_ID, FakeTopic, id_of, run, segment

MARKED = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
FINISHED = RemotePartitionDeleteState.DELETE_PARTITION_FINISHED
DELETED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED


class LedTopic(FakeTopic):
    def is_led_here(self, partition: int) -> bool:
        return True


class LedPartition:
    """As much of a partition as its name."""

    def __init__(self, partition: int) -> None:
        self.topic_partition = TopicPartition(REMOTE_LOG_METADATA_TOPIC, partition)


def started(topic: LedTopic | None = None) -> tuple[DeletedPartitions, LedTopic, list[TopicIdPartition]]:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    clock = LoopClock(lambda: loop.now_ns)
    runtime = Runtime(clock, SeededRandom(1), None, InlinePool(), None)  # type: ignore[arg-type]
    topic = LedTopic(2) if topic is None else topic
    topic.partition_count = 2
    found: list[TopicIdPartition] = []
    tasks = TaskSupervisor(clock, lambda reason: None)
    return DeletedPartitions(runtime, tasks, topic, found.extend), topic, found  # type: ignore[arg-type]


async def copied(topic: LedTopic, partition: int, segments: int) -> list[RemoteLogSegmentMetadata]:
    wanted = [segment(partition, number) for number in range(segments)]
    for each in wanted:
        await topic.append(metadata_partition(id_of(partition), 2), encode_event(each))
    return wanted


async def announced(topic: LedTopic, partition: int, state: RemotePartitionDeleteState) -> None:
    event = RemotePartitionDeleteMetadata(TOPIC_ID, TopicPartition("orders", partition), state, 0, 1)
    await topic.append(metadata_partition(id_of(partition), 2), encode_event(event))


def elected(*partitions: int) -> ReplicaChanges:
    return ReplicaChanges(leaders=[LedPartition(each) for each in partitions])  # type: ignore[list-item]


def test_a_new_leader_finishes_deletions_that_were_announced() -> None:
    async def test() -> None:
        deleted, topic, found = started()
        for partition in range(4):
            await copied(topic, partition, 3)
        await announced(topic, 1, MARKED)
        # Of these all segments are gone, and of these it is said so.
        for each in await copied(topic, 5, 2):
            gone = RemoteLogSegmentMetadataUpdate(each.id, 0, DELETED, 1)
            await topic.append(metadata_partition(id_of(5), 2), encode_event(gone))
        await announced(topic, 5, MARKED)
        await announced(topic, 2, MARKED)
        await announced(topic, 2, FINISHED)
        deleted.apply(elected(0, 1), None)
        await asyncio.sleep(5)
        assert found == []
        topic.failures = 1
        await asyncio.sleep(600)
        assert found == [id_of(1)]
        await deleted.close()

    run(test())


def test_a_topic_that_is_not_in_the_image_is_not_deleted_for_that() -> None:
    async def test() -> None:
        deleted, topic, found = started()
        await copied(topic, 0, 3)
        deleted.apply(elected(0, 1), None)
        await asyncio.sleep(600)
        assert found == []
        await deleted.close()

    run(test())


def test_a_topic_that_was_seen_to_go_is_looked_after() -> None:
    async def test() -> None:
        deleted, topic, found = started()
        await copied(topic, 0, 3)
        await copied(topic, 1, 3)
        deleted.apply(ReplicaChanges(), deletion(2))
        await asyncio.sleep(30)
        assert found == []
        await asyncio.sleep(60)
        assert sorted(found) == [id_of(0), id_of(1)]
        await deleted.close()

    run(test())


def test_topics_without_remote_storage_cost_nothing() -> None:
    async def test() -> None:
        deleted, topic, found = started()
        await copied(topic, 0, 3)
        delta = MetadataDelta(MetadataImage.EMPTY)
        delta.deleted_topics[TOPIC_ID] = TopicImage("orders", TOPIC_ID, {0: None})  # type: ignore[dict-item]
        deleted.apply(ReplicaChanges(), delta)
        await asyncio.sleep(600)
        assert (found, topic.reads) == ([], 0)
        await deleted.close()

    run(test())


class TopicOfOthers(LedTopic):
    is_led = False
    leader = (2, 20)

    def is_led_here(self, partition: int) -> bool:
        return self.is_led

    def leader_incarnation(self, partition: int) -> tuple[int, int]:
        return self.leader


def deletion(partitions: int) -> MetadataDelta:
    resource = ConfigResource(ConfigResourceType.TOPIC, "orders")
    brokers = {id: BrokerRegistration(id, epoch, b"") for id, epoch in ((1, 10), (2, 20))}
    base = MetadataImage(configs={resource: {"remote.storage.enable": "true"}}, cluster=ClusterImage(brokers))
    delta = MetadataDelta(base)
    numbers = dict.fromkeys(range(partitions))
    delta.deleted_topics[TOPIC_ID] = TopicImage("orders", TOPIC_ID, numbers)  # type: ignore[arg-type]
    return delta


def test_a_broker_that_becomes_the_leader_later_remembers_what_it_has_seen_go() -> None:
    """Both who should have announced the deletion have died before they did."""

    async def test() -> None:
        deleted, topic, found = started(TopicOfOthers(2))
        assert isinstance(topic, TopicOfOthers)
        await copied(topic, 0, 3)
        deleted.apply(ReplicaChanges(), deletion(1))
        await asyncio.sleep(600)
        assert found == []
        topic.is_led = True
        deleted.apply(elected(0, 1), None)
        await asyncio.sleep(60)
        assert found == [id_of(0)]
        # Not without end.
        await asyncio.sleep(3600)
        deleted.apply(elected(0, 1), None)
        await asyncio.sleep(60)
        assert found == [id_of(0)]
        await deleted.close()

    run(test())


def test_a_broker_that_has_seen_a_topic_go_looks_after_it_if_the_leader_has_not() -> None:
    """All others have started since, and one of them leads the events."""

    async def test() -> None:
        deleted, topic, found = started(TopicOfOthers(2))
        assert isinstance(topic, TopicOfOthers)
        topic.topic_id = b"metadata-topic"
        await copied(topic, 0, 3)
        deleted.apply(ReplicaChanges(), deletion(1))
        await asyncio.sleep(600)
        assert (found, topic.reads) == ([], 0)
        topic.leader = (2, 21)
        delta = MetadataDelta(MetadataImage.EMPTY)
        changes = dict.fromkeys(range(2))
        delta.topics[topic.topic_id] = TopicDelta(
            REMOTE_LOG_METADATA_TOPIC,
            topic.topic_id,
            None,
            changes,  # type: ignore[arg-type]
        )
        deleted.apply(ReplicaChanges(), delta)
        await asyncio.sleep(90)
        assert found == [id_of(0)]
        await deleted.close()

    run(test())


def test_a_topic_of_many_partitions_is_noted_by_a_few_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    placed: list[TopicIdPartition] = []

    def observed(partition: TopicIdPartition, count: int) -> int:
        placed.append(partition)
        return metadata_partition(partition, count)

    monkeypatch.setattr("ottla.node.remote.deleted_partitions.metadata_partition", observed)

    async def test() -> None:
        deleted, topic, found = started()
        await copied(topic, 99, 3)
        deleted.apply(ReplicaChanges(), deletion(100))
        assert len(placed) < 50
        await asyncio.sleep(90)
        assert found == [id_of(99)]
        await deleted.close()

    run(test())
