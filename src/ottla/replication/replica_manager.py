"""All partitions of this broker, as the metadata image assigns them.

The replica manager applies the image delta by delta: it creates and deletes logs, makes partitions leaders or
followers, and passes configs on to their logs. Handlers get a partition here, or the error why this broker
does not serve it. An error of one partition, whatever it is, takes that partition offline and no other; an
I/O error takes its directory offline too. Invariant: a partition is hosted exactly if the image has this
broker among its replicas, and it is online exactly if its log can be used.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from ottla.log.config.log_config import LogConfig
from ottla.log.directory.directory import LogDirectory
from ottla.log.directory.meta_properties import is_reserved_directory
from ottla.log.log_manager import LogManager
from ottla.log.segment.walk import CorruptBatch, CorruptLog
from ottla.log.unified_log import UnifiedLog
from ottla.metadata.image.delta import LocalReplica, MetadataDelta
from ottla.metadata.image.entities import (
    DIRECTORY_DAMAGED,
    NO_LEADER,
    ConfigResourceType,
    PartitionRegistration,
)
from ottla.metadata.image.image import MetadataImage
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition
from ottla.replication.partition import DEFAULT_REPLICA_LAG_MS, Partition, PendingPartitionChange
from ottla.replication.purgatory import DelayedOperationPurgatory
from ottla.runtime import invariants
from ottla.runtime.turns import Turns

_log = logging.getLogger(__name__)

_AT_ONCE: Final = 16
"""New logs that are created in one turn of the event loop."""


@dataclass(slots=True)
class ReplicaChanges:
    """The replicas that applying a delta has changed, for coordinators, fetchers and sessions."""

    leaders: list[Partition] = field(default_factory=list)  # leader in a new epoch
    followers: list[Partition] = field(default_factory=list)  # follower in a new epoch
    deleted: list[TopicPartition] = field(default_factory=list)
    offline: list[TopicPartition] = field(default_factory=list)  # served before, and cannot be any more


class ReplicaManager:
    """Also the listener of its partitions: it completes delayed requests and passes changes of ISRs on."""

    def __init__(
        self,
        broker_id: int,
        logs: LogManager,
        config_of: Callable[[str], LogConfig],
        *,
        replica_lag_max_ms: int = DEFAULT_REPLICA_LAG_MS,
        submit_change: Callable[[Partition, PendingPartitionChange], None] | None = None,
    ) -> None:
        """`config_of` gives the current settings of a topic; `submit_change` sends a change of an ISR to the
        controller.
        """
        self.broker_id: Final = broker_id
        self.logs: Final = logs
        self.purgatory: Final = DelayedOperationPurgatory()
        self._config_of: Final = config_of
        self._replica_lag_max_ms = replica_lag_max_ms
        self._submit_change = submit_change
        self._progress_listeners: list[Callable[[Partition], None]] = []
        self._image = MetadataImage.EMPTY
        self._partitions: dict[TopicPartition, Partition] = {}
        self._offline: dict[TopicPartition, KafkaError] = {}  # hosted, but the log cannot be used: why
        # Has every partition with `has_lagging_follower`, and those that made progress lately.
        self._maybe_lagging: dict[Partition, None] = {}

    # Partitions

    def partition(self, tp: TopicPartition) -> Partition:
        """The partition; KafkaError if this broker does not host it, or its log is offline."""
        found = self._partitions.get(tp)
        if found is not None:
            return found
        offline = self._offline.get(tp)
        if offline is not None:
            raise offline
        topic = self._image.topics.by_name.get(tp.topic)
        if topic is not None and tp.partition in topic.partitions:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {self.broker_id} has no replica of {tp}"
            )
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {tp}")

    def partition_by_id(self, topic_id: bytes, index: int) -> Partition:
        """The same by topic id; UNKNOWN_TOPIC_ID if the image has no such topic."""
        topic = self._image.topics.by_id.get(topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with id {topic_id.hex()}")
        found = self.partition(TopicPartition(topic.name, index))
        if found.topic_id != topic_id:
            raise KafkaError(
                ErrorCode.INCONSISTENT_TOPIC_ID, f"{found.topic_partition} belongs to another topic id by now"
            )
        return found

    def __iter__(self) -> Iterator[Partition]:
        return iter(list(self._partitions.values()))

    def __len__(self) -> int:
        return len(self._partitions)

    @property
    def image(self) -> MetadataImage:
        return self._image

    @property
    def offline(self) -> dict[TopicPartition, KafkaError]:
        return dict(self._offline)

    # The metadata image

    def start(self, image: MetadataImage, now_ms: int) -> ReplicaChanges:
        """Host the partitions of an image after the logs were loaded; a log that the image does not assign to
        this broker is kept as a stray.
        """
        changes = ReplicaChanges()
        self._image = image
        self.logs.recover_abandoned_future_logs(self._is_counted_on)
        for log in self.logs.logs():
            self._set_aside_if_stray(log)
        for tp in self.logs.failed:
            self._set_damaged_aside_if_stray(tp)
        for topic, index, registration in image.topics.partitions():
            if self.broker_id in registration.replicas:
                tp = TopicPartition(topic.name, index)
                self._apply_registration(
                    tp, LocalReplica(topic.id, registration), now_ms, changes, is_new=False
                )
        return changes

    def _set_aside_if_stray(self, log: UnifiedLog) -> None:
        """Keep a log that the image does not assign to this broker as a stray. A log whose topic cannot be
        read is left where it is: hosting its partition meets the error again.
        """
        tp = log.topic_partition
        try:
            if registration_of(log, self._image, self.broker_id) is None:
                _log.warning(
                    "the metadata image does not assign %s to this broker; its directory is kept as a stray",
                    tp,
                )
                self.logs.mark_stray(tp)
        except Exception as error:
            _log.error("%s could not be set aside: %s", tp, _storage_error(tp, log, error).message)

    def _set_damaged_aside_if_stray(self, tp: TopicPartition) -> None:
        topic_id = self.logs.topic_id_of_damaged(tp)
        if _registration(self._image, tp, topic_id, self.broker_id) is None:
            try:
                self.logs.mark_stray(tp)
            except KafkaError as error:
                _log.error("the damaged log of %s could not be kept as a stray: %s", tp, error.message)

    def _is_counted_on(self, copy: UnifiedLog) -> bool:
        try:
            registration = registration_of(copy, self._image, self.broker_id)
        except Exception as error:
            tp = copy.topic_partition
            _log.error("the copy of %s cannot be used: %s", tp, _storage_error(tp, copy, error).message)
            return False
        return registration is not None and (
            registration.directory(self.broker_id) == copy.directory.directory_id
        )

    def prepare_logs(
        self, delta: MetadataDelta, config_of: Callable[[str], LogConfig]
    ) -> Coroutine[Any, Any, None] | None:
        """The work of creating the new logs of a delta, before it is applied; None if they are few.
        `config_of` gives the settings of a topic in the delta's image.
        """
        local = delta.local_changes(self.broker_id)
        new = {
            tp: replica
            for tp, replica in {**local.leaders, **local.followers}.items()
            if self._is_new(delta, tp, replica)
            and not (tp in self._partitions or tp in self._offline or tp in local.deletes)
        }
        return self._create_logs(new, config_of) if len(new) > _AT_ONCE else None

    async def _create_logs(
        self, replicas: dict[TopicPartition, LocalReplica], config_of: Callable[[str], LogConfig]
    ) -> None:
        for number, (tp, replica) in enumerate(replicas.items()):
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
            try:
                self._get_or_create_log(tp, replica, config_of(tp.topic), is_new=True)
            except Exception as error:
                _log.debug("applying the delta meets it again: %s", _checked(error))
                return

    def apply_delta(self, delta: MetadataDelta, image: MetadataImage, now_ms: int) -> ReplicaChanges:
        """Apply a delta and its image."""
        changes = ReplicaChanges()
        self._image = image
        local = delta.local_changes(self.broker_id)
        self._stop_partitions(local.deletes, changes)
        for tp, replica in {**local.leaders, **local.followers}.items():
            is_new = self._is_new(delta, tp, replica)
            self._apply_registration(tp, replica, now_ms, changes, is_new=is_new)
        self._apply_configs(delta)
        return changes

    def _is_new(self, delta: MetadataDelta, tp: TopicPartition, replica: LocalReplica) -> bool:
        before = delta.topics[replica.topic_id].before
        registration = None if before is None else before.partitions.get(tp.partition)
        return registration is None or self.broker_id not in registration.replicas

    def retry_offline(self, now_ms: int) -> ReplicaChanges:
        """Try again to host partitions whose log could not be used, as for lack of disk space. Called from
        time to time.
        """
        changes = ReplicaChanges()
        for tp in list(self._offline):
            topic = self._image.topics.by_name.get(tp.topic)
            registration = None if topic is None else topic.partitions.get(tp.partition)
            if topic is not None and registration is not None:
                replica = LocalReplica(topic.id, registration)
                self._apply_registration(tp, replica, now_ms, changes, is_new=False)
        return changes

    def _apply_registration(
        self, tp: TopicPartition, replica: LocalReplica, now_ms: int, changes: ReplicaChanges, *, is_new: bool
    ) -> None:
        registration = replica.partition
        try:
            partition = self._get_or_create_partition(tp, replica, is_new=is_new)
            epoch = partition.leader_epoch
            if registration.leader == self.broker_id:
                partition.make_leader(registration, now_ms)
                if partition.leader_epoch > epoch:
                    changes.leaders.append(partition)
            elif partition.make_follower(registration):
                changes.followers.append(partition)
        except Exception as error:
            self._take_offline(tp, error, changes)
        else:
            self._offline.pop(tp, None)

    def _take_offline(self, tp: TopicPartition, error: Exception, changes: ReplicaChanges) -> None:
        """Stop serving a partition whose log cannot be used, and remember why."""
        partition = self._partitions.pop(tp, None)
        reason = _storage_error(tp, None if partition is None else partition.log, error)
        known = self._offline.get(tp)
        if known is None or known.message != reason.message:
            _log.error("%s is offline: %s", tp, reason.message)
        self._offline[tp] = reason
        if isinstance(error, CorruptBatch | CorruptLog):
            self.logs.fail_log(tp, reason)
        if partition is not None:
            changes.offline.append(tp)
            _resign(partition)

    def _get_or_create_partition(
        self, tp: TopicPartition, replica: LocalReplica, *, is_new: bool
    ) -> Partition:
        partition = self._partitions.get(tp)
        if partition is not None:
            return partition
        log = self._get_or_create_log(tp, replica, self._config_of(tp.topic), is_new=is_new)
        partition = Partition(
            tp, replica.topic_id, log, self.broker_id, self, replica_lag_max_ms=self._replica_lag_max_ms
        )
        self._partitions[tp] = partition
        return partition

    def _get_or_create_log(
        self, tp: TopicPartition, replica: LocalReplica, config: LogConfig, *, is_new: bool
    ) -> UnifiedLog:
        registration = replica.partition
        if (
            registration.directory(self.broker_id) == DIRECTORY_DAMAGED
            and len(registration.replicas) > 1
            and not is_led_without(registration, self.broker_id)
            and self.logs.get_log(tp) is None
        ):
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"the log of {tp} was damaged and is not here any more, and no other broker leads the "
                "partition. It is not created again, as it might lead without the records that others have. "
                "Restore its directory, or elect another leader, which may lack records as well",
            )
        return self.logs.get_or_create_log(
            tp,
            config,
            topic_id=replica.topic_id,
            is_new=is_new,
            directory_id=self._directory(replica.partition),
        )

    def _directory(self, registration: PartitionRegistration) -> bytes | None:
        directory = registration.directory(self.broker_id)
        return None if is_reserved_directory(directory) else directory

    def _stop_partitions(self, partitions: Collection[TopicPartition], changes: ReplicaChanges) -> None:
        for tp in partitions:
            partition = self._partitions.pop(tp, None)
            self._offline.pop(tp, None)
            if partition is not None:
                _resign(partition)
        try:
            errors = self.logs.delete_logs(partitions)
        except Exception as error:
            _log.error("logs could not be deleted", exc_info=_checked(error))
        else:
            for tp, refused in errors.items():
                _log.error("%s could not be deleted: %s", tp, refused.message)
        changes.deleted.extend(partitions)

    def _apply_configs(self, delta: MetadataDelta) -> None:
        if not delta.changed_configs:
            return
        if any(resource.type == ConfigResourceType.BROKER for resource in delta.changed_configs):
            self.refresh_configs()
            return
        for resource in sorted(delta.changed_configs):
            if resource.type == ConfigResourceType.TOPIC:
                self._refresh_topic(resource.name)

    def _refresh_topic(self, name: str) -> None:
        topic = self._image.topics.by_name.get(name)
        if topic is None:
            return
        try:
            config = self._config_of(name)
            for index in topic.partitions:
                partition = self._partitions.get(TopicPartition(name, index))
                if partition is not None and partition.log.config != config:
                    partition.log.update_config(config)
        except Exception as error:
            _log.error("the settings of topic %s stay as they were", name, exc_info=_checked(error))

    def refresh_configs(self) -> None:
        """Look up the settings of every topic again after those of the broker have changed."""
        for name in dict.fromkeys(tp.topic for tp in self._partitions):
            self._refresh_topic(name)

    def handle_log_dir_failure(self, directory: LogDirectory) -> list[TopicPartition]:
        """Take the partitions of a directory that failed offline; returns them."""
        gone = [tp for tp, partition in self._partitions.items() if partition.log.directory is directory]
        for tp in gone:
            partition = self._partitions.pop(tp)
            self._offline[tp] = KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{tp} is in the log directory {directory.path}, which is offline: {directory.failure}",
            )
            _resign(partition)
        return gone

    def handle_log_damage(self, tp: TopicPartition, error: KafkaError) -> None:
        """Take a partition offline whose log is damaged; the log manager keeps its files."""
        partition = self._partitions.pop(tp, None)
        if partition is not None:
            self._offline[tp] = error
            _resign(partition)
            self.logs.fail_log(tp, error)

    async def maybe_shrink_isrs(self, turns: Turns, now_ms: int) -> None:
        """Have followers that lag behind removed from ISRs; called every half of `replica.lag.time.max.ms`.
        Partitions without progress since the last time, and without a lagging follower then, cost nothing.
        """
        for partition in list(self._maybe_lagging):
            partition.maybe_shrink_isr(now_ms)
            if not partition.has_lagging_follower:
                self._maybe_lagging.pop(partition, None)
            if turns.is_due():
                await turns.pause()

    def has_partition_that_rejects_appends(self, since_ms: int) -> bool:
        """Whether a log has rejected appends since then, though other replicas are in sync: followers that
        could lead in its place, or a leader that waits for it.
        """
        return any(
            partition.rejects_appends_since_ms is not None
            and partition.rejects_appends_since_ms <= since_ms
            and (len(partition.isr) > 1 if partition.is_leader else partition.is_in_sync_follower)
            for partition in self._partitions.values()
        )

    # As the listener of partitions

    def add_progress_listener(self, listener: Callable[[Partition], None]) -> None:
        """Call a listener after every progress of a partition."""
        self._progress_listeners.append(listener)

    def on_partition_progress(self, partition: Partition) -> None:
        self._maybe_lagging[partition] = None
        if partition.topic_partition in self.purgatory.watchers:
            self.purgatory.check_and_complete(partition.topic_partition)
        for listener in self._progress_listeners:
            listener(partition)

    def submit_alter_partition(self, partition: Partition, change: PendingPartitionChange) -> None:
        if self._submit_change is not None:
            self._submit_change(partition, change)

    # Eligibility of followers

    def is_stale(self, broker: int, broker_epoch: int) -> bool:
        """Whether the broker has registered again since it got this epoch; -1 is not checked."""
        registration = self._image.cluster.brokers.get(broker)
        return broker_epoch != -1 and registration is not None and registration.epoch > broker_epoch

    def is_replica_isr_eligible(self, broker: int, broker_epoch: int | None) -> bool:
        registration = self._image.cluster.brokers.get(broker)
        if registration is None or not registration.is_active or broker_epoch is None:
            return False
        return broker_epoch in (-1, registration.epoch)


def is_led_without(registration: PartitionRegistration, broker_id: int) -> bool:
    """Whether another broker leads the partition, and this one is neither in sync nor eligible to lead: then
    it may lose its copy, as it is in sync again only when it has fetched everything.
    """
    return (
        registration.leader not in (NO_LEADER, broker_id)
        and broker_id not in registration.isr
        and broker_id not in registration.elr
    )


def registration_of(log: UnifiedLog, image: MetadataImage, broker_id: int) -> PartitionRegistration | None:
    """The registration of a log's partition in the image, if it assigns the partition to this broker."""
    return _registration(image, log.topic_partition, log.topic_id, broker_id)


def _registration(
    image: MetadataImage, tp: TopicPartition, topic_id: bytes | None, broker_id: int
) -> PartitionRegistration | None:
    topic = image.topics.by_name.get(tp.topic)
    if topic is None or topic_id not in (None, topic.id):
        return None
    registration = topic.partitions.get(tp.partition)
    return registration if registration is not None and broker_id in registration.replicas else None


def _resign(partition: Partition) -> None:
    try:
        partition.resign()
    except Exception as error:
        _log.error("%s: a request that waited was not woken", partition, exc_info=_checked(error))


def _storage_error(tp: TopicPartition, log: UnifiedLog | None, error: Exception) -> KafkaError:
    """The reason why a partition cannot be served. An I/O error that was not reported to the directory of its
    log yet is reported here; what no check expected is logged with its origin.
    """
    if isinstance(error, KafkaError):
        return error
    if isinstance(error, OSError) and log is not None:
        return log.directory.io_error(f"hosting {tp}", error)
    if not isinstance(error, OSError):
        _log.error("%s cannot be hosted", tp, exc_info=_checked(error))
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{tp} cannot be hosted: {error!r}")


def _checked(error: Exception) -> Exception:
    """The error to log. In tests and in the simulator a broken invariant ends the run instead."""
    if invariants.thorough and isinstance(error, AssertionError):
        raise error
    return error
