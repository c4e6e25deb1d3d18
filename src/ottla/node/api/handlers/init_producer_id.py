"""InitProducerId: give an id to an idempotent producer, or the next epoch to a transactional one.

Without a transactional id every request gets a new id at epoch 0. With one, the coordinator first aborts a
transaction that the previous producer left open, and answers CONCURRENT_TRANSACTIONS meanwhile; or it keeps
that transaction, if the request says so, for the new producer to commit or abort.

Version 1 has the client, not the broker, wait while it is throttled (KIP-219).
Version 2 is flexible (KIP-482).
Version 3 lets a producer continue with its own id and epoch (KIP-360).
Version 4 can return PRODUCER_FENCED (KIP-588).
Version 5 can return TRANSACTION_ABORTABLE (KIP-890).
Version 6 is for two-phase commits, and not stable in Kafka (KIP-939).
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from ottla.coordinator.runtime.effects import ProducerIdAndEpoch
from ottla.coordinator.transaction.requests import InitProducerId
from ottla.node.api.context import RequestContext
from ottla.node.api.responses import downgrade_fenced_error
from ottla.protocol.acl import CLUSTER_NAME, AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.names import TRANSACTION_STATE_TOPIC

_FIRST_VERSION_WITH_FENCED: Final = 4


def handle(
    context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse | Awaitable[InitProducerIdResponse]:
    transactional_id = request.transactional_id
    if transactional_id is None:
        _check_idempotent_write(context)
        _check_identity(request)
        return _new_id(context)
    operations = [AclOperation.WRITE]
    if request.enable_2pc:
        operations.append(AclOperation.TWO_PHASE_COMMIT)
    for operation in operations:
        if not context.allowed(operation, AclResourceType.TRANSACTIONAL_ID, transactional_id):
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    _check_identity(request)
    return _transactional(context, request, transactional_id)


def failure_response(
    _request: InitProducerIdRequest, code: int, _message: str | None
) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=int(code), producer_id=-1, producer_epoch=-1)


def _check_idempotent_write(context: RequestContext) -> None:
    """A client that may write any topic may do so idempotently (KIP-679)."""
    if not context.allowed(
        AclOperation.IDEMPOTENT_WRITE, AclResourceType.CLUSTER, CLUSTER_NAME, log_denied=False
    ) and not context.allowed_by_resource_type(AclOperation.WRITE, AclResourceType.TOPIC):
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def _check_identity(request: InitProducerIdRequest) -> None:
    if (request.producer_id == -1) != (request.producer_epoch == -1):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, "A request names both a producer id and its epoch, or neither"
        )


async def _new_id(context: RequestContext) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        producer_id=await context.broker.producer_ids.generate_producer_id(), producer_epoch=0
    )


async def _transactional(
    context: RequestContext, request: InitProducerIdRequest, transactional_id: str
) -> InitProducerIdResponse:
    expected = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    init = InitProducerId(
        transactional_id,
        request.transaction_timeout_ms,
        None if expected.id == -1 else expected,
        request.enable_2pc,
        request.keep_prepared_txn,
    )
    await context.broker.coordinators.import_coordinator(TRANSACTION_STATE_TOPIC)
    try:
        initialized = await context.broker.coordinators.transactions.service.submit_with_id(init)
    except KafkaError as error:
        raise downgrade_fenced_error(
            error, knows_fenced=context.version >= _FIRST_VERSION_WITH_FENCED
        ) from None
    response = InitProducerIdResponse(
        producer_id=initialized.producer.id, producer_epoch=initialized.producer.epoch
    )
    if initialized.ongoing is not None:
        response.ongoing_txn_producer_id = initialized.ongoing.id
        response.ongoing_txn_producer_epoch = initialized.ongoing.epoch
    return response
