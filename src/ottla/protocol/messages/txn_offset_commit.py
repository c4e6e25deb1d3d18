"""Commit offsets for a group within a transaction.

- v2: leader epoch of the last record
- v3: flexible; member and generation are checked
- v4: TRANSACTION_ABORTABLE is possible
- v5: adds the group to the transaction by itself
- v6: topics by id; GROUP_ID_NOT_FOUND, STALE_MEMBER_EPOCH (KIP-1319)
"""

from __future__ import annotations

from ottla.protocol.schema import Request, Response, Struct, array, int16, int32, int64, string, uuid


class TxnOffsetCommitRequestPartition(Struct):
    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(versions="2+", default=-1, ignorable=True)
    committed_metadata: str | None = string(nullable=True)


class TxnOffsetCommitRequestTopic(Struct):
    name: str = string(versions="0-5", ignorable=True)
    topic_id: bytes = uuid(versions="6+", ignorable=True)
    partitions: list[TxnOffsetCommitRequestPartition] = array(TxnOffsetCommitRequestPartition)


class TxnOffsetCommitRequest(Request, api_key=28, versions="0-6", flexible="3+"):
    transactional_id: str = string()
    group_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    generation_id_or_member_epoch: int = int32(versions="3+", default=-1)
    member_id: str = string(versions="3+")
    group_instance_id: str | None = string(versions="3+", nullable=True, default=None)
    topics: list[TxnOffsetCommitRequestTopic] = array(TxnOffsetCommitRequestTopic)


class TxnOffsetCommitResponsePartition(Struct):
    partition_index: int = int32()
    error_code: int = int16()


class TxnOffsetCommitResponseTopic(Struct):
    name: str = string(versions="0-5", ignorable=True)
    topic_id: bytes = uuid(versions="6+", ignorable=True)
    partitions: list[TxnOffsetCommitResponsePartition] = array(TxnOffsetCommitResponsePartition)


class TxnOffsetCommitResponse(Response, api_key=28, versions="0-6", flexible="3+"):
    throttle_time_ms: int = int32()
    topics: list[TxnOffsetCommitResponseTopic] = array(TxnOffsetCommitResponseTopic)
