"""Change the in-sync replicas of partitions; from their leaders to the controller.

- v2: topics by id
- v3: the epoch of each replica
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, Struct, array, int8, int16, int32, int64, uuid


class BrokerState(Struct):
    broker_id: int = int32()
    broker_epoch: int = int64(default=-1)


class AlterPartitionRequestPartitionData(Struct):
    partition_index: int = int32()
    leader_epoch: int = int32()
    new_isr: list[int] = array("int32", versions="0-2")
    new_isr_with_epochs: list[BrokerState] = array(BrokerState, versions="3+")
    leader_recovery_state: int = int8()
    partition_epoch: int = int32()


class AlterPartitionRequestTopicData(Struct):
    topic_id: bytes = uuid()
    partitions: list[AlterPartitionRequestPartitionData] = array(AlterPartitionRequestPartitionData)


class AlterPartitionRequest(Request, api_key=56, versions="2-3", flexible="0+"):
    broker_id: int = int32()
    broker_epoch: int = int64(default=-1)
    topics: list[AlterPartitionRequestTopicData] = array(AlterPartitionRequestTopicData)


class AlterPartitionResponsePartitionData(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    leader_id: int = int32()
    leader_epoch: int = int32()
    isr: list[int] = array("int32")
    leader_recovery_state: int = int8()
    partition_epoch: int = int32()


class AlterPartitionResponseTopicData(Struct):
    topic_id: bytes = uuid()
    partitions: list[AlterPartitionResponsePartitionData] = array(AlterPartitionResponsePartitionData)


class AlterPartitionResponse(Response, api_key=56, versions="2-3", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    topics: list[AlterPartitionResponseTopicData] = array(AlterPartitionResponseTopicData)
