"""Tiered storage, as an extension of a broker: only `remote.log.storage.system.enable` has it imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.metadata.image.entities import ConfigResourceType
from ottla.node.api.broker_extension import BrokerExtension, creatable_topic
from ottla.node.config.errors import NodeFailed
from ottla.protocol.names import REMOTE_LOG_METADATA_TOPIC

if TYPE_CHECKING:
    from ottla.metadata.image.delta import MetadataDelta
    from ottla.metadata.image.image import MetadataImage
    from ottla.node.remote.remote_storage import RemoteStorage
    from ottla.node.server.broker_server import BrokerServer
    from ottla.protocol.messages.create_topics import CreatableTopic
    from ottla.protocol.names import TopicPartition
    from ottla.replication.replica_manager import ReplicaChanges
    from ottla.runtime.metrics import Collector


class TieredStorageExtension(BrokerExtension):
    name = "tiered storage"

    def __init__(self, broker: BrokerServer) -> None:
        """NodeFailed names a setting that cannot be used."""
        self._shared: Final = broker.shared
        is_enabled = broker.shared.config.flag("remote.log.storage.system.enable")
        self._storage: Final = _make_storage(broker) if is_enabled else None

    async def prepare(self, image: MetadataImage) -> None:
        if self._storage is None:
            _check_no_remote_topics(image)

    def apply_replicas(self, image: MetadataImage, changes: ReplicaChanges) -> None:
        if self._storage is not None:
            self._storage.manager.apply(image, changes)

    def apply_metadata(self, image: MetadataImage, delta: MetadataDelta | None) -> None:
        if self._storage is not None:
            self._storage.apply(image, delta)

    def resign(self, partitions: list[TopicPartition]) -> None:
        if self._storage is not None:
            self._storage.manager.resign(partitions)

    def internal_topic(self, name: str) -> CreatableTopic | None:
        if self._storage is None or name != REMOTE_LOG_METADATA_TOPIC:
            return None
        from ottla.node.remote.settings import metadata_topic_settings

        settings = metadata_topic_settings(self._shared.config)
        configs = {
            "cleanup.policy": "delete",
            "min.insync.replicas": str(settings.min_isr),
            "remote.storage.enable": "false",
            "retention.ms": str(settings.retention_ms),
        }
        return creatable_topic(name, settings.partitions, settings.replication_factor, configs)

    def start(self) -> None:
        if self._storage is not None:
            self._storage.start()

    async def close(self) -> None:
        if self._storage is not None:
            await self._storage.close()


def _make_storage(broker: BrokerServer) -> RemoteStorage:
    from ottla.node.cluster.metadata_barrier import MetadataBarrier
    from ottla.node.remote.remote_storage import RemoteStorage

    shared, quorum = broker.shared, broker.quorum
    barrier = MetadataBarrier(
        shared.config.node_id, lambda: broker.lifecycle.epoch, quorum.controllers, quorum.metadata
    )
    storage = RemoteStorage(
        shared.runtime,
        shared.tasks,
        shared.dynamic_config,
        quorum.metadata,
        broker.replication.peers,
        broker.replicas,
        broker.log_flushes,
        broker.create_internal_topic,
        barrier.newest_image,
    )
    broker.replication.remote_log_reader = storage.reader

    def collector() -> Collector:
        from ottla.node.remote.metrics import RemoteStorageCollector

        return RemoteStorageCollector(storage).collect

    shared.metrics.add_collector_on_demand("remote", collector)
    return storage


def _check_no_remote_topics(image: MetadataImage) -> None:
    """Raise if topics have segments in remote storage, and this broker has none."""
    remote = sorted(
        resource.name
        for resource, values in image.configs.items()
        if resource.type == ConfigResourceType.TOPIC and values.get("remote.storage.enable") == "true"
    )
    if remote:
        named = ", ".join(remote[:5]) + (", ..." if len(remote) > 5 else "")
        raise NodeFailed(
            "You have to delete all topics with the property remote.storage.enable=true before disabling "
            f"tiered storage cluster-wide: {named}. Start the node with "
            "remote.log.storage.system.enable=true"
        )
