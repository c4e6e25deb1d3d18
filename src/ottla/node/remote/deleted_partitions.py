"""Finds segments of deleted topics that are still in remote storage, and has them deleted.

The leader of a partition deletes its segments when the topic is deleted. It may be down at that time, or die
half-way. So the leader of the metadata's partition looks after it: some time after it has seen a topic with
remote storage go, and after it has become the leader, for deletions that were announced and not finished.
That a topic is not in the image is no reason: an image may be behind. Every broker remembers for a while
which topics it has seen go: those that should have announced a deletion may be dead. It looks after these
topics when it becomes the leader, and also when a broker leads that has started since, and so cannot know.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Final, NamedTuple

from ottla.metadata.image.delta import MetadataDelta
from ottla.metadata.image.entities import ConfigResource, ConfigResourceType
from ottla.node.remote.metadata_topic import RemoteLogMetadataTopic
from ottla.protocol.errors import KafkaError, MalformedMessage, UnsupportedVersion
from ottla.protocol.names import REMOTE_LOG_METADATA_TOPIC, TopicIdPartition
from ottla.records.batch import iter_batches, read_records
from ottla.remote.metadata_manager import metadata_partition, partition_of
from ottla.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    decode_event,
)
from ottla.replication.replica_manager import ReplicaChanges
from ottla.runtime.runtime import Runtime
from ottla.runtime.tasks import SupervisedTask, TaskSupervisor
from ottla.runtime.turns import Turns

_log = logging.getLogger(__name__)

# The leader of the partition has this time to delete its segments by itself.
_AFTER_DELETION_MS: Final = 60_000
_AFTER_ELECTION_MS: Final = 10_000
_RETRY_MS: Final = 30_000
# So long, and so many, topics are remembered that were seen to go.
_REMEMBERED_S: Final = 60 * 60
_MAX_REMEMBERED: Final = 10_000

Deletions = Callable[[Iterable[TopicIdPartition]], None]


class _DeletedTopic(NamedTuple):
    forgotten_s: float
    """When it is forgotten."""
    witnesses: Mapping[int, int]
    """The brokers that see it go too, with their epochs."""


class DeletedPartitions:
    """`delete` has the segments of partitions deleted."""

    def __init__(
        self, runtime: Runtime, tasks: TaskSupervisor, topic: RemoteLogMetadataTopic, delete: Deletions
    ) -> None:
        self._clock: Final = runtime.clock
        self._tasks: Final = tasks
        self._topic: Final = topic
        self._delete: Final = delete
        # Partitions of the metadata to look through.
        self._due: dict[int, None] = {}
        # Those that were seen to go, by id, the oldest first.
        self._deleted: dict[bytes, _DeletedTopic] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._task: SupervisedTask | None = None
        self._closed = False

    def apply(self, changes: ReplicaChanges, delta: MetadataDelta | None) -> None:
        """Note what is to be looked through by new metadata."""
        elected = [
            each.topic_partition.partition
            for each in changes.leaders
            if each.topic_partition.topic == REMOTE_LOG_METADATA_TOPIC
        ]
        self._due.update(dict.fromkeys(elected))
        if elected:
            self._run_later(_AFTER_ELECTION_MS)
        if delta is None:
            return
        events = delta.topics.get(self._topic.topic_id or b"")
        if events is not None and self._deleted:
            # They may have another leader, which has seen less.
            self._due.update(dict.fromkeys(events.changes))
            self._run_later(_AFTER_DELETION_MS)
        count = self._topic.partition_count
        if not delta.deleted_topics or not count:
            return
        witnesses = {id: broker.epoch for id, broker in delta.base.cluster.brokers.items()}
        for topic in delta.deleted_topics.values():
            config = delta.base.config(ConfigResource(ConfigResourceType.TOPIC, topic.name))
            if {"remote.storage.enable", "remote.log.delete.on.disable"} & config.keys():
                self._remember(topic.id, witnesses)
                found: dict[int, None] = {}
                for number in topic.partitions:
                    found[metadata_partition(TopicIdPartition(topic.id, number), count)] = None
                    if len(found) == count:
                        break  # most topics of many partitions have some in each
                self._due.update(found)
                self._run_later(_AFTER_DELETION_MS)

    def _remember(self, topic_id: bytes, witnesses: Mapping[int, int]) -> None:
        now = asyncio.get_running_loop().time()
        self._deleted[topic_id] = _DeletedTopic(now + _REMEMBERED_S, witnesses)
        while (first := next(iter(self._deleted))) != topic_id and (
            self._deleted[first].forgotten_s <= now or len(self._deleted) > _MAX_REMEMBERED
        ):
            del self._deleted[first]

    def _run_later(self, pause_ms: int) -> None:
        if self._timer is None and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(pause_ms / 1000, self._start)

    def _start(self) -> None:
        self._timer = None
        if self._task is None or self._task.is_done:
            self._task = self._tasks.start("segments of deleted topics", self._look_through)
        else:
            self._run_later(_RETRY_MS)

    async def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            await self._task.stop()

    async def _look_through(self) -> None:
        for index in sorted(self._due):
            try:
                is_led_here = self._topic.is_led_here(index)
                topics = self._topics_to_find(None if is_led_here else index)
                if is_led_here or topics:
                    found = await self._find(index, topics, announced=is_led_here)
                    if found:
                        _log.info("segments of %d deleted partitions are in remote storage", len(found))
                        self._delete(found)
                del self._due[index]
            except (KafkaError, OSError) as error:
                _log.info("partition %d of the remote log metadata could not be read: %s", index, error)
                self._run_later(_RETRY_MS)

    def _topics_to_find(self, index: int | None) -> dict[bytes, None]:
        """The ids of topics that this broker has seen go; with the index of a partition of the metadata, of
        those alone that its leader has not seen go.
        """
        now = asyncio.get_running_loop().time()
        found = {id: each.witnesses for id, each in self._deleted.items() if each.forgotten_s > now}
        if index is not None:
            leader, epoch = self._topic.leader_incarnation(index)
            found = {id: witnesses for id, witnesses in found.items() if witnesses.get(leader) != epoch}
        return dict.fromkeys(found)

    async def _find(self, index: int, topics: Container[bytes], *, announced: bool) -> list[TopicIdPartition]:
        """Return the partitions in this partition of the metadata that have segments and are of one of these
        topics or, with `announced`, of one whose deletion was announced.
        """
        turns = Turns(self._clock)
        segments: dict[TopicIdPartition, dict[RemoteLogSegmentId, None]] = {}
        marked: dict[TopicIdPartition, None] = {}
        position = 0
        while True:
            found = await self._topic.read(index, position, waits=False)
            position = max(position, found.log_start_offset)
            if position >= found.high_watermark:
                break
            begin = position
            for at, header in iter_batches(found.records):
                if header.next_offset <= position or header.is_control:
                    continue
                for record in read_records(found.records, at):
                    _note(record.value, segments, marked)
                    if turns.is_due():
                        await turns.pause()
                position = header.next_offset
            if position == begin:
                break
        return [
            each
            for each, left in segments.items()
            if left and (each.topic_id in topics or (announced and each in marked))
        ]


def _note(
    value: bytes | None,
    segments: dict[TopicIdPartition, dict[RemoteLogSegmentId, None]],
    marked: dict[TopicIdPartition, None],
) -> None:
    try:
        event = None if value is None else decode_event(value)
    except (MalformedMessage, UnsupportedVersion):
        return
    match event:
        case RemoteLogSegmentMetadata():
            segments.setdefault(partition_of(event), {})[event.id] = None
        case RemoteLogSegmentMetadataUpdate(state=RemoteLogSegmentState.DELETE_SEGMENT_FINISHED):
            segments.get(partition_of(event), {}).pop(event.id, None)
        case RemotePartitionDeleteMetadata(state=RemotePartitionDeleteState.DELETE_PARTITION_FINISHED):
            marked.pop(partition_of(event), None)
        case RemotePartitionDeleteMetadata():
            marked[partition_of(event)] = None
