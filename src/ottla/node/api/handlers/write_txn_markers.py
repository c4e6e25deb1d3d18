"""WriteTxnMarkers: write the markers that end transactions to partitions that this broker leads.

Transaction coordinators on other brokers send it, and operators who abort a hanging transaction, for which
DescribeProducers gives them the producer, its epoch and the coordinator's. A marker in a partition of
`__consumer_offsets` also commits or drops the offsets of the transaction.

Version 1 is flexible (KIP-482).
Version 2 has the version of the transaction: a marker of version 2 must have a higher epoch than the
  records that it ends (KIP-1228).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from ottla.coordinator.runtime.effects import ProducerIdAndEpoch
from ottla.coordinator.transaction.requests import WriteMarkers
from ottla.node.api.context import RequestContext
from ottla.node.coordinators.transaction_marker_channel_manager import Codes
from ottla.protocol.acl import CLUSTER_NAME, AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ottla.protocol.names import TopicPartition
from ottla.runtime.steps import Steps, run_at_once
from ottla.runtime.turns import Turns
from ottla.runtime.work_queue import in_turns


def handle(context: RequestContext, request: WriteTxnMarkersRequest) -> Awaitable[WriteTxnMarkersResponse]:
    if not context.allowed(
        AclOperation.ALTER, AclResourceType.CLUSTER, CLUSTER_NAME, log_denied=False
    ) and not context.allowed(AclOperation.CLUSTER_ACTION, AclResourceType.CLUSTER, CLUSTER_NAME):
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return _write(context, request)


def failure_response(
    request: WriteTxnMarkersRequest, code: int, _message: str | None
) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(
        markers=[run_at_once(_result(marker, lambda _: ErrorCode.of(code))) for marker in request.markers]
    )


async def _write(context: RequestContext, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
    written: list[tuple[WritableTxnMarker, Codes | Awaitable[Codes]]] = []
    turns = Turns(context.broker.runtime.clock)
    for marker in request.markers:
        await turns.pause_if_due()
        partitions = await in_turns(_partitions(marker), turns)
        if marker.producer_id < 0 or marker.producer_epoch < 0:
            written.append((marker, dict.fromkeys(sorted(partitions), ErrorCode.INVALID_REQUEST)))
            continue
        codes = context.broker.coordinators.transactions.marker_channel_manager.write_here(
            WriteMarkers(
                transactional_id="",
                writer=ProducerIdAndEpoch(marker.producer_id, marker.producer_epoch),
                commit=marker.transaction_result,
                partitions=partitions,
                coordinator_epoch=marker.coordinator_epoch,
                client_version=marker.transaction_version,
            ),
            partitions,
        )
        written.append((marker, codes))
    results = []
    for marker, codes in written:
        if not isinstance(codes, Mapping):
            codes = await codes
        results.append(await in_turns(_result(marker, codes.__getitem__), turns))
        await turns.pause_if_due()
    return WriteTxnMarkersResponse(markers=results)


def _partitions(marker: WritableTxnMarker) -> Steps[frozenset[TopicPartition]]:
    partitions: set[TopicPartition] = set()
    for topic in marker.topics:
        for index in topic.partition_indexes:
            partitions.add(TopicPartition(topic.name, index))
            yield
    return frozenset(partitions)


def _result(
    marker: WritableTxnMarker, code: Callable[[TopicPartition], ErrorCode]
) -> Steps[WritableTxnMarkerResult]:
    result = WritableTxnMarkerResult(producer_id=marker.producer_id)
    for topic in marker.topics:
        answer = WritableTxnMarkerTopicResult(name=topic.name)
        result.topics.append(answer)
        for index in topic.partition_indexes:
            answer.partitions.append(
                WritableTxnMarkerPartitionResult(
                    partition_index=index, error_code=int(code(TopicPartition(topic.name, index)))
                )
            )
            yield
    return result
