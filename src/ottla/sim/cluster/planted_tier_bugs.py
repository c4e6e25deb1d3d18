"""Deliberate bugs of tiered storage, as those of `ottla.sim.cluster.planted_bugs`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from ottla.log.unified_log import UnifiedLog
from ottla.node.remote import segment_data
from ottla.node.remote.remote_log_manager import RemoteLogManager
from ottla.remote.object_storage import ObjectStorageManager
from ottla.remote.segment_metadata import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)

__all__ = ["TIER_BUGS"]

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

    names = ("deletable_segments", "remove_copied_segment")
    return [(UnifiedLog, name, patched(getattr(UnifiedLog, name))) for name in names]


def _copy_finished_before_the_upload() -> list[Patch]:
    original = ObjectStorageManager.copy_log_segment_data

    async def copy(self: ObjectStorageManager, metadata: RemoteLogSegmentMetadata, data: Any) -> None:
        upload = asyncio.ensure_future(original(self, metadata, data))
        upload.add_done_callback(lambda done: done.cancelled() or done.exception())

    return [(ObjectStorageManager, "copy_log_segment_data", copy)]


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


TIER_BUGS: Mapping[str, Callable[[], list[Patch]]] = {
    "local-retention-before-the-copy": _local_retention_before_the_copy,
    "copy-finished-before-the-upload": _copy_finished_before_the_upload,
    "aborted-transactions-not-copied": _aborted_transactions_not_copied,
    "deleted-before-it-is-announced": _deleted_before_it_is_announced,
}
