"""Describe the log directories of a broker and what is in them.

- v2: flexible
- v3: an error for the whole request
- v4: total and usable bytes
- v5: whether a directory is cordoned
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, Struct, array, boolean, int16, int32, int64, string


class DescribableLogDirTopic(Struct):
    topic: str = string(map_key=True)
    partitions: list[int] = array("int32")


class DescribeLogDirsRequest(Request, api_key=35, versions="1-5", flexible="2+"):
    topics: list[DescribableLogDirTopic] | None = array(DescribableLogDirTopic, nullable=True)


class DescribeLogDirsPartition(Struct):
    partition_index: int = int32()
    partition_size: int = int64()
    offset_lag: int = int64()
    is_future_key: bool = boolean()


class DescribeLogDirsTopic(Struct):
    name: str = string()
    partitions: list[DescribeLogDirsPartition] = array(DescribeLogDirsPartition)


class DescribeLogDirsResult(Struct):
    error_code: int = int16()
    log_dir: str = string()
    topics: list[DescribeLogDirsTopic] = array(DescribeLogDirsTopic)
    total_bytes: int = int64(versions="4+", default=-1, ignorable=True)
    usable_bytes: int = int64(versions="4+", default=-1, ignorable=True)
    is_cordoned: bool = boolean(versions="5+", ignorable=True)


class DescribeLogDirsResponse(Response, api_key=35, versions="1-5", flexible="2+"):
    throttle_time_ms: int = int32()
    error_code: int = int16(versions="3+", ignorable=True)
    results: list[DescribeLogDirsResult] = array(DescribeLogDirsResult)
