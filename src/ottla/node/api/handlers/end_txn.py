"""EndTxn: commit or abort a transaction.

The answer comes when the decision is in the coordinator's log: from then on the transaction ends that way in
every partition. Until all of them have their marker, the producer's next request to the coordinator is
answered with CONCURRENT_TRANSACTIONS.

Version 1 only made errors retriable; 2 can say PRODUCER_FENCED; 3 is flexible; 4 can say
TRANSACTION_ABORTABLE; 5 is for transactions of version 2, and tells the id and epoch to go on with.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from ottla.coordinator.runtime.effects import ProducerIdAndEpoch
from ottla.coordinator.transaction.requests import EndTransaction
from ottla.node.api.context import RequestContext
from ottla.node.coordinators.add_partitions_to_txn import as_known
from ottla.protocol.acl import AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse

_FIRST_VERSION_OF_FENCING: Final = 2
_FIRST_VERSION_OF_EPOCHS: Final = 5


def handle(context: RequestContext, request: EndTxnRequest) -> Awaitable[EndTxnResponse]:
    if not context.allowed(AclOperation.WRITE, AclResourceType.TRANSACTIONAL_ID, request.transactional_id):
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    return _end(context, request)


async def _end(context: RequestContext, request: EndTxnRequest) -> EndTxnResponse:
    tells_epochs = context.version >= _FIRST_VERSION_OF_EPOCHS
    asked = EndTransaction(
        request.transactional_id,
        ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
        request.committed,
        client_version=2 if tells_epochs else 0,
    )
    try:
        producer = await context.broker.transactions.service.submit_with_id(asked)
    except KafkaError as error:
        raise as_known(error, fencing=context.version >= _FIRST_VERSION_OF_FENCING) from None
    if not tells_epochs:
        return EndTxnResponse()
    return EndTxnResponse(producer_id=producer.id, producer_epoch=producer.epoch)
