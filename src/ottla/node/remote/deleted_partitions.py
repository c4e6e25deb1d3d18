"""Finds segments of deleted topics that are still in remote storage, and has them deleted.

The leader of a partition deletes its segments when the topic is deleted. It may be down at that time, or die
half-way, and so may all that have seen the topic go. What survives them is the topic's events in
`__remote_log_metadata` and the cluster's metadata, which do not have its id any more. So the leader of a
partition of the events reads it, once from its beginning and then as it grows, and keeps the ids of the
topics that it is about. One that the metadata do not have, and about which nothing was written for a while,
is looked after.

That an id is not in this broker's image is no reason: the image may be behind. But an event about a topic
was written after the topic's creation was committed. So this broker waits, when it has read the event, until
its image has everything that was committed by then. An id that is not there was deleted; ids are never used
again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator
from itertools import islice
from typing import Final

from ottla.metadata.image.image import MetadataImage
from ottla.node.cluster.internal_topic import InternalTopic, TopicRead
from ottla.protocol.errors import KafkaError, MalformedMessage, UnsupportedVersion
from ottla.protocol.names import TopicIdPartition
from ottla.records.batch import iter_batches, read_records
from ottla.remote.metadata_manager import partition_of
from ottla.remote.segment_metadata import (
    RemoteLogMetadataEvent,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    decode_event,
)
from ottla.runtime.clock import Clock
from ottla.runtime.tasks import SupervisedTask, TaskSupervisor
from ottla.runtime.turns import Turns

_log = logging.getLogger(__name__)

# How often is looked. The leader of a partition has that time to delete its segments by itself.
_INTERVAL_MS: Final = 60_000
# Partitions whose deletion begins in one go.
_AT_ONCE: Final = 64

Delete = Callable[[Iterable[TopicIdPartition]], None]


class _LedEvents:
    """A partition of the events that this broker leads."""

    __slots__ = ("epoch", "position", "topics")

    def __init__(self, epoch: tuple[bytes, int]) -> None:
        # The id of the topic of the events, and the leader epoch.
        self.epoch: Final = epoch
        # What is below has been read.
        self.position = 0
        # The topics that it is about, with the round in which their last event was read, but for those
        # that were deleted and have nothing left.
        self.topics: dict[bytes, int] = {}


class DeletedPartitions:
    """`image` is the newest that this broker has; `newest_image` waits for one that has all that was
    committed when it was asked. `delete` has the segments of partitions deleted, and `is_being_deleted` is
    whether that is still under way for a topic.
    """

    def __init__(
        self,
        clock: Clock,
        tasks: TaskSupervisor,
        topic: InternalTopic,
        *,
        image: Callable[[], MetadataImage],
        newest_image: Callable[[], Awaitable[MetadataImage]],
        delete: Delete,
        is_being_deleted: Callable[[bytes], bool],
    ) -> None:
        self._clock: Final = clock
        self._tasks: Final = tasks
        self._topic: Final = topic
        self._image: Final = image
        self._newest_image: Final = newest_image
        self._delete: Final = delete
        self._is_being_deleted: Final = is_being_deleted
        # By partition of the events.
        self._led: dict[int, _LedEvents] = {}
        self._round = 0
        self._task: SupervisedTask | None = None

    def start(self) -> None:
        self._task = self._tasks.every(lambda: _INTERVAL_MS, self._look_through, "segments of deleted topics")

    async def close(self) -> None:
        if self._task is not None:
            await self._task.stop()

    async def _look_through(self) -> None:
        self._round += 1
        suspects: dict[int, dict[bytes, None]] = {}
        led = self._topic.led_here()
        self._led = {
            index: known
            if (known := self._led.get(index)) is not None and known.epoch == epoch
            else _LedEvents(epoch)
            for index, epoch in led.items()
        }
        for index, events in list(self._led.items()):
            try:
                await self._read_on(index, events)
            except (KafkaError, OSError) as error:
                _log.info("partition %d of the remote log metadata could not be read: %s", index, error)
                continue
            topics = self._image().topics.by_id
            unknown = {
                id: None
                for id, last_round in events.topics.items()
                if id not in topics and last_round < self._round and not self._is_being_deleted(id)
            }
            if unknown:
                suspects[index] = unknown
        if suspects:
            await self._look_after(suspects)

    async def _look_after(self, suspects: dict[int, dict[bytes, None]]) -> None:
        """Have the segments of topics deleted that were deleted for sure."""
        try:
            topics = (await self._newest_image()).topics.by_id
        except (KafkaError, OSError) as error:
            _log.info("which topics were deleted is not known yet: %s", error)
            return
        turns = Turns(self._clock)
        for index, ids in suspects.items():
            deleted = {id: None for id in ids if id not in topics}
            try:
                found = await self._find(index, deleted)
            except (KafkaError, OSError) as error:
                _log.info("partition %d of the remote log metadata could not be read: %s", index, error)
                continue
            if found:
                _log.info("segments of %d deleted partitions are in remote storage", len(found))
            left = {each.topic_id: None for each in found}
            for id in deleted:
                if id not in left:
                    self._led[index].topics.pop(id, None)
            waiting = iter(found)
            while some := list(islice(waiting, _AT_ONCE)):
                self._delete(some)
                await turns.pause_if_due()

    async def _read_on(self, index: int, events: _LedEvents) -> None:
        """Note the topics of the events that were written since the last time."""
        turns = Turns(self._clock)
        while (found := await self._read(index, events.position)) is not None:
            read, end = found
            for event in _events(read, events.position):
                events.topics[partition_of(event).topic_id] = self._round
                if turns.is_due():
                    await turns.pause()
            events.position = end

    async def _find(self, index: int, topics: Container[bytes]) -> list[TopicIdPartition]:
        """Return the partitions of these topics in this partition of the events that have segments."""
        turns = Turns(self._clock)
        segments: dict[TopicIdPartition, dict[RemoteLogSegmentId, None]] = {}
        position = 0
        while (found := await self._read(index, position)) is not None:
            read, end = found
            for event in _events(read, position):
                if partition_of(event).topic_id in topics:
                    _note(event, segments)
                if turns.is_due():
                    await turns.pause()
            position = end
        return [partition for partition, left in segments.items() if left]

    async def _read(self, index: int, position: int) -> tuple[TopicRead, int] | None:
        """Read committed events, and where they end; None where there are no more."""
        found = await self._topic.read(index, position, waits=False)
        end = max(position, found.log_start_offset)
        for _, header in iter_batches(found.records):
            end = max(end, header.next_offset)
        return None if end == position else (found, end)


def _events(read: TopicRead, position: int) -> Iterator[RemoteLogMetadataEvent]:
    for at, header in iter_batches(read.records):
        if header.next_offset > position and not header.is_control:
            for record in read_records(read.records, at):
                try:
                    event = None if record.value is None else decode_event(record.value)
                except (MalformedMessage, UnsupportedVersion):
                    continue
                if event is not None:
                    yield event


def _note(
    event: RemoteLogMetadataEvent, segments: dict[TopicIdPartition, dict[RemoteLogSegmentId, None]]
) -> None:
    match event:
        case RemoteLogSegmentMetadata():
            segments.setdefault(partition_of(event), {})[event.id] = None
        case RemoteLogSegmentMetadataUpdate(state=RemoteLogSegmentState.DELETE_SEGMENT_FINISHED):
            segments.get(partition_of(event), {}).pop(event.id, None)
