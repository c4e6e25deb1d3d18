"""Applies new metadata to the parts of a broker: replicas, fetchers, coordinators, moves between directories.

The metadata log calls it with each delta, one after the other; the image is visible before. A delta may
concern ten thousand partitions, so it is applied in turns, and requests are served in between: each partition
is in the old state or in the new one. The broker's heartbeats say that it has the delta once all parts have.
A failed directory and logs that could not be created change what this broker serves in the same way, so they
are here too. An error in one part, or of one partition, is logged, and the others still get the change: the
metadata are committed, whatever this broker makes of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Final

from ottla.log.directory.directory import LogDirectory
from ottla.log.log_manager import LogManager
from ottla.metadata.image.delta import MetadataDelta
from ottla.metadata.image.image import MetadataImage
from ottla.metadata.log.metadata_log import MetadataLog
from ottla.node.api.broker_extension import BrokerExtension
from ottla.node.cluster.alter_replica_log_dirs import AlterReplicaLogDirsManager
from ottla.node.cluster.broker_lifecycle import BrokerLifecycleManager
from ottla.node.cluster.replication import BrokerReplication
from ottla.node.coordinators.coordinators import Coordinators
from ottla.protocol.errors import KafkaError
from ottla.protocol.names import INTERNAL_TOPICS, TopicPartition
from ottla.replication.replica_manager import ReplicaChanges, ReplicaManager
from ottla.runtime import invariants
from ottla.runtime.clock import Clock
from ottla.runtime.turns import Turns
from ottla.runtime.work_queue import WorkQueue

_log = logging.getLogger(__name__)

# Partitions that get their fetchers in one go.
_PARTITIONS_AT_ONCE: Final = 64


class BrokerMetadataPublisher:
    def __init__(
        self,
        clock: Clock,
        metadata: MetadataLog,
        lifecycle: BrokerLifecycleManager,
        logs: LogManager,
        replicas: ReplicaManager,
        replication: BrokerReplication,
        alter_log_dirs: AlterReplicaLogDirsManager,
        coordinators: Coordinators,
        apply_to_share_partitions: Callable[[ReplicaChanges], None],
        extensions: Sequence[BrokerExtension],
    ) -> None:
        self._clock: Final = clock
        self._metadata: Final = metadata
        self._lifecycle: Final = lifecycle
        self._logs: Final = logs
        self._replicas: Final = replicas
        self._replication: Final = replication
        self._alter_log_dirs: Final = alter_log_dirs
        self._coordinators: Final = coordinators
        self._apply_to_share_partitions: Final = apply_to_share_partitions
        self._extensions: Final = extensions
        self._failures: Final = WorkQueue(clock, "replicas of failed directories")
        # From the first image until the broker stops; then replicas stay as they are.
        self.is_applying = False

    async def start(self) -> None:
        """Take up the replicas that the newest image assigns to this broker, and follow the metadata."""
        await self._metadata.publish_to(self._start, self._apply_delta)

    async def stop(self) -> None:
        """Leave the replicas as they are from now on, whatever the metadata say."""
        self.is_applying = False
        await self._failures.close()
        await self._metadata.stop_publishing()

    async def _start(self, image: MetadataImage, turns: Turns) -> None:
        changes = await self._replicas.start(image, self._clock.wall_ms, turns)
        await self._replicas.refresh_configs(turns)
        self.is_applying = True
        await self._apply(image, changes, turns)
        _attempt("moves between directories", self._alter_log_dirs.resume)

    async def _apply_delta(self, delta: MetadataDelta, image: MetadataImage, turns: Turns) -> None:
        changes = await self._replicas.apply_delta(delta, image, self._clock.wall_ms, turns)
        _attempt("moves between directories", lambda: self._alter_log_dirs.cancel(changes.deleted))
        _attempt("new logs", self._logs.complete_log_creations)
        await self._apply(image, changes, turns, delta)
        if any(_is_shutting_down(image, id) for id in delta.changed_brokers):
            # The controller lets it go once every broker has applied this.
            self._lifecycle.heartbeat_now()

    async def host_offline(self) -> None:
        """Create the logs that could not be created before, and take up their replicas."""
        await self._metadata.between_publications(self._retry_offline)

    async def _retry_offline(self, turns: Turns) -> None:
        changes = await self._replicas.retry_offline(self._clock.wall_ms, turns)
        _attempt("new logs", self._logs.complete_log_creations)
        await self._apply(self._metadata.image, changes, turns)

    async def _apply(
        self, image: MetadataImage, changes: ReplicaChanges, turns: Turns, delta: MetadataDelta | None = None
    ) -> None:
        if changes.offline:
            self._give_up(changes.offline)
        for part in changes.parts(_PARTITIONS_AT_ONCE):
            if not _attempt("replication", partial(self._replication.apply, part)):
                # One of them raised: the others are replicated nevertheless. It does no harm to apply a
                # change twice.
                for alone in part.parts(1):
                    _attempt("replication", partial(self._replication.apply, alone))
            await turns.pause_if_due()
        _attempt("share partitions", lambda: self._apply_to_share_partitions(changes))
        for extension in self._extensions:
            for part in changes.parts(_PARTITIONS_AT_ONCE):
                _attempt(extension.name, partial(extension.apply_replicas, image, part))
                await turns.pause_if_due()
            _attempt(extension.name, partial(extension.apply_metadata, image, delta))
        internal = changes.of_topics(INTERNAL_TOPICS)
        await self._coordinators.prepare(internal)
        _attempt("coordinators", lambda: self._coordinators.apply(image, internal, delta))

    def _give_up(self, partitions: list[TopicPartition]) -> None:
        _attempt("replication", lambda: self._replication.remove(partitions))
        _attempt("coordinators", lambda: self._coordinators.resign(partitions))
        for extension in self._extensions:
            _attempt(extension.name, partial(extension.resign, partitions))

    def on_directory_failure(self, directory: LogDirectory) -> asyncio.Future[None]:
        """Give up the replicas in a data directory that failed, in turns."""
        return self._failures.submit(lambda: self._give_up_directory(directory))

    async def _give_up_directory(self, directory: LogDirectory) -> None:
        gone = self._replicas.handle_log_dir_failure(directory)
        while part := list(islice(gone, _PARTITIONS_AT_ONCE)):
            self._give_up(part)
            await self._failures.turns.pause_if_due()

    def on_log_damage(self, tp: TopicPartition, error: KafkaError) -> None:
        """Give up a replica whose log is damaged."""
        self._replicas.handle_log_damage(tp, error)
        self._give_up([tp])


def _attempt(part: str, work: Callable[[], None]) -> bool:
    """Let one part of the broker follow the metadata; its error does not keep the others from it. Return
    whether there was none.
    """
    try:
        work()
    except Exception as error:
        if invariants.thorough and isinstance(error, AssertionError):
            raise
        _log.exception("new metadata: an error in %s", part)
        return False
    return True


def _is_shutting_down(image: MetadataImage, broker: int) -> bool:
    registration = image.cluster.brokers.get(broker)
    return registration is not None and registration.in_controlled_shutdown
