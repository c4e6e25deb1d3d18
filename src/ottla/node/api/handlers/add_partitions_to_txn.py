"""AddPartitionsToTxn: add partitions to a transaction, before they are written to.

All partitions of a transaction are added, or none: if one of them is unknown or not allowed, the others get
OPERATION_NOT_ATTEMPTED.

Version 1 has the client, not the broker, wait while it is throttled (KIP-219).
Version 2 can return PRODUCER_FENCED (KIP-588).
Version 3 is flexible (KIP-482); the last for clients.
Version 4 is what brokers send, for many transactions at once, to add partitions to transactions of version 2,
  or only to verify those of version 1 (KIP-890).
Version 5 can return TRANSACTION_ABORTABLE (KIP-890).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from ottla.coordinator.runtime.effects import ProducerIdAndEpoch
from ottla.coordinator.transaction.requests import AddPartitions, VerifyPartitions
from ottla.node.api.context import RequestContext
from ottla.node.api.responses import downgrade_fenced_error
from ottla.protocol.acl import AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from ottla.protocol.names import INTERNAL_TOPICS, TopicPartition
from ottla.runtime.steps import Steps, run_at_once
from ottla.runtime.turns import Turns
from ottla.runtime.work_queue import in_turns

_FIRST_VERSION_WITH_FENCED: Final = 2
_FIRST_VERSION_OF_BROKERS: Final = 4
_AT_ONCE: Final = 100


def handle(
    context: RequestContext, request: AddPartitionsToTxnRequest
) -> Awaitable[AddPartitionsToTxnResponse]:
    if context.version < _FIRST_VERSION_OF_BROKERS:
        return _add_for_client(context, request)
    context.require_cluster_action()
    return _add_for_broker(context, request)


def failure_response(
    request: AddPartitionsToTxnRequest, code: int, _message: str | None
) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        error_code=int(code),
        results_by_topic_v3_and_below=run_at_once(
            _same_result(request.v3_and_below_topics, ErrorCode.of(code))
        ),
    )


async def _add_for_client(
    context: RequestContext, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    transaction = AddPartitionsToTxnTransaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=await _results(context, transaction))


async def _add_for_broker(
    context: RequestContext, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    turns, response = Turns(context.broker.runtime.clock), AddPartitionsToTxnResponse()
    for start in range(0, len(request.transactions), _AT_ONCE):
        # All of these are submitted before any is awaited.
        part = request.transactions[start : start + _AT_ONCE]
        results = await asyncio.gather(*(_results(context, each) for each in part))
        response.results_by_transaction += [
            AddPartitionsToTxnResult(transactional_id=each.transactional_id, topic_results=topics)
            for each, topics in zip(part, results, strict=True)
        ]
        await turns.pause_if_due()
    return response


async def _results(
    context: RequestContext, transaction: AddPartitionsToTxnTransaction
) -> list[AddPartitionsToTxnTopicResult]:
    transactional_id, topics = transaction.transactional_id, transaction.topics
    turns = Turns(context.broker.runtime.clock)
    from_client = context.version < _FIRST_VERSION_OF_BROKERS
    if from_client and not context.allowed(
        AclOperation.WRITE, AclResourceType.TRANSACTIONAL_ID, transactional_id
    ):
        return await in_turns(_same_result(topics, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED), turns)
    checked: dict[TopicPartition, ErrorCode] = {}
    for topic in topics:
        for index in topic.partitions:
            code = _check(context, topic.name, index, from_client=from_client)
            checked[TopicPartition(topic.name, index)] = code
            await turns.pause_if_due()
    if any(code is not ErrorCode.NONE for code in checked.values()):
        return await in_turns(
            _results_of(topics, lambda tp: checked[tp] or ErrorCode.OPERATION_NOT_ATTEMPTED), turns
        )
    producer = ProducerIdAndEpoch(transaction.producer_id, transaction.producer_epoch)
    partitions = frozenset(checked)
    service = context.broker.coordinators.transactions.service
    try:
        if transaction.verify_only:
            codes = await service.submit(VerifyPartitions(transactional_id, producer, partitions))
            return await in_turns(_results_of(topics, codes.__getitem__), turns)
        version = 0 if from_client else 2
        await service.submit(AddPartitions(transactional_id, producer, partitions, client_version=version))
    except KafkaError as error:
        error = downgrade_fenced_error(error, knows_fenced=context.version >= _FIRST_VERSION_WITH_FENCED)
        return await in_turns(_same_result(topics, error.code), turns)
    return await in_turns(_same_result(topics, ErrorCode.NONE), turns)


def _check(context: RequestContext, topic: str, index: int, *, from_client: bool) -> ErrorCode:
    if from_client and (
        topic in INTERNAL_TOPICS or not context.allowed(AclOperation.WRITE, AclResourceType.TOPIC, topic)
    ):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    found = context.image.topics.by_name.get(topic)
    if found is None or index not in found.partitions:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE


def _same_result(
    topics: list[AddPartitionsToTxnTopic], code: ErrorCode
) -> Steps[list[AddPartitionsToTxnTopicResult]]:
    return _results_of(topics, lambda _: code)


def _results_of(
    topics: list[AddPartitionsToTxnTopic], code: Callable[[TopicPartition], ErrorCode]
) -> Steps[list[AddPartitionsToTxnTopicResult]]:
    results = []
    for topic in topics:
        result = AddPartitionsToTxnTopicResult(name=topic.name)
        results.append(result)
        for index in topic.partitions:
            result.results_by_partition.append(
                AddPartitionsToTxnPartitionResult(
                    partition_index=index,
                    partition_error_code=int(code(TopicPartition(topic.name, index))),
                )
            )
            yield
    return results
