"""Every API, asked by principals who may, may not, and may not even know: the requests of the matrix.

Each user of `ACLS` may do one kind of thing with the resources whose names begin with `open`; `shown` may be
described, and of `hidden` only super users know. Names with `-none` do not exist. A request names several of
them, so that one answer shows what is left out, what fails, and with which error. What changes something
is validated only, or does not exist, so that all users see the same cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from ottla.protocol.acl import (
    CLUSTER_NAME,
    AclOperation,
    AclPermissionType,
    AclResourceType,
    PatternType,
)
from ottla.protocol.api import API, ListenerType
from ottla.protocol.headers import RequestHeader, request_header_version
from ottla.protocol.messages import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    add_raft_voter,
    allocate_producer_ids,
    alter_client_quotas,
    alter_configs,
    alter_partition,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    alter_share_group_offsets,
    alter_user_scram_credentials,
    assign_replicas_to_dirs,
    begin_quorum_epoch,
    broker_heartbeat,
    broker_registration,
    consumer_group_describe,
    consumer_group_heartbeat,
    controller_registration,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_share_group_offsets,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_quorum,
    describe_share_group_offsets,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    end_quorum_epoch,
    end_txn,
    envelope,
    fetch,
    fetch_snapshot,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    remove_raft_voter,
    share_acknowledge,
    share_fetch,
    share_group_describe,
    share_group_heartbeat,
    streams_group_describe,
    streams_group_heartbeat,
    sync_group,
    txn_offset_commit,
    unregister_broker,
    update_features,
    update_raft_voter,
    vote,
    write_txn_markers,
)
from ottla.protocol.schema import Request
from ottla.security.principal import KafkaPrincipal
from tests.kafka.scripts.kit import batch_of
from tests.support import share_state

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


def creations() -> list[create_acls.AclCreation]:
    return [
        create_acls.AclCreation(
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

Labelled = tuple[str, type[Request], Callable[[int], Request]]
Ids = dict[str, bytes]


def requests(ids: Ids) -> Iterator[Labelled]:
    """What each user asks; the function makes the request for a version."""
    yield from _metadata(ids)
    yield from _records(ids)
    yield from _groups(ids)
    yield from _transactions()
    yield from _share_sessions(ids)
    yield from _share_states(ids)
    yield from _topics(ids)
    yield from _configs()
    yield from _cluster()


def _metadata(ids: Ids) -> Iterator[Labelled]:
    request = metadata.MetadataRequest

    def named(names: tuple[str, ...], *, create: bool = False) -> Callable[[int], Request]:
        def make(version: int) -> Request:
            return request(
                topics=[metadata.MetadataRequestTopic(name=name) for name in names],
                allow_auto_topic_creation=create or version < 4,
                include_topic_authorized_operations=version >= 8,
                include_cluster_authorized_operations=8 <= version <= 10,
            )

        return make

    yield "all", request, lambda v: request(topics=None if v else [], allow_auto_topic_creation=True)
    yield "named", request, named(TOPICS)
    yield "by id", request, lambda v: _metadata_by_id(v, ids)
    yield (
        "all with operations",
        request,
        lambda v: request(
            topics=None if v else [],
            allow_auto_topic_creation=True,
            include_topic_authorized_operations=v >= 8,
            include_cluster_authorized_operations=8 <= v <= 10,
        ),
    )
    yield "not existing", request, lambda v: named(MISSING)(max(v, 4)) if v >= 4 else named(TOPICS)(v)
    yield (
        REFUSED + "created by a look",
        request,
        named(("hidden-auto",), create=True),
    )
    described = describe_topic_partitions.DescribeTopicPartitionsRequest
    yield "all partitions", described, lambda v: described()
    yield (
        "partitions",
        described,
        lambda v: described(topics=[describe_topic_partitions.TopicRequest(name=name) for name in NAMES]),
    )


def _id(ids: Ids, name: str) -> bytes:
    """The id of a topic; of one that does not exist, an id of its own."""
    return ids.get(name, name.encode().ljust(16, b"\0"))


def _metadata_by_id(version: int, ids: Ids) -> Request:
    if version < 12:
        return metadata.MetadataRequest(topics=[], allow_auto_topic_creation=True)
    wanted = [ids["open"], ids["shown"], ids["hidden"], bytes(15) + b"\x07"]
    return metadata.MetadataRequest(
        topics=[metadata.MetadataRequestTopic(name=None, topic_id=each) for each in wanted],
        include_topic_authorized_operations=True,
    )


def _records(ids: Ids) -> Iterator[Labelled]:
    def produced(
        batch: bytes, transactional_id: str | None = None, acks: int = 1
    ) -> Callable[[int], Request]:
        def make(version: int) -> Request:
            return produce.ProduceRequest(
                acks=acks,
                timeout_ms=10_000,
                transactional_id=transactional_id,
                topic_data=[
                    produce.TopicProduceData(
                        name="" if version >= 13 else name,
                        topic_id=_id(ids, name) if version >= 13 else bytes(16),
                        partition_data=[produce.PartitionProduceData(index=0, records=batch)],
                    )
                    for name in NAMES
                ],
            )

        return make

    yield "records", produce.ProduceRequest, produced(batch_of(b"x"))
    transactional = batch_of(b"x", producer_id=77_000, producer_epoch=0, base_sequence=0, transactional=True)
    for transactional_id in (None, *TXNS):
        label = f"transactional records {transactional_id}"
        yield label, produce.ProduceRequest, produced(transactional, transactional_id)
    yield "no answer", produce.ProduceRequest, produced(transactional, "hidden-t", acks=0)

    def fetched(replica: int = -1) -> Callable[[int], Request]:
        def make(version: int) -> Request:
            request = fetch.FetchRequest(
                max_wait_ms=0,
                min_bytes=0,
                topics=[
                    fetch.FetchTopic(
                        topic="" if version >= 13 else name,
                        topic_id=_id(ids, name) if version >= 13 else bytes(16),
                        partitions=[fetch.FetchPartition(partition=0, partition_max_bytes=1_000)],
                    )
                    for name in NAMES
                ],
            )
            if version >= 15:
                request.replica_state = fetch.ReplicaState(replica_id=replica, replica_epoch=-1)
            else:
                request.replica_id = replica
            return request

        return make

    yield "fetch", fetch.FetchRequest, fetched()
    yield "fetch as a follower", fetch.FetchRequest, fetched(9)
    yield (
        "offsets",
        list_offsets.ListOffsetsRequest,
        lambda v: list_offsets.ListOffsetsRequest(
            replica_id=-1,
            topics=[
                list_offsets.ListOffsetsTopic(
                    name=name, partitions=[list_offsets.ListOffsetsPartition(partition_index=0, timestamp=-2)]
                )
                for name in NAMES
            ],
        ),
    )
    epochs = offset_for_leader_epoch
    yield (
        "epochs",
        epochs.OffsetForLeaderEpochRequest,
        lambda v: epochs.OffsetForLeaderEpochRequest(
            topics=[
                epochs.OffsetForLeaderTopic(
                    topic=name, partitions=[epochs.OffsetForLeaderPartition(partition=0, leader_epoch=0)]
                )
                for name in NAMES
            ],
        ),
    )
    yield (
        "delete records",
        delete_records.DeleteRecordsRequest,
        lambda v: delete_records.DeleteRecordsRequest(
            timeout_ms=10_000,
            topics=[
                delete_records.DeleteRecordsTopic(
                    name=name, partitions=[delete_records.DeleteRecordsPartition(partition_index=0, offset=0)]
                )
                for name in NAMES
            ],
        ),
    )
    yield (
        "producers",
        describe_producers.DescribeProducersRequest,
        lambda v: describe_producers.DescribeProducersRequest(
            topics=[describe_producers.TopicRequest(name=name, partition_indexes=[0]) for name in NAMES]
        ),
    )


def _groups(ids: Ids) -> Iterator[Labelled]:
    def coordinators(kind: int, keys: tuple[str, ...]) -> Callable[[int], Request]:
        def make(version: int) -> Request:
            if version >= 4:
                return find_coordinator.FindCoordinatorRequest(key_type=kind, coordinator_keys=list(keys))
            request = find_coordinator.FindCoordinatorRequest(key=keys[-1])
            if version >= 1:
                request.key_type = kind
            return request

        return make

    for kind, keys in ((0, GROUPS), (1, TXNS), (2, (SHARE_KEY,))):
        yield f"coordinators {kind}", find_coordinator.FindCoordinatorRequest, coordinators(kind, keys)
    for group in ("", *GROUPS):
        yield (
            f"join {group}",
            join_group.JoinGroupRequest,
            lambda v, group=group: join_group.JoinGroupRequest(
                group_id=group,
                session_timeout_ms=10,
                member_id="m",
                protocol_type="consumer",
                protocols=[join_group.JoinGroupRequestProtocol(name="range", metadata=b"")],
            ),
        )
        yield (
            f"sync {group}",
            sync_group.SyncGroupRequest,
            lambda v, group=group: sync_group.SyncGroupRequest(
                group_id=group,
                generation_id=3,
                member_id="m",
                protocol_type="consumer" if v >= 5 else None,
                protocol_name="range" if v >= 5 else None,
            ),
        )
        yield (
            f"heartbeat {group}",
            heartbeat.HeartbeatRequest,
            lambda v, group=group: heartbeat.HeartbeatRequest(group_id=group, generation_id=3, member_id="m"),
        )
        yield (
            f"leave {group}",
            leave_group.LeaveGroupRequest,
            lambda v, group=group: (
                leave_group.LeaveGroupRequest(group_id=group, member_id="m")
                if v < 3
                else leave_group.LeaveGroupRequest(
                    group_id=group, members=[leave_group.MemberIdentity(member_id="m")]
                )
            ),
        )
        yield f"commit {group}", offset_commit.OffsetCommitRequest, _commit(group, ids)
        yield (
            f"delete offsets {group}",
            offset_delete.OffsetDeleteRequest,
            lambda v, group=group: offset_delete.OffsetDeleteRequest(
                group_id=group,
                topics=[
                    offset_delete.OffsetDeleteRequestTopic(
                        name=name,
                        partitions=[offset_delete.OffsetDeleteRequestPartition(partition_index=7)],
                    )
                    for name in NAMES
                ],
            ),
        )
        yield (
            f"consumer protocol {group}",
            consumer_group_heartbeat.ConsumerGroupHeartbeatRequest,
            lambda v, group=group: consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
                group_id=group, member_id="m", member_epoch=5
            ),
        )
        for topics in (("open",), ("hidden",), ("open", "hidden-none")):
            yield (
                f"consumer protocol {group} {topics}",
                consumer_group_heartbeat.ConsumerGroupHeartbeatRequest,
                lambda v, group=group, topics=topics: consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
                    group_id=group,
                    member_id="m",
                    member_epoch=5,
                    subscribed_topic_names=list(topics),
                ),
            )

            yield (
                f"share group {group} {topics}",
                share_group_heartbeat.ShareGroupHeartbeatRequest,
                lambda v, group=group, topics=topics: share_group_heartbeat.ShareGroupHeartbeatRequest(
                    group_id=group,
                    member_id="m",
                    member_epoch=5,
                    subscribed_topic_names=list(topics),
                ),
            )
        yield (
            f"alter share offsets {group}",
            alter_share_group_offsets.AlterShareGroupOffsetsRequest,
            # Of topics that do not exist: nothing is altered, and no group is made. For one that exists
            # Apache Kafka remembers the group until it restarts, also if there is no such partition.
            lambda v, group=group: alter_share_group_offsets.AlterShareGroupOffsetsRequest(
                group_id=group,
                topics=[
                    alter_share_group_offsets.AlterShareGroupOffsetsRequestTopic(
                        topic_name=name,
                        partitions=[
                            alter_share_group_offsets.AlterShareGroupOffsetsRequestPartition(
                                partition_index=7
                            )
                        ],
                    )
                    for name in MISSING
                ],
            ),
        )
        yield (
            f"delete share offsets {group}",
            delete_share_group_offsets.DeleteShareGroupOffsetsRequest,
            lambda v, group=group: delete_share_group_offsets.DeleteShareGroupOffsetsRequest(
                group_id=group,
                topics=[
                    delete_share_group_offsets.DeleteShareGroupOffsetsRequestTopic(topic_name=name)
                    for name in NAMES
                ],
            ),
        )
        for topics in ((), ("open",), ("hidden",), ("open", "hidden-none")):
            yield (
                f"streams protocol {group} {topics}",
                streams_group_heartbeat.StreamsGroupHeartbeatRequest,
                lambda v, group=group, topics=topics: streams_group_heartbeat.StreamsGroupHeartbeatRequest(
                    group_id=group, member_id="m", member_epoch=5, topology=_topology(topics)
                ),
            )

    # The internal topic of the one that joins is to be created, for which it needs a permission of its own.
    for epoch in (0, -1):
        yield (
            f"streams member in epoch {epoch}",
            streams_group_heartbeat.StreamsGroupHeartbeatRequest,
            lambda v, epoch=epoch: _streams_member(epoch),
        )

    def fetched(names: tuple[str, ...] | None) -> Callable[[int], Request]:
        def make(version: int) -> Request:
            if version < 8:
                return offset_fetch.OffsetFetchRequest(
                    group_id="open-g",
                    topics=[
                        offset_fetch.OffsetFetchRequestTopic(name=name, partition_indexes=[0])
                        for name in names or NAMES
                    ],
                )
            topics = None if names is None else [_offset_topic(name, version, ids) for name in names]
            return offset_fetch.OffsetFetchRequest(
                groups=[
                    offset_fetch.OffsetFetchRequestGroup(group_id=group, topics=topics) for group in GROUPS
                ]
            )

        return make

    def share_offsets(names: tuple[str, ...] | None) -> Callable[[int], Request]:
        messages = describe_share_group_offsets
        topics = (
            None
            if names is None
            else [
                messages.DescribeShareGroupOffsetsRequestTopic(topic_name=name, partitions=[0])
                for name in names
            ]
        )
        groups = [
            messages.DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=topics) for group in GROUPS
        ]
        return lambda _: messages.DescribeShareGroupOffsetsRequest(groups=groups)

    kind = describe_share_group_offsets.DescribeShareGroupOffsetsRequest
    yield "share offsets of groups", kind, share_offsets(NAMES)
    yield "all share offsets of groups", kind, share_offsets(None)
    yield (
        "describe share groups",
        share_group_describe.ShareGroupDescribeRequest,
        lambda v: share_group_describe.ShareGroupDescribeRequest(
            group_ids=list(GROUPS), include_authorized_operations=True
        ),
    )
    yield "offsets of groups", offset_fetch.OffsetFetchRequest, fetched(NAMES)
    yield "all offsets of groups", offset_fetch.OffsetFetchRequest, fetched(None)
    yield "groups", list_groups.ListGroupsRequest, lambda v: list_groups.ListGroupsRequest()
    yield (
        "describe groups",
        describe_groups.DescribeGroupsRequest,
        lambda v: describe_groups.DescribeGroupsRequest(
            groups=list(GROUPS), include_authorized_operations=v >= 3
        ),
    )
    yield (
        "describe consumer groups",
        consumer_group_describe.ConsumerGroupDescribeRequest,
        lambda v: consumer_group_describe.ConsumerGroupDescribeRequest(
            group_ids=list(GROUPS), include_authorized_operations=True
        ),
    )
    yield (
        "describe streams groups",
        streams_group_describe.StreamsGroupDescribeRequest,
        lambda v: streams_group_describe.StreamsGroupDescribeRequest(
            group_ids=list(GROUPS), include_authorized_operations=True
        ),
    )
    yield (
        "delete groups",
        delete_groups.DeleteGroupsRequest,
        lambda v: delete_groups.DeleteGroupsRequest(groups_names=["open-none-g", "hidden-g", "shown-g"]),
    )


def _topology(topics: tuple[str, ...]) -> streams_group_heartbeat.Topology | None:
    """A topology that reads these topics; None for no topics."""
    if not topics:
        return None
    return streams_group_heartbeat.Topology(
        subtopologies=[streams_group_heartbeat.Subtopology(subtopology_id="0", source_topics=list(topics))]
    )


def _streams_member(epoch: int) -> streams_group_heartbeat.StreamsGroupHeartbeatRequest:
    """A heartbeat that joins (0) or leaves (-1)."""
    request = streams_group_heartbeat.StreamsGroupHeartbeatRequest(
        group_id="open-streams-g", member_id="m", member_epoch=epoch
    )
    if epoch == 0:
        request.rebalance_timeout_ms = 10_000
        request.process_id = "p"
        request.active_tasks, request.standby_tasks, request.warmup_tasks = [], [], []
        request.topology = _topology(("open",))
        assert request.topology is not None
        store = streams_group_heartbeat.TopicInfo(name="open-none-store")
        request.topology.subtopologies[0].state_changelog_topics = [store]
    return request


def _offset_topic(name: str, version: int, ids: Ids) -> offset_fetch.OffsetFetchRequestTopics:
    topic = offset_fetch.OffsetFetchRequestTopics(partition_indexes=[0])
    if version >= 10:
        topic.topic_id = _id(ids, name)
    else:
        topic.name = name
    return topic


def _commit(group: str, ids: Ids) -> Callable[[int], Request]:
    def make(version: int) -> Request:
        topics = []
        for name in NAMES:
            topic = offset_commit.OffsetCommitRequestTopic(
                partitions=[
                    offset_commit.OffsetCommitRequestPartition(
                        partition_index=0, committed_offset=3, committed_metadata=""
                    )
                ]
            )
            if version >= 10:
                topic.topic_id = _id(ids, name)
            else:
                topic.name = name
            topics.append(topic)
        # A member that does not exist: what may be committed is found unknown.
        return offset_commit.OffsetCommitRequest(
            group_id=group, generation_id_or_member_epoch=4, member_id="m", topics=topics
        )

    return make


def _transactions() -> Iterator[Labelled]:
    for transactional_id in (None, *TXNS):
        yield (
            f"init {transactional_id}",
            init_producer_id.InitProducerIdRequest,
            # A timeout that is refused after the check, so that no transaction comes into being.
            lambda v, id=transactional_id: init_producer_id.InitProducerIdRequest(
                transactional_id=id, transaction_timeout_ms=60_000 if id is None else -1
            ),
        )
    partitions = [add_partitions_to_txn.AddPartitionsToTxnTopic(name=name, partitions=[0]) for name in NAMES]
    for transactional_id in TXNS:
        for topics in (partitions[:1], partitions):
            yield (
                f"add {len(topics)} to {transactional_id}",
                add_partitions_to_txn.AddPartitionsToTxnRequest,
                lambda v, id=transactional_id, topics=topics: (
                    add_partitions_to_txn.AddPartitionsToTxnRequest(
                        v3_and_below_transactional_id=id,
                        v3_and_below_producer_id=9_999,
                        v3_and_below_topics=topics,
                    )
                    if v < 4
                    else add_partitions_to_txn.AddPartitionsToTxnRequest(
                        transactions=[
                            add_partitions_to_txn.AddPartitionsToTxnTransaction(
                                transactional_id=id, producer_id=9_999, topics=topics
                            )
                        ]
                    )
                ),
            )
        for group in GROUPS[:3]:
            yield (
                f"add {group} to {transactional_id}",
                add_offsets_to_txn.AddOffsetsToTxnRequest,
                lambda v, id=transactional_id, group=group: add_offsets_to_txn.AddOffsetsToTxnRequest(
                    transactional_id=id, group_id=group, producer_id=9_999
                ),
            )
            yield (
                f"commit offsets of {group} in {transactional_id}",
                txn_offset_commit.TxnOffsetCommitRequest,
                lambda v, id=transactional_id, group=group: txn_offset_commit.TxnOffsetCommitRequest(
                    transactional_id=id,
                    group_id=group,
                    producer_id=9_999,
                    generation_id_or_member_epoch=4 if v >= 3 else -1,
                    member_id="m" if v >= 3 else "",
                    topics=[
                        txn_offset_commit.TxnOffsetCommitRequestTopic(
                            name=name,
                            partitions=[
                                txn_offset_commit.TxnOffsetCommitRequestPartition(
                                    partition_index=0, committed_offset=1, committed_metadata=""
                                )
                            ],
                        )
                        for name in NAMES[1:]
                    ],
                ),
            )
        yield (
            f"end {transactional_id}",
            end_txn.EndTxnRequest,
            lambda v, id=transactional_id: end_txn.EndTxnRequest(
                transactional_id=id, producer_id=9_999, committed=True
            ),
        )
    yield (
        "markers",
        write_txn_markers.WriteTxnMarkersRequest,
        lambda v: write_txn_markers.WriteTxnMarkersRequest(
            markers=[
                write_txn_markers.WritableTxnMarker(
                    producer_id=9_999,
                    topics=[
                        write_txn_markers.WritableTxnMarkerTopic(name="open-none", partition_indexes=[0])
                    ],
                )
            ]
        ),
    )
    yield (
        "describe transactions",
        describe_transactions.DescribeTransactionsRequest,
        lambda v: describe_transactions.DescribeTransactionsRequest(transactional_ids=list(TXNS)),
    )
    yield (
        "transactions",
        list_transactions.ListTransactionsRequest,
        lambda v: list_transactions.ListTransactionsRequest(),
    )


def _share_sessions(ids: Ids) -> Iterator[Labelled]:
    """Fetch with a new session, and acknowledge in it. No partition is fetched that exists: its records would
    be acquired, and acknowledgements of what is not acquired fail. Nor any topic that does not exist: Apache
    Kafka fails then, with UNKNOWN_SERVER_ERROR.
    """
    member = "AAAAAAAAAAAAAAAAAAAAAQ"

    def fetched(group: str) -> Callable[[int], Request]:
        return lambda _: share_fetch.ShareFetchRequest(
            group_id=group,
            member_id=member,
            share_session_epoch=0,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1_000,
            max_records=10,
            batch_size=10,
            topics=[
                share_fetch.FetchTopic(
                    topic_id=_id(ids, name), partitions=[share_fetch.FetchPartition(partition_index=7)]
                )
                for name in TOPICS
            ],
        )

    def acknowledged(group: str) -> Callable[[int], Request]:
        batch = share_acknowledge.AcknowledgementBatch(first_offset=0, last_offset=0, acknowledge_types=[1])
        # The versions are asked one after the other, each with the next epoch of the session.
        return lambda version: share_acknowledge.ShareAcknowledgeRequest(
            group_id=group,
            member_id=member,
            share_session_epoch=version,
            topics=[
                share_acknowledge.AcknowledgeTopic(
                    topic_id=_id(ids, name),
                    partitions=[
                        share_acknowledge.AcknowledgePartition(
                            partition_index=index, acknowledgement_batches=[batch]
                        )
                        for index in (0, 7)
                    ],
                )
                for name in TOPICS
            ],
        )

    for group in GROUPS:
        yield f"share fetch {group}", share_fetch.ShareFetchRequest, fetched(group)
        yield f"share acknowledge {group}", share_acknowledge.ShareAcknowledgeRequest, acknowledged(group)


def _share_states(ids: Ids) -> Iterator[Labelled]:
    """Only nodes of the cluster keep the state of share groups, whatever else a user may do."""
    group, topic = SHARE_KEY.partition(":")[0], ids["open"]
    for label, request in (
        # An id that no request has named before, as ids are numbered in the order in which answers have them.
        ("initialize", share_state.initialize(group, _id(ids, "share-none"), {0: (1, 0)})),
        ("read", share_state.read(group, topic, {0: 0})),
        ("write", share_state.write(group, topic, 0, (0, 0, 2, 1))),
        ("delete", share_state.delete(group, topic, [0])),
        ("read the summary of", share_state.summary(group, topic, [0])),
    ):
        yield f"{label} share state", type(request), lambda v, request=request: request


def _topics(ids: Ids) -> Iterator[Labelled]:
    def created(*names: str) -> Callable[[int], Request]:
        return lambda v: create_topics.CreateTopicsRequest(
            topics=[
                create_topics.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
                for name in names
            ],
            timeout_ms=10_000,
            validate_only=True,
        )

    yield "create", create_topics.CreateTopicsRequest, created(*NAMES, "fresh-one")
    yield "create twice", create_topics.CreateTopicsRequest, created("hidden-none", "hidden-none", "fresh-x")
    yield "create the metadata", create_topics.CreateTopicsRequest, created("__cluster_metadata")
    unknown = bytes(15) + b"\x09"
    yield (
        "delete",
        delete_topics.DeleteTopicsRequest,
        lambda v: (
            delete_topics.DeleteTopicsRequest(topic_names=list(MISSING), timeout_ms=10_000)
            if v < 6
            else delete_topics.DeleteTopicsRequest(
                topics=[delete_topics.DeleteTopicState(name=name) for name in MISSING]
                + [delete_topics.DeleteTopicState(topic_id=unknown)],
                timeout_ms=10_000,
            )
        ),
    )
    yield (
        REFUSED + "delete precious",
        delete_topics.DeleteTopicsRequest,
        lambda v: (
            delete_topics.DeleteTopicsRequest(topic_names=[PRECIOUS], timeout_ms=10_000)
            if v < 6
            else delete_topics.DeleteTopicsRequest(
                topics=[
                    delete_topics.DeleteTopicState(name=PRECIOUS),
                    delete_topics.DeleteTopicState(topic_id=ids["hidden"]),
                ],
                timeout_ms=10_000,
            )
        ),
    )
    yield (
        REFUSED + "delete precious by id",
        delete_topics.DeleteTopicsRequest,
        lambda v: (
            delete_topics.DeleteTopicsRequest(topic_names=[], timeout_ms=10_000)
            if v < 6
            else delete_topics.DeleteTopicsRequest(
                topics=[delete_topics.DeleteTopicState(topic_id=ids[PRECIOUS])], timeout_ms=10_000
            )
        ),
    )
    yield (
        "more partitions",
        create_partitions.CreatePartitionsRequest,
        lambda v: create_partitions.CreatePartitionsRequest(
            topics=[create_partitions.CreatePartitionsTopic(name=name, count=3) for name in NAMES],
            timeout_ms=10_000,
            validate_only=True,
        ),
    )
    for topics in (["open"], None):
        yield (
            f"elect leaders of {topics}",
            elect_leaders.ElectLeadersRequest,
            lambda v, topics=topics: elect_leaders.ElectLeadersRequest(
                topic_partitions=None
                if topics is None
                else [elect_leaders.TopicPartitions(topic=name, partitions=[0]) for name in topics],
                timeout_ms=10_000,
            ),
        )
    reassign = alter_partition_reassignments
    yield (
        "reassign",
        reassign.AlterPartitionReassignmentsRequest,
        lambda v: reassign.AlterPartitionReassignmentsRequest(
            timeout_ms=10_000,
            topics=[
                reassign.ReassignableTopic(
                    name=name, partitions=[reassign.ReassignablePartition(partition_index=0, replicas=None)]
                )
                for name in ("open", "hidden", "hidden-none")
            ],
        ),
    )
    yield (
        "reassignments",
        list_partition_reassignments.ListPartitionReassignmentsRequest,
        lambda v: list_partition_reassignments.ListPartitionReassignmentsRequest(
            timeout_ms=10_000, topics=None
        ),
    )


_TOPIC_CONFIG, _BROKER_CONFIG, _LOGGER_CONFIG, _METRICS_CONFIG, _GROUP_CONFIG = 2, 4, 8, 16, 32


def _configs() -> Iterator[Labelled]:
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
    yield (
        "configs",
        describe_configs.DescribeConfigsRequest,
        lambda v: describe_configs.DescribeConfigsRequest(
            resources=[
                describe_configs.DescribeConfigsResource(
                    resource_type=kind, resource_name=name, configuration_keys=[keys[kind]]
                )
                for kind, name in resources
            ]
        ),
    )
    yield (
        "alter configs",
        alter_configs.AlterConfigsRequest,
        lambda v: alter_configs.AlterConfigsRequest(
            resources=[
                alter_configs.AlterConfigsResource(
                    resource_type=kind,
                    resource_name=name,
                    configs=[alter_configs.AlterableConfig(name=keys[kind], value="60000")],
                )
                for kind, name in resources
            ],
            validate_only=True,
        ),
    )
    incremental = incremental_alter_configs
    yield (
        "change configs",
        incremental.IncrementalAlterConfigsRequest,
        lambda v: incremental.IncrementalAlterConfigsRequest(
            resources=[
                incremental.AlterConfigsResource(
                    resource_type=kind,
                    resource_name=name,
                    configs=[incremental.AlterableConfig(name=keys[kind], config_operation=0, value="60000")],
                )
                for kind, name in resources
            ],
            validate_only=True,
        ),
    )
    yield (
        "change levels",
        incremental.IncrementalAlterConfigsRequest,
        lambda v: incremental.IncrementalAlterConfigsRequest(
            resources=[
                incremental.AlterConfigsResource(
                    resource_type=_LOGGER_CONFIG,
                    resource_name="1",
                    configs=[incremental.AlterableConfig(name="root", config_operation=0, value="INFO")],
                )
            ],
            validate_only=True,
        ),
    )
    yield (
        "config resources",
        list_config_resources.ListConfigResourcesRequest,
        lambda v: list_config_resources.ListConfigResourcesRequest(),
    )
    yield (
        "features",
        update_features.UpdateFeaturesRequest,
        lambda v: update_features.UpdateFeaturesRequest(
            feature_updates=[update_features.FeatureUpdateKey(feature="no.such", max_version_level=1)]
        ),
    )


def _cluster() -> Iterator[Labelled]:
    for kind in (add_raft_voter.AddRaftVoterRequest, remove_raft_voter.RemoveRaftVoterRequest):
        yield kind.__name__, kind, lambda v, kind=kind: kind(cluster_id="another", voter_id=9)
    yield (
        "cluster",
        describe_cluster.DescribeClusterRequest,
        lambda v: describe_cluster.DescribeClusterRequest(include_cluster_authorized_operations=True),
    )
    yield (
        "directories",
        describe_log_dirs.DescribeLogDirsRequest,
        lambda v: describe_log_dirs.DescribeLogDirsRequest(
            topics=[describe_log_dirs.DescribableLogDirTopic(topic="hidden", partitions=[0])]
        ),
    )
    move = alter_replica_log_dirs
    yield (
        "move",
        move.AlterReplicaLogDirsRequest,
        lambda v: move.AlterReplicaLogDirsRequest(
            dirs=[
                move.AlterReplicaLogDir(
                    path="/no/such",
                    topics=[move.AlterReplicaLogDirTopic(name=name, partitions=[0]) for name in NAMES],
                )
            ]
        ),
    )
    quorum = describe_quorum
    yield (
        "quorum",
        quorum.DescribeQuorumRequest,
        lambda v: quorum.DescribeQuorumRequest(
            topics=[
                quorum.DescribeQuorumRequestTopicData(
                    topic_name="other",
                    partitions=[quorum.DescribeQuorumRequestPartitionData(partition_index=0)],
                )
            ]
        ),
    )
    yield (
        "unregister",
        unregister_broker.UnregisterBrokerRequest,
        lambda v: unregister_broker.UnregisterBrokerRequest(broker_id=99),
    )
    anything: dict[str, Any] = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    yield (
        "acls",
        describe_acls.DescribeAclsRequest,
        lambda v: describe_acls.DescribeAclsRequest(**{**anything, "principal_filter": "User:creator"}),
    )
    yield (
        "delete acls",
        delete_acls.DeleteAclsRequest,
        lambda v: delete_acls.DeleteAclsRequest(
            filters=[delete_acls.DeleteAclsFilter(**{**anything, "principal_filter": "User:none"})]
        ),
    )
    yield (
        "create acls",
        create_acls.CreateAclsRequest,
        lambda v: create_acls.CreateAclsRequest(
            creations=[
                create_acls.AclCreation(
                    resource_type=_C,
                    resource_name="other",
                    principal="User:x",
                    host="*",
                    operation=_OP.READ,
                    permission_type=3,
                )
            ]
        ),
    )
    yield (
        "quotas",
        describe_client_quotas.DescribeClientQuotasRequest,
        lambda v: describe_client_quotas.DescribeClientQuotasRequest(),
    )
    yield (
        "change quotas",
        alter_client_quotas.AlterClientQuotasRequest,
        lambda v: alter_client_quotas.AlterClientQuotasRequest(
            entries=[
                alter_client_quotas.AlterClientQuotasRequestEntryData(
                    entity=[alter_client_quotas.EntityData(entity_type="user", entity_name="u")],
                    ops=[alter_client_quotas.OpData(key="producer_byte_rate", value=1000.0)],
                )
            ],
            validate_only=True,
        ),
    )

    yield (
        "scram users",
        describe_user_scram_credentials.DescribeUserScramCredentialsRequest,
        lambda v: describe_user_scram_credentials.DescribeUserScramCredentialsRequest(
            users=[describe_user_scram_credentials.UserName(name="no-such")]
        ),
    )
    yield (
        "delete a scram user",
        alter_user_scram_credentials.AlterUserScramCredentialsRequest,
        lambda v: alter_user_scram_credentials.AlterUserScramCredentialsRequest(
            deletions=[alter_user_scram_credentials.ScramCredentialDeletion(name="no-such", mechanism=1)]
        ),
    )


# Users who may not act as a node: of others the answers of the quorum are not comparable.
NO_NODES: Final = ("reader", "describer", "operator", "denied", "stranger")


def controller_requests(ids: Ids) -> Iterator[Labelled]:
    """What is asked on the listener of controllers."""
    for kind in (
        vote.VoteRequest,
        begin_quorum_epoch.BeginQuorumEpochRequest,
        end_quorum_epoch.EndQuorumEpochRequest,
        alter_partition.AlterPartitionRequest,
        broker_heartbeat.BrokerHeartbeatRequest,
        broker_registration.BrokerRegistrationRequest,
        allocate_producer_ids.AllocateProducerIdsRequest,
        controller_registration.ControllerRegistrationRequest,
        assign_replicas_to_dirs.AssignReplicasToDirsRequest,
        fetch_snapshot.FetchSnapshotRequest,
        update_raft_voter.UpdateRaftVoterRequest,
    ):
        yield f"{kind.__name__} {REFUSED}", kind, lambda v, kind=kind: kind()
    yield (
        f"fetch metadata {REFUSED}",
        fetch.FetchRequest,
        lambda v: fetch.FetchRequest(
            max_wait_ms=0,
            topics=[
                fetch.FetchTopic(
                    topic="" if v >= 13 else "__cluster_metadata",
                    topic_id=bytes(15) + b"\x01" if v >= 13 else bytes(16),
                    partitions=[fetch.FetchPartition(partition=0)],
                )
            ],
        ),
    )
    yield (
        f"forged envelope {REFUSED}",
        envelope.EnvelopeRequest,
        lambda v: envelope.EnvelopeRequest(
            request_data=request_frame(
                next(make(7) for label, _, make in _topics(ids) if label == "create"), 7
            ),
            request_principal=KafkaPrincipal("User", "admin").encode(),
            client_host_address=bytes([127, 0, 0, 1]),
        ),
    )
    for wanted in (*_topics(ids), *_configs(), *_cluster()):
        # The rest is not served there; SCRAM users Apache Kafka announces, and fails.
        label, kind, _ = wanted
        if ListenerType.CONTROLLER in API[kind.API_KEY].listeners and label != "scram users":
            yield wanted


def request_frame(request: Request, version: int) -> bytes:
    api = API[request.API_KEY]
    header = RequestHeader(
        request_api_key=api.key, request_api_version=version, correlation_id=7, client_id="forger"
    )
    return header.encode(request_header_version(api, version)) + request.encode(version)
