"""Tell the voters of the quorum that the leader resigns.

- v1: flexible; candidates by id and directory, and the leader's addresses
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, Struct, array, int16, int32, string, uint16, uuid


class ReplicaInfo(Struct):
    candidate_id: int = int32()
    candidate_directory_id: bytes = uuid()


class EndQuorumEpochRequestPartitionData(Struct):
    partition_index: int = int32()
    leader_id: int = int32()
    leader_epoch: int = int32()
    preferred_successors: list[int] = array("int32", versions="0", ignorable=True)
    preferred_candidates: list[ReplicaInfo] = array(ReplicaInfo, versions="1+", ignorable=True)


class EndQuorumEpochRequestTopicData(Struct):
    topic_name: str = string()
    partitions: list[EndQuorumEpochRequestPartitionData] = array(EndQuorumEpochRequestPartitionData)


class LeaderEndpoint(Struct):
    name: str = string(map_key=True)
    host: str = string()
    port: int = uint16()


class EndQuorumEpochRequest(Request, api_key=54, versions="0-1", flexible="1+"):
    cluster_id: str | None = string(nullable=True, default=None)
    topics: list[EndQuorumEpochRequestTopicData] = array(EndQuorumEpochRequestTopicData)
    leader_endpoints: list[LeaderEndpoint] = array(LeaderEndpoint, versions="1+", ignorable=True)


class EndQuorumEpochResponsePartitionData(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    leader_id: int = int32()
    leader_epoch: int = int32()


class EndQuorumEpochResponseTopicData(Struct):
    topic_name: str = string()
    partitions: list[EndQuorumEpochResponsePartitionData] = array(EndQuorumEpochResponsePartitionData)


class NodeEndpoint(Struct):
    node_id: int = int32(map_key=True)
    host: str = string()
    port: int = uint16()


class EndQuorumEpochResponse(Response, api_key=54, versions="0-1", flexible="1+"):
    error_code: int = int16()
    topics: list[EndQuorumEpochResponseTopicData] = array(EndQuorumEpochResponseTopicData)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, versions="1+", tag=0)
