"""List the records that share groups have in delivery. Not of Apache Kafka."""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, Struct, array, int8, int16, int32, int64, string


class DescribeShareRecordsRequestPartition(Struct):
    partition_index: int = int32()
    start_offset: int = int64()


class DescribeShareRecordsRequestTopic(Struct):
    name: str = string()
    partitions: list[DescribeShareRecordsRequestPartition] = array(DescribeShareRecordsRequestPartition)


class DescribeShareRecordsRequest(Request, api_key=10000, versions="0", flexible="0+"):
    group_id: str = string()
    states: list[int] = array("int8")
    max_ranges: int = int32()
    topics: list[DescribeShareRecordsRequestTopic] = array(DescribeShareRecordsRequestTopic)


class RecordsInDelivery(Struct):
    first_offset: int = int64()
    last_offset: int = int64()
    state: int = int8()
    delivery_count: int = int16()
    member_id: str | None = string(nullable=True, default=None)
    age_ms: int = int64(default=-1)
    left_ms: int = int64(default=-1)


class DescribeShareRecordsResponsePartition(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True, default=None)
    start_offset: int = int64(default=-1)
    held: int = int64(default=-1)
    waiting: int = int64(default=-1)
    dead: int = int64(default=-1)
    dead_letter_problem: str | None = string(nullable=True, default=None)
    next_offset: int = int64(default=-1)
    ranges: list[RecordsInDelivery] = array(RecordsInDelivery)


class DescribeShareRecordsResponseTopic(Struct):
    name: str = string()
    partitions: list[DescribeShareRecordsResponsePartition] = array(DescribeShareRecordsResponsePartition)


class DescribeShareRecordsResponse(Response, api_key=10000, versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable=True, default=None)
    topics: list[DescribeShareRecordsResponseTopic] = array(DescribeShareRecordsResponseTopic)
