"""Applies new metadata to the parts of a broker: replicas, fetchers, coordinators, moves between directories.

The metadata log calls it with each step, in order, on the event loop; work that takes long for many new
partitions is done before the step is published. A failed directory and logs that could not be created change
what this broker serves in the same way, so they are here too. An error in one part is logged, and the other
parts still get the change: the metadata are committed, whatever this broker makes of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from ottla.log.directory.directory import LogDirectory
from ottla.log.log_manager import LogManager
from ottla.metadata.image.delta import MetadataDelta
from ottla.metadata.image.image import MetadataImage
from ottla.metadata.log.metadata_log import MetadataLog
from ottla.node.cluster.alter_replica_log_dirs import AlterReplicaLogDirsManager
from ottla.node.cluster.broker_lifecycle import BrokerLifecycleManager
from ottla.node.cluster.replication import BrokerReplication
from ottla.node.config.dynamic import DynamicBrokerConfig
from ottla.node.coordinators.coordinators import Coordinators
from ottla.protocol.errors import KafkaError
from ottla.protocol.names import TopicPartition
from ottla.replication.replica_manager import ReplicaChanges, ReplicaManager
from ottla.runtime import invariants
from ottla.runtime.clock import Clock

_log = logging.getLogger(__name__)


class BrokerMetadataPublisher:
    def __init__(
        self,
        clock: Clock,
        config: DynamicBrokerConfig,
        metadata: MetadataLog,
        lifecycle: BrokerLifecycleManager,
        logs: LogManager,
        replicas: ReplicaManager,
        replication: BrokerReplication,
        alter_log_dirs: AlterReplicaLogDirsManager,
        coordinators: Coordinators,
    ) -> None:
        self._clock: Final = clock
        self._config: Final = config
        self._metadata: Final = metadata
        self._lifecycle: Final = lifecycle
        self._logs: Final = logs
        self._replicas: Final = replicas
        self._replication: Final = replication
        self._alter_log_dirs: Final = alter_log_dirs
        self._coordinators: Final = coordinators
        # From the first image until the broker stops; then replicas stay as they are.
        self.is_applying = False

    def start(self) -> None:
        """Take up the replicas that the newest image assigns to this broker."""
        image = self._metadata.image
        changes = self._replicas.start(image, self._clock.wall_ms())
        self._replicas.refresh_configs()
        self.is_applying = True
        self._metadata.prepare_with(self._prepare)
        self._apply(image, changes)
        _attempt("moves between directories", self._alter_log_dirs.resume)

    async def stop(self) -> None:
        """Leave the replicas as they are from now on, whatever the metadata say."""
        self.is_applying = False
        self._metadata.publish_now()

    def _prepare(self, delta: MetadataDelta, image: MetadataImage) -> Coroutine[Any, Any, None] | None:
        if not self.is_applying or self._config.is_changed_by(delta):
            return None
        return self._replicas.prepare_logs(delta, lambda topic: self._config.topic_config(topic, image))

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        if not self.is_applying:
            return
        if any(_is_shutting_down(image, id) for id in delta.changed_brokers):
            # The controller lets it go once every broker has read as far as this.
            self._lifecycle.heartbeat_now()
        changes = self._replicas.apply_delta(delta, image, self._clock.wall_ms())
        _attempt("moves between directories", lambda: self._alter_log_dirs.cancel(changes.deleted))
        _attempt("new logs", self._logs.complete_log_creations)
        self._apply(image, changes, delta)

    def host_offline(self) -> None:
        """Create the logs that could not be created before, and take up their replicas."""
        changes = self._replicas.retry_offline(self._clock.wall_ms())
        _attempt("new logs", self._logs.complete_log_creations)
        self._apply(self._metadata.image, changes)

    def _apply(
        self, image: MetadataImage, changes: ReplicaChanges, delta: MetadataDelta | None = None
    ) -> None:
        if changes.offline:
            self._give_up(changes.offline)
        _attempt("replication", lambda: self._replication.apply(changes))
        _attempt("coordinators", lambda: self._coordinators.apply(image, changes, delta))

    def _give_up(self, partitions: list[TopicPartition]) -> None:
        _attempt("replication", lambda: self._replication.remove(partitions))
        _attempt("coordinators", lambda: self._coordinators.resign(partitions))

    def on_directory_failure(self, directory: LogDirectory) -> None:
        """Give up the replicas in a data directory that failed."""
        self._give_up(self._replicas.handle_log_dir_failure(directory))

    def on_log_damage(self, tp: TopicPartition, error: KafkaError) -> None:
        """Give up a replica whose log is damaged."""
        self._replicas.handle_log_damage(tp, error)
        self._give_up([tp])


def _attempt(part: str, work: Callable[[], None]) -> None:
    """Let one part of the broker follow the metadata; its error does not keep the others from it."""
    try:
        work()
    except Exception as error:
        if invariants.thorough and isinstance(error, AssertionError):
            raise
        _log.exception("new metadata: an error in %s", part)


def _is_shutting_down(image: MetadataImage, broker: int) -> bool:
    registration = image.cluster.brokers.get(broker)
    return registration is not None and registration.in_controlled_shutdown
