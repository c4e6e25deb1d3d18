"""DescribeTransactions: the state of transactional ids, and the partitions of their open transactions."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable

from ottla.coordinator.transaction.requests import DescribeTransaction
from ottla.coordinator.transaction.transaction_metadata import TransactionMetadata
from ottla.node.api.context import RequestContext
from ottla.node.api.deduplication import deduplicate_long
from ottla.protocol.acl import AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from ottla.runtime.turns import Turns


def handle(
    context: RequestContext, request: DescribeTransactionsRequest
) -> Awaitable[DescribeTransactionsResponse]:
    return _describe(context, deduplicate_long(request.transactional_ids))


async def _describe(
    context: RequestContext, transactional_ids: Iterable[str]
) -> DescribeTransactionsResponse:
    response, turns = DescribeTransactionsResponse(), Turns(context.broker.runtime.clock)
    for transactional_id in transactional_ids:
        response.transaction_states.append(await _state(context, transactional_id))
        await turns.pause_if_due()
    return response


async def _state(context: RequestContext, transactional_id: str) -> TransactionState:
    try:
        if not context.allowed(AclOperation.DESCRIBE, AclResourceType.TRANSACTIONAL_ID, transactional_id):
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        transaction = await context.broker.coordinators.transactions.service.submit(
            DescribeTransaction(transactional_id)
        )
    except KafkaError as error:
        return TransactionState(transactional_id=transactional_id, error_code=int(error.code))
    return TransactionState(
        transactional_id=transactional_id,
        transaction_state=transaction.state.title,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_start_time_ms=transaction.start_ms,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        topics=_topics(context, transaction),
    )


def _topics(context: RequestContext, transaction: TransactionMetadata) -> list[TopicData]:
    """The partitions of the transaction, by topic, of topics that the client may describe."""
    topics: dict[str, TopicData] = {}
    for name, index in sorted(transaction.partitions):
        if name not in topics:
            topics[name] = TopicData(topic=name, partitions=[])
        topics[name].partitions.append(index)
    return [
        topic
        for name, topic in topics.items()
        if context.allowed(AclOperation.DESCRIBE, AclResourceType.TOPIC, name, log_denied=False)
    ]
