"""The entities of metadata records: brokers, controllers, topics, partitions, configs, credentials.

Every class is frozen: an image shares them freely with the images before and after it. Invariants: a
partition's `directories` runs in step with its `replicas`; `isr` and `elr` are disjoint subsets of
`replicas`; the leader, if there is one, is in the `isr`; every change raises `partition_epoch`, and a
change that names a leader raises `leader_epoch` as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final, NamedTuple

from ottla.metadata.features import MetadataVersion, VersionRange
from ottla.protocol.metadata_records import (
    AccessControlEntryRecord,
    BrokerEndpoint,
    BrokerFeature,
    ConfigRecord,
    ControllerEndpoint,
    ControllerFeature,
    DelegationTokenRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    TopicRecord,
    UserScramCredentialRecord,
)

NO_LEADER: Final = -1
NO_LEADER_CHANGE: Final = -2

# Reserved directory ids: of replicas from before directory assignment, of replicas without a directory yet,
# of replicas in a directory that is lost, and of replicas whose log is damaged. The last one is ours; Kafka
# has no such id, and takes it for a directory that is offline, as it should.
DIRECTORY_MIGRATING: Final = bytes(16)
DIRECTORY_UNASSIGNED: Final = bytes(15) + b"\x01"
DIRECTORY_LOST: Final = bytes(15) + b"\x02"
DIRECTORY_DAMAGED: Final = bytes(15) + b"\x03"


class LeaderRecoveryState(IntEnum):
    RECOVERED = 0
    RECOVERING = 1


class ConfigResourceType(IntEnum):
    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigResource(NamedTuple):
    """The owner of configs. A BROKER with an empty name is the default of all brokers."""

    type: int
    name: str


CLUSTER_DEFAULT: Final = ConfigResource(ConfigResourceType.BROKER, "")


@dataclass(frozen=True, slots=True)
class PartitionRegistration:
    replicas: tuple[int, ...]
    directories: tuple[bytes, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int = 0
    partition_epoch: int = 0
    removing_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    leader_recovery_state: LeaderRecoveryState = LeaderRecoveryState.RECOVERED

    @classmethod
    def from_record(cls, record: PartitionRecord) -> PartitionRegistration:
        return cls(
            replicas=tuple(record.replicas),
            directories=_directories(record.directories, len(record.replicas)),
            isr=tuple(record.isr),
            leader=record.leader,
            leader_epoch=record.leader_epoch,
            partition_epoch=record.partition_epoch,
            removing_replicas=tuple(record.removing_replicas),
            adding_replicas=tuple(record.adding_replicas),
            elr=tuple(record.eligible_leader_replicas or ()),
            last_known_elr=tuple(record.last_known_elr or ()),
            leader_recovery_state=LeaderRecoveryState(record.leader_recovery_state),
        )

    def merge(self, change: PartitionChangeRecord) -> PartitionRegistration:
        """The partition after a change record; fields that are null in the record stay as they are."""
        replicas, directories = self.replicas, self.directories
        if change.replicas is not None or change.directories is not None:
            replicas = replicas if change.replicas is None else tuple(change.replicas)
            given = directories if change.directories is None else change.directories
            directories = _directories(given, len(replicas))
        leader_changes = change.leader != NO_LEADER_CHANGE
        recovery = self.leader_recovery_state
        if change.leader_recovery_state >= 0:
            recovery = LeaderRecoveryState(change.leader_recovery_state)
        return PartitionRegistration(
            replicas=replicas,
            directories=directories,
            isr=_new_or_current(self.isr, change.isr),
            leader=change.leader if leader_changes else self.leader,
            leader_epoch=self.leader_epoch + 1 if leader_changes else self.leader_epoch,
            partition_epoch=self.partition_epoch + 1,
            removing_replicas=_new_or_current(self.removing_replicas, change.removing_replicas),
            adding_replicas=_new_or_current(self.adding_replicas, change.adding_replicas),
            elr=_new_or_current(self.elr, change.eligible_leader_replicas),
            last_known_elr=_new_or_current(self.last_known_elr, change.last_known_elr),
            leader_recovery_state=recovery,
        )

    def to_record(
        self, topic_id: bytes, partition: int, version: MetadataVersion, *, elr_enabled: bool
    ) -> PartitionRecord:
        return PartitionRecord(
            partition_id=partition,
            topic_id=topic_id,
            replicas=list(self.replicas),
            isr=list(self.isr),
            removing_replicas=list(self.removing_replicas),
            adding_replicas=list(self.adding_replicas),
            leader=self.leader,
            leader_recovery_state=int(self.leader_recovery_state),
            leader_epoch=self.leader_epoch,
            partition_epoch=self.partition_epoch,
            directories=list(self.directories) if version.directory_assignment else [],
            eligible_leader_replicas=list(self.elr) if elr_enabled and self.elr else None,
            last_known_elr=list(self.last_known_elr) if elr_enabled and self.last_known_elr else None,
        )

    @property
    def preferred_replica(self) -> int:
        return self.replicas[0] if self.replicas else NO_LEADER

    @property
    def has_preferred_leader(self) -> bool:
        return self.leader == self.preferred_replica

    @property
    def is_reassigning(self) -> bool:
        return bool(self.removing_replicas or self.adding_replicas)

    def directory(self, replica: int) -> bytes:
        """The directory that hosts a replica; ValueError when the broker is not one of the replicas."""
        return self.directories[self.replicas.index(replica)]


def _new_or_current(current: tuple[int, ...], new: Sequence[int] | None) -> tuple[int, ...]:
    return current if new is None else tuple(new)


def _directories(directories: Sequence[bytes] | None, replicas: int) -> tuple[bytes, ...]:
    if not directories or all(directory == DIRECTORY_MIGRATING for directory in directories):
        return (DIRECTORY_MIGRATING,) * replicas
    if len(directories) != replicas:
        raise ValueError(f"a partition has {replicas} replicas but {len(directories)} directories")
    return tuple(bytes(directory) for directory in directories)


@dataclass(frozen=True, slots=True)
class TopicImage:
    name: str
    id: bytes
    partitions: Mapping[int, PartitionRegistration]

    def to_record(self) -> TopicRecord:
        return TopicRecord(name=self.name, topic_id=self.id)


@dataclass(frozen=True, slots=True)
class ListenerEndpoint:
    """The address of a node's listener; `security_protocol` is Kafka's number (0 PLAINTEXT, 1 SSL, ...)."""

    name: str
    host: str
    port: int
    security_protocol: int = 0


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    id: int
    epoch: int  # grows with every new incarnation; a request with an older one is stale
    incarnation_id: bytes
    listeners: Mapping[str, ListenerEndpoint] = field(default_factory=dict)
    supported_features: Mapping[str, VersionRange] = field(default_factory=dict)
    rack: str | None = None
    fenced: bool = True  # a fenced broker leads nothing, and clients do not see it
    in_controlled_shutdown: bool = False
    is_migrating_zk_broker: bool = False
    directories: tuple[bytes, ...] = ()  # the log directories that are online
    cordoned_directories: tuple[bytes, ...] | None = None  # None until the broker has reported them

    @classmethod
    def from_record(cls, record: RegisterBrokerRecord) -> BrokerRegistration:
        cordoned = record.cordoned_log_dirs
        return cls(
            id=record.broker_id,
            epoch=record.broker_epoch,
            incarnation_id=bytes(record.incarnation_id),
            listeners={
                e.name: ListenerEndpoint(e.name, e.host, e.port, e.security_protocol)
                for e in record.end_points
            },
            supported_features={
                f.name: VersionRange(f.min_supported_version, f.max_supported_version)
                for f in record.features
            },
            rack=record.rack,
            fenced=record.fenced,
            in_controlled_shutdown=record.in_controlled_shutdown,
            is_migrating_zk_broker=record.is_migrating_zk_broker,
            directories=tuple(bytes(d) for d in record.log_dirs),
            cordoned_directories=None if cordoned is None else tuple(bytes(d) for d in cordoned),
        )

    def to_record(self, version: MetadataVersion) -> RegisterBrokerRecord:
        cordoned = self.cordoned_directories if version.cordoned_log_dirs else None
        return RegisterBrokerRecord(
            broker_id=self.id,
            is_migrating_zk_broker=self.is_migrating_zk_broker,
            incarnation_id=self.incarnation_id,
            broker_epoch=self.epoch,
            end_points=[
                BrokerEndpoint(name=e.name, host=e.host, port=e.port, security_protocol=e.security_protocol)
                for e in self.listeners.values()
            ],
            features=[
                BrokerFeature(name=name, min_supported_version=r.min, max_supported_version=r.max)
                for name, r in self.supported_features.items()
            ],
            rack=self.rack,
            fenced=self.fenced,
            in_controlled_shutdown=self.in_controlled_shutdown,
            log_dirs=list(self.directories) if version.directory_assignment else [],
            cordoned_log_dirs=None if cordoned is None else list(cordoned),
        )

    def clone_with(
        self,
        *,
        fenced: bool | None = None,
        in_controlled_shutdown: bool | None = None,
        directories: Sequence[bytes] | None = None,
        cordoned_directories: Sequence[bytes] | None = None,
    ) -> BrokerRegistration:
        return replace(
            self,
            fenced=self.fenced if fenced is None else fenced,
            in_controlled_shutdown=self.in_controlled_shutdown
            if in_controlled_shutdown is None
            else in_controlled_shutdown,
            directories=self.directories if directories is None else tuple(directories),
            cordoned_directories=self.cordoned_directories
            if cordoned_directories is None
            else tuple(cordoned_directories),
        )

    @property
    def is_active(self) -> bool:
        """Whether the broker may lead partitions and enter in-sync sets."""
        return not self.fenced and not self.in_controlled_shutdown

    @property
    def has_uncordoned_directory(self) -> bool:
        if not self.directories or self.cordoned_directories is None:
            return True
        return not set(self.directories) <= set(self.cordoned_directories)

    @property
    def default_directory(self) -> bytes:
        """The directory of a replica that is placed here before the broker has chosen one."""
        if not self.directories:
            return DIRECTORY_MIGRATING
        return self.directories[0] if len(self.directories) == 1 else DIRECTORY_UNASSIGNED

    def has_online_directory(self, directory: bytes) -> bool:
        if directory in (DIRECTORY_UNASSIGNED, DIRECTORY_MIGRATING):
            return True
        if directory in (DIRECTORY_LOST, DIRECTORY_DAMAGED):
            return False
        return not self.directories or directory in self.directories


@dataclass(frozen=True, slots=True)
class ControllerRegistration:
    id: int
    incarnation_id: bytes
    zk_migration_ready: bool
    listeners: Mapping[str, ListenerEndpoint]
    supported_features: Mapping[str, VersionRange]

    @classmethod
    def from_record(cls, record: RegisterControllerRecord) -> ControllerRegistration:
        return cls(
            id=record.controller_id,
            incarnation_id=bytes(record.incarnation_id),
            zk_migration_ready=record.zk_migration_ready,
            listeners={
                e.name: ListenerEndpoint(e.name, e.host, e.port, e.security_protocol)
                for e in record.end_points
            },
            supported_features={
                f.name: VersionRange(f.min_supported_version, f.max_supported_version)
                for f in record.features
            },
        )

    def to_record(self) -> RegisterControllerRecord:
        return RegisterControllerRecord(
            controller_id=self.id,
            incarnation_id=self.incarnation_id,
            zk_migration_ready=self.zk_migration_ready,
            end_points=[
                ControllerEndpoint(
                    name=e.name, host=e.host, port=e.port, security_protocol=e.security_protocol
                )
                for e in self.listeners.values()
            ],
            features=[
                ControllerFeature(name=name, min_supported_version=r.min, max_supported_version=r.max)
                for name, r in self.supported_features.items()
            ],
        )


@dataclass(frozen=True, slots=True)
class AccessControlEntry:
    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int

    @classmethod
    def from_record(cls, record: AccessControlEntryRecord) -> AccessControlEntry:
        return cls(
            record.resource_type,
            record.resource_name,
            record.pattern_type,
            record.principal,
            record.host,
            record.operation,
            record.permission_type,
        )

    def to_record(self, id: bytes) -> AccessControlEntryRecord:
        return AccessControlEntryRecord(
            id=id,
            resource_type=self.resource_type,
            resource_name=self.resource_name,
            pattern_type=self.pattern_type,
            principal=self.principal,
            host=self.host,
            operation=self.operation,
            permission_type=self.permission_type,
        )


class ScramUser(NamedTuple):
    """A user and the number of the mechanism (1 SCRAM-SHA-256, 2 SCRAM-SHA-512)."""

    mechanism: int
    name: str


@dataclass(frozen=True, slots=True)
class ScramCredential:
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int

    def to_record(self, user: ScramUser) -> UserScramCredentialRecord:
        return UserScramCredentialRecord(
            name=user.name,
            mechanism=user.mechanism,
            salt=self.salt,
            stored_key=self.stored_key,
            server_key=self.server_key,
            iterations=self.iterations,
        )


@dataclass(frozen=True, slots=True)
class DelegationToken:
    id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issue_timestamp: int
    max_timestamp: int
    expiration_timestamp: int

    @classmethod
    def from_record(cls, record: DelegationTokenRecord) -> DelegationToken:
        return cls(
            record.token_id,
            record.owner,
            record.requester,
            tuple(record.renewers),
            record.issue_timestamp,
            record.max_timestamp,
            record.expiration_timestamp,
        )

    def to_record(self) -> DelegationTokenRecord:
        return DelegationTokenRecord(
            token_id=self.id,
            owner=self.owner,
            requester=self.requester,
            renewers=list(self.renewers),
            issue_timestamp=self.issue_timestamp,
            max_timestamp=self.max_timestamp,
            expiration_timestamp=self.expiration_timestamp,
        )


def config_record(resource: ConfigResource, name: str, value: str | None) -> ConfigRecord:
    return ConfigRecord(resource_type=int(resource.type), resource_name=resource.name, name=name, value=value)


# A client quota belongs to a set of (entity type, entity name or None for the default), kept sorted by type.
QuotaEntity = tuple[tuple[str, str | None], ...]
