"""The records of `__transaction_state`, in the versions in which Kafka 4.3 writes them.

The value is of version 0 until the cluster's `transaction.version` is at least 1. Version 1 carries, in
tagged fields, what transactions of version 2 and prepared ones need; a transaction that needs them is
written in version 1 in any case.
"""

from __future__ import annotations

from ottla.coordinator.runtime.effects import CoordinatorRecord
from ottla.coordinator.transaction.transaction_metadata import NO_ID, TransactionMetadata, TransactionState
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.names import TopicPartition
from ottla.protocol.transaction_state_records import (
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)


def transaction_record(transaction: TransactionMetadata, transaction_version: int) -> CoordinatorRecord:
    flexible = (
        transaction_version >= 1 or transaction.client_version > 0 or transaction.next_producer_id != NO_ID
    )
    value = TransactionLogValue(
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=int(transaction.state),
        transaction_partitions=_by_topic(transaction),
        transaction_last_update_timestamp_ms=transaction.last_update_ms,
        transaction_start_timestamp_ms=transaction.start_ms,
    )
    if flexible:
        value.previous_producer_id = transaction.previous_producer_id
        value.next_producer_id = transaction.next_producer_id
        value.next_producer_epoch = transaction.next_producer_epoch
        value.client_transaction_version = transaction.client_version
    return CoordinatorRecord(_key(transaction.transactional_id), value, 1 if flexible else 0)


def tombstone(transactional_id: str) -> CoordinatorRecord:
    return CoordinatorRecord(_key(transactional_id), None)


def transaction_of(transactional_id: str, value: TransactionLogValue) -> TransactionMetadata:
    try:
        state = TransactionState(value.transaction_status)
    except ValueError:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"transactional id {transactional_id!r} is in the unknown state {value.transaction_status}",
        ) from None
    return TransactionMetadata(
        transactional_id,
        value.producer_id,
        value.producer_epoch,
        value.transaction_timeout_ms,
        state,
        frozenset(
            TopicPartition(topic.topic, partition)
            for topic in value.transaction_partitions or ()
            for partition in topic.partition_ids
        ),
        value.transaction_start_timestamp_ms,
        value.transaction_last_update_timestamp_ms,
        value.previous_producer_id,
        value.next_producer_id,
        value.next_producer_epoch,
        value.client_transaction_version,
    )


def _key(transactional_id: str) -> TransactionLogKey:
    return TransactionLogKey(transactional_id=transactional_id)


def _by_topic(transaction: TransactionMetadata) -> list[PartitionsSchema] | None:
    if transaction.state is TransactionState.EMPTY:
        return None
    topics: dict[str, list[int]] = {}
    for partition in sorted(transaction.partitions):
        topics.setdefault(partition.topic, []).append(partition.partition)
    return [PartitionsSchema(topic=name, partition_ids=ids) for name, ids in topics.items()]
