"""The records of the metadata log, `__cluster_metadata`.

Each record states one fact about the cluster. The value of a record is the frame of
`ottla.protocol.framed_records`: a record type and a version before the body. The controller chooses the
version to write by the metadata.version of the cluster.
"""

from __future__ import annotations

from typing import Final

from ottla.protocol.framed_records import RecordTypes, encode_framed
from ottla.protocol.schema import (
    Buffer,
    Message,
    Struct,
    array,
    binary,
    boolean,
    float64,
    int8,
    int16,
    int32,
    int64,
    string,
    uint16,
    uuid,
)


class BrokerEndpoint(Struct):
    name: str = string(map_key=True)
    host: str = string()
    port: int = uint16()
    security_protocol: int = int16()


class BrokerFeature(Struct):
    name: str = string(map_key=True)
    min_supported_version: int = int16()
    max_supported_version: int = int16()


class RegisterBrokerRecord(Message, api_key=0, versions="0-4", flexible="0+"):
    """A broker registered. v1: controlled shutdown; v2: migration; v3: log directories; v4: cordoned ones."""

    broker_id: int = int32()
    is_migrating_zk_broker: bool = boolean(versions="2+")
    incarnation_id: bytes = uuid()
    broker_epoch: int = int64()
    end_points: list[BrokerEndpoint] = array(BrokerEndpoint)
    features: list[BrokerFeature] = array(BrokerFeature)
    rack: str | None = string(nullable=True)
    fenced: bool = boolean(default=True)
    in_controlled_shutdown: bool = boolean(versions="1+")
    log_dirs: list[bytes] = array("uuid", versions="3+", tag=0)
    cordoned_log_dirs: list[bytes] | None = array("uuid", versions="4+", nullable=True, tag=1, default=None)


class UnregisterBrokerRecord(Message, api_key=1, versions="0", flexible="0+"):
    """A broker was removed from the cluster."""

    broker_id: int = int32()
    broker_epoch: int = int64()


class TopicRecord(Message, api_key=2, versions="0", flexible="0+"):
    """A topic was created."""

    name: str = string()
    topic_id: bytes = uuid()


class PartitionRecord(Message, api_key=3, versions="0-2", flexible="0+"):
    """A partition as it was created. v1: the directory of each replica; v2: eligible leader replicas."""

    partition_id: int = int32(default=-1)
    topic_id: bytes = uuid()
    replicas: list[int] = array("int32")
    isr: list[int] = array("int32")
    removing_replicas: list[int] = array("int32")
    adding_replicas: list[int] = array("int32")
    leader: int = int32(default=-1)
    leader_recovery_state: int = int8(tag=0)
    leader_epoch: int = int32(default=-1)
    partition_epoch: int = int32(default=-1)
    directories: list[bytes] = array("uuid", versions="1+")
    eligible_leader_replicas: list[int] | None = array(
        "int32", versions="2+", nullable=True, tag=1, default=None
    )
    last_known_elr: list[int] | None = array("int32", versions="2+", nullable=True, tag=2, default=None)


class ConfigRecord(Message, api_key=4, versions="0", flexible="0+"):
    """A configuration of a resource was set, or removed by a null value."""

    resource_type: int = int8()
    resource_name: str = string()
    name: str = string()
    value: str | None = string(nullable=True)


class PartitionChangeRecord(Message, api_key=5, versions="0-2", flexible="0+"):
    """The changes of a partition; absent fields stay. v1: directories; v2: eligible leader replicas."""

    partition_id: int = int32(default=-1)
    topic_id: bytes = uuid()
    isr: list[int] | None = array("int32", nullable=True, tag=0, default=None)
    leader: int = int32(tag=1, default=-2)
    replicas: list[int] | None = array("int32", nullable=True, tag=2, default=None)
    removing_replicas: list[int] | None = array("int32", nullable=True, tag=3, default=None)
    adding_replicas: list[int] | None = array("int32", nullable=True, tag=4, default=None)
    leader_recovery_state: int = int8(tag=5, default=-1)
    directories: list[bytes] | None = array("uuid", versions="1+", nullable=True, tag=8, default=None)
    eligible_leader_replicas: list[int] | None = array(
        "int32", versions="2+", nullable=True, tag=6, default=None
    )
    last_known_elr: list[int] | None = array("int32", versions="2+", nullable=True, tag=7, default=None)


class FenceBrokerRecord(Message, api_key=7, versions="0", flexible="0+"):
    """A broker was fenced; today this is a BrokerRegistrationChangeRecord."""

    id: int = int32()
    epoch: int = int64()


class UnfenceBrokerRecord(Message, api_key=8, versions="0", flexible="0+"):
    """A broker was unfenced; today this is a BrokerRegistrationChangeRecord."""

    id: int = int32()
    epoch: int = int64()


class RemoveTopicRecord(Message, api_key=9, versions="0", flexible="0+"):
    """A topic and its partitions were deleted."""

    topic_id: bytes = uuid()


class DelegationTokenRecord(Message, api_key=10, versions="0", flexible="0+"):
    """A delegation token was created or renewed."""

    owner: str = string()
    requester: str = string()
    renewers: list[str] = array("string")
    issue_timestamp: int = int64()
    max_timestamp: int = int64()
    expiration_timestamp: int = int64()
    token_id: str = string()


class UserScramCredentialRecord(Message, api_key=11, versions="0", flexible="0+"):
    """The SCRAM credential of a user for one mechanism was set."""

    name: str = string()
    mechanism: int = int8()
    salt: bytes = binary()
    stored_key: bytes = binary()
    server_key: bytes = binary()
    iterations: int = int32()


class FeatureLevelRecord(Message, api_key=12, versions="0", flexible="0+"):
    """A feature was finalized; metadata.version, the first record of all, says how to read the rest."""

    name: str = string()
    feature_level: int = int16()


class EntityData(Struct):
    entity_type: str = string()
    entity_name: str | None = string(nullable=True)


class ClientQuotaRecord(Message, api_key=14, versions="0", flexible="0+"):
    """A quota of a client was set or removed."""

    entity: list[EntityData] = array(EntityData)
    key: str = string()
    value: float = float64()
    remove: bool = boolean()


class ProducerIdsRecord(Message, api_key=15, versions="0", flexible="0+"):
    """A block of producer ids was allocated to a broker; `next_producer_id` is the first that is free."""

    broker_id: int = int32()
    broker_epoch: int = int64(default=-1)
    next_producer_id: int = int64()


class BrokerRegistrationChangeRecord(Message, api_key=17, versions="0-3", flexible="0+"):
    """The changes of a broker. v1: controlled shutdown; v2: log directories; v3: cordoned ones."""

    broker_id: int = int32()
    broker_epoch: int = int64()
    fenced: int = int8(tag=0)
    in_controlled_shutdown: int = int8(versions="1+", tag=1)
    log_dirs: list[bytes] = array("uuid", versions="2+", tag=2)
    cordoned_log_dirs: list[bytes] | None = array("uuid", versions="3+", nullable=True, tag=3, default=None)


class AccessControlEntryRecord(Message, api_key=18, versions="0", flexible="0+"):
    """An access control entry was created."""

    id: bytes = uuid()
    resource_type: int = int8()
    resource_name: str = string()
    pattern_type: int = int8()
    principal: str = string()
    host: str = string()
    operation: int = int8()
    permission_type: int = int8()


class RemoveAccessControlEntryRecord(Message, api_key=19, versions="0", flexible="0+"):
    """An access control entry was removed."""

    id: bytes = uuid()


class NoOpRecord(Message, api_key=20, versions="0", flexible="0+"):
    """No change: written periodically so that the end of the log moves and lag is visible."""


class ZkMigrationRecord(Message, api_key=21, versions="0", flexible="0+"):
    """The state of a migration from ZooKeeper; kept to read logs of clusters that had one."""

    zk_migration_state: int = int8()


class RemoveUserScramCredentialRecord(Message, api_key=22, versions="0", flexible="0+"):
    """The SCRAM credential of a user for one mechanism was removed."""

    name: str = string()
    mechanism: int = int8()


class BeginTransactionRecord(Message, api_key=23, versions="0", flexible="0+"):
    """The records up to the end of this transaction are applied together or not at all."""

    name: str | None = string(nullable=True, tag=0, default=None)


class EndTransactionRecord(Message, api_key=24, versions="0", flexible="0+"):
    """The open transaction is applied."""


class AbortTransactionRecord(Message, api_key=25, versions="0", flexible="0+"):
    """The open transaction is dropped."""

    reason: str | None = string(nullable=True, tag=0, default=None)


class RemoveDelegationTokenRecord(Message, api_key=26, versions="0", flexible="0+"):
    """A delegation token was removed."""

    token_id: str = string()


class ControllerEndpoint(Struct):
    name: str = string(map_key=True)
    host: str = string()
    port: int = uint16()
    security_protocol: int = int16()


class ControllerFeature(Struct):
    name: str = string(map_key=True)
    min_supported_version: int = int16()
    max_supported_version: int = int16()


class RegisterControllerRecord(Message, api_key=27, versions="0", flexible="0+"):
    """A controller registered with the active one."""

    controller_id: int = int32()
    incarnation_id: bytes = uuid()
    zk_migration_ready: bool = boolean()
    end_points: list[ControllerEndpoint] = array(ControllerEndpoint)
    features: list[ControllerFeature] = array(ControllerFeature)


class ClearElrRecord(Message, api_key=28, versions="0", flexible="0+"):
    """The eligible leader replicas of one topic, or of all, were cleared."""

    topic_name: str = string()


class UnregisterControllerRecord(Message, api_key=29, versions="0", flexible="0+"):
    """A controller that will not come back was unregistered."""

    controller_id: int = int32()


RECORD_TYPES: Final = RecordTypes(
    (
        RegisterBrokerRecord,
        UnregisterBrokerRecord,
        TopicRecord,
        PartitionRecord,
        ConfigRecord,
        PartitionChangeRecord,
        FenceBrokerRecord,
        UnfenceBrokerRecord,
        RemoveTopicRecord,
        DelegationTokenRecord,
        UserScramCredentialRecord,
        FeatureLevelRecord,
        ClientQuotaRecord,
        ProducerIdsRecord,
        BrokerRegistrationChangeRecord,
        AccessControlEntryRecord,
        RemoveAccessControlEntryRecord,
        NoOpRecord,
        ZkMigrationRecord,
        RemoveUserScramCredentialRecord,
        BeginTransactionRecord,
        EndTransactionRecord,
        AbortTransactionRecord,
        RemoveDelegationTokenRecord,
        RegisterControllerRecord,
        ClearElrRecord,
        UnregisterControllerRecord,
    )
)


def encode_metadata_record(record: Message, version: int) -> bytes:
    """Return the value of a record in the metadata log, or in a snapshot of it."""
    return encode_framed(record, version)


def decode_metadata_record(value: Buffer) -> tuple[Message, int]:
    """Return the record in this value, and its version; UnsupportedVersion if a newer Kafka wrote it."""
    return RECORD_TYPES.decode(value)
