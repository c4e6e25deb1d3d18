"""Deliberate bugs of tiered storage, as those of `ottla.sim.cluster.planted_bugs`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from ottla.log.log_loader import LogLoader
from ottla.log.segment.segment import LogSegment
from ottla.log.unified_log import RemoteLogAuxState, UnifiedLog
from ottla.node.cluster.replication import BrokerReplication
from ottla.node.remote import segment_data
from ottla.node.remote.deleted_partitions import DeletedPartitions
from ottla.node.remote.remote_log_manager import RemoteLogManager
from ottla.node.remote.topic_based_metadata_manager import TopicBasedRemoteLogMetadataManager
from ottla.remote import object_storage
from ottla.remote.object_layout import MANIFEST_SUFFIX
from ottla.remote.object_storage import ObjectStorageManager
from ottla.remote.segment_metadata import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from ottla.replication import tier_state_machine
from ottla.replication.replica_fetcher import TierLookups
from ottla.replication.tier_state_machine import TieredStart

Patch = tuple[Any, str, Any]


def _local_retention_before_the_copy() -> list[Patch]:
    """Everything committed passes for copied when segments are deleted from the disk."""

    def patched(original: Callable[..., Any]) -> Callable[..., Any]:
        def run(self: UnifiedLog, *args: Any) -> Any:
            known = self.highest_offset_in_remote_storage
            if self.config.copies_to_remote:
                self.highest_offset_in_remote_storage = self.high_watermark - 1
            try:
                return original(self, *args)
            finally:
                self.highest_offset_in_remote_storage = known

        return run

    names = ("deletable_segments", "begin_removal")
    return [(UnifiedLog, name, patched(getattr(UnifiedLog, name))) for name in names]


def _copy_finished_before_the_upload() -> list[Patch]:
    original = ObjectStorageManager.copy_log_segment_data

    async def copy(self: ObjectStorageManager, metadata: RemoteLogSegmentMetadata, data: Any) -> None:
        upload = asyncio.ensure_future(original(self, metadata, data))
        upload.add_done_callback(lambda done: done.cancelled() or done.exception())

    return [(ObjectStorageManager, "copy_log_segment_data", copy)]


def _followers_without_auxiliary_state() -> list[Patch]:
    """A replica that begins behind the store neither knows the leader epochs there, nor that it does not."""
    original = tier_state_machine.fetch_tiered_start

    async def fetch(*args: Any) -> TieredStart:
        start = await original(*args)
        return start._replace(auxiliary_state=RemoteLogAuxState((), None))

    return [
        (tier_state_machine, "fetch_tiered_start", fetch),
        (UnifiedLog, "lacks_auxiliary_state", property(lambda _: False)),
        (UnifiedLog, "lacks_producers", property(lambda _: False)),
    ]


def _aborted_transactions_not_copied() -> list[Patch]:
    original = segment_data._read_indexes

    def read(*args: Any) -> tuple[bytes, bytes, bytes]:
        offsets, times, _ = original(*args)
        return offsets, times, b""

    return [(segment_data, "_read_indexes", read)]


def _deleted_before_it_is_announced() -> list[Patch]:
    original = RemoteLogManager._announce_deletion

    async def announce(
        self: RemoteLogManager, metadata: RemoteLogSegmentMetadata, state: RemoteLogSegmentState
    ) -> None:
        if state is not RemoteLogSegmentState.DELETE_SEGMENT_STARTED:
            await original(self, metadata, RemoteLogSegmentState.DELETE_SEGMENT_STARTED)
            await original(self, metadata, state)

    return [(RemoteLogManager, "_announce_deletion", announce)]


def _only_manifests_deleted() -> list[Patch]:
    return [(object_storage, "SUFFIXES", (MANIFEST_SUFFIX,))]


def _waiters_left_at_a_close() -> list[Patch]:
    """Fetchers are closed after the metadata of remote storage, and wait for it."""
    close_metadata, close_replication = TopicBasedRemoteLogMetadataManager.close, BrokerReplication.close
    stop_fetchers = BrokerReplication.stop_fetchers

    async def leave_waiters(self: TopicBasedRemoteLogMetadataManager) -> None:
        self._ready = {}
        await close_metadata(self)

    async def wait(self: TierLookups) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def not_yet(_: BrokerReplication) -> None:
        return

    async def close(self: BrokerReplication) -> None:
        await stop_fetchers(self)
        await close_replication(self)

    return [
        (TopicBasedRemoteLogMetadataManager, "close", leave_waiters),
        (TierLookups, "close", wait),
        (BrokerReplication, "stop_fetchers", not_yet),
        (BrokerReplication, "close", close),
    ]


def _deleted_topics_forgotten() -> list[Patch]:
    """Only the leader of a partition deletes its segments, if it lives."""
    return [(DeletedPartitions, "start", lambda _: None)]


def _snapshots_of_recovery_not_synced() -> list[Patch]:
    """Recovery takes what it has written for durable."""

    original = LogLoader._recover_log

    def recover(self: LogLoader, segments: list[LogSegment]) -> UnifiedLog:
        log = original(self, segments)
        log.producer_snapshots.on_synced(log.producer_snapshots.unsynced)
        return log

    return [(LogLoader, "_recover_log", recover)]


def _local_start_without_a_snapshot() -> list[Patch]:
    """A segment leaves the disk whether or not the producers behind it are known by a file."""
    return [
        (UnifiedLog, "_has_durable_snapshot", lambda *_: True),
        (UnifiedLog, "_check_producers_are_durable", lambda *_: None),
    ]


TIER_BUGS: Mapping[str, Callable[[], list[Patch]]] = {
    "local-retention-before-the-copy": _local_retention_before_the_copy,
    "copy-finished-before-the-upload": _copy_finished_before_the_upload,
    "followers-without-auxiliary-state": _followers_without_auxiliary_state,
    "aborted-transactions-not-copied": _aborted_transactions_not_copied,
    "deleted-before-it-is-announced": _deleted_before_it_is_announced,
    "only-manifests-deleted": _only_manifests_deleted,
    "deleted-topics-forgotten": _deleted_topics_forgotten,
    "waiters-left-at-a-close": _waiters_left_at_a_close,
    "snapshots-of-recovery-not-synced": _snapshots_of_recovery_not_synced,
    "local-start-without-a-snapshot": _local_start_without_a_snapshot,
}
