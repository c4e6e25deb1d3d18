"""Every API, asked by principals who may, may not, and may not even know: the requests of the matrix.

Each user of `ACLS` may do one kind of thing with the resources whose names begin with `open`; `shown` may be
described, and of `hidden` only super users know. Names with `-none` do not exist. A request names several of
them, so that one answer shows what is left out, what fails, and with which error. What changes something
is validated only, or does not exist, so that all users see the same cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from ottla.protocol.acl import (
    CLUSTER_NAME,
    AclOperation,
    AclPermissionType,
    AclResourceType,
    PatternType,
)
from ottla.protocol.api import API, API_BY_NAME, ListenerType
from ottla.protocol.headers import RequestHeader, request_header_version
from ottla.protocol.messages.create_acls import AclCreation
from ottla.protocol.schema import Request
from ottla.security.principal import KafkaPrincipal
from tests.kafka.scripts.kit import batch_of
from tests.support.messages import request_of

TOPICS: Final = ("open", "shown", "hidden")
# No user but a super user may delete it.
PRECIOUS: Final = "precious"
MISSING: Final = ("open-none", "hidden-none")
NAMES: Final = (*TOPICS, *MISSING)
GROUPS: Final = ("open-g", "shown-g", "hidden-g", "open-none-g", "hidden-none-g")
SHARE_KEY: Final = "open-g:AAAAAAAAAAAAAAAAAAAAAQ:0"
TXNS: Final = ("open-t", "shown-t", "hidden-t")

_T, _G, _C = AclResourceType.TOPIC, AclResourceType.GROUP, AclResourceType.CLUSTER
_X, _U = AclResourceType.TRANSACTIONAL_ID, AclResourceType.USER
_OP = AclOperation
_Row = tuple[AclResourceType, str, PatternType, AclOperation, AclPermissionType]


def _allow(kind: AclResourceType, name: str, *operations: AclOperation) -> list[_Row]:
    """Permissions for what begins with a name; of the cluster, for the cluster."""
    pattern = PatternType.LITERAL if name in ("*", CLUSTER_NAME) else PatternType.PREFIXED
    return [(kind, name, pattern, operation, AclPermissionType.ALLOW) for operation in operations]


def _deny(kind: AclResourceType, name: str, *operations: AclOperation) -> list[_Row]:
    pattern = PatternType.LITERAL if name in ("*", CLUSTER_NAME) else PatternType.PREFIXED
    return [(kind, name, pattern, operation, AclPermissionType.DENY) for operation in operations]


_SHOWN: Final = [
    *_allow(_T, "shown", _OP.DESCRIBE),
    *_allow(_G, "shown", _OP.DESCRIBE),
    *_allow(_X, "shown", _OP.DESCRIBE),
]
ACLS: Final[dict[str, list[_Row]]] = {
    "reader": [*_SHOWN, *_allow(_T, "open", _OP.READ), *_allow(_G, "open", _OP.READ)],
    "writer": [
        *_SHOWN,
        *_allow(_T, "open", _OP.WRITE),
        *_allow(_X, "open", _OP.WRITE),
        *_allow(_G, "open", _OP.READ),
        *_allow(_T, "fresh", _OP.CREATE),
    ],
    "idempotent": _allow(_C, CLUSTER_NAME, _OP.IDEMPOTENT_WRITE),
    "describer": [
        *_SHOWN,
        *_allow(_T, "open", _OP.DESCRIBE, _OP.DESCRIBE_CONFIGS),
        *_allow(_G, "open", _OP.DESCRIBE, _OP.DESCRIBE_CONFIGS),
        *_allow(_X, "open", _OP.DESCRIBE),
        *_allow(_C, CLUSTER_NAME, _OP.DESCRIBE, _OP.DESCRIBE_CONFIGS),
    ],
    "creator": _allow(_C, CLUSTER_NAME, _OP.CREATE),
    "operator": [
        *_SHOWN,
        *_allow(_T, "open", _OP.ALTER, _OP.DELETE, _OP.ALTER_CONFIGS, _OP.CREATE),
        *_allow(_G, "open", _OP.DELETE, _OP.ALTER_CONFIGS),
        *_allow(_C, CLUSTER_NAME, _OP.ALTER, _OP.ALTER_CONFIGS),
    ],
    "denied": [
        *_allow(_T, "*", _OP.ALL),
        *_allow(_G, "*", _OP.ALL),
        *_allow(_X, "*", _OP.ALL),
        *_allow(_C, CLUSTER_NAME, _OP.ALL),
        *_deny(_T, "hidden", _OP.ALL),
        *_deny(_T, PRECIOUS, _OP.DELETE),
        *_deny(_T, "open", _OP.READ, _OP.WRITE),
        *_deny(_G, "open", _OP.READ),
        *_deny(_G, "hidden", _OP.DESCRIBE),
        *_deny(_X, "open", _OP.WRITE),
        *_deny(_C, CLUSTER_NAME, _OP.ALTER, _OP.DELETE, _OP.CLUSTER_ACTION),
    ],
    "node": _allow(_C, CLUSTER_NAME, _OP.CLUSTER_ACTION),
    "stranger": [],
}
USERS: Final = (*ACLS, "admin")


def creations() -> list[AclCreation]:
    return [
        AclCreation(
            resource_type=kind,
            resource_name=name,
            resource_pattern_type=pattern,
            principal=f"User:{user}",
            host="*",
            operation=operation,
            permission_type=permission,
        )
        for user, rows in ACLS.items()
        for kind, name, pattern, operation, permission in rows
    ]


# Marks what is not asked by super users, as they would succeed.
REFUSED: Final = "refused: "

Fields = dict[str, Any]
Row = tuple[str, str, Fields | Callable[[int], Fields]]
"""A label, the name of an API, and the fields of the request, or what gives them for a version."""
Labelled = tuple[str, type[Request], Callable[[int], Request]]
Ids = dict[str, bytes]


def requests(ids: Ids) -> Iterator[Labelled]:
    """What each user asks; the function makes the request for a version."""
    for rows in (
        _metadata(ids),
        _records(ids),
        _groups(ids),
        _transactions(),
        _share_sessions(ids),
        _share_states(ids),
        _topics(ids),
        _configs(),
        _cluster(),
    ):
        yield from map(_labelled, rows)


def _labelled(row: Row) -> Labelled:
    label, api, fields = row
    make = fields if callable(fields) else lambda _: fields
    return label, API_BY_NAME[api].request_class, lambda version: request_of(api, **make(version))


def _metadata(ids: Ids) -> Iterator[Row]:
    def of(topics: list[Fields] | None, *, create: bool = False, operations: bool = True) -> Any:
        return lambda v: {
            "topics": topics if topics is not None or v else [],
            "allow_auto_topic_creation": create or v < 4,
            "include_topic_authorized_operations": operations and v >= 8,
            "include_cluster_authorized_operations": operations and 8 <= v <= 10,
        }

    def not_existing(version: int) -> Fields:
        fields: Fields = of(_named(MISSING if version >= 4 else TOPICS))(version)
        return fields

    def by_id(version: int) -> Fields:
        if version < 12:
            return {"topics": [], "allow_auto_topic_creation": True}
        wanted = [ids["open"], ids["shown"], ids["hidden"], bytes(15) + b"\x07"]
        return {
            "topics": [{"name": None, "topic_id": each} for each in wanted],
            "include_topic_authorized_operations": True,
        }

    yield "all", "Metadata", of(None, create=True, operations=False)
    yield "named", "Metadata", of(_named(TOPICS))
    yield "by id", "Metadata", by_id
    yield "all with operations", "Metadata", of(None, create=True)
    yield "not existing", "Metadata", not_existing
    yield REFUSED + "created by a look", "Metadata", of(_named(("hidden-auto",)), create=True)
    yield "all partitions", "DescribeTopicPartitions", {}
    yield "partitions", "DescribeTopicPartitions", {"topics": _named(NAMES)}


def _named(names: Iterable[str], key: str = "name", **fields: Any) -> list[Fields]:
    """Topics by name, all with the same fields."""
    return [{key: name, **fields} for name in names]


def _by_version(ids: Ids, version: int, first_by_id: int, key: str = "name", **fields: Any) -> list[Fields]:
    """Topics by name, in versions that have no ids of topics, and else by id."""
    if version < first_by_id:
        return _named(NAMES, key, **fields)
    return [{"topic_id": _id(ids, name), **fields} for name in NAMES]


def _id(ids: Ids, name: str) -> bytes:
    """The id of a topic; of one that does not exist, an id of its own."""
    return ids.get(name, name.encode().ljust(16, b"\0"))


def _records(ids: Ids) -> Iterator[Row]:
    def produced(batch: bytes, transactional_id: str | None = None, acks: int = 1) -> Callable[[int], Fields]:
        return lambda v: {
            "acks": acks,
            "timeout_ms": 10_000,
            "transactional_id": transactional_id,
            "topic_data": _by_version(ids, v, 13, partition_data=[{"index": 0, "records": batch}]),
        }

    yield "records", "Produce", produced(batch_of(b"x"))
    transactional = batch_of(b"x", producer_id=77_000, producer_epoch=0, base_sequence=0, transactional=True)
    for transactional_id in (None, *TXNS):
        label = f"transactional records {transactional_id}"
        yield label, "Produce", produced(transactional, transactional_id)
    yield "no answer", "Produce", produced(transactional, "hidden-t", acks=0)

    def fetched(replica: int) -> Callable[[int], Fields]:
        return lambda v: {
            "max_wait_ms": 0,
            "min_bytes": 0,
            "topics": _by_version(
                ids, v, 13, "topic", partitions=[{"partition": 0, "partition_max_bytes": 1_000}]
            ),
            **(
                {"replica_state": {"replica_id": replica, "replica_epoch": -1}}
                if v >= 15
                else {"replica_id": replica}
            ),
        }

    yield "fetch", "Fetch", fetched(-1)
    yield "fetch as a follower", "Fetch", fetched(9)
    earliest = _named(NAMES, partitions=[{"partition_index": 0, "timestamp": -2}])
    yield "offsets", "ListOffsets", {"replica_id": -1, "topics": earliest}
    epochs = _named(NAMES, "topic", partitions=[{"partition": 0, "leader_epoch": 0}])
    yield "epochs", "OffsetForLeaderEpoch", {"topics": epochs}
    deleted = _named(NAMES, partitions=[{"partition_index": 0, "offset": 0}])
    yield "delete records", "DeleteRecords", {"timeout_ms": 10_000, "topics": deleted}
    yield "producers", "DescribeProducers", {"topics": _named(NAMES, partition_indexes=[0])}


def _groups(ids: Ids) -> Iterator[Row]:
    def coordinators(kind: int, keys: tuple[str, ...]) -> Callable[[int], Fields]:
        def make(version: int) -> Fields:
            if version >= 4:
                return {"key_type": kind, "coordinator_keys": list(keys)}
            return {"key": keys[-1], **({"key_type": kind} if version >= 1 else {})}

        return make

    for kind, keys in ((0, GROUPS), (1, TXNS), (2, (SHARE_KEY,))):
        yield f"coordinators {kind}", "FindCoordinator", coordinators(kind, keys)
    for group in ("", *GROUPS):
        yield from _of_group(group, ids)
    # The internal topic of the one that joins is to be created, for which it needs a permission of its own.
    store = {"state_changelog_topics": [{"name": "open-none-store"}]}
    joining = {
        "rebalance_timeout_ms": 10_000,
        "process_id": "p",
        "active_tasks": [],
        "standby_tasks": [],
        "warmup_tasks": [],
        "topology": _topology(("open",), **store),
    }
    for epoch, more in ((0, joining), (-1, {})):
        member = {"group_id": "open-streams-g", "member_id": "m", "member_epoch": epoch, **more}
        yield f"streams member in epoch {epoch}", "StreamsGroupHeartbeat", member

    def fetched(names: tuple[str, ...] | None) -> Callable[[int], Fields]:
        def make(version: int) -> Fields:
            if version < 8:
                return {"group_id": "open-g", "topics": _named(names or NAMES, partition_indexes=[0])}
            topics = None if names is None else _by_version(ids, version, 10, partition_indexes=[0])
            return {"groups": _named(GROUPS, "group_id", topics=topics)}

        return make

    for label, topics in (("share", _named(NAMES, "topic_name", partitions=[0])), ("all share", None)):
        groups = _named(GROUPS, "group_id", topics=topics)
        yield f"{label} offsets of groups", "DescribeShareGroupOffsets", {"groups": groups}
    described = {"group_ids": list(GROUPS), "include_authorized_operations": True}
    yield "describe share groups", "ShareGroupDescribe", described
    yield "offsets of groups", "OffsetFetch", fetched(NAMES)
    yield "all offsets of groups", "OffsetFetch", fetched(None)
    yield "groups", "ListGroups", {}
    yield (
        "describe groups",
        "DescribeGroups",
        lambda v: {"groups": list(GROUPS), "include_authorized_operations": v >= 3},
    )
    yield "describe consumer groups", "ConsumerGroupDescribe", described
    yield "describe streams groups", "StreamsGroupDescribe", described
    yield "delete groups", "DeleteGroups", {"groups_names": ["open-none-g", "hidden-g", "shown-g"]}


def _of_group(group: str, ids: Ids) -> Iterator[Row]:
    """What a member of a group asks that its coordinator does not know."""
    protocols = [{"name": "range", "metadata": b""}]
    yield (
        f"join {group}",
        "JoinGroup",
        {
            "group_id": group,
            "session_timeout_ms": 10,
            "member_id": "m",
            "protocol_type": "consumer",
            "protocols": protocols,
        },
    )
    classic = {"group_id": group, "generation_id": 3, "member_id": "m"}
    yield (
        f"sync {group}",
        "SyncGroup",
        lambda v: {**classic, **({"protocol_type": "consumer", "protocol_name": "range"} if v >= 5 else {})},
    )
    yield f"heartbeat {group}", "Heartbeat", classic
    yield (
        f"leave {group}",
        "LeaveGroup",
        lambda v: {
            "group_id": group,
            **({"member_id": "m"} if v < 3 else {"members": [{"member_id": "m"}]}),
        },
    )
    committed = {"partition_index": 0, "committed_offset": 3, "committed_metadata": ""}
    yield (
        f"commit {group}",
        "OffsetCommit",
        # A member that does not exist: what may be committed is found unknown.
        lambda v: {
            "group_id": group,
            "generation_id_or_member_epoch": 4,
            "member_id": "m",
            "topics": _by_version(ids, v, 10, partitions=[committed]),
        },
    )
    topics = _named(NAMES, partitions=[{"partition_index": 7}])
    yield f"delete offsets {group}", "OffsetDelete", {"group_id": group, "topics": topics}
    member = {"group_id": group, "member_id": "m", "member_epoch": 5}
    yield f"consumer protocol {group}", "ConsumerGroupHeartbeat", member
    for names in (("open",), ("hidden",), ("open", "hidden-none")):
        subscribed = {**member, "subscribed_topic_names": list(names)}
        yield f"consumer protocol {group} {names}", "ConsumerGroupHeartbeat", subscribed
        yield f"share group {group} {names}", "ShareGroupHeartbeat", subscribed
    # Of topics that do not exist: nothing is altered, and no group is made. For one that exists Apache Kafka
    # remembers the group until it restarts, also if there is no such partition.
    missing = _named(MISSING, "topic_name", partitions=[{"partition_index": 7}])
    yield f"alter share offsets {group}", "AlterShareGroupOffsets", {"group_id": group, "topics": missing}
    deleted = {"group_id": group, "topics": _named(NAMES, "topic_name")}
    yield f"delete share offsets {group}", "DeleteShareGroupOffsets", deleted
    for read in ((), ("open",), ("hidden",), ("open", "hidden-none")):
        streams = {**member, "topology": _topology(read) if read else None}
        yield f"streams protocol {group} {read}", "StreamsGroupHeartbeat", streams


def _topology(topics: tuple[str, ...], **fields: Any) -> Fields:
    """A topology that reads these topics."""
    return {"subtopologies": [{"subtopology_id": "0", "source_topics": list(topics), **fields}]}


def _transactions() -> Iterator[Row]:
    for transactional_id in (None, *TXNS):
        # A timeout that is refused after the check, so that no transaction comes into being.
        timeout_ms = 60_000 if transactional_id is None else -1
        fields = {"transactional_id": transactional_id, "transaction_timeout_ms": timeout_ms}
        yield f"init {transactional_id}", "InitProducerId", fields
    for transactional_id in TXNS:
        yield from _of_transaction(transactional_id)
    markers = [{"producer_id": 9_999, "topics": [{"name": "open-none", "partition_indexes": [0]}]}]
    yield "markers", "WriteTxnMarkers", {"markers": markers}
    yield "describe transactions", "DescribeTransactions", {"transactional_ids": list(TXNS)}
    yield "transactions", "ListTransactions", {}


def _of_transaction(transactional_id: str) -> Iterator[Row]:
    def added(topics: list[Fields]) -> Callable[[int], Fields]:
        values = {"transactional_id": transactional_id, "producer_id": 9_999, "topics": topics}
        return lambda v: (
            {f"v3_and_below_{name}": value for name, value in values.items()}
            if v < 4
            else {"transactions": [values]}
        )

    for names in (NAMES[:1], NAMES):
        label = f"add {len(names)} to {transactional_id}"
        yield label, "AddPartitionsToTxn", added(_named(names, partitions=[0]))
    transaction = {"transactional_id": transactional_id, "producer_id": 9_999}
    offset = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    for group in GROUPS[:3]:
        fields = {**transaction, "group_id": group}
        yield f"add {group} to {transactional_id}", "AddOffsetsToTxn", fields
        commit = {**fields, "topics": _named(NAMES[1:], partitions=[offset])}
        yield (
            f"commit offsets of {group} in {transactional_id}",
            "TxnOffsetCommit",
            lambda v, commit=commit: {
                **commit,
                **({"generation_id_or_member_epoch": 4, "member_id": "m"} if v >= 3 else {}),
            },
        )
    yield f"end {transactional_id}", "EndTxn", {**transaction, "committed": True}


def _share_sessions(ids: Ids) -> Iterator[Row]:
    """Fetch with a new session, and acknowledge in it. No partition is fetched that exists: its records would
    be acquired, and acknowledgements of what is not acquired fail. Nor any topic that does not exist: Apache
    Kafka fails then, with UNKNOWN_SERVER_ERROR.
    """
    batches = [{"first_offset": 0, "last_offset": 0, "acknowledge_types": [1]}]
    acknowledged = [{"partition_index": index, "acknowledgement_batches": batches} for index in (0, 7)]
    fetched = [{"partition_index": 7}]

    def topics(partitions: list[Fields]) -> list[Fields]:
        return [{"topic_id": _id(ids, name), "partitions": partitions} for name in TOPICS]

    for group in GROUPS:
        member = {"group_id": group, "member_id": "AAAAAAAAAAAAAAAAAAAAAQ"}
        limits = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1_000, "max_records": 10, "batch_size": 10}
        fetch = {**member, "share_session_epoch": 0, **limits, "topics": topics(fetched)}
        yield f"share fetch {group}", "ShareFetch", fetch
        yield (
            f"share acknowledge {group}",
            "ShareAcknowledge",
            # The versions are asked one after the other, each with the next epoch of the session.
            lambda v, member=member: {**member, "share_session_epoch": v, "topics": topics(acknowledged)},
        )


def _share_states(ids: Ids) -> Iterator[Row]:
    """Only nodes of the cluster keep the state of share groups, whatever else a user may do."""

    def of(topic_id: bytes, **fields: Any) -> Fields:
        topic = {"topic_id": topic_id, "partitions": [{"partition": 0, **fields}]}
        return {"group_id": SHARE_KEY.partition(":")[0], "topics": [topic]}

    batch = {"first_offset": 0, "last_offset": 0, "delivery_state": 2, "delivery_count": 1}
    open_topic = ids["open"]
    # An id that no request has named before, as ids are numbered in the order in which answers have them.
    initialized = of(_id(ids, "share-none"), state_epoch=1, start_offset=0)
    written = of(open_topic, state_epoch=1, leader_epoch=0, start_offset=-1, state_batches=[batch])
    yield "initialize share state", "InitializeShareGroupState", initialized
    yield "read share state", "ReadShareGroupState", of(open_topic, leader_epoch=0)
    yield "write share state", "WriteShareGroupState", written
    yield "delete share state", "DeleteShareGroupState", of(open_topic)
    yield "read the summary of share state", "ReadShareGroupStateSummary", of(open_topic, leader_epoch=0)


def _topics(ids: Ids) -> Iterator[Row]:
    def created(*names: str) -> Fields:
        topics = _named(names, num_partitions=1, replication_factor=1)
        return {"topics": topics, "timeout_ms": 10_000, "validate_only": True}

    def deleted(names: Iterable[str], topics: list[Fields]) -> Callable[[int], Fields]:
        """By name alone in the versions that know no other way."""
        return lambda v: {
            **({"topic_names": list(names)} if v < 6 else {"topics": topics}),
            "timeout_ms": 10_000,
        }

    yield "create", "CreateTopics", created(*NAMES, "fresh-one")
    yield "create twice", "CreateTopics", created("hidden-none", "hidden-none", "fresh-x")
    yield "create the metadata", "CreateTopics", created("__cluster_metadata")
    unknown = {"topic_id": bytes(15) + b"\x09"}
    yield "delete", "DeleteTopics", deleted(MISSING, [*_named(MISSING), unknown])
    precious = [{"name": PRECIOUS}, {"topic_id": ids["hidden"]}]
    yield REFUSED + "delete precious", "DeleteTopics", deleted([PRECIOUS], precious)
    yield REFUSED + "delete precious by id", "DeleteTopics", deleted([], [{"topic_id": ids[PRECIOUS]}])
    more = {"topics": _named(NAMES, count=3), "timeout_ms": 10_000, "validate_only": True}
    yield "more partitions", "CreatePartitions", more
    for names in (["open"], None):
        partitions = None if names is None else _named(names, "topic", partitions=[0])
        elected = {"topic_partitions": partitions, "timeout_ms": 10_000}
        yield f"elect leaders of {names}", "ElectLeaders", elected
    moved = _named(("open", "hidden", "hidden-none"), partitions=[{"partition_index": 0, "replicas": None}])
    yield "reassign", "AlterPartitionReassignments", {"timeout_ms": 10_000, "topics": moved}
    yield "reassignments", "ListPartitionReassignments", {"timeout_ms": 10_000, "topics": None}


_TOPIC_CONFIG, _BROKER_CONFIG, _LOGGER_CONFIG, _METRICS_CONFIG, _GROUP_CONFIG = 2, 4, 8, 16, 32


def _configs() -> Iterator[Row]:
    resources = [
        *((_TOPIC_CONFIG, name) for name in NAMES),
        *((_GROUP_CONFIG, group) for group in ("open-g", "hidden-g")),
        (_BROKER_CONFIG, "1"),
        (_BROKER_CONFIG, "7"),
        (_METRICS_CONFIG, "m"),
    ]
    keys = {
        _TOPIC_CONFIG: "retention.ms",
        _BROKER_CONFIG: "log.retention.ms",
        _METRICS_CONFIG: "interval.ms",
        _GROUP_CONFIG: "consumer.session.timeout.ms",
    }

    def changed(**fields: Any) -> Fields:
        return {
            "resources": [
                {
                    "resource_type": kind,
                    "resource_name": name,
                    "configs": [{"name": keys[kind], "value": "60000", **fields}],
                }
                for kind, name in resources
            ],
            "validate_only": True,
        }

    described = [
        {"resource_type": kind, "resource_name": name, "configuration_keys": [keys[kind]]}
        for kind, name in resources
    ]
    yield "configs", "DescribeConfigs", {"resources": described}
    yield "alter configs", "AlterConfigs", changed()
    yield "change configs", "IncrementalAlterConfigs", changed(config_operation=0)
    levels = {
        "resource_type": _LOGGER_CONFIG,
        "resource_name": "1",
        "configs": [{"name": "root", "config_operation": 0, "value": "INFO"}],
    }
    yield "change levels", "IncrementalAlterConfigs", {"resources": [levels], "validate_only": True}
    yield "config resources", "ListConfigResources", {}
    updates = [{"feature": "no.such", "max_version_level": 1}]
    yield "features", "UpdateFeatures", {"feature_updates": updates}


def _cluster() -> Iterator[Row]:
    for api in ("AddRaftVoter", "RemoveRaftVoter"):
        yield f"{api}Request", api, {"cluster_id": "another", "voter_id": 9}
    yield "cluster", "DescribeCluster", {"include_cluster_authorized_operations": True}
    yield "directories", "DescribeLogDirs", {"topics": [{"topic": "hidden", "partitions": [0]}]}
    moved = {"path": "/no/such", "topics": _named(NAMES, partitions=[0])}
    yield "move", "AlterReplicaLogDirs", {"dirs": [moved]}
    other = {"topic_name": "other", "partitions": [{"partition_index": 0}]}
    yield "quorum", "DescribeQuorum", {"topics": [other]}
    yield "unregister", "UnregisterBroker", {"broker_id": 99}
    anything = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    yield "acls", "DescribeAcls", {**anything, "principal_filter": "User:creator"}
    yield "delete acls", "DeleteAcls", {"filters": [{**anything, "principal_filter": "User:none"}]}
    creation = {
        "resource_type": _C,
        "resource_name": "other",
        "principal": "User:x",
        "host": "*",
        "operation": _OP.READ,
        "permission_type": 3,
    }
    yield "create acls", "CreateAcls", {"creations": [creation]}
    yield "quotas", "DescribeClientQuotas", {}
    entry = {
        "entity": [{"entity_type": "user", "entity_name": "u"}],
        "ops": [{"key": "producer_byte_rate", "value": 1000.0}],
    }
    yield "change quotas", "AlterClientQuotas", {"entries": [entry], "validate_only": True}
    yield "scram users", "DescribeUserScramCredentials", {"users": [{"name": "no-such"}]}
    deletions = [{"name": "no-such", "mechanism": 1}]
    yield "delete a scram user", "AlterUserScramCredentials", {"deletions": deletions}


# Users who may not act as a node: of others the answers of the quorum are not comparable.
NO_NODES: Final = ("reader", "describer", "operator", "denied", "stranger")


def controller_requests(ids: Ids) -> Iterator[Labelled]:
    """What is asked on the listener of controllers."""
    yield from map(_labelled, _of_controllers(ids))
    for wanted in map(_labelled, (*_topics(ids), *_configs(), *_cluster())):
        # The rest is not served there; SCRAM users Apache Kafka announces, and fails.
        label, kind, _ = wanted
        if ListenerType.CONTROLLER in API[kind.API_KEY].listeners and label != "scram users":
            yield wanted


def _of_controllers(ids: Ids) -> Iterator[Row]:
    for api in (
        "Vote",
        "BeginQuorumEpoch",
        "EndQuorumEpoch",
        "AlterPartition",
        "BrokerHeartbeat",
        "BrokerRegistration",
        "AllocateProducerIds",
        "ControllerRegistration",
        "AssignReplicasToDirs",
        "FetchSnapshot",
        "UpdateRaftVoter",
    ):
        yield f"{api}Request {REFUSED}", api, {}

    def fetched(version: int) -> Fields:
        topic = {"topic_id": bytes(15) + b"\x01"} if version >= 13 else {"topic": "__cluster_metadata"}
        return {"max_wait_ms": 0, "topics": [{**topic, "partitions": [{"partition": 0}]}]}

    yield f"fetch metadata {REFUSED}", "Fetch", fetched
    created = next(make(7) for label, _, make in map(_labelled, _topics(ids)) if label == "create")
    forged = {
        "request_data": request_frame(created, 7),
        "request_principal": KafkaPrincipal("User", "admin").encode(),
        "client_host_address": bytes([127, 0, 0, 1]),
    }
    yield f"forged envelope {REFUSED}", "Envelope", forged


def request_frame(request: Request, version: int) -> bytes:
    api = API[request.API_KEY]
    header = RequestHeader(
        request_api_key=api.key, request_api_version=version, correlation_id=7, client_id="forger"
    )
    return header.encode(request_header_version(api, version)) + request.encode(version)
