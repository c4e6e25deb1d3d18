"""The znodes of Kafka 2.8 to 3.9: their paths, and the exact data that brokers and controllers write.

Pure: bytes in, values out, and back. `encode` writes what Kafka 3.9 writes, with the members of an object in
its order; `decode` reads what any of these versions wrote, and raises `ZNodeFormatError`, which names the
path, for anything else. The versions of the znodes themselves, for conditional writes, are not in the data:
the version of a partition's state is its partition epoch.
"""

from __future__ import annotations

import base64
import json
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from ottla.protocol.acl import AclOperation, AclPermissionType, AclResourceType, PatternType
from ottla.protocol.names import TopicPartition, parse_uuid, uuid_text
from ottla.runtime.zookeeper import ZNodeAccess


class ZNodeFormatError(ValueError):
    """The data of a znode is not what Kafka writes there."""


# Paths

CLUSTER: Final = "/cluster"
CLUSTER_ID: Final = "/cluster/id"
BROKERS: Final = "/brokers"
BROKER_IDS: Final = "/brokers/ids"
BROKER_SEQUENCE_ID: Final = "/brokers/seqid"
TOPICS: Final = "/brokers/topics"
CONTROLLER: Final = "/controller"
CONTROLLER_EPOCH: Final = "/controller_epoch"
CONFIG: Final = "/config"
CONFIG_CHANGES: Final = "/config/changes"
CONFIG_TOPICS: Final = "/config/topics"
CONFIG_BROKERS: Final = "/config/brokers"
CONFIG_CLIENTS: Final = "/config/clients"
CONFIG_USERS: Final = "/config/users"
CONFIG_IPS: Final = "/config/ips"
ADMIN: Final = "/admin"
DELETE_TOPICS: Final = "/admin/delete_topics"
REASSIGN_PARTITIONS: Final = "/admin/reassign_partitions"
PREFERRED_REPLICA_ELECTION: Final = "/admin/preferred_replica_election"
ISR_CHANGE_NOTIFICATION: Final = "/isr_change_notification"
LOG_DIR_EVENT_NOTIFICATION: Final = "/log_dir_event_notification"
LATEST_PRODUCER_ID_BLOCK: Final = "/latest_producer_id_block"
ACL: Final = "/kafka-acl"
ACL_CHANGES: Final = "/kafka-acl-changes"
EXTENDED_ACL: Final = "/kafka-acl-extended"
EXTENDED_ACL_CHANGES: Final = "/kafka-acl-extended-changes"
DELEGATION_TOKEN: Final = "/delegation_token"
DELEGATION_TOKENS: Final = "/delegation_token/tokens"
DELEGATION_TOKEN_CHANGES: Final = "/delegation_token/token_changes"
FEATURE: Final = "/feature"
MIGRATION: Final = "/migration"
CONSUMERS: Final = "/consumers"

# The prefixes of sequential znodes; ZooKeeper adds ten digits.
CONFIG_CHANGE_PREFIX: Final = "config_change_"
ACL_CHANGE_PREFIX: Final = "acl_changes_"

# What a broker creates at its start, in this order, with the parents that are missing.
PERSISTENT_PATHS: Final = (
    CONSUMERS,
    BROKER_IDS,
    TOPICS,
    CONFIG_CHANGES,
    DELETE_TOPICS,
    BROKER_SEQUENCE_ID,
    ISR_CHANGE_NOTIFICATION,
    LATEST_PRODUCER_ID_BLOCK,
    LOG_DIR_EVENT_NOTIFICATION,
    CONFIG_TOPICS,
    CONFIG_CLIENTS,
    CONFIG_USERS,
    CONFIG_BROKERS,
    CONFIG_IPS,
)
# Their data has passwords and keys, so only the creator may read them (`zookeeper.set.acl`).
SENSITIVE_PATHS: Final = (CONFIG_USERS, CONFIG_BROKERS, DELEGATION_TOKENS)

# The name of the entity that stands for all entities of its type, as a path has it (it is escaped there).
DEFAULT_ENTITY: Final = "<default>"


def broker_path(id: int) -> str:
    return f"{BROKER_IDS}/{id}"


def topic_path(topic: str) -> str:
    return f"{TOPICS}/{topic}"


def partitions_path(topic: str) -> str:
    return f"{TOPICS}/{topic}/partitions"


def partition_path(partition: TopicPartition) -> str:
    return f"{TOPICS}/{partition.topic}/partitions/{partition.partition}"


def partition_state_path(partition: TopicPartition) -> str:
    return f"{partition_path(partition)}/state"


def config_path(entity_type: str, entity: str) -> str:
    """The configuration of an entity, whose name `sanitize` has written if it is a user or a client."""
    return f"{CONFIG}/{entity_type}/{entity}"


def delete_topic_path(topic: str) -> str:
    return f"{DELETE_TOPICS}/{topic}"


def delegation_token_path(token_id: str) -> str:
    return f"{DELEGATION_TOKENS}/{token_id}"


def acl_root(pattern_type: int) -> str:
    """The znode whose children are the resource types; only literal patterns have the old place."""
    if pattern_type == PatternType.LITERAL:
        return ACL
    return f"{EXTENDED_ACL}/{PatternType(pattern_type).name.lower()}"


def acl_path(pattern_type: int, resource_type: int, resource_name: str) -> str:
    return f"{acl_root(pattern_type)}/{RESOURCE_TYPE_NAMES[resource_type]}/{resource_name}"


def secured_access(path: str) -> ZNodeAccess:
    """Who may do what with a znode that is created with `zookeeper.set.acl=true`. Consumers from before Kafka
    0.9 write below `/consumers` themselves.
    """
    if path == CONSUMERS:
        return ZNodeAccess.OPEN
    return ZNodeAccess.SENSITIVE if path.startswith(SENSITIVE_PATHS) else ZNodeAccess.SECURE


def sanitize(name: str) -> str:
    """Write the name of a user or a client as a path has it.

    >>> sanitize("CN=a b,O=*")
    'CN%3Da%20b%2CO%3D%2A'
    """
    return urllib.parse.quote(name, safe="").replace("~", "%7E")


def desanitize(name: str) -> str:
    """Read the name of a user or a client from a path.

    >>> desanitize("CN%3Da%20b")
    'CN=a b'
    """
    return urllib.parse.unquote(name)


# JSON as Jackson writes it: no spaces, and characters beyond ASCII as they are.


def encode_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def decode_json(path: str, data: bytes) -> dict[str, Any]:
    """The object in a znode; ZNodeFormatError if it is none."""
    try:
        value = json.loads(data)
    except (ValueError, UnicodeDecodeError):
        value = None
    if not isinstance(value, dict):
        raise ZNodeFormatError(f"{path} is not a JSON object: {_shown(data)}")
    return value


def _shown(data: bytes) -> str:
    text = data[:80].decode(errors="replace")
    return repr(text + ("..." if len(data) > 80 else ""))


def _member(path: str, value: Mapping[str, Any], name: str, kind: type | tuple[type, ...]) -> Any:
    found = value.get(name)
    if not isinstance(found, kind) or isinstance(found, bool):
        raise ZNodeFormatError(f"{path} has no valid {name!r}: {found!r}")
    return found


def _int(path: str, value: Mapping[str, Any], name: str) -> int:
    """A number, also one that is written as a string."""
    found = value.get(name)
    try:
        if isinstance(found, bool) or not isinstance(found, int | str):
            raise ValueError
        return int(found)
    except ValueError:
        raise ZNodeFormatError(f"{path} has no valid {name!r}: {found!r}") from None


def _ids(path: str, found: Any) -> tuple[int, ...]:
    if not isinstance(found, list) or any(isinstance(id, bool) or not isinstance(id, int) for id in found):
        raise ZNodeFormatError(f"{path} has no valid list of broker ids: {found!r}")
    return tuple(found)


# /cluster/id


def encode_cluster_id(cluster_id: str) -> bytes:
    return encode_json({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes) -> str:
    id: str = _member(CLUSTER_ID, decode_json(CLUSTER_ID, data), "id", str)
    return id


# /controller and /controller_epoch


@dataclass(frozen=True, slots=True)
class ControllerZNode:
    """The ephemeral znode of the active controller. Version 2, since 3.4, has the epoch of a KRaft controller
    that a migration made the active one; -1 for a broker.
    """

    broker_id: int
    timestamp_ms: int
    kraft_controller_epoch: int = -1

    def encode(self) -> bytes:
        return encode_json(
            {
                "version": 2,
                "brokerid": self.broker_id,
                "timestamp": str(self.timestamp_ms),
                "kraftControllerEpoch": self.kraft_controller_epoch,
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> ControllerZNode:
        value = decode_json(CONTROLLER, data)
        epoch = value.get("kraftControllerEpoch")
        return cls(
            broker_id=_int(CONTROLLER, value, "brokerid"),
            timestamp_ms=_int(CONTROLLER, value, "timestamp") if "timestamp" in value else -1,
            kraft_controller_epoch=epoch if isinstance(epoch, int) else -1,
        )


def encode_controller_epoch(epoch: int) -> bytes:
    return str(epoch).encode()


def decode_controller_epoch(data: bytes) -> int:
    try:
        return int(data)
    except ValueError:
        raise ZNodeFormatError(f"{CONTROLLER_EPOCH} is not a number: {_shown(data)}") from None


# /brokers/ids/N


class BrokerZNodeEndpoint(NamedTuple):
    listener: str
    host: str
    port: int
    security_protocol: str

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.listener}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class BrokerIdZNode:
    """The ephemeral znode of a running broker. The zxid of its creation is the broker's epoch."""

    id: int
    endpoints: tuple[BrokerZNodeEndpoint, ...]
    rack: str | None = None
    timestamp_ms: int = -1
    jmx_port: int = -1
    features: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def encode(self) -> bytes:
        # Clients of old times know one address: the first without TLS and SASL.
        plain = next((e for e in self.endpoints if e.security_protocol == "PLAINTEXT"), None)
        value: dict[str, Any] = {
            "features": {name: dict(levels) for name, levels in self.features.items()},
            "listener_security_protocol_map": {e.listener: e.security_protocol for e in self.endpoints},
            "endpoints": [str(endpoint) for endpoint in self.endpoints],
            "jmx_port": self.jmx_port,
            "port": -1 if plain is None else plain.port,
            "host": None if plain is None else plain.host,
            "version": 5,
            "timestamp": str(self.timestamp_ms),
        }
        if self.rack is not None:
            value["rack"] = self.rack
        return encode_json(_ordered(value, _BROKER_ORDER))

    @classmethod
    def decode(cls, id: int, data: bytes) -> BrokerIdZNode:
        path = broker_path(id)
        value = decode_json(path, data)
        if _int(path, value, "version") == 1:
            host, port = _member(path, value, "host", str), _int(path, value, "port")
            endpoints: tuple[BrokerZNodeEndpoint, ...] = (
                BrokerZNodeEndpoint("PLAINTEXT", host, port, "PLAINTEXT"),
            )
        else:
            protocols = value.get("listener_security_protocol_map") or {}
            endpoints = tuple(
                _endpoint(path, text, protocols) for text in _member(path, value, "endpoints", list)
            )
        features = value.get("features")
        return cls(
            id=id,
            endpoints=endpoints,
            rack=value.get("rack"),
            timestamp_ms=_int(path, value, "timestamp") if "timestamp" in value else -1,
            jmx_port=_int(path, value, "jmx_port") if "jmx_port" in value else -1,
            features=features if isinstance(features, dict) else {},
        )


_BROKER_ORDER: Final = (
    *("features", "listener_security_protocol_map", "endpoints", "rack"),
    *("jmx_port", "port", "host", "version", "timestamp"),
)


def _ordered(value: Mapping[str, Any], order: Sequence[str]) -> dict[str, Any]:
    return {name: value[name] for name in order if name in value}


def _endpoint(path: str, text: Any, protocols: Mapping[str, str]) -> BrokerZNodeEndpoint:
    listener, separator, address = str(text).partition("://")
    host, colon, port = address.rpartition(":")
    if not separator or not colon or not port.lstrip("-").isdigit():
        raise ZNodeFormatError(f"{path} has an endpoint that is no address: {text!r}")
    return BrokerZNodeEndpoint(listener, host.strip("[]"), int(port), protocols.get(listener, listener))


# /brokers/topics/T and its partitions


class PartitionAssignment(NamedTuple):
    """`replicas` are all: those that are there, and those that a reassignment is adding or removing."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicZNode:
    """A topic; the versions before 2.8 have no id, and before 2.4 no reassignments."""

    topic: str
    assignment: Mapping[int, PartitionAssignment]
    topic_id: bytes | None = None

    def encode(self) -> bytes:
        partitions = sorted(self.assignment.items())
        value: dict[str, Any] = {
            "partitions": {str(p): list(each.replicas) for p, each in partitions},
            "topic_id": None if self.topic_id is None else uuid_text(self.topic_id),
            "adding_replicas": {str(p): list(each.adding) for p, each in partitions if each.adding},
            "removing_replicas": {str(p): list(each.removing) for p, each in partitions if each.removing},
            "version": 3,
        }
        if self.topic_id is None:
            del value["topic_id"]
        return encode_json(value)

    @classmethod
    def decode(cls, topic: str, data: bytes) -> TopicZNode:
        path = topic_path(topic)
        value = decode_json(path, data)
        adding = value.get("adding_replicas") or {}
        removing = value.get("removing_replicas") or {}
        assignment = {}
        for name, replicas in _member(path, value, "partitions", dict).items():
            if not name.isdigit():
                raise ZNodeFormatError(f"{path} has a partition that is no number: {name!r}")
            assignment[int(name)] = PartitionAssignment(
                replicas=_ids(path, replicas),
                adding=_ids(path, adding.get(name, [])),
                removing=_ids(path, removing.get(name, [])),
            )
        id = value.get("topic_id")
        try:
            topic_id = None if id is None else parse_uuid(id)
        except (TypeError, ValueError):
            raise ZNodeFormatError(f"{path} has no valid 'topic_id': {id!r}") from None
        return cls(topic, dict(sorted(assignment.items())), topic_id)


@dataclass(frozen=True, slots=True)
class TopicPartitionStateZNode:
    """Leader and in-sync replicas of a partition. The znode's version is the partition epoch."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    # 1 after an unclean election until the leader has recovered; written since 3.2, and only then.
    leader_recovery_state: int = 0

    def encode(self) -> bytes:
        value = {
            "controller_epoch": self.controller_epoch,
            "leader": self.leader,
            "version": 1,
            "leader_epoch": self.leader_epoch,
            "isr": list(self.isr),
        }
        if self.leader_recovery_state:
            value["leader_recovery_state"] = self.leader_recovery_state
        return encode_json(value)

    @classmethod
    def decode(cls, partition: TopicPartition, data: bytes) -> TopicPartitionStateZNode:
        path = partition_state_path(partition)
        value = decode_json(path, data)
        recovery = value.get("leader_recovery_state", 0)
        return cls(
            leader=_int(path, value, "leader"),
            leader_epoch=_int(path, value, "leader_epoch"),
            isr=_ids(path, value.get("isr")),
            controller_epoch=_int(path, value, "controller_epoch"),
            leader_recovery_state=recovery if isinstance(recovery, int) else 0,
        )


# /config/TYPE/NAME and /config/changes


def encode_config(configs: Mapping[str, str]) -> bytes:
    return encode_json({"version": 1, "config": dict(configs)})


def decode_config(path: str, data: bytes) -> dict[str, str]:
    """The configuration of an entity; a znode without data, which Kafka creates above others, has none."""
    if not data:
        return {}
    configs = decode_json(path, data).get("config")
    if configs is None:
        return {}
    if not isinstance(configs, dict):
        raise ZNodeFormatError(f"{path} has no valid 'config': {configs!r}")
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in configs.items()}


def encode_config_change(entity_path: str) -> bytes:
    """The notification for an entity, such as `topics/orders` or `users/alice/clients/app`."""
    return encode_json({"version": 2, "entity_path": entity_path})


def decode_config_change(path: str, data: bytes) -> str:
    value = decode_json(path, data)
    if value.get("version") == 1:
        type, name = _member(path, value, "entity_type", str), _member(path, value, "entity_name", str)
        return f"{type}/{name}"
    entity: str = _member(path, value, "entity_path", str)
    return entity


# SCRAM credentials, which are values of a user's configuration


class ScramZNodeCredential(NamedTuple):
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def encode(self) -> str:
        texts = (base64.b64encode(each).decode() for each in self[:3])
        salt, stored_key, server_key = texts
        return f"salt={salt},stored_key={stored_key},server_key={server_key},iterations={self.iterations}"

    @classmethod
    def decode(cls, path: str, text: str) -> ScramZNodeCredential:
        parts = dict(part.partition("=")[::2] for part in text.split(","))
        try:
            salt, stored, server = (
                base64.b64decode(parts[name], validate=True) for name in ("salt", "stored_key", "server_key")
            )
            return cls(salt, stored, server, int(parts["iterations"]))
        except (KeyError, ValueError):
            raise ZNodeFormatError(f"{path} has a SCRAM credential that cannot be read") from None


# /admin


def decode_reassign_partitions(data: bytes) -> dict[TopicPartition, tuple[int, ...]]:
    path = REASSIGN_PARTITIONS
    return {
        TopicPartition(_member(path, each, "topic", str), _int(path, each, "partition")): _ids(
            path, each.get("replicas")
        )
        for each in _member(path, decode_json(path, data), "partitions", list)
    }


def decode_partitions(path: str, data: bytes) -> list[TopicPartition]:
    return [
        TopicPartition(_member(path, each, "topic", str), _int(path, each, "partition"))
        for each in _member(path, decode_json(path, data), "partitions", list)
    ]


# /latest_producer_id_block


@dataclass(frozen=True, slots=True)
class ProducerIdBlockZNode:
    """The newest block of producer ids that was given to a broker; `last` is part of it."""

    broker_id: int
    first: int
    last: int

    def encode(self) -> bytes:
        return encode_json(
            {
                "version": 1,
                "broker": self.broker_id,
                "block_start": str(self.first),
                "block_end": str(self.last),
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> ProducerIdBlockZNode:
        path = LATEST_PRODUCER_ID_BLOCK
        value = decode_json(path, data)
        return cls(
            _int(path, value, "broker"), _int(path, value, "block_start"), _int(path, value, "block_end")
        )


# /kafka-acl and /kafka-acl-extended

RESOURCE_TYPE_NAMES: Final[Mapping[int, str]] = {
    AclResourceType.TOPIC: "Topic",
    AclResourceType.GROUP: "Group",
    AclResourceType.CLUSTER: "Cluster",
    AclResourceType.TRANSACTIONAL_ID: "TransactionalId",
    AclResourceType.DELEGATION_TOKEN: "DelegationToken",
    AclResourceType.USER: "User",
}
RESOURCE_TYPES_BY_NAME: Final = {name: type for type, name in RESOURCE_TYPE_NAMES.items()}
_OPERATION_NAMES: Final[Mapping[int, str]] = {
    operation: "".join(part.title() for part in operation.name.split("_"))
    for operation in AclOperation
    if operation != AclOperation.ANY
}
_OPERATIONS_BY_NAME: Final = {name: operation for operation, name in _OPERATION_NAMES.items()}
_PERMISSION_NAMES: Final[Mapping[int, str]] = {
    AclPermissionType.ALLOW: "Allow",
    AclPermissionType.DENY: "Deny",
}
_PERMISSIONS_BY_NAME: Final = {name: permission for permission, name in _PERMISSION_NAMES.items()}


class AclZNodeEntry(NamedTuple):
    """One of the entries of a resource, with the numbers of the protocol."""

    principal: str
    permission_type: int
    operation: int
    host: str


def encode_acls(entries: Iterable[AclZNodeEntry]) -> bytes:
    acls = [
        {
            "principal": entry.principal,
            "permissionType": _PERMISSION_NAMES[entry.permission_type],
            "host": entry.host,
            "operation": _OPERATION_NAMES[entry.operation],
        }
        for entry in entries
    ]
    return encode_json({"acls": acls, "version": 1})


def decode_acls(path: str, data: bytes) -> list[AclZNodeEntry]:
    if not data:
        return []
    entries = []
    for each in _member(path, decode_json(path, data), "acls", list):
        operation = _OPERATIONS_BY_NAME.get(_member(path, each, "operation", str))
        permission = _PERMISSIONS_BY_NAME.get(_member(path, each, "permissionType", str))
        if operation is None or permission is None:
            raise ZNodeFormatError(f"{path} has an entry of an unknown kind: {each!r}")
        principal, host = _member(path, each, "principal", str), _member(path, each, "host", str)
        entries.append(AclZNodeEntry(principal, permission, operation, host))
    return entries


def encode_acl_change(pattern_type: int, resource_type: int, resource_name: str) -> bytes:
    """The notification under `/kafka-acl-changes`, or `/kafka-acl-extended-changes` if not literal."""
    type = AclResourceType(resource_type).name
    if pattern_type == PatternType.LITERAL:
        return f"{type}:{resource_name}".encode()
    return encode_json(
        {
            "version": 1,
            "resourceType": type,
            "name": resource_name,
            "patternType": PatternType(pattern_type).name,
        }
    )


# /delegation_token/tokens/ID


@dataclass(frozen=True, slots=True)
class DelegationTokenZNode:
    """A token without its secret, which brokers derive from the id and `delegation.token.secret.key`."""

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issue_timestamp_ms: int
    expiry_timestamp_ms: int
    max_timestamp_ms: int

    def encode(self) -> bytes:
        return encode_json(
            {
                "issueTimestamp": self.issue_timestamp_ms,
                "renewers": [sanitize(each) for each in self.renewers],
                "tokenRequester": sanitize(self.requester),
                "tokenId": self.token_id,
                "owner": sanitize(self.owner),
                "expiryTimestamp": self.expiry_timestamp_ms,
                "maxTimestamp": self.max_timestamp_ms,
                "version": 3,
            }
        )

    @classmethod
    def decode(cls, path: str, data: bytes) -> DelegationTokenZNode:
        value = decode_json(path, data)
        owner = _member(path, value, "owner", str)
        return cls(
            token_id=_member(path, value, "tokenId", str),
            owner=desanitize(owner),
            requester=desanitize(value.get("tokenRequester") or owner),
            renewers=tuple(desanitize(each) for each in _member(path, value, "renewers", list)),
            issue_timestamp_ms=_int(path, value, "issueTimestamp"),
            expiry_timestamp_ms=_int(path, value, "expiryTimestamp"),
            max_timestamp_ms=_int(path, value, "maxTimestamp"),
        )


# /feature


@dataclass(frozen=True, slots=True)
class FeatureZNode:
    """Finalized features, name to level; not `enabled` below inter.broker.protocol.version 2.7."""

    enabled: bool = True
    features: Mapping[str, int] = field(default_factory=dict)

    def encode(self) -> bytes:
        return encode_json(
            {"features": dict(self.features), "version": 2, "status": 1 if self.enabled else 0}
        )

    @classmethod
    def decode(cls, data: bytes) -> FeatureZNode:
        value = decode_json(FEATURE, data)
        features = {}
        for name, level in _member(FEATURE, value, "features", dict).items():
            # Version 1 has ranges; what counts is the highest level.
            features[name] = _int(FEATURE, level, "max_version_level") if isinstance(level, dict) else level
        return cls(_int(FEATURE, value, "status") == 1, features)


# /migration


@dataclass(frozen=True, slots=True)
class MigrationZNode:
    """How far a migration to KRaft by Apache Kafka came; controllers exist since then."""

    kraft_controller_id: int
    kraft_controller_epoch: int
    kraft_metadata_offset: int
    kraft_metadata_epoch: int

    @classmethod
    def decode(cls, data: bytes) -> MigrationZNode:
        value = decode_json(MIGRATION, data)
        return cls(
            kraft_controller_id=_int(MIGRATION, value, "kraft_controller_id"),
            kraft_controller_epoch=_int(MIGRATION, value, "kraft_controller_epoch"),
            kraft_metadata_offset=_int(MIGRATION, value, "kraft_metadata_offset"),
            kraft_metadata_epoch=_int(MIGRATION, value, "kraft_metadata_epoch"),
        )
