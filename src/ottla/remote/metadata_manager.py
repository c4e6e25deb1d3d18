"""What the rest of a broker asks of the metadata of remote segments.

Lookups are answered from memory, at once; they raise `RemoteStorageNotReady` until the partition's events
have been read. A change returns once it is committed in `__remote_log_metadata` and applied here, so a lookup
that follows sees it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from ottla.protocol.names import TopicIdPartition
from ottla.records._kernel import partition_for
from ottla.remote.metadata_cache import RemoteLogMetadataCache
from ottla.remote.segment_metadata import (
    RemoteLogMetadataEvent,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    RemoteResourceNotFound,
    RemoteStorageNotReady,
)

_log = logging.getLogger(__name__)


def metadata_partition(partition: TopicIdPartition, count: int) -> int:
    """The partition of `__remote_log_metadata` that has the events of a partition, as Kafka chooses it."""
    most, least = partition.topic_id[:8], partition.topic_id[8:]
    hash = 1
    for element in (_long_hash(least), _long_hash(most), partition.partition):
        hash = (31 * hash + element) & 0xFFFF_FFFF
    return partition_for(hash.to_bytes(4, "big"), count)


def _long_hash(eight: bytes) -> int:
    """Java's hash of a long."""
    value = int.from_bytes(eight, "big")
    return (value ^ (value >> 32)) & 0xFFFF_FFFF


class RemoteLogMetadataManager(Protocol):
    """The metadata of remote segments, by partition."""

    async def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Add a segment whose copy begins."""

    async def update_remote_log_segment_metadata(self, update: RemoteLogSegmentMetadataUpdate) -> None:
        """Change the state of a segment."""

    async def put_remote_partition_delete_metadata(self, event: RemotePartitionDeleteMetadata) -> None:
        """Note how far the deletion of a partition has come."""

    def remote_log_segment_metadata(
        self, partition: TopicIdPartition, leader_epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """Return the finished segment that has this offset in this epoch."""

    def newest_epoch_of(self, partition: TopicIdPartition, offset: int) -> int | None:
        """Return the newest leader epoch in which a finished segment has this offset."""

    def segment_by_id(self, id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        """Return a segment in any state; None if there is none, or its deletion is finished."""

    def list_remote_log_segments(
        self, partition: TopicIdPartition, leader_epoch: int | None = None
    ) -> list[RemoteLogSegmentMetadata]:
        """Return the segments of an epoch, or of all, by their start offsets; in every state."""

    def first_start_offset(self, partition: TopicIdPartition, leader_epoch: int) -> int | None:
        """Return where the first segment of an epoch begins that is not being deleted; None if it has
        none.
        """

    def first_offset_from(self, partition: TopicIdPartition, offset: int) -> int | None:
        """Return the first offset from this one on that a segment of any epoch has, unless it is being
        deleted; None if there is none.
        """

    def unfinished_copies(self, partition: TopicIdPartition) -> list[RemoteLogSegmentMetadata]:
        """Return the segments whose copy was started, and neither finished nor given up."""

    def assign_partitions(self, partitions: Iterable[TopicIdPartition]) -> None:
        """Begin to read the events of these partitions, which this broker now leads or follows."""

    def stop_partitions(self, partitions: Iterable[TopicIdPartition]) -> None:
        """Forget these partitions, which this broker no longer hosts."""

    def is_ready(self, partition: TopicIdPartition) -> bool:
        """Whether the partition's events have been read, so that lookups are answered."""

    async def wait_until_ready(self, partition: TopicIdPartition) -> None:
        """Return once lookups of it are answered; `RemoteStorageNotReady` if it is not assigned."""

    def add_listener(self, listener: Callable[[TopicIdPartition], None]) -> None:
        """Call a listener after each change to the metadata of a partition, when it becomes ready, and when
        its events are lost: then it is not ready until they have been read again.
        """


def partition_of(event: RemoteLogMetadataEvent) -> TopicIdPartition:
    """The partition that an event is about."""
    if isinstance(event, RemotePartitionDeleteMetadata):
        return event.topic_id_partition
    return event.id.topic_id_partition


class RemotePartitionMetadataStore:
    """The caches of the partitions that a broker hosts. Events are applied to it, lookups read it."""

    __slots__ = ("_caches",)

    def __init__(self) -> None:
        self._caches: dict[TopicIdPartition, RemoteLogMetadataCache] = {}

    def assign(self, partition: TopicIdPartition) -> RemoteLogMetadataCache:
        """Return the cache of a partition, a new one if there is none."""
        cache = self._caches.get(partition)
        if cache is None:
            cache = self._caches[partition] = RemoteLogMetadataCache()
        return cache

    def forget(self, partition: TopicIdPartition) -> None:
        self._caches.pop(partition, None)

    def __contains__(self, partition: TopicIdPartition) -> bool:
        return partition in self._caches

    def __iter__(self) -> Iterator[TopicIdPartition]:
        return iter(tuple(self._caches))

    def is_ready(self, partition: TopicIdPartition) -> bool:
        cache = self._caches.get(partition)
        return cache is not None and cache.is_initialized

    def cache(self, partition: TopicIdPartition) -> RemoteLogMetadataCache:
        """Return the cache of a partition; `RemoteStorageNotReady` before its events have been read."""
        cache = self._caches.get(partition)
        if cache is None or not cache.is_initialized:
            raise RemoteStorageNotReady(
                f"The metadata of the remote segments of partition {partition.partition} of topic id "
                f"{partition.topic_id.hex()} is not read yet; try again later"
            )
        return cache

    def apply(self, event: RemoteLogMetadataEvent) -> None:
        """Apply an event; those of partitions that are not assigned are passed over. An update of a segment
        that is not there, as after its deletion, changes nothing.
        """
        cache = self._caches.get(partition_of(event))
        if cache is None:
            return
        match event:
            case RemoteLogSegmentMetadata():
                cache.add_copy_in_progress_segment(event)
            case RemoteLogSegmentMetadataUpdate():
                try:
                    cache.update_remote_log_segment_metadata(event)
                except RemoteResourceNotFound as error:
                    _log.info("an event is dropped: %s", error.message)
