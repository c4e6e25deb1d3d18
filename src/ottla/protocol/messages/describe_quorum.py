"""Describe the quorum: its leader, its voters and observers, and how far they are.

- v1: times of the last fetch and of having caught up
- v2: directory ids, addresses and error messages
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, Struct, array, int16, int32, int64, string, uint16, uuid


class DescribeQuorumRequestPartitionData(Struct):
    partition_index: int = int32()


class DescribeQuorumRequestTopicData(Struct):
    topic_name: str = string()
    partitions: list[DescribeQuorumRequestPartitionData] = array(DescribeQuorumRequestPartitionData)


class DescribeQuorumRequest(Request, api_key=55, versions="0-2", flexible="0+"):
    topics: list[DescribeQuorumRequestTopicData] = array(DescribeQuorumRequestTopicData)


class ReplicaState(Struct):
    replica_id: int = int32()
    replica_directory_id: bytes = uuid(versions="2+")
    log_end_offset: int = int64()
    last_fetch_timestamp: int = int64(versions="1+", default=-1, ignorable=True)
    last_caught_up_timestamp: int = int64(versions="1+", default=-1, ignorable=True)


class DescribeQuorumResponsePartitionData(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(versions="2+", nullable=True, ignorable=True)
    leader_id: int = int32()
    leader_epoch: int = int32()
    high_watermark: int = int64()
    current_voters: list[ReplicaState] = array(ReplicaState)
    observers: list[ReplicaState] = array(ReplicaState)


class DescribeQuorumResponseTopicData(Struct):
    topic_name: str = string()
    partitions: list[DescribeQuorumResponsePartitionData] = array(DescribeQuorumResponsePartitionData)


class Listener(Struct):
    name: str = string(map_key=True)
    host: str = string()
    port: int = uint16()


class Node(Struct):
    node_id: int = int32(map_key=True)
    listeners: list[Listener] = array(Listener)


class DescribeQuorumResponse(Response, api_key=55, versions="0-2", flexible="0+"):
    error_code: int = int16()
    error_message: str | None = string(versions="2+", nullable=True, ignorable=True)
    topics: list[DescribeQuorumResponseTopicData] = array(DescribeQuorumResponseTopicData)
    nodes: list[Node] = array(Node, versions="2+")
