"""ProducerIdControlManager: allocate producer ids to brokers in blocks of a thousand, each id only once."""

from __future__ import annotations

from typing import Final

from ottla.metadata.controller.state import ControllerState, Result
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from ottla.protocol.metadata_records import ProducerIdsRecord

PRODUCER_ID_BLOCK_SIZE: Final = 1_000


def allocate_producer_ids(
    state: ControllerState, request: AllocateProducerIdsRequest
) -> Result[AllocateProducerIdsResponse]:
    state.check_broker_epoch(request.broker_id, request.broker_epoch)
    first = max(0, state.image.next_producer_id)
    if first > 2**63 - 1 - PRODUCER_ID_BLOCK_SIZE:
        raise KafkaError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            "Exhausted all producerIds as the next block's end producerId would exceed the long type limit.",
        )
    record = ProducerIdsRecord(
        broker_id=request.broker_id,
        broker_epoch=request.broker_epoch,
        next_producer_id=first + PRODUCER_ID_BLOCK_SIZE,
    )
    response = AllocateProducerIdsResponse(producer_id_start=first, producer_id_len=PRODUCER_ID_BLOCK_SIZE)
    return Result([record], response)
