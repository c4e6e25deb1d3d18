"""`MetadataDelta`: replay records onto an image, apply them to get the next one, and record what changed.

A delta collects the records of one batch (or of one metadata transaction, or of a whole log being loaded)
against a base image and copies each map on the first write to it. Afterwards the node reads from it what it
has to act on: topics created, changed and deleted, the replicas that this broker leads or follows now,
configs and brokers that changed. Invariants: `base` is never modified; leader epochs, partition epochs and
broker epochs never go back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, Final, TypeVar

from ottla.metadata.features import KRAFT_VERSION, METADATA_VERSION, metadata_version
from ottla.metadata.image.entities import (
    NO_LEADER,
    AccessControlEntry,
    BrokerRegistration,
    ConfigResource,
    ConfigResourceType,
    ControllerRegistration,
    DelegationToken,
    PartitionRegistration,
    QuotaEntity,
    ScramCredential,
    ScramUser,
    TopicImage,
)
from ottla.metadata.image.image import ClusterImage, FeaturesImage, MetadataImage, Provenance, TopicsImage
from ottla.metadata.records import MetadataRecord
from ottla.protocol.metadata_records import (
    AccessControlEntryRecord,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    UnregisterControllerRecord,
    UserScramCredentialRecord,
    ZkMigrationRecord,
)
from ottla.protocol.names import TopicPartition
from ottla.runtime import invariants
from ottla.runtime.steps import Steps


class ReplayError(Exception):
    """A record that contradicts the image: the log is corrupt and must not be used."""


@dataclass(frozen=True, slots=True)
class LocalReplica:
    """A partition as one of its brokers sees it after a delta."""

    topic_id: bytes
    partition: PartitionRegistration


@dataclass(slots=True)
class LocalReplicaChanges:
    """The changes of a delta to the replicas of one broker. `elected_leaders` are those of `leaders` whose
    leader epoch is new.
    """

    deletes: dict[TopicPartition, bytes] = field(default_factory=dict)  # -> topic id
    elected_leaders: dict[TopicPartition, LocalReplica] = field(default_factory=dict)
    leaders: dict[TopicPartition, LocalReplica] = field(default_factory=dict)
    followers: dict[TopicPartition, LocalReplica] = field(default_factory=dict)
    directories: dict[TopicPartition, bytes] = field(default_factory=dict)  # new or moved -> directory id

    def __bool__(self) -> bool:
        return bool(self.deletes or self.leaders or self.followers or self.directories)


@dataclass(slots=True)
class TopicDelta:
    """The changes of one topic; `before` is None for a new one, `changes` has the partitions written so far.
    `MetadataDelta.topics` and `deleted_topics` together are Kafka's TopicsDelta.
    """

    name: str
    id: bytes
    before: TopicImage | None
    changes: dict[int, PartitionRegistration] = field(default_factory=dict)

    def partition(self, partition: int) -> PartitionRegistration | None:
        found = self.changes.get(partition)
        if found is None and self.before is not None:
            found = self.before.partitions.get(partition)
        return found

    def image(self) -> TopicImage:
        if self.before is None:
            return TopicImage(self.name, self.id, self.changes)
        if not self.changes:
            return self.before
        return TopicImage(self.name, self.id, {**self.before.partitions, **self.changes})

    def unclean_elections(self) -> int:
        """Partitions that are led by a replica that was neither in sync nor eligible before: records may be
        lost.
        """
        if self.before is None:
            return 0
        found = 0
        for index, now in self.changes.items():
            old = self.before.partitions.get(index)
            if old is not None and now.leader >= 0 and now.leader != old.leader:
                found += now.leader not in old.isr and now.leader not in old.elr
        return found

    def collect_local_changes(self, broker: int, out: LocalReplicaChanges) -> Steps[None]:
        previous = {} if self.before is None else self.before.partitions
        for index, now in self.changes.items():
            yield
            tp = TopicPartition(self.name, index)
            old = previous.get(index)
            if broker not in now.replicas:
                if old is not None and broker in old.replicas:
                    out.deletes[tp] = self.id
                continue
            if old is None or old.partition_epoch != now.partition_epoch:
                replica = LocalReplica(self.id, now)
                if now.leader == broker:
                    out.leaders[tp] = replica
                    if old is None or old.leader_epoch != now.leader_epoch:
                        out.elected_leaders[tp] = replica
                else:
                    out.followers[tp] = replica
            directory = now.directory(broker)
            if old is None or broker not in old.replicas or old.directory(broker) != directory:
                out.directories[tp] = directory


class MetadataDelta:
    """Replay records onto `base`; then `apply()` gives the next image."""

    def __init__(self, base: MetadataImage) -> None:
        self.base: Final = base
        self.topics: Final[dict[bytes, TopicDelta]] = {}
        self.deleted_topics: Final[dict[bytes, TopicImage]] = {}  # those that were in the base image
        self.changed_configs: Final[set[ConfigResource]] = set()
        self.changed_brokers: Final[set[int]] = set()
        self.changed_features: Final[set[str]] = set()
        self.changed_quotas: Final[set[QuotaEntity]] = set()
        self.changed_acls: Final[dict[bytes, None]] = {}
        self.changed_scram: Final[set[ScramUser]] = set()
        self.changed_tokens: Final[set[str]] = set()
        self.records: int = 0
        self._features: FeaturesImage = base.features
        self._names: dict[str, bytes] = {}  # topics created here
        self._brokers: dict[int, BrokerRegistration] | None = None
        self._controllers: dict[int, ControllerRegistration] | None = None
        self._configs: dict[ConfigResource, dict[str, str]] = {}  # whole resources, as they will be
        self._quotas: dict[QuotaEntity, dict[str, float]] = {}
        self._next_producer_id = base.next_producer_id
        self._acls: dict[bytes, AccessControlEntry] | None = None
        self._scram: dict[ScramUser, ScramCredential] | None = None
        self._tokens: dict[str, DelegationToken] | None = None

    def replay(self, record: MetadataRecord) -> None:
        """Replay one record; ReplayError if it contradicts what came before."""
        handler = _HANDLERS.get(type(record))
        if handler is None:
            raise ReplayError(f"{type(record).__name__} cannot be replayed into an image")
        handler(self, record)
        self.records += 1

    def apply(self, provenance: Provenance) -> MetadataImage:
        base = self.base
        return MetadataImage(
            provenance=provenance,
            features=self._features,
            cluster=self._apply_cluster(),
            topics=self._apply_topics(),
            configs=_merge(base.configs, self._configs),
            client_quotas=_merge(base.client_quotas, self._quotas),
            next_producer_id=self._next_producer_id,
            acls=base.acls if self._acls is None else self._acls,
            scram=base.scram if self._scram is None else self._scram,
            delegation_tokens=base.delegation_tokens if self._tokens is None else self._tokens,
        )

    @property
    def is_empty(self) -> bool:
        """Whether nothing has changed: there were only records without effect."""
        return not (
            self.topics
            or self.deleted_topics
            or self.changed_configs
            or self.changed_brokers
            or self.changed_features
            or self.changed_quotas
            or self.changed_acls
            or self.changed_scram
            or self.changed_tokens
            or self._controllers is not None
            or self._next_producer_id != self.base.next_producer_id
        )

    def local_changes(self, broker: int) -> Steps[LocalReplicaChanges]:
        """The changes of the replicas of one broker."""
        out = LocalReplicaChanges()
        for topic in self.deleted_topics.values():
            for index, registration in topic.partitions.items():
                yield
                if broker in registration.replicas:
                    out.deletes[TopicPartition(topic.name, index)] = topic.id
        for topic_delta in self.topics.values():
            yield from topic_delta.collect_local_changes(broker, out)
        return out

    def created_topics(self) -> list[TopicDelta]:
        return [topic for topic in self.topics.values() if topic.before is None]

    # Features

    def _feature(self, record: FeatureLevelRecord) -> None:
        if record.name == KRAFT_VERSION:
            return  # belongs to the raft layer; an old bug wrote it here (KAFKA-18979)
        self.changed_features.add(record.name)
        if record.name == METADATA_VERSION:
            try:
                version = metadata_version(record.feature_level)
            except ValueError as error:
                raise ReplayError(str(error)) from None
            self._features = replace(self._features, metadata_version=version)
            return
        levels = dict(self._features.levels)
        if record.feature_level == 0:
            levels.pop(record.name, None)
        else:
            levels[record.name] = record.feature_level
        self._features = replace(self._features, levels=levels)

    # Brokers and controllers

    def _writable_brokers(self) -> dict[int, BrokerRegistration]:
        if self._brokers is None:
            self._brokers = dict(self.base.cluster.brokers)
        return self._brokers

    def _register_broker(self, record: RegisterBrokerRecord) -> None:
        brokers = self._writable_brokers()
        before = brokers.get(record.broker_id)
        if invariants.thorough:
            assert before is None or record.broker_epoch >= before.epoch, (
                f"the epoch of broker {record.broker_id} goes back from {before} to {record}"
            )
        brokers[record.broker_id] = BrokerRegistration.from_record(record)
        self.changed_brokers.add(record.broker_id)

    def _broker(self, record: object, id: int, epoch: int) -> BrokerRegistration:
        registration = self._writable_brokers().get(id)
        if registration is None:
            raise ReplayError(f"{record} is about broker {id}, which is not registered")
        if registration.epoch != epoch:
            raise ReplayError(
                f"{record} is about epoch {epoch} of broker {id}, which is at {registration.epoch}"
            )
        return registration

    def _put_broker(self, registration: BrokerRegistration) -> None:
        self._writable_brokers()[registration.id] = registration
        self.changed_brokers.add(registration.id)

    def _unregister_broker(self, record: UnregisterBrokerRecord) -> None:
        self._broker(record, record.broker_id, record.broker_epoch)
        del self._writable_brokers()[record.broker_id]
        self.changed_brokers.add(record.broker_id)

    def _fence_broker(self, record: FenceBrokerRecord) -> None:
        self._put_broker(self._broker(record, record.id, record.epoch).clone_with(fenced=True))

    def _unfence_broker(self, record: UnfenceBrokerRecord) -> None:
        self._put_broker(self._broker(record, record.id, record.epoch).clone_with(fenced=False))

    def _change_broker(self, record: BrokerRegistrationChangeRecord) -> None:
        registration = self._broker(record, record.broker_id, record.broker_epoch)
        if record.fenced not in (-1, 0, 1) or record.in_controlled_shutdown not in (0, 1):
            raise ReplayError(f"{record} has an unknown value of fenced or in_controlled_shutdown")
        cordoned = record.cordoned_log_dirs
        self._put_broker(
            registration.clone_with(
                fenced=None if record.fenced == 0 else record.fenced == 1,
                in_controlled_shutdown=True if record.in_controlled_shutdown else None,
                directories=[bytes(d) for d in record.log_dirs] if record.log_dirs else None,
                cordoned_directories=None if cordoned is None else [bytes(d) for d in cordoned],
            )
        )

    def _writable_controllers(self) -> dict[int, ControllerRegistration]:
        if self._controllers is None:
            self._controllers = dict(self.base.cluster.controllers)
        return self._controllers

    def _register_controller(self, record: RegisterControllerRecord) -> None:
        self._writable_controllers()[record.controller_id] = ControllerRegistration.from_record(record)

    def _unregister_controller(self, record: UnregisterControllerRecord) -> None:
        if self._writable_controllers().pop(record.controller_id, None) is None:
            raise ReplayError(f"{record} is about a controller that is not registered")

    def _apply_cluster(self) -> ClusterImage:
        if self._brokers is None and self._controllers is None:
            return self.base.cluster
        base = self.base.cluster
        return ClusterImage(
            brokers=base.brokers if self._brokers is None else self._brokers,
            controllers=base.controllers if self._controllers is None else self._controllers,
        )

    # Topics

    def _topic(self, record: object, topic_id: bytes) -> TopicDelta:
        found = self.topics.get(topic_id)
        if found is None:
            before = self.base.topics.by_id.get(topic_id)
            if before is None or topic_id in self.deleted_topics:
                raise ReplayError(f"{record} is about topic id {topic_id.hex()}, which does not exist")
            found = self.topics[topic_id] = TopicDelta(before.name, before.id, before)
        return found

    def _create_topic(self, record: TopicRecord) -> None:
        topic_id = bytes(record.topic_id)
        existing = self._names.get(record.name)
        if existing is None:
            before = self.base.topics.by_name.get(record.name)
            if before is not None and before.id not in self.deleted_topics:
                existing = before.id
        if existing is not None or topic_id in self.topics:
            raise ReplayError(f"{record} creates a topic that exists already")
        self._names[record.name] = topic_id
        self.topics[topic_id] = TopicDelta(record.name, topic_id, None)

    def _put_partition(self, record: PartitionRecord) -> None:
        topic = self._topic(record, bytes(record.topic_id))
        self._set_partition(
            topic, record.partition_id, _build_registration(record, PartitionRegistration.from_record, record)
        )

    def _set_partition(self, topic: TopicDelta, partition_id: int, partition: PartitionRegistration) -> None:
        if invariants.thorough:
            before = topic.partition(partition_id)
            assert before is None or (
                partition.leader_epoch >= before.leader_epoch
                and partition.partition_epoch >= before.partition_epoch
            ), f"the epochs of {topic.name}-{partition_id} go back from {before} to {partition}"
            assert partition.leader == NO_LEADER or partition.leader in partition.isr, (
                f"the leader of {topic.name}-{partition_id} is not in its ISR: {partition}"
            )
        topic.changes[partition_id] = partition

    def _change_partition(self, record: PartitionChangeRecord) -> None:
        topic = self._topic(record, bytes(record.topic_id))
        current = topic.partition(record.partition_id)
        if current is None:
            raise ReplayError(
                f"{record} is about partition {record.partition_id} of {topic.name}, which does not exist"
            )
        self._set_partition(topic, record.partition_id, _build_registration(record, current.merge, record))

    def _remove_topic(self, record: RemoveTopicRecord) -> None:
        topic = self._topic(record, bytes(record.topic_id))
        del self.topics[topic.id]
        if topic.before is not None:
            self.deleted_topics[topic.id] = topic.before
        self._names.pop(topic.name, None)
        resource = ConfigResource(ConfigResourceType.TOPIC, topic.name)
        if resource in self._configs or resource in self.base.configs:
            self._configs[resource] = {}
            self.changed_configs.add(resource)

    def _clear_elr(self, record: ClearElrRecord) -> None:
        if record.topic_name:
            topic_id = self._names.get(record.topic_name)
            if topic_id is None:
                before = self.base.topics.by_name.get(record.topic_name)
                if before is None or before.id in self.deleted_topics:
                    raise ReplayError(f"{record} is about topic {record.topic_name}, which does not exist")
                topic_id = before.id
            self._clear_topic_elr(topic_id)
            return
        for topic_id in dict.fromkeys((*self.base.topics.by_id, *self.topics)):
            if topic_id not in self.deleted_topics:
                self._clear_topic_elr(topic_id)

    def _clear_topic_elr(self, topic_id: bytes) -> None:
        delta = self.topics.get(topic_id)
        partitions: dict[int, PartitionRegistration] = {}
        before = self.base.topics.by_id.get(topic_id)
        if before is not None:
            partitions.update(before.partitions)
        if delta is not None:
            partitions.update(delta.changes)
        clear = PartitionChangeRecord(topic_id=topic_id, eligible_leader_replicas=[], last_known_elr=[])
        for index, registration in partitions.items():
            if registration.elr or registration.last_known_elr:
                self._set_partition(self._topic(clear, topic_id), index, registration.merge(clear))

    def _apply_topics(self) -> TopicsImage:
        if not self.topics and not self.deleted_topics:
            return self.base.topics
        by_id = dict(self.base.topics.by_id)
        by_name = dict(self.base.topics.by_name)
        for topic in self.deleted_topics.values():
            del by_id[topic.id]
            del by_name[topic.name]
        for delta in self.topics.values():
            image = delta.image()
            by_id[image.id] = image
            by_name[image.name] = image
        return TopicsImage(by_id, by_name)

    # The rest

    def _config(self, record: ConfigRecord) -> None:
        resource = ConfigResource(record.resource_type, record.resource_name)
        configs = self._configs.get(resource)
        if configs is None:
            configs = self._configs[resource] = dict(self.base.config(resource))
        self.changed_configs.add(resource)
        if record.value is None:
            configs.pop(record.name, None)
        else:
            configs[record.name] = record.value

    def _client_quota(self, record: ClientQuotaRecord) -> None:
        entity: QuotaEntity = tuple(
            sorted(((e.entity_type, e.entity_name) for e in record.entity), key=itemgetter(0))
        )
        quotas = self._quotas.get(entity)
        if quotas is None:
            quotas = self._quotas[entity] = dict(self.base.client_quotas.get(entity, {}))
        self.changed_quotas.add(entity)
        if record.remove:
            quotas.pop(record.key, None)
        else:
            quotas[record.key] = record.value

    def _producer_ids(self, record: ProducerIdsRecord) -> None:
        if record.next_producer_id <= self._next_producer_id:
            raise ReplayError(f"{record} goes back from next producer id {self._next_producer_id}")
        self._next_producer_id = record.next_producer_id

    def _acl(self, record: AccessControlEntryRecord) -> None:
        if self._acls is None:
            self._acls = dict(self.base.acls)
        self._acls[bytes(record.id)] = AccessControlEntry.from_record(record)
        self.changed_acls[bytes(record.id)] = None

    def _remove_acl(self, record: RemoveAccessControlEntryRecord) -> None:
        if self._acls is None:
            self._acls = dict(self.base.acls)
        if self._acls.pop(bytes(record.id), None) is None:
            raise ReplayError(f"{record} removes an ACL that does not exist")
        self.changed_acls[bytes(record.id)] = None

    def _scram_credential(self, record: UserScramCredentialRecord) -> None:
        if self._scram is None:
            self._scram = dict(self.base.scram)
        user = ScramUser(record.mechanism, record.name)
        self._scram[user] = ScramCredential(
            bytes(record.salt), bytes(record.stored_key), bytes(record.server_key), record.iterations
        )
        self.changed_scram.add(user)

    def _remove_scram(self, record: RemoveUserScramCredentialRecord) -> None:
        if self._scram is None:
            self._scram = dict(self.base.scram)
        user = ScramUser(record.mechanism, record.name)
        if self._scram.pop(user, None) is None:
            raise ReplayError(f"a record removes a SCRAM credential of {record.name}, who has none")
        self.changed_scram.add(user)

    def _token(self, record: DelegationTokenRecord) -> None:
        if self._tokens is None:
            self._tokens = dict(self.base.delegation_tokens)
        self._tokens[record.token_id] = DelegationToken.from_record(record)
        self.changed_tokens.add(record.token_id)

    def _remove_token(self, record: RemoveDelegationTokenRecord) -> None:
        if self._tokens is None:
            self._tokens = dict(self.base.delegation_tokens)
        self._tokens.pop(record.token_id, None)
        self.changed_tokens.add(record.token_id)

    def _ignore(self, record: object) -> None:
        pass


def _build_registration(
    record: object, build: Callable[[Any], PartitionRegistration], source: object
) -> PartitionRegistration:
    try:
        return build(source)
    except ValueError as error:
        raise ReplayError(f"{record}: {error}") from error


K = TypeVar("K")
V = TypeVar("V")


def _merge(
    base: Mapping[K, Mapping[str, V]], changed: Mapping[K, Mapping[str, V]]
) -> Mapping[K, Mapping[str, V]]:
    """The base with the changed entries; an entry that became empty is removed."""
    if not changed:
        return base
    merged = dict(base)
    for key, values in changed.items():
        if values:
            merged[key] = values
        else:
            merged.pop(key, None)
    return merged


_HANDLERS: Final[Mapping[type, Callable[[MetadataDelta, Any], None]]] = {
    AccessControlEntryRecord: MetadataDelta._acl,
    BrokerRegistrationChangeRecord: MetadataDelta._change_broker,
    ClearElrRecord: MetadataDelta._clear_elr,
    ClientQuotaRecord: MetadataDelta._client_quota,
    ConfigRecord: MetadataDelta._config,
    DelegationTokenRecord: MetadataDelta._token,
    FeatureLevelRecord: MetadataDelta._feature,
    FenceBrokerRecord: MetadataDelta._fence_broker,
    NoOpRecord: MetadataDelta._ignore,
    PartitionChangeRecord: MetadataDelta._change_partition,
    PartitionRecord: MetadataDelta._put_partition,
    ProducerIdsRecord: MetadataDelta._producer_ids,
    RegisterBrokerRecord: MetadataDelta._register_broker,
    RegisterControllerRecord: MetadataDelta._register_controller,
    RemoveAccessControlEntryRecord: MetadataDelta._remove_acl,
    RemoveDelegationTokenRecord: MetadataDelta._remove_token,
    RemoveTopicRecord: MetadataDelta._remove_topic,
    RemoveUserScramCredentialRecord: MetadataDelta._remove_scram,
    TopicRecord: MetadataDelta._create_topic,
    UnfenceBrokerRecord: MetadataDelta._unfence_broker,
    UnregisterBrokerRecord: MetadataDelta._unregister_broker,
    UnregisterControllerRecord: MetadataDelta._unregister_controller,
    UserScramCredentialRecord: MetadataDelta._scram_credential,
    ZkMigrationRecord: MetadataDelta._ignore,
}


def apply_records(
    image: MetadataImage, records: Iterable[MetadataRecord], provenance: Provenance | None = None
) -> MetadataImage:
    """The image after these records."""
    delta = MetadataDelta(image)
    for record in records:
        delta.replay(record)
    return delta.apply(image.provenance if provenance is None else provenance)
