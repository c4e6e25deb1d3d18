"""Find offsets by timestamp, or the special ones at the ends of a log.

- v2: isolation level
- v4: the leader epoch is checked and returned
- v5: OFFSET_NOT_AVAILABLE is possible
- v6: flexible
- v7: the offset of the largest timestamp (-3)
- v8: the local log start (-4)
- v9: the end of what is tiered (-5)
- v10: a timeout for lookups in remote storage
- v11: the first offset that waits for its upload (-6)
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, Struct, array, int8, int16, int32, int64, string


class ListOffsetsPartition(Struct):
    partition_index: int = int32()
    current_leader_epoch: int = int32(versions="4+", default=-1, ignorable=True)
    timestamp: int = int64()


class ListOffsetsTopic(Struct):
    name: str = string()
    partitions: list[ListOffsetsPartition] = array(ListOffsetsPartition)


class ListOffsetsRequest(Request, api_key=2, versions="1-11", flexible="6+"):
    replica_id: int = int32()
    isolation_level: int = int8(versions="2+")
    topics: list[ListOffsetsTopic] = array(ListOffsetsTopic)
    timeout_ms: int = int32(versions="10+", ignorable=True)


class ListOffsetsPartitionResponse(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    timestamp: int = int64(default=-1)
    offset: int = int64(default=-1)
    leader_epoch: int = int32(versions="4+", default=-1)


class ListOffsetsTopicResponse(Struct):
    name: str = string()
    partitions: list[ListOffsetsPartitionResponse] = array(ListOffsetsPartitionResponse)


class ListOffsetsResponse(Response, api_key=2, versions="1-11", flexible="6+"):
    throttle_time_ms: int = int32(versions="2+", ignorable=True)
    topics: list[ListOffsetsTopicResponse] = array(ListOffsetsTopicResponse)
