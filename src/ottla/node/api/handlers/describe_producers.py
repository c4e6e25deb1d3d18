"""DescribeProducers: list the active producers of partitions, as their leader knows them."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from typing import Final

from ottla.log.producers.state_entry import ProducerStateEntry
from ottla.node.api.context import RequestContext
from ottla.node.api.deduplication import MAX_ITEMS_WITH_DUPLICATES
from ottla.protocol.acl import AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicRequest,
    TopicResponse,
)
from ottla.protocol.names import TopicPartition, invalid_topic_name
from ottla.runtime.turns import Turns

# Producers that are described before it is looked whether the turn is over.
_AT_ONCE: Final = 500


def handle(
    context: RequestContext, request: DescribeProducersRequest
) -> DescribeProducersResponse | Awaitable[DescribeProducersResponse]:
    topics = request.topics
    if sum(len(topic.partition_indexes) for topic in topics) > MAX_ITEMS_WITH_DUPLICATES:
        topics = _distinct(topics)
    described = DescribeProducersResponse()
    left = _describe(context, topics, described)
    if next(left, None) is None:
        return described
    context.is_bulky = True
    return _describe_in_turns(context, left, described)


async def _describe_in_turns(
    context: RequestContext, left: Iterator[int], described: DescribeProducersResponse
) -> DescribeProducersResponse:
    turns = Turns(context.broker.runtime.clock)
    await turns.pause()
    for _ in left:
        await turns.pause_if_due()
    return described


def _describe(
    context: RequestContext, topics: list[TopicRequest], described: DescribeProducersResponse
) -> Iterator[int]:
    """Describe the topics. Yields whenever so many producers were described that a turn may be over."""
    count = 0
    for topic in topics:
        error = _check_topic(context, topic.name)
        partitions: list[PartitionResponse] = []
        described.topics.append(TopicResponse(name=topic.name, partitions=partitions))
        for index in topic.partition_indexes:
            part = PartitionResponse(partition_index=index)
            partitions.append(part)
            if error is not None:
                part.error_code, part.error_message = int(error.code), error.message
                continue
            try:
                partition = context.broker.replicas.partition(TopicPartition(topic.name, index))
                partition.check_leader()
            except KafkaError as failure:
                part.error_code = int(failure.code)
                continue
            # A copy, as others run in between.
            for entry in list(partition.log.producer_state_manager.active_producers.values()):
                part.active_producers.append(_producer(entry))
                count += 1
                if count % _AT_ONCE == 0:
                    yield count


def _distinct(topics: list[TopicRequest]) -> list[TopicRequest]:
    indexes_by_topic: dict[str, dict[int, None]] = {}
    for topic in topics:
        indexes_by_topic.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    return [
        TopicRequest(name=name, partition_indexes=list(indexes)) for name, indexes in indexes_by_topic.items()
    ]


def _check_topic(context: RequestContext, topic: str) -> KafkaError | None:
    reason = invalid_topic_name(topic)
    if reason is not None:
        return KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, reason)
    if not context.allowed(AclOperation.READ, AclResourceType.TOPIC, topic):
        return KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if topic not in context.image.topics.by_name:
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return None


def _producer(entry: ProducerStateEntry) -> ProducerState:
    first_offset = entry.current_txn_first_offset
    return ProducerState(
        producer_id=entry.producer_id,
        producer_epoch=entry.producer_epoch,
        last_sequence=entry.last_sequence,
        last_timestamp=entry.last_timestamp,
        coordinator_epoch=entry.coordinator_epoch,
        current_txn_start_offset=-1 if first_offset is None else first_offset,
    )
