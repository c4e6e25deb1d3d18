"""Read the committed offsets of groups.

- v2: null asks for all topics; an error for the whole request
- v3: throttle time
- v5: leader epoch of the committed offset
- v6: flexible
- v7: only offsets whose transaction has ended
- v8: many groups at once
- v9: members of the consumer protocol
- v10: topics by id
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, Struct, array, boolean, int16, int32, int64, string, uuid


class OffsetFetchRequestTopic(Struct):
    name: str = string()
    partition_indexes: list[int] = array("int32")


class OffsetFetchRequestTopics(Struct):
    name: str = string(versions="8-9", ignorable=True)
    topic_id: bytes = uuid(versions="10+", ignorable=True)
    partition_indexes: list[int] = array("int32")


class OffsetFetchRequestGroup(Struct):
    group_id: str = string()
    member_id: str | None = string(versions="9+", nullable=True, default=None, ignorable=True)
    member_epoch: int = int32(versions="9+", default=-1, ignorable=True)
    topics: list[OffsetFetchRequestTopics] | None = array(OffsetFetchRequestTopics, nullable=True)


class OffsetFetchRequest(Request, api_key=9, versions="1-10", flexible="6+"):
    group_id: str = string(versions="0-7")
    topics: list[OffsetFetchRequestTopic] | None = array(
        OffsetFetchRequestTopic, versions="0-7", nullable="2-7"
    )
    groups: list[OffsetFetchRequestGroup] = array(OffsetFetchRequestGroup, versions="8+")
    require_stable: bool = boolean(versions="7+")


class OffsetFetchResponsePartition(Struct):
    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(versions="5-7", default=-1, ignorable=True)
    metadata: str | None = string(nullable=True)
    error_code: int = int16()


class OffsetFetchResponseTopic(Struct):
    name: str = string()
    partitions: list[OffsetFetchResponsePartition] = array(OffsetFetchResponsePartition)


class OffsetFetchResponsePartitions(Struct):
    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(default=-1)
    metadata: str | None = string(nullable=True)
    error_code: int = int16()


class OffsetFetchResponseTopics(Struct):
    name: str = string(versions="8-9", ignorable=True)
    topic_id: bytes = uuid(versions="10+", ignorable=True)
    partitions: list[OffsetFetchResponsePartitions] = array(OffsetFetchResponsePartitions)


class OffsetFetchResponseGroup(Struct):
    group_id: str = string()
    topics: list[OffsetFetchResponseTopics] = array(OffsetFetchResponseTopics)
    error_code: int = int16()


class OffsetFetchResponse(Response, api_key=9, versions="1-10", flexible="6+"):
    throttle_time_ms: int = int32(versions="3+", ignorable=True)
    topics: list[OffsetFetchResponseTopic] = array(OffsetFetchResponseTopic, versions="0-7")
    error_code: int = int16(versions="2-7", ignorable=True)
    groups: list[OffsetFetchResponseGroup] = array(OffsetFetchResponseGroup, versions="8+")
