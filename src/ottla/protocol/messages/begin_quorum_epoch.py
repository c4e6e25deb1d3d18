"""Announce the leader of a new epoch to the voters of the quorum.

- v1: flexible; ids of voters, and the leader's addresses
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, Struct, array, int16, int32, string, uint16, uuid


class BeginQuorumEpochRequestPartitionData(Struct):
    partition_index: int = int32()
    voter_directory_id: bytes = uuid(versions="1+", ignorable=True)
    leader_id: int = int32()
    leader_epoch: int = int32()


class BeginQuorumEpochRequestTopicData(Struct):
    topic_name: str = string()
    partitions: list[BeginQuorumEpochRequestPartitionData] = array(BeginQuorumEpochRequestPartitionData)


class LeaderEndpoint(Struct):
    name: str = string(map_key=True)
    host: str = string()
    port: int = uint16()


class BeginQuorumEpochRequest(Request, api_key=53, versions="0-1", flexible="1+"):
    cluster_id: str | None = string(nullable=True, default=None)
    voter_id: int = int32(versions="1+", default=-1, ignorable=True)
    topics: list[BeginQuorumEpochRequestTopicData] = array(BeginQuorumEpochRequestTopicData)
    leader_endpoints: list[LeaderEndpoint] = array(LeaderEndpoint, versions="1+", ignorable=True)


class BeginQuorumEpochResponsePartitionData(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    leader_id: int = int32()
    leader_epoch: int = int32()


class BeginQuorumEpochResponseTopicData(Struct):
    topic_name: str = string()
    partitions: list[BeginQuorumEpochResponsePartitionData] = array(BeginQuorumEpochResponsePartitionData)


class NodeEndpoint(Struct):
    node_id: int = int32(map_key=True)
    host: str = string()
    port: int = uint16()


class BeginQuorumEpochResponse(Response, api_key=53, versions="0-1", flexible="1+"):
    error_code: int = int16()
    topics: list[BeginQuorumEpochResponseTopicData] = array(BeginQuorumEpochResponseTopicData)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, versions="1+", tag=0)
