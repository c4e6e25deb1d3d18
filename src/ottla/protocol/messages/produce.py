"""Append records to partitions.

- v4: KAFKA_STORAGE_ERROR is possible
- v5: the response has the log start offset
- v7: zstd is allowed
- v8: which records were refused, and why
- v9: flexible
- v10: the response points to the new leader
- v11: TRANSACTION_ABORTABLE is possible
- v12: adds partitions to the transaction by itself
- v13: topics by id
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
    uuid,
)


class PartitionProduceData(Struct):
    index: int = int32()
    records: Buffer | None = records(nullable=True)


class TopicProduceData(Struct):
    name: str = string(versions="0-12", ignorable=True, map_key=True)
    topic_id: bytes = uuid(versions="13+", ignorable=True, map_key=True)
    partition_data: list[PartitionProduceData] = array(PartitionProduceData)


class ProduceRequest(Request, api_key=0, versions="3-13", flexible="9+"):
    transactional_id: str | None = string(nullable=True, default=None)
    acks: int = int16()
    timeout_ms: int = int32()
    topic_data: list[TopicProduceData] = array(TopicProduceData)


class BatchIndexAndErrorMessage(Struct):
    batch_index: int = int32()
    batch_index_error_message: str | None = string(nullable=True, default=None)


class LeaderIdAndEpoch(Struct):
    leader_id: int = int32(default=-1)
    leader_epoch: int = int32(default=-1)


class PartitionProduceResponse(Struct):
    index: int = int32()
    error_code: int = int16()
    base_offset: int = int64()
    log_append_time_ms: int = int64(default=-1)
    log_start_offset: int = int64(versions="5+", default=-1, ignorable=True)
    record_errors: list[BatchIndexAndErrorMessage] = array(
        BatchIndexAndErrorMessage, versions="8+", ignorable=True
    )
    error_message: str | None = string(versions="8+", nullable=True, default=None, ignorable=True)
    current_leader: LeaderIdAndEpoch = nested(LeaderIdAndEpoch, versions="10+", tag=0)


class TopicProduceResponse(Struct):
    name: str = string(versions="0-12", ignorable=True, map_key=True)
    topic_id: bytes = uuid(versions="13+", ignorable=True, map_key=True)
    partition_responses: list[PartitionProduceResponse] = array(PartitionProduceResponse)


class NodeEndpoint(Struct):
    node_id: int = int32(map_key=True)
    host: str = string()
    port: int = int32()
    rack: str | None = string(nullable=True, default=None)


class ProduceResponse(Response, api_key=0, versions="3-13", flexible="9+"):
    responses: list[TopicProduceResponse] = array(TopicProduceResponse)
    throttle_time_ms: int = int32()
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, versions="10+", tag=0)
