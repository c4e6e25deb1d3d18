"""The keys and values in `__transaction_state`: the state of each transactional id.

Framing and tombstones are those of `ottla.protocol.coordinator_records`. Value v1 is flexible; its tagged
fields carry what transactions v2 need: the previous and the next producer id and epoch, and the client's
version.
"""

from __future__ import annotations

from typing import Final

from ottla.protocol.coordinator_records import CoordinatorRecords
from ottla.protocol.schema import Message, Struct, array, int8, int16, int32, int64, string


class TransactionLogKey(Message, api_key=0, versions="0"):
    """A transactional id."""

    transactional_id: str = string()


class PartitionsSchema(Struct):
    topic: str = string()
    partition_ids: list[int] = array("int32")


class TransactionLogValue(Message, api_key=0, versions="0-1", flexible="1+"):
    producer_id: int = int64()
    previous_producer_id: int = int64(versions="1+", tag=0, default=-1)
    next_producer_id: int = int64(versions="1+", tag=1, default=-1)
    producer_epoch: int = int16()
    next_producer_epoch: int = int16(versions="1+", tag=3, default=-1)
    transaction_timeout_ms: int = int32()
    transaction_status: int = int8()
    transaction_partitions: list[PartitionsSchema] | None = array(PartitionsSchema, nullable=True)
    transaction_last_update_timestamp_ms: int = int64()
    transaction_start_timestamp_ms: int = int64()
    client_transaction_version: int = int16(versions="1+", tag=2)


RECORDS: Final = CoordinatorRecords(((TransactionLogKey, TransactionLogValue),))
