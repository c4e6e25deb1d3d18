"""Ask for a vote in the quorum.

- v1: ids of voters and directories; the response points to the leader
- v2: pre-votes, which change nothing
"""

from __future__ import annotations

from ottla.protocol.schema import (
    Request,
    Response,
    Struct,
    array,
    boolean,
    int16,
    int32,
    int64,
    string,
    uint16,
    uuid,
)


class VoteRequestPartitionData(Struct):
    partition_index: int = int32()
    replica_epoch: int = int32()
    replica_id: int = int32()
    replica_directory_id: bytes = uuid(versions="1+", ignorable=True)
    voter_directory_id: bytes = uuid(versions="1+", ignorable=True)
    last_offset_epoch: int = int32()
    last_offset: int = int64()
    pre_vote: bool = boolean(versions="2+")


class VoteRequestTopicData(Struct):
    topic_name: str = string()
    partitions: list[VoteRequestPartitionData] = array(VoteRequestPartitionData)


class VoteRequest(Request, api_key=52, versions="0-2", flexible="0+"):
    cluster_id: str | None = string(nullable=True, default=None)
    voter_id: int = int32(versions="1+", default=-1, ignorable=True)
    topics: list[VoteRequestTopicData] = array(VoteRequestTopicData)


class VoteResponsePartitionData(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    leader_id: int = int32()
    leader_epoch: int = int32()
    vote_granted: bool = boolean()


class VoteResponseTopicData(Struct):
    topic_name: str = string()
    partitions: list[VoteResponsePartitionData] = array(VoteResponsePartitionData)


class NodeEndpoint(Struct):
    node_id: int = int32(map_key=True)
    host: str = string()
    port: int = uint16()


class VoteResponse(Response, api_key=52, versions="0-2", flexible="0+"):
    error_code: int = int16()
    topics: list[VoteResponseTopicData] = array(VoteResponseTopicData)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, versions="1+", tag=0)
