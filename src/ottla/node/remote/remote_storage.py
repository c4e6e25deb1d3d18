"""Tiered storage of a broker: its parts, made where `remote.log.storage.system.enable` is true."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from ottla.metadata.image.cache import MetadataCache
from ottla.metadata.image.delta import MetadataDelta
from ottla.metadata.image.entities import ConfigResourceType
from ottla.metadata.image.image import MetadataImage
from ottla.node.cluster.internal_topic import InternalTopic
from ottla.node.cluster.peers import PeerBrokers
from ottla.node.config.dynamic import DynamicBrokerConfig
from ottla.node.config.errors import NodeFailed
from ottla.node.remote.deleted_partitions import DeletedPartitions
from ottla.node.remote.log_reads import make_log_reader
from ottla.node.remote.remote_log_manager import RemoteLogManager
from ottla.node.remote.settings import metadata_topic_settings, remote_storage_settings
from ottla.node.remote.store_check import StoreCheck
from ottla.node.remote.topic_based_metadata_manager import TopicBasedRemoteLogMetadataManager
from ottla.protocol.names import REMOTE_LOG_METADATA_TOPIC, TopicPartition
from ottla.remote.object_storage import ObjectStorageManager
from ottla.replication.log_flush_scheduler import LogFlushScheduler
from ottla.replication.replica_manager import ReplicaManager
from ottla.runtime.object_store import ObjectStoreError, ObjectStoreKind, open_object_store
from ottla.runtime.pool import separate_pool
from ottla.runtime.runtime import Runtime
from ottla.runtime.tasks import SupervisedTask, TaskSupervisor
from ottla.runtime.work_queue import WorkQueue

_log = logging.getLogger(__name__)

_DIRECTORY_THREADS: Final = 4


class RemoteStorage:
    """`metadata` knows the remote segments, `storage` has them, `manager` copies and deletes them, `reader`
    reads them.
    """

    def __init__(
        self,
        runtime: Runtime,
        tasks: TaskSupervisor,
        config: DynamicBrokerConfig,
        metadata: MetadataCache,
        peers: PeerBrokers,
        replicas: ReplicaManager,
        log_flushes: LogFlushScheduler,
        create_topic: Callable[[str], Awaitable[object]],
        newest_image: Callable[[], Awaitable[MetadataImage]],
    ) -> None:
        """`newest_image` waits for all that was committed when it was asked. `NodeFailed` names a setting
        that cannot be used.
        """
        settings = remote_storage_settings(config.current)
        topic_settings = metadata_topic_settings(config.current)
        # A directory may be one of another machine, and hang: it has threads of its own.
        is_directory = settings.store.kind is ObjectStoreKind.DIRECTORY
        self._threads: Final = (
            separate_pool(runtime.pool, _DIRECTORY_THREADS, "ottla-remote") if is_directory else None
        )
        try:
            self._store: Final = (
                open_object_store(settings.store, runtime.disk, self._threads or runtime.pool)
                if runtime.object_store is None
                else runtime.object_store(settings.store)
            )
        except ObjectStoreError as error:
            raise NodeFailed(f"the store of tiered storage cannot be opened: {error}") from error
        self._replicas: Final = replicas
        self._tasks: Final = tasks
        # A store over the network gives a request up by itself, after its time or after repeating it.
        stall_ms = settings.store.request_timeout_ms * 5 // 2
        self.storage: Final = ObjectStorageManager(
            self._store, prefix=settings.prefix, chunk_size=settings.chunk_size, stall_ms=stall_ms
        )
        self._store_check: Final = StoreCheck(runtime.random, config, settings, self.storage)
        self._checking: SupervisedTask | None = None
        topic = InternalTopic(
            REMOTE_LOG_METADATA_TOPIC,
            runtime,
            config.current.node_id,
            metadata,
            peers,
            replicas,
            log_flushes,
            create_topic,
        )
        self.metadata: Final = TopicBasedRemoteLogMetadataManager(
            runtime, tasks, topic, consume_wait_ms=topic_settings.consume_wait_ms
        )
        self.reader: Final = make_log_reader(
            runtime,
            config,
            self.metadata,
            self.storage,
            caches_on_disk=not is_directory,
            load_timeout_ms=stall_ms,
        )
        self.manager: Final = RemoteLogManager(
            runtime, tasks, config, self.metadata, self.storage, self.reader
        )
        self.reader.is_settled = self.manager.is_settled
        self._deleted: Final = DeletedPartitions(
            runtime.clock,
            tasks,
            topic,
            image=lambda: metadata.image,
            newest_image=newest_image,
            delete=self.manager.delete_partitions,
            is_being_deleted=self.manager.is_being_deleted,
        )
        self._config_changes: Final = WorkQueue(runtime.clock, "settings of topics with remote storage")
        replicas.add_progress_listener(self.manager.on_partition_progress)
        replicas.logs.on_segment_closed = self.manager.on_segment_closed

    def start(self) -> None:
        """Try the store in the background, and warn if it cannot be used; look for deleted topics."""
        self._deleted.start()
        self._checking = self._tasks.start("check of remote storage", self._store_check.run)

    def apply(self, image: MetadataImage, delta: MetadataDelta | None) -> None:
        """Follow new metadata, after the manager has followed the changes of replicas."""
        self.metadata.on_topic_changed()
        if delta is not None and delta.changed_configs:
            changed = self._configured_partitions(image, delta)
            self._config_changes.submit(lambda: self._on_configs_changed(changed))

    async def _on_configs_changed(self, changed: list[TopicPartition]) -> None:
        """Look again at partitions whose settings have changed, in turns: that may be all."""
        for tp in changed:
            partition = self._replicas.find(tp)
            try:
                if partition is not None:
                    self.manager.on_configs_changed([partition])
            except Exception:
                _log.exception("%s: tiered storage goes on with the settings before", tp)
            if self._config_changes.turns.is_due():
                await self._config_changes.turns.pause()

    def _configured_partitions(self, image: MetadataImage, delta: MetadataDelta) -> list[TopicPartition]:
        if any(resource.type == ConfigResourceType.BROKER for resource in delta.changed_configs):
            # What turns remote storage on or off are settings of topics alone.
            return self.manager.partitions
        changed = sorted(each.name for each in delta.changed_configs if each.type == ConfigResourceType.TOPIC)
        found: list[TopicPartition] = []
        for name in changed:
            topic = image.topics.by_name.get(name)
            found += [] if topic is None else [TopicPartition(name, index) for index in topic.partitions]
        return found

    async def close(self) -> None:
        if self._checking is not None:
            await self._checking.stop()
        await self._config_changes.close()
        await self.reader.close()
        await self._deleted.close()
        await self.manager.close()
        await self.metadata.close()
        self._store.close()
        if self._threads is not None:
            self._threads.abandon()
