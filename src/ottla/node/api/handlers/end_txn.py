"""EndTxn: commit or abort a transaction.

The response goes out when the decision is in the coordinator's log: from then on the transaction ends that
way in every partition. Until all of them have their marker, the coordinator answers the producer's next
request with CONCURRENT_TRANSACTIONS.

Version 1 has the client, not the broker, wait while it is throttled (KIP-219).
Version 2 can return PRODUCER_FENCED (KIP-588).
Version 3 is flexible (KIP-482).
Version 4 can return TRANSACTION_ABORTABLE (KIP-890).
Version 5 is for transactions of version 2, and returns the producer's next id and epoch (KIP-890).
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from ottla.coordinator.runtime.effects import ProducerIdAndEpoch
from ottla.coordinator.transaction.requests import EndTransaction
from ottla.node.api.context import RequestContext
from ottla.node.api.responses import downgrade_fenced_error
from ottla.protocol.acl import AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse

_FIRST_VERSION_WITH_FENCED: Final = 2
_FIRST_VERSION_OF_EPOCHS: Final = 5


def handle(context: RequestContext, request: EndTxnRequest) -> Awaitable[EndTxnResponse]:
    if not context.allowed(AclOperation.WRITE, AclResourceType.TRANSACTIONAL_ID, request.transactional_id):
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    return _end(context, request)


async def _end(context: RequestContext, request: EndTxnRequest) -> EndTxnResponse:
    returns_epoch = context.version >= _FIRST_VERSION_OF_EPOCHS
    end = EndTransaction(
        request.transactional_id,
        ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
        request.committed,
        client_version=2 if returns_epoch else 0,
    )
    try:
        producer = await context.broker.coordinators.transactions.service.submit_with_id(end)
    except KafkaError as error:
        raise downgrade_fenced_error(
            error, knows_fenced=context.version >= _FIRST_VERSION_WITH_FENCED
        ) from None
    if not returns_epoch:
        return EndTxnResponse()
    return EndTxnResponse(producer_id=producer.id, producer_epoch=producer.epoch)
