"""Segments of deleted topics are found by what outlives all that has seen the topics go, and no others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace

import pytest

from ottla.metadata.image.entities import TopicImage
from ottla.metadata.image.image import MetadataImage, TopicsImage
from ottla.node.remote.deleted_partitions import DeletedPartitions
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicIdPartition, TopicPartition
from ottla.remote.metadata_manager import metadata_partition
from ottla.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    encode_event,
)
from ottla.runtime.tasks import TaskSupervisor
from ottla.sim.clock import LoopClock
from ottla.sim.loop import SimLoop
from tests.remote.test_topic_metadata_manager import TOPIC_ID, FakeTopic, id_of, segment
from tests.support.loops import in_virtual_time

COUNT = 2
MARKED = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
DELETED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
ROUND_S = 60
EMPTY = MetadataImage.EMPTY
ORDERS = TopicImage("orders", TOPIC_ID, {})
WITH_TOPIC = MetadataImage(topics=TopicsImage({TOPIC_ID: ORDERS}, {"orders": ORDERS}))
# Another one of that name.
CREATED_AGAIN = MetadataImage(topics=TopicsImage({bytes(16): ORDERS}, {"orders": ORDERS}))


class LedTopic(FakeTopic):
    leader_epoch_of = 5
    is_led = True

    def led_here(self) -> dict[int, tuple[bytes, int]]:
        return dict.fromkeys(range(COUNT), (b"events", self.leader_epoch_of)) if self.is_led else {}


class Broker:
    """What finds segments of deleted topics, and the rest of the cluster as far as it asks for it."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        self.topic = LedTopic(COUNT)
        self.topic.partition_count = COUNT
        # What this broker has applied, and what is committed; None where no controller confirms anything.
        self.image = EMPTY
        self.committed: MetadataImage | None = EMPTY
        self.confirmations = 0
        self.found: list[TopicIdPartition] = []
        self.most_at_once = 0
        self.at_work: dict[bytes, None] = {}
        clock = LoopClock(lambda: loop.now_ns)
        self.deleted = DeletedPartitions(
            clock,
            TaskSupervisor(clock, lambda reason: None),
            self.topic,  # type: ignore[arg-type]
            image=lambda: self.image,
            newest_image=self._newest_image,
            delete=self._delete,
            is_being_deleted=lambda id: id in self.at_work,
        )

    def start(self) -> Broker:
        self.deleted.start()
        return self

    async def _newest_image(self) -> MetadataImage:
        self.confirmations += 1
        await asyncio.sleep(1)
        if self.committed is None:
            raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, "not now")
        self.image = self.committed
        return self.committed

    def _delete(self, partitions: Iterable[TopicIdPartition]) -> None:
        some = list(partitions)
        self.most_at_once = max(self.most_at_once, len(some))
        self.found += some

    async def copied(self, partition: int, segments: int) -> list[RemoteLogSegmentMetadata]:
        wanted = [segment(partition, number) for number in range(segments)]
        for each in wanted:
            await self.topic.append(metadata_partition(id_of(partition), COUNT), encode_event(each))
        return wanted

    async def gone(self, segments: Iterable[RemoteLogSegmentMetadata]) -> None:
        for each in segments:
            event = RemoteLogSegmentMetadataUpdate(each.id, 0, DELETED, 1)
            index = metadata_partition(each.id.topic_id_partition, COUNT)
            await self.topic.append(index, encode_event(event))


@in_virtual_time()
async def test_what_a_topic_that_is_gone_has_left_is_found() -> None:
    broker = Broker().start()
    broker.image = broker.committed = CREATED_AGAIN
    await broker.copied(0, 7)
    await broker.copied(1, 1)
    await broker.gone(await broker.copied(5, 2))
    await asyncio.sleep(ROUND_S * 1.5)
    assert broker.found == [], "its leader may be at work"
    await asyncio.sleep(ROUND_S)
    assert sorted(broker.found) == [id_of(0), id_of(1)]
    await broker.deleted.close()


@in_virtual_time()
async def test_a_topic_that_an_image_behind_does_not_have_keeps_its_segments() -> None:
    broker = Broker().start()
    broker.image, broker.committed = EMPTY, WITH_TOPIC
    await broker.copied(0, 3)
    await asyncio.sleep(10 * ROUND_S)
    assert broker.found == []
    assert broker.confirmations == 1
    # Deleted, but no controller can say so.
    broker.image, broker.committed = EMPTY, None
    await asyncio.sleep(10 * ROUND_S)
    assert broker.found == []
    assert broker.confirmations == 11
    broker.committed = EMPTY
    await asyncio.sleep(ROUND_S)
    assert broker.found == [id_of(0)]
    await broker.deleted.close()


@in_virtual_time()
async def test_a_topic_that_exists_asks_nothing_of_the_controller() -> None:
    broker = Broker().start()
    broker.image = broker.committed = WITH_TOPIC
    await broker.copied(0, 3)
    await asyncio.sleep(20 * ROUND_S)
    assert (broker.found, broker.confirmations) == ([], 0)
    await broker.deleted.close()


@in_virtual_time()
async def test_a_deletion_that_is_at_work_is_left_alone() -> None:
    broker = Broker().start()
    segments = await broker.copied(0, 20)
    for number in range(10):  # on another broker, which writes about it
        await asyncio.sleep(ROUND_S - 1)
        await broker.gone([segments[number]])
    assert (broker.found, broker.confirmations) == ([], 0)
    broker.at_work[TOPIC_ID] = None  # here, where the store is away
    await asyncio.sleep(20 * ROUND_S)
    assert (broker.found, broker.confirmations) == ([], 0)
    broker.at_work.clear()  # it was given up
    await asyncio.sleep(2 * ROUND_S)
    assert broker.found[0] == id_of(0)
    await broker.deleted.close()


@in_virtual_time()
async def test_a_topic_without_segments_is_not_looked_for_again_until_there_is_an_event() -> None:
    broker = Broker().start()
    await broker.gone(await broker.copied(0, 2))
    await asyncio.sleep(3 * ROUND_S)
    assert (broker.found, broker.confirmations) == ([], 1)
    reads = broker.topic.reads
    await asyncio.sleep(10 * ROUND_S)
    assert broker.confirmations == 1
    assert broker.topic.reads - reads <= 10 * COUNT, "only what is new is read"
    # A leader that was paused wakes up, announces a copy and dies.
    await broker.copied(0, 1)
    await asyncio.sleep(3 * ROUND_S)
    assert broker.found[0] == id_of(0)
    await broker.deleted.close()


@in_virtual_time()
async def test_the_next_leader_of_the_events_goes_on() -> None:
    broker = Broker().start()
    broker.topic.is_led = False
    await broker.copied(0, 3)
    index = metadata_partition(id_of(0), COUNT)
    event = RemotePartitionDeleteMetadata(TOPIC_ID, TopicPartition("orders", 0), MARKED, 0, 1)
    await broker.topic.append(index, encode_event(event))
    await asyncio.sleep(5 * ROUND_S)
    assert (broker.found, broker.topic.reads) == ([], 0)
    broker.topic.is_led = True
    await asyncio.sleep(2.5 * ROUND_S)
    assert broker.found == [id_of(0)]
    # Another one has led meanwhile, and its events replaced some that were read here.
    broker.found.clear()
    broker.topic.values[index].clear()
    broker.topic.epochs[index].clear()
    broker.topic.leader_epoch_of += 2
    await broker.copied(2, 1)
    await broker.copied(0, 1)
    await asyncio.sleep(3 * ROUND_S)
    assert id_of(2) in broker.found
    await broker.deleted.close()


@in_virtual_time()
async def test_a_read_that_fails_is_tried_again() -> None:
    broker = Broker().start()
    await broker.copied(0, 3)
    broker.topic.failures = COUNT
    await asyncio.sleep(3.5 * ROUND_S)
    assert broker.found == [id_of(0)]
    await broker.deleted.close()


@pytest.mark.exhaustive
@in_virtual_time()
async def test_ten_thousand_partitions_are_found_and_given_on_in_parts() -> None:
    broker = Broker().start()
    for number in range(10_000):
        id = RemoteLogSegmentId(TOPIC_ID, TopicPartition("orders", number), number.to_bytes(16, "big"))
        index = metadata_partition(id_of(number), COUNT)
        broker.topic.values.setdefault(index, []).append(encode_event(replace(segment(0, 0), id=id)))
        broker.topic.epochs.setdefault(index, []).append(0)
    await asyncio.sleep(2.9 * ROUND_S)
    assert sorted(broker.found) == [id_of(number) for number in range(10_000)]
    assert broker.most_at_once <= 64
    await broker.deleted.close()
