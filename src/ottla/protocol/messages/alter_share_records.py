"""Release, reject or skip records that share groups have in delivery. Not of Apache Kafka."""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, Struct, array, int8, int16, int32, int64, string


class AlterShareRecordsRequestRange(Struct):
    first_offset: int = int64()
    last_offset: int = int64()
    delivery_count: int = int16(default=-1)


class AlterShareRecordsRequestPartition(Struct):
    partition_index: int = int32()
    ranges: list[AlterShareRecordsRequestRange] = array(AlterShareRecordsRequestRange)


class AlterShareRecordsRequestTopic(Struct):
    name: str = string()
    partitions: list[AlterShareRecordsRequestPartition] = array(AlterShareRecordsRequestPartition)


class AlterShareRecordsRequest(Request, api_key=10001, versions="0", flexible="0+"):
    group_id: str = string()
    acknowledge_type: int = int8()
    topics: list[AlterShareRecordsRequestTopic] = array(AlterShareRecordsRequestTopic)


class AlterShareRecordsResponsePartition(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True, default=None)
    records: int = int64()
    next_offset: int = int64(default=-1)


class AlterShareRecordsResponseTopic(Struct):
    name: str = string()
    partitions: list[AlterShareRecordsResponsePartition] = array(AlterShareRecordsResponsePartition)


class AlterShareRecordsResponse(Response, api_key=10001, versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True, default=None)
    topics: list[AlterShareRecordsResponseTopic] = array(AlterShareRecordsResponseTopic)
