"""Create topics.

- v4: partitions and replication factor may be left to the defaults
- v5: flexible; the response holds the configuration
- v6: THROTTLING_QUOTA_EXCEEDED is possible
- v7: the response holds the topic id
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, Struct, array, boolean, int8, int16, int32, string, uuid


class CreatableReplicaAssignment(Struct):
    partition_index: int = int32(map_key=True)
    broker_ids: list[int] = array("int32")


class CreatableTopicConfig(Struct):
    name: str = string(map_key=True)
    value: str | None = string(nullable=True)


class CreatableTopic(Struct):
    name: str = string(map_key=True)
    num_partitions: int = int32()
    replication_factor: int = int16()
    assignments: list[CreatableReplicaAssignment] = array(CreatableReplicaAssignment)
    configs: list[CreatableTopicConfig] = array(CreatableTopicConfig)


class CreateTopicsRequest(Request, api_key=19, versions="2-7", flexible="5+"):
    topics: list[CreatableTopic] = array(CreatableTopic)
    timeout_ms: int = int32(default=60000)
    validate_only: bool = boolean()


class CreatableTopicConfigs(Struct):
    name: str = string()
    value: str | None = string(nullable=True)
    read_only: bool = boolean()
    config_source: int = int8(default=-1)
    is_sensitive: bool = boolean()


class CreatableTopicResult(Struct):
    name: str = string(map_key=True)
    topic_id: bytes = uuid(versions="7+", ignorable=True)
    error_code: int = int16()
    error_message: str | None = string(nullable=True)
    topic_config_error_code: int = int16(versions="5+", tag=0, ignorable=True)
    num_partitions: int = int32(versions="5+", default=-1, ignorable=True)
    replication_factor: int = int16(versions="5+", default=-1, ignorable=True)
    configs: list[CreatableTopicConfigs] | None = array(
        CreatableTopicConfigs, versions="5+", nullable=True, ignorable=True
    )


class CreateTopicsResponse(Response, api_key=19, versions="2-7", flexible="5+"):
    throttle_time_ms: int = int32()
    topics: list[CreatableTopicResult] = array(CreatableTopicResult)
