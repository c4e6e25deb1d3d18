"""InitProducerId: an id for an idempotent producer, or the next epoch of a transactional one.

Without a transactional id every request gets a new id at epoch 0. With one it is the transaction
coordinator's to answer.

Version 1 only made errors retriable; 2 is flexible; 3 lets a producer go on with its own id and epoch; 4
can say PRODUCER_FENCED; 5 TRANSACTION_ABORTABLE; 6, not stable yet, is for two-phase commits.
"""

from __future__ import annotations

from collections.abc import Awaitable

from ottla.node.authorization import CLUSTER_NAME, Operation, Resource
from ottla.node.context import RequestContext
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse


def handle(context: RequestContext, request: InitProducerIdRequest) -> Awaitable[InitProducerIdResponse]:
    transactional_id = request.transactional_id
    if transactional_id == "" or (request.producer_id == -1) != (request.producer_epoch == -1):
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    if transactional_id is None:
        if not context.allowed(Operation.IDEMPOTENT_WRITE, Resource.CLUSTER, CLUSTER_NAME):
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return _new_id(context)
    if not context.allowed(Operation.WRITE, Resource.TRANSACTIONAL_ID, transactional_id):
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    transactions = context.node.transactions
    if transactions is None:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return transactions.init_producer_id(context, request)


def failed(_request: InitProducerIdRequest, code: int, _message: str | None) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=int(code), producer_id=-1, producer_epoch=-1)


async def _new_id(context: RequestContext) -> InitProducerIdResponse:
    return InitProducerIdResponse(producer_id=await context.node.producer_ids.next(), producer_epoch=0)
