"""Brokers, topics and partitions with their leaders.

- v0: no topics asked for means all of them
- v1: null means all; racks, controller and internal topics
- v2: cluster id
- v4: topics are created on request only
- v5: offline replicas
- v7: leader epoch
- v8: authorized operations
- v9: flexible
- v10: topic ids
- v11: the cluster's operations move to DescribeCluster
- v12: topics may be asked for by id
- v13: an error for the whole request
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, Struct, array, boolean, int16, int32, string, uuid


class MetadataRequestTopic(Struct):
    topic_id: bytes = uuid(versions="10+", ignorable=True)
    name: str | None = string(nullable="10+")


class MetadataRequest(Request, api_key=3, versions="0-13", flexible="9+"):
    topics: list[MetadataRequestTopic] | None = array(MetadataRequestTopic, nullable="1+")
    allow_auto_topic_creation: bool = boolean(versions="4+", default=True)
    include_cluster_authorized_operations: bool = boolean(versions="8-10")
    include_topic_authorized_operations: bool = boolean(versions="8+")


class MetadataResponseBroker(Struct):
    node_id: int = int32(map_key=True)
    host: str = string()
    port: int = int32()
    rack: str | None = string(versions="1+", nullable=True, default=None, ignorable=True)


class MetadataResponsePartition(Struct):
    error_code: int = int16()
    partition_index: int = int32()
    leader_id: int = int32()
    leader_epoch: int = int32(versions="7+", default=-1, ignorable=True)
    replica_nodes: list[int] = array("int32")
    isr_nodes: list[int] = array("int32")
    offline_replicas: list[int] = array("int32", versions="5+", ignorable=True)


class MetadataResponseTopic(Struct):
    error_code: int = int16()
    name: str | None = string(nullable="12+", map_key=True)
    topic_id: bytes = uuid(versions="10+", ignorable=True)
    is_internal: bool = boolean(versions="1+", ignorable=True)
    partitions: list[MetadataResponsePartition] = array(MetadataResponsePartition)
    topic_authorized_operations: int = int32(versions="8+", default=-(2**31))


class MetadataResponse(Response, api_key=3, versions="0-13", flexible="9+"):
    throttle_time_ms: int = int32(versions="3+", ignorable=True)
    brokers: list[MetadataResponseBroker] = array(MetadataResponseBroker)
    cluster_id: str | None = string(versions="2+", nullable=True, default=None, ignorable=True)
    controller_id: int = int32(versions="1+", default=-1, ignorable=True)
    topics: list[MetadataResponseTopic] = array(MetadataResponseTopic)
    cluster_authorized_operations: int = int32(versions="8-10", default=-(2**31))
    error_code: int = int16(versions="13+", ignorable=True)
