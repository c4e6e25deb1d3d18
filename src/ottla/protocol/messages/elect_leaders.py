"""Elect leaders for partitions.

- v1: preferred or unclean; an error for the whole request
- v2: flexible
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, Struct, array, int8, int16, int32, string


class TopicPartitions(Struct):
    topic: str = string(map_key=True)
    partitions: list[int] = array("int32")


class ElectLeadersRequest(Request, api_key=43, versions="0-2", flexible="2+"):
    election_type: int = int8(versions="1+")
    topic_partitions: list[TopicPartitions] | None = array(TopicPartitions, nullable=True)
    timeout_ms: int = int32(default=60000)


class PartitionResult(Struct):
    partition_id: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True)


class ReplicaElectionResult(Struct):
    topic: str = string()
    partition_result: list[PartitionResult] = array(PartitionResult)


class ElectLeadersResponse(Response, api_key=43, versions="0-2", flexible="2+"):
    throttle_time_ms: int = int32()
    error_code: int = int16(versions="1+")
    replica_election_results: list[ReplicaElectionResult] = array(ReplicaElectionResult)
