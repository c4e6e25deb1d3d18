"""Read a snapshot of the metadata log in pieces.

- v1: directory id of the replica; the response points to the leader
"""

from __future__ import annotations

from ottla.protocol.schema import (
    Buffer,
    Request,
    Response,
    Struct,
    array,
    int16,
    int32,
    int64,
    nested,
    records,
    string,
    uint16,
    uuid,
)


class SnapshotId(Struct):
    end_offset: int = int64()
    epoch: int = int32()


class FetchSnapshotRequestPartitionSnapshot(Struct):
    partition: int = int32()
    current_leader_epoch: int = int32()
    snapshot_id: SnapshotId = nested(SnapshotId)
    position: int = int64()
    replica_directory_id: bytes = uuid(versions="1+", tag=0, ignorable=True)


class FetchSnapshotRequestTopicSnapshot(Struct):
    name: str = string()
    partitions: list[FetchSnapshotRequestPartitionSnapshot] = array(FetchSnapshotRequestPartitionSnapshot)


class FetchSnapshotRequest(Request, api_key=59, versions="0-1", flexible="0+"):
    cluster_id: str | None = string(nullable=True, tag=0, default=None)
    replica_id: int = int32(default=-1)
    max_bytes: int = int32(default=2**31 - 1)
    topics: list[FetchSnapshotRequestTopicSnapshot] = array(FetchSnapshotRequestTopicSnapshot)


class LeaderIdAndEpoch(Struct):
    leader_id: int = int32()
    leader_epoch: int = int32()


class FetchSnapshotResponsePartitionSnapshot(Struct):
    index: int = int32()
    error_code: int = int16()
    snapshot_id: SnapshotId = nested(SnapshotId)
    current_leader: LeaderIdAndEpoch = nested(LeaderIdAndEpoch, tag=0)
    size: int = int64()
    position: int = int64()
    unaligned_records: Buffer = records()


class FetchSnapshotResponseTopicSnapshot(Struct):
    name: str = string()
    partitions: list[FetchSnapshotResponsePartitionSnapshot] = array(FetchSnapshotResponsePartitionSnapshot)


class NodeEndpoint(Struct):
    node_id: int = int32(map_key=True)
    host: str = string()
    port: int = uint16()


class FetchSnapshotResponse(Response, api_key=59, versions="0-1", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    topics: list[FetchSnapshotResponseTopicSnapshot] = array(FetchSnapshotResponseTopicSnapshot)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, versions="1+", tag=0)
