"""Make the reader of remote storage as the settings of the broker say."""

from __future__ import annotations

import posixpath

from ottla.node.config.node_config import NodeConfig
from ottla.remote.log_reader import RemoteLogReader
from ottla.remote.metadata_manager import RemoteLogMetadataManager
from ottla.remote.segment_cache import (
    CACHE_DIRECTORY,
    DiskPartCache,
    RemoteSegmentCache,
    SegmentCacheLimits,
)
from ottla.remote.storage_manager import RemoteStorageManager
from ottla.runtime.runtime import Runtime


def make_log_reader(
    runtime: Runtime,
    config: NodeConfig,
    metadata: RemoteLogMetadataManager,
    storage: RemoteStorageManager,
    *,
    caches_on_disk: bool,
) -> RemoteLogReader:
    """With `caches_on_disk`, what was read is kept in the first log directory too."""
    limits = SegmentCacheLimits(
        loads_at_once=config.number("remote.log.reader.threads"),
        max_pending_loads=config.number("remote.log.reader.max.pending.tasks"),
    )
    disk_cache = None
    if caches_on_disk:
        disk_cache = DiskPartCache(
            runtime.disk,
            runtime.pool,
            posixpath.join(config.log_dirs[0], CACHE_DIRECTORY),
            config.number("remote.log.index.file.cache.total.size.bytes"),
        )
    return RemoteLogReader(metadata, RemoteSegmentCache(storage, limits, disk_cache), runtime.pool)
