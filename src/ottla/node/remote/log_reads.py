"""Make the reader of remote storage as the settings of the broker say, with the quota of what it reads."""

from __future__ import annotations

import posixpath
from typing import Final

from ottla.log.directory.dir_names import REMOTE_LOG_INDEX_CACHE
from ottla.node.config.dynamic import DynamicBrokerConfig
from ottla.node.config.node_config import NodeConfig
from ottla.remote.log_reader import RemoteLogReader
from ottla.remote.metadata_manager import RemoteLogMetadataManager
from ottla.remote.segment_cache import (
    DiskPartCache,
    RemoteSegmentCache,
    SegmentCacheLimits,
)
from ottla.remote.storage_manager import RemoteStorageManager
from ottla.runtime.clock import Clock
from ottla.runtime.runtime import Runtime
from ottla.security.quota.rate import QuotaWindows, Rate


class RemoteFetchQuota:
    """`remote.log.manager.fetch.max.bytes.per.second`, as it is now."""

    __slots__ = ("_clock", "_config", "_rate")

    def __init__(self, clock: Clock, config: DynamicBrokerConfig) -> None:
        self._clock: Final = clock
        self._config: Final = config
        windows = QuotaWindows(
            config.current.number("remote.log.manager.fetch.quota.window.num"),
            config.current.number("remote.log.manager.fetch.quota.window.size.seconds"),
        )
        self._rate: Final = Rate(windows, self._now_ms())

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000

    def throttle_ms(self) -> int:
        limit = self._config.current.number("remote.log.manager.fetch.max.bytes.per.second")
        return self._rate.throttle_ms(limit, self._now_ms())

    def record(self, size: int) -> None:
        self._rate.record(size, self._now_ms())


def make_log_reader(
    runtime: Runtime,
    config: DynamicBrokerConfig,
    metadata: RemoteLogMetadataManager,
    storage: RemoteStorageManager,
    *,
    caches_on_disk: bool,
    load_timeout_ms: int,
) -> RemoteLogReader:
    """With `caches_on_disk`, what was read is kept in the first log directory too."""
    current = config.current
    limits = SegmentCacheLimits(
        loads_at_once=current.number("remote.log.reader.threads"),
        max_pending_loads=current.number("remote.log.reader.max.pending.tasks"),
        load_timeout_s=load_timeout_ms / 1000,
    )
    disk_cache = None
    if caches_on_disk:
        disk_cache = DiskPartCache(
            runtime.disk,
            runtime.pool,
            posixpath.join(current.log_dirs[0], REMOTE_LOG_INDEX_CACHE),
            current.number("remote.log.index.file.cache.total.size.bytes"),
        )
    quota = RemoteFetchQuota(runtime.clock, config)
    cache = RemoteSegmentCache(storage, limits, disk_cache, quota)

    def configure(current: NodeConfig) -> None:
        cache.resize(current.number("remote.log.reader.threads"))
        if disk_cache is not None:
            disk_cache.max_bytes = current.number("remote.log.index.file.cache.total.size.bytes")

    config.add_reconfigurable(configure)
    return RemoteLogReader(metadata, cache, runtime.pool)
