"""AddOffsetsToTxn: add the offsets of a group to a transaction of version 1.

The transaction gets the partition of `__consumer_offsets` in which the group lives; the offsets themselves go
to the group's coordinator by TxnOffsetCommit.

Version 1 has the client, not the broker, wait while it is throttled (KIP-219).
Version 2 can return PRODUCER_FENCED (KIP-588).
Version 3 is flexible (KIP-482).
Version 4 can return TRANSACTION_ABORTABLE (KIP-890).
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from ottla.coordinator.runtime.effects import ProducerIdAndEpoch
from ottla.coordinator.transaction.requests import AddPartitions
from ottla.node.api.auto_topic_creation import create_missing_topics
from ottla.node.api.context import RequestContext
from ottla.node.api.responses import downgrade_fenced_error
from ottla.protocol.acl import AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from ottla.protocol.names import CONSUMER_OFFSETS_TOPIC, TopicPartition

_FIRST_VERSION_WITH_FENCED: Final = 2


def handle(context: RequestContext, request: AddOffsetsToTxnRequest) -> Awaitable[AddOffsetsToTxnResponse]:
    if not context.allowed(AclOperation.WRITE, AclResourceType.TRANSACTIONAL_ID, request.transactional_id):
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not context.allowed(AclOperation.READ, AclResourceType.GROUP, request.group_id):
        raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    return _add(context, request)


async def _add(context: RequestContext, request: AddOffsetsToTxnRequest) -> AddOffsetsToTxnResponse:
    if CONSUMER_OFFSETS_TOPIC not in context.image.topics.by_name:
        # A producer looks for the group's coordinator only after this.
        await create_missing_topics(context.services, [CONSUMER_OFFSETS_TOPIC])
    partition = TopicPartition(
        CONSUMER_OFFSETS_TOPIC, context.broker.coordinators.groups.partition_for(request.group_id)
    )
    producer = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    try:
        await context.broker.coordinators.transactions.service.submit(
            AddPartitions(request.transactional_id, producer, frozenset((partition,)), client_version=0)
        )
    except KafkaError as error:
        raise downgrade_fenced_error(
            error, knows_fenced=context.version >= _FIRST_VERSION_WITH_FENCED
        ) from None
    return AddOffsetsToTxnResponse()
