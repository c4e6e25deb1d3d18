"""The metadata of remote segments in the memory of one process, without a topic below it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ottla.protocol.names import TopicIdPartition
from ottla.remote.metadata_manager import RemotePartitionMetadataStore, partition_of
from ottla.remote.segment_metadata import (
    RemoteLogMetadataEvent,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
)


class InMemoryRemoteLogMetadataManager:
    """Keeps every event, and applies it at once."""

    __slots__ = ("_listeners", "events", "store")

    def __init__(self) -> None:
        self.store = RemotePartitionMetadataStore()
        self.events: list[RemoteLogMetadataEvent] = []
        self._listeners: list[Callable[[TopicIdPartition], None]] = []

    async def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata) -> None:
        self._put(metadata)

    async def update_remote_log_segment_metadata(self, update: RemoteLogSegmentMetadataUpdate) -> None:
        self._put(update)

    async def put_remote_partition_delete_metadata(self, event: RemotePartitionDeleteMetadata) -> None:
        self._put(event)

    def _put(self, event: RemoteLogMetadataEvent) -> None:
        self.events.append(event)
        self.store.apply(event)
        for listener in self._listeners:
            listener(partition_of(event))

    def remote_log_segment_metadata(
        self, partition: TopicIdPartition, leader_epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        return self.store.cache(partition).remote_log_segment_metadata(leader_epoch, offset)

    def newest_epoch_of(self, partition: TopicIdPartition, offset: int) -> int | None:
        return self.store.cache(partition).newest_epoch_of(offset)

    def segment_by_id(self, id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        return self.store.cache(id.topic_id_partition).get(id)

    def list_remote_log_segments(
        self, partition: TopicIdPartition, leader_epoch: int | None = None
    ) -> list[RemoteLogSegmentMetadata]:
        return self.store.cache(partition).list_remote_log_segments(leader_epoch)

    def first_start_offset(self, partition: TopicIdPartition, leader_epoch: int) -> int | None:
        return self.store.cache(partition).first_start_offset(leader_epoch)

    def first_offset_from(self, partition: TopicIdPartition, offset: int) -> int | None:
        return self.store.cache(partition).first_offset_from(offset)

    def unfinished_copies(self, partition: TopicIdPartition) -> list[RemoteLogSegmentMetadata]:
        return self.store.cache(partition).unfinished_copies()

    def assign_partitions(self, partitions: Iterable[TopicIdPartition]) -> None:
        for partition in partitions:
            self.store.assign(partition).is_initialized = True

    def stop_partitions(self, partitions: Iterable[TopicIdPartition]) -> None:
        for partition in partitions:
            self.store.forget(partition)

    def is_ready(self, partition: TopicIdPartition) -> bool:
        return self.store.is_ready(partition)

    async def wait_until_ready(self, partition: TopicIdPartition) -> None:
        self.store.cache(partition)

    def add_listener(self, listener: Callable[[TopicIdPartition], None]) -> None:
        self._listeners.append(listener)
