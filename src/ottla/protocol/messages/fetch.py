"""Read records from partitions; by followers, and by voters of the quorum, too.

- v5: log start offset
- v6: KAFKA_STORAGE_ERROR is possible
- v7: incremental fetch sessions
- v9: the leader epoch is checked
- v10: zstd is allowed
- v11: the rack of the consumer, and the replica it should read from
- v12: flexible; diverging epochs are found
- v13: topics by id
- v14: data may have moved to tiered storage
- v15: epoch of the replica
- v16: the response points to the new leader
- v17: directory id of the replica
- v18: high watermark that the replica knows
"""

from __future__ import annotations

from ottla.protocol.schema import (
    Buffer,
    Request,
    Response,
    Struct,
    array,
    int8,
    int16,
    int32,
    int64,
    nested,
    records,
    string,
    uuid,
)


class ReplicaState(Struct):
    replica_id: int = int32(default=-1)
    replica_epoch: int = int64(default=-1)


class FetchPartition(Struct):
    partition: int = int32()
    current_leader_epoch: int = int32(versions="9+", default=-1, ignorable=True)
    fetch_offset: int = int64()
    last_fetched_epoch: int = int32(versions="12+", default=-1)
    log_start_offset: int = int64(versions="5+", default=-1, ignorable=True)
    partition_max_bytes: int = int32()
    replica_directory_id: bytes = uuid(versions="17+", tag=0, ignorable=True)
    high_watermark: int = int64(versions="18+", tag=1, default=2**63 - 1, ignorable=True)


class FetchTopic(Struct):
    topic: str = string(versions="0-12", ignorable=True)
    topic_id: bytes = uuid(versions="13+", ignorable=True)
    partitions: list[FetchPartition] = array(FetchPartition)


class ForgottenTopic(Struct):
    topic: str = string(versions="7-12", ignorable=True)
    topic_id: bytes = uuid(versions="13+", ignorable=True)
    partitions: list[int] = array("int32")


class FetchRequest(Request, api_key=1, versions="4-18", flexible="12+"):
    cluster_id: str | None = string(versions="12+", nullable=True, tag=0, default=None, ignorable=True)
    replica_id: int = int32(versions="0-14", default=-1)
    replica_state: ReplicaState = nested(ReplicaState, versions="15+", tag=1)
    max_wait_ms: int = int32()
    min_bytes: int = int32()
    max_bytes: int = int32(default=2**31 - 1)
    isolation_level: int = int8()
    session_id: int = int32(versions="7+", ignorable=True)
    session_epoch: int = int32(versions="7+", default=-1, ignorable=True)
    topics: list[FetchTopic] = array(FetchTopic)
    forgotten_topics_data: list[ForgottenTopic] = array(ForgottenTopic, versions="7+")
    rack_id: str = string(versions="11+", ignorable=True)


class EpochEndOffset(Struct):
    epoch: int = int32(default=-1)
    end_offset: int = int64(default=-1)


class LeaderIdAndEpoch(Struct):
    leader_id: int = int32(default=-1)
    leader_epoch: int = int32(default=-1)


class SnapshotId(Struct):
    end_offset: int = int64(default=-1)
    epoch: int = int32(default=-1)


class AbortedTransaction(Struct):
    producer_id: int = int64()
    first_offset: int = int64()


class PartitionData(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    high_watermark: int = int64()
    last_stable_offset: int = int64(default=-1)
    log_start_offset: int = int64(versions="5+", default=-1, ignorable=True)
    diverging_epoch: EpochEndOffset = nested(EpochEndOffset, versions="12+", tag=0)
    current_leader: LeaderIdAndEpoch = nested(LeaderIdAndEpoch, versions="12+", tag=1)
    snapshot_id: SnapshotId = nested(SnapshotId, versions="12+", tag=2)
    aborted_transactions: list[AbortedTransaction] | None = array(AbortedTransaction, nullable=True)
    preferred_read_replica: int = int32(versions="11+", default=-1)
    records: Buffer | None = records(nullable=True)


class FetchableTopicResponse(Struct):
    topic: str = string(versions="0-12", ignorable=True)
    topic_id: bytes = uuid(versions="13+", ignorable=True)
    partitions: list[PartitionData] = array(PartitionData)


class NodeEndpoint(Struct):
    node_id: int = int32(map_key=True)
    host: str = string()
    port: int = int32()
    rack: str | None = string(nullable=True, default=None)


class FetchResponse(Response, api_key=1, versions="4-18", flexible="12+"):
    throttle_time_ms: int = int32()
    error_code: int = int16(versions="7+", ignorable=True)
    session_id: int = int32(versions="7+")
    responses: list[FetchableTopicResponse] = array(FetchableTopicResponse)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, versions="16+", tag=0)
