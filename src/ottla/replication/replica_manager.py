"""All partitions of this broker, as the metadata image assigns them.

The replica manager applies the image delta by delta, in turns: it creates and deletes logs, makes partitions
leaders or followers, and passes configs on to their logs. Handlers get a partition here, or the error why
this broker does not serve it. An error of one partition, whatever it is, takes that partition offline and no
other; an I/O error takes its directory offline too. Invariant: between deltas, a partition is hosted exactly
if the image has this broker among its replicas, and it is online exactly if its log can be used.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from ottla.log.config.log_config import LogConfig
from ottla.log.directory.directory import LogDirectory
from ottla.log.directory.meta_properties import is_reserved_directory
from ottla.log.log_manager import CREATIONS_AT_ONCE, LogManager, NewLog
from ottla.log.segment.walk import CorruptBatch, CorruptLog
from ottla.log.truncation import LogTruncation
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
from ottla.replication.topic_statistics import BrokerTopicStatistics
from ottla.runtime import invariants
from ottla.runtime.turns import Turns
from ottla.runtime.work_queue import in_turns

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class ReplicaChanges:
    """The replicas that applying a delta has changed, for coordinators, fetchers and sessions."""

    leaders: list[Partition] = field(default_factory=list)  # leader in a new epoch
    followers: list[Partition] = field(default_factory=list)  # follower in a new epoch
    deleted: list[TopicPartition] = field(default_factory=list)
    offline: list[TopicPartition] = field(default_factory=list)  # served before, and cannot be any more

    def parts(self, size: int) -> Iterator[ReplicaChanges]:
        """The changes in parts of at most `size` partitions, those that are gone first; without `offline`."""
        for start in range(0, len(self.deleted), size):
            yield ReplicaChanges(deleted=self.deleted[start : start + size])
        for start in range(0, len(self.leaders), size):
            yield ReplicaChanges(leaders=self.leaders[start : start + size])
        for start in range(0, len(self.followers), size):
            yield ReplicaChanges(followers=self.followers[start : start + size])

    def of_topics(self, topics: Collection[str]) -> ReplicaChanges:
        """The changes of some topics only."""
        return ReplicaChanges(
            [each for each in self.leaders if each.topic_partition.topic in topics],
            [each for each in self.followers if each.topic_partition.topic in topics],
            [tp for tp in self.deleted if tp.topic in topics],
            [tp for tp in self.offline if tp.topic in topics],
        )


class _Assignment(NamedTuple):
    """A replica of this broker, as the image has it."""

    tp: TopicPartition
    replica: LocalReplica
    is_new: bool
    """Whether the broker had no replica of the partition before."""


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
        begin_flush: Callable[[Partition], object] | None = None,
    ) -> None:
        """`config_of` gives the current settings of a topic; `submit_change` sends a change of an ISR to the
        controller; `begin_flush` flushes a partition's log as soon as that is possible.
        """
        self.broker_id: Final = broker_id
        self.logs: Final = logs
        self.purgatory: Final = DelayedOperationPurgatory()
        self.topic_statistics: Final = BrokerTopicStatistics()
        self._config_of: Final = config_of
        self._replica_lag_max_ms = replica_lag_max_ms
        self._submit_change = submit_change
        self._progress_listeners: list[Callable[[Partition], None]] = []
        self._image = MetadataImage.EMPTY
        self._partitions: dict[TopicPartition, Partition] = {}
        # Rises with each change of `_partitions`, so that what was found by a walk over them can be kept.
        self.partitions_version = 0
        self.begin_flush: Final = begin_flush
        self._offline: dict[TopicPartition, KafkaError] = {}  # hosted, but the log cannot be used: why
        # Has every partition with `has_lagging_follower`, and those that made progress lately.
        self._maybe_lagging: dict[Partition, None] = {}
        self._lost: dict[TopicPartition, None] = {}  # those of them that are in a directory that failed

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

    def find(self, tp: TopicPartition) -> Partition | None:
        """The partition, if this broker hosts it and can serve it."""
        return self._partitions.get(tp)

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

    async def start(self, image: MetadataImage, now_ms: Callable[[], int], turns: Turns) -> ReplicaChanges:
        """Host the partitions of an image after the logs were loaded; a log that the image does not assign to
        this broker is kept as a stray.
        """
        changes = ReplicaChanges()
        self._image = image
        self.logs.recover_abandoned_future_logs(self._is_counted_on)
        for log in self.logs.logs():
            self._set_aside_if_stray(log)
            await turns.pause_if_due()
        for tp in self.logs.failed:
            self._set_damaged_aside_if_stray(tp)
        assigned: list[_Assignment] = []
        for topic, index, registration in image.topics.partitions():
            if self.broker_id in registration.replicas:
                replica = LocalReplica(topic.id, registration)
                assigned.append(_Assignment(TopicPartition(topic.name, index), replica, False))
            if turns.is_due():
                await turns.pause()
        await self._apply_registrations(assigned, now_ms, changes, turns)
        return self._still_hosted(changes)

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

    async def apply_delta(
        self, delta: MetadataDelta, image: MetadataImage, now_ms: Callable[[], int], turns: Turns
    ) -> ReplicaChanges:
        """Apply a delta and its image, partition by partition: each of them is as before or as the image has
        it. Two calls must not overlap.
        """
        changes = ReplicaChanges()
        self._image = image
        local = await in_turns(delta.local_changes(self.broker_id), turns)
        await self._stop_partitions(local.deletes, changes, turns)
        for replicas in (local.leaders, local.followers):
            changed = (
                _Assignment(tp, replica, self._is_new(delta, tp, replica)) for tp, replica in replicas.items()
            )
            await self._apply_registrations(changed, now_ms, changes, turns)
        await self._apply_configs(delta, turns)
        return self._still_hosted(changes)

    def _still_hosted(self, changes: ReplicaChanges) -> ReplicaChanges:
        """Leave partitions out whose directory failed since they were changed."""
        hosted = self._partitions
        changes.leaders = [each for each in changes.leaders if hosted.get(each.topic_partition) is each]
        changes.followers = [each for each in changes.followers if hosted.get(each.topic_partition) is each]
        return changes

    def _is_new(self, delta: MetadataDelta, tp: TopicPartition, replica: LocalReplica) -> bool:
        before = delta.topics[replica.topic_id].before
        registration = None if before is None else before.partitions.get(tp.partition)
        return registration is None or self.broker_id not in registration.replicas

    @property
    def has_offline_to_retry(self) -> bool:
        """Whether a partition is offline that may come back, as for lack of disk space; one in a directory
        that failed may not.
        """
        return len(self._offline) > len(self._lost)

    async def retry_offline(self, now_ms: Callable[[], int], turns: Turns) -> ReplicaChanges:
        """Try again to host partitions whose log could not be used. Called from time to time, not while a
        delta is being applied.
        """
        changes = ReplicaChanges()
        assigned: list[_Assignment] = []
        for tp in [tp for tp in self._offline if tp not in self._lost]:
            topic = self._image.topics.by_name.get(tp.topic)
            registration = None if topic is None else topic.partitions.get(tp.partition)
            if topic is not None and registration is not None:
                assigned.append(_Assignment(tp, LocalReplica(topic.id, registration), False))
            await turns.pause_if_due()
        await self._apply_registrations(assigned, now_ms, changes, turns)
        return self._still_hosted(changes)

    async def _apply_registrations(
        self,
        assigned: Iterable[_Assignment],
        now_ms: Callable[[], int],
        changes: ReplicaChanges,
        turns: Turns,
    ) -> None:
        """Host partitions in the roles that the image gives them, some at a time: their new logs are created
        in the pool first. Those that are to lead while their log is being truncated come last.
        """
        remaining, truncating = iter(assigned), list[_Assignment]()
        while part := list(islice(remaining, CREATIONS_AT_ONCE)):
            new = [log for each in part if (log := self._new_log(each)) is not None]
            if new:
                await self.logs.create_logs(new)
                turns.begin()
            for each in part:
                if self._truncation_before_leading(each) is not None:
                    truncating.append(each)
                    continue
                self._apply_registration(each.tp, each.replica, now_ms(), changes, is_new=each.is_new)
                if turns.is_due():
                    # Those that were created so far become durable meanwhile.
                    self.logs.complete_log_creations()
                    await turns.pause()
        for each in truncating:
            truncation = self._truncation_before_leading(each)
            if truncation is not None:
                await truncation.wait()
                turns.begin()
            self._apply_registration(each.tp, each.replica, now_ms(), changes, is_new=each.is_new)
            await turns.pause_if_due()

    def _truncation_before_leading(self, assigned: _Assignment) -> LogTruncation | None:
        """The truncation that runs in the pool and has to end before the partition can lead."""
        partition = self._partitions.get(assigned.tp)
        leads = assigned.replica.partition.leader == self.broker_id
        return partition.log.truncation if leads and partition is not None else None

    def _new_log(self, assigned: _Assignment) -> NewLog | None:
        """The log that is to be created for a partition; None if there is none, or an error, which hosting
        the partition meets again.
        """
        tp, replica, is_new = assigned
        if tp in self._partitions:
            return None
        try:
            if self.logs.get_log(tp) is not None:
                return None
            self._check_creation(tp, replica.partition)
            directory_id = self._directory(replica.partition)
            return NewLog(tp, self._config_of(tp.topic), replica.topic_id, is_new, directory_id)
        except Exception as error:
            _log.debug("%s: %r", tp, _checked(error))
            return None

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
            self._lost.pop(tp, None)

    def _take_offline(self, tp: TopicPartition, error: Exception, changes: ReplicaChanges) -> None:
        """Stop serving a partition whose log cannot be used, and remember why."""
        partition = self._remove(tp)
        reason = _storage_error(tp, None if partition is None else partition.log, error)
        known = self._offline.get(tp)
        if known is None or known.message != reason.message:
            _log.error("%s is offline: %s", tp, reason.message)
        self._offline[tp] = reason
        if isinstance(error, CorruptBatch | CorruptLog):
            self.logs.fail_log(tp, reason)
        if self._is_lost(tp, partition):
            self._lost[tp] = None
        if partition is not None:
            changes.offline.append(tp)
            _resign(partition)

    def _is_lost(self, tp: TopicPartition, partition: Partition | None) -> bool:
        """Whether the log is in a directory that failed, or may be."""
        if partition is not None:
            return not partition.log.directory.is_online
        if all(directory.is_online for directory in self.logs.directories):
            return False
        try:
            return self.logs.get_log(tp) is None
        except KafkaError:
            return tp not in self.logs.failed  # what is damaged may be fetched again

    def _get_or_create_partition(
        self, tp: TopicPartition, replica: LocalReplica, *, is_new: bool
    ) -> Partition:
        partition = self._partitions.get(tp)
        if partition is not None:
            return partition
        log = self._get_or_create_log(tp, replica, self._config_of(tp.topic), is_new=is_new)
        partition = Partition(
            tp,
            replica.topic_id,
            log,
            self.broker_id,
            self,
            replica_lag_max_ms=self._replica_lag_max_ms,
            statistics=self.topic_statistics.of(tp.topic),
        )
        self._partitions[tp] = partition
        self.partitions_version += 1
        return partition

    def _remove(self, tp: TopicPartition) -> Partition | None:
        self.partitions_version += 1
        return self._partitions.pop(tp, None)

    def _get_or_create_log(
        self, tp: TopicPartition, replica: LocalReplica, config: LogConfig, *, is_new: bool
    ) -> UnifiedLog:
        if self.logs.get_log(tp) is None:
            self._check_creation(tp, replica.partition)
        return self.logs.get_or_create_log(
            tp,
            config,
            topic_id=replica.topic_id,
            is_new=is_new,
            directory_id=self._directory(replica.partition),
        )

    def _check_creation(self, tp: TopicPartition, registration: PartitionRegistration) -> None:
        """Raise if a new, empty log must not take the place of one that was damaged."""
        if (
            registration.directory(self.broker_id) == DIRECTORY_DAMAGED
            and len(registration.replicas) > 1
            and not is_led_without(registration, self.broker_id)
        ):
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"the log of {tp} was damaged and is not here any more, and no other broker leads the "
                "partition. It is not created again, as it might lead without the records that others have. "
                "Restore its directory, or elect another leader, which may lack records as well",
            )

    def _directory(self, registration: PartitionRegistration) -> bytes | None:
        directory = registration.directory(self.broker_id)
        return None if is_reserved_directory(directory) else directory

    async def _stop_partitions(
        self, partitions: Collection[TopicPartition], changes: ReplicaChanges, turns: Turns
    ) -> None:
        for tp in partitions:
            partition = self._remove(tp)
            self._offline.pop(tp, None)
            self._lost.pop(tp, None)
            if partition is not None:
                _resign(partition)
            if tp.topic not in self._image.topics.by_name:
                self.topic_statistics.retire(tp.topic)
            await turns.pause_if_due()
        try:
            errors = await self.logs.delete_logs_in_turns(partitions, turns)
        except Exception as error:
            _log.error("logs could not be deleted", exc_info=_checked(error))
        else:
            for tp, refused in errors.items():
                _log.error("%s could not be deleted: %s", tp, refused.message)
        changes.deleted.extend(partitions)

    async def _apply_configs(self, delta: MetadataDelta, turns: Turns) -> None:
        if not delta.changed_configs:
            return
        if any(resource.type == ConfigResourceType.BROKER for resource in delta.changed_configs):
            await self.refresh_configs(turns)
            return
        changed = sorted(each.name for each in delta.changed_configs if each.type == ConfigResourceType.TOPIC)
        for name in changed:
            await self._refresh_topic(name, turns)

    async def _refresh_topic(self, name: str, turns: Turns) -> None:
        topic = self._image.topics.by_name.get(name)
        if topic is None:
            return
        try:
            config = self._config_of(name)
            for index in topic.partitions:
                partition = self._partitions.get(TopicPartition(name, index))
                if partition is not None and partition.log.config != config:
                    partition.log.update_config(config)
                await turns.pause_if_due()
        except Exception as error:
            _log.error("the settings of topic %s stay as they were", name, exc_info=_checked(error))

    async def refresh_configs(self, turns: Turns) -> None:
        """Look up the settings of every topic again after those of the broker have changed."""
        for name in dict.fromkeys(tp.topic for tp in self._partitions):
            await self._refresh_topic(name, turns)

    def handle_log_dir_failure(self, directory: LogDirectory) -> Iterator[TopicPartition]:
        """Take the partitions of a directory that failed offline; yields each. Deltas may be applied in
        between.
        """
        there = [tp for tp, partition in self._partitions.items() if partition.log.directory is directory]
        for tp in there:
            partition = self._partitions.get(tp)
            if partition is None or partition.log.directory is not directory:
                continue
            self._remove(tp)
            self._lost[tp] = None
            self._offline[tp] = KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{tp} is in the log directory {directory.path}, which is offline: {directory.failure}",
            )
            _resign(partition)
            yield tp

    def handle_log_damage(self, tp: TopicPartition, error: KafkaError) -> None:
        """Take a partition offline whose log is damaged; the log manager keeps its files."""
        partition = self._remove(tp)
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

    def on_flush_due(self, partition: Partition) -> None:
        if self.begin_flush is not None:
            self.begin_flush(partition)

    def submit_alter_partition(self, partition: Partition, change: PendingPartitionChange) -> None:
        if self._submit_change is not None:
            self._submit_change(partition, change)

    # Eligibility of followers

    def is_stale(self, broker: int, broker_epoch: int) -> bool:
        """Whether the broker has registered again since it got this epoch; -1 is not checked."""
        registration = self._image.cluster.brokers.get(broker)
        return broker_epoch != -1 and registration is not None and registration.epoch > broker_epoch

    def is_other_broker(self, broker: int, broker_epoch: int) -> bool:
        """Whether another broker of the cluster has this id, and the epoch is not stale: its registration may
        come to this broker later than its first fetch.
        """
        return (
            broker != self.broker_id
            and broker in self._image.cluster.brokers
            and not self.is_stale(broker, broker_epoch)
        )

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
